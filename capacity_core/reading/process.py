"""Matchers of what any process prints; they register through the same hooks as a plugin's."""

from __future__ import annotations

import re

from capacity_core.api import NUMBER, Matcher, Sample, hookimpl
from capacity_core.api.process import (
    AcceptsRequests,
    Crashed,
    EndsServing,
    HostOutOfMemory,
    KernelOutOfResources,
    OutOfMemory,
    Raised,
    Survived,
    Traceback,
)
from capacity_core.units import Gib, Mib

TRACEBACK = Matcher(
    name="process.traceback",
    anchor="Traceback (most recent call last)",
    pattern=r"Traceback \(most recent call last\)",
    event=Traceback,
    means="A Python process raised an exception that nothing caught, or logged one that it caught.",
    samples=(Sample("Traceback (most recent call last):", Traceback()),),
)

_SURVIVED = (
    ("logging_error", "--- Logging error ---"),
    ("ignored", "Exception ignored in"),
    ("usage_thread", "(_report_usage_worker):"),
)

SURVIVED = tuple(
    Matcher(
        name=f"process.{name}",
        anchor=words,
        pattern=re.escape(words),
        event=Survived,
        means="The traceback that follows ends nothing.",
        samples=(Sample(words, Survived()),),
    )
    for name, words in _SURVIVED
)

# An exception's line begins behind a prefix; inside a sentence the same words mean nothing. Its
# text is looked at, not taken: it may be a framework's own message.
_RAISED = r"(?:^|(?<=[\]|)>] )|(?<=[\]|)>]))\s{0,8}"

RAISED = tuple(
    Matcher(
        name=f"process.raised_{name}",
        anchor=f"{word}: ",
        pattern=rf"{_RAISED}(?P<kind>(?:[A-Za-z_]\w{{0,60}}\.){{0,8}}[A-Z]\w{{0,60}}?{word}): "
        r"(?=(?P<message>[^\n\r]{1,300}))",
        event=Raised,
        means="The last line of a Python traceback.",
        samples=(
            Sample(
                f"Acme{word}: no such thing", Raised(kind=f"Acme{word}", message="no such thing")
            ),
            Sample(
                f"[core.py:99] a.b.Acme{word}: it says",
                Raised(kind=f"a.b.Acme{word}", message="it says"),
            ),
        ),
        near_misses=(f"it may come from an Acme{word}: text",),
    )
    for name, word in (("error", "Error"), ("exception", "Exception"))
)

OUT_OF_MEMORY = Matcher(
    name="process.out_of_memory",
    anchor="out of memory. Tried to allocate",
    pattern=(
        r"out of memory\. Tried to allocate (?!\S{1,20} \w+ \(\w+ \d+; )"
        rf"(?:(?P<wanted>{NUMBER}) GiB|(?P<wanted_mib>{NUMBER}) MiB|{NUMBER} \w+)?"
        rf"(?:[^\n]{{0,80}}? total capac?i?ty of (?P<total>{NUMBER}) GiB"
        rf"(?: of which (?:(?P<free>{NUMBER}(?= GiB)|0(?= bytes)) \w+|(?P<free_mib>{NUMBER}) MiB"
        rf"|(?P<free_kib>{NUMBER}) KiB) is free)?)?"
    ),
    event=OutOfMemory,
    means="The device allocator failed; `total` is the device memory that the process sees.",
    samples=(
        Sample(
            "X out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.10 GiB "
            "of which 1.25 GiB is free. Including",
            OutOfMemory(wanted=Gib("2.50"), total=Gib("79.10"), free=Gib("1.25")),
        ),
        Sample(
            "X out of memory. Tried to allocate 128.00 MiB. GPU 3 has a total capacty of 79.10 GiB "
            "of which 27.50 MiB is free.",
            OutOfMemory(wanted_mib=Mib("128.00"), total=Gib("79.10"), free_mib=Mib("27.50")),
        ),
    ),
    near_misses=(
        "X out of memory. Tried to allocate 20.00 MiB (GPU 0; 1.00 GiB total capacity; 0.50 GiB "
        "already allocated",
    ),
)

OUT_OF_MEMORY_OLD = Matcher(
    name="process.out_of_memory_old",
    anchor="out of memory. Tried to allocate",
    pattern=(
        rf"out of memory\. Tried to allocate (?:(?P<wanted>{NUMBER}) GiB|(?P<wanted_mib>{NUMBER}) "
        rf"MiB|{NUMBER} \w+) \(\w+ \d+; (?:(?P<total>{NUMBER}) GiB total capacity; "
        rf"[^;\n]{{1,60}} already allocated; (?:[^;\n]{{1,60}} current active; )?"
        rf"(?:(?:(?P<free>{NUMBER}) GiB|(?P<free_mib>{NUMBER}) MiB|(?P<free_kib>{NUMBER}) KiB"
        rf"|{NUMBER} \w+) free)?)?"
    ),
    event=OutOfMemory,
    means="The same in the words of older allocators, and of some other vendors'.",
    samples=(
        Sample(
            "X out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.00 GiB total capacity; 9.50 "
            "GiB already allocated; 10.25 MiB free; 9.75 GiB reserved",
            OutOfMemory(wanted_mib=Mib("20.00"), total=Gib("10.00"), free_mib=Mib("10.25")),
        ),
        Sample(
            "X out of memory. Tried to allocate 2.00 GiB (X 0; 60.97 GiB total capacity; 58.10 "
            "GiB already allocated; 58.10 GiB current active; 1.50 GiB free;",
            OutOfMemory(wanted=Gib("2.00"), total=Gib("60.97"), free=Gib("1.50")),
        ),
    ),
)

