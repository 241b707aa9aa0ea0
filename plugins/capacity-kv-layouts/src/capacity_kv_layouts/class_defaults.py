"""Fields that files leave out because the model's class in transformers has them.

Engines read a file through that class. Only fields that files are seen to omit stand here: what a
head is, which windows there are, and, for a text model inside a wrapper, its sizes too; a file that
lacks its own sizes lacks them for us as well. Source: transformers 5.24.0
`models/*/configuration_*.py`.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping

import attrs

from capacity_core.api.config_fields import Completed
from capacity_core.api.kv_layouts import KVLayout, LayoutReading, ModelConfig, Serving
from capacity_kv_layouts.formats import refuse_type

_HEAD_DIM = {
    64: ("gpt_oss",),
    128: (
        "afmoe",
        "beam",
        "cohere2_moe",
        "cwm",
        "ernie4_5",
        "flint",
        "kolibri1",
        "glm",
        "glm4",
        "helium",
        "hy_v3",
        "internlm3",
        "laguna",
        "llama4_text",
        "mellum",
        "muse_glimmer",
        "muse_glimmer_text",
        "minimax_m2",
        "ministral3",
        "nemotron_h",
        "paddleocr_vl",
        "paddleocr_vl_text",
        "qwen3",
        "qwen3_vl_text",
        "seed_oss",
        "solar_open",
        "step3p5",
    ),
    192: ("mimo_v2_flash",),
    256: (
        "gemma",
        "gemma2",
        "gemma3_text",
        "gemma3n_text",
        "gemma4_text",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "step3_text",
        "vaultgemma",
    ),
}
_WINDOWS = {
    "cohere2": {"sliding_window": 4096},
    "gemma2": {"sliding_window": 4096},
    "gemma3_text": {"sliding_window": 4096},
    "gemma3n_text": {"sliding_window": 512, "num_kv_shared_layers": 15},
    "beam": {"sliding_window": 512},
    "gemma4_text": {"sliding_window": 512, "num_kv_shared_layers": 0, "global_head_dim": 512},
    "granite_swa": {"sliding_window": 128},
    "granitemoe_swa": {"sliding_window": 128},
    "kolibri1": {"sliding_window": 513},
    "gpt_oss": {"sliding_window": 128},
    "llama4_text": {"attention_chunk_size": 8192},
    "ministral": {"sliding_window": 4096},
    "mistral": {"sliding_window": 4096},
    "olmo3": {"sliding_window": 4096},
    "vaultgemma": {"sliding_window": 4096},
}
_WINDOWS_OFF = (
    "qwen2",
    "qwen2_5_omni_text",
    "qwen2_5_vl",
    "qwen2_5_vl_text",
    "qwen2_audio",
    "qwen2_moe",
    "qwen2_vl",
    "qwen2_vl_text",
    "qwen3",
    "qwen3_moe",
    "smollm3",
)
_SIZES = {
    "gemma": (28, 16, 16, 3072),
    "gemma2": (26, 8, 4, 2304),
    "gemma3_text": (26, 8, 4, 2304),
    "gemma3n_text": (35, 8, 2, 2048),
    "gemma4_text": (30, 8, 4, 2304),
    "llama": (32, 32, None, 4096),
    "mistral": (32, 32, 8, 4096),
    "qwen2": (32, 32, 32, 4096),
}
"""Layers, query heads, KV heads (None: as many as query heads), hidden size."""


def _by_type() -> Mapping[str, Mapping[str, object]]:
    found: dict[str, dict[str, object]] = {
        "falcon": {"multi_query": True},
        "gpt_bigcode": {"multi_query": True},
        "glm_moe_dsa": {"index_topk": 2048},
        "mimo_v2_flash": {"v_head_dim": 128},
        "jamba": {"attn_layer_period": 8, "attn_layer_offset": 4},
    }
    for dim, types in _HEAD_DIM.items():
        for kind in types:
            found.setdefault(kind, {})["head_dim"] = dim
    for kind, fields in _WINDOWS.items():
        found.setdefault(kind, {}).update(fields)
    for kind in _WINDOWS_OFF:
        found.setdefault(kind, {})["use_sliding_window"] = False
    return found


_DEFAULTS = _by_type()
_OWN_CLASS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "sglang": {"afmoe": {}},
    "vllm": {"beam": {"sliding_window": 4096}},
}
"""Model types whose class is the engine's own, with its defaults (SGLang 0.5.23
srt/configs/afmoe.py; vLLM 0.33.0 vllm/transformers_utils/configs/beam.py)."""

_TYPES = {
    "LongcatFlashForCausalLM": "longcat_flash",
    "LongcatFlashNgramForCausalLM": "longcat_flash",
}
"""Model types of architectures whose files name none (SGLang 0.5.23
srt/utils/hf_transformers/config.py:154; vLLM 0.33.0 vllm/transformers_utils/config.py:180)."""


_OF_WRAPPER: Mapping[str, Mapping[str, object]] = {
    "VoxtralForConditionalGeneration": {
        "head_dim": 128,
        "hidden_size": 3072,
        "num_attention_heads": 32,
        "num_hidden_layers": 30,
        "num_key_value_heads": 8,
    }
}
"""What a wrapper's class has for its text model, in place of the text model's own class
(configuration_voxtral.py)."""


def filled(config: ModelConfig, framework: str | None = None) -> ModelConfig:
    """The configuration with what its class adds; a field that is null is not absent."""
    kind = str(config.get("model_type"))
    if config.get("model_type") is None:
        of_name = [kind for name, kind in _TYPES.items() if name in _architectures(config)]
        return {**config, "model_type": of_name[0]} if of_name else config
    own = _OWN_CLASS.get(str(framework), {}).get(kind)
    wrapper = next((name for name in _architectures(config) if name in _OF_WRAPPER), None)
    defaults = _DEFAULTS.get(kind, {}) if wrapper is None else _OF_WRAPPER[wrapper]
    defaults = defaults if own is None else own
    added = {k: v for k, v in defaults.items() if k not in config}
    nested = config.get("text_config")
    wrapped = nested if isinstance(nested, dict) and nested.get("model_type") == kind else None
    if kind in _SIZES and wrapped is not None and wrapper is None:
        layers, heads, kv_heads, hidden = _SIZES[kind]
        sizes = {
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads or config.get("num_attention_heads", heads),
            "hidden_size": hidden,
        }
        added |= {k: v for k, v in sizes.items() if k not in wrapped}
    if not added:
        return config
    if wrapper is not None:
        return Completed(config, added, said=f"the class of {wrapper}", by="architectures")
    whose = "transformers'" if own is None else f"{framework}'s own"
    return Completed(config, added, said=f"{whose} class of {kind}", by="model_type")


def _architectures(config: ModelConfig) -> list[str]:
    named = config.get("architectures")
    return [each for each in named if isinstance(each, str)] if isinstance(named, list) else []


@functools.cache
def _registered() -> frozenset[str]:
    """The architectures that SGLang 0.5.23 (srt/models) or vLLM 0.33.0
    (vllm/model_executor/models/registry.py) names."""
    listed = importlib.resources.files("capacity_kv_layouts") / "architectures.txt"
    return frozenset(listed.read_text(encoding="utf-8").split())


def _unregistered(config: ModelConfig) -> tuple[str, ...]:
    """What a reading assumes of an architecture that no engine names."""
    named = _architectures(config)
    if any(each in _registered() for each in named) or (not named and config.get("model_type")):
        return ()
    who = f"{named[0]} is no architecture" if named else "the file names no architecture"
    return (f"{who} that SGLang or vLLM is known to serve: its fields mean what they do elsewhere",)


_SWITCHES = ("index_topk", "multi_query", "use_sliding_window", "num_kv_shared_layers")
"""Defaults that decide which caches there are, and are in no figure: all figures rest on them."""


def _switched(config: ModelConfig) -> tuple[str, ...]:
    """What a reading assumes of such defaults."""
    if not isinstance(config, Completed):
        return ()
    windowless = not config.get("sliding_window")
    return tuple(
        config.why(name)
        for name in _SWITCHES
        if name in config.defaults and not (windowless and name == "use_sliding_window")
    )


@attrs.frozen
class OfClass:
    """A layout that reads files as their classes do, and says where no engine names the class."""

    layout: KVLayout

    @property
    def name(self) -> str:
        return self.layout.name

    def applies(self, config: ModelConfig) -> bool:
        """Whether the layout knows every layer of the model."""
        return self.layout.applies(filled(config))

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        """The caches of one rank. Raises LayoutError as the layout does."""
        refuse_type(serving)
        completed = filled(config, serving.framework)
        reading = self.layout.read(completed, serving)
        assumed = (*_switched(completed), *_unregistered(config))
        return attrs.evolve(reading, assumes=(*reading.assumes, *assumed)) if assumed else reading
