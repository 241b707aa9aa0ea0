"""One latent per token and layer in place of keys and values, with or without an index beside it:
DeepSeek-V2, V3, R1, V3.2, Kimi-K2, GLM-5 and their kin."""

from __future__ import annotations

import attrs

from capacity_core.api.config_fields import as_int, cited, count, layer_count
from capacity_core.api.kv_layouts import (
    LayoutReading,
    ModelConfig,
    Placement,
    Serving,
    element_bytes,
)
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_TOKEN, COUNT
from capacity_core.values import Known, Origin, Unknown, Value, known
from capacity_kv_layouts.every_token import keeps_every_token
from capacity_kv_layouts.heads import LAYERS, kv_cache, query_heads, shared_out
from capacity_kv_layouts.layers import Cache, amount, assemble, one_framework, type_unknown

# Named, because the same fields mean something else elsewhere: MiniCPM3 is latent in SGLang alone.
# SGLang 0.5.23 srt/configs/model_config.py `_derive_model_shapes`; vLLM 0.33.0
# vllm/transformers_utils/model_arch_config_convertor.py `is_deepseek_mla`.
_MODEL_TYPES = (
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_vl_v2",
    "glm_moe_dsa",
    "glm4_moe_lite",
    "kimi_k2",
    "kimi_vl",
    "longcat_flash",
    "pangu_ultra_moe",
    "sarvam_mla",
    "axk1",
)
_EXPANDED_IN_VLLM = ("minicpm3",)

SOURCE = (
    "SGLang 0.5.23 srt/mem_cache/kv_cache_configurator.py `calculate_mla_kv_cache_dim`; "
    "vLLM 0.33.0 vllm/model_executor/layers/attention/mla_attention.py `get_kv_cache_spec`"
)
_INDEX_SOURCE = (
    "SGLang 0.5.23 srt/model_executor/pool_configurator.py; "
    "vLLM 0.33.0 vllm/model_executor/models/deepseek_v2.py"
)
# Packed rows of the sparse kernels, for a latent of 512 and a rotary key of 64: fp8 with a scale of
# 4 B for each 128 and a rotary key of 2 B; fp4 with scales and a rotary key.
_ROWS = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
# Half a byte an element, and a scale for each 16 (pool_configurator.py:380).
_FP4 = ("nvfp4", "fp4_mx_block16")


@attrs.frozen(kw_only=True)
class Latent:
    """MLA: a layer keeps one latent and one rotary key of each token, whatever its heads; DSA: an
    index key beside them, in layers that choose tokens themselves.

    There is nothing to divide: every tensor-parallel rank holds the whole. Figures are bytes of
    one rank. More: references/kv-layouts.md#latent.
    """

    name: str = "latent"

    def applies(self, config: ModelConfig) -> bool:
        """Whether it is a known type with a latent in every layer."""
        known_types = (*_MODEL_TYPES, *_EXPANDED_IN_VLLM)
        return (
            (config.get("model_type") in known_types or _is_untyped(config))
            and "kv_lora_rank" in config
            and (config.get("kv_lora_rank") is not None or "use_mla" not in config)
            and config.get("use_mla") is not False
            and keeps_every_token(_without_index(config))
        )

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        """Bytes per token of one rank, B/token; without a type that is known the replication alone.

        Raises LayoutError when a field is null or no whole number of at least 1.
        """
        heads = query_heads(config, serving.placement)
        differs = config.get("model_type") in _EXPANDED_IN_VLLM
        if differs and one_framework(serving, "this latent") == "vllm":
            return _expanded(config, heads, serving)
        layers = layer_count(config, *LAYERS)
        indexed = bool(config.get("index_topk"))
        main = latent_cache(config, serving, indexed=indexed)
        index = index_cache(config, serving) if indexed else None
        # LongCat-Flash has two attentions in a layer (srt/configs/model_config.py:1583).
        attentions = 2 if config.get("model_type") == "longcat_flash" else 1
        caches = [
            (main, *_index_of(config, layer, index, serving)) * attentions
            for layer in range(as_int(layers))
        ]
        return assemble(
            "DSA" if indexed else "MLA",
            caches,
            serving,
            counted=layers.evidence,
            replication=one_latent(serving.placement, main),
            formula="layers * (kv_lora_rank + qk_rope_head_dim) * dtype_bytes"
            + (" + indexing layers * (index_head_dim + scales)" if indexed else ""),
            source=SOURCE,
            dtype=_by_device(serving) if indexed else None,
        )


