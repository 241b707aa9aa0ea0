"""SGLang's meaning: which line starts a run, and what a run's lines add up to.

The accounting follows srt/model_executor and srt/mem_cache of 0.4.6 … 0.5.23;
references/accounting.md has the formulas with their files.
"""

from __future__ import annotations

from typing import Any

import attrs

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import (
    Deployment,
    Failure,
    FailureKind,
    Finding,
    KvFacts,
    Ledger,
    Levers,
    RankId,
    Role,
    Severity,
    Stage,
    Status,
    TokenUse,
    WorkerFacts,
)
from capacity_core.api.process import crash
from capacity_core.api.versions import release_key
from capacity_core.units import BYTES, BYTES_PER_TOKEN, GIB, RATIO, REQUESTS, TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, least, text
from capacity_sglang.args import ServerArgs, Settings
from capacity_sglang.failures import Crashed, NoKvMemory
from capacity_sglang.graphs import CaptureBegin, CaptureEnd
from capacity_sglang.limits import Limits, RequestLimit, ServerUp
from capacity_sglang.pools import (
    CompressedBudget,
    CompressedPools,
    CompressedSizing,
    KvBudget,
    KvDtype,
    PoolAllocated,
    PoolsReady,
    PostCapturePool,
    SlidingWindowTokens,
    SlidingWindowTotal,
    StatePool,
    StateRings,
    StateSlots,
)
from capacity_sglang.ranks import kv_pool, rank_facts
from capacity_sglang.reading import RankReading
from capacity_sglang.weights import DistributedReady, WeightsBegin, WeightsLoaded

RANK_EVENTS = (
    DistributedReady,
    WeightsBegin,
    WeightsLoaded,
    PoolAllocated,
    SlidingWindowTotal,
    SlidingWindowTokens,
    StateSlots,
    StatePool,
    StateRings,
    PoolsReady,
    KvBudget,
    CompressedBudget,
    CompressedPools,
    CompressedSizing,
    PostCapturePool,
    CaptureBegin,
    CaptureEnd,
    Limits,
)
"""What a rank prints of itself, in the order of a start."""

# From here on draft weights are loaded before the target's pool is made.
_DRAFT_FIRST_SINCE = (0, 5, 14)

_REACHED = (
    (Stage.BEFORE_WEIGHTS, WeightsBegin),
    (Stage.AFTER_WEIGHTS, WeightsLoaded),
    (Stage.AFTER_POOLS, PoolsReady),
    (Stage.BEFORE_GRAPHS, CaptureBegin),
    (Stage.AFTER_GRAPHS, CaptureEnd),
    (Stage.READY, Limits),
    (Stage.READY, ServerUp),
)


@attrs.frozen
class SglangExtractor:
    """Reads runs of SGLang, and of forks that print its events."""

    framework: str = "sglang"
    title: str = "SGLang"
    events: tuple[type, ...] = (
        *RANK_EVENTS,
        ServerArgs,
        KvDtype,
        RequestLimit,
        ServerUp,
        NoKvMemory,
        Crashed,
    )

    def starts_run(self, run: Run, sighting: Sighting[object]) -> bool:
        """A server_args line after memory lines, or memory lines that begin again.

        The same arguments printed twice (offline Engine), arguments of another node, and a draft
        model's repeated lines start nothing.
        """
        event = sighting.event
        if isinstance(event, ServerArgs):
            return run.has(*RANK_EVENTS, NoKvMemory, Crashed) and not _other_node(run, event)
        if isinstance(event, WeightsBegin):
            return _loads_anew(run, sighting, event)
        if isinstance(event, PoolAllocated):
            return _pasted_again(run, sighting, event)
        return False

    def extract(self, run: Run) -> Ledger:
        settings = Settings(next(iter(run.of(ServerArgs)), None))
        readings = _readings(run, settings)
        off = settings.text("disable_cuda_graph")
        graphs_off = off if isinstance(off, Known) and off.amount == "True" else None
        phases = frozenset(phase for reading in readings for phase in reading.draft_phases)
        failure = _failure(run)
        up = run.has(ServerUp) or _every_worker_ready(readings)
        status = Status.FAILED if failure else Status.READY if up else Status.INCOMPLETE
        workers = _workers(run, readings, settings)
        return Ledger(
            framework=self.framework,
            title=self.title,
            status=status,
            reached=_reached(run),
            deployment=_deployment(run, settings),
            ranks=tuple(rank_facts(reading, graphs_off, phases) for reading in readings),
            workers=workers,
            kv=_kv(run, readings, settings),
            failure=failure,
            findings=tuple(_findings(run, readings)),
            levers=_levers(readings, settings),
            version_range=run.version_range,
        )


