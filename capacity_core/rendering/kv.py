"""What a model's KV costs, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from capacity_core.api.kv_report import KvReport
from capacity_core.api.report import LayoutRow, TermRow
from capacity_core.rendering.figures import (
    amount_text,
    plain_text,
    request_text,
    table,
    with_unit,
    wrapped,
)
from capacity_core.rendering.json import to_plain
from capacity_core.units import COUNT, MIB
from capacity_core.values import Known, Unknown, Value


def kv_json(report: KvReport) -> str:
    plain = to_plain(report)
    plain["tool"] = {"name": "capacity", "version": report.tool}
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"


def kv_text(report: KvReport) -> str:
    """What one GPU keeps of a token and of a request, and how each figure comes about."""
    lines = [*_head(report), "", *layout_lines(report.layout)]
    if report.stages:
        lines += ["", "Pipeline stages (the figures above are of the largest)"]
        lines += _stages(report)
    lines += ["", *_requests(report)]
    return "\n".join(lines) + "\n"


def layout_lines(layout: LayoutRow) -> Iterator[str]:
    """The terms of a layout, what they add up to, and the steps that led to each."""
    yield f"What one GPU keeps · {layout.name}" + (f" ({layout.family})" if layout.family else "")
    header = ("cache", "layers", "B/token", "window", "B/request")
    rows = [_term_cells(term) for term in layout.terms]
    yield from table(rows, header, align=("left", *["right"] * 4))
    windows = any(term.window_tokens is not None for term in layout.terms)
    states = any(term.fixed_bytes_per_request is not None for term in layout.terms)
    sums = (
        ("each token", layout.bytes_per_token),
        *((("in the window", layout.window_bytes_per_token),) if windows else ()),
        *((("each request", layout.fixed_bytes_per_request),) if states else ()),
        ("engine divides by", layout.pool_bytes_per_token),
        ("copies of a head", layout.replication),
    )
    for name, value in sums:
        said = isinstance(value, Known) or value.at_most is not None or value.at_least is not None
        if said or value in (layout.bytes_per_token, layout.replication):
            apart = _apart(layout) if value is layout.window_bytes_per_token else ""
            yield from wrapped(_with_formula(value) + apart, f"  {name:<18} ", " " * 21)
    assuming = layout.bytes_per_token.assuming if isinstance(layout.bytes_per_token, Known) else ()
    for why in assuming:
        yield from wrapped(why, f"  {'assuming':<18} ", " " * 21)
    for term in layout.terms:
        for number, step in enumerate(term.steps):
            yield from wrapped(step, f"  {'' if number else term.name:<27} ", " " * 30)
    for source in dict.fromkeys(part for term in layout.terms for part in _sources(term)):
        yield from wrapped(source, "  from ", " " * 7)


def _apart(layout: LayoutRow) -> str:
    """That windows of several lengths are added up, where they are."""
    lengths = {
        term.window_tokens.number for term in layout.terms if isinstance(term.window_tokens, Known)
    }
    if len(lengths) < 2:
        return ""
    return f" (of windows of {' and '.join(f'{n:,}' for n in sorted(lengths))} tokens together)"


def _with_formula(value: Value) -> str:
    if isinstance(value, Unknown):
        return with_unit(value)
    unit = "" if value.unit is COUNT else f" {value.unit}"
    return f"{amount_text(value)}{unit}" + (f" = {value.how}" if value.how else "")


def _sources(term: TermRow) -> list[str]:
    return term.source.split("; ") if term.source else []


def _term_cells(term: TermRow) -> tuple[str, ...]:
    window, fixed = term.window_tokens, term.fixed_bytes_per_request
    per_token = term.bytes_per_token
    if isinstance(per_token, Known) and not per_token.number and fixed is not None:
        shown = ""
    else:
        shown = plain_text(per_token)
    return (
        term.name,
        "" if term.layers is None else f"{term.layers}",
        shown,
        "" if window is None else plain_text(window),
        "" if fixed is None else plain_text(fixed),
    )


def _head(report: KvReport) -> Iterator[str]:
    version = f" {report.framework_version}" if report.framework_version else ""
    parallel = report.parallel
    parts = [
        report.model,
        f"{report.framework}{version}" if report.framework else "any framework",
        f"TP {parallel.tensor} · PP {parallel.pipeline}",
        *([f"attention DP {parallel.attention_data}"] if parallel.attention_data > 1 else []),
        *([f"context parallel {parallel.context}"] if parallel.context > 1 else []),
        f"KV {plain_text(report.kv_cache_dtype)}",
        *([f"page {report.page_size}"] if report.page_size else []),
    ]
    yield from wrapped(" · ".join(parts), "")


def _stages(report: KvReport) -> Iterator[str]:
    rows = [
        (
            f"PP{stage.pp_rank}",
            plain_text(stage.layout.bytes_per_token),
            plain_text(stage.layout.window_bytes_per_token),
            plain_text(stage.layout.fixed_bytes_per_request),
        )
        for stage in report.stages
    ]
    header = ("stage", "B/token", "B/window token", "B/request")
    yield from table(rows, header, align=("left", "right", "right", "right"))


def _requests(report: KvReport) -> Iterator[str]:
    yield "One request on one GPU"
    rows = [
        (
            request_text(row),
            plain_text(row.bytes),
            f"{row.bytes.to(MIB).number:,.1f}" if isinstance(row.bytes, Known) else "",
        )
        for row in report.requests
    ]
    yield from table(rows, ("tokens", "bytes", "MiB"), align=("right", "right", "right"))
    whys = dict.fromkeys(row.bytes.why for row in report.requests if isinstance(row.bytes, Unknown))
    for why in whys:
        yield from wrapped(why, "  unknown: ", " " * 11)
