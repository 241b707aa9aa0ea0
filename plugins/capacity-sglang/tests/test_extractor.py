"""What a run's lines add up to: each expected figure is arithmetic on the lines that stand in its
test, and what they mean is the engine's own source."""

from __future__ import annotations

import importlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.loader import Found, load
from capacity_core.rendering.json import JsonRenderer

Report = dict[str, Any]

MODULES = {"process": "capacity_core.reading.process", "sglang": "capacity_sglang"}
PLUGINS = load(
    [
        Found(name=name, module=module, load=partial(importlib.import_module, module))
        for name, module in MODULES.items()
    ]
)

UP = "The server is fired up and ready to roll!"
TRACEBACK = "Traceback (most recent call last):"
DIED = f"Scheduler hit an exception: {TRACEBACK}"


# --- running the extractor --------------------------------------------


def said(*messages: str, rank: str = "", at: str = "10:00") -> list[str]:
    """Messages with SGLang's prefix; `rank` begins with a blank, as it is printed."""
    return [f"[2026-03-01 {at}:{n:02d}{rank}] {message}" for n, message in enumerate(messages)]


def report_on(folder: Path, *lines: str) -> Report:
    path = folder / "server.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = analyse([str(path)], Options(), PLUGINS)
    parsed: Report = json.loads(JsonRenderer().render(report))
    return parsed


def rank_of(report: Report, name: str = "DP0/PP0/TP0") -> Report:
    found: list[Report] = [rank for rank in report["ranks"] if rank["id"] == name]
    assert len(found) == 1, [rank["id"] for rank in report["ranks"]]
    return found[0]


def held(report: Report, category: str, rank: str = "DP0/PP0/TP0") -> float | None:
    value: float | None = rank_of(report, rank)["memory"][category]["value"]
    return value


def parts(report: Report, category: str) -> list[tuple[str, float | None]]:
    """Role and GiB of every part of a category, on the first rank."""
    found = rank_of(report)["parts"]
    return [(p["role"], p["size"]["value"]) for p in found if p["category"] == category]


def gib(value: float) -> Any:
    return pytest.approx(value, abs=0.001)


# --- what SGLang prints -----------------------------------------------


def arguments(**changes: object) -> str:
    fields = {"model_path": "/m", "tp_size": 1, "pp_size": 1, "dp_size": 1, "page_size": 1}
    inner = ", ".join(f"{name}={value!r}" for name, value in (fields | changes).items())
    return f"server_args=ServerArgs({inner})"


def weights(before: float, used: float, model: str = "LlamaForCausalLM") -> list[str]:
    return [
        f"Load weight begin. avail mem={before:.2f} GB",
        f"Load weight end. elapsed=9.00 s, type={model}, avail mem={before - used:.2f} GB, "
        f"mem usage={used:.2f} GB.",
    ]


def pool(tokens: int, half: float, words: str = "KV Cache is allocated.") -> str:
    return f"{words} #tokens: {tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB"


def typed_pool(tokens: int, half: float, words: str = "KV Cache is allocated.") -> str:
    """From 0.5.13 the line says its element type."""
    return pool(tokens, half, f"{words} dtype: torch.bfloat16,")


def pools_end(free: float) -> str:
    return f"Memory pool end. avail mem={free:.2f} GB"


def graph_begin(before: float, what: str = "") -> str:
    """Up to 0.5.13; `what` ends with a blank."""
    return (
        f"Capture {what}cuda graph begin. This can take up to several minutes. "
        f"avail mem={before:.2f} GB"
    )


def graph(before: float, used: float, what: str = "") -> list[str]:
    return [
        graph_begin(before, what),
        f"Capture {what}cuda graph end. Time elapsed: 5.00 s. mem usage={used:.2f} GB. "
        f"avail mem={before - used:.2f} GB.",
    ]


def new_graph_begin(before: float, what: str) -> str:
    """From 0.5.14, where the line names role and phase."""
    return (
        f"Capture {what} CUDA graph begin. backend=full, num_tokens_per_bs=4, bs=[1, 2], "
        f"avail mem={before:.2f} GB"
    )


def new_graph(before: float, used: float, what: str) -> list[str]:
    return [
        new_graph_begin(before, what),
        f"Capture {what} CUDA graph end. elapsed=5.00 s, mem usage={used:.2f} GB, "
        f"avail mem={before - used:.2f} GB.",
    ]


def limits(tokens: int, requests: int = 2048, free: float = 8.00) -> str:
    return (
        f"max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        f"max_running_requests={requests}, context_len=32768, available_gpu_mem={free:.2f} GB"
    )


def start(used: float = 16.00, tokens: int = 400_000, half: float = 24.00) -> list[str]:
    """Weights, pool, graphs and limits of one rank; 78.00 GiB are free before weights."""
    free = 78.00 - used - 2 * half
    return [
        *weights(78.00, used),
        pool(tokens, half),
        pools_end(free),
        *graph(free, 1.00),
        limits(tokens),
    ]


# --- draft models -----------------------------------------------------

