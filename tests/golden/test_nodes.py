"""Several logs are the nodes of one deployment, and device readings go with them.

Each node of a server writes a log of its own. Together they show every rank; none of them may be
left out in silence, and two servers that have nothing to do with one another stay two. Figures are
made up, and what must come out is arithmetic that stands in the test.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.errors import ExitCode, UsageError
from capacity_core.rendering.json import JsonRenderer
from capacity_core.rendering.text import TextRenderer

from . import vllm_lines as vllm
from .running import (
    Report,
    by_rank,
    found,
    gib,
    held,
    is_unknown,
    memory,
    rank_of,
    shipped_plugins,
    timeline,
)
from .sglang_lines import (
    TRACEBACK,
    UP,
    as_dict,
    as_repr,
    graph,
    limits,
    new_graph,
    pool,
    pools_end,
    said,
    typed,
    weights,
)

Log = list[str]


def report_on_nodes(
    folder: Path, *logs: Sequence[str], smi: Sequence[str] = (), **options: Any
) -> Report:
    """The report on several logs, and on a device reading for each of them."""
    paths = [folder / f"node{number}.log" for number in range(len(logs))]
    for path, lines in zip(paths, logs, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    readings = [folder / f"smi{number}.txt" for number in range(len(smi))]
    for path, text in zip(readings, smi, strict=True):
        path.write_text(text)
    asked = Options(smi=tuple(map(str, readings)), **options)
    report = analyse(list(map(str, paths)), asked, shipped_plugins())
    parsed: Report = json.loads(JsonRenderer().render(report))
    return parsed


def figures(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything that a report says, but the ids of lines and what stands in them."""
    if isinstance(node, dict):
        for key, child in node.items():
            if key not in ("inputs", "evidence", "evidence_omitted", "first", "last", "tool"):
                yield from figures(child, f"{path}.{key}")
    elif isinstance(node, list):
        for number, child in enumerate(node):
            yield from figures(child, f"{path}[{number}]")
    else:
        yield path, node


def cited(node: Any) -> Iterator[str]:
    """The id of every line that a report cites."""
    if isinstance(node, dict):
        yield from node.get("evidence") or () if "value" in node or "message" in node else ()
        for key, child in node.items():
            if key != "evidence":
                yield from cited(child)
    elif isinstance(node, list):
        for child in node:
            yield from cited(child)


# --- SGLang -----------------------------------------------------------

# A rank of 78 GiB free: weights that tell it from its neighbours, 46 of pools, 1 of graphs.
POOLS = 46.00


def weight_of(tp: int) -> float:
    return 12.00 + tp / 4


def rank_lines(tp: int, tokens: int = 400_000, prefix: str = "", at: str = "10:00") -> Log:
    used = weight_of(tp)
    free = 78.00 - used - POOLS
    messages = [
        *weights(78.00, used),
        pool(tokens, POOLS / 2),
        pools_end(free),
        *graph(free, 1.00),
    ]
    return said(*messages, rank=prefix or f" TP{tp}", at=at)


def node(
    number: int,
    ranks: Sequence[int],
    *,
    tokens: int = 400_000,
    at: str = "10:00",
    limit: bool = True,
    **arguments: object,
) -> Log:
    """One node of two: only rank 0 prints the limits, only its node that the server is up."""
    sizes = {"tp_size": 2 * len(ranks), "nnodes": 2, "node_rank": number} | arguments
    lines = said(as_repr(**sizes), at=at)
    for tp in ranks:
        lines += rank_lines(tp, tokens, at=at)
    if number == 0 and limit:
        free = 78.00 - weight_of(0) - POOLS - 1.00
        lines += said(limits(tokens, free=free), rank=" TP0", at=at) + said(UP, at=at)
    return lines


def names(ranks: Sequence[int]) -> list[str]:
    return [f"DP0/PP0/TP{tp}" for tp in ranks]


@pytest.mark.parametrize("each", [2, 8], ids=["4 ranks", "16 ranks"])
def test_two_nodes_are_one_run_with_the_ranks_of_both(tmp_path: Path, each: int) -> None:
    ranks = range(2 * each)
    report = report_on_nodes(tmp_path, node(0, ranks[:each]), node(1, ranks[each:]))

    assert [run["inputs"] for run in report["runs"]] == [["log0", "log1"]]
    assert (report["runs"][0]["first"], report["runs"][0]["status"]) == ("log0:1", "ready")
    assert [rank["id"] for rank in report["ranks"]] == names(ranks)
    assert by_rank(report, "weights") == {
        name: weight_of(tp) for tp, name in enumerate(names(ranks))
    }
    assert by_rank(report, "kv_pool") == dict.fromkeys(names(ranks), POOLS)
    assert not found(report, "log-not-in-report")


def test_graphs_of_the_second_node_are_no_less_than_those_of_the_first(tmp_path: Path) -> None:
    """Its captures stand behind the line, in the first log, that says that the server is up."""
    report = report_on_nodes(tmp_path, node(0, (0, 1)), node(1, (2, 3)))

    assert by_rank(report, "cuda_graph") == dict.fromkeys(names(range(4)), 1.00)
    free = 78.00 - weight_of(3) - POOLS
    assert timeline(report, "DP0/PP0/TP3")[-2:] == [
        ("before_graphs", gib(free)),
        ("after_graphs", gib(free - 1.00)),
    ]


