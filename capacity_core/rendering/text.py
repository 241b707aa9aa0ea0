"""The report for a reader at a terminal: sections of tables, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

import attrs

from capacity_core.api.ledger import Stage, Status
from capacity_core.api.report import CategoryRow, EvidenceRow, RankRow, Report
from capacity_core.units import GIB, MIB, Unit
from capacity_core.values import Known, Origin, Unknown, Value

WIDTH = 100
SHOWN_RANKS = 32
SHOWN_LINES = 40


@attrs.frozen
class TextRenderer:
    name: str = "text"

    def render(self, report: Report) -> str:
        sections = (
            _headline(report),
            _plugin_trouble(report),
            _outcome(report),
            _configuration(report),
            _breakdown(report),
            _ranks(report),
            _kv_pool(report),
            _concurrency(report),
            _findings(report),
            _advice(report),
            _evidence(report),
        )
        return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines) + "\n"


# --- sections ---------------------------------------------------------


def _headline(report: Report) -> Iterator[str]:
    version = report.deployment.framework_version
    name = report.title
    if isinstance(version, Known):
        name += f" {version.amount}"
    elif report.version_range.range:
        low, high = report.version_range.range
        name += f" {low} … {high} (from the wordings)"
    status = report.outcome.status
    shown = status.value.upper() if status is Status.FAILED else status.value
    count = len(report.ranks)
    yield (
        f"{name} · {_run(report)} · {shown} · {count} rank{'' if count == 1 else 's'} in the log"
    )


def _run(report: Report) -> str:
    """Which run, as people count; and the number that `--run` takes where there are several."""
    number, count = report.selected_run, len(report.runs)
    return f"run {number + 1} of {count}" + (f" (--run {number})" if count > 1 else "")


def _plugin_trouble(report: Report) -> Iterator[str]:
    for row in report.plugins:
        if row.status == "failed":
            yield from _wrapped(
                f"! plugin {row.name} ({row.distribution or row.module}) failed: {row.error}; "
                f"what only it reads is missing here",
                "",
            )


def _outcome(report: Report) -> Iterator[str]:
    outcome = report.outcome
    if outcome.status is Status.READY:
        return
    yield "Outcome"
    if outcome.failure is None:
        stage = outcome.stage.value.replace("_", " ") if outcome.stage else "before any known stage"
        yield f"  the log ends {'after: ' * bool(outcome.stage)}{stage}; no error text follows"
        return
    failure = outcome.failure
    yield f"  failed               {failure.kind.value.replace('_', ' ')}"
    yield f"  stage reached        {failure.stage.value.replace('_', ' ')}"
    yield from _wrapped(f"{_where(failure.evidence, report)} {failure.message}", "  ")


def _configuration(report: Report) -> Iterator[str]:
    d = report.deployment
    p = d.parallel
    sizes = (
        ("TP", p.tensor),
        ("PP", p.pipeline),
        ("DP", p.data),
        ("EP", p.expert),
        ("attention DP", p.attention_data),
        ("context", p.context),
        ("nodes", p.nodes),
    )
    parallel = " · ".join(f"{name} {_plain(v)}" for name, v in sizes if isinstance(v, Known))
    dtype = _plain(d.kv_cache_dtype)
    if isinstance(d.kv_cache_dtype_resolved, Known):
        dtype += f" (asked), {_plain(d.kv_cache_dtype_resolved)} (allocated)"
    rows = [
        ("model", _plain(d.model)),
        ("quantization", _plain(d.quantization)),
        ("parallel", parallel or "unknown"),
        ("gpu", _gpu(report)),
        ("context length", _plain(d.context_length)),
        ("kv cache dtype", dtype),
        ("page size", _plain(d.page_size)),
        ("mem-fraction-static", _plain(d.mem_fraction_static)),
        ("gpu-memory-utilization", _plain(d.gpu_memory_utilization)),
        ("chunked prefill", _plain(d.chunked_prefill_size)),
        ("speculative", _plain(d.speculative)),
        ("disaggregation", _plain(d.disaggregation)),
    ]
    yield "Serving configuration"
    optional = ("speculative", "disaggregation", "mem-fraction-static", "gpu-memory-utilization")
    for name, shown in rows:
        if shown != "unknown" or name not in optional:
            yield from _wrapped(shown, f"  {name:<23}", " " * 25)


def _gpu(report: Report) -> str:
    gpu = report.deployment.gpu
    name = _plain(gpu.key) if isinstance(gpu.key, Known) else _plain(gpu.name)
    details = []
    if isinstance(gpu.total, Known):
        details.append(f"{_gib(gpu.total)} GiB = {_source(gpu.total)}")
    if isinstance(gpu.nominal_gb, Known):
        details.append(f"sold as {_plain(gpu.nominal_gb)} GB")
    if not isinstance(gpu.key, Known) and gpu.candidates:
        more = f" and {len(gpu.candidates) - 6} more" if len(gpu.candidates) > 6 else ""
        details.append("fits " + ", ".join(gpu.candidates[:6]) + more)
    return f"{name} ({'; '.join(details)})" if details else name


def _breakdown(report: Report) -> Iterator[str]:
    rank = next((row for row in report.ranks if row.id == report.shown_rank), None)
    if rank is None:
        return
    whole = {"used": "used (device tool)", "free[before_weights]": "what was free before weights"}
    of = f"share of {whole[rank.share_of]}" if rank.share_of else "no device reading: no shares"
    asked = " (asked for)" if report.asked_rank else ""
    yield f"Memory breakdown · {rank.label}{asked} · {of}"
    order = ("weights", "kv_pool", "state_pool", "cuda_graph", "framework", "other", "used", "free")
    rows = [
        _category(name, rank.memory[name], report)
        for name in (*order, "unattributed", "activation")
    ]
    yield from _table(
        [row for row in rows if row is not None],
        ("Category", "GiB", "MiB", "%", "From"),
        align=("left", "right", "right", "right", "left"),
        widths=(None, None, None, None, 56),
    )
    if len(rank.parts) > 1:
        yield "  of which"
        for part in rank.parts:
            size = f"{_gib(part.size):>8}" if isinstance(part.size, Known) else " unknown"
            yield from _wrapped(
                f"{size}  {part.category.value} · {part.role.value} · {part.label}", "   ", " " * 13
            )


def _category(name: str, row: CategoryRow, report: Report) -> list[str] | None:
    value = row.value
    if isinstance(value, Unknown):
        if name == "state_pool" and row.inside is None:
            return None
        why = f"inside {row.inside.value}" if row.inside else _first_reasons(value.why)
        bound = _bound(value)
        return [name, bound or ("" if row.inside else "unknown"), "", "", why]
    beside = name in ("free", "unattributed")  # no part of what is used
    share = "" if row.share is None or beside else f"{100 * row.share:.1f}"
    origin = _source(value)
    if value.origin in (Origin.PRINTED, Origin.CONFIGURED, Origin.MEASURED):
        origin = f"{value.origin.value}: {origin}"
    error = f" ±{_short(value.error)}" if value.error and value.origin is Origin.DERIVED else ""
    mib = value.to(MIB).number
    note = f"; {row.note}" if row.note else ""
    where = _where(value.evidence[:3], report)
    return [name, _gib(value), f"{round(mib):,}", share, f"{origin}{error}{note}  {where}".strip()]


def _first_reasons(why: str) -> str:
    """The first of many reasons: what a sum lacks is said by its terms already."""
    reasons = why.split("; ")
    more = len(reasons) - 1
    return reasons[0] + (f"; {more} more reason{'s' * (more > 1)}" if more else "")


def _ranks(report: Report) -> Iterator[str]:
    if len(report.ranks) < 2 and not any(rank.device for rank in report.ranks):
        return
    stages = (Stage.BEFORE_WEIGHTS, Stage.AFTER_WEIGHTS, Stage.AFTER_POOLS, Stage.READY)
    shown = [s for s in stages if any(_free_at(rank, s) for rank in report.ranks)]
    yield "Ranks side by side (GiB; free memory at each stage)"
    measured = any(rank.device for rank in report.ranks)
    header = ["rank", "weights", "kv pool", "graphs"]
    header += [stage.value.replace("_", "\n") for stage in shown]
    header += ["used\nMiB", "free\nMiB"] if measured else []
    rows = []
    for rank in report.ranks[:SHOWN_RANKS]:
        row = [rank.label]
        row += [_gib_or_unknown(rank.memory[c].value) for c in ("weights", "kv_pool", "cuda_graph")]
        row += [_gib_or_unknown(_free_at(rank, stage)) for stage in shown]
        if measured:
            device = rank.device
            row += [
                _whole(device.used) if device else "unknown",
                _whole(device.free) if device else "unknown",
            ]
        rows.append(row)
    yield from _table(rows, header, align=("left", *["right"] * (len(header) - 1)))
    if len(report.ranks) > SHOWN_RANKS:
        yield f"  … and {len(report.ranks) - SHOWN_RANKS} more (all of them in --format json)"
    if measured:
        yield "  device rows are given to ranks by their order"


def _free_at(rank: RankRow, stage: Stage) -> Value | None:
    return next(
        (p.free for p in rank.timeline if p.stage is stage and not isinstance(p.role, str)), None
    )


def _kv_pool(report: Report) -> Iterator[str]:
    pool = report.kv_pool
    yield "KV pool"
    per_worker = " per DP rank" if isinstance(pool.tokens, Known) else ""
    rows: list[tuple[str, str]] = [("tokens", _said(pool.tokens) + per_worker)]
    if len(pool.workers) > 1 or not isinstance(pool.deployment_tokens, Known):
        rows.append(("deployment tokens", _said(pool.deployment_tokens)))
    rows += [
        ("size on one GPU", _said(pool.size)),
        ("budget before it", _said(pool.budget)),
        ("element type", _said(pool.dtype)),
        ("bytes per token", _said(pool.bytes_per_token)),
    ]
    if isinstance(pool.bytes_per_full_token, Known):
        mode = f"; sizing mode {_plain(pool.sizing_mode)}"
        rows.append(
            (
                "bytes_per_full_token",
                f"{pool.bytes_per_full_token.amount} as printed; not comparable between releases "
                f"or sizing modes{mode}",
            )
        )
    if pool.state_slots is not None:
        rows.append(("state slots", _said(pool.state_slots)))
    for part in pool.pools:
        rows.append(
            (f"pool {part.role.value} {part.label}", f"{_said(part.tokens)}, {_said(part.size)}")
        )
    rows += _layout_rows(report)
    for name, shown in rows:
        yield from _wrapped(shown, f"  {name:<22} ", " " * 25)


def _layout_rows(report: Report) -> Iterator[tuple[str, str]]:
    layout = report.kv_pool.layout
    if layout is None:
        return
    yield "layout", f"{layout.name}" + (f" ({layout.family})" if layout.family else "")
    yield "  replication", _said(layout.replication)
    yield "  bytes per token", _said(layout.bytes_per_token)
    if layout.formula:
        yield "  formula", layout.formula
    for term in layout.terms:
        if isinstance(term.slot, Known):
            yield f"  {term.name}", f"{_said(term.slot)} ({term.slot.how})"


def _concurrency(report: Report) -> Iterator[str]:
    c = report.concurrency
    count = f"{_amount(c.workers)} of them" if isinstance(c.workers, Known) else "an unknown number"
    yield f"Concurrency (per DP rank; the deployment has {count})"
    rows = [
        [
            f"{row.request_tokens:,}",
            _count(row.token_limit),
            _count(row.request_limit),
            _count(row.max_concurrent),
            row.bound_by or "",
            _count(row.deployment_max_concurrent),
        ]
        for row in c.rows
    ]
    header = (
        "request tokens",
        "by tokens",
        "by requests",
        "max concurrent",
        "bound by",
        "deployment",
    )
    yield from _table(rows, header, align=("right", "right", "right", "right", "left", "right"))
    whys = dict.fromkeys(
        part
        for row in c.rows
        for value in (row.token_limit, row.request_limit)
        if isinstance(value, Unknown)
        for part in value.why.split("; ")
    )
    for why in whys:
        yield from _wrapped(why, "  unknown: ", " " * 11)
    if c.reported is not None and isinstance(c.reported.value, Known):
        yield (
            f"  the engine itself printed {c.reported.value.amount}x for requests of "
            f"{c.reported.request_tokens:,} tokens {_where(c.reported.value.evidence, report)}"
        )


def _findings(report: Report) -> Iterator[str]:
    if report.findings:
        yield "Findings"
    for finding in report.findings:
        where = _where(finding.evidence[:3], report)
        yield from _wrapped(
            f"{finding.message} {where}", f"  {finding.severity.value:<8} ", " " * 11
        )


def _advice(report: Report) -> Iterator[str]:
    if report.advice:
        yield "Tuning notes"
    for number, note in enumerate(report.advice, 1):
        yield from _wrapped(
            f"{note.message} {_where(note.evidence[:3], report)}", f"  {number}. ", "     "
        )
        yield from _wrapped(f"{note.change}", "     try: ", "          ")
        yield from _wrapped(_said(note.effect), "     gives: ", "            ")
        yield from _wrapped(note.cost, "     costs: ", "            ")


def _evidence(report: Report) -> Iterator[str]:
    yield f"{report.title} startup evidence"
    telling = [row for row in report.evidence if row.fields] or report.evidence
    shown = telling[:SHOWN_LINES]
    for row in shown:
        where = _where((row.id,), report)
        yield from _wrapped(f"{_fact(row)}", f"  {where:<18} ", " " * 21, most=2)
    left = len(report.evidence) - len(shown) + sum(report.evidence_omitted.values())
    if left:
        yield f"  … and {left:,} more recognised lines (--format json has them)"


def _fact(row: EvidenceRow) -> str:
    fields = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.fields.items())
    rank = f"{row.rank}: " if row.rank else ""
    return f"{rank}{_words(row.matcher)}" + (f": {fields}" if fields else "")


def _words(matcher: str) -> str:
    """A matcher's name as words, without its framework."""
    return matcher.partition(".")[2].replace("_", " ")


