"""vLLM 0.32 on a host without a device: small logs in its form, and the project's real ones.

The numbers are those of the traps that go with the real logs (shared/live/README.md, where the
folder lies beside the project). Figures of the small logs are the servers' that were run for it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .running import (
    FIRST,
    Report,
    by_rank,
    found,
    held,
    is_unknown,
    memory,
    rank_of,
    report_of,
    report_on,
    row_of,
)

API, ENGINE, WORKER = "APIServer pid=24109", "EngineCore pid=24129", "Worker pid=24146"
TRACEBACK = "Traceback (most recent call last):"


# --- what such a server prints ----------------------------------------


def said(message: str, process: str, level: str = "INFO", file: str = "core.py:402") -> str:
    return f"({process}) {level} 11-29 14:14:57 [{file}] {message}"


def launched(**arguments: object) -> list[str]:
    """The API server's own lines; the last one is in every such log."""
    given = {"model_tag": "models/tiny", "port": 8131, "model": "models/tiny"} | arguments
    return [
        "Triton is installed, but doesn't include CPU backend. Disabling Triton.",
        said(" ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0", API),
        said("  █▄█▀ █     █     █     █  model   models/tiny", API),
        said(f"non-default args: {(given | {'enforce_eager': True})!r}", API),
        said(
            "Found ulimit of 20000 and failed to automatically increase with error current limit "
            "exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too "
            "many open files`. Consider increasing with ulimit -n",
            API,
            "WARNING",
        ),
    ]


def engine(length: int, tensor: int = 1) -> list[str]:
    return [
        said(
            "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup. This "
            "is equivalent to setting -cc.mode=none -cc.cudagraph_mode=none",
            API,
            "WARNING",
        ),
        said(
            "Initializing a V1 LLM engine (v0.32.0) with config: model='models/tiny', "
            "speculative_config=None, tokenizer='models/tiny', dtype=torch.bfloat16, "
            f"max_seq_len={length}, load_format=auto, tensor_parallel_size={tensor}, "
            "pipeline_parallel_size=1, data_parallel_size=1, quantization=None, "
            "enforce_eager=True, kv_cache_dtype=auto, device_config=cpu, seed=0",
            ENGINE,
        ),
    ]


def worker(process: str = WORKER) -> list[str]:
    return [
        said("Starting to load model models/tiny...", process),
        said(
            "Filesystem type for checkpoints: EXT4. Checkpoint size: 0.01 GiB. Available RAM: "
            "21.01 GiB.",
            process,
        ),
        "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 64.53it/s]",
        "",
        said("Loading weights took 0.02 seconds", process),
    ]


def kv_set(size: str, process: str = WORKER, file: str = "cpu_worker.py:260") -> str:
    return said(f"Explicitly set ({size}/14.96) GiB for KV cache on node 0.", process, file=file)


def kv_size(tokens: int, length: int, concurrency: float) -> str:
    return said(
        f"CPU KV cache size: {tokens:,} tokens, Maximum concurrency for {length:,} tokens per "
        f"request: {concurrency:.2f}x",
        ENGINE,
    )


UP = [
    said("init engine (profile, create kv cache, warmup model) took 0.03 s", ENGINE),
    "INFO:     Started server process [24109]",
    "INFO:     Application startup complete.",
]


def up(
    tokens: int, length: int, concurrency: float, *more: str, size: str = "0.0", **arguments: object
) -> list[str]:
    """A whole start, with lines that a model's own cache prints behind its tokens."""
    return [
        *launched(max_model_len=length, **arguments),
        *engine(length),
        *worker(),
        kv_set(size),
        kv_size(tokens, length, concurrency),
        *more,
        *UP,
    ]


# 4 MiB are 16 blocks of 128 tokens and 262,144 B each.
SMALL = up(2048, 1024, 2.00, kv_cache_memory_bytes=4_194_304)