# One target of 16 GiB with a pool of 40, one draft of 2 GiB with a pool of 1.
OLD_ORDER = [
    *weights(78.00, 16.00),
    pool(300_000, 20.00),
    pools_end(22.00),
    *graph(22.00, 1.50),
    *weights(20.50, 2.00, "LlamaForCausalLMEagle3"),
    pool(300_000, 0.50),
    pools_end(17.50),
    *graph(17.50, 0.30, "draft "),
    *graph(17.20, 0.20, "draft extend "),
    limits(300_000),
]
NEW_ORDER = [
    *weights(78.00, 16.00),
    *weights(62.00, 2.00, "LlamaForCausalLMEagle3"),
    typed_pool(300_000, 20.00),
    pools_end(20.00),
    typed_pool(300_000, 0.50),
    pools_end(19.00),
    *new_graph(19.00, 1.50, "target verify"),
    *new_graph(17.50, 0.30, "draft decode"),
    *new_graph(17.20, 0.20, "draft extend"),
    limits(300_000),
]
ORDERS = pytest.mark.parametrize("lines", [OLD_ORDER, NEW_ORDER], ids=["0.5.13", "0.5.14"])


@ORDERS
@pytest.mark.parametrize(
    ("category", "sizes"),
    [
        ("weights", [("target", 16.00), ("draft", 2.00)]),
        ("kv_pool", [("target", 40.00), ("draft", 1.00)]),
        ("cuda_graph", [("target", 1.50), ("draft", 0.30), ("draft", 0.20)]),
    ],
)
def test_a_drafts_lines_are_told_from_its_targets(
    tmp_path: Path, lines: list[str], category: str, sizes: list[tuple[str, float]]
) -> None:
    """scheduler.py:816 of 0.5.13 builds one model after the other; from 0.5.14 :834 pools come
    after both weights, graphs after both pools."""
    report = report_on(tmp_path, *said(*lines, UP))
    assert parts(report, category) == [(role, gib(size)) for role, size in sizes]
    assert held(report, category) == gib(sum(size for _, size in sizes))


@ORDERS
def test_a_draft_is_no_new_start(tmp_path: Path, lines: list[str]) -> None:
    assert len(report_on(tmp_path, *said(*lines, UP))["runs"]) == 1


@ORDERS
def test_tokens_are_the_targets_and_not_counted_twice(tmp_path: Path, lines: list[str]) -> None:
    """The draft's pool has slots for the same tokens."""
    report = report_on(tmp_path, *said(*[line for line in lines if "max_total" not in line]))
    assert report["kv_pool"]["workers"][0]["tokens"]["value"] == 300_000


def test_a_draft_of_the_same_class_is_told_by_order(tmp_path: Path) -> None:
    """STANDALONE drafts are models like any other."""
    lines = said(*weights(78.00, 16.00), *weights(62.00, 2.00))
    report = report_on(tmp_path, *lines)
    assert parts(report, "weights") == [("target", gib(16.00)), ("draft", gib(2.00))]


def test_a_later_draft_model_is_a_draft_too(tmp_path: Path) -> None:
    """One model for each step (speculative/multi_layer_eagle_worker.py of 0.5.12)."""
    mtp = "MiMoMTP"
    lines = said(*weights(78.00, 16.00), *weights(62.00, 2.00, mtp), *weights(60.00, 2.00, mtp))
    report = report_on(tmp_path, *lines)
    assert len(report["runs"]) == 1
    sizes = [("target", gib(16.00)), ("draft", gib(2.00)), ("draft", gib(2.00))]
    assert parts(report, "weights") == sizes


@pytest.mark.parametrize(
    "model",
    [
        "LlamaForCausalLMEagle",
        "LlamaForCausalLMEagle3",
        "Eagle3DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLMNextN",
        "Qwen3NextForCausalLMMTP",
        "MiMoMTP",
        "DFlashDraftModel",
        "DeepseekV4ForCausalLMDSpark",
    ],
)
def test_a_class_that_only_drafts_is_never_the_served_model(tmp_path: Path, model: str) -> None:
    """Names as srt/models of 0.5.23 has them (`EntryClass`); the target's lines are cut off."""
    report = report_on(tmp_path, *said(*weights(20.50, 2.00, model)))
    assert parts(report, "weights") == [("draft", gib(2.00))]
    assert held(report, "weights") is None


@pytest.mark.parametrize("model", ["LlamaForCausalLM", "MuseSparkForConditionalGeneration"])
def test_a_served_class_is_no_draft(tmp_path: Path, model: str) -> None:
    """MuseSpark is a model of its own (srt/models/muse_spark.py of 0.5.23)."""
    report = report_on(tmp_path, *said(*weights(78.00, 2.00, model)))
    assert held(report, "weights") == gib(2.00)


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (graph(20.00, 1.50), graph(17.50, 0.30, "draft ")),
        (new_graph(20.00, 1.50, "target verify"), new_graph(17.50, 0.30, "draft decode")),
    ],
    ids=["0.5.13", "0.5.14"],
)
def test_draft_captures_of_rank_0_leave_other_ranks_unknown(
    tmp_path: Path, target: list[str], draft: list[str]
) -> None:
    """eagle_worker.py:284 (0.5.12), eagle_worker_v2.py:393 (0.5.14): `log_info_on_rank0`."""
    report = report_on(
        tmp_path, *said(*target, *draft, rank=" TP0"), *said(*target, rank=" TP1"), *said(UP)
    )
    assert held(report, "cuda_graph", "DP0/PP0/TP0") == gib(1.80)
    assert held(report, "cuda_graph", "DP0/PP0/TP1") is None


