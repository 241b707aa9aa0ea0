"""vLLM's traps for whoever reads its logs, 19 to 35: the number is the trap's own. The others are
in test_vllm_traps.py.

Lines are in the words of the releases named beside them, figures are made up, and what must come
out is arithmetic that stands in the test.
"""

from __future__ import annotations

from pathlib import Path

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
    report_on,
    row_of,
)
from .vllm_lines import (
    ENGINE,
    HEAD,
    SERVES,
    TRACEBACK,
    asked,
    bare,
    budget,
    captured,
    config,
    failed,
    loaded,
    namespace,
    plain,
    said,
    separate,
    sized,
    sized_in_one,
    summary,
)


def failure_of(report: Report) -> Report:
    failure: Report = report["outcome"]["failure"]
    assert failure is not None, report["outcome"]
    return failure


# --- 19, 20 what is made of the budget --------------------------------


def test_an_override_replaces_the_blocks_of_the_budget(tmp_path: Path) -> None:
    """19: 20,001 blocks where the budget has room for 23,193: the pool is not its 45.3 GiB."""
    lines = [
        asked(block_size=16),
        said(config("0.17.1")),
        budget("45.3"),
        said("Overriding num_gpu_blocks=23193 with num_gpu_blocks_override=20001"),
        *plain(20_001),
    ]
    report = report_on(tmp_path, lines, request_tokens=(1000,))

    assert report["kv_pool"]["budget"]["value"] == 45.3
    assert report["kv_pool"]["size"]["value"] in (None, gib(45.3 * 20_001 / 23_193))
    assert found(report, "blocks-overridden")
    assert is_unknown(report["kv_pool"]["bytes_per_token"])
    assert row_of(report, 1000)["token_limit"]["value"] == 20_000 // 63


def test_a_reservation_is_taken_off_the_printed_budget(tmp_path: Path) -> None:
    """19: the pool is made of the 43.3 GiB that the later line says, not of 45.3."""
    reserving = (
        "Reserving 2.0 GiB of GPU memory for frontend multimodal decoding (1.0 GiB raw-frame "
        "semaphore budget, 1.0 GiB decoder+CUDA-context across 1 API server(s) @ 1.0 GiB/server); "
        "KV cache memory reduced to 43.3 GiB."
    )
    lines = [said(config("0.26.0")), budget("45.3"), said(reserving), *plain(22_169)]
    report = report_on(tmp_path, lines)

    assert report["kv_pool"]["size"]["value"] in (None, 43.3)
    (reduced,) = found(report, "budget-reduced")
    assert "43.3" in reduced["message"]


def test_the_pool_of_a_worker_is_of_its_least_rank(tmp_path: Path) -> None:
    """19: each rank's own budget, but blocks of the minimum on all."""
    lines = [said(config("0.10.2", tensor=2))]
    lines += [budget(f"{49 + n}.20", f"Worker_TP{n} pid=1{n}") for n in (1, 0)]
    report = report_on(tmp_path, lines)

    assert report["kv_pool"]["size"]["value"] == 49.20
    assert report["kv_pool"]["budget"]["value"] == 49.20


@pytest.mark.parametrize(
    "fitted",
    [
        "reduced from 131072 to 40960 to fit in available GPU memory (5.0 GiB available for KV "
        "cache)",
        "reduced from 131072 to 40960 to fit in available KV cache memory (5.0 GiB GPU)",
        "reduced from 131072 to 40960 to fit in available KV cache memory (5.0 GiB GPU + 8.0 GiB "
        "host)",
    ],
    ids=["0.14.1", "0.32.0", "host"],
)
def test_auto_fit_chooses_the_longest_length(tmp_path: Path, fitted: str) -> None:
    """20: the configuration was printed before, with the model's own length."""
    lines = [
        asked(max_model_len=-1),
        said(config("0.32.0", 131_072)),
        said(f"Auto-fit max_model_len: {fitted}"),
        sized_in_one(40_976, 40_960, 2561 / 2560),
    ]
    report = report_on(tmp_path, lines, request_tokens=(40_960, 65_536))

    assert report["deployment"]["context_length"]["value"] == 40_960
    assert row_of(report, 40_960)["token_limit"]["value"] == 1
    beyond = row_of(report, 65_536)["token_limit"]
    assert is_unknown(beyond)
    assert "context" in beyond["why"]


