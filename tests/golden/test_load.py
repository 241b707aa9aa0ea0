"""What a running server's lines show: peaks with the line that printed them, sums, the last state.

A server prints millions of such lines and not every one is kept, so what must come out is found
here by going through all of them. Lines are in the words of the releases named beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capacity_core.analysis import Options, analyse
from capacity_core.reading import sources
from capacity_core.rendering.text import TextRenderer
from capacity_core.values import Known, Value

from . import vllm_lines as vllm
from .running import Report, found, is_unknown, report_on, shipped_plugins
from .sglang_lines import UP, as_repr, limits, said, start, weights


@attrs.frozen(kw_only=True)
class Batch:
    """What one line says; `None` is not printed by this wording."""

    running: int = 3
    waiting: int | None = 0
    usage: str | None = "0.10"
    speed: str | None = "100.25"


Wording = Callable[[Batch], str]


def sglang(pattern: str) -> Wording:
    """A message of a scheduler with one worker."""

    def words(batch: Batch) -> str:
        return said(pattern.format(**attrs.asdict(batch)), at="12:00")[0]

    return words


DECODE = {
    "0.2.15": "Decode batch. #running-req: {running}, #token: 65536, token usage: {usage}, gen "
    "throughput (token/s): {speed}, #queue-req: {waiting}",
    "0.4.3": "Decode batch. #running-req: {running}, #token: 65536, token usage: {usage}, gen "
    "throughput (token/s): {speed}, largest-len: 8192, #queue-req: {waiting}, ",
    "0.4.3 draft": "Decode batch. #running-req: {running}, #token: 65536, token usage: {usage}, "
    "accept len: 2.31, gen throughput (token/s): {speed}, largest-len: 8192, #queue-req: "
    "{waiting}, ",
    "0.4.6": "Decode batch. #running-req: {running}, #token: 65536, token usage: {usage}, cuda "
    "graph: True, gen throughput (token/s): {speed}, #queue-req: {waiting}",
    "0.4.9 windows": "Decode batch. #running-req: {running}, #full token: 20512, full token usage: "
    "{usage}, #swa token: 8192, swa token usage: 0.99, cuda graph: True, gen throughput (token/s): "
    "{speed}, #queue-req: {waiting}, ",
    "0.5.5": "Decode batch, #running-req: {running}, #token: 20512, token usage: {usage}, cuda "
    "graph: True, gen throughput (token/s): {speed}, #queue-req: {waiting}, ",
    "0.5.5 states": "Decode batch [17], #running-req: {running}, #full token: 20512, full token "
    "usage: {usage}, mamba num: 12, mamba usage: 0.99, cuda graph: True, gen throughput (token/s): "
    "{speed}, #queue-req: {waiting}, ",
    "0.5.12 decoder": "Decode batch, #running-req: {running}, #token: 20512, token usage: {usage}, "
    "pre-allocated usage: 0.99, #prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, cuda graph: "
    "True, gen throughput (token/s): {speed}, #queue-req: {waiting}, ",
    "0.5.12 host": "Decode batch [17], #running-req: {running}, #gpu token: 20512, gpu token "
    "usage: {usage}, #cpu token: 8192, cpu token usage: 0.99, cuda graph: True, gen throughput "
    "(token/s): {speed}, #queue-req: {waiting}, ",
}
PREFILL = {
    "0.3.6": "Prefill batch. #new-seq: 1, #new-token: 65536, #cached-token: 65536, cache hit rate: "
    "12.30%, token usage: {usage}, #running-req: {running}, #queue-req: {waiting}",
    "0.4.3": "Prefill batch. #new-seq: 1, #new-token: 65536, #cached-token: 65536, token usage: "
    "{usage}, #running-req: {running}, #queue-req: {waiting}, ",
    "0.4.9 windows": "Prefill batch. #new-seq: 1, #new-token: 65536, #cached-token: 65536, full "
    "token usage: {usage}, swa token usage: 0.99, #running-req: {running}, #queue-req: {waiting}, ",
    "0.5.5": "Prefill batch, #new-seq: 1, #new-token: 65536, #cached-token: 65536, token usage: "
    "{usage}, #running-req: {running}, #queue-req: {waiting}, ",
    "0.5.12 states": "Prefill batch [17], #new-seq: 1, #new-token: 65536, #cached-token: 65536, "
    "full token usage: {usage}, mamba usage: 0.99, #running-req: {running}, #queue-req: {waiting}, "
    "#pending-token: 65536, cuda graph: False, input throughput (token/s): 5123.45",
    "0.5.21": "Prefill batch, #new-seq: 1, #new-token: 65536, #replay-token: 12, #cached-token: "
    "65536, token usage: {usage}, #running-req: {running}, #queue-req: {waiting}, #pending-token: "
    "65536, CUDA graph: False, input throughput (token/s): 5123.45",
}
SGLANG = {f"{name} decode": sglang(pattern) for name, pattern in DECODE.items()} | {
    f"{name} prefill": sglang(pattern) for name, pattern in PREFILL.items()
}


def engine(head: str, between: str = "", tail: str = "", queue: str = "Waiting") -> Wording:
    """An engine's line; `usage` is a share here and a percentage there."""
    device = "GPU KV cache usage"

    def words(batch: Batch) -> str:
        percent = Decimal(batch.usage or "0") * 100
        queued = f"{queue}: {batch.waiting} reqs, "
        message = (
            f"{head}Avg prompt throughput: 17.2 tokens/s, Avg generation throughput: "
            f"{batch.speed} tokens/s, Running: {batch.running} reqs, {queued}{between}{device}: "
            f"{percent:.1f}%{tail}"
        )
        return vllm.said(message, "APIServer pid=1")

    return words


