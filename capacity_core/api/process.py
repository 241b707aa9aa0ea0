"""What any process prints, whatever framework it runs: events that reach the run they stand in, and
what they say of its death."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import FailureKind, Stage
from capacity_core.units import GIB, Gib, Kib, Mib
from capacity_core.values import Unknown, Value


@attrs.frozen(kw_only=True)
class Traceback:
    """The first line of a Python traceback."""


@attrs.frozen(kw_only=True)
class Quoted:
    """A message that repeats what a user sent or got; it says nothing of the server."""


@attrs.frozen(kw_only=True)
class Survived:
    """What begins a traceback that ends nothing: of a message that could not be formatted, an
    object that was thrown away, a thread for statistics."""


@attrs.frozen(kw_only=True)
class Raised:
    """The last line of a Python traceback: what was raised, and its text."""

    kind: str
    message: str | None = None


@attrs.frozen(kw_only=True)
class OutOfMemory:
    """The device allocator's own message: what it wanted, and what the device has, as far as
    printed."""

    wanted: Gib | None = None
    wanted_mib: Mib | None = None
    total: Gib | None = None
    free: Gib | None = None
    free_mib: Mib | None = None
    free_kib: Kib | None = None


@attrs.frozen(kw_only=True)
class HostOutOfMemory:
    """The host's memory, or its shared memory, ran out."""


@attrs.frozen(kw_only=True)
class KernelOutOfResources:
    """A kernel wants more of a multiprocessor's own shared memory than there is."""


@attrs.frozen(kw_only=True)
class Crashed:
    """The operating system, or the interpreter in its stead, ended a process."""


@attrs.frozen(kw_only=True)
class AcceptsRequests:
    """The HTTP server of the process takes connections."""


@attrs.frozen(kw_only=True)
class EndsServing:
    """The HTTP server of the process takes no more connections."""


NEUTRAL = (
    Traceback,
    Survived,
    Raised,
    OutOfMemory,
    HostOutOfMemory,
    KernelOutOfResources,
    Crashed,
    AcceptsRequests,
    EndsServing,
)
"""Events that belong to no framework: they go to the run whose line was seen last."""

_TELLING = (OutOfMemory, HostOutOfMemory, KernelOutOfResources)
"""What says of which memory a process died."""

# An exception's text that speaks of memory without being one of the messages above.
_OF_MEMORY = (
    "memory",
    "alloc",
    "oom",
    "_status_not_initialized",
    "nccl error: unhandled",
    "distbackenderror",
)

# What a process raises when another one died.
_AFTER_A_DEATH = ("root cause", "cancelled", " died", "has errored", "exit code", "terminated")

# A wrong address is no lack of memory.
_WRONG_ADDRESS = ("illegal memory access", "invalid memory access", "memory access fault")


def crash(
    run: Run,
    progress: tuple[type, ...],
    ready: tuple[type, ...],
    deaths: tuple[type, ...] = (),
    stops: tuple[type, ...] = (),
) -> Sighting[object] | None:
    """What a run died of, if it did: the first telling line with no progress behind it.

    `progress` are events that a dying process does not print any more; `deaths` are a framework's
    own words for an end, which count although siblings of the dead process go on. Once one of
    `ready` was seen, a traceback may be one request's trouble: from then on only the allocator's
    message and `deaths` count, until the server is asked to stop (`stops`): processes that end
    each other print errors. The allocator's message says more than the exception that it
    becomes, that more than the line which begins its traceback.
    """
    found: list[Sighting[Any]] = []
    up = False
    harmless: tuple[type, ...] = ()
    stopped: set[str] = set()
    for sighting in run:
        if " WARNING " in sighting.text:
            continue  # somebody tried something, and went on without it
        up = up or isinstance(sighting.event, ready)
        if up and isinstance(sighting.event, (EndsServing, *stops)):
            stopped.add(log_of(sighting))
        if log_of(sighting) in stopped:
            continue
        if isinstance(sighting.event, Survived):
            harmless = _PART_OF_IT
        elif harmless and isinstance(sighting.event, harmless[0]):
            harmless = harmless[1:]
            continue
        else:
            harmless = ()
        if isinstance(sighting.event, progress):
            if not any(isinstance(s.event, (Crashed, *deaths)) for s in found):
                # Another node of the deployment goes on until it notices.
                found = [s for s in found if log_of(s) != log_of(sighting)]
        elif isinstance(sighting.event, (*_TELLING, Crashed, *deaths)) or (
            isinstance(sighting.event, Traceback | Raised) and (not up or found)
        ):
            found.append(sighting)
    return _most_telling(found)


