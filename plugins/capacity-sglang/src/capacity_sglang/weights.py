"""Before and after a model's weights: free memory, and what loading them took."""

from __future__ import annotations

import re
from decimal import Decimal

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Gib, Ratio


@attrs.frozen(kw_only=True)
class DistributedReady:
    """What initialising the process group took on this rank (free before minus free after)."""

    used: Gib


@attrs.frozen(kw_only=True)
class WeightsBegin:
    """Free device memory just before a model's weights. Printed again for a draft model."""

    free: Gib


@attrs.frozen(kw_only=True)
class WeightsLoaded:
    """Free device memory after a model's weights, and what loading them took. Printed again for a
    draft model."""

    free: Gib
    used: Gib | None = None
    model_class: str | None = None


@attrs.frozen(kw_only=True)
class WeightsOverlapped:
    """Weights that were committed behind the capture of graphs: what they took is not printed."""


@attrs.frozen(kw_only=True)
class Baseline:
    """The difference of two readings in a row, after the process group: no cost of anything."""

    used: Gib


@attrs.frozen(kw_only=True)
class Unbalanced:
    """A rank sees more free memory than another: the least of all, and its own, unrounded."""

    least: Gib | None = None
    mine: Gib | None = None


@attrs.frozen(kw_only=True)
class FractionReduced:
    """The scheduler lowered the fraction behind the arguments' back; three decimals."""

    mem_fraction_static: Ratio


DISTRIBUTED_READY = Matcher(
    name="sglang.distributed_ready",
    anchor="Init torch distributed ends.",
    pattern=rf"Init torch distributed ends\.(?: elapsed=[\d.]+ s,)? mem usage=(?P<used>{NUMBER}) "
    rf"GB",
    event=DistributedReady,
    means="Memory that process-group initialisation took on this rank. Gone from 0.5.21 on.",
    seen_in="0.4.3.post4 … 0.5.20",
    samples=(
        Sample(
            "Init torch distributed ends. mem usage=0.55 GB", DistributedReady(used=Gib("0.55"))
        ),
        Sample(
            "Init torch distributed ends. elapsed=1.20 s, mem usage=1.05 GB",
            DistributedReady(used=Gib("1.05")),
        ),
    ),
)

WEIGHTS_BEGIN = Matcher(
    name="sglang.weights_begin",
    anchor="Load weight begin.",
    pattern=rf"Load weight begin\. avail mem=(?P<free>{NUMBER}) GB",
    event=WeightsBegin,
    means="Free memory of this rank before weights: within rounding what mem_fraction_static "
    "multiplies.",
    seen_in="0.2.15 … 0.5.23",
    samples=(
        Sample("Load weight begin. avail mem=78.58 GB", WeightsBegin(free=Gib("78.58"))),
        Sample("Load weight begin. avail mem=9.1 GB", WeightsBegin(free=Gib("9.1"))),
    ),
)

WEIGHTS_LOADED_OLD = Matcher(
    name="sglang.weights_loaded_old",
    anchor="Load weight end.",
    pattern=(
        rf"Load weight end\. type=(?P<model_class>\w+), dtype=[\w.]+, avail "
        rf"mem=(?P<free>{NUMBER}) GB(?!,)"
    ),
    event=WeightsLoaded,
    means="Free memory after weights; what they took is not printed.",
    seen_in="0.2.15 … 0.4.0.post2",
    samples=(
        Sample(
            "Load weight end. type=AForCausalLM, dtype=torch.bfloat16, avail mem=9.69 GB",
            WeightsLoaded(free=Gib("9.69"), model_class="AForCausalLM"),
        ),
    ),
)

WEIGHTS_LOADED_DTYPE = Matcher(
    name="sglang.weights_loaded_dtype",
    anchor="Load weight end.",
    pattern=(
        rf"Load weight end\. type=(?P<model_class>\w+), dtype=[\w.]+, avail "
        rf"mem=(?P<free>{NUMBER}) GB,"
        rf"(?: mem usage=(?P<used>{NUMBER}) GB)?"
    ),
    event=WeightsLoaded,
    means="Free memory after weights, and what they took (unrounded difference, then rounded).",
    seen_in="0.4.3.post4 … 0.5.9",
    samples=(
        Sample(
            "Load weight end. type=AForCausalLM, dtype=torch.bfloat16, avail mem=61.50 GB, mem "
            "usage=15.75 GB.",
            WeightsLoaded(free=Gib("61.50"), used=Gib("15.75"), model_class="AForCausalLM"),
        ),
        Sample(
            "Load weight end. type=AForCausalLM, dtype=torch.bfloat16, avail mem=61.50 GB, mem us",
            WeightsLoaded(free=Gib("61.50"), model_class="AForCausalLM"),
        ),
    ),
    near_misses=("Load weight end. type=AForCausalLM, dtype=torch.bfloat16, avail mem=",),
)