# --- runs -------------------------------------------------------------


def test_a_rank_that_loads_again_after_its_limits_starts_a_run(tmp_path: Path) -> None:
    """A restart whose arguments are not in the log."""
    first, second = said(*start(20.00)), said(*start(16.00), at="11:00")
    report = report_on(tmp_path, *first, *second)
    assert [run["first"] for run in report["runs"]] == ["log0:1", f"log0:{len(first) + 1}"]
    assert held(report, "weights") == gib(16.00)


def test_a_rank_that_loads_again_after_its_death_starts_a_run(tmp_path: Path) -> None:
    lines = [*said(*weights(78.00, 20.00), DIED), *said(*weights(78.00, 16.00), at="11:00")]
    report = report_on(tmp_path, *lines)
    assert [run["first"] for run in report["runs"]] == ["log0:1", "log0:4"]
    assert report["outcome"]["status"] == "incomplete"


def test_a_rank_that_loads_again_with_all_its_memory_starts_a_run(tmp_path: Path) -> None:
    """Killed without a word: a draft would find the 20.00 GiB of its target taken."""
    lines = [*said(*weights(78.00, 20.00)), *said(*weights(78.00, 16.00), at="11:00")]
    report = report_on(tmp_path, *lines)
    assert [run["first"] for run in report["runs"]] == ["log0:1", "log0:3"]
    assert held(report, "weights") == gib(16.00)


