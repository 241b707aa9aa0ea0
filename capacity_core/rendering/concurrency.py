"""How many requests fit, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from capacity_core.api.report import Absent, ConcurrencyRow, Report
from capacity_core.rendering.figures import (
    WIDTH,
    amount_text,
    lines_text,
    plain_text,
    request_text,
    table,
    wrapped,
)
from capacity_core.values import Known, Unknown, Value


def concurrency(report: Report) -> Iterator[str]:
    """The section of the report: a row for each kind of request, what is unknown or assumed."""
    c = report.concurrency
    count = (
        f"{amount_text(c.workers)} of them" if isinstance(c.workers, Known) else "an unknown number"
    )
    yield f"Concurrency (per DP rank; the deployment has {count})"
    columns: list[tuple[str, str, Sequence[str]]] = [
        ("request tokens", "right", [request_text(row) for row in c.rows]),
        ("by tokens", "right", [_cell(row.token_limit, row, report) for row in c.rows]),
        ("by states", "right", [_maybe(row.state_limit) for row in c.rows]),
        ("by requests", "right", [_cell(row.request_limit, row, report) for row in c.rows]),
        ("max concurrent", "right", [_cell(row.max_concurrent, row, report) for row in c.rows]),
        ("bound by", "left", [row.bound_by or "" for row in c.rows]),
        (
            "deployment",
            "right",
            [_cell(row.deployment_max_concurrent, row, report) for row in c.rows],
        ),
        ("admitted", "right", [_maybe(row.admitted_at_once) for row in c.rows]),
    ]
    shown = [column for column in columns if any(column[2]) or column[0] == "bound by"]
    rows = list(zip(*(cells for _, _, cells in shown), strict=True))
    yield from _fitting(rows, [name for name, _, _ in shown], [side for _, side, _ in shown])
    if any(_maybe(row.admitted_at_once) for row in c.rows):
        yield from wrapped(
            "max concurrent fits without preemption; as many prompts as `admitted` start at once, "
            "and their output may then preempt others",
            "  ",
        )
    for row in c.rows:
        if _is_impossible(row, report) and isinstance(row.max_concurrent, Unknown):
            yield from wrapped(row.max_concurrent.why, "  impossible: ", " " * 14)
    whys = dict.fromkeys(
        part
        for row in c.rows
        if not _is_impossible(row, report)
        for value in _open(row)
        for part in value.why.split("; ")
    )
    for why in whys:
        yield from wrapped(why, "  unknown: ", " " * 11)
    limits = [value for row in c.rows for value in (row.token_limit, row.state_limit)]
    for why in dict.fromkeys(w for v in limits if isinstance(v, Known) for w in v.assuming):
        yield from wrapped(why, "  assuming: ", " " * 12)
    if c.reported is not None and isinstance(c.reported.value, Known):
        yield (
            f"  the engine itself printed {c.reported.value.amount}x for requests of "
            f"{c.reported.request_tokens:,} tokens {lines_text(c.reported.value.evidence, report)}"
        )


def _fitting(
    rows: Sequence[Sequence[str]], names: Sequence[str], sides: Sequence[str]
) -> Iterator[str]:
    """A table, with headers of two lines where it would be too wide, and cells of two where it
    would be still."""
    broken = [name.replace(" ", "\n") for name in names]
    folded = [[cell.replace(" … ", " …\n").replace(" + ", " +\n") for cell in row] for row in rows]
    for header, cells in ((names, rows), (broken, rows), (broken, folded)):
        lines = list(table(cells, header, align=sides))
        if max(len(line) for line in lines) <= WIDTH:
            break
    yield from lines


def _open(row: ConcurrencyRow) -> Iterator[Unknown]:
    """The figures of a row that are not known; of what follows from others, where all those are."""
    for value in (row.token_limit, row.state_limit, row.request_limit):
        if isinstance(value, Unknown):
            yield value
    both = (row.token_limit, row.request_limit)
    whole = row.deployment_max_concurrent
    if all(isinstance(value, Known) for value in both) and isinstance(whole, Unknown):
        yield whole


def _is_impossible(row: ConcurrencyRow, report: Report) -> bool:
    """Whether a request is longer than the server takes."""
    length = report.deployment.context_length
    return isinstance(length, Known) and row.request_tokens > length.number


def _cell(value: Value, row: ConcurrencyRow, report: Report) -> str:
    return "impossible" if _is_impossible(row, report) else plain_text(value)


def _maybe(value: Value | Absent) -> str:
    return "" if isinstance(value, Absent) else plain_text(value)
