"""Takes wrappers off a log's text: records of container run-times, quotes, colours, wrapped lines.

Every physical line stays one line of the result, so that line numbers are those of the file: a
message of several lines is parted by `\\r`, lines that are joined leave empty ones behind.
"""

from __future__ import annotations

import ast
import html
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence

Road = Callable[[Iterator[bytes]], Iterator[bytes]]

ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TITLE = re.compile(rb"\x1b\][^\x07\n]{0,200}\x07|\x1b_[^\x07\n]{0,200}\x07")
_STRUCK = re.compile(rb"[^\x08\n]\x08")
_ENTITY = re.compile(rb"&(?:#\d{1,5}|#x[0-9a-fA-F]{1,4}|quot|apos|lt|gt|amp);")
_LITERAL = re.compile(rb"""\s*(?P<text>(?P<quote>["']).*\\n(?P=quote)),?\s*""")
_MESSAGE_KEYS = ("log", "message", "msg", "MESSAGE", "text", "event")
_MARKS = (b"\x08", b"\xc2\xa0", b"&#39;", b"&quot;", b"&#x27;", b"\\'")
"""What only text has that went through a terminal, a browser or a notebook."""

_PENDING_CAP = 1 << 20

# time stamp, stream, whether the line goes on in the next record (P) or ends (F)
_CRI = re.compile(rb"(?P<head>\S+T\S+ (?P<stream>stdout|stderr) )(?P<tag>[PF]) (?P<text>.*)", re.S)


def road_for(head: bytes, *, whole: bool) -> Road | None:
    """How to clean a log that begins like this; None when its text can be searched as it is.

    `whole`: the log is small enough to be judged, and put together, line by line.
    """
    first = head.lstrip().split(b"\n", 1)[0]
    if _message_of(first) is not None or _CRI.match(first):
        return _records
    if not whole:
        return None
    if any(mark in head for mark in _MARKS):
        return cleaned
    return _unwrapped if _is_wrapped(head) else None


def cleaned(text: Iterator[bytes]) -> Iterator[bytes]:
    """The text line by line without what wrappers put around messages."""
    for lines, end in _lines(text):
        yield b"\n".join(map(clean_line, lines)) + end


def clean_line(line: bytes) -> bytes:
    """A line's message: of a JSON record its text, of a quoted string what it says."""
    message = _message_of(line)
    if message is not None:
        return ANSI.sub(b"", _on_one_line(message))
    literal = _LITERAL.fullmatch(line)
    if literal is not None:
        line = _said(literal["text"]) or line
    if b"&" in line and _ENTITY.search(line):
        line = html.unescape(line.decode("utf-8", "replace")).encode()
    line = ANSI.sub(b"", _TITLE.sub(b"", line)).replace(b"\xc2\xa0", b" ")
    while b"\x08" in line and (struck := _STRUCK.sub(b"", line)) != line:
        line = struck
    return line


def _said(literal: bytes) -> bytes | None:
    try:
        text = ast.literal_eval(literal.decode("utf-8", "replace"))
    except (ValueError, SyntaxError):
        return None
    return _on_one_line(text) if isinstance(text, str) else None


def _on_one_line(text: str) -> bytes:
    return text.rstrip("\r\n").replace("\n", "\r").encode("utf-8", "replace")


def _lines(text: Iterator[bytes]) -> Iterator[tuple[list[bytes], bytes]]:
    """The text's lines, many at a time, and what ends the last of them."""
    tail = b""
    for chunk in text:
        data = tail + chunk
        end = data.rfind(b"\n")
        if end < 0 and len(data) < 4 * _PENDING_CAP:
            tail = data
            continue
        end = end if end >= 0 else len(data)
        yield data[:end].split(b"\n"), data[end : end + 1]
        tail = data[end + 1 :]
    if tail:
        yield tail.split(b"\n"), b""


# --- records ----------------------------------------------------------


def _records(text: Iterator[bytes]) -> Iterator[bytes]:
    """Container run-times cut long lines into records: they are joined at the last one of each."""
    pending: dict[bytes, bytes] = {}
    newline = b""
    for lines, end in _lines(text):
        shown = [_joined(line, pending) for line in lines]
        yield newline + b"\n".join(shown)
        newline = end
    rest = b"\r".join(part for part in pending.values() if part)
    yield rest + newline


def _joined(line: bytes, pending: dict[bytes, bytes]) -> bytes:
    record = _CRI.fullmatch(line)
    if record is not None:
        stream, text, more = record["stream"], record["text"], record["tag"] == b"P"
        head = b"" if pending.get(stream) else record["head"] + b"F "
        message = clean_line(text) if text.startswith(b"{") else text
    else:
        part = _part_of(line)
        if part is None:
            return clean_line(line)
        stream, message, more = part
        head = b""
    whole = pending.pop(stream, b"") + head + message
    if more and len(whole) < _PENDING_CAP:
        pending[stream] = whole
        return b""
    return whole