@pytest.mark.parametrize("changes", [{}, {"mem_fraction_static": 0.8}], ids=["same", "other"])
def test_arguments_after_memory_lines_start_a_run(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    first, second = said(arguments(), *start()), said(arguments(**changes), *start(), at="11:00")
    report = report_on(tmp_path, *first, *second)
    assert [run["first"] for run in report["runs"]] == ["log0:1", f"log0:{len(first) + 1}"]


def test_arguments_printed_twice_start_one_run(tmp_path: Path) -> None:
    """Engine prints them, too (entrypoints/engine.py:220 and :773 of 0.5.12)."""
    report = report_on(tmp_path, *said(arguments(), arguments(), *start(), UP))
    assert [run["first"] for run in report["runs"]] == ["log0:1"]


def test_ranks_that_load_side_by_side_start_one_run(tmp_path: Path) -> None:
    lines = said(arguments(tp_size=2))
    for step in range(len(start())):  # the ranks interleave
        lines += [*said(start()[step], rank=" TP0"), *said(start()[step], rank=" TP1")]
    report = report_on(tmp_path, *lines, *said(UP))
    assert len(report["runs"]) == 1


# --- nodes ------------------------------------------------------------


def node_log(node: int, ranks: tuple[int, ...]) -> list[str]:
    """Every node prints its arguments, rank 0 alone its limits (scheduler.py:775 of 0.5.12)."""
    lines = said(arguments(tp_size=4, nnodes=2, node_rank=node))
    for rank in ranks:
        lines += said(*start()[:-1], rank=f" TP{rank}")
    return lines + (said(limits(400_000), rank=" TP0") + said(UP) if node == 0 else [])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_logs_of_two_nodes_are_one_run(tmp_path: Path, order: tuple[int, int]) -> None:
    logs = {0: node_log(0, (0, 1)), 1: node_log(1, (2, 3))}
    report = report_on(tmp_path, *logs[order[0]], *logs[order[1]])
    assert len(report["runs"]) == 1
    assert [rank["id"] for rank in report["ranks"]] == [f"DP0/PP0/TP{tp}" for tp in range(4)]
    assert report["kv_pool"]["deployment_tokens"]["value"] == 400_000


def test_the_same_node_again_is_a_restart(tmp_path: Path) -> None:
    report = report_on(tmp_path, *node_log(0, (0, 1)), *node_log(0, (0, 1)))
    assert len(report["runs"]) == 2


# --- workers ----------------------------------------------------------

ATTENTION_DP = pytest.mark.parametrize(
    "sizes",
    [
        {"dp_size": 2, "enable_dp_attention": True},
        {"dp_size": 1, "attn_dp_size": 2, "enable_dp_attention": True},
    ],
    ids=["0.5.21", "0.5.22"],  # arg_groups/parallel_hook.py of 0.5.22 rewrites dp_size
)


@ATTENTION_DP
def test_every_dp_attention_worker_has_limits_of_its_own(
    tmp_path: Path, sizes: dict[str, object]
) -> None:
    lines = said(arguments(tp_size=2, **sizes))
    lines += said(limits(400_000, 100), rank=" DP0 TP0")
    lines += said(limits(390_000, 90), rank=" DP1 TP1")
    workers = report_on(tmp_path, *lines, *said(UP))["kv_pool"]["workers"]
    assert [w["tokens"]["value"] for w in workers] == [400_000, 390_000]
    assert [w["request_limit"]["value"] for w in workers] == [100, 90]


@ATTENTION_DP
def test_a_worker_without_a_line_leaves_the_deployment_a_bound(
    tmp_path: Path, sizes: dict[str, object]
) -> None:
    lines = said(arguments(tp_size=2, **sizes)) + said(limits(400_000), rank=" DP1 TP1")
    kv = report_on(tmp_path, *lines)["kv_pool"]
    assert [w["tokens"]["value"] for w in kv["workers"]] == [None, 400_000]
    assert kv["deployment_tokens"]["value"] is None
    assert kv["deployment_tokens"]["at_least"] == 400_000


@ATTENTION_DP
def test_one_rank_prints_the_request_limit_of_all_attention_dp_workers(
    tmp_path: Path, sizes: dict[str, object]
) -> None:
    """`if tp_rank == 0` (0.5.12 managers/scheduler.py:775); every worker reckons it from the same
    arguments and the least tokens of all ranks. Tokens of a rank that is not shown stay unknown."""
    lines = said(arguments(tp_size=2, **sizes)) + said(limits(400_000, 24), rank=" DP0 TP0")
    workers = report_on(tmp_path, *lines)["kv_pool"]["workers"]
    assert [w["request_limit"]["value"] for w in workers] == [24, 24]
    assert workers[1]["request_limit"]["origin"] == "derived"
    assert [w["tokens"]["value"] for w in workers] == [400_000, None]


def test_plain_dp_workers_do_not_speak_for_one_another(tmp_path: Path) -> None:
    lines = said(arguments(tp_size=1, dp_size=2)) + said(limits(400_000, 24), rank=" DP0 TP0")
    workers = report_on(tmp_path, *lines)["kv_pool"]["workers"]
    assert [w["request_limit"]["value"] for w in workers] == [24, None]


@pytest.mark.parametrize(
    ("printed", "more", "limit"),
    [
        (2048, {"pp_max_micro_batch_size": 4}, 8),  # two micro-batches of 4
        (2048, {"pp_max_micro_batch_size": 4, "pp_async_batch_depth": 1}, 12),
        (7, {}, 6),  # 7 // 2 = 3 in each (0.5.12 managers/scheduler.py:742)
        (8, {}, 8),
        (7, {"pp_max_micro_batch_size": 4}, 7),
    ],
)
def test_micro_batches_of_a_pipeline_limit_requests(
    tmp_path: Path, printed: int, more: dict[str, object], limit: int
) -> None:
    lines = said(arguments(pp_size=2, **more)) + said(limits(400_000, printed), rank=" PP0")
    (worker,) = report_on(tmp_path, *lines)["kv_pool"]["workers"]
    assert worker["request_limit"]["value"] == limit


def test_arguments_cut_before_the_micro_batches_leave_a_bound(tmp_path: Path) -> None:
    """How deep a pipeline is filled is not guessed: 2048 is the most."""
    cut = "server_args=ServerArgs(model_path='/m', tp_size=1, pp_size=2, page_s"
    lines = said(cut) + said(limits(400_000, 2048), rank=" PP0")
    (worker,) = report_on(tmp_path, *lines)["kv_pool"]["workers"]
    limit = worker["request_limit"]
    assert (limit["value"], limit["at_most"]) == (None, 2048)


def test_pools_of_some_of_a_workers_ranks_are_a_bound(tmp_path: Path) -> None:
    """tp 4 over 2 workers: two ranks share the tokens of DP0, one of them is in the log."""
    lines = said(arguments(tp_size=4, dp_size=2, enable_dp_attention=True))
    lines += said(*weights(78.00, 16.00), pool(400_000, 24.00), rank=" DP0 TP0")
    tokens = report_on(tmp_path, *lines)["kv_pool"]["workers"][0]["tokens"]
    assert (tokens["value"], tokens["at_most"]) == (None, 400_000)


def test_without_a_limits_line_the_least_pool_of_all_ranks_holds(tmp_path: Path) -> None:
    """Pipeline stages of 0.4.6 do not agree on a minimum."""
    lines = said(arguments(pp_size=2))
    lines += said(pool(400_000, 24.00), rank=" PP0") + said(pool(390_000, 24.00), rank=" PP1")
    tokens = report_on(tmp_path, *lines)["kv_pool"]["workers"][0]["tokens"]
    assert tokens["value"] == 390_000


# --- prefixes ---------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("TP3", "DP0/PP0/TP3"),
        ("TP3 PP1", "DP0/PP1/TP3"),
        ("TP3 EP2 PP1", "DP0/PP1/TP3"),
        ("DP1 TP3 EP2 PP1", "DP1/PP1/TP3"),  # 0.5.5 scheduler.py:2759
        ("DP1 PP1 ATTN_CP4 MOE_DP5 TP3 EP2", "DP1/PP1/TP3"),  # 0.5.12 scheduler.py:3951
        ("PP1 MOE_DP5 TP3", "DP0/PP1/TP3"),
        ("DP1", "DP1/PP0/TP0"),
        ("PP1", "DP0/PP1/TP0"),
    ],
)
def test_ranks_are_read_by_name_in_any_order(tmp_path: Path, prefix: str, rank: str) -> None:
    report = report_on(tmp_path, *said(*weights(78.00, 16.00), rank=f" {prefix}"))
    assert [found["id"] for found in report["ranks"]] == [rank]


# --- sliding window ---------------------------------------------------

# swa: 160,000 tokens, 6.00 GiB; full: 200,000 tokens, 10.00 GiB; together 16.00 GiB.
TOTAL = "SWAKVPool mem usage: 16.00 GB, swa size: 160000, full size: 200000"
UNLABELLED = [pool(160_000, 3.00), pool(200_000, 5.00), TOTAL]
LABELLED = [
    typed_pool(200_000, 5.00, "Full KV Cache is allocated."),
    typed_pool(160_000, 3.00, "SWA KV Cache is allocated."),
    TOTAL,
]
HYBRIDS = pytest.mark.parametrize("lines", [UNLABELLED, LABELLED], ids=["0.5.12", "0.5.18"])