# --- 21, 22 refused starts --------------------------------------------

REFUSED = (
    "ValueError: To serve at least one request with the {owner} max seq len (8192), (18.35 {unit} "
    "KV cache is needed, which is larger than the available KV cache memory (8.72 {unit}).{more} "
    "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the "
    "engine."
)
FITS = " Based on the available memory, the estimated maximum model length is 3888."


@pytest.mark.parametrize(
    "error",
    [
        REFUSED.format(owner="models's", unit="GB", more=""),
        REFUSED.format(owner="models's", unit="GiB", more=" "),
        REFUSED.format(owner="models's", unit="GiB", more=FITS),
        REFUSED.format(owner="model's", unit="GiB", more=FITS).replace(
            "`gpu_memory_utilization`",
            "`gpu_memory_utilization` (which also controls CPU memory on the CPU backend)",
        ),
    ],
    ids=["0.8.0", "0.8.5", "0.9.1", "0.22.0"],
)
def test_a_longest_request_that_does_not_fit_is_one_failure(tmp_path: Path, error: str) -> None:
    """21: two spellings, an open bracket, an estimate or none; printed by three processes."""
    lines = [
        said(config("0.17.1")),
        loaded("60.24"),
        budget("8.72"),
        *failed(error),
        f"({ENGINE}) {TRACEBACK}",
        f"({ENGINE}) {error}",
        TRACEBACK,
        error,
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
        "proc(s): {}",
    ]
    report = report_on(tmp_path, lines)

    failure = failure_of(report)
    assert len(report["runs"]) == 1
    assert failure["kind"] == "context_exceeds_kv_pool"
    assert failure["evidence"] == ["log0:6"]
    assert failure["needed"]["value"] == 18.35
    assert failure["available"]["value"] == 8.72
    assert failure["short"]["value"] == gib(18.35 - 8.72)
    if "3888" in error:
        assert any("3888" in cure or "3,888" in cure for cure in failure["cures"])
    else:
        assert not any("3888" in cure for cure in failure["cures"])


@pytest.mark.parametrize(
    "more",
    [
        "",
        " (this flag also controls CPU memory reservation on the CPU backend, despite its name)",
    ],
    ids=["0.6.4", "0.22.0"],
)
def test_no_memory_for_blocks_is_of_the_device(tmp_path: Path, more: str) -> None:
    """21: since 0.22 the text mentions the CPU, which is not what ran out."""
    error = (
        "ValueError: No available memory for the cache blocks. Try increasing "
        f"`gpu_memory_utilization` when initializing the engine{more}."
    )
    report = report_on(tmp_path, [said(config()), loaded("78.24"), budget("-1.43"), *failed(error)])

    failure = failure_of(report)
    assert (failure["kind"], failure["stage"]) == ("no_kv_memory", "after_weights")
    assert report["kv_pool"]["budget"]["value"] == -1.43
    assert any("raise" in cure or "higher" in cure for cure in failure["cures"])


def test_the_former_engine_says_how_many_tokens_its_blocks_hold(tmp_path: Path) -> None:
    """21: 131,072 are more than 47,792 = 2,987 blocks of 16."""
    error = (
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens "
        "that can be stored in KV cache (47792). Try increasing `gpu_memory_utilization` or "
        "decreasing `max_model_len` when initializing the engine."
    )
    lines = [
        bare(config("0.6.6", 131_072)),
        bare("# GPU blocks: 2987, # CPU blocks: 2048"),
        TRACEBACK,
        error,
    ]
    report = report_on(tmp_path, lines)

    assert failure_of(report)["kind"] == "context_exceeds_kv_pool"
    assert report["kv_pool"]["tokens"]["value"] == 2987 * 16
    assert report["deployment"]["context_length"]["value"] == 131_072


