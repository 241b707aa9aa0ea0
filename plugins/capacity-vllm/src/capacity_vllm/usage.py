"""The memory profile: the usage summary in its wordings, and what DEBUG logs say before it."""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Bytes, Exact, ExactRatio, Gib, Ratio


@attrs.frozen(kw_only=True)
class UsageSummary:
    """One worker's whole account, printed after warm-up.

    Device free and total at start-up, utilisation and what it asks for, weights, activation peak,
    memory outside torch, graphs. From 0.27 `consumed` stands for weights and non-torch together.
    `kv` is in use, `kv_bytes` the same exactly; `suggested` are the KV bytes that the engine says
    would fill what was requested, `suggested_most` those that would fill the device.
    """

    free: Gib
    total: Gib
    utilization: ExactRatio
    requested: Gib
    activation: Gib | None = None
    weights: Gib | None = None
    non_torch: Gib | None = None
    consumed: Gib | None = None
    graphs: Gib | None = None
    kv: Gib | None = None
    kv_bytes: Bytes | None = None
    suggested: Bytes | None = None
    suggested_most: Bytes | None = None


@attrs.frozen(kw_only=True)
class ProfileResult:
    """What profiling measured (DEBUG)."""

    activation: Gib
    non_torch: Gib | None = None
    weights: Gib | None = None


@attrs.frozen(kw_only=True)
class Profiled:
    """The former engine's whole account, before the KV cache is made; printed by every process.

    In one line (0.6.4) or in two. `kv` is what is left for KV; `peak` holds weights and activation.
    """

    total: Gib | None = None
    utilization: Ratio | None = None
    requested: Gib | None = None
    weights: Gib | None = None
    non_torch: Gib | None = None
    activation: Gib | None = None
    peak: Gib | None = None
    kv: Gib | None = None


@attrs.frozen(kw_only=True)
class InitialFree:
    """Free memory when the worker started (DEBUG)."""

    free: Gib
    requested: Gib | None = None
    utilization: ExactRatio | None = None
    total: Gib | None = None


@attrs.frozen(kw_only=True)
class FreeAfter:
    """Free memory after profiling (DEBUG): weights are loaded, no KV cache yet."""

    free: Gib


_HEAD = (
    rf"Free memory on device(?: \S+)? \((?P<free>{NUMBER})/(?P<total>{NUMBER}) GiB\) on startup\. "
    rf"Desired GPU memory utilization is \((?P<utilization>[\d.]+), (?P<requested>{NUMBER}) "
    rf"GiB\)\. "
)
_WEIGHTS = (
    rf"Actual usage is (?P<weights>{NUMBER}) GiB for weight, (?P<activation>{NUMBER}) GiB for "
    rf"peak activation, "
    rf"(?P<non_torch>{NUMBER}) GiB for non-torch memory, and (?P<graphs>{NUMBER}) GiB for "
    rf"CUDAGraph memory\."
)
_SUGGESTED = (
    r"(?:[^\n]{0,120}?--kv-cache-memory=(?P<suggested>\d+)`?[^\n]{0,120}?"
    r"--kv-cache-memory=(?P<suggested_most>\d+))?"
)
_ANCHOR = " GiB) on startup. Desired GPU memory utilization is ("

USAGE_SUMMARY_BYTES = Matcher(
    name="vllm.usage_summary_bytes",
    anchor=_ANCHOR,
    pattern=_HEAD
    + _WEIGHTS
    + _SUGGESTED
    + r"[^\n]{0,400}?Current kv cache memory in use is (?P<kv_bytes>\d+) bytes",
    event=UsageSummary,
    means="The worker's whole account, KV in bytes.",
    seen_in="0.10.2 … 0.10.2",
    samples=(
        Sample(
            "Free memory on device (14.66/15.99 GiB) on startup. Desired GPU memory utilization "
            "is (0.85, 13.59 GiB). "
            "Actual usage is 4.25 GiB for weight, 0.34 GiB for peak activation, 0.02 GiB for "
            "non-torch memory, and "
            "1.27 GiB for CUDAGraph memory. Replace x with `--kv-cache-memory=81` to fit. "
            "Current kv cache memory in use is 9649816780 bytes.",
            UsageSummary(
                free=Gib("14.66"),
                total=Gib("15.99"),
                utilization=Exact("0.85"),
                requested=Gib("13.59"),
                weights=Gib("4.25"),
                activation=Gib("0.34"),
                non_torch=Gib("0.02"),
                graphs=Gib("1.27"),
                kv_bytes=9649816780,
            ),
        ),
    ),
)

