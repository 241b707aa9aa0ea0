"""Matchers of what any process prints; they register through the same hooks as a plugin's."""

from __future__ import annotations

from capacity_core.api import NUMBER, Matcher, Sample, hookimpl
from capacity_core.api.process import AcceptsRequests, OutOfMemory, Traceback
from capacity_core.units import Gib

TRACEBACK = Matcher(
    name="process.traceback",
    anchor="Traceback (most recent call last)",
    pattern=r"Traceback \(most recent call last\)",
    event=Traceback,
    means="A Python process raised an exception that nothing caught, or logged one that it caught.",
    samples=(Sample("Traceback (most recent call last):", Traceback()),),
)

OUT_OF_MEMORY = Matcher(
    name="process.out_of_memory",
    anchor="out of memory. Tried to allocate",
    pattern=rf"out of memory\. Tried to allocate (?:(?P<wanted>{NUMBER}) GiB)?"
    rf"(?:[^\n]{{0,80}}? has a total capacity of (?P<total>{NUMBER}) GiB)?",
    event=OutOfMemory,
    means="The device allocator failed; `total` is the device memory that the process sees.",
    samples=(
        Sample(
            "X out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.10 GiB "
            "of which",
            OutOfMemory(wanted=Gib("2.50"), total=Gib("79.10")),
        ),
        Sample(
            "X out of memory. Tried to allocate 20.00 MiB (GPU 0; 1.00 GiB total", OutOfMemory()
        ),
    ),
)


ACCEPTS_REQUESTS = Matcher(
    name="process.accepts_requests",
    anchor="Application startup complete.",
    pattern=r"Application startup complete\.",
    event=AcceptsRequests,
    means="The HTTP server takes connections (a line of the web framework that servers use).",
    samples=(Sample("INFO:     Application startup complete.", AcceptsRequests()),),
)


@hookimpl
def capacity_matchers() -> tuple[Matcher, ...]:
    return (TRACEBACK, OUT_OF_MEMORY, ACCEPTS_REQUESTS)