def died(error: str, *wrappers: str, process: str = WORKER, words: str = "") -> list[str]:
    """As such logs end: the cause, again by each process above, and the launcher's own words."""
    head = words or "WorkerProc hit an exception."
    return [
        said(head, process, "ERROR"),
        said(TRACEBACK, process, "ERROR"),
        said(
            '  File "/opt/venv/site-packages/vllm/v1/worker/x.py", line 219, in x', process, "ERROR"
        ),
        said(error, process, "ERROR"),
        said("EngineCore failed to start.", ENGINE, "ERROR"),
        said(TRACEBACK, ENGINE, "ERROR"),
        *(said(wrapper, ENGINE, "ERROR") for wrapper in wrappers or (error,)),
        "Process EngineCore:",
        TRACEBACK,
        '  File "/opt/python3.11/multiprocessing/process.py", line 314, in _bootstrap',
        *(wrappers or (error,)),
        TRACEBACK,
        '  File "/opt/venv/bin/vllm", line 8, in <module>',
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
        "proc(s): {}",
    ]


def wrapped(error: str) -> str:
    text = error.partition(": ")[2]
    return (
        f"RuntimeError: Worker failed with error '{text}', please check the stack trace above for "
        "the root cause"
    )


def failure_of(report: Report) -> Report:
    assert report["outcome"]["status"] == "failed"
    failure: Report = report["outcome"]["failure"]
    return failure


def line_of(lines: list[str], words: str) -> str:
    """The id of the first line with these words."""
    return f"log0:{next(n for n, line in enumerate(lines, 1) if words in line)}"


# --- servers that come up ---------------------------------------------


def test_a_small_server_is_ready_with_its_figures(tmp_path: Path) -> None:
    report = report_on(tmp_path, SMALL)

    assert (report["outcome"]["status"], report["outcome"]["failure"]) == ("ready", None)
    assert report["deployment"]["framework_version"]["value"] == "0.32.0"
    assert report["deployment"]["model"]["value"] == "models/tiny"
    assert report["deployment"]["context_length"]["value"] == 1024
    assert report["kv_pool"]["tokens"]["value"] == 2048
    assert report["concurrency"]["reported"]["request_tokens"] == 1024
    assert report["concurrency"]["reported"]["value"]["value"] == 2
    assert found(report) == []


def test_bytes_that_were_asked_for_are_no_rounded_gib(tmp_path: Path) -> None:
    """1: 4 MiB are printed as 0.0 of 14.96 GiB."""
    report = report_on(tmp_path, SMALL)

    assert held(report, "kv_pool") == pytest.approx(4 / 1024, abs=1e-6)
    assert report["kv_pool"]["size"]["value"] == pytest.approx(4 / 1024, abs=1e-6)


def test_a_size_that_only_the_environment_says_stays_rounded(tmp_path: Path) -> None:
    """1: 0.0 is 0 ± 0.005, which 4 MiB are within."""
    pool = memory(report_on(tmp_path, up(2048, 1024, 2.00)), "kv_pool")

    assert pool["value"] is None or pool["value"] + pool["error"] >= 4 / 1024


@pytest.mark.parametrize("file", ["cpu_worker.py:260", "v1/worker/cpu_worker.py:260"])
def test_the_source_of_a_line_is_no_part_of_it(tmp_path: Path, file: str) -> None:
    """DEBUG logs print longer paths."""
    lines = [*launched(), *engine(1024), kv_set("4.0", file=file), kv_size(2048, 1024, 2.0), *UP]

    assert held(report_on(tmp_path, lines), "kv_pool") == 4


def test_what_profiling_leaves_is_set_by_itself(tmp_path: Path) -> None:
    """9.21 of 14.96 GiB, where 0.92 of it were asked for."""
    auto = (
        "Auto set (9.21/14.96) GiB for KV cache on node 0, with 13.76 GiB requested memory for the "
        "worker. 4.55 GiB memory was consumed by non-kv usages."
    )
    lines = [*launched(), *engine(2048), *worker(), said(auto, WORKER)]
    report = report_on(tmp_path, [*lines, kv_size(301_952, 2048, 147.44), *UP])

    assert held(report, "kv_pool") == 9.21
    assert report["kv_pool"]["budget"]["value"] == 9.21
    assert is_unknown(report["deployment"]["gpu_memory_utilization"])


@pytest.mark.parametrize("category", ["weights", "framework", "activation", "used", "other"])
def test_what_a_host_does_not_print_is_unknown(tmp_path: Path, category: str) -> None:
    """No line has the weights' size, free memory or a peak; the checkpoint's size is on disk."""
    assert is_unknown(memory(report_on(tmp_path, SMALL), category))


