"""Before and after a model's weights: free memory, and what loading them took."""

from __future__ import annotations

import re

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Gib


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

MATCHERS = (
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
