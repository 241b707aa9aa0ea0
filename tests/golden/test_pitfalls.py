"""What tools of this kind get wrong: one test or a few for each row of the list of pitfalls.

Every input is written here, in the engines' own wordings, and every expected figure follows from
arithmetic that stands in the test. The tool is a black box: files in, JSON, text and exit code out.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.loader import Found, Plugins, load
from capacity_core.rendering.json import JsonRenderer

Report = dict[str, Any]

PLUGINS = {
    "deepseek-v4": "capacity_deepseek_v4",
    "gpu-specs": "capacity_gpu_specs",
    "kv-layouts": "capacity_kv_layouts",
    "legacy-fork": "capacity_legacy_fork",
    "process": "capacity_core.reading.process",
    "sglang": "capacity_sglang",
    "vllm": "capacity_vllm",
}
COMMAND = (sys.executable, "-c", "from capacity_core.cli import main; main()")
HELD = ("framework", "weights", "kv_pool", "state_pool", "cuda_graph")

# The device tool's used + free = 81,081 MiB = 79.18 GiB, of which 78 were free before weights.
BEFORE = 78.00
DEVICE_MIB = 81_081


# --- running the tool -------------------------------------------------


@cache
def shipped_plugins() -> Plugins:
    """What the project ships, whatever else is installed here."""
    return load(
        [
            Found(name=name, module=module, load=partial(importlib.import_module, module))
            for name, module in PLUGINS.items()
        ]
    )


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CAPACITY_")}
    return kept | {"CAPACITY_ONLY_PLUGINS": ",".join(PLUGINS), "NO_COLOR": "1"}


def capacity(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: exit code, stdout, stderr."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        timeout=60,
        check=False,
    )


def written(folder: Path, lines: Iterable[str], name: str = "server.log") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def report_of(path: Path, **options: Any) -> Report:
    """The JSON report on a log, made in this process."""
    report = analyse([str(path)], Options(**options), shipped_plugins())
    parsed: Report = json.loads(JsonRenderer().render(report))
    return parsed


def rank_of(report: Report, name: str) -> Report:
    found: list[Report] = [rank for rank in report["ranks"] if rank["id"] == name]
    assert len(found) == 1, [rank["id"] for rank in report["ranks"]]
    return found[0]


def row_of(report: Report, length: int) -> Report:
    rows: list[Report] = report["concurrency"]["rows"]
    return next(row for row in rows if row["request_tokens"] == length)


def memory(report: Report, rank: str = "DP0/PP0/TP0") -> dict[str, float | None]:
    """Category → GiB of one rank."""
    return {name: value["value"] for name, value in rank_of(report, rank)["memory"].items()}


def gib(value: float) -> Any:
    return pytest.approx(value, abs=0.006)


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The exit code, nothing on stdout, the words on stderr, and no traceback."""
    assert done.returncode == code, done.stderr or done.stdout
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


# --- what the engines print -------------------------------------------


def sglang(*messages: str, rank: str = "", at: str = "10:00") -> list[str]:
    """Messages with SGLang's prefix; `rank` begins with a blank, as it is printed."""
    return [f"[2026-03-01 {at}:{n:02d}{rank}] {message}" for n, message in enumerate(messages)]


def server_args(**changes: object) -> str:
    arguments = {
        "model_path": "/models/a",
        "context_length": 32768,
        "kv_cache_dtype": "auto",
        "mem_fraction_static": 0.85,
        "page_size": 1,
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "enable_dp_attention": False,
        "disable_radix_cache": False,
        "disable_cuda_graph": False,
    } | changes
    inner = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return f"server_args=ServerArgs({inner})"


def loaded(weights: float) -> list[str]:
    return [
        f"Load weight begin. avail mem={BEFORE:.2f} GB",
        f"Load weight end. elapsed=9.00 s, type=LlamaForCausalLM, "
        f"avail mem={BEFORE - weights:.2f} GB, mem usage={weights:.2f} GB.",
    ]


def allocated(weights: float, tokens: int, half: float) -> list[str]:
    """K and V of `half` GiB each, right after weights."""
    return [
        f"KV Cache is allocated. #tokens: {tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB",
        f"Memory pool end. avail mem={BEFORE - weights - 2 * half:.2f} GB",
    ]


def captured(before: float, graph: float) -> list[str]:
    return [
        f"Capture cuda graph begin. This can take up to several minutes. avail mem={before:.2f} GB",
        f"Capture cuda graph end. Time elapsed: 5.00 s. mem usage={graph:.2f} GB. "
        f"avail mem={before - graph:.2f} GB.",
    ]


def limits(tokens: int, requests: int = 2048, free: float = 11.90, context: int = 32768) -> str:
    return (
        f"max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        f"max_running_requests={requests}, context_len={context}, available_gpu_mem={free:.2f} GB"
    )


FIRED_UP = "The server is fired up and ready to roll!"


def sglang_start(
    weights: float = 16.00,
    tokens: int = 400_000,
    half: float = 24.41,  # 400,000 tokens × 32 layers × 8 heads × 128 × 2 B = 24.41 GiB
    *,
    at: str = "10:00",
    **arguments: object,
) -> list[str]:
    """One whole start on one GPU, graphs of 1.20 GiB; 78.00 GiB are free before weights."""
    free = BEFORE - weights - 2 * half
    return sglang(
        server_args(**arguments),
        *loaded(weights),
        *allocated(weights, tokens, half),
        *captured(free, 1.20),
        limits(tokens, free=free - 1.20),
        FIRED_UP,
        at=at,
    )


def vllm(*messages: str, process: str = "EngineCore_DP0", at: str = "10:00") -> list[str]:
    return [
        f"({process} pid={len(process)}) INFO 03-01 {at}:{n:02d} [gpu_worker.py:298] {message}"
        for n, message in enumerate(messages)
    ]


def engine_config(version: str, length: int = 8192, **sizes: int) -> str:
    of = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1} | sizes
    parallel = ", ".join(f"{name}={size}" for name, size in of.items())
    return (
        f"Initializing a V1 LLM engine (v{version}) with config: model='/models/b', "
        f"speculative_config=None, tokenizer='/models/b', dtype=torch.bfloat16, "
        f"max_seq_len={length}, download_dir=None, load_format=auto, {parallel}, "
        f"quantization=None, enforce_eager=False, kv_cache_dtype=auto, seed=0"
    )


def vllm_pool(tokens: int, length: int = 8192, requests: float | None = None) -> list[str]:
    """The two lines of releases 0.8.0 … 0.27."""
    return [
        f"GPU KV cache size: {tokens:,} tokens",
        f"Maximum concurrency for {length:,} tokens per request: "
        f"{tokens / length if requests is None else requests:.2f}x",
    ]


def vllm_start(weights: float = 14.24, budget: float = 45.30, tokens: int = 371_072) -> list[str]:
    """One whole start of 0.17.1 on one GPU; 371,072 tokens × 128 KiB = 45.30 GiB."""
    arguments = {"model": "/models/b", "max_model_len": 8192, "max_num_seqs": 256}
    return [
        *vllm(f"non-default args: {arguments}", process="APIServer"),
        *vllm(
            engine_config("0.17.1"),
            f"Model loading took {weights} GiB memory and 9.123456 seconds",
            f"Available KV cache memory: {budget} GiB",
            *vllm_pool(tokens),
            "Graph capturing finished in 12 secs, took 0.61 GiB",
            "init engine (profile, create kv cache, warmup model) took 60.00 seconds",
            at="10:01",
        ),
    ]


