"""Log lines that only private forks of SGLang print, on SGLang's own events.

It is the model of a private fork's plugin: matchers, and nothing else.
"""

from __future__ import annotations

from capacity_core.api import Matcher, hookimpl
from capacity_legacy_fork.wordings import MATCHERS


@hookimpl
def capacity_matchers() -> tuple[Matcher, ...]:
    return MATCHERS
