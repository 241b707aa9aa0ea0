"""SGLang's traps for whoever reads its logs, 19 to 34 and what only public logs showed: the number
is the trap's own. The others are in test_sglang_traps.py.

Lines are in the words of the releases named beside them, figures are made up, and what must come
out is arithmetic that stands in the test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import (
    FIRST,
    by_rank,
    found,
    gib,
    held,
    is_unknown,
    memory,
    parts,
    rank_of,
    report_on,
    row_of,
    timeline,
)
from .sglang_lines import (
    TRACEBACK,
    UP,
    as_dict,
    as_repr,
    begin,
    graph,
    limits,
    new_graph,
    old_weights,
    pool,
    pools_end,
    said,
    start,
    typed,
    weights,
)

# --- 19 compressed pools ----------------------------------------------

CALCULATION = (
    "DSV4 memory calculation: bytes_per_full_token={}, available_bytes=40.00 GB, "
    "c128_state_fixed=2.53 GB, full_token=5221376"
)
SIZES = "DSV4 pool sizes: full={}, swa=270080, c4=675392, c128=21106, c4_state=64, c128_state=0"
COMPRESSED = [
    *weights(78.00, 16.00, "DeepseekV4ForCausalLM"),
    CALCULATION.format("7705.45"),
    SIZES.format(5_221_376),
    SIZES.format(2_000_128),  # a cap lowers them, and the calculation is not printed again
    pools_end(39.40),
]


def test_a_compressed_pool_prints_no_allocation(tmp_path: Path) -> None:
    """19: its memory is a difference, 62.00 - 39.40, neither the budget nor tokens times bytes."""
    report = report_on(tmp_path, said(as_repr(page_size=256), *COMPRESSED))

    assert held(report, "kv_pool") == gib(62.00 - 39.40)
    assert report["kv_pool"]["budget"]["value"] == 40.00
    assert report["kv_pool"]["bytes_per_full_token"]["value"] == 7705.45
    assert is_unknown(report["kv_pool"]["bytes_per_token"])
    shown = [p for p in report["kv_pool"]["pools"] if p["tokens"]["value"] == 0]
    assert shown == [], "c128_state=0 does not say that there is none"


@pytest.mark.parametrize(
    ("line", "mode", "per_token"),
    [
        (
            "DSV4 SWA sizing: mode=cap, swa_tokens=606464, request_cap+headroom=606464, "
            "prefix_tails=1024",
            "cap",
            "3899.25",
        ),
        (
            "DSV4 SWA sizing: mode=ratio (default), swa_tokens=567552, swa_full_tokens_ratio=0.1",
            "ratio",
            "7086.75",
        ),
        (None, None, "7705.45"),
    ],
    ids=["0.5.21 cap", "0.5.21 ratio", "0.5.15"],
)
def test_what_a_full_token_costs_changes_its_meaning(
    tmp_path: Path, line: str | None, mode: str | None, per_token: str
) -> None:
    """19: in cap mode it leaves the window out; where no line tells the mode, it is unknown."""
    lines = [*weights(78.00, 16.00), *([line] if line else []), CALCULATION.format(per_token)]
    kv = report_on(tmp_path, said(*lines, SIZES.format(5_221_376), pools_end(22.00)))["kv_pool"]

    assert kv["sizing_mode"]["value"] == mode
    assert kv["bytes_per_full_token"]["value"] == float(per_token)
    assert is_unknown(kv["bytes_per_token"])


def test_a_unified_compressed_pool_has_a_mode_of_its_own(tmp_path: Path) -> None:
    """19: neither ratio nor cap; its window is a ring."""
    lines = [
        *weights(78.00, 16.00),
        "DSV4 SWA sizing: mode=ring (paged swa_tokens vestigial), swa_tokens=567552, "
        "swa_full_tokens_ratio=0.1",
        "DSV4 memory calculation: unified=True, unified_fp8=False, dspark_draft_bf16=False, "
        "bytes_per_full_token=6400.50, available_bytes=40.00 GB, c128_state_fixed=2.53 GB, "
        "c2_state_fixed=0.00 GB, swa_fixed=0.00 GB, swa_ring_fixed=1.25 GB, c4_state_fixed=0.50 "
        "GB, full_token=5675520",
        SIZES.format(5_675_520),
    ]
    kv = report_on(tmp_path, said(*lines, pools_end(22.00)))["kv_pool"]

    assert kv["sizing_mode"]["value"] == "unified"
    assert kv["budget"]["value"] == 40.00


def test_pool_sizes_that_come_again_hold(tmp_path: Path) -> None:
    """19: 5,221,376 tokens of the calculation were capped to 2,000,128."""
    report = report_on(tmp_path, said(as_repr(page_size=256), *COMPRESSED))
    final = report_on(tmp_path, said(as_repr(page_size=256), *COMPRESSED, limits(2_000_128), UP))

    assert report["kv_pool"]["tokens"]["value"] in (2_000_128, None)
    assert report["kv_pool"]["tokens"].get("at_most", 2_000_128) == 2_000_128
    assert final["kv_pool"]["tokens"]["value"] == 2_000_128
    limit = row_of(final, 8192)["token_limit"]  # other pools bind as well
    assert (limit["value"], limit["at_most"]) == (None, 2_000_128 // 8192)


# --- 20, 21 limits and workers ----------------------------------------


def test_the_request_limit_of_the_arguments_is_a_wish(tmp_path: Path) -> None:
    """20: 512 asked for, 48 granted; before the limit line nothing is."""
    asked = as_repr(max_running_requests=512)
    granted = report_on(tmp_path, said(asked, *start()[:-1], limits(400_000, 48), UP))
    open_ended = report_on(tmp_path, said(asked, *start()[:-1]))

    assert granted["concurrency"]["request_limit"]["value"] == 48
    assert is_unknown(open_ended["concurrency"]["request_limit"])


def test_a_lowered_request_limit_is_of_one_worker(tmp_path: Path) -> None:
    """20: 512 for two workers are 256 each, lowered to 96 each."""
    lowered = (
        "max_running_requests was reduced from the requested 256 to 96 (per dp worker) due to the "
        "available KV cache capacity."
    )
    lines = said(as_repr(dp_size=2, max_running_requests=512))
    for dp in (0, 1):
        lines += said(lowered, limits(400_000, 96), rank=f" DP{dp}")
    report = report_on(tmp_path, [*lines, *said(UP)])

    limited = [w["request_limit"]["value"] for w in report["kv_pool"]["workers"]]
    assert limited == [96, 96]
    assert found(report, "request-limit-lowered")
    assert not found(report, "request-limit-default")


@pytest.mark.parametrize("count", [2048, 4096])
@pytest.mark.parametrize("asked", [None, True], ids=["nobody asked", "asked"])
def test_the_bound_of_a_default_is_no_sign_of_room(
    tmp_path: Path, count: int, asked: bool | None
) -> None:
    """20: 2048 … 4096 is what int(tokens / context · 512) is clamped to."""
    arguments = as_repr(max_running_requests=count if asked else None)
    report = report_on(tmp_path, said(arguments, *start()[:-1], limits(400_000, count), UP))

    assert report["concurrency"]["request_limit"]["value"] == count
    assert bool(found(report, "request-limit-default")) is not bool(asked)
    assert row_of(report, 8192)["max_concurrent"]["value"] == 400_000 // 8192


@pytest.mark.parametrize(
    ("line", "workers", "attention_tensor"),
    [
        (as_repr(tp_size=8, dp_size=8, enable_dp_attention=True), 8, 1),
        (as_repr(tp_size=8, dp_size=4, enable_dp_attention=True), 4, 2),
        (as_repr(tp_size=8, dp_size=2), 2, 8),
        (as_dict(tp_size=8, attn_dp_size=4, enable_dp_attention=True, attn_cp_size=1), 4, 2),
        (as_dict(tp_size=8, attn_dp_size=2, enable_dp_attention=True, attn_cp_size=2), 2, 2),
        (as_dict(tp_size=8, dp_size=2, attn_dp_size=1, attn_cp_size=1), 2, 8),
    ],
    ids=["0.4.3", "0.5.21", "replicas", "0.5.22", "0.5.22 CP", "0.5.22 replicas"],
)
def test_attention_workers_go_by_two_names(
    tmp_path: Path, line: str, workers: int, attention_tensor: int
) -> None:
    """21: --dp-size 4 --enable-dp-attention is printed as dp_size=1, attn_dp_size=4 from 0.5.22;
    attention TP is tp // attention DP // attention CP."""
    report = report_on(tmp_path, said(line, *weights(78.00, 16.00)))

    assert report["deployment"]["workers"]["value"] == workers
    assert report["deployment"]["parallel"]["attention_tensor"]["value"] == attention_tensor
    assert len(report["kv_pool"]["workers"]) == workers