def test_every_line_that_is_cited_is_of_the_log_that_it_stands_in(tmp_path: Path) -> None:
    logs = node(0, (0, 1)), node(1, (2, 3))
    report = report_on_nodes(tmp_path, *logs)

    for tp, log in ((0, "log0"), (1, "log0"), (2, "log1"), (3, "log1")):
        value = memory(report, "weights", f"DP0/PP0/TP{tp}")
        (line,) = value["evidence"]
        name, _, number = line.partition(":")
        assert name == log
        assert f"mem usage={weight_of(tp):.2f} GB" in logs[int(log[-1])][int(number) - 1]
    texts = {row["id"]: row["text"] for row in report["evidence"]}
    ids = [line for line in cited(report) if line.startswith("log") and ":" in line]
    assert {line.partition(":")[0] for line in ids} == {"log0", "log1"}
    for line in ids:
        log, _, number = line.partition(":")
        assert texts[line][:60] in logs[int(log[-1])][int(number) - 1]


def test_the_text_says_which_log_a_line_is_of(tmp_path: Path) -> None:
    paths = [tmp_path / "node0.log", tmp_path / "node1.log"]
    for path, lines in zip(paths, (node(0, (0, 1)), node(1, (2, 3))), strict=True):
        path.write_text("\n".join(lines) + "\n")
    report = analyse(list(map(str, paths)), Options(rank="TP2"), shipped_plugins())
    text = TextRenderer().render(report)

    assert "[log1:3]" in text, "the end of TP2's weights"
    assert "[log0:14]" in text, "the limits"
    assert "[:" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_one_node_alone_is_half_a_deployment(tmp_path: Path) -> None:
    """The second node's pools are a bound: what the others hold may be less."""
    report = report_on_nodes(tmp_path, node(1, (2, 3)))

    assert [rank["id"] for rank in report["ranks"]] == names((2, 3))
    tokens = report["kv_pool"]["tokens"]
    assert (tokens["value"], tokens["at_most"]) == (None, 400_000)


def test_tokens_are_the_least_of_all_nodes(tmp_path: Path) -> None:
    """Without the limits, 380,000 of the second node and 400,000 of the first: 380,000."""
    first = node(0, (0, 1), tokens=400_000, limit=False)
    second = node(1, (2, 3), tokens=380_000)
    report = report_on_nodes(tmp_path, first, second)

    assert report["kv_pool"]["tokens"]["value"] == 380_000
    assert report["kv_pool"]["deployment_tokens"]["value"] == 380_000


def test_the_limits_of_the_first_node_hold_for_the_second(tmp_path: Path) -> None:
    report = report_on_nodes(tmp_path, node(0, (0, 1)), node(1, (2, 3)))

    tokens = report["kv_pool"]["tokens"]
    assert (tokens["value"], tokens["origin"]) == (400_000, "printed")
    assert tokens["evidence"] == ["log0:14"]
    assert report["concurrency"]["request_limit"]["value"] == 2048


@pytest.mark.parametrize("written", [as_repr, as_dict], ids=["0.5.12", "0.5.21"])
def test_workers_of_attention_on_two_nodes_add_up(tmp_path: Path, written: Any) -> None:
    """Each worker prints its own limits: 4 of 100,000 + 10,000 · DP."""

    def log(number: int, workers: Sequence[int]) -> Log:
        lines = said(
            written(tp_size=4, dp_size=4, enable_dp_attention=True, nnodes=2, node_rank=number)
        )
        for dp in workers:
            tokens = 100_000 + 10_000 * dp
            lines += rank_lines(dp, tokens, f" DP{dp} TP{dp}")
            lines += said(limits(tokens, 64, free=5.00), rank=f" DP{dp} TP{dp}")
        return lines + (said(UP) if number == 0 else [])

    report = report_on_nodes(tmp_path, log(0, (0, 1)), log(1, (2, 3)))

    shown = {worker["dp"]: worker["tokens"]["value"] for worker in report["kv_pool"]["workers"]}
    assert shown == {0: 100_000, 1: 110_000, 2: 120_000, 3: 130_000}
    assert report["kv_pool"]["tokens"]["value"] == 100_000
    assert report["kv_pool"]["deployment_tokens"]["value"] == 100_000 + 110_000 + 120_000 + 130_000
    row = report["concurrency"]["rows"][0]
    # Of 4,096 tokens 24, 26, 29 and 31 fit.
    assert row["deployment_max_concurrent"]["value"] == sum(
        tokens // 4096 for tokens in shown.values()
    )


def test_stages_on_two_nodes_are_ranks_of_their_own(tmp_path: Path) -> None:
    def log(number: int) -> Log:
        lines = said(as_repr(tp_size=2, pp_size=2, nnodes=2, node_rank=number))
        for tp in (0, 1):
            lines += rank_lines(2 * number + tp, 400_000 - number, f" PP{number} TP{tp}")
        limit = said(limits(399_999, free=5.00), rank=" PP0 TP0") + said(UP)
        return lines + (limit if number == 0 else [])

    report = report_on_nodes(tmp_path, log(0), log(1))

    assert by_rank(report, "weights") == {
        f"DP0/PP{pp}/TP{tp}": weight_of(2 * pp + tp) for pp in (0, 1) for tp in (0, 1)
    }
    assert report["kv_pool"]["tokens"]["value"] == 399_999
    assert report["deployment"]["parallel"]["pipeline"]["value"] == 2


