"""How a server died: which memory ran out, where, by how much, and what helps.

Each log is a small one in the engine's own words, of the releases named beside it. The same words
"out of memory" are of the device, of the host, of the slots of a pool or of a multiprocessor, and
what helps against one makes the other worse. Amounts are arithmetic on the figures of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.rendering.text import TextRenderer

from . import vllm_lines as vllm
from .running import Report, found, gib, is_unknown, report_on, shipped_plugins
from .sglang_lines import (
    TRACEBACK,
    UP,
    as_repr,
    graph,
    limits,
    pool,
    pools_end,
    said,
    weights,
)

Log = list[str]


def failure_of(folder: Path, lines: Sequence[str]) -> Report:
    outcome = report_on(folder, lines)["outcome"]
    assert outcome["status"] == "failed", outcome
    failure: Report = outcome["failure"]
    return failure


def line_of(lines: Sequence[str], words: str) -> int:
    """The number of the first line with these words."""
    return next(number for number, line in enumerate(lines, 1) if words in line)


# --- SGLang -----------------------------------------------------------

DIED = f"Scheduler hit an exception: {TRACEBACK}"
FILE = '  File "model_runner.py", line 300, in __init__'
SIGQUIT = "Received sigquit from a child process. It usually means the child failed."

# Free memory: 78 before weights, 62 after them, 22 after the pools, 20.50 after the graphs.
LOADED = weights(78.00, 16.00)
POOLED = [*LOADED, pool(300_000, 20.00), pools_end(22.00)]
CAPTURING = [*POOLED, graph(22.00, 1.50)[0]]
CAPTURED = [*POOLED, *graph(22.00, 1.50)]
SERVING = [*CAPTURED, limits(300_000, free=20.50), UP]
BATCH = (
    "Decode batch. #running-req: 3, #token: 4000, token usage: 0.50, cuda graph: True, gen "
    "throughput (token/s): 512.70, #queue-req: 1, "
)
REACHED = {
    "startup": [],
    "before_weights": LOADED[:1],
    "after_weights": LOADED,
    "after_pools": POOLED,
    "before_graphs": CAPTURING,
    "after_graphs": CAPTURED,
    "serving": [*SERVING, BATCH],
}


def died(reached: Sequence[str], error: str, rank: str = "") -> Log:
    """The scheduler's traceback behind what was reached, and the launcher's last word."""
    return [
        *said(as_repr(), *reached, rank=rank),
        *said(DIED, rank=rank, at="10:01"),
        FILE,
        error,
        "",
        *said(SIGQUIT, at="10:02"),
    ]


ALLOCATOR = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 1.20 GiB is free. Process 7 has 77.90 GiB memory in use. Of the allocated memory 70.00 "
    "GiB is allocated by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated."
)
BY_STAGE = {
    "startup": "weights_out_of_memory",
    "before_weights": "weights_out_of_memory",
    "after_weights": "profiling_out_of_memory",
    "after_pools": "graph_capture_out_of_memory",
    "before_graphs": "graph_capture_out_of_memory",
    "after_graphs": "graph_capture_out_of_memory",
    "serving": "runtime_out_of_memory",
}


@pytest.mark.parametrize("stage", BY_STAGE)
def test_the_allocators_message_is_told_by_the_stage(tmp_path: Path, stage: str) -> None:
    lines = died(REACHED[stage], f"torch.OutOfMemoryError: {ALLOCATOR}")
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == (BY_STAGE[stage], stage)
    assert failure["evidence"] == [f"log0:{line_of(lines, 'OutOfMemoryError')}"]
    assert "Tried to allocate 2.50 GiB" in failure["message"]
    assert (failure["needed"]["value"], failure["needed"]["unit"]) == (2.50, "GiB")
    assert failure["available"]["value"] == 1.20
    assert failure["total"]["value"] == 79.11
    assert failure["short"]["value"] == gib(2.50 - 1.20)
    # Each figure is within half of its last digit.
    assert failure["short"]["error"] == pytest.approx(0.005 + 0.005)
    assert failure["short"]["origin"] == "derived"


MESSAGES = {
    "torch 2.1": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB. GPU 3 has "
        "a total capacty of 79.11 GiB of which 27.50 MiB is free. Including non-PyTorch memory, "
        "this process has 79.08 GiB memory in use.",
        (128 / 1024, 27.50 / 1024, 79.11),
    ),
    "torch 2.0": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; "
        "10.00 GiB total capacity; 9.50 GiB already allocated; 10.25 MiB free; 9.75 GiB reserved "
        "in total by PyTorch)",
        (20 / 1024, 10.25 / 1024, 10.00),
    ),
    "HIP": (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total "
        "capacity of 191.98 GiB of which 0.75 GiB is free. Of the allocated memory 180.00 GiB is "
        "allocated by PyTorch",
        (3.00, 0.75, 191.98),
    ),
    "HIP, compiling": (
        "torch._inductor.exc.InductorError: OutOfMemoryError: HIP out of memory. Tried to allocate "
        "80.00 MiB. GPU 0 has a total capacity of 15.92 GiB of which 0 bytes is free. Of the "
        "allocated memory 15.63 GiB is allocated by PyTorch",
        (80 / 1024, 0, 15.92),
    ),
    "a few KiB": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total "
        "capacity of 23.64 GiB of which 512.00 KiB is free.",
        (2 / 1024, 512 / 1024**2, 23.64),
    ),
    "NPU": (
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total "
        "capacity; 58.10 GiB already allocated; 58.10 GiB current active; 1.50 GiB free; 58.20 GiB "
        "reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
        "max_split_size_mb to avoid fragmentation.",
        (2.00, 1.50, 60.97),
    ),
    "XPU": (
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 15.56 GiB. Of the allocated memory 14.00 GiB is allocated by PyTorch, and "
        "1.00 GiB is reserved by PyTorch but unallocated.",
        (2.00, None, 15.56),
    ),
    "XPU, older": (
        "RuntimeError: XPU out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.56 GiB total "
        "capacity; 14.00 GiB already allocated; 14.20 GiB reserved in total by PyTorch)",
        (2.00, None, 15.56),
    ),
    "more than any": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        (None, None, None),
    ),
    "run-time": ("RuntimeError: CUDA error: out of memory", (None, None, None)),
    "run-time, newer": ("torch.AcceleratorError: CUDA error: out of memory", (None, None, None)),
    "HIP run-time": ("RuntimeError: HIP error: out of memory", (None, None, None)),
    "driver": ("RuntimeError: CUDA driver error: out of memory", (None, None, None)),
    "sleep": (
        "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:139",
        (None, None, None),
    ),
    "a library": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        (None, None, None),
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("stage", ["before_weights", "serving"])
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_words_of_every_allocator(tmp_path: Path, name: str, stage: str, engine: str) -> None:
    error, amounts = MESSAGES[name]
    if engine == "sglang":
        lines = died(REACHED[stage], error)
    else:
        stage = {"before_weights": "startup"}.get(stage, stage)
        lines = [*VLLM_REACHED[stage], *vllm.failed(error)]
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == (BY_STAGE[stage], stage)
    assert failure["evidence"] == [f"log0:{line_of(lines, error[:60])}"]
    for field, amount in zip(("needed", "available", "total"), amounts, strict=True):
        if amount is None:
            assert is_unknown(failure[field])
        else:
            assert failure[field]["value"] == pytest.approx(amount, abs=1e-5)
    needed, available, _ = amounts
    if needed is None or available is None:
        assert is_unknown(failure["short"])
    else:
        assert failure["short"]["value"] == pytest.approx(needed - available, abs=1e-5)


# What SGLang says in its own words: message, kind, the stage that it implies.
OWN_SGLANG: dict[str, tuple[Sequence[str], str, str, str]] = {
    "0.2.15 no pool": (
        LOADED,
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "no_kv_memory",
        "after_weights",
    ),
    "0.5.5 no pool": (
        LOADED,
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current "
        "value: self.server_args.mem_fraction_static=0.15",
        "no_kv_memory",
        "after_weights",
    ),
    "0.5.15 no pool": (
        LOADED,
        "ValueError: Loaded weights leave no GPU memory for the KV cache under "
        "--mem-fraction-static=0.2. Raise --mem-fraction-static above 0.226 (minimum viable = 1 - "
        "available/pre = 0.2051). If using speculative decoding, draft weights are now counted.",
        "no_kv_memory",
        "after_weights",
    ),
    "0.5.15 no states": (
        LOADED,
        "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. "
        "Computed max_mamba_cache_size=0 (total_rest_memory=0.25 GB, mamba_cache_per_req=64.00 "
        "MB). Try: (1) reduce --max-running-requests, (2) increase --mem-fraction-static, (3) "
        "reduce --speculative-num-draft-tokens, or (4) use GPUs with more memory.",
        "no_kv_memory",
        "after_weights",
    ),
    "0.5.18 few states": (
        LOADED,
        "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any "
        "requests. max_mamba_cache_size=2, mamba_ratio=3, resulting max_num_reqs=0. Try: (1) "
        "reduce --max-running-requests, (2) increase --mem-fraction-static, or (3) use GPUs with "
        "more memory.",
        "no_kv_memory",
        "after_weights",
    ),
    "0.5.15 window takes all": (
        LOADED,
        "ValueError: SWA pool cap (606464 tokens) leaves no room for the full KV pool",
        "no_kv_memory",
        "after_weights",
    ),
    "0.5.18 window too small": (
        LOADED,
        "ValueError: SWA pool (512 tokens) cannot hold even one request: the prefill admission "
        "floor is sliding_window_size (1024) + page_size (64). Increase --swa-full-tokens-ratio or "
        "the total KV budget.",
        "context_exceeds_kv_pool",
        "after_weights",
    ),
    "0.5.19 unified too small": (
        LOADED,
        "RuntimeError: [unified-memory-pool] hybrid: byte budget 1073741824 cannot fit ONE "
        "worst-case request (bs=1 floor 2147483648 = 1 + 2). A pool this size retract-livelocks at "
        "runtime. Raise --mem-fraction-static, lower the model context length, or reduce reserved "
        "memory.",
        "context_exceeds_kv_pool",
        "after_weights",
    ),
    "0.2.15 unbalanced": (
        [],
        "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other "
        "processes.",
        "device_memory_taken",
        "startup",
    ),
    "0.4.3 host": (
        POOLED,
        "ValueError: Not enough host memory available. Requesting 512.00 GB but only have 230.50 "
        "GB free. Please reduce the size of the hierarchical cache.",
        "host_memory",
        "after_pools",
    ),
    "0.5.12 host, paged": (
        POOLED,
        "ValueError: Not enough host memory for V4 paged pool c4. Requesting 512.00 GB but only "
        "have 230.50 GB free.",
        "host_memory",
        "after_pools",
    ),
    "0.5.21 host page": (
        POOLED,
        "ValueError: Host pool must hold a retraction and a receive page; increase --hicache-size "
        "or --hicache-ratio",
        "host_memory",
        "after_pools",
    ),
    "0.5.23 host, nothing left": (
        POOLED,
        "ValueError: No host memory is left for HiCache after the 10 GiB reserve; set "
        "--hicache-ratio or --hicache-size explicitly.",
        "host_memory",
        "after_pools",
    ),
    "0.5.23 host, no size": (
        POOLED,
        "RuntimeError: Cannot automatically size HiCache host memory; set --hicache-size "
        "explicitly (GB per rank), leaving room for other memory use within the container limit.",
        "host_memory",
        "after_pools",
    ),
    "0.5.23 host, HIP": (
        POOLED,
        "RuntimeError: hipHostMalloc of 64.00 GB for a HiCache host pool failed (rc=2, out of "
        "memory). With HSA_USERPTR_FOR_PAGED_MEM=0 host pools are GTT memory, which all ranks on a "
        "node share.",
        "host_memory",
        "after_pools",
    ),
    "0.5.23 host, pinned": (
        POOLED,
        "RuntimeError: Pinned host memory allocation of 59.6 GiB (64000000000 bytes) returned a "
        "null pointer",
        "host_memory",
        "after_pools",
    ),
    "0.5.12 draft block": (
        [*SERVING, BATCH],
        "RuntimeError: DFLASH draft OOM when allocating 256 block tokens.",
        "token_pool_exhausted",
        "serving",
    ),
    "0.2.15 request table": (
        [*SERVING, BATCH],
        "RuntimeError: Out of memory. Please set a smaller number for `--max-running-requests`.",
        "token_pool_exhausted",
        "serving",
    ),
    "0.4.3 request table": (
        [*SERVING, BATCH],
        "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for "
        "`--max-running-requests`. self.req_to_token_pool.available_size()=1, num_reqs=2, ",
        "token_pool_exhausted",
        "serving",
    ),
    "0.4.9 last request": (
        [*SERVING, BATCH],
        "ValueError: Failed to retract any request. No space left for only one request.",
        "token_pool_exhausted",
        "serving",
    ),
    "0.5.8 last request": (
        [*SERVING, BATCH],
        "ValueError: Out of memory even after retracting all other requests in the decode batch.",
        "token_pool_exhausted",
        "serving",
    ),
    "0.5.5 batch": (
        [*SERVING, BATCH],
        "RuntimeError: Out of memory. Try to lower your batch size.",
        "token_pool_exhausted",
        "serving",
    ),
    "0.5.12 leak": (
        [*SERVING, BATCH],
        "ValueError: token_to_kv_pool_allocator memory leak detected! self.max_total_num_tokens="
        "300000, available_size=299000, evictable_size=0",
        "not_memory",
        "serving",
    ),
}


@pytest.mark.parametrize("name", OWN_SGLANG)
@pytest.mark.parametrize("rank", ["", " TP1"], ids=["alone", "TP1"])
def test_sglangs_own_words(tmp_path: Path, name: str, rank: str) -> None:
    reached, error, kind, stage = OWN_SGLANG[name]
    lines = died(reached, error, rank)
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == (kind, stage)
    assert failure["evidence"] == [f"log0:{line_of(lines, error[:60])}"]
    assert failure["rank"] == ("DP0/PP0/TP1" if rank else None)
    assert error[:60] in failure["message"]


def test_slots_for_a_prompt_are_printed_before_the_traceback(tmp_path: Path) -> None:
    """0.3.6 … 0.4.3: an error of several lines, then the exception that repeats nothing of it."""
    lines = [
        *said(as_repr(), *SERVING, BATCH),
        *said("Prefill out of memory. Try to lower your batch size."),
        "Try to allocate 65536 tokens.",
        "Avaliable tokens: 1024",
        *said(DIED),
        FILE,
        "RuntimeError: Prefill out of memory. Try to lower your batch size.",
    ]
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == ("token_pool_exhausted", "serving")
    assert failure["evidence"][0] in (f"log0:{len(lines)}", f"log0:{line_of(lines, 'Prefill out')}")
    assert is_unknown(failure["needed"]), "tokens are no bytes"


def test_what_the_fraction_keeps_is_more_than_is_left(tmp_path: Path) -> None:
    """78 · (1 - 0.85) = 11.70 are to be kept free, and 8 are: 1 - 8 / 78 = 0.897 is the least."""
    error = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    failure = failure_of(tmp_path, died(weights(78.00, 70.00), error))

    assert failure["needed"]["value"] == gib(78.00 * 0.15)
    assert failure["available"]["value"] == 8.00
    assert failure["short"]["value"] == gib(11.70 - 8.00)
    assert "0.897" in failure["cures"][0]


def test_the_least_of_the_ranks_decides_what_is_kept(tmp_path: Path) -> None:
    """76 of 78 before weights and 6 of 8 after them."""
    lines = said(as_repr(tp_size=2))
    for tp, free in ((0, 78.00), (1, 76.00)):
        lines += said(*weights(free, 70.00), rank=f" TP{tp}")
    lines += said(DIED, rank=" TP1")
    lines.append("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    failure = failure_of(tmp_path, lines)

    assert failure["needed"]["value"] == gib(76.00 * 0.15)
    assert failure["available"]["value"] == 6.00
    assert failure["rank"] == "DP0/PP0/TP1"


def test_the_printed_minimum_is_the_one_to_stay_above(tmp_path: Path) -> None:
    error = OWN_SGLANG["0.5.15 no pool"][1]
    failure = failure_of(tmp_path, died(LOADED, error))

    assert "0.205" in failure["cures"][0]
    assert failure["needed"]["value"] == gib(78.00 * (1 - 0.85))


def test_host_figures_are_decimal(tmp_path: Path) -> None:
    """512 · 10^9 bytes are 476.84 GiB, 230.50 · 10^9 are 214.67."""
    error = OWN_SGLANG["0.4.3 host"][1]
    failure = failure_of(tmp_path, died(POOLED, error))

    assert failure["needed"]["value"] == pytest.approx(512.00e9 / 2**30, abs=1e-5)
    assert failure["available"]["value"] == pytest.approx(230.50e9 / 2**30, abs=1e-5)
    assert failure["short"]["value"] == pytest.approx((512.00 - 230.50) * 1e9 / 2**30, abs=1e-5)


def test_a_rank_that_waited_in_vain_is_not_what_ran_out(tmp_path: Path) -> None:
    """0.4.3: TP0 has its weights and gives up, because TP1 died among its own."""
    vain = (
        "ValueError: TP rank 0 could finish the model loading, but there are other ranks that "
        "didn't finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node."
    )
    waited = [*said(as_repr(tp_size=2)), *said(*LOADED, rank=" TP0")]
    other = [*said(LOADED[0], DIED, rank=" TP1"), f"torch.OutOfMemoryError: {ALLOCATOR}"]
    alone = [*waited, *said(DIED, rank=" TP0"), vain]
    both = [*waited, *other, *said(DIED, rank=" TP0"), vain]

    assert failure_of(tmp_path, alone)["kind"] == "unknown"
    failure = failure_of(tmp_path, both)
    assert (failure["kind"], failure["rank"]) == ("weights_out_of_memory", "DP0/PP0/TP1")
    assert failure["evidence"] == [f"log0:{len(waited) + len(other)}"]


def test_a_pool_in_the_headroom_is_none_of_the_fractions(tmp_path: Path) -> None:
    """0.5.15: eight-bit states lie beside the pools: a larger fraction leaves them less."""
    error = (
        "RuntimeError: int8 mamba checkpoint pool needs ~4.50GB but only 3.25GB HBM is free. Lower "
        "--int8-mamba-ckpt-size (currently 64) or --mem-fraction-static."
    )
    failure = failure_of(tmp_path, died(POOLED, error))

    assert failure["needed"]["value"] == 4.50
    assert failure["available"]["value"] == 3.25
    assert failure["short"]["value"] == gib(1.25)
    assert not said_of(failure["cures"], "raise", "--mem-fraction-static")
    assert said_of(failure["cures"], "lower", "--mem-fraction-static")
    assert said_of(failure["harmful"], "raising", "--mem-fraction-static")
    # references/findings.md: of `no_kv_memory`, "raise it; lowering makes it worse".
    assert failure["kind"] not in RAISED


@pytest.mark.parametrize(
    ("words", "reason", "kind"),
    [
        ("Capture cuda graph failed", ALLOCATOR, "graph_capture_out_of_memory"),
        ("Capture CUDA graph failed", ALLOCATOR, "graph_capture_out_of_memory"),
        ("Capture prefill CUDA graph failed", ALLOCATOR, "graph_capture_out_of_memory"),
        (
            "Capture cuda graph failed",
            "CUDA error: operation not permitted when stream is capturing",
            "not_memory",
        ),
        (
            "Capture cuda graph failed",
            "out of resource: shared memory, Required: 114688, Hardware limit: 101376",
            "not_memory",
        ),
    ],
)
def test_a_capture_says_itself_why_it_failed(
    tmp_path: Path, words: str, reason: str, kind: str
) -> None:
    """0.4.3 … 0.5.23: the advice behind it speaks of memory, whatever it was."""
    lines = died(CAPTURING, f"Exception: {words}: {reason}")
    lines += ["Possible solutions:", "1. set --mem-fraction-static to a smaller value (e.g., 0.8)"]
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == (kind, "before_graphs")
    if kind == "graph_capture_out_of_memory":
        assert failure["short"]["value"] == gib(1.30)
    else:
        assert is_unknown(failure["short"])
        assert not said_of(failure["cures"], "lower", "--mem-fraction-static")


# --- vLLM -------------------------------------------------------------

CONFIGURED = [vllm.asked(), vllm.said(vllm.config("0.17.1"))]
VLLM_LOADED = [*CONFIGURED, vllm.loaded("14.24")]
VLLM_SIZED = [*VLLM_LOADED, vllm.budget("50.5"), *vllm.plain(20_000)]
VLLM_CAPTURED = [*VLLM_SIZED, vllm.captured("0.61")]
VLLM_REACHED = {
    "startup": CONFIGURED,
    "after_weights": VLLM_LOADED,
    "after_pools": VLLM_SIZED,
    "after_graphs": VLLM_CAPTURED,
    "serving": [*VLLM_CAPTURED, vllm.SERVES],
}
CORE_FAILED = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
    "{'EngineCore': 1}"
)


@pytest.mark.parametrize("stage", VLLM_REACHED)
def test_an_engine_that_runs_out_is_told_by_its_stage(tmp_path: Path, stage: str) -> None:
    """The engine's traceback, then the server's, which says to look above."""
    lines = [*VLLM_REACHED[stage], *vllm.failed(f"torch.OutOfMemoryError: {ALLOCATOR}")]
    lines += [vllm.said(TRACEBACK, "APIServer pid=1", "ERROR"), f"(APIServer pid=1) {CORE_FAILED}"]
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == (BY_STAGE[stage], stage)
    assert failure["evidence"] == [f"log0:{line_of(lines, 'OutOfMemoryError')}"]
    assert failure["needed"]["value"] == 2.50
    assert failure["short"]["value"] == gib(1.30)
    assert failure["total"]["value"] == 79.11


LONGEST = (
    "ValueError: To serve at least one request with the model's max seq len (131072), (18.35 GiB "
    "KV cache is needed, which is larger than the available KV cache memory (8.72 GiB). Based on "
    "the available memory, the estimated maximum model length is 62288. Try increasing "
    "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
REFUSED = (
    "ValueError: Free memory on device cuda:0 (31.44/79.1 GiB) on startup is less than desired GPU "
    "memory utilization (0.9, 71.19 GiB). Decrease GPU memory utilization or reduce GPU memory "
    "used by other processes."
)
# Message, kind, stage, (needed, available, total).
OWN_VLLM: dict[str, tuple[Log, str, str, str, tuple[float | None, float | None, float | None]]] = {
    "0.6.4 no blocks": (
        [*VLLM_LOADED, vllm.budget("-1.43")],
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
        "no_kv_memory",
        "after_weights",
        (None, None, None),
    ),
    "0.20.0 not a token": (
        [*VLLM_LOADED, vllm.budget("0.01")],
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even "
        "a single token. Try increasing `gpu_memory_utilization`.",
        "no_kv_memory",
        "after_weights",
        (None, None, None),
    ),
    "0.22.0 longest": (
        [*VLLM_LOADED, vllm.budget("8.72")],
        LONGEST,
        "context_exceeds_kv_pool",
        "after_weights",
        (18.35, 8.72, None),
    ),
    "0.9.1 refused": (
        CONFIGURED,
        REFUSED,
        "device_memory_taken",
        "startup",
        (71.19, 31.44, 79.1),
    ),
    "0.4.2 moved": (
        VLLM_LOADED,
        "AssertionError: Error in memory profiling. Initial free memory 78.5 GiB, current free "
        "memory 79.0 GiB. This happens when other processes sharing the same container release "
        "GPU memory while vLLM is profiling during initialization.",
        "device_memory_taken",
        "after_weights",
        (None, None, None),
    ),
    "0.20.0 weights": (
        CONFIGURED,
        "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to "
        "free memory for weights, increasing --tensor-parallel-size, or using --quantization.",
        "weights_out_of_memory",
        "startup",
        (None, None, None),
    ),
    "0.8.0 sampler while profiling": (
        VLLM_LOADED,
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
        "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when "
        "initializing the engine.",
        "profiling_out_of_memory",
        "after_weights",
        (None, None, None),
    ),
    "0.8.0 sampler behind the graphs": (
        VLLM_CAPTURED,
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
        "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when "
        "initializing the engine.",
        "graph_capture_out_of_memory",
        "after_graphs",
        (None, None, None),
    ),
    "0.20.0 states": (
        VLLM_SIZED,
        "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (730). Each decode "
        "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please "
        "lower max_num_seqs to at most 730 or increase gpu_memory_utilization.",
        "token_pool_exhausted",
        "after_pools",
        (None, None, None),
    ),
    "0.33.0 decoding takes all": (
        [*VLLM_LOADED, vllm.budget("2.0")],
        "ValueError: frontend multimodal GPU decoding reserves 2.25 GiB (2.0 GiB raw-frame budget, "
        "0.25 GiB decoder cache budget), but only 2.0 GiB is available for the KV cache. Reduce "
        "mm_ipc_gpu_memory_gb or hw_decoders, use a different video backend, or increase "
        "gpu_memory_utilization.",
        "no_kv_memory",
        "after_weights",
        (None, None, None),
    ),
    "0.4.2 blocks": (
        [*VLLM_CAPTURED, vllm.SERVES],
        "ValueError: Out of memory! No free blocks are available.",
        "token_pool_exhausted",
        "serving",
        (None, None, None),
    ),
    "host": (
        VLLM_LOADED,
        "ValueError: Available memory on node 0 (12.67/14.96 GiB) on kv cache allocation is less "
        "than requested memory for kv (40.0 GiB). Decrease --kv-cache-memory-bytes, "
        "VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other processes.",
        "host_memory",
        "after_weights",
        (40.0, 12.67, 14.96),
    ),
    "0.2.7 swap": (
        CONFIGURED,
        "ValueError: Too large swap space. 64.00 GiB out of the 62.50 GiB total CPU memory is "
        "allocated for the swap space.",
        "host_memory",
        "startup",
        (64.00, None, 62.50),
    ),
}


@pytest.mark.parametrize("name", OWN_VLLM)
def test_vllms_own_words(tmp_path: Path, name: str) -> None:
    reached, error, kind, stage, amounts = OWN_VLLM[name]
    lines = [*reached, *vllm.failed(error), f"(APIServer pid=1) {CORE_FAILED}"]
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == (kind, stage)
    assert failure["evidence"] == [f"log0:{line_of(lines, error[:60])}"]
    for field, amount in zip(("needed", "available", "total"), amounts, strict=True):
        assert failure[field]["value"] == amount, field
    needed, available, _ = amounts
    if needed is None or available is None:
        assert is_unknown(failure["short"])
    else:
        assert failure["short"]["value"] == gib(needed - available)


def test_the_former_engines_blocks_do_not_hold_the_longest(tmp_path: Path) -> None:
    error = (
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens "
        "that can be stored in KV cache (47792). Try increasing `gpu_memory_utilization` or "
        "decreasing `max_model_len` when initializing the engine."
    )
    lines = [
        vllm.bare(vllm.config("0.6.6", 131_072)),
        vllm.bare("# GPU blocks: 2987, # CPU blocks: 2048"),
        TRACEBACK,
        error,
    ]
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == ("context_exceeds_kv_pool", "after_pools")
    assert failure["evidence"] == ["log0:4"]
    assert "47792" in failure["cures"][0].replace(",", "")
    assert is_unknown(failure["needed"]), "tokens are no bytes"


def test_no_block_at_all_is_no_memory_for_them(tmp_path: Path) -> None:
    """0.2.7: the engine prints what it found, and asserts."""
    lines = [
        vllm.bare("Initializing an LLM engine with config: model='/m', max_seq_len=8192"),
        vllm.bare("# GPU blocks: 0, # CPU blocks: 2048"),
        TRACEBACK,
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
    ]
    for count in (3, 4):
        failure = failure_of(tmp_path, lines[:count])
        assert failure["kind"] == "no_kv_memory"


def test_the_length_that_fits_is_in_the_cure(tmp_path: Path) -> None:
    failure = failure_of(tmp_path, [*VLLM_LOADED, vllm.budget("8.72"), *vllm.failed(LONGEST)])

    assert "62288" in failure["cures"][0].replace(",", "")


def test_weights_of_another_process_are_more_than_is_allowed(tmp_path: Path) -> None:
    """0.33.0: of 79.11 GiB 75.5 are held elsewhere and 0.9 are allowed: the engine says to raise
    the utilisation, and to lower it would allow still less."""
    error = (
        "ValueError: Externally held weights on device cuda:0 (75.5/79.11 GiB) exceed the desired "
        "GPU memory utilization (0.9, 71.2 GiB). Increase GPU memory utilization or reduce GPU "
        "memory used by other processes."
    )
    lines = [vllm.asked(), vllm.said(vllm.config("0.33.0")), *vllm.failed(error)]
    failure = failure_of(tmp_path, lines)

    assert failure["evidence"] == [f"log0:{len(lines)}"]
    assert failure["total"]["value"] == 79.11
    assert not said_of(failure["cures"], "lower", FLAGS["vllm"])
    assert not said_of(failure["harmful"], "raising", FLAGS["vllm"])


def test_the_worker_that_ran_out_is_named(tmp_path: Path) -> None:
    """TP0 has its weights, TP1 dies among its own; the engine repeats it."""
    one, other = "Worker_TP0 pid=41", "Worker_TP1 pid=42"
    lines = [
        vllm.said(vllm.config("0.10.2", tensor=2)),
        vllm.loaded("14.24", one),
        vllm.said(TRACEBACK, other, "ERROR"),
        vllm.said(f"torch.OutOfMemoryError: {ALLOCATOR}", other, "ERROR"),
        *vllm.failed(
            "Exception: WorkerProc initialization failed due to an exception in a "
            "background process. See stack trace for root cause."
        ),
    ]
    failure = failure_of(tmp_path, lines)

    assert failure["rank"] == "DP0/PP0/TP1"
    assert failure["kind"] == "weights_out_of_memory"
    assert failure["evidence"] == ["log0:4"]


def test_an_engine_beside_others_dies_at_its_own_stage(tmp_path: Path) -> None:
    """DP0 has captured its graphs; DP1 has no memory for its pool."""
    one, other = "EngineCore_DP0 pid=20", "EngineCore_DP1 pid=21"
    error = OWN_VLLM["0.6.4 no blocks"][1]
    lines = [
        vllm.asked(data_parallel_size=2),
        vllm.said(vllm.config("0.17.1", data=2), one),
        vllm.loaded("14.24", one),
        vllm.budget("50.5", one),
        *vllm.plain(20_000, process=one),
        vllm.captured("0.61", one),
        vllm.loaded("78.24", other),
        vllm.budget("-1.43", other),
        *vllm.failed(error, process=other),
    ]
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["rank"]) == ("no_kv_memory", "DP1/PP0/TP0")
    assert failure["stage"] == "after_weights"


def test_an_engine_without_a_server_says_itself_that_it_served(tmp_path: Path) -> None:
    """The log of a node without an API server: an engine that failed to start says so, and one
    that was up `encountered a fatal error` (v1/engine/core.py)."""
    lines = [
        *VLLM_CAPTURED[1:],
        vllm.said("EngineCore encountered a fatal error.", level="ERROR"),
        vllm.said(TRACEBACK, level="ERROR"),
        vllm.said(f"torch.OutOfMemoryError: {ALLOCATOR}", level="ERROR"),
    ]
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == ("runtime_out_of_memory", "serving")


def test_a_server_that_was_woken_runs_out(tmp_path: Path) -> None:
    """0.11: memory that was given back is not there any more."""
    lines = [
        *VLLM_REACHED["serving"],
        vllm.said("Sleep mode freed 60.0 GiB memory, 3.2 GiB memory is still in use."),
        vllm.said("Invocation of wake_up method failed", level="ERROR"),
        vllm.said(TRACEBACK, level="ERROR"),
        vllm.said(
            "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:139",
            level="ERROR",
        ),
        "(APIServer pid=1) Exception: Call to wake_up method failed: CUDA Error: out of memory at "
        "/workspace/csrc/cumem_allocator.cpp:139",
    ]
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == ("runtime_out_of_memory", "serving")


# --- the host, and what is no memory ----------------------------------

HOST = {
    "errno": "OSError: [Errno 12] Cannot allocate memory",
    "allocator": "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: "
    "can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot "
    "allocate memory)",
    "shm": "OSError: [Errno 28] No space left on device: '/dev/shm/nccl-abc'",
    "shm segment": "Error while creating shared memory segment /dev/shm/nccl-AbCdEf (size 9637888)",
    "torch shm": "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_3>: "
    "Resource temporarily unavailable (11)",
    "torch file": "RuntimeError: unable to write to file </torch_1_2_3>: No space left on device "
    "(28)",
    "workers": "RuntimeError: DataLoader worker (pid 99) is killed by signal: Bus error. It is "
    "possible that dataloader's workers are out of shared memory. Please try to raise your shared "
    "memory limit. insufficient shared memory (shm)",
    "kernel": "[12345.678901] Out of memory: Killed process 4242 (python3) total-vm:912345678kB, "
    "anon-rss:512345678kB, file-rss:0kB, shmem-rss:0kB",
}


@pytest.mark.parametrize("name", HOST)
@pytest.mark.parametrize("stage", ["startup", "after_weights", "serving"])
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_hosts_memory_is_not_the_devices(
    tmp_path: Path, name: str, stage: str, engine: str
) -> None:
    if engine == "sglang":
        lines = died(REACHED[stage], HOST[name])
    else:
        lines = [*VLLM_REACHED[stage], *vllm.failed(HOST[name])]
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == ("host_memory", stage)
    assert failure["evidence"] == [f"log0:{line_of(lines, HOST[name][:30])}"]
    flag = FLAGS[engine]
    assert not said_of(failure["cures"], "raise", flag)
    assert not said_of(failure["cures"], "lower", flag)


SHARED = (
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 114688, "
    "Hardware limit: 101376. Reducing block sizes or `num_stages` may help."
)
NOT_MEMORY = {
    "triton": SHARED,
    "argument": "ValueError: Tensor parallel size 3 does not divide 32 attention heads",
    "kernel": "RuntimeError: no kernel image is available for execution on the device",
    "wrong address": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "file": "FileNotFoundError: [Errno 2] No such file or directory: '/models/a/config.json'",
    "network": "ConnectionError: HTTPSConnectionPool(host='example.org', port=443): Max retries",
}


@pytest.mark.parametrize("name", NOT_MEMORY)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_what_is_no_memory_is_said_to_be_none(tmp_path: Path, name: str, engine: str) -> None:
    error = NOT_MEMORY[name]
    lines = died(LOADED, error) if engine == "sglang" else [*VLLM_LOADED, *vllm.failed(error)]
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == ("not_memory", "after_weights")
    assert failure["evidence"] == [f"log0:{line_of(lines, error[:40])}"]
    assert is_unknown(failure["needed"])
    assert not any(FLAGS[engine] in cure for cure in failure["cures"])


OPEN = {
    "capacity": "RuntimeError: the workspace does not fit into device memory",
    "allocation": "RuntimeError: Failed to allocate workspace buffer",
    "OOM": "RuntimeError: worker reported OOM",
    "memory error": "MemoryError: ",
    "a root cause elsewhere": "RuntimeError: The worker failed. See root cause above.",
}


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_text_that_speaks_of_memory_leaves_it_open(
    tmp_path: Path, name: str, engine: str
) -> None:
    """It is no allocator's: it may be memory, or not."""
    error = OPEN[name]
    lines = died(LOADED, error) if engine == "sglang" else [*VLLM_LOADED, *vllm.failed(error)]
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == ("unknown", "after_weights")
    assert not failure["cures"]
    assert not failure["harmful"]


