"""What holds for every log, however its bytes come: same messages, same lines, bounded memory."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from capacity_core.analysis import Options, analyse
from capacity_core.api.extractors import Sighting
from capacity_core.api.matchers import Matcher, Sample
from capacity_core.api.prefixes import Prefix
from capacity_core.errors import CapacityError
from capacity_core.loader import Plugins, load
from capacity_core.reading import scan, sources
from capacity_core.reading.anchors import GROUP_SIZE, AutomatonEngine, PythonEngine
from capacity_core.reading.scan import Scanner
from capacity_core.reading.sources import Source
from capacity_core.units import Tokens

PLUGINS = load()
ANCHORS = sorted({matcher.anchor for matcher in PLUGINS.matchers})
SAMPLES = sorted({sample.text for m in PLUGINS.matchers for sample in m.samples})

quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@attrs.frozen
class Ready:
    tokens: Tokens
    label: str | None = None


READY = Matcher(
    name="acme.ready",
    anchor="pool ready:",
    pattern=r"(?:(?P<label>Full|Half) )?pool ready: (?P<tokens>\d+) tokens",
    event=Ready,
    samples=(Sample("pool ready: 5 tokens", Ready(5)),),
)
GPU = Prefix(name="acme.gpu", framework="acme", pattern=r"<gpu (?P<tp>\d+)>")


def acme() -> Scanner:
    return Scanner([READY], [GPU], {Ready: "acme"})


# --- logs -------------------------------------------------------------

pieces = st.one_of(
    st.sampled_from(ANCHORS),
    st.sampled_from(SAMPLES),
    st.sampled_from(ANCHORS).flatmap(
        lambda anchor: st.integers(1, len(anchor) - 1).map(lambda at: anchor[:at])
    ),
    st.sampled_from(ANCHORS).flatmap(
        lambda anchor: st.integers(1, len(anchor) - 1).map(lambda at: anchor[at:])
    ),
    st.text(max_size=12),
    st.sampled_from(["\n", "\n", "\r", "\r\n", " ", "\x1b[1;36m", "\x1b[0;0m", "[03:04:05 TP3] "]),
)
logs = st.lists(pieces, max_size=30).map(lambda parts: "".join(parts).encode("utf-8", "replace"))

ready_lines = st.lists(
    st.one_of(
        st.just(""),
        st.just("nothing to see"),
        st.just("pool ready"),
        st.builds("<gpu {}> pool ready: {} tokens".format, st.integers(0, 9), st.integers(0, 999)),
        st.builds("Full pool ready: {} tokens".format, st.integers(0, 999)),
        st.builds(
            "  0%|  |\r 50%|▏ |\r<gpu 3> pool ready: {} tokens\rpool ready: {} tokens".format,
            st.integers(0, 999),
            st.integers(0, 999),
        ),
    ),
    max_size=25,
)


def naive(lines: list[str]) -> list[tuple[str, int]]:
    """(line, tokens) of every message, by reading line after line."""
    return [
        (f"log0:{number}", int(tokens))
        for number, line in enumerate(lines, 1)
        for tokens in re.findall(r"pool ready: (\d+) tokens", line)
    ]


def sightings(path: Path, scanner: Scanner | None = None) -> list[Sighting[Any]]:
    source = Source("log0", str(path))
    with contextlib.closing(source):
        return list((scanner or acme()).scan(source))


def lines_and_tokens(path: Path) -> list[tuple[str, int]]:
    return [(sighting.line, sighting.event.tokens) for sighting in sightings(path)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "server.log"


@pytest.fixture
def chunked(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda size: monkeypatch.setattr(sources, "CHUNK", size)


# --- engines ----------------------------------------------------------


@quick
@given(block=logs, anchors=st.lists(st.sampled_from(ANCHORS), min_size=1) | st.just(ANCHORS))
def test_both_engines_find_the_same_lines_and_anchors(block: bytes, anchors: list[str]) -> None:
    wanted = [anchor.encode() for anchor in anchors]
    engines = (AutomatonEngine(wanted), PythonEngine(wanted))
    lines = block.split(b"\n")
    expected = [n for n, line in enumerate(lines) if any(anchor in line for anchor in wanted)]
    for engine in engines:
        hits = engine.hits(block)
        assert hits == sorted(hits)
        assert sorted({block.count(b"\n", 0, hit) for hit in hits}) == expected
        for line in lines:
            assert engine.anchors(line) == {anchor for anchor in wanted if anchor in line}


def test_more_anchors_than_one_automaton_takes_are_all_found() -> None:
    wanted = [f"anchor{number:03d}".encode() for number in range(2 * GROUP_SIZE + 1)]
    block = b"".join(b"x %s y\n" % anchor for anchor in wanted)
    for engine in (AutomatonEngine(wanted), PythonEngine(wanted)):
        assert {block.count(b"\n", 0, hit) for hit in engine.hits(block)} == set(range(len(wanted)))


@quick
@given(content=logs.filter(bool))
def test_both_engines_give_the_same_sightings(content: bytes, log: Path) -> None:
    log.write_bytes(content)
    owners = {event: e.framework for e in PLUGINS.extractors for event in e.events}
    anchors = [anchor.encode() for anchor in ANCHORS]
    automaton, python = (
        sightings(log, Scanner(PLUGINS.matchers, PLUGINS.prefixes, owners, engine(anchors)))
        for engine in (AutomatonEngine, PythonEngine)
    )
    assert automaton == python


# --- boundaries -------------------------------------------------------


@quick
@given(lines=ready_lines.filter(any), sizes=st.lists(st.integers(1, 300), min_size=1, max_size=3))
def test_chunk_sizes_change_nothing(
    lines: list[str], sizes: list[int], log: Path, chunked: Callable[[int], None]
) -> None:
    log.write_bytes("\n".join(lines).encode())
    chunked(1 << 18)
    whole = sightings(log)
    for size in (1, *sizes):
        chunked(size)
        assert sightings(log) == whole


@quick
@given(
    lines=ready_lines.filter(any),
    colours=st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from(["\x1b[36m", "\x1b[0m"])), max_size=6
    ),
    size=st.integers(1, 300),
)
@example(lines=["<gpu 0> pool ready: 0 tokens"], colours=[(4, "\x1b[36m")], size=1)
@example(lines=["<gpu 0> pool ready: 0 tokens"], colours=[(1, "\x1b[36m")] * 2, size=1)
@example(lines=["<gpu 0> pool ready: 0 tokens"], colours=[(5, "\x1b[36m")] * 2, size=1)
def test_colours_anywhere_hide_nothing_whatever_the_chunks(
    lines: list[str],
    colours: list[tuple[int, str]],
    size: int,
    log: Path,
    chunked: Callable[[int], None],
) -> None:
    lines = ["pool ready: 1 tokens", *lines]  # no log that yields nothing, which is read twice
    content = "\n".join(lines)
    for at, code in sorted(colours, reverse=True):
        content = content[:at] + code + content[at:]
    log.write_bytes(content.encode())
    chunked(size)
    assert lines_and_tokens(log) == naive(lines)


@quick
@given(content=logs.filter(bool), size=st.integers(1, 200))
def test_chunk_sizes_change_nothing_for_the_real_matchers(
    content: bytes, size: int, log: Path
) -> None:
    log.write_bytes(content)
    owners = {event: e.framework for e in PLUGINS.extractors for event in e.events}
    found = []
    for step in (len(content), size, 1):
        scanner = Scanner(PLUGINS.matchers, PLUGINS.prefixes, owners)
        parts = iter([content[at : at + step] for at in range(0, len(content), step)])
        with contextlib.closing(Source("log0", str(log))) as source:
            found.append(list(scanner._scan(source, parts)))
    assert found[1] == found[0]
    assert found[2] == found[0]


@quick
@given(sizes=st.lists(st.integers(1, 50), max_size=20), content=logs)
def test_blocks_are_whole_lines_and_lose_no_byte(sizes: list[int], content: bytes) -> None:
    chunks, at = [], 0
    for size in sizes:
        chunks.append(content[at : at + size])
        at += size
    chunks.append(content[at:])
    blocks = list(scan._blocks(iter(chunks)))
    assert b"".join(block.data for block in blocks) == content
    assert all(block.data.endswith(b"\n") for block in blocks[:-1])
    for block in blocks:
        assert content[block.offset : block.offset + len(block.data)] == block.data


@settings(quick, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking is slow here
@given(
    gaps=st.lists(st.integers(0, 900), min_size=8, max_size=40),
    texts=st.lists(
        st.sampled_from(
            ["<gpu 1> pool ready: 11 tokens", "<gpu 2> Full pool ready: 22 tokens", "▏pool ready:"]
        ),
        min_size=1,
        max_size=6,
    ),
    glue=st.sampled_from(["\r", " ", "\x1b[1;36m", "▏"]),
)
def test_an_overlong_line_in_pieces_means_what_it_means_whole(
    gaps: list[int],
    texts: list[str],
    glue: str,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    chunked: Callable[[int], None],
) -> None:
    """The pieces overlap by more than any message here is long, so none may be lost, told twice, or
    told otherwise."""
    line = "".join("." * gap + glue + texts[n % len(texts)] for n, gap in enumerate(gaps))
    log.write_text(f"first\n{line}\nlast")
    monkeypatch.setattr(scan, "LINE_CAP", 1 << 20)
    chunked(1 << 18)
    whole = [(s.line, s.event, s.speaker) for s in sightings(log)]
    monkeypatch.setattr(scan, "LINE_CAP", 1024)
    monkeypatch.setattr(scan, "OVERLAP", 512)
    chunked(256)
    assert [(s.line, s.event, s.speaker) for s in sightings(log)] == whole


@pytest.mark.parametrize("before_cut", range(0, 40, 3))
def test_a_message_at_the_cut_of_an_overlong_line_is_told_once_with_its_speaker(
    before_cut: int, log: Path, monkeypatch: pytest.MonkeyPatch, chunked: Callable[[int], None]
) -> None:
    """The prefix, the optional word and the anchor stand on either side of the cut in turn."""
    monkeypatch.setattr(scan, "LINE_CAP", 1024)
    monkeypatch.setattr(scan, "OVERLAP", 512)
    chunked(2048)
    message = "<gpu 1> Full pool ready: 11 tokens"
    cut = 2048 - 512
    log.write_text(("." * (cut - before_cut) + message).ljust(4096, "."))
    (sighting,) = sightings(log)
    assert sighting.event == Ready(11, label="Full")
    assert sighting.speaker.tp == 1


# --- line numbers -----------------------------------------------------


def as_plain(lines: list[str]) -> bytes:
    return "\n".join(lines).encode() + b"\n"


def as_unfinished(lines: list[str]) -> bytes:
    return "\n".join(lines).encode()


def as_crlf(lines: list[str]) -> bytes:
    return "\r\n".join(lines).encode() + b"\r\n"


def as_gzip(lines: list[str]) -> bytes:
    return gzip.compress(as_plain(lines))


def as_two_gzips(lines: list[str]) -> bytes:
    """Rotated logs put together: one gzip member behind the other."""
    middle = len(lines) // 2
    head = as_plain(lines[:middle]) if middle else b""
    return gzip.compress(head) + gzip.compress(as_plain(lines[middle:]))


def as_utf16(lines: list[str]) -> bytes:
    return "\n".join(lines).encode("utf-16")


def as_utf16_be_crlf(lines: list[str]) -> bytes:
    return b"\xfe\xff" + "\r\n".join(lines).encode("utf-16-be")


def as_json(lines: list[str]) -> bytes:
    return "\n".join(json.dumps({"time": "t", "log": f"{line}\n"}) for line in lines).encode()


FORMS = (
    as_plain,
    as_unfinished,
    as_crlf,
    as_gzip,
    as_two_gzips,
    as_utf16,
    as_utf16_be_crlf,
    as_json,
)


@pytest.mark.parametrize("form", FORMS)
@quick
@given(lines=ready_lines.filter(any), size=st.sampled_from([7, 64, 1 << 18]))
def test_line_numbers_are_those_of_a_naive_reader(
    form: Callable[[list[str]], bytes],
    lines: list[str],
    size: int,
    log: Path,
    chunked: Callable[[int], None],
) -> None:
    log.write_bytes(form(lines))
    chunked(size)
    assert lines_and_tokens(log) == naive(lines)


@pytest.mark.parametrize("form", [as_plain, as_gzip])
@quick
@given(gaps=st.lists(st.integers(0, 3000), min_size=1, max_size=8))
def test_line_numbers_hold_across_blocks_that_say_nothing(
    form: Callable[[list[str]], bytes], gaps: list[int], log: Path, chunked: Callable[[int], None]
) -> None:
    """Skipped blocks of a plain file are counted later, from the file itself."""
    lines: list[str] = []
    for gap in gaps:
        lines += ["a quiet line"] * gap + [f"pool ready: {gap} tokens"]
    log.write_bytes(form(lines))
    chunked(1000)
    assert lines_and_tokens(log) == naive(lines)


# --- whole analyses ---------------------------------------------------


def read(path: Path, plugins: Plugins = PLUGINS) -> dict[str, str]:
    """The report of a log in every format, by format."""
    report = analyse([str(path)], Options(), plugins)
    return {renderer.name: renderer.render(report) for renderer in plugins.renderers}


def survives(content: bytes, log: Path) -> None:
    log.write_bytes(content)
    with contextlib.suppress(CapacityError):
        read(log)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe", id="bom only"),
        pytest.param(b"\xff\xfe\x00", id="bom and a half"),
        pytest.param(b"\x1f\x8b", id="gzip mark only"),
        pytest.param(b"\x1f\x8b\x08\x00", id="gzip header cut"),
        pytest.param(gzip.compress(b"x")[:-9], id="gzip cut"),
        pytest.param(gzip.compress(b"x")[:-4] + b"oops", id="gzip checksum wrong"),
        pytest.param(gzip.compress(b"x") + b"rubbish", id="gzip and rubbish"),
        pytest.param(b"\0" * 5000, id="nul"),
        pytest.param(b'{"log": "\\ud800"}', id="json lone surrogate"),
        pytest.param(b'{"log":' + b"[" * 100_000, id="json nested deep"),
        pytest.param(b'{"log": ' + b"9" * 5000 + b"}", id="json huge number"),
        pytest.param(b"{" * 3000, id="braces"),
    ],
)
def test_hostile_bytes_give_a_report_or_a_capacity_error(content: bytes, log: Path) -> None:
    survives(content, log)


@settings(quick, max_examples=80)
@given(content=st.binary(max_size=400) | logs)
def test_any_bytes_give_a_report_or_a_capacity_error(content: bytes, log: Path) -> None:
    survives(content, log)


@settings(quick, max_examples=80)
@given(
    texts=st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=8),
    odd=st.sampled_from(
        ["0", "-1", "9" * 60, "9" * 4000, "0.0", "1,2,3", "1e9", "-0.00", "٣", "", "None", "nan"]
    ),
    where=st.integers(0, 30),
)
@example(texts=["Available KV cache memory: -1.43 GiB"], odd="9" * 60, where=0)
def test_any_numbers_in_real_messages_give_a_report_or_a_capacity_error(
    texts: list[str], odd: str, where: int, log: Path
) -> None:
    """Numbers of the samples, replaced by odd ones."""
    content = "\n".join(texts)
    numbers = list(re.finditer(r"\d[\d.,]*\d|\d", content))
    if numbers:
        number = numbers[where % len(numbers)]
        content = content[: number.start()] + odd + content[number.end() :]
    survives(content.encode(), log)


START = [
    "[2026-01-02 03:04:05] server_args=ServerArgs(model_path='/m', tp_size=2, dp_size=1, x=1)",
    *(
        f"[2026-01-02 03:04:05 TP{rank}] {message}"
        for message in (
            "Load weight begin. avail mem=78.50 GB",
            "Load weight end. elapsed=41.20 s, type=Acme, dtype=torch.bfloat16, "
            "avail mem=60.99 GB, mem usage=17.51 GB.",
            "KV Cache is allocated. #tokens: 1327104, K size: 25.31 GB, V size: 25.31 GB",
            "Memory pool end. avail mem=10.30 GB",
            "max_total_num_tokens=1327104, chunked_prefill_size=8192, max_prefill_tokens=16384, "
            "max_running_requests=2048, context_len=131072, available_gpu_mem=8.78 GB",
        )
        for rank in range(2)
    ),
    "[2026-01-02 03:04:09] The server is fired up and ready to roll!",
]
"""One start of a server on two ranks."""

noise = st.one_of(
    st.just("[2026-01-02 03:04:06 TP0] Ignore import error when loading a module of no interest"),
    st.just('INFO:     10.0.0.1:999 - "POST /v1/chat/completions HTTP/1.1" 200 OK'),
    st.just("  0%|          | 0/52 [00:00<?, ?it/s]\r  2%|▏ | 1/52 [00:01<?, ?it/s]"),
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=30),
).filter(lambda line: not any(anchor in line for anchor in ANCHORS))


def told(path: Path, numbers: dict[int, int] | None = None) -> Any:
    """The report as JSON without the input's size; its line numbers as `numbers` maps them."""
    text = read(path)["json"]
    if numbers is not None:
        text = re.sub(r"log0:(\d+)", lambda line: f"log0:{numbers[int(line[1])]}", text)
    report = json.loads(text)
    del report["inputs"]
    return report


