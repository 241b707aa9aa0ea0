"""Layers that keep a window or a chunk of the tokens, with layers that keep all: Gemma, gpt-oss,
MiMo-V2, Llama-4, Mistral and their kin.

The engines differ. vLLM frees what leaves a window in every such model. SGLang has a pool for
windows in the architectures of `_WINDOW_POOLS` alone; in all others the window only masks, and
every layer keeps every token. Layers that share the cache of an earlier one own nothing in vLLM,
and are sized like any other in SGLang.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import attrs

from capacity_core.api.config_fields import as_int, count, given, layer_count
from capacity_core.api.kv_layouts import Keeps, LayoutReading, ModelConfig, Serving
from capacity_core.errors import LayoutError
from capacity_core.units import COUNT
from capacity_core.values import Known
from capacity_kv_layouts.every_token import keeps_every_token, windows_off
from capacity_kv_layouts.heads import (
    LAYERS,
    copies_of,
    family_of,
    head_dims,
    kv_cache,
    kv_heads_of,
    query_heads,
)
from capacity_kv_layouts.layers import Cache, amount, assemble, one_framework

SOURCE = (
    "SGLang 0.5.23 srt/model_executor/pool_configurator.py `HybridSWAPoolConfigurator`, "
    "srt/configs/model_config.py `is_hybrid_swa_model`; vLLM 0.33.0 "
    "vllm/v1/kv_cache_interface.py `SlidingWindowSpec`, vllm/engine/arg_utils.py:2288"
)
# SGLang 0.5.23 srt/configs/model_config.py:2651; by their architecture, and where a file names none
# by their model type.
_WINDOW_POOLS = (
    "BeamForCausalLM",
    "DiffusionGemmaForBlockDiffusion",
    "EmbeddingGemma2Model",
    "MuseSparkForConditionalGeneration",  # by its class's `is_hybrid_swa`
    "Llama4ForConditionalGeneration",
    "GptOssForCausalLM",
    "GraniteSWAForCausalLM",
    "GraniteMoeSWAForCausalLM",
    "IQuestQ1ForCausalLM",
    "MiMoV2ForCausalLM",
    "MiMoV2FlashForCausalLM",
    "Step3p5ForCausalLM",
    "Step3p7ForConditionalGeneration",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "LagunaForCausalLM",
    "MellumForCausalLM",
    "MuseGlimmerForCausalLM",
    "MuseGlimmerForConditionalGeneration",
)
_WINDOW_POOL_TYPES = ("gpt_oss", "mimo_v2", "mimo_v2_flash", "step3p5", "gemma4", "gemma4_text")
_WINDOW_SHARE = Fraction(8, 10)
"""`swa_full_tokens_ratio` when it is not set (srt/arg_groups/fields/schedule.py)."""

# Where a file has no layer_types: every n-th layer keeps all (the defaults of the classes in
# transformers 5.24.0). The engines' loaders fill it in.
_EVERY = {
    "gemma2": 2,
    "vaultgemma": 2,
    "gpt_oss": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gemma3n": 5,
    "gemma3n_text": 5,
    "gemma4": 6,
    "gemma4_text": 6,
    "cohere2": 4,
    "olmo3": 4,
    "exaone4": 4,
}
# Their classes have patterns of their own.
_LISTED_ALONE = (
    "beam",
    "cwm",
    "granite_swa",
    "granitemoe_swa",
    "kolibri1",
    "mellum",
    "muse_glimmer",
    "muse_glimmer_text",
    "muse_spark",
    "muse_spark_text",
)
# Their code sees the token at the window's edge, too (vllm/model_executor/models/commandr.py:243).
_ONE_MORE = ("cohere2", "cohere2_moe", "cohere2_vision")
_FROM_LAYER = ("qwen2", "qwen2_vl", "qwen2_5_vl", "qwen2_audio", "qwen3", "qwen3_vl_text")
_EVERY_NTH = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
_BY_LAYER = ("layer_types", "hybrid_layer_pattern", "no_rope_layers", *_EVERY_NTH)
_FIELDS = (
    "num_attention_heads_per_layer",  # of queries
    "global_attn_every_n_layers",
    "sliding_window",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "sliding_window_size",
    "layer_types",
    "hybrid_layer_pattern",
    "attention_chunk_size",
    "use_sliding_window",
    "max_window_layers",
    "cache_implementation",
    "swa_num_key_value_heads",
    "swa_num_attention_heads",
    "swa_head_dim",
    "swa_v_head_dim",
    "swa_rope_theta",
    "num_kv_shared_layers",
    "global_head_dim",
    "num_global_key_value_heads",
    "attention_k_eq_v",
    "attention_other_setting",
    "no_rope_layers",
    "prefix_dense_sliding_window_pattern",
    "hidden_size_per_layer_input",
    "vocab_size_per_layer_input",
    "is_hybrid_swa",
)


@attrs.frozen(kw_only=True)
class Windows:
    """Sliding windows and chunks, by layer or in all layers. Figures are bytes of one rank; see the
    module. More: references/kv-layouts.md#windows."""

    name: str = "windows"

    def applies(self, config: ModelConfig) -> bool:
        """Whether windows, and layers that share, are all that the file says beside full KV."""
        rest = {name: field for name, field in config.items() if name not in _FIELDS}
        return (
            (_window_on(config) or bool(config.get("num_kv_shared_layers")))
            and "kv_lora_rank" not in config
            and keeps_every_token(rest)
            and _kinds_known(config)
        )

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        """Bytes per token of one rank, and of a token inside the window.

        Raises LayoutError when a field is absent or null, when heads cannot be shared out, and when
        no framework is named, because the engines differ.
        """
        framework = one_framework(serving, "sliding windows")
        heads = query_heads(config, serving.placement)
        counted = layer_count(config, *LAYERS)
        layers = as_int(counted)
        kinds = layer_kinds(config, layers, framework)
        pooled = framework != "sglang" or (_has_window_pool(config) and not serving.keeps_all)
        if not pooled:
            kinds = [Keeps.ALL] * layers
        own_pool = pooled and framework == "sglang"
        caches = {
            kind: _cache(config, kind, heads, serving, pooled=own_pool)
            for kind in dict.fromkeys(kinds)
        }
        owned = layers if framework == "sglang" else layers - _shared(config, layers)
        by_layer = [(caches[kind],) if i < owned else () for i, kind in enumerate(kinds)]
        windowed = any(kind is not Keeps.ALL for kind in kinds)
        _refuse_fp4_windows(framework, serving, windowed)
        kv_heads = _kv_heads(config, kinds[0])
        reading = assemble(
            f"{family_of(heads, kv_heads)} with windows"
            if windowed
            else family_of(heads, kv_heads),
            by_layer,
            serving,
            counted=(
                *counted.evidence,
                *(f"config0:{name}" for name in _BY_LAYER if config.get(name)),
            ),
            replication=copies_of([_kv_heads(config, kind) for kind in caches], serving.placement),
            formula="full layers * KV heads * (head_dim + v_head_dim) * dtype_bytes, and the same "
            "of window layers for each token inside the window",
            source=SOURCE,
            pool_ratio=_share(serving) if framework == "sglang" and windowed else None,
        )
        divisor = reading.pool_bytes_per_token
        if divisor is None or serving.window_share is not None:
            return reading
        default = f"swa_full_tokens_ratio is {float(_WINDOW_SHARE)}, its default"
        return attrs.evolve(reading, pool_bytes_per_token=divisor.assume(default))