PREFIX = ", Prefix cache hit rate: 99.9%"
SWAPPED = "Swapped: 0 reqs, Pending"
VLLM = {
    "0.2.7": engine("", tail=", CPU KV cache usage: 99.9%", queue=SWAPPED),
    "0.10.2 former engine": engine("", tail=", CPU KV cache usage: 99.9%.", queue=SWAPPED),
    "0.7.3": engine("", tail=PREFIX),
    "0.8.3": engine("Engine 000: ", tail=PREFIX),
    "0.11.2 preempting": engine("Engine 000: ", "Preemptions: 1, ", PREFIX),
    "0.11.2 aggregated": engine("12 Engines Aggregated: ", tail=PREFIX),
    "0.20.0 deferring": engine("Engine 000: ", "Deferred: 0 reqs, Preemptions: 1, ", PREFIX),
    "0.20.0 deferring alone": engine("Engine 000: ", "Deferred: 99 reqs, ", PREFIX),
    "0.31.0": engine("Engine 000: "),
    "0.32.0 fetching": engine(
        "Engine 000: ",
        "KV fetch: 99 waiting to start, 99 in progress, 99 completed waiting, ",
        PREFIX,
    ),
}

SGLANG_START = said(as_repr(), *start(tokens=400_000), UP)
VLLM_START = [
    vllm.asked(max_num_seqs=256),
    vllm.said(vllm.config("0.17.1")),
    vllm.loaded("14.24"),
    vllm.budget("50.5"),
    *vllm.plain(20_000),
    vllm.captured("0.61"),
    vllm.SERVES,
]
STARTS = {"sglang": SGLANG_START, "vllm": VLLM_START}
WORDINGS = {("sglang", name): words for name, words in SGLANG.items()} | {
    ("vllm", name): words for name, words in VLLM.items()
}


def ordinary(count: int) -> list[Batch]:
    """Batches of which none is remarkable."""
    return [
        Batch(
            running=3 + at % 5,
            waiting=at % 3,
            usage=f"0.{10 + at % 7}",
            speed=f"{100 + at % 9}.25",
        )
        for at in range(count)
    ]


PEAKS: dict[str, dict[str, Any]] = {
    "running": {"running": 200},
    "waiting": {"waiting": 77},
    "usage": {"usage": "0.97"},
    "speed": {"speed": "9876.50"},
}


def with_peaks(batches: Sequence[Batch], places: dict[str, int]) -> list[Batch]:
    changed = list(batches)
    for name, at in places.items():
        changed[at] = attrs.evolve(changed[at], **PEAKS[name])
    return changed


def load_of(folder: Path, lines: Sequence[str], **options: Any) -> Report:
    load: Report = report_on(folder, lines, **options)["load"]
    return load


def amount_of(value: Value) -> float:
    assert isinstance(value, Known), value
    return float(value.number)


def lines_of(load: Report, *names: str) -> list[list[str]]:
    return [load[name]["evidence"] for name in names]


# --- peaks ------------------------------------------------------------


