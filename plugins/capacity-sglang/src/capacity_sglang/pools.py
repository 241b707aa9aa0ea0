"""KV pools and state pools: what was allocated, what was reserved, what the budget was."""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api import COUNT, NUMBER, Matcher, Sample
from capacity_core.units import BytesPerToken, ExactRatio, Gib, Slots, Tokens


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
class StateSlots:
    """How many Mamba / linear-attention states a rank holds."""

    slots: Slots


@attrs.frozen(kw_only=True)
class StatePool:
    """The state pool's parts on one rank; the intermediate ones exist with speculative decoding."""

    conv: Gib
    ssm: Gib
    intermediate_ssm: Gib | None = None
    intermediate_conv: Gib | None = None


@attrs.frozen(kw_only=True)
class StateRings:
    """Ring buffers of a linear-attention state pool on one rank; three decimals."""

    d: Gib
    k: Gib
    g: Gib
    rawv: Gib | None = None
    rawk: Gib | None = None
    beta: Gib | None = None


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
class PostCapturePool:
    """A pool as it was sized after graph capture: replaces what was reserved before."""

    tokens: Tokens
    size: Gib | None = None
    dtype: str | None = None
    free: Gib | None = None
    draft: str | None = None


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

STATE_SLOTS = Matcher(
    name="sglang.state_slots",
    anchor="Mamba Cache is allocated. max_mamba_cache_size:",
    pattern=r"Mamba Cache is allocated\. max_mamba_cache_size: (?P<slots>\d+)",
    event=StateSlots,
    means="How many Mamba / linear-attention states fit; a running request takes one or more.",
    seen_in="0.5.4 … 0.5.23",
    samples=(
        Sample("Mamba Cache is allocated. max_mamba_cache_size: 360,", StateSlots(slots=360)),
    ),
)

STATE_POOL = Matcher(
    name="sglang.state_pool",
    anchor="conv_state size:",
    pattern=(
        rf"conv_state size: (?P<conv>{NUMBER}) ?GB, ssm_state size: (?P<ssm>{NUMBER}) ?GB"
        rf"(?: intermediate_ssm_state_cache size: (?P<intermediate_ssm>{NUMBER}) ?GB)?"
        rf"(?: intermediate_conv_window_cache size: (?P<intermediate_conv>{NUMBER}) ?GB)?"
    ),
    event=StatePool,
    means="The Mamba / linear-attention state pool of this rank, part by part.",
    seen_in="0.5.2 … 0.5.23",
    samples=(
        Sample(
            "conv_state size: 0.99GB, ssm_state size: 50.77GB ",
            StatePool(conv=Gib("0.99"), ssm=Gib("50.77")),
        ),
        Sample(
            "conv_state size: 0.99GB, ssm_state size: 50.77GB intermediate_ssm_state_cache size: "
            "1.00GB "
            "intermediate_conv_window_cache size: 0.02GB ",
            StatePool(
                conv=Gib("0.99"),
                ssm=Gib("50.77"),
                intermediate_ssm=Gib("1.00"),
                intermediate_conv=Gib("0.02"),
            ),
        ),
    ),
)

STATE_RINGS = Matcher(
    name="sglang.state_rings",
    anchor="ReplaySSM ring buffers allocated",
    pattern=(
        rf"ReplaySSM ring buffers allocated \([^)\n]{{0,80}}\): d=(?P<d>{NUMBER})GB, "
        rf"k=(?P<k>{NUMBER})GB, g=(?P<g>{NUMBER})GB"
        rf"(?: rawv=(?P<rawv>{NUMBER})GB, rawk=(?P<rawk>{NUMBER})GB)?"
        rf"(?:, beta=(?P<beta>{NUMBER})GB)?"
    ),
    event=StateRings,
    means="Ring buffers that belong to the state pool of this rank.",
    seen_in="0.5.15 … 0.5.23",
    samples=(
        Sample(
            "GDN ReplaySSM ring buffers allocated (record_len=8, fold=True): d=1.250GB, k=0.750GB, "
            "g=0.010GB ",
            StateRings(d=Gib("1.250"), k=Gib("0.750"), g=Gib("0.010")),
        ),
        Sample(
            "GDN ReplaySSM ring buffers allocated (L=4): d=0.000GB, k=0.000GB, g=0.010GB "
            "rawv=0.100GB, rawk=0.200GB, beta=0.003GB ",
            StateRings(
                d=Gib("0.000"),
                k=Gib("0.000"),
                g=Gib("0.010"),
                rawv=Gib("0.100"),
                rawk=Gib("0.200"),
                beta=Gib("0.003"),
            ),
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
        rf"DSV4 pool sizes: full=(?P<full>{COUNT}), swa=(?P<swa>{COUNT}), c4=(?P<c4>{COUNT}), "
        rf"c128=(?P<c128>{COUNT})"
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

POST_CAPTURE_TOKENS = Matcher(
    name="sglang.post_capture_tokens",
    anchor="Post-capture KV sizing: max_total_num_tokens=",
    pattern=(
        r"Post-capture KV sizing: max_total_num_tokens=(?P<tokens>\d+), "
        rf"free memory=(?P<free>{NUMBER}) GB"
    ),
    event=PostCapturePool,
    means="Tokens after post-capture sizing, in its first words; the pool line before it was a "
    "bound.",
    seen_in="0.5.16 … 0.5.16",
    samples=(
        Sample(
            "Post-capture KV sizing: max_total_num_tokens=800000, free memory=9.80 GB",
            PostCapturePool(tokens=800000, free=Gib("9.80")),
        ),
    ),
)

POST_CAPTURE_POOL = Matcher(
    name="sglang.post_capture_pool",
    anchor="Post-capture KV sizing: ",
    pattern=(
        r"Post-capture KV sizing: (?:(?P<draft>draft) )?KV cache allocated\. dtype: "
        r"(?P<dtype>[\w.]+), "
        rf"#tokens: (?P<tokens>\d+), KV size: (?P<size>{NUMBER}) GB(?:, avail "
        rf"mem=(?P<free>{NUMBER}) GB)?"
    ),
    event=PostCapturePool,
    means="The pool's final size, decided after graph capture; replaces the reserved one.",
    seen_in="0.5.17 … 0.5.23",
    samples=(
        Sample(
            "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 8000, "
            "KV size: 9.50 GB, avail mem=3.25 GB",
            PostCapturePool(
                tokens=8000, size=Gib("9.50"), dtype="torch.bfloat16", free=Gib("3.25")
            ),
        ),
        Sample(
            "Post-capture KV sizing: draft KV cache allocated. dtype: torch.bfloat16, #tokens: "
            "8000, KV size: 0.50 GB",
            PostCapturePool(tokens=8000, size=Gib("0.50"), dtype="torch.bfloat16", draft="draft"),
        ),
    ),
    near_misses=("Post-capture KV sizing: max_running_requests 128 -> 96",),
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

MATCHERS = (
    POOL_ALLOCATED,
    POOL_ALLOCATED_DTYPE,
    POOL_RESERVED,
    SLIDING_WINDOW_TOTAL,
    SLIDING_WINDOW_TOKENS,
    STATE_SLOTS,
    STATE_POOL,
    STATE_RINGS,
    POOLS_READY,
    KV_BUDGET,
    COMPRESSED_BUDGET,
    COMPRESSED_POOLS,
    COMPRESSED_SIZING,
    POST_CAPTURE_TOKENS,
    POST_CAPTURE_POOL,
    KV_DTYPE,
)
