"""What a careful engineer would point at in a run of vLLM: sums that do not close, what the engine
suggests and where it errs, figures that mean less than they seem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import Finding, Severity
from capacity_core.api.versions import release_key
from capacity_core.units import GIB
from capacity_core.values import Known, Value
from capacity_vllm.deployment import span_of
from capacity_vllm.failures import ContextExceedsPool
from capacity_vllm.graphs import GraphPool
from capacity_vllm.kv import override_of
from capacity_vllm.limits import SleepMode
from capacity_vllm.load import RequestFailed
from capacity_vllm.pools import KvReserved, KvSize, SizedByAllocator, WeightsElsewhere
from capacity_vllm.ranks import WorkerReading
from capacity_vllm.sizes import engine_of
from capacity_vllm.usage import Profiled, UsageSummary


def findings_of(
    run: Run, readings: Sequence[WorkerReading], eager: Known | None
) -> Iterator[Finding]:
    yield from _mixed(run, readings)
    yield from _pool_is_not_the_budget(run)
    yield from _negative_graphs(readings, eager)
    for reading in readings:
        yield from _account(run, reading)
        yield from _estimate(reading)
    yield from _suggestion(run)
    yield from _utilization_needed(run)
    yield from _measured_otherwise(run)
    yield from _failed_requests(run)
    yield from _sleep(run)


def _finding(code: str, severity: Severity, message: str, *lines: str) -> Finding:
    return Finding(code=code, severity=severity, message=message, evidence=lines[:8])


def _pool_is_not_the_budget(run: Run) -> Iterator[Finding]:
    override = override_of(run)
    if override is not None:
        profiled, used = (getattr(override.event, f) for f in ("profiled", "used"))
        yield _finding(
            "blocks-overridden",
            Severity.WARNING,
            f"num_gpu_blocks_override made {used} blocks of {profiled}: the budget is not the "
            f"pool.",
            override.line,
        )
    reserved = run.last_of(KvReserved)
    if reserved is not None:
        yield _finding(
            "budget-reduced",
            Severity.INFO,
            f"after the budget was printed, {reserved.event.left} GiB of it were left for KV.",
            reserved.line,
        )
    sizes = {s.event.tokens for s in run.of(KvSize)}
    if len(sizes) > 1 and len({engine_of(s) for s in run.of(KvSize)}) == 1:
        yield _finding(
            "tokens-differ",
            Severity.INFO,
            f"workers printed {len(sizes)} different token counts: the engine uses the least.",
            *(s.line for s in run.of(KvSize)),
        )


def _mixed(run: Run, readings: Sequence[WorkerReading]) -> Iterator[Finding]:
    """Lines of several engines of one data-parallel rank: two servers in one log."""
    for reading in readings:
        if reading.budgets > 1:
            yield _finding(
                "servers-mixed",
                Severity.WARNING,
                f"{reading.label} has {reading.budgets} KV budgets in one start: the log mixes "
                f"servers whose lines cannot be told apart.",
                *reading.kv_budget.evidence,
            )
    engines: dict[object, set[object]] = {}
    for sighting in run:
        if (sighting.speaker.role or "").startswith("EngineCore") and sighting.speaker.pid:
            engines.setdefault(sighting.speaker.dp, set()).add(sighting.speaker.pid)
    doubled = [dp for dp, pids in engines.items() if len(pids) > 1]
    if run.interleaved and not doubled:
        yield _finding(
            "servers-mixed",
            Severity.WARNING,
            "lines of several servers alternate in this log; they are told apart by their "
            "processes alone, so that lines without one may belong to another.",
            run.first,
            run.last,
        )
    if doubled:
        lines = [s.line for s in run if s.speaker.dp in doubled and s.speaker.pid]
        yield _finding(
            "servers-mixed",
            Severity.WARNING,
            "several engines print as the same data-parallel rank: the log mixes servers, whose "
            "figures do not belong together.",
            *lines,
        )


def _negative_graphs(readings: Sequence[WorkerReading], eager: Known | None) -> Iterator[Finding]:
    graphs = [reading.graphs(eager) for reading in readings]
    negative = [value for value in graphs if isinstance(value, Known) and value.number < 0]
    if negative:
        yield _finding(
            "negative-graphs",
            Severity.INFO,
            "graph memory is negative as printed: memory came back on the device during the "
            "capture.",
            *(line for value in negative for line in value.evidence),
        )


def _account(run: Run, reading: WorkerReading) -> Iterator[Finding]:
    """requested − what is held = the KV budget, whether or not the peak holds the graph estimate
    (v1/worker/gpu_worker.py of 0.10.2:235 … 0.33.0:642; worker/worker.py of 0.6.6:177)."""
    former = reading.last(Profiled)
    summary = reading.last(UsageSummary)
    if summary is not None:
        left = _left(summary)
        budget = reading.kv_budget
        # The estimate may have come off the budget although the line that says so is not shown.
        ways: list[Value] = [left, left - reading.estimate]
        lines = (summary.line, *budget.evidence)
    elif former is not None:
        budget, ways = reading.kv_budget, [reading.former_left]
        lines = (former.line, *budget.evidence)
    else:
        return
    said = [way for way in ways if isinstance(way, Known)]
    if not said or not isinstance(budget, Known) or run.has(KvReserved):
        return
    apart = min(abs(way.number - budget.number) - way.error - budget.error for way in said)
    if apart > 0:
        yield _finding(
            "account-does-not-close",
            Severity.WARNING,
            f"{reading.label}: what was requested less what is held leaves {said[0].number:.2f} "
            f"GiB, the KV budget is {budget.number:.2f} GiB.",
            *lines,
        )


def _left(summary: Sighting[Any]) -> Value:
    """requested − weights − non-torch − activation, in the terms that this summary prints."""
    event = summary.event
    terms = ("consumed",) if event.consumed is not None else ("weights", "non_torch")
    left: Value = summary.value("requested", "requested")
    for term in (*terms, "activation"):
        left = left - summary.value(term, term)
    return left


def _estimate(reading: WorkerReading) -> Iterator[Finding]:
    pool = reading.last(GraphPool)
    if pool is None:
        return
    actual, estimated = pool.event.actual, pool.event.estimated
    apart = abs(actual - estimated)
    if apart > Decimal("0.5") and apart > max(actual, estimated) / 4:
        yield _finding(
            "graph-estimate-off",
            Severity.INFO,
            f"{reading.label}: graphs took {actual} GiB, {estimated} GiB were estimated; what was "
            f"set aside beyond need is {estimated - actual:.2f} GiB.",
            pool.line,
        )


def _suggestion(run: Run) -> Iterator[Finding]:
    """The engine's hint, and its known error: from 0.27, and in 0.18, graphs are counted twice (the
    peak holds the applied estimate, and the actual graphs come on top)."""
    said = [s for s in run.of(UsageSummary) if s.event.suggested is not None]
    if not said:
        return
    hint = min(said, key=lambda sighting: sighting.event.suggested or 0)  # one flag serves all
    gib = Decimal(hint.event.suggested or 0) / (1 << 30)
    yield _finding(
        "engine-suggests",
        Severity.INFO,
        f"vLLM suggests --kv-cache-memory={hint.event.suggested} ({gib:.2f} GiB) to fit what was "
        f"requested, with 150 MiB kept. That is its claim{_suggestion_error(run)}.",
        hint.line,
    )


def _suggestion_error(run: Run) -> str:
    span = span_of(run)
    wrong = "; this release counts the graphs in it twice, so more would fit"
    if run.has(UsageSummary) and any(s.event.consumed is not None for s in run.of(UsageSummary)):
        return wrong
    if span is None:
        return "; 0.18 counts the graphs in it twice, and the release is not known"
    first, last = (release_key(release)[:2] for release in span)
    if first == last == (0, 18):
        return wrong
    return "; 0.18 counts the graphs in it twice" if first <= (0, 18) <= last else ""


def _utilization_needed(run: Run) -> Iterator[Finding]:
    """The smallest utilisation for which the longest request fits: what is short over the total."""
    for refused in run.of(ContextExceedsPool)[:1]:
        totals = [s.value("total") for s in run.of(UsageSummary, Profiled) if _total(s)]
        asked = [s.value("utilization") for s in run.of(UsageSummary, Profiled) if _asked(s)]
        short = refused.value("needed") - refused.value("available")
        if not (totals and asked) or not isinstance(short, Known):
            return
        total, utilization = totals[0], asked[0]
        if isinstance(total, Known) and isinstance(utilization, Known):
            most = (short.number + short.error) / total.to(GIB).number
            needed = (utilization.number + most).quantize(Decimal("0.01"), ROUND_CEILING)
            possible = needed <= 1
            way = f"from {needed} on it would" if possible else "no utilisation up to 1 would do"
            yield _finding(
                "utilization-too-low",
                Severity.WARNING,
                f"a utilisation of {utilization.number} leaves {short.number:.2f} GiB too little "
                f"for one request of the longest length; {way}.",
                refused.line,
                *total.evidence,
            )


def _total(sighting: Sighting[Any]) -> bool:
    return sighting.event.total is not None


def _asked(sighting: Sighting[Any]) -> bool:
    return sighting.event.utilization is not None


def _measured_otherwise(run: Run) -> Iterator[Finding]:
    for held in run.of(WeightsElsewhere)[:1]:
        yield _finding(
            "weights-elsewhere",
            Severity.INFO,
            f"another process holds {held.event.held} GiB of weights on this device; "
            f"{held.event.left} GiB are left to this engine.",
            held.line,
        )
    for grew in run.of(SizedByAllocator)[:1]:
        yield _finding(
            "sized-by-allocator",
            Severity.INFO,
            f"free memory grew by {grew.event.grew} GiB while it was measured: the KV cache was "
            f"sized by the allocator's own figure.",
            grew.line,
        )


def _failed_requests(run: Run) -> Iterator[Finding]:
    failed = run.of(RequestFailed)
    if failed:
        yield _finding(
            "requests-aborted",
            Severity.WARNING,
            "requests were given up: all blocks together do not hold one of them.",
            *(s.line for s in failed),
        )


def _sleep(run: Run) -> Iterator[Finding]:
    slept = run.last_of(SleepMode)
    if slept is not None:
        yield _finding(
            "engine-slept",
            Severity.INFO,
            f"a worker gave {slept.event.freed} GiB back in sleep mode; {slept.event.in_use} GiB "
            f"of the whole device stayed in use. Its lines say nothing after it woke.",
            slept.line,
        )
