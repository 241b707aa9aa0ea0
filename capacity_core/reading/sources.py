"""Where a log's bytes come from: a file, a gzip file or stdin, as chunks of UTF-8 text, cleaned
where needed.

Two roads, one interface. Plain text is handed on as it is: colour codes and wrappers do not stand
inside the words that the scanner looks for. Records, quotes and wrapped lines, and chunks with
colours at words, are cleaned (see `cleaning`). Either way a physical line stays one line, so that
line numbers are those of the file.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterator
from io import RawIOBase
from typing import BinaryIO

from capacity_core.errors import UnusableInput
from capacity_core.reading.cleaning import ANSI, cleaned, road_for

CHUNK = 256 * 1024
"""Bytes of one read. Fresh `bytes` of this size are read fastest; a reused bytearray is not."""

SMALL = 4 * 1024 * 1024
"""Up to this size a log is kept, so that it can be read again through the cleaning road."""

# Engines colour prefixes, which hides nothing; viewers colour words, and with them anchors.
_COLOUR_AT_WORD = re.compile(rb"\w\x1b\[[0-9;]*[mK]|\x1b\[[0-9;]*[mK]\w")
_CODE_LENGTH = 16
_CODES_IN_A_ROW = 32


class Source:
    """One log to read, named `log0`, `log1`, … in evidence ids.

    Raises UnusableInput when the path is missing, a directory, unreadable or empty.
    """

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        self.bytes_read = 0
        self.truncated = False
        self._file = _open(path)
        try:
            self._head = self._read_head()
        except UnusableInput:
            self.close()
            raise
        self.whole_in_head = len(self._head) < SMALL
        self._encoding = _encoding(self._head)
        self._gzipped = self._head[:2] == b"\x1f\x8b"
        self.seekable = (
            path != "-" and not self._gzipped and self._encoding is None and self._file.seekable()
        )
        plain = self._encoding is None and not self._gzipped
        self.looks_binary = plain and b"\0" in self._head[:8192]

    def close(self) -> None:
        if self.path != "-":
            self._file.close()

    def chunks(self) -> Iterator[bytes]:
        """The log's text as UTF-8: raw, but where a wrapper hides words."""
        text = self._text()
        whole = self.whole_in_head and not self._gzipped
        first = next(text, b"")
        road = road_for(first, whole=whole)
        if road is not None:
            self.seekable = False
            yield from road(_chain(first, text))
            return
        before = tail = b""
        for chunk in _chain(first, text):
            data = tail + chunk
            cut = _last_code(data)
            data, tail = data[:cut], data[cut:]
            last = data[-1:]
            if b"\x1b" in data and _COLOUR_AT_WORD.search(before + data):
                self.seekable = False  # from here on offsets are not those of the file
                data = ANSI.sub(b"", data)
            before = last or before
            yield data
        yield tail

    def cleaned_chunks(self) -> Iterator[bytes]:
        """The same text once more through the cleaning road, if it is `whole_in_head`."""
        self.seekable = False
        return cleaned(self._text())

    def newlines(self, start: int, end: int) -> int:
        """How many lines end in the bytes [start, end) of a seekable source."""
        count = 0
        while start < end:
            block = os.pread(self._file.fileno(), min(1 << 20, end - start), start)
            if not block:
                break
            count += block.count(b"\n")
            start += len(block)
        return count

    def _read_head(self) -> bytes:
        parts = []
        size = 0
        while size < SMALL and (part := self._read_file()):
            parts.append(part)
            size += len(part)
        if not parts:
            raise UnusableInput(
                f"{self.path}: the file is empty. Give the server's own output, from its start."
            )
        return b"".join(parts)

    def _read_file(self) -> bytes:
        try:
            part = self._file.read(CHUNK) or b""
        except OSError as error:
            raise UnusableInput(f"{self.path}: cannot be read: {error.strerror}.") from None
        self.bytes_read += len(part)
        return part

    def _raw(self) -> Iterator[bytes]:
        for at in range(0, len(self._head), CHUNK):
            yield self._head[at : at + CHUNK]
        if self.whole_in_head:
            return
        self._head = self._head[:4]
        while part := self._read_file():
            yield part

    def _text(self) -> Iterator[bytes]:
        raw = self._gunzipped() if self._gzipped else self._raw()
        return raw if self._encoding is None else _recoded(raw, self._encoding)

    def _gunzipped(self) -> Iterator[bytes]:
        stream = gzip.GzipFile(fileobj=io.BufferedReader(_Rejoined(self._raw())))
        while True:
            try:
                part = stream.read1(CHUNK)  # what a cut leaves is given, not dropped
            except EOFError:
                self.truncated = True  # what was there before the cut has been read
                return
            except (gzip.BadGzipFile, zlib.error) as error:
                raise UnusableInput(
                    f"{self.path}: damaged gzip data ({error}). Unpack it by hand first."
                ) from error
            if not part:
                return
            yield part


def _open(path: str) -> RawIOBase | BinaryIO:
    if path == "-":
        if sys.stdin is None:
            raise UnusableInput("stdin is closed; name a log file.")
        return sys.stdin.buffer
    try:
        # Unbuffered: the chunks are the reads.
        return open(path, "rb", buffering=0)
    except IsADirectoryError:
        raise UnusableInput(f"{path}: is a directory; name the log file in it.") from None
    except OSError as error:
        raise UnusableInput(f"{path}: cannot be read: {error.strerror}.") from None


def _encoding(head: bytes) -> str | None:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Without its mark: of ASCII text every second byte is nothing.
    sample = head[:8192]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    mostly = len(sample) // 2 * 0.7
    if odd > mostly and not even:
        return "utf-16-le"
    return "utf-16-be" if even > mostly and not odd else None


def _recoded(raw: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for part in raw:
        yield decoder.decode(part).encode()
    yield decoder.decode(b"", final=True).encode()


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


class _Rejoined(io.RawIOBase):
    """Chunks as a raw stream, which gzip wants to read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._rest:
            self._rest = next(self._chunks, b"")
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _last_code(data: bytes) -> int:
    """Where the colour codes begin that the end of a chunk may have cut off from what follows; the
    end itself when there are none."""
    at = data.rfind(b"\x1b", max(0, len(data) - _CODE_LENGTH))
    if at < 0:
        return len(data)
    code = ANSI.match(data, at)
    if code is not None and code.end() < len(data):
        return len(data)
    for _ in range(_CODES_IN_A_ROW):
        earlier = data.rfind(b"\x1b", max(0, at - _CODE_LENGTH), at)
        code = ANSI.match(data, earlier) if earlier >= 0 else None
        if code is None or code.end() != at:
            break
        at = earlier
    return at