def test_a_draft_models_lines_on_every_node_stay_the_drafts(tmp_path: Path) -> None:
    def log(number: int, ranks: Sequence[int]) -> Log:
        lines = said(as_repr(tp_size=4, nnodes=2, node_rank=number, speculative_algorithm="EAGLE"))
        for tp in ranks:
            messages = [
                *weights(78.00, 16.00),
                *weights(62.00, 2.00, "DeepseekV3ForCausalLMNextN"),
                typed(300_000, 20.00),
                pools_end(20.00),
                typed(300_000, 0.50),
                pools_end(19.00),
                *new_graph(19.00, 1.50, "target verify CUDA graph"),
            ]
            lines += said(*messages, rank=f" TP{tp}")
        return lines

    report = report_on_nodes(tmp_path, log(0, (0, 1)), log(1, (2, 3)))

    assert by_rank(report, "weights") == dict.fromkeys(names(range(4)), 18.00)
    assert by_rank(report, "kv_pool") == dict.fromkeys(names(range(4)), 41.00)
    assert by_rank(report, "cuda_graph") == dict.fromkeys(names(range(4)), 1.50)


# --- restarts ---------------------------------------------------------


def dead(number: int, ranks: Sequence[int], at: str = "09:00") -> Log:
    """A start that ended among the weights, of another size."""
    lines = said(as_repr(tp_size=2 * len(ranks), nnodes=2, node_rank=number), at=at)
    for tp in ranks:
        lines += said(*weights(70.00, 40.00), rank=f" TP{tp}", at=at)
    return lines + said("Received sigquit from a child process.", at=at)


def inputs_of(report: Report) -> list[list[str]]:
    return [run["inputs"] for run in report["runs"]]


@pytest.mark.parametrize("restarted", [0, 1])
def test_a_node_that_was_restarted_is_joined_with_its_last_start(
    tmp_path: Path, restarted: int
) -> None:
    logs = [node(0, (0, 1)), node(1, (2, 3))]
    logs[restarted] = dead(restarted, ((0, 1), (2, 3))[restarted]) + logs[restarted]
    report = report_on_nodes(tmp_path, *logs)

    assert inputs_of(report) == [[f"log{restarted}"], ["log0", "log1"]]
    assert [run["index"] for run in report["runs"]] == [0, 1]
    assert report["selected_run"] == 1
    assert by_rank(report, "weights") == {
        name: weight_of(tp) for tp, name in enumerate(names(range(4)))
    }
    assert report["outcome"]["status"] == "ready"
    assert not found(report, "log-not-in-report")


def test_starts_of_both_nodes_are_joined_from_the_last_backwards(tmp_path: Path) -> None:
    """Three starts of the first and two of the second: the oldest stays alone."""
    first = dead(0, (0, 1), "08:00") + dead(0, (0, 1)) + node(0, (0, 1))
    second = dead(1, (2, 3)) + node(1, (2, 3))
    report = report_on_nodes(tmp_path, first, second)

    assert inputs_of(report) == [["log0"], ["log0", "log1"], ["log0", "log1"]]
    assert [run["status"] for run in report["runs"]] == ["failed", "failed", "ready"]
    assert report["selected_run"] == 2
    assert held(report, "weights", "DP0/PP0/TP2") == weight_of(2)


def test_an_older_start_of_both_nodes_can_be_asked_for(tmp_path: Path) -> None:
    first = dead(0, (0, 1)) + node(0, (0, 1))
    second = dead(1, (2, 3)) + node(1, (2, 3))
    report = report_on_nodes(tmp_path, first, second, run=0)

    assert by_rank(report, "weights") == dict.fromkeys(names(range(4)), 40.00)
    assert report["outcome"]["status"] == "failed"


def test_an_older_start_alone_is_half_a_deployment(tmp_path: Path) -> None:
    first = dead(0, (0, 1)) + node(0, (0, 1))
    report = report_on_nodes(tmp_path, first, node(1, (2, 3)), run=0)

    assert [rank["id"] for rank in report["ranks"]] == names((0, 1))
    (said_so,) = found(report, "log-not-in-report")
    assert said_so["evidence"] == ["log1"]


# --- vLLM -------------------------------------------------------------


def engine(dp: int) -> Log:
    """A data-parallel engine, alone on its device: blocks of 16 tokens, 20,000 and more of them."""
    process = f"EngineCore_DP{dp} pid={20 + dp}"
    return [
        vllm.loaded(f"{14 + dp}.24", process),
        vllm.budget(f"{50 - dp}.5", process),
        *vllm.plain(20_000 + 1_000 * dp, process=process),
        vllm.captured(f"0.{50 + dp}", process),
    ]


def vllm_node(number: int, engines: Sequence[int]) -> Log:
    head = [vllm.asked(data_parallel_size=4)] if number == 0 else []
    first = f"EngineCore_DP{engines[0]} pid={20 + engines[0]}"
    lines = [*head, vllm.said(vllm.config("0.17.1", data=4), first)]
    for dp in engines:
        lines += engine(dp)
    return lines + ([vllm.SERVES] if number == 0 else [])


def test_data_parallel_engines_on_two_nodes_add_up(tmp_path: Path) -> None:
    """20,000 … 23,000 blocks."""
    report = report_on_nodes(tmp_path, vllm_node(0, (0, 1)), vllm_node(1, (2, 3)))

    assert inputs_of(report) == [["log0", "log1"]]
    tokens = {worker["dp"]: worker["tokens"]["value"] for worker in report["kv_pool"]["workers"]}
    assert tokens == {dp: 16 * (20_000 + 1_000 * dp) for dp in range(4)}
    assert report["kv_pool"]["tokens"]["value"] == 320_000
    total = 16 * (20_000 + 21_000 + 22_000 + 23_000)
    assert report["kv_pool"]["deployment_tokens"]["value"] == total
    assert by_rank(report, "weights") == {f"DP{dp}/PP0/TP0": gib(14.24 + dp) for dp in range(4)}
    assert by_rank(report, "kv_pool") == {f"DP{dp}/PP0/TP0": 50.5 - dp for dp in range(4)}
    graphs = {rank: gib(0.50 + dp / 100) for dp, rank in enumerate(by_rank(report, "weights"))}
    assert by_rank(report, "cuda_graph") == graphs
    assert not found(report, "log-not-in-report")
    assert not found(report, "servers-mixed")