def test_the_memory_of_the_node_is_not_the_ram_of_another_line(tmp_path: Path) -> None:
    """15: 14.96 GiB stand in the engine's lines, 21.01 in the loader's."""
    assert held(report_on(tmp_path, SMALL), "total") in (14.96, None)


def test_no_graphs_were_asked_for(tmp_path: Path) -> None:
    """14: enforce_eager is said by several processes."""
    graphs = memory(report_on(tmp_path, SMALL), "cuda_graph")

    assert (graphs["value"], graphs["origin"]) == (0, "configured")


def test_two_ranks_set_their_memory_and_share_the_tokens(tmp_path: Path) -> None:
    """10: TP1 speaks before TP0; 4,096 tokens are the whole group's."""
    ranks = ("Worker_TP1 pid=41", "Worker_TP0 pid=40")
    lines = [*launched(tensor_parallel_size=2), *engine(1024, tensor=2)]
    lines += [kv_set("2.0", rank) for rank in ranks]
    report = report_on(tmp_path, [*lines, kv_size(4096, 1024, 4.0), *UP])

    assert by_rank(report, "kv_pool") == {FIRST: 2, "DP0/PP0/TP1": 2}
    assert report["kv_pool"]["tokens"]["value"] == 4096
    assert report["kv_pool"]["deployment_tokens"]["value"] == 4096
    assert report["kv_pool"]["size"]["value"] == 2


def test_a_clean_stop_is_no_failure(tmp_path: Path) -> None:
    """13: 6 of 12 servers that came up say this when they are stopped."""
    stopped = [
        said("[shutdown] API server: shutdown triggered", API),
        said(
            "[shutdown] Process manager: force killing remaining processes count=1", API, "WARNING"
        ),
        said("AsyncLLM output_handler failed.", API, "ERROR"),
        said(TRACEBACK, API, "ERROR"),
        said(
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack "
            "trace (above) for the root cause.",
            API,
            "ERROR",
        ),
        said("[shutdown] API server: engine client stopped", API),
        "INFO:     Application shutdown complete.",
    ]
    outcome = report_on(tmp_path, [*SMALL, *stopped])["outcome"]

    assert (outcome["status"], outcome["failure"]) == ("ready", None)


# --- how many requests fit --------------------------------------------

GROUPS = "kv cache group sizes ({})"
MLA = "CPU MLA backend requires block_size=16, overriding user-specified block_size=128."
PADDED = (
    "Padding mamba page size by 82.86% to ensure that mamba page size and attention page size are "
    "exactly equal."
)
SERVERS = {
    "full attention": SMALL,
    "window": up(4253, 4096, 1.04, said(GROUPS.format("32, 32, 32, 32, 32, 32"), ENGINE)),
    "state": up(5957, 2048, 2.91, said(PADDED, ENGINE), said(GROUPS.format("128, 128"), ENGINE)),
    "latent": up(4848, 2048, 2.37, said(MLA, ENGINE), block_size=128),
}


@pytest.mark.parametrize(
    ("server", "length", "fits"),
    [
        ("full attention", 1024, 1),  # 2: 15 of 16 blocks of 128, of which one takes 8
        ("full attention", 140, 7),  # 3: 2 blocks each, 2,048 // 140 would be 14
        ("full attention", 256, 7),  # 4
        ("full attention", 560, 3),  # 5: five blocks each
        ("window", 4096, 1),  # 6
        ("window", 1000, 5),  # 6: 4,253 // 1,000 is too low
        ("state", 2048, 2),
        ("state", 60, 15),  # 8: 63 blocks, 4 each; 5,957 // 60 would be 99
        ("state", 930, 5),
        ("latent", 2048, 2),  # 9: 302 blocks of 16, not 37 of 128
        ("latent", 140, 33),  # 4,848 // 140 would be 34
    ],
)
def test_what_really_ran_is_within_what_is_said(
    tmp_path: Path, server: str, length: int, fits: int
) -> None:
    """As observed on these servers, without a preemption."""
    limit = row_of(report_on(tmp_path, SERVERS[server], request_tokens=(length,)), length)[
        "token_limit"
    ]

    if limit["value"] is None:
        assert limit["why"]
        assert limit.get("at_least", fits) <= fits <= limit.get("at_most", fits)
    else:
        assert limit["value"] == fits