@pytest.mark.parametrize(
    "lines",
    [
        said(as_repr(), *LOADED, DIED),
        said(as_repr(), *LOADED, SIGQUIT),
        [
            *said(as_repr(), *LOADED, "Rank 0 scheduler is dead. Please check if there are "),
            "relevant logs.",
        ],
        [*VLLM_LOADED, *vllm.failed()],
        [*VLLM_LOADED, f"(APIServer pid=1) {CORE_FAILED}"],
    ],
    ids=["cut", "child", "dead", "engine cut", "server alone"],
)
def test_a_death_without_a_cause_is_unknown(tmp_path: Path, lines: Log) -> None:
    failure = failure_of(tmp_path, lines)

    assert (failure["kind"], failure["stage"]) == ("unknown", "after_weights")
    assert failure["message"]
    assert failure["evidence"]


# --- what helps -------------------------------------------------------

FLAGS = {"sglang": "--mem-fraction-static", "vllm": "--gpu-memory-utilization"}
RAISED = ("no_kv_memory", "context_exceeds_kv_pool")
LOWERED = ("graph_capture_out_of_memory", "runtime_out_of_memory")


def said_of(texts: Sequence[str], verb: str, flag: str) -> bool:
    return any(f"{verb} {flag}" in text for text in texts)


