"""The memory profile: the usage summary in its wordings, and what DEBUG logs say before it."""

from __future__ import annotations

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Bytes, Exact, ExactRatio, Gib


@attrs.frozen(kw_only=True)
class UsageSummary:
    """One worker's whole account, printed after warm-up.

    Device free and total at start-up, utilisation and what it asks for, weights, activation peak,
    memory outside torch, graphs. From 0.27 `consumed` stands for weights and non-torch together.
    `kv` is in use,
    `kv_bytes` the same exactly.
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


@attrs.frozen(kw_only=True)
class ProfileResult:
    """What profiling measured (DEBUG)."""

    activation: Gib
    non_torch: Gib | None = None
    weights: Gib | None = None


@attrs.frozen(kw_only=True)
class InitialFree:
    """Free memory when the worker started (DEBUG)."""

    free: Gib
    requested: Gib | None = None


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
_ANCHOR = " GiB) on startup. Desired GPU memory utilization is ("

USAGE_SUMMARY_BYTES = Matcher(
    name="vllm.usage_summary_bytes",
    anchor=_ANCHOR,
    pattern=_HEAD
    + _WEIGHTS
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
    + rf"(?![^\n]{{0,400}}\d bytes)(?:[^\n]{{0,400}}?Current kv cache memory in use is "
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
        rf"(?:[^\n]{{0,400}}?Current kv cache memory in use is (?P<kv>{NUMBER}) GiB)?"
    ),
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

INITIAL_FREE = Matcher(
    name="vllm.initial_free",
    anchor="Initial free memory: ",
    pattern=(
        rf"Initial free memory: (?P<free>{NUMBER}) GiB[,;][^\n]{{0,80}}?[Rr]equested (?:GPU "
        rf")?memory: "
        rf"(?:[\d.]+ \(util\), )?(?P<requested>{NUMBER}) GiB"
    ),
    event=InitialFree,
    means="Free memory at the worker's start and what utilisation asks for (DEBUG).",
    seen_in="0.9.1 … 0.33.0",
    samples=(
        Sample(
            "Initial free memory: 78.58 GiB; Requested memory: 0.90 (util), 71.26 GiB",
            InitialFree(free=Gib("78.58"), requested=Gib("71.26")),
        ),
        Sample(
            "Initial free memory: 78.58 GiB, free memory: 60.00 GiB, requested GPU memory: 71.26 "
            "GiB",
            InitialFree(free=Gib("78.58"), requested=Gib("71.26")),
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
    INITIAL_FREE,
)
