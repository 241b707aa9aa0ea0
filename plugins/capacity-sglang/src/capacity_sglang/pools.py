"""KV pools and state pools: what was allocated, what was reserved, what the budget was."""

from __future__ import annotations

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Bytes, ExactRatio, Gib, Kib, Tokens


@attrs.frozen(kw_only=True)
class PoolAllocated:
    """One KV pool of one rank: its tokens (without the padding page) and its bytes (with it).

    `label` is Full or SWA where printed (0.5.18+); `reserved` means that only addresses were set
    aside and post-capture sizing decides later what is backed.
    """

    tokens: Tokens
    k_size: Gib | None = None
    v_size: Gib | None = None
    size: Gib | None = None
    dtype: str | None = None
    label: str | None = None
    reserved: str | None = None


@attrs.frozen(kw_only=True)
class SlidingWindowTotal:
    """The sum of a hybrid model's full and sliding-window pools, which were printed one by one
    before."""

    size: Gib
    swa_tokens: Tokens
    full_tokens: Tokens
    reserved: str | None = None


@attrs.frozen(kw_only=True)
class SlidingWindowTokens:
    """How a hybrid model's tokens are split into a full and a sliding-window pool."""

    swa_tokens: Tokens
    full_tokens: Tokens | None = None


@attrs.frozen(kw_only=True)
class PoolsReady:
    """Free device memory after the pools. Printed again for a draft model's own pool."""

    free: Gib


@attrs.frozen(kw_only=True)
class KvBudget:
    """The memory available for KV before allocation; may be negative for a draft model.

    Forks print with it what it was computed from, minima over ranks: free memory after weights and
    before them, and the fraction.
    """

    budget: Gib
    free_after_weights: Gib | None = None
    free_before_weights: Gib | None = None
    mem_fraction_static: ExactRatio | None = None


@attrs.frozen(kw_only=True)
class PoolSkipped:
    """A server that only prefills keeps a placeholder (KiB) instead of a KV pool."""

    tokens: Tokens
    size: Kib


@attrs.frozen(kw_only=True)
class UnifiedPool:
    """One buffer for the KV and the states of a hybrid model, which share it while serving; of a
    reserved one only addresses were set aside."""

    size: Bytes
    reserved: str | None = None


@attrs.frozen(kw_only=True)
class KvReserved:
    """What was taken off the KV budget for multimodal buffers that are allocated later."""

    size: Gib


@attrs.frozen(kw_only=True)
class TokenCapIgnored:
    """The token cap of the arguments is more than what was profiled."""

    asked: Tokens
    profiled: Tokens


@attrs.frozen(kw_only=True)
class KvDtype:
    """The element type of the KV cache, resolved."""

    dtype: str


POOL_ALLOCATED = Matcher(
    name="sglang.pool_allocated",
    anchor="KV Cache is allocated.",
    pattern=(
        r"KV Cache is allocated\. #tokens: (?P<tokens>\d+), "
        rf"(?:K size: (?P<k_size>{NUMBER}) GB, V size: (?P<v_size>{NUMBER}) GB|KV size: "
        rf"(?P<size>{NUMBER}) GB)"
    ),
    event=PoolAllocated,
    means="One KV pool of this rank. Bytes include one padding page, tokens do not.",
    seen_in="0.4.3.post4 … 0.5.12.post1",
    samples=(
        Sample(
            "KV Cache is allocated. #tokens: 94135, K size: 4.25 GB, V size: 4.26 GB",
            PoolAllocated(tokens=94135, k_size=Gib("4.25"), v_size=Gib("4.26")),
        ),
        Sample(
            "KV Cache is allocated. #tokens: 220416, KV size: 17.64 GB",
            PoolAllocated(tokens=220416, size=Gib("17.64")),
        ),
    ),
)

