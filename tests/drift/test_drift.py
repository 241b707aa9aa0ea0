"""What the engines' releases say of memory is recognised, or somebody decided that it need not be.

`make drift` runs this: it downloads the releases below and reads every message in their source. A
message that is neither matched nor excused is a wording that nobody has looked at. Excused are the
ids of references/log-patterns.md and what `excused.tsv` names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

from capacity_core.api.matchers import Matcher
from capacity_core.loader import load

from .releases import source
from .render import lines
from .source import Message, messages

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]

RELEASES = (
    ("sglang", "0.2.15"),
    ("sglang", "0.4.6.post5"),
    ("sglang", "0.5.5.post3"),
    ("sglang", "0.5.12"),
    ("sglang", "0.5.23"),
    ("vllm", "0.4.2"),
    ("vllm", "0.6.6.post1"),
    ("vllm", "0.8.5"),
    ("vllm", "0.11.0"),
    ("vllm", "0.20.0"),
    ("vllm", "0.33.0"),
)

OF_MEMORY = re.compile(
    r"\bmem\b|memory|\b[GM]i?B\b|(?<![a-z])GiB|kv.?cache|token usage|\bpools?\b|_pool\b|num_tokens"
    r"|\bOOM\b|cache.blocks|gpu.blocks|free blocks|graph.{0,3}captur|captur.{0,14}graph|cuda.?graph"
    r"|mem_fraction|max_running|max_num_seqs|available_|allocated|[Rr]unning: |#running-req",
    re.IGNORECASE,
)
"""Words of which every message about memory, its capacity or its load has one."""

ANY_ERROR = ("process.raised_error", "process.raised_exception", "process.traceback")
"""Matchers that read every error, whatever it says: that is no knowledge of a message."""


SIZE = re.compile(r"\b[GM]i?B\b|[GM]i?B/|(?<![a-z])GiB|out of memory|\bOOM\b", re.IGNORECASE)


class Excuse(NamedTuple):
    """Messages that no matcher reads on purpose: those of files, and of what they say.

    Without words, those of the files that print no size of memory.
    """

    file: str
    message: re.Pattern[str]
    why: str

    def covers(self, message: Message) -> bool:
        if not fnmatchcase(message.file, self.file):
            return False
        if not self.message.pattern:
            return not SIZE.search(message.text)
        return self.message.search(f"{message.how}: {message.text}") is not None


def excuses() -> Iterator[Excuse]:
    for row in (FOLDER / "excused.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        if row and not row.startswith("#"):
            file, message, why = row.split("\t")
            yield Excuse(file, re.compile(message, re.DOTALL), why)


EXCUSES = tuple(excuses())
USED: set[Excuse] = set()


def skeleton(line: str) -> str:
    """A line without its figures: the same for all lines of one wording."""
    return re.sub(r"[\d.,]*\d", "0", line).strip()


def excused_ids(framework: str) -> set[str]:
    """The skeletons of example lines whose ids the references list as not read."""
    page = (ROOT / "references" / "log-patterns.md").read_text(encoding="utf-8")
    section = page.partition("## What is not read, and why")[2].partition("\n## ")[0]
    cells = [row.split("|")[1] for row in section.splitlines() if row.startswith("|")]
    ids = [id.strip("` ") for cell in cells for id in cell.split(",")]
    table = ROOT / "plugins" / f"capacity-{framework}" / "tests" / "wordings.tsv"
    rows = [row.split("\t") for row in table.read_text(encoding="utf-8").splitlines()[1:]]
    return {
        skeleton(row[3].replace(r"\n", "\n"))
        for row in rows
        if any(fnmatchcase(row[0], id) for id in ids)
    }


def printed(message: Message, version: str) -> list[str]:
    """A message as lines; an exception with its class, as the end of a traceback has it."""
    error = message.how.startswith("raise ") and message.how.rpartition(".")[2].split()[-1]
    return [f"{error}: {line}" if error else line for line in lines(message.templates, version)]


def is_read(line: str, matchers: tuple[Matcher, ...]) -> bool:
    return any(m.find(part) for part in line.split("\n") for m in matchers)


@pytest.fixture(scope="module")
def matchers() -> dict[str, tuple[Matcher, ...]]:
    return {
        framework: tuple(
            matcher
            for matcher in load(only=[f"capacity-{framework}"], strict=True).matchers
            if matcher.name not in ANY_ERROR
        )
        for framework in ("sglang", "vllm")
    }


@pytest.mark.network
@pytest.mark.parametrize(("framework", "version"), RELEASES)
def test_every_message_about_memory_is_read_or_excused(
    framework: str,
    version: str,
    matchers: dict[str, tuple[Matcher, ...]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with source(framework, version) as root:
        seen = list(messages(root, framework))
    of_memory = [message for message in seen if OF_MEMORY.search(message.text)]
    listed = excused_ids(framework)
    matched = excused = 0
    left = []
    for message in of_memory:
        unread = [x for x in printed(message, version) if not is_read(x, matchers[framework])]
        found = [excuse for excuse in EXCUSES if excuse.covers(message)]
        if not unread:
            matched += 1
        elif found or all(skeleton(line) in listed for line in unread):
            excused += 1
            USED.update(found)
        else:
            left.append(f"{message.file}:{message.line} [{message.how}] {unread[0][:300]!r}")
    with capsys.disabled():
        print(
            f"\n{framework} {version}: {len(seen)} messages, {len(of_memory)} about memory: "
            f"{matched} matched, {excused} excused, {len(left)} left",
            flush=True,
        )
    assert left == [], "\n".join(left)


@pytest.mark.network
def test_every_excuse_is_used() -> None:
    """One that no release needs any more would hide the next wording alike."""
    assert [excuse for excuse in EXCUSES if excuse not in USED] == []