def test_a_worker_of_attention_that_is_not_shown_is_missed(tmp_path: Path) -> None:
    """21: of four workers one is in the log, and dp_size=1 does not make it all."""
    lines = said(as_dict(tp_size=4, attn_dp_size=4, enable_dp_attention=True))
    lines += said(*weights(78.00, 16.00), limits(400_000), rank=" DP0 TP0")
    kv = report_on(tmp_path, lines)["kv_pool"]

    assert kv["deployment_tokens"]["value"] is None
    assert kv["deployment_tokens"]["at_least"] == 400_000


# --- 22 lines that are cut by others ----------------------------------

ALLOCATOR = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 1.20 GiB is free. Process 7 has 77.90 GiB memory in use."
)


def test_ranks_interleave_line_by_line(tmp_path: Path) -> None:
    """22: four ranks, each with figures of its own."""
    lines = said(as_repr(tp_size=4))
    starts = [start(16.00 + tp, 400_000, 23.00) for tp in range(4)]
    for step in range(6):
        for tp in (2, 0, 3, 1):
            lines += said(starts[tp][step], rank=f" TP{tp}")
    report = report_on(tmp_path, [*lines, *said(limits(400_000), rank=" TP0"), *said(UP)])

    ranks = {f"DP0/PP0/TP{tp}": 16.00 + tp for tp in range(4)}
    assert by_rank(report, "weights") == ranks
    assert by_rank(report, "kv_pool") == dict.fromkeys(ranks, 46.00)
    assert by_rank(report, "cuda_graph") == dict.fromkeys(ranks, 1.00)


