"""SGLang's traps for whoever reads its logs, 1 to 18: the number is the trap's own. The others are
in test_sglang_traps_later.py.

Lines are in the words of the releases named beside them, figures are made up, and what must come
out is arithmetic that stands in the test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .running import (
    FIRST,
    Report,
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


def ids(report: Report) -> list[str]:
    return [rank["id"] for rank in report["ranks"]]


# --- 1-3 prefixes -----------------------------------------------------


@pytest.mark.parametrize("rank", ["", " TP0"], ids=["0.4.6", "0.4.3"])
def test_a_line_without_rank_is_of_the_only_rank(tmp_path: Path, rank: str) -> None:
    """1: from 0.4.6 one GPU prints no rank, before it always TP0."""
    report = report_on(tmp_path, [*said(as_repr()), *said(*start(), rank=rank), *said(UP)])

    assert ids(report) == [FIRST]
    assert held(report, "weights") == 16.00
    assert held(report, "kv_pool") == 48.00
    assert report["kv_pool"]["tokens"]["value"] == 400_000


def test_lines_of_the_launcher_are_of_no_rank(tmp_path: Path) -> None:
    """1: the second node's launcher prints as the only rank of one GPU would."""
    lines = said(as_repr(tp_size=4, nnodes=2, node_rank=1))
    for tp in (2, 3):
        lines += said(*start()[:-1], rank=f" TP{tp}")

    assert ids(report_on(tmp_path, lines)) == ["DP0/PP0/TP2", "DP0/PP0/TP3"]


@pytest.mark.parametrize(
    ("printed", "rank"),
    [
        (" DP1 TP2 PP3", "DP1/PP3/TP2"),
        (" DP1 TP2 EP5 PP3", "DP1/PP3/TP2"),
        (" DP1 PP3 TP2 EP5", "DP1/PP3/TP2"),
        (" DP1 PP3 ATTN_CP4 MOE_DP6 TP2 EP5", "DP1/PP3/TP2"),
        (" PP3 ATTN_CP4 MOE_DP6 TP2", "DP0/PP3/TP2"),
        (" MOE_DP6 TP2", "DP0/PP0/TP2"),
        (" DP1 SLICE9 TP2", "DP1/PP0/TP2"),
    ],
    ids=["0.4.6", "0.5.2", "0.5.5", "0.5.10", "no DP", "MOE_DP alone", "another name"],
)
def test_ranks_are_told_by_name_in_any_order(tmp_path: Path, printed: str, rank: str) -> None:
    """2: MOE_DP6 is no DP6, ATTN_CP4 holds an underscore, and what is unknown is kept."""
    report = report_on(tmp_path, said(*weights(78.00, 16.00), rank=printed))

    assert ids(report) == [rank]
    assert held(report, "weights", rank) == 16.00


def test_a_label_is_what_was_printed(tmp_path: Path) -> None:
    """2: coordinates that the report has no place for are kept there."""
    lines = said(*weights(78.00, 16.00), rank=" DP1 PP3 ATTN_CP4 MOE_DP6 TP2 EP5")
    (rank,) = report_on(tmp_path, lines)["ranks"]

    assert rank["label"] == "DP1 PP3 ATTN_CP4 MOE_DP6 TP2 EP5"


def test_the_day_may_wrap_where_no_date_is_printed(tmp_path: Path) -> None:
    """3: 0.2.15 prints HH:MM:SS alone, here across midnight."""
    first, *others = [*old_weights(78.00, 16.00), pools_end(22.00)]
    lines = [f"[23:59:58 TP0] {first}", *(f"[00:00:01 TP0] {message}" for message in others)]
    report = report_on(tmp_path, lines)

    assert len(report["runs"]) == 1
    assert held(report, "weights") == 16.00
    assert held(report, "kv_pool") == 40.00


@pytest.mark.parametrize(
    "form",
    [
        "[2026-03-01 10:00:00.123 TP1] {}",
        "2026-03-01 10:00:00,123 - sglang.srt - INFO - [TP1] {}",
        '{{"time": "2026-03-01T10:00:00Z", "rank": "[TP1]", "message": "{}"}}',
    ],
    ids=["SGLANG_LOG_MS", "own format", "own JSON"],
)
def test_the_prefix_may_be_another(tmp_path: Path, form: str) -> None:
    """3: milliseconds, or whatever SGLANG_LOGGING_CONFIG_PATH makes of it."""
    lines = [form.format(message) for message in weights(78.00, 16.00)]
    report = report_on(tmp_path, [*said(as_repr(tp_size=2)), *lines])

    assert [v for v in by_rank(report, "weights").values() if v is not None] == [16.00]


