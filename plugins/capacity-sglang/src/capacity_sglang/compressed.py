"""Compressed (DSV4) pools: budget and divisor as printed, slots, and which rule sized them."""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api import INTEGER, NUMBER, Matcher, Sample
from capacity_core.units import BytesPerToken, Gib, Requests, Slots, Tokens


@attrs.frozen(kw_only=True)
class CompressedBudget:
    """The sizing of compressed (DSV4) pools.

    `bytes_per_full_token` is comparable neither between releases nor between sizing modes.
    """

    bytes_per_full_token: BytesPerToken
    budget: Gib
    full_tokens: Tokens
    unified: bool | None = None


@attrs.frozen(kw_only=True)
class CompressedPools:
    """Slots of the compressed pools; printed again when a cap lowers them, the last one holds."""

    full: Tokens
    swa: Tokens
    c4: Slots
    c128: Slots


@attrs.frozen(kw_only=True)
class CompressedSizing:
    """Which rule sized the sliding-window share: `ratio` includes it in bytes_per_full_token, `cap`
    does not."""

    mode: str


@attrs.frozen(kw_only=True)
class CompressedBuilt:
    """The compressed pools as they were built, in slots; printed again for a draft model."""

    max_requests: Requests
    swa: Tokens
    c4: Slots
    c128: Slots


@attrs.frozen(kw_only=True)
class WindowRing:
    """Tokens of the sliding-window rings, which replace the paged figure."""

    swa: Tokens


COMPRESSED_FIGURES = (
    r"(?:(?=[^\n]{0,500}?\bunified=(?P<unified>True|False)))?"
    rf"(?=[^\n]{{0,500}}?\bbytes_per_full_token=(?P<bytes_per_full_token>{NUMBER}))"
    rf"(?=[^\n]{{0,500}}?\bavailable_bytes=(?P<budget>{NUMBER}) GB)"
    r"(?=[^\n]{0,500}?(?<!_)full_token=(?P<full_tokens>\d+))"
)
"""The figures of a compressed pool's calculation, `key=value` in any order."""

COMPRESSED_BUDGET = Matcher(
    name="sglang.compressed_budget",
    anchor="DSV4 memory calculation:",
    pattern=rf"DSV4 memory calculation:{COMPRESSED_FIGURES}",
    event=CompressedBudget,
    means="The KV budget of compressed pools and the engine's divisor, which changes meaning with "
    "release and mode.",
    seen_in="0.5.12 … 0.5.23",
    samples=(
        Sample(
            "DSV4 memory calculation: bytes_per_full_token=15897.45, available_bytes=40.00 GB, "
            "full_token=2701568",
            CompressedBudget(
                bytes_per_full_token=Decimal("15897.45"),
                budget=Gib("40.00"),
                full_tokens=2701568,
            ),
        ),
        Sample(
            "DSV4 memory calculation: unified=False, full_token=8192, available_bytes=2.50 GB, "
            "bytes_per_full_token=3899.25, swa_fixed=0.30 GB",
            CompressedBudget(
                bytes_per_full_token=Decimal("3899.25"),
                budget=Gib("2.50"),
                full_tokens=8192,
                unified=False,
            ),
        ),
    ),
)

COMPRESSED_POOLS = Matcher(
    name="sglang.compressed_pools",
    anchor="DSV4 pool sizes:",
    pattern=(
        rf"DSV4 pool sizes: full=(?P<full>{INTEGER}), swa=(?P<swa>{INTEGER}), "
        rf"c4=(?P<c4>{INTEGER}), c128=(?P<c128>{INTEGER})"
    ),
    event=CompressedPools,
    means="Slots of the compressed pools; the last such line of a rank holds.",
    seen_in="0.5.12 … 0.5.23",
    samples=(
        Sample(
            "DSV4 pool sizes: full=4096, swa=512, c4=1024, c128=32, c4_state=64, c128_state=0",
            CompressedPools(full=4096, swa=512, c4=1024, c128=32),
        ),
    ),
)

COMPRESSED_SIZING = Matcher(
    name="sglang.compressed_sizing",
    anchor="DSV4 SWA sizing:",
    pattern=r"DSV4 SWA sizing: mode=(?P<mode>\w+)",
    event=CompressedSizing,
    means="Whether bytes_per_full_token includes the sliding window (ratio) or not (cap, ring).",
    seen_in="0.5.21 … 0.5.23",
    samples=(
        Sample(
            "DSV4 SWA sizing: mode=cap, swa_tokens=13312, request_cap+headroom=13312",
            CompressedSizing(mode="cap"),
        ),
    ),
)

COMPRESSED_BUILT = Matcher(
    name="sglang.compressed_built",
    anchor="Initialize DeepSeekV4TokenToKVPool with ",
    pattern=(
        r"TokenToKVPool with max_num_reqs=(?P<max_requests>\d+) swa_size=(?P<swa>\d+) "
        r"c4_size=(?P<c4>\d+) c4_logical_size=\d+ c128_size=(?P<c128>\d+)"
    ),
    event=CompressedBuilt,
    means="The compressed pools as built, and the requests that their states are for.",
    seen_in="0.5.12 … 0.5.23",
    samples=(
        Sample(
            "Initialize DeepSeekV4TokenToKVPool with max_num_reqs=64 swa_size=512 c4_size=1024 "
            "c4_logical_size=1024 c128_size=32 c4_state_pool_size=8 c128_state_pool_size=8",
            CompressedBuilt(max_requests=64, swa=512, c4=1024, c128=32),
        ),
    ),
)

WINDOW_RING = Matcher(
    name="sglang.window_ring",
    anchor="SWA ring: swa_max_total_num_tokens ",
    pattern=r"SWA ring: swa_max_total_num_tokens \d+ -> (?P<swa>\d+)",
    event=WindowRing,
    means="What the sliding-window pool really holds: a ring for each request.",
    seen_in="0.5.20 … 0.5.23",
    samples=(
        Sample(
            "SWA ring: swa_max_total_num_tokens 8192 -> 512 (fixed per-request SWA ring capacity).",
            WindowRing(swa=512),
        ),
    ),
)

MATCHERS = (
    COMPRESSED_BUILT,
    WINDOW_RING,
    COMPRESSED_BUDGET,
    COMPRESSED_POOLS,
    COMPRESSED_SIZING,
)