def every_death() -> list[tuple[str, str, Log]]:
    """Engine, name and log of every death of this file."""
    deaths: list[tuple[str, str, Log]] = []
    for stage, reached in REACHED.items():
        deaths.append(("sglang", stage, died(reached, f"torch.OutOfMemoryError: {ALLOCATOR}")))
    for name, (reached, error, _, _) in OWN_SGLANG.items():
        deaths.append(("sglang", name, died(reached, error)))
    for name, error in (HOST | NOT_MEMORY | OPEN).items():
        deaths.append(("sglang", name, died(LOADED, error)))
        deaths.append(("vllm", name, [*VLLM_LOADED, *vllm.failed(error)]))
    for stage, reached in VLLM_REACHED.items():
        error = f"torch.OutOfMemoryError: {ALLOCATOR}"
        deaths.append(("vllm", stage, [*reached, *vllm.failed(error)]))
    for name, (reached, error, *_) in OWN_VLLM.items():
        deaths.append(("vllm", name, [*reached, *vllm.failed(error)]))
    return deaths


EVERY = every_death()


@pytest.mark.parametrize(
    ("engine", "lines"),
    [(engine, lines) for engine, _, lines in EVERY],
    ids=[f"{engine} {name}" for engine, name, _ in EVERY],
)
def test_what_helps_and_what_harms_are_opposites(tmp_path: Path, engine: str, lines: Log) -> None:
    """The fraction is raised for a pool that has nothing, and lowered for what lies beside it."""
    failure = failure_of(tmp_path, lines)
    flag, cures, harmful = FLAGS[engine], failure["cures"], failure["harmful"]

    raising, lowering = said_of(cures, "raise", flag), said_of(cures, "lower", flag)
    assert not (raising and lowering)
    assert not (
        raising and (said_of(harmful, "raising", flag) or said_of(harmful, "changing", flag))
    )
    assert not (
        lowering and (said_of(harmful, "lowering", flag) or said_of(harmful, "changing", flag))
    )
    if failure["kind"] in RAISED:
        assert raising
        assert said_of(harmful, "lowering", flag) or "states" in lines[-1]
        assert not said_of(harmful, "raising", flag)
    if failure["kind"] in LOWERED:
        assert lowering
        assert said_of(harmful, "raising", flag)
        assert not said_of(harmful, "lowering", flag)
    other = FLAGS["vllm" if engine == "sglang" else "sglang"]
    assert not any(other in text for text in (*cures, *harmful)), "a flag of the other engine"
    assert failure["kind"] in ("unknown", "not_memory") or cures


