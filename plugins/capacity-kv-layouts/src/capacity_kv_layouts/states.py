"""States of a request that do not grow: Mamba, gated delta net, KDA, lightning, short convolution.

Every function gives the state of one layer on one rank, B/request. Tensor parallel divides heads
and channels. Sources: SGLang 0.5.23 srt/configs/mamba_utils.py; vLLM 0.33.0
vllm/model_executor/layers/mamba/mamba_utils.py, with the types of
vllm/model_executor/models/config.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from capacity_core.api.config_fields import as_int, cited, count, given
from capacity_core.api.kv_layouts import (
    Keeps,
    ModelConfig,
    Serving,
    element_bytes,
    plain_type,
)
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_REQUEST
from capacity_core.values import Known, Unknown
from capacity_kv_layouts.layers import Cache, amount, one_framework

_FORMULA = "layers * (convolution's window * its bytes + state * its bytes)"
SOURCE = (
    "SGLang 0.5.23 srt/configs/mamba_utils.py; "
    "vLLM 0.33.0 vllm/model_executor/layers/mamba/mamba_utils.py"
)


@attrs.frozen(kw_only=True)
class StateTypes:
    """Bytes of an element of the convolution's window and of the recurrent state; None where the
    configuration does not say."""

    conv: int | None
    recurrent: int | None


def state_types(config: ModelConfig, serving: Serving, *, fields: Mapping[str, str]) -> StateTypes:
    """The engine's own types: SGLang keeps bf16 windows and fp32 states, vLLM the model's type.

    `fields` names, by framework, the field that changes the state's type where that engine reads
    one; what the server was asked for comes first.
    """
    framework = one_framework(serving, "states")
    field = fields.get(framework)
    said = serving.state_dtype or (None if field is None else config.get(field))
    own = _bytes_of(config.get("dtype") or config.get("torch_dtype"))
    if own == 4:  # checkpoints of 32 bits are loaded in 16 (vLLM 0.33.0 vllm/config/model.py:2441)
        own = 2
    conv, default = (2, 4) if framework == "sglang" else (own, own)
    return StateTypes(conv=conv, recurrent=default if said is None else _bytes_of(said))


def _bytes_of(dtype: object) -> int | None:
    return element_bytes(plain_type(str(dtype)))


@attrs.frozen(kw_only=True)
class Mamba2Fields:
    """What a family calls the sizes of its Mamba-2 layers. `inner` is None where it is heads times
    head dimension, and a name that is absent where it is expand times hidden size."""

    heads: str
    dim: str
    groups: str
    size: str
    kernel: str
    inner: str | None = None
    expand: str | None = None


def mamba2(config: ModelConfig, serving: Serving, fields: Mamba2Fields, types: StateTypes) -> Cache:
    """Convolution window and state of a Mamba-2 layer; groups that ranks cannot share out are
    replicated, one for each."""
    ranks = serving.placement.ranks
    heads, dim = count(config, fields.heads), count(config, fields.dim)
    groups, size = count(config, fields.groups), count(config, fields.size)
    kernel = count(config, fields.kernel)
    inner, inner_fields = _inner(config, fields, heads, dim)
    spread = as_int(groups) if as_int(groups) % ranks == 0 else ranks
    channels = _divided(inner + 2 * spread * as_int(size), ranks, "channels of the convolution")
    state = _divided(as_int(heads), ranks, heads.name) * as_int(dim) * as_int(size)
    return _state(
        "Mamba-2 state",
        (channels, as_int(kernel) - 1),
        state,
        types,
        (heads, dim, groups, size, kernel, *inner_fields),
    )


def _inner(
    config: ModelConfig, fields: Mamba2Fields, heads: Known, dim: Known
) -> tuple[int, tuple[Known, ...]]:
    if fields.inner is not None and given(config, fields.inner):
        inner = count(config, fields.inner)
        return as_int(inner), (inner,)
    if fields.expand is not None:
        expand, hidden = count(config, fields.expand), count(config, "hidden_size")
        return as_int(expand) * as_int(hidden), (expand, hidden)
    return as_int(heads) * as_int(dim), ()


@attrs.frozen(kw_only=True)
class Mamba1Fields:
    """What a family calls the sizes of its Mamba-1 layers. `inner` are the channels; where it is
    None or absent they are `expand` times hidden size."""

    size: str
    kernel: str
    expand: str
    inner: str | None = None


def mamba1(config: ModelConfig, serving: Serving, fields: Mamba1Fields, types: StateTypes) -> Cache:
    """Convolution window and state of a Mamba-1 layer."""
    if fields.inner is not None and given(config, fields.inner):
        parts: tuple[Known, ...] = (count(config, fields.inner),)
    else:
        parts = count(config, fields.expand), count(config, "hidden_size")
    size, kernel = count(config, fields.size), count(config, fields.kernel)
    inner = math.prod(as_int(part) for part in parts)
    channels = _divided(inner, serving.placement.ranks, "channels")
    window = (channels, as_int(kernel) - 1)
    return _state("Mamba-1 state", window, channels * as_int(size), types, (*parts, size, kernel))


def delta_net(config: ModelConfig, serving: Serving, types: StateTypes) -> Cache:
    """Convolution window and state of a gated delta net (GDN)."""
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    fields = [count(config, f"linear_{name}") for name in names]
    kernel = count(config, "linear_conv_kernel_dim")
    ranks = serving.placement.ranks
    keys, values, key_dim, value_dim = map(as_int, fields)
    if serving.framework == "sglang" and keys % ranks:
        keys = ranks  # one for each rank, as groups of Mamba-2 (srt/configs/qwen3_next.py:300)
    channels = _divided(2 * keys * key_dim + values * value_dim, ranks, "channels")
    state = _divided(values, ranks, "linear value heads") * key_dim * value_dim
    return _state(
        "delta net state", (channels, as_int(kernel) - 1), state, types, (*fields, kernel)
    )


def delta_attention(
    sizes: tuple[Known, Known, Known], serving: Serving, types: StateTypes
) -> Cache:
    """Convolution window and state of Kimi's delta attention (KDA); `sizes` are heads, their
    dimension and the kernel. The state is fp32 in both engines unless another type was asked for
    (SGLang 0.5.23 srt/arg_groups/serving_hook.py:419, vLLM's `kda_state_dtype`)."""
    heads, dim, kernel = sizes
    held = _divided(as_int(heads), serving.placement.ranks, "linear attention heads")
    return _state(
        "KDA state",
        (3 * held * as_int(dim), as_int(kernel) - 1),
        held * as_int(dim) ** 2,
        types if serving.state_dtype is not None else attrs.evolve(types, recurrent=4),
        sizes,
    )


def lightning(sizes: tuple[Known, Known], serving: Serving, types: StateTypes) -> Cache:
    """State of lightning attention; `sizes` are heads and their dimension."""
    heads, dim = sizes
    held = _divided(as_int(heads), serving.placement.ranks, "linear attention heads")
    return _state("lightning state", (0, 0), held * as_int(dim) ** 2, types, sizes)


def short_convolution(sizes: tuple[Known, Known], serving: Serving, types: StateTypes) -> Cache:
    """The window of a short convolution; `sizes` are channels and the kernel."""
    channels, kernel = sizes
    held = _divided(as_int(channels), serving.placement.ranks, "channels")
    return _state("short convolution", (held, as_int(kernel) - 1), 0, types, sizes)


def _divided(number: int, ranks: int, what: str | None) -> int:
    if number % ranks:
        raise LayoutError(f"{number} {what} cannot be shared out evenly among {ranks} ranks")
    return number // ranks


def _state(
    name: str,
    window: tuple[int, int],
    elements: int,
    types: StateTypes,
    fields: tuple[Known, ...],
) -> Cache:
    """One layer's state; unknown where the type of a part that it has is."""
    channels, taps = window
    parts = []
    total = 0
    for shown, number, size in (
        (f"{channels} channels * {taps} of the convolution", channels * taps, types.conv),
        (f"{elements} of the state", elements, types.recurrent),
    ):
        if not number:
            continue
        if size is None:
            why = "config.json names no dtype, in which the state is stored"
            unknown = Unknown(why=why, unit=BYTES_PER_REQUEST, evidence=cited(*fields))
            return Cache(
                name=name, keeps=Keeps.STATE, state=unknown, formula=_FORMULA, source=SOURCE
            )
        parts.append(f"{shown} * {size} B")
        total += number * size
    cost = amount(total, BYTES_PER_REQUEST, f"({' + '.join(parts)})", *fields)
    return Cache(name=name, keeps=Keeps.STATE, state=cost, formula=_FORMULA, source=SOURCE)
