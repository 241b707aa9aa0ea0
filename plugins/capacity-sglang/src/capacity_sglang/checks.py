"""What a careful engineer would point at in a run of SGLang: limits that are defaults, settings
that had no effect, memory that nobody uses, lines that mean less than they seem."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from capacity_core.api.extractors import Run
from capacity_core.api.ledger import Finding, Severity, Stage
from capacity_core.values import Known, Value, least
from capacity_sglang.args import Settings
from capacity_sglang.failures import NoKvMemory
from capacity_sglang.limits import Limits, PoolBelowContext, RequestLimit
from capacity_sglang.load import RequestAborted, RequestTruncated, Retracted
from capacity_sglang.outcome import Headroom
from capacity_sglang.pools import KvBudget, KvReserved, TokenCapIgnored, UnifiedPool
from capacity_sglang.ranks import kv_pool
from capacity_sglang.reading import RankReading
from capacity_sglang.weights import FractionReduced, Unbalanced, WeightsOverlapped

# max_running_requests = clamp(tokens / context · 512, 2048, 4096) when nobody asks for a number
# (managers/tp_worker.py of 0.4.6:119; up to 0.2.15 the upper end is 5120).
_CLAMPS = (2048, 4096, 5120)

_IDLE_SHARE = Decimal("0.25")


def findings_of(
    run: Run, readings: list[RankReading], settings: Settings, fraction: Value
) -> Iterator[Finding]:
    yield from _uneven(readings)
    yield from _mixed(readings)
    yield from _negative_budget(run)
    yield from _other_processes(run)
    yield from _settings_without_effect(run, settings)
    yield from _fraction_too_low(run, readings, fraction)
    yield from _idle(readings, fraction)
    yield from _other_tokens(run, readings, settings.shards)
    yield from _below_context(run, settings.shards)
    yield from _what_figures_mean(run)
    yield from _serving(run)


def _finding(code: str, severity: Severity, message: str, *lines: str) -> Finding:
    return Finding(code=code, severity=severity, message=message, evidence=lines[:8])


def _uneven(readings: list[RankReading]) -> Iterator[Finding]:
    begins = [
        (reading, value)
        for reading in readings
        if isinstance(value := reading.free(Stage.BEFORE_WEIGHTS), Known)
    ]
    if len(begins) < 2:
        return
    low = min(begins, key=lambda pair: pair[1].number)
    high = max(begins, key=lambda pair: pair[1].number)
    apart = high[1].number - low[1].number
    if apart > high[1].error + low[1].error:
        yield _finding(
            "uneven-ranks",
            Severity.INFO,
            f"{high[0].label} had {high[1].number} GiB free before weights, the minimum over ranks "
            f"is {low[1].number} ({low[0].label}): the pool is sized by the minimum, and as much "
            f"memory on {low[0].label} would add up to {apart} GiB times the fraction on every "
            f"rank.",
            *high[1].evidence,
            *low[1].evidence,
        )


def _mixed(readings: list[RankReading]) -> Iterator[Finding]:
    for reading in readings:
        if reading.doubled:
            yield _finding(
                "servers-mixed",
                Severity.WARNING,
                f"{reading.label} loads the served model twice without a restart: the log mixes "
                f"servers, so this rank's memory is unknown",
                *(s.line for load in reading.doubled for s in (load.begin, load.end) if s),
            )


def _negative_budget(run: Run) -> Iterator[Finding]:
    for sighting in run.of(KvBudget):
        budget = sighting.value("budget")
        if isinstance(budget, Known) and budget.number < 0:
            yield _finding(
                "negative-budget",
                Severity.WARNING,
                f"a KV budget of {budget.number} GiB was printed: less than nothing",
                sighting.line,
            )
            return


def _other_processes(run: Run) -> Iterator[Finding]:
    for sighting in run.of(Unbalanced)[:1]:
        figures = ""
        if sighting.event.least is not None:
            figures = f" ({sighting.event.least:.2f} GiB against {sighting.event.mine:.2f} GiB)"
        yield _finding(
            "other-processes",
            Severity.WARNING,
            f"one device has far less free memory than another{figures}: something else holds it, "
            f"and the pool of every rank is sized by the least.",
            sighting.line,
        )


def _settings_without_effect(run: Run, settings: Settings) -> Iterator[Finding]:
    for cap in run.of(TokenCapIgnored)[:1]:
        yield _finding(
            "token-cap-ignored",
            Severity.INFO,
            f"max_total_tokens={cap.event.asked} has no effect: {cap.event.profiled} tokens were "
            f"profiled.",
            cap.line,
        )
    for reduced in run.of(FractionReduced)[:1]:
        yield _finding(
            "fraction-reduced",
            Severity.INFO,
            f"the scheduler uses a fraction of {reduced.event.mem_fraction_static}, not that of "
            f"the arguments.",
            reduced.line,
        )
    lowered = [s for s in run.of(RequestLimit) if s.event.asked or s.event.slots_each]
    for limit in lowered[:1]:
        event = limit.event
        why = f"asked for were {event.asked}"
        if event.slots_each:
            why = f"{event.slots} state slots, {event.slots_each} for each request"
        yield _finding(
            "request-limit-lowered",
            Severity.INFO,
            f"at most {event.max_running_requests} requests run at once: {why}.",
            limit.line,
        )
    asked = settings.text("max_running_requests")
    for limits in run.of(Limits)[:1]:
        count = limits.event.max_running_requests
        if count in _CLAMPS and not isinstance(asked, Known) and not lowered:
            yield _finding(
                "request-limit-default",
                Severity.INFO,
                f"max_running_requests={count} is the bound of a default, no sign that so many "
                f"requests fit.",
                limits.line,
            )


def _fraction_too_low(run: Run, readings: list[RankReading], fraction: Value) -> Iterator[Finding]:
    dead = run.last_of(NoKvMemory)
    if dead is None:
        return
    minimum = Headroom(run, readings, fraction).minimum
    if isinstance(minimum, Known):
        asked = f"{fraction.number}" if isinstance(fraction, Known) else "the one in use"
        yield _finding(
            "fraction-too-low",
            Severity.WARNING,
            f"weights alone need a fraction of {minimum.number:.4f}; {asked} leaves nothing for "
            f"the KV pool.",
            *dict.fromkeys((dead.line, *minimum.evidence)),
        )
    if dead.event.suggested is not None:
        yield _finding(
            "engine-suggests",
            Severity.INFO,
            f"SGLang suggests a fraction above {dead.event.suggested}. That is its claim: it makes "
            f"room for a small pool, not for any number of tokens.",
            dead.line,
        )


def _idle(readings: list[RankReading], fraction: Value) -> Iterator[Finding]:
    """A small pool beside much free memory: up to 0.5.18 garbage that is not collected before the
    measurement makes such pools (kv_cache_configurator.py:2999 of 0.5.23)."""
    sized = [r for r in readings if isinstance(r.free(Stage.READY), Known)]
    pools = [kv_pool(reading) for reading in sized]
    if not sized or not all(isinstance(pool, Known) for pool in pools):
        return
    free = least([reading.free(Stage.READY) for reading in sized])
    before = least([reading.free(Stage.BEFORE_WEIGHTS) for reading in sized])
    pool = least(pools)
    if not isinstance(free, Known) or not isinstance(before, Known):
        return
    if not isinstance(pool, Known) or not isinstance(fraction, Known):
        return
    headroom = before.number * (1 - fraction.number)
    idle = free.number - headroom
    if pool.number < free.number and idle > before.number * _IDLE_SHARE:
        yield _finding(
            "idle-memory",
            Severity.WARNING,
            f"{free.number} GiB stay free on every rank, {idle:.2f} GiB more than the fraction "
            f"keeps, beside a pool of {pool.number:.2f} GiB: a cap or a wrong measurement made it "
            f"small.",
            *free.evidence,
            *pool.evidence,
        )


def _other_tokens(run: Run, readings: list[RankReading], shards: int) -> Iterator[Finding]:
    """More tokens than the pool has: forks replace the count (kvcached issue 101). Fewer are a cap
    or another stage's minimum; from 0.5.21 on those of all `shards` are printed."""
    for reading in readings:
        pool, limits = reading.target_tokens, reading.limits
        if limits is None or not isinstance(pool, Known) or run.has(UnifiedPool):
            continue
        if limits.event.tokens > pool.number * shards:
            yield _finding(
                "tokens-contradict-pool",
                Severity.WARNING,
                f"{reading.label}: max_total_num_tokens={limits.event.tokens}, but the pool's own "
                f"line says {pool.number} tokens.",
                limits.line,
                *pool.evidence,
            )


