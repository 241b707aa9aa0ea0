"""Whether every layer of a model keeps something of every token, as far as its configuration says.

A configuration tells of anything else by further fields only, and each family invents new names
for them. So the names are judged: those of known families, and those whose words say that layers
differ. In doubt the answer is no, which leaves a model without a figure rather than with a wrong
one. Families and their fields: references/kv-layouts.md#not-claimed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from capacity_core.api.kv_layouts import ModelConfig

# They vary the feed-forward part, the position encoding or a vision tower, which keep no KV.
_NO_ATTENTION = re.compile(
    r"moe|expert|mlp|ffn|sparse_step|rope|norm|vision|visual|image|audio|activation|sparsity"
)

_WINDOW = re.compile(r"window|sliding")

_OTHER_CACHE = re.compile(
    r"""
    # some tokens are dropped
    ^swa_ | local_att | attention_chunk | dual_chunk | is_hybrid
    # a state in place of tokens
    | mamba | ^ssm_ | ^conv_ | ^lru_ | rwkv | recurrent | hybrid
    # linear attention
    | ^linear_ | linear_att | lightning | delta_net | ^kda_ | ^full_att
    # compressed or indexed
    | kv_lora_dim | ^zaya | ^compress_
    | ^index(er)?_ | ^(use_)?sparse_ | blocksparse | ^nsa_ | ^moba_
    # shared by layers
    | kv_shared | shared_kv | share_kv | kv_source | k_eq_v
    # keys of another sequence
    | (en|de)coder_layers$ | is_encoder_decoder | cross_att
    # heads that differ by layer, layers told apart by a rule, layers that run several times
    | per_layer | block_config | mixer_type | ^global_(?!view) | ^num_global_
    | pattern$ | every_n | layer_group | att(entio)?n_(layer_|block_|type)
    | ^(loop_num|num_loops)$
    """,
    re.VERBOSE,
)

_OTHERWISE = ("zaya",)  # by its class, whatever the file says

# Every first layer is every layer. (Neither engine shares layers for `use_cla`: Hunyuan.)
_OFF_AT_ONE = ("full_attn_mod", "global_attn_every_n", "global_attn_every_n_layers")

_LAYERS = re.compile(r"layer|block")


def keeps_every_token(config: ModelConfig) -> bool:
    """Whether no field that is switched on says that a layer drops, shares or compresses tokens."""
    if config.get("model_type") in _OTHERWISE:
        return False
    return not any(_tells_otherwise(name, field, config) for name, field in config.items())


def _tells_otherwise(name: str, field: object, config: ModelConfig) -> bool:
    if not field or field == -1:  # null, false, 0, empty and -1 switch a feature off
        return False
    if name in _OFF_AT_ONE and field == 1:
        return False
    if name == "layer_types":
        return not _all(field, "full_attention")
    if name == "attn_type_list":  # MiniMax: 0 linear, 1 full
        return not _all(field, 1)
    if name == "cache_implementation":
        return field in ("hybrid", "sliding_window")
    if _WINDOW.search(name):
        return not windows_off(config) and name != "max_window_layers"
    if _NO_ATTENTION.search(name):
        return False
    return bool(_OTHER_CACHE.search(name)) or _varies(name, field, config)


def windows_off(config: ModelConfig) -> bool:
    """Whether a window that the file has is not used: it says so, or no engine's code reads it."""
    return config.get("use_sliding_window") is False or config.get("model_type") == "qwen2_moe"


def _varies(name: str, field: object, config: ModelConfig) -> bool:
    """Whether a list or mapping that nobody here knows seems to tell layers apart."""
    if isinstance(field, Mapping):
        return bool(_LAYERS.search(name))
    if not isinstance(field, Sequence) or isinstance(field, str):
        return False
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    differs = any(entry != field[0] for entry in field)
    return bool(_LAYERS.search(name)) or (len(field) == layers and differs)


def _all(field: object, entry: object) -> bool:
    return isinstance(field, Sequence) and all(each == entry for each in field)
