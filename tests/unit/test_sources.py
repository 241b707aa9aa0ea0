"""Every form in which a log comes gives the same report; what is no log is refused in one
sentence."""

from __future__ import annotations

import codecs
import contextlib
import errno
import gc
import gzip
import io
import json
import os
import random
import subprocess
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.api.report import Report
from capacity_core.errors import NothingRecognised, UnusableInput
from capacity_core.loader import load
from capacity_core.reading import sources
from capacity_core.reading.sources import CHUNK, SMALL, Source

PLUGINS = load()

LINES = [
    "a first line that says nothing ▏",
    "[2026-01-02 03:04:05] server_args=ServerArgs(model_path='/m', tp_size=1, dp_size=1, x=1)",
    "[2026-01-02 03:04:05] Load weight begin. avail mem=78.50 GB",
    "",
    "[2026-01-02 03:04:05] Load weight end. elapsed=41.20 s, type=Acme, dtype=torch.bfloat16, "
    "avail mem=60.99 GB, mem usage=17.51 GB.",
    "[2026-01-02 03:04:05] KV Cache is allocated. #tokens: 1327104, K size: 25.31 GB, "
    "V size: 25.31 GB",
    "[2026-01-02 03:04:05] Memory pool end. avail mem=10.30 GB",
    "[2026-01-02 03:04:09] The server is fired up and ready to roll!",
]
PLAIN = "\n".join(LINES).encode() + b"\n"
SAID = [2, 3, 5, 6, 7, 8]
"""The lines that a report of this log rests on."""


def report_of(path: Path | str) -> Report:
    return analyse([str(path)], Options(), PLUGINS)


def evidence(report: Report) -> list[str]:
    return [row.id for row in report.evidence]


