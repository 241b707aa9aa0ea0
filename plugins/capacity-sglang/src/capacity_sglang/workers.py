"""The schedulers of a run: the tokens and requests each takes, and what a token costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.kv_layouts import Keeps
from capacity_core.api.ledger import (
    KvFacts,
    Role,
    TokenUse,
    WorkerFacts,
)
from capacity_core.units import (
    BYTES,
    BYTES_PER_REQUEST,
    BYTES_PER_TOKEN,
    GIB,
    RATIO,
    REQUESTS,
    SLOTS,
    TOKENS,
)
from capacity_core.values import Known, Origin, Unknown, Value, agree, known, least, text
from capacity_sglang.args import Settings
from capacity_sglang.compressed import CompressedBudget, CompressedPools, CompressedSizing
from capacity_sglang.limits import Limits, RequestLimit
from capacity_sglang.pools import (
    KvDtype,
    PoolAllocated,
    SlidingWindowTokens,
    SlidingWindowTotal,
    UnifiedPool,
)
from capacity_sglang.post_capture import PostCapturePool
from capacity_sglang.ranks import kv_pool
from capacity_sglang.reading import RankReading
from capacity_sglang.starts import rank_of


def kv_dtype(run: Run) -> Value:
    said: list[Sighting[Any]] = [*run.of(PoolAllocated), *run.of(PostCapturePool), *run.of(KvDtype)]
    for sighting in said:
        dtype = sighting.event.dtype
        if dtype is not None:
            return text(dtype, Origin.PRINTED, how=sighting.matcher, evidence=(sighting.line,))
    return Unknown(why="the KV cache's element type is not printed")


def workers_of(
    run: Run, readings: list[RankReading], settings: Settings
) -> tuple[WorkerFacts, ...]:
    """One row for each scheduler that the arguments or any line name."""
    count = settings.workers
    named = set(range(int(count.number))) if isinstance(count, Known) else set()
    shown = {reading.rank.dp or 0 for reading in readings}
    request_limits = {rank_of(s).dp: s for s in run.of(RequestLimit)}
    workers = tuple(
        _worker(
            dp,
            [reading for reading in readings if reading.rank.dp == dp],
            _ranks_of_worker(settings),
            request_limits.get(dp),
        )
        for dp in sorted(named | shown)
    )
    limits = [worker.request_limit for worker in workers]
    return tuple(
        attrs.evolve(
            worker, request_limit=_of_stages(_of_all_ranks(limit, limits, settings), settings)
        )
        for worker, limit in zip(workers, limits, strict=True)
    )


def _of_all_ranks(limit: Value, limits: Sequence[Value], settings: Settings) -> Value:
    """Under attention DP the first rank of all alone prints limits, which every scheduler reckons
    from the same arguments and from the least tokens of all ranks (managers/scheduler.py of
    0.5.12:775, tp_worker.py of 0.5.5:286)."""
    split = settings.parallel.attention_data
    printed = [each for each in limits if isinstance(each, Known)]
    if isinstance(limit, Known) or not isinstance(split, Known) or split.number == 1:
        return limit
    if not printed or any(each.amount != printed[0].amount for each in printed):
        return limit
    how = "of the rank that prints for all: from the arguments and the least tokens of all ranks"
    return known(printed[0].number, REQUESTS, Origin.DERIVED, how=how, evidence=printed[0].evidence)


def _of_stages(limit: Value, settings: Settings) -> Value:
    """What the micro-batches that are under way in a pipeline hold, where that is less: as many as
    stages, and those ahead of them (managers/scheduler.py of 0.5.12:742, 2607;
    scheduler_pp_mixin.py of 0.5.23:563)."""
    stages = settings.whole("pp_size") or 1
    if stages == 1 or not isinstance(limit, Known):
        return limit
    names = ("pp_max_micro_batch_size", "pp_async_batch_depth")
    if not settings.arguments.complete and any(n not in settings.arguments for n in names):
        return Unknown(
            why="the arguments are cut before the micro-batches of the pipeline",
            unit=REQUESTS,
            at_most=limit.number,
            evidence=limit.evidence,
        )
    each = settings.whole("pp_max_micro_batch_size") or max(int(limit.number) // stages, 1)
    batches = stages + (settings.whole("pp_async_batch_depth") or 0)
    if each * batches >= limit.number:
        return limit
    said = settings.number(REQUESTS, "pp_max_micro_batch_size")
    return known(
        each * batches,
        REQUESTS,
        Origin.DERIVED,
        how=f"{batches} micro-batches * {each}, less than max_running_requests {limit.number}",
        evidence=(*limit.evidence, *said.evidence),
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
    limits = [reading.limits for reading in readings if reading.limits is not None]
    if limits:
        # Up to 0.5.1 each stage has limits of its own (managers/scheduler.py of 0.4.7:337).
        tokens = least([s.value("tokens", f"tokens[{name}]") for s in limits])
        request_limit = least(
            [s.value("max_running_requests", f"request_limit[{name}]") for s in limits]
        )
    else:
        terms: list[Value] = [reading.target_tokens for reading in readings]
        if not terms or (ranks is not None and len(terms) < ranks):
            terms.append(Unknown(why=f"not all ranks of {name} are in the log", unit=TOKENS))
        tokens = least(terms)
        request_limit = Unknown(why="no max_total_num_tokens line", unit=REQUESTS)
    if request is not None:
        request_limit = request_limit | request.value("max_running_requests")
    return WorkerFacts(
        dp=dp,
        tokens=tokens,
        request_limit=request_limit,
        size=_least_of([kv_pool(reading) for reading in readings], ranks, "no KV pool line"),
        budget=_budget([reading.kv_budget for reading in readings]),
        state_slots=next((r.state_slots for r in readings if r.state_slots is not None), None),
        # Of the first rank that shows itself: another one's may be of other layers.
        pools=readings[0].kv_pools if readings else (),
    )


def _budget(values: list[Value]) -> Value:
    """The least that is printed: it is computed from minima over ranks, the same for all."""
    said = [value for value in values if isinstance(value, Known)]
    return least(said) if said else Unknown(why="the budget is not printed", unit=GIB)


def _least_of(values: list[Value], ranks: int | None, why: str) -> Value:
    """The least over all ranks of a worker; a bound while one of them does not say it."""
    if not any(isinstance(value, Known) for value in values):
        return Unknown(why=why, unit=GIB)
    if ranks is not None and len(values) < ranks:
        values = [*values, Unknown(why="not all ranks are in the log", unit=GIB)]
    return least(values)


def kv_facts(run: Run, readings: list[RankReading], settings: Settings) -> KvFacts:
    compressed = run.last_of(CompressedBudget)
    mode = _sizing_mode(run, compressed)
    use, why = TokenUse.ANY_LENGTH, ""
    if windows_alone(run):
        use = TokenUse.UNCLEAR
        why = "every layer keeps a sliding window, and what leaves it frees the pool"
    elif any(reading.is_hybrid_window for reading in readings):
        use = TokenUse.UPPER_LIMIT
        why = (
            "the sliding-window pool binds as well, and the log does not say how long the window is"
        )
    elif run.has(UnifiedPool):
        use = TokenUse.UPPER_LIMIT
        why = "the states of running requests share the buffer with their KV"
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
        window_share=settings.number(RATIO, "swa_full_tokens_ratio"),
        keeps_all=_keeps_all(run, readings, settings),
        dtype=kv_dtype(run),
        kinds=dict(_kinds(readings, settings)),
    )


def windows_alone(run: Run) -> bool:
    """Whether there is no pool but that of sliding windows."""
    totals, splits = run.of(SlidingWindowTotal), run.of(SlidingWindowTokens)
    return any(s.event.full_tokens == 0 for s in totals) or any(
        s.event.full_tokens is None and "all SWA" in s.text for s in splits
    )


def _keeps_all(run: Run, readings: list[RankReading], settings: Settings) -> bool:
    """Whether every layer keeps every token: it was asked for, or the pools are made and each rank
    has one, with no second one for windows."""
    if settings.flag("disable_hybrid_swa_memory"):
        return True
    several = (CompressedBudget, CompressedPools, SlidingWindowTotal, SlidingWindowTokens)
    if not run.has(Limits) or run.has(*several, UnifiedPool, PostCapturePool):
        return False
    return bool(readings) and all(
        isinstance(reading.target_tokens, Known) and not reading.is_hybrid_window
        for reading in readings
    )


def _kinds(readings: list[RankReading], settings: Settings) -> Iterator[tuple[Keeps, Value]]:
    """What the first rank's pools show of windows beside full layers, and of states: the bytes of a
    pool include a padding page, those of states a slot (mem_cache/memory_pool.py)."""
    if not readings:
        return
    page = settings.page_size
    pools = {p.label: p for p in readings[0].kv_pools if p.role is Role.TARGET}
    if isinstance(page, Known) and set(pools) == {"full", "swa"}:
        for keeps, label in ((Keeps.ALL, "full"), (Keeps.WINDOW, "swa")):
            pool = pools[label]
            tokens = pool.tokens.named("tokens") + page.named("page_size")
            yield keeps, pool.size.to(BYTES) / tokens
    states, slots = readings[0].state_size, readings[0].state_slots
    if slots is not None and isinstance(states, Known):
        one = known(1, SLOTS, Origin.DERIVED, how="the slot of padding")
        each = states.to(BYTES) / (slots.named("slots") + one)
        if isinstance(each, Known):
            yield Keeps.STATE, attrs.evolve(each, unit=BYTES_PER_REQUEST)


def _sizing_mode(run: Run, compressed: Sighting[Any] | None) -> Value:
    # A unified cache sizes its windows as rings (pool_configurator.py of 0.5.21:1311).
    if compressed is not None and compressed.event.unified:
        return text("unified", Origin.PRINTED, how=compressed.matcher, evidence=(compressed.line,))
    sizing = run.last_of(CompressedSizing)
    if sizing is not None:
        return sizing.value("mode")
    return Unknown(why="the sizing mode is printed from 0.5.21 on, for compressed pools")


def _bytes_per_token(run: Run, readings: list[RankReading], settings: Settings) -> Value:
    """(K + V) / (tokens + page): the pool's bytes include one padding page
    (mem_cache/memory_pool.py).

    Unknown for hybrid, compressed and post-capture pools, where a token's cost is no single figure.
    """
    unit = BYTES_PER_TOKEN
    several = (CompressedBudget, CompressedPools, SlidingWindowTotal, SlidingWindowTokens)
    if run.has(*several, UnifiedPool):
        return Unknown(why="the model has more than one kind of KV pool", unit=unit)
    pools = [pool for reading in readings for pool in reading.kv_pools if pool.role is Role.TARGET]
    if run.has(PostCapturePool) or not pools or any(pool.label != "full" for pool in pools):
        return Unknown(why="no single KV pool line of the served model", unit=unit)
    page = settings.page_size
    if isinstance(page, Unknown):
        return Unknown(why="the page size, which pads the pool, is not printed", unit=unit)
    costs = [
        pool.size.to(BYTES) / (pool.tokens.named("tokens") + page.named("page_size"))
        for pool in pools
    ]
    if any(agree(costs[0], cost) is False for cost in costs):
        return Unknown(why="a token costs more on one rank than on another", unit=unit)
    return costs[0]