def _other_node(run: Run, event: ServerArgs) -> bool:
    """Whether these are the arguments of another node of the deployment that `run` already
    shows."""
    for sighting in run.of(ServerArgs):
        first = sighting.event.arguments
        node = event.arguments.said("node_rank")
        same = first.said("model_path") == event.arguments.said("model_path")
        nodes = event.arguments.said("nnodes") not in (None, "1")
        if not (same and nodes and node not in (None, first.said("node_rank"))):
            return False
    return run.has(ServerArgs)


def _loads_anew(run: Run, sighting: Sighting[Any], event: WeightsBegin) -> bool:
    """Whether a rank that loaded before loads its served model again.

    After its limits or its death it does; else it does when it has about as much free memory as
    the first time: a draft model never starts with so much.
    """
    mine = [
        s.event
        for s in run.of(WeightsBegin, WeightsLoaded, Limits, Crashed, NoKvMemory)
        if _rank_of(s) == _rank_of(sighting)
    ]
    begins = [e for e in mine if isinstance(e, WeightsBegin)]
    ends = [e for e in mine if isinstance(e, WeightsLoaded)]
    if not begins and not ends:
        return False
    if run.has(ServerUp) or any(isinstance(e, Limits | Crashed | NoKvMemory) for e in mine):
        return True
    if not begins or not ends:
        return False
    first, low = begins[0].free, ends[-1].free
    return first > low and event.free > (first + low) / 2


def _pasted_again(run: Run, sighting: Sighting[Any], event: PoolAllocated) -> bool:
    """A pool line of a rank whose pools are complete, with other tokens, and no draft model to
    explain it."""
    mine = [
        s
        for s in run.of(PoolAllocated, PoolsReady, WeightsBegin, WeightsLoaded)
        if _rank_of(s) == _rank_of(sighting)
    ]
    ended = any(isinstance(s.event, PoolsReady) for s in mine)
    loads = sum(isinstance(s.event, WeightsLoaded | WeightsBegin) for s in mine)
    known_tokens = {s.event.tokens for s in mine if isinstance(s.event, PoolAllocated)}
    return ended and loads == 0 and bool(known_tokens) and event.tokens not in known_tokens


def _rank_of(sighting: Sighting[Any]) -> RankId:
    """The rank that a line speaks for. One GPU prints none, so no rank means the first."""
    speaker = sighting.speaker
    return RankId(dp=speaker.dp or 0, pp=speaker.pp or 0, tp=speaker.tp or 0)


