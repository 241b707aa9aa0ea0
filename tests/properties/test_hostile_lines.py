"""No line, however it is made, takes the reading of a log more than time in step with its length.

Anchors, patterns and prefixes come from plugins, lines from anywhere: a pattern whose parts can
share the same text between them in many ways looks well on a sample and stops the command on a
line that almost matches. Such lines are made here of what each matcher and prefix itself shows.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capacity_core.api.arguments import Arguments
from capacity_core.api.matchers import Matcher
from capacity_core.api.prefixes import Prefix
from capacity_core.loader import load
from capacity_core.reading.scan import Scanner
from capacity_core.reading.sources import Source

PLUGINS = load(strict=True)

LONG = 64 * 1024
SHORT = LONG // 4
WINDOW = 4000
"""A little less than what a matcher sees behind its anchor: the worst that one anchor can cost."""

SLOW_S = 0.25
GROWTH = 8
"""A line of four times the length may take up to so many times as long: 4 is in step, 16 is not."""

GLANCE_S = SLOW_S / GROWTH / 2
"""What a short line takes at most without being looked at closer."""

HOPELESS_S = 4 * SLOW_S

FILLERS = ("1", "1,", " ", "a", "[(", "'", '"', "\\", "a='x', ")
FEW = ("1", " ", "a")


class TooLongError(Exception):
    """A call was stopped."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stop what does not end, where the system has timers: `re` looks for signals now and then."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise TooLongError

    former = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


def seconds(call: Callable[[str], object], text: str) -> float:
    """Time of this process alone: others may keep the machine busy."""
    start = time.process_time()
    try:
        with time_limit(HOPELESS_S):
            call(text)
    except TooLongError:
        return float("inf")
    return time.process_time() - start


def out_of_step(call: Callable[[str], object], line: Callable[[int], str]) -> str | None:
    """How a call's time grows with the line when it is too much; None when it is not.

    Looked at again before it is said, and then the fastest of three counts: a busy machine is no
    offender.
    """
    if seconds(call, line(SHORT)) < GLANCE_S:
        return None
    for runs in (1, 3):
        short = min(seconds(call, line(SHORT)) for _ in range(runs))
        if short == float("inf"):
            return f"no end at {SHORT} characters"
        long = min(seconds(call, line(LONG)) for _ in range(runs))
        if long <= SLOW_S or long <= GROWTH * short:
            return None
    return f"{short:.3f} s at {SHORT} characters, {long:.3f} s at {LONG}"


