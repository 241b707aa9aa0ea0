"""Keys and values by KV heads with an index beside them that ranks do not share out: MiniMax-M3."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from capacity_core.api.config_fields import as_int, count, layer_count, section
from capacity_core.api.kv_layouts import LayoutReading, ModelConfig, Serving
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_TOKEN
from capacity_core.values import Known
from capacity_kv_layouts.every_token import keeps_every_token
from capacity_kv_layouts.heads import (
    LAYERS,
    head_dims,
    kv_cache,
    kv_heads_of,
    query_heads,
    shared_out,
)
from capacity_kv_layouts.latent import has_latent
from capacity_kv_layouts.layers import Cache, amount, assemble, one_framework

SOURCE = (
    "SGLang 0.5.23 srt/model_executor/pool_configurator.py:400; "
    "vLLM 0.33.0 vllm/models/minimax_m3/common/indexer.py"
)
_SECTION = "sparse_attention_config"
_MODEL_BYTES = 2  # the index is bf16 whatever the KV type


@attrs.frozen(kw_only=True)
class SparseIndex:
    """Sparse layers keep an index key of each token, and an index value where the file does not
    switch it off, whole on every rank. More: references/kv-layouts.md#sparse-index."""

    name: str = "sparse-index"

    def applies(self, config: ModelConfig) -> bool:
        """Whether it is MiniMax-M3's own section, and all that the file says beside full KV."""
        rest = {name: field for name, field in config.items() if name != _SECTION}
        told = config.get(_SECTION)
        return (
            isinstance(told, dict)
            and "sparse_attention_freq" in told
            and not has_latent(config)
            and keeps_every_token(rest)
        )

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        """Bytes per token of one rank.

        Raises LayoutError when a field is absent, null or shorter than the layers.
        """
        told = section(config, _SECTION)
        heads, kv_heads = query_heads(config, serving.placement), kv_heads_of(config)
        counted = layer_count(config, *LAYERS)
        layers = as_int(counted)
        main = kv_cache(
            "keys and values", kv_heads, head_dims(config, heads), _whole_bytes(serving)
        )
        sparse = _flags(told, "sparse_attention_freq", layers)
        framework = one_framework(serving, "the index of sparse layers")
        no_value = [True] * layers  # vLLM keeps keys alone
        if framework == "sglang":
            no_value = (
                _flags(told, "sparse_disable_index_value", layers)
                if told.get("sparse_disable_index_value") is not None
                else [False] * layers
            )
        dim = count(told, "sparse_index_dim", inside=_SECTION)
        return assemble(
            "GQA with a sparse index",
            [
                (main, _index(dim, keys_alone)) if indexed else (main,)
                for indexed, keys_alone in zip(sparse, no_value, strict=True)
            ],
            serving,
            counted=(*counted.evidence, f"config0:{_SECTION}.sparse_attention_freq"),
            replication=shared_out(kv_heads, serving.placement)[1],
            formula="layers * KV heads * 2 * head_dim * dtype_bytes + sparse layers * "
            "sparse_index_dim * 2 B",
            source=SOURCE,
            average_draft=framework == "sglang",
        )


def _whole_bytes(serving: Serving) -> Serving:
    """SGLang counts no scales here, and a byte for each element of these types
    (pool_configurator.py:476)."""
    if serving.framework == "sglang" and serving.dtype in ("mxfp8", "nvfp4"):
        return attrs.evolve(serving, dtype="fp8_e4m3")
    return serving


def _index(dim: Known, keys_alone: bool) -> Cache:
    sides, name = (1, "index key") if keys_alone else (2, "index key and value")
    how = f"{sides} * {dim.number} sparse_index_dim * {_MODEL_BYTES} B"
    cost = amount(sides * as_int(dim) * _MODEL_BYTES, BYTES_PER_TOKEN, how, dim)
    return Cache(
        name=name,
        per_token=cost,
        sharded=False,
        formula="sparse layers * sides * sparse_index_dim * 2 B",
        source=SOURCE,
    )


def _flags(told: Mapping[str, object], name: str, layers: int) -> list[bool]:
    listed = told.get(name)
    if not isinstance(listed, list) or len(listed) < layers:
        raise LayoutError(f"{name} has no entry for each of the {layers} layers")
    return [bool(each) for each in listed[:layers]]