def _readings(run: Run, settings: Settings) -> list[RankReading]:
    """Every rank that printed anything of itself.

    Where ranks are printed, a line without one is nobody's: the file was cut inside its prefix, or
    its message was wrapped. A wrapped state line belongs to the line above it; the limits of a
    benchmark are printed without a prefix.
    """
    sightings: list[Sighting[Any]] = run.of(*RANK_EVENTS)
    ranked = any(s.speaker.label for s in sightings)
    up = next((s.line for s in run.of(ServerUp)), None)
    by_rank: dict[RankId, list[Sighting[Any]]] = {}
    labels: dict[RankId, str] = {}
    above: Sighting[Any] | None = None
    serving = False
    for sighting in run:
        serving = serving or sighting.line == up
        if not isinstance(sighting.event, RANK_EVENTS):
            continue
        if serving and isinstance(sighting.event, CaptureBegin | CaptureEnd):
            continue  # captured anew by a running server
        speaker = sighting
        if ranked and not sighting.speaker.label and not isinstance(sighting.event, Limits):
            wrapped = isinstance(sighting.event, StatePool) and above is not None
            if not wrapped or above is None or not isinstance(above.event, StateSlots):
                continue
            speaker = above
        above = sighting
        rank = _rank_of(speaker)
        by_rank.setdefault(rank, []).append(sighting)
        labels[rank] = labels.get(rank) or speaker.speaker.label
    span = run.version_range
    old_order = None
    if span is not None and release_key(span[1])[:3] < _DRAFT_FIRST_SINCE:
        old_order = True
    elif span is not None and release_key(span[0])[:3] >= _DRAFT_FIRST_SINCE:
        old_order = False
    speculative = isinstance(settings.text("speculative_algorithm"), Known)
    return [
        RankReading(
            rank,
            labels[rank] or "TP0",
            by_rank[rank],
            old_order=old_order,
            speculative=speculative,
        )
        for rank in sorted(by_rank, key=lambda r: r.order)
    ]


def _every_worker_ready(readings: list[RankReading]) -> bool:
    """Whether every scheduler that shows itself has printed its limits."""
    shown = {reading.rank.dp for reading in readings}
    ready = {reading.rank.dp for reading in readings if reading.limits is not None}
    return bool(shown) and shown == ready


def _reached(run: Run) -> Stage | None:
    seen = [stage for stage, event in _REACHED if run.has(event)]
    return seen[-1] if seen else None


def _deployment(run: Run, settings: Settings) -> Deployment:
    limits = run.last_of(Limits)
    dead = run.last_of(NoKvMemory)

    def limit(field: str, *keys: str) -> Value:
        printed: Value = Unknown(why="no max_total_num_tokens line", unit=TOKENS)
        if limits is not None:
            printed = limits.value(field)
        return printed | settings.number(TOKENS, *keys)

    fraction = settings.number(RATIO, "mem_fraction_static")
    for sighting in (run.last_of(KvBudget), dead):
        if sighting is not None:
            fraction = fraction | sighting.value("mem_fraction_static")
    return Deployment(
        version=Unknown(why="SGLang does not print its version at start-up"),
        model=settings.text("model_path"),
        quantization=settings.text("quantization"),
        kv_cache_dtype=settings.text("kv_cache_dtype"),
        kv_cache_dtype_resolved=_kv_dtype(run),
        mem_fraction_static=fraction,
        context_length=limit("context_length", "context_length"),
        page_size=settings.number(TOKENS, "page_size"),
        chunked_prefill_size=limit("chunked_prefill_size", "chunked_prefill_size"),
        max_prefill_tokens=limit("max_prefill_tokens", "max_prefill_tokens"),
        speculative=settings.text("speculative_algorithm"),
        disaggregation=settings.text("disaggregation_mode", none=("null",)),
        parallel=settings.parallel,
        workers=settings.workers,
    )


def _kv_dtype(run: Run) -> Value:
    said: list[Sighting[Any]] = [*run.of(PoolAllocated), *run.of(PostCapturePool), *run.of(KvDtype)]
    for sighting in said:
        dtype = sighting.event.dtype
        if dtype is not None:
            return text(dtype, Origin.PRINTED, how=sighting.matcher, evidence=(sighting.line,))
    return Unknown(why="the KV cache's element type is not printed")


def _workers(run: Run, readings: list[RankReading], settings: Settings) -> tuple[WorkerFacts, ...]:
    """One row for each scheduler that the arguments or any line name."""
    count = settings.workers
    named = set(range(int(count.number))) if isinstance(count, Known) else set()
    shown = {reading.rank.dp or 0 for reading in readings}
    request_limits = {_rank_of(s).dp: s for s in run.of(RequestLimit)}
    return tuple(
        _worker(
            dp,
            [reading for reading in readings if reading.rank.dp == dp],
            _ranks_of_worker(settings),
            request_limits.get(dp),
        )
        for dp in sorted(named | shown)
    )


