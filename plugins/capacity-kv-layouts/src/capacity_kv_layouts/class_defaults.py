"""Fields that files leave out because the model's class in transformers has them.

Engines read a file through that class. Only fields that files are seen to omit stand here: what a
head is, which windows there are, and, for a text model inside a wrapper, its sizes too; a file that
lacks its own sizes lacks them for us as well. Source: transformers 5.24.0
`models/*/configuration_*.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from capacity_core.api.config_fields import Completed
from capacity_core.api.kv_layouts import KVLayout, LayoutReading, ModelConfig, Serving

_HEAD_DIM = {
    64: ("gpt_oss",),
    128: (
        "afmoe",
        "cohere2_moe",
        "cwm",
        "ernie4_5",
        "flint",
        "glm",
        "glm4",
        "helium",
        "hy_v3",
        "internlm3",
        "laguna",
        "llama4_text",
        "mellum",
        "minimax_m2",
        "ministral3",
        "nemotron_h",
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
        "vaultgemma",
    ),
}
_WINDOWS = {
    "cohere2": {"sliding_window": 4096},
    "gemma2": {"sliding_window": 4096},
    "gemma3_text": {"sliding_window": 4096},
    "gemma3n_text": {"sliding_window": 512, "num_kv_shared_layers": 15},
    "gemma4_text": {"sliding_window": 512, "num_kv_shared_layers": 0},
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


def filled(config: ModelConfig) -> ModelConfig:
    """The configuration with what its class adds; a field that is null is not absent."""
    kind = str(config.get("model_type"))
    added = {k: v for k, v in _DEFAULTS.get(kind, {}).items() if k not in config}
    nested = config.get("text_config")
    if kind in _SIZES and isinstance(nested, dict) and nested.get("model_type") == kind:
        layers, heads, kv_heads, hidden = _SIZES[kind]
        sizes = {
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads or config.get("num_attention_heads", heads),
            "hidden_size": hidden,
        }
        added |= {k: v for k, v in sizes.items() if k not in nested}
    return Completed(config, added, f"transformers' class of {kind}") if added else config


@attrs.frozen
class OfClass:
    """A layout that reads files as their classes do."""

    layout: KVLayout

    @property
    def name(self) -> str:
        return self.layout.name

    def applies(self, config: ModelConfig) -> bool:
        """Whether the layout knows every layer of the model."""
        return self.layout.applies(filled(config))

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        """The caches of one rank. Raises LayoutError as the layout does."""
        return self.layout.read(filled(config), serving)
