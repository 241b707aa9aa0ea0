"""What a config.json of DeepSeek-V4 or V4.1 says of the KV cache, as each engine keeps it."""

from __future__ import annotations

import attrs

from capacity_core.api.kv_layouts import LayoutReading, ModelConfig, Serving
from capacity_core.errors import LayoutError
from capacity_core.units import COUNT
from capacity_core.values import Origin, Value, known, text
from capacity_deepseek_v4 import sglang, vllm
from capacity_deepseek_v4.layers import OWNERS, stage_of
from capacity_deepseek_v4.slots import CHOICES, MXFP4

_TYPES = ("deepseek_v4", "deepseek_v41", "deepseek_v41_text")
# The types that an engine's option can name for slots of these sizes.
_STORED = {
    "sglang": ("fp8_e4m3",),
    "vllm": ("fp8_e4m3", "fp8_ds_mla", "nvfp4_ds_mla"),
}
_COUNTED = {"sglang": "SGLang 0.5.23", "vllm": "vLLM 0.33.0"}
_INDEXED = ("v4", "v41", "v41_fp4")


@attrs.frozen(kw_only=True)
class DeepSeekV4:
    """DeepSeek-V4 and V4.1: one latent for all heads, compressed by a ratio that differs by layer.

    Every term shows the way from payload to page to what a token adds; the engines count pages,
    windows and states differently. Every tensor-parallel rank holds the whole latent. Neither
    configuration nor log says which slots are stored: `variants` name them.

    More: references/kv-layouts.md#deepseek-v4.
    """

    name: str = "deepseek-v4"
    variants: tuple[str, ...] = (*CHOICES, *(f"{name}{MXFP4}" for name in _INDEXED))

    def applies(self, config: ModelConfig) -> bool:
        """Whether it is one of these models, by its type and the fields that only they have."""
        return config.get("model_type", _TYPES[0]) in _TYPES and any(
            config.get(field) for field in OWNERS
        )

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        """Bytes per token, per token of the window and per request of one rank.

        Raises LayoutError for another latent, a KV type with other slots, a field that is absent or
        that no engine reads, and when no framework is named.
        """
        framework = serving.framework
        if framework is None:
            raise LayoutError("engines count these caches differently; name one with --framework")
        if framework not in _STORED:
            raise LayoutError(f"how {framework} stores this model is not known")
        in_vllm = framework == "vllm"
        stored = _STORED[framework]
        if serving.dtype not in stored and not serving.dtype_assumed and serving.dtype is not None:
            raise LayoutError(
                f"KV type {serving.dtype} has slots of its own; known are those of "
                f"{', '.join(stored)}"
            )
        early = not in_vllm and sglang.release_of(serving) < sglang.STAGED_SINCE
        stage = stage_of(config, serving.placement, untrimmed=early)
        terms = vllm.terms_of(stage, serving) if in_vllm else sglang.terms_of(stage, serving)
        ranks = serving.placement.attention_tensor
        return LayoutReading(
            family="DeepSeek-V4.1" if "kv_source_layer_ids" in config else "DeepSeek-V4",
            terms=terms,
            replication=known(
                ranks,
                COUNT,
                Origin.THEORETICAL,
                how="one rank" if ranks == 1 else f"each of {ranks} ranks holds the whole latent",
                evidence=stage.fields,
            ),
            formula="sum over owners of (slot with its share of the page + index key) / ratio",
            source=vllm.SOURCE if in_vllm else sglang.SOURCE,
            pool_bytes_per_token=vllm.divisor(stage, serving)
            if in_vllm
            else sglang.divisor(terms, stage, serving),
            dtype=_own_type(serving),
            assumes=_assumed(framework, serving.version),
        )


def _assumed(framework: str, version: str | None) -> tuple[str, ...]:
    """SGLang's releases are told apart; vLLM's rules are those of one."""
    told_apart = framework == "sglang" and version is not None
    same = version is not None and _COUNTED[framework].endswith(f" {version}")
    return () if told_apart or same else (f"counted as in {_COUNTED[framework]}",)


def _own_type(serving: Serving) -> Value | None:
    """Both engines take fp8 for `auto` (SGLang 0.5.23 srt/arg_groups/overrides.py)."""
    if not serving.dtype_assumed:
        return None
    stored = "fp8_ds_mla" if serving.framework == "vllm" else "fp8_e4m3"
    return text(stored, Origin.THEORETICAL, how="what auto is for this model")