def test_two_ranks_on_one_line_keep_their_own(tmp_path: Path) -> None:
    """22: both messages, then both line ends."""
    ends = [weights(78.00, used)[1] for used in (16.00, 17.00)]
    glued = [said(message, rank=f" TP{tp}")[0] for tp, message in enumerate(ends)]
    report = report_on(tmp_path, [*said(as_repr(tp_size=2)), "".join(glued), ""])

    assert by_rank(report, "weights") == {"DP0/PP0/TP0": 16.00, "DP0/PP0/TP1": 17.00}


def test_a_message_inside_another_is_of_its_own_rank(tmp_path: Path) -> None:
    """22: TP1 writes into the middle of TP0's line, whose rest follows without a prefix."""
    outer, inner = weights(78.00, 16.00)[1], begin(77.00)
    place = outer.index("avail mem")
    lines = [
        *said(begin(78.00), rank=" TP0"),
        said(outer[:place], rank=" TP0")[0] + said(inner, rank=" TP1")[0],
        outer[place:],
    ]
    report = report_on(tmp_path, [*said(as_repr(tp_size=2)), *lines])

    assert held(report, "weights", "DP0/PP0/TP0") in (16.00, None)
    assert held(report, "weights", "DP0/PP0/TP1") is None
    assert timeline(report, "DP0/PP0/TP1") == [("before_weights", 77.00)]