def test_half_of_the_engines_are_at_least_their_sum(tmp_path: Path) -> None:
    tokens = report_on_nodes(tmp_path, vllm_node(0, (0, 1)))["kv_pool"]["deployment_tokens"]

    assert (tokens["value"], tokens["at_least"]) == (None, 16 * (20_000 + 21_000))


def test_stages_of_vllm_on_two_nodes(tmp_path: Path) -> None:
    """The second node's log has its workers alone: the engine sits on the first."""

    def workers(pp: int) -> Log:
        lines: Log = []
        for tp in (0, 1):
            process = f"Worker_PP{pp}_TP{tp} pid={100 + 10 * pp + tp}"
            lines += [
                vllm.loaded(f"{20 + 2 * pp + tp}.5", process),
                vllm.budget(f"{40 - 2 * pp - tp}.25", process),
            ]
        return lines

    first = [
        vllm.asked(tensor_parallel_size=2, pipeline_parallel_size=2, nnodes=2),
        vllm.said(vllm.config("0.10.2", tensor=2, pipeline=2)),
        *workers(0),
        # One pair for each worker, before the least of them is taken.
        *(line for blocks in (20_200, 20_100, 20_050, 20_000) for line in vllm.plain(blocks)),
        vllm.SERVES,
    ]
    report = report_on_nodes(tmp_path, first, workers(1))

    assert inputs_of(report) == [["log0", "log1"]]
    assert by_rank(report, "weights") == {
        f"DP0/PP{pp}/TP{tp}": 20.5 + 2 * pp + tp for pp in (0, 1) for tp in (0, 1)
    }
    assert report["kv_pool"]["size"]["value"] == 40.25 - 3
    assert report["kv_pool"]["tokens"]["value"] == 320_000


@pytest.mark.parametrize("pids", [(20, 21), (20, 20)], ids=["other pids", "the same pid"])
def test_a_capture_that_measured_is_none_on_the_second_node_either(
    tmp_path: Path, pids: tuple[int, int]
) -> None:
    """From 0.18 profiling captures the graphs once before the pool is sized, in the same words:
    0.21 GiB were measured, 0.61 are held. Containers that are alike count their processes alike."""

    def log(number: int) -> Log:
        process = f"EngineCore_DP{number} pid={pids[number]}"
        return [
            vllm.said(vllm.config("0.33.0", data=2), process),
            vllm.loaded("14.24", process),
            vllm.captured("0.21", process),
            vllm.said("Estimated CUDA graph memory: 0.86 GiB total", process),
            vllm.budget("50.5", process),
            vllm.sized_in_one(320_000, 8192, 39.06, process),
            vllm.captured("0.61", process),
        ]

    report = report_on_nodes(tmp_path, [vllm.asked(data_parallel_size=2), *log(0)], log(1))

    assert by_rank(report, "cuda_graph") == {"DP0/PP0/TP0": 0.61, "DP1/PP0/TP0": 0.61}


# --- what is not one deployment ---------------------------------------


def alone(model: str = "/models/a", used: float = 16.00, **arguments: object) -> Log:
    messages = [
        as_repr(model_path=model, **arguments),
        *weights(78.00, used),
        pool(400_000, 24.00),
        pools_end(30.00 - used),
        limits(400_000),
        UP,
    ]
    return said(*messages)


def test_two_servers_of_one_device_each_are_two(tmp_path: Path) -> None:
    report = report_on_nodes(tmp_path, alone(used=16.00), alone(used=20.00))

    assert inputs_of(report) == [["log0"], ["log1"]]
    assert by_rank(report, "weights") == {"DP0/PP0/TP0": 20.00}
    (said_so,) = found(report, "log-not-in-report")
    assert said_so["severity"] == "warning"
    assert said_so["evidence"] == ["log0"]
    assert "node0.log" in said_so["message"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["died last", "died first"])
def test_a_server_that_died_before_it_had_a_rank_is_no_node_of_another(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    """The same model twice, each with nnodes=1: one is up, the other found its port taken."""
    second = said(as_repr(nnodes=1, port=30_000))
    second += [TRACEBACK, "OSError: [Errno 98] Address already in use"]
    logs = (alone(nnodes=1), second)
    report = report_on_nodes(tmp_path, *(logs[number] for number in order))

    assert inputs_of(report) == [["log0"], ["log1"]]
    statuses = [run["status"] for run in report["runs"]]
    assert statuses == [("ready", "failed")[number] for number in order]


def test_the_other_server_can_be_asked_for(tmp_path: Path) -> None:
    report = report_on_nodes(tmp_path, alone(used=16.00), alone(used=20.00), run=0)

    assert by_rank(report, "weights") == {"DP0/PP0/TP0": 16.00}
    (said_so,) = found(report, "log-not-in-report")
    assert said_so["evidence"] == ["log1"]


@pytest.mark.parametrize(
    "difference",
    [{"model_path": "/models/b"}, {"tp_size": 8}, {"pp_size": 2}],
    ids=["model", "tensor", "pipeline"],
)
def test_nodes_that_differ_are_of_two_deployments(
    tmp_path: Path, difference: dict[str, object]
) -> None:
    second = node(1, (2, 3), **difference)
    report = report_on_nodes(tmp_path, node(0, (0, 1)), second)

    assert inputs_of(report) == [["log0"], ["log1"]]
    assert [rank["id"] for rank in report["ranks"]] == names((2, 3))
    assert [f["evidence"] for f in found(report, "log-not-in-report")] == [["log0"]]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["vLLM last", "SGLang last"])
