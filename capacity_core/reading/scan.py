"""From a log's bytes to sightings: which known message stands at which line, from which speaker.

Only lines that hold an anchor are decoded and shown to their matchers. Memory is bounded whatever
the input: a line longer than `LINE_CAP` is scanned in pieces that overlap by what a pattern may
see.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import attrs

from capacity_core.api.extractors import Sighting
from capacity_core.api.matchers import Matcher
from capacity_core.api.prefixes import NOBODY, Prefix, Speaker
from capacity_core.api.report import UNMATCHED_KEPT
from capacity_core.reading.anchors import AnchorEngine, best_engine
from capacity_core.reading.sources import Source

LINE_CAP = 1 << 20
OVERLAP = 1 << 17
PREFIX_REACH = 4096
TEXT_KEPT = 300
TRIED_LAST = 50
CLASHES_KEPT = 20

# What a line about memory has: an amount, or one of the words.
_OF_MEMORY = re.compile(
    rb"\d ?[GM]i?B\b|\b(?:[Mm]emory|KV [Cc]ache|kv_cache|mem_\w+|avail mem|mem usage|OOM)\b"
)

# The last digits of an input that ends inside a line may be missing: such a number is not read.
_CUT_NUMBER = re.compile(r"(?<![\d.,])[\d.,]+$")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Block(NamedTuple):
    """Bytes to search: whole lines, or a piece of a line that is too long to hold.

    `offset` is where `data` begins in the text. Of a piece, messages that begin before `first` were
    the last block's, those that begin at `last` or later are the next one's. `unfinished`: the
    input ends with this block, without a newline.
    """

    data: bytes
    offset: int
    first: int
    last: int
    unfinished: bool = False


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
        *,
        keep_unmatched: bool = False,
    ) -> None:
        """`owners` names the framework of each event class: its prefixes name the speaker.

        With `keep_unmatched`, lines that speak of memory and in which no message is known are kept
        as `unmatched`, (id, text), the first `UNMATCHED_KEPT` of them.
        """
        self._keep_unmatched = keep_unmatched
        self.unmatched: list[tuple[str, str]] = []
        self._by_anchor: dict[bytes, list[Matcher]] = {}
        self._run_time: list[Matcher] = []
        for matcher in matchers:
            if matcher.run_time:
                self._run_time.append(matcher)
            else:
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
        if not self._by_anchor and not self._run_time:
            return
        found = False
        kept = len(self.unmatched)
        for sighting in self._scan(source, source.chunks()):
            found = True
            yield sighting
        if not found and source.whole_in_head:
            del self.unmatched[kept:]
            yield from self._scan(source, source.cleaned_chunks())

    def needs_cleaning(self, source: Source) -> bool:
        """Whether a log yields nothing as it is, and is read through the cleaning road."""
        if not source.whole_in_head:
            return False
        return next(self._scan(source, source.chunks()), None) is None

    def _scan(self, source: Source, chunks: Iterator[bytes]) -> Iterator[Sighting[object]]:
        lines = _LineNumbers(source)
        peaks = _Peaks(self._run_time)
        for block in _blocks(chunks):
            handled = 0
            begun = lines.at(block, 0) if self._keep_unmatched else 0
            known: set[int] = set()
            for hit in self._engine.hits(block.data):
                if hit < handled:
                    continue
                start, end = _line_around(block.data, hit)
                for position in peaks.lines(block, handled, start):
                    yield from self._numbered(block, *_line_around(block.data, position), lines)
                handled = end
                peaks.forget()  # what follows may belong to another run
                for sighting in self._numbered(block, start, end, lines):
                    known.add(start)
                    yield sighting
            for position in peaks.lines(block, handled, len(block.data)):
                yield from self._numbered(block, *_line_around(block.data, position), lines)
            if self._keep_unmatched:
                self._note_unmatched(block, known, source.name, begun)
            lines.leave(block)

    def _note_unmatched(self, block: Block, known: set[int], name: str, begun: int) -> None:
        """Keep the lines of a block that speak of memory and that gave no sighting."""
        handled, number, counted = -1, begun, 0
        for match in _OF_MEMORY.finditer(block.data, block.first, block.last):
            start, end = _line_around(block.data, match.start())
            if start <= handled or len(self.unmatched) >= UNMATCHED_KEPT:
                continue
            handled = start
            text = clean(block.data[start:end])
            if start in known or any(matcher.anchor in text for matcher in self._run_time):
                continue
            number += block.data.count(b"\n", counted, start)
            counted = start
            self.unmatched.append((f"{name}:{number}", _cut(text, match.start() - start)))

    def _numbered(
        self, block: Block, start: int, end: int, lines: _LineNumbers
    ) -> Iterator[Sighting[object]]:
        return self._line(block, start, end, f"{lines.source.name}:{lines.at(block, start)}")

    def _line(self, block: Block, start: int, end: int, line: str) -> Iterator[Sighting[object]]:
        raw = block.data[start:end]
        text = clean(raw)
        floor, limit = 0, len(text)
        if start < block.first:
            floor = len(clean(block.data[start : block.first]))
        if block.last < end:
            limit = len(clean(block.data[start : block.last]))
        if block.unfinished and end == len(block.data):
            text = without_cut_number(text)
        for low, matcher, event in self.matches(text, line):
            if floor <= low < limit:
                yield Sighting(
                    event=event,
                    matcher=matcher.name,
                    speaker=self._speaker(text, low, self._owners.get(type(event))),
                    line=line,
                    text=_cut(text, low),
                    seen_in=matcher.seen_in,
                )

    def matches(self, text: str, line: str) -> list[tuple[int, Matcher, object]]:
        """(position, matcher, event) of every message in a line's text, in the order of the text;
        none of what a line quotes.

        Of overlapping ones the first by name is taken; the clash is kept with the id `line`.
        """
        anchors = self._engine.anchors(text.encode())
        matchers = [m for anchor in anchors for m in self._by_anchor.get(anchor, ())]
        matchers += [matcher for matcher in self._run_time if matcher.anchor in text]
        found: list[tuple[int, int, Matcher, object]] = []
        offset = 0
        for message in text.split("\r"):
            for matcher in matchers:
                for low, high, event in self._find(matcher, message):
                    found.append((low + offset, high + offset, matcher, event))
            offset += len(message) + 1
        quoted = min((low for low, _, matcher, _ in found if matcher.quotes), default=len(text))
        found = [match for match in found if match[0] < quoted]
        return self._without_clashes(sorted(found, key=lambda m: (m[0], m[2].name)), line)

    def _without_clashes(
        self, found: list[tuple[int, int, Matcher, object]], line: str
    ) -> list[tuple[int, Matcher, object]]:
        """Of messages whose spans overlap, the one whose matcher is first by name."""
        kept: list[tuple[int, int, Matcher, object]] = []
        for match in found:
            if kept and match[0] < kept[-1][1]:
                used, dropped = sorted((kept[-1], match), key=lambda m: m[2].name)
                kept[-1] = used
                if len(self.clashes) < CLASHES_KEPT:
                    self.clashes.append(Clash(used[2].name, dropped[2].name, line))
            else:
                kept.append(match)
        return [(low, matcher, event) for low, _, matcher, event in kept]

    def _find(self, matcher: Matcher, message: str) -> list[tuple[int, int, object]]:
        if matcher.name in self.broken:
            return []
        try:
            return matcher.find(message)
        # The border of a plugin: its event's class may raise anything; the matcher is out from
        # here on, by name.
        except Exception as error:  # noqa: BLE001
            self.broken[matcher.name] = f"{type(error).__name__}: {error}"
            return []

    def speaker_of(self, text: str) -> str:
        """The last prefix of any framework in a text, as it stands there; empty without one."""
        found = [m for prefix in self._prefixes[None] for m in prefix.regex.finditer(text)]
        return max(found, key=lambda match: match.end())[0].strip() if found else ""

    def _speaker(self, text: str, position: int, framework: str | None) -> Speaker:
        """Whom the nearest prefix to the left names; nobody in particular when there is none."""
        low = max(0, position - PREFIX_REACH)
        best_end, speaker = -1, NOBODY
        for prefix in self._prefixes.get(framework, ()):
            for match in prefix.regex.finditer(text, low, position):
                if match.end() > best_end:
                    best_end, speaker = match.end(), prefix.speaker(match)
        return speaker


class _Peaks:
    """The run-time messages of a stretch that are worth a sighting: where a number is larger than
    any before it, and the last one of every block.

    They are searched in the bytes as they are, a block at a time: a running server prints millions.
    """

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        self._matchers = [(m.anchor.encode(), m) for m in matchers if m.number_groups]
        self._largest: dict[tuple[str, int], float] = {}

    def forget(self) -> None:
        self._largest.clear()

    def lines(self, block: Block, low: int, high: int) -> list[int]:
        """Where the lines begin that hold such messages between two positions."""
        low, high = max(low, block.first), min(high, block.last)
        found: set[int] = set()
        for anchor, matcher in self._matchers:
            last = self._last(matcher, anchor, block.data, low, high)
            if last >= 0:
                found.add(last)
                found.update(self._larger(matcher, block.data, low, high))
        return sorted({block.data.rfind(b"\n", 0, at) + 1 for at in found})

    def _last(self, matcher: Matcher, anchor: bytes, data: bytes, low: int, high: int) -> int:
        """Where the last whole message has its anchor: lines of several processes cut each
        other."""
        at = data.rfind(anchor, low, high)
        for _ in range(TRIED_LAST):
            if at < 0 or matcher.byte_regex.search(data, *_line_around(data, at)):
                break
            at = data.rfind(anchor, low, at)
        return at

    def _larger(self, matcher: Matcher, data: bytes, low: int, high: int) -> set[int]:
        rows = matcher.byte_regex.findall(data, low, high)
        wanted = set()
        several = matcher.regex.groups > 1
        for group in matcher.number_groups:
            column = [row[group - 1] for row in rows] if several else rows
            largest = max(set(column), key=_amount, default=b"")
            if _amount(largest) > self._largest.get((matcher.name, group), float("-inf")):
                self._largest[matcher.name, group] = _amount(largest)
                wanted.add(column.index(largest))
        if not wanted:
            return set()
        matches = enumerate(matcher.byte_regex.finditer(data, low, high))
        return {match.start() for index, match in matches if index in wanted}


def without_cut_number(text: str) -> str:
    """The last line of an input that ends inside it, without a number that may have been cut."""
    return _CUT_NUMBER.sub("", text)


def _amount(printed: bytes) -> float:
    """A printed number, to compare by; nothing is less than anything."""
    try:
        return float(printed.replace(b",", b"")) if printed else float("-inf")
    except ValueError:
        return float("-inf")


def _line_around(data: bytes, position: int) -> tuple[int, int]:
    start = data.rfind(b"\n", 0, position) + 1
    end = data.find(b"\n", position)
    return start, len(data) if end < 0 else end


class _LineNumbers:
    """Line numbers of hits, counted only as far as they are cited.

    Blocks without a hit are not counted while they pass: a seekable source reads the skipped bytes
    again when a later hit needs their number. What cannot be read again is counted as it passes.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._number = 1
        self._counted = 0

    def at(self, block: Block, position: int) -> int:
        if self._counted < block.offset:
            self._number += self.source.newlines(self._counted, block.offset)
            self._counted = block.offset
        end = block.offset + position
        if end > self._counted:
            self._number += block.data.count(b"\n", self._counted - block.offset, position)
            self._counted = end
        return self._number

    def leave(self, block: Block) -> None:
        if not self.source.seekable:
            self.at(block, len(block.data))


