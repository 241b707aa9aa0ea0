"""How a run ended: the stage it reached, and why it failed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import Failure, FailureKind, Stage, Status
from capacity_core.api.process import AcceptsRequests, crash, kind_of, shortage
from capacity_core.api.versions import release_key
from capacity_core.values import Known, Value
from capacity_vllm.args import EngineConfig
from capacity_vllm.blocks import GpuBlocks
from capacity_vllm.cures import cures_of
from capacity_vllm.deployment import span_of
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
    Stopping,
    WarmUpOutOfMemory,
    WeightsTooLarge,
)
from capacity_vllm.graphs import CaptureTook, GraphPool
from capacity_vllm.limits import EngineReady, SleepMode
from capacity_vllm.load import Preempted, Stats
from capacity_vllm.pools import KvSize
from capacity_vllm.ranks import has_workers, rank_of, speaks_for_one
from capacity_vllm.starts import PROGRESS, SIZED, UP
from capacity_vllm.usage import UsageSummary
from capacity_vllm.weights import WeightsLoaded, WeightsRead

_REACHED = (
    (Stage.AFTER_WEIGHTS, WeightsRead),
    (Stage.AFTER_WEIGHTS, WeightsLoaded),
    (Stage.AFTER_POOLS, KvSize),
    (Stage.AFTER_POOLS, GpuBlocks),
    (Stage.AFTER_GRAPHS, UsageSummary),
    (Stage.AFTER_GRAPHS, GraphPool),
    (Stage.READY, EngineReady),
    (Stage.READY, AcceptsRequests),
    (Stage.READY, SleepMode),
    (Stage.READY, EngineDiedServing),
    (Stage.READY, Stats),
    (Stage.READY, Preempted),
)


def stage_reached(sightings: Iterable[Sighting[Any]]) -> Stage | None:
    """The last stage that these lines show; graphs count once they are captured behind the pool."""
    seen: set[Stage] = set()
    sized = False
    for sighting in sightings:
        sized = sized or isinstance(sighting.event, SIZED)
        if isinstance(sighting.event, CaptureTook) and sized:
            seen.add(Stage.AFTER_GRAPHS)
        seen.update(stage for stage, event in _REACHED if isinstance(sighting.event, event))
    return max(seen, key=list(Stage).index, default=None)


def status_of(run: Run, failure: Failure | None, eager: Known | None) -> Status:
    if failure is not None:
        return Status.FAILED
    done = stage_reached(run) in (Stage.AFTER_GRAPHS, Stage.READY)
    return Status.READY if done or (eager is not None and run.has(*SIZED)) else Status.INCOMPLETE


_KINDS: tuple[tuple[type[object], FailureKind | None], ...] = (
    (ContextExceedsPool, FailureKind.CONTEXT_EXCEEDS_KV_POOL),
    (NoKvMemory, FailureKind.NO_KV_MEMORY),
    (FreeMemoryRefused, FailureKind.DEVICE_MEMORY_TAKEN),
    (HostMemoryRefused, FailureKind.HOST_MEMORY),
    (WeightsTooLarge, FailureKind.WEIGHTS_OUT_OF_MEMORY),
    (MemoryMoved, FailureKind.DEVICE_MEMORY_TAKEN),
    (StateSlotsExceeded, FailureKind.TOKEN_POOL_EXHAUSTED),
    (NoFreeBlock, FailureKind.TOKEN_POOL_EXHAUSTED),
    (WarmUpOutOfMemory, None),  # by the stage, as any allocator's message
)


# What a message can only be printed after, whatever other lines show.
_IMPLIED: dict[type, Stage] = {
    NoKvMemory: Stage.AFTER_WEIGHTS,
    ContextExceedsPool: Stage.AFTER_WEIGHTS,
    StateSlotsExceeded: Stage.AFTER_POOLS,
}


_DEATHS = (EngineDied, EngineDiedServing)


def failure_of(run: Run) -> Failure | None:
    """The first message of the most telling kind: causes are repeated by every process that dies of
    them."""
    for event, kind in _KINDS:
        found: list[Sighting[Any]] = run.of(event)
        if found:
            return _failed(run, found[0], kind)
    empty = [s for s in run.of(GpuBlocks) if s.event.blocks == 0]
    if empty:
        return _failed(run, empty[0], FailureKind.NO_KV_MEMORY)
    sighting = crash(run, (EngineConfig, *PROGRESS), UP, deaths=_DEATHS, stops=(Stopping,))
    return _failed(run, sighting, None) if sighting is not None else None


def _failed(run: Run, sighting: Sighting[Any], kind: FailureKind | None) -> Failure:
    before = list(_before(run, sighting))
    mine = sighting.speaker.label and speaks_for_one(sighting, several=has_workers(run))
    if mine and (sighting.speaker.dp is not None or _each_worker_prints_weights(run)):
        # Another worker may be further.
        before = [s for s in before if not _another(s, sighting)]
    if kind is None and run.has(EngineDiedServing):
        before.append(run.of(EngineDiedServing)[0])
    said = [stage_reached(before), _IMPLIED.get(type(sighting.event))]
    reached = max((s for s in said if s is not None), key=list(Stage).index, default=None)
    stage = Stage.SERVING if reached is Stage.READY else reached or Stage.STARTUP
    if kind is None:
        kind = _by_stage(sighting, stage)
    cures, harmful = cures_of(kind, sighting)
    return Failure(
        kind=kind,
        stage=stage,
        rank=rank_of(sighting).text if mine else None,
        message=sighting.text,
        evidence=(sighting.line,),
        cures=cures,
        harmful=harmful,
        **_amounts(sighting),
    )


def _another(sighting: Sighting[Any], mine: Sighting[Any]) -> bool:
    """Whether another worker speaks, or another engine."""
    speaker = sighting.speaker
    if "Worker" in (speaker.role or "") and speaker.label != mine.speaker.label:
        return True
    return None not in (speaker.dp, mine.speaker.dp) and speaker.dp != mine.speaker.dp


def _each_worker_prints_weights(run: Run) -> bool:
    """Up to 0.11.0 every worker does, later one of a node (v1/worker/gpu_model_runner.py)."""
    span = span_of(run)
    return span is not None and release_key(span[1]) < (0, 11, 1)


def _before(run: Run, sighting: Sighting[Any]) -> Iterable[Sighting[object]]:
    for earlier in run:
        if earlier is sighting:
            return
        yield earlier


def _by_stage(sighting: Sighting[Any], stage: Stage) -> FailureKind:
    if not isinstance(sighting.event, WarmUpOutOfMemory):
        return kind_of(sighting, stage)
    if stage in (Stage.STARTUP, Stage.AFTER_WEIGHTS):
        return FailureKind.PROFILING_OUT_OF_MEMORY
    return FailureKind.GRAPH_CAPTURE_OUT_OF_MEMORY


_AMOUNTS = {
    NoKvMemory: {"total": "total"},
    ContextExceedsPool: {"needed": "needed", "available": "available"},
    FreeMemoryRefused: {"needed": "requested", "available": "free", "total": "total"},
    HostMemoryRefused: {"needed": "requested", "available": "free", "total": "total"},
}


def _amounts(sighting: Sighting[Any]) -> dict[str, Value]:
    """What was needed and what there was (GiB), as far as the message has it."""
    fields = _AMOUNTS.get(type(sighting.event), {})
    said = {n: f for n, f in fields.items() if getattr(sighting.event, f) is not None}
    return shortage(sighting) | {name: sighting.value(f, name) for name, f in said.items()}
