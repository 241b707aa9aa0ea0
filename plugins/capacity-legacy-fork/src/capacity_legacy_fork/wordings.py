"""Wordings that no release prints, each a matcher on an event that SGLang's extractor knows."""

from __future__ import annotations

from decimal import Decimal

from capacity_core.api import NUMBER, Arguments, Matcher, Sample
from capacity_core.units import Exact, Gib
from capacity_sglang.args import ServerArgs
from capacity_sglang.compressed import COMPRESSED_FIGURES, CompressedBudget
from capacity_sglang.graphs import CaptureEnd
from capacity_sglang.pools import KvBudget

BARE_SERVER_ARGS = Matcher(
    name="legacy_fork.server_args",
    anchor="ServerArgs(",
    # Releases print `server_args=` before it, which is SGLang's own matcher's.
    pattern=r"(?<!server_args=)\bServerArgs\((?P<arguments>(?=[^\n]{0,4000}?\bmodel_path=).*)",
    event=ServerArgs,
    means="Launch arguments as a bare dataclass repr.",
    samples=(
        Sample(
            "ServerArgs(model_path='/m', tp_size=8)",
            ServerArgs(arguments=Arguments("model_path='/m', tp_size=8)")),
        ),
        Sample(
            "starting with ServerArgs(tp_size=2, model_path='/n', quantization=None)",
            ServerArgs(arguments=Arguments("tp_size=2, model_path='/n', quantization=None)")),
        ),
    ),
    near_misses=("server_args=ServerArgs(model_path='/m')", "class ServerArgs(object):"),
    window=65536,
)

MEMORY_PROFILING = Matcher(
    name="legacy_fork.memory_profiling",
    anchor="Memory profiling: available_gpu_memory=",
    pattern=(
        rf"Memory profiling: available_gpu_memory=(?P<free_after_weights>{NUMBER}) GB, "
        rf"total_gpu_memory=(?P<free_before_weights>{NUMBER}) GB, "
        rf"mem_fraction_static=(?P<mem_fraction_static>{NUMBER}), "
        rf"rest_memory=(?P<budget>{NUMBER}) GB"
    ),
    event=KvBudget,
    means="The KV budget and what it was computed from, minima over ranks.",
    samples=(
        Sample(
            "Memory profiling: available_gpu_memory=61.50 GB, total_gpu_memory=78.58 GB, "
            "mem_fraction_static=0.88, rest_memory=52.07 GB",
            KvBudget(
                budget=Gib("52.07"),
                free_after_weights=Gib("61.50"),
                free_before_weights=Gib("78.58"),
                mem_fraction_static=Exact("0.88"),
            ),
        ),
        Sample(
            "Memory profiling: available_gpu_memory=5.00 GB, total_gpu_memory=78.58 GB, "
            "mem_fraction_static=0.9, rest_memory=-2.86 GB",
            KvBudget(
                budget=Gib("-2.86"),
                free_after_weights=Gib("5.00"),
                free_before_weights=Gib("78.58"),
                mem_fraction_static=Exact("0.9"),
            ),
        ),
    ),
)

COMPRESSED_BUDGET = Matcher(
    name="legacy_fork.compressed_budget",
    anchor="DSv4 memory calculation:",
    pattern=rf"DSv4 memory calculation:{COMPRESSED_FIGURES}",
    event=CompressedBudget,
    means="The sizing of compressed pools, spelt otherwise.",
    samples=(
        Sample(
            "DSv4 memory calculation: bytes_per_full_token=7705.45, available_bytes=40.00 GB, "
            "full_token=5221376",
            CompressedBudget(
                bytes_per_full_token=Decimal("7705.45"), budget=Gib("40.00"), full_tokens=5221376
            ),
        ),
        Sample(
            "DSv4 memory calculation: full_token=4096, bytes_per_full_token=7000.00, "
            "available_bytes=1.25 GB",
            CompressedBudget(
                bytes_per_full_token=Decimal("7000.00"), budget=Gib("1.25"), full_tokens=4096
            ),
        ),
    ),
)

SLIDING_WINDOW_BUDGET = Matcher(
    name="legacy_fork.sliding_window_budget",
    anchor="SW KV memory calculation:",
    pattern=rf"SW KV memory calculation:{COMPRESSED_FIGURES}",
    event=CompressedBudget,
    means="The same for pools with a sliding window.",
    samples=(
        Sample(
            "SW KV memory calculation: bytes_per_full_token=15955.85, available_bytes=45.78 GB, "
            "full_token=3080960",
            CompressedBudget(
                bytes_per_full_token=Decimal("15955.85"), budget=Gib("45.78"), full_tokens=3080960
            ),
        ),
        Sample(
            "SW KV memory calculation: available_bytes=0.50 GB, full_token=1024, "
            "bytes_per_full_token=512.00",
            CompressedBudget(
                bytes_per_full_token=Decimal("512.00"), budget=Gib("0.50"), full_tokens=1024
            ),
        ),
    ),
)

CAPTURE_END = Matcher(
    name="legacy_fork.capture_end",
    anchor="Capture cuda graph end.",
    pattern=(
        rf"Capture cuda graph end\.(?: elapsed=[\d.]+ s,)? mem usage=(?P<used>{NUMBER}) GB[.,]"
        rf" avail mem=(?P<free>{NUMBER}) GB"
    ),
    event=CaptureEnd,
    means="What a capture took, with commas, or without the time.",
    samples=(
        Sample(
            "Capture cuda graph end. elapsed=12.47 s, mem usage=1.93 GB, avail mem=8.16 GB.",
            CaptureEnd(used=Gib("1.93"), free=Gib("8.16")),
        ),
        Sample(
            "Capture cuda graph end. mem usage=1.93 GB. avail mem=8.16 GB.",
            CaptureEnd(used=Gib("1.93"), free=Gib("8.16")),
        ),
    ),
    near_misses=(
        "Capture cuda graph end. Time elapsed: 2.19 s",
        "Capture cuda graph end. Time elapsed: 9.1 s. mem usage=2.00 GB. avail mem=9.16 GB.",
    ),
)

MATCHERS = (
    BARE_SERVER_ARGS,
    MEMORY_PROFILING,
    COMPRESSED_BUDGET,
    SLIDING_WINDOW_BUDGET,
    CAPTURE_END,
)