def _share(serving: Serving) -> Fraction:
    return _WINDOW_SHARE if serving.window_share is None else Fraction(serving.window_share)


def layer_kinds(config: ModelConfig, layers: int, framework: str) -> list[Keeps]:
    """For each layer, whether it keeps all tokens, a window or a chunk.

    Raises LayoutError when a list is shorter than the layers or holds another word.
    """
    kind = config.get("model_type")
    own_class = framework == "vllm" and kind == "beam"  # all of whose layers have the window
    if kind in _LISTED_ALONE and config.get("layer_types") is None and not own_class:
        raise LayoutError(f"the configuration has no layer_types, which {kind} needs")
    if kind == "smollm3" and config.get("layer_types") is None:
        raise LayoutError("the configuration has no layer_types; no_rope_layers would tell them")
    if str(kind).startswith("llama4"):
        local: object = [(i + 1) % 4 for i in range(layers)]
        if framework != "sglang":  # which has that pattern alone (srt/configs/model_config.py:2705)
            local = config.get("no_rope_layers") or local
        return [
            Keeps.CHUNK if each else Keeps.ALL for each in _listed("no_rope_layers", local, layers)
        ]
    pattern = config.get("hybrid_layer_pattern")
    if pattern is not None:
        listed = _listed("hybrid_layer_pattern", pattern, layers)
        return [Keeps.WINDOW if each == 1 else Keeps.ALL for each in listed]
    types = config.get("layer_types")
    if types is not None:
        return [_word(each) for each in _listed("layer_types", types, layers)]
    if kind in _FROM_LAYER:
        return _from_layer(config, layers, framework)
    every = next((config[name] for name in _EVERY_NTH if config.get(name)), None)
    if isinstance(every, str):  # Exaone-4: LLLG
        return [Keeps.ALL if every[i % len(every)] == "G" else Keeps.WINDOW for i in range(layers)]
    if every is None:
        every = _EVERY.get(str(kind), 0)
    if not isinstance(every, int) or isinstance(every, bool) or every < 0:
        raise LayoutError(f"sliding_window_pattern is {every!r}, which is no number of layers")
    if every == 0:  # no word about layers: every one has the window
        return [Keeps.WINDOW] * layers
    kinds = [Keeps.WINDOW if (i + 1) % every else Keeps.ALL for i in range(layers)]
    if str(kind).startswith("gemma4"):
        kinds[-1] = Keeps.ALL
    return kinds


