"""The fork's wordings give SGLang's events, beside SGLang's own wordings."""

from __future__ import annotations

import capacity_legacy_fork
import capacity_sglang
from capacity_core.testing.checks import check_matchers


def test_samples_mean_what_they_say_beside_the_releases_wordings() -> None:
    fork = capacity_legacy_fork.capacity_matchers()
    check_matchers((*fork, *capacity_sglang.capacity_matchers()))
    assert all(len(matcher.samples) == 2 for matcher in fork)


def test_events_are_those_that_sglangs_extractor_knows() -> None:
    (extractor,) = capacity_sglang.capacity_extractors()
    assert {m.event for m in capacity_legacy_fork.capacity_matchers()} <= set(extractor.events)
