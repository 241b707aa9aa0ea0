"""Which line of a log starts a run of vLLM."""

from __future__ import annotations

from typing import Any

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.process import AcceptsRequests, OutOfMemory, Traceback
from capacity_core.units import COUNT
from capacity_core.values import Known
from capacity_vllm.args import (
    EngineConfig,
    NonDefaultArgs,
    Settings,
)
from capacity_vllm.blocks import GpuBlocks
from capacity_vllm.failures import (
    ContextExceedsPool,
    EngineDied,
    EngineDiedServing,
    FreeMemoryRefused,
    HostMemoryRefused,
    MemoryMoved,
    NoFreeBlock,
    NoKvMemory,
    StateSlotsExceeded,
    WarmUpOutOfMemory,
    WeightsTooLarge,
)
from capacity_vllm.limits import EngineReady, SleepMode
from capacity_vllm.load import Preempted, Stats
from capacity_vllm.pools import (
    KvBudget,
    KvSize,
    MaxConcurrency,
)
from capacity_vllm.ranks import (
    WORKER_EVENTS,
    is_actor,
    process_of,
    rank_of,
)
from capacity_vllm.weights import WeightsLoaded

REFUSED = (
    FreeMemoryRefused,
    HostMemoryRefused,
    WeightsTooLarge,
    MemoryMoved,
    WarmUpOutOfMemory,
    StateSlotsExceeded,
    NoFreeBlock,
)
_FATAL = (NoKvMemory, ContextExceedsPool, *REFUSED, EngineDied, EngineDiedServing)


SIZED = (KvSize, MaxConcurrency, GpuBlocks)


UP = (EngineReady, AcceptsRequests, SleepMode, Stats, Preempted)


PROGRESS = (*WORKER_EVENTS, *SIZED, *UP)


_DEATHS = (NoKvMemory, ContextExceedsPool, EngineDied, EngineDiedServing)


def server_again(run: Run, sighting: Sighting[Any]) -> bool:
    """The same server's line once more, or any server's after an engine's lines.

    Several API servers (ApiServer_1, …) repeat the first one's lines; data-parallel supervisors
    each have their own.
    """
    if (sighting.speaker.role or "").startswith("ApiServer_"):
        return False
    mine = (sighting.speaker.role, sighting.speaker.dp)
    said = [(s.speaker.role, s.speaker.dp) for s in run.of(type(sighting.event))]
    if mine in said:
        return True
    another = mine[1] is not None and said
    return run.has(EngineConfig, *PROGRESS, *_FATAL) and not another


def engine_again(run: Run, sighting: Sighting[Any]) -> bool:
    """Each data-parallel engine prints its configuration once: the same one again is a restart.

    Engines side by side that leave their rank out have other pids, and come before any worker.
    """
    started = run.has(*PROGRESS, *_FATAL)
    said = run.of(EngineConfig)
    same = [s for s in said if s.speaker.dp == sighting.speaker.dp]
    if same and all(_other_process(s, sighting) for s in same):
        named = sighting.speaker.dp is not None  # two of one rank are two servers
        return (started or named) and not is_actor(sighting)
    return bool(same) or (started and not said)


def worker_again(run: Run, sighting: Sighting[Any]) -> bool:
    """Without a start line: the same rank under another pid, lines of a rank that was sized, or
    lines after a death."""
    refused = isinstance(sighting.event, FreeMemoryRefused)
    if run.has(Stats) and not run.has(*WORKER_EVENTS, *SIZED, EngineConfig, NonDefaultArgs):
        return True  # what served was a server whose own start is not in the log
    if not refused and after_death(run, sighting):
        return True
    mine = rank_of(sighting)
    if refused:
        # It is printed several times by processes that die of it, and before any weights.
        later = run.of(WeightsLoaded, KvBudget)
        return run.has(NoKvMemory, *SIZED) or any(rank_of(s) == mine for s in later)
    others = [
        s
        for s in run.of(*WORKER_EVENTS)
        if s.speaker.role == sighting.speaker.role
        and rank_of(s) == mine
        and _other_process(s, sighting)
    ]
    if others:
        pids = {process_of(s) for s in others} | {process_of(sighting)}
        bare = sighting.speaker.role == "Worker" and not sighting.speaker.label
        # Replicas whose prefixes leave their data-parallel rank out, or workers without ranks: only
        # one that begins after the pool was sized is a restart.
        engines = _engines(run)
        several = bare or len(pids) <= engines
        sized = {s.speaker.dp for s in run.of(*SIZED)}
        return bool(sized) and (bare or len(sized) >= engines) if several else True
    # A replayed plan says the same as the line that follows it, in other words.
    alike = [s for s in run.of(type(sighting.event)) if s.matcher == sighting.matcher]
    same = [s for s in alike if rank_of(s) == mine]
    if not [s for s in same if s.speaker.role == sighting.speaker.role]:
        return False
    begun = isinstance(sighting.event, WeightsLoaded) and run.has(KvBudget)
    return begun or run.has(*SIZED, Traceback, OutOfMemory)


def after_death(run: Run, sighting: Sighting[Any]) -> bool:
    """Whether a line can only be of a start after one that died: workers that did not die of it
    may go on for a while, each with lines that it did not print before."""
    dead = run.of(*_DEATHS)
    if not dead:
        return False
    mine = rank_of(sighting)
    again = any(rank_of(s) == mine for s in run.of(type(sighting.event)))
    siblings = all(s.speaker.label and rank_of(s) != mine for s in dead)
    return again or not siblings


def _engines(run: Run) -> int:
    """How many engines of one deployment there are, by the arguments and by their prefixes."""
    asked = Settings(run.of(NonDefaultArgs)).asked(COUNT, "data_parallel_size")
    said = [s for s in run if (s.speaker.role or "").startswith("EngineCore")]
    shown = len({s.speaker.dp for s in said})
    return max(shown, int(asked.number)) if isinstance(asked, Known) else shown


def _other_process(a: Sighting[Any], b: Sighting[Any]) -> bool:
    known_pids = None not in (a.speaker.pid, b.speaker.pid)
    return known_pids and process_of(a) != process_of(b)


def other_engine(run: Run, sighting: Sighting[Any]) -> bool:
    """Whether an engine of the same data-parallel rank but another pid sized its pool before."""
    return not is_actor(sighting) and any(
        s.speaker.dp == sighting.speaker.dp and _other_process(s, sighting) for s in run.of(KvSize)
    )