_PART_OF_IT = (Traceback, Raised)
"""What follows a Survived, and is part of it."""


def log_of(sighting: Sighting[Any]) -> str:
    """The log that a line is of, such as log0."""
    return sighting.line.partition(":")[0]


def _most_telling(found: list[Sighting[Any]]) -> Sighting[object] | None:
    """The first message of an allocator; else what the first traceback ended in; else the first
    line."""
    for sighting in found:
        if isinstance(sighting.event, _TELLING):
            return sighting
    began = next((s for s in found if isinstance(s.event, Traceback)), None)
    raised = next((s for s in found if isinstance(s.event, Raised) and _ends(began, s)), None)
    return raised or next((s for s in found if not isinstance(s.event, Raised)), None)


def _ends(began: Sighting[Any] | None, raised: Sighting[Any]) -> bool:
    """Whether an exception's line ends this traceback: an exception that nothing precedes may be a
    figure of speech."""
    if began is None:
        return False
    same = began.speaker == raised.speaker or raised.speaker.pid is None
    return same and began.line != raised.line


def kind_of(sighting: Sighting[Any], stage: Stage) -> FailureKind:
    """The kind of a death that no line of the framework's own explains.

    A device allocator's message is told by the stage that was reached.
    """
    event = sighting.event
    if isinstance(event, OutOfMemory):
        return _BY_STAGE[stage]
    if isinstance(event, HostOutOfMemory):
        return FailureKind.HOST_MEMORY
    if isinstance(event, KernelOutOfResources):
        return FailureKind.NOT_MEMORY
    if isinstance(event, Raised):
        words = f"{event.kind} {event.message or ''}".lower()
        if any(phrase in words for phrase in _WRONG_ADDRESS):
            return FailureKind.NOT_MEMORY
        # A wrapper's text hides its cause; anything with memory in it is left open.
        open_ended = any(word in words for word in (*_OF_MEMORY, *_AFTER_A_DEATH))
        return FailureKind.UNKNOWN if open_ended else FailureKind.NOT_MEMORY
    return FailureKind.UNKNOWN


_BY_STAGE = {
    Stage.STARTUP: FailureKind.WEIGHTS_OUT_OF_MEMORY,
    Stage.BEFORE_WEIGHTS: FailureKind.WEIGHTS_OUT_OF_MEMORY,
    Stage.AFTER_WEIGHTS: FailureKind.PROFILING_OUT_OF_MEMORY,
    Stage.AFTER_POOLS: FailureKind.GRAPH_CAPTURE_OUT_OF_MEMORY,
    Stage.BEFORE_GRAPHS: FailureKind.GRAPH_CAPTURE_OUT_OF_MEMORY,
    Stage.AFTER_GRAPHS: FailureKind.GRAPH_CAPTURE_OUT_OF_MEMORY,
    Stage.READY: FailureKind.RUNTIME_OUT_OF_MEMORY,
    Stage.SERVING: FailureKind.RUNTIME_OUT_OF_MEMORY,
}


def shortage(sighting: Sighting[Any]) -> dict[str, Value]:
    """What the allocator wanted, what was free and what the device has (GiB), as printed."""
    if not isinstance(sighting.event, OutOfMemory):
        return {}
    return {
        "needed": _gib(sighting, "wanted", "wanted_mib"),
        "available": _gib(sighting, "free", "free_mib", "free_kib"),
        "total": _gib(sighting, "total"),
    }


def _gib(sighting: Sighting[Any], *fields: str) -> Value:
    values: Iterator[Value] = (
        sighting.value(field) for field in fields if getattr(sighting.event, field) is not None
    )
    value = next(values, None)
    if value is None:
        why = f"{sighting.line} does not print it"
        return Unknown(why=why, unit=GIB, evidence=(sighting.line,))
    return value.to(GIB)