# --- what is no death -------------------------------------------------


def outcome_of(folder: Path, lines: Sequence[str]) -> tuple[str, Any]:
    outcome = report_on(folder, lines)["outcome"]
    return outcome["status"], outcome["failure"]


def test_a_log_that_simply_ends_is_incomplete(tmp_path: Path) -> None:
    for stage, reached in REACHED.items():
        expected = "ready" if stage == "serving" else "incomplete"
        assert outcome_of(tmp_path, said(as_repr(), *reached)) == (expected, None), stage
    for stage in ("startup", "after_weights", "after_pools"):
        assert outcome_of(tmp_path, VLLM_REACHED[stage]) == ("incomplete", None), stage
    assert outcome_of(tmp_path, VLLM_REACHED["serving"]) == ("ready", None)


@pytest.mark.parametrize("stage", ["startup", "after_weights", "serving"])
@pytest.mark.parametrize(
    "words",
    [
        "Failed to read /sys/fs/cgroup: OSError: [Errno 12] Cannot allocate memory",
        "Custom allreduce is disabled: OSError: [Errno 28] No space left on device: '/dev/shm/x'",
        "Error while creating shared memory segment: falling back to pipes",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB; retrying smaller",
    ],
)
def test_a_warning_is_no_death(tmp_path: Path, stage: str, words: str) -> None:
    """Somebody tried something, and went on without it."""
    lines = [*VLLM_REACHED[stage], vllm.said(words, level="WARNING")]
    status, failure = outcome_of(tmp_path, lines)

    assert failure is None
    assert status == ("ready" if stage == "serving" else "incomplete")