def test_a_rank_inside_the_arguments_costs_no_more_than_their_rest(tmp_path: Path) -> None:
    """22: 8 kB of arguments are above a pipe's atomic size."""
    line = as_repr(tp_size=2)
    place = line.index("mem_fraction_static=0.8") + len("mem_fraction_static=0.8")
    lines = [
        said(line[:place])[0] + said(begin(77.00), rank=" TP1")[0],
        line[place:],
        *said(*weights(78.00, 16.00), rank=" TP0"),
    ]
    report = report_on(tmp_path, lines)

    assert timeline(report, "DP0/PP0/TP1") == [("before_weights", 77.00)]
    assert report["deployment"]["model"]["value"] == "/models/a"
    assert report["deployment"]["mem_fraction_static"]["value"] in (0.85, None)


def test_a_rank_dies_at_its_own_stage(tmp_path: Path) -> None:
    """22: TP1 runs out of memory among its weights, when TP0 has loaded its own."""
    lines = said(as_repr(tp_size=2)) + said(*weights(78.00, 16.00), rank=" TP0")
    lines += said(begin(40.00), f"Scheduler hit an exception: {TRACEBACK}", rank=" TP1")
    report = report_on(tmp_path, [*lines, f"torch.OutOfMemoryError: {ALLOCATOR}"])

    failure = report["outcome"]["failure"]
    assert failure["rank"] == "DP0/PP0/TP1"
    assert (failure["kind"], failure["stage"]) == ("weights_out_of_memory", "before_weights")
    assert failure["needed"]["value"] == 2.50


# --- 23 the element type ----------------------------------------------


@pytest.mark.parametrize(
    ("lines", "dtype"),
    [
        (["Using KV cache dtype: torch.bfloat16", pool(400_000, 24.00)], "torch.bfloat16"),
        ([pool(400_000, 24.00, "KV Cache is allocated. dtype: torch.uint8,")], "torch.uint8"),
        ([pool(400_000, 24.00)], None),
        (
            [
                pool(400_000, 12.00, "KV Cache is allocated. dtype: torch.float8_e4m3fn,"),
                pools_end(38.00),
                typed(400_000, 0.50),  # speculative_draft_kv_cache_dtype
                pools_end(37.00),
            ],
            "torch.float8_e4m3fn",
        ),
    ],
    ids=["0.5.5", "0.5.15", "0.5.2", "draft"],
)
def test_the_element_type_is_what_a_line_says(
    tmp_path: Path, lines: list[str], dtype: str | None
) -> None:
    """23: `auto` stays in the arguments, whatever was chosen."""
    report = report_on(tmp_path, said(as_repr(), *weights(78.00, 16.00), *lines))

    assert report["deployment"]["kv_cache_dtype"]["value"] == "auto"
    resolved = report["deployment"]["kv_cache_dtype_resolved"]
    assert resolved["value"] == dtype
    assert dtype is not None or is_unknown(resolved)


# --- 24, 25 failures --------------------------------------------------


@pytest.mark.parametrize("name", ["self.server_args.mem_fraction_static", "mem_fraction_static"])
def test_the_fraction_stands_in_the_error(tmp_path: Path, name: str) -> None:
    """24: without prefix, inside a traceback, spelt in two ways."""
    error = (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
        f"Current value: {name}=0.8"
    )
    lines = [*said(*weights(78.00, 70.00), f"Scheduler hit an exception: {TRACEBACK}"), error]
    report = report_on(tmp_path, lines)

    failure = report["outcome"]["failure"]
    assert (failure["kind"], failure["stage"]) == ("no_kv_memory", "after_weights")
    assert failure["evidence"] == ["log0:4"]
    assert report["deployment"]["mem_fraction_static"]["value"] == 0.8
    # 78 · (1 - 0.8) = 15.6 are to be kept free, 8 are left.
    assert failure["needed"]["value"] == gib(78.00 * 0.2)
    assert failure["available"]["value"] == 8.00
    assert any("raise" in cure for cure in failure["cures"])
    assert any("lower" in harm for harm in failure["harmful"])


