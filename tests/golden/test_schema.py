"""Reports of small logs keep to references/report.schema.json, and what they cite is there."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
import pytest

# Typed only where types-jsonschema happens to be installed.
from jsonschema import Draft202012Validator  # type: ignore[import-untyped, unused-ignore]

from capacity_core.analysis import Options, analyse
from capacity_core.api import ledger, report
from capacity_core.loader import Plugins
from capacity_core.reading.model_config import read_model_config
from capacity_core.rendering.json import JsonRenderer
from capacity_core.testing.reference import own_plugins
from capacity_core.values import Origin

REFERENCES = Path(__file__).parents[2] / "references"
EXAMPLES = REFERENCES / "examples"
SCHEMA = json.loads((REFERENCES / "report.schema.json").read_text(encoding="utf-8"))

# Two ranks, a hybrid sliding-window model, a draft model loaded before the target's pool.
SGLANG = """\
[2026-01-02 03:04:05] server_args={'model_path': '/m', 'tp_size': 2, 'dp_size': 1, 'page_size': 1, \
'mem_fraction_static': 0.8, 'speculative_algorithm': 'EAGLE', 'kv_cache_dtype': 'auto'}
[2026-01-02 03:04:06 TP0] Load weight begin. avail mem=20.00 GB
[2026-01-02 03:04:06 TP1] Load weight begin. avail mem=20.02 GB
[2026-01-02 03:04:07 TP0] Load weight end. elapsed=1.00 s, type=AForCausalLM, \
avail mem=15.00 GB, mem usage=5.00 GB.
[2026-01-02 03:04:07 TP1] Load weight end. elapsed=1.00 s, type=AForCausalLM, \
avail mem=15.02 GB, mem usage=5.00 GB.
[2026-01-02 03:04:08 TP0] Load weight begin. avail mem=15.00 GB
[2026-01-02 03:04:08 TP0] Load weight end. elapsed=1.00 s, type=AForCausalLMEagle3, \
avail mem=14.50 GB, mem usage=0.50 GB.
[2026-01-02 03:04:09 TP0] Use sliding window memory pool. full_layer_tokens=20000, \
swa_layer_tokens=16000
[2026-01-02 03:04:09 TP0] SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 16000, \
K size: 2.00 GB, V size: 2.00 GB
[2026-01-02 03:04:09 TP0] Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 20000, \
K size: 2.50 GB, V size: 2.50 GB
[2026-01-02 03:04:09 TP0] SWAKVPool mem usage: 9.00 GB, swa size: 16000, full size: 20000
[2026-01-02 03:04:09 TP0] Memory pool end. avail mem=5.50 GB
[2026-01-02 03:04:10 TP0] Capture target verify CUDA graph begin. backend=full, \
num_tokens_per_req=4, bs=[1, 2], avail mem=5.50 GB
  0%|          | 0/2 [00:00<?, ?it/s]\rCapturing batches (bs=2 avail_mem=5.40 GB): 100%|##| 2/2