def _from_layer(config: ModelConfig, layers: int, framework: str) -> list[Keeps]:
    """Qwen2, Qwen3: windows from `max_window_layers` on (transformers 5.24.0
    configuration_qwen2.py:87); vLLM refuses a mix (vllm/model_executor/models/qwen2.py:351), SGLang
    keeps all of every layer."""
    if framework == "sglang":
        return [Keeps.ALL] * layers
    first = config.get("max_window_layers")
    if not isinstance(first, int) or isinstance(first, bool):
        raise LayoutError("the configuration has no max_window_layers")
    if 0 < first < layers:
        raise LayoutError(
            f"max_window_layers is {first} of {layers} layers: vLLM refuses a mix of windows and "
            "full attention in this model"
        )
    return [Keeps.ALL if first >= layers else Keeps.WINDOW] * layers


def _word(entry: object) -> Keeps:
    words = {
        "full_attention": Keeps.ALL,
        "sliding_attention": Keeps.WINDOW,
        "chunked_attention": Keeps.CHUNK,
    }
    if not isinstance(entry, str) or entry not in words:
        raise LayoutError(
            f"layer_types has {str(entry)[:40]!r}, which no engine's window code reads"
        )
    return words[entry]


def _listed(name: str, entries: object, layers: int) -> Sequence[object]:
    if not isinstance(entries, list) or len(entries) < layers:
        raise LayoutError(f"{name} has no entry for each of the {layers} layers")
    return entries[:layers]


def _kinds_known(config: ModelConfig) -> bool:
    types = config.get("layer_types")
    return not isinstance(types, list) or all(
        each in ("full_attention", "sliding_attention", "chunked_attention") for each in types
    )


