"""Samples of every wording, as the releases print them, give the events they mean."""

from __future__ import annotations

import capacity_vllm
from capacity_core.testing.checks import check_matchers, check_prefixes


def test_samples_mean_what_they_say_and_no_two_matchers_overlap() -> None:
    check_matchers(capacity_vllm.capacity_matchers())


def test_prefixes_match_their_samples() -> None:
    check_prefixes(capacity_vllm.capacity_prefixes())


def test_every_matcher_says_what_it_means() -> None:
    assert [m.name for m in capacity_vllm.capacity_matchers() if not m.means] == []