@pytest.mark.parametrize(("framework", "name"), WORDINGS, ids=map(" ".join, WORDINGS))
@pytest.mark.parametrize("count", [1, 300])
def test_peaks_are_of_the_lines_that_printed_them(
    tmp_path: Path, framework: str, name: str, count: int
) -> None:
    """One in the first line, one in the last, and two between them."""
    words, before = WORDINGS[framework, name], STARTS[framework]
    places = {"running": 0, "waiting": count // 3, "speed": count // 2, "usage": count - 1}
    batches = with_peaks(ordinary(count), places)
    load = load_of(tmp_path, [*before, *map(words, batches)])

    first = len(before) + 1
    assert load["peak_running"]["value"] == 200
    assert load["peak_running"]["evidence"] == [f"log0:{first}"]
    assert load["peak_waiting"]["value"] == 77
    assert load["peak_waiting"]["evidence"] == [f"log0:{first + count // 3}"]
    assert load["peak_kv_usage"]["value"] == 0.97
    assert load["peak_kv_usage"]["evidence"] == [f"log0:{first + count - 1}"]
    assert load["last_kv_usage"]["value"] == 0.97
    if "prefill" in name:
        assert is_unknown(load["peak_throughput"])
    else:
        assert load["peak_throughput"]["value"] == 9876.50
        assert load["peak_throughput"]["unit"] == "tokens/s"
        assert load["peak_throughput"]["evidence"] == [f"log0:{first + count // 2}"]


MANY = 20_000


@pytest.mark.parametrize("place", [0, MANY // 2, MANY - 1], ids=["first", "middle", "last"])
@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("sglang", "0.4.6 decode"),
        ("sglang", "0.5.5 states decode"),
        ("vllm", "0.8.3"),
        ("vllm", "0.11.2 preempting"),
    ],
)
def test_a_peak_among_twenty_thousand_lines(
    tmp_path: Path, framework: str, name: str, place: int
) -> None:
    words, before = WORDINGS[framework, name], STARTS[framework]
    batches = with_peaks(ordinary(MANY), dict.fromkeys(PEAKS, place))
    report = report_on(tmp_path, [*before, *map(words, batches)])
    load = report["load"]

    peaks = ("peak_running", "peak_waiting", "peak_kv_usage", "peak_throughput")
    assert [load[peak]["value"] for peak in peaks] == [200, 77, 0.97, 9876.50]
    assert lines_of(load, *peaks) == [[f"log0:{len(before) + 1 + place}"]] * 4
    last = Decimal(batches[-1].usage or "")
    assert load["last_kv_usage"]["value"] == float(last)
    assert load["last_kv_usage"]["evidence"] == [f"log0:{len(before) + MANY}"]
    assert len(report["runs"]) == 1
    assert report["outcome"]["status"] == "ready"


def test_a_usage_is_rounded_as_it_is_printed(tmp_path: Path) -> None:
    """Two decimals of a share, one of a percentage: half a percent, and half a thousandth."""
    shares = load_of(tmp_path, [*SGLANG_START, SGLANG["0.4.6 decode"](Batch(usage="0.32"))])
    percents = load_of(tmp_path, [*VLLM_START, VLLM["0.8.3"](Batch(usage="0.323"))])

    assert (shares["peak_kv_usage"]["value"], shares["peak_kv_usage"]["error"]) == (0.32, 0.005)
    assert percents["peak_kv_usage"]["value"] == 0.323
    assert percents["peak_kv_usage"]["error"] == 0.0005


@pytest.mark.parametrize("name", ["0.4.9 windows decode", "0.5.5 states decode"])
def test_other_pools_do_not_count_as_the_pool(tmp_path: Path, name: str) -> None:
    """Windows and states are 99 % full in every line."""
    load = load_of(tmp_path, [*SGLANG_START, *map(SGLANG[name], ordinary(50))])

    assert load["peak_kv_usage"]["value"] == 0.16


def test_a_prefill_of_the_first_releases_has_no_usage(tmp_path: Path) -> None:
    """0.2.15: it stands behind a decode, whose usage is the last one that is known."""
    prefill = sglang(
        "Prefill batch. #new-seq: 1, #new-token: 6, #cached-token: 0, cache hit rate: 12.30%, "
        "#running-req: {running}, #queue-req: {waiting}"
    )
    mixed = sglang(
        "Prefill batch(mixed #running-req: {running}). #new-seq: 1, #new-token: 6, #cached-token: "
        "0, cache hit rate: 12.30%, #queue-req: {waiting}"
    )
    lines = [
        *SGLANG_START,
        SGLANG["0.2.15 decode"](Batch(usage="0.30")),
        SGLANG["0.2.15 decode"](Batch(usage="0.20")),
        prefill(Batch(running=40, waiting=4)),
        mixed(Batch(running=50, waiting=5)),
    ]
    load = load_of(tmp_path, lines)

    assert (load["peak_running"]["value"], load["peak_waiting"]["value"]) == (50, 5)
    assert load["peak_kv_usage"]["value"] == 0.30
    assert load["last_kv_usage"]["value"] == 0.20


def test_peaks_of_workers_are_those_of_the_one_that_showed_most(tmp_path: Path) -> None:
    """Each worker has requests of its own: they are not added up."""
    lines = said(as_repr(dp_size=4))
    for dp in range(4):
        lines += said(*start()[:-1], limits(100_000, 64), rank=f" DP{dp} TP0")
    lines += said(UP)
    first = len(lines) + 1
    for at in range(300):
        dp = at % 4
        batch = Batch(running=at % 7 + 10 * dp, usage=f"0.{20 + dp}")
        lines += said(DECODE["0.5.5"].format(**attrs.asdict(batch)), rank=f" DP{dp} TP0")
    report = report_on(tmp_path, lines)

    # Worker 3 comes at 3, 7, …, and at % 7 is 6 first at 27.
    load = report["load"]
    assert load["peak_running"]["value"] == 36
    assert load["peak_running"]["evidence"] == [f"log0:{first + 27}"]
    assert load["peak_kv_usage"]["value"] == 0.23
    assert load["last_kv_usage"]["value"] == 0.23
    assert load["planned"]["value"] == 64
    assert load["summary"] == "planned 64, seen 36 running, the pool used up to 23 %"


def test_engines_print_their_own_lines(tmp_path: Path) -> None:
    lines = list(VLLM_START)
    for at in range(300):
        batch = Batch(running=20 + at % 7 + 10 * (at % 2), usage="0.500")
        lines.append(engine(f"Engine {at % 2:03d}: ", tail=PREFIX)(batch))

    load = load_of(tmp_path, lines)
    # Of odd ones 13 is the first with at % 7 = 6.
    assert load["peak_running"]["value"] == 20 + 6 + 10
    assert load["peak_running"]["evidence"] == [f"log0:{len(VLLM_START) + 1 + 13}"]


def test_the_first_engines_of_the_new_kind_print_their_queues(tmp_path: Path) -> None:
    """V1 of 0.6.4 … 0.7.3: two numbers, of which the usage is none."""
    lines = [vllm.said(vllm.config("0.7.3")), vllm.said("RUNNING: 7 | WAITING: 2")]
    lines += [vllm.said(f"RUNNING: {running} | WAITING: {9 - running}") for running in (3, 8, 5)]
    load = load_of(tmp_path, lines)

    assert (load["peak_running"]["value"], load["peak_waiting"]["value"]) == (8, 6)
    assert lines_of(load, "peak_running", "peak_waiting") == [["log0:4"], ["log0:3"]]
    assert is_unknown(load["peak_kv_usage"])
    assert is_unknown(load["last_kv_usage"])


def test_steps_of_an_engine_print_its_usage(tmp_path: Path) -> None:
    """0.28.0: between two intervals the pool was fuller than in either."""

    def step(at: int, usage: str) -> str:
        return vllm.said(
            f"Iteration({at}): 2 context requests, 99 context tokens, 5 generation requests, 5 "
            f"generation tokens, iteration elapsed time: 12.34 ms, GPU KV cache usage: {usage}%"
        )

    interval = VLLM["0.8.3"]
    lines = [*VLLM_START, interval(Batch(running=8, usage="0.5"))]
    lines += [step(12, "75.5"), step(13, "99.5"), step(14, "61.5")]
    load = load_of(tmp_path, [*lines, interval(Batch(usage="0.25")), step(15, "24.5")])

    first = len(VLLM_START) + 1
    assert load["peak_running"]["value"] == 8
    assert load["peak_kv_usage"]["value"] == 0.995
    assert load["last_kv_usage"]["value"] == 0.245
    assert lines_of(load, "peak_kv_usage", "last_kv_usage") == [
        [f"log0:{first + 2}"],
        [f"log0:{first + 5}"],
    ]


# --- the last line ----------------------------------------------------


@pytest.mark.parametrize("more", [False, True], ids=["at its end", "by another line"])
@pytest.mark.parametrize("missing", [25, 40])
@pytest.mark.parametrize(
    ("framework", "name"), [("sglang", "0.4.6 decode"), ("vllm", "0.8.3")], ids=["SGLang", "vLLM"]
)
def test_a_last_line_that_was_cut_is_not_the_last_usage(
    tmp_path: Path, framework: str, name: str, missing: int, more: bool
) -> None:
    """A line that ends before its usage: 0.20 is the last one, 0.90 long gone."""
    words, before = WORDINGS[framework, name], STARTS[framework]
    lines = [*before, *(words(Batch(usage=usage)) for usage in ("0.90", "0.50", "0.20"))]
    whole = words(Batch(usage="0.70"))
    cut = whole[: whole.index("usage") - missing]
    path = tmp_path / "server.log"
    path.write_text("\n".join([*lines, cut]) + "INFO:     1.2.3.4:5 - GET /health\n" * more)
    report = analyse([str(path)], Options(), shipped_plugins())

    assert report.load is not None
    usage = report.load.last_kv_usage
    assert amount_of(usage) == 0.20
    assert usage.evidence == (f"log0:{len(lines)}",)


# --- sums -------------------------------------------------------------

RETRACTED = {
    "0.4.6": "Decode out of memory happened. #retracted_reqs: {n}, #new_token_ratio: 0.6{at:03d} "
    "-> 0.9000",
    "0.5.2": "KV cache pool is full. Retract requests. #retracted_reqs: {n}, #new_token_ratio: "
    "0.6{at:03d} -> 0.9000",
    "0.5.12": "KV cache pool is full. Retract requests. #retracted_reqs: {n}, #new_tokens_gained: "
    "512, #new_token_ratio: 0.6{at:03d} -> 0.9000",
    "0.5.12 testing": "Testing retraction. #retracted_reqs: {n}, #new_tokens_gained: 512, "
    "#new_token_ratio: 0.6{at:03d} -> 0.9000",
}


@pytest.mark.parametrize("wording", RETRACTED)
@pytest.mark.parametrize("count", [1, 199, 200, 201, 202, 900])
def test_retractions_are_added_up_whatever_is_kept_of_them(
    tmp_path: Path, wording: str, count: int
) -> None:
    """1 + 2 + … + 7 in turn, a batch between any two of them."""
    numbers = [at % 7 + 1 for at in range(count)]
    lines = list(SGLANG_START)
    for at, n in enumerate(numbers):
        lines += said(RETRACTED[wording].format(n=n, at=at))
        lines.append(SGLANG["0.4.6 decode"](Batch(running=3 + at % 2)))
    report = report_on(tmp_path, lines)

    assert report["load"]["retracted"]["value"] == sum(numbers)
    assert report["load"]["retracted"]["error"] == 0
    assert is_unknown(report["load"]["preempted"])
    assert found(report, "requests-retracted")
    assert report["outcome"]["failure"] is None


def test_retractions_of_several_workers_are_added_up(tmp_path: Path) -> None:
    lines = said(as_repr(dp_size=2))
    for dp in (0, 1):
        lines += said(*start(), rank=f" DP{dp} TP0")
    for at in range(600):
        lines += said(RETRACTED["0.5.2"].format(n=1 + at % 2, at=at), rank=f" DP{at % 2} TP0")

    assert load_of(tmp_path, lines)["retracted"]["value"] == 300 * 1 + 300 * 2


def test_retractions_on_two_nodes_are_added_up(tmp_path: Path) -> None:
    """450 of one and 500 of two."""
    paths = []
    for number, count in ((0, 450), (1, 500)):
        lines = said(as_repr(tp_size=2, dp_size=2, nnodes=2, node_rank=number))
        lines += said(*start(), rank=f" DP{number} TP{number}")
        for at in range(count):
            message = RETRACTED["0.5.2"].format(n=number + 1, at=at)
            lines += said(message, rank=f" DP{number} TP{number}")
        paths.append(tmp_path / f"node{number}.log")
        paths[-1].write_text("\n".join(lines) + "\n")
    report = analyse(list(map(str, paths)), Options(), shipped_plugins())

    assert [run.inputs for run in report.runs] == [("log0", "log1")]
    assert report.load is not None
    assert amount_of(report.load.retracted) == 450 * 1 + 500 * 2


@pytest.mark.parametrize("count", [1, 200, 201, 900])
@pytest.mark.parametrize("between", ["", "Deferred: 2 reqs, "], ids=["0.11.2", "0.20.0"])
def test_preemptions_of_all_intervals_are_added_up(
    tmp_path: Path, count: int, between: str
) -> None:
    """Every interval with some is followed by one with none."""
    lines = list(VLLM_START)
    for at in range(count):
        lost = f"{between}Preemptions: {at % 5 + 1}, "
        lines.append(engine("Engine 000: ", lost, PREFIX)(Batch(running=5 + at % 3)))
        lines.append(engine("Engine 000: ", between, PREFIX)(Batch(running=2)))
    load = load_of(tmp_path, lines)

    assert load["preempted"]["value"] == sum(at % 5 + 1 for at in range(count))
    assert is_unknown(load["retracted"])
    assert load["peak_running"]["value"] == 5 + min(count - 1, 2)


def test_preemptions_of_the_former_engine_are_a_bound(tmp_path: Path) -> None:
    """It prints the first and every fiftieth: 101 so far, perhaps 150 by now."""
    warning = (
        "Sequence group r{0} is preempted by PreemptionMode.RECOMPUTE mode because there is not "
        "enough KV cache space. This can affect the end-to-end performance. Increase "
        "gpu_memory_utilization or tensor_parallel_size to provide more KV cache memory. "
        "total_num_cumulative_preemption={0}"
    )
    lines = [vllm.bare(vllm.config("0.6.6")), vllm.bare("# GPU blocks: 2987, # CPU blocks: 2048")]
    lines += [vllm.bare(warning.format(count)) for count in (1, 51, 101)]
    preempted = load_of(tmp_path, lines)["preempted"]

    assert (preempted["value"], preempted["at_least"]) == (None, 101)


# --- whose load it is -------------------------------------------------


@pytest.mark.parametrize("framework", ["sglang", "vllm"])
def test_each_start_has_a_load_of_its_own(tmp_path: Path, framework: str) -> None:
    """The first start had 200 running, the second 9, the third none yet."""
    name = {"sglang": "0.4.6 decode", "vllm": "0.8.3"}[framework]
    words, before = WORDINGS[framework, name], STARTS[framework]
    first = [*before, *map(words, with_peaks(ordinary(40), dict.fromkeys(PEAKS, 20)))]
    second = [*before, *map(words, ordinary(30)), words(Batch(running=9, usage="0.33"))]
    lines = [*first, *second, *before]
    loads = [load_of(tmp_path, lines, run=run) for run in (0, 1, 2)]

    assert loads[0]["peak_running"]["value"] == 200
    assert loads[0]["peak_running"]["evidence"] == [f"log0:{len(before) + 21}"]
    assert loads[1]["peak_running"]["value"] == 9
    assert loads[1]["peak_running"]["evidence"] == [f"log0:{len(first) + len(second)}"]
    assert loads[1]["last_kv_usage"]["value"] == 0.33
    assert loads[1]["peak_waiting"]["value"] == 2
    assert loads[2] is None


@pytest.mark.parametrize("framework", ["sglang", "vllm"])
@pytest.mark.parametrize("whole", [True, False], ids=["arguments", "weights first"])
def test_batches_in_front_of_a_start_are_of_the_server_before(
    tmp_path: Path, framework: str, whole: bool
) -> None:
    """A log that was rotated while the former server ran; its start's first lines may be lost."""
    name = {"sglang": "0.4.6 decode", "vllm": "0.8.3"}[framework]
    words, before = WORDINGS[framework, name], STARTS[framework]
    former = [words(batch) for batch in with_peaks(ordinary(40), dict.fromkeys(PEAKS, 7))]
    skipped = 0 if whole else {"sglang": 1, "vllm": 2}[framework]
    lines = [*former, *before[skipped:], *map(words, ordinary(40))]
    load = load_of(tmp_path, lines)

    assert load["peak_running"]["value"] == 7
    assert load["peak_kv_usage"]["value"] == 0.16
    if whole:
        older = load_of(tmp_path, lines, run=0)
        assert older["peak_running"]["value"] == 200
        assert older["peak_running"]["evidence"] == ["log0:8"]


@pytest.mark.parametrize(("framework", "name"), WORDINGS, ids=map(" ".join, WORDINGS))
def test_batches_alone_are_a_log_of_a_server(tmp_path: Path, framework: str, name: str) -> None:
    """Nothing of its start is there: no limit, no memory, and the load all the same."""
    lines = map(WORDINGS[framework, name], with_peaks(ordinary(20), {"running": 11, "usage": 4}))
    report = report_on(tmp_path, list(lines))

    load = report["load"]
    assert report["deployment"]["framework"]["value"] == framework
    assert report["outcome"]["status"] == "ready"
    assert load["peak_running"]["value"] == 200
    assert load["peak_running"]["evidence"] == ["log0:12"]
    assert load["peak_kv_usage"]["evidence"] == ["log0:5"]
    assert is_unknown(load["planned"])
    assert load["summary"] == "no limit is known, seen 200 running, the pool used up to 97 %"
    assert is_unknown(report["kv_pool"]["tokens"])
    assert report["ranks"] == []


def test_a_start_without_batches_has_no_load(tmp_path: Path) -> None:
    assert load_of(tmp_path, SGLANG_START) is None
    assert load_of(tmp_path, VLLM_START) is None


# --- beside what was planned ------------------------------------------


def test_the_load_stands_beside_the_limit(tmp_path: Path) -> None:
    lines = [*said(as_repr(), *start()[:-1], limits(400_000, 1234), UP)]
    lines += map(SGLANG["0.5.5 decode"], with_peaks(ordinary(9), {"running": 4, "usage": 4}))
    report = report_on(tmp_path, lines)

    assert report["load"]["planned"] == report["concurrency"]["request_limit"]
    assert report["load"]["planned"]["value"] == 1234
    summary = "planned 1,234, seen 200 running, the pool used up to 97 %"
    assert report["load"]["summary"] == summary


def test_the_load_of_vllm_stands_beside_the_sequences(tmp_path: Path) -> None:
    lines = [*VLLM_START, *map(VLLM["0.8.3"], with_peaks(ordinary(9), {"running": 4}))]
    load = load_of(tmp_path, lines)

    assert load["planned"]["value"] == 256
    assert load["summary"] == "planned 256, seen 200 running, the pool used up to 16 %"


def test_a_retraction_alone_is_a_load(tmp_path: Path) -> None:
    load = load_of(tmp_path, [*SGLANG_START, *said(RETRACTED["0.5.2"].format(n=3, at=0))])

    assert load["retracted"]["value"] == 3
    assert is_unknown(load["peak_running"])
    assert load["summary"] == "planned 2,048, no count of running requests is printed"


def test_the_text_has_the_peaks_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    batches = with_peaks(ordinary(30), {"running": 3, "waiting": 5, "usage": 7, "speed": 9})
    lines = [*SGLANG_START, *map(SGLANG["0.5.5 decode"], batches)]
    path.write_text("\n".join(lines) + "\n")
    text = TextRenderer().render(analyse([str(path)], Options(), shipped_plugins()))

    section = text[text.index("Load while serving") :].split("\n\n")[0]
    first = len(SGLANG_START) + 1
    for words in (
        f"200 requests  [:{first + 3}]",
        f"77 requests  [:{first + 5}]",
        f"97 % of the pool  [:{first + 7}]",
        f"9,876.50 tokens/s  [:{first + 9}]",
    ):
        assert words in section
    assert max(map(len, text.splitlines())) <= 100


# --- how it is read ---------------------------------------------------


def restarted() -> list[str]:
    """Two starts with batches of both kinds, retractions, and lines that nobody knows."""
    lines: list[str] = []
    for turn in range(2):
        lines += SGLANG_START
        places = {"running": 11 + turn, "waiting": 13, "usage": 22, "speed": 3}
        for at, batch in enumerate(with_peaks(ordinary(40), places)):
            lines.append(SGLANG["0.5.5 decode"](batch))
            lines.append(SGLANG["0.5.5 prefill"](attrs.evolve(batch, running=batch.running + 1)))
            if at % 9 == 0:
                lines += said(RETRACTED["0.5.2"].format(n=at, at=at))
            if at % 7 == 0:
                lines += ["", "INFO:     127.0.0.1:1234 - POST /generate HTTP/1.1 200 OK"]
    return lines


@pytest.mark.parametrize("run", [0, 1])
@pytest.mark.parametrize("size", [17, 64, 97, 200, 333, 1_000, 4_096, 65_536])
@pytest.mark.parametrize("small", [sources.SMALL, 500], ids=["kept", "streamed"])
def test_where_chunks_end_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: int, size: int, small: int
) -> None:
    expected = load_of(tmp_path, restarted(), run=run)
    assert expected["peak_running"]["value"] == 201
    monkeypatch.setattr(sources, "CHUNK", size)
    monkeypatch.setattr(sources, "SMALL", small)

    assert load_of(tmp_path, restarted(), run=run) == expected


