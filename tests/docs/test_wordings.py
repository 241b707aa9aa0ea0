"""Every message about memory of the releases is recognised, or the references say why it is not.

`plugins/*/tests/wordings.tsv` hold one example line for each wording, with the first and the last
release that prints it; `tests/drift/render.py` made them from the releases' source.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from capacity_core.api.matchers import Matcher
from capacity_core.api.versions import release_key
from capacity_core.loader import load
from capacity_core.reading.scan import Scanner

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "references" / "log-patterns.md"
SECTION = "## What is not read, and why"

ANY_ERROR = ("process.raised_error", "process.raised_exception", "process.traceback")
"""Matchers that read every error, whatever it says: that is no knowledge of a message."""


class Wording(NamedTuple):
    """A line as releases `first` to `last` print it."""

    id: str
    first: str
    last: str
    line: str

    @property
    def messages(self) -> list[str]:
        """Its physical lines."""
        return self.line.replace(r"\n", "\n").replace(r"\\", "\\").split("\n")


def wordings(table: Path) -> tuple[Wording, ...]:
    rows = table.read_text(encoding="utf-8").splitlines()[1:]
    return tuple(Wording(*row.split("\t")) for row in rows)


TABLES = {
    table.parents[1].name: wordings(table)
    for table in sorted(ROOT.glob("plugins/*/tests/wordings.tsv"))
}
"""The wordings of each plugin's framework."""

each_plugin = pytest.mark.parametrize("plugin", TABLES)


@cache
def matchers_of(plugin: str) -> tuple[Matcher, ...]:
    """This framework's own, and what any process prints."""
    loaded = load(only=[plugin], strict=True).matchers
    return tuple(matcher for matcher in loaded if matcher.name not in ANY_ERROR)


def readers(plugin: str, wording: Wording) -> list[Matcher]:
    """The matchers that recognise a wording in one of its lines."""
    return [m for m in matchers_of(plugin) if any(m.find(text) for text in wording.messages)]


def excuses() -> Iterator[str]:
    """The ids, which may be patterns such as `v1.autofit.*`, of the references' table."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition(SECTION)
    for row in section.partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
        if row.startswith("|") and cells[0] != "id" and cells[0].strip("-: "):
            yield from (id.strip("` ") for id in cells[0].split(","))


EXCUSES = tuple(excuses())


def excused(id: str) -> bool:
    return any(fnmatchcase(id, excuse) for excuse in EXCUSES)


def releases_of(plugin: str) -> list[str]:
    """The releases whose source was read: the wordings' ends lie on them."""
    ends = {release for w in TABLES[plugin] for release in (w.first, w.last)}
    return sorted(ends, key=release_key)


def between(releases: list[str], first: str, last: str) -> list[str]:
    low, high = release_key(first), release_key(last)
    return [release for release in releases if low <= release_key(release) <= high]


def stated(matcher: Matcher, releases: list[str]) -> list[str]:
    """The releases that a matcher says it is of; all when it says none."""
    first, _, last = (part.strip() for part in matcher.seen_in.partition("…"))
    return between(releases, first, last) if last else releases


@each_plugin
def test_every_wording_is_recognised_or_excused(plugin: str) -> None:
    unread = [
        f"{w.id}: {w.line}" for w in TABLES[plugin] if not readers(plugin, w) and not excused(w.id)
    ]
    assert unread == [], "\n".join(unread)


def test_what_is_excused_exists() -> None:
    known = {w.id for table in TABLES.values() for w in table}
    unknown = [e for e in EXCUSES if not any(fnmatchcase(id, e) for id in known)]
    assert unknown == []


@each_plugin
def test_what_is_excused_is_not_read(plugin: str) -> None:
    excuses = [w for w in TABLES[plugin] if excused(w.id)]
    read = {w.id: found[0].name for w in excuses if (found := readers(plugin, w))}
    assert read == {}


@each_plugin
def test_matchers_state_the_releases_that_print_what_they_read(plugin: str) -> None:
    """`seen_in` narrows an unknown release: one that is too narrow names a wrong one."""
    wrong = []
    releases = releases_of(plugin)
    for wording in TABLES[plugin]:
        found = readers(plugin, wording)
        covered = {release for matcher in found for release in stated(matcher, releases)}
        missing = [r for r in between(releases, wording.first, wording.last) if r not in covered]
        if found and missing:
            says = ", ".join(f"{matcher.name} ({matcher.seen_in})" for matcher in found)
            wrong.append(f"{wording.id}: {wording.first} … {wording.last}, but {says}")
    assert wrong == [], "\n".join(wrong)


@each_plugin
def test_no_wording_is_read_twice(plugin: str) -> None:
    scanner = Scanner(matchers_of(plugin), (), {})
    for wording in TABLES[plugin]:
        for message in wording.messages:
            scanner.matches(message, wording.id)
    clashes = sorted({f"{c.line}: {c.used} and {c.dropped}" for c in scanner.clashes})
    assert clashes == [], "\n".join(clashes)


@each_plugin
def test_the_table_is_one_of_wordings(plugin: str) -> None:
    table = TABLES[plugin]
    assert len(table) > 100
    assert all(w.line and release_key(w.first) <= release_key(w.last) for w in table)


def test_there_is_a_table_of_every_engine() -> None:
    assert list(TABLES) == ["capacity-sglang", "capacity-vllm"]
