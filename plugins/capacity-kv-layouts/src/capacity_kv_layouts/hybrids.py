"""Models whose layers keep a state in place of tokens, alone or between layers of attention:
Nemotron-H, Falcon-H1, Granite-4, Bamba, Zamba-2, Jamba, Mamba, Qwen3-Next, Qwen3.5, Kimi-Linear,
Ring, MiniMax-Text, LFM2.

A family here is a row of `_FAMILIES`: by model type, how its layers are told apart and which state
and which attention they have.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from capacity_core.api.config_fields import as_int, count, given, section
from capacity_core.api.kv_layouts import LayoutReading, ModelConfig, Placement, Serving
from capacity_core.errors import LayoutError
from capacity_core.units import COUNT
from capacity_core.values import Known, Origin, known
from capacity_kv_layouts import states
from capacity_kv_layouts.heads import head_dims, kv_cache, kv_heads_of, query_heads, shared_out
from capacity_kv_layouts.hybrid_layers import (
    ATTENTION,
    BOTH,
    KDA_SECTION,
    STATE,
    LayerKinds,
    by_groups,
    by_interval,
    by_linear_section,
    by_numbers,
    by_period,
    by_words,
    by_words_or_numbers,
    everywhere,
)
from capacity_kv_layouts.latent import latent_cache, one_latent
from capacity_kv_layouts.layers import Cache, assemble, one_framework

_TELLING = (
    "num_hidden_layers",
    "hybrid_override_pattern",
    "layers_block_type",
    "layer_types",
    "full_attention_interval",
    "attn_layer_period",
    "attn_layer_offset",
    "attn_layer_indices",
    "full_attn_idxs",
    "attn_type_list",
    "layer_group_size",
    KDA_SECTION,
)


StateOf = Callable[[ModelConfig, Serving], Cache]


@attrs.frozen(kw_only=True)
class _Family:
    """One kind of hybrid: its name, which layers have attention and which a state, what state.

    `needs` are fields one of which must be on for the type to be this kind; `latent` says that its
    attention keeps one latent; `frameworks` which engines serve it, where not both do.
    """

    name: str
    kinds: LayerKinds
    state: StateOf
    needs: tuple[str, ...] = ()
    latent: bool = False
    frameworks: tuple[str, ...] = ("sglang", "vllm")


@attrs.frozen(kw_only=True)
class Hybrid:
    """States and attention by layer. Figures are bytes of one rank: a token costs in the layers of
    attention alone, a request one state in each of the others. More:
    references/kv-layouts.md#hybrids."""

    name: str = "hybrid"

    def applies(self, config: ModelConfig) -> bool:
        """Whether the model type is one of `_FAMILIES` and its file tells the layers apart."""
        family = _family(config)
        windowed = config.get("sliding_window") and config.get("use_sliding_window") is not False
        if family is None or windowed:
            return False
        return not family.needs or any(config.get(name) for name in family.needs)

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        """Bytes per token and per request of one rank.

        Raises LayoutError when a field is absent or null, when ranks cannot share it out, when no
        framework is named, and when the named one does not serve the model.
        """
        family = _family(config)
        if family is None:
            raise LayoutError(f"{config.get('model_type')} is no hybrid that is known")
        framework = one_framework(serving, "states")
        if framework not in family.frameworks:
            raise LayoutError(
                f"{framework} does not serve {config.get('model_type')} with a state; "
                f"{' and '.join(family.frameworks)} does"
            )
        kinds = family.kinds(config)
        if framework == "sglang" and family.latent and given(config, "layer_group_size"):
            _refuse_rest(config, len(kinds))
        has_attention = any(kind in (ATTENTION, BOTH) for kind in kinds)
        attention, replication = (
            _attention(config, serving, latent=family.latent)
            if has_attention
            else (None, _no_heads(serving.placement))
        )
        held = serving if has_attention else _without_attention(serving)
        state = family.state(config, held) if set(kinds) & {STATE, BOTH} else None
        return assemble(
            f"{family.name} hybrid" if has_attention else f"{family.name}, attention-free",
            [
                (
                    *((attention,) if attention and kind in (ATTENTION, BOTH) else ()),
                    *((state,) if state and kind in (STATE, BOTH) else ()),
                )
                for kind in kinds
            ],
            serving,
            counted=tuple(f"config0:{name}" for name in _TELLING if config.get(name)),
            replication=replication,
            formula="attention layers * bytes of a token + state layers * bytes of a state",
            source=states.SOURCE,
        )


