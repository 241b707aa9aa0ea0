"""Pools in host memory (hierarchical cache): decimal gigabytes, no part of the device's account."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.api.extractors import Sighting
from capacity_core.api.ledger import HostPool
from capacity_core.units import GIB, Gb, Tokens


@attrs.frozen(kw_only=True)
class HostPoolAllocated:
    """One pool of one rank in host memory."""

    size: Gb
    what: str | None = None
    tokens: Tokens | None = None


HOST_POOL = Matcher(
    name="sglang.host_pool",
    anchor=" GB host memory for ",
    pattern=(
        rf"Allocating (?P<size>{NUMBER}) GB host memory for (?P<what>[\w '\-]{{1,60}}?)"
        r"(?= ?[.(,]|\s*$)"
    ),
    event=HostPoolAllocated,
    means='A pool in host memory, of every rank; "GB" is 10^9 bytes.',
    seen_in="0.4.3.post4 … 0.5.23",
    samples=(
        Sample(
            "Allocating 12.50 GB host memory for hierarchical KV cache.",
            HostPoolAllocated(size=Gb("12.50"), what="hierarchical KV cache"),
        ),
        Sample(
            "Allocating 2.25 GB host memory for V4 paged pool 'c4' (layers=3, pages=9,",
            HostPoolAllocated(size=Gb("2.25"), what="V4 paged pool 'c4'"),
        ),
    ),
)

HOST_POOL_TOKENS = Matcher(
    name="sglang.host_pool_tokens",
    anchor=" hierarchical KV host pool: ",
    pattern=(
        rf"Allocating (?P<what>\w+ hierarchical KV) host pool: (?P<tokens>\d+) tokens, "
        rf"(?P<size>{NUMBER}) GB host memory"
    ),
    event=HostPoolAllocated,
    means="The same with its tokens.",
    seen_in="0.5.18 … 0.5.23",
    samples=(
        Sample(
            "Allocating target hierarchical KV host pool: 4096 tokens, 2.25 GB host memory.",
            HostPoolAllocated(size=Gb("2.25"), what="target hierarchical KV", tokens=4096),
        ),
    ),
)

MATCHERS = (HOST_POOL, HOST_POOL_TOKENS)


def host_pools(sightings: Iterable[Sighting[Any]]) -> Iterator[HostPool]:
    """What a rank allocated in host memory (GiB)."""
    for sighting in sightings:
        yield HostPool(
            label=sighting.event.what or "host pool",
            size=sighting.value("size").to(GIB),
            tokens=sighting.value("tokens") if sighting.event.tokens is not None else None,
        )