@pytest.mark.parametrize(
    "words",
    [
        "Free memory on device (31.44/79.1 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.19 GiB). Decrease GPU memory utilization or reduce GPU memory used "
        "by other processes.",
        "Free memory on device cuda:0 (31.44/79.1 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.19 GiB). Decrease GPU memory utilization or reduce GPU memory used "
        "by other processes.",
        "Free memory on device cuda:0 (31.44/79.1 GiB) on startup is less than the engine's budget "
        "after excluding external process's weights (0.9, 71.19 GiB). Decrease GPU memory "
        "utilization or reduce GPU memory used by other processes.",
    ],
    ids=["0.9.1", "0.14.1", "0.32.0"],
)
def test_free_memory_that_is_less_than_desired_is_fatal(tmp_path: Path, words: str) -> None:
    """22: 71.19 of 79.1 are asked for, 31.44 are free."""
    report = report_on(tmp_path, [said(config()), *failed(f"ValueError: {words}")])

    failure = failure_of(report)
    assert (failure["kind"], failure["stage"]) == ("device_memory_taken", "startup")
    assert failure["needed"]["value"] == 71.19
    assert failure["available"]["value"] == 31.44
    assert failure["short"]["value"] == gib(71.19 - 31.44)
    assert held(report, "total") == 79.1


def test_the_same_words_begin_the_summary(tmp_path: Path) -> None:
    """22: `Desired GPU memory utilization is` follows, and nothing is wrong."""
    lines = [said(config()), loaded("14.24"), budget("55.44"), *plain(23_193)]
    lines.append(summary(separate("14.24", "1.45", "0.06", "0.61"), "55.44 GiB"))
    report = report_on(tmp_path, [*lines, SERVES])

    assert HEAD in lines[-1]
    assert (report["outcome"]["status"], report["outcome"]["failure"]) == ("ready", None)
    assert held(report, "total") == 79.1


# --- 23, 24 what is glued to lines ------------------------------------

BARS = [
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)",
    "Capturing CUDA graph shapes",
    "Loading safetensors checkpoint shards",
]


def bar(name: str, process: str = "") -> str:
    """What tqdm writes; the wrapper of stdout puts its process in front of every piece."""
    steps = [
        f"{process}{name}: {25 * n:3}%|{'█' * n}| {n}/4 [00:0{n}<00:00,  6.31it/s]"
        for n in range(5)
    ]
    return "\r".join(steps)


@pytest.mark.parametrize("name", BARS)
@pytest.mark.parametrize("process", ["", f"({ENGINE}) "], ids=["plain", "wrapped"])
@pytest.mark.parametrize("glue", ["", "\r"])
def test_a_line_may_begin_behind_a_progress_bar(
    tmp_path: Path, name: str, process: str, glue: str
) -> None:
    """23: without a line end, the next message lands behind the bar."""
    lines = [said(config()), budget("45.3"), *plain(23_193)]
    glued = [bar(name, process) + glue + line for line in (captured("0.61"), loaded("14.24"))]
    report = report_on(tmp_path, [*lines[:1], glued[1], *lines[1:], glued[0]])

    assert held(report, "weights") == 14.24
    assert held(report, "cuda_graph") == 0.61
    assert held(report, "kv_pool") == 45.3
    assert len(report["ranks"]) == 1


def colour(line: str) -> str:
    """0.4.2 … 0.11 colour their process in files, too."""
    process, _, rest = line.partition(") ")
    return f"\x1b[1;36m{process})\x1b[0;0m {rest}"


