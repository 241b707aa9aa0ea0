"""The report for a reader at a terminal: sections of tables, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from capacity_core.api.ledger import Stage, Status
from capacity_core.api.report import (
    CategoryRow,
    EvidenceRow,
    RankRow,
    Report,
)
from capacity_core.rendering.concurrency import concurrency
from capacity_core.rendering.course import load, outcome, steps, unmatched
from capacity_core.rendering.figures import (
    bound_text,
    error_text,
    gib_or_unknown,
    gib_text,
    lines_text,
    plain_text,
    source_text,
    table,
    whole_text,
    with_unit,
    words,
    wrapped,
)
from capacity_core.rendering.kv import layout_lines
from capacity_core.units import MIB
from capacity_core.values import Known, Origin, Unknown, Value

SHOWN_RANKS = 32
SHOWN_LINES = 40


@attrs.frozen
class TextRenderer:
    name: str = "text"

    def render(self, report: Report) -> str:
        sections = (
            _headline(report),
            _plugin_trouble(report),
            outcome(report),
            _configuration(report),
            _breakdown(report),
            steps(report),
            _ranks(report),
            _kv_pool(report),
            _layout(report),
            concurrency(report),
            load(report),
            _findings(report),
            _advice(report),
            _evidence(report),
            unmatched(report),
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
    ranks = f"{len(report.ranks)} rank{'' if len(report.ranks) == 1 else 's'} in the log"
    yield from wrapped(f"{name} · {_run(report)} · {shown} · {ranks}", "")


def _run(report: Report) -> str:
    """Which run, as people count; and the number that `--run` takes where there are several."""
    number, count = report.selected_run, len(report.runs)
    return f"run {number + 1} of {count}" + (f" (--run {number})" if count > 1 else "")


def _plugin_trouble(report: Report) -> Iterator[str]:
    for row in report.plugins:
        if row.status == "failed":
            yield from wrapped(
                f"! plugin {row.name} ({row.distribution or row.module}) failed: {row.error}; "
                f"what only it reads is missing here",
                "",
            )


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
    parallel = " · ".join(f"{name} {plain_text(v)}" for name, v in sizes if isinstance(v, Known))
    dtype = plain_text(d.kv_cache_dtype)
    if isinstance(d.kv_cache_dtype_resolved, Known):
        dtype += f" (asked), {plain_text(d.kv_cache_dtype_resolved)} (allocated)"
    rows = [
        ("model", plain_text(d.model)),
        ("quantization", plain_text(d.quantization)),
        ("parallel", parallel or "unknown"),
        ("gpu", _gpu(report)),
        ("context length", plain_text(d.context_length)),
        ("kv cache dtype", dtype),
        ("page size", plain_text(d.page_size)),
        ("mem-fraction-static", plain_text(d.mem_fraction_static)),
        ("gpu-memory-utilization", plain_text(d.gpu_memory_utilization)),
        ("chunked prefill", plain_text(d.chunked_prefill_size)),
        ("speculative", plain_text(d.speculative)),
        ("disaggregation", plain_text(d.disaggregation)),
    ]
    yield "Serving configuration"
    optional = ("speculative", "disaggregation", "mem-fraction-static", "gpu-memory-utilization")
    for name, shown in rows:
        if shown != "unknown" or name not in optional:
            yield from wrapped(shown, f"  {name:<23}", " " * 25)


def _gpu(report: Report) -> str:
    gpu = report.deployment.gpu
    name = plain_text(gpu.key) if isinstance(gpu.key, Known) else plain_text(gpu.name)
    details = []
    if isinstance(gpu.total, Known):
        details.append(f"{gib_text(gpu.total)} GiB = {source_text(gpu.total)}")
    if isinstance(gpu.nominal_gb, Known):
        details.append(f"sold as {plain_text(gpu.nominal_gb)} GB")
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
    yield from table(
        [row for row in rows if row is not None],
        ("Category", "GiB", "MiB", "%", "From"),
        align=("left", "right", "right", "right", "left"),
        widths=(None, None, None, None, 56),
    )
    for pool in rank.host_pools:
        said = f"in host memory, not counted here: {with_unit(pool.size)}, {pool.label}"
        yield from wrapped(said, "  ")
    if len(rank.parts) > 1:
        yield "  of which"
        for part in rank.parts:
            size = f"{gib_text(part.size):>8}" if isinstance(part.size, Known) else " unknown"
            yield from wrapped(
                f"{size}  {part.category.value} · {part.role.value} · {part.label}", "   ", " " * 13
            )


def _category(name: str, row: CategoryRow, report: Report) -> list[str] | None:
    value = row.value
    if isinstance(value, Unknown):
        if name == "state_pool" and row.inside is None:
            return None
        why = f"inside {row.inside.value}" if row.inside else _first_reasons(value.why)
        bound = bound_text(value)
        return [name, bound or ("" if row.inside else "unknown"), "", "", why]
    beside = name in ("free", "unattributed")  # no part of what is used
    share = "" if row.share is None or beside else f"{100 * row.share:.1f}"
    origin = source_text(value)
    if value.origin in (Origin.PRINTED, Origin.CONFIGURED, Origin.MEASURED):
        origin = f"{value.origin.value}: {origin}"
    error = f" ±{error_text(value.error)}" if value.error and value.origin is Origin.DERIVED else ""
    mib = value.to(MIB).number
    note = f"; {row.note}" if row.note else ""
    where = lines_text(value.evidence[:3], report)
    return [
        name,
        gib_text(value),
        f"{round(mib):,}",
        share,
        f"{origin}{error}{note}  {where}".strip(),
    ]


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
        row += [gib_or_unknown(rank.memory[c].value) for c in ("weights", "kv_pool", "cuda_graph")]
        row += [gib_or_unknown(_free_at(rank, stage)) for stage in shown]
        if measured:
            device = rank.device
            row += [
                whole_text(device.used) if device else "unknown",
                whole_text(device.free) if device else "unknown",
            ]
        rows.append(row)
    yield from table(rows, header, align=("left", *["right"] * (len(header) - 1)))
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
    rows: list[tuple[str, str]] = [("tokens", with_unit(pool.tokens) + per_worker)]
    if len(pool.workers) > 1 or not isinstance(pool.deployment_tokens, Known):
        rows.append(("deployment tokens", with_unit(pool.deployment_tokens)))
    rows += [
        ("size on one GPU", with_unit(pool.size)),
        ("budget before it", with_unit(pool.budget)),
        ("element type", with_unit(pool.dtype)),
        ("bytes per token", with_unit(pool.bytes_per_token)),
    ]
    if isinstance(pool.bytes_per_full_token, Known):
        mode = f"; sizing mode {plain_text(pool.sizing_mode)}"
        rows.append(
            (
                "bytes_per_full_token",
                f"{pool.bytes_per_full_token.amount} as printed; not comparable between releases "
                f"or sizing modes{mode}",
            )
        )
    if pool.state_slots is not None:
        rows.append(("state slots", with_unit(pool.state_slots)))
    for part in pool.pools:
        rows.append(
            (
                f"pool {part.role.value} {part.label}",
                f"{with_unit(part.tokens)}, {with_unit(part.size)}",
            )
        )
    for name, shown in rows:
        yield from wrapped(shown, f"  {name:<22} ", " " * 25)


def _layout(report: Report) -> Iterator[str]:
    """Theory, beside what the log shows."""
    layout = report.kv_pool.layout
    if layout is None:
        return
    if not layout.terms:
        yield from wrapped(with_unit(layout.bytes_per_token), f"KV layout {layout.name}: ")
        return
    yield from layout_lines(layout)
    shown, theory = report.kv_pool.bytes_per_token, layout.bytes_per_token
    if isinstance(shown, Known):
        verdict = "the same" if isinstance(theory, Known) else "theory is unknown"
        if any(finding.code == "layout-disagrees" for finding in report.findings):
            verdict = "see Findings"
        where = lines_text(shown.evidence, report)
        yield from wrapped(
            f"{with_unit(shown)} = {shown.how} {where}: {verdict}",
            f"  {'the log shows':<18} ",
            " " * 21,
        )


def _findings(report: Report) -> Iterator[str]:
    if report.findings:
        yield "Findings"
    for finding in report.findings:
        where = lines_text(finding.evidence[:3], report)
        yield from wrapped(
            f"{finding.message} {where}", f"  {finding.severity.value:<8} ", " " * 11
        )


def _advice(report: Report) -> Iterator[str]:
    if report.advice:
        yield "Tuning notes"
    for number, note in enumerate(report.advice, 1):
        yield from wrapped(
            f"{note.message} {lines_text(note.evidence[:3], report)}", f"  {number}. ", "     "
        )
        yield from wrapped(f"{note.change}", "     try: ", "          ")
        yield from wrapped(with_unit(note.effect), "     gives: ", "            ")
        yield from wrapped(note.cost, "     costs: ", "            ")


def _evidence(report: Report) -> Iterator[str]:
    yield f"{report.title} startup evidence"
    telling = [row for row in report.evidence if row.fields] or report.evidence
    shown = telling[:SHOWN_LINES]
    for row in shown:
        where = lines_text((row.id,), report)
        yield from wrapped(f"{_fact(row)}", f"  {where:<18} ", " " * 21, most=2)
    left = len(report.evidence) - len(shown) + sum(report.evidence_omitted.values())
    if left:
        yield f"  … and {left:,} more recognised lines (--format json has them)"


def _fact(row: EvidenceRow) -> str:
    fields = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.fields.items())
    rank = f"{row.rank}: " if row.rank else ""
    return f"{rank}{words(row.matcher)}" + (f": {fields}" if fields else "")
