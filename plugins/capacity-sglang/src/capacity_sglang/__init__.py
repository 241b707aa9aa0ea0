"""SGLang's log lines: matchers, prefixes and the extractor of releases 0.4.6 to 0.5.23."""

from __future__ import annotations

from capacity_core.api import Matcher, Prefix, hookimpl
from capacity_core.api.extractors import Extractor
from capacity_sglang import args, failures, graphs, limits, pools, prefixes, weights
from capacity_sglang.extractor import SglangExtractor


@hookimpl
def capacity_matchers() -> tuple[Matcher, ...]:
    topics = (args, weights, pools, graphs, limits, failures)
    return tuple(matcher for topic in topics for matcher in topic.MATCHERS)


@hookimpl
def capacity_prefixes() -> tuple[Prefix, ...]:
    return prefixes.PREFIXES


@hookimpl
def capacity_extractors() -> tuple[Extractor, ...]:
    return (SglangExtractor(),)
