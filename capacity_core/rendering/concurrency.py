"""How many requests fit, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from capacity_core.api.report import Absent, Report
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
        ("by tokens", "right", [plain_text(row.token_limit) for row in c.rows]),
        ("by states", "right", [_maybe(row.state_limit) for row in c.rows]),
        ("by requests", "right", [plain_text(row.request_limit) for row in c.rows]),
        ("max concurrent", "right", [plain_text(row.max_concurrent) for row in c.rows]),
        ("bound by", "left", [row.bound_by or "" for row in c.rows]),
        ("deployment", "right", [plain_text(row.deployment_max_concurrent) for row in c.rows]),
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
    whys = dict.fromkeys(
        part
        for row in c.rows
        for value in (row.token_limit, row.request_limit)
        if isinstance(value, Unknown)
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
    """A table, with headers of two lines where it would be too wide."""
    lines = list(table(rows, names, align=sides))
    if max(len(line) for line in lines) > WIDTH:
        lines = list(table(rows, [name.replace(" ", "\n") for name in names], align=sides))
    yield from lines


def _maybe(value: Value | Absent) -> str:
    return "" if isinstance(value, Absent) else plain_text(value)
