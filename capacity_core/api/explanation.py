"""Why a line was recognised or not, and what a value rests on: what `capacity explain` shows."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from capacity_core.values import Value


@attrs.frozen(kw_only=True)
class Attempt:
    """One matcher whose anchor stands in the line.

    `fields` is what it read, None when it did not match: then `reached` is how much of the line its
    pattern took, and `expected` the part of the pattern that failed.
    """

    matcher: str
    used: bool
    fields: Mapping[str, str] | None
    reached: str = ""
    expected: str = ""


@attrs.frozen(kw_only=True)
class LineStory:
    """A line as the scanner saw it, who speaks, and every matcher that looked at it."""

    line: str
    text: str
    speaker: str
    attempts: tuple[Attempt, ...]


@attrs.frozen(kw_only=True)
class ValueStory:
    """A value, the lines it cites with their text, and the values that its formula is over."""

    name: str
    value: Value
    lines: tuple[tuple[str, str], ...]
    operands: tuple[ValueStory, ...]