def test_a_warning_does_not_explain_the_death_behind_it(tmp_path: Path) -> None:
    lines = [
        *VLLM_LOADED,
        vllm.said("shm: OSError: [Errno 12] Cannot allocate memory", level="WARNING"),
        *vllm.failed("ValueError: Tensor parallel size 3 does not divide 32 attention heads"),
    ]

    assert failure_of(tmp_path, lines)["kind"] == "not_memory"


def test_a_requests_traceback_is_no_death(tmp_path: Path) -> None:
    trouble = [TRACEBACK, FILE, "ValueError: The prompt is longer than the context."]
    sglang = [*said(as_repr(), *SERVING), *trouble, *said(BATCH)]
    served = [*VLLM_REACHED["serving"]]
    served += [vllm.said(line, "APIServer pid=1", "ERROR") for line in trouble]

    assert outcome_of(tmp_path, sglang) == ("ready", None)
    assert outcome_of(tmp_path, sglang[:-1]) == ("ready", None)
    assert outcome_of(tmp_path, served) == ("ready", None)


def test_a_request_that_is_refused_for_its_length_is_no_death(tmp_path: Path) -> None:
    lines = said(
        as_repr(),
        *SERVING,
        "Request length is longer than the KV cache pool size or the max context length. "
        "Truncated. len(req.origin_input_ids)=900000, max_req_input_len=299994.",
        "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.6 -> 0.9",
        "Not enough host memory for request a1b2c3",
        BATCH,
    )

    assert outcome_of(tmp_path, lines) == ("ready", None)


