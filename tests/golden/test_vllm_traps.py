"""vLLM's traps for whoever reads its logs, 1 to 18: the number is the trap's own. The others are in
test_vllm_traps_later.py.

Lines are in the words of the releases named beside them, figures are made up, and what must come
out is arithmetic that stands in the test.
"""

from __future__ import annotations

import re
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
    report_on,
    row_of,
    timeline,
)
from .vllm_lines import (
    APPLIED,
    ESTIMATE,
    NOT_APPLIED,
    SERVES,
    asked,
    bare,
    budget,
    captured,
    config,
    failed,
    graph_pool,
    loaded,
    namespace,
    plain,
    said,
    separate,
    sized,
    sized_in_one,
    summary,
    together,
)

# --- 1-3 figures ------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "weights", "error"),
    [
        (bare("Loading model weights took 14.9888 GB"), 14.9888, 0.00005),
        (said("Model loading took 15.4137 GB and 9.033798 seconds"), 15.4137, 0.00005),
        (said("Model loading took 14.2419 GiB and 5.123456 seconds"), 14.2419, 0.00005),
        (said("Model loading took 14.2419 GiB memory and 5.123456 seconds"), 14.2419, 0.00005),
        (said("Model loading took 14.5 GiB memory and 5.123456 seconds"), 14.5, 0.005),
        (said("Model loading took 14.0 GiB memory and 5.123456 seconds"), 14, 0.005),
        (said("Model loading took 15.27 GiB and 12.006092 seconds"), 15.27, 0.005),
    ],
    ids=["0.4.2", "0.8.0", "0.8.3", "0.11.2", "0.14.1", "whole", "second runner"],
)
def test_weights_are_gib_of_four_decimals_or_fewer(
    tmp_path: Path, line: str, weights: float, error: float
) -> None:
    """1, 2: "GB" is value / 2**30; trailing zeros are dropped from 0.14.1."""
    figure = memory(report_on(tmp_path, [line]), "weights")

    assert (figure["value"], figure["unit"]) == (weights, "GiB")
    assert figure["error"] == error


def test_gb_of_a_refused_length_are_gib(tmp_path: Path) -> None:
    """1: 0.7.3 … 0.8.0."""
    error = (
        "ValueError: To serve at least one request with the models's max seq len (131072), (18.35 "
        "GB KV cache is needed, which is larger than the available KV cache memory (8.72 GB). Try "
        "increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the "
        "engine."
    )
    failure = report_on(tmp_path, failed(error))["outcome"]["failure"]

    assert (failure["needed"]["value"], failure["needed"]["unit"]) == (18.35, "GiB")
    assert failure["short"]["value"] == gib(18.35 - 8.72)


def test_gb_of_the_prefetch_offloader_are_none_of_the_device(tmp_path: Path) -> None:
    """1: from 0.17 this line alone is decimal, and of the host."""
    line = said(
        "[PrefetchOffloader] Initialized 28 modules. Total GPU memory saved: 9.6636 GB, Static "
        "buffer pool: 0.6903 GB (group_size=8, num_in_group=2, prefetch_step=1)"
    )
    lines = [said(config()), loaded("14.24"), budget("45.3"), *plain(23_193)]
    with_it = report_on(tmp_path, [*lines[:1], line, *lines[1:]])

    assert held(with_it, "weights") == 14.24
    assert held(with_it, "kv_pool") == 45.3


@pytest.mark.parametrize(
    ("lines", "tokens"),
    [
        ([said(config("0.9.2", 131_072)), *sized(1_572_864, 131_072, 12.0)], 1_572_864),
        ([sized_in_one(1_572_864, 131_072, 12.0)], 1_572_864),
        (
            [
                bare(namespace(max_model_len=131_072, block_size=16)),
                bare("# GPU blocks: 98304, # CPU blocks: 4096"),
                bare("Maximum concurrency for 131072 tokens per request: 12.00x"),
            ],
            98_304 * 16,
        ),
    ],
    ids=["0.8.0", "0.28.0", "0.6.3"],
)
def test_thousands_have_commas_or_none(tmp_path: Path, lines: list[str], tokens: int) -> None:
    """3: 1,572,864 of 131,072 each; the former engine prints no commas."""
    report = report_on(tmp_path, lines)

    assert report["kv_pool"]["tokens"]["value"] == tokens
    assert report["concurrency"]["reported"]["request_tokens"] == 131_072
    assert report["concurrency"]["reported"]["value"]["value"] == 12
    assert report["deployment"]["context_length"]["value"] == 131_072