# --- figures as text --------------------------------------------------


def _plain(value: Value) -> str:
    if isinstance(value, Unknown):
        return _bound(value) or "unknown"
    return _amount(value)


def _said(value: Value) -> str:
    """A value with its unit; an unknown with its reason."""
    if isinstance(value, Unknown):
        bound = _bound(value)
        return f"{bound or 'unknown'} ({value.why})"
    unit = f" {value.unit}" if value.unit and value.unit.symbol not in ("count", "ratio") else ""
    error = ""
    if value.error and value.origin is Origin.DERIVED:
        error = f" ±{_short(value.error)}"
    assuming = f", assuming {'; '.join(value.assuming)}" if value.assuming else ""
    return f"{_amount(value)}{error}{unit}{assuming}"


def _amount(value: Known) -> str:
    if not isinstance(value.amount, Decimal):
        return str(value.amount)
    if value.unit == GIB:
        return _gib(value)
    number = value.amount
    if number == number.to_integral_value():
        return f"{int(number):,}"
    return f"{number:,.2f}" if abs(number) >= 1 else str(number.normalize())


def _bound(value: Unknown) -> str:
    if value.at_most is not None:
        return f"≤ {_bare(value.at_most, value.unit)}"
    if value.at_least is not None:
        return f"≥ {_bare(value.at_least, value.unit)}"
    return ""


