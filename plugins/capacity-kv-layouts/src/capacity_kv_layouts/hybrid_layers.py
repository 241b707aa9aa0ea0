"""Which layers of a hybrid have attention and which a state, by the ways that files say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from capacity_core.api.config_fields import as_int, count, given, layer_count, section
from capacity_core.api.kv_layouts import ModelConfig
from capacity_core.errors import LayoutError

ATTENTION, STATE, BOTH, NEITHER = "attention", "state", "both", "neither"
KDA_SECTION = "linear_attn_config"

LayerKinds = Callable[[ModelConfig], Sequence[str]]
"""For every layer of a configuration, one of the four above."""

_WORDS = {
    "*": ATTENTION,
    "attention": ATTENTION,
    "full_attention": ATTENTION,
    "M": STATE,
    "mamba": STATE,
    "linear_attention": STATE,
    "conv": STATE,
    "short_conv": STATE,
    "hybrid": BOTH,  # Zamba-2
    "-": NEITHER,
    "E": NEITHER,
    "mlp": NEITHER,
    "moe": NEITHER,
}


def _worded(name: str, entries: object) -> list[str]:
    if not isinstance(entries, list | str) or not entries:
        raise LayoutError(f"{name} is no list of layers")
    unknown = [each for each in entries if not isinstance(each, str) or each not in _WORDS]
    if unknown:
        raise LayoutError(f"{name} has {str(unknown[0])[:40]!r}, which is no kind of layer known")
    return [_WORDS[each] for each in entries]


def by_words(*names: str) -> LayerKinds:
    """The first of these lists (or patterns) that the file has, cut to its layers."""

    def kinds(config: ModelConfig) -> list[str]:
        for name in names:
            if config.get(name):
                listed = _worded(name, config[name])
                if name != "layer_types":
                    return listed
                # A pattern is the model's length; a list of types may go on for a draft.
                layers = _layers(config)
                if len(listed) < layers:
                    raise LayoutError(f"{name} has {len(listed)} entries for {layers} layers")
                return listed[:layers]
        raise LayoutError(f"the configuration has no {' or '.join(names)}")

    return kinds


def _layers(config: ModelConfig) -> int:
    return as_int(layer_count(config, "num_hidden_layers"))


def by_interval(config: ModelConfig) -> list[str]:
    """Qwen3-Next: SGLang reads the interval, vLLM the list; files have either or both, in step."""
    if given(config, "full_attention_interval"):
        every = as_int(count(config, "full_attention_interval"))
        return [STATE if (i + 1) % every else ATTENTION for i in range(_layers(config))]
    return list(by_words("layer_types", "layers_block_type")(config))


def by_period(config: ModelConfig) -> list[str]:
    if config.get("layers_block_type"):
        return list(by_words("layers_block_type")(config))
    period = as_int(count(config, "attn_layer_period"))
    offset = config.get("attn_layer_offset")
    if not isinstance(offset, int):
        raise LayoutError("the configuration has no attn_layer_offset")
    return [ATTENTION if i % period == offset else STATE for i in range(_layers(config))]


def by_numbers(name: str) -> LayerKinds:
    """Layers of attention by their numbers, counted from 0."""

    def kinds(config: ModelConfig) -> list[str]:
        listed = config.get(name)
        if not isinstance(listed, list):
            raise LayoutError(f"the configuration has no {name}")
        return [ATTENTION if i in listed else STATE for i in range(_layers(config))]

    return kinds


def by_words_or_numbers(config: ModelConfig) -> Sequence[str]:
    return (by_words("layer_types") if config.get("layer_types") else by_numbers("full_attn_idxs"))(
        config
    )


def by_linear_section(config: ModelConfig) -> list[str]:
    """Layers are counted from 1 (SGLang 0.5.23 srt/configs/kimi_linear.py)."""
    linear = section(config, KDA_SECTION)
    states_in, full = linear.get("kda_layers"), linear.get("full_attn_layers")
    if isinstance(states_in, list):
        return [STATE if i + 1 in states_in else ATTENTION for i in range(_layers(config))]
    if isinstance(full, list):
        return [ATTENTION if i + 1 in full else STATE for i in range(_layers(config))]
    raise LayoutError("linear_attn_config has neither kda_layers nor full_attn_layers")


def by_groups(config: ModelConfig) -> list[str]:
    """MiniMax-Text: 0 linear, 1 full. Ring, Ling: the last of every group keeps tokens; with KDA
    so do layers behind the last whole group (vLLM 0.33.0 models/bailing_moe_v3.py:131)."""
    listed = config.get("attn_type_list")
    if isinstance(listed, list):
        if len(listed) < _layers(config):
            raise LayoutError("attn_type_list has no entry for each layer")
        return [ATTENTION if each == 1 else STATE for each in listed[: _layers(config)]]
    size, layers = as_int(count(config, "layer_group_size")), _layers(config)
    rest = layers // size * size if config.get("short_conv_kernel_size") is not None else layers
    return [ATTENTION if (i + 1) % size == 0 or i >= rest else STATE for i in range(layers)]


def everywhere(kind: str) -> LayerKinds:
    def kinds(config: ModelConfig) -> list[str]:
        return [kind] * _layers(config)

    return kinds
