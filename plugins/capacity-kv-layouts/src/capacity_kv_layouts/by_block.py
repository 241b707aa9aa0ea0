"""KV heads that differ by layer, some of which have none: Nemotron-NAS."""

from __future__ import annotations

import attrs

from capacity_core.api.config_fields import as_int, count, layer_count
from capacity_core.api.kv_layouts import LayoutReading, ModelConfig, Serving
from capacity_core.errors import LayoutError
from capacity_core.units import COUNT
from capacity_core.values import Known, Origin, known
from capacity_kv_layouts.every_token import keeps_every_token
from capacity_kv_layouts.heads import LAYERS, copies_of, head_dims, kv_cache, query_heads
from capacity_kv_layouts.latent import has_latent
from capacity_kv_layouts.layers import assemble, one_framework

SOURCE = (
    "vLLM 0.33.0 vllm/model_executor/models/nemotron_nas.py; "
    "SGLang 0.5.23 srt/configs/model_config.py `get_total_num_kv_heads`"
)


@attrs.frozen(kw_only=True)
class ByBlock:
    """`block_configs`: every layer says how many query heads share a KV head, or that it has no
    attention. vLLM leaves out what has none; SGLang wants one number of heads and sizes every
    layer. More: references/kv-layouts.md#by-block."""

    name: str = "by-block"

    def applies(self, config: ModelConfig) -> bool:
        """Whether there are blocks, which only this family has."""
        rest = {name: field for name, field in config.items() if name != "block_configs"}
        return (
            isinstance(config.get("block_configs"), list)
            and bool(config["block_configs"])
            and not has_latent(config)
            and keeps_every_token(rest)
        )

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        """Bytes per token of one rank.

        Raises LayoutError when blocks are fewer than layers, say nothing of attention, or differ in
        a way that the engine refuses.
        """
        heads = query_heads(config, serving.placement)
        counted = layer_count(config, *LAYERS)
        layers = as_int(counted)
        blocks = config.get("block_configs")
        if not isinstance(blocks, list) or len(blocks) < layers:
            raise LayoutError(f"block_configs has no entry for each of the {layers} layers")
        by_layer = [_kv_heads(block, heads) for block in blocks[:layers]]
        named = [each for each in by_layer if each is not None]
        if not named:
            raise LayoutError("block_configs has no layer with attention")
        if one_framework(serving, "layers without attention") == "sglang":
            if len({each.number for each in named}) > 1:
                raise LayoutError("SGLang refuses KV heads that differ by layer (VGQA)")
            by_layer = [named[0]] * layers
        dims = head_dims(config, heads)
        return assemble(
            "GQA by block",
            [
                () if each is None else (kv_cache("keys and values", each, dims, serving),)
                for each in by_layer
            ],
            serving,
            counted=counted.evidence,
            replication=copies_of(named, serving.placement),
            formula="sum over attention layers of max(1, query heads // n_heads_in_group // "
            "attention_tensor) * 2 * head_dim * dtype_bytes",
            source=SOURCE,
        )


def _kv_heads(block: object, heads: Known) -> Known | None:
    attention = block.get("attention") if isinstance(block, dict) else None
    if not isinstance(attention, dict):
        raise LayoutError("a block of block_configs says nothing of attention")
    if attention.get("no_op") or attention.get("replace_with_linear"):
        return None
    group = as_int(count(attention, "n_heads_in_group", inside="block_configs"))
    if as_int(heads) % group:
        raise LayoutError(f"{heads.number} query heads do not divide into groups of {group}")
    return known(
        as_int(heads) // group,
        COUNT,
        Origin.THEORETICAL,
        name="kv_heads",
        how=f"{heads.number} query heads // {group} in a group",
        evidence=("config0:block_configs", *heads.evidence),
    )