# --- 4 draft models ---------------------------------------------------

BEGAN = "This can take up to several minutes."

OLD_ORDER = [
    *weights(78.00, 16.00),
    pool(300_000, 20.00),
    pools_end(22.00),
    *graph(22.00, 1.50),
    *weights(20.50, 2.00, "LlamaForCausalLMEagle3"),
    pool(300_000, 0.50),
    pools_end(17.50),
    *graph(17.50, 0.30, "draft cuda graph"),
    *graph(17.20, 0.20, "draft extend cuda graph"),
    limits(300_000, free=17.00),
]
NEW_ORDER = [
    *weights(78.00, 16.00),
    *weights(62.00, 2.00, "DeepseekV3ForCausalLMNextN"),
    typed(300_000, 20.00),
    pools_end(20.00),
    typed(300_000, 0.50),
    pools_end(19.00),
    *new_graph(19.00, 1.50, "target verify CUDA graph"),
    *new_graph(17.50, 0.30, "draft decode CUDA graph"),
    *new_graph(17.20, 0.20, "draft extend CUDA graph"),
    limits(300_000, free=17.00),
]


@pytest.mark.parametrize("lines", [OLD_ORDER, NEW_ORDER], ids=["0.5.12", "0.5.15"])
def test_a_draft_repeats_its_targets_lines_without_a_label(
    tmp_path: Path, lines: list[str]
) -> None:
    """4: in either order one start, each figure once, and tokens of the target's pool alone."""
    report = report_on(tmp_path, said(as_repr(), *lines, UP))

    assert len(report["runs"]) == 1
    assert parts(report, "weights") == [("target", 16.00), ("draft", 2.00)]
    assert parts(report, "kv_pool") == [("target", 40.00), ("draft", 1.00)]
    assert held(report, "cuda_graph") == gib(1.50 + 0.30 + 0.20)
    assert report["kv_pool"]["deployment_tokens"]["value"] == 300_000
    # 78 - 17 are gone: 18 + 41 + 2 of them are told.
    assert held(report, "unattributed") == gib(78.00 - 17.00 - 18.00 - 41.00 - 2.00)


def test_a_drafts_capture_without_usage_is_no_zero(tmp_path: Path) -> None:
    """4, 7: 0.4.3 prints free memory alone behind a draft's capture: 18.80 - 18.50, or unknown."""
    lines = [
        *weights(36.00, 16.00),
        *graph(20.00, 1.20),
        f"Capture draft cuda graph begin. {BEGAN} avail mem=18.80 GB",
        "Capture draft cuda graph end. Time elapsed: 5.00 s. avail mem=18.50 GB",
    ]
    graphs = memory(report_on(tmp_path, said(*lines, rank=" TP0")), "cuda_graph")

    assert is_unknown(graphs) or graphs["value"] == gib(1.20 + 0.30)


def test_the_pool_of_a_draft_alone_is_not_the_targets(tmp_path: Path) -> None:
    """4: a log that begins behind the target's own lines."""
    report = report_on(tmp_path, said(*OLD_ORDER[6:]))

    assert is_unknown(memory(report, "weights"))
    assert is_unknown(memory(report, "kv_pool"))


# --- 5, 6 pools that are no sum or no memory --------------------------

# swa: 160,000 tokens in 6.00 GiB, full: 200,000 tokens in 6.345678 GiB
TWINS = [pool(160_000, 3.00), pool(200_000, 3.17)]