[2026-01-02 03:04:11 TP0] Capture target verify CUDA graph end. elapsed=1.00 s, \
mem usage=0.50 GB, avail mem=5.00 GB.
[2026-01-02 03:04:12 TP0] max_total_num_tokens=20000, chunked_prefill_size=-1, \
max_prefill_tokens=16384, max_running_requests=16, context_len=8192, available_gpu_mem=4.90 GB
[2026-01-02 03:04:13] The server is fired up and ready to roll!
"""

# Two workers, of which one prints; tokens and concurrency on one line.
VLLM = """\
(APIServer pid=1) INFO 01-02 03:04:05 [utils.py:278] non-default args: {'model': '/m', \
'tensor_parallel_size': 2, 'max_num_seqs': 8}
(EngineCore pid=7) INFO 01-02 03:04:06 [core.py:112] Initializing a V1 LLM engine (v0.30.0) \
with config: model='/m', max_seq_len=4096, tensor_parallel_size=2, pipeline_parallel_size=1
(Worker_TP0 pid=8) INFO 01-02 03:04:07 [a.py:1] Model loading took 2.5 GiB memory and 1.0 seconds
(Worker_TP0 pid=8) INFO 01-02 03:04:08 [a.py:2] Estimated CUDA graph memory: 0.25 GiB total
(Worker_TP1 pid=9) INFO 01-02 03:04:08 [a.py:2] Estimated CUDA graph memory: 0.25 GiB total
(Worker_TP0 pid=8) INFO 01-02 03:04:08 [a.py:3] Available KV cache memory: 4.0 GiB
(EngineCore pid=7) INFO 01-02 03:04:09 [a.py:4] GPU KV cache size: 65,536 tokens, \
Maximum concurrency for 4,096 tokens per request: 16.00x
(Worker_TP1 pid=9) INFO 01-02 03:04:10 [a.py:5] CUDA graph pool memory: -0.19 GiB (actual), \
0.25 GiB (estimated), difference: 0.44 GiB (231.6%).
(EngineCore pid=7) INFO 01-02 03:04:11 [core.py:302] init engine (profile, create kv cache, \
warmup model) took 5.00 s (compilation: 1.00 s)
"""

FAILED = """\
[2026-01-02 03:04:05] server_args=ServerArgs(model_path='/m', tp_size=1, mem_fraction_static=0.5)
[2026-01-02 03:04:06] Load weight begin. avail mem=20.00 GB
[2026-01-02 03:04:07] Load weight end. elapsed=1.00 s, type=AForCausalLM, avail mem=9.00 GB, \
mem usage=11.00 GB.
[2026-01-02 03:04:08] Scheduler hit an exception: Traceback (most recent call last):
  File "model_runner.py", line 1, in init_memory_pool
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. \
Current value: mem_fraction_static=0.5
"""

REFUSED = """\
(EngineCore pid=7) ERROR 01-02 03:04:06 [core.py:1] ValueError: Free memory on device cuda:0 \
(1.5/2.0 GiB) on startup is less than desired GPU memory utilization (0.9, 1.8 GiB). Decrease
"""

UNKNOWN_HEAVY = "Load weight end. ... avail mem=12.25 GB, mem usage=1.65 GB.\n"

COMPRESSED = """\
[2026-01-02 03:04:05 TP0] Load weight begin. avail mem=90.00 GB
[2026-01-02 03:04:06 TP0] Load weight end. elapsed=1.00 s, type=AForCausalLM, avail mem=50.00 GB, \
mem usage=40.00 GB.
[2026-01-02 03:04:07 TP0] DSV4 SWA sizing: mode=cap, swa_tokens=13312, request_cap+headroom=13312
[2026-01-02 03:04:07 TP0] DSV4 memory calculation: unified=False, unified_fp8=False, \
dspark_draft_bf16=False, bytes_per_full_token=3899.25, available_bytes=40.00 GB, \
c128_state_fixed=2.53 GB, swa_fixed=18.00 GB, full_token=5360640
[2026-01-02 03:04:07 TP0] DSV4 pool sizes: full=5360640, swa=606464, c4=1340160, c128=41880, \
c4_state=18952, c128_state=0
[2026-01-02 03:04:08 TP0] Memory pool end. avail mem=10.00 GB
"""

LOGS = {
    "sglang": SGLANG,
    "vllm": VLLM,
    "failed": FAILED,
    "refused": REFUSED,
    "unknown-heavy": UNKNOWN_HEAVY,
    "compressed": COMPRESSED,
}


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return own_plugins(REFERENCES)


def _report(log: Path, plugins: Plugins, **options: str) -> Any:
    # Keywords of Options, given as a case names them.
    made = analyse([str(log)], Options(**options), plugins)  # type: ignore[arg-type]
    return json.loads(JsonRenderer().render(made))


@pytest.fixture(params=[*LOGS, "example-sglang", "example-vllm"])
def made(request: pytest.FixtureRequest, tmp_path: Path, plugins: Plugins) -> Any:
    """The report of one of the logs; the SGLang example has a device reading and a config, too."""
    if request.param == "example-sglang":
        return _report(
            EXAMPLES / "sglang.log",
            plugins,
            smi=str(EXAMPLES / "smi.txt"),
            config=str(EXAMPLES / "config.json"),
            gpu="h100",
        )
    if request.param == "example-vllm":
        return _report(EXAMPLES / "vllm.log", plugins)
    log = tmp_path / f"{request.param}.log"
    log.write_text(LOGS[request.param], encoding="utf-8")
    return _report(log, plugins)


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_reports_keep_to_the_schema(made: Any) -> None:
    errors = [
        f"{error.json_path}: {error.message}"
        for error in Draft202012Validator(SCHEMA).iter_errors(made)
    ]
    assert errors == []


def test_what_is_cited_is_there(made: Any, plugins: Plugins) -> None:
    cited = list(_cited(made))
    assert cited, "a report that cites nothing shows nothing"
    catalogue = {source.url for spec in plugins.gpu_specs for source in spec.sources}
    unresolved = {
        name for name in cited if name not in catalogue and not _resolves(name, made["inputs"])
    }
    assert unresolved == set()


def test_printed_figures_stand_in_the_lines_that_they_cite(made: Any) -> None:
    wrong = [
        (node["value"], node["evidence"])
        for node in _objects(made)
        if node.get("origin") == "printed" and isinstance(node["value"], int | float)
        if not any(node["value"] in _numbers(_line(e, made["inputs"])) for e in node["evidence"])
    ]
    assert wrong == []


def test_outcomes(tmp_path: Path, plugins: Plugins) -> None:
    """The logs are what their names say, so that the tests above see each kind of report."""
    statuses = {}
    for name, text in LOGS.items():
        log = tmp_path / name
        log.write_text(text, encoding="utf-8")
        statuses[name] = _report(log, plugins)["outcome"]["status"]
    assert statuses == {
        "sglang": "ready",
        "vllm": "ready",
        "failed": "failed",
        "refused": "failed",
        "unknown-heavy": "incomplete",
        "compressed": "incomplete",
    }


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: made.pop("kv_pool"),
        lambda made: made["ranks"][0]["memory"].pop("unattributed"),
        lambda made: made["kv_pool"].update(tokens=4096),
        lambda made: made["kv_pool"]["tokens"].pop("origin"),
        lambda made: made["deployment"]["framework_version"].pop("why"),
        lambda made: made["kv_pool"]["tokens"].update(value=0.5),
    ],
    ids=["no pool", "no category", "bare number", "no origin", "no reason", "part of a token"],
)
def test_what_is_no_report_is_refused(spoil: Any, plugins: Plugins) -> None:
    made = copy.deepcopy(_report(EXAMPLES / "sglang.log", plugins))
    spoil(made)
    assert not Draft202012Validator(SCHEMA).is_valid(made)


_ROWS: dict[str, type] = {
    "plugin": report.PluginRow,
    "input": report.InputRow,
    "run": report.RunRow,
    "gpu": report.GpuRow,
    "deployment": report.DeploymentRow,
    "parallel": ledger.Parallel,
    "outcome": report.Outcome,
    "failure": ledger.Failure,
    "part": report.PartRow,
    "checkpoint": report.CheckpointRow,
    "device": report.DeviceRow,
    "rank": report.RankRow,
    "worker": report.WorkerRow,
    "pool": ledger.Pool,
    "term": report.TermRow,
    "layout": report.LayoutRow,
    "kv_pool": report.KvPoolRow,
    "concurrency": report.Concurrency,
    "concurrency_row": report.ConcurrencyRow,
    "finding": ledger.Finding,
    "advice": report.Advice,
    "evidence": report.EvidenceRow,
    "load": report.LoadRow,
    "step": report.StepRow,
    "host_pool": ledger.HostPool,
    "unmatched": report.UnmatchedRow,
}


@pytest.mark.parametrize("name", _ROWS)
def test_the_schema_knows_every_field(name: str) -> None:
    fields = {field.name for field in attrs.fields(_ROWS[name])}
    assert set(SCHEMA["$defs"][name]["properties"]) == fields


def test_the_schema_knows_every_key_of_the_report() -> None:
    elsewhere = {"title", "shown_rank", "asked_rank", "version_range"}
    fields = {field.name for field in attrs.fields(report.Report)} - elsewhere
    assert set(SCHEMA["properties"]) == fields
    only_asked_for = {"unmatched"}
    assert set(SCHEMA["required"]) == fields - only_asked_for


@pytest.mark.parametrize(
    ("members", "allowed"),
    [
        (Origin, SCHEMA["$defs"]["origin"]),
        (ledger.Status, SCHEMA["$defs"]["status"]),
        (ledger.Stage, SCHEMA["$defs"]["stage"]),
        (ledger.Role, SCHEMA["$defs"]["role"]),
        (ledger.Category, SCHEMA["$defs"]["category_name"]),
        (ledger.Severity, SCHEMA["$defs"]["severity"]),
        (ledger.FailureKind, SCHEMA["$defs"]["failure"]["properties"]["kind"]),
    ],
)
def test_the_schema_knows_every_word(members: type[Enum], allowed: Any) -> None:
    assert {member.value for member in members} <= set(allowed["enum"])


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of a report, the whole one first."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, dict | list):
            yield from _objects(child)


def _cited(made: Any) -> Iterator[str]:
    """Every line, field or input that values, findings, advice, runs and evidence name."""
    for node in _objects(made):
        yield from (name for name in node.get("evidence", ()) if isinstance(name, str))
    for run in made["runs"]:
        yield from (run["first"], run["last"])
    yield from (row["id"] for row in made["evidence"])


def _resolves(name: str, inputs: list[dict[str, Any]]) -> bool:
    """Whether an input has what is cited: a line, a field of a configuration, or all of it."""
    row = next((row for row in inputs if row["id"] == name.partition(":")[0]), None)
    place = name.partition(":")[2]
    if row is None or not place:
        return row is not None
    if row["kind"] == "config":
        return place in read_model_config(Path(row["path"]).read_bytes(), row["path"])
    return _line(name, inputs).strip() != ""


def _line(name: str, inputs: list[dict[str, Any]]) -> str:
    """The line that is cited; empty when there is none. A carriage return ends no line."""
    where, _, number = name.partition(":")
    path = next(row["path"] for row in inputs if row["id"] == where)
    lines = Path(path).read_bytes().decode().split("\n")
    return lines[int(number) - 1] if 1 <= int(number) <= len(lines) else ""


def _numbers(line: str) -> set[float]:
    return {float(said.replace(",", "")) for said in re.findall(r"-?\d[\d,]*(?:\.\d+)?", line)}