ADVICE = ["Possible solutions:", "1. set --mem-fraction-static to a smaller value (e.g., 0.8)"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Exception", "Capture cuda graph failed"),
        ("Exception", "Capture CUDA graph failed"),
        ("RuntimeError", "Capture prefill CUDA graph failed"),
    ],
    ids=["0.4.3", "0.4.6", "0.5.18"],
)
def test_a_failed_capture_says_what_ran_out(tmp_path: Path, kind: str, words: str) -> None:
    """25: three spellings, of many lines, behind the traceback of what they quote."""
    lines = [
        *said(as_repr(), *start()[:5], f"Scheduler hit an exception: {TRACEBACK}"),
        '  File "model_runner.py", line 300, in __init__',
        f"torch.OutOfMemoryError: {ALLOCATOR}",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        TRACEBACK,
        f"{kind}: {words}: {ALLOCATOR}",
        *ADVICE,
    ]
    report = report_on(tmp_path, lines)

    failure = report["outcome"]["failure"]
    assert failure["kind"] == "graph_capture_out_of_memory"
    assert failure["stage"] == "before_graphs"
    assert failure["evidence"][0] in ("log0:9", "log0:14")
    assert failure["needed"]["value"] == 2.50
    assert failure["available"]["value"] == 1.20
    assert failure["total"]["value"] == 79.11
    assert failure["short"]["value"] == gib(2.50 - 1.20)
    assert is_unknown(memory(report, "cuda_graph"))
    assert held(report, "kv_pool") == 48.00


@pytest.mark.parametrize(
    "words", ["Capture cuda graph failed", "Capture prefill CUDA graph failed"]
)
def test_a_capture_may_fail_of_something_else(tmp_path: Path, words: str) -> None:
    """25: the advice that follows speaks of memory all the same."""
    error = f"Exception: {words}: no kernel image is available for execution on the device"
    lines = [*said(*start()[:5], f"Scheduler hit an exception: {TRACEBACK}"), error, *ADVICE]
    failure = report_on(tmp_path, lines)["outcome"]["failure"]

    assert failure["kind"] == "not_memory"
    assert failure["needed"]["value"] is None


# --- 26 load ----------------------------------------------------------


def test_usage_of_the_pool_is_rounded(tmp_path: Path) -> None:
    """26: 0.00 with 4,000 of 1,000,000 tokens in use is 0.00 ± 0.005."""
    batch = (
        "Decode batch. #running-req: 3, #token: 4000, token usage: 0.00, "
        "gen throughput (token/s): 512.70, #queue-req: 1"
    )
    load = report_on(tmp_path, said(*start(tokens=1_000_000), UP, batch))["load"]

    usage = load["peak_kv_usage"]
    assert usage["value"] - usage["error"] <= 4_000 / 1_000_000 <= usage["value"] + usage["error"]
    assert (load["peak_running"]["value"], load["peak_waiting"]["value"]) == (3, 1)
    assert load["peak_throughput"]["value"] == 512.70