@pytest.mark.parametrize("total", ["12.345678", "12.35", None], ids=["0.5.5", "0.5.8", "none"])
@pytest.mark.parametrize("swa_first", [True, False])
def test_two_window_pools_and_their_sum_are_two_pools(
    tmp_path: Path, total: str | None, swa_first: bool
) -> None:
    """5: 6.00 + 6.34 or their sum, never all three; the larger count is the full pool's."""
    lines = TWINS if swa_first else TWINS[::-1]
    if total is not None:
        lines = [
            *lines,
            f"SWAKVPool mem usage: {total} GB, swa size: 160000, full size: 200000",
        ]
    report = report_on(tmp_path, said(*weights(78.00, 16.00), *lines, pools_end(49.65)))

    assert held(report, "kv_pool") == pytest.approx(12.35, abs=0.011)
    pools = report["kv_pool"]["pools"]
    assert {p["label"]: (p["tokens"]["value"], p["size"]["value"]) for p in pools} == {
        "swa": (160_000, gib(6.00)),
        "full": (200_000, gib(6.34)),
    }
    assert report["kv_pool"]["workers"][0]["tokens"].get("at_most", 200_000) == 200_000


def test_a_window_pool_may_be_the_larger_one(tmp_path: Path) -> None:
    """5: the tokens of the sum line tell the pools apart, not their order or size."""
    total = "SWAKVPool mem usage: 12.34 GB, swa size: 200000, full size: 160000"
    report = report_on(tmp_path, said(as_repr(), *TWINS, total, pools_end(49.66)))

    pools = report["kv_pool"]["pools"]
    assert {p["label"]: p["tokens"]["value"] for p in pools} == {"swa": 200_000, "full": 160_000}
    assert report["kv_pool"]["tokens"]["value"] == 160_000


RESERVED = typed(900_000, 30.00, "KV Cache VA upper bound.")


def test_a_va_upper_bound_is_address_space(tmp_path: Path) -> None:
    """6: 60 GiB of addresses beside 61.50 GiB that stay free."""
    report = report_on(tmp_path, said(as_dict(), *weights(78.00, 16.00), RESERVED, pools_end(61.5)))

    assert is_unknown(memory(report, "kv_pool"))
    assert is_unknown(report["kv_pool"]["size"])
    assert report["kv_pool"]["tokens"]["value"] is None


def test_what_is_sized_after_capture_is_the_truth(tmp_path: Path) -> None:
    """6: fewer tokens and requests than reserved; the limit line comes later and is final."""
    report = report_on(
        tmp_path,
        said(
            as_dict(max_running_requests=128),
            *weights(78.00, 16.00),
            RESERVED,
            pools_end(61.50),
            *new_graph(61.50, 1.50, "target decode CUDA graph"),
            "Post-capture KV sizing: max_running_requests 128 -> 96",
            "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 700000, "
            "KV size: 46.50 GB, avail mem=13.50 GB",
            limits(700_000, 96),
            UP,
        ),
    )

    assert held(report, "kv_pool") == 46.50
    assert report["kv_pool"]["tokens"]["value"] == 700_000
    assert report["concurrency"]["request_limit"]["value"] == 96


# --- 7, 8 graphs and progress bars ------------------------------------


@pytest.mark.parametrize(
    ("lines", "size"),
    [
        (
            [
                f"Capture cuda graph begin. {BEGAN} avail mem=20.00 GB",
                "Capture cuda graph end. Time elapsed: 5.00 s. avail mem=18.80 GB. "
                "mem usage=1.20 GB.",
            ],
            1.20,
        ),
        (graph(20.00, 1.20), 1.20),
        (
            [
                *graph(20.00, 1.20),
                f"Capture draft cuda graph begin. {BEGAN} avail mem=18.80 GB",
                "Capture draft cuda graph end. Time elapsed: 5.00 s. avail mem=18.50 GB. "
                "mem usage=0.30 GB.",
            ],
            1.20 + 0.30,
        ),
        (graph(20.00, 1.20, "cpu graph"), 1.20),
        (
            [
                *graph(20.00, 1.20),
                "Capture piecewise CUDA graph begin. avail mem=18.80 GB",
                "Capture piecewise CUDA graph end. Time elapsed: 5.00 s. mem usage=0.40 GB. "
                "avail mem=18.40 GB.",
            ],
            1.20 + 0.40,
        ),
        (
            [
                "Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, "
                "bs=[1, 2, 4], avail mem=20.00 GB",
                "Capture target decode CUDA graph end. elapsed=5.00 s, mem usage=1.20 GB, "
                "avail mem=18.80 GB.",
                "Capture target prefill CUDA graph begin. backend=full, num_tokens=[4, 8], "
                "avail mem=18.80 GB",
                "Capture target prefill CUDA graph end. elapsed=5.00 s, mem usage=0.70 GB, "
                "avail mem=18.10 GB.",
            ],
            1.20 + 0.70,
        ),
        (new_graph(20.00, 1.20, "target verify CUDA graph"), 1.20),
        (
            [
                "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, "
                "avail mem=20.00 GB",
                "Capture target decode CUDA graph end. bs=[1, 2, 4], elapsed=5.00 s, "
                "mem usage=1.20 GB, avail mem=18.80 GB.",
            ],
            1.20,
        ),
    ],
    ids=["0.4.3", "0.4.6", "draft 0.4.6", "cpu", "0.5.8", "0.5.15", "verify 0.5.18", "0.5.22"],
)
def test_a_captures_usage_is_told_by_its_name(
    tmp_path: Path, lines: list[str], size: float
) -> None:
    """7: usage and free memory change places, full stops become commas, lists move in between."""
    report = report_on(tmp_path, said(*weights(36.00, 16.00), *lines))

    assert held(report, "cuda_graph") == gib(size)
    frees = dict(timeline(report))
    assert frees["before_graphs"] == 20.00
    if len(lines) == 2:
        assert frees["after_graphs"] == gib(20.00 - size)


