"""What the extractor makes of vLLM's lines: the wordings are those of the releases' own sources,
the expected figures are arithmetic that stands in the tests."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.loader import Found, Plugins, load
from capacity_core.rendering.json import JsonRenderer

Report = dict[str, Any]

MODULES = {"process": "capacity_core.reading.process", "vllm": "capacity_vllm"}
GIB = 2**30


@cache
def plugins() -> Plugins:
    """vLLM's alone, whatever else is installed here."""
    return load(
        [
            Found(name=name, module=module, load=partial(importlib.import_module, module))
            for name, module in MODULES.items()
        ]
    )


def report_on(folder: Path, lines: Iterable[str], *lengths: int) -> Report:
    path = folder / "server.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = Options(request_tokens=lengths or (4096,))
    parsed: Report = json.loads(JsonRenderer().render(analyse([str(path)], options, plugins())))
    return parsed


def by_rank(report: Report, category: str) -> dict[str, float | None]:
    """Rank → GiB of one category."""
    return {rank["id"]: rank["memory"][category]["value"] for rank in report["ranks"]}


def only(report: Report, category: str) -> Report:
    """One category of the only rank, with its provenance."""
    (rank,) = report["ranks"]
    value: Report = rank["memory"][category]
    return value


def finding(report: Report, code: str) -> Report | None:
    found: list[Report] = [f for f in report["findings"] if f["code"] == code]
    return found[0] if found else None


def token_limit(report: Report, length: int) -> Report:
    rows: list[Report] = report["concurrency"]["rows"]
    limit: Report = next(row for row in rows if row["request_tokens"] == length)["token_limit"]
    return limit


def gib(value: float) -> Any:
    return pytest.approx(value, abs=0.0001)


# --- what the engine prints -------------------------------------------


def said(message: str, process: str = "EngineCore pid=7") -> str:
    return f"({process}) INFO 03-01 10:00:00 [gpu_worker.py:298] {message}"


def failed(message: str, process: str = "EngineCore pid=7") -> str:
    return f"({process}) ERROR 03-01 10:00:00 [core.py:866] {message}"


def asked(process: str = "APIServer pid=1", **arguments: object) -> str:
    return said(f"non-default args: { ({'model': '/m'} | arguments)!r}", process)


def configured(
    version: str = "0.17.1",
    process: str = "EngineCore pid=7",
    length: int = 8192,
    tensor: int = 1,
    data: int = 1,
    eager: bool = False,
) -> str:
    return said(
        f"Initializing a V1 LLM engine (v{version}) with config: model='/m', "
        f"speculative_config=None, dtype=torch.bfloat16, max_seq_len={length}, "
        f"tensor_parallel_size={tensor}, pipeline_parallel_size=1, data_parallel_size={data}, "
        f"quantization=None, enforce_eager={eager}, kv_cache_dtype=auto, seed=0",
        process,
    )


def loaded(weights: str, process: str = "EngineCore pid=7") -> str:
    return said(f"Model loading took {weights} GiB memory and 9.123456 seconds", process)


def budget(size: str, process: str = "EngineCore pid=7") -> str:
    return said(f"Available KV cache memory: {size} GiB", process)


def sized(
    tokens: int, length: int, concurrency: float, process: str = "EngineCore pid=7"
) -> list[str]:
    """The two lines of releases 0.8.0 … 0.27."""
    return [
        said(f"GPU KV cache size: {tokens:,} tokens", process),
        said(f"Maximum concurrency for {length:,} tokens per request: {concurrency:.2f}x", process),
    ]


