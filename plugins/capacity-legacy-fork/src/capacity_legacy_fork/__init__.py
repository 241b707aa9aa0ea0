"""Log lines that only private forks of SGLang print, on SGLang's own events: the model of a fork's plugin."""

from __future__ import annotations

from capacity_core.api import Matcher, hookimpl
from capacity_legacy_fork.wordings import MATCHERS


@hookimpl
def capacity_matchers() -> tuple[Matcher, ...]:
    return MATCHERS