def _blocks(chunks: Iterator[bytes]) -> Iterator[Block]:
    tail, offset, first = b"", 0, 0
    for chunk in chunks:
        data = tail + chunk
        end = data.rfind(b"\n") + 1
        if end:
            yield Block(data[:end], offset, first, end)
            tail, offset, first = data[end:], offset + end, 0
        elif len(data) > LINE_CAP:
            last = len(data) - OVERLAP
            yield Block(data, offset, first, last)
            # A piece begins early enough that a message's beginning and its prefix are in it.
            keep = max(0, last - PREFIX_REACH)
            tail, offset, first = data[keep:], offset + keep, last - keep
        else:
            tail = data
    if tail:
        yield Block(tail, offset, first, len(tail), unfinished=True)


def clean(raw: bytes) -> str:
    """A line's text without colour codes."""
    return _ANSI.sub("", raw.decode("utf-8", "replace"))


def _cut(text: str, position: int) -> str:
    """The message around a position, without what progress bars left of it, at most `TEXT_KEPT`
    characters."""
    low = text.rfind("\r", 0, position) + 1
    high = text.find("\r", position)
    message = text[low : high if high >= 0 else len(text)].strip()
    if len(message) > TEXT_KEPT and position - low > TEXT_KEPT // 2:
        message = message[position - low - TEXT_KEPT // 4 :]
    return message[:TEXT_KEPT]