def findings(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


@pytest.fixture(autouse=True)
def _own_warnings() -> Iterator[None]:
    """A file that a test leaves open is that test's failure, not a later one's."""
    yield
    gc.collect()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def coloured_in_words(line: str) -> str:
    """As a highlighter leaves it: numbers and words in colours of their own."""
    return line.replace("Load", "L\x1b[1;32moa\x1b[0md").replace("Cache", "Cac\x1b[36mhe\x1b[0m")


FORMS: dict[str, Callable[[], bytes]] = {
    "plain": lambda: PLAIN,
    "no final newline": lambda: PLAIN.rstrip(b"\n"),
    "crlf": lambda: PLAIN.replace(b"\n", b"\r\n"),
    "utf-8 with BOM": lambda: codecs.BOM_UTF8 + PLAIN,
    "gzip": lambda: gzip.compress(PLAIN),
    "gzip in members": lambda: b"".join(map(gzip.compress, PLAIN.splitlines(keepends=True))),
    "utf-16 le": lambda: codecs.BOM_UTF16_LE + PLAIN.decode().encode("utf-16-le"),
    "utf-16 be": lambda: codecs.BOM_UTF16_BE + PLAIN.decode().encode("utf-16-be"),
    "utf-16 crlf": lambda: "\r\n".join([*LINES, ""]).encode("utf-16"),
    "latin-1 bytes": lambda: PLAIN.replace("▏".encode(), b"\xe9\xff"),
    "docker json": lambda: "".join(
        json.dumps({"log": f"{line}\n", "stream": "stderr"}) + "\n" for line in LINES
    ).encode(),
    "other json": lambda: "".join(
        json.dumps({"level": 3, "message": line}) + "\n" for line in LINES
    ).encode(),
    "json after a banner": lambda: b"".join(
        [b"starting\n", *(json.dumps({"msg": line}).encode() + b"\n" for line in LINES[1:])]
    ),
    "colours around words": lambda: PLAIN.replace(b"[2026", b"\x1b[36m[2026").replace(
        b"05]", b"05]\x1b[0m"
    ),
    "colours inside words": lambda: "\n".join(map(coloured_in_words, LINES)).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_report(form: str, log: Path) -> None:
    log.write_bytes(FORMS[form]())
    report = report_of(log)
    assert evidence(report) == [f"log0:{number}" for number in SAID]
    log.write_bytes(PLAIN)
    plain = report_of(log)
    assert report.ranks == plain.ranks
    assert report.kv_pool == plain.kv_pool
    assert "input-cut" not in findings(report)


def test_a_json_record_of_several_messages_is_one_line(log: Path) -> None:
    """The messages keep the number of the record's line."""
    records: list[dict[str, Any]] = [{"log": "first"}, {"log": "\n".join(LINES)}, {"other": 1}]
    log.write_text("\n".join(map(json.dumps, records)))
    assert set(evidence(report_of(log))) == {"log0:2"}


# --- gzip that ends early ---------------------------------------------


def noise(lines: int) -> bytes:
    """Lines that do not compress to nothing."""
    rng = random.Random(7)  # noqa: S311  # the same each time
    return b"".join(b"%032x quiet line\n" % rng.getrandbits(128) for _ in range(lines))


@pytest.mark.parametrize("lines", [2000, 20_000])
def test_a_cut_gzip_log_is_read_up_to_the_cut(lines: int, log: Path) -> None:
    """What a `docker cp` of a log in rotation gives: the report says so."""
    log.write_bytes(gzip.compress(PLAIN + noise(lines))[:-1000])
    report = report_of(log)
    assert evidence(report) == [f"log0:{number}" for number in SAID]
    assert findings(report).count("input-cut") == 1


def test_all_text_before_the_cut_of_a_gzip_log_is_read(log: Path) -> None:
    """The last messages count most; only what was never written is lost."""
    text = noise(3000) + PLAIN
    packed = gzip.compress(text)
    log.write_bytes(packed[:-8])  # all of the text, without its checksum
    with contextlib.closing(Source("log0", str(log))) as source:
        assert b"".join(source.chunks()) == text
        assert source.truncated


@pytest.mark.parametrize("kept", [2, 3, 9, 10, 12])
def test_a_gzip_log_cut_in_its_header_says_nothing(kept: int, log: Path) -> None:
    log.write_bytes(gzip.compress(PLAIN)[:kept])
    with pytest.raises((NothingRecognised, UnusableInput)):
        report_of(log)


def test_damaged_gzip_data_is_refused(log: Path) -> None:
    packed = bytearray(gzip.compress(noise(2000)))
    packed[len(packed) // 2] ^= 0xFF
    log.write_bytes(packed)
    with pytest.raises(UnusableInput, match=r"server\.log: damaged gzip data"):
        report_of(log)


# --- what is no log ---------------------------------------------------


def test_an_empty_file_is_refused(log: Path) -> None:
    log.write_bytes(b"")
    with pytest.raises(UnusableInput, match=r"server\.log: the file is empty"):
        report_of(log)


def test_a_refused_file_is_closed_again(log: Path) -> None:
    log.write_bytes(b"")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        with pytest.raises(UnusableInput):
            Source("log0", str(log))
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="is a directory; name the log file in it"):
        report_of(tmp_path)


def test_a_missing_file_is_refused(log: Path) -> None:
    with pytest.raises(UnusableInput, match=r"server\.log: cannot be read: No such file"):
        report_of(log)


def test_an_unreadable_file_is_refused(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # Not chmod: root may read every file.
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UnusableInput, match="cannot be read: Permission denied"):
        Source("log0", str(log))


def test_a_file_that_fails_while_it_is_read_is_refused(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network file system does when it goes away."""

    class Gone(io.RawIOBase):
        def readinto(self, _: object) -> int:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(sources, "_open", lambda _: Gone())
    with pytest.raises(UnusableInput, match="cannot be read"):
        Source("log0", str(log))


def test_binary_data_is_refused_as_such(log: Path) -> None:
    log.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 50)
    with pytest.raises(UnusableInput, match=r"server\.log: looks binary"):
        report_of(log)


def test_a_log_with_a_stray_nul_is_read(log: Path) -> None:
    log.write_bytes(PLAIN.replace(b"first", b"fir\0st"))
    assert evidence(report_of(log)) == [f"log0:{number}" for number in SAID]


def test_a_text_that_is_no_log_says_what_was_looked_for(log: Path) -> None:
    log.write_text("Dear diary,\ntoday I started no server.\n")
    with pytest.raises(NothingRecognised, match=r"no start-up line of SGLang or vLLM found"):
        report_of(log)


# --- chunks and roads -------------------------------------------------


@pytest.mark.parametrize("size", [1, CHUNK - 1, CHUNK, CHUNK + 1, SMALL - 1, SMALL, SMALL + 1])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_the_chunks_are_the_text(size: int, pack: Callable[[bytes], bytes], log: Path) -> None:
    text = (b"a line of text\n" * (size // 15 + 1))[:size]
    log.write_bytes(pack(text))
    with contextlib.closing(Source("log0", str(log))) as source:
        assert b"".join(source.chunks()) == text
        assert source.bytes_read == log.stat().st_size
        assert not source.truncated


def test_newlines_are_counted_in_any_part_of_a_file(log: Path) -> None:
    text = noise(60_000)
    log.write_bytes(text)
    with contextlib.closing(Source("log0", str(log))) as source:
        for start, end in ((0, 0), (0, len(text)), (17, 1_500_000), (1_048_570, 1_048_590)):
            assert source.newlines(start, end) == text.count(b"\n", start, end)


def test_large_json_logs_are_cleaned_all_the_way(log: Path) -> None:
    quiet = json.dumps({"log": "x" * 1000}).encode() + b"\n"
    messages = FORMS["docker json"]()
    log.write_bytes(quiet * (SMALL // 1000 + 1000) + messages)
    before = SMALL // 1000 + 1000
    assert evidence(report_of(log)) == [f"log0:{before + number}" for number in SAID]


def test_colours_inside_words_far_down_are_removed(log: Path) -> None:
    """A log of which only the end was coloured, behind more than is kept of it."""
    before = 200_000
    log.write_bytes(b"a quiet line of a log\n" * before + FORMS["colours inside words"]())
    assert evidence(report_of(log)) == [f"log0:{before + number}" for number in SAID]


@pytest.mark.parametrize("part", range(1, 8))
def test_a_colour_that_two_chunks_share_is_removed(part: int, log: Path) -> None:
    """The first chunk ends inside the colour's code, which stands inside an anchor."""
    colour = b"\x1b[1;32m"
    begin = b"[2026-01-02 03:04:05] L"
    first = b"[2026-01-02 03:04:05] Init torch distributed ends. mem usage=1.00 GB\n"
    lead = first.rjust(CHUNK - len(begin) - part, b".")
    log.write_bytes(lead + begin + colour + b"oad weight begin. avail mem=78.50 GB\n")
    assert evidence(report_of(log)) == ["log0:1", "log0:2"]


# --- pipes ------------------------------------------------------------


def capacity(*arguments: str, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    command = Path(sysconfig.get_path("scripts")) / "capacity"
    return subprocess.run(
        [sys.executable, command, *arguments], input=stdin, capture_output=True, check=False
    )


@pytest.mark.parametrize("form", ["plain", "gzip", "utf-16 le", "docker json"])
def test_a_log_on_stdin_gives_the_same_report(form: str) -> None:
    done = capacity("analyze", "-", "--format", "json", stdin=FORMS[form]())
    assert done.stderr == b""
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert [row["id"] for row in report["evidence"]] == [f"log0:{number}" for number in SAID]
    assert report["inputs"][0]["path"] == "-"


def test_an_empty_stdin_is_refused() -> None:
    done = capacity("analyze", "-", stdin=b"")
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.startswith(b"capacity: -: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_read_like_a_file(log: Path) -> None:
    """As `capacity analyze <(docker logs …)` gives: short reads, nothing read twice."""
    os.mkfifo(log)

    def write() -> None:
        with log.open("wb", buffering=0) as pipe:
            for line in [*[b"quiet\n"] * 1000, *PLAIN.splitlines(keepends=True)]:
                pipe.write(line)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        report = report_of(log)
    finally:
        writer.join()
    assert evidence(report) == [f"log0:{1000 + number}" for number in SAID]
