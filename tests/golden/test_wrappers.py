"""The report is the engine's word, whatever wrapped or damaged the log on its way.

Two small starts are typed below, with figures that follow from arithmetic. Every form in which such
a log reaches people (container run-times, shippers, notebooks, terminals, mail) must give the
report of the plain log and cite the physical lines of the file as it lies there. Where a form
loses something for good, that figure is unknown, never another one.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import html
import importlib
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.errors import NothingRecognised
from capacity_core.loader import Found, Plugins, load
from capacity_core.rendering.json import JsonRenderer

Report = dict[str, Any]
Record = tuple[int, str]
"""A line of the plain log by number (0: of none of them) and what stands in the file for it, which
may be several physical lines."""
Form = Callable[[Sequence[str]], Iterable[Record]]

PLUGINS = ("sglang", "vllm", "legacy_fork", "gpu_specs", "kv_layouts", "core.reading.process")

# --- the plain logs ---------------------------------------------------

# 64 layers × 4 heads per rank × 128 × 2 B = 64 KiB of K for each token of a rank:
# 262,144 tokens × 64 KiB = 16.00 GiB of K, and as much of V.
SGLANG = """\
[2026-01-02 03:04:05] server_args=ServerArgs(model_path='/models/a', trust_remote_code=False, \
context_length=32768, host='0.0.0.0', port=30000, quantization=None, kv_cache_dtype='auto', \
mem_fraction_static=0.85, max_running_requests=48, chunked_prefill_size=8192, page_size=1, \
tp_size=2, pp_size=1, load_balance_method=<LoadBalance.AUTO: 'auto'>, dp_size=1, nnodes=1, \
json_model_override_args='{"rope_theta": 1000000}', speculative_algorithm=None, \
disable_cuda_graph=False, enable_dp_attention=False, disaggregation_mode='null')
[2026-01-02 03:04:11 TP1] Load weight begin. avail mem=77.66 GB
[2026-01-02 03:04:11 TP0] Load weight begin. avail mem=77.62 GB
[2026-01-02 03:04:52 TP0] Load weight end. elapsed=41.20 s, type=LlamaForCausalLM, \
avail mem=46.99 GB, mem usage=30.63 GB.
[2026-01-02 03:04:52 TP1] Load weight end. elapsed=41.30 s, type=LlamaForCausalLM, \
avail mem=47.01 GB, mem usage=30.65 GB.
[2026-01-02 03:04:53 TP1] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 262144, \
K size: 16.00 GB, V size: 16.00 GB
[2026-01-02 03:04:53 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 262144, \
K size: 16.00 GB, V size: 16.00 GB
[2026-01-02 03:04:53 TP1] Memory pool end. avail mem=15.01 GB
[2026-01-02 03:04:53 TP0] Memory pool end. avail mem=14.99 GB
[2026-01-02 03:04:54 TP0] Capture target decode CUDA graph begin. backend=full, \
num_tokens_per_req=1, bs=[1, 2, 4, 8, 16, 32, 48], avail mem=14.90 GB
[2026-01-02 03:04:54 TP1] Capture target decode CUDA graph begin. backend=full, \
num_tokens_per_req=1, bs=[1, 2, 4, 8, 16, 32, 48], avail mem=14.92 GB
[2026-01-02 03:04:58 TP0] Capture target decode CUDA graph end. elapsed=3.71 s, \
mem usage=0.66 GB, avail mem=14.24 GB.
[2026-01-02 03:04:58 TP1] Capture target decode CUDA graph end. elapsed=3.70 s, \
mem usage=0.72 GB, avail mem=14.20 GB.
[2026-01-02 03:04:59 TP0] max_total_num_tokens=262144, chunked_prefill_size=8192, \
max_prefill_tokens=16384, max_running_requests=48, context_len=32768, available_gpu_mem=14.10 GB
[2026-01-02 03:05:01] The server is fired up and ready to roll!""".splitlines()

# 0.11.0, the last release in which every worker prints its own figures. 64 KiB for each token of a
# rank, blocks of 16: 45.30 GiB hold 742,192 tokens, 45.10 GiB 738,912, which is 45.10 × 16,384.
VLLM = """\
(APIServer pid=1) INFO 01-30 03:18:12 [utils.py:233] non-default args: {'model_tag': \
'/models/b', 'model': '/models/b', 'max_model_len': 16384, 'tensor_parallel_size': 2, \
'max_num_seqs': 128}
(EngineCore_DP0 pid=99) INFO 01-30 03:18:20 [core.py:77] Initializing a V1 LLM engine (v0.11.0) \
with config: model='/models/b', speculative_config=None, tokenizer='/models/b', \
trust_remote_code=False, dtype=torch.bfloat16, max_seq_len=16384, load_format=auto, \
tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1, quantization=None, \
enforce_eager=False, kv_cache_dtype=auto, device_config=cuda, seed=0, \
compilation_config={"level":3,"use_inductor":true,"cudagraph_capture_sizes":[8,4,2,1]}
(Worker_TP0 pid=101) INFO 01-30 03:18:41 [gpu_model_runner.py:2653] Model loading took \
14.2419 GiB and 5.123456 seconds
(Worker_TP1 pid=102) INFO 01-30 03:18:41 [gpu_model_runner.py:2653] Model loading took \
14.3312 GiB and 5.223456 seconds
(Worker_TP1 pid=102) INFO 01-30 03:19:05 [gpu_worker.py:298] Available KV cache memory: 45.10 GiB
(Worker_TP0 pid=101) INFO 01-30 03:19:05 [gpu_worker.py:298] Available KV cache memory: 45.30 GiB
(EngineCore_DP0 pid=99) INFO 01-30 03:19:06 [kv_cache_utils.py:1087] GPU KV cache size: \
742,192 tokens
(EngineCore_DP0 pid=99) INFO 01-30 03:19:06 [kv_cache_utils.py:1091] Maximum concurrency for \
16,384 tokens per request: 45.30x
(EngineCore_DP0 pid=99) INFO 01-30 03:19:06 [kv_cache_utils.py:1087] GPU KV cache size: \
738,912 tokens
(EngineCore_DP0 pid=99) INFO 01-30 03:19:06 [kv_cache_utils.py:1091] Maximum concurrency for \
16,384 tokens per request: 45.10x
(Worker_TP0 pid=101) INFO 01-30 03:19:18 [gpu_model_runner.py:3480] Graph capturing finished in \
12 secs, took 0.61 GiB
(Worker_TP1 pid=102) INFO 01-30 03:19:18 [gpu_model_runner.py:3480] Graph capturing finished in \
12 secs, took 0.59 GiB
(EngineCore_DP0 pid=99) INFO 01-30 03:19:18 [core.py:210] init engine (profile, create kv cache, \
warmup model) took 37.01 seconds
(APIServer pid=1) INFO 01-30 03:19:20 [api_server.py:1912] Starting vLLM API server 0 on \
http://0.0.0.0:8000
(APIServer pid=1) INFO:     Application startup complete.""".splitlines()

PLAIN = {"sglang": SGLANG, "vllm": VLLM}
both_engines = pytest.mark.parametrize("engine", PLAIN)

TRUTH: dict[str, dict[str, object]] = {
    "sglang": {
        "weights": (30.63, 30.65),  # of TP0 and TP1
        "kv_pool": (16.00 + 16.00, 16.00 + 16.00),
        "cuda_graph": (0.66, 0.72),
        "tokens": 262_144,
        "context_length": 32_768,
        "request_limit": 48,
        "fit": (48, 42, 32),  # of 262,144 / 4,096 = 64, / 6,144 = 42.7 and / 8,192 = 32
    },
    "vllm": {
        "weights": (14.2419, 14.3312),
        "kv_pool": (45.30, 45.10),
        "cuda_graph": (0.61, 0.59),
        "tokens": 738_912,  # the least worker decides
        "context_length": 16_384,
        "request_limit": 128,
        "fit": (128, 120, 90),  # of 180.4, 120.3 and 90.2
    },
}
HELD = ("weights", "kv_pool", "cuda_graph")
RANKS = ("DP0/PP0/TP0", "DP0/PP0/TP1")
MAIN = [f"ranks[{rank}].memory.weights" for rank in RANKS]
MAIN += ["kv_pool.tokens", "deployment.context_length"]


# --- figures of a report ----------------------------------------------


class Figure(NamedTuple):
    """A value of the report without its words and lines."""

    value: Any
    error: float = 0.0
    at_most: float | None = None
    at_least: float | None = None


UNKNOWN = Figure(None)


@cache
def shipped_plugins() -> Plugins:
    """What the project ships, whatever else is installed here."""
    return load([shipped(f"capacity_{name}") for name in PLUGINS])


def shipped(module: str) -> Found:
    return Found(name=module, module=module, load=partial(importlib.import_module, module))


def report_of(path: Path, **options: Any) -> Report:
    report = analyse([str(path)], Options(**options), shipped_plugins())
    parsed: Report = json.loads(JsonRenderer().render(report))
    return parsed


@cache
def truth(engine: str) -> Report:
    """The report of the plain log."""
    with TemporaryDirectory() as folder:
        return report_of(written(folder, each(str)(PLAIN[engine]))[0])


def written(folder: Path | str, records: Iterable[Record]) -> tuple[Path, list[int]]:
    """The file of these records, and for each of its physical lines the plain line it holds."""
    path = Path(folder, "server.log")
    texts, origin = [], []
    for number, text in records:
        texts.append(text)
        origin += [number] * (text.count("\n") + 1)
    path.write_text("\n".join(texts) + "\n", encoding="utf-8", newline="")
    return path, origin


def values(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every value object of a report by a path that does not depend on the order of lists."""
    if isinstance(node, dict) and {"value", "unit"} <= node.keys():
        yield path, node
    elif isinstance(node, dict):
        for key, item in node.items():
            yield from values(item, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for at, item in enumerate(node):
            if isinstance(item, dict):
                yield from values(item, f"{path}[{name_of(item, at)}]")


def name_of(item: dict[str, Any], at: int) -> str:
    if "id" in item:  # a rank's label says the same in the words of its prefix
        return str(item["id"])
    keys = "category role label stage since until dp request_tokens code"
    return " ".join(str(item[key]) for key in keys.split() if key in item) or str(at)


def digest(report: Report) -> dict[str, Figure]:
    """What the report says, without the texts, bytes and line numbers of the file."""
    said = {
        path: Figure(v["value"], v.get("error", 0.0), v.get("at_most"), v.get("at_least"))
        for path, v in values(report)
    }
    warnings = sorted(f["code"] for f in report["findings"] if f["severity"] != "info")
    said["findings"] = Figure(warnings)
    said["runs"] = Figure([(run["framework"], run["status"]) for run in report["runs"]])
    said["outcome"] = Figure([report["outcome"][key] for key in ("status", "stage", "failure")])
    return said


def cited(report: Report, origin: Sequence[int]) -> dict[str, set[int]]:
    """Which lines of the plain log are evidence of what; 0 is a line of the wrapper's own.

    `origin` says for each physical line of the file which plain line it holds.
    """

    def plain(ids: Iterable[str]) -> set[int]:
        return {origin[int(line.removeprefix("log0:")) - 1] for line in ids}

    lines = {path: plain(v.get("evidence", ())) for path, v in values(report)}
    for row in report["evidence"]:
        lines.setdefault(f"evidence[{row['matcher']}]", set()).update(plain([row["id"]]))
    lines["runs"] = set().union(*(plain([run["first"], run["last"]]) for run in report["runs"]))
    return lines


def unlike(told: dict[str, Any], known: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs, as (told, known): None where a report has no such row."""
    pairs = {path: (told.get(path), known.get(path)) for path in told | known}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


def assert_same(report: Report, origin: Sequence[int], right: Report) -> None:
    """The plain log's figures, no more and no fewer, at the lines that hold them."""
    assert unlike(digest(report), digest(right)) == {}
    assert unlike(cited(report, origin), cited(right, range(1, 100))) == {}


def agrees(figure: Figure, right: Figure) -> bool:
    """Whether a figure is the right one within both roundings, or unknown with bounds that hold."""
    if not isinstance(right.value, int | float):
        return figure.value is None or bool(figure.value == right.value)
    lowest, highest = figure.at_least, figure.at_most
    if figure.value is not None:
        lowest = highest = figure.value
    slack = figure.error + right.error + 1e-6
    above = lowest is None or lowest - slack <= right.value
    return above and (highest is None or right.value <= highest + slack)


def mistakes(report: Report, origin: Sequence[int], right: Report) -> dict[str, object]:
    """Figures that are neither unknown nor the plain log's, and lines cited for another's words.

    Left out: parts and pools, whose names may be lost (their sizes stand in the ranks' memory), and
    steps, which span more where a reading between is lost (the readings stand in the timeline).
    """
    known, lines = digest(right), cited(right, range(1, 100))
    wrong: dict[str, object] = {
        path: (figure, known.get(path))
        for path, figure in digest(report).items()
        if path.startswith(("deployment", "ranks", "kv_pool", "concurrency"))
        and not re.search(r"\.(?:parts|pools|steps)\[", path)
        and not agrees(figure, known.get(path, UNKNOWN))
    }
    for path, found in cited(report, origin).items():
        if 0 in found or (path.startswith("evidence") and not found <= lines.get(path, found)):
            wrong[f"lines of {path}"] = found
    if report["outcome"]["status"] not in ("ready", "incomplete"):
        wrong["outcome"] = report["outcome"]
    return wrong


@both_engines
def test_the_plain_log(engine: str) -> None:
    """The truth that the wrapped forms are held against, figure by figure as typed."""
    report = truth(engine)
    ranks = [rank["memory"] for rank in report["ranks"]]

    assert tuple(rank["id"] for rank in report["ranks"]) == RANKS
    assert report["outcome"]["status"] == "ready"
    assert report["deployment"]["framework"]["value"] == engine
    assert report["kv_pool"]["deployment_tokens"]["value"] == TRUTH[engine]["tokens"]
    assert TRUTH[engine] == {
        **{c: tuple(rank[c]["value"] for rank in ranks) for c in HELD},
        "tokens": report["kv_pool"]["tokens"]["value"],
        "context_length": report["deployment"]["context_length"]["value"],
        "request_limit": report["concurrency"]["request_limit"]["value"],
        "fit": tuple(row["max_concurrent"]["value"] for row in report["concurrency"]["rows"]),
    }


# --- wrappers that lose nothing ---------------------------------------

ISO = "2026-01-02T03:04:05.123456789Z"
UNIT = "Jan 02 03:04:05 host-1"
RECORD_LENGTH = 16 * 1024
"""At so many bytes container run-times cut a line into records."""
BAR = "Capturing batches (bs=48 avail_mem=9.70 GB): "


def each(wrap: Callable[[str], str]) -> Form:
    return lambda lines: [(number, wrap(line)) for number, line in enumerate(lines, 1)]


def between(before: Sequence[str], form: Form, after: Sequence[str] = ()) -> Form:
    """A form with lines of the wrapper's own around it."""
    return lambda lines: [*((0, t) for t in before), *form(lines), *((0, t) for t in after)]


def as_json(key: str, **others: object) -> Callable[[str], str]:
    return lambda line: json.dumps({"level": "info", key: line, **others})


RECORD = as_json("message")


def docker_part(text: str, more: bool, stream: str = "stderr") -> str:
    return json.dumps({"log": text if more else f"{text}\n", "stream": stream, "time": ISO})


def cri_part(text: str, more: bool) -> str:
    return f"{ISO} stderr {'P' if more else 'F'} {text}"


def lengthened(line: str) -> str:
    """The line with arguments so long that the records' border cuts its context length in two:
    32 | 768 and 16 | 384."""
    found = re.search(r"(?:context_length|max_seq_len)=..", line)
    if found is None:
        return line
    pad = RECORD_LENGTH - found.end() - len("chat_template='', ")
    return line.replace("trust_remote", f"chat_template='{'x' * pad}', trust_remote")


def in_records(record: Callable[[str, bool], str], between: str = "") -> Form:
    """Lines as records of at most 16 KiB, each made of a text and whether the line goes on."""

    def wrap(line: str) -> str:
        parts = re.findall(rf".{{1,{RECORD_LENGTH}}}", lengthened(line))
        return f"\n{between}".join(record(p, p is not parts[-1]) for p in parts)

    return each(wrap)


def several(records: Callable[[int, str], Iterable[Record]]) -> Form:
    return lambda lines: [r for n, line in enumerate(lines, 1) for r in records(n, line)]


def logging_record(line: str) -> str:
    """vLLM's own JSON formatter (0.31+), in which the rank stands in processName alone; other
    libraries go on printing plain lines."""
    found = re.match(r"\((\w+) pid=(\d+)\) INFO \S+ \S+ \[(\w+)\.py:\d+\] (.*)", line)
    if found is None:
        return line
    process, pid, module, message = found.groups()
    process = process.replace("Worker_TP", "VllmWorker-").replace("APIServer", "MainProcess")
    fields = {"asctime": "01-30 03:18:12", "levelname": "INFO", "name": f"vllm.{module}"}
    return json.dumps(fields | {"processName": process, "process": int(pid), "message": message})


OTHER_STREAM = docker_part("GET /health 200", False, "stdout")
CELL = ["{", ' "cells": [', "  {", '   "outputs": [', "    {", '     "text": [']
CELL_END = ['      "\\n"', "     ]", "    }", "   ]", "  }", " ]", "}"]


FORMS: dict[str, Form] = {
    "docker-compose": each("server-1  | {}".format),
    "docker-compose, coloured": each("\x1b[36mserver-1  | \x1b[0m{}".format),
    "docker json-file": each(lambda line: docker_part(line, False)),
    "docker json-file, split": in_records(docker_part),
    "docker json-file, split, streams mixed": in_records(docker_part, f"{OTHER_STREAM}\n"),
    "cri": each(f"{ISO} stderr F {{}}".format),
    "cri, partial lines": in_records(cri_part),
    "cri, partial lines, streams mixed": in_records(cri_part, f"{ISO} stdout F GET /health 200\n"),
    "kubectl --timestamps --prefix": each(f"[pod/llm-7d9f-x2x/server] {ISO} {{}}".format),
    "time pod container": each(f"{ISO} llm-7d9f-x2x server | {{}}".format),
    "time stamp on a line of its own": several(lambda n, line: [(0, f"{ISO} pod-0"), (n, line)]),
    "journald": each(f"{UNIT} server[1234]: {{}}".format),
    "journald, short-iso": each("2026-01-02T03:04:05+0000 host-1 server[1234]: {}".format),
    "journald json": each(as_json("MESSAGE", _PID="1234", _HOSTNAME="host-1")),
    "journald json, bytes": each(lambda line: json.dumps({"MESSAGE": list(line.encode())})),
    "systemd": between(
        [f"{UNIT} systemd[1]: Started llm.service."],
        each(f"{UNIT} bash[77]: {{}}".format),
        [f"{UNIT} systemd[1]: llm.service: Consumed 2min CPU time, 45.3G memory peak."],
    ),
    "buildkite": each("\x1b_bk;t=1712345678901\x07{}".format),
    "github actions": between([f"{ISO} ##[group]Run ./serve.sh"], each(f"{ISO} {{}}".format)),
    "ray": each("(ServerActor pid=5, ip=10.0.0.1) {}".format),
    "ray before a worker's own prefix": each("(RayWorkerProc pid=5, ip=10.0.0.2) {}".format),
    "ray, coloured": each("\x1b[36m(EngineCoreActor pid=5, ip=10.0.0.1)\x1b[0m {}".format),
    **{f"json {key}": each(as_json(key)) for key in ("msg", "message", "text", "log", "event")},
    "json behind docker-compose": each(lambda line: f"server-1  | {RECORD(line)}"),
    "json behind cri": each(lambda line: f"{ISO} stdout F {RECORD(line)}"),
    "plain and json in turn": several(lambda n, line: [(n, (str, RECORD)[n % 2](line))]),
    "json and plain in turn": several(lambda n, line: [(n, (RECORD, str)[n % 2](line))]),
    "notebook": between(CELL, each(lambda line: f"      {json.dumps(line + chr(10))},"), CELL_END),
    "python list": between(["["], each(lambda line: f" {line + chr(10)!r},"), ["]"]),
    "mail quote": each("> {}".format),
    "mail quote of a quote": each(">> {}".format),
    "mail quote of a quote, spaced": each("> > {}".format),
    "indented": each("    {}".format),
    "indented by a tab": each("\t{}".format),
    "code fence": between(["Here is my log:", "", "```text"], each(str), ["```", "Why?"]),
    "list item with a fence": between(["- log:", "  ```"], each("  {}".format), ["  ```"]),
    "table": between(["| log |", "| --- |"], each("| {} |".format)),
    "html": each(lambda line: html.escape(line).replace("&#x27;", "&#39;")),
    "non-breaking spaces": each(lambda line: line.replace(" ", "\u00a0")),
    "crlf": each("{}\r".format),
    "words coloured": each(lambda line: re.sub(r"\S+", "\x1b[1;32m\\g<0>\x1b[0m", line)),
    "letters coloured": each(lambda line: re.sub(r"\w", "\x1b[32m\\g<0>\x1b[0m", line)),
    "progress before": each(f"\r{BAR}  0%|    | 0/7\r{BAR}100%|████| 7/7 [00:03]\r{{}}".format),
    "progress glued on": each(f"{BAR}100%|██████████| 7/7 [00:03<00:00,  2.91it/s]{{}}".format),
    "typescript": between(
        ["Script started on 2026-01-02 03:04:01+00:00 [TERM='xterm']\r"],
        each("\x1b]0;user@host: ~\x07\x1b[?2004l 12%\b\b\b\b\x1b[K{}\r".format),
        ["\x1b[?2004h", "Script done on 2026-01-02 03:09:01+00:00"],
    ),
    "typed over": each(lambda line: re.sub(r"[aeiou]", "x\b\\g<0>", line)),
    "overstruck": each(lambda line: re.sub(r"[A-Za-z]", "\\g<0>\b\\g<0>", line)),
    "tee of both streams": several(lambda n, line: [(n, line), (n, line)]),
    "a host named sglang": each("sglang-node7 {}".format),
    "a host named vllm": each("vllm-0  | {}".format),
    "a unit named after the other": each(f"{UNIT} vllm[7]: sglang.service: {{}}".format),
}
VLLM_FORMS: dict[str, Form] = {
    "logging json": each(logging_record),
    "no separators of thousands": each(lambda line: re.sub(r"(\d),(\d{3} )", r"\1\2", line)),
}


@pytest.mark.parametrize("form", FORMS)
@both_engines
def test_a_wrapped_log(engine: str, form: str, tmp_path: Path) -> None:
    path, origin = written(tmp_path, FORMS[form](PLAIN[engine]))

    assert_same(report_of(path), origin, truth(engine))


@pytest.mark.parametrize("form", VLLM_FORMS)
def test_a_log_as_vllm_itself_can_write_it(form: str, tmp_path: Path) -> None:
    path, origin = written(tmp_path, VLLM_FORMS[form](VLLM))
    assert path.read_text().splitlines() != VLLM

    assert_same(report_of(path), origin, truth("vllm"))


PAD = b"\0" * 10_000
ENCODINGS: dict[str, Callable[[str], bytes]] = {
    "utf-8 with BOM": lambda text: codecs.BOM_UTF8 + text.encode(),
    "utf-16 le with BOM": lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
    "utf-16 be with BOM": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "utf-16 le": lambda text: text.encode("utf-16-le"),
    "utf-16 be": lambda text: text.encode("utf-16-be"),
    "utf-16 in crlf": lambda text: text.replace("\n", "\r\n").encode("utf-16"),
    "NULs between lines": lambda text: text.replace("\n", "\n\0\0\0").encode(),
    "NULs before": lambda text: PAD + text.encode(),
    "NULs behind": lambda text: text.encode() + PAD,
    "gzip": lambda text: gzip.compress(text.encode()),
    "latin-1 bytes": lambda text: text.replace("] ", "] \xe9t\xe9 \xff ").encode("latin-1"),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@both_engines
def test_a_log_in_other_bytes(engine: str, encoding: str, tmp_path: Path) -> None:
    path, origin = written(tmp_path, each(str)(PLAIN[engine]))
    path.write_bytes(ENCODINGS[encoding](path.read_text(encoding="utf-8")))

    assert_same(report_of(path), origin, truth(engine))


@both_engines
def test_carriage_returns_alone_part_messages_of_one_line(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes("\r".join(PLAIN[engine]).encode())
    report = report_of(path)

    assert unlike(digest(report), digest(truth(engine))) == {}
    assert {row["id"] for row in report["evidence"]} == {"log0:1"}


def one_gpu(engine: str) -> list[str]:
    """The same start on one GPU, where SGLang prints no rank and vLLM's engine is the worker."""
    lines = [line for line in PLAIN[engine] if not re.search(r"TP1|742,192|45\.30x", line)]
    swaps = {" TP0]": "]", "tp_size=2": "tp_size=1", "parallel_size=2": "parallel_size=1"}
    swaps |= {"'tensor_parallel_size': 2, ": "", "Worker_TP0 pid=101": "EngineCore_DP0 pid=99"}
    return swapped(lines, swaps | {"memory: 45.30": "memory: 45.10"})  # that the tokens fill


def swapped(lines: Sequence[str], swaps: dict[str, str]) -> list[str]:
    pattern = "|".join(map(re.escape, swaps))
    return [re.sub(pattern, lambda match: swaps[match[0]], line) for line in lines]


@both_engines
def test_one_gpu_needs_no_prefixes(engine: str, tmp_path: Path) -> None:
    """Somebody cut off time stamps and processes: whose line is whose is plain with one GPU."""
    whole = report_of(written(tmp_path, each(str)(one_gpu(engine)))[0])
    assert [rank["id"] for rank in whole["ranks"]] == ["DP0/PP0/TP0"]
    assert (
        whole["ranks"][0]["memory"]["weights"]["value"]
        == {"sglang": 30.63, "vllm": 14.2419}[engine]
    )

    head = r"^\[[^]]+\] |^\(.*? pid=\d+\) (?:INFO [-\d]+ [:\d]+ \[\w+\.py:\d+\] )?"
    path, origin = written(tmp_path, each(lambda line: re.sub(head, "", line))(one_gpu(engine)))

    assert_same(report_of(path), origin, whole)


# --- damage: what is lost is unknown ----------------------------------


def hard_wrapped(width: int, indent: str = "") -> Form:
    """Lines broken at a column, as a terminal's copy has them, in the middle of words."""

    def wrap(line: str) -> str:
        rest = re.findall(f".{{1,{width - len(indent)}}}", line[width:])
        return "\n".join([line[:width], *(indent + piece for piece in rest)])

    return each(wrap)


def soft_wrapped(width: int, indent: str = "") -> Form:
    fill = partial(textwrap.fill, break_long_words=False, break_on_hyphens=False)
    return each(lambda line: fill(line, width, subsequent_indent=indent))


WRAPS = {"mid-word": hard_wrapped, "at spaces": soft_wrapped}


@pytest.mark.parametrize("indent", ["", "    "], ids=["flush", "indented"])
@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("kind", WRAPS)
@both_engines
def test_wrapped_lines_are_joined_again(
    engine: str, kind: str, width: int, indent: str, tmp_path: Path
) -> None:
    path, origin = written(tmp_path, WRAPS[kind](width, indent)(PLAIN[engine]))
    report = report_of(path)

    assert mistakes(report, origin, truth(engine)) == {}
    told, known = digest(report), digest(truth(engine))
    assert {path: told.get(path) for path in MAIN} == {path: known[path] for path in MAIN}


def all_mistakes(engine: str, forms: dict[int, Form], folder: Path) -> dict[int, object]:
    """The mistakes of those forms that lead to any; a log of which too little is left is none."""
    found = {}
    for name, form in forms.items():
        path, origin = written(folder, form(PLAIN[engine]))
        with contextlib.suppress(NothingRecognised):
            found[name] = mistakes(report_of(path), origin, truth(engine))
    return {name: wrong for name, wrong in found.items() if wrong}


@pytest.mark.parametrize("indent", ["", "  ", "    "], ids=["flush", "two", "four"])
@pytest.mark.parametrize("kind", WRAPS)
@both_engines
def test_no_width_makes_a_number_wrong(engine: str, kind: str, indent: str, tmp_path: Path) -> None:
    """Whatever column cuts whatever number in two: the half is not the number."""
    forms = {width: WRAPS[kind](width, indent) for width in range(40, 160)}

    assert all_mistakes(engine, forms, tmp_path) == {}


@both_engines
def test_lines_cut_off_at_a_column(engine: str, tmp_path: Path) -> None:
    """What a pager or a shipper leaves of long lines: no line goes on, and no half is a number."""

    def cut(width: int) -> Form:
        return each(lambda line: line[:width])

    assert all_mistakes(engine, {width: cut(width) for width in range(40, 160)}, tmp_path) == {}


@both_engines
def test_a_line_that_was_dropped(engine: str, tmp_path: Path) -> None:
    """Shippers drop lines when too many come; of ranks that are not all shown the least is a bound.

    Each rank prints one line of each kind here, and the arguments name two ranks.
    """

    def without(dropped: int) -> Form:
        return lambda lines: [r for r in each(str)(lines) if r[0] != dropped]

    numbers = range(1, len(PLAIN[engine]) + 1)
    assert all_mistakes(engine, {number: without(number) for number in numbers}, tmp_path) == {}


@pytest.mark.parametrize("length", [10, 16, 20, 21, 22, 23, 24, 26, 28, 30])
@both_engines
def test_stripped_heads(engine: str, length: int, tmp_path: Path) -> None:
    """The first characters of each line are gone, and with them, at some length, who spoke."""
    path, origin = written(tmp_path, each(lambda line: line[length:])(PLAIN[engine]))
    report = report_of(path)

    assert mistakes(report, origin, truth(engine)) == {}
    if length <= 20:  # the words stand further right
        assert digest(report)["kv_pool.tokens"] == digest(truth(engine))["kv_pool.tokens"]


@pytest.mark.parametrize("lines", [1, 2, 3, 4, 5, 6, 7, 8])
@both_engines
def test_a_rotated_head(engine: str, lines: int, tmp_path: Path) -> None:
    """What the next file of a rotation holds: the first lines are in another one."""
    path, origin = written(tmp_path, list(each(str)(PLAIN[engine]))[lines:])
    report = report_of(path)

    assert mistakes(report, origin, truth(engine)) == {}
    assert report["kv_pool"]["tokens"]["value"] == TRUTH[engine]["tokens"]
    graphs = tuple(rank["memory"]["cuda_graph"]["value"] for rank in report["ranks"])
    assert graphs == TRUTH[engine]["cuda_graph"]


# --- several speakers in one file -------------------------------------


def ray_workers(suffix: str = "") -> list[str]:
    """vLLM's start with Ray's prefix in place of the workers' own: 101 was TP0, 102 TP1."""
    own = r"\(Worker_TP\d (pid=10(\d))\) (.*)"
    rays = f"\x1b[36m(RayWorkerWrapper \\g<1>, ip=10.0.0.\\g<2>)\x1b[0m \\g<3>{suffix}"
    return [re.sub(own, rays, line) for line in VLLM]


def test_ray_workers_are_told_apart_by_their_processes(tmp_path: Path) -> None:
    """Ray's prefix holds no rank: a row for each process, with what it printed itself."""
    report = report_of(written(tmp_path, each(str)(ray_workers()))[0])

    told = {rank["label"]: held(rank) for rank in report["ranks"]}
    assert sorted(told.values()) == [(14.2419, 45.30, 0.61), (14.3312, 45.10, 0.59)]
    assert all("101" in label for label, row in told.items() if row[0] == 14.2419)
    assert {(rank["dp"], rank["pp"], rank["tp"]) for rank in report["ranks"]} == {(None,) * 3}
    assert report["kv_pool"]["tokens"]["value"] == 738_912


def held(rank: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(rank["memory"][category]["value"] for category in HELD)


def test_a_repeated_line_speaks_for_the_printed_process_alone(tmp_path: Path) -> None:
    """Ray shows one of two lines that it takes for equal: their numbers may differ."""
    suffix = "\x1b[32m [repeated 2x across cluster] (Ray deduplicates logs by default. Set "
    suffix += "RAY_DEDUP_LOGS=0 to disable log deduplication)\x1b[0m"
    lines = [line for line in ray_workers(suffix) if "pid=102" not in line]
    report = report_of(written(tmp_path, each(str)(lines))[0])

    known = [held(rank) for rank in report["ranks"] if held(rank) != (None, None, None)]
    assert known == [(14.2419, 45.30, 0.61)]
    # The arguments name two ranks, and the least one decides: 45.30 is a bound.
    assert report["kv_pool"]["size"]["value"] is None
    assert report["kv_pool"]["size"]["at_most"] == pytest.approx(45.30, abs=0.006)
    assert report["kv_pool"]["bytes_per_token"]["value"] is None
    assert report["kv_pool"]["tokens"]["value"] == 738_912


SERVERS: dict[tuple[Any, ...], int] = {
    (14.2419, 45.10, 0.61): 738_912,
    (7.1209, 20.00, 0.31): 163_840,
}
"""Weights, budget and graphs → tokens; 20.00 GiB / 128 KiB = 163,840."""


def test_two_servers_in_one_file_are_never_mixed_or_summed(tmp_path: Path) -> None:
    """Interleaved line by line: told apart by pid, as two runs or as a row for each process."""
    first = one_gpu("vllm")
    swaps = {
        "pid=99": "pid=299",
        "pid=1)": "pid=201)",
        "14.2419": "7.1209",
        "took 0.61": "took 0.31",
    }
    swaps |= {"45.10 GiB": "20.00 GiB", "738,912": "163,840", "45.10x": "10.00x"}
    pairs = zip(first, swapped(first, swaps), strict=True)
    path, _ = written(tmp_path, ((0, line) for pair in pairs for line in pair))

    seen = []
    for run in range(len(report_of(path)["runs"])):
        report = report_of(path, run=run)
        rows = [held(rank) for rank in report["ranks"]]
        assert set(rows) <= set(SERVERS)
        seen += rows
        own = {None, *(SERVERS[row] for row in rows)}
        assert report["kv_pool"]["tokens"]["value"] in own
        assert report["kv_pool"]["deployment_tokens"]["value"] in own
    assert sorted(seen) == sorted(SERVERS)


def test_both_frameworks_in_one_file_are_two_runs(tmp_path: Path) -> None:
    pairs = zip(SGLANG, VLLM, strict=True)
    path, _ = written(tmp_path, ((0, line) for pair in pairs for line in pair))
    runs = {run["framework"]: run["index"] for run in report_of(path)["runs"]}

    assert sorted(runs) == ["sglang", "vllm"]
    for engine, run in runs.items():
        told = digest(report_of(path, run=run)) | {"runs": Figure([(engine, "ready")])}
        assert unlike(told, digest(truth(engine))) == {}


OTHERS = {
    "words like sglang's": """\
[2026-01-02 03:04:05] engine_args=EngineArgs(model_path='/models/a', tp_size=1)
[2026-01-02 03:04:05] Load model begin. avail mem=77.62 GB
[2026-01-02 03:04:45] Load model end. elapsed=41.20 s, avail mem=46.99 GB, mem usage=30.63 GB.
[2026-01-02 03:04:46] KV cache ready. #tokens=262144, K 16.00 GB, V 16.00 GB
[2026-01-02 03:04:59] max_total_token_num=262144, context_len=32768""",
    "words like vllm's": """\
(Worker_TP0 pid=101) INFO 01-30 03:18:41 [runner.py:2] Model weights take 14.2419 GiB
(Worker_TP0 pid=101) INFO 01-30 03:18:41 [runner.py:3] Free KV cache memory: 45.30 GiB
(EngineCore_DP0 pid=99) INFO 01-30 03:19:06 [kv.py:4] KV cache size of the GPU: 742,192 tokens
(APIServer pid=1) INFO:     Application startup complete.""",
    "turbomind": """\
2026-01-02 03:04:05,123 - lmdeploy - INFO - input backend=turbomind, backend_config=Config(tp=1)
[TM][WARNING] [LlamaTritonModel] `max_context_token_num` is not set, default to 32768.
[TM][INFO] [BlockManager] block_size = 2 MB, max_block_count = 5930, tokens 379520
INFO:     Application startup complete.""",
    "tgi": """\
2026-01-02T03:04:05.123456Z  INFO text_generation_launcher: Args { model_id: "/models/a" }
2026-01-02T03:04:45.123456Z  INFO text_generation_launcher: KV-cache blocks: 262144, size: 1
2026-01-02T03:04:45.123456Z  INFO text_generation_router: Setting max batch total tokens to 262144
2026-01-02T03:04:46.123456Z  INFO text_generation_router: Connected""",
    "tensorrt": """\
[TensorRT-LLM][INFO] Loaded engine size: 14571 MiB
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.18 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 45.30 GiB for max tokens in paged KV cache (742192)
INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)
Traceback (most recent call last):""",
}


@pytest.mark.parametrize("form", ["table", "docker json-file", "docker-compose", "code fence"])
@pytest.mark.parametrize("other", OTHERS)
def test_an_engine_that_only_looks_alike_is_refused(other: str, form: str, tmp_path: Path) -> None:
    path, _ = written(tmp_path, FORMS[form](OTHERS[other].splitlines()))

    with pytest.raises(NothingRecognised) as refused:
        report_of(path)
    assert refused.value.exit_code == 1
