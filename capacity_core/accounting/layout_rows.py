"""A KV layout as rows of a report: its terms, what they add up to, what a request costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

import attrs

from capacity_core.api.kv_layouts import CacheTerm, Keeps, LayoutReading, Serving
from capacity_core.api.report import ABSENT, LayoutRow, TermRow
from capacity_core.units import (
    BYTES,
    BYTES_PER_REQUEST,
    BYTES_PER_TOKEN,
    COUNT,
    REQUESTS,
    TOKENS,
    Unit,
)
from capacity_core.values import Known, Origin, Unknown, Value, known, least, text, total

_WINDOWED = (Keeps.WINDOW, Keeps.CHUNK)


def layout_row(
    name: str, reading: LayoutReading, serving: Serving, assuming: tuple[str, ...] = ()
) -> LayoutRow:
    """The row of one rank: every figure cites how the model is served, and rests on `assuming`."""
    terms = [_supported(term, reading, serving, assuming) for term in reading.terms]
    windowed = [term for term in terms if term.keeps in _WINDOWED]
    divisor = reading.pool_bytes_per_token
    return LayoutRow(
        name=name,
        family=reading.family,
        source=reading.source,
        formula=reading.formula,
        dtype=reading.dtype or _dtype(serving),
        terms=tuple(_term(term) for term in terms),
        bytes_per_token=_sum(
            [_growth(t) for t in terms if t.keeps is Keeps.ALL],
            BYTES_PER_TOKEN,
            "no layer keeps every token",
        ),
        window_bytes_per_token=_sum(
            [_growth(term) for term in windowed], BYTES_PER_TOKEN, "no layer keeps a window"
        ),
        window_tokens=_window(windowed),
        fixed_bytes_per_request=_sum(
            [t.fixed_bytes_per_request for t in terms if t.fixed_bytes_per_request is not None],
            BYTES_PER_REQUEST,
            "no layer keeps a state",
        ),
        replication=reading.replication.cite(*serving.evidence),
        pool_bytes_per_token=Unknown(
            why="the engine divides by the sum of the terms", unit=BYTES_PER_TOKEN
        )
        if divisor is None
        else _resting(divisor, reading, serving, assuming),
    )


def refused_row(name: str, why: str) -> LayoutRow:
    """The row of a layout that claims a model and cannot compute it."""
    per_token = Unknown(why=why, unit=BYTES_PER_TOKEN)
    return LayoutRow(
        name=name,
        family=None,
        source=None,
        formula=None,
        dtype=Unknown(why=why),
        terms=(),
        bytes_per_token=per_token,
        window_bytes_per_token=per_token,
        window_tokens=Unknown(why=why, unit=TOKENS),
        fixed_bytes_per_request=Unknown(why=why, unit=BYTES_PER_REQUEST),
        replication=Unknown(why=why, unit=COUNT),
        pool_bytes_per_token=per_token,
    )


def costs(row: LayoutRow) -> tuple[object, ...]:
    """Every figure of bytes, to tell whether two rows cost the same."""
    figures = [row.bytes_per_token, row.pool_bytes_per_token]
    for term in row.terms:
        figures += [term.bytes_per_token, term.fixed_bytes_per_request or term.bytes_per_token]
    return tuple(value.number if isinstance(value, Known) else None for value in figures)


def largest(rows: Iterable[LayoutRow]) -> LayoutRow:
    """The stage with the most bytes: by what a token costs, then a window's, then a state. One
    whose cost is not known may be larger than all others."""

    def weight(row: LayoutRow) -> tuple[object, ...]:
        values = (row.bytes_per_token, row.window_bytes_per_token, row.fixed_bytes_per_request)
        return tuple(
            (isinstance(value, Unknown), value.number if isinstance(value, Known) else 0)
            for value in values
        )

    return max(rows, key=weight)


def request_bytes(rows: Sequence[LayoutRow], tokens: int, page: int | None) -> Value:
    """What one request of so many tokens keeps on one device of the stage that it costs most, in
    whole pages where their size is known: every token in the caches that keep all, at most a window
    in others, and its states."""
    costs = [_on_stage(row, tokens, page) for row in rows]
    unknown = next((cost for cost in costs if isinstance(cost, Unknown)), None)
    if unknown is not None:
        return unknown
    return max(costs, key=lambda cost: cost.number if isinstance(cost, Known) else 0)


def _on_stage(layout: LayoutRow, tokens: int, page: int | None) -> Value:
    pages = tokens if page is None else -(-tokens // page) * page
    return _sum([_of_term(term, pages, page) for term in layout.terms], BYTES, "no layer keeps KV")


def _of_term(term: TermRow, tokens: int, page: int | None) -> Value:
    held: Value = known(tokens, TOKENS, Origin.CONFIGURED, name=f"{tokens} tokens")
    if term.window_tokens is not None:
        window = term.window_tokens
        if isinstance(window, Known) and page is not None:
            whole = -(-int(window.number) // page) * page
            how = f"{window.number} tokens in whole pages"
            window = attrs.evolve(window, amount=Decimal(whole), how=how)
        held = least((held, window))
    cost = (term.bytes_per_token * held).to(BYTES)
    if term.fixed_bytes_per_request is None:
        return cost
    one = known(1, REQUESTS, Origin.CONFIGURED, name="1 request")
    return cost + (term.fixed_bytes_per_request * one).to(BYTES)


# --- pieces -----------------------------------------------------------


def _supported(
    term: CacheTerm, reading: LayoutReading, serving: Serving, assuming: tuple[str, ...]
) -> CacheTerm:
    """A term that cites how the model is served and says what its bytes rest on."""
    fixed = term.fixed_bytes_per_request
    by_type = term.keeps is Keeps.ENCODER  # other states have types of their own
    return attrs.evolve(
        term,
        bytes_per_token=None
        if term.bytes_per_token is None
        else _resting(term.bytes_per_token, reading, serving, assuming),
        fixed_bytes_per_request=None
        if fixed is None
        else _resting(fixed, reading, serving, assuming, by_type=by_type),
    )


def _resting(
    value: Value,
    reading: LayoutReading,
    serving: Serving,
    assuming: tuple[str, ...],
    *,
    by_type: bool = True,
) -> Value:
    own = serving.dtype_assumed and reading.dtype is None and serving.dtype is not None
    why = (_own_type(serving),) if own and by_type else ()
    return value.cite(*serving.evidence).assume(*why, *reading.assumes, *assuming)


def _own_type(serving: Serving) -> str:
    return f"the KV cache's auto type is the model's own, {serving.dtype}"


def _dtype(serving: Serving) -> Value:
    """The stored type that the figures are of."""
    if serving.dtype is None:
        return Unknown(
            why="auto, and nothing says which type that is here"
            if serving.dtype_assumed
            else "nothing says the KV type"
        )
    if serving.dtype_assumed:
        own = text(serving.dtype, Origin.ASSUMED, how="the model's own type")
        return own.assume(_own_type(serving))
    how = "the KV type that the log names" if serving.evidence else "the KV type that was asked for"
    return text(serving.dtype, Origin.CONFIGURED, how=how, evidence=serving.evidence)


def _growth(term: CacheTerm) -> Value:
    return term.bytes_per_token or known(
        0, BYTES_PER_TOKEN, Origin.THEORETICAL, how="does not grow"
    )


def _sum(values: Sequence[Value], unit: Unit, nothing: str) -> Value:
    return total(values) if values else known(0, unit, Origin.THEORETICAL, how=nothing)


def _window(windowed: Sequence[CacheTerm]) -> Value:
    values = [term.window_tokens for term in windowed if term.window_tokens is not None]
    if not values:
        return Unknown(why="no layer keeps a window", unit=TOKENS)
    sizes = {value.number if isinstance(value, Known) else None for value in values}
    if len(sizes) == 1:
        return values[0]
    return Unknown(why="windows of several sizes: see the terms", unit=TOKENS)


def _term(term: CacheTerm) -> TermRow:
    per_token = _growth(term)
    grows = isinstance(term.bytes_per_token, Known)
    return TermRow(
        name=term.name,
        layers=term.layers,
        keeps=term.keeps,
        bytes_per_token=per_token,
        window_tokens=term.window_tokens,
        fixed_bytes_per_request=term.fixed_bytes_per_request,
        formula=term.formula or _how(per_token if grows else term.fixed_bytes_per_request),
        source=term.source,
        steps=term.steps,
        slot=ABSENT if term.slot is None else term.slot,
    )


def _how(value: Value | None) -> str | None:
    return value.how if isinstance(value, Known) else None
