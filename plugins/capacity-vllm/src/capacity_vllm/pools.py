"""The KV budget, the tokens it holds, and the signs that a model has more than one kind of KV
cache."""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api import COUNT, NUMBER, Matcher, Sample
from capacity_core.units import Count as CountOf
from capacity_core.units import Gib, Ratio, Tokens


@attrs.frozen(kw_only=True)
class KvBudget:
    """Memory that a worker hands to the KV planner: the budget, of which whole blocks are made. May
    be negative."""

    budget: Gib


@attrs.frozen(kw_only=True)
class KvSize:
    """Tokens that the KV cache holds, and how often a request of the longest length fits.

    From 0.21.0 tokens are int(concurrency · longest length), which for hybrid models holds at that
    length alone; before, blocks · block size (for hybrid models divided by their groups).
    """

    tokens: Tokens
    request_tokens: Tokens | None = None
    concurrency: Ratio | None = None


@attrs.frozen(kw_only=True)
class MaxConcurrency:
    """How often a request of the longest length fits, on a line of its own."""

    request_tokens: Tokens
    concurrency: Ratio


@attrs.frozen(kw_only=True)
class ContextParallel:
    """Tokens are multiplied by this number of context-parallel ranks."""

    factor: CountOf


@attrs.frozen(kw_only=True)
class ExplicitKv:
    """KV memory that was asked for in bytes: no profiling, no utilisation."""

    size: Gib
    free: Gib | None = None


@attrs.frozen(kw_only=True)
class BlocksOverridden:
    """The profiled number of blocks was replaced by an argument."""

    profiled: CountOf
    used: CountOf


@attrs.frozen(kw_only=True)
class FittedLength:
    """The context length that auto-fit chose."""

    length: Tokens


@attrs.frozen(kw_only=True)
class HybridSign:
    """A line that only models with more than one kind of KV cache print."""

    block: Tokens | None = None


@attrs.frozen(kw_only=True)
class BlockSize:
    """The size of a KV block as the attention back-end sets it, whatever the arguments say."""

    block: Tokens


@attrs.frozen(kw_only=True)
class BlockCount:
    """How many blocks a worker's cache has, printed after initialisation."""

    blocks: CountOf


@attrs.frozen(kw_only=True)
class KvReserved:
    """Memory taken off the budget after it was printed."""

    left: Gib


KV_BUDGET = Matcher(
    name="vllm.kv_budget",
    anchor="Available KV cache memory:",
    pattern=rf"Available KV cache memory: (?P<budget>{NUMBER}) GiB",
    event=KvBudget,
    means="The worker's KV budget before whole blocks are made of it; from 0.11.2 local rank 0 "
    "alone prints it.",
    seen_in="0.9.1 … 0.33.0",
    samples=(
        Sample("Available KV cache memory: 45.30 GiB", KvBudget(budget=Gib("45.30"))),
        Sample("Available KV cache memory: -1.43 GiB", KvBudget(budget=Gib("-1.43"))),
    ),
)

KV_SIZE = Matcher(
    name="vllm.kv_size",
    anchor=" KV cache size: ",
    pattern=rf"\bGPU KV cache size: (?P<tokens>{COUNT}) tokens(?!,)",
    event=KvSize,
    means="Tokens of the KV cache; up to 0.11.0 once for each worker, before the minimum was "
    "taken.",
    seen_in="0.8.0 … 0.27.1",
    samples=(Sample("GPU KV cache size: 1,572,864 tokens", KvSize(tokens=1572864)),),
)

KV_SIZE_ONE_LINE = Matcher(
    name="vllm.kv_size_one_line",
    anchor=" KV cache size: ",
    pattern=(
        rf"\w+(?: \+ host)? KV cache size: (?P<tokens>{COUNT}) tokens,"
        rf"(?: Maximum concurrency for (?P<request_tokens>{COUNT}) tokens per request: "
        rf"(?P<concurrency>{NUMBER})x)?"
    ),
    event=KvSize,
    means="Tokens of the KV cache and the engine's own concurrency, on one line; the device word "
    "varies.",
    seen_in="0.28.0 … 0.33.0",
    samples=(
        Sample(
            "GPU KV cache size: 1,196,643 tokens, Maximum concurrency for 1,048,576 tokens per "
            "request: 1.14x",
            KvSize(tokens=1196643, request_tokens=1048576, concurrency=Decimal("1.14")),
        ),
        Sample(
            "GPU + host KV cache size: 96 tokens, Maximum concurrency for 32 tokens per request: "
            "3.00x",
            KvSize(tokens=96, request_tokens=32, concurrency=Decimal("3.00")),
        ),
    ),
)