def test_two_frameworks_are_no_deployment(tmp_path: Path, order: tuple[int, int]) -> None:
    logs = (node(0, (0, 1)), vllm_node(1, (2, 3)))
    report = report_on_nodes(tmp_path, *(logs[number] for number in order))

    assert [run["framework"] for run in report["runs"]] == [
        ("sglang", "vllm")[number] for number in order
    ]
    assert report["deployment"]["framework"]["value"] == ("sglang", "vllm")[order[-1]]
    assert [f["evidence"] for f in found(report, "log-not-in-report")] == [["log0"]]


def test_a_log_of_another_thing_is_named(tmp_path: Path) -> None:
    """One of three files has not a line of a server."""
    report = report_on_nodes(tmp_path, node(0, (0, 1)), ["Dear diary,"], node(1, (2, 3)))

    assert inputs_of(report) == [["log0", "log2"]]
    assert [f["evidence"] for f in found(report, "log-not-in-report")] == [["log1"]]
    assert len(report["ranks"]) == 4


def test_the_same_log_twice_is_one_server(tmp_path: Path) -> None:
    report = report_on_nodes(tmp_path, node(0, (0, 1)), node(0, (0, 1)))

    assert inputs_of(report) == [["log0"], ["log1"]]
    assert [rank["id"] for rank in report["ranks"]] == names((0, 1))
    assert report["kv_pool"]["deployment_tokens"]["value"] == 400_000


def test_one_deployment_and_a_server_beside_it(tmp_path: Path) -> None:
    report = report_on_nodes(tmp_path, alone("/models/b"), node(0, (0, 1)), node(1, (2, 3)))

    assert inputs_of(report) == [["log0"], ["log1", "log2"]]
    assert [rank["id"] for rank in report["ranks"]] == names(range(4))


# --- order ------------------------------------------------------------


def three_nodes() -> list[Log]:
    """Six workers of attention on three nodes; the third log was rotated, and has batches alone."""

    def log(number: int) -> Log:
        lines = said(
            as_repr(tp_size=6, dp_size=6, enable_dp_attention=True, nnodes=3, node_rank=number)
        )
        for dp in (2 * number, 2 * number + 1):
            lines += rank_lines(dp, 100_000 + 10_000 * dp, f" DP{dp} TP{dp}")
            lines += said(limits(100_000 + 10_000 * dp, 64, free=5.00), rank=f" DP{dp} TP{dp}")
        return lines + (said(UP) if number == 0 else [])

    def batch(running: int, usage: str) -> str:
        return (
            f"Decode batch. #running-req: {running}, #token: 9, token usage: {usage}, cuda graph: "
            f"True, gen throughput (token/s): {running}5.50, #queue-req: 0, "
        )

    return [
        log(0) + said(batch(3, "0.30"), rank=" DP0 TP0", at="11:00"),
        log(1) + said(batch(5, "0.50"), rank=" DP2 TP2", at="11:01"),
        said(batch(9, "0.90"), batch(4, "0.40"), rank=" DP4 TP4", at="11:02"),
    ]


def test_a_node_with_batches_alone_is_one_of_the_deployment(tmp_path: Path) -> None:
    report = report_on_nodes(tmp_path, *three_nodes())

    assert inputs_of(report) == [["log0", "log1", "log2"]]
    assert not found(report, "log-not-in-report")
    assert report["load"]["peak_running"]["value"] == 9
    assert report["load"]["peak_running"]["evidence"] == ["log2:1"]
    assert report["load"]["peak_kv_usage"]["value"] == 0.90
    # DP4 and DP5 print no tokens in what is left of their log.
    tokens = report["kv_pool"]["deployment_tokens"]
    assert (tokens["value"], tokens["at_least"]) == (None, 100_000 + 110_000 + 120_000 + 130_000)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3)))[1:], ids=str)
def test_the_order_of_three_files_changes_ids_alone(tmp_path: Path, order: tuple[int, ...]) -> None:
    logs = three_nodes()
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    expected = dict(figures(report_on_nodes(one, *logs)))
    report = dict(figures(report_on_nodes(other, *(logs[number] for number in order))))

    different = {path for path, value in expected.items() if report.get(path) != value}
    assert different - {".load.last_kv_usage.value"} == set()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_the_last_usage_is_the_latest_whatever_file_comes_last(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """0.40 at 11:02; 0.30 and 0.50 were before."""
    logs = three_nodes()
    report = report_on_nodes(tmp_path, *(logs[number] for number in order))

    assert report["load"]["last_kv_usage"]["value"] == 0.40


def died_on_the_second(at: str = "10:09") -> Log:
    """A node of which one rank ran out of memory among its weights."""
    lines = said(as_repr(tp_size=4, nnodes=2, node_rank=1))
    lines += said(*weights(78.00, weight_of(2)), rank=" TP2")
    lines += said(weights(40.00, 1.00)[0], rank=" TP3")
    lines += said(f"Scheduler hit an exception: {TRACEBACK}", rank=" TP3", at=at)
    return [*lines, f"torch.OutOfMemoryError: {ALLOCATOR}"]


ALLOCATOR = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 79.11 GiB of "
    "which 1.20 GiB is free. Process 7 has 77.90 GiB memory in use."
)
SIGQUIT = "Received sigquit from a child process. It usually means the child failed."


def waited() -> Log:
    """The node that waited for the one that died."""
    lines = said(as_repr(tp_size=4, nnodes=2, node_rank=0))
    for tp in (0, 1):
        lines += said(*weights(78.00, weight_of(tp)), rank=f" TP{tp}")
    return lines + said(SIGQUIT, at="10:10")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["died last", "died first"])