def _below_context(run: Run, shards: int) -> Iterator[Finding]:
    """A pool smaller than one request of the longest length: the engine says it, or it follows."""
    said = run.last_of(PoolBelowContext)
    limits = run.last_of(Limits)
    if said is not None:
        tokens, length, line = said.event.tokens, said.event.length, said.line
    elif limits is not None and limits.event.context_length is not None:
        # Of one of the ranks that share a request's tokens, or of all.
        tokens, length = limits.event.tokens * shards, limits.event.context_length
        line = limits.line
    else:
        return
    if tokens < length:
        yield _finding(
            "pool-below-context",
            Severity.WARNING,
            f"the pool holds {tokens:,} tokens, the context length is {length:,}: longer requests "
            f"are refused or cut.",
            line,
        )


def _what_figures_mean(run: Run) -> Iterator[Finding]:
    for reserved in run.of(KvReserved)[:1]:
        yield _finding(
            "budget-reduced",
            Severity.INFO,
            f"{reserved.event.size} GiB were taken off the KV budget for multimodal buffers.",
            reserved.line,
        )
    for unified in run.of(UnifiedPool)[:1]:
        yield _finding(
            "unified-pool",
            Severity.INFO,
            "KV and states share one buffer and divide it while serving: the printed tokens are a "
            "share of it, not all that it could hold.",
            unified.line,
        )
    for overlapped in run.of(WeightsOverlapped)[:1]:
        yield _finding(
            "weights-overlapped",
            Severity.INFO,
            "weights were committed behind the capture of graphs: no line says what they took.",
            overlapped.line,
        )


def _serving(run: Run) -> Iterator[Finding]:
    retracted = run.of(Retracted)
    if retracted:
        count = run.sum_of(Retracted, "retracted")
        yield _finding(
            "requests-retracted",
            Severity.WARNING,
            f"{count} running requests were sent back to the queue: the pool was full, and their "
            f"work was lost.",
            *(s.line for s in retracted),
        )
    aborted = run.of(RequestAborted)
    if aborted:
        yield _finding(
            "requests-aborted",
            Severity.WARNING,
            "requests were given up: the pool does not hold them even alone.",
            *(s.line for s in aborted),
        )
    cut = run.of(RequestTruncated)
    if cut:
        limit = cut[-1].event.limit
        what = f"{limit} tokens" if limit is not None else "the pool or the context"
        yield _finding(
            "requests-truncated",
            Severity.WARNING,
            f"requests were longer than {what} and were cut.",
            *(s.line for s in cut),
        )