MAX_CONCURRENCY = Matcher(
    name="vllm.max_concurrency",
    anchor="Maximum concurrency for ",
    pattern=(
        rf"(?<!tokens, )Maximum concurrency for (?P<request_tokens>{COUNT}) tokens per request: "
        rf"(?P<concurrency>{NUMBER})x"
    ),
    event=MaxConcurrency,
    means="How often a request of the longest length fits.",
    seen_in="0.6.3.post1 … 0.27.1",
    samples=(
        Sample(
            "Maximum concurrency for 4,096 tokens per request: 38.47x",
            MaxConcurrency(request_tokens=4096, concurrency=Decimal("38.47")),
        ),
    ),
)

CONTEXT_PARALLEL = Matcher(
    name="vllm.context_parallel",
    anchor="Multiplying the GPU KV cache size by the ",
    pattern=r"Multiplying the GPU KV cache size by the (?:dcp|cp)_world_size (?P<factor>\d+)",
    event=ContextParallel,
    means="The tokens that follow are of all context-parallel ranks together.",
    seen_in="0.10.2 … 0.20.0",
    samples=(
        Sample(
            "Multiplying the GPU KV cache size by the dcp_world_size 8.", ContextParallel(factor=8)
        ),
    ),
)

EXPLICIT_KV = Matcher(
    name="vllm.explicit_kv",
    anchor="GiB, reserved ",
    pattern=rf"Initial free memory (?P<free>{NUMBER}) GiB, reserved (?P<size>{NUMBER}) ?GiB "
    rf"memory for KV Cache",
    event=ExplicitKv,
    means="KV memory as asked for in bytes; nothing was profiled.",
    seen_in="0.10.2 … 0.33.0",
    samples=(
        Sample(
            "Initial free memory 78.5 GiB, reserved 10.0 GiB memory for KV Cache as specified by",
            ExplicitKv(size=Gib("10.0"), free=Gib("78.5")),
        ),
    ),
)

BLOCKS_OVERRIDDEN = Matcher(
    name="vllm.blocks_overridden",
    anchor="Overriding num_gpu_blocks=",
    pattern=r"Overriding num_gpu_blocks=(?P<profiled>\d+) with "
    r"num_gpu_blocks_override=(?P<used>\d+)",
    event=BlocksOverridden,
    means="An argument replaced the number of blocks that the budget would have made.",
    seen_in="0.6.4.post1 … 0.33.0",
    samples=(
        Sample(
            "Overriding num_gpu_blocks=512 with num_gpu_blocks_override=10",
            BlocksOverridden(profiled=512, used=10),
        ),
    ),
)

FITTED_LENGTH = Matcher(
    name="vllm.fitted_length",
    anchor="Auto-fit max_model_len: ",
    pattern=(
        r"Auto-fit max_model_len: (?:reduced from \d+ to |full model context length "
        r"|attention-free model, using derived max_model_len=)(?P<length>\d+)"
    ),
    event=FittedLength,
    means="The context length that auto-fit chose.",
    seen_in="0.14.1 … 0.33.0",
    samples=(
        Sample(
            "Auto-fit max_model_len: reduced from 4096 to 1920 to fit in available GPU memory",
            FittedLength(length=1920),
        ),
        Sample(
            "Auto-fit max_model_len: full model context length 4096 fits in available GPU memory",
            FittedLength(length=4096),
        ),
    ),
)

HYBRID_BLOCK = Matcher(
    name="vllm.hybrid_block",
    anchor="Setting attention block size to ",
    pattern=rf"Setting attention block size to (?P<block>{COUNT}) tokens",
    event=HybridSign,
    means="The model mixes attention with state-space layers.",
    seen_in="0.10.2 … 0.33.0",
    samples=(
        Sample(
            "Setting attention block size to 544 tokens to ensure that attention page size",
            HybridSign(block=544),
        ),
    ),
)

