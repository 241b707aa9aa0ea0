"""The schedulers of a run: the tokens and requests each takes, and what a token costs."""

from __future__ import annotations

from collections.abc import Iterator
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
from capacity_sglang.limits import RequestLimit
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
    if any(reading.is_hybrid_window for reading in readings):
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
        dtype=kv_dtype(run),
        kinds=dict(_kinds(readings, settings)),
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
