"""How a run ended: the stage it reached, and why it failed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import Failure, FailureKind, Stage
from capacity_core.api.process import OutOfMemory, Traceback, crash, kind_of, shortage
from capacity_core.units import GIB, RATIO
from capacity_core.values import Known, Origin, Unknown, Value, known, least
from capacity_sglang.cures import cures_of
from capacity_sglang.failures import (
    CaptureFailed,
    CheckpointPoolRefused,
    Crashed,
    HostMemoryRefused,
    NoKvMemory,
    NoPoolForStates,
    OneRequestTooLarge,
    PoolLeak,
    SlotsExhausted,
)
from capacity_sglang.graphs import CaptureBegin, CaptureEnd
from capacity_sglang.limits import Limits, ServerUp
from capacity_sglang.load import SERVING
from capacity_sglang.pools import PoolsReady
from capacity_sglang.reading import RankReading
from capacity_sglang.starts import RANK_EVENTS, rank_of
from capacity_sglang.weights import Unbalanced, WeightsBegin, WeightsLoaded

_REACHED: tuple[tuple[Stage, tuple[type, ...]], ...] = (
    (Stage.BEFORE_WEIGHTS, (WeightsBegin,)),
    (Stage.AFTER_WEIGHTS, (WeightsLoaded,)),
    (Stage.AFTER_POOLS, (PoolsReady,)),
    (Stage.BEFORE_GRAPHS, (CaptureBegin,)),
    (Stage.AFTER_GRAPHS, (CaptureEnd,)),
    (Stage.READY, (Limits, ServerUp, *SERVING)),
)


def every_worker_ready(readings: list[RankReading]) -> bool:
    """Whether every scheduler that shows itself has printed its limits."""
    shown = {reading.rank.dp for reading in readings}
    ready = {reading.rank.dp for reading in readings if reading.limits is not None}
    return bool(shown) and shown == ready


def stage_reached(sightings: Iterable[Sighting[Any]]) -> Stage | None:
    seen = {
        stage
        for sighting in sightings
        for stage, events in _REACHED
        if isinstance(sighting.event, events)
    }
    return max(seen, key=list(Stage).index, default=None)


_KINDS: tuple[tuple[type[object], FailureKind], ...] = (
    (NoKvMemory, FailureKind.NO_KV_MEMORY),
    (NoPoolForStates, FailureKind.NO_KV_MEMORY),
    (OneRequestTooLarge, FailureKind.CONTEXT_EXCEEDS_KV_POOL),
    (HostMemoryRefused, FailureKind.HOST_MEMORY),
    (CheckpointPoolRefused, FailureKind.PROFILING_OUT_OF_MEMORY),
    (SlotsExhausted, FailureKind.TOKEN_POOL_EXHAUSTED),
)

DEATHS = (Crashed, CaptureFailed)

# What a message can only be printed after, whatever other lines show.
_IMPLIED: dict[type, Stage] = {
    NoKvMemory: Stage.AFTER_WEIGHTS,
    NoPoolForStates: Stage.AFTER_WEIGHTS,
    OneRequestTooLarge: Stage.AFTER_WEIGHTS,
    CaptureFailed: Stage.BEFORE_GRAPHS,
}


def failure_of(run: Run, readings: list[RankReading], fraction: Value) -> Failure | None:
    """The framework's own words for what ran out, else what the process died of."""
    headroom = Headroom(run, readings, fraction)
    for event, kind in _KINDS:
        dead = run.last_of(event)
        if dead is not None:
            return _failed(run, dead, kind, headroom)
    sighting = crash(run, (*RANK_EVENTS, *SERVING), (Limits, ServerUp, *SERVING), deaths=DEATHS)
    if sighting is None:
        return None
    captures = run.of(CaptureFailed)
    if captures:
        return _failed(run, captures[0], _capture_kind(run, captures[0], sighting), headroom)
    return _failed(run, sighting, _kind_here(run, sighting), headroom)


def _capture_kind(
    run: Run, failed: Sighting[CaptureFailed], cause: Sighting[object]
) -> FailureKind:
    """By what the capture's own message says; it quotes the exception."""
    words = (failed.event.reason or "").lower()
    kind = kind_of(cause, Stage.BEFORE_GRAPHS)
    if "alignedallocator" in words:
        return FailureKind.NOT_MEMORY  # a kernel library's own workspace is too small for the batch
    if "out of memory" in words or "alloc" in words:
        return FailureKind.GRAPH_CAPTURE_OUT_OF_MEMORY
    wrapped = cause.line == failed.line or kind is FailureKind.UNKNOWN
    return FailureKind.NOT_MEMORY if wrapped and words else kind