BAR = "Capturing batches ({}avail_mem=11.18 GB): {:3}%|{}| {}/4 [00:0{}<00:00,  6.31it/s]"


def bars(of_size: str, mark: str = "█") -> str:
    """What tqdm writes: every step over the former one, and no line end."""
    return "\r".join(BAR.format(of_size, 25 * n, mark * n, n, n) for n in range(5))


@pytest.mark.parametrize("of_size", ["bs=1 ", ""], ids=["new", "old"])
@pytest.mark.parametrize("glue", ["", "\r", "\n"])
def test_a_progress_bar_is_no_reading(tmp_path: Path, of_size: str, glue: str) -> None:
    """8: rank 0's next line is glued to the bar, whose `avail_mem=` is not `avail mem=`."""
    before = said(*weights(36.00, 16.00), graph(20.00, 1.20)[0], rank=" TP0")
    (end,) = said(graph(20.00, 1.20)[1], rank=" TP0", at="10:01")
    report = report_on(tmp_path, [*before, bars(of_size) + glue + end])

    assert held(report, "cuda_graph") == 1.20
    assert [free for _, free in timeline(report)] == [36.00, 20.00, 20.00, gib(18.80)]


# --- 9-11 free memory -------------------------------------------------


def test_free_memory_may_come_back(tmp_path: Path) -> None:
    """9: 11.87 after pools, 12.01 before graphs, as a public log has it on one rank of eight."""
    lines = [*weights(78.00, 16.00), pool(400_000, 25.06), pools_end(11.87), *graph(12.01, 1.00)]
    report = report_on(tmp_path, said(as_repr(), *lines, limits(400_000, free=10.90), UP))

    frees = dict(timeline(report))
    assert (frees["after_pools"], frees["before_graphs"]) == (11.87, 12.01)
    step = next(s for s in rank_of(report)["steps"] if s["until"] == "free[before_graphs]")
    assert step["change"]["value"] == gib(11.87 - 12.01)


def test_usage_may_be_negative(tmp_path: Path) -> None:
    """9: another process freed memory while weights were loaded."""
    report = report_on(tmp_path, said(*weights(60.00, -0.75), *graph(60.75, -0.02)))

    assert held(report, "weights") == -0.75
    assert held(report, "cuda_graph") == -0.02


def test_two_servers_on_one_device_cannot_be_told_apart(tmp_path: Path) -> None:
    """10: free memory is the device's, so either server's usage holds a part of the other's."""
    lines = said(
        as_repr(port=30000),
        as_repr(port=30001, model_path="/models/b"),
        begin(78.00),
        begin(77.00),
        "Load weight end. elapsed=9.00 s, type=LlamaForCausalLM, avail mem=50.00 GB, "
        "mem usage=28.00 GB.",
        "Load weight end. elapsed=9.00 s, type=Qwen3ForCausalLM, avail mem=42.00 GB, "
        "mem usage=35.00 GB.",
    )
    report = report_on(tmp_path, lines)

    assert is_unknown(memory(report, "weights"))
    assert found(report), "nothing says that the log mixes servers"


