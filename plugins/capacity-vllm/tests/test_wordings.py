"""Every message about memory of the releases is recognised, or the references say why it is not.

`wordings.tsv` holds one example line for each wording, with the first and the last release that
prints it; `tests/drift/render.py` made it from the releases' source.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from capacity_core.api.matchers import Matcher
from capacity_core.api.versions import release_key
from capacity_core.loader import load
from capacity_core.reading.scan import Scanner

TABLE = Path(__file__).with_name("wordings.tsv")
PLUGINS = Path(__file__).parents[2]
PAGE = PLUGINS.parent / "references" / "log-patterns.md"
SECTION = "## What is not read, and why"

ANY_ERROR = ("process.raised_error", "process.raised_exception", "process.traceback")
"""Matchers that read every error, whatever it says: that is no knowledge of a message."""

MATCHERS = tuple(
    matcher
    for matcher in load(only=["capacity-vllm"], strict=True).matchers
    if matcher.name not in ANY_ERROR
)
"""This framework's own, and what any process prints."""


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


WORDINGS = wordings(TABLE)
RELEASES = sorted({r for w in WORDINGS for r in (w.first, w.last)}, key=release_key)
"""The releases whose source was read: the wordings' ends lie on them."""


def readers(wording: Wording) -> list[Matcher]:
    """The matchers that recognise a wording in one of its lines."""
    return [m for m in MATCHERS if any(m.find(message) for message in wording.messages)]


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


def releases(first: str, last: str) -> list[str]:
    low, high = release_key(first), release_key(last)
    return [release for release in RELEASES if low <= release_key(release) <= high]


def stated(matcher: Matcher) -> list[str]:
    """The releases that a matcher says it is of; all when it says none."""
    first, _, last = (part.strip() for part in matcher.seen_in.partition("…"))
    return releases(first, last) if last else RELEASES


def test_every_wording_is_recognised_or_excused() -> None:
    unread = [f"{w.id}: {w.line}" for w in WORDINGS if not readers(w) and not excused(w.id)]
    assert unread == [], "\n".join(unread)


def test_what_is_excused_exists_and_is_not_read() -> None:
    known = {w.id for table in PLUGINS.glob("*/tests/wordings.tsv") for w in wordings(table)}
    unknown = [e for e in EXCUSES if not any(fnmatchcase(id, e) for id in known)]
    assert unknown == []
    read = {w.id: readers(w)[0].name for w in WORDINGS if excused(w.id) and readers(w)}
    assert read == {}


def test_matchers_state_the_releases_that_print_what_they_read() -> None:
    """`seen_in` narrows an unknown release: one that is too narrow names a wrong one."""
    wrong = []
    for wording in WORDINGS:
        found = readers(wording)
        covered = {release for matcher in found for release in stated(matcher)}
        missing = [r for r in releases(wording.first, wording.last) if r not in covered]
        if found and missing:
            says = ", ".join(f"{matcher.name} ({matcher.seen_in})" for matcher in found)
            wrong.append(f"{wording.id}: {wording.first} … {wording.last}, but {says}")
    assert wrong == [], "\n".join(wrong)


def test_no_wording_is_read_twice() -> None:
    scanner = Scanner(MATCHERS, (), {})
    for wording in WORDINGS:
        for message in wording.messages:
            scanner.matches(message, wording.id)
    clashes = sorted({f"{c.line}: {c.used} and {c.dropped}" for c in scanner.clashes})
    assert clashes == [], "\n".join(clashes)


def test_the_table_is_one_of_wordings() -> None:
    assert len(WORDINGS) > 100
    assert all(w.line and release_key(w.first) <= release_key(w.last) for w in WORDINGS)