@HYBRIDS
def test_hybrid_pools_and_their_sum_are_counted_once(tmp_path: Path, lines: list[str]) -> None:
    """swa_memory_pool.py:97 (0.5.12), :86 (0.5.18): the last line is the two pools' sum."""
    report = report_on(tmp_path, *said(*weights(78.00, 16.00), *lines, pools_end(46.00)))
    assert held(report, "kv_pool") == gib(16.00)


@HYBRIDS
def test_hybrid_pools_are_told_apart(tmp_path: Path, lines: list[str]) -> None:
    """0.5.12 makes the sliding-window pool first, 0.5.18 the full one."""
    report = report_on(tmp_path, *said(*weights(78.00, 16.00), *lines, pools_end(46.00)))
    pools = report["kv_pool"]["pools"]
    figures = {p["label"]: (p["tokens"]["value"], p["size"]["value"]) for p in pools}
    assert figures == {"swa": (160_000, gib(6.00)), "full": (200_000, gib(10.00))}


@HYBRIDS
def test_tokens_of_a_hybrid_are_the_full_pools(tmp_path: Path, lines: list[str]) -> None:
    report = report_on(tmp_path, *said(arguments(), *lines, pools_end(46.00)))
    assert report["kv_pool"]["workers"][0]["tokens"]["value"] == 200_000


@HYBRIDS
def test_hybrid_pools_without_their_sum_are_added(tmp_path: Path, lines: list[str]) -> None:
    report = report_on(tmp_path, *said(*weights(78.00, 16.00), *lines[:2], pools_end(46.00)))
    assert held(report, "kv_pool") == gib(16.00)


def test_one_pool_of_a_hybrid_is_not_its_size(tmp_path: Path) -> None:
    """The log ends between the two pools."""
    split = "Use sliding window memory pool. full_layer_tokens=200000, swa_layer_tokens=160000"
    report = report_on(tmp_path, *said(*weights(78.00, 16.00), split, UNLABELLED[0]))
    assert held(report, "kv_pool") is None


@pytest.mark.parametrize("length", [4096, 8192])
def test_a_hybrids_tokens_bound_requests_from_above(tmp_path: Path, length: int) -> None:
    """The window is not printed, and its pool may bind first: 200,000 // length at most."""
    report = report_on(tmp_path, *said(*weights(78.00, 16.00), *LABELLED, limits(200_000), UP))
    row = next(r for r in report["concurrency"]["rows"] if r["request_tokens"] == length)
    assert row["token_limit"]["value"] is None
    assert row["token_limit"]["at_most"] == 200_000 // length


@pytest.mark.parametrize(
    ("draft", "size"),
    [
        ([pool(200_000, 0.50)], 1.00),
        ([pool(160_000, 0.25), pool(200_000, 0.50), TOTAL.replace("16.00", "1.50")], 1.50),
    ],
    ids=["full", "hybrid"],
)
def test_a_hybrids_draft_has_pools_of_its_own(
    tmp_path: Path, draft: list[str], size: float
) -> None:
    """Of the same tokens: the target's `Memory pool end` parts them."""
    target = [*weights(78.00, 16.00), *UNLABELLED, pools_end(46.00)]
    loaded = weights(46.00, 2.00, "LlamaForCausalLMEagle3")
    report = report_on(tmp_path, *said(*target, *loaded, *draft, pools_end(44.00 - size)))
    assert parts(report, "kv_pool") == [("target", gib(16.00)), ("draft", gib(size))]


# --- state ------------------------------------------------------------

STATE = (
    "Mamba Cache is allocated. max_mamba_cache_size: 360, conv_state size: 0.99GB, "
    "ssm_state size: 20.50GB "
)


@pytest.mark.parametrize(
    ("line", "size"),
    [
        (STATE, 0.99 + 20.50),
        (
            f"{STATE}intermediate_ssm_state_cache size: 1.00GB "
            "intermediate_conv_window_cache size: 0.02GB ",
            0.99 + 20.50 + 1.00 + 0.02,
        ),
    ],
    ids=["plain", "speculative"],
)
def test_a_state_pool_is_the_sum_of_its_tensors(tmp_path: Path, line: str, size: float) -> None:
    """memory_pool.py:328 and :337 of 0.5.12."""
    report = report_on(tmp_path, *said(*weights(78.00, 16.00), line, pool(400_000, 5.00)))
    assert held(report, "state_pool") == gib(size)
    assert held(report, "kv_pool") == gib(10.00)
    assert report["kv_pool"]["state_slots"]["value"] == 360


def test_rings_belong_to_the_state_pool(tmp_path: Path) -> None:
    rings = "GDN ReplaySSM ring buffers allocated (L=4): d=1.250GB, k=0.750GB, g=0.010GB "
    report = report_on(tmp_path, *said(*weights(78.00, 16.00), STATE, rings))
    assert held(report, "state_pool") == gib(0.99 + 20.50 + 1.250 + 0.750 + 0.010)


# --- post-capture sizing ----------------------------------------------

