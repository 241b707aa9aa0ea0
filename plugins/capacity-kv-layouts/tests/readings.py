"""What the tests ask of a reading: its sums, by what a cache keeps, and what a request costs."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import capacity_kv_layouts
from capacity_core.api.kv_layouts import (
    Keeps,
    KVLayout,
    LayerSplit,
    LayoutReading,
    Placement,
    Serving,
)
from capacity_core.values import Known, Value

LAYOUTS = capacity_kv_layouts.capacity_kv_layouts()
ENGINES = ("sglang", "vllm")
Config = dict[str, Any]


def serving(
    framework: str | None = None, dtype: str | None = "bf16", draft: int = 0, **placement: Any
) -> Serving:
    """A server; `placement` takes the fields of `Placement`, with `tensor` for attention_tensor."""
    tensor = placement.pop("tensor", 1)
    return Serving(
        framework=framework,
        dtype=dtype,
        draft_layers=draft,
        placement=Placement(attention_tensor=tensor, **placement),
    )


def claimed_by(config: Config) -> list[str]:
    """The names of the layouts that take the model."""
    return [layout.name for layout in LAYOUTS if layout.applies(config)]


def layout_of(config: Config) -> KVLayout:
    """The one layout that takes the model."""
    (layout,) = (layout for layout in LAYOUTS if layout.applies(config))
    return layout


def read(config: Config, framework: str | None = None, **served: Any) -> LayoutReading:
    """What the one layout that takes the model says of it."""
    return layout_of(config).read(config, serving(framework, **served))


def number(value: Value | None) -> Decimal:
    """The number of a known value."""
    assert isinstance(value, Known), value
    return value.number


def cost(value: Value | None) -> Decimal:
    """The number of a cost of which none is nothing."""
    return Decimal(0) if value is None else number(value)


def per_token(reading: LayoutReading, keeps: Keeps = Keeps.ALL) -> Decimal:
    """Bytes of a token, summed over the caches that keep what `keeps` says."""
    terms = (term for term in reading.terms if term.keeps is keeps)
    return sum((cost(term.bytes_per_token) for term in terms), Decimal(0))


def state(reading: LayoutReading, keeps: Keeps = Keeps.STATE) -> Decimal:
    """Bytes of a request that do not depend on its tokens."""
    terms = (term for term in reading.terms if term.keeps is keeps)
    return sum((number(term.fixed_bytes_per_request) for term in terms), Decimal(0))


def window(reading: LayoutReading) -> int:
    """The one length of a window or chunk."""
    (tokens,) = {number(t.window_tokens) for t in reading.terms if t.window_tokens is not None}
    return int(tokens)


def request(reading: LayoutReading, tokens: int) -> Decimal:
    """What a request of so many tokens costs, as `CacheTerm` defines it."""
    bytes_ = Decimal(0)
    for term in reading.terms:
        held = tokens
        if term.window_tokens is not None:
            held = min(tokens, int(number(term.window_tokens)))
        bytes_ += cost(term.bytes_per_token) * held
        if term.fixed_bytes_per_request is not None:
            bytes_ += number(term.fixed_bytes_per_request)
    return bytes_


def copies(reading: LayoutReading) -> int:
    """How many ranks hold the same."""
    return int(number(reading.replication))


def stages(
    config: Config, framework: str | None, split: LayerSplit | None, pipeline: int, **served: Any
) -> list[LayoutReading]:
    """The reading of every pipeline stage."""
    return [
        read(config, framework, pipeline=pipeline, stage=stage, split=split, **served)
        for stage in range(pipeline)
    ]


def sglang_split(layers: int, pipeline: int) -> tuple[int, ...]:
    """The last stages take what does not divide (SGLang 0.5.23 srt/distributed/utils.py)."""
    share, left = divmod(layers, pipeline)
    return tuple(share + (stage >= pipeline - left) for stage in range(pipeline))


def vllm_split(layers: int, pipeline: int) -> tuple[int, ...]:
    """Stages before the last take what does not divide (vLLM 0.33.0
    vllm/distributed/utils.py)."""
    sizes = [layers // pipeline] * pipeline
    for extra in range(layers % pipeline):
        sizes[-(extra + 2)] += 1
    return tuple(sizes)


SPLITS = {"sglang": sglang_split, "vllm": vllm_split}


def known_values(reading: LayoutReading) -> Iterable[Known]:
    """Every figure of the reading that is known."""
    values = [
        value
        for term in reading.terms
        for value in (term.bytes_per_token, term.fixed_bytes_per_request, term.window_tokens)
    ]
    for value in (*values, reading.replication, reading.pool_bytes_per_token):
        if isinstance(value, Known):
            yield value
