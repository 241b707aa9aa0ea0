"""Keys and values by KV heads in every layer: multi-head, grouped-query, multi-query attention."""

from __future__ import annotations

import attrs

from capacity_core.api.config_fields import as_int, layer_count
from capacity_core.api.kv_layouts import LayoutReading, ModelConfig, Serving, plain_type
from capacity_core.values import Known, Origin, text
from capacity_kv_layouts.every_token import keeps_every_token
from capacity_kv_layouts.heads import (
    KV_HEADS,
    LAYERS,
    QUERY_HEADS,
    SOURCE,
    family_of,
    head_dims,
    kv_cache,
    kv_heads_of,
    query_heads,
    shared_out,
)
from capacity_kv_layouts.latent import has_latent
from capacity_kv_layouts.layers import assemble


@attrs.frozen(kw_only=True)
class GroupedQuery:
    """MHA, GQA, MQA: a layer keeps a key and a value of each token for each KV head of the rank.

    Tensor parallel divides the KV heads, and once it exceeds them replicates each over
    attention_tensor // kv_heads ranks. Figures are bytes of one rank.

    Sources: SGLang 0.5.23 srt/configs/model_config.py `get_num_kv_heads` and
    srt/model_executor/pool_configurator.py `_compute_cell_size`; vLLM 0.33.0
    vllm/v1/kv_cache_interface.py `AttentionSpec`. More: references/kv-layouts.md#grouped-query.
    """

    name: str = "grouped-query"

    def applies(self, config: ModelConfig) -> bool:
        """Whether the model has attention heads, no latent, and full attention in every layer."""
        has_heads = any(name in config for name in (*QUERY_HEADS, *KV_HEADS))
        return has_heads and not has_latent(config) and keeps_every_token(config)

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        """Bytes per token of one rank, B/token; without a type that is known the replication alone.

        Raises LayoutError when a field is absent, null or no whole number of at least 1, and when
        heads cannot be shared out among the ranks.
        """
        heads, kv_heads = query_heads(config, serving.placement), kv_heads_of(config)
        _, replication = shared_out(kv_heads, serving.placement)
        layers = layer_count(config, *LAYERS)
        unquantized = _never_quantized(config, serving)
        if unquantized is not None:
            serving = attrs.evolve(serving, dtype=str(unquantized.amount))
        cache = kv_cache("keys and values", kv_heads, head_dims(config, heads), serving)
        return assemble(
            family_of(heads, kv_heads),
            [(cache,)] * as_int(layers),
            serving,
            counted=layers.evidence,
            replication=replication,
            formula="layers * max(1, kv_heads // attention_tensor) * (head_dim + v_head_dim)"
            " * dtype_bytes",
            source=SOURCE,
            dtype=unquantized,
        )


def _never_quantized(config: ModelConfig, serving: Serving) -> Known | None:
    """The model's own type, where the engine keeps KV in it whatever was asked for: vLLM's Falcon
    gives its attention no cache configuration (0.33.0 vllm/model_executor/models/falcon.py:173)."""
    own = config.get("dtype") or config.get("torch_dtype")
    if serving.framework != "vllm" or config.get("model_type") != "falcon" or own is None:
        return None
    how = "vLLM's Falcon keeps KV in the model's own type"
    return text(plain_type(str(own)), Origin.THEORETICAL, how=how)