def test_a_pool_below_the_context_is_no_death(tmp_path: Path) -> None:
    """0.5.23: it starts all the same."""
    below = (
        "KV pool holds 4096 tokens, fewer than --context-length 32768. One full-length request "
        "cannot fit, so long requests will be refused or truncated at serving time. Lower "
        "--context-length, raise --mem-fraction-static, or free memory taken before the pool is "
        "sized."
    )
    report = report_on(tmp_path, said(as_repr(), *CAPTURED, below, limits(4096), UP))

    assert (report["outcome"]["status"], report["outcome"]["failure"]) == ("ready", None)
    assert found(report, "pool-below-context")


def test_a_request_that_the_former_engine_gives_up_is_no_death(tmp_path: Path) -> None:
    """0.4.2 … 0.8.5: it is longer than all blocks."""
    warning = (
        "Failing the request r1 because there's not enough kv cache blocks to run the entire "
        "sequence."
    )
    report = report_on(tmp_path, [*VLLM_REACHED["serving"], vllm.said(warning, level="WARNING")])

    assert (report["outcome"]["status"], report["outcome"]["failure"]) == ("ready", None)
    assert found(report, "requests-aborted")


def test_a_stop_is_no_death(tmp_path: Path) -> None:
    """SIGINT: the launcher's own traceback ends in KeyboardInterrupt."""
    sglang = [
        *said(as_repr(), *SERVING, BATCH),
        "INFO:     Shutting down",
        "INFO:     Waiting for application shutdown.",
        TRACEBACK,
        '  File "launch_server.py", line 14, in <module>',
        "KeyboardInterrupt",
    ]
    served = [
        *VLLM_REACHED["serving"],
        "(APIServer pid=1) INFO:     Shutting down",
        "(APIServer pid=1) INFO:     Application shutdown complete.",
        vllm.said(TRACEBACK, "EngineCore pid=7", "ERROR"),
        "(EngineCore pid=7) KeyboardInterrupt",
    ]

    assert outcome_of(tmp_path, sglang) == ("ready", None)
    assert outcome_of(tmp_path, served) == ("ready", None)


