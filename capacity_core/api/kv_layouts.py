"""How a model stores KV: from its configuration to the bytes that a request's tokens cost on one
device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from typing import Protocol

import attrs

from capacity_core.errors import LayoutError
from capacity_core.units import (
    BYTES_PER_REQUEST,
    BYTES_PER_SLOT,
    BYTES_PER_TOKEN,
    COUNT,
    TOKENS,
    Unit,
)
from capacity_core.values import Known, Unknown, Value

ModelConfig = Mapping[str, object]
"""A model's config.json, with the text model's own keys on top where it nests them (see
`model_config`)."""

LayerSplit = Callable[[int, int], tuple[int, ...]]
"""How many of so many layers each of so many pipeline stages gets: the engine's own rule, which its
plugin knows."""


@attrs.frozen(kw_only=True)
class Placement:
    """Where the layers and heads of one rank lie.

    `attention_tensor` is the tensor-parallel size that divides KV heads (tp // attention-DP //
    context-parallel); `context` the number of ranks that share a request's tokens, and that divide
    query heads and states as well; `attention_data` the number of groups of ranks that serve other
    requests each and share what is no attention; `pipeline` the number of stages and `stage` this
    rank's, of which the layers are a contiguous slice, cut by `split`. All are at least 1 but
    `stage`, which counts from 0.
    """

    attention_tensor: int = 1
    context: int = 1
    attention_data: int = 1
    pipeline: int = 1
    stage: int = 0
    split: LayerSplit | None = None

    @property
    def ranks(self) -> int:
        """The ranks among which query heads and states are shared out."""
        return self.attention_tensor * self.context

    def layers(self, count: int) -> range:
        """This stage's slice of `count` layers.

        Raises LayoutError when a stage would be empty, and when the layers do not divide and no
        rule of the engine is known.
        """
        if count < self.pipeline:
            raise LayoutError(f"{count} layers are fewer than {self.pipeline} pipeline stages")
        if self.split is not None:
            sizes = self.split(count, self.pipeline)
            if len(sizes) != self.pipeline or sum(sizes) != count or min(sizes) < 1:
                raise LayoutError(f"{count} layers were split into stages of {sizes}")
            start = sum(sizes[: self.stage])
            return range(start, start + sizes[self.stage])
        if count % self.pipeline:
            raise LayoutError(
                f"{count} layers do not divide into {self.pipeline} pipeline stages; "
                "how the engine splits them is not in the configuration"
            )
        share = count // self.pipeline
        return range(self.stage * share, (self.stage + 1) * share)


@attrs.frozen(kw_only=True)
class Serving:
    """How a model is served, as far as it decides what KV costs; None is not known.

    `dtype` is the name of the stored type (bf16, fp16, fp32, fp8_e4m3, fp8_e5m2, or a framework's
    own name); where `auto` was asked for it is the model's own, and `dtype_assumed`. `variant` is
    one of the layout's own `variants` that was asked for. `draft_layers` of the same kind are added
    for speculative decoding; `speculative` that it is on, whatever its layers. `sizing_mode` and
    `window_share` say how the engine sized its pools, where it has several ways; `keeps_all` that
    its log shows every layer keeping every token, whatever windows it has. `state_dtype` is the
    type of recurrent states that was asked for, `device` the kind of device (cuda, npu, …).
    `evidence` are the lines that say all this, which every figure cites besides.
    """

    framework: str | None = None
    version: str | None = None
    placement: Placement = Placement()
    dtype: str | None = None
    dtype_assumed: bool = False
    page_size: int | None = None
    variant: str | None = None
    draft_layers: int = 0
    speculative: bool = False
    sizing_mode: str | None = None
    window_share: Decimal | None = None
    keeps_all: bool = False
    state_dtype: str | None = None
    device: str | None = None
    evidence: tuple[str, ...] = ()


class Keeps(str, Enum):
    """Which of a request's tokens a cache keeps."""

    ALL = "all"
    WINDOW = "window"  # the last `window_tokens`
    CHUNK = "chunk"  # those of the running chunk of `window_tokens`
    STATE = "state"  # none of them: one state of the whole request
    ENCODER = "encoder"  # those of an encoder's input, whatever is generated