# --- 4, 5 the line of the tokens --------------------------------------


@pytest.mark.parametrize("device", ["GPU", "CPU", "XPU", "TPU", "GPU + host"])
def test_tokens_and_concurrency_may_be_one_line(tmp_path: Path, device: str) -> None:
    """4, 5: from 0.28, with the device's own name from 0.30."""
    report = report_on(tmp_path, [sized_in_one(331_776, 8192, 40.5, device=device)])

    assert report["kv_pool"]["tokens"]["value"] == 331_776
    assert report["concurrency"]["reported"]["request_tokens"] == 8192
    assert report["concurrency"]["reported"]["value"]["value"] == 40.5


@pytest.mark.parametrize("device", ["GPU", "cuda", "xpu", "hpu"])
def test_blocks_of_swap_space_are_no_pool(tmp_path: Path, device: str) -> None:
    """5: # cuda blocks in lower case from 0.7.3; CPU blocks are host memory."""
    lines = [
        bare(namespace(max_model_len=8192, block_size=16)),
        bare(config("0.7.3")),
        bare(f"# {device} blocks: 28108, # CPU blocks: 2048"),
        bare("Maximum concurrency for 8192 tokens per request: 54.90x"),
    ]
    report = report_on(tmp_path, lines, request_tokens=(1000, 8192))

    assert report["kv_pool"]["tokens"]["value"] == 28_108 * 16
    assert report["kv_pool"]["deployment_tokens"]["value"] == 28_108 * 16
    assert row_of(report, 1000)["token_limit"]["value"] == 28_108 // 63
    assert row_of(report, 8192)["token_limit"]["value"] == 28_108 // 512


# --- 6-8 what tokens mean ---------------------------------------------

