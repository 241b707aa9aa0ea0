"""Sections of the text report about what happened: the outcome, free memory step by step, the load
of a running server, lines that nobody knew."""

from __future__ import annotations

from collections.abc import Iterator

from capacity_core.api.ledger import Failure, Status
from capacity_core.api.report import UNMATCHED_KEPT, Absent, Report, StepRow
from capacity_core.rendering.figures import (
    gib_or_unknown,
    lines_text,
    table,
    with_unit,
    wrapped,
)
from capacity_core.values import Known

SHOWN_UNMATCHED = 40


def outcome(report: Report) -> Iterator[str]:
    """How the run ended, when it did not end well; first of all, because it is what people ask."""
    said = report.outcome
    if said.status is Status.READY:
        return
    yield "Outcome"
    if said.failure is None:
        stage = said.stage.value.replace("_", " ") if said.stage else "before any known stage"
        yield f"  the log ends {'after: ' * bool(said.stage)}{stage}; no error text follows"
        return
    yield from _failure(said.failure, report)


def _failure(failure: Failure, report: Report) -> Iterator[str]:
    yield f"  failed               {failure.kind.value.replace('_', ' ')}"
    yield f"  stage reached        {failure.stage.value.replace('_', ' ')}"
    if failure.rank is not None:
        yield f"  rank                 {failure.rank}"
    for name in ("needed", "available", "short", "total"):
        value = getattr(failure, name)
        if isinstance(value, Known):
            yield f"  {name:<20} {with_unit(value)}"
    yield from wrapped(f"{lines_text(failure.evidence, report)} {failure.message}", "  ")
    for cure in failure.cures:
        yield from wrapped(cure, "  helps: ", " " * 9)
    for change in failure.harmful:
        yield from wrapped(change, "  harms: ", " " * 9)


def steps(report: Report) -> Iterator[str]:
    """The shown rank's free memory from reading to reading, and what each step is owed to."""
    rank = next((row for row in report.ranks if row.id == report.shown_rank), None)
    if rank is None or not rank.steps:
        return
    yield f"Free memory step by step · {rank.label} (GiB; a change below zero came back)"
    rows = [_step(step) for step in rank.steps]
    yield from table(
        rows,
        ("until", "change", "explained", "unattributed", "by"),
        align=("left", "right", "right", "right", "left"),
    )


def _step(step: StepRow) -> list[str]:
    return [
        step.until.removeprefix("free[").removesuffix("]").replace("_", " "),
        gib_or_unknown(step.change),
        gib_or_unknown(step.explained),
        gib_or_unknown(step.unattributed),
        ", ".join(owner.value for owner in step.owners) or "-",
    ]


def load(report: Report) -> Iterator[str]:
    """What run-time lines showed, beside what was planned."""
    seen = report.load
    if seen is None:
        return
    yield "Load while serving"
    yield from wrapped(seen.summary, "  ")
    names = ("peak_running", "peak_waiting", "peak_kv_usage", "last_kv_usage")
    for name in (*names, "retracted", "preempted", "peak_throughput"):
        value = getattr(seen, name)
        if not isinstance(value, Known):
            continue
        amount = with_unit(value)
        if name.endswith("usage"):
            amount = f"{100 * value.number:.0f} % of the pool"
        where = lines_text(value.evidence[:3], report)
        yield from wrapped(f"{amount}  {where}", f"  {name.replace('_', ' '):<22} ", " " * 25)


def unmatched(report: Report) -> Iterator[str]:
    """Lines that speak of memory and that no matcher knows."""
    rows = report.unmatched
    if isinstance(rows, Absent):
        return
    count = f"the first {len(rows)}" if len(rows) >= UNMATCHED_KEPT else str(len(rows) or "none")
    yield f"Lines about memory that nobody recognised ({count})"
    for row in rows[:SHOWN_UNMATCHED]:
        yield from wrapped(row.text, f"  {lines_text((row.id,), report):<18} ", " " * 21, most=2)
    if len(rows) > SHOWN_UNMATCHED:
        yield f"  … and {len(rows) - SHOWN_UNMATCHED} more (--format json has them)"