def smi_csv(folder: Path, *rows: tuple[int, int, int]) -> Path:
    """index, used, free in MiB, with nvidia-smi's header."""
    lines = ["index, memory.used [MiB], memory.free [MiB]"]
    lines += [f"{index}, {used} MiB, {free} MiB" for index, used, free in rows]
    return written(folder, lines, "smi.csv")


def model_config(folder: Path, **fields: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


LLAMA: dict[str, object] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "torch_dtype": "bfloat16",
}


# --- 1 two starts -----------------------------------------------------


def test_row_01_two_starts_are_two_runs(tmp_path: Path) -> None:
    """The last start alone is reported: nothing is added up, nothing mixed."""
    first = sglang_start(20.00, 300_000, 18.31, mem_fraction_static=0.75)
    second = sglang_start(16.00, 400_000, 24.41, mem_fraction_static=0.85, at="11:00")
    path = written(tmp_path, first + second)

    report = report_of(path)

    assert len(report["runs"]) == 2
    assert report["selected_run"] == 1
    assert report["runs"][1]["first"] == f"log0:{len(first) + 1}"
    assert memory(report)["weights"] == gib(16.00)
    assert memory(report)["kv_pool"] == gib(2 * 24.41)
    assert memory(report)["cuda_graph"] == gib(1.20)
    assert report["kv_pool"]["tokens"]["value"] == 400_000
    assert report["kv_pool"]["deployment_tokens"]["value"] == 400_000
    assert report["deployment"]["mem_fraction_static"]["value"] == 0.85


def test_row_01_an_older_start_can_be_asked_for(tmp_path: Path) -> None:
    first = sglang_start(20.00, 300_000, 18.31, mem_fraction_static=0.75)
    path = written(tmp_path, first + sglang_start(at="11:00"))

    report = report_of(path, run=0)

    assert report["selected_run"] == 0
    assert memory(report)["weights"] == gib(20.00)
    assert memory(report)["kv_pool"] == gib(2 * 18.31)
    assert report["kv_pool"]["tokens"]["value"] == 300_000
    assert report["deployment"]["mem_fraction_static"]["value"] == 0.75


def test_row_01_two_vllm_starts_are_two_runs(tmp_path: Path) -> None:
    path = written(tmp_path, vllm_start(20.5, 40.1, 328_496) + vllm_start(14.24, 45.3, 371_072))

    report = report_of(path)

    assert len(report["runs"]) == 2
    assert memory(report)["weights"] == gib(14.24)
    assert memory(report)["kv_pool"] == gib(45.30)
    assert report["kv_pool"]["tokens"]["value"] == 371_072
    assert report["kv_pool"]["deployment_tokens"]["value"] == 371_072


# --- 2, 3 ranks by pipeline stage -------------------------------------


def test_row_02_pipeline_stages_without_tp_are_two_ranks(tmp_path: Path) -> None:
    lines = sglang(server_args(pp_size=2))
    # 61 layers: 30 and 31, so that the stages differ in weights and in KV bytes of the same tokens.
    for stage, weights, half in (("PP0", 30.10, 18.00), ("PP1", 31.90, 18.60)):
        lines += sglang(
            *loaded(weights),
            *allocated(weights, 500_000, half),
            *captured(BEFORE - weights - 2 * half, 0.50),
            limits(500_000),
            rank=f" {stage}",
        )
    path = written(tmp_path, [*lines, *sglang(FIRED_UP, at="10:05")])

    report = report_of(path)

    assert [rank["id"] for rank in report["ranks"]] == ["DP0/PP0/TP0", "DP0/PP1/TP0"]
    first, second = (memory(report, f"DP0/PP{stage}/TP0") for stage in (0, 1))
    assert (first["weights"], second["weights"]) == (gib(30.10), gib(31.90))
    assert (first["kv_pool"], second["kv_pool"]) == (gib(36.00), gib(37.20))
    assert (first["cuda_graph"], second["cuda_graph"]) == (gib(0.50), gib(0.50))
    # Both stages hold the same tokens: of one worker, and not counted twice.
    assert report["kv_pool"]["tokens"]["value"] == 500_000
    assert report["kv_pool"]["deployment_tokens"]["value"] == 500_000


WORKERS = {  # weights, available KV memory, tokens of the worker's own blocks
    "PP0_TP0": (7.1000, 50.10, 812_800),
    "PP0_TP1": (7.2000, 49.20, 800_000),
    "PP1_TP0": (7.3000, 49.80, 806_400),
    "PP1_TP1": (7.4000, 49.90, 809_600),
}


def four_workers(folder: Path) -> Path:
    """TP2 × PP2 of vLLM 0.10.2, where every worker prints its own figures."""
    lines = vllm(engine_config("0.10.2", tensor_parallel_size=2, pipeline_parallel_size=2))
    for name, (weights, budget, _) in WORKERS.items():
        lines += vllm(
            f"Model loading took {weights:.4f} GiB and 9.123456 seconds",
            f"Available KV cache memory: {budget:.2f} GiB",
            process=f"Worker_{name}",
        )
    for *_, tokens in WORKERS.values():
        lines += vllm(*vllm_pool(tokens))
    return written(folder, lines)


def test_row_03_four_vllm_workers_keep_their_own_figures(tmp_path: Path) -> None:
    report = report_of(four_workers(tmp_path))

    assert len(report["ranks"]) == len(WORKERS)
    for name, (weights, budget, _) in WORKERS.items():
        parts = memory(report, f"DP0/{name.replace('_', '/')}")
        assert parts["weights"] == gib(weights)
        assert parts["kv_pool"] == gib(budget)
    # Printed before the minimum over workers was taken: the least one, not the last, not the sum.
    assert report["kv_pool"]["tokens"]["value"] == min(WORKERS.values(), key=lambda w: w[2])[2]
    assert report["kv_pool"]["deployment_tokens"]["value"] == 800_000


def test_row_03_the_rank_asked_for_is_the_rank_shown(tmp_path: Path) -> None:
    done = capacity("analyze", four_workers(tmp_path), "--rank", "PP1/TP0")

    assert done.returncode == 0
    assert re.search(r"^\s*weights\s+7\.30\b", done.stdout, re.MULTILINE)
    assert re.search(r"^\s*kv_pool\s+49\.80\b", done.stdout, re.MULTILINE)


def test_row_03_a_number_that_is_no_rank_is_an_error(tmp_path: Path) -> None:
    """`2` is TP2: there is none, and the four that there are get listed."""
    done = capacity("analyze", four_workers(tmp_path), "--rank", "2")

    assert_refused(done, 2, "PP0", "PP1", "TP0", "TP1")


# --- 4, 5 data parallel workers ---------------------------------------


def test_row_04_vllm_data_parallel_workers_are_summed(tmp_path: Path) -> None:
    pools = {0: 400_000, 1: 320_000}
    lines = vllm("non-default args: {'model': '/models/b', 'data_parallel_size': 2}")
    lines += vllm(engine_config("0.17.1", data_parallel_size=2))
    for dp, tokens in pools.items():
        lines += vllm(*vllm_pool(tokens), process=f"EngineCore_DP{dp}", at="10:02")

    pool = report_of(written(tmp_path, lines))["kv_pool"]

    assert {w["dp"]: w["tokens"]["value"] for w in pool["workers"]} == {0: 400_000, 1: 320_000}
    assert pool["deployment_tokens"]["value"] == 400_000 + 320_000
    assert pool["tokens"]["value"] == min(400_000, 320_000)