def test_the_longest_length_is_exact(tmp_path: Path) -> None:
    """2: the engine's own 2.00x counts a block that nobody gets."""
    report = report_on(tmp_path, SMALL, request_tokens=(1024,))

    assert row_of(report, 1024)["token_limit"]["value"] == 15 // 8


def test_auto_fit_counts_the_block_that_nobody_gets(tmp_path: Path) -> None:
    """2: 1,920 = 15 · 128 is chosen, and the next line says 2,048 tokens."""
    fitted = said(
        "Auto-fit max_model_len: reduced from 8192 to 1920 to fit in available KV cache memory "
        "(0.0 GiB CPU)",
        ENGINE,
    )
    lines = [*launched(max_model_len=-1, kv_cache_memory_bytes=4_194_304), *engine(8192)]
    lines += [kv_set("0.0"), fitted, kv_size(2048, 1920, 16 / 15), *UP]
    report = report_on(tmp_path, lines, request_tokens=(1920, 4096))

    assert report["deployment"]["context_length"]["value"] == 1920
    assert row_of(report, 1920)["token_limit"]["value"] == 1
    assert is_unknown(row_of(report, 4096)["token_limit"])


def test_a_backend_replaces_the_block_size_asked_for(tmp_path: Path) -> None:
    """9: the arguments say 128, the cache has blocks of 16."""
    assert report_on(tmp_path, SERVERS["latent"])["deployment"]["page_size"]["value"] == 16


def test_the_request_limit_may_bind_first(tmp_path: Path) -> None:
    """16: 147 of the longest fit, 4 run."""
    lines = up(301_952, 2048, 147.44, size="9.21", max_num_seqs=4)
    report = report_on(tmp_path, lines, request_tokens=(256, 2048))

    assert row_of(report, 2048)["max_concurrent"]["value"] == 4
    assert row_of(report, 2048)["bound_by"] == "requests"
    shorter = row_of(report, 256)["max_concurrent"]
    assert shorter["value"] == 4 or shorter["at_most"] == 4


# --- load -------------------------------------------------------------


def stats(running: int, waiting: int, usage: float, speed: float, preempted: int = 0) -> str:
    """Every two seconds here; no prefix part where caching is off."""
    lost = f"Preemptions: {preempted}, " if preempted else ""
    return said(
        f"Engine 000: Avg prompt throughput: 17.2 tokens/s, Avg generation throughput: {speed} "
        f"tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, {lost}CPU KV cache usage: "
        f"{usage}%, Prefix cache hit rate: 0.0%",
        API,
    )


def test_peaks_of_the_load_are_what_the_intervals_showed(tmp_path: Path) -> None:
    """5: 15 ran at once, and lost their KV 24 times: the peak is not what fits."""
    lines = [
        stats(7, 1, 93.3, 30.5),
        stats(15, 13, 100.0, 120.0, preempted=20),
        stats(9, 4, 99.5, 80.5, preempted=4),
        stats(0, 0, 0.0, 12.5),
    ]
    load = report_on(tmp_path, [*SMALL, *lines])["load"]

    assert load["peak_running"]["value"] == 15
    assert load["peak_waiting"]["value"] == 13
    assert load["peak_kv_usage"]["value"] == 1
    assert load["last_kv_usage"]["value"] == 0
    assert load["preempted"]["value"] == 20 + 4
    assert load["peak_throughput"]["value"] == 120
    assert load["retracted"]["value"] is None


def test_a_load_without_preemptions_says_none(tmp_path: Path) -> None:
    """The part is printed only where there were any; 75.1 % and 99.7 % are shares of one less."""
    lines = [stats(33, 18, 99.7, 60.0).replace(", Prefix cache hit rate: 0.0%", "")]
    load = report_on(tmp_path, [*SMALL, *lines])["load"]

    assert load["peak_running"]["value"] == 33
    assert load["peak_kv_usage"]["value"] == pytest.approx(0.997)
    assert load["preempted"]["value"] in (0, None)


def test_a_start_has_no_load(tmp_path: Path) -> None:
    assert report_on(tmp_path, SMALL)["load"] is None


# --- servers that die -------------------------------------------------