HYBRID_PADDING = Matcher(
    name="vllm.hybrid_padding",
    anchor=" padding layers, may waste at most ",
    pattern=r"Add \d+ padding layers, may waste at most",
    event=HybridSign,
    means="The model's layers fall into groups of different sizes.",
    seen_in="0.9.1 … 0.33.0",
    samples=(
        Sample(
            "Add 2 padding layers, may waste at most 9.09% KV cache memory",
            HybridSign(),
        ),
    ),
)

BLOCK_SIZE_SET = Matcher(
    name="vllm.block_size_set",
    anchor="Setting kv cache block size to ",
    pattern=rf"Setting kv cache block size to (?P<block>{COUNT}) for ",
    event=BlockSize,
    means="The block size that the attention back-end wants.",
    seen_in="0.18.0 … 0.33.0",
    samples=(
        Sample(
            "Setting kv cache block size to 64 for FLASHMLA backend(s).",
            BlockSize(block=64),
        ),
    ),
)

BLOCK_SIZE_FORCED = Matcher(
    name="vllm.block_size_forced",
    anchor="Forcing kv cache block size to ",
    pattern=rf"Forcing kv cache block size to (?P<block>{COUNT}) for ",
    event=BlockSize,
    means="The same in older words.",
    seen_in="0.8.0 … 0.17.1",
    samples=(
        Sample("Forcing kv cache block size to 64 for FlashMLA backend.", BlockSize(block=64)),
    ),
)

STARTUP_PLAN = Matcher(
    name="vllm.startup_plan",
    anchor="Applying persisted startup plan",
    pattern=(
        r"Applying persisted startup plan \([^)\n]{0,120}\): kv_cache_memory_bytes=\d+ "
        rf"\((?P<size>{NUMBER}) GiB\)"
    ),
    event=ExplicitKv,
    means="KV memory replayed from an earlier start; nothing was profiled.",
    seen_in="0.26.0 … 0.33.0",
    samples=(
        Sample(
            "Applying persisted startup plan (fingerprint ab12): kv_cache_memory_bytes=10737418240 "
            "(10.00 GiB), recorded free-memory baseline 78.00 GiB, current 78.50 GiB.",
            ExplicitKv(size=Gib("10.00")),
        ),
    ),
)

BLOCK_COUNT = Matcher(
    name="vllm.block_count",
    anchor="after num_gpu_blocks is: ",
    pattern=r"cache_config_info with initialization after num_gpu_blocks is: (?P<blocks>\d+)",
    event=BlockCount,
    means="How many blocks the cache has; from 0.11.2 at INFO for several engines alone.",
    seen_in="0.9.0.1 … 0.33.0",
    samples=(
        Sample(
            "Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 28551",
            BlockCount(blocks=28551),
        ),
    ),
)

KV_RESERVED = Matcher(
    name="vllm.kv_reserved",
    anchor="for frontend multimodal decoding",
    pattern=rf"for frontend multimodal decoding [^\n]{{0,300}}?KV cache memory reduced to "
    rf"(?P<left>{NUMBER}) GiB",
    event=KvReserved,
    means="What is left of the printed budget after a reservation for multimodal decoding.",
    seen_in="0.25.1 … 0.33.0",
    samples=(
        Sample(
            "Reserving 2.0 GiB of GPU memory for frontend multimodal decoding (1.0 GiB raw-frame "
            "budget); "
            "KV cache memory reduced to 30.5 GiB.",
            KvReserved(left=Gib("30.5")),
        ),
    ),
)

MATCHERS = (
    KV_BUDGET,
    KV_SIZE,
    KV_SIZE_ONE_LINE,
    MAX_CONCURRENCY,
    CONTEXT_PARALLEL,
    EXPLICIT_KV,
    BLOCKS_OVERRIDDEN,
    FITTED_LENGTH,
    HYBRID_BLOCK,
    HYBRID_PADDING,
    BLOCK_SIZE_SET,
    BLOCK_SIZE_FORCED,
    STARTUP_PLAN,
    BLOCK_COUNT,
    KV_RESERVED,
)