@pytest.mark.parametrize("place", [0, 900, 1_799])
def test_a_peak_is_kept_whatever_else_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """Chunks of a line each: far more lines are looked at than are kept of one worker."""
    monkeypatch.setattr(sources, "CHUNK", 160)
    batches = with_peaks(ordinary(1_800), dict.fromkeys(PEAKS, place))
    load = load_of(tmp_path, [*SGLANG_START, *map(SGLANG["0.4.6 decode"], batches)])

    assert load["peak_running"]["value"] == 200
    assert load["peak_kv_usage"]["evidence"] == [f"log0:{len(SGLANG_START) + 1 + place}"]
    assert load["last_kv_usage"]["evidence"] == [f"log0:{len(SGLANG_START) + 1_800}"]


@pytest.mark.parametrize("ending", ["\r\n", "\n"], ids=["CR LF", "LF"])
@pytest.mark.parametrize("colour", ["", "\x1b[36m"], ids=["plain", "coloured"])
def test_ends_of_lines_and_colours_change_nothing(tmp_path: Path, ending: str, colour: str) -> None:
    lines = restarted()
    expected = load_of(tmp_path, lines, run=1)
    plain = f"{colour}{{}}\x1b[0m" if colour else "{}"
    path = tmp_path / "other.log"
    path.write_bytes("".join(plain.format(line) + ending for line in lines).encode())
    report = analyse([str(path)], Options(run=1), shipped_plugins())

    assert report.load is not None
    assert report.load.peak_running.evidence == tuple(expected["peak_running"]["evidence"])
    assert amount_of(report.load.last_kv_usage) == expected["last_kv_usage"]["value"]


