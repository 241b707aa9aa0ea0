"""How a run ended: the stage it reached, and why it failed."""

from __future__ import annotations

from typing import Any

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import (
    Failure,
    FailureKind,
    Stage,
    Status,
)
from capacity_core.api.process import AcceptsRequests, crash
from capacity_core.values import Known
from capacity_vllm.args import (
    EngineConfig,
)
from capacity_vllm.failures import ContextExceedsPool, EngineDied, FreeMemoryRefused, NoKvMemory
from capacity_vllm.graphs import CaptureTook, GraphPool
from capacity_vllm.limits import EngineReady, SleepMode
from capacity_vllm.pools import (
    KvSize,
)
from capacity_vllm.ranks import (
    rank_of,
)
from capacity_vllm.starts import PROGRESS, SIZED, UP
from capacity_vllm.usage import UsageSummary
from capacity_vllm.weights import WeightsLoaded

_REACHED = (
    (Stage.AFTER_WEIGHTS, WeightsLoaded),
    (Stage.AFTER_POOLS, KvSize),
    (Stage.AFTER_GRAPHS, UsageSummary),
    (Stage.AFTER_GRAPHS, GraphPool),
    (Stage.READY, EngineReady),
    (Stage.READY, AcceptsRequests),
    (Stage.READY, SleepMode),
)


def stage_reached(run: Run) -> Stage | None:
    seen = [stage for stage, event in _REACHED if run.has(event)]
    if not seen or seen[-1] is Stage.AFTER_POOLS:
        return Stage.AFTER_GRAPHS if _captured(run) else seen[-1] if seen else None
    return seen[-1]


def _captured(run: Run) -> bool:
    """Whether graphs were captured after the pool was sized."""
    sized = False
    for sighting in run:
        if isinstance(sighting.event, SIZED):
            sized = True
        elif isinstance(sighting.event, CaptureTook) and sized:
            return True
    return False


def status_of(run: Run, failure: Failure | None, eager: Known | None) -> Status:
    if failure is not None:
        return Status.FAILED
    done = run.has(*UP, UsageSummary, GraphPool) or _captured(run)
    return Status.READY if done or (eager is not None and run.has(*SIZED)) else Status.INCOMPLETE


_KINDS: tuple[tuple[type[object], FailureKind], ...] = (
    (ContextExceedsPool, FailureKind.CONTEXT_EXCEEDS_KV_POOL),
    (NoKvMemory, FailureKind.NO_KV_MEMORY),
    (FreeMemoryRefused, FailureKind.UNKNOWN),
    (EngineDied, FailureKind.UNKNOWN),
)


def failure_of(run: Run) -> Failure | None:
    """The first message of the most telling kind: causes are repeated by every process that dies of
    them."""
    for event, kind in _KINDS:
        found = run.of(event)
        if found:
            return _failed(run, found[0], kind)
    sighting = crash(run, (EngineConfig, *PROGRESS), UP)
    return _failed(run, sighting, FailureKind.UNKNOWN) if sighting is not None else None


def _failed(run: Run, sighting: Sighting[Any], kind: FailureKind) -> Failure:
    served = False
    for earlier in run:
        if earlier is sighting:
            break
        served = served or isinstance(earlier.event, UP)
    stage = Stage.SERVING if served else stage_reached(run) or Stage.STARTUP
    return Failure(
        kind=kind,
        stage=stage,
        rank=rank_of(sighting).text if sighting.speaker.label else None,
        message=sighting.text,
        evidence=(sighting.line,),
    )
