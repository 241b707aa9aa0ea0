"""The KV budget, the tokens it holds, and the signs that a model has more than one kind of KV
cache."""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api import INTEGER, NUMBER, Matcher, Sample
from capacity_core.units import Count, Gib, Ratio, Tokens


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

    factor: Count


@attrs.frozen(kw_only=True)
class ExplicitKv:
    """KV memory that was asked for in bytes: no profiling, no utilisation."""

    size: Gib
    free: Gib | None = None
    total: Gib | None = None


@attrs.frozen(kw_only=True)
class FittedLength:
    """The context length that auto-fit chose."""

    length: Tokens


@attrs.frozen(kw_only=True)
class KvDtype:
    """The element type of the KV cache, as an engine's note says it."""

    dtype: str


@attrs.frozen(kw_only=True)
class KvReserved:
    """Memory taken off the budget after it was printed."""

    left: Gib


@attrs.frozen(kw_only=True)
class WeightsElsewhere:
    """Another process holds the weights: what of the utilisation's memory is left for this one."""

    held: Gib
    left: Gib


@attrs.frozen(kw_only=True)
class SizedByAllocator:
    """Free memory grew while profiling, so the allocator's own figure was used instead."""

    grew: Gib


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
    pattern=rf"\bGPU KV cache size: (?P<tokens>{INTEGER}) tokens(?!,)",
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
        rf"(?<!\w)\w{{1,20}}(?: \+ host)? KV cache size: (?P<tokens>{INTEGER}) tokens,"
        rf"(?: Maximum concurrency for (?P<request_tokens>{INTEGER}) tokens per request: "
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
        rf"(?<!tokens, )Maximum concurrency for (?P<request_tokens>{INTEGER}) tokens per request: "
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

HOST_KV_SET = Matcher(
    name="vllm.host_kv_set",
    anchor=") GiB for KV cache on node ",
    pattern=rf"(?:Explicitly|Auto) set \((?P<size>{NUMBER})/(?P<total>{NUMBER})\) GiB for KV cache",
    event=ExplicitKv,
    means="KV memory of an engine whose device is the host, and the memory of its node.",
    samples=(
        Sample(
            "Explicitly set (4.0/14.96) GiB for KV cache on node 0.",
            ExplicitKv(size=Gib("4.0"), total=Gib("14.96")),
        ),
        Sample(
            "Auto set (9.21/14.96) GiB for KV cache on node 0, with 13.76 GiB requested memory",
            ExplicitKv(size=Gib("9.21"), total=Gib("14.96")),
        ),
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

KV_DTYPE = Matcher(
    name="vllm.kv_dtype",
    anchor=" data type to store kv cache",
    pattern=r"Using (?P<dtype>fp8\w*) data type to store kv cache",
    event=KvDtype,
    means="The KV cache holds eight-bit elements.",
    seen_in="0.4.2 … 0.19.1",
    samples=(Sample("Using fp8 data type to store kv cache. It reduces", KvDtype(dtype="fp8")),),
)

KV_DTYPE_PACKED = Matcher(
    name="vllm.kv_dtype_packed",
    anchor="_ds_mla KV cache format",
    pattern=r"Using \S+ (?P<dtype>fp8_ds_mla) KV cache format",
    event=KvDtype,
    means="The KV cache holds the packed format of one model family.",
    samples=(Sample("Using X's fp8_ds_mla KV cache format", KvDtype(dtype="fp8_ds_mla")),),
)

WEIGHTS_ELSEWHERE = Matcher(
    name="vllm.weights_elsewhere",
    anchor="Weights are held outside this process:",
    pattern=(
        rf"utilization budget, (?P<held>{NUMBER}) GiB is externally held and "
        rf"(?P<left>{NUMBER}) GiB remains"
    ),
    event=WeightsElsewhere,
    means="Weights of another process come off what this one may use.",
    seen_in="0.32.0 … 0.33.0",
    samples=(
        Sample(
            "Weights are held outside this process: of the 70.5 GiB utilization budget, 30.25 GiB "
            "is externally held and 40.25 GiB remains for the engine's own allocations.",
            WeightsElsewhere(held=Gib("30.25"), left=Gib("40.25")),
        ),
    ),
)

SIZED_BY_ALLOCATOR = Matcher(
    name="vllm.sized_by_allocator",
    anchor=" GiB during profiling (initial ",
    pattern=rf"Free memory grew by (?P<grew>{NUMBER}) GiB during profiling",
    event=SizedByAllocator,
    means="Memory came back on the device while it was measured.",
    seen_in="0.29.0 … 0.33.0",
    samples=(
        Sample(
            "Free memory grew by 1.25 GiB during profiling (initial 60.0 GiB, current 61.25 GiB).",
            SizedByAllocator(grew=Gib("1.25")),
        ),
    ),
)

MATCHERS = (
    WEIGHTS_ELSEWHERE,
    SIZED_BY_ALLOCATOR,
    KV_DTYPE,
    KV_DTYPE_PACKED,
    KV_BUDGET,
    KV_SIZE,
    KV_SIZE_ONE_LINE,
    MAX_CONCURRENCY,
    CONTEXT_PARALLEL,
    EXPLICIT_KV,
    FITTED_LENGTH,
    HOST_KV_SET,
    STARTUP_PLAN,
    KV_RESERVED,
)