@pytest.mark.parametrize(
    "batch",
    [
        "Decode batch. #running-req: 3, #full token: 128000, full token usage: 0.32, #swa token: "
        "8192, swa token usage: 0.05, cuda graph: True, gen throughput (token/s): 512.70, "
        "#queue-req: 1, ",
        "Decode batch, #running-req: 3, #full token: 128000, full token usage: 0.32, mamba num: "
        "12, mamba usage: 0.05, cuda graph: True, gen throughput (token/s): 512.70, "
        "#queue-req: 1, ",
        "Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, full token usage: 0.32, "
        "mamba usage: 0.05, #running-req: 3, #queue-req: 1, #pending-token: 0, cuda graph: False",
    ],
    ids=["window", "state", "prefill"],
)
def test_a_hybrid_prints_no_plain_usage(tmp_path: Path, batch: str) -> None:
    """26: `full token usage` is the pool's, and prefill lines have no `#token`."""
    load = report_on(tmp_path, said(*start(), UP, batch))["load"]

    assert load["peak_kv_usage"]["value"] == 0.32
    assert (load["peak_running"]["value"], load["peak_waiting"]["value"]) == (3, 1)


# --- 27, 28 words that are nearly the same ----------------------------

WINDOWS = [pool(160_000, 3.00), pool(200_000, 5.00)]
LABELLED = [
    typed(200_000, 5.00, "Full KV Cache is allocated."),
    typed(160_000, 3.00, "SWA KV Cache is allocated."),
    "SWAKVPool mem usage: 16.00 GB, swa size: 160000, full size: 200000",
]


@pytest.mark.parametrize(
    "lines",
    [
        [
            "Use Sliding window memory pool. full_layer_tokens=200000, swa_layer_tokens=160000",
            *WINDOWS,
        ],
        [
            "Use sliding window memory pool. full_layer_tokens=200000, swa_layer_tokens=160000",
            *WINDOWS,
        ],
        WINDOWS,
        LABELLED,
    ],
    ids=["0.5.5", "0.5.8", "Llama4", "cap mode"],
)
def test_the_split_of_a_window_model_may_be_unsaid(tmp_path: Path, lines: list[str]) -> None:
    """27: a capital S to 0.5.5, and no line at all from Llama4 and in cap mode."""
    tail = [pools_end(46.00), limits(200_000), UP]
    report = report_on(tmp_path, said(as_repr(), *weights(78.00, 16.00), *lines, *tail))

    assert held(report, "kv_pool") == 16.00
    labels = {p["label"]: p["tokens"]["value"] for p in report["kv_pool"]["pools"]}
    assert labels == {"swa": 160_000, "full": 200_000}
    assert is_unknown(report["kv_pool"]["bytes_per_token"])
    limit = row_of(report, 8192)["token_limit"]  # the window binds as well, and is not printed
    assert is_unknown(limit)
    assert limit["at_most"] == 200_000 // 8192


def test_a_cap_of_tokens_is_no_limit_line(tmp_path: Path) -> None:
    """28: max_total_tokens=500000 is not max_total_num_tokens."""
    warning = (
        "max_total_tokens=500000 is larger than the profiled value 400000. Use the profiled value "
        "instead."
    )
    arguments = as_repr(max_total_tokens=500_000)
    report = report_on(tmp_path, said(arguments, *weights(78.00, 16.00), warning))
    sized = report_on(tmp_path, said(arguments, warning, *start()[:-1]))

    assert report["kv_pool"]["tokens"]["value"] is None
    assert sized["kv_pool"]["tokens"]["value"] == 400_000
    assert found(sized, "token-cap-ignored")
    assert is_unknown(sized["concurrency"]["request_limit"])


# --- 29, 30 tokens and bytes ------------------------------------------


def test_a_forks_tokens_that_contradict_its_pool_are_reported(tmp_path: Path) -> None:
    """29: kvcached grants 1,200,000 tokens where the pool's own line has 400,000."""
    lines = [*start()[:-1], limits(1_200_000), UP]
    report = report_on(tmp_path, said(as_repr(), *lines))

    assert held(report, "kv_pool") == 48.00
    assert report["kv_pool"]["tokens"]["value"] == 1_200_000
    both = {"log0:4", "log0:8"}
    assert any(both <= set(finding["evidence"]) for finding in found(report)), report["findings"]