def plain_pool(
    blocks: int, length: int = 8192, block: int = 16, process: str = "EngineCore pid=7"
) -> list[str]:
    """One kind of KV cache: blocks · size, and blocks / ceil(length / size)."""
    return sized(blocks * block, length, blocks / -(-length // block), process)


def captured(size: str, process: str = "EngineCore pid=7") -> str:
    return said(f"Graph capturing finished in 12 secs, took {size} GiB", process)


def graph_pool(actual: str, estimated: str, process: str = "EngineCore pid=7") -> str:
    return said(
        f"CUDA graph pool memory: {actual} GiB (actual), {estimated} GiB (estimated), "
        "difference: 0.1 GiB (9.9%).",
        process,
    )


ESTIMATE = said("Estimated CUDA graph memory: 0.86 GiB total")
APPLIED = said(
    "CUDA graph memory profiling is enabled (default since v0.21.0). The current "
    "--gpu-memory-utilization=0.9000 is equivalent to --gpu-memory-utilization=0.8891 without CUDA "
    "graph memory profiling. To maintain the same effective KV cache size as before, increase "
    "--gpu-memory-utilization to 0.9109."
)
NOT_APPLIED = said(
    "CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0). Without "
    "it, CUDA graph memory is not accounted for during KV cache allocation, which may require "
    "lowering --gpu-memory-utilization to avoid OOM. Consider re-enabling it (the default as of "
    "v0.21.0) and increasing --gpu-memory-utilization from 0.9000 to 0.9109."
)
READY = said("init engine (profile, create kv cache, warmup model) took 23.02 seconds")
SERVES = "(APIServer pid=1) INFO:     Application startup complete."
TRACEBACK = "(EngineCore pid=7) Traceback (most recent call last):"

# Of a device of 79.1 GiB, 78.5 were free at the start and 0.9 · 79.1 = 71.19 are asked for.
HEAD = (
    "Free memory on device (78.5/79.1 GiB) on startup. "
    "Desired GPU memory utilization is (0.9, 71.19 GiB). "
)


def summary(usage: str, kv: str, process: str = "EngineCore pid=7") -> str:
    return said(
        f"{HEAD}Actual usage is {usage} Replace gpu_memory_utilization config with "
        "`--kv-cache-memory=52613349376` (49.0 GiB) to fit into requested memory, or "
        "`--kv-cache-memory=60461949952` (56.31 GiB) to fully utilize gpu memory. "
        f"Current kv cache memory in use is {kv}.",
        process,
    )


def separate(weights: str, peak: str, non_torch: str, graphs: str) -> str:
    """The usage as 0.10.2 … 0.26 print it."""
    return (
        f"{weights} GiB for weight, {peak} GiB for peak activation, {non_torch} GiB for non-torch "
        f"memory, and {graphs} GiB for CUDAGraph memory."
    )


def together(consumed: str, peak: str, graphs: str) -> str:
    """The usage as 0.27 and later print it."""
    return (
        f"{consumed} GiB for consumed memory (weights + non-torch), {peak} GiB for peak "
        f"activation, and {graphs} GiB for CUDAGraph memory."
    )


# --- workers ----------------------------------------------------------


@pytest.mark.parametrize(
    ("process", "rank"),
    [
        ("Worker_TP3 pid=11", "DP0/PP0/TP3"),
        ("Worker_PP1 pid=11", "DP0/PP1/TP0"),
        ("Worker_DP2 pid=11", "DP2/PP0/TP0"),
        ("Worker_PP1_TP2 pid=11", "DP0/PP1/TP2"),
        ("Worker_DP1_PP1_TP2_EP14 pid=11", "DP1/PP1/TP2"),
        ("Worker_PCP1_TP2_DCP3 pid=11", "DP0/PP0/TP2"),
        ("VllmWorker PP1_TP2 pid=11", "DP0/PP1/TP2"),
        ("VllmWorker TP2 pid=11", "DP0/PP0/TP2"),
        ("RayWorkerProc pid=11, ip=10.0.0.2) (Worker_TP1 pid=11", "DP0/PP0/TP1"),
    ],
)
def test_a_worker_is_the_rank_that_its_prefix_says(tmp_path: Path, process: str, rank: str) -> None:
    """Parts of size one are left out (v1/executor/multiproc_executor.py); Ray's own prefix comes
    before."""
    report = report_on(tmp_path, [loaded("14.24", process)])
    assert by_rank(report, "weights") == {rank: 14.24}


def test_a_rank_number_alone_counts_through_the_stages(tmp_path: Path) -> None:
    """0.6.6 … 0.10.0 print the global rank, pp · tp_size + tp."""
    lines = [configured("0.9.2", tensor=2)]
    lines += [loaded(f"{7 + n}.2419", f"VllmWorker rank={n} pid={20 + n}") for n in range(4)]
    assert by_rank(report_on(tmp_path, lines), "weights") == {
        "DP0/PP0/TP0": 7.2419,
        "DP0/PP0/TP1": 8.2419,
        "DP0/PP1/TP0": 9.2419,
        "DP0/PP1/TP1": 10.2419,
    }


@pytest.mark.parametrize(
    "processes",
    [
        ("VllmWorkerProcess pid=64", "VllmWorkerProcess pid=65"),
        ("RayWorkerWrapper pid=64, ip=10.0.0.2", "RayWorkerWrapper pid=65, ip=10.0.0.2"),
        ("RayWorkerWrapper pid=64, ip=10.0.0.2", "RayWorkerWrapper pid=64, ip=10.0.0.3"),
    ],
    ids=["process", "ray", "ray nodes"],
)
def test_workers_without_a_rank_of_their_own_are_told_apart_by_process(
    tmp_path: Path, processes: tuple[str, str]
) -> None:
    lines = [loaded("7.25", processes[0]), loaded("7.35", processes[1])]
    report = report_on(tmp_path, lines)
    assert sorted(by_rank(report, "weights").values(), key=str) == [7.25, 7.35]


def test_context_parallel_workers_of_one_rank_keep_their_own_figures(tmp_path: Path) -> None:
    """PCP is no pipeline stage: both are TP1 of one, in processes of their own."""
    lines = [
        summary(
            separate(f"7.{n}5", "0.59", "2.1", "0.61"), "60.4 GiB", f"Worker_PCP{n}_TP1 pid=6{n}"
        )
        for n in range(2)
    ]
    assert sorted(by_rank(report_on(tmp_path, lines), "weights").values(), key=str) == [7.05, 7.15]


def test_what_rank_0_alone_prints_is_not_the_others(tmp_path: Path) -> None:
    """From 0.11.2 weights, budget and captures are printed by local rank 0 alone."""
    first = "Worker_TP0 pid=11"
    lines = [
        configured("0.21.0", tensor=2),
        loaded("7.25", first),
        budget("60.5", first),
        captured("0.61", first),
        *(graph_pool(f"0.6{n}", "0.5", f"Worker_TP{n} pid=1{n + 1}") for n in range(2)),
    ]
    report = report_on(tmp_path, lines)
    assert by_rank(report, "weights") == {"DP0/PP0/TP0": 7.25, "DP0/PP0/TP1": None}
    assert by_rank(report, "kv_pool") == {"DP0/PP0/TP0": 60.5, "DP0/PP0/TP1": None}
    assert by_rank(report, "cuda_graph") == {"DP0/PP0/TP0": 0.60, "DP0/PP0/TP1": 0.61}


def test_the_summary_gives_a_silent_rank_figures_of_its_own(tmp_path: Path) -> None:
    lines = [
        loaded("7.25", "Worker_TP0 pid=11"),
        budget("60.5", "Worker_TP0 pid=11"),
        summary(separate("7.4", "0.59", "2.1", "0.61"), "60.4 GiB", "Worker_TP1 pid=12"),
    ]
    report = report_on(tmp_path, lines)
    assert by_rank(report, "weights") == {"DP0/PP0/TP0": 7.25, "DP0/PP0/TP1": 7.4}
    assert by_rank(report, "kv_pool") == {"DP0/PP0/TP0": 60.5, "DP0/PP0/TP1": 60.4}


def test_consumed_memory_gives_a_silent_rank_no_weights(tmp_path: Path) -> None:
    """From 0.27 weights are no term of the summary, and what is beyond them is not known either."""
    lines = [
        loaded("7.25", "Worker_TP0 pid=11"),
        summary(together("9.5", "0.59", "0.61"), "60.4 GiB", "Worker_TP1 pid=12"),
    ]
    report = report_on(tmp_path, lines)
    assert by_rank(report, "weights")["DP0/PP0/TP1"] is None
    assert by_rank(report, "framework")["DP0/PP0/TP1"] is None
    assert by_rank(report, "kv_pool")["DP0/PP0/TP1"] == 60.4


def test_a_worker_that_says_two_things_is_not_known(tmp_path: Path) -> None:
    report = report_on(tmp_path, [loaded("7.25"), loaded("7.35")])
    assert only(report, "weights")["value"] is None


# --- data-parallel engines --------------------------------------------


def test_an_engine_that_is_not_shown_leaves_a_lower_bound(tmp_path: Path) -> None:
    lines = [asked(data_parallel_size=3), configured(data=3)]
    for dp, blocks in ((0, 20_001), (2, 25_001)):
        lines += plain_pool(blocks, process=f"EngineCore_DP{dp} pid={30 + dp}")
    pool = report_on(tmp_path, lines)["kv_pool"]
    assert [worker["tokens"]["value"] for worker in pool["workers"]] == [320_016, None, 400_016]
    assert pool["deployment_tokens"]["value"] is None
    assert pool["deployment_tokens"]["at_least"] == 320_016 + 400_016


def test_dense_engines_are_as_many_as_the_arguments_ask_for(tmp_path: Path) -> None:
    """From 0.14.1 each dense engine's configuration says 1 (v1/engine/core.py)."""
    lines = [asked(data_parallel_size=2), configured(process="EngineCore_DP0 pid=30", data=1)]
    for dp in range(2):
        lines += plain_pool(20_001, process=f"EngineCore_DP{dp} pid={30 + dp}")
    report = report_on(tmp_path, lines)
    assert report["deployment"]["parallel"]["data"]["value"] == 2
    assert report["kv_pool"]["deployment_tokens"]["value"] == 2 * 320_016


def test_engines_that_speak_count_whatever_the_configuration_says(tmp_path: Path) -> None:
    lines = [configured(process="EngineCore_DP0 pid=30", data=1)]
    for dp in range(3):
        lines += plain_pool(20_001, process=f"EngineCore_DP{dp} pid={30 + dp}")
    report = report_on(tmp_path, lines)
    assert report["deployment"]["workers"]["value"] == 3
    assert report["kv_pool"]["deployment_tokens"]["value"] == 3 * 320_016


def test_one_engine_called_dp0_is_one_worker(tmp_path: Path) -> None:
    """0.10.2 … 0.17 print EngineCore_DP0 without any data parallelism, too."""
    lines = [asked(), configured(process="EngineCore_DP0 pid=30")]
    lines += plain_pool(20_001, process="EngineCore_DP0 pid=30")
    pool = report_on(tmp_path, lines)["kv_pool"]
    assert len(pool["workers"]) == 1
    assert pool["deployment_tokens"]["value"] == 320_016


def test_ray_actors_are_engines_of_their_own(tmp_path: Path) -> None:
    """Ray's prefix names the class and the process, but no data-parallel rank."""
    lines = [asked(data_parallel_size=2)]
    for pid, blocks in ((51, 20_001), (52, 25_001)):
        actor = f"DPMoEEngineCoreActor pid={pid}, ip=10.0.0.2"
        lines += [configured(process=actor, data=2), loaded("7.25", actor)]
        lines += plain_pool(blocks, process=actor)
    report = report_on(tmp_path, lines)
    assert len(report["runs"]) == 1
    assert report["kv_pool"]["deployment_tokens"]["value"] == 320_016 + 400_016


def test_replicas_with_the_same_prefix_keep_their_own_figures(tmp_path: Path) -> None:
    """Workers of dense data-parallel engines leave the rank out: two processes are both TP0."""
    lines = [asked(data_parallel_size=2), configured(process="EngineCore_DP0 pid=30")]
    lines += [loaded("7.25", "Worker_TP0 pid=41"), loaded("7.35", "Worker_TP0 pid=42")]
    report = report_on(tmp_path, lines)
    assert len(report["runs"]) == 1
    assert sorted(by_rank(report, "weights").values(), key=str) == [7.25, 7.35]


# --- runs -------------------------------------------------------------


def test_an_engine_that_starts_again_is_another_run(tmp_path: Path) -> None:
    lines = [asked()]
    for pid, blocks in ((30, 20_001), (31, 25_001)):
        process = f"EngineCore pid={pid}"
        lines += [configured(process=process), loaded("7.25", process)]
        lines += plain_pool(blocks, process=process)
    report = report_on(tmp_path, lines)
    assert len(report["runs"]) == 2
    assert report["kv_pool"]["tokens"]["value"] == 400_016


def test_a_configuration_that_several_processes_print_is_one_start(tmp_path: Path) -> None:
    lines = [configured(process=f"EngineCore pid={pid}") for pid in (30, 31)]
    report = report_on(tmp_path, [*lines, loaded("7.25", "EngineCore pid=30")])
    assert len(report["runs"]) == 1


def test_arguments_that_several_api_servers_print_are_one_start(tmp_path: Path) -> None:
    lines = [asked(f"ApiServer_{n} pid={n + 1}", max_num_seqs=64) for n in range(3)]
    report = report_on(tmp_path, [configured(), *lines, loaded("7.25")])
    assert len(report["runs"]) == 1
    assert report["concurrency"]["request_limit"]["value"] == 64


def test_weights_of_a_sized_rank_are_another_run(tmp_path: Path) -> None:
    """A log without its head: the lines alone say that the server came back."""
    first = [loaded("7.25"), *plain_pool(20_001)]
    again = [loaded("7.35", "EngineCore pid=8"), *plain_pool(25_001, process="EngineCore pid=8")]
    report = report_on(tmp_path, first + again)
    assert len(report["runs"]) == 2
    assert only(report, "weights")["value"] == 7.35


def test_weights_after_a_death_are_another_run(tmp_path: Path) -> None:
    lines = [loaded("7.25"), failed("EngineCore failed to start."), loaded("7.35")]
    report = report_on(tmp_path, lines)
    assert [run["status"] for run in report["runs"]] == ["failed", "incomplete"]


# --- tokens -----------------------------------------------------------

BLOCKS = 40 * 63 + 1  # with the null block, 40 requests of 63 blocks


def test_tokens_are_the_least_of_what_the_workers_print(tmp_path: Path) -> None:
    """Up to 0.11.0 each worker's count is printed before the minimum is taken
    (v1/core/kv_cache_utils.py of 0.11.0:1080)."""
    lines = [configured("0.11.0", tensor=2), *plain_pool(25_001), *plain_pool(20_001)]
    report = report_on(tmp_path, lines)
    assert report["kv_pool"]["deployment_tokens"]["value"] == 20_001 * 16
    assert finding(report, "tokens-differ") is not None


def test_equal_counts_of_workers_are_no_finding(tmp_path: Path) -> None:
    lines = [configured("0.11.0", tensor=2), *plain_pool(20_001), *plain_pool(20_001)]
    assert finding(report_on(tmp_path, lines), "tokens-differ") is None


@pytest.mark.parametrize("length", [1, 16, 17, 1000, 4096, 8192])
@pytest.mark.parametrize("blocks", [BLOCKS - 1, BLOCKS, 23_193])
def test_a_request_of_a_plain_model_takes_whole_blocks_of_all_but_one(
    tmp_path: Path, blocks: int, length: int
) -> None:
    """One block is the engine's own (v1/core/block_pool.py of 0.10.2:315), and the last token
    that is generated takes no slot (observed: shared/live/README.md, trap 4)."""
    lines = [asked(block_size=16), configured("0.20.0"), *plain_pool(blocks)]
    limit = token_limit(report_on(tmp_path, lines, length), length)
    assert limit["value"] == (blocks - 1) // -(-max(length - 1, 1) // 16)


def test_a_back_ends_block_size_overrides_the_one_asked_for(tmp_path: Path) -> None:
    lines = [
        asked(block_size=16),
        configured("0.17.1"),
        said("Forcing kv cache block size to 64 for FlashMLA backend."),
        *plain_pool(10_001, block=64),
    ]
    report = report_on(tmp_path, lines, 1000)
    assert report["deployment"]["page_size"]["value"] == 64
    assert token_limit(report, 1000)["value"] == 10_000 // 16  # 1,000 tokens are 16 blocks of 64


def test_blocks_of_unprinted_size_leave_bounds(tmp_path: Path) -> None:
    """40,320 tokens: 39 requests of 1,000 in blocks of 16, but 40 in blocks of 8."""
    lines = [configured("0.20.0"), *plain_pool(40 * 63)]
    limit = token_limit(report_on(tmp_path, lines, 1000), 1000)
    assert limit["value"] is None
    assert limit["at_least"] <= (40 * 63 - 1) // 63 == 39
    assert limit["at_most"] >= (80 * 63 - 1) // 125 == 40


def test_a_count_that_is_the_same_for_every_block_size_is_known(tmp_path: Path) -> None:
    """40,336 tokens: sizes 1, 8 and 16 fit them, and all give 40 requests of 1,000."""
    lines = [configured("0.20.0"), *plain_pool(BLOCKS)]
    limit = token_limit(report_on(tmp_path, lines, 1000), 1000)
    assert {(BLOCKS * 16 // b - 1) // -(-1000 // b) for b in (1, 8, 16)} == {40}
    assert limit["value"] == 40


def test_a_longest_request_in_part_of_a_block_is_still_plain(tmp_path: Path) -> None:
    """5,000 tokens take 313 blocks of 16, and the concurrency is by these 5,008."""
    lines = [asked(block_size=16), configured("0.20.0", length=5000), *plain_pool(9_999, 5000)]
    assert token_limit(report_on(tmp_path, lines, 800), 800)["value"] == 9_998 // 50


def test_a_plain_token_costs_its_share_of_the_budget(tmp_path: Path) -> None:
    """45.3 GiB in blocks of 16 · 131,072 B are 23,193.6: one is cut."""
    blocks = int(45.3 * GIB) // (16 * 131_072)
    lines = [configured("0.20.0"), budget("45.3"), *plain_pool(blocks)]
    figure = report_on(tmp_path, lines)["kv_pool"]["bytes_per_token"]
    assert figure["value"] - figure["error"] <= 131_072 <= figure["value"] + figure["error"]
    assert figure["value"] == pytest.approx(131_072, rel=0.001)


@pytest.mark.parametrize(
    "said_too",
    [
        said("Overriding num_gpu_blocks=23193 with num_gpu_blocks_override=20001"),
        said("Add 2 padding layers, may waste at most 9.09% KV cache memory"),
        said("Multiplying the GPU KV cache size by the dcp_world_size 2."),
    ],
    ids=["override", "hybrid", "context parallel"],
)
def test_a_pool_that_is_not_its_budget_has_no_cost_per_token(tmp_path: Path, said_too: str) -> None:
    lines = [configured("0.20.0"), budget("45.3"), said_too, *plain_pool(20_001)]
    figure = report_on(tmp_path, lines)["kv_pool"]["bytes_per_token"]
    assert figure["value"] is None
    assert figure["why"]


def test_two_kinds_of_layers_say_nothing_of_other_lengths(tmp_path: Path) -> None:
    """0.9.1 … 0.20: of 10,001 blocks each of 2 groups has a half, and a request of 8,192 takes 512
    of one and 129 (a window of 1,024 and a step of 1,024) of the other; behind its prompt 65, so
    that more run than the engine reckons."""
    lines = [configured("0.20.0"), *sized(10_001 // 2 * 16, 8192, 10_001 / 641)]
    report = report_on(tmp_path, lines, 4096, 8192)
    for length in (4096, 8192):
        assert token_limit(report, length)["value"] is None
        assert token_limit(report, length)["at_least"] == 10_000 // 641
        assert "at_most" not in token_limit(report, length)


@pytest.mark.parametrize("version", ["0.21.0", "0.27.1"])
def test_derived_tokens_hold_at_the_longest_length_alone(tmp_path: Path, version: str) -> None:
    """int(concurrency · length) (v1/core/kv_cache_utils.py of 0.21.0:1686); 40 longest requests
    need a block more than there are."""
    lines = [asked(block_size=16), configured(version), *plain_pool(40 * 512)]
    report = report_on(tmp_path, lines, 1000, 8192)
    assert token_limit(report, 8192)["value"] == 39
    shorter = token_limit(report, 1000)
    assert shorter["value"] is None
    assert "at_most" not in shorter  # windows, which nothing excludes, cost less while decoding
    assert report["kv_pool"]["bytes_per_token"]["value"] is None


@pytest.mark.parametrize("version", ["0.1.dev1+g1234567", "0.20.2rc1.dev9+g1234567"])
def test_a_build_of_no_release_may_derive_its_tokens(tmp_path: Path, version: str) -> None:
    """Such builds print either kind: a shorter request's count is not known."""
    lines = [asked(block_size=16), configured(version), *plain_pool(23_193)]
    limit = token_limit(report_on(tmp_path, lines), 4096)
    assert limit["value"] is None
    assert limit["why"]


@pytest.mark.parametrize("device", ["GPU", "XPU", "CPU", "GPU + host"])
def test_one_line_says_tokens_and_concurrency(tmp_path: Path, device: str) -> None:
    """0.28.0 and later; from 0.30 the device's name varies."""
    line = said(
        f"{device} KV cache size: 331,776 tokens, "
        "Maximum concurrency for 8,192 tokens per request: 40.50x"
    )
    report = report_on(tmp_path, [line], 4096, 8192)
    assert report["kv_pool"]["workers"][0]["tokens"]["value"] == 331_776
    assert report["concurrency"]["reported"]["request_tokens"] == 8192
    assert report["concurrency"]["reported"]["value"]["value"] == 40.5
    assert token_limit(report, 8192)["value"] == 40
    assert token_limit(report, 4096)["value"] is None


@pytest.mark.parametrize("word", ["dcp", "cp"])
def test_tokens_of_context_parallel_ranks_say_nothing_of_other_lengths(
    tmp_path: Path, word: str
) -> None:
    """They are multiplied by the ranks; a request of 8,192 takes ceil(8,192 / 8 / 16) blocks."""
    lines = [
        configured("0.11.2", tensor=8),
        said(f"Multiplying the GPU KV cache size by the {word}_world_size 8."),
        *sized(20_001 * 16 * 8, 8192, 20_001 / 64),
    ]
    report = report_on(tmp_path, lines, 4096, 8192)
    assert token_limit(report, 4096)["value"] is None
    assert token_limit(report, 8192)["value"] is None
    assert token_limit(report, 8192)["at_least"] == 20_000 // 64
    parallel = report["deployment"]["parallel"]
    assert parallel["context"]["value"] == 8
    assert parallel["attention_tensor"]["value"] is None


# --- the budget -------------------------------------------------------


def test_an_override_of_blocks_is_told(tmp_path: Path) -> None:
    lines = [
        budget("45.3"),
        said("Overriding num_gpu_blocks=23193 with num_gpu_blocks_override=20001"),
        *plain_pool(20_001),
    ]
    report = report_on(tmp_path, lines)
    found = finding(report, "blocks-overridden")
    assert found is not None
    assert found["evidence"] == ["log0:2"]
    assert only(report, "kv_pool")["value"] == 45.3


def test_profiling_overrides_no_blocks(tmp_path: Path) -> None:
    """Graph profiling makes a cache of its own without a budget: 0 blocks become a few."""
    lines = [
        said("Overriding num_gpu_blocks=0 with num_gpu_blocks_override=512"),
        budget("45.3"),
        *plain_pool(23_193),
    ]
    assert finding(report_on(tmp_path, lines), "blocks-overridden") is None


def test_a_reservation_after_the_budget_is_told(tmp_path: Path) -> None:
    """0.25.1 and later: the budget is printed before it (multimodal/gpu_ipc_memory.py)."""
    lines = [
        budget("45.3"),
        said(
            "Reserving 2.0 GiB of GPU memory for frontend multimodal decoding (1.0 GiB raw-frame "
            "semaphore budget, 1.0 GiB decoder+CUDA-context across 1 API server(s) @ 1.0 "
            "GiB/server); KV cache memory reduced to 43.3 GiB."
        ),
    ]
    report = report_on(tmp_path, lines)
    assert only(report, "kv_pool")["value"] == 45.3
    found = finding(report, "budget-reduced")
    assert found is not None
    assert "43.3" in found["message"]


@pytest.mark.parametrize(
    "message",
    [
        "Initial free memory 78.534423828125 GiB, reserved 10.00GiB memory for KV Cache as "
        "specified by kv_cache_memory_bytes config and skipped memory profiling. This does does "
        "not respect the gpu_memory_utilization config.",
        "Initial free memory 78.53 GiB, reserved 10.0 GiB memory for KV Cache as specified by "
        "kv_cache_memory_bytes config and skipped memory profiling.",
        "Applying persisted startup plan (fingerprint ab12): kv_cache_memory_bytes=10737418240 "
        "(10.00 GiB), recorded free-memory baseline 78.00 GiB, current 78.50 GiB. Memory profiling "
        "will be skipped.",
    ],
    ids=["0.10.2", "0.14.1", "plan"],
)
def test_memory_asked_for_in_bytes_is_the_budget(tmp_path: Path, message: str) -> None:
    report = report_on(tmp_path, [loaded("14.24"), said(message)])
    assert only(report, "kv_pool")["value"] == 10
    assert only(report, "activation")["value"] is None


# --- weights ----------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "weights", "error"),
    [
        ("15.4137 GB and 9.033798 seconds", 15.4137, 0.00005),  # 0.8.0: GB that is 2^30 bytes
        ("14.2419 GiB and 5.123456 seconds", 14.2419, 0.00005),
        ("14.2419 GiB memory and 5.123456 seconds", 14.2419, 0.00005),
        ("14.24 GiB memory and 5.123456 seconds", 14.24, 0.005),
        ("14.2 GiB memory and 5.123456 seconds", 14.2, 0.005),
        ("15.27 GiB and 12.006092 seconds", 15.27, 0.005),
    ],
)
def test_weights_are_as_exact_as_their_wording(
    tmp_path: Path, words: str, weights: float, error: float
) -> None:
    """Four decimals to 0.13, two without trailing zeros from 0.14.1; every unit is 2^30 bytes."""
    report = report_on(tmp_path, [said(f"Model loading took {words}")])
    assert only(report, "weights")["value"] == weights
    assert only(report, "weights")["error"] == error


def test_a_worker_s_own_line_comes_before_the_summary(tmp_path: Path) -> None:
    lines = [
        said("Model loading took 14.2419 GiB memory and 5.123456 seconds"),
        summary(separate("14.24", "0.59", "0.06", "0.61"), "56.3 GiB"),
    ]
    assert only(report_on(tmp_path, lines), "weights")["value"] == 14.2419


# --- the usage summary ------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kv"),
    [
        (summary(separate("14.24", "0.59", "0.06", "0.61"), "60451586376 bytes"), 56.3),
        (summary(separate("14.24", "0.59", "0.06", "0.61"), "56.3 GiB"), 56.3),
        (
            said(
                f"{HEAD}Actual usage: 14.24 GiB for weights, 0.59 GiB for peak activation, 0.06 "
                "GiB for non-torch memory, 0.61 GiB for NPU graph memory. Replace"
            ),
            None,
        ),
    ],
    ids=["0.10.2", "0.11.0", "platform"],
)
def test_a_summary_of_separate_terms_accounts_for_the_device(
    tmp_path: Path, line: str, kv: float | None
) -> None:
    report = report_on(tmp_path, [line])
    assert only(report, "weights")["value"] == 14.24
    assert only(report, "framework")["value"] == gib(79.1 - 78.5 + 0.06)
    assert only(report, "activation")["value"] == 0.59
    assert only(report, "cuda_graph")["value"] == 0.61
    assert only(report, "kv_pool")["value"] == (None if kv is None else gib(kv))


def test_a_summary_of_consumed_memory_is_less_its_weights(tmp_path: Path) -> None:
    """0.27 and later: 14.6 consumed, of which 14.24 are the weights."""
    lines = [loaded("14.24"), summary(together("14.6", "0.59", "0.61"), "56.0 GiB")]
    report = report_on(tmp_path, lines)
    assert only(report, "weights")["value"] == 14.24
    assert only(report, "framework")["value"] == gib(79.1 - 78.5 + 14.6 - 14.24)
    assert only(report, "cuda_graph")["value"] == 0.61
    assert only(report, "kv_pool")["value"] == 56


def test_a_summary_that_is_cut_keeps_its_head(tmp_path: Path) -> None:
    report = report_on(tmp_path, [said(HEAD.rstrip())])
    assert report["deployment"]["gpu_memory_utilization"]["value"] == 0.9
    assert only(report, "framework")["value"] is None


# --- the activation peak ----------------------------------------------


@pytest.mark.parametrize(
    ("usage", "kv", "activation"),
    [
        # 71.19 − 14.24 − 0.06 − 1.45 = 55.44: the peak holds the estimate of 0.86.
        (separate("14.24", "1.45", "0.06", "0.95"), "55.44", 0.59),
        # 71.19 − 14.24 − 0.06 − 0.59 − 0.86 = 55.44: it does not.
        (separate("14.24", "0.59", "0.06", "0.95"), "55.44", 0.59),
        # 71.19 − 14.6 − 1.45 = 55.14
        (together("14.6", "1.45", "0.95"), "55.14", 0.59),
        # A fork's: 71.19 − 14.6 − 0.59 − 0.86 = 55.14
        (together("14.6", "0.59", "0.95"), "55.14", 0.59),
        # 71.19 − 14.3 − 1.45 = 55.44, and 0.86 less is 54.58: neither is 50.
        (separate("14.24", "1.45", "0.06", "0.95"), "50.0", None),
    ],
    ids=["0.18", "0.19", "0.27", "fork", "neither"],
)
def test_the_equation_that_closes_says_what_the_peak_holds(
    tmp_path: Path, usage: str, kv: str, activation: float | None
) -> None:
    """references/accounting.md, vLLM peak: the release does not decide."""
    lines = [ESTIMATE, APPLIED, budget(kv), graph_pool("0.95", "0.86"), summary(usage, f"{kv} GiB")]
    peak = only(report_on(tmp_path, lines), "activation")
    assert peak["value"] == (None if activation is None else gib(activation))
    assert activation is not None or "neither" in peak["why"]


def test_an_estimate_that_was_not_applied_is_not_in_the_peak(tmp_path: Path) -> None:
    """71.19 − 14.24 − 0.06 − 1.45 = 55.44 closes as well, but nothing came off the budget."""
    usage = separate("14.24", "1.45", "0.06", "0.95")
    lines = [ESTIMATE, NOT_APPLIED, budget("55.44"), summary(usage, "55.44 GiB")]
    assert only(report_on(tmp_path, lines), "activation")["value"] == 1.45


def test_an_estimate_of_which_nobody_says_whether_it_was_applied(tmp_path: Path) -> None:
    """With both lines gone the peak is 1.45, or that less the estimate."""
    usage = separate("14.24", "1.45", "0.06", "0.95")
    lines = [ESTIMATE, READY, budget("55.44"), summary(usage, "55.44 GiB")]
    activation = only(report_on(tmp_path, lines), "activation")
    assert activation["value"] is None
    assert activation["at_most"] == pytest.approx(1.455)


def test_without_a_summary_the_debug_line_has_the_peak(tmp_path: Path) -> None:
    line = said(
        "Memory profiling takes 13.56 seconds. Total non KV cache memory: 8.21GiB; torch peak "
        "memory increase: 0.59GiB; non-torch forward increase memory: 0.06GiB; weights memory: "
        "7.56GiB."
    )
    assert only(report_on(tmp_path, [line]), "activation")["value"] == 0.59


# --- graphs -----------------------------------------------------------


def test_the_capture_of_profiling_is_not_kept(tmp_path: Path) -> None:
    """0.18 and later capture once before the pool is sized (v1/worker/gpu/model_runner.py)."""
    lines = [loaded("14.24"), captured("0.30"), ESTIMATE, budget("55.44"), captured("0.61")]
    assert only(report_on(tmp_path, lines), "cuda_graph")["value"] == 0.61


def test_the_capture_of_profiling_alone_says_nothing(tmp_path: Path) -> None:
    lines = [loaded("14.24"), captured("0.30"), ESTIMATE, budget("55.44")]
    assert only(report_on(tmp_path, lines), "cuda_graph")["value"] is None


def test_what_the_pool_holds_comes_before_the_capture(tmp_path: Path) -> None:
    lines = [budget("55.44"), captured("0.61"), graph_pool("0.95", "0.86")]
    assert only(report_on(tmp_path, lines), "cuda_graph")["value"] == 0.95


@pytest.mark.parametrize(
    "line", [configured(eager=True), asked(enforce_eager=True)], ids=["configuration", "arguments"]
)
def test_no_graphs_were_asked_for(tmp_path: Path, line: str) -> None:
    report = report_on(tmp_path, [line, loaded("14.24"), budget("55.44")])
    graphs = only(report, "cuda_graph")
    assert graphs["value"] == 0
    assert graphs["origin"] == "configured"
    assert graphs["evidence"] == ["log0:1"]


def test_graphs_that_are_not_printed_are_not_zero(tmp_path: Path) -> None:
    report = report_on(tmp_path, [configured(), loaded("14.24"), budget("55.44")])
    assert only(report, "cuda_graph")["value"] is None


def test_negative_graph_memory_stays_and_is_told(tmp_path: Path) -> None:
    """Memory came back on the device during the capture: as printed in a public log."""
    report = report_on(tmp_path, [budget("55.44"), graph_pool("-0.19", "0.86")])
    assert only(report, "cuda_graph")["value"] == -0.19
    found = finding(report, "negative-graphs")
    assert found is not None
    assert found["evidence"] == ["log0:2"]


def test_a_negative_capture_stays(tmp_path: Path) -> None:
    report = report_on(tmp_path, [budget("55.44"), captured("-0.41")])
    assert only(report, "cuda_graph")["value"] == -0.41


# --- the longest length -----------------------------------------------


@pytest.mark.parametrize(
    ("words", "length"),
    [
        (
            "reduced from 8192 to 1920 to fit in available GPU memory (0.5 GiB available for KV "
            "cache)",
            1920,
        ),
        ("reduced from 8192 to 1920 to fit in available KV cache memory (0.5 GiB GPU)", 1920),
        ("full model context length 8192 fits in available GPU memory", 8192),
        ("attention-free model, using derived max_model_len=4096", 4096),
    ],
)
def test_auto_fit_has_the_last_word_on_the_longest_length(
    tmp_path: Path, words: str, length: int
) -> None:
    """The configuration was printed before it."""
    lines = [asked(max_model_len=-1), configured("0.20.0", length=8192)]
    report = report_on(tmp_path, [*lines, said(f"Auto-fit max_model_len: {words}")])
    assert report["deployment"]["context_length"]["value"] == length


# --- how a start ends -------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        "",
        " (this flag also controls CPU memory reservation on the CPU backend, despite its name)",
    ],
    ids=["0.6.4", "0.22.0"],
)
def test_no_memory_for_blocks_is_the_failure(tmp_path: Path, more: str) -> None:
    """The exception is printed by each process that dies of it: it is one failure of one run."""
    words = (
        "ValueError: No available memory for the cache blocks. Try increasing "
        f"`gpu_memory_utilization` when initializing the engine{more}."
    )
    lines = [
        configured(),
        loaded("78.24"),
        budget("-1.43"),
        failed("EngineCore failed to start."),
        failed("Traceback (most recent call last):"),
        failed(words),
        TRACEBACK,
        f"(EngineCore pid=7) {words}",
    ]
    report = report_on(tmp_path, lines)
    failure = report["outcome"]["failure"]
    assert len(report["runs"]) == 1
    assert failure["kind"] == "no_kv_memory"
    assert failure["stage"] == "after_weights"
    assert failure["evidence"] == ["log0:6"]


@pytest.mark.parametrize(
    "words",
    [
        "the models's max seq len (8192), (18.35 GB KV cache is needed, which is larger than the "
        "available KV cache memory (8.72 GB). Try increasing",
        "the models's max seq len (8192), (18.35 GiB KV cache is needed, which is larger than the "
        "available KV cache memory (8.72 GiB). Based on the available memory, the estimated "
        "maximum model length is 3888. Try increasing",
        "the model's max seq len (8192), (18.35 GiB KV cache is needed, which is larger than the "
        "available KV cache memory (8.72 GiB). Based on the available memory, the estimated "
        "maximum model length is 3888. Try increasing",
    ],
    ids=["0.8.0", "0.9.1", "0.22.0"],
)
def test_a_longest_request_that_does_not_fit_is_the_failure(tmp_path: Path, words: str) -> None:
    lines = [
        loaded("60.24"),
        budget("8.72"),
        failed(f"ValueError: To serve at least one request with {words}"),
    ]
    report = report_on(tmp_path, lines)
    failure = report["outcome"]["failure"]
    assert failure["kind"] == "context_exceeds_kv_pool"
    assert failure["evidence"] == ["log0:3"]
    assert report["deployment"]["context_length"]["value"] == 8192


@pytest.mark.parametrize(
    "words",
    [
        "device (31.44/79.1 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 71.19 GiB).",
        "device cuda:0 (31.44/79.1 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 71.19 GiB).",
        "device cuda:0 (31.44/79.1 GiB) on startup is less than the engine's budget after "
        "excluding external process's weights (0.9, 71.19 GiB).",
    ],
    ids=["0.9.1", "0.14.1", "0.32.0"],
)
def test_too_little_free_memory_is_a_failure_at_start_up(tmp_path: Path, words: str) -> None:
    """The summary begins with the same words; this is what follows them."""
    report = report_on(tmp_path, [configured(), failed(f"ValueError: Free memory on {words}")])
    failure = report["outcome"]["failure"]
    assert (failure["kind"], failure["stage"]) == ("device_memory_taken", "startup")
    assert "31.44/79.1 GiB" in failure["message"]
    assert report["deployment"]["gpu_memory_utilization"]["value"] == 0.9


def test_a_traceback_that_nothing_explains_is_an_unknown_failure(tmp_path: Path) -> None:
    lines = [configured(), loaded("14.24"), TRACEBACK]
    failure = report_on(tmp_path, lines)["outcome"]["failure"]
    assert (failure["kind"], failure["stage"]) == ("unknown", "after_weights")
    assert failure["evidence"] == ["log0:3"]


def test_a_traceback_that_the_start_survives_is_no_failure(tmp_path: Path) -> None:
    lines = [configured(), TRACEBACK, loaded("14.24"), *plain_pool(20_001), READY]
    assert report_on(tmp_path, lines)["outcome"]["status"] == "ready"


def test_a_traceback_of_a_server_that_is_up_is_no_failure(tmp_path: Path) -> None:
    """It may be one request's trouble."""
    lines = [configured(), loaded("14.24"), *plain_pool(20_001), READY, SERVES, TRACEBACK]
    assert report_on(tmp_path, lines)["outcome"]["status"] == "ready"


def test_an_engine_that_dies_while_it_serves_has_failed_there(tmp_path: Path) -> None:
    death = failed("EngineCore encountered a fatal error.")
    lines = [configured(), loaded("14.24"), *plain_pool(20_001), READY, SERVES, TRACEBACK, death]
    outcome = report_on(tmp_path, lines)["outcome"]
    assert outcome["status"] == "failed"
    assert outcome["failure"]["stage"] == "serving"


@pytest.mark.parametrize(
    ("last", "status", "stage"),
    [
        ([loaded("14.24")], "incomplete", "after_weights"),
        (plain_pool(20_001), "incomplete", "after_pools"),
        ([*plain_pool(20_001), captured("0.61")], "ready", "after_graphs"),
        ([*plain_pool(20_001), READY], "ready", "ready"),
        ([*plain_pool(20_001), SERVES], "ready", "ready"),
        (
            [
                *plain_pool(20_001),
                said(
                    "init engine (profile, create kv cache, warmup model) took 23.02 s "
                    "(compilation: 8.10 s)"
                ),
            ],
            "ready",
            "ready",
        ),
    ],
    ids=["weights", "pool", "graphs", "engine", "server", "engine since 0.20"],
)
def test_a_start_is_as_far_as_its_last_line(
    tmp_path: Path, last: list[str], status: str, stage: str
) -> None:
    outcome = report_on(tmp_path, [configured(), loaded("14.24"), *last])["outcome"]
    assert (outcome["status"], outcome["stage"]) == (status, stage)
    assert outcome["failure"] is None


def test_an_eager_engine_is_up_once_its_pool_is_sized(tmp_path: Path) -> None:
    """Nothing is captured after it."""
    lines = [configured(eager=True), loaded("14.24"), *plain_pool(20_001)]
    assert report_on(tmp_path, lines)["outcome"]["status"] == "ready"


# --- what belongs to whom ---------------------------------------------


def test_stages_that_hold_different_layers_have_no_common_bytes_per_token(tmp_path: Path) -> None:
    """Up to 0.11.0 each worker prints its own tokens: 40,960 B of stage 0, 81,920 B of stage 1."""
    one, two = "VllmWorker rank=0 pid=20", "VllmWorker rank=1 pid=21"
    lines = [configured("0.9.2", length=10_000), budget("20.00", one), budget("30.00", two)]
    lines += [*sized(524_288, 10_000, 52.43, one), *sized(393_216, 10_000, 39.32, two)]
    assert report_on(tmp_path, lines)["kv_pool"]["bytes_per_token"]["value"] is None


@pytest.mark.parametrize(
    ("blocks", "of_longest", "length"),
    [
        (40 * 313 + 1, 313, 5_000),
        (40 * 313, 313, 5_000),
        (33 * 45 + 1, 45, 32_768),
        (8_001, 8_000, 128_000),
        (128 * 1_875 + 1, 1_875, 30_000),
        (128 * 1_875, 1_875, 30_000),
    ],
)
def test_one_block_less_at_the_longest_length(
    tmp_path: Path, blocks: int, of_longest: int, length: int
) -> None:
    """int(concurrency · length) tokens, of which one block is the null block
    (v1/core/kv_cache_utils.py of 0.21.0:1686, v1/core/block_pool.py)."""
    concurrency = blocks / of_longest
    lines = [configured("0.23.0", length=length)]
    lines += sized(int(concurrency * length), length, concurrency)
    limit = token_limit(report_on(tmp_path, lines, length), length)
    assert limit["value"] == (blocks - 1) // of_longest


def test_a_budget_that_may_be_any_engines_is_nobodys(tmp_path: Path) -> None:
    engines = [f"EngineCore_DP{n} pid={30 + n}" for n in range(2)]
    lines = [asked(data_parallel_size=2)]
    lines += [budget("45.30", "Worker_TP0 pid=41"), budget("40.00", "Worker_TP0 pid=42")]
    lines += [line for engine in engines for line in plain_pool(20_001, process=engine)]
    workers = report_on(tmp_path, lines)["kv_pool"]["workers"]
    assert [worker["size"]["value"] for worker in workers] == [None, None]


def test_a_sibling_that_goes_on_after_a_death_starts_nothing(tmp_path: Path) -> None:
    engines = [f"EngineCore_DP{n} pid={30 + n}" for n in range(2)]
    lines = [asked(data_parallel_size=2)]
    lines += [configured(process=engine, data=2) for engine in engines]
    lines += [loaded("14.24", engine) for engine in engines]
    lines += [budget("-1.4", engines[1])]
    lines += [failed("ValueError: No available memory for the cache blocks.", engines[1])]
    lines += [budget("5.4", engines[0]), *plain_pool(2_001, process=engines[0])]
    report = report_on(tmp_path, lines)
    assert len(report["runs"]) == 1
    assert report["outcome"]["failure"]["kind"] == "no_kv_memory"


def test_prefill_context_parallel_workers_are_no_restart(tmp_path: Path) -> None:
    lines = [loaded("7.05", "Worker_PCP0_TP1 pid=60"), loaded("7.15", "Worker_PCP1_TP1 pid=61")]
    report = report_on(tmp_path, lines)
    assert len(report["runs"]) == 1
    assert sorted(v or 0 for v in by_rank(report, "weights").values()) == [7.05, 7.15]


def test_replicas_that_load_one_after_the_other_are_no_restart(tmp_path: Path) -> None:
    lines = [asked(data_parallel_size=2), configured(process="EngineCore_DP0 pid=30")]
    lines += [loaded("7.05", "Worker_TP0 pid=41")]
    lines += plain_pool(20_001, process="EngineCore_DP0 pid=30")
    lines += [loaded("7.05", "Worker_TP0 pid=42")]
    lines += plain_pool(20_001, process="EngineCore_DP1 pid=31")
    report = report_on(tmp_path, lines)
    assert len(report["runs"]) == 1
    assert report["kv_pool"]["deployment_tokens"]["value"] == 2 * 20_001 * 16


def test_actors_with_pools_of_their_own_do_not_differ(tmp_path: Path) -> None:
    lines: list[str] = []
    for pid, blocks in ((51, 20_001), (52, 25_001)):
        lines += plain_pool(blocks, process=f"DPMoEEngineCoreActor pid={pid}, ip=10.0.0.2")
    assert finding(report_on(tmp_path, lines), "tokens-differ") is None


def test_two_figures_of_one_thing_are_said_to_contradict(tmp_path: Path) -> None:
    report = report_on(tmp_path, [loaded("7.25"), loaded("7.35"), budget("40.1"), budget("41.1")])
    for category in ("weights", "kv_pool"):
        value = only(report, category)
        assert value["value"] is None
        assert "different figures" in value["why"]


@pytest.mark.parametrize(
    "line",
    [captured("-0.41"), summary(separate("14.24", "1.4", "0.1", "-0.97"), "55.44 GiB")],
    ids=["capture", "summary"],
)
def test_negative_graphs_are_found_wherever_they_are_printed(tmp_path: Path, line: str) -> None:
    report = report_on(tmp_path, [configured(), budget("55.44"), line])
    assert finding(report, "negative-graphs") is not None


def test_a_refusal_that_the_engine_repeats_is_of_one_worker(tmp_path: Path) -> None:
    words = (
        "ValueError: Free memory on device cuda:0 (31.44/79.1 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 71.19 GiB). Decrease GPU memory utilization or reduce GPU "
        "memory used by other processes."
    )
    lines = [configured(tensor=2), failed(words, "Worker_TP0 pid=41"), failed(words)]
    assert [rank["id"] for rank in report_on(tmp_path, lines)["ranks"]] == ["DP0/PP0/TP0"]


def test_a_peak_that_holds_an_estimate_of_unprinted_size_is_a_bound(tmp_path: Path) -> None:
    """71.19 - 14.24 - 0.06 - 1.45 = 55.44: the budget closes with the peak, estimate included."""
    usage = summary(separate("14.24", "1.45", "0.06", "0.95"), "55.44 GiB")
    activation = only(report_on(tmp_path, [APPLIED, budget("55.44"), usage]), "activation")
    assert activation["value"] is None
    assert activation["at_most"] == pytest.approx(1.45, abs=0.006)