@pytest.mark.parametrize(
    "before",
    [
        "2026-03-01T10:00:00.000000000Z ",
        "2026-03-01T10:00:00.000000000Z stdout F ",
        "vllm-1  | ",
    ],
    ids=["docker", "kubernetes", "compose"],
)
def test_colours_and_wrappers_come_before_everything(tmp_path: Path, before: str) -> None:
    """24: ranks must be told through both."""
    lines = [said(config("0.10.2", tensor=2))]
    for tp in (0, 1):
        process = f"Worker_TP{tp} pid=4{tp}"
        lines.append(said(f"Model loading took 7.{tp}419 GiB and 5.123456 seconds", process))
    report = report_on(tmp_path, [before + colour(line) for line in lines])

    assert by_rank(report, "weights") == {FIRST: 7.0419, "DP0/PP0/TP1": 7.1419}


# --- 25-27 workers and drafts -----------------------------------------


def test_a_line_that_ray_repeats_speaks_for_one_process(tmp_path: Path) -> None:
    """25: three others printed something like it, with figures of their own."""
    process = "RayWorkerWrapper pid=64, ip=10.0.0.2"
    lines = [
        said(config("0.10.2", tensor=4)),
        said("Model loading took 7.2500 GiB and 5.1 seconds [repeated 3x across cluster]", process),
        said("Available KV cache memory: 45.30 GiB [repeated 3x across cluster]", process),
    ]
    report = report_on(tmp_path, lines)

    assert list(by_rank(report, "weights").values()) == [7.25]
    assert report["deployment"]["parallel"]["tensor"]["value"] == 4
    size = report["kv_pool"]["size"]  # the least of four, of which three are not shown
    assert size["value"] is None or size["value"] == 45.30
    assert is_unknown(report["kv_pool"]["tokens"])


@pytest.mark.parametrize(
    ("process", "rank"),
    [
        ("Worker_PP1", "DP0/PP1/TP0"),
        ("Worker_TP3", "DP0/PP0/TP3"),
        ("Worker_DP1_EP1", "DP1/PP0/TP0"),
        ("Worker_DP1_PP1_PCP0_TP3_DCP1_EP7", "DP1/PP1/TP3"),
        ("Worker", "DP0/PP0/TP0"),
    ],
)
def test_parts_of_size_one_are_left_out(tmp_path: Path, process: str, rank: str) -> None:
    """26: (Worker_PP1 pid=448) of two stages is its first and only tensor rank."""
    report = report_on(tmp_path, [loaded("7.25", f"{process} pid=448")])

    assert by_rank(report, "weights") == {rank: 7.25}


def test_a_draft_is_in_its_targets_figures(tmp_path: Path) -> None:
    """27: weights in one measurement, KV in one pool; the length is printed for both models."""
    speculative = config("0.13.0").replace(
        "speculative_config=None",
        "speculative_config=SpeculativeConfig(method='eagle3', model='/d', num_spec_tokens=3)",
    )
    lines = [
        said("Using max model len 8192", "APIServer pid=1"),
        said("Using max model len 2048", "APIServer pid=1"),
        said(speculative),
        said("Model loading took 15.2419 GiB memory and 5.123456 seconds"),
        budget("45.30"),
        *plain(20_001),
    ]
    report = report_on(tmp_path, lines)

    assert report["deployment"]["context_length"]["value"] == 8192
    assert held(report, "weights") == 15.2419
    assert held(report, "kv_pool") == 45.3
    assert report["kv_pool"]["deployment_tokens"]["value"] == 320_016


def test_two_longest_lengths_alone_tell_none(tmp_path: Path) -> None:
    """27: which of them is the draft's, no line says."""
    lines = [said(f"Using max model len {n}", "APIServer pid=1") for n in (8192, 2048)]
    report = report_on(tmp_path, [*lines, loaded("15.24"), budget("45.3")])

    assert is_unknown(report["deployment"]["context_length"])


# --- 28, 29 elements and blocks ---------------------------------------