def test_a_node_that_died_is_the_failure_of_all(tmp_path: Path, order: tuple[int, int]) -> None:
    logs = (waited(), died_on_the_second())
    report = report_on_nodes(tmp_path, *(logs[number] for number in order))

    failure = report["outcome"]["failure"]
    assert report["outcome"]["status"] == "failed"
    assert failure["kind"] == "weights_out_of_memory"
    assert failure["stage"] == "before_weights"
    assert failure["rank"] == "DP0/PP0/TP3"
    # as_repr, begin and end of TP2, begin of TP3, the exception: its cause is line 6.
    assert failure["evidence"] == [f"log{order.index(1)}:6"]
    assert failure["short"]["value"] == gib(2.50 - 1.20)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["died last", "died first"])
def test_a_node_that_died_while_serving_died_of_a_batch(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    """Half an hour after the first node said that the server is up."""
    second = node(1, (2, 3))
    second += said(f"Scheduler hit an exception: {TRACEBACK}", rank=" TP3", at="10:30")
    logs = (node(0, (0, 1)), [*second, f"torch.OutOfMemoryError: {ALLOCATOR}"])
    failure = report_on_nodes(tmp_path, *(logs[number] for number in order))["outcome"]["failure"]

    assert failure["kind"] == "runtime_out_of_memory"
    assert failure["stage"] == "serving"
    assert failure["rank"] == "DP0/PP0/TP3"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["died last", "died first"])
def test_a_server_that_stops_because_of_another_node_hides_no_death(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    """An engine of the second node runs out; the server on the first one goes down with it."""
    stopped = [
        vllm.said("AsyncLLM output_handler failed.", "APIServer pid=1", "ERROR"),
        "(APIServer pid=1) INFO:     Shutting down",
        "(APIServer pid=1) INFO:     Waiting for application shutdown.",
        "(APIServer pid=1) INFO:     Application shutdown complete.",
    ]
    process = "EngineCore_DP2 pid=22"
    ran_out = [
        vllm.said("EngineCore encountered a fatal error.", process, "ERROR"),
        vllm.said(TRACEBACK, process, "ERROR"),
        vllm.said(f"torch.OutOfMemoryError: {ALLOCATOR}", process, "ERROR"),
    ]
    logs = ([*vllm_node(0, (0, 1)), *stopped], [*vllm_node(1, (2, 3)), *ran_out])
    failure = report_on_nodes(tmp_path, *(logs[number] for number in order))["outcome"]["failure"]

    assert failure["kind"] == "runtime_out_of_memory"
    assert failure["evidence"] == [f"log{order.index(1)}:{len(logs[1])}"]
    assert failure["rank"] == "DP2/PP0/TP0"


def bare_death(framework: str) -> tuple[Log, Log]:
    """A node that loaded its weights, and one that died of its own without a last word."""
    if framework == "sglang":
        first = said(as_repr(tp_size=2, nnodes=2, node_rank=0))
        first += said(*weights(78.00, 12.00), rank=" TP0")
        second = said(as_repr(tp_size=2, nnodes=2, node_rank=1))
        second += said(weights(40.00, 1.00)[0], rank=" TP1")
        return first, [*second, TRACEBACK, f"torch.OutOfMemoryError: {ALLOCATOR}"]
    one, other = ("Worker_PP0_TP0 pid=10", "Worker_PP1_TP0 pid=20")
    head = vllm.said(vllm.config("0.17.1", tensor=2, pipeline=2))
    return (
        [head, vllm.loaded("20.5", one), vllm.budget("40.1", one)],
        [
            vllm.loaded("20.75", other),
            vllm.said(TRACEBACK, other, "ERROR"),
            vllm.said(f"torch.OutOfMemoryError: {ALLOCATOR}", other, "ERROR"),
        ],
    )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["died last", "died first"])
@pytest.mark.parametrize(
    ("framework", "kind", "line"),
    [("sglang", "weights_out_of_memory", 4), ("vllm", "profiling_out_of_memory", 3)],
)
def test_what_another_node_goes_on_to_say_hides_no_death(
    tmp_path: Path, framework: str, kind: str, line: int, order: tuple[int, int]
) -> None:
    """Lines of another file are not behind the death, wherever that file stands."""
    logs = bare_death(framework)
    report = report_on_nodes(tmp_path, *(logs[number] for number in order))

    assert inputs_of(report) == [["log0", "log1"]]
    assert report["outcome"]["status"] == "failed"
    failure = report["outcome"]["failure"]
    assert (failure["kind"], failure["evidence"]) == (kind, [f"log{order.index(1)}:{line}"])


def test_an_engine_that_died_on_the_second_node_is_the_failure_of_all(tmp_path: Path) -> None:
    """It has not sized its pool, whatever its neighbours have done."""
    process = "EngineCore_DP3 pid=23"
    error = (
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine."
    )
    second = vllm_node(1, (2,))
    second += [vllm.loaded("78.24", process), vllm.budget("-1.43", process)]
    second += vllm.failed(error, process=process)
    for logs in ((vllm_node(0, (0, 1))[:-1], second), (second, vllm_node(0, (0, 1))[:-1])):
        failure = report_on_nodes(tmp_path, *logs)["outcome"]["failure"]
        assert (failure["kind"], failure["stage"]) == ("no_kv_memory", "after_weights")
        assert failure["rank"] == "DP3/PP0/TP0"
        assert failure["evidence"] == [f"log{logs.index(second)}:{len(second)}"]


# --- device readings --------------------------------------------------


