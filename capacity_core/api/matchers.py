"""What one kind of message looks like: an event class, and matchers that build it from a line's
text."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache, cached_property
from typing import Any

import attrs

from capacity_core.api.arguments import Arguments
from capacity_core.units import GB, GIB, KIB, MIB, RATIO, Gb, Gib, Kib, Mib, Unit

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
"""A printed number: thousands commas, decimals and a sign are optional."""

INTEGER = r"\d[\d,]*"
"""A printed whole number, with or without thousands commas."""

LOOK_BEHIND = 256
"""How many characters before its anchor a pattern may begin."""


@attrs.frozen
class Sample:
    """A message as a framework prints it, and the event it means."""

    text: str
    event: object


@attrs.frozen(kw_only=True, slots=False)
class Matcher:
    """One wording of one kind of message.

    `anchor` is a literal of at least 6 ASCII characters that every such message contains: the
    scanner looks for anchors only. `pattern` is searched around each anchor, from `LOOK_BEHIND`
    characters before it to `window` characters behind it. Its named groups are fields of `event`,
    converted by the fields' types; a group that did not take part leaves the field's default.
    `means` says in one sentence what the message tells, for the reference; `seen_in` names the
    first and last release known to print it ("0.4.6 … 0.5.12").

    A `run_time` message is printed over and over by a running server. Not every one becomes a
    sighting: of each stretch of a log only those in which a number of the event is largest, and the
    last one. Its pattern begins with a literal.

    A message that `quotes` repeats what a user sent or got: nothing behind it in its line is read.

    Example::

        POOL_READY = Matcher(
            name="acme.pool_ready",
            anchor="pool ready:",
            pattern=r"pool ready: (?P<tokens>\\d+) tokens",
            event=PoolReady,
            samples=(Sample("pool ready: 4096 tokens", PoolReady(tokens=4096)),),
        )
    """

    name: str
    anchor: str
    pattern: str
    event: type
    samples: tuple[Sample, ...]
    means: str = ""
    seen_in: str = ""
    near_misses: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    window: int = 4096
    run_time: bool = False
    quotes: bool = False

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    @cached_property
    def byte_regex(self) -> re.Pattern[bytes]:
        """The pattern for text that was not decoded, which a run-time message stays mostly."""
        return re.compile(self.pattern.encode())

    @cached_property
    def number_groups(self) -> tuple[int, ...]:
        """The numbers of the groups whose fields are numbers."""
        hints = _hints(self.event)
        groups = self.regex.groupindex.items()
        return tuple(number for name, number in groups if _is_number(hints[name]))

    @cached_property
    def _converters(self) -> dict[str, Callable[[str], object]]:
        hints = _hints(self.event)
        return {group: _converter(hints[group]) for group in self.regex.groupindex}

    def build(self, match: re.Match[str]) -> object | None:
        """The event that a match means; None when a group is no such quantity (`0..9`)."""
        groups = match.groupdict()
        fields = {}
        for name, convert in self._converters.items():
            if groups[name] is not None:
                try:
                    fields[name] = convert(groups[name])
                except (ValueError, ArithmeticError):
                    return None
        event: object = self.event(**fields)
        return event

    def find(self, message: str) -> list[tuple[int, int, object]]:
        """Every event in a message, with the span (start, end) that it was read from."""
        found = []
        at = message.find(self.anchor)
        floor = 0
        while at >= 0:
            after = at + len(self.anchor)
            following = message.find(self.anchor, after)
            low = max(floor, at - LOOK_BEHIND)
            high = min(after + self.window, following if following >= 0 else len(message))
            match = self.regex.search(message, low, high)
            event = self.build(match) if match is not None else None
            if match is not None and event is not None:
                found.append((min(at, match.start()), max(after, match.end()), event))
            floor = max(after, match.end() if match else 0)
            at = following
        return found

    def problems(self) -> list[str]:
        """What is wrong with this matcher, one sentence each: the checks of loading and of
        `check_matcher`."""
        if len(self.anchor) < 6 or not self.anchor.isascii() or "\n" in self.anchor:
            return [
                f"{self.name}: the anchor {self.anchor!r} is not at least 6 ASCII characters of "
                f"one line"
            ]
        try:
            regex = self.regex
        except re.error as error:
            return [f"{self.name}: the pattern is no regular expression: {error}"]
        fields = (
            {field.name for field in attrs.fields(self.event)} if attrs.has(self.event) else set()
        )
        foreign = sorted(set(regex.groupindex) - fields)
        return [f"{self.name}: {self.event.__name__} has no field {group!r}" for group in foreign]

    def sample_problems(self) -> list[str]:
        """Samples that do not mean what they say, near misses that match."""
        found = []
        for sample in self.samples:
            events = [event for _, _, event in self.find(sample.text)]
            if events != [sample.event]:
                found.append(f"{self.name}: sample {sample.text!r} gives {events}")
        found += [
            f"{self.name}: near miss {text!r} matches"
            for text in self.near_misses
            if self.find(text)
        ]
        return found if self.samples else [f"{self.name}: has no sample"]


def _hints(event: Any) -> dict[str, Any]:
    return _cached_hints(event)


@cache
def _cached_hints(event: Any) -> dict[str, Any]:
    return typing.get_type_hints(event, include_extras=True)


def unit_of(event: type[object], field: str) -> Unit | None:
    """The unit that the type of an event's field says; None for text and flags."""
    hint = _without_none(_hints(event)[field])
    if hint is Gib:
        return GIB
    if hint is Mib:
        return MIB
    if hint is Gb:
        return GB
    if hint is Kib:
        return KIB
    return next((extra for extra in typing.get_args(hint)[1:] if isinstance(extra, Unit)), None)


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(option for option in typing.get_args(hint) if option is not type(None))
    return hint


def _is_number(hint: Any) -> bool:
    plain = _without_none(hint)
    if typing.get_origin(plain) is typing.Annotated:
        plain = typing.get_args(plain)[0]
    return isinstance(plain, type) and issubclass(plain, int | Decimal) and plain is not bool


def number_fields(event: Any) -> tuple[str, ...]:
    """The fields of an event class that are numbers."""
    return _cached_number_fields(event)


@cache
def _cached_number_fields(event: Any) -> tuple[str, ...]:
    return tuple(name for name, hint in _hints(event).items() if _is_number(hint))


def _converter(hint: Any) -> Callable[[str], object]:
    plain = _without_none(hint)
    if typing.get_origin(plain) is typing.Annotated:
        plain = typing.get_args(plain)[0]
    if plain is bool:
        return lambda printed: (
            True if printed == "True" else False if printed == "False" else bool(printed)
        )
    if isinstance(plain, type) and issubclass(plain, int | Decimal):
        return lambda printed: plain(printed.replace(",", ""))
    if plain is Arguments or plain is str:
        return typing.cast("Callable[[str], object]", plain)
    raise TypeError(f"an event's field cannot be a {plain!r}")


def printed_fields(event: Any) -> Mapping[str, str]:
    """An event's fields as text, for the report's evidence: those that were printed, long ones
    cut."""
    fields = {}
    for field in attrs.fields(type(event)):
        value = getattr(event, field.name)
        if value is not None and not isinstance(value, Arguments):
            fields[field.name] = str(value)
    return fields


__all__ = [
    "INTEGER",
    "LOOK_BEHIND",
    "NUMBER",
    "RATIO",
    "Matcher",
    "Sample",
    "number_fields",
    "printed_fields",
    "unit_of",
]
