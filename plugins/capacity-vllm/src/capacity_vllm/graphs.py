"""CUDA graphs: what capturing took, what was estimated, and whether the estimate came off the KV
budget."""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Gib, Ratio


@attrs.frozen(kw_only=True)
class CaptureTook:
    """A drop of free memory around one capture; negative when memory came back meanwhile.

    The profiling capture of 0.18 and later prints the same line before the KV budget. None: not
    printed.
    """

    used: Gib | None = None


@attrs.frozen(kw_only=True)
class GraphPool:
    """What the captures took in the end, beside the estimate."""

    actual: Gib
    estimated: Gib


@attrs.frozen(kw_only=True)
class GraphEstimate:
    """The graph memory that profiling estimated; printed whether or not it is applied."""

    estimate: Gib


@attrs.frozen(kw_only=True)
class EstimateApplied:
    """The estimate came off the KV budget; `utilization` is the one asked for, four decimals."""

    utilization: Ratio


@attrs.frozen(kw_only=True)
class EstimateNotApplied:
    """The estimate did not come off the KV budget."""

    utilization: Ratio


CAPTURE_TOOK = Matcher(
    name="vllm.capture_took",
    anchor="Graph capturing finished in ",
    pattern=rf"Graph capturing finished in {NUMBER} secs, took (?P<used>{NUMBER}) GiB",
    event=CaptureTook,
    means="What capturing took; from 0.11.2 local rank 0 alone prints it.",
    seen_in="0.6.4.post1 … 0.33.0",
    samples=(
        Sample("Graph capturing finished in 12 secs, took 0.61 GiB", CaptureTook(used=Gib("0.61"))),
        Sample(
            "Graph capturing finished in 4 secs, took -0.41 GiB", CaptureTook(used=Gib("-0.41"))
        ),
    ),
    near_misses=("Graph capturing finished in 12 secs.",),
)

CAPTURE_DONE = Matcher(
    name="vllm.capture_done",
    anchor="Graph capturing finished in ",
    pattern=rf"Graph capturing finished in {NUMBER} secs\.",
    event=CaptureTook,
    means="A capture ended; its memory is not printed.",
    seen_in="0.2.7 … 0.6.3.post1",
    samples=(Sample("Graph capturing finished in 12 secs.", CaptureTook()),),
)

GRAPH_POOL = Matcher(
    name="vllm.graph_pool",
    anchor="CUDA graph pool memory:",
    pattern=(
        rf"CUDA graph pool memory: (?P<actual>{NUMBER}) GiB \(actual\), (?P<estimated>{NUMBER}) "
        rf"GiB \(estimated\)"
    ),
    event=GraphPool,
    means="What the graphs of this worker hold, and what was estimated.",
    seen_in="0.18.0 … 0.33.0",
    samples=(
        Sample(
            "CUDA graph pool memory: 1.02 GiB (actual), 0.86 GiB (estimated), difference: 0.16 "
            "GiB (15.7%).",
            GraphPool(actual=Gib("1.02"), estimated=Gib("0.86")),
        ),
    ),
)

GRAPH_ESTIMATE = Matcher(
    name="vllm.graph_estimate",
    anchor="Estimated CUDA graph memory:",
    pattern=rf"Estimated CUDA graph memory: (?P<estimate>{NUMBER}) GiB",
    event=GraphEstimate,
    means="The estimate of graph memory.",
    seen_in="0.18.0 … 0.33.0",
    samples=(
        Sample("Estimated CUDA graph memory: 0.36 GiB total", GraphEstimate(estimate=Gib("0.36"))),
    ),
)

ESTIMATE_APPLIED = Matcher(
    name="vllm.estimate_applied",
    anchor="CUDA graph memory profiling is enabled",
    pattern=(
        r"CUDA graph memory profiling is enabled [^\n]{0,120}?"
        r"current --gpu-memory-utilization=(?P<utilization>\d\.\d+) is equivalent"
    ),
    event=EstimateApplied,
    means="The estimate was taken off the KV budget.",
    seen_in="0.18.0 … 0.33.0",
    samples=(
        Sample(
            "CUDA graph memory profiling is enabled (default since v0.21.0). The current "
            "--gpu-memory-utilization=0.8900 is equivalent to --gpu-memory-utilization=0.8829 "
            "without",
            EstimateApplied(utilization=Decimal("0.8900")),
        ),
    ),
)

ESTIMATE_NOT_APPLIED = Matcher(
    name="vllm.estimate_not_applied",
    anchor="increasing --gpu-memory-utilization from ",
    pattern=r"increasing --gpu-memory-utilization from (?P<utilization>\d\.\d+) to ",
    event=EstimateNotApplied,
    means="The estimate was not taken off the KV budget.",
    seen_in="0.20.0 … 0.33.0",
    samples=(
        Sample(
            "and increasing --gpu-memory-utilization from 0.9000 to 0.9200.",
            EstimateNotApplied(utilization=Decimal("0.9000")),
        ),
    ),
)

ESTIMATE_ANNOUNCED = Matcher(
    name="vllm.estimate_announced",
    anchor="increase --gpu-memory-utilization from ",
    pattern=r"increase --gpu-memory-utilization from (?P<utilization>\d\.\d+) to ",
    event=EstimateNotApplied,
    means="The same in the words of the releases that announced it.",
    seen_in="0.18.0 … 0.19.1",
    samples=(
        Sample(
            "and increase --gpu-memory-utilization from 0.9000 to 0.9200 to maintain",
            EstimateNotApplied(utilization=Decimal("0.9000")),
        ),
    ),
)

MATCHERS = (
    CAPTURE_TOOK,
    CAPTURE_DONE,
    GRAPH_POOL,
    GRAPH_ESTIMATE,
    ESTIMATE_APPLIED,
    ESTIMATE_NOT_APPLIED,
    ESTIMATE_ANNOUNCED,
)