NO_BLOCK = "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)])."
REFUSED = (
    "ValueError: Available memory on node 0 (12.67/14.96 GiB) on kv cache allocation is less than "
    "requested memory for kv (40.0 GiB). Decrease --kv-cache-memory-bytes, "
    "VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other processes."
)
TOO_LONG = (
    "ValueError: To serve at least one request with the model's max seq len (8192), ({} GiB KV "
    "cache is needed, which is larger than the available KV cache memory ({} GiB). Based on the "
    "available memory, the estimated maximum model length is 1920. Try increasing "
    "`gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing "
    "`max_model_len` when initializing the engine."
)


def test_a_capacity_line_does_not_make_a_server(tmp_path: Path) -> None:
    """11, 12: the tokens are printed, then a kernel refuses the blocks; the cause is the first of
    five errors, and the last one says nothing."""
    lines = SMALL[: -len(UP)]
    lines = [*lines, *died(NO_BLOCK, wrapped(NO_BLOCK))]
    report = report_on(tmp_path, lines)

    failure = failure_of(report)
    assert failure["kind"] == "not_memory"
    assert failure["evidence"] == [line_of(lines, NO_BLOCK)]
    assert "No common block size" in failure["message"]
    assert report["kv_pool"]["tokens"]["value"] == 2048
    assert failure["needed"]["value"] is None


def test_a_node_without_the_memory_is_a_failure_of_the_host(tmp_path: Path) -> None:
    lines = [*launched(), *engine(1024), *worker(), *died(REFUSED, wrapped(REFUSED))]
    report = report_on(tmp_path, lines)

    failure = failure_of(report)
    assert failure["kind"] == "host_memory"
    assert failure["evidence"] == [line_of(lines, "Available memory on node 0")]
    assert failure["needed"]["value"] == 40
    assert failure["available"]["value"] == 12.67
    assert failure["total"]["value"] == 14.96
    assert failure["short"]["value"] == pytest.approx(40 - 12.67)
    assert any("kv-cache-memory" in cure or "KVCACHE_SPACE" in cure for cure in failure["cures"])
    assert report["kv_pool"]["tokens"]["value"] is None


@pytest.mark.parametrize(
    ("needed", "available"), [("0.02", "0.0"), ("0.01", "0.01"), ("0.0", "0.0")]
)
def test_rounded_gib_decide_nothing(tmp_path: Path, needed: str, available: str) -> None:
    """1: the engine says that it does not fit, whatever the figures look like."""
    error = TOO_LONG.format(needed, available)
    lines = [*launched(kv_cache_memory_bytes=4_194_304), *engine(8192), *worker(), kv_set("0.0")]
    lines += died(error, process=ENGINE, words="EngineCore failed to start.")
    failure = failure_of(report_on(tmp_path, lines))

    assert failure["kind"] == "context_exceeds_kv_pool"
    assert failure["evidence"] == [line_of(lines, "To serve at least one request")]
    assert failure["short"]["value"] is None or (
        failure["short"]["value"] + failure["short"]["error"] > 0
    )
    assert any("1920" in cure or "1,920" in cure for cure in failure["cures"])


def test_an_override_can_be_too_small(tmp_path: Path) -> None:
    """17: 10 of 512 blocks are left, and the figures say 0.0 of 0.0."""
    override = "Overriding num_gpu_blocks=512 with num_gpu_blocks_override=10"
    error = TOO_LONG.format("0.0", "0.0")
    lines = [*launched(num_gpu_blocks_override=10), *engine(8192), *worker(), kv_set("0.13")]
    lines += [said(override, ENGINE), *died(error, process=ENGINE, words="EngineCore failed.")]
    report = report_on(tmp_path, lines)

    assert failure_of(report)["kind"] == "context_exceeds_kv_pool"
    assert found(report, "blocks-overridden")


def test_a_model_that_is_not_there_never_reaches_an_engine(tmp_path: Path) -> None:
    """12: such a log ends with its cause; the ulimit's OSError is a warning's."""
    cause = (
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
        "'namespace/repo_name': '/nowhere/model'. Use `repo_type` argument if needed."
    )
    head = [TRACEBACK, '  File "/opt/venv/bin/vllm", line 8, in <module>']
    lines = [*launched(model="/nowhere/model"), *head, "    sys.exit(main())", cause]
    failure = failure_of(report_on(tmp_path, lines))

    assert failure["kind"] == "not_memory"
    assert failure["stage"] == "startup"
    assert failure["evidence"] == [f"log0:{len(lines)}"]


# --- the real logs ----------------------------------------------------

