"""Finds the anchors of all matchers in a block of bytes: Aho-Corasick, and a pure-Python twin for
where its wheel is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

GROUP_SIZE = 64
"""Patterns of one automaton. Beyond 64 the automaton loses its vector path and is several times
slower."""


class AnchorEngine(Protocol):
    """Both engines give the same lines and the same anchors."""

    def hits(self, block: bytes) -> list[int]:
        """Ascending positions of anchors: at least one in every line that holds any."""
        ...

    def anchors(self, line: bytes) -> set[bytes]:
        """Every anchor that occurs in a line."""
        ...


class AutomatonEngine:
    """Aho-Corasick automata of at most `GROUP_SIZE` sorted anchors (neighbours share their
    beginnings)."""

    def __init__(self, anchors: Iterable[bytes]) -> None:
        from ahocorasick_rs import (
            MATCHKIND_LEFTMOST_FIRST,
            MATCHKIND_STANDARD,
            BytesAhoCorasick,
        )

        self._anchors = sorted(set(anchors))
        groups = [
            self._anchors[at : at + GROUP_SIZE] for at in range(0, len(self._anchors), GROUP_SIZE)
        ]
        self._groups = [
            BytesAhoCorasick(group, matchkind=MATCHKIND_LEFTMOST_FIRST) for group in groups
        ]
        # Only this kind reports overlapping matches; it is slower, and sees single lines only.
        self._overlapping = BytesAhoCorasick(self._anchors, matchkind=MATCHKIND_STANDARD)

    def hits(self, block: bytes) -> list[int]:
        found = [
            start for group in self._groups for _, start, _ in group.find_matches_as_indexes(block)
        ]
        return sorted(found) if len(self._groups) > 1 else found

    def anchors(self, line: bytes) -> set[bytes]:
        matches = self._overlapping.find_matches_as_indexes(line, overlapping=True)
        return {self._anchors[index] for index, _, _ in matches}


class PythonEngine:
    """The same by `bytes.find`, one anchor after the other: some fifty megabytes in a second."""

    def __init__(self, anchors: Iterable[bytes]) -> None:
        self._anchors = sorted(set(anchors))

    def hits(self, block: bytes) -> list[int]:
        found = set()
        for anchor in self._anchors:
            at = block.find(anchor)
            while at >= 0:
                found.add(at)
                line_end = block.find(b"\n", at)
                at = block.find(anchor, line_end) if line_end >= 0 else -1
        return sorted(found)

    def anchors(self, line: bytes) -> set[bytes]:
        return {anchor for anchor in self._anchors if anchor in line}


def best_engine(anchors: Iterable[bytes]) -> AnchorEngine:
    """The automaton where its package is installed, else the pure-Python twin."""
    try:
        return AutomatonEngine(anchors)
    except ImportError:
        return PythonEngine(anchors)