RESERVED = typed_pool(900_000, 30.00, "KV Cache VA upper bound.")
SIZED = (
    "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 700000, "
    "KV size: 46.50 GB, avail mem=8.50 GB"
)
DRAFT_SIZED = (
    "Post-capture KV sizing: draft KV cache allocated. dtype: torch.bfloat16, #tokens: 700000, "
    "KV size: 1.50 GB"
)
RESERVED_HYBRID = [
    typed_pool(900_000, 20.00, "Full KV Cache VA upper bound."),
    typed_pool(700_000, 10.00, "SWA KV Cache VA upper bound."),
    "SWAKVPool VA upper bound: 60.00 GB, swa size: 700000, full size: 900000",
]


@pytest.mark.parametrize("lines", [[RESERVED], RESERVED_HYBRID], ids=["full", "hybrid"])
def test_reserved_addresses_are_no_memory(tmp_path: Path, lines: list[str]) -> None:
    """memory_pool.py:1685 of 0.5.18: post_capture_active pools are backed after capture."""
    report = report_on(tmp_path, *said(*weights(78.00, 16.00), *lines, pools_end(61.50)))
    assert held(report, "kv_pool") is None
    assert report["kv_pool"]["workers"][0]["tokens"]["value"] is None


@pytest.mark.parametrize("lines", [[RESERVED], RESERVED_HYBRID], ids=["full", "hybrid"])
def test_the_size_after_capture_replaces_what_was_reserved(
    tmp_path: Path, lines: list[str]
) -> None:
    """kv_pool_runtime.py:128 of 0.5.18 prints the backed bytes of all sub-pools."""
    said_lines = [*weights(78.00, 16.00), *lines, pools_end(61.50), SIZED, limits(700_000), UP]
    report = report_on(tmp_path, *said(*said_lines))
    assert held(report, "kv_pool") == gib(46.50)
    assert report["kv_pool"]["workers"][0]["tokens"]["value"] == 700_000


def test_tokens_after_capture_need_no_limits_line(tmp_path: Path) -> None:
    report = report_on(tmp_path, *said(arguments(), RESERVED, pools_end(61.50), SIZED))
    assert report["kv_pool"]["workers"][0]["tokens"]["value"] == 700_000


def test_a_drafts_pool_is_sized_after_capture_too(tmp_path: Path) -> None:
    """kv_pool_runtime.py:202 of 0.5.23."""
    lines = said(*weights(78.00, 16.00), RESERVED, pools_end(61.50), SIZED, DRAFT_SIZED)
    report = report_on(tmp_path, *lines)
    assert parts(report, "kv_pool") == [("target", gib(46.50)), ("draft", gib(1.50))]


# --- pools without an allocation line ---------------------------------

COMPRESSED = [
    "DSV4 memory calculation: bytes_per_full_token=15897.45, available_bytes=40.00 GB, "
    "full_token=2701568",
    "DSV4 pool sizes: full=2701568, swa=270080, c4=675392, c128=21106, c4_state=64, c128_state=0",
]


def test_a_compressed_pool_is_what_free_memory_fell_by(tmp_path: Path) -> None:
    """pool_configurator.py:421 of 0.5.12: these pools print no allocation line."""
    report = report_on(tmp_path, *said(*weights(78.00, 16.00), *COMPRESSED, pools_end(22.40)))
    assert held(report, "kv_pool") == gib(62.00 - 22.40)
    assert report["kv_pool"]["budget"]["value"] == gib(40.00)


DRAFT = "DeepseekV4ForCausalLMNextN"


@pytest.mark.parametrize(
    "lines",
    [
        [
            *weights(78.00, 16.00),
            *COMPRESSED,
            pools_end(22.00),
            *graph(22.00, 1.00),
            *weights(21.00, 2.00, DRAFT),
            pools_end(18.50),
        ],
        [
            *weights(78.00, 16.00),
            *weights(62.00, 2.00, DRAFT),
            *COMPRESSED,
            pools_end(20.00),
            pools_end(19.50),
        ],
    ],
    ids=["0.5.13", "0.5.14"],
)
def test_weights_between_pools_are_not_in_the_difference(tmp_path: Path, lines: list[str]) -> None:
    """62 − 22 and 19 − 18.5 in the old order, 60 − 20 and 20 − 19.5 in the new one."""
    report = report_on(tmp_path, *said(*lines))
    assert parts(report, "kv_pool") == [("target", gib(40.00)), ("draft", gib(0.50))]


def test_releases_up_to_040_print_no_pool_line(tmp_path: Path) -> None:
    """Their 'Load weight end' has no usage: 78 − 62 are weights, 62 − 22 the pool."""
    lines = said(
        "Load weight begin. avail mem=78.00 GB",
        "Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=62.00 GB",
        pools_end(22.00),
        rank=" TP0",
    )
    report = report_on(tmp_path, *lines)
    assert held(report, "weights") == gib(16.00)
    assert held(report, "kv_pool") == gib(40.00)


def test_elsewhere_a_missing_pool_line_is_no_difference(tmp_path: Path) -> None:
    """62 − 22 would hold state and request table as well."""
    report = report_on(tmp_path, *said(*weights(78.00, 16.00), pools_end(22.00), limits(9), UP))
    assert held(report, "kv_pool") is None