def test_gb_of_a_gpu_are_gib_and_of_the_host_decimal(tmp_path: Path) -> None:
    """11: 12.50 GB in host memory are 12.5e9 / 2**30 = 11.64 GiB, and none of the device's."""
    hicache = "Allocating 12.50 GB host memory for hierarchical KV cache."
    report = report_on(tmp_path, said(*start(), hicache, UP))

    assert (held(report, "weights"), memory(report, "weights")["unit"]) == (16.00, "GiB")
    assert held(report, "kv_pool") == 48.00
    (host,) = rank_of(report)["host_pools"]
    assert host["size"]["unit"] == "GiB"
    assert host["size"]["value"] == gib(12.5e9 / 2**30)


# --- 12-14 who prints what --------------------------------------------


@pytest.mark.parametrize("form", [as_repr, as_dict], ids=["0.5.18", "0.5.19"])
def test_both_forms_of_the_arguments_say_the_same(tmp_path: Path, form: Any) -> None:
    """12: a repr to 0.5.18, a dict from 0.5.19; 0.2.15 has node_rank=None."""
    line = form(tp_size=4, node_rank=None, schedule={"a": (1, "x, y=2")}, x="it's, tp_size=9")
    deployment = report_on(tmp_path, said(line, *weights(78.00, 16.00)))["deployment"]

    assert deployment["model"]["value"] == "/models/a"
    assert deployment["mem_fraction_static"]["value"] == 0.85
    assert deployment["parallel"]["tensor"]["value"] == 4


def test_arguments_of_an_offline_engine_are_printed_twice(tmp_path: Path) -> None:
    """12, 15: identical lines within a second are one start."""
    report = report_on(tmp_path, said(as_repr(), as_repr(), *start()))

    assert len(report["runs"]) == 1


@pytest.mark.parametrize(
    "cut", ["model_path='/models", "mem_fraction_static=0.8", "tp_size=1", "context_length"]
)
@pytest.mark.parametrize("form", [as_repr, as_dict], ids=["0.5.18", "0.5.19"])
@pytest.mark.parametrize("rest", ["lost", "wrapped"])
def test_a_cut_argument_is_not_a_shorter_one(
    tmp_path: Path, form: Any, cut: str, rest: str
) -> None:
    """12: lines of 4 … 12 kB are wrapped or cut anywhere: 0.8|5, tp_size=1|6."""
    line = form(tp_size=16)
    if form is as_dict and "=" in cut:
        cut = "'{}': {}".format(*cut.split("="))
    head, found_cut, tail = line.partition(cut)
    assert found_cut
    wrapped = [tail] if rest == "wrapped" else []
    report = report_on(
        tmp_path, [*said(head + cut), *wrapped, *said(*start(), rank=" TP0", at="10:01")]
    )

    deployment = report["deployment"]
    assert deployment["model"]["value"] in ("/models/a", None)
    assert deployment["mem_fraction_static"]["value"] in (0.85, None)
    assert deployment["parallel"]["tensor"]["value"] in (16, None)


def test_the_second_nodes_log_has_no_limits(tmp_path: Path) -> None:
    """13: from 0.4.6 TP rank 0 alone prints them; the arguments stand in every node's log."""
    lines = said(as_repr(tp_size=16, nnodes=2, node_rank=1))
    for tp in range(8, 16):
        lines += said(*start()[:-1], rank=f" TP{tp}")
    report = report_on(tmp_path, lines)

    assert len(report["ranks"]) == 8
    tokens = report["kv_pool"]["tokens"]
    assert is_unknown(tokens)
    assert tokens["at_most"] == 400_000
    assert is_unknown(report["concurrency"]["request_limit"])
    assert report["outcome"]["failure"] is None


def test_limits_that_every_rank_prints_are_one_workers(tmp_path: Path) -> None:
    """13: 0.2.15 … 0.4.3."""
    line = (
        "max_total_num_tokens=56524, max_prefill_tokens=16384, max_running_requests=2049, "
        "context_len=32768"
    )
    lines = said(as_repr(tp_size=2))
    for tp in (0, 1):
        lines += said(*old_weights(78.00, 16.00), pools_end(22.00), line, rank=f" TP{tp}")
    kv = report_on(tmp_path, lines)["kv_pool"]

    assert len(kv["workers"]) == 1
    assert kv["deployment_tokens"]["value"] == 56_524