def _without_attention(serving: Serving) -> Serving:
    """A model without attention has no data parallel of it: SGLang shares its states out among all
    ranks (srt/configs/mamba.py:30, mamba2.py:44)."""
    placement = serving.placement
    if serving.framework != "sglang":
        return serving
    ranks = placement.attention_tensor * placement.attention_data
    return attrs.evolve(serving, placement=attrs.evolve(placement, attention_tensor=ranks))


def _refuse_rest(config: ModelConfig, layers: int) -> None:
    size = as_int(count(config, "layer_group_size"))
    if layers % size:
        raise LayoutError(
            f"layer_group_size {size} does not divide {layers} layers, which SGLang refuses"
        )


def _family(config: ModelConfig) -> _Family | None:
    kind = str(config.get("model_type"))
    if kind == "bailing_hybrid" and config.get("short_conv_kernel_size") is not None:
        return _BAILING_KDA
    return _FAMILIES.get(kind)


def _attention(config: ModelConfig, serving: Serving, *, latent: bool) -> tuple[Cache, Known]:
    heads = query_heads(config, serving.placement)
    if latent:
        # Ling-3: SGLang keeps no rotary key then (srt/configs/model_config.py:1496).
        nope = serving.framework == "sglang" and bool(config.get("use_mla_nope"))
        cache = latent_cache(config, serving, indexed=False, rotary_kept=not nope)
        return cache, one_latent(serving.placement, cache)
    kv_heads = kv_heads_of(config)
    dims = head_dims(config, heads)
    if config.get("model_type") in ("jamba", "granitemoehybrid"):  # their code reads no head_dim
        dims = head_dims({k: v for k, v in config.items() if k != "head_dim"}, heads)
    cache = kv_cache("keys and values", kv_heads, dims, serving)
    return cache, shared_out(kv_heads, serving.placement)[1]


def _no_heads(placement: Placement) -> Known:
    how = "no layer keeps tokens; states are shared out among the ranks"
    return known(1, COUNT, Origin.THEORETICAL, how=how)


# --- which state ------------------------------------------------------


def _mamba2(fields: states.Mamba2Fields, **type_fields: str) -> StateOf:
    def state(config: ModelConfig, serving: Serving) -> Cache:
        types = states.state_types(config, serving, fields=type_fields)
        return states.mamba2(config, serving, fields, types)

    return state


def _nemotron(config: ModelConfig, serving: Serving) -> Cache:
    """In vLLM fp32 when the file is silent (vllm/model_executor/models/config.py:1211)."""
    fields = {"sglang": "mamba_ssm_dtype", "vllm": "mamba_ssm_cache_dtype"}
    silent = config.get(fields["vllm"]) is None
    said = {**config, "mamba_ssm_cache_dtype": "float32"} if silent else config
    types = states.state_types(said, serving, fields=fields)
    return states.mamba2(config, serving, _NEMOTRON, types)


def _mamba1(fields: states.Mamba1Fields) -> StateOf:
    def state(config: ModelConfig, serving: Serving) -> Cache:
        types = states.state_types(config, serving, fields={})
        return states.mamba1(config, serving, fields, types)

    return state


def _delta_net(**type_fields: str) -> StateOf:
    def state(config: ModelConfig, serving: Serving) -> Cache:
        types = states.state_types(config, serving, fields=type_fields)
        return states.delta_net(config, serving, types)

    return state


def _kda(config: ModelConfig, serving: Serving) -> Cache:
    linear = section(config, KDA_SECTION)
    heads, dim, kernel = (
        count(linear, name, inside=KDA_SECTION)
        for name in ("num_heads", "head_dim", "short_conv_kernel_size")
    )
    sizes = (heads, dim, kernel)
    return states.delta_attention(sizes, serving, states.state_types(config, serving, fields={}))


def _kda_of_heads(config: ModelConfig, serving: Serving) -> Cache:
    sizes = (
        count(config, "num_attention_heads"),
        count(config, "head_dim"),
        count(config, "short_conv_kernel_size"),
    )
    return states.delta_attention(sizes, serving, states.state_types(config, serving, fields={}))


def _lightning(config: ModelConfig, serving: Serving) -> Cache:
    heads = query_heads(config, serving.placement)
    asked = serving
    if serving.framework == "vllm":  # whose `linear_attention_state_dtype` reads no such option
        asked = attrs.evolve(serving, state_dtype=None)
    types = states.state_types(config, asked, fields={})
    return states.lightning((heads, head_dims(config, heads)[0]), serving, types)