POOL_ALLOCATED_DTYPE = Matcher(
    name="sglang.pool_allocated_dtype",
    anchor="KV Cache is allocated. dtype:",
    pattern=(
        r"(?:(?P<label>Full|SWA) )?KV Cache is allocated\. dtype: (?P<dtype>[\w.]+), #tokens: "
        r"(?P<tokens>\d+), "
        rf"(?:K size: (?P<k_size>{NUMBER}) GB, V size: (?P<v_size>{NUMBER}) GB|KV size: "
        rf"(?P<size>{NUMBER}) GB)"
    ),
    event=PoolAllocated,
    means="One KV pool of this rank, with its element type and, for hybrid models from 0.5.18, "
    "its label.",
    seen_in="0.5.13 … 0.5.23",
    samples=(
        Sample(
            "Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4096, K size: 0.25 GB, V "
            "size: 0.25 GB",
            PoolAllocated(
                tokens=4096,
                k_size=Gib("0.25"),
                v_size=Gib("0.25"),
                dtype="torch.bfloat16",
                label="Full",
            ),
        ),
        Sample(
            "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 4096, KV size: 0.20 GB",
            PoolAllocated(tokens=4096, size=Gib("0.20"), dtype="torch.float8_e4m3fn"),
        ),
    ),
)

POOL_RESERVED = Matcher(
    name="sglang.pool_reserved",
    anchor="KV Cache VA upper bound. dtype:",
    pattern=(
        r"(?:(?P<label>Full|SWA) )?KV Cache (?P<reserved>VA upper bound)\. dtype: "
        r"(?P<dtype>[\w.]+), "
        rf"#tokens: (?P<tokens>\d+), (?:K size: (?P<k_size>{NUMBER}) GB, V size: "
        rf"(?P<v_size>{NUMBER}) GB"
        rf"|KV size: (?P<size>{NUMBER}) GB)"
    ),
    event=PoolAllocated,
    means="Address space set aside for a KV pool: no memory. Post-capture sizing says later what "
    "it really holds.",
    seen_in="0.5.18 … 0.5.23",
    samples=(
        Sample(
            "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 9000, K size: 6.00 GB, V "
            "size: 6.00 GB",
            PoolAllocated(
                tokens=9000,
                k_size=Gib("6.00"),
                v_size=Gib("6.00"),
                dtype="torch.bfloat16",
                reserved="VA upper bound",
            ),
        ),
    ),
)

SLIDING_WINDOW_TOTAL = Matcher(
    name="sglang.sliding_window_total",
    anchor="SWAKVPool ",
    pattern=(
        rf"SWAKVPool (?:mem usage|(?P<reserved>VA upper bound)): (?P<size>{NUMBER}) GB, "
        r"swa size: (?P<swa_tokens>\d+), full size: (?P<full_tokens>\d+)"
    ),
    event=SlidingWindowTotal,
    means="The sum of the full and sliding-window pools that were printed before it.",
    seen_in="0.5.4 … 0.5.23",
    samples=(
        Sample(
            "SWAKVPool mem usage: 28.93 GB, swa size: 148717, full size: 185897",
            SlidingWindowTotal(size=Gib("28.93"), swa_tokens=148717, full_tokens=185897),
        ),
        Sample(
            "SWAKVPool mem usage: 12.345678 GB, swa size: 16, full size: 20",
            SlidingWindowTotal(size=Gib("12.345678"), swa_tokens=16, full_tokens=20),
        ),
    ),
)

SLIDING_WINDOW_TOKENS = Matcher(
    name="sglang.sliding_window_tokens",
    anchor="liding window memory pool",
    pattern=(
        r"Use [sS]liding window memory pool(?: \(all SWA\))?\. "
        r"(?:full_layer_tokens=(?P<full_tokens>\d+), )?swa_layer_tokens=(?P<swa_tokens>\d+)"
    ),
    event=SlidingWindowTokens,
    means="How tokens are split into a full and a sliding-window pool.",
    seen_in="0.4.9.post6 … 0.5.23",
    samples=(
        Sample(
            "Use sliding window memory pool. full_layer_tokens=20, swa_layer_tokens=16",
            SlidingWindowTokens(full_tokens=20, swa_tokens=16),
        ),
        Sample(
            "Use sliding window memory pool (all SWA). swa_layer_tokens=16",
            SlidingWindowTokens(swa_tokens=16),
        ),
    ),
)

POOLS_READY = Matcher(
    name="sglang.pools_ready",
    anchor="Memory pool end.",
    pattern=rf"Memory pool end\. avail mem=(?P<free>{NUMBER}) GB",
    event=PoolsReady,
    means="Free memory of this rank after its pools.",
    seen_in="0.2.15 … 0.5.23",
    samples=(Sample("Memory pool end. avail mem=11.87 GB", PoolsReady(free=Gib("11.87"))),),
)