def test_stages_of_046_have_limits_of_their_own(tmp_path: Path) -> None:
    """13, 14: the first rank of each stage prints them, of one worker, and up to 0.4.9 no minimum
    was taken (model_runner.py `profile_max_num_token`): the least stage holds."""
    lines = said(as_repr(pp_size=2))
    for stage, tokens in enumerate((400_000, 390_000)):
        lines += said(*weights(78.00, 16.00), pool(tokens, 20.00), rank=f" PP{stage}")
        lines += said(pools_end(22.00), limits(tokens), rank=f" PP{stage}")
    kv = report_on(tmp_path, [*lines, *said(UP)])["kv_pool"]

    assert kv["tokens"]["value"] == 390_000
    assert kv["deployment_tokens"]["value"] == 390_000


SHAPES = {
    "0.2.15": "max_total_num_tokens={}, max_prefill_tokens=16384, max_running_requests={}, "
    "context_len=32768",
    "0.4.3": "max_total_num_tokens={}, chunked_prefill_size=-1, max_prefill_tokens=16384, "
    "max_running_requests={}, context_len=32768",
    "0.4.6": "max_total_num_tokens={}, chunked_prefill_size=None, max_prefill_tokens=16384, "
    "max_running_requests={}, context_len=32768",
    "0.4.9": "max_total_num_tokens={}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests={}, context_len=32768, available_gpu_mem=6.22 GB",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_limits_are_of_one_data_parallel_worker(tmp_path: Path, shape: str) -> None:
    """14: two replicas print two lines, and the deployment is their sum."""
    lines = said(as_repr(dp_size=2))
    lines += said(SHAPES[shape].format(400_000, 40), rank=" DP0")
    lines += said(SHAPES[shape].format(380_000, 60), rank=" DP1")
    report = report_on(tmp_path, [*lines, *said(UP)])

    workers = report["kv_pool"]["workers"]
    assert [w["tokens"]["value"] for w in workers] == [400_000, 380_000]
    assert [w["request_limit"]["value"] for w in workers] == [40, 60]
    assert report["kv_pool"]["deployment_tokens"]["value"] == 400_000 + 380_000
    assert report["deployment"]["context_length"]["value"] == 32768
    assert row_of(report, 8192)["deployment_max_concurrent"]["value"] == 40 + 380_000 // 8192


# --- 15 restarts ------------------------------------------------------


@pytest.mark.parametrize("told_by", ["arguments", "served before", "died before"])
def test_a_restart_is_another_run(tmp_path: Path, told_by: str) -> None:
    """15: new arguments at a later time, or weights again after the end of a start."""
    first = said(*start(20.00), UP)
    if told_by == "died before":
        first = [*said(*weights(78.00, 20.00)), *said(f"Scheduler hit an exception: {TRACEBACK}")]
    again = said(*([as_repr()] if told_by == "arguments" else []), *start(16.00), UP, at="11:00")
    report = report_on(tmp_path, first + again)

    assert [run["first"] for run in report["runs"]] == ["log0:1", f"log0:{len(first) + 1}"]
    assert held(report, "weights") == 16.00


def test_memory_lines_of_run_time_are_no_start(tmp_path: Path) -> None:
    """15: weights that are exchanged and adapters print free memory, too."""
    later = said(
        "Update weights begin. avail mem=11.10 GB",
        "Update engine weights online from disk begin. avail mem=11.20 GB",
        "Update weights end.",
        "LoRA adapter loading starts: LoRARef(lora_id='a1'). avail mem=11.30 GB",
        "LoRA adapter loading completes: LoRARef(lora_id='a1'). avail mem=11.05 GB",
        at="12:00",
    )
    report = report_on(tmp_path, [*said(as_repr(), *start(), UP), *later])

    assert len(report["runs"]) == 1
    assert report["outcome"]["status"] == "ready"
    assert [free for _, free in timeline(report)] == [78.00, 62.00, 14.00, 14.00, 13.00, 13.00]


# --- 16-18 figures that are not there ---------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "Memory baseline taken. mem usage=0.00 GB",
        "Init torch distributed ends. mem usage=1.05 GB",
        "Init torch distributed ends. elapsed=2.00 s, mem usage=1.05 GB",
    ],
    ids=["0.5.21", "0.4.3", "0.5.10"],
)
def test_no_line_says_what_the_framework_takes(tmp_path: Path, line: str) -> None:
    """16: the baseline is no cost of NCCL, and what NCCL took is a part of the whole."""
    report = report_on(tmp_path, said(as_dict(), line, *start(), UP))

    assert is_unknown(memory(report, "framework"))
    printed = [size for _, size in parts(report, "framework")]
    assert printed == ([1.05] if "1.05" in line else [])