def test_a_pool_has_a_page_more_than_its_tokens(tmp_path: Path) -> None:
    """30: (1,024 + 256) · 131,072 B = 0.15625 GiB, printed as twice 0.08; 0.16 GiB / 1,024 would
    be 28 % too high."""
    lines = [*weights(78.00, 16.00), pool(1024, 0.08), pools_end(61.84)]
    figure = report_on(tmp_path, said(as_repr(page_size=256), *lines))["kv_pool"]["bytes_per_token"]

    assert figure["value"] == pytest.approx(0.16 * 2**30 / (1024 + 256), rel=0.001)
    assert abs(figure["value"] - 131_072) <= figure["error"]


def test_bytes_per_token_need_the_page(tmp_path: Path) -> None:
    """30: a page that no line tells may be as large as the pool."""
    lines = [*weights(78.00, 16.00), pool(1024, 0.08), pools_end(61.84)]

    assert is_unknown(report_on(tmp_path, said(*lines))["kv_pool"]["bytes_per_token"])


# --- 31 devices that share the host's memory --------------------------


def test_memory_shared_with_the_host_has_no_device_reading(tmp_path: Path) -> None:
    """31: GB10 prints the host's available memory, and its tool [N/A]."""
    smi = tmp_path / "smi.csv"
    smi.write_text(
        "index, name, memory.used [MiB], memory.free [MiB]\n0, NVIDIA GB10, [N/A], [N/A]\n",
        encoding="utf-8",
    )
    report = report_on(tmp_path, said(as_repr(), *start(), UP), smi=str(smi))

    for category in ("framework", "total", "used", "free", "other"):
        assert is_unknown(memory(report, category)), category
    assert timeline(report)[0] == ("before_weights", 78.00)


# --- 32-34 what old and new lines have --------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        "type=LlamaForCausalLM, dtype=torch.bfloat16, ",
        "elapsed=9.00 s, type=LlamaForCausalLM, ",
        "elapsed=9.00 s, type=LlamaForCausalLM, quant=fp8, ",
        "elapsed=9.00 s, type=LlamaForCausalLM, quant=gptq, bits=4, ",
        "elapsed=9.00 s, type=LlamaForCausalLM, quant=modelopt, quant_algo=FP8, fmt=e4m3, ",
    ],
    ids=["0.5.8", "0.5.10", "quant", "bits", "three"],
)
def test_the_weight_line_is_read_by_its_keys(tmp_path: Path, fields: str) -> None:
    """32: dtype is gone from 0.5.10, and a quantization has commas of its own."""
    line = f"Load weight end. {fields}avail mem=62.00 GB, mem usage=16.00 GB."
    report = report_on(tmp_path, said(begin(78.00), line))

    assert held(report, "weights") == 16.00
    assert parts(report, "weights") == [("target", 16.00)]
    assert timeline(report) == [("before_weights", 78.00), ("after_weights", 62.00)]


@pytest.mark.parametrize("release", ["0.2.15", "0.4.0"])
def test_a_pool_without_a_line_is_a_difference(tmp_path: Path, release: str) -> None:
    """33: no allocation line to 0.4.0; 62.00 - 22.00, each within 0.005."""
    line = (
        "max_total_num_tokens=56524, max_prefill_tokens=16384, max_running_requests=2049, "
        "context_len=32768"
    )
    lines = said(*old_weights(78.00, 16.00), pools_end(22.00), line, rank=" TP0")
    if release == "0.2.15":
        lines = [line.replace("2026-03-01 ", "") for line in lines]
    pool_size = memory(report_on(tmp_path, lines), "kv_pool")

    assert pool_size["value"] == 40.00
    assert pool_size["error"] == pytest.approx(0.01)