@settings(quick, max_examples=25)
@given(gaps=st.lists(st.lists(noise, max_size=3), min_size=len(START), max_size=len(START)))
def test_unrelated_lines_between_change_nothing(gaps: list[list[str]], log: Path) -> None:
    log.write_text("\n".join(START))
    quiet = told(log)
    lines: list[str] = []
    numbers: dict[int, int] = {}
    for number, (before, line) in enumerate(zip(gaps, START, strict=True), 1):
        lines += [*before, line]
        numbers[len(lines)] = number
    log.write_bytes("\n".join(lines).encode())
    assert told(log, numbers) == quiet


def test_every_message_is_evidence_once(log: Path) -> None:
    """No message of the log is told twice, whatever the blocks are."""
    log.write_text("\n".join(START))
    lines = [row["id"] for row in told(log)["evidence"]]
    assert sorted(lines, key=lambda line: int(line[5:])) == [
        f"log0:{number}" for number in range(1, len(START) + 1)
    ]


# --- memory and time --------------------------------------------------


@pytest.mark.parametrize("form", [bytes, gzip.compress])
def test_an_anchor_deep_in_one_long_line_is_found_in_bounded_memory(
    form: Callable[[bytes], bytes], log: Path
) -> None:
    """A line of 24 MB and one of 3 MB cost the same: a piece, its overlap, its text, and the head
    of the log that is kept."""
    peaks = {}
    for megabytes in (3, 24):
        half = b"." * (megabytes * 500_000)
        log.write_bytes(form(b"first\n" + half + b"<gpu 3> pool ready: 77 tokens" + half))
        del half
        tracemalloc.start()
        try:
            (sighting,) = sightings(log)
            peaks[megabytes] = tracemalloc.get_traced_memory()[1] / 1e6
        finally:
            tracemalloc.stop()
        assert (sighting.line, sighting.event, sighting.speaker.tp) == ("log0:2", Ready(77), 3)
        assert len(sighting.text) <= scan.TEXT_KEPT
    assert max(peaks.values()) < 16


def test_a_long_line_without_an_anchor_is_read_in_bounded_memory(log: Path) -> None:
    log.write_bytes(b"." * 24_000_000)
    tracemalloc.start()
    try:
        assert sightings(log) == []
        assert tracemalloc.get_traced_memory()[1] < 16e6
    finally:
        tracemalloc.stop()
