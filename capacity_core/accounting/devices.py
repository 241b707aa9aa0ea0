"""Which device reading belongs to which rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import attrs

from capacity_core.accounting.breakdown import device_capacity
from capacity_core.accounting.ranks import rank_named
from capacity_core.api.device_readers import DeviceReading
from capacity_core.api.ledger import Deployment, Finding, RankFacts, RankId, Severity
from capacity_core.errors import UsageError
from capacity_core.values import Known, Value

ORDER = "the k-th device is the k-th rank"

_ENTRY = re.compile(
    r"\s*(?:smi(?P<file>[0-9]{1,3}):)?(?P<device>[0-9]{1,4})\s*=\s*(?P<rank>.+?)\s*"
)

Paired = dict[RankId, DeviceReading]


def by_rank(
    readings: Sequence[Sequence[DeviceReading]],
    ranks: Sequence[RankFacts],
    deployment: Deployment,
    mapping: str | None = None,
) -> tuple[Paired, list[Finding]]:
    """Device rows given to ranks: as a mapping says, else in the order of device numbers.

    The k-th file of readings belongs to the k-th log. The order is an assumption, and is said to be
    one; it is used only when there are as many rows as ranks (of the whole deployment, or in the
    log), and when no rank saw more free memory than its row can have. Otherwise no row is used, and
    a finding says why. Raises UsageError for a mapping that names what does not exist.
    """
    if mapping is not None:
        pairs = list(_mapped(mapping, readings, ranks))
        findings = _contradictions(pairs)
        return ({} if findings else {rank.id: reading for rank, reading in pairs}), findings
    paired: Paired = {}
    found: list[Finding] = []
    for number, of_one in enumerate(readings):
        mine = _ranks_of(f"log{number}", ranks) if len(readings) > 1 else ranks
        pairs_of_one, findings = _in_order(of_one, mine, deployment)
        paired |= pairs_of_one
        found += findings
    return paired, found


def _ranks_of(log: str, ranks: Sequence[RankFacts]) -> list[RankFacts]:
    """The ranks whose lines stand in a log."""
    return [
        rank
        for rank in ranks
        if any(
            line.startswith(f"{log}:")
            for value in (*(p.free for p in rank.timeline), *(p.size for p in rank.parts))
            for line in value.evidence
        )
    ]


def _in_order(
    readings: Sequence[DeviceReading], ranks: Sequence[RankFacts], deployment: Deployment
) -> tuple[Paired, list[Finding]]:
    if not readings or not ranks:
        return {}, []
    if all(reading.index is not None for reading in readings):
        readings = sorted(readings, key=lambda reading: reading.index or 0)
    pairs = _pairs(readings, ranks, deployment)
    if pairs is None:
        why = (
            f"{len(readings)} device rows for {len(ranks)} ranks in the log: which row is which "
            "rank cannot be told, so none is used; give the rows of this server's devices alone, "
            "in rank order, or say it with --smi-map"
        )
        return {}, [_finding("device-rows-unmatched", why, readings)]
    findings = _contradictions(pairs)
    if findings:
        return {}, findings
    return {rank.id: _assumed(reading) for rank, reading in pairs}, []


def _contradictions(pairs: Sequence[tuple[RankFacts, DeviceReading]]) -> list[Finding]:
    """The first rank that printed more free memory than its row can have."""
    for rank, reading in pairs:
        free, capacity = _largest_free(rank), device_capacity(reading)
        if free is None or not isinstance(capacity, Known):
            continue
        if free.number - free.error > capacity.number + capacity.error:
            why = (
                f"{rank.label} printed {free.number} GiB free, device row {reading.line} can have "
                f"only {capacity.number:.2f} GiB: the rows are not these ranks' devices, so none "
                "is used"
            )
            rows = [row for _, row in pairs]
            return [_finding("device-rows-contradict", why, rows, free.evidence)]
    return []


def _mapped(
    mapping: str, readings: Sequence[Sequence[DeviceReading]], ranks: Sequence[RankFacts]
) -> Iterator[tuple[RankFacts, DeviceReading]]:
    """The pairs of `4=TP0,5=TP1`; with several files of readings `smi1:4=TP8`."""
    if not readings:
        raise UsageError("--smi-map says which device is which rank: give readings with --smi")
    seen: set[object] = set()
    for entry in mapping.split(","):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise UsageError(f"--smi-map {entry!r}: write device=rank, such as 4=TP0,5=TP1")
        number = int(match["file"]) if match["file"] else None
        files = [of_one for at, of_one in enumerate(readings) if number is None or at == number]
        rows = [r for of_one in files for r in of_one if r.index == int(match["device"])]
        if len(rows) != 1:
            there = ", ".join(str(r.index) for of_one in readings for r in of_one)
            why = "no device has that number" if not rows else "several do; write smi1:4=TP8"
            raise UsageError(f"--smi-map {entry}: {why}; there are: {there}")
        rank = rank_named(ranks, match["rank"], "--smi-map")
        if {rank.id, id(rows[0])} & seen:
            raise UsageError(f"--smi-map {entry}: the device or the rank stands there twice")
        seen |= {rank.id, id(rows[0])}
        yield rank, rows[0]


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