KV_BUDGET = Matcher(
    name="sglang.kv_budget",
    anchor="The available memory for KV cache is",
    pattern=rf"The available memory for KV cache is (?P<budget>{NUMBER}) GB",
    event=KvBudget,
    means="The KV budget before allocation. Printed by builds between releases; the pool may "
    "exceed it.",
    samples=(
        Sample("The available memory for KV cache is 16.06 GB.", KvBudget(budget=Gib("16.06"))),
        Sample("The available memory for KV cache is -0.15 GB.", KvBudget(budget=Gib("-0.15"))),
    ),
)

KV_DTYPE = Matcher(
    name="sglang.kv_dtype",
    anchor="Using KV cache dtype:",
    pattern=r"Using KV cache dtype: (?P<dtype>[\w.]+)",
    event=KvDtype,
    means="The KV cache's element type, resolved; rank 0 prints it for the deployment.",
    seen_in="0.5.3 … 0.5.12.post1",
    samples=(
        Sample("Using KV cache dtype: torch.float8_e4m3fn", KvDtype(dtype="torch.float8_e4m3fn")),
    ),
)

POOL_SKIPPED = Matcher(
    name="sglang.pool_skipped",
    anchor="KV Cache skipped (no-op pool).",
    pattern=(
        r"KV Cache skipped \(no-op pool\)\. Logical #tokens: (?P<tokens>\d+), physical K/V size: "
        rf"~(?P<size>{NUMBER}) KB placeholder"
    ),
    event=PoolSkipped,
    means="No KV pool was made: this server only prefills. Its tokens are logical.",
    seen_in="0.5.12 … 0.5.23",
    samples=(
        Sample(
            "KV Cache skipped (no-op pool). Logical #tokens: 65536, physical K/V size: ~512.0 KB "
            "placeholder",
            PoolSkipped(tokens=65536, size=Kib("512.0")),
        ),
    ),
)

UNIFIED_POOL = Matcher(
    name="sglang.unified_pool",
    anchor="[unified-memory-pool] UnifiedKVPool ",
    pattern=(
        r"UnifiedKVPool (?:allocated|(?P<reserved>reserved VA upper bound)): "
        r"total_bytes=[\d.]+ GB \(=(?P<size>\d+) B\)"
    ),
    event=UnifiedPool,
    means="The buffer that a hybrid model's KV and states share.",
    seen_in="0.5.15 … 0.5.23",
    samples=(
        Sample(
            "[unified-memory-pool] UnifiedKVPool allocated: total_bytes=2.00 GB (=2147483648 B), 3 "
            "sub-pool(s)",
            UnifiedPool(size=2147483648),
        ),
    ),
)

KV_RESERVED = Matcher(
    name="sglang.kv_reserved",
    anchor=" GB of the KV budget for ",
    pattern=rf"Reserving (?P<size>{NUMBER}) GB of the KV budget for ",
    event=KvReserved,
    means="Taken off the KV budget, for multimodal buffers that come later.",
    seen_in="0.5.18 … 0.5.23",
    samples=(
        Sample(
            "Reserving 0.50 GB of the KV budget for post-sizing multimodal allocations (feature",
            KvReserved(size=Gib("0.50")),
        ),
    ),
)

TOKEN_CAP_IGNORED = Matcher(
    name="sglang.token_cap_ignored",
    anchor=" is larger than the profiled value ",
    pattern=r"max_total_tokens=(?P<asked>\d+) is larger than the profiled value (?P<profiled>\d+)",
    event=TokenCapIgnored,
    means="The token cap of the arguments has no effect: less was profiled.",
    seen_in="0.2.15 … 0.5.23",
    samples=(
        Sample(
            "max_total_tokens=9000 is larger than the profiled value 8000. Use the profiled",
            TokenCapIgnored(asked=9000, profiled=8000),
        ),
    ),
)

MATCHERS = (
    POOL_SKIPPED,
    UNIFIED_POOL,
    KV_RESERVED,
    TOKEN_CAP_IGNORED,
    POOL_ALLOCATED,
    POOL_ALLOCATED_DTYPE,
    POOL_RESERVED,
    SLIDING_WINDOW_TOTAL,
    SLIDING_WINDOW_TOKENS,
    POOLS_READY,
    KV_BUDGET,
    KV_DTYPE,
)