@pytest.mark.parametrize(
    ("line", "dtype"),
    [
        (None, None),
        (
            "Using fp8 data type to store kv cache. It reduces the GPU memory footprint and boosts "
            "the performance. Meanwhile, it may cause accuracy drop without a proper scaling "
            "factor.",
            "fp8",
        ),
        ("Using DeepSeek's fp8_ds_mla KV cache format. To use standard fp8", "fp8_ds_mla"),
    ],
    ids=["auto", "0.19", "0.33"],
)
def test_auto_is_resolved_in_no_line(tmp_path: Path, line: str | None, dtype: str | None) -> None:
    """28: the element type is unknown unless a note says it."""
    lines = [said(config("0.19.0")), *([said(line)] if line else []), budget("45.3")]
    deployment = report_on(tmp_path, [*lines, *plain(23_193)])["deployment"]

    assert deployment["kv_cache_dtype"]["value"] == "auto"
    assert deployment["kv_cache_dtype_resolved"]["value"] == dtype
    assert dtype is not None or is_unknown(deployment["kv_cache_dtype_resolved"])


@pytest.mark.parametrize(
    "words",
    [
        "Forcing kv cache block size to 64 for FlashMLA backend.",
        "Forcing kv cache block size to 64 for FlashInferMLA backend.",
        "Setting kv cache block size to 64 for FLASHMLA backend.",
        "Setting kv cache block size to 64 for FLASHMLA backend(s).",
    ],
    ids=["0.8", "0.10.2", "0.18", "0.31"],
)
@pytest.mark.parametrize("wish", [{}, {"block_size": 16}], ids=["no wish", "16 asked for"])
def test_a_back_end_sets_the_block_size(
    tmp_path: Path, words: str, wish: dict[str, object]
) -> None:
    """29: 100 tokens take 2 blocks of 64, of 999: 499; 7 blocks of 16 would make it 571."""
    lines = [asked(**wish), said(config("0.17.1")), said(words), *plain(1000, block=64)]
    report = report_on(tmp_path, lines, request_tokens=(100,))

    assert report["deployment"]["page_size"]["value"] == 64
    assert row_of(report, 100)["token_limit"]["value"] == 999 // 2


def test_a_block_size_that_no_line_says_is_not_16(tmp_path: Path) -> None:
    """29: 64,000 tokens may be 4,000 blocks of 16, 1,000 of 64 and more."""
    lines = [said(config("0.17.1")), *plain(1000, block=64)]
    report = report_on(tmp_path, lines, request_tokens=(100,))

    assert is_unknown(report["deployment"]["page_size"])
    limit = row_of(report, 100)["token_limit"]
    assert limit["value"] is None
    assert limit["at_least"] <= 999 // 2
    assert limit["at_most"] >= 3999 // 7


def test_states_set_the_block_size(tmp_path: Path) -> None:
    """29: 544 so that a page of attention is as large as a state."""
    align = (
        "Setting attention block size to 544 tokens to ensure that attention page size is >= mamba "
        "page size."
    )
    lines = [asked(block_size=16), said(align), said(config("0.22.0")), *sized(16_000, 8192, 1.95)]
    report = report_on(tmp_path, lines)

    assert report["deployment"]["page_size"]["value"] == 544


# --- 30-32 what is not there ------------------------------------------


def test_sleep_is_no_reading_of_the_start(tmp_path: Path) -> None:
    """30: 20.25 GiB are what the whole device has in use while the engine sleeps."""
    lines = [said(config()), loaded("14.24"), budget("45.3"), *plain(23_193), captured("0.61")]
    slept = said("Sleep mode freed 53.45 GiB memory, 20.25 GiB memory is still in use.")
    report = report_on(tmp_path, [*lines, SERVES, slept])

    assert held(report, "kv_pool") == 45.3
    assert held(report, "weights") == 14.24
    assert is_unknown(memory(report, "used"))
    assert found(report, "engine-slept")
    assert report["outcome"]["status"] == "ready"


def test_the_oldest_releases_print_blocks_alone(tmp_path: Path) -> None:
    """31: 0.2.7 and 0.3.3 have neither weights nor a budget, and no block size."""
    lines = [
        bare(config("0.6.6").replace(" (v0.6.6)", "")),
        bare("# GPU blocks: 2987, # CPU blocks: 2048"),
        bare("Graph capturing finished in 12 secs."),
        "INFO:     Application startup complete.",
    ]
    report = report_on(tmp_path, lines)

    for category in ("weights", "kv_pool", "cuda_graph", "framework", "total"):
        for rank in report["ranks"]:
            assert is_unknown(rank["memory"][category]), category
    assert is_unknown(report["kv_pool"]["size"])
    assert is_unknown(report["kv_pool"]["tokens"])
    assert report["outcome"]["status"] == "ready"