def test_a_pool_of_one_figure_is_read(tmp_path: Path) -> None:
    """MLA keeps one tensor (`KV size`), whose tokens need 17.64 GiB."""
    line = "KV Cache is allocated. #tokens: 220416, KV size: 17.64 GB"
    report = report_on(tmp_path, *said(*weights(78.00, 16.00), line, pools_end(44.00)))
    assert held(report, "kv_pool") == gib(17.64)


# --- weights ----------------------------------------------------------


def test_weights_without_an_end_line_are_unknown(tmp_path: Path) -> None:
    report = report_on(tmp_path, *said(weights(78.00, 16.00)[0]))
    assert held(report, "weights") is None


def test_weights_committed_after_capture_are_unknown(tmp_path: Path) -> None:
    """startup_weight_load.py:531 of 0.5.18 prints no figure."""
    committed = "Load weight end. Committed real weights after CUDA graph capture in 1.20 s (x)"
    lines = said(weights(78.00, 16.00)[0], pools_end(22.00), committed, limits(9), UP)
    assert held(report_on(tmp_path, *lines), "weights") is None


def test_weights_may_be_negative(tmp_path: Path) -> None:
    """Memory of another process came back meanwhile: the figure stays as printed."""
    report = report_on(tmp_path, *said(*weights(60.00, -0.75)))
    assert held(report, "weights") == gib(-0.75)


# --- graphs -----------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "size"),
    [
        (graph(20.00, 1.50), 1.50),
        (
            [*new_graph(20.00, 1.50, "target decode"), *new_graph(18.50, 0.75, "target prefill")],
            2.25,
        ),
        (new_graph(20.00, -0.10, "target decode"), -0.10),
    ],
    ids=["old", "phases", "negative"],
)
def test_captures_are_added_up(tmp_path: Path, lines: list[str], size: float) -> None:
    assert held(report_on(tmp_path, *said(*lines)), "cuda_graph") == gib(size)


@pytest.mark.parametrize(
    "lines",
    [
        [graph_begin(20.00)],
        [new_graph_begin(20.00, "target decode")],
        [*new_graph(20.00, 1.50, "target decode"), new_graph_begin(18.50, "target prefill")],
    ],
    ids=["old", "new", "second"],
)
def test_a_capture_that_did_not_end_leaves_graphs_unknown(tmp_path: Path, lines: list[str]) -> None:
    assert held(report_on(tmp_path, *said(*lines)), "cuda_graph") is None


def test_a_capture_whose_figure_is_not_printed_leaves_graphs_unknown(tmp_path: Path) -> None:
    """frozen_kv_mtp_worker_v2.py:368 of 0.5.14 has no figures."""
    frozen = [f"Capture Frozen-KV MTP draft cuda graph {edge}." for edge in ("begin", "end")]
    report = report_on(tmp_path, *said(*new_graph(20.00, 1.50, "target verify"), *frozen))
    assert held(report, "cuda_graph") is None


def test_captures_of_a_serving_server_are_not_added(tmp_path: Path) -> None:
    """After new weights were loaded it captures anew, in the place of the old graphs."""
    report = report_on(tmp_path, *said(*start(), UP, *graph(13.00, 0.40)))
    assert held(report, "cuda_graph") == gib(1.00)


def test_graphs_switched_off_are_zero_as_configured(tmp_path: Path) -> None:
    lines = said(arguments(disable_cuda_graph=True), *weights(78.00, 16.00))
    graphs = rank_of(report_on(tmp_path, *lines))["memory"]["cuda_graph"]
    assert (graphs["value"], graphs["origin"]) == (0, "configured")
    assert graphs["evidence"] == ["log0:1"]


@pytest.mark.parametrize("changes", [{}, {"disable_cuda_graph": False}], ids=["unsaid", "on"])
def test_graphs_that_are_not_shown_are_unknown(tmp_path: Path, changes: dict[str, object]) -> None:
    lines = said(arguments(**changes), *weights(78.00, 16.00))
    assert held(report_on(tmp_path, *lines), "cuda_graph") is None


# --- outcome ----------------------------------------------------------


def outcome(folder: Path, *lines: str) -> Report:
    found: Report = report_on(folder, *lines)["outcome"]
    return found


@pytest.mark.parametrize("lines", [start(), [*start(), UP]], ids=["limits", "up"])
def test_a_start_with_limits_is_ready(tmp_path: Path, lines: list[str]) -> None:
    found = outcome(tmp_path, *said(*lines))
    assert (found["status"], found["failure"]) == ("ready", None)


@pytest.mark.parametrize("count", range(1, len(start())))
def test_a_log_that_ends_before_the_limits_is_incomplete(tmp_path: Path, count: int) -> None:
    assert outcome(tmp_path, *said(*start()[:count]))["status"] == "incomplete"


def test_one_worker_of_two_does_not_make_a_start_ready(tmp_path: Path) -> None:
    lines = [*said(*start(), rank=" DP0 TP0"), *said(*start()[:-1], rank=" DP1 TP1")]
    assert outcome(tmp_path, *lines)["status"] == "incomplete"


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        # pool_configurator.py:53 of 0.5.12
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
        "Current value: mem_fraction_static=0.2",
        "ValueError: Loaded weights leave no GPU memory for the KV cache under "
        "--mem-fraction-static=0.2. Raise",
    ],
)
def test_no_memory_left_for_the_pool_is_said_as_such(tmp_path: Path, message: str) -> None:
    found = outcome(tmp_path, *said(*weights(78.00, 70.00), DIED), message)
    assert found["status"] == "failed"
    assert found["failure"]["kind"] == "no_kv_memory"
    assert found["failure"]["stage"] == "after_weights"
    assert found["failure"]["evidence"] == ["log0:4"]