def smi(*rows: tuple[int, int, int]) -> str:
    """Device number, used and free MiB."""
    head = "index, memory.used [MiB], memory.free [MiB]\n"
    return head + "".join(f"{n}, {used} MiB, {free} MiB\n" for n, used, free in rows)


def used_by(report: Report) -> dict[str, float | None]:
    return {
        rank["id"]: rank["device"] and rank["device"]["used"]["value"] for rank in report["ranks"]
    }


FIRST_SMI = smi((0, 72_000, 9_080), (1, 72_100, 8_980))
SECOND_SMI = smi((0, 72_200, 8_880), (1, 72_300, 8_780))


def test_the_kth_reading_belongs_to_the_kth_log(tmp_path: Path) -> None:
    report = report_on_nodes(
        tmp_path, node(0, (0, 1)), node(1, (2, 3)), smi=(FIRST_SMI, SECOND_SMI)
    )

    assert used_by(report) == dict(
        zip(names(range(4)), (72_000, 72_100, 72_200, 72_300), strict=True)
    )
    assert rank_of(report, "DP0/PP0/TP2")["device"]["used"]["evidence"] == ["smi1:2"]
    assert held(report, "used", "DP0/PP0/TP2") == gib(72_200 / 1024)
    assert held(report, "framework", "DP0/PP0/TP2") == gib((72_200 + 8_880) / 1024 - 78.00)
    kinds = [(row["id"], row["kind"]) for row in report["inputs"]]
    assert kinds == [("log0", "log"), ("log1", "log"), ("smi0", "smi"), ("smi1", "smi")]
    assumed = rank_of(report, "DP0/PP0/TP3")["device"]["used"]["assuming"]
    assert any("k-th" in why for why in assumed), "the order is an assumption"


def test_readings_follow_the_logs_when_both_are_turned_round(tmp_path: Path) -> None:
    report = report_on_nodes(
        tmp_path, node(1, (2, 3)), node(0, (0, 1)), smi=(SECOND_SMI, FIRST_SMI)
    )

    assert used_by(report) == dict(
        zip(names(range(4)), (72_000, 72_100, 72_200, 72_300), strict=True)
    )


def test_a_reading_of_one_node_is_no_reading_of_both(tmp_path: Path) -> None:
    """Two rows for four ranks: whose they are is not said."""
    report = report_on_nodes(tmp_path, node(0, (0, 1)), node(1, (2, 3)), smi=(FIRST_SMI,))

    assert used_by(report) == dict.fromkeys(names(range(4)))
    assert found(report, "device-rows-unmatched")


def test_a_reading_that_is_not_its_nodes_leaves_the_other_alone(tmp_path: Path) -> None:
    """The second log's devices have 24 GB, and 78 GiB were free on its ranks."""
    small = smi((0, 24_000, 560), (1, 24_000, 560))
    report = report_on_nodes(tmp_path, node(0, (0, 1)), node(1, (2, 3)), smi=(FIRST_SMI, small))

    assert used_by(report) == dict(zip(names(range(4)), (72_000, 72_100, None, None), strict=True))
    (said_so,) = found(report, "device-rows-contradict")
    assert any(line.startswith("smi1:") for line in said_so["evidence"])


def test_readings_of_a_log_that_is_not_reported_are_of_nobody(tmp_path: Path) -> None:
    report = report_on_nodes(
        tmp_path,
        alone(used=16.00),
        alone(used=20.00),
        smi=(smi((0, 70_000, 11_080)), smi((0, 71_000, 10_080))),
    )

    assert used_by(report) == {"DP0/PP0/TP0": 71_000}


def test_more_readings_than_logs_are_not_dropped_in_silence(tmp_path: Path) -> None:
    """The second one belongs to a second log, and there is none."""
    readings = (smi((0, 70_000, 11_080)), smi((0, 71_000, 10_080)))
    try:
        report = report_on_nodes(tmp_path, alone(), smi=readings)
    except UsageError:
        return
    assert found(report), "smi1 is not used, and nobody says so"


EIGHT = smi(*((number, 70_000 + 100 * number, 11_080 - 100 * number) for number in range(8)))


def two_visible() -> Log:
    """CUDA_VISIBLE_DEVICES=4,5: the server's ranks are 0 and 1, its devices are not."""
    return node(0, (0, 1), tp_size=2, nnodes=1)


@pytest.mark.parametrize(
    "text", ["4=TP0,5=TP1", " 5 = TP1 , 4 = TP0 ", "4=0,5=1", "smi0:4=TP0,5=1"]
)
def test_a_map_says_which_device_is_which_rank(tmp_path: Path, text: str) -> None:
    report = report_on_nodes(tmp_path, two_visible(), smi=(EIGHT,), smi_map=text)

    assert used_by(report) == {"DP0/PP0/TP0": 70_400, "DP0/PP0/TP1": 70_500}
    assert not found(report, "device-rows-unmatched")
    used = rank_of(report)["device"]["used"]
    assert used["evidence"] == ["smi0:6"]  # a header, then devices from 0 on
    assert "assuming" not in used, "what is said is not assumed"
    assert held(report, "framework") == gib((70_400 + 10_680) / 1024 - 78.00)


def test_without_a_map_eight_rows_for_two_ranks_are_nobodys(tmp_path: Path) -> None:
    report = report_on_nodes(tmp_path, two_visible(), smi=(EIGHT,))

    assert used_by(report) == {"DP0/PP0/TP0": None, "DP0/PP0/TP1": None}
    (said_so,) = found(report, "device-rows-unmatched")
    assert "--smi-map" in said_so["message"]