def test_weights_and_blocks_are_no_profile(tmp_path: Path) -> None:
    """31: 0.4.2 … 0.6.3 print no account: T · U less anything is not known."""
    lines = [
        bare(namespace(gpu_memory_utilization=0.9, block_size=16, max_model_len=8192)),
        bare("Loading model weights took 14.9888 GB"),
        bare("# GPU blocks: 28108, # CPU blocks: 2048"),
    ]
    report = report_on(tmp_path, lines)

    assert held(report, "weights") == 14.9888
    assert is_unknown(memory(report, "kv_pool"))
    assert report["kv_pool"]["tokens"]["value"] == 28_108 * 16


@pytest.mark.parametrize("unit", ["GB", "GiB"])
def test_the_cpu_back_end_s_space_is_gib(tmp_path: Path, unit: str) -> None:
    """32: the variable's default is 4 · 2**30 bytes, whichever unit the warning names."""
    lines = [
        said(
            f"Environment variable VLLM_CPU_KVCACHE_SPACE ({unit}) for CPU backend is not set, "
            "using 4 by default.",
            level="WARNING",
        ),
        said(config("0.17.1")),
        *plain(2_049, block=128),
    ]
    report = report_on(tmp_path, lines)

    assert report["kv_pool"]["tokens"]["value"] == 2_049 * 128
    assert report["kv_pool"]["size"]["value"] in (None, 4)
    assert report["kv_pool"]["budget"]["value"] in (None, 4)


# --- 33-35 order and runs ---------------------------------------------


def test_the_year_may_roll_over(tmp_path: Path) -> None:
    """33: no year is printed, so 12-31 is before 01-01 here."""
    lines = [asked(), said(config()), loaded("14.24"), budget("45.3"), *plain(23_193), SERVES]
    dated = [line.replace("03-01 10", "12-31 23") for line in lines[:3]]
    dated += [line.replace("03-01 10", "01-01 00") for line in lines[3:]]
    report = report_on(tmp_path, dated)

    assert len(report["runs"]) == 1
    assert held(report, "weights") == 14.24
    assert report["kv_pool"]["tokens"]["value"] == 23_193 * 16


def test_processes_may_overtake_each_other(tmp_path: Path) -> None:
    """33: the engine's tokens before its worker's budget, and captures before both."""
    worker = "Worker_TP0 pid=11"
    lines = [
        said(config("0.17.1", tensor=2)),
        loaded("7.25", worker),
        *plain(23_193),
        budget("45.3", worker),
        captured("0.61", worker),
        SERVES,
    ]
    report = report_on(tmp_path, lines)

    assert len(report["runs"]) == 1
    assert held(report, "kv_pool") == 45.3
    assert report["outcome"]["status"] == "ready"


@pytest.mark.parametrize("told_by", ["version", "configuration", "both"])
def test_a_start_line_begins_a_run(tmp_path: Path, told_by: str) -> None:
    """34: the server's version or the engine's configuration, with other pids."""
    lines = []
    for n, weights in enumerate(("14.24", "15.24")):
        engine = f"EngineCore pid={30 + n}"
        if told_by != "configuration":
            lines.append(said("vLLM API server version 0.14.1", f"APIServer pid={20 + n}"))
            lines.append(asked(f"APIServer pid={20 + n}", max_num_seqs=64 + n))
        if told_by != "version":
            lines.append(said(config("0.14.1"), engine))
        lines += [loaded(weights, engine), budget("45.3", engine)]
        lines += plain(20_001 + n, process=engine)
    report = report_on(tmp_path, lines)

    assert len(report["runs"]) == 2
    assert held(report, "weights") == 15.24
    assert report["kv_pool"]["deployment_tokens"]["value"] == 20_002 * 16
    if told_by != "configuration":
        assert report["concurrency"]["request_limit"]["value"] == 65


