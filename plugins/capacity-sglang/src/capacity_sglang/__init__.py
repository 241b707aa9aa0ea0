"""SGLang's log lines: matchers, prefixes and the extractor of releases 0.2.15 to 0.5.23."""

from __future__ import annotations

from capacity_core.api import Matcher, Prefix, hookimpl
from capacity_core.api.extractors import Extractor
from capacity_sglang import (
    args,
    compressed,
    failures,
    graphs,
    host,
    limits,
    load,
    pools,
    post_capture,
    prefixes,
    states,
    weights,
)
from capacity_sglang.extractor import SglangExtractor


@hookimpl
def capacity_matchers() -> tuple[Matcher, ...]:
    topics = (
        args,
        weights,
        pools,
        states,
        compressed,
        host,
        post_capture,
        graphs,
        limits,
        load,
        failures,
    )
    return tuple(matcher for topic in topics for matcher in topic.MATCHERS)


@hookimpl
def capacity_prefixes() -> tuple[Prefix, ...]:
    return prefixes.PREFIXES


@hookimpl
def capacity_extractors() -> tuple[Extractor, ...]:
    return (SglangExtractor(),)