OUT_OF_MEMORY_BARE = Matcher(
    name="process.out_of_memory_bare",
    anchor="rror: out of memory",
    pattern=r"\b[A-Za-z]+(?: driver)? [eE]rror: out of memory",
    event=OutOfMemory,
    means="A call of the device's run-time failed for want of memory; without figures.",
    samples=(
        Sample("RuntimeError: X error: out of memory", OutOfMemory()),
        Sample("X driver error: out of memory", OutOfMemory()),
    ),
)

OUT_OF_MEMORY_CALL = Matcher(
    name="process.out_of_memory_call",
    anchor="alloc failed: out of memory",
    pattern=r"[mM]alloc failed: out of memory",
    event=OutOfMemory,
    means="The same of a library's allocation.",
    samples=(Sample("xMalloc failed: out of memory", OutOfMemory()),),
)

OUT_OF_MEMORY_STATUS = Matcher(
    name="process.out_of_memory_status",
    anchor="_STATUS_ALLOC_FAILED",
    pattern=r"(?<!\w)\w{1,40}_STATUS_ALLOC_FAILED",
    event=OutOfMemory,
    means="The same of a library that had no memory for its own handle.",
    samples=(Sample("X error: XBLAS_STATUS_ALLOC_FAILED when calling", OutOfMemory()),),
)

OUT_OF_MEMORY_COMPILER = Matcher(
    name="process.out_of_memory_compiler",
    anchor="]: out of memory",
    pattern=r"Error \[\w{1,20}\]: out of memory",
    event=OutOfMemory,
    means="The same of a kernel compiler that loads what it compiled.",
    samples=(Sample("RuntimeError: X Error [Y]: out of memory", OutOfMemory()),),
)

_OUT_OF_MEMORY_WORDS = (
    ("limit", "would exceed allowed memory. (out of memory)"),
    ("status_device", "_OUT_OF_DEVICE_MEMORY"),
    ("library", "failure 2 'out of memory'"),
)

OUT_OF_MEMORY_WORDS = tuple(
    Matcher(
        name=f"process.out_of_memory_{name}",
        anchor=words,
        pattern=re.escape(words),
        event=OutOfMemory,
        means="The same in other words, without figures.",
        samples=(Sample(f"RuntimeError: X{words}", OutOfMemory()),),
    )
    for name, words in _OUT_OF_MEMORY_WORDS
)

_HOST = (
    ("cannot_allocate", "Cannot allocate memory"),
    ("allocator", "DefaultCPUAllocator: can't allocate memory"),
    ("shm_full", "No space left on device: '/dev/shm"),
    ("shm_segment", "Error while creating shared memory segment"),
    ("shm_torch", "unable to allocate shared memory"),
    ("shm_torch_file", "unable to write to file </torch_"),
    ("shm_workers", "insufficient shared memory (shm)"),
    ("killed", "ut of memory: Killed process"),
    ("node", "due to the node running low on memory"),
)

HOST_OUT_OF_MEMORY = tuple(
    Matcher(
        name=f"process.host_{name}",
        anchor=words,
        pattern=words.replace("[", r"\[").replace("(", r"\(").replace(")", r"\)"),
        event=HostOutOfMemory,
        means="The host's memory or its shared memory ran out, not the device's.",
        samples=(Sample(f"OSError: {words}", HostOutOfMemory()),),
    )
    for name, words in _HOST
)

KERNEL_OUT_OF_RESOURCES = Matcher(
    name="process.kernel_out_of_resources",
    anchor="out of resource: shared memory",
    pattern=r"out of resource: shared memory",
    event=KernelOutOfResources,
    means="A kernel needs more of the multiprocessor's shared memory than there is: no device "
    "memory.",
    samples=(
        Sample(
            "OutOfResources: out of resource: shared memory, Required: 114688, Hardware limit: 9",
            KernelOutOfResources(),
        ),
    ),
)

_CRASHES = (
    ("segfault", "Segmentation fault (core dumped)"),
    ("segfault_handler", "!!!!!!! Segfault encountered !!!!!!!"),
    ("interpreter", "Fatal Python error: "),
)

CRASHES = tuple(
    Matcher(
        name=f"process.{name}",
        anchor=words,
        pattern=words.replace("(", r"\(").replace(")", r"\)"),
        event=Crashed,
        means="A process was ended from outside its own code.",
        samples=(Sample(words, Crashed()),),
    )
    for name, words in _CRASHES
)

ENDS_SERVING = Matcher(
    name="process.ends_serving",
    anchor="Waiting for application shutdown.",
    pattern=r"Waiting for application shutdown\.",
    event=EndsServing,
    means="The HTTP server ends: it was asked to, or the engine behind it is gone.",
    samples=(Sample("INFO:     Waiting for application shutdown.", EndsServing()),),
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
    return (
        TRACEBACK,
        *SURVIVED,
        *RAISED,
        OUT_OF_MEMORY,
        OUT_OF_MEMORY_OLD,
        OUT_OF_MEMORY_BARE,
        OUT_OF_MEMORY_CALL,
        OUT_OF_MEMORY_STATUS,
        OUT_OF_MEMORY_COMPILER,
        *OUT_OF_MEMORY_WORDS,
        *HOST_OUT_OF_MEMORY,
        KERNEL_OUT_OF_RESOURCES,
        *CRASHES,
        ACCEPTS_REQUESTS,
        ENDS_SERVING,
    )