def test_lines_of_requests_are_looked_at_once(tmp_path: Path) -> None:
    """A batch that is glued to a progress bar is a batch."""
    bar = "Capturing batches (avail_mem=11.18 GB): 100%|###| 23/23\r"
    lines = [*SGLANG_START, bar + SGLANG["0.4.6 decode"](Batch(running=44, usage="0.44"))]
    load = load_of(tmp_path, lines)

    assert load["peak_running"]["value"] == 44
    assert load["last_kv_usage"]["value"] == 0.44


# --- against all lines ------------------------------------------------

SAID = st.builds(
    Batch,
    running=st.integers(0, 300),
    waiting=st.integers(0, 300),
    usage=st.integers(0, 100).map(lambda n: f"{n / 100:.2f}"),
    speed=st.integers(0, 999_999).map(lambda n: f"{n / 100:.2f}"),
)
SPEAKING = st.tuples(
    SAID, st.sampled_from(["0.5.5 decode", "0.5.5 prefill", "0.4.6 decode", "0.4.3 prefill"])
)
OTHERS = st.sampled_from(
    [
        "",
        "INFO:     127.0.0.1:1234 - POST /generate HTTP/1.1 200 OK",
        said("KV cache pool is full. Retract requests. #retracted_reqs: 3, #new", at="12:00")[0],
    ]
)