def test_two_models_in_one_file_are_two_runs(tmp_path: Path) -> None:
    """34: one server after the other, each with its own model."""
    lines = []
    for n, model in enumerate("ab"):
        process = f"EngineCore pid={30 + n}"
        lines.append(said(config("0.17.1").replace("'/m'", f"'/{model}'"), process))
        lines += [loaded(f"{14 + n}.24", process), *plain(20_001 + n, process=process), SERVES]
    report = report_on(tmp_path, lines)

    assert len(report["runs"]) == 2
    assert report["deployment"]["model"]["value"] == "/b"
    assert held(report, "weights") == 15.24


@pytest.mark.parametrize("pids", [(7, 7), (7, 8)], ids=["containers", "one host"])
def test_servers_whose_lines_are_mixed_are_said_to_be(
    tmp_path: Path, pids: tuple[int, int]
) -> None:
    """34: two servers line by line, of 20,001 and 25,001 blocks: what belongs to neither alone is
    not known, and 39 requests of 8,192 are not those of the larger one."""
    servers = []
    for n, (name, pid) in enumerate(zip("ab", pids, strict=True)):
        engine, api = f"EngineCore pid={pid}", f"APIServer pid={pid - 6}"
        lines = [asked(api, model=f"/{name}")]
        lines += [said(config("0.22.0").replace("'/m'", f"'/{name}'"), engine)]
        lines += [loaded(f"{14 + n}.24", engine), budget(f"{45 - n}.3", engine)]
        lines += plain(20_001 + 5000 * n, process=engine)
        servers.append([f"{name}-1  | {line}" for line in [*lines, SERVES]])
    mixed = [line for pair in zip(*servers, strict=True) for line in pair]
    report = report_on(tmp_path, mixed, request_tokens=(8192,))

    assert found(report), "nothing says that the log mixes servers"
    tokens, limit = report["kv_pool"]["tokens"], row_of(report, 8192)["token_limit"]
    assert tokens["value"] is None or limit["value"] in (None, (tokens["value"] // 16 - 1) // 512)
    if pids[0] == pids[1]:
        assert is_unknown(memory(report, "weights"))
        assert is_unknown(memory(report, "kv_pool"))


NO_START = {
    "sized before": ([loaded("14.24"), budget("45.3"), *plain(20_001)], ENGINE),
    "died before": ([loaded("14.24"), *failed("ValueError: x")], ENGINE),
    "another pid": ([loaded("14.24", "Worker_TP0 pid=41")], "Worker_TP0 pid=42"),
}


@pytest.mark.parametrize("case", NO_START)
def test_lines_that_come_again_begin_a_run(tmp_path: Path, case: str) -> None:
    """35: a log without start lines; vLLM's drafts repeat nothing."""
    first, process = NO_START[case]
    lines = [*first, loaded("15.24", process), budget("44.3", process)]
    report = report_on(tmp_path, [*lines, *plain(19_001)])

    assert len(report["runs"]) == 2
    assert report["runs"][1]["first"] == f"log0:{len(first) + 1}"
    assert held(report, "weights") == 15.24
    assert held(report, "kv_pool") == 44.3
    assert report["kv_pool"]["tokens"]["value"] == 19_001 * 16


def test_a_budget_or_tokens_that_come_again_begin_a_run(tmp_path: Path) -> None:
    """35: the second start's weights were cut off."""
    first = [loaded("14.24"), budget("45.3"), *plain(20_001), captured("0.61"), SERVES]
    again = [budget("44.3", "EngineCore pid=8"), *plain(19_001, process="EngineCore pid=8")]
    report = report_on(tmp_path, [*first, *again])

    assert len(report["runs"]) == 2
    assert report["kv_pool"]["tokens"]["value"] == 19_001 * 16
    assert held(report, "kv_pool") == 44.3
    assert held(report, "weights") is None