USAGE_SUMMARY = Matcher(
    name="vllm.usage_summary",
    anchor=_ANCHOR,
    pattern=_HEAD
    + _WEIGHTS
    + r"(?![^\n]{0,400}\d bytes)"
    + _SUGGESTED
    + rf"(?:[^\n]{{0,400}}?Current kv cache memory in use is "
    rf"(?P<kv>{NUMBER}) GiB)?",
    event=UsageSummary,
    means="The worker's whole account. In 0.18 the activation peak contains the graph estimate.",
    seen_in="0.11.0 … 0.26.0",
    samples=(
        Sample(
            "Free memory on device (93.47/94.97 GiB) on startup. Desired GPU memory utilization "
            "is (0.5, 47.49 GiB). "
            "Actual usage is 7.56 GiB for weight, 0.59 GiB for peak activation, 0.06 GiB for "
            "non-torch memory, and "
            "-0.97 GiB for CUDAGraph memory. Replace x with y. Current kv cache memory in use is "
            "39.28 GiB.",
            UsageSummary(
                free=Gib("93.47"),
                total=Gib("94.97"),
                utilization=Exact("0.5"),
                requested=Gib("47.49"),
                weights=Gib("7.56"),
                activation=Gib("0.59"),
                non_torch=Gib("0.06"),
                graphs=Gib("-0.97"),
                kv=Gib("39.28"),
            ),
        ),
    ),
)

USAGE_SUMMARY_CONSUMED = Matcher(
    name="vllm.usage_summary_consumed",
    anchor=_ANCHOR,
    pattern=_HEAD
    + (
        rf"Actual usage is (?P<consumed>{NUMBER}) GiB for consumed memory \(weights \+ "
        rf"non-torch\), "
        rf"(?P<activation>{NUMBER}) GiB for peak activation, and (?P<graphs>{NUMBER}) GiB for "
        rf"CUDAGraph memory\."
    )
    + _SUGGESTED
    + rf"(?:[^\n]{{0,400}}?Current kv cache memory in use is (?P<kv>{NUMBER}) GiB)?",
    event=UsageSummary,
    means="The worker's account with weights and non-torch as one term; the activation peak holds "
    "the graph estimate.",
    seen_in="0.27.0 … 0.33.0",
    samples=(
        Sample(
            "Free memory on device (93.79/94.97 GiB) on startup. Desired GPU memory utilization "
            "is (0.975, 92.6 GiB). "
            "Actual usage is 83.1 GiB for consumed memory (weights + non-torch), 1.24 GiB for "
            "peak activation, and "
            "0.2 GiB for CUDAGraph memory. Replace x. Current kv cache memory in use is 7.94 GiB.",
            UsageSummary(
                free=Gib("93.79"),
                total=Gib("94.97"),
                utilization=Exact("0.975"),
                requested=Gib("92.6"),
                consumed=Gib("83.1"),
                activation=Gib("1.24"),
                graphs=Gib("0.2"),
                kv=Gib("7.94"),
            ),
        ),
    ),
)

USAGE_SUMMARY_PLATFORM = Matcher(
    name="vllm.usage_summary_platform",
    anchor=_ANCHOR,
    pattern=_HEAD
    + (
        rf"Actual usage: (?P<weights>{NUMBER}) GiB for weights, (?P<activation>{NUMBER}) GiB for "
        rf"peak activation, "
        rf"(?P<non_torch>{NUMBER}) GiB for non-torch memory, (?P<graphs>{NUMBER}) GiB for \w+ "
        rf"graph memory\."
    ),
    event=UsageSummary,
    means="The same data in a platform plugin's words.",
    samples=(
        Sample(
            "Free memory on device (60.86/61.27 GiB) on startup. Desired GPU memory utilization "
            "is (0.9, 55.14 GiB). "
            "Actual usage: 1.14 GiB for weights, 0.22 GiB for peak activation, 0.13 GiB for "
            "non-torch memory, "
            "0.04 GiB for X graph memory. Replace",
            UsageSummary(
                free=Gib("60.86"),
                total=Gib("61.27"),
                utilization=Exact("0.9"),
                requested=Gib("55.14"),
                weights=Gib("1.14"),
                activation=Gib("0.22"),
                non_torch=Gib("0.13"),
                graphs=Gib("0.04"),
            ),
        ),
    ),
)

