"""One latent per token and layer in place of keys and values: DeepSeek-V2, V3, R1, Kimi-K2."""

from __future__ import annotations

import attrs

from capacity_core.api.kv_layouts import CacheTerm, LayoutReading, ModelConfig, Placement
from capacity_core.units import COUNT
from capacity_core.values import Origin, known
from capacity_kv_layouts.config_fields import bytes_per_token, count, whole
from capacity_kv_layouts.every_token import keeps_every_token

# The same fields mean something else elsewhere: MiniCPM3 is latent in SGLang alone, LongCat-Flash
# has two attentions in a layer. So a configuration that names another type is not claimed.
_MODEL_TYPES = ("deepseek_v2", "deepseek_v3", "kimi_k2")


@attrs.frozen(kw_only=True)
class Latent:
    """MLA: a layer keeps one latent and one rotary key of each token, whatever its heads.

    There is nothing to divide: every tensor-parallel rank holds the whole. Figures are bytes of
    one rank.

    Sources: SGLang 0.5.23 srt/mem_cache/kv_cache_configurator.py `calculate_mla_kv_cache_dim`;
    vLLM 0.33.0 vllm/model_executor/layers/attention/mla_attention.py `get_kv_cache_spec`.
    More: references/kv-layouts.md#latent.
    """

    name: str = "latent"

    def applies(self, config: ModelConfig) -> bool:
        """Whether it is a known type with a latent in every layer and no index beside it."""
        return (
            config.get("model_type", _MODEL_TYPES[0]) in _MODEL_TYPES
            and "kv_lora_rank" in config
            and "qk_rope_head_dim" in config
            and config.get("use_mla") is not False
            and keeps_every_token(config)
        )

    def read(
        self, config: ModelConfig, placement: Placement, dtype_bytes: int | None
    ) -> LayoutReading:
        """Bytes per token of one rank, B/token; without `dtype_bytes` the replication alone.

        Raises LayoutError when a field is null or no whole number of at least 1.
        """
        layers = count(config, "num_hidden_layers")
        rank, rotary = count(config, "kv_lora_rank"), count(config, "qk_rope_head_dim")
        held = len(placement.layers(whole(layers)))
        size = bytes_per_token(
            held * (whole(rank) + whole(rotary)),
            f"{held} layers * ({rank.number} kv_lora_rank + {rotary.number} qk_rope_head_dim)",
            (layers, rank, rotary),
            dtype_bytes,
        )
        return LayoutReading(
            family="MLA",
            terms=(CacheTerm(name="latent and rotary key", layers=held, bytes_per_token=size),),
            replication=known(
                placement.attention_tensor,
                COUNT,
                Origin.THEORETICAL,
                how=f"every one of {placement.attention_tensor} ranks holds the one latent",
                evidence=rank.evidence,
            ),
            bytes_per_token=size,
            formula="layers * (kv_lora_rank + qk_rope_head_dim) * dtype_bytes",
            source="SGLang 0.5.23 srt/mem_cache/kv_cache_configurator.py;"
            " vLLM 0.33.0 vllm/model_executor/layers/attention/mla_attention.py",
        )