def clocked(line: str, at: int) -> str:
    """With a time of its own: the same words in the same second are one line, written twice."""
    return line.replace("12:00:00", f"{12 + at // 60}:{at % 60:02d}:00", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("load")


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.lists(st.one_of(SPEAKING, OTHERS), min_size=1, max_size=60),
    size=st.sampled_from([50, 150, 600, 262_144]),
    at_start=st.booleans(),
)
def test_peaks_are_those_of_all_lines(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[tuple[Batch, str] | str],
    size: int,
    at_start: bool,
) -> None:
    head = SGLANG_START if at_start else SGLANG_START[-1:]
    texts = (row if isinstance(row, str) else SGLANG[row[1]](row[0]) for row in rows)
    lines = [*head, *(clocked(line, at) for at, line in enumerate(texts))]
    batches = {len(head) + at: row[0] for at, row in enumerate(rows, 1) if not isinstance(row, str)}
    decodes = {
        len(head) + at: row[0]
        for at, row in enumerate(rows, 1)
        if not isinstance(row, str) and "decode" in row[1]
    }
    with monkeypatch.context() as patch:
        patch.setattr(sources, "CHUNK", size)
        load = load_of(folder, lines)

    retracted = 3 * sum(isinstance(row, str) and "#retracted" in row for row in rows)
    if not batches and not retracted:
        assert load is None
        return
    assert load["retracted"]["value"] == (retracted or None)
    if not batches:
        assert is_unknown(load["peak_running"])
        return
    for name, field, said_by in (
        ("peak_running", "running", batches),
        ("peak_waiting", "waiting", batches),
        ("peak_kv_usage", "usage", batches),
        ("peak_throughput", "speed", decodes),
    ):
        if not said_by:
            assert is_unknown(load[name])
            continue
        numbers = {line: Decimal(str(getattr(b, field))) for line, b in said_by.items()}
        assert load[name]["value"] == float(max(numbers.values()))
        (line,) = load[name]["evidence"]
        assert numbers[int(line.removeprefix("log0:"))] == max(numbers.values())
    last = max(batches)
    assert load["last_kv_usage"]["value"] == float(batches[last].usage or "")
    assert load["last_kv_usage"]["evidence"] == [f"log0:{last}"]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 300),
            st.integers(0, 300),
            st.integers(0, 1000),
            st.integers(0, 9999),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_peaks_of_engines_are_those_of_all_lines(
    folder: Path, rows: list[tuple[int, int, int, int, int]]
) -> None:
    """Lines with preemptions and without them, in any order."""
    lines = list(VLLM_START)
    for at, (running, waiting, thousandths, speed, lost) in enumerate(rows):
        between = f"Preemptions: {lost}, " if lost else ""
        batch = Batch(
            running=running,
            waiting=waiting,
            usage=str(Decimal(thousandths) / 1000),
            speed=f"{speed / 10:.1f}",
        )
        line = engine("Engine 000: ", between, PREFIX)(batch)
        lines.append(line.replace("10:00:00", f"10:{at:02d}:00"))
    load = load_of(folder, lines)

    columns = list(zip(*rows, strict=True))
    assert load["peak_running"]["value"] == max(columns[0])
    assert load["peak_waiting"]["value"] == max(columns[1])
    assert load["peak_kv_usage"]["value"] == pytest.approx(max(columns[2]) / 1000)
    assert load["last_kv_usage"]["value"] == pytest.approx(columns[2][-1] / 1000)
    assert load["peak_throughput"]["value"] == pytest.approx(max(columns[3]) / 10)
    assert load["preempted"]["value"] == (sum(columns[4]) or None)


def test_a_start_that_died_has_the_load_of_the_one_before_it_left_alone(tmp_path: Path) -> None:
    """A server that was restarted and did not come up: what is reported is the death."""
    died = said(
        as_repr(),
        *weights(78.00, 70.00),
        "Scheduler hit an exception: Traceback (most recent call last):",
    )
    error = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    lines = [*SGLANG_START, *map(SGLANG["0.4.6 decode"], ordinary(9)), *died, error]
    report = report_on(tmp_path, lines)

    assert report["outcome"]["failure"]["kind"] == "no_kv_memory"
    assert report["load"] is None
    assert load_of(tmp_path, lines, run=0)["peak_running"]["value"] == 7