WEIGHTS_LOADED = Matcher(
    name="sglang.weights_loaded",
    anchor="Load weight end.",
    pattern=(
        rf"Load weight end\. elapsed=[\d.]+ s,(?: type=(?P<model_class>\w+),)?"
        rf"[^\n]{{0,300}}? avail mem=(?P<free>{NUMBER}) GB(?:, mem usage=(?P<used>{NUMBER}) GB)?"
    ),
    event=WeightsLoaded,
    means="Free memory after weights, and what they took.",
    seen_in="0.5.9 … 0.5.23",
    samples=(
        Sample(
            "Load weight end. elapsed=7.25 s, type=AForCausalLM, quant=fp8, fmt=e4m3, "
            "avail mem=61.50 GB, mem usage=15.75 GB.",
            WeightsLoaded(free=Gib("61.50"), used=Gib("15.75"), model_class="AForCausalLM"),
        ),
        Sample(
            "Load weight end. elapsed=7.25 s, type=AForCausalLM, avail mem=61.50 GB, mem "
            "usage=-0.75 GB.",
            WeightsLoaded(free=Gib("61.50"), used=Gib("-0.75"), model_class="AForCausalLM"),
        ),
    ),
    near_misses=(
        "Load weight end. Committed real weights after CUDA graph capture in 1.20 s (capture",
    ),
)

WEIGHTS_LOADED_TRIMMED = Matcher(
    name="sglang.weights_loaded_trimmed",
    anchor="Load weight end.",
    pattern=(
        r"Load weight end\.(?! elapsed=| type=| Committed)[^\n]{0,300}?"
        rf" avail mem=(?P<free>{NUMBER}) GB(?:, mem usage=(?P<used>{NUMBER}) GB)?"
    ),
    event=WeightsLoaded,
    means="The same with its middle edited out, as people paste it.",
    samples=(
        Sample(
            "Load weight end. quant=fp8, avail mem=12.25 GB, mem usage=125.65 GB.",
            WeightsLoaded(free=Gib("12.25"), used=Gib("125.65")),
        ),
        Sample(
            "Load weight end. ... avail mem=12.25 GB, mem usage=1.65 GB.",
            WeightsLoaded(free=Gib("12.25"), used=Gib("1.65")),
        ),
    ),
)

WEIGHTS_OVERLAPPED = Matcher(
    name="sglang.weights_overlapped",
    anchor="Load weight end. Committed real weights ",
    pattern=r"Load weight end\. Committed real weights after CUDA graph capture in ",
    event=WeightsOverlapped,
    means="Real weights replaced dummy ones behind the capture; without figures.",
    seen_in="0.5.18 … 0.5.23",
    samples=(
        Sample(
            "Load weight end. Committed real weights after CUDA graph capture in 1.20 s (capture",
            WeightsOverlapped(),
        ),
    ),
)

BASELINE = Matcher(
    name="sglang.baseline",
    anchor="Memory baseline taken. mem usage=",
    pattern=rf"Memory baseline taken\. mem usage=(?P<used>{NUMBER}) GB",
    event=Baseline,
    means="Two readings after the process group was made; not what the group took.",
    seen_in="0.5.21 … 0.5.23",
    samples=(Sample("Memory baseline taken. mem usage=0.00 GB", Baseline(used=Gib("0.00"))),),
)

UNBALANCED = Matcher(
    name="sglang.unbalanced",
    anchor="The memory capacity is unbalanced.",
    pattern=(
        r"The memory capacity is unbalanced\. Some GPUs may be occupied by other processes\."
        rf"(?: \w+=(?P<least>{NUMBER}), local_gpu_memory=(?P<mine>{NUMBER}))?"
    ),
    event=Unbalanced,
    means="Something else holds memory on one of the devices; older releases end with it.",
    seen_in="0.2.15 … 0.5.23",
    samples=(
        Sample(
            "The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
            "min_per_gpu_memory=61.0390625, local_gpu_memory=78.6005859375, local",
            Unbalanced(least=Gib("61.0390625"), mine=Gib("78.6005859375")),
        ),
        Sample(
            "The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
            Unbalanced(),
        ),
    ),
)

FRACTION_REDUCED = Matcher(
    name="sglang.fraction_reduced",
    anchor="Automatically reduce --mem-fraction-static to ",
    pattern=(
        rf"Automatically reduce --mem-fraction-static to (?P<mem_fraction_static>{NUMBER}) because"
    ),
    event=FractionReduced,
    means="The fraction that counts is this one, not that of the arguments.",
    seen_in="0.4.3.post4 … 0.4.6.post5",
    samples=(
        Sample(
            "Automatically reduce --mem-fraction-static to 0.792 because this is a multimodal",
            FractionReduced(mem_fraction_static=Decimal("0.792")),
        ),
    ),
)

MATCHERS = (
    WEIGHTS_OVERLAPPED,
    BASELINE,
    UNBALANCED,
    FRACTION_REDUCED,
    DISTRIBUTED_READY,
    WEIGHTS_BEGIN,
    WEIGHTS_LOADED_OLD,
    WEIGHTS_LOADED_DTYPE,
    WEIGHTS_LOADED,
    WEIGHTS_LOADED_TRIMMED,
)

# Draft models' classes, as srt/models of 0.4.6 … 0.5.23 name them (LlamaForCausalLMEagle3,
# DeepseekV3ForCausalLMNextN, XxxMTP, DFlashXxx, …DSpark).
_DRAFT_CLASS = re.compile(r"Eagle|NextN|MTP|DFlash|DSpark|Medusa|Draft|Assistant", re.IGNORECASE)


def is_draft_class(model_class: str | None) -> bool:
    """Whether a model's class is one that only serves as a draft."""
    return model_class is not None and _DRAFT_CLASS.search(model_class) is not None