_DEVICE_DECIDES = "auto is fp8_e4m3 or bf16 here, by the device, which is not said"


def _by_device(serving: Serving) -> Value | None:
    """SGLang's `auto` of a sparse model: fp8_e4m3 on SM100 and later, else bf16
    (srt/arg_groups/overrides.py:491)."""
    if not _device_decides(serving):
        return None
    return Unknown(why=_DEVICE_DECIDES)


def _device_decides(serving: Serving) -> bool:
    return serving.framework == "sglang" and serving.dtype_assumed and serving.device != "npu"


def _expanded(config: ModelConfig, heads: Known, serving: Serving) -> LayoutReading:
    """Keys and values of all heads, as long as both parts of the key (vLLM 0.33.0
    vllm/model_executor/models/minicpm3.py:72)."""
    parts = count(config, "qk_nope_head_dim"), count(config, "qk_rope_head_dim")
    dim = known(
        as_int(parts[0]) + as_int(parts[1]),
        COUNT,
        Origin.THEORETICAL,
        name="head_dim",
        how="qk_nope_head_dim + qk_rope_head_dim",
        evidence=cited(*parts),
    )
    layers = layer_count(config, *LAYERS)
    return assemble(
        "MHA",
        [(kv_cache("keys and values", heads, (dim, dim), serving),)] * as_int(layers),
        serving,
        counted=layers.evidence,
        replication=shared_out(heads, serving.placement)[1],
        formula="layers * heads // attention_tensor * 2 * (qk_nope_head_dim + qk_rope_head_dim)"
        " * dtype_bytes",
        source="vLLM 0.33.0 vllm/model_executor/models/minicpm3.py:72",
    )


def _is_untyped(config: ModelConfig) -> bool:
    """Whether a file that names no type has DeepSeek's fields, and no other architecture."""
    named = config.get("architectures")
    others = isinstance(named, list) and not all(str(n).startswith("Deepseek") for n in named)
    return "model_type" not in config and "qk_rope_head_dim" in config and not others


_SPLIT_KEYS = ("qk_nope_head_dim", "qk_rope_head_dim", "qk_nope_dim", "qk_rope_dim")


def has_latent(config: ModelConfig) -> bool:
    """Whether there is a latent that `use_mla` leaves on, or a key of two parts."""
    split = any(config.get(name) for name in _SPLIT_KEYS)
    return split or ("kv_lora_rank" in config and config.get("use_mla") is not False)


def one_latent(placement: Placement, cache: Cache) -> Known:
    """The replication of what tensor parallel does not divide."""
    ranks = placement.attention_tensor
    return known(
        ranks,
        COUNT,
        Origin.THEORETICAL,
        how="one rank" if ranks == 1 else f"each of {ranks} ranks holds the whole latent",
        evidence=() if cache.per_token is None else cache.per_token.evidence,
    )


def _index_of(
    config: ModelConfig, layer: int, index: Cache | None, serving: Serving
) -> tuple[Cache, ...]:
    return () if index is None or shares_index(config, layer, serving) else (index,)


