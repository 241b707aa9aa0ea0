"""Values and lines as a reader at a terminal sees them: figures, tables, wrapped paragraphs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from capacity_core.api.kv_report import RequestRow
from capacity_core.api.report import ConcurrencyRow, Report
from capacity_core.units import GIB, Unit
from capacity_core.values import Known, Origin, Unknown, Value

WIDTH = 100


def plain_text(value: Value) -> str:
    """A value alone: its amount, a bound, or unknown."""
    if isinstance(value, Unknown):
        return bound_text(value) or "unknown"
    return amount_text(value)


def with_unit(value: Value) -> str:
    """A value with its unit; an unknown with its reason."""
    if isinstance(value, Unknown):
        bound = bound_text(value)
        return f"{bound or 'unknown'} ({value.why})"
    unit = f" {value.unit}" if value.unit and value.unit.symbol not in ("count", "ratio") else ""
    error = ""
    if value.error and value.origin is Origin.DERIVED:
        error = f" ±{error_text(value.error)}"
    assuming = f", assuming {'; '.join(value.assuming)}" if value.assuming else ""
    return f"{amount_text(value)}{error}{unit}{assuming}"


def amount_text(value: Known) -> str:
    """A known amount in the form of its unit."""
    if not isinstance(value.amount, Decimal):
        return str(value.amount)
    if value.unit == GIB:
        return gib_text(value)
    number = value.amount
    if number == number.to_integral_value():
        return f"{int(number):,}"
    return f"{number:,.2f}" if abs(number) >= 1 else str(number.normalize())


def bound_text(value: Unknown) -> str:
    """The bounds of an unknown; empty when there is none."""
    if value.at_most is not None and value.at_least:
        return f"{_bare(value.at_least, value.unit)} … {_bare(value.at_most, value.unit)}"
    if value.at_most is not None:
        return f"≤ {_bare(value.at_most, value.unit)}"
    if value.at_least is not None:
        return f"≥ {_bare(value.at_least, value.unit)}"
    return ""


def _bare(number: Decimal, unit: Unit | None) -> str:
    if unit == GIB:
        return f"{number:.2f}"
    return f"{int(number):,}"


def gib_text(value: Known) -> str:
    """An amount of memory in GiB, two decimals."""
    return f"{value.to(GIB).number:,.2f}"


def gib_or_unknown(value: Value | None) -> str:
    """The same, or the word."""
    return gib_text(value) if isinstance(value, Known) else "unknown"


def whole_text(value: Value) -> str:
    """A whole number, or the word."""
    return f"{round(value.number):,}" if isinstance(value, Known) else "unknown"


def error_text(error: Decimal) -> str:
    """An error in one digit."""
    rounded = float(f"{error:.1g}")
    return f"{rounded:,.0f}" if rounded >= 1 else f"{rounded:g}"


def source_text(value: Known) -> str:
    """Where a value comes from, in words."""
    how = value.how or value.origin.value
    return words(how) or how if value.origin is Origin.PRINTED else how


def lines_text(evidence: Sequence[str], report: Report) -> str:
    """Lines as a reader looks them up: the file's name where there are several logs."""
    if not evidence:
        return ""
    logs = sum(row.kind == "log" for row in report.inputs)
    items = dict.fromkeys(i.removeprefix("log0") if logs == 1 else i for i in evidence)
    return f"[{' '.join(items)}]"


def words(matcher: str) -> str:
    """A matcher's name as words, without its framework."""
    return matcher.partition(".")[2].replace("_", " ")


# --- layout -----------------------------------------------------------


def request_text(row: ConcurrencyRow | RequestRow) -> str:
    """A request's tokens, or its prompt and output where they were asked for."""
    if isinstance(row.prompt_tokens, int) and isinstance(row.output_tokens, int):
        return f"{row.prompt_tokens:,} + {row.output_tokens:,}"
    return f"{row.request_tokens:,}"


def table(
    rows: Sequence[Sequence[str]],
    header: Sequence[str],
    *,
    align: Sequence[str],
    widths: Sequence[int | None] | None = None,
) -> Iterator[str]:
    """Rows as a plain table, set in by two blanks."""
    from tabulate import tabulate  # only a report needs it, and it is slow to import

    table = tabulate(
        rows,
        headers=header,
        tablefmt="plain",
        colalign=align if rows else None,
        disable_numparse=True,
        maxcolwidths=list(widths) if widths and rows else None,
    )
    yield from (f"  {line}".rstrip() for line in table.splitlines())


def wrapped(text: str, first: str, rest: str = "  ", most: int | None = None) -> Iterable[str]:
    """A text in lines of at most `WIDTH` columns."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=True,
        break_on_hyphens=False,
        max_lines=most,
        placeholder=" …",
    ) or [first]