def test_row_04_concurrency_is_summed_worker_by_worker(tmp_path: Path) -> None:
    """Each worker fills its own pool: 48 + 39, not (400,000 + 320,000) // 8,192 = 87.9 floored late
    nor twice the least."""
    arguments = {"model": "/models/b", "data_parallel_size": 2, "max_num_seqs": 256}
    lines = vllm(f"non-default args: {arguments}", engine_config("0.17.1", data_parallel_size=2))
    for dp, tokens in ((0, 400_000), (1, 320_000)):
        lines += vllm(*vllm_pool(tokens), process=f"EngineCore_DP{dp}", at="10:02")

    row = row_of(report_of(written(tmp_path, lines)), 8192)

    assert row["token_limit"]["value"] == min(400_000 // 8192, 320_000 // 8192)
    assert row["deployment_max_concurrent"]["value"] == 400_000 // 8192 + 320_000 // 8192


def test_row_05_dp_attention_ranks_keep_pool_and_tokens_together(tmp_path: Path) -> None:
    """16,000 B per token: 4,700,000 take 70.03 GiB, 4,100,000 take 61.09 GiB."""
    pools = {0: (4_700_000, 70.03), 1: (4_100_000, 61.09)}
    lines = sglang(server_args(tp_size=2, dp_size=2, enable_dp_attention=True))
    for step in (0, 1):  # the ranks interleave
        for dp, (tokens, size) in pools.items():
            begin = 150.00 - dp
            said = (
                (
                    f"Load weight begin. avail mem={begin:.2f} GB",
                    "Load weight end. elapsed=9.00 s, type=DeepseekV3ForCausalLM, "
                    f"avail mem={begin - 60:.2f} GB, mem usage=60.00 GB.",
                ),
                (
                    f"KV Cache is allocated. #tokens: {tokens}, KV size: {size:.2f} GB",
                    f"Memory pool end. avail mem={begin - 60 - size:.2f} GB",
                    limits(tokens),
                ),
            )
            lines += sglang(*said[step], rank=f" DP{dp} TP{dp}", at=f"10:0{step + 1}")
    report = report_of(written(tmp_path, [*lines, *sglang(FIRED_UP, at="10:05")]))

    assert memory(report, "DP0/PP0/TP0")["kv_pool"] == gib(70.03)
    assert memory(report, "DP1/PP0/TP1")["kv_pool"] == gib(61.09)
    workers = {
        w["dp"]: (w["tokens"]["value"], w["size"]["value"]) for w in report["kv_pool"]["workers"]
    }
    assert workers == {0: (4_700_000, gib(70.03)), 1: (4_100_000, gib(61.09))}
    assert report["kv_pool"]["tokens"]["value"] == 4_100_000
    assert report["kv_pool"]["size"]["value"] == gib(61.09)
    assert report["kv_pool"]["deployment_tokens"]["value"] == 4_700_000 + 4_100_000


def test_row_05_a_worker_that_is_not_shown_leaves_bounds(tmp_path: Path) -> None:
    """dp_size=2, DP0 alone in the log: at least its own tokens, for the least worker at most."""
    lines = sglang(server_args(tp_size=2, dp_size=2, enable_dp_attention=True))
    lines += sglang(*loaded(16.00), limits(4_700_000), rank=" DP0 TP0", at="10:01")

    pool = report_of(written(tmp_path, lines))["kv_pool"]

    assert pool["deployment_tokens"]["value"] is None
    assert pool["deployment_tokens"]["at_least"] == 4_700_000
    assert pool["tokens"]["value"] is None
    assert pool["tokens"]["at_most"] == 4_700_000


# --- 6, 7 ranks and lines that are missing ----------------------------


def two_ranks_of_four(folder: Path) -> Path:
    """tp_size=4, TP0 and TP1 in the log, a graph line of TP0 alone."""
    lines = sglang(server_args(tp_size=4))
    for rank in (" TP0", " TP1"):
        lines += sglang(*loaded(16.00), *allocated(16.00, 400_000, 24.41), rank=rank)
    lines += sglang(*captured(13.18, 1.20), limits(400_000), rank=" TP0", at="10:02")
    return written(folder, [*lines, *sglang(FIRED_UP, at="10:05")])


def test_row_06_a_rank_that_was_never_logged_is_an_error(tmp_path: Path) -> None:
    done = capacity("analyze", two_ranks_of_four(tmp_path), "--rank", "TP3")

    assert_refused(done, 2, "TP3", "TP0", "TP1")


def test_row_06_ranks_that_were_never_logged_are_absent(tmp_path: Path) -> None:
    report = report_of(two_ranks_of_four(tmp_path))

    assert [rank["id"] for rank in report["ranks"]] == ["DP0/PP0/TP0", "DP0/PP0/TP1"]


def test_row_07_a_rank_without_a_graph_line_has_unknown_graphs(tmp_path: Path) -> None:
    report = report_of(two_ranks_of_four(tmp_path))

    assert memory(report, "DP0/PP0/TP0")["cuda_graph"] == gib(1.20)
    graphs = rank_of(report, "DP0/PP0/TP1")["memory"]["cuda_graph"]
    assert graphs["value"] is None
    assert graphs["why"]


# --- 8, 9, 10 reading the lines ---------------------------------------

NO_LITERALS = {
    "repr": (
        "server_args=ServerArgs(model_path='/models/a', tp_size=4, "
        "cuda_graph_config=CudaGraphConfig(decode=PhaseConfig(backend=<Backend.FULL: 'full'>, "
        "max_bs=None), prefill=None), mem_fraction_static=0.83, "
        "page_size=64, quantization='fp8', kv_cache_dtype='fp8_e4m3')"
    ),
    "dict": (
        "server_args={'model_path': '/models/a', 'tp_size': 4, "
        "'custom_sigquit_handler': <function handle at 0x7f0a1c2d3e40>, "
        "'mem_fraction_static': 0.83, 'page_size': 64, 'quantization': 'fp8', "
        "'kv_cache_dtype': 'fp8_e4m3'}"
    ),
}


@pytest.mark.parametrize("form", NO_LITERALS)
def test_row_08_a_value_that_is_no_literal_costs_nothing_else(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, sglang(NO_LITERALS[form], *loaded(16.00)))

    deployment = report_of(path)["deployment"]

    assert deployment["model"]["value"] == "/models/a"
    assert deployment["parallel"]["tensor"]["value"] == 4
    assert deployment["mem_fraction_static"]["value"] == 0.83
    assert deployment["page_size"]["value"] == 64
    assert deployment["quantization"]["value"] == "fp8"
    assert deployment["kv_cache_dtype"]["value"] == "fp8_e4m3"


def tty_colours(line: str) -> str:
    """Level, time and file in colour, as vLLM 0.12 … 0.14 prints to a terminal."""
    return re.sub(
        r"^(\(.*?\)) INFO (\S+ \S+) (\[\S+\])",
        "\x1b[0;36m\\1\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m\\2\x1b[0m \x1b[90m\\3\x1b[0m",
        line,
    )


COLOURINGS: dict[str, Callable[[str], str]] = {
    "process": lambda line: re.sub(r"^(\(.*?\))", "\x1b[1;36m\\1\x1b[0;0m", line),
    "terminal": tty_colours,
    "figures": lambda line: re.sub(r"([\d.,]+ (?:GiB|tokens))", "\x1b[1m\\1\x1b[0m", line),
    "words": lambda line: re.sub(r"(KV cache|loading|secs)", "\x1b[31m\\1\x1b[39m", line),
    "grep --color": lambda line: re.sub(r"(cache|took)", "\x1b[01;31m\x1b[K\\1\x1b[m\x1b[K", line),
}


@pytest.mark.parametrize("colouring", COLOURINGS)
def test_row_09_colours_inside_the_line_lose_nothing(tmp_path: Path, colouring: str) -> None:
    lines = [COLOURINGS[colouring](line) for line in vllm_start()]
    assert any("\x1b" in line for line in lines)

    report = report_of(written(tmp_path, lines))

    parts = memory(report)
    assert parts["weights"] == gib(14.24)
    assert parts["kv_pool"] == gib(45.30)
    assert parts["cuda_graph"] == gib(0.61)
    assert report["kv_pool"]["tokens"]["value"] == 371_072
    assert report["deployment"]["model"]["value"] == "/models/b"


def test_row_09_colours_inside_sglang_lines(tmp_path: Path) -> None:
    lines = [re.sub(r"(mem|size|tokens)", "\x1b[36m\\1\x1b[0m", line) for line in sglang_start()]

    report = report_of(written(tmp_path, lines))

    assert memory(report)["weights"] == gib(16.00)
    assert memory(report)["kv_pool"] == gib(2 * 24.41)
    assert report["kv_pool"]["tokens"]["value"] == 400_000


def test_row_10_a_host_named_sglang_does_not_make_it_sglang(tmp_path: Path) -> None:
    lines = [line.replace("{'model'", "{'host': 'sglang-h100', 'model'") for line in vllm_start()]
    path = written(tmp_path, [f"sglang-h100-3  | {line}" for line in lines])

    report = report_of(path)

    assert report["deployment"]["framework"]["value"] == "vllm"
    assert memory(report)["weights"] == gib(14.24)
    assert memory(report)["kv_pool"] == gib(45.30)
    assert report["kv_pool"]["tokens"]["value"] == 371_072


# --- 13 a negative budget ---------------------------------------------


def test_row_13_a_negative_budget_stays_negative_and_is_the_failure(tmp_path: Path) -> None:
    error = (
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine. See https://docs.vllm.ai/en/latest/configuration/"
        "conserving_memory/ for more details."
    )
    lines = vllm(
        engine_config("0.13.0"),
        "Model loading took 70.1234 GiB memory and 9.123456 seconds",
        "Available KV cache memory: -1.43 GiB",
    )
    prefix = "(EngineCore_DP0 pid=14) "
    head = f"{prefix}ERROR 03-01 10:01:00 [core.py:866] "
    lines += [
        f"{head}EngineCore failed to start.",
        f"{head}Traceback (most recent call last):",
        f"{head}ValueError: {error}",
        f"{prefix}Traceback (most recent call last):",
        f"{prefix}ValueError: {error}",
    ]

    report = report_of(written(tmp_path, lines))

    assert report["kv_pool"]["budget"]["value"] == -1.43
    assert memory(report)["kv_pool"] == -1.43
    assert memory(report)["weights"] == gib(70.12)
    assert report["outcome"]["status"] == "failed"
    assert report["outcome"]["failure"]["kind"] == "no_kv_memory"
    assert report["outcome"]["failure"]["evidence"]
    assert report["kv_pool"]["tokens"]["value"] is None


# --- 15, 16, 17 the GPU and its total ---------------------------------


def test_row_15_without_a_measured_total_framework_is_unknown(tmp_path: Path) -> None:
    """Free memory at the start says nothing of the total: no free + 2.0."""
    parts = rank_of(report_of(written(tmp_path, sglang_start())), "DP0/PP0/TP0")["memory"]

    for name in ("total", "framework", "used", "other"):
        assert parts[name]["value"] is None, name
        assert parts[name]["why"], name


def test_row_16_an_unknown_gpu_is_an_error_with_names(tmp_path: Path) -> None:
    path = written(tmp_path, sglang_start())

    assert_refused(capacity("analyze", path, "--gpu", "foo9000"), 2, "foo9000")


def test_row_16_a_misspelt_gpu_gets_the_nearest_names(tmp_path: Path) -> None:
    done = capacity("analyze", written(tmp_path, sglang_start()), "--gpu", "h1000")

    assert_refused(done, 2)
    assert "h100" in done.stderr.lower().replace("h1000", "")


def test_row_17_the_vendors_gb_are_never_a_total(tmp_path: Path) -> None:
    """80 GB on the label are 79.18 GiB here: 80 - 78 would be off by 0.82."""
    report = report_of(written(tmp_path, sglang_start()), gpu="NVIDIA H100 80GB HBM3")

    assert memory(report)["total"] is None
    assert memory(report)["framework"] is None
    assert report["deployment"]["gpu"]["total"]["value"] is None
    assert report["deployment"]["gpu"]["nominal_gb"]["value"] == 80


def test_row_17_a_measured_total_wins_over_the_label(tmp_path: Path) -> None:
    smi = smi_csv(tmp_path, (0, 70_000, DEVICE_MIB - 70_000))

    report = report_of(written(tmp_path, sglang_start()), gpu="NVIDIA H100 80GB HBM3", smi=str(smi))

    assert memory(report)["total"] == gib(DEVICE_MIB / 1024)
    assert memory(report)["framework"] == gib(DEVICE_MIB / 1024 - BEFORE)
    assert memory(report)["used"] == gib(70_000 / 1024)


# --- 19, 20, 21 contradictions and gaps -------------------------------


def test_row_19_parts_beyond_the_devices_used_are_a_contradiction(tmp_path: Path) -> None:
    used = 58_000  # MiB: 56.64 GiB
    framework = DEVICE_MIB / 1024 - BEFORE
    held = framework + 16.00 + 2 * 24.41 + 1.20  # 67.20 GiB
    smi = smi_csv(tmp_path, (0, used, DEVICE_MIB - used))
    path = written(tmp_path, sglang_start())

    report = report_of(path, smi=str(smi))

    found = [f for f in report["findings"] if f["code"] == "parts-exceed-used"]
    assert len(found) == 1
    assert found[0]["severity"] in ("warning", "error")
    assert any(line.startswith("smi0:") for line in found[0]["evidence"])
    assert memory(report)["other"] == pytest.approx(used / 1024 - held, abs=0.02)
    assert rank_of(report, "DP0/PP0/TP0")["memory"]["weights"]["share"] == pytest.approx(
        16.00 / (used / 1024), abs=0.001
    )


def test_row_19_the_text_shows_the_negative_rest(tmp_path: Path) -> None:
    used = 58_000
    rest = used / 1024 - (DEVICE_MIB / 1024 - BEFORE) - 16.00 - 2 * 24.41 - 1.20  # -10.56 GiB
    smi = smi_csv(tmp_path, (0, used, DEVICE_MIB - used))

    done = capacity("analyze", written(tmp_path, sglang_start()), "--smi", smi)

    assert done.returncode == 0
    shown = re.search(r"^\s*other\s+([-−])(\d+\.\d+)", done.stdout, re.MULTILINE)
    assert shown is not None
    assert float(shown[2]) == pytest.approx(-rest, abs=0.02)


def test_row_20_a_pool_far_from_its_budget_is_a_contradiction(tmp_path: Path) -> None:
    """DSV4: 3,080,960 tokens × 15,955.85 B = 45.78 GiB of budget, but only 30.00 went."""
    lines = sglang(
        server_args(tp_size=1, page_size=256, kv_cache_dtype="fp8_e4m3"),
        "Load weight begin. avail mem=93.56 GB",
        "Load weight end. elapsed=9.00 s, type=DeepseekV4ForCausalLM, quant=fp8, "
        "avail mem=57.01 GB, mem usage=36.55 GB.",
        "DSV4 memory calculation: bytes_per_full_token=15955.85, available_bytes=45.78 GB, "
        "full_token=3080960",
        "DSV4 pool sizes: full=3080960, swa=308224, c4=770240, c128=24070, c4_state=38528, "
        "c128_state=308224",
        "Memory pool end. avail mem=27.01 GB",
        limits(3_080_960, requests=256, context=1_048_576),
        FIRED_UP,
    )
    budget_line, after_pools_line = "log0:4", "log0:6"

    report = report_of(written(tmp_path, lines))

    parts = rank_of(report, "DP0/PP0/TP0")["memory"]
    assert parts["weights"]["value"] == gib(36.55)
    assert parts["kv_pool"]["value"] == gib(57.01 - 27.01)
    assert parts["kv_pool"]["share"] == pytest.approx(30.00 / 93.56, abs=0.001)
    assert report["kv_pool"]["budget"]["value"] == gib(45.78)
    assert any(
        finding["severity"] in ("warning", "error")
        and {budget_line, after_pools_line} <= set(finding["evidence"])
        for finding in report["findings"]
    ), report["findings"]


def test_row_21_what_the_log_does_not_say_is_unknown(tmp_path: Path) -> None:
    path = written(tmp_path, sglang(limits(400_000, free=11.90)))

    report = report_of(path)

    parts = rank_of(report, "DP0/PP0/TP0")["memory"]
    for name in (*HELD, "other", "used", "total", "activation", "unattributed"):
        assert parts[name]["value"] is None, name
        assert parts[name]["why"], name
    assert report["kv_pool"]["size"]["value"] is None
    assert report["kv_pool"]["tokens"]["value"] == 400_000
    assert report["deployment"]["parallel"]["tensor"]["value"] is None


def test_row_21_the_text_says_unknown_not_zero(tmp_path: Path) -> None:
    done = capacity("analyze", written(tmp_path, sglang(limits(400_000, free=11.90))))

    assert done.returncode == 0
    assert not re.search(r"(?<![\d.])0\.0+(?!\d)", done.stdout)
    assert re.search(r"^\s*weights\s+unknown", done.stdout, re.MULTILINE)
    assert re.search(r"^\s*cuda_graph\s+unknown", done.stdout, re.MULTILINE)


# --- 22, 23 nothing known, and the header -----------------------------


@pytest.mark.parametrize(
    "content", ["", "\n\n", "a line\nof no server that is known\n"], ids=["empty", "blank", "other"]
)
@pytest.mark.parametrize("output_format", ["text", "json"])
def test_row_22_nothing_recognised_is_no_report(
    tmp_path: Path, content: str, output_format: str
) -> None:
    path = tmp_path / "server.log"
    path.write_text(content, encoding="utf-8")

    done = capacity("analyze", path, "--format", output_format)

    assert_refused(done, 1, "server.log")
    assert len(done.stderr.splitlines()) == 1


HEADERS = {
    "Namespace": [
        "INFO 03-01 10:00:00 [api_server.py:1043] vLLM API server version 0.8.5",
        "INFO 03-01 10:00:00 [api_server.py:1044] args: Namespace(subparser='serve', "
        "model_tag='/models/c', config='', host=None, port=8000, uvicorn_log_level='info', "
        "allowed_origins=['*'], model='/models/c', task='auto', dtype='auto', "
        "kv_cache_dtype='fp8', max_model_len=16384, pipeline_parallel_size=2, "
        "tensor_parallel_size=4, gpu_memory_utilization=0.85, max_num_seqs=128, "
        "dispatch_function=<function ServeSubcommand.cmd at 0x7f0a1c2d3e40>)",
        "(VllmWorker rank=0 pid=7) INFO 03-01 10:02:00 [gpu_model_runner.py:1347] "
        "Model loading took 14.2419 GiB and 9.123456 seconds",
    ],
    "non-default args": vllm(
        "vLLM API server version 0.14.1",
        "non-default args: {'model_tag': '/models/c', 'model': '/models/c', "
        "'max_model_len': 16384, 'tensor_parallel_size': 4, 'pipeline_parallel_size': 2, "
        "'gpu_memory_utilization': 0.85, 'kv_cache_dtype': 'fp8', 'max_num_seqs': 128}",
        process="APIServer",
    )
    + vllm(
        "Model loading took 14.24 GiB memory and 9.123456 seconds",
        process="Worker_PP0_TP0",
        at="10:02",
    ),
}


@pytest.mark.parametrize("form", HEADERS)
def test_row_23_the_vllm_header_is_read(tmp_path: Path, form: str) -> None:
    report = report_of(written(tmp_path, HEADERS[form]))

    deployment = report["deployment"]
    assert rank_of(report, "DP0/PP0/TP0")["memory"]["weights"]["value"] == gib(14.24)
    assert deployment["model"]["value"] == "/models/c"
    assert deployment["parallel"]["tensor"]["value"] == 4
    assert deployment["parallel"]["pipeline"]["value"] == 2
    assert deployment["gpu_memory_utilization"]["value"] == 0.85
    assert deployment["kv_cache_dtype"]["value"] == "fp8"
    assert deployment["context_length"]["value"] == 16384


def test_row_23_the_engine_config_is_read(tmp_path: Path) -> None:
    lines = vllm(engine_config("0.10.2", length=16384, tensor_parallel_size=4))

    deployment = report_of(written(tmp_path, lines + vllm(*vllm_pool(400_000, 16384))))[
        "deployment"
    ]

    assert deployment["model"]["value"] == "/models/b"
    assert deployment["parallel"]["tensor"]["value"] == 4
    assert deployment["context_length"]["value"] == 16384
    assert deployment["framework_version"]["value"] == "0.10.2"


# --- 24, 25 advice and heads ------------------------------------------


def mentions_fp8(report: Report) -> bool:
    return any(
        re.search(r"fp8|float8|eight-bit|8-bit", f"{advice['message']} {advice['change']}", re.I)
        for advice in report["advice"]
    )


def with_dtype(*said: str, **arguments: object) -> list[str]:
    start = sglang_start(**arguments)  # type: ignore[arg-type]  # arguments of the server
    return [*start[:3], *sglang(*said, at="10:00"), *start[3:]]


def test_row_24_no_fp8_advice_when_the_dtype_is_unknown(tmp_path: Path) -> None:
    report = report_of(written(tmp_path, with_dtype(kv_cache_dtype="auto")))

    assert report["deployment"]["kv_cache_dtype_resolved"]["value"] is None
    assert not mentions_fp8(report)


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_row_24_no_fp8_advice_when_it_is_fp8_already(tmp_path: Path, dtype: str) -> None:
    torch = {"fp8_e4m3": "torch.float8_e4m3fn", "fp8_e5m2": "torch.float8_e5m2"}[dtype]
    lines = with_dtype(f"Using KV cache dtype: {torch}", kv_cache_dtype=dtype)

    assert not mentions_fp8(report_of(written(tmp_path, lines)))
    assert not mentions_fp8(report_of(written(tmp_path, with_dtype(kv_cache_dtype=dtype))))


def test_row_24_fp8_advice_rests_on_the_line_that_says_16_bit(tmp_path: Path) -> None:
    """The contrast to the two above: here the log says it, and the advice cites it."""
    lines = with_dtype("Using KV cache dtype: torch.bfloat16")

    report = report_of(written(tmp_path, lines))

    assert mentions_fp8(report)
    assert all(advice["evidence"] for advice in report["advice"])


def test_row_24_no_more_tensor_parallel_for_a_latent_that_is_replicated(tmp_path: Path) -> None:
    """MLA: 61 layers × (512 + 64) × 2 B on every rank, whatever TP is."""
    config = model_config(
        tmp_path,
        model_type="deepseek_v3",
        architectures=["DeepseekV3ForCausalLM"],
        hidden_size=7168,
        num_hidden_layers=61,
        num_attention_heads=128,
        num_key_value_heads=128,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        torch_dtype="bfloat16",
    )
    lines = sglang(server_args(tp_size=8))
    for tp in range(8):
        lines += sglang(*loaded(40.00), "Using KV cache dtype: torch.bfloat16", rank=f" TP{tp}")
    lines += sglang(limits(500_000), rank=" TP0", at="10:02")

    report = report_of(
        written(tmp_path, [*lines, *sglang(FIRED_UP, at="10:05")]), config=str(config)
    )

    layout = report["kv_pool"]["layout"]
    assert layout["bytes_per_token"]["value"] == 61 * (512 + 64) * 2
    assert layout["replication"]["value"] == 8
    for advice in report["advice"]:
        assert not re.match(r"--(tp|tensor-parallel)", advice["change"])
        assert not re.search(r"(split|divid|shard)\w* (over|across|by|among)", advice["message"])


def test_row_25_heads_that_do_not_divide_are_said_to(tmp_path: Path) -> None:
    """6 KV heads on 4 ranks: neither 1 nor 1.5 nor 2 heads on each."""
    config = model_config(tmp_path, **LLAMA | {"num_key_value_heads": 6, "num_attention_heads": 24})
    lines = sglang(server_args(tp_size=4), "Using KV cache dtype: torch.bfloat16")
    lines += sglang(*loaded(16.00), rank=" TP0", at="10:01")

    report = report_of(written(tmp_path, lines), config=str(config))

    figure = report["kv_pool"]["layout"]["bytes_per_token"]
    assert figure["value"] is None
    said = " ".join([figure["why"], *(finding["message"] for finding in report["findings"])])
    assert "divi" in said
    assert re.search(r"\b6\b", said)
    assert re.search(r"\b4\b", said)


@pytest.mark.parametrize(("tensor", "heads"), [(1, 8), (4, 2), (8, 1), (16, 1)])
def test_row_25_heads_that_divide_or_are_replicated(
    tmp_path: Path, tensor: int, heads: int
) -> None:
    """The contrast: 8 KV heads divide by 1, 4, 8, and are replicated from 16 ranks on."""
    lines = sglang(server_args(tp_size=tensor))
    rank = " TP0" if tensor > 1 else ""
    lines += sglang(*loaded(16.00), "Using KV cache dtype: torch.bfloat16", rank=rank, at="10:01")
    config = model_config(tmp_path, **LLAMA)

    report = report_of(written(tmp_path, lines), config=str(config))

    per_token = report["kv_pool"]["layout"]["bytes_per_token"]
    assert per_token["value"] == 32 * heads * (128 + 128) * 2


# --- 28, 29, 30 the other inputs --------------------------------------

USED_MIB = 70_000
XML = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<attached_gpus>1</attached_gpus>
\t<gpu id="00000000:18:00.0">
\t\t<product_name>NVIDIA H100 80GB HBM3</product_name>
\t\t<minor_number>0</minor_number>
\t\t<fb_memory_usage>
\t\t\t<total>81559 MiB</total>
\t\t\t<reserved>478 MiB</reserved>
\t\t\t<used>{USED_MIB} MiB</used>
\t\t\t<free>{DEVICE_MIB - USED_MIB} MiB</free>
\t\t</fb_memory_usage>
\t</gpu>
</nvidia_smi_log>
"""


@pytest.mark.parametrize(
    "content",
    [
        "index, memory.used [MiB], memory.free [MiB]\n"
        f"0, {USED_MIB} MiB, {DEVICE_MIB - USED_MIB} MiB\n",
        f"index, memory.used [MiB], memory.free [MiB]\n0, {USED_MIB}, {DEVICE_MIB - USED_MIB}\n",
        "index, name, memory.total [MiB], memory.free [MiB], memory.used [MiB]\r\n"
        f"0, NVIDIA H100 80GB HBM3, 81559 MiB, {DEVICE_MIB - USED_MIB} MiB, {USED_MIB} MiB\r\n",
    ],
    ids=["units", "nounits", "other columns and CRLF"],
)
def test_row_28_csv_with_a_header_is_read(tmp_path: Path, content: str) -> None:
    smi = tmp_path / "smi.csv"
    smi.write_bytes(content.encode())

    device = rank_of(report_of(written(tmp_path, sglang_start()), smi=str(smi)), "DP0/PP0/TP0")[
        "device"
    ]

    assert device["used"]["value"] == pytest.approx(
        USED_MIB if device["used"]["unit"] == "MiB" else USED_MIB / 1024, abs=0.01
    )
    assert device["free"]["value"] is not None


@pytest.mark.parametrize(
    "content",
    [
        f"index, memory.used [GiB], memory.free [GiB]\n0, {USED_MIB / 1024} GiB, 10.82 GiB\n",
        XML,
    ],
    ids=["GiB", "XML"],
)
def test_row_28_other_forms_are_read_or_refused_aloud(tmp_path: Path, content: str) -> None:
    smi = written(tmp_path, content.splitlines(), "smi.txt")
    path = written(tmp_path, sglang_start())

    done = capacity("analyze", path, "--smi", smi, "--format", "json")

    if done.returncode:
        assert_refused(done, 1, "smi.txt")
    else:
        assert memory(json.loads(done.stdout))["used"] == gib(USED_MIB / 1024)


def test_row_28_not_available_is_unknown_and_keeps_the_other_rows(tmp_path: Path) -> None:
    """GPU 0 says nothing; GPU 1 is GPU 1, and does not move up into its place."""
    lines = sglang(server_args(tp_size=2))
    for rank in (" TP0", " TP1"):
        lines += sglang(*loaded(16.00), rank=rank)
    smi = written(
        tmp_path,
        [
            "index, memory.used [MiB], memory.free [MiB]",
            "0, [N/A], [N/A]",
            f"1, {USED_MIB} MiB, {DEVICE_MIB - USED_MIB} MiB",
        ],
        "smi.csv",
    )

    report = report_of(written(tmp_path, lines), smi=str(smi))

    used = rank_of(report, "DP0/PP0/TP0")["memory"]["used"]
    assert used["value"] is None
    assert used["why"]
    assert memory(report, "DP0/PP0/TP1")["used"] in (None, gib(USED_MIB / 1024))
    assert memory(report, "DP0/PP0/TP0")["framework"] is None


@pytest.mark.parametrize("option", ["--smi", "--config"])
def test_row_29_a_named_file_that_is_missing_is_an_error(tmp_path: Path, option: str) -> None:
    path = written(tmp_path, sglang_start())

    done = capacity("analyze", path, option, tmp_path / "nowhere.txt")

    assert_refused(done, 1, "nowhere.txt")


def test_row_29_a_log_that_is_missing_is_an_error(tmp_path: Path) -> None:
    assert_refused(capacity("analyze", tmp_path / "nowhere.log"), 1, "nowhere.log")


@pytest.mark.parametrize(
    "content",
    [b'{"num_hidden_layers": 32,', b"[1, 2]", b"null", b'"text"', b"", b"\x00\xff\xfe\x80" * 50],
    ids=["cut", "list", "null", "string", "empty", "binary"],
)
def test_row_30_a_config_that_is_no_json_object_is_an_error(tmp_path: Path, content: bytes) -> None:
    config = tmp_path / "config.json"
    config.write_bytes(content)

    done = capacity("analyze", written(tmp_path, sglang_start()), "--config", config)

    assert_refused(done, 1, "config.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", None),
        ("num_attention_heads", None),
        ("num_attention_heads", 0),
        ("num_key_value_heads", 0),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", "many"),
        ("head_dim", -128),
    ],
)
def test_row_30_a_config_field_that_cannot_be_is_named(
    tmp_path: Path, field: str, value: object
) -> None:
    fields = LLAMA | {field: value}
    if field == "num_attention_heads":
        fields = {k: v for k, v in fields.items() if k not in ("head_dim", "num_key_value_heads")}
    config = model_config(tmp_path, **fields)
    lines = with_dtype("Using KV cache dtype: torch.bfloat16")

    done = capacity("analyze", written(tmp_path, lines), "--config", config, "--format", "json")

    if done.returncode:
        assert_refused(done, 1, field)
        return
    report = json.loads(done.stdout)
    layout = report["kv_pool"]["layout"]
    assert layout is None or layout["bytes_per_token"]["value"] is None
    said = json.dumps([layout, report["findings"]])
    assert field in said
    assert report["kv_pool"]["tokens"]["value"] == 400_000


def test_row_30_a_binary_log_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(bytes(range(256)) * 400)

    assert_refused(capacity("analyze", path), 1, "server.log")


@pytest.mark.parametrize("option", [None, "--smi", "--config"])
def test_row_30_a_directory_is_an_error(tmp_path: Path, option: str | None) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = written(tmp_path, sglang_start())

    done = capacity("analyze", *((folder,) if option is None else (path, option, folder)))

    assert_refused(done, 1, "folder")


def test_row_30_a_binary_smi_file_is_an_error(tmp_path: Path) -> None:
    smi = tmp_path / "smi.bin"
    smi.write_bytes(bytes(range(256)) * 4)

    assert_refused(
        capacity("analyze", written(tmp_path, sglang_start()), "--smi", smi), 1, "smi.bin"
    )


LOG_BYTES = "\n".join(sglang_start()).encode()


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(LOG_BYTES),
        b"\xff\xfe" + LOG_BYTES.decode().encode("utf-16-le"),
        b"\xfe\xff" + LOG_BYTES.decode().encode("utf-16-be"),
        b"\xef\xbb\xbf" + LOG_BYTES,
        LOG_BYTES.replace(b"\n", b"\r\n"),
    ],
    ids=["gzip", "UTF-16 LE", "UTF-16 BE", "UTF-8 with mark", "CRLF"],
)
def test_row_30_gzip_and_utf_16_logs_are_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "server.log"  # the name tells nothing
    path.write_bytes(content)

    report = report_of(path)

    assert memory(report)["weights"] == gib(16.00)
    assert memory(report)["kv_pool"] == gib(2 * 24.41)
    assert report["kv_pool"]["tokens"]["value"] == 400_000
    assert report["deployment"]["model"]["value"] == "/models/a"


def test_row_30_a_cut_gzip_log_is_read_or_refused_aloud(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(LOG_BYTES)[:-40])

    done = capacity("analyze", path, "--format", "json")

    if done.returncode:
        assert_refused(done, 1, "server.log.gz")
    else:
        assert any(f["severity"] != "info" for f in json.loads(done.stdout)["findings"])


# --- 31, 32, 33 concurrency -------------------------------------------


@pytest.mark.parametrize("lengths", ["0,-5", "0", "-5", "4096,0", "4096,,", "1.5", "many", ""])
def test_row_31_lengths_that_are_no_positive_number_are_wrong_usage(
    tmp_path: Path, lengths: str
) -> None:
    path = written(tmp_path, sglang_start())

    assert_refused(capacity("analyze", path, f"--request-tokens={lengths}"), 2)


@pytest.mark.parametrize("length", [1, 256, 257, 4000, 4096, 8192, 8193])
def test_row_32_a_request_takes_whole_pages(tmp_path: Path, length: int) -> None:
    """100,352 tokens are 392 pages of 256. 4,000 tokens take 16 pages: 24 requests, where
    100,352 // 4,000 = 25."""
    pages = 100_352 // 256
    per_request = -(-length // 256)
    path = written(tmp_path, sglang_start(16.00, 100_352, 6.14, page_size=256))

    row = row_of(report_of(path, request_tokens=(length,)), length)

    assert row["token_limit"]["value"] == pages // per_request
    assert row["max_concurrent"]["value"] == min(pages // per_request, 2048)


def test_row_32_state_per_request_limits_too(tmp_path: Path) -> None:
    """A hybrid with 24 state slots and no radix cache takes 24 requests, although the tokens would
    do for 400,000 // 8,192 = 48."""
    lines = sglang(
        server_args(disable_radix_cache=True, max_mamba_cache_size=24),
        *loaded(16.00),
        "Mamba Cache is allocated. max_mamba_cache_size: 24, conv_state size: 0.06GB, "
        "ssm_state size: 1.69GB ",
        "KV Cache is allocated. #tokens: 400000, K size: 6.10 GB, V size: 6.10 GB",
        "Memory pool end. avail mem=48.05 GB",
        limits(400_000, requests=24),
        FIRED_UP,
    )

    report = report_of(written(tmp_path, lines))

    row = row_of(report, 8192)
    assert memory(report)["state_pool"] == gib(0.06 + 1.69)
    assert report["kv_pool"]["state_slots"]["value"] == 24
    assert row["max_concurrent"]["value"] == 24
    assert row["bound_by"] in ("requests", "state")


# Qwen3.5-like: 1,487 blocks of 784 tokens; a request of length l takes ceil(l / 784) blocks of its
# full-attention group and one of each of 3 groups of state.
BLOCKS, BLOCK, STATES, LONGEST = 1487, 784, 3, 32768


def blocks_of(length: int) -> int:
    return -(-length // BLOCK) + STATES


def hybrid(version: str, tokens: int) -> list[str]:
    arguments = {"model": "/models/b", "max_model_len": LONGEST, "max_num_seqs": 256}
    return [
        *vllm(f"non-default args: {arguments}", process="APIServer"),
        *vllm(
            f"Setting attention block size to {BLOCK} tokens to ensure that attention page size is "
            ">= mamba page size.",
            "Padding mamba page size by 0.13% to ensure that mamba page size and attention page "
            "size are exactly equal.",
            engine_config(version, length=LONGEST),
            "Model loading took 65.53 GiB memory and 9.123456 seconds",
            "Available KV cache memory: 22.1 GiB",
            *vllm_pool(tokens, LONGEST, BLOCKS / blocks_of(LONGEST)),
            process="EngineCore",
            at="10:01",
        ),
    ]


def test_row_33_hybrid_tokens_from_021_hold_at_the_longest_length_only(tmp_path: Path) -> None:
    """tokens = int(concurrency × 32,768): 106 of 8,192 fit, not tokens // 8,192 = 132."""
    tokens = BLOCKS * LONGEST // blocks_of(LONGEST)
    path = written(tmp_path, hybrid("0.23.0", tokens))

    report = report_of(path, request_tokens=(4096, 8192, LONGEST))

    assert row_of(report, LONGEST)["token_limit"]["value"] == BLOCKS // blocks_of(LONGEST) == 33
    for length in (4096, 8192):
        limit = row_of(report, length)["token_limit"]
        assert limit["value"] is None
        assert limit["why"]
        # Windows, which nothing excludes before 0.30, leave no bound below every count.
        assert "at_most" not in limit
        assert row_of(report, length)["max_concurrent"]["value"] is None


def test_row_33_the_one_line_form_of_028_is_no_other(tmp_path: Path) -> None:
    tokens = BLOCKS * LONGEST // blocks_of(LONGEST)
    text = "\n".join(hybrid("0.28.0", tokens))
    text = re.sub(r" tokens\n.*?(Maximum concurrency)", r" tokens, \1", text)
    path = written(tmp_path, text.splitlines())

    report = report_of(path, request_tokens=(8192, LONGEST))

    assert report["kv_pool"]["tokens"]["value"] == tokens
    assert row_of(report, LONGEST)["token_limit"]["value"] == 33
    limit = row_of(report, 8192)["token_limit"]
    assert limit["value"] is None
    assert limit["why"]


def test_row_33_hybrid_tokens_up_to_020_are_no_bound_at_all(tmp_path: Path) -> None:
    """tokens = blocks // 4 groups × 784 = 290,864, of which 8 requests of 32,768 would be made:
    the engine itself says 33.04, and 106 of 8,192 fit, not 290,864 // 8,192 = 35."""
    tokens = BLOCKS // (STATES + 1) * BLOCK
    assert tokens == 290_864
    path = written(tmp_path, hybrid("0.19.0", tokens))

    report = report_of(path, request_tokens=(8192, LONGEST))

    for length in (8192, LONGEST):
        fits = BLOCKS // blocks_of(length)
        limit = row_of(report, length)["token_limit"]
        assert limit["value"] in (None, fits)
        assert limit.get("at_most") is None or limit["at_most"] >= fits


# --- 34, 35, 36 pipes, long lines, long logs --------------------------


@pytest.mark.parametrize("output_format", ["text", "json"])
def test_row_34_a_reader_that_goes_away_is_no_error(tmp_path: Path, output_format: str) -> None:
    path = written(tmp_path, sglang_start())
    reader, writer = os.pipe()
    os.close(reader)  # `| head`, gone before the first write
    try:
        done = subprocess.run(
            [*COMMAND, "analyze", str(path), "--format", output_format],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)

    assert done.stderr == b""
    assert done.returncode in (0, 141)


LONG = 200_000
LONG_LINES = {
    "letters": "a" * LONG,
    "digits": "7" * LONG,
    "letters and underscores": "avail_mem_" * (LONG // 10),
    "a rank that does not end": "[2026-03-01 10:00:00 " + "TP" * (LONG // 2),
    "arguments that do not end": "[2026-03-01 10:00:00] server_args=ServerArgs(" + "a" * LONG,
    "a name that does not end": "[2026-03-01 10:00:00] Load weight end. type=" + "A" * LONG,
    "colours": "\x1b[" + "0;" * (LONG // 2),
    "vLLM's arguments": "INFO 03-01 10:00:00 [x.py:1] non-default args: {'" + "a" * LONG,
    "vLLM's process": "(" + "Worker_TP" * (LONG // 9) + " pid=1",
}


@pytest.mark.parametrize("line", LONG_LINES)
def test_row_35_a_line_of_200_kb_takes_no_time(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, [*sglang_start(), LONG_LINES[line], "", *sglang(FIRED_UP, at="10:09")])
    shipped_plugins()

    begin = time.perf_counter()
    report = report_of(path)
    elapsed = time.perf_counter() - begin

    assert elapsed < 5
    assert memory(report)["weights"] == gib(16.00)
    assert report["kv_pool"]["tokens"]["value"] == 400_000


def test_row_35_a_figure_of_200_kb_is_no_traceback(tmp_path: Path) -> None:
    """More digits than Python turns into a number."""
    line = limits(0).replace("tokens=0,", f"tokens={'9' * LONG},")
    path = written(tmp_path, [*sglang_start()[:-2], *sglang(line, FIRED_UP, at="10:09")])

    done = capacity("analyze", path, "--format", "json")

    assert done.returncode in (0, 1), done.stderr[-500:]
    assert "Traceback" not in done.stderr


# A process between this one and the command: the kernel counts the memory of whoever starts a
# process as the peak of the started one, and pytest is large.
MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss, used.ru_utime + used.ru_stime)
"""


def measured(arguments: Sequence[str]) -> tuple[int, float, float]:
    """Exit code, peak memory in MB (Linux counts KiB) and CPU seconds of the command."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *COMMAND, *arguments],
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        timeout=120,
        check=True,
    )
    code, peak, cpu = done.stdout.split()
    return int(code), int(peak) * 1024 / 1e6, float(cpu)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
def test_row_36_a_log_of_30_mb_needs_less_than_60_mb(tmp_path: Path) -> None:
    served = [
        "[2026-03-01 11:{:02d}:{:02d}] Decode batch, #running-req: 12, #token: {}, "
        "token usage: 0.13, cuda graph: True, gen throughput (token/s): 812.33, #queue-req: 0",
        "[2026-03-01 11:{:02d}:{:02d}] Prefill batch, #new-seq: 1, #new-token: {}, "
        "#cached-token: 0, token usage: 0.13, #running-req: 12, #queue-req: 0, ",
        "[2026-03-01 11:{:02d}:{:02d}] INFO:     127.0.0.1:{} - "
        '"POST /v1/chat/completions HTTP/1.1" 200 OK',
    ]
    path = tmp_path / "server.log"
    with path.open("w", encoding="utf-8") as file:
        file.write("\n".join(sglang_start()) + "\n")
        number = 0
        while file.tell() < 30_000_000:
            block = "\n".join(
                served[n % 3].format(n // 60 % 60, n % 60, 40_000 + n % 20_000)
                for n in range(number, number + 3000)
            )
            file.write(block + "\n")
            number += 3000

    code, peak_mb, cpu_s = measured(["analyze", str(path)])

    assert code == 0
    assert peak_mb < 60
    assert cpu_s < 5  # 45 s for 200 MB would be 6.8 s here
