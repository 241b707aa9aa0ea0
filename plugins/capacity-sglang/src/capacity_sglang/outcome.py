"""How a run ended: the stage it reached, and why it failed."""

from __future__ import annotations

from typing import Any

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import (
    Failure,
    FailureKind,
    Stage,
)
from capacity_core.api.process import crash
from capacity_sglang.failures import Crashed, NoKvMemory
from capacity_sglang.graphs import CaptureBegin, CaptureEnd
from capacity_sglang.limits import Limits, ServerUp
from capacity_sglang.pools import (
    PoolsReady,
)
from capacity_sglang.reading import RankReading
from capacity_sglang.starts import RANK_EVENTS, rank_of
from capacity_sglang.weights import WeightsBegin, WeightsLoaded

_REACHED = (
    (Stage.BEFORE_WEIGHTS, WeightsBegin),
    (Stage.AFTER_WEIGHTS, WeightsLoaded),
    (Stage.AFTER_POOLS, PoolsReady),
    (Stage.BEFORE_GRAPHS, CaptureBegin),
    (Stage.AFTER_GRAPHS, CaptureEnd),
    (Stage.READY, Limits),
    (Stage.READY, ServerUp),
)


def every_worker_ready(readings: list[RankReading]) -> bool:
    """Whether every scheduler that shows itself has printed its limits."""
    shown = {reading.rank.dp for reading in readings}
    ready = {reading.rank.dp for reading in readings if reading.limits is not None}
    return bool(shown) and shown == ready


def stage_reached(run: Run) -> Stage | None:
    seen = [stage for stage, event in _REACHED if run.has(event)]
    return seen[-1] if seen else None


def failure_of(run: Run) -> Failure | None:
    dead = run.last_of(NoKvMemory)
    if dead is not None:
        return _failed(run, dead, FailureKind.NO_KV_MEMORY)
    sighting = run.last_of(Crashed) or crash(run, RANK_EVENTS, (Limits, ServerUp))
    return _failed(run, sighting, FailureKind.UNKNOWN) if sighting is not None else None


def _failed(run: Run, sighting: Sighting[Any], kind: FailureKind) -> Failure:
    up = run.has(Limits, ServerUp)
    served = isinstance(sighting.event, Crashed) and sighting.matcher == "sglang.no_request_slot"
    stage = Stage.SERVING if up or served else stage_reached(run) or Stage.STARTUP
    return Failure(
        kind=kind,
        stage=stage,
        rank=rank_of(sighting).text if sighting.speaker.label else None,
        message=sighting.text,
        evidence=(sighting.line,),
    )