USAGE_SUMMARY_CUT = Matcher(
    name="vllm.usage_summary_cut",
    anchor=_ANCHOR,
    pattern=_HEAD.rstrip() + r"(?! Actual usage[^\n]{0,300}? (?:CUDAG|\w+ g)raph memory\.)",
    event=UsageSummary,
    means="The beginning of the account, of which the rest was cut or wrapped away.",
    samples=(
        Sample(
            "Free memory on device (60.86/61.27 GiB) on startup. Desired GPU memory utilization is "
            "(0.9, 55.14 GiB). ",
            UsageSummary(
                free=Gib("60.86"),
                total=Gib("61.27"),
                utilization=Exact("0.9"),
                requested=Gib("55.14"),
            ),
        ),
    ),
)

PROFILE_RESULT = Matcher(
    name="vllm.profile_result",
    anchor="Total non KV cache memory:",
    pattern=(
        rf"Total non KV cache memory: {NUMBER} ?GiB; torch peak memory increase: "
        rf"(?P<activation>{NUMBER}) ?GiB; "
        rf"(?:non-torch forward increase memory: (?P<non_torch>{NUMBER}) ?GiB; )?"
        rf"(?:[^\n]{{0,60}}?weights memory: (?P<weights>{NUMBER}) ?GiB)?"
    ),
    event=ProfileResult,
    means="What profiling measured (DEBUG).",
    seen_in="0.9.2 … 0.33.0",
    samples=(
        Sample(
            "Memory profiling takes 13.56 seconds. Total non KV cache memory: 8.21GiB; torch peak "
            "memory increase: "
            "0.59GiB; non-torch forward increase memory: 0.06GiB; weights memory: 7.56GiB.",
            ProfileResult(activation=Gib("0.59"), non_torch=Gib("0.06"), weights=Gib("7.56")),
        ),
    ),
)

PROFILED_BUDGET = Matcher(
    name="vllm.profiled_budget",
    anchor="the current vLLM instance can use total_gpu_memory (",
    pattern=(
        rf"can use total_gpu_memory \((?P<total>{NUMBER})GiB\) x gpu_memory_utilization "
        rf"\((?P<utilization>{NUMBER})\) = (?P<requested>{NUMBER})GiB"
    ),
    event=Profiled,
    means="Device total, utilisation in two decimals and what it asks for; the terms follow.",
    seen_in="0.6.6.post1 … 0.10.2",
    samples=(
        Sample(
            "the current vLLM instance can use total_gpu_memory (15.77GiB) x "
            "gpu_memory_utilization (0.90) = 14.20GiB",
            Profiled(total=Gib("15.77"), utilization=Decimal("0.90"), requested=Gib("14.20")),
        ),
    ),
)

PROFILED_TERMS = Matcher(
    name="vllm.profiled_terms",
    anchor="model weights take ",
    pattern=(
        rf"model weights take (?P<weights>{NUMBER})GiB; non_torch_memory takes "
        rf"(?P<non_torch>{NUMBER})GiB; PyTorch activation peak memory takes "
        rf"(?P<activation>{NUMBER})GiB; the rest of the memory reserved for KV Cache is "
        rf"(?P<kv>{NUMBER})GiB"
    ),
    event=Profiled,
    means="The terms of a process's account.",
    seen_in="0.6.6.post1 … 0.10.2",
    samples=(
        Sample(
            "model weights take 7.51GiB; non_torch_memory takes 0.39GiB; PyTorch activation peak "
            "memory takes 2.53GiB; the rest of the memory reserved for KV Cache is 3.76GiB.",
            Profiled(
                weights=Gib("7.51"),
                non_torch=Gib("0.39"),
                activation=Gib("2.53"),
                kv=Gib("3.76"),
            ),
        ),
    ),
)

PROFILED_ONE_LINE = Matcher(
    name="vllm.profiled_one_line",
    anchor="Memory profiling results: total_gpu_memory=",
    pattern=(
        rf"total_gpu_memory=(?P<total>{NUMBER})GiB initial_memory_usage={NUMBER}GiB "
        rf"peak_torch_memory=(?P<peak>{NUMBER})GiB memory_usage_post_profile={NUMBER}Gi[bB] "
        rf"non_torch_memory=(?P<non_torch>{NUMBER})GiB kv_cache_size=(?P<kv>{NUMBER})GiB "
        rf"gpu_memory_utilization=(?P<utilization>{NUMBER})"
    ),
    event=Profiled,
    means="The same in one line; other processes' memory is in non_torch_memory.",
    seen_in="0.6.4.post1 … 0.6.5",
    samples=(
        Sample(
            "Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=16.06GiB "
            "peak_torch_memory=17.06GiB memory_usage_post_profile=16.31GiB non_torch_memory=0.35"
            "GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90",
            Profiled(
                total=Gib("23.58"),
                peak=Gib("17.06"),
                non_torch=Gib("0.35"),
                kv=Gib("3.81"),
                utilization=Decimal("0.90"),
            ),
        ),
    ),
)