# 1,487 blocks of 784 tokens; a request of 32,768 takes 42 of them and one of each of 3 groups.
BLOCKS, OF_LONGEST, LONGEST = 1487, 45, 32_768
HYBRID_OLD = (BLOCKS // 4 * 784, LONGEST, BLOCKS / OF_LONGEST)  # 290,864 tokens, 33.04x
HYBRID_NEW = (int(BLOCKS / OF_LONGEST * LONGEST), LONGEST, BLOCKS / OF_LONGEST)


@pytest.mark.parametrize(
    "lines",
    [
        [said(config("0.19.0", LONGEST)), *sized(*HYBRID_OLD)],
        [said(config("0.21.0", LONGEST)), *sized(*HYBRID_NEW)],
        [said(config("0.33.0", LONGEST)), sized_in_one(*HYBRID_NEW)],
        sized(*HYBRID_OLD),
        sized(*HYBRID_NEW),
        [sized_in_one(*HYBRID_NEW)],
    ],
    ids=["0.19", "0.21", "0.33", "old form", "new form", "one line"],
)
def test_tokens_of_a_hybrid_hold_at_the_longest_length_alone(
    tmp_path: Path, lines: list[str]
) -> None:
    """6, 7: 1,487 // 45 = 33 of the longest, and of 8,192 tokens 1,487 // (11 + 3) = 106, where
    tokens // 8,192 would be 35 up to 0.20 and 132 from 0.21."""
    report = report_on(tmp_path, lines, request_tokens=(8192, LONGEST))

    longest, shorter = (row_of(report, n)["token_limit"] for n in (LONGEST, 8192))
    assert longest["value"] in (33, None)
    assert longest.get("at_most", 33) >= 33
    assert is_unknown(shorter)
    assert shorter.get("at_most", 106) >= 106
    assert report["concurrency"]["reported"]["value"]["value"] == 33.04
    assert is_unknown(report["kv_pool"]["bytes_per_token"])


def test_a_window_costs_more_while_a_prompt_is_read(tmp_path: Path) -> None:
    """7: a full group and five of a window of 1,024, steps of 8,192, blocks of 16. One request of
    32,768 is priced at 2,048 + 5 · (ceil(9,215 / 16) + 1), which holds while its prompt is read;
    one of 4,096 takes 6 · 256 then and 256 + 5 · 65 afterwards: 84 run at once."""
    blocks = 50_000
    of_longest = 2048 + 5 * (-(-(1023 + 8192) // 16) + 1)
    reading, decoding = 6 * 256, 256 + 5 * 65
    fit = (blocks - 1 - reading) // decoding + 1
    assert (of_longest, fit) == (4933, 84)
    concurrency = blocks / of_longest
    lines = [said(config("0.23.0", 32_768))]
    lines += sized(int(concurrency * 32_768), 32_768, concurrency)
    report = report_on(tmp_path, lines, request_tokens=(4096,))

    limit = row_of(report, 4096)["token_limit"]
    assert is_unknown(limit)
    assert limit.get("at_most", fit) >= fit


@pytest.mark.parametrize(
    ("version", "known"), [("0.17.1", True), ("0.20.0", True), ("0.21.0", False), ("0.27.1", False)]
)
def test_tokens_of_a_plain_model_hold_at_any_length_up_to_020(
    tmp_path: Path, version: str, known: bool
) -> None:
    """6: 23,193 blocks of 16, one of them never given away: 23,192 // 63 requests of 1,000."""
    lines = [asked(block_size=16), said(config(version)), *plain(23_193)]
    limit = row_of(report_on(tmp_path, lines, request_tokens=(1000,)), 1000)["token_limit"]

    if known:
        assert limit["value"] == 23_192 // 63
    else:
        assert is_unknown(limit)
        assert limit.get("at_most", 23_192) >= 23_192 // 63


def test_printed_tokens_may_miss_one(tmp_path: Path) -> None:
    """8: int(concurrency · length) of floats is B · 16 - 1 for some B."""
    of_longest = 30_000 // 16
    blocks = next(b for b in range(100_001, 200_000) if int(b / of_longest * 30_000) == b * 16 - 1)
    lines = [
        asked(block_size=16, max_model_len=30_000),
        said(config("0.22.0", 30_000)),
        *sized(blocks * 16 - 1, 30_000, blocks / of_longest),
    ]
    report = report_on(tmp_path, lines, request_tokens=(30_000,))

    assert report["kv_pool"]["tokens"]["value"] == blocks * 16 - 1
    assert row_of(report, 30_000)["token_limit"]["value"] == (blocks - 1) // of_longest


# --- 9-12 who prints what ---------------------------------------------


@pytest.mark.parametrize("order", [(25_001, 20_001), (20_001, 25_001)])
def test_the_least_of_all_workers_counts(tmp_path: Path, order: tuple[int, int]) -> None:
    """9: 0.8.0 … 0.11.0 print each worker's own before the minimum: not the last, not the sum."""
    lines = [said(config("0.10.2", tensor=2)), *plain(order[0]), *plain(order[1])]
    report = report_on(tmp_path, lines)

    assert report["kv_pool"]["tokens"]["value"] == 20_001 * 16
    assert report["kv_pool"]["deployment_tokens"]["value"] == 20_001 * 16
    assert report["concurrency"]["reported"]["value"]["value"] == pytest.approx(
        20_001 / 512, abs=0.005
    )


def test_a_concurrency_that_is_repeated_is_one(tmp_path: Path) -> None:
    """9: 0.11.2 prints the tokens once and the concurrency for each worker."""
    tokens, concurrency = plain(20_001)
    lines = [said(config("0.11.2", tensor=2)), tokens, concurrency, concurrency]
    report = report_on(tmp_path, lines)

    assert report["kv_pool"]["deployment_tokens"]["value"] == 20_001 * 16
    assert report["concurrency"]["reported"]["value"]["value"] == 39.06


def test_data_parallel_engines_are_summed(tmp_path: Path) -> None:
    """10: from 0.14.1 the first engine alone prints its configuration, of a data size of 1."""
    lines = [
        asked(data_parallel_size=2, max_num_seqs=256),
        said(config("0.22.0"), "EngineCore_DP0 pid=30"),
        *plain(20_001, process="EngineCore_DP0 pid=30"),
        *plain(25_001, process="EngineCore_DP1 pid=31"),
    ]
    report = report_on(tmp_path, lines)

    assert len(report["runs"]) == 1
    workers = report["kv_pool"]["workers"]
    assert [w["tokens"]["value"] for w in workers] == [320_016, 400_016]
    assert report["kv_pool"]["deployment_tokens"]["value"] == 320_016 + 400_016
    assert report["kv_pool"]["tokens"]["value"] == 320_016


def test_several_api_servers_are_one_start(tmp_path: Path) -> None:
    """11: each prints its arguments, the longest length and the chunked prefill."""
    lines = []
    for n in range(3):
        process = f"ApiServer_{n} pid={n + 1}"
        lines += [
            asked(process, max_model_len=8192, max_num_seqs=64),
            said("Using max model len 8192", process),
            said("Chunked prefill is enabled with max_num_batched_tokens=2048.", process),
        ]
    report = report_on(tmp_path, [*lines, said(config("0.20.0")), loaded("7.25"), *plain(20_001)])

    assert len(report["runs"]) == 1
    assert report["kv_pool"]["deployment_tokens"]["value"] == 320_016
    assert report["concurrency"]["request_limit"]["value"] == 64
    assert report["deployment"]["chunked_prefill_size"]["value"] == 2048


def test_what_local_rank_0_prints_is_not_the_others(tmp_path: Path) -> None:
    """12: from 0.11.2 weights, budget and captures; the graph pool remains every worker's."""
    first, second = "Worker_TP0 pid=11", "Worker_TP1 pid=12"
    lines = [
        said(config("0.21.0", tensor=2)),
        loaded("7.25", first),
        budget("60.5", first),
        captured("0.61", first),
        graph_pool("0.60", "0.50", first),
        graph_pool("0.62", "0.50", second),
        said("Sleep mode freed 60.5 GiB memory, 3.2 GiB memory is still in use.", second),
    ]
    report = report_on(tmp_path, lines)

    other = "DP0/PP0/TP1"
    assert by_rank(report, "weights") == {FIRST: 7.25, other: None}
    assert by_rank(report, "kv_pool") == {FIRST: 60.5, other: None}
    assert by_rank(report, "cuda_graph") == {FIRST: 0.60, other: 0.62}
    assert is_unknown(memory(report, "weights", other))


def test_a_worker_that_prints_no_weights_died_among_them(tmp_path: Path) -> None:
    """12: up to 0.11.0 every worker prints its own, so TP1 had not loaded when it died."""
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total "
        "capacity of 79.11 GiB of which 1.20 GiB is free."
    )
    lines = [
        said(config("0.10.2", tensor=2)),
        said("Model loading took 7.2419 GiB and 5.123456 seconds", "Worker_TP0 pid=41"),
        *failed(error, process="Worker_TP1 pid=42"),
    ]
    failure = report_on(tmp_path, lines)["outcome"]["failure"]

    assert failure["kind"] == "weights_out_of_memory"
    assert failure["rank"] == "DP0/PP0/TP1"
    assert failure["short"]["value"] == gib(2.50 - 1.20)


# --- 13, 14 accounts --------------------------------------------------


def test_initial_free_memory_is_of_two_lines(tmp_path: Path) -> None:
    """13: with a colon it is DEBUG, without one the size that was asked for."""
    explicit = (
        "Initial free memory 78.53 GiB, reserved 10.0 GiB memory for KV Cache as specified by "
        "kv_cache_memory_bytes config and skipped memory profiling. This does not respect the "
        "gpu_memory_utilization config."
    )
    debug = "Initial free memory: 78.58 GiB; Requested memory: 0.900000 (util), 71.19 GiB"
    asked_for = report_on(tmp_path, [loaded("14.24"), said(explicit)])
    profiled = report_on(tmp_path, [said(debug, level="DEBUG"), loaded("14.24"), budget("45.3")])

    assert asked_for["kv_pool"]["budget"]["value"] == 10
    assert asked_for["deployment"]["gpu_memory_utilization"]["value"] is None
    assert profiled["kv_pool"]["budget"]["value"] == 45.3
    assert timeline(profiled)[0] == ("startup", 78.58)


@pytest.mark.parametrize(
    ("applied", "usage", "kv"),
    [
        # 71.19 - 14.24 - 0.06 - 1.45 = 55.44, in bytes
        (False, separate("14.24", "1.45", "0.06", "0.61"), f"{int(55.44 * 2**30)} bytes"),
        (False, separate("14.24", "1.45", "0.06", "0.61"), "55.44 GiB"),
        # 0.18: 1.45 + 0.86 = 2.31 as peak; 71.19 - 14.24 - 0.06 - 2.31 = 54.58
        (True, separate("14.24", "2.31", "0.06", "0.95"), "54.58 GiB"),
        # 0.19 … 0.26: 71.19 - 14.24 - 0.06 - 1.45 - 0.86 = 54.58
        (True, separate("14.24", "1.45", "0.06", "0.95"), "54.58 GiB"),
        # 0.27: 71.19 - 14.3 - 2.31 = 54.58; graphs are not taken off again
        (True, together("14.3", "2.31", "0.95"), "54.58 GiB"),
        # a fork of it: 71.19 - 14.3 - 1.45 - 0.86 = 54.58
        (True, together("14.3", "1.45", "0.95"), "54.58 GiB"),
    ],
    ids=["0.10.2", "0.11.0", "0.18.0", "0.20.0", "0.27.0", "fork"],
)
def test_a_summary_holds_the_estimate_once(
    tmp_path: Path, applied: bool, usage: str, kv: str
) -> None:
    """14: whichever way the account closes, activations peak at 1.45."""
    lines = [said(config("0.22.0")), loaded("14.24")]
    lines += [ESTIMATE, APPLIED["0.20"], graph_pool("0.95", "0.86")] if applied else []
    report = report_on(tmp_path, [*lines, summary(usage, kv)])

    assert held(report, "activation") == gib(1.45)
    assert held(report, "cuda_graph") == (0.95 if applied else 0.61)
    assert held(report, "kv_pool") == gib(54.58 if applied else 55.44)
    assert held(report, "weights") == 14.24
    # What the device lacked before, and what is neither torch's nor a weight: 0.6 + 0.06.
    assert held(report, "framework") == gib(79.1 - 78.5 + 0.06)
    assert not found(report, "account-does-not-close")


def test_a_suggestion_that_counts_graphs_twice_is_no_advice(tmp_path: Path) -> None:
    """14: in 0.18 and from 0.27; the report says so with it."""
    lines = [said(config("0.27.0")), APPLIED["0.20"], graph_pool("0.95", "0.86")]
    report = report_on(tmp_path, [*lines, summary(together("14.3", "2.31", "0.95"), "54.58 GiB")])

    (hint,) = found(report, "engine-suggests")
    assert "twice" in hint["message"]
    assert "52613349376" not in str(report["advice"])


# --- 15, 16 graphs ----------------------------------------------------


@pytest.mark.parametrize("words", ["0.18", "0.20"])
@pytest.mark.parametrize("version", ["0.18.1", "0.19.1", "0.20.0", "0.33.0"])
def test_a_line_says_whether_the_estimate_came_off(
    tmp_path: Path, words: str, version: str
) -> None:
    """15: never the release: 71.19 - 14.24 - 0.06 - 1.45 = 55.44 with nothing taken off, although
    an estimate of 0.86 is printed."""
    usage = summary(separate("14.24", "1.45", "0.06", "0.95"), "55.44 GiB")
    lines = [said(config(version)), ESTIMATE, NOT_APPLIED[words], graph_pool("0.95", "0.86")]

    assert held(report_on(tmp_path, [*lines, usage]), "activation") == 1.45


@pytest.mark.parametrize("eager", [True, False])
def test_no_line_of_graphs_is_no_graph_only_if_asked(tmp_path: Path, eager: bool) -> None:
    """15: other reasons leave no line, either."""
    lines = [said(config("0.20.0", eager=eager)), loaded("14.24"), budget("45.3"), *plain(23_193)]
    graphs = memory(report_on(tmp_path, lines), "cuda_graph")

    if eager:
        assert (graphs["value"], graphs["origin"]) == (0, "configured")
    else:
        assert is_unknown(graphs)


@pytest.mark.parametrize(
    ("actual", "percent"),
    [("-0.19", "112742891520.0"), ("0.0", "92341796864.0"), ("0.05", "1620.0")],
    ids=["negative", "nothing", "little"],
)
def test_graphs_smaller_than_their_estimate_are_no_base(
    tmp_path: Path, actual: str, percent: str
) -> None:
    """16: 100 · difference / max(actual, 1 byte) is an absurd percentage."""
    line = graph_pool(actual, "0.86", percent=percent)
    report = report_on(tmp_path, [said(config("0.22.0")), budget("45.3"), line])

    assert held(report, "cuda_graph") == float(actual)
    assert bool(found(report, "negative-graphs")) is (float(actual) < 0)
    assert not any(re.search(r"\d{4,}|[eE]\+", f["message"]) for f in report["findings"])


# --- 17, 18 utilisation -----------------------------------------------

PROFILED = [
    "Memory profiling takes 3.50 seconds",
    "the current vLLM instance can use total_gpu_memory (79.10GiB) x gpu_memory_utilization (0.93)"
    " = 73.17GiB",
    "model weights take 14.99GiB; non_torch_memory takes 0.10GiB; PyTorch activation peak memory "
    "takes 1.20GiB; the rest of the memory reserved for KV Cache is 56.88GiB.",
]


@pytest.mark.parametrize("version", ["0.19.1", "0.20.0", None])
def test_no_utilisation_is_assumed(tmp_path: Path, version: str | None) -> None:
    """17: 0.9 to 0.19, 0.92 from 0.20, and only where nobody says another."""
    first = [said(config(version))] if version else []
    lines = [asked(), *first, loaded("14.24"), budget("45.3"), *plain(23_193)]

    assert is_unknown(report_on(tmp_path, lines)["deployment"]["gpu_memory_utilization"])


@pytest.mark.parametrize("said_too", [True, False], ids=["arguments", "profile alone"])
def test_the_profile_rounds_the_utilisation(tmp_path: Path, said_too: bool) -> None:
    """17: 0.925 is printed as 0.93; 0.925 · 79.10 = 73.17 closes with the figure asked for."""
    arguments = [bare(namespace(gpu_memory_utilization=0.925))] if said_too else []
    report = report_on(tmp_path, [*arguments, *map(bare, PROFILED)])

    value = report["deployment"]["gpu_memory_utilization"]
    if said_too:
        assert value["value"] == 0.925
    else:
        assert (value["value"], value["error"]) == (0.93, 0.005)
    assert held(report, "kv_pool") == 56.88
    assert held(report, "total") == 79.10
    assert held(report, "activation") == 1.20
    assert not found(report, "account-does-not-close")


def test_a_budget_that_others_reduced_is_what_is_printed(tmp_path: Path) -> None:
    """18: 0.6.4 takes others' memory off: 23.58 · 0.90 - 17.06 - 0.35 = 3.81."""
    line = (
        "Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=16.06GiB "
        "peak_torch_memory=17.06GiB memory_usage_post_profile=16.44GiB non_torch_memory=0.35GiB "
        "kv_cache_size=3.81GiB gpu_memory_utilization=0.90"
    )
    report = report_on(tmp_path, [bare("Loading model weights took 15.5000 GB"), bare(line)])

    assert held(report, "kv_pool") == 3.81
    assert held(report, "total") == 23.58
    assert held(report, "activation") == gib(17.06 - 15.50)
    assert not found(report, "account-does-not-close")


def test_a_budget_that_no_line_prints_is_not_computed(tmp_path: Path) -> None:
    """18, 31: V1 to 0.9.0 says T and U alone, and others' memory would be in the difference."""
    lines = [
        said(namespace(gpu_memory_utilization=0.9, block_size=16, max_model_len=8192)),
        said(config("0.8.5")),
        said("Model loading took 14.2419 GiB and 5.123456 seconds"),
        *plain(23_193),
        captured("0.61"),
        SERVES,
    ]
    report = report_on(tmp_path, lines)

    assert is_unknown(memory(report, "kv_pool"))
    assert is_unknown(report["kv_pool"]["budget"])
    assert is_unknown(report["kv_pool"]["bytes_per_token"])
    assert report["kv_pool"]["tokens"]["value"] == 23_193 * 16
