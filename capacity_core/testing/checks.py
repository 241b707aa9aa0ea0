"""Checks that a plugin's own tests call: samples mean what they say, and nothing overlaps."""

from __future__ import annotations

from collections.abc import Iterable

from capacity_core.api.matchers import Matcher
from capacity_core.api.prefixes import Prefix
from capacity_core.reading.scan import Scanner


def check_matchers(matchers: Iterable[Matcher]) -> None:
    """Every sample gives its event, no near miss matches, and no two matchers read the same text.

    Raises AssertionError with every problem, one a line. Give all matchers that are used together.
    """
    matchers = tuple(matchers)
    problems = [problem for matcher in matchers for problem in matcher.problems()]
    problems += [problem for matcher in matchers for problem in matcher.sample_problems()]
    scanner = Scanner(matchers, (), {})
    for matcher in matchers:
        for sample in matcher.samples:
            scanner.matches(sample.text, matcher.name)
    problems += [
        f"{c.used} and {c.dropped} overlap on a sample of {c.line}" for c in scanner.clashes
    ]
    if problems:
        raise AssertionError("\n".join(problems))


def check_prefixes(prefixes: Iterable[Prefix]) -> None:
    """Every prefix matches its samples and names known coordinates. Raises AssertionError if
    not."""
    problems = [problem for prefix in prefixes for problem in prefix.problems()]
    if problems:
        raise AssertionError("\n".join(problems))