@pytest.mark.parametrize("stage", ["after_weights", "serving"])
@pytest.mark.parametrize(
    "words",
    [
        "No available shared memory broadcast block found in 60 seconds. This typically happens "
        "when some processes are hanging or doing some time-consuming work (e.g. compilation, "
        "weight/kv cache quantization).",
        "No available block found in 60 second.",
    ],
    ids=["0.16.0", "0.8.5"],
)
def test_waiting_for_a_block_is_no_death(tmp_path: Path, stage: str, words: str) -> None:
    lines = [*VLLM_REACHED[stage], *[vllm.said(words)] * 3]
    status, failure = outcome_of(tmp_path, lines)

    assert failure is None
    assert status == ("ready" if stage == "serving" else "incomplete")


def test_devices_that_differ_are_a_warning_in_later_releases(tmp_path: Path) -> None:
    """0.4.6 … 0.5.5: it goes on with the least of them."""
    unbalanced = (
        "The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
        "min_per_gpu_memory=61.0390625, local_gpu_memory=78.6005859375, local_gpu_memory * "
        "0.9=70.74052734375"
    )

    assert outcome_of(tmp_path, said(as_repr(), unbalanced, *SERVING)) == ("ready", None)
    assert outcome_of(tmp_path, said(as_repr(), unbalanced)) == ("incomplete", None)