def _window_on(config: ModelConfig) -> bool:
    names = ("sliding_window", "sliding_window_size", "attention_chunk_size")
    return not windows_off(config) and any(
        config.get(name) and config[name] != -1 for name in names
    )


def _has_window_pool(config: ModelConfig) -> bool:
    named = config.get("architectures")
    if isinstance(named, list) and named:
        return any(each in _WINDOW_POOLS for each in named) or bool(config.get("is_hybrid_swa"))
    return config.get("model_type") in _WINDOW_POOL_TYPES


def _cache(
    config: ModelConfig, keeps: Keeps, heads: Known, serving: Serving, *, pooled: bool
) -> Cache:
    names = {Keeps.ALL: "keys and values", Keeps.WINDOW: "window", Keeps.CHUNK: "chunk"}
    return kv_cache(
        names[keeps],
        _kv_heads(config, keeps),
        _dims(config, keeps, heads),
        serving,
        keeps=keeps,
        window=None if keeps is Keeps.ALL else _window(config, keeps),
        pooled=pooled,
        source=SOURCE,
    )


def _window(config: ModelConfig, keeps: Keeps) -> Known:
    if keeps is Keeps.CHUNK:
        return count(config, "attention_chunk_size", "sliding_window")
    window = count(config, "sliding_window", "sliding_window_size")
    kind, both = str(config.get("model_type")), config.get("use_bidirectional_attention")
    if kind in _ONE_MORE:
        tokens, how = as_int(window) + 1, f"{window.number} {window.name} + 1"
    elif both == "all" or (both is True and kind.startswith("gemma3")):
        # Half of it lies ahead (transformers 5.24.0 configuration_gemma3.py:101).
        tokens, how = as_int(window) // 2 + 1, f"{window.number} {window.name} // 2 + 1"
    else:
        return window
    return amount(tokens, COUNT, how, window)


def _kv_heads(config: ModelConfig, keeps: Keeps) -> Known:
    if keeps is Keeps.WINDOW and given(config, "swa_num_key_value_heads"):
        return count(config, "swa_num_key_value_heads")
    own = config.get("attention_k_eq_v") and given(config, "num_global_key_value_heads")
    if keeps is Keeps.ALL and own:
        return count(config, "num_global_key_value_heads")
    return kv_heads_of(config)


def _dims(config: ModelConfig, keeps: Keeps, heads: Known) -> tuple[Known, Known]:
    key, value = head_dims(config, heads)
    if keeps is Keeps.WINDOW and given(config, "swa_head_dim", "swa_v_head_dim"):
        key = count(config, "swa_head_dim") if given(config, "swa_head_dim") else key
        return key, count(config, "swa_v_head_dim") if given(config, "swa_v_head_dim") else key
    if keeps is Keeps.ALL and given(config, "global_head_dim"):
        key = count(config, "global_head_dim")
        return key, key
    return key, value


def _shared(config: ModelConfig, layers: int) -> int:
    """The last layers, which read the cache of an earlier one (vLLM 0.33.0
    vllm/v1/worker/gpu/attn_utils.py:143)."""
    field = config.get("num_kv_shared_layers")
    if field is None and str(config.get("model_type")).startswith("gemma3n"):
        raise LayoutError(
            "the configuration has no num_kv_shared_layers, for which engines take the default of "
            "the model's class; add the field"
        )
    if not field:
        return 0
    shared = as_int(count(config, "num_kv_shared_layers"))
    if shared >= layers:
        raise LayoutError(
            f"num_kv_shared_layers is {shared} of {layers} layers: none would keep KV"
        )
    return shared


def _refuse_fp4_windows(framework: str, serving: Serving, windowed: bool) -> None:
    if framework == "sglang" and windowed and serving.dtype in ("nvfp4", "fp4_mx_block16"):
        raise LayoutError(
            f"SGLang does not size window pools for {serving.dtype} "
            "(srt/model_executor/pool_configurator.py)"
        )
