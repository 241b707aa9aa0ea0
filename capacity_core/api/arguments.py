"""A tolerant reader of the long literals in which servers print their arguments.

Reads `key=value, …` of a call's repr, `'key': value, …` of a dict's repr, and loose `key=value, `
runs alike, key by key, without evaluating anything: values that are no plain literal stay text, and
a literal that was cut off keeps what stood before the cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_KEY = re.compile(
    r"""\s*(?:(?P<quote>['"])(?P<quoted>[\w.\-]+)(?P=quote)\s*:|(?P<bare>[A-Za-z_]\w*)\s*=)\s*"""
)
_OPEN = {"(": ")", "[": "]", "{": "}"}


class Arguments(Mapping[str, str]):
    """Arguments as printed: key to the value's own text, strings without their quotes.

    `None` stays the text "None": `said` tells it from a value.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._values = dict(_pairs(text))

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arguments) and self._values == other._values

    def __hash__(self) -> int:
        return hash(self.text)

    def said(self, *keys: str) -> str | None:
        """The text of the first of these keys that has a value; None when absent, empty or printed
        as None."""
        return next(
            (self._values[key] for key in keys if self._values.get(key) not in (None, "None", "")),
            None,
        )

    def nested(self, key: str) -> Arguments:
        """The arguments inside a nested value such as `{'method': 'x'}` or `Config(method='x')`."""
        value = self._values.get(key, "")
        start = min((at for at in map(value.find, "({") if at >= 0), default=len(value))
        return Arguments(value[start + 1 :])


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        match = _KEY.match(text, position)
        if match is None:
            position = _value_end(text, position)
            if position < len(text) and text[position] in ")]}":
                return  # the literal's own end
            position += 1
            continue
        end = _value_end(text, match.end())
        value = text[match.end() : end].strip()
        closed = end < len(text)
        if closed or _is_whole(value):
            yield match["quoted"] or match["bare"], _unquoted(value)
        if closed and text[end] in ")]}":
            return
        position = end + 1


def _value_end(text: str, position: int) -> int:
    """Where the value that starts at `position` ends: at a comma or a closing bracket of its own
    level."""
    stack: list[str] = []
    while position < len(text):
        character = text[position]
        if character in "'\"":
            position = _string_end(text, position)
            continue
        if character in _OPEN:
            stack.append(_OPEN[character])
        elif character in ")]}":
            if not stack:
                return position
            if character == stack[-1]:
                stack.pop()
        elif character == "," and not stack:
            return position
        position += 1
    return position


def _string_end(text: str, position: int) -> int:
    """The position behind the string that opens at `position`; an apostrophe inside a word opens
    none."""
    quote = text[position]
    if position and (text[position - 1].isalnum()):
        return position + 1
    at = position + 1
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return at + 1 if at < len(text) else position + 1


def _is_whole(value: str) -> bool:
    """Whether a value at the end of the text was surely not cut: a finished string or bracket, or a
    word constant."""
    finished = len(value) > 1 and value[0] in "'\"([{" and value[-1] in "'\")]}"
    return finished or value in ("None", "True", "False")


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] in "'\"" and value[-1] == value[0]:
        return re.sub(r"\\(.)", r"\1", value[1:-1])
    enum = re.fullmatch(r"<[\w.]+: (['\"]?)(?P<value>.*)\1>", value)
    return enum["value"] if enum else value