def _in(unit: Unit) -> Callable[[object, attrs.Attribute[Value], object], None]:
    """A plugin's figure must be a value of this unit, or none where it may be left out."""

    def check(instance: object, attribute: attrs.Attribute[Value], value: object) -> None:
        if value is None and attribute.default is None:
            return
        if not isinstance(value, Known | Unknown) or value.unit not in (None, unit):
            said = getattr(value, "unit", type(value).__name__)
            raise TypeError(f"{attribute.name} is in {said}, not a value in {unit}")

    return check


@attrs.frozen(kw_only=True)
class CacheTerm:
    """One kind of cache that a request pays for, on one device.

    A request of n tokens costs `bytes_per_token` · min(n, `window_tokens`) +
    `fixed_bytes_per_request`; None of either is nothing, a window of None does not end. `layers` is
    how many of this rank's layers hold it. `slot` is the size of one stored slot of one layer,
    where slots are not tokens. `source` is where the engine computes it; `steps` how the figure
    comes about, in words.
    """

    name: str
    layers: int | None = None
    keeps: Keeps = Keeps.ALL
    bytes_per_token: Value | None = attrs.field(default=None, validator=_in(BYTES_PER_TOKEN))
    window_tokens: Value | None = attrs.field(default=None, validator=_in(TOKENS))
    fixed_bytes_per_request: Value | None = attrs.field(
        default=None, validator=_in(BYTES_PER_REQUEST)
    )
    slot: Value | None = attrs.field(default=None, validator=_in(BYTES_PER_SLOT))
    formula: str | None = None
    source: str
    steps: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        windowed = self.keeps in (Keeps.WINDOW, Keeps.CHUNK)
        if windowed != (self.window_tokens is not None):
            raise TypeError(
                f"{self.name}: window_tokens belong to a window or chunk, and only there"
            )
        if self.bytes_per_token is None and self.fixed_bytes_per_request is None:
            raise TypeError(f"{self.name}: neither a token nor a request costs anything")


@attrs.frozen(kw_only=True)
class LayoutReading:
    """What a layout says of one model and how it is served, for one device.

    `replication` is how many tensor-parallel ranks hold the same keys and values (1: each its own);
    `pool_bytes_per_token` what the engine divides its budget by, where that is not the sum of the
    terms that keep all tokens; `dtype` the stored type, where the model has one of its own;
    `assumes` what every figure rests on that nobody said.
    """

    family: str
    terms: tuple[CacheTerm, ...]
    replication: Value = attrs.field(validator=_in(COUNT))
    formula: str
    source: str
    pool_bytes_per_token: Value | None = attrs.field(default=None, validator=_in(BYTES_PER_TOKEN))
    dtype: Value | None = None
    assumes: tuple[str, ...] = ()


class KVLayout(Protocol):
    """How one family of models stores KV.

    A layout may also have `replaces: tuple[str, ...]`, the names of layouts whose models it takes
    over (two that claim one model and do not say so clash, and neither is used), and `variants:
    tuple[str, ...]`, names of ways to store that neither configuration nor log tell apart.
    """

    @property
    def name(self) -> str: ...

    def applies(self, config: ModelConfig) -> bool:
        """Whether this layout knows every layer of such a model. A layout never claims what it
        would miscount."""
        ...

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        """The caches of one rank.

        Raises LayoutError when the configuration lacks a field or contradicts the placement.
        """
        ...


_ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}


def element_bytes(dtype: str | None) -> int | None:
    """Bytes of one stored element of a type that keeps nothing beside its elements; None for types
    with scales, for unknown names and for no name."""
    return _ELEMENT_BYTES.get(str(dtype))


_NAMES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8_e5m2fnuz": "fp8_e5m2",
}


def plain_type(dtype: str) -> str:
    """One name for a type, however a file or a log prints it."""
    name = dtype.removeprefix("torch.").lower()
    return _NAMES.get(name, name)