def _convolution(*channels: str) -> StateOf:
    def state(config: ModelConfig, serving: Serving) -> Cache:
        names = ("hidden_size",) if serving.framework == "sglang" else channels
        sizes = (count(config, *names), count(config, "conv_L_cache"))
        types = states.state_types(config, serving, fields={})
        return states.short_convolution(sizes, serving, types)

    return state


# --- the families -----------------------------------------------------

_EXPANDED = states.Mamba2Fields(
    heads="mamba_n_heads",
    dim="mamba_d_head",
    groups="mamba_n_groups",
    size="mamba_d_state",
    kernel="mamba_d_conv",
    inner="mamba_d_ssm",
    expand="mamba_expand",
)
_NEMOTRON = states.Mamba2Fields(
    heads="mamba_num_heads",
    dim="mamba_head_dim",
    groups="n_groups",
    size="ssm_state_size",
    kernel="conv_kernel",
)
_ZAMBA = states.Mamba2Fields(
    heads="n_mamba_heads",
    dim="mamba_headdim",
    groups="mamba_ngroups",
    size="mamba_d_state",
    kernel="mamba_d_conv",
    expand="mamba_expand",
)
_MAMBA2 = states.Mamba2Fields(
    heads="num_heads", dim="head_dim", groups="n_groups", size="state_size", kernel="conv_kernel"
)
_MAMBA1 = states.Mamba1Fields(
    inner="intermediate_size", expand="expand", size="state_size", kernel="conv_kernel"
)
_JAMBA = states.Mamba1Fields(expand="mamba_expand", size="mamba_d_state", kernel="mamba_d_conv")
_LIGHTNING_NEEDS = ("attn_type_list", "layer_group_size")
_BAILING_KDA = _Family(name="KDA", kinds=by_groups, state=_kda_of_heads, latent=True)
_FAMILIES = {
    "nemotron_h": _Family(
        name="Mamba-2",
        kinds=by_words("hybrid_override_pattern", "layers_block_type"),
        state=_nemotron,
    ),
    "falcon_h1": _Family(
        name="Mamba-2", kinds=everywhere(BOTH), state=_mamba2(_EXPANDED, sglang="mamba_ssm_dtype")
    ),
    "granitemoehybrid": _Family(
        name="Mamba-2",
        kinds=by_words("layer_types", "layers_block_type"),
        state=_mamba2(attrs.evolve(_EXPANDED, inner=None)),
    ),
    "bamba": _Family(
        name="Mamba-2",
        kinds=by_numbers("attn_layer_indices"),
        state=_mamba2(attrs.evolve(_EXPANDED, inner=None)),
        frameworks=("vllm",),
    ),
    "zamba2": _Family(
        name="Mamba-2",
        kinds=by_words("layers_block_type"),
        state=_mamba2(_ZAMBA),
        frameworks=("vllm",),
    ),
    "mamba2": _Family(name="Mamba-2", kinds=everywhere(STATE), state=_mamba2(_MAMBA2)),
    **dict.fromkeys(
        ("mamba", "falcon_mamba"),
        _Family(name="Mamba-1", kinds=everywhere(STATE), state=_mamba1(_MAMBA1)),
    ),
    "jamba": _Family(
        name="Mamba-1",
        kinds=by_period,
        state=_mamba1(_JAMBA),
        frameworks=("vllm",),
    ),
    "qwen3_next": _Family(
        name="GDN", kinds=by_interval, state=_delta_net(sglang="mamba_ssm_dtype")
    ),
    **dict.fromkeys(
        ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        _Family(
            name="GDN",
            kinds=by_interval,
            state=_delta_net(sglang="mamba_ssm_dtype", vllm="mamba_ssm_dtype"),
        ),
    ),
    "olmo_hybrid": _Family(
        name="GDN",
        kinds=by_words("layer_types"),
        state=_delta_net(),
        frameworks=("vllm",),
    ),
    "kimi_linear": _Family(name="KDA", kinds=by_linear_section, state=_kda, latent=True),
    "bailing_hybrid": _Family(
        name="lightning", kinds=by_groups, state=_lightning, needs=_LIGHTNING_NEEDS, latent=True
    ),
    **dict.fromkeys(
        ("minimax", "minimax_text_01", "minimax_m1"),
        _Family(
            name="lightning",
            kinds=by_groups,
            state=_lightning,
            needs=_LIGHTNING_NEEDS,
            frameworks=("vllm",),
        ),
    ),
    "lfm2": _Family(
        name="short convolution", kinds=by_words_or_numbers, state=_convolution("conv_dim")
    ),
    "lfm2_moe": _Family(
        name="short convolution", kinds=by_words_or_numbers, state=_convolution("hidden_size")
    ),
}
