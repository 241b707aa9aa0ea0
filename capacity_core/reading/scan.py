"""From a log's bytes to sightings: which known message stands at which line, from which speaker.

Only lines that hold an anchor are decoded and shown to their matchers. Memory is bounded whatever
the input: a line longer than `LINE_CAP` is scanned in pieces that overlap by what a pattern may
see.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import attrs

from capacity_core.api.extractors import Sighting
from capacity_core.api.matchers import Matcher
from capacity_core.api.prefixes import NOBODY, Prefix, Speaker
from capacity_core.reading.anchors import AnchorEngine, best_engine
from capacity_core.reading.sources import Source

LINE_CAP = 1 << 20
OVERLAP = 1 << 17
PREFIX_REACH = 4096
TEXT_KEPT = 300

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Block(NamedTuple):
    """Bytes to search: whole lines, or a piece of a line that is too long to hold.

    `offset` is where `data` begins in the text; messages that begin at `last` or later are the next
    block's.
    """

    data: bytes
    offset: int
    last: int


@attrs.frozen
class Clash:
    """Two matchers that read overlapping text: the first by name was used."""

    used: str
    dropped: str
    line: str


class Scanner:
    """Recognises the messages of all matchers, in the prefixes of all frameworks."""

    def __init__(
        self,
        matchers: Iterable[Matcher],
        prefixes: Iterable[Prefix],
        owners: Mapping[type, str],
        engine: AnchorEngine | None = None,
    ) -> None:
        """`owners` names the framework of each event class: its prefixes name the speaker."""
        self._by_anchor: dict[bytes, list[Matcher]] = {}
        for matcher in matchers:
            self._by_anchor.setdefault(matcher.anchor.encode(), []).append(matcher)
        self._owners = owners
        # What any process prints (no framework's event) may stand behind any framework's prefix.
        self._prefixes: dict[str | None, list[Prefix]] = {None: list(prefixes)}
        for prefix in self._prefixes[None]:
            self._prefixes.setdefault(prefix.framework, []).append(prefix)
        self._engine = engine or best_engine(self._by_anchor)
        self.clashes: list[Clash] = []
        self.broken: dict[str, str] = {}

    def scan(self, source: Source) -> Iterator[Sighting[object]]:
        """Every sighting of a log. A small log that yields nothing is read again through the
        cleaning road."""
        if not self._by_anchor:
            return
        found = False
        for sighting in self._scan(source, source.chunks()):
            found = True
            yield sighting
        if not found and source.whole_in_head:
            yield from self._scan(source, source.cleaned_chunks())

    def _scan(self, source: Source, chunks: Iterator[bytes]) -> Iterator[Sighting[object]]:
        lines = _LineNumbers(source)
        for block in _blocks(chunks):
            handled = 0
            for hit in self._engine.hits(block.data):
                if hit < handled:
                    continue
                start = block.data.rfind(b"\n", 0, hit) + 1
                end = block.data.find(b"\n", hit)
                end = len(block.data) if end < 0 else end
                handled = end
                number = lines.at(block, start)
                yield from self._line(block, start, end, f"{source.name}:{number}")
            lines.leave(block)

    def _line(self, block: Block, start: int, end: int, line: str) -> Iterator[Sighting[object]]:
        raw = block.data[start:end]
        text = _ANSI.sub("", raw.decode("utf-8", "replace"))
        limit = len(text)
        if block.last < end:  # the rest of this long line comes again in the next block
            limit = len(_ANSI.sub("", block.data[start : block.last].decode("utf-8", "replace")))
        for low, matcher, event in self.matches(text, line):
            if low < limit:
                yield Sighting(
                    event=event,
                    matcher=matcher.name,
                    speaker=self._speaker(text, low, self._owners.get(type(event))),
                    line=line,
                    text=_cut(text, low),
                    seen_in=matcher.seen_in,
                )

    def matches(self, text: str, line: str) -> list[tuple[int, Matcher, object]]:
        """(position, matcher, event) of every message in a line's text, in the order of the text.

        Of overlapping ones the first by name is taken; the clash is kept with the id `line`.
        """
        anchors = self._engine.anchors(text.encode())
        matchers = [matcher for anchor in anchors for matcher in self._by_anchor[anchor]]
        taken: list[tuple[int, int, Matcher, object]] = []
        for matcher in sorted(matchers, key=lambda m: m.name):
            offset = 0
            for message in text.split("\r"):
                for low, high, event in self._find(matcher, message):
                    low, high = low + offset, high + offset
                    rival = next((t for t in taken if t[0] < high and low < t[1]), None)
                    if rival is None:
                        taken.append((low, high, matcher, event))
                    elif len(self.clashes) < 20:
                        self.clashes.append(Clash(rival[2].name, matcher.name, line))
                offset += len(message) + 1
        taken.sort(key=lambda match: match[0])
        return [(low, matcher, event) for low, _, matcher, event in taken]

    def _find(self, matcher: Matcher, message: str) -> list[tuple[int, int, object]]:
        if matcher.name in self.broken:
            return []
        try:
            return matcher.find(message)
        # The border of a plugin: its event's class may raise anything; the matcher is out from here
        # on, by name.
        except Exception as error:  # noqa: BLE001
            self.broken[matcher.name] = f"{type(error).__name__}: {error}"
            return []

    def _speaker(self, text: str, position: int, framework: str | None) -> Speaker:
        """Whom the nearest prefix to the left names; nobody in particular when there is none."""
        low = max(0, position - PREFIX_REACH)
        best_end, speaker = -1, NOBODY
        for prefix in self._prefixes.get(framework, ()):
            for match in prefix.regex.finditer(text, low, position):
                if match.end() > best_end:
                    best_end, speaker = match.end(), prefix.speaker(match)
        return speaker


class _LineNumbers:
    """Line numbers of hits, counted only as far as they are cited.

    Blocks without a hit are not counted while they pass: a seekable source reads the skipped bytes
    again when a later hit needs their number. What cannot be read again is counted as it passes.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._number = 1
        self._counted = 0

    def at(self, block: Block, position: int) -> int:
        if self._counted < block.offset:
            self._number += self._source.newlines(self._counted, block.offset)
            self._counted = block.offset
        end = block.offset + position
        if end > self._counted:
            self._number += block.data.count(b"\n", self._counted - block.offset, position)
            self._counted = end
        return self._number

    def leave(self, block: Block) -> None:
        if not self._source.seekable:
            self.at(block, len(block.data))


def _blocks(chunks: Iterator[bytes]) -> Iterator[Block]:
    tail, offset = b"", 0
    for chunk in chunks:
        data = tail + chunk
        end = data.rfind(b"\n") + 1
        if end:
            yield Block(data[:end], offset, end)
            tail, offset = data[end:], offset + end
        elif len(data) > LINE_CAP:
            last = len(data) - OVERLAP
            yield Block(data, offset, last)
            tail, offset = data[last:], offset + last
        else:
            tail = data
    if tail:
        yield Block(tail, offset, len(tail))


def _cut(text: str, position: int) -> str:
    """The message around a position, without what progress bars left of it, at most `TEXT_KEPT`
    characters."""
    low = text.rfind("\r", 0, position) + 1
    high = text.find("\r", position)
    message = text[low : high if high >= 0 else len(text)].strip()
    if len(message) > TEXT_KEPT and position - low > TEXT_KEPT // 2:
        message = message[position - low - TEXT_KEPT // 4 :]
    return message[:TEXT_KEPT]