def filled(unit: str, size: int) -> str:
    return (unit * (size // max(1, len(unit)) + 1))[:size]


Line = tuple[str, Callable[[int], str]]
"""What a hostile line is made of, and the line of a given size."""


def repeated(what: str, unit: str, before: str = "", behind: str = "") -> Line:
    return what, lambda size: before + filled(unit, size) + behind


def around(text: str) -> Iterator[Line]:
    """Lines from a text that a pattern matches: parts of it repeated, numbers of it blown up."""
    for quarter in (1, 2, 3):
        yield repeated(f"{quarter}/4 of it, repeated", text[: len(text) * quarter // 4])
    yield repeated("without its last character, repeated", text[:-1])
    words = list(re.finditer(r"\s*\S+", text))
    for word in words[1 :: max(1, len(words) // 6)]:
        yield repeated(f"with {word[0]!r} repeated", word[0], text[: word.start()], "!")
    numbers = list(re.finditer(r"\d[\d,.]*", text))
    last = numbers[-1] if numbers else None
    for filler in FILLERS:
        yield repeated(f"behind {filler!r}", filler, "", text)
        if last:
            before, behind = text[: last.start()], text[last.end() :]
            yield repeated(f"with {filler!r} for its last number", filler, before, behind)
            crowd = filled(filler, WINDOW)
            yield repeated(f"so, in each window: {filler!r}", before + crowd + behind)
    for filler in FEW if len(numbers) > 1 else ():
        before, behind = text[: numbers[0].start()], text[numbers[0].end() :]
        yield repeated(f"with {filler!r} for its first number", filler, before, behind)


def lines_for(matcher: Matcher) -> Iterator[Line]:
    yield repeated("its anchor, repeated", matcher.anchor)
    for filler in FILLERS:
        crowd = matcher.anchor + filled(filler, WINDOW)
        yield repeated(f"its anchor and {filler!r} in each window", crowd)
        yield repeated(f"{filler!r} before its anchor", filler, "", matcher.anchor)
    sample = max((sample.text for sample in matcher.samples), key=len)
    behind = sample.index(matcher.anchor) + len(matcher.anchor)
    for quarter in (1, 2, 3):
        part = matcher.anchor + sample[: len(sample) * quarter // 4]
        yield repeated(f"its anchor and {quarter}/4 of a sample, repeated", part)
        begun = sample[: behind + (len(sample) - behind) * quarter // 4]
        for filler in FILLERS if quarter == 2 else FEW:
            crowd = begun + filled(filler, WINDOW)
            yield repeated(f"cut behind its anchor, {filler!r} in each window", crowd)
    yield from around(sample)


@pytest.mark.parametrize("matcher", PLUGINS.matchers, ids=lambda matcher: matcher.name)
def test_a_matcher_keeps_step(matcher: Matcher) -> None:
    found = {
        f"{what} ({how})": slow
        for what, line in lines_for(matcher)
        for how, call in (("find", matcher.find), ("pattern alone", matcher.regex.search))
        if (slow := out_of_step(call, line))
    }
    assert found == {}


def finds_all(prefix: Prefix) -> Callable[[str], object]:
    return lambda text: list(prefix.regex.finditer(text))


@pytest.mark.parametrize("prefix", PLUGINS.prefixes, ids=lambda prefix: prefix.name)
def test_a_prefix_keeps_step(prefix: Prefix) -> None:
    found = {
        f"{what} of {sample!r}": slow
        for sample in prefix.samples
        for what, line in around(sample)
        if (slow := out_of_step(finds_all(prefix), line))
    }
    assert found == {}


LITERALS = (
    *(repeated(f"{unit!r}, repeated", unit) for unit in (*FILLERS, "{'a': ", "a=[", "<a ", "\\'")),
    *(repeated(f"a={opening!r}…", opening, "a=") for opening in ("(", "[", "{", "<a", "'\\", "a'")),
    repeated("a string that does not end", "a, b=", "a='"),
    repeated("a string of backslashes", "\\\\", "a='", "'"),
    repeated("a value of blanks", " ", "a=", ", b=1"),
    repeated("an enum's repr that does not end", "<A.b: ", "a="),
    repeated("a key that does not end", "a"),
    repeated("quotes that open no string", "x'"),
    repeated("closed before it opens", ")]}>,", "a="),
    repeated("brackets that do not fit", "[(]", "a="),
)


@pytest.mark.parametrize("literal", LITERALS, ids=lambda literal: literal[0])
def test_the_reader_of_arguments_keeps_step(literal: Line) -> None:
    def read(text: str) -> None:
        arguments = Arguments(text)
        for key in list(arguments)[:3]:
            arguments.nested(key)

    assert out_of_step(read, literal[1]) is None


def hostile_logs() -> Iterator[Line]:
    """Lines of a whole log: what the scanner itself does with them, and prefixes before them."""
    some = PLUGINS.matchers[:: max(1, len(PLUGINS.matchers) // 12)]
    anchor = some[0].anchor
    anchors = " ".join(matcher.anchor for matcher in some)
    message = some[-1].samples[0].text
    yield repeated("every anchor", " ".join(m.anchor for m in PLUGINS.matchers))
    yield repeated("every sample", " ".join(m.samples[0].text for m in PLUGINS.matchers))
    for filler in (*FILLERS, ".", "\r", "\t", "é", "\x1b[", "\x1b[1;", "\x1b[0m", "{", '{"log": "'):
        yield repeated(f"an anchor behind {filler!r}", filler, "", anchor)
        yield repeated(f"an anchor and {filler!r}", filler, anchor, "x")
        yield repeated(f"anchors behind {filler!r}", filler, "", anchors)
        yield repeated(f"a message behind {filler!r}", filler, "", message)
    for prefix in PLUGINS.prefixes:
        for sample in prefix.samples:
            yield repeated(f"{sample!r} before a message", sample, "", message)
    yield repeated("numbers that are not the end", "1.", anchor, "x")
    yield repeated("a JSON record", "a", '{"log": "' + anchor, '"}')


@pytest.mark.parametrize("end", ["", "\n"], ids=["cut", "whole"])
@pytest.mark.parametrize("log", list(hostile_logs()), ids=lambda log: log[0])
def test_scanning_keeps_step(log: Line, end: str, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    scanner = Scanner(PLUGINS.matchers, PLUGINS.prefixes, {})

    def scan(text: str) -> None:
        path.write_text(text + end, encoding="utf-8", newline="")
        with contextlib.closing(Source("log0", str(path))) as source:
            list(scanner.scan(source))

    assert out_of_step(scan, log[1]) is None
