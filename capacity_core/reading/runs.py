"""Cuts the sightings of one log into runs: one for each server start of each framework."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from capacity_core.api.extractors import Extractor, Run, Sighting
from capacity_core.api.process import NEUTRAL
from capacity_core.errors import OnFailure

EARLY_KEPT = 20
"""How many lines of any process are kept for the first run of a log."""

OPEN_RUNS = 4
"""How many starts of one framework may go on side by side in one log."""


def split(
    sightings: Iterable[Sighting[object]],
    extractors: Sequence[Extractor],
    on_failure: OnFailure,
) -> Iterator[Run]:
    """The runs of a log in the order of their first lines, each once it can hold no more.

    A log may interleave frameworks, and servers of one framework whose lines name their process:
    a process goes on in the run that it began in. What any process prints goes to the run whose
    line was seen last, at the head of a log to the first one; an event that no extractor knows is
    left out. An extractor that fails is reported to `on_failure` by framework, and starts no run.
    """
    owners = {event: extractor for extractor in extractors for event in extractor.events}
    runs: dict[str, list[Run]] = {}
    order: list[Run] = []
    latest: Run | None = None
    early: deque[Sighting[object]] = deque(maxlen=EARLY_KEPT)
    for sighting in _said_once(sightings):
        extractor = owners.get(type(sighting.event))
        if extractor is None:
            if isinstance(sighting.event, NEUTRAL):
                if latest is None:
                    early.append(sighting)
                else:
                    latest.add(sighting)
            continue
        mine = runs.setdefault(extractor.framework, [])
        run = _run_of(extractor, mine, sighting, on_failure)
        if run is None:
            run = Run(extractor.framework)
            mine.append(run)
            order.append(run)
            if len(mine) > OPEN_RUNS:
                done = mine.pop(0)
                order.remove(done)
                yield done
        while early:
            run.add(early.popleft())
        run.add(sighting)
        latest = run
    yield from order


def _run_of(
    extractor: Extractor,
    runs: Sequence[Run],
    sighting: Sighting[object],
    on_failure: OnFailure,
) -> Run | None:
    """The run that a sighting belongs to: the newest one, or an older one of its process; None
    when it starts another."""
    if not runs:
        return None
    process = (sighting.speaker.pid, sighting.speaker.node)
    if process not in runs[-1].processes:
        for run in reversed(runs[:-1]):
            if process in run.processes and not _starts(extractor, run, sighting, on_failure):
                run.interleaved = runs[-1].interleaved = True
                return run
    return None if _starts(extractor, runs[-1], sighting, on_failure) else runs[-1]


_TIME = re.compile(r"\d\d:\d\d:\d\d")


def _said_once(sightings: Iterable[Sighting[object]]) -> Iterator[Sighting[object]]:
    """Without the copy of a line that two streams were written to one file with."""
    above: list[Sighting[object]] = []
    mine: list[Sighting[object]] = []
    for sighting in sightings:
        if mine and mine[-1].line != sighting.line:
            above, mine = mine, []
        if not any(_is_copy(sighting, before) for before in above):
            yield sighting
        mine.append(sighting)


def _is_copy(sighting: Sighting[object], before: Sighting[object]) -> bool:
    """Whether the same words, with a time stamp, stand in the line just above."""
    same = (sighting.matcher, sighting.speaker, sighting.text, sighting.event) == (
        before.matcher,
        before.speaker,
        before.text,
        before.event,
    )
    stamped = _TIME.search(sighting.text) is not None
    return same and stamped and line_number(sighting.line) == line_number(before.line) + 1


def line_number(line: str) -> int:
    """The number in a line's id, such as 15 of `log0:15`."""
    return int(line.rpartition(":")[2])


def _starts(
    extractor: Extractor,
    run: Run,
    sighting: Sighting[object],
    on_failure: OnFailure,
) -> bool:
    try:
        return extractor.starts_run(run, sighting)
    # The border of a plugin: the run goes on.
    except Exception as error:  # noqa: BLE001
        on_failure(extractor.framework, f"{type(error).__name__}: {error}")
        return False