def _bare(number: Decimal, unit: Unit | None) -> str:
    if unit == GIB:
        return f"{number:.2f}"
    return f"{int(number):,}"


def _count(value: Value) -> str:
    return _plain(value)


def _gib(value: Known) -> str:
    return f"{value.to(GIB).number:,.2f}"


def _gib_or_unknown(value: Value | None) -> str:
    return _gib(value) if isinstance(value, Known) else "unknown"


def _whole(value: Value) -> str:
    return f"{round(value.number):,}" if isinstance(value, Known) else "unknown"


def _short(error: Decimal) -> str:
    rounded = float(f"{error:.1g}")
    return f"{rounded:,.0f}" if rounded >= 1 else f"{rounded:g}"


def _source(value: Known) -> str:
    how = value.how or value.origin.value
    return _words(how) or how if value.origin is Origin.PRINTED else how


def _where(evidence: Sequence[str], report: Report) -> str:
    """Lines as a reader looks them up: the file's name where there are several logs."""
    if not evidence:
        return ""
    logs = sum(row.kind == "log" for row in report.inputs)
    items = dict.fromkeys(i.removeprefix("log0") if logs == 1 else i for i in evidence)
    return f"[{' '.join(items)}]"


# --- layout -----------------------------------------------------------


def _table(
    rows: Sequence[Sequence[str]],
    header: Sequence[str],
    *,
    align: Sequence[str],
    widths: Sequence[int | None] | None = None,
) -> Iterator[str]:
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


def _wrapped(text: str, first: str, rest: str = "  ", most: int | None = None) -> Iterable[str]:
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