def _part_of(line: bytes) -> tuple[bytes, bytes, bool] | None:
    """(stream, text, whether it goes on) of a record of a container's log driver."""
    record = _record_of(line)
    text = record.get("log") if record is not None and "stream" in record else None
    if record is None or not isinstance(text, str):
        return None
    return str(record["stream"]).encode(), ANSI.sub(b"", _on_one_line(text)), text[-1:] != "\n"


def _record_of(line: bytes) -> dict[str, object] | None:
    if not line.startswith(b"{"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _message_of(line: bytes) -> str | None:
    record = _record_of(line)
    if record is None:
        return None
    found = (_text_of(record.get(key)) for key in _MESSAGE_KEYS)
    message = next((text for text in found if text is not None), None)
    process = record.get("processName")
    if message is not None and isinstance(process, str):
        # The logging module's own names: here alone such a record says who speaks.
        return f"({process} pid={record.get('process')}) {message}"
    return message


def _text_of(value: object) -> str | None:
    """A message as text; the journal writes one with control characters as numbers of bytes."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(n, int) for n in value):
        return bytes(n & 255 for n in value).decode("utf-8", "replace")
    return None


# --- wrapped lines ----------------------------------------------------

_WIDEST = 400
"""Terminals, mails and pages are not wider."""

# How any log's lines begin: a time stamp, a level, a process, a container's name.
_BEGINS = re.compile(
    rb"\s*(?:[\[(]?\d{4}-\d\d-\d\d|\[?\d\d:\d\d:\d\d|\[[A-Z]{2}[A-Z0-9_ ]*\]"
    rb"|\(\w+[ _][^)]{0,60}pid=\d"
    rb"|(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b|[\w.\-]+\s+\| |[A-Z][a-z]{2} +\d+ \d\d:\d\d"
    rb"|Traceback |  File |\{\x22|(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): )"
)
_NUMBER_GOES_ON = re.compile(rb"\d+(?:[,.]\d+)*(?:, | GB| GiB|x\s*$| tokens|\s*$)")


def _is_wrapped(head: bytes) -> bool:
    lines = _measured(head)
    width = _width(lines)
    begun = sum(_BEGINS.match(line) is not None for line in lines)
    if not 20 <= width <= _WIDEST or begun < 2:
        return False  # without beginnings that are known, nothing tells a line from a rest
    full = [line for line in lines if len(line) == width]
    # Lines of one kind may well be of one length; their figures and punctuation are no shape.
    shapes = {re.sub(rb"[^A-Za-z]+", b" ", line)[:60] for line in full}
    if len(full) >= 3 and len(shapes) >= 2:
        return True
    pairs = list(itertools.pairwise(lines))
    if any(_number_cut(*pair) for pair in pairs):
        return True
    return sum(_continues(*pair, width) for pair in pairs) >= 3


def _measured(text: bytes) -> list[bytes]:
    return [ANSI.sub(b"", line).rstrip(b"\r") for line in text.split(b"\n")]


def _width(lines: Sequence[bytes]) -> int:
    """The longest line that could have been broken: one long word cannot."""
    return max((len(line) for line in lines if b" " in line.strip()), default=0)


def _continues(line: bytes, following: bytes, width: int) -> bool:
    """Whether the next line is the rest of this one: it has no beginning of its own, and this one
    is full, or had no room for the next one's first word."""
    if not line.strip() or not following.strip() or _BEGINS.match(following):
        return False
    words = following.split(None, 1)
    return len(line) >= width or len(line) + 1 + len(words[0]) > width


def _number_cut(line: bytes, following: bytes) -> bool:
    return line[-1:].isdigit() and _NUMBER_GOES_ON.match(following) is not None


def _unwrapped(text: Iterator[bytes]) -> Iterator[bytes]:
    """Lines put together again; of a line that was cut at the width, the last number is no number
    any more."""
    lines = _measured(b"".join(text))
    width = _width(lines)
    followed = [pair for pair in itertools.pairwise(lines) if _continues(*pair, width)]
    # Broken at blanks, most lines stay short of the width; broken anywhere, all are full.
    short = sum(len(line) < width for line, _ in followed)
    glue = b" " if 2 * short > len(followed) else b""
    indent = min((_blanks(line) for _, line in followed), default=0)
    result: list[bytes] = []
    home = 0
    for at, line in enumerate(lines):
        before = lines[at - 1] if at else b""
        cut = _number_cut(before, line)
        if at and (cut or (_continues(before, line, width) and (glue or len(before) >= width))):
            result[home] += glue + line[min(indent, _blanks(line)) :]
            result.append(b"")
        else:
            home = at
            result.append(line)
        if len(line) == width and (at + 1 == len(lines) or _BEGINS.match(lines[at + 1])):
            result[home] = re.sub(rb"(?<![\d.,])[\d.,]+$", b"", result[home])
    yield b"\n".join(result)


def _blanks(line: bytes) -> int:
    return len(line) - len(line.lstrip(b" "))
