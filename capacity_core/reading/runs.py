"""Cuts the sightings of one log into runs: one for each server start of each framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from capacity_core.api.extractors import Extractor, Run, Sighting
from capacity_core.api.process import NEUTRAL


def split(
    sightings: Iterable[Sighting[object]],
    extractors: Sequence[Extractor],
    blame: Callable[[str, str], None],
) -> Iterator[Run]:
    """The runs of a log, each as soon as it has ended; the last ones in the order of their first
    lines.

    A log may interleave frameworks: each has its own current run. What any process prints goes to
    the run whose line was seen last; an event that no extractor knows is left out. An extractor
    that breaks is reported to `blame` by framework and reason, and starts no run.
    """
    owners = {event: extractor for extractor in extractors for event in extractor.events}
    current: dict[str, Run] = {}
    latest: Run | None = None
    for sighting in _said_once(sightings):
        extractor = owners.get(type(sighting.event))
        if extractor is None:
            if latest is not None and isinstance(sighting.event, NEUTRAL):
                latest.add(sighting)
            continue
        run = current.get(extractor.framework)
        if run is not None and _starts(extractor, run, sighting, blame):
            yield run
            run = None
        if run is None:
            current.pop(extractor.framework, None)  # a newer run takes its place behind the others
            run = current[extractor.framework] = Run(extractor.framework)
        run.add(sighting)
        latest = run
    yield from current.values()


def _said_once(sightings: Iterable[Sighting[object]]) -> Iterator[Sighting[object]]:
    """Without the copy of a line that two streams were written to one file with."""
    before: Sighting[object] | None = None
    for sighting in sightings:
        if before is None or not _is_copy(sighting, before):
            yield sighting
        before = sighting


def _is_copy(sighting: Sighting[object], before: Sighting[object]) -> bool:
    """Whether the same words, time stamp and all, stand in the line just above."""
    same = (sighting.matcher, sighting.speaker, sighting.text, sighting.event) == (
        before.matcher,
        before.speaker,
        before.text,
        before.event,
    )
    return same and line_number(sighting.line) == line_number(before.line) + 1


def line_number(line: str) -> int:
    """The number in a line's id, such as 15 of `log0:15`."""
    return int(line.rpartition(":")[2])


def _starts(
    extractor: Extractor,
    run: Run,
    sighting: Sighting[object],
    blame: Callable[[str, str], None],
) -> bool:
    try:
        return extractor.starts_run(run, sighting)
    # The border of a plugin: the run goes on.
    except Exception as error:  # noqa: BLE001
        blame(extractor.framework, f"{type(error).__name__}: {error}")
        return False
