"""The general KV layouts: a module each, and the one way in which all of them add up (`layers`)."""

from __future__ import annotations

from capacity_core.api import hookimpl
from capacity_core.api.kv_layouts import KVLayout
from capacity_kv_layouts.by_block import ByBlock
from capacity_kv_layouts.class_defaults import OfClass
from capacity_kv_layouts.encoder_decoder import CrossAttention, EncoderDecoder
from capacity_kv_layouts.grouped_query import GroupedQuery
from capacity_kv_layouts.hybrids import Hybrid
from capacity_kv_layouts.latent import Latent
from capacity_kv_layouts.sparse_index import SparseIndex
from capacity_kv_layouts.windows import Windows


@hookimpl
def capacity_kv_layouts() -> tuple[KVLayout, ...]:
    layouts = (
        ByBlock(),
        CrossAttention(),
        EncoderDecoder(),
        GroupedQuery(),
        Hybrid(),
        Latent(),
        SparseIndex(),
        Windows(),
    )
    return tuple(OfClass(layout) for layout in layouts)