def test_a_traceback_that_a_start_survives_is_no_death(tmp_path: Path) -> None:
    survived = [TRACEBACK, FILE, "ImportError: no module named deep_gemm"]
    sglang = [*said(as_repr(), *LOADED[:1]), *survived, *said(*SERVING[1:])]
    served = [*CONFIGURED, *(vllm.said(line, level="ERROR") for line in survived)]
    served += VLLM_REACHED["serving"][len(CONFIGURED) :]

    assert outcome_of(tmp_path, sglang) == ("ready", None)
    assert outcome_of(tmp_path, served) == ("ready", None)


def test_a_start_that_was_repeated_has_the_outcome_of_the_last(tmp_path: Path) -> None:
    first = died(CAPTURING, f"torch.OutOfMemoryError: {ALLOCATOR}")
    again = said(as_repr(mem_fraction_static=0.8), *SERVING, at="11:00")
    report = report_on(tmp_path, [*first, *again])

    assert [run["status"] for run in report["runs"]] == ["failed", "ready"]
    assert report["outcome"]["failure"] is None
    older = report_on(tmp_path, [*first, *again], run=0)["outcome"]["failure"]
    assert older["kind"] == "graph_capture_out_of_memory"


def test_a_death_is_shown_first_of_all(tmp_path: Path) -> None:
    """The text says the kind, the amounts, the line, and what helps."""
    path = tmp_path / "server.log"
    lines = died([*SERVING, BATCH], f"torch.OutOfMemoryError: {ALLOCATOR}")
    path.write_text("\n".join(lines) + "\n")
    text = TextRenderer().render(analyse([str(path)], Options(), shipped_plugins()))

    section = text[text.index("Outcome\n") :].split("\n\n")[0]
    assert text.index("Outcome\n") < text.index("Serving configuration")
    for words in (
        "runtime out of memory",
        "serving",
        "2.50 GiB",
        "1.20 GiB",
        "1.30",
        f"[:{line_of(lines, 'OutOfMemoryError')}]",
        "helps: lower --mem-fraction-static",
        "harms: raising --mem-fraction-static",
    ):
        assert words in section, words