LIVE = Path(__file__).parents[3] / "shared" / "live"
CAUSES = {
    "To serve at least one request": "context_exceeds_kv_pool",
    "Available memory on node": "host_memory",
    "No common block size": "not_memory",
    "Repo id must be in the form": "not_memory",
}


def real_logs() -> list[Report]:
    """What was printed by each server whose log lies beside the project; none where none does."""
    truth = LIVE / "truth.jsonl"
    if not truth.is_file():
        return []
    rows = map(json.loads, truth.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["kind"] == "log" and (LIVE / row["log"]).is_file()]


REAL = pytest.mark.parametrize("row", [pytest.param(row, id=row["log"]) for row in real_logs()])


@REAL
def test_a_real_log_ends_as_its_server_did(row: Report) -> None:
    """The cause is the first error that is no warning; its line is looked up by its words."""
    path = LIVE / row["log"]
    outcome = report_of(path)["outcome"]

    assert outcome["status"] == ("ready" if row["became_ready"] else "failed")
    if row["became_ready"]:
        assert outcome["failure"] is None
        return
    errors = [error["text"] for error in row["printed"]["errors"]]
    words, kind = next((w, k) for text in errors for w, k in CAUSES.items() if w in text)
    lines = path.read_text(encoding="utf-8").split("\n")
    assert outcome["failure"]["kind"] == kind
    assert outcome["failure"]["evidence"] == [line_of(lines, words)]


@REAL
def test_a_real_log_gives_the_capacity_that_was_printed(row: Report) -> None:
    report = report_of(LIVE / row["log"])
    printed = row["printed"].get("kv_line")

    if printed is None:
        assert is_unknown(report["kv_pool"]["tokens"])
        assert report["concurrency"]["reported"] is None
        return
    assert report["kv_pool"]["tokens"]["value"] == printed["tokens"]
    assert report["kv_pool"]["deployment_tokens"]["value"] == printed["tokens"]
    assert report["concurrency"]["reported"]["request_tokens"] == printed["max_model_len"]
    assert report["concurrency"]["reported"]["value"]["value"] == printed["concurrency_x"]
    assert report["deployment"]["context_length"]["value"] == printed["max_model_len"]


@REAL
def test_a_real_log_gives_the_memory_that_was_asked_for(row: Report) -> None:
    """To the byte where the command says it, although 0.0 GiB are printed."""
    asked = re.search(r"--kv-cache-memory-bytes (\d+)M", row["cmd"])
    report = report_of(LIVE / row["log"])

    if asked is not None and row["printed"].get("kv_set"):
        assert rank_of(report)["memory"]["kv_pool"]["value"] == pytest.approx(
            int(asked[1]) / 1024, abs=1e-6
        )
    else:
        assert report["kv_pool"]["size"]["value"] is None


@REAL
def test_a_real_log_gives_the_peaks_of_its_load(row: Report) -> None:
    seen = row["printed"]["stats_lines"]
    load = report_of(LIVE / row["log"])["load"]

    if not seen["count"]:
        assert load is None
        return
    assert load["peak_running"]["value"] == seen["running_max_logged"]
    assert load["peak_waiting"]["value"] == seen["waiting_max_logged"]
    assert load["peak_kv_usage"]["value"] == pytest.approx(seen["usage_max_logged"] / 100)
    assert load["preempted"]["value"] in (seen["preemptions_logged_last"], None)


def real_loads() -> list[Report]:
    """Loads of those servers that all ran at once and lost nothing."""
    truth = LIVE / "truth.jsonl"
    if not truth.is_file():
        return []
    rows = map(json.loads, truth.read_text(encoding="utf-8").splitlines())
    return [
        row
        for row in rows
        if row["kind"] == "concurrency" and not row["preemptions"] and (LIVE / row["log"]).is_file()
    ]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{row['log']} {row['prompt']}+{row['output']} x{row['sent']}")
        for row in real_loads()
    ],
)
def test_no_bound_is_below_what_really_ran(row: Report) -> None:
    """Requests that ran at once without a preemption did fit."""
    length = row["request_tokens"]
    report = report_of(LIVE / row["log"], request_tokens=(length,))
    fit = row_of(report, length)["max_concurrent"]

    most = fit["value"] if fit["value"] is not None else fit.get("at_most")
    assert most is None or most >= row["running_max_observed"]
