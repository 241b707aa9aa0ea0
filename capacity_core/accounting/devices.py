"""Which device reading belongs to which rank."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from capacity_core.accounting.breakdown import device_capacity
from capacity_core.api.device_readers import DeviceReading
from capacity_core.api.ledger import Deployment, Finding, RankFacts, RankId, Severity
from capacity_core.values import Known, Value

ORDER = "the k-th device is the k-th rank"


def by_rank(
    readings: Sequence[DeviceReading], ranks: Sequence[RankFacts], deployment: Deployment
) -> tuple[dict[RankId, DeviceReading], list[Finding]]:
    """Device rows given to ranks in the order of device numbers, which is an assumption and is said
    to be one.

    Only when there are as many rows as ranks (of the whole deployment, or in the log), and when no
    rank saw more free memory than its row can have; otherwise no row is used, and a finding says
    why.
    """
    if not readings or not ranks:
        return {}, []
    if all(reading.index is not None for reading in readings):
        readings = sorted(readings, key=lambda reading: reading.index or 0)
    pairs = _pairs(readings, ranks, deployment)
    if pairs is None:
        why = (
            f"{len(readings)} device rows for {len(ranks)} ranks in the log: which row is which "
            f"rank "
            "cannot be told, so none is used; give the rows of this server's devices alone, in "
            "rank order"
        )
        return {}, [_finding("device-rows-unmatched", why, readings)]
    for rank, reading in pairs:
        free, capacity = _largest_free(rank), device_capacity(reading)
        if free is None or not isinstance(capacity, Known):
            continue
        if free.number - free.error > capacity.number + capacity.error:
            why = (
                f"{rank.label} printed {free.number} GiB free, device row {reading.line} can have "
                f"only "
                f"{capacity.number:.2f} GiB: the rows are not these ranks' devices, so none "
                f"is used"
            )
            return {}, [_finding("device-rows-contradict", why, readings, free.evidence)]
    return {rank.id: _assumed(reading) for rank, reading in pairs}, []


def _pairs(
    readings: Sequence[DeviceReading], ranks: Sequence[RankFacts], deployment: Deployment
) -> list[tuple[RankFacts, DeviceReading]] | None:
    if len(readings) == len(ranks):
        return list(zip(ranks, readings, strict=True))
    tensor = _whole(deployment.parallel.tensor)
    world = tensor * (_whole(deployment.parallel.pipeline) or 1) if tensor else None
    if world == len(readings) and tensor and all(rank.id.tp is not None for rank in ranks):
        numbers = [(rank.id.pp or 0) * tensor + (rank.id.tp or 0) for rank in ranks]
        if len(set(numbers)) == len(numbers) and max(numbers) < len(readings):
            return [(rank, readings[n]) for rank, n in zip(ranks, numbers, strict=True)]
    return None


def _whole(value: Value) -> int | None:
    return int(value.number) if isinstance(value, Known) else None


def _largest_free(rank: RankFacts) -> Known | None:
    said = [point.free for point in rank.timeline if isinstance(point.free, Known)]
    return max(said, key=lambda value: value.number, default=None)


def _assumed(reading: DeviceReading) -> DeviceReading:
    return attrs.evolve(
        reading,
        used=reading.used.assume(ORDER),
        free=reading.free.assume(ORDER),
        total=reading.total.assume(ORDER),
        reserved=reading.reserved.assume(ORDER),
    )


def _finding(
    code: str, message: str, readings: Sequence[DeviceReading], more: tuple[str, ...] = ()
) -> Finding:
    lines = [line for reading in readings[:4] for line in reading.used.evidence]
    return Finding(code=code, severity=Severity.WARNING, message=message, evidence=(*lines, *more))
