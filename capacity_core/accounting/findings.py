"""Contradictions between figures that the inputs give of one thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from capacity_core.accounting.breakdown import negative_beyond_error
from capacity_core.api.kv_layouts import Keeps
from capacity_core.api.ledger import Finding, Ledger, Severity
from capacity_core.api.report import LayoutRow, RankRow
from capacity_core.units import GIB
from capacity_core.values import Known, Unknown, Value

_NEVER_NEGATIVE = ("framework", "weights", "kv_pool", "state_pool")


def contradictions(ledger: Ledger, ranks: Sequence[RankRow]) -> Iterator[Finding]:
    """What cannot all be true, one finding for each rank or worker concerned."""
    for rank in ranks:
        yield from _impossible_parts(rank)
    for worker in ledger.workers:
        size, budget = worker.size, worker.budget
        if not isinstance(size, Known) or not isinstance(budget, Known) or budget.number <= 0:
            continue
        apart = abs(size.to(GIB).number - budget.to(GIB).number)
        # Padding pages and rounding to whole pages stay below this.
        if apart > size.error + budget.error and apart > budget.number / 20:
            yield Finding(
                code="pool-differs-from-budget",
                severity=Severity.WARNING,
                message=(
                    f"DP{worker.dp}: the KV pool takes {size.number:.2f} GiB, "
                    f"the budget before allocation was {budget.number:.2f} GiB"
                ),
                evidence=(*size.evidence, *budget.evidence),
            )


def _impossible_parts(rank: RankRow) -> Iterator[Finding]:
    for name in _NEVER_NEGATIVE:
        value = rank.memory[name].value
        if isinstance(value, Known) and negative_beyond_error(value):
            yield Finding(
                code="negative-category",
                severity=Severity.ERROR,
                message=(
                    f"{rank.label}: {name} comes out at {value.number:.2f} GiB "
                    f"({value.how}); its lines contradict each other"
                ),
                evidence=value.evidence,
            )
    other, used = rank.memory["other"].value, rank.memory["used"].value
    if isinstance(other, Known) and isinstance(used, Known) and negative_beyond_error(other):
        yield Finding(
            code="parts-exceed-used",
            severity=Severity.ERROR,
            message=(
                f"{rank.label}: the known parts add up to {used.number - other.number:.2f} "
                f"GiB, "
                f"the device tool says {used.number:.2f} GiB are used: the reading is of "
                f"another moment or device"
            ),
            evidence=(*used.evidence, *other.evidence),
        )


_SAME = Decimal("0.005")
"""Share by which two costs may differ beyond their rounding: a pool's last pages."""


_DIVISOR = "the engine divides its budget by"
_STATES = "a request's state takes"
_CAUSES = {
    _DIVISOR: "other slots (--layout names them), a draft's layer, or another model",
    _STATES: "states of another type, padding, or another model",
}


def disagreement(ledger: Ledger, layout: LayoutRow | None) -> Iterator[Finding]:
    """Costs that differ between what the log shows and what the configuration says."""
    if layout is None:
        return
    for subject, shown, theory in _costs(ledger, layout):
        if not isinstance(shown, Known) or not isinstance(theory, Known):
            continue
        apart = abs(shown.number - theory.number)
        if apart <= shown.error + theory.error + theory.number * _SAME:
            continue
        yield Finding(
            code="layout-disagrees",
            severity=Severity.WARNING,
            message=(
                f"{subject} {_bytes(shown)} B in the log ({shown.how}) and "
                f"{_bytes(theory)} B by the configuration ({layout.name}, "
                f"{_type(layout.dtype)}): "
                + (_CAUSES.get(subject) or _cause(shown, theory, layout))
            ),
            evidence=(*shown.evidence, *theory.evidence),
        )


def _costs(ledger: Ledger, layout: LayoutRow) -> Iterator[tuple[str, Value, Value]]:
    """What is compared: each figure's name, as the log shows it and as the configuration says."""
    kv = ledger.kv
    plain = all(term.keeps is Keeps.ALL for term in layout.terms)
    stages = ledger.deployment.parallel.pipeline
    one_stage = isinstance(stages, Known) and stages.number == 1
    token, theory = kv.bytes_per_token, layout.bytes_per_token
    if layout.terms and all(term.keeps is Keeps.WINDOW for term in layout.terms):
        theory = layout.window_bytes_per_token  # the pool is of windows alone
    if isinstance(token, Known) and token.assuming and not plain:
        token = Unknown(why="it assumes that every layer keeps every token")
    if isinstance(token, Unknown) and plain and one_stage:
        token = kv.if_plain
    kinds = kv.kinds if one_stage else {}  # of a rank, which may be another stage's
    if isinstance(token, Unknown):
        token = kinds.get(Keeps.ALL, token)
    yield "a token costs", token, theory
    if Keeps.WINDOW in kinds:
        windows = kinds[Keeps.WINDOW]
        yield "a token of a window costs", windows, layout.window_bytes_per_token
    if Keeps.STATE in kinds:
        states = kinds[Keeps.STATE]
        yield _STATES, states, layout.fixed_bytes_per_request
    yield _DIVISOR, kv.bytes_per_full_token, layout.pool_bytes_per_token


def _cause(shown: Known, theory: Known, layout: LayoutRow) -> str:
    """What most likely makes one figure so many times the other."""
    if not theory.number or not shown.number:
        return "one of them has none of it: the configuration is of another model"
    ratio = shown.number / theory.number
    copies = layout.replication
    inverse = 1 / ratio

    def near(factor: Decimal | int) -> bool:
        return any(abs(r / factor - 1) < Decimal("0.02") for r in (ratio, inverse))

    if isinstance(copies, Known) and copies.number > 1 and near(copies.number):
        return f"they differ by the {copies.number} copies of a head among the ranks"
    counts = [term.layers or 0 for term in layout.terms]
    kept = sum(n for n, term in zip(counts, layout.terms, strict=True) if term.keeps is Keeps.ALL)
    if 0 < kept < sum(counts) and abs(ratio * kept / sum(counts) - 1) < Decimal("0.02"):
        return f"as if all {sum(counts)} layers kept every token, not {kept} of them"
    times = f"{ratio:.2f} times as much"
    assumed = isinstance(layout.dtype, Unknown) or layout.dtype.assuming
    if assumed and (near(2) or near(4)):
        return f"{times}, so another KV type than was assumed, or other layers"
    if 1 < ratio < Decimal("1.15"):
        return "a little more than its elements: scales, padding of pages, or a draft's layers"
    return f"{times}: another layout, other layers (a draft's, shared ones) or another placement"


def _bytes(value: Known) -> str:
    """Whole bytes, and two decimals where the error of a figure is no more than they show."""
    whole = value.number % 1 == 0 or value.error > Decimal("0.01")
    return f"{value.number:,.0f}" if whole else f"{value.number:,.2f}"


def _type(value: Value) -> str:
    """The name of a KV type, or that it is unknown."""
    return str(value.amount) if isinstance(value, Known) else "KV type unknown"
