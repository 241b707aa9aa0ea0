"""A tolerant reader of the long literals in which servers print their arguments.

Reads `key=value, …` of a call's repr, `'key': value, …` of a dict's repr, and loose `key=value, `
runs alike, key by key. Only string literals are decoded; every other value stays the text it is.
A literal that was cut off keeps what stood before the cut: a value that may go on is not told.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import NamedTuple

from capacity_core.units import COUNT, Unit

_KEY = re.compile(
    r"""\s*(?:(?P<quote>['"])(?P<quoted>[\w.\-]+)(?P=quote)\s*:|(?P<bare>[A-Za-z_]\w*)\s*=)\s*"""
)
# An apostrophe inside a word opens no string, a `<` inside one no repr of an object.
_TOKEN = re.compile(
    r"""(?P<string>(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))"""
    r"""|(?P<unfinished>(?<!\w)['"])"""
    r"""|(?P<open>[(\[{]|(?<!\w)<(?=\w))|(?P<close>[)\]}>])|(?P<comma>,)|(?P<blank>\s+)""",
    re.DOTALL,
)
_CLOSES = {"(": ")", "[": "]", "{": "}", "<": ">"}
_ENUM = re.compile(r"<[\w.]+: (?P<value>.*)>", re.DOTALL)
_CONSTANTS = ("None", "True", "False")


_MOST = Decimal(10) ** 12
_MOST_COUNT = 100_000
_NUMBER_LENGTH = 40


def plausible_number(text: str | None, unit: Unit) -> Decimal | None:
    """A printed number that can be an argument; None for anything else, among it what is not
    finite or has no place in a deployment (10^12, or 10^5 ranks and nodes)."""
    if text is None or len(text) > _NUMBER_LENGTH:
        return None
    most = _MOST_COUNT if unit is COUNT else _MOST
    try:
        number = Decimal(text)
        return number if number.is_finite() and abs(number) < most else None
    except ArithmeticError:
        return None


class Arguments(Mapping[str, str]):
    """Arguments as printed: key to the value's own text, strings without their quotes.

    `None` stays the text "None": `said` tells it from a value. `complete` is whether the literal's
    closing bracket was printed: only then is a key that is absent surely not there.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._values: dict[str, str] = {}
        self.complete = False
        self._read()

    def _read(self) -> None:
        position = 0
        while position < len(self.text):
            match = _KEY.match(self.text, position)
            start = position if match is None else match.end()
            end = _value_end(self.text, start)
            value = self.text[start : end.position].strip()
            if match is not None and (end.whole or value in _CONSTANTS):
                self._values[match["quoted"] or match["bare"]] = _decoded(value)
            if end.closing:
                self.complete = True
                return
            position = end.position + 1

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


class _End(NamedTuple):
    """Where a value ends; `whole` is false where the text ends and the value might have gone on."""

    position: int
    whole: bool
    closing: bool = False


def _value_end(text: str, start: int) -> _End:
    """The end of the value at `start`: a comma or a closing bracket of its own level."""
    stack: list[str] = []
    finished = -1
    for token in _TOKEN.finditer(text, start):
        kind = token.lastgroup
        if kind == "unfinished":
            return _End(len(text), whole=False)
        if kind == "open":
            stack.append(_CLOSES[token[0]])
        elif kind == "close" and stack:
            if token[0] == stack[-1]:
                stack.pop()
                finished = token.end()
        elif kind == "close" and token[0] != ">":
            return _End(token.start(), whole=True, closing=True)
        elif kind == "comma" and not stack:
            return _End(token.start(), whole=True)
        elif (kind == "string" and not stack) or (kind == "blank" and finished == token.start()):
            finished = token.end()
    return _End(len(text), whole=not stack and finished == len(text))


def _decoded(value: str) -> str:
    """A string literal's text, an enum's value; anything else as it stands."""
    enum = _ENUM.fullmatch(value)
    literal = enum["value"] if enum else value
    token = _TOKEN.fullmatch(literal)
    if token is None or token.lastgroup != "string":
        return literal
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):
        return literal[1:-1]