def test_the_latent_pool_of_043_is_the_difference_or_unknown(tmp_path: Path) -> None:
    """33: in 0.4.3 only K and V of usual attention are printed."""
    lines = said(
        as_repr(),
        begin(78.00),
        "Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=62.00 GB, "
        "mem usage=16.00 GB.",
        pools_end(22.00),
        rank=" TP0",
    )
    pool_size = memory(report_on(tmp_path, lines), "kv_pool")

    assert pool_size["value"] == 40.00 or is_unknown(pool_size)


def test_a_capture_without_figures_stays_unknown(tmp_path: Path) -> None:
    """34: 0.2.15 … 0.4.0; nothing is read after it, either."""
    lines = [
        *old_weights(78.00, 16.00),
        pools_end(22.00),
        "Capture cuda graph begin. This can take up to several minutes.",
        "Capture cuda graph end. Time elapsed: 5.00 s",
        "max_total_num_tokens=56524, max_prefill_tokens=16384, max_running_requests=2049, "
        "context_len=32768",
    ]
    report = report_on(tmp_path, [*said(*lines, rank=" TP0"), *said(UP)])

    assert is_unknown(memory(report, "cuda_graph"))
    assert is_unknown(memory(report, "unattributed"))
    assert report["outcome"]["status"] == "ready"


# --- seen in public logs ----------------------------------------------

BUDGET = "The available memory for KV cache is {:.2f} GB."


def test_a_printed_budget_is_not_the_pool(tmp_path: Path) -> None:
    """Public logs: 16.06 GiB of budget, 17.64 allocated; the draft's budget is negative."""
    lines = [
        *weights(78.00, 44.00),
        *weights(34.00, 2.00, "DeepseekV3ForCausalLMNextN"),
        BUDGET.format(16.06),
        "KV Cache is allocated. #tokens: 220416, KV size: 17.64 GB",
        pools_end(14.36),
        BUDGET.format(-0.15),
        "KV Cache is allocated. #tokens: 220416, KV size: 0.29 GB",
        pools_end(14.07),
    ]
    report = report_on(tmp_path, said(as_repr(), *lines, limits(220_416, 48), UP))

    assert report["kv_pool"]["budget"]["value"] == 16.06
    assert parts(report, "kv_pool") == [("target", 17.64), ("draft", 0.29)]
    assert held(report, "kv_pool") == gib(17.64 + 0.29)
    assert found(report, "negative-budget")
    assert report["outcome"]["status"] == "ready"


def test_the_request_limit_of_the_finalized_tokens_is_read(tmp_path: Path) -> None:
    """Public logs: a limit of one worker, before the limit line."""
    line = (
        "Max concurrent requests (per dp worker) from the finalized token capacity: max_num_reqs=48"
    )
    lines = said(as_repr(dp_size=2), line) + said(line, rank=" DP0") + said(line, rank=" DP1")
    lines += said(*weights(78.00, 16.00), pool(400_000, 24.00), rank=" DP0")
    report = report_on(tmp_path, lines)

    assert report["kv_pool"]["workers"][0]["request_limit"]["value"] == 48


@pytest.mark.parametrize(
    "lines",
    [
        graph(20.00, 1.20, "npu graph"),
        graph(20.00, 1.20, "cpu graph"),
        graph(20.00, 1.20, "musa graph"),
        new_graph(20.00, 1.20, "target decode NPU graph"),
        new_graph(20.00, 1.20, "target decode CPU graph"),
        new_graph(20.00, 1.20, "target decode XPU graph"),
        new_graph(20.00, 1.20, "target decode MUSA graph"),
    ],
    ids=["npu", "cpu", "musa", "NPU", "CPU", "XPU", "MUSA"],
)
def test_the_device_of_a_graph_varies(tmp_path: Path, lines: list[str]) -> None:
    """Public logs: cuda, npu, cpu, musa."""
    report = report_on(tmp_path, said(*weights(36.00, 16.00), *lines))

    assert held(report, "cuda_graph") == 1.20
    assert rank_of(report, FIRST)["memory"]["cuda_graph"]["evidence"] == ["log0:4"]