def _ranks_of_worker(settings: Settings) -> int | None:
    """How many ranks share one scheduler's tokens: tp·pp, under attention-DP the rank's share of
    tp."""
    tensor, pipeline = settings.whole("tp_size"), settings.whole("pp_size") or 1
    if tensor is None:
        return None
    attention = settings.parallel.attention_data
    split = int(attention.number) if isinstance(attention, Known) else 1
    return max(1, tensor // max(1, split)) * pipeline


def _worker(
    dp: int, readings: list[RankReading], ranks: int | None, request: Sighting[Any] | None
) -> WorkerFacts:
    name = f"DP{dp}"
    limits = next((reading.limits for reading in readings if reading.limits is not None), None)
    if limits is not None:
        tokens = limits.value("tokens", f"tokens[{name}]")
        request_limit = limits.value("max_running_requests", f"request_limit[{name}]")
    else:
        terms: list[Value] = [reading.target_tokens for reading in readings]
        if not terms or (ranks is not None and len(terms) < ranks):
            terms.append(Unknown(why=f"not all ranks of {name} are in the log", unit=TOKENS))
        tokens = least(terms)
        request_limit = Unknown(why="no max_total_num_tokens line", unit=REQUESTS)
    if request is not None:
        request_limit = request_limit | request.value("max_running_requests")
    sized = [reading for reading in readings if reading.kv_pools or reading.post_capture]
    return WorkerFacts(
        dp=dp,
        tokens=tokens,
        request_limit=request_limit,
        size=_least_known([kv_pool(reading) for reading in readings], "no KV pool line"),
        budget=_least_known(
            [reading.kv_budget for reading in readings], "the budget is not printed"
        ),
        state_slots=next((r.state_slots for r in readings if r.state_slots is not None), None),
        pools=sized[0].kv_pools if sized else (),
    )


def _least_known(values: list[Value], why: str) -> Value:
    """The least over the ranks that print it: a figure of one GPU, not a sum that needs all."""
    said = [value for value in values if isinstance(value, Known)]
    return least(said) if said else Unknown(why=why, unit=GIB)


def _kv(run: Run, readings: list[RankReading], settings: Settings) -> KvFacts:
    compressed = run.last_of(CompressedBudget)
    mode = _sizing_mode(run, compressed)
    use, why = TokenUse.ANY_LENGTH, ""
    if any(reading.is_hybrid_window for reading in readings):
        use = TokenUse.UPPER_LIMIT
        why = (
            "the sliding-window pool binds as well, and the log does not say how long the window is"
        )
    elif compressed is not None or run.has(CompressedPools):
        use = TokenUse.UPPER_LIMIT
        why = "the sliding-window and state pools bind as well"
    return KvFacts(
        token_use=use,
        token_use_why=why,
        bytes_per_token=_bytes_per_token(run, readings, settings),
        bytes_per_full_token=(
            compressed.value("bytes_per_full_token", "bytes_per_full_token")
            if compressed is not None
            else Unknown(why="printed for compressed pools only", unit=BYTES_PER_TOKEN)
        ),
        sizing_mode=mode,
        dtype=_kv_dtype(run),
    )


def _sizing_mode(run: Run, compressed: Sighting[Any] | None) -> Value:
    sizing = run.last_of(CompressedSizing)
    if sizing is not None:
        return sizing.value("mode")
    if compressed is not None and compressed.event.unified:
        return text("unified", Origin.PRINTED, how=compressed.matcher, evidence=(compressed.line,))
    return Unknown(why="the sizing mode is printed from 0.5.21 on, for compressed pools")


def _bytes_per_token(run: Run, readings: list[RankReading], settings: Settings) -> Value:
    """(K + V) / (tokens + page): the pool's bytes include one padding page
    (mem_cache/memory_pool.py).

    Unknown for hybrid, compressed and post-capture pools, where a token's cost is no single figure.
    """
    unit = BYTES_PER_TOKEN
    if run.has(CompressedBudget, CompressedPools, SlidingWindowTotal, SlidingWindowTokens):
        return Unknown(why="the model has more than one kind of KV pool", unit=unit)
    pools = [pool for reading in readings for pool in reading.kv_pools if pool.role is Role.TARGET]
    if run.has(PostCapturePool) or not pools or any(pool.label != "full" for pool in pools):
        return Unknown(why="no single KV pool line of the served model", unit=unit)
    page = settings.number(TOKENS, "page_size")
    if isinstance(page, Unknown):
        return Unknown(why="the page size, which pads the pool, is not printed", unit=unit)
    pool = pools[0]
    rows = pool.tokens.named("tokens") + page.named("page_size")
    return pool.size.to(BYTES) / rows


def _failure(run: Run) -> Failure | None:
    dead = run.last_of(NoKvMemory)
    if dead is not None:
        return _failed(run, dead, FailureKind.NO_KV_MEMORY)
    sighting = run.last_of(Crashed) or crash(run, RANK_EVENTS, (Limits, ServerUp))
    return _failed(run, sighting, FailureKind.UNKNOWN) if sighting is not None else None


def _failed(run: Run, sighting: Sighting[Any], kind: FailureKind) -> Failure:
    up = run.has(Limits, ServerUp)
    served = isinstance(sighting.event, Crashed) and sighting.matcher == "sglang.no_request_slot"
    stage = Stage.SERVING if up or served else _reached(run) or Stage.STARTUP
    return Failure(
        kind=kind,
        stage=stage,
        rank=_rank_of(sighting).text if sighting.speaker.label else None,
        message=sighting.text,
        evidence=(sighting.line,),
    )


def _findings(run: Run, readings: list[RankReading]) -> list[Finding]:
    found = []
    begins = [
        (reading, value)
        for reading in readings
        if isinstance(value := reading.free(Stage.BEFORE_WEIGHTS), Known)
    ]
    if len(begins) > 1:
        low = min(begins, key=lambda pair: pair[1].number)
        high = max(begins, key=lambda pair: pair[1].number)
        if high[1].number - low[1].number > high[1].error + low[1].error:
            found.append(
                Finding(
                    code="uneven-ranks",
                    severity=Severity.INFO,
                    message=(
                        f"{high[0].label} had {high[1].number} GiB free before weights, the "
                        f"minimum over ranks is "
                        f"{low[1].number} ({low[0].label}): the pool is sized by the minimum."
                    ),
                    evidence=(*high[1].evidence, *low[1].evidence),
                )
            )
    for reading in readings:
        if reading.doubled:
            lines = tuple(s.line for load in reading.doubled for s in (load.begin, load.end) if s)
            found.append(
                Finding(
                    code="servers-mixed",
                    severity=Severity.WARNING,
                    message=(
                        f"{reading.label} loads the served model twice without a restart: the log "
                        "mixes servers, so this rank's memory is unknown"
                    ),
                    evidence=lines,
                )
            )
    for sighting in run.of(KvBudget):
        budget = sighting.value("budget")
        if isinstance(budget, Known) and budget.number < 0:
            found.append(
                Finding(
                    code="negative-budget",
                    severity=Severity.WARNING,
                    message=f"a KV budget of {budget.number} GiB was printed: less than nothing",
                    evidence=(sighting.line,),
                )
            )
            break
    return found


def _levers(readings: list[RankReading], settings: Settings) -> Levers:
    """headroom = free[before_weights] · (1 − fraction), the minimum over ranks
    (kv_cache_configurator.py:2990)."""
    befores = [reading.free(Stage.BEFORE_WEIGHTS) for reading in readings]
    return Levers(
        fraction_flag="--mem-fraction-static",
        fraction=settings.number(RATIO, "mem_fraction_static"),
        fraction_base=least(befores, "free[before_weights]") if befores else None,
        request_limit_flag="--max-running-requests",
        kv_dtype_flag="--kv-cache-dtype fp8_e4m3",
        split_flag="--enable-dp-attention --dp-size N (with --ep-size N for expert layers)",
    )
