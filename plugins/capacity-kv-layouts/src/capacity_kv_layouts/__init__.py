"""The general KV layouts: heads of keys and values, and the latent of DeepSeek-V2 and V3."""

from __future__ import annotations

from capacity_core.api import hookimpl
from capacity_core.api.kv_layouts import KVLayout
from capacity_kv_layouts.grouped_query import GroupedQuery
from capacity_kv_layouts.latent import Latent


@hookimpl
def capacity_kv_layouts() -> tuple[KVLayout, ...]:
    return (GroupedQuery(), Latent())
