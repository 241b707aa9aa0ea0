"""What any process prints, whatever framework it runs: events that reach the run they stand in."""

from __future__ import annotations

import attrs

from capacity_core.api.extractors import Run, Sighting
from capacity_core.units import Gib


@attrs.frozen(kw_only=True)
class Traceback:
    """The first line of a Python traceback."""


@attrs.frozen(kw_only=True)
class OutOfMemory:
    """The allocator's own message: what it wanted, and what the device has, as far as printed."""

    wanted: Gib | None = None
    total: Gib | None = None


@attrs.frozen(kw_only=True)
class AcceptsRequests:
    """The HTTP server of the process takes connections."""


NEUTRAL = (Traceback, OutOfMemory, AcceptsRequests)
"""Events that belong to no framework: they go to the run whose line was seen last."""


def crash(run: Run, progress: tuple[type, ...], ready: tuple[type, ...]) -> Sighting[object] | None:
    """The death of a run that nothing explains: the first traceback or allocator message with no
    progress behind it.

    `progress` are events that a dying process does not print any more. Once one of `ready` was
    seen, a traceback may be one request's trouble: from then on only the allocator's message
    counts.
    """
    found: Sighting[object] | None = None
    up = False
    for sighting in run:
        if " WARNING " in sighting.text:
            continue  # somebody tried something, and went on without it
        if isinstance(sighting.event, ready):
            up = True
        if isinstance(sighting.event, progress):
            found = None
        elif isinstance(sighting.event, OutOfMemory) and (
            found is None or isinstance(found.event, Traceback)
        ):
            found = sighting  # it says more than the traceback that precedes it
        elif found is None and isinstance(sighting.event, Traceback) and not up:
            found = sighting
    return found