@pytest.mark.parametrize(
    ("lines", "stage"),
    [
        ([arguments()], "startup"),
        (weights(78.00, 16.00)[:1], "before_weights"),
        (weights(78.00, 16.00), "after_weights"),
        (start()[:-2], "before_graphs"),
    ],
)
@pytest.mark.parametrize("death", [DIED, TRACEBACK], ids=["scheduler", "traceback"])
def test_a_traceback_during_a_start_is_a_failure_of_unknown_kind(
    tmp_path: Path, lines: list[str], stage: str, death: str
) -> None:
    found = outcome(tmp_path, *said(*lines, death))
    assert found["status"] == "failed"
    assert (found["failure"]["kind"], found["failure"]["stage"]) == ("unknown", stage)


def test_a_traceback_that_the_start_survives_is_no_failure(tmp_path: Path) -> None:
    lines = [*weights(78.00, 16.00), TRACEBACK, *start()[2:]]
    assert outcome(tmp_path, *said(*lines))["status"] == "ready"


def test_a_requests_traceback_is_no_failed_start(tmp_path: Path) -> None:
    """capacity_core.api.process.crash: from the limits on it may be one request's trouble."""
    found = outcome(tmp_path, *said(*start(), UP), TRACEBACK, "ValueError: too long")
    assert (found["status"], found["failure"]) == ("ready", None)


@pytest.mark.parametrize(
    ("death", "kind"),
    [
        (DIED, "unknown"),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
            "runtime_out_of_memory",
        ),
        (
            "alloc_req_slots runs out of memory. Please set a smaller number for",
            "token_pool_exhausted",
        ),
    ],
)
def test_the_death_of_a_serving_server_is_a_failure(tmp_path: Path, death: str, kind: str) -> None:
    """managers/scheduler.py:4045 of 0.5.12 ends the whole server."""
    found = outcome(tmp_path, *said(*start(), UP, death))
    assert found["status"] == "failed"
    assert (found["failure"]["kind"], found["failure"]["stage"]) == (kind, "serving")


def test_a_failed_capture_ends_the_server(tmp_path: Path) -> None:
    """cuda_graph_runner.py:739 of 0.5.12."""
    message = "Exception: Capture cuda graph failed: CUDA out of memory."
    found = outcome(tmp_path, *said(*start()[:-2]), message)
    assert (found["status"], found["failure"]["stage"]) == ("failed", "before_graphs")


def test_a_failure_names_the_rank_that_printed_it(tmp_path: Path) -> None:
    lines = [*said(*weights(78.00, 16.00), rank=" TP0"), *said(DIED, rank=" PP1 TP3")]
    assert outcome(tmp_path, *lines)["failure"]["rank"] == "DP0/PP1/TP3"


# --- what is missing --------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        (
            *weights(78, 16),
            *weights(62, 2, DRAFT),
            pools_end(20),
            typed_pool(9, 0.5),
            pools_end(19),
        ),
        (*weights(78, 16), *weights(62, 2, DRAFT), typed_pool(9, 20), pools_end(20), pools_end(19)),
        (*weights(78, 16), *weights(62, 2, DRAFT), typed_pool(9, 0.5), pools_end(19)),
        (*weights(78, 16), pools_end(22), *graph(22, 1.5), *weights(20.5, 2, DRAFT), pool(9, 0.5)),
    ],
    ids=["target's line", "draft's line", "one group", "old order"],
)
def test_the_pool_of_one_model_is_not_that_of_both(tmp_path: Path, lines: tuple[str, ...]) -> None:
    """Every model's pools are closed by a 'Memory pool end' and told by a line before it."""
    report = report_on(tmp_path, *said(*lines, limits(9)))
    assert held(report, "kv_pool") is None


def test_a_draft_up_to_0521_is_allocated_beside_a_pool_that_is_sized_later(tmp_path: Path) -> None:
    """Post-capture sizing leaves the draft worker out (kv_pool_runtime.py of 0.5.18:24)."""
    report = report_on(
        tmp_path,
        *said(
            *weights(78, 16),
            *weights(62, 2, DRAFT),
            RESERVED,
            pools_end(59.5),
            typed_pool(900_000, 0.5),
            pools_end(58.5),
            *new_graph(58.5, 1.5, "target verify"),
            SIZED,
            limits(700_000),
        ),
    )
    assert held(report, "kv_pool") == gib(46.50 + 2 * 0.5)


@pytest.mark.parametrize("between", [[], [TRACEBACK, "ValueError: x"]], ids=["silent", "traceback"])
def test_arguments_of_a_start_that_died_early_are_not_the_next_ones(
    tmp_path: Path, between: list[str]
) -> None:
    died = said(arguments(mem_fraction_static=0.9), *between)
    again = said(arguments(mem_fraction_static=0.8), *start(), UP, at="11:00")
    report = report_on(tmp_path, *died, *again)
    assert report["deployment"]["mem_fraction_static"]["value"] == 0.8
    assert report["outcome"]["status"] == "ready"