def latent_cache(
    config: ModelConfig, serving: Serving, *, indexed: bool, rotary_kept: bool = True
) -> Cache:
    """The latent and rotary key of one layer; without `rotary_kept` the latent alone.

    Raises LayoutError when a field is absent or null, and for a packed row of another geometry.
    """
    rank, rotary = count(config, "kv_lora_rank"), count(config, "qk_rope_head_dim")
    if not rotary_kept:
        rotary = known(0, COUNT, Origin.THEORETICAL, name="rotary", evidence=rotary.evidence)
    fields = f"{rank.number} kv_lora_rank + {rotary.number} qk_rope_head_dim"
    dtype = serving.dtype
    # The sparse kernels' own row (DSATokenToKVPool; vLLM takes fp8 for fp8_ds_mla).
    if indexed and dtype == "fp8_e4m3":
        dtype = "fp8_ds_mla"
    size = element_bytes(dtype)
    if indexed and _device_decides(serving):
        evidence = cited(rank, rotary)
        cost: Value = Unknown(why=_DEVICE_DECIDES, unit=BYTES_PER_TOKEN, evidence=evidence)
    elif size is not None:
        elements = as_int(rank) + as_int(rotary)
        cost = amount(elements * size, BYTES_PER_TOKEN, f"({fields}) * {size} B", rank, rotary)
    elif serving.framework == "sglang" and dtype in _FP4:
        elements = as_int(rank) + as_int(rotary)
        how = f"(({fields}) // 2 + {elements} // 16 scales) B"
        cost = amount(elements // 2 + elements // 16, BYTES_PER_TOKEN, how, rank, rotary)
    elif dtype in _ROWS:
        if (as_int(rank), as_int(rotary)) != (512, 64):
            raise LayoutError(f"rows of {dtype} are known for a latent of 512 + 64, not {fields}")
        how = f"{_ROWS[dtype]} B row of {dtype}"
        cost = amount(_ROWS[dtype], BYTES_PER_TOKEN, how, rank, rotary)
        if serving.dtype != dtype:
            cost = cost.assume(
                "rows with scales, 656 B; kernels with raw rows of 576 B (SGLang's trtllm, its "
                "default on SM100, and tilelang; vLLM's FlashInfer) are not in use"
            )
    else:
        cost = type_unknown(dtype, rank, rotary)
    return Cache(
        name="latent and rotary key",
        per_token=cost,
        formula="layers * (kv_lora_rank + qk_rope_head_dim) * dtype_bytes",
        source=SOURCE,
    )


def index_cache(config: ModelConfig, serving: Serving) -> Cache:
    """The index key of one layer: fp8 with a scale of 4 B for each 128 elements, whatever the KV
    type; on NPUs of SGLang in the KV type, where that is not fp8_e4m3."""
    dim = count(config, "index_head_dim")
    size = as_int(dim) + as_int(dim) // 128 * 4
    how = f"({dim.number} index_head_dim + {dim.number} // 128 * 4 scales) B"
    each = element_bytes(serving.dtype)
    if serving.framework == "sglang" and serving.device == "npu" and serving.dtype != "fp8_e4m3":
        size, how = as_int(dim) * (each or 0), f"{dim.number} index_head_dim * {each} B"
    cost: Value = amount(size, BYTES_PER_TOKEN, how, dim)
    if not size:
        cost = type_unknown(serving.dtype, dim)
    shared = serving.framework != "sglang"  # which prices it for all ranks (pool_configurator:560)
    return Cache(
        name="index key",
        per_token=cost,
        sharded=shared,
        formula="layers * (index_head_dim + scales) B",
        source=_INDEX_SOURCE,
    )


def _without_index(config: ModelConfig) -> ModelConfig:
    """The configuration but for what tells of an index, which this layout knows."""
    rest = {k: v for k, v in config.items() if not k.startswith("index")}
    types = config.get("layer_types")
    if isinstance(types, list) and all(each in _INDEXED_TYPES for each in types):
        del rest["layer_types"]
    return rest


_INDEXED_TYPES = ("full_attention", "indexed_attention", "deepseek_sparse_attention")


def shares_index(config: ModelConfig, layer: int, serving: Serving) -> bool:
    """Whether a layer takes the choice of one before it, and keeps no index key of its own
    (SGLang 0.5.23 srt/configs/model_config.py `dsa_layer_skips_topk`; vLLM 0.33.0
    vllm/model_executor/models/deepseek_v2.py:1145, which reads no `indexer_types`)."""
    kinds = config.get("indexer_types")
    if isinstance(kinds, list) and serving.framework != "vllm":
        return layer < len(kinds) and kinds[layer] == "shared"
    pattern = config.get("index_topk_pattern")
    if isinstance(pattern, str | list):
        return layer < len(pattern) and pattern[layer] == "S"
    if not config.get("index_topk_freq"):
        return False
    frequency = as_int(count(config, "index_topk_freq"))
    offset = 2
    if config.get("index_skip_topk_offset") is not None:
        offset = as_int(count(config, "index_skip_topk_offset"))
    return max(layer - offset + 1, 0) % frequency != 0