def _kind_here(run: Run, sighting: Sighting[Any]) -> FailureKind | None:
    """What another message of the same line says of a death; None: what its own event says."""
    if any(s.line == sighting.line for s in run.of(Unbalanced)):
        return FailureKind.DEVICE_MEMORY_TAKEN
    if any(s.line == sighting.line for s in run.of(PoolLeak)):
        return FailureKind.NOT_MEMORY
    return None


class Headroom:
    """What the fraction keeps free of the memory before weights, and the fraction that would do.

    headroom = free[before_weights] · (1 − fraction), minima over ranks
    (kv_cache_configurator.py:2990 of 0.5.23; model_runner.py:315 of 0.2.15).
    """

    def __init__(self, run: Run, readings: list[RankReading], fraction: Value) -> None:
        self._before = _least_free(readings, Stage.BEFORE_WEIGHTS)
        self.after = _least_free(readings, Stage.AFTER_WEIGHTS)
        self._fraction = fraction
        self._dead = run.last_of(NoKvMemory)

    @property
    def kept(self) -> Value:
        if not isinstance(self._before, Known) or not isinstance(self._fraction, Known):
            return Unknown(why="free memory before weights or the fraction is not known", unit=GIB)
        rest = known(
            1 - self._fraction.number,
            RATIO,
            Origin.DERIVED,
            name="(1 - fraction)",
            how="1 - fraction",
            evidence=self._fraction.evidence,
        )
        return self._before * rest

    @property
    def minimum(self) -> Value:
        """The fraction below which nothing is left for the pool: as printed, else by readings."""
        if self._dead is not None and self._dead.event.minimum is not None:
            return self._dead.value("minimum")
        if not isinstance(self._before, Known) or not isinstance(self.after, Known):
            return Unknown(why="free memory before or after weights is not known", unit=RATIO)
        if self._before.number <= 0:
            return Unknown(why="no memory was free before weights", unit=RATIO)
        taken = (self._before - self.after) / self._before
        return taken.named("1 - free[after_weights] / free[before_weights]")


def _least_free(readings: list[RankReading], stage: Stage) -> Value:
    frees = [reading.free(stage) for reading in readings]
    if not frees:
        return Unknown(why=f"no rank prints free memory at {stage.value}", unit=GIB)
    return least(frees, f"free[{stage.value}]")


def _failed(
    run: Run, sighting: Sighting[Any], kind: FailureKind | None, headroom: Headroom
) -> Failure:
    before = list(_before(run, sighting))
    rank = _rank(sighting, before)
    # Every rank prints its own stages: another one may be further.
    mine = [s for s in before if not s.speaker.label or rank in (None, rank_of(s).text)]
    reached = _later(stage_reached(mine), _IMPLIED.get(type(sighting.event)))
    served = isinstance(sighting.event, SlotsExhausted) or reached is Stage.READY
    stage = Stage.SERVING if served else reached or Stage.STARTUP
    kind = kind or kind_of(sighting, stage)
    minimum = headroom.minimum
    cures, harmful = cures_of(kind, sighting, minimum)
    return Failure(
        kind=kind,
        stage=stage,
        rank=rank,
        message=sighting.text,
        evidence=(sighting.line,),
        cures=cures,
        harmful=harmful,
        **_amounts(run, sighting, headroom),
    )


def _later(*stages: Stage | None) -> Stage | None:
    said = [stage for stage in stages if stage is not None]
    return max(said, key=list(Stage).index, default=None)


def _before(run: Run, sighting: Sighting[Any]) -> Iterable[Sighting[Any]]:
    for earlier in run:
        if earlier is sighting:
            return
        yield earlier


def _rank(sighting: Sighting[Any], before: list[Sighting[Any]]) -> str | None:
    """The rank that the line names, else the one whose traceback it ends."""
    if sighting.speaker.label:
        return rank_of(sighting).text
    began = [s for s in before if isinstance(s.event, Crashed | Traceback)]
    return rank_of(began[-1]).text if began and began[-1].speaker.label else None


def _amounts(run: Run, sighting: Sighting[Any], headroom: Headroom) -> dict[str, Value]:
    """What was needed and what there was (GiB): of the message, else of the account."""
    event = sighting.event
    if isinstance(event, HostMemoryRefused) and event.requested is not None:
        return {
            "needed": sighting.value("requested", "needed").to(GIB),
            "available": sighting.value("free", "available").to(GIB),
        }
    if isinstance(event, CheckpointPoolRefused):
        return {
            "needed": sighting.value("needed", "needed"),
            "available": sighting.value("free", "available"),
        }
    if isinstance(event, NoKvMemory):
        return {"needed": headroom.kept, "available": headroom.after}
    if isinstance(event, CaptureFailed):
        said = [s for s in run.of(OutOfMemory) if s.event.total or s.event.wanted]
        return shortage(said[0]) if said else {}
    return shortage(sighting)