def test_weights_committed_behind_the_capture_are_unknown(tmp_path: Path) -> None:
    """17: startup-weight-load-mode=overlap prints no figure."""
    report = report_on(
        tmp_path,
        said(
            as_repr(startup_weight_load_mode="overlap"),
            begin(78.00),
            typed(400_000, 24.00),
            pools_end(14.00),
            *new_graph(14.00, 1.00, "target decode CUDA graph"),
            "Load weight end. Committed real weights after CUDA graph capture in 1.20 s (capture "
            "overlap window 5.00 s, startup overlap total 9.00 s)",
            limits(400_000, free=13.00),
            UP,
        ),
    )

    assert is_unknown(memory(report, "weights"))
    assert is_unknown(memory(report, "unattributed"))
    assert held(report, "kv_pool") == 48.00
    assert found(report, "weights-overlapped")
    assert report["outcome"]["status"] == "ready"


HEAD = "max_mamba_cache_size: 360, "
STATES = "conv_state size: 0.12GB, ssm_state size: 1.23GB "
MIDDLE = "intermediate_ssm_state_cache size: 2.50GB intermediate_conv_window_cache size: 0.25GB "


@pytest.mark.parametrize(
    ("lines", "size", "slots"),
    [
        ([f"Mamba Cache is allocated. {STATES}"], 0.12 + 1.23, None),
        ([f"Mamba Cache is allocated. {HEAD}{STATES}"], 0.12 + 1.23, 360),
        ([f"Mamba Cache is allocated. {HEAD}{STATES}{MIDDLE}"], 0.12 + 1.23 + 2.50 + 0.25, 360),
        (
            [
                f"Mamba Cache is allocated. {HEAD}{STATES}",
                "GDN ReplaySSM ring buffers allocated (L=4): d=1.250GB, k=0.750GB, g=0.010GB ",
            ],
            0.12 + 1.23 + 1.250 + 0.750 + 0.010,
            360,
        ),
        (
            [
                f"Mamba Cache is allocated. {HEAD}{STATES}",
                "GDN ReplaySSM ring buffers allocated (record_len=4, fold=True): d=0.000GB, "
                "k=0.000GB, g=0.010GB rawv=1.500GB, rawk=0.500GB, beta=0.020GB ",
            ],
            0.12 + 1.23 + 0.010 + 1.500 + 0.500 + 0.020,
            360,
        ),
        (
            [
                f"Mamba Cache is allocated. {HEAD}{STATES}",
                "GDN ReplaySSM ring buffers allocated (record_len=4, fold=True): d=0.000GB, "
                "k=0.000GB, g=0.010GB rawv=1.500GB, rawk=0.500GB, ",
            ],
            0.12 + 1.23 + 0.010 + 1.500 + 0.500,
            360,
        ),
    ],
    ids=["0.5.2", "0.5.5", "speculative", "rings 0.5.15", "rings 0.5.18", "rings 0.5.20"],
)
def test_states_print_figures_without_a_blank(
    tmp_path: Path, lines: list[str], size: float, slots: int | None
) -> None:
    """18: 1.23GB, a blank behind it, and parts that come and go."""
    tail = [pool(400_000, 5.00), pools_end(44.00)]
    report = report_on(tmp_path, said(*weights(78.00, 16.00), *lines, *tail))

    assert held(report, "state_pool") == gib(size)
    assert held(report, "kv_pool") == 10.00
    shown = report["kv_pool"]["state_slots"]
    assert (shown and shown["value"]) == slots