PROFILED_COMMAS = Matcher(
    name="vllm.profiled_commas",
    anchor="Memory profiling results: duration=",
    pattern=(
        rf"total_gpu_memory=(?P<total>{NUMBER})GiB, initial_memory_usage={NUMBER}GiB, "
        rf"peak_torch_memory=(?P<peak>{NUMBER})GiB, memory_usage_post_profile={NUMBER}Gi[bB], "
        rf"non_torch_memory=(?P<non_torch>{NUMBER})GiB, kv_cache_size=(?P<kv>{NUMBER})GiB, "
        r"gpu_memory_utilization=(?P<utilization>\d(?:\.\d+)?)"
    ),
    event=Profiled,
    means="The same with commas and the seconds it took.",
    samples=(
        Sample(
            "Memory profiling results: duration=18.41 seconds, total_gpu_memory=191.98GiB, "
            "initial_memory_usage=62.50GiB, peak_torch_memory=66.25GiB, memory_usage_post_profile"
            "=68.04Gib, non_torch_memory=5.50GiB, kv_cache_size=116.39GiB, "
            "gpu_memory_utilization=0.98.",
            Profiled(
                total=Gib("191.98"),
                peak=Gib("66.25"),
                non_torch=Gib("5.50"),
                kv=Gib("116.39"),
                utilization=Decimal("0.98"),
            ),
        ),
    ),
)

FREE_AFTER = Matcher(
    name="vllm.free_after_profiling",
    anchor="Free memory after profiling: ",
    pattern=rf"Free memory after profiling: (?P<free>{NUMBER}) GiB \(total\), {NUMBER} GiB",
    event=FreeAfter,
    means="Free device memory when profiling ended (DEBUG).",
    seen_in="0.10.1.1 … 0.33.0",
    samples=(
        Sample(
            "Free memory after profiling: 60.50 GiB (total), 53.20 GiB (within requested)",
            FreeAfter(free=Gib("60.50")),
        ),
    ),
)

INITIAL_FREE = Matcher(
    name="vllm.initial_free",
    anchor="Initial free memory: ",
    pattern=(
        rf"Initial free memory: (?P<free>{NUMBER}) GiB[,;][^\n]{{0,80}}?[Rr]equested (?:GPU "
        rf")?memory: "
        rf"(?:(?P<utilization>[\d.]+) \(util\), )?(?P<requested>{NUMBER}) GiB"
    ),
    event=InitialFree,
    means="Free memory at the worker's start and what utilisation asks for (DEBUG).",
    seen_in="0.9.1 … 0.33.0",
    samples=(
        Sample(
            "Initial free memory: 78.58 GiB; Requested memory: 0.900000 (util), 71.26 GiB",
            InitialFree(free=Gib("78.58"), requested=Gib("71.26"), utilization=Exact("0.900000")),
        ),
        Sample(
            "Initial free memory: 78.58 GiB, free memory: 60.00 GiB, requested GPU memory: 71.26 "
            "GiB",
            InitialFree(free=Gib("78.58"), requested=Gib("71.26")),
        ),
    ),
)

INITIAL_SNAPSHOT = Matcher(
    name="vllm.initial_snapshot",
    anchor="worker init memory snapshot: ",
    pattern=(
        rf"worker init memory snapshot: [^\n]{{0,40}}free_memory=(?P<free>{NUMBER})GiB, "
        rf"total_memory=(?P<total>{NUMBER})GiB"
    ),
    event=InitialFree,
    means="The device at the worker's start (DEBUG).",
    seen_in="0.14.1 … 0.33.0",
    samples=(
        Sample(
            "worker init memory snapshot: torch_peak=0.0GiB, free_memory=78.58GiB, "
            "total_memory=79.19GiB, cuda_memory=0.61GiB",
            InitialFree(free=Gib("78.58"), total=Gib("79.19")),
        ),
    ),
)

MATCHERS = (
    USAGE_SUMMARY_BYTES,
    USAGE_SUMMARY,
    USAGE_SUMMARY_CONSUMED,
    USAGE_SUMMARY_PLATFORM,
    USAGE_SUMMARY_CUT,
    PROFILE_RESULT,
    PROFILED_BUDGET,
    PROFILED_TERMS,
    PROFILED_ONE_LINE,
    PROFILED_COMMAS,
    FREE_AFTER,
    INITIAL_FREE,
    INITIAL_SNAPSHOT,
)
