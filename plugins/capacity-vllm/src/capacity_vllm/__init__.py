"""vLLM's log lines: matchers, prefixes and the extractor of both engines, releases 0.2.7
to 0.33."""

from __future__ import annotations

from capacity_core.api import Matcher, Prefix, hookimpl
from capacity_core.api.extractors import Extractor
from capacity_vllm import (
    args,
    blocks,
    failures,
    graphs,
    limits,
    load,
    pools,
    prefixes,
    usage,
    weights,
)
from capacity_vllm.extractor import VllmExtractor


@hookimpl
def capacity_matchers() -> tuple[Matcher, ...]:
    topics = (args, weights, pools, blocks, usage, graphs, limits, load, failures)
    return tuple(matcher for topic in topics for matcher in topic.MATCHERS)


@hookimpl
def capacity_prefixes() -> tuple[Prefix, ...]:
    return prefixes.PREFIXES


@hookimpl
def capacity_extractors() -> tuple[Extractor, ...]:
    return (VllmExtractor(),)