def test_a_map_of_one_rank_leaves_the_other_unknown(tmp_path: Path) -> None:
    report = report_on_nodes(tmp_path, two_visible(), smi=(EIGHT,), smi_map="5=TP1")

    assert used_by(report) == {"DP0/PP0/TP0": None, "DP0/PP0/TP1": 70_500}
    assert is_unknown(memory(report, "used"))
    assert is_unknown(memory(report, "framework"))


def test_a_map_over_two_nodes_names_the_file(tmp_path: Path) -> None:
    """Both machines count their devices from 0, and the ranks lie crosswise."""
    text = "smi0:1=TP0,smi0:0=TP1,smi1:1=TP2,smi1:0=TP3"
    report = report_on_nodes(
        tmp_path, node(0, (0, 1)), node(1, (2, 3)), smi=(FIRST_SMI, SECOND_SMI), smi_map=text
    )

    assert used_by(report) == dict(
        zip(names(range(4)), (72_100, 72_000, 72_300, 72_200), strict=True)
    )
    assert "assuming" not in rank_of(report, "DP0/PP0/TP2")["device"]["used"]


def test_the_map_of_a_device_whose_number_is_in_one_file_alone(tmp_path: Path) -> None:
    second = smi((4, 72_200, 8_880), (5, 72_300, 8_780))
    text = "0=TP0,1=TP1,4=TP2,5=TP3"
    report = report_on_nodes(
        tmp_path, node(0, (0, 1)), node(1, (2, 3)), smi=(FIRST_SMI, second), smi_map=text
    )

    assert used_by(report)["DP0/PP0/TP3"] == 72_300


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("9=TP0", ("9=TP0", "0, 1", "4")),
        ("4=TP7", ("--smi-map", "DP0/PP0/TP0, DP0/PP0/TP1, DP0/PP0/TP2, DP0/PP0/TP3")),
        ("4=DP3/TP0", ("--smi-map", "DP0/PP0/TP0, DP0/PP0/TP1")),
        ("4=DP0", ("several", "DP0/PP0/TP0, DP0/PP0/TP1")),
        ("0=TP0", ("several", "smi1:")),
        ("smi1:1=TP0", ("smi1:1=TP0", "no device", "4")),
        ("smi7:4=TP0", ("smi7:4=TP0", "4")),
        ("4", ("device=rank", "4=TP0")),
        ("4=", ("device=rank",)),
        ("=TP0", ("device=rank",)),
        ("four=TP0", ("device=rank",)),
        ("", ("device=rank",)),
        ("4=TP0,", ("device=rank",)),
        ("4=TP0;5=TP1", ("DP0/PP0/TP0",)),
    ],
)
def test_a_map_that_names_what_is_not_there_is_wrong_usage(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    readings = smi((0, 1_000, 80_080), (1, 1_000, 80_080)), smi((0, 9, 81_071), (4, 9, 81_071))
    with pytest.raises(UsageError) as error:
        report_on_nodes(tmp_path, node(0, (0, 1)), node(1, (2, 3)), smi=readings, smi_map=text)

    assert error.value.exit_code == ExitCode.USAGE == 2
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_map_without_a_reading_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--smi"):
        report_on_nodes(tmp_path, two_visible(), smi_map="4=TP0")


@pytest.mark.parametrize("text", ["4=TP0,5=TP0", "4=TP0,4=TP1"], ids=["a rank", "a device"])
def test_a_map_that_names_one_thing_twice_is_wrong_usage(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        report_on_nodes(tmp_path, two_visible(), smi=(EIGHT,), smi_map=text)


def test_a_mapped_device_that_cannot_be_the_ranks_contradicts(tmp_path: Path) -> None:
    """78.00 GiB were free; of a device of 24,000 + 560 MiB no more than 23.98 can be."""
    reading = smi((4, 24_000, 560), (5, 70_500, 10_580))
    report = report_on_nodes(tmp_path, two_visible(), smi=(reading,), smi_map="4=TP0,5=TP1")

    (said_so,) = found(report, "device-rows-contradict")
    assert "smi0:2" in said_so["evidence"]
    assert used_by(report) == {"DP0/PP0/TP0": None, "DP0/PP0/TP1": None}


def test_a_mapped_device_that_holds_too_little_contradicts(tmp_path: Path) -> None:
    """12.00 + 46.00 + 1.00 of weights, pools and graphs, and 30,000 MiB used."""
    reading = smi((4, 30_000, 51_080), (5, 70_500, 10_580))
    report = report_on_nodes(tmp_path, two_visible(), smi=(reading,), smi_map="4=TP0,5=TP1")

    assert found(report, "parts-exceed-used")
    other = memory(report, "other")
    framework = (30_000 + 51_080) / 1024 - 78.00
    assert other["value"] == gib(30_000 / 1024 - framework - 12.00 - POOLS - 1.00)


def test_devices_that_are_not_the_servers_have_no_say_in_what_it_runs_on(tmp_path: Path) -> None:
    """Device 0 is a small one beside the two that the map names."""
    rows = "".join(
        f"{number}, {name}, {used} MiB, {free} MiB\n"
        for number, name, used, free in (
            (0, "NVIDIA GeForce RTX 3090", 1_000, 23_000),
            (4, "NVIDIA H100 80GB HBM3", 70_400, 10_680),
            (5, "NVIDIA H100 80GB HBM3", 70_500, 10_580),
        )
    )
    reading = "index, name, memory.used [MiB], memory.free [MiB]\n" + rows
    report = report_on_nodes(tmp_path, two_visible(), smi=(reading,), smi_map="4=TP0,5=TP1")

    gpu = report["deployment"]["gpu"]
    assert gpu["name"]["value"] == "NVIDIA H100 80GB HBM3"
    assert gpu["total"]["value"] == gib((70_400 + 10_680) / 1024)
    assert not found(report, "gpu-clash")
