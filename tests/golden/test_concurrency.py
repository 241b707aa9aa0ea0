"""How many requests fit, as the whole command says it: from a log, a configuration and a metrics
page. Blocks are made up; what must come out is arithmetic that stands in the test, by the rules of
references/accounting.md#vllm-concurrency. The last part holds the estimate against a real engine,
where the project's folder of real runs lies beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.api.admission import Request
from capacity_core.cli import main
from capacity_core.rendering.text import TextRenderer

from .running import Report, found, is_unknown, report_of, report_on, shipped_plugins
from .sglang_lines import UP, as_dict, as_repr, limits, pool, pools_end, weights
from .sglang_lines import said as sglang_said
from .vllm_lines import SERVES, asked, budget, config, said, sized, sized_in_one

PAIR = Request(4608, 4096)  # 4096:512


def the_row(report: Report) -> Report:
    (row,) = report["concurrency"]["rows"]
    assert isinstance(row, dict)
    return row


def write(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content, encoding="utf-8")
    return str(folder / name)


# --- vLLM -----------------------------------------------------------------


def start(
    blocks: int, reckoned: int, length: int, *behind: str, gib: str = "20.0", **args: object
) -> list[str]:
    """A start of 0.33.0, which prints int(blocks / reckoned · length) tokens; `reckoned` are the
    blocks of a request of `length`. `behind` is printed after them, as the groups are."""
    concurrency = blocks / reckoned
    return [
        asked(**{"max_model_len": length, **args}),  # type: ignore[arg-type]
        config("0.33.0", length),
        budget(gib),
        sized_in_one(int(concurrency * length), length, concurrency),
        *behind,
        said("init engine (profile, create kv cache, warmup model) took 12.34 s"),
        SERVES,
    ]


def start_in_two(version: str, blocks: int, block: int, length: int) -> list[str]:
    """A start of a release that prints tokens and concurrency in lines of their own, of one group:
    blocks / ceil(length / block), which the tokens are whole lengths of here."""
    concurrency = blocks / -(-length // block)
    return [
        asked(max_model_len=length, block_size=block),
        config(version, length),
        budget("20.0"),
        *sized(int(concurrency * length), length, concurrency),
        said("init engine (profile, create kv cache, warmup model) took 12.34 s"),
        SERVES,
    ]


def plain(blocks: int = 1001, block: int = 16, length: int = 8192, **args: object) -> list[str]:
    return start(blocks, -(-length // block), length, block_size=block, **args)


def page(folder: Path, name: str = "metrics.txt", **labels: str) -> str:
    inner = ",".join(f'{key}="{value}"' for key, value in ({"engine": "0"} | labels).items())
    return write(
        folder,
        name,
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
        "# TYPE vllm:cache_config_info gauge\n"
        f"vllm:cache_config_info{{{inner}}} 1.0\n",
    )


def test_prompt_and_output_are_said_and_the_last_token_takes_no_slot(tmp_path: Path) -> None:
    """4,096 + 512 are 288 blocks of 16: (4,607 tokens take them); 1,000 // 288 = 3. A prompt asks
    for 256 blocks and holds 257: 1 + (1,000 - 256) // 257 = 3 are let in."""
    row = the_row(report_on(tmp_path, plain(max_num_seqs=64), request_tokens=(PAIR,)))

    assert (row["request_tokens"], row["prompt_tokens"], row["output_tokens"]) == (4608, 4096, 512)
    assert row["token_limit"]["value"] == 1000 // -(-4607 // 16) == 3
    assert row["admitted_at_once"]["value"] == 1 + (1000 - 256) // 257 == 3
    assert row["max_concurrent"]["value"] == 3
    assert row["bound_by"] == "tokens"


def test_more_may_be_admitted_than_fits(tmp_path: Path) -> None:
    """16 + 4,001 on 1,000 blocks of 16: 3 fit (251 blocks each); a prompt asks for one block and
    holds two: 1 + 999 // 2 = 500, of which 64 run."""
    request = Request(4017, 16)
    row = the_row(report_on(tmp_path, plain(max_num_seqs=64), request_tokens=(request,)))

    assert row["max_concurrent"]["value"] == 1000 // 251 == 3
    assert row["admitted_at_once"]["value"] == min(1 + 999 // 2, 64)


def test_a_length_without_a_split_has_no_such_keys(tmp_path: Path) -> None:
    row = the_row(report_on(tmp_path, plain(), request_tokens=(4608,)))
    assert not {"prompt_tokens", "output_tokens", "admitted_at_once"} & set(row)


def test_a_request_longer_than_the_context_is_impossible_and_not_zero(tmp_path: Path) -> None:
    """8,000 + 500 of 8,192."""
    request = Request(8500, 8000)
    row = the_row(report_on(tmp_path, plain(max_num_seqs=64), request_tokens=(request,)))

    assert (row["prompt_tokens"], row["output_tokens"], row["bound_by"]) == (8000, 500, None)
    for key in ("token_limit", "request_limit", "max_concurrent", "deployment_max_concurrent"):
        assert is_unknown(row[key])
        assert "context length" in row[key]["why"]
        assert row[key].get("at_most") is None
    assert "admitted_at_once" not in row or is_unknown(row["admitted_at_once"])


def test_a_request_of_the_whole_context_is_not_longer_than_it(tmp_path: Path) -> None:
    """7,692 + 500 = 8,192: 512 blocks of 1,000."""
    row = the_row(report_on(tmp_path, plain(), request_tokens=(Request(8192, 7692),)))
    assert row["token_limit"]["value"] == 1000 // 512 == 1


# A made-up model of twelve layers, of which every sixth keeps all tokens and others 256.
WINDOWED: dict[str, Any] = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "sliding_window": 256,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2,
    "torch_dtype": "bfloat16",
}
BLOCK, BATCHED, LONGEST = 32, 2048, 4096


def windowed(blocks: int = 4096, **args: object) -> list[str]:
    """One group of full layers and five of windows; two steps of 2,048 tokens are in flight:
    128 + 5 · (ceil(min(255 + 4,096, 4,096) / 32) + 1) = 773 blocks a request. A block is two layers
    of 32 tokens of 2,048 B: 4,096 of them are half a GiB."""
    reckoned = 128 + 5 * (-(-min(255 + 2 * BATCHED, LONGEST) // BLOCK) + 1)
    assert reckoned == 773
    asked_for = {"block_size": BLOCK, "max_num_batched_tokens": BATCHED, **args}
    groups = said("kv cache group sizes (32, 32, 32, 32, 32, 32)")
    return start(blocks, reckoned, LONGEST, groups, gib=f"{blocks / 8192:.2f}", **asked_for)


# Where scheduling runs a step ahead, two prompts hold chunks and a next block in each group at
# once, beside others at their end; at most the others have not grown yet, and their windows lie
# well on blocks.
WINDOWED_LEAST = 2 + (4095 - 2 * (6 * 91 + 6)) // (94 + 5 * 9)
WINDOWED_FITS = min(4095 // (94 + 5 * 8), 1 + (4095 - 6 * 91) // (91 + 5 * 8))
"""2,900 + 100: 91 blocks in each of six groups when admitted; 91 of full attention behind the
prompt, 94 at the end, and in each other group the ceil(255 / 32) = 8 or 9 that a window touches."""


def test_a_windows_model_with_its_configuration_is_known_but_for_one(tmp_path: Path) -> None:
    """The printed figures leave one number of blocks and one way of scheduling."""
    path = write(tmp_path, "config.json", json.dumps(WINDOWED))
    report = report_on(tmp_path, windowed(), config=path, request_tokens=(Request(3000, 2900),))
    limit = the_row(report)["token_limit"]

    assert (limit["at_least"], limit["at_most"]) == (WINDOWED_LEAST, WINDOWED_FITS) == (23, 28)
    assert limit["evidence"]
    naive = report["kv_pool"]["tokens"]["value"] // 3000
    assert naive == int(4096 / 773 * 4096) // 3000 == 7


def test_a_metrics_page_gives_the_same(tmp_path: Path) -> None:
    path = write(tmp_path, "config.json", json.dumps(WINDOWED))
    told = page(tmp_path, num_gpu_blocks="4096", block_size="32")
    report = report_on(
        tmp_path, windowed(), config=path, metrics=told, request_tokens=(Request(3000, 2900),)
    )
    limit = the_row(report)["token_limit"]

    assert (limit["at_least"], limit["at_most"]) == (WINDOWED_LEAST, WINDOWED_FITS)
    assert any(line.startswith("metrics0") for line in limit["evidence"])
    assert [row["id"] for row in report["inputs"]] == ["log0", "config0", "metrics0"] or {
        row["kind"] for row in report["inputs"]
    } == {"log", "config", "metrics"}


@pytest.mark.parametrize("name", ["compile_ranges_endpoints", "compile_ranges_split_points"])
def test_what_is_compiled_for_tells_the_tokens_of_a_step(tmp_path: Path, name: str) -> None:
    """A real engine's gemma3 with a window of 256: 512 blocks of 32 print 4,253 tokens and 1.04x
    for 4,096, and its page says the blocks. Five of 900 + 100 ran at once, one of 2,900 + 100
    (shared/live/README.md). 2,048 tokens a step are the last end of what is compiled for (0.33.0
    vllm/config/vllm.py:2664)."""
    ranges = f"compilation_config={{'mode': <M.NONE: 0>, '{name}': [512, 2048]}}"
    lines = [
        line.replace("quantization=None", f"quantization=None, device_config=cpu, {ranges}")
        for line in start(512, 493, 4096, said("kv cache group sizes (32, 32, 32, 32, 32, 32)"))
    ]
    told = page(tmp_path, num_gpu_blocks="512", block_size="32")
    requests = (Request(1000, 900), Request(3000, 2900))
    report = report_on(tmp_path, lines, metrics=told, request_tokens=requests)
    rows = report["concurrency"]["rows"]
    assert [row["token_limit"]["value"] for row in rows] == [5, 1]


def test_without_the_configuration_it_is_two_bounds_around_it(tmp_path: Path) -> None:
    report = report_on(tmp_path, windowed(), request_tokens=(Request(3000, 2900),))
    limit = the_row(report)["token_limit"]

    assert is_unknown(limit)
    assert limit.get("at_least", 0) <= WINDOWED_FITS <= limit["at_most"]
    assert found(report, "plugin-failed") == []


# --- what the log, the page and the configuration say of one another -------


def test_a_plain_reading_says_what_no_line_tells(tmp_path: Path) -> None:
    """A group of windows in all layers would print no other line."""
    limit = the_row(report_on(tmp_path, plain(), request_tokens=(4608,)))["token_limit"]
    assert limit["value"] == 1000 // 288
    assert any("sliding window" in why for why in limit["assuming"])


def test_with_its_configuration_it_assumes_nothing(tmp_path: Path) -> None:
    """1,001 blocks of 16 tokens of 12 layers · 4 heads · 2 · 128 · 2 B are 0.37 GiB."""
    model = {k: v for k, v in WINDOWED.items() if k not in ("sliding_window", "layer_types")}
    path = write(tmp_path, "config.json", json.dumps(model | {"model_type": "llama"}))
    lines = start(1001, 512, 8192, block_size=16, gib="0.37")
    limit = the_row(report_on(tmp_path, lines, config=path, request_tokens=(4608,)))["token_limit"]
    assert limit["value"] == 1000 // 288
    assert "assuming" not in limit


def test_a_configuration_that_no_figure_fits_is_named_and_not_used(tmp_path: Path) -> None:
    """Half the layers would make twice the blocks of the budget."""
    halved = WINDOWED | {"num_hidden_layers": 6, "layer_types": WINDOWED["layer_types"][:6]}
    path = write(tmp_path, "config.json", json.dumps(halved))
    request = (Request(3000, 2900),)
    with_it = report_on(tmp_path, windowed(), config=path, request_tokens=request)
    without = report_on(tmp_path, windowed(), request_tokens=request)
    assert len(found(with_it, "layout-not-used")) == 1
    assert the_row(with_it)["token_limit"] == the_row(without)["token_limit"]


def test_a_model_of_windows_alone_is_not_compared_with_a_plain_reading(tmp_path: Path) -> None:
    """115 blocks of 16: a request of 8,192 reserves ceil((1,023 + 512) / 16) + 1 = 97. The budget
    over the printed tokens is no cost of a token of such a model. 159 tokens are 10 blocks."""
    model = {k: v for k, v in WINDOWED.items() if k != "layer_types"}
    path = write(
        tmp_path,
        "config.json",
        json.dumps(model | {"model_type": "mistral", "sliding_window": 1024}),
    )
    lines = [
        line.replace("quantization=None", "quantization=None, device_config=cpu")
        for line in start(115, 97, 8192, block_size=16, max_num_batched_tokens=512, gib="0.04")
    ]
    report = report_on(tmp_path, lines, config=path, request_tokens=(Request(160, 100),))
    assert found(report, "layout-disagrees") == []
    limit = the_row(report)["token_limit"]
    assert limit["value"] == 114 // 10
    assert "assuming" not in limit


STATES = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "torch_dtype": "bfloat16",
}


def test_a_model_of_states_for_which_a_block_has_no_room_is_not_the_logs(tmp_path: Path) -> None:
    """A state of 1.1 MB is larger than 16 tokens of 2,048 B: the engine would have made its blocks
    larger, and said so."""
    path = write(tmp_path, "config.json", json.dumps(STATES))
    report = report_on(tmp_path, plain(), config=path, request_tokens=(PAIR,))
    assert len(found(report, "layout-not-used")) == 1
    assert (
        the_row(report)["token_limit"]
        == the_row(report_on(tmp_path, plain(), request_tokens=(PAIR,)))["token_limit"]
    )


def test_a_model_of_states_alone_is_not_read_as_plain(tmp_path: Path) -> None:
    """Its mode is printed; 64 blocks of 128 are not 8,192 tokens of attention."""
    lines = plain(64, block=128, length=2048)
    lines.insert(-2, said("Mamba cache mode is set to 'align' for Mamba2ForCausalLM by default"))
    limit = the_row(report_on(tmp_path, lines, request_tokens=(Request(256, 200),)))["token_limit"]
    assert limit["value"] is None
    assert limit.get("at_most") is None


def test_tokens_of_whole_longest_requests_are_plain_unless_a_state_takes_one(
    tmp_path: Path,
) -> None:
    """0.16 prints 2,048 tokens and 2.00x for 1,024: 16 blocks of 128, or two of 1,024 with a state
    in each. 15 // 2 = 7 of 200 + 56."""
    lines = start_in_two("0.16.0", blocks=16, block=128, length=1024)
    limit = the_row(report_on(tmp_path, lines, request_tokens=(Request(256, 200),)))["token_limit"]
    assert limit["value"] == 7
    assert any("state" in why for why in limit["assuming"])


@pytest.mark.parametrize("blocks", [129, 513])
def test_blocks_that_make_the_concurrency_show_one_group(tmp_path: Path, blocks: int) -> None:
    """0.22 prints no groups: blocks / ceil(4,096 / 32) is the printed concurrency of one alone."""
    lines = start_in_two("0.22.0", blocks, block=32, length=4096)
    told = page(tmp_path, num_gpu_blocks=str(blocks), block_size="32")
    report = report_on(tmp_path, lines, metrics=told, request_tokens=(Request(300, 200),))
    limit = the_row(report)["token_limit"]
    assert limit["value"] == (blocks - 1) // 10
    assert any("sliding window" in why for why in limit["assuming"])


def test_a_page_with_other_blocks_than_the_log_is_named_and_not_used(tmp_path: Path) -> None:
    lines = plain(700)
    lines.insert(3, said("Overriding num_gpu_blocks=1200 with num_gpu_blocks_override=700"))
    told = page(tmp_path, num_gpu_blocks="1400", block_size="16")
    report = report_on(tmp_path, lines, metrics=told, request_tokens=(PAIR,))
    assert len(found(report, "metrics-disagree")) == 1
    assert the_row(report)["token_limit"]["value"] == 699 // 288


def test_a_page_may_say_very_many_blocks(tmp_path: Path) -> None:
    """281,250 blocks of 16 hold 4.5 million tokens: 281,249 // 288 = 976 of 4,096 + 512."""
    told = page(tmp_path, num_gpu_blocks="281250", block_size="16")
    report = report_on(tmp_path, plain(281_250), metrics=told, request_tokens=(PAIR,))
    limit = the_row(report)["token_limit"]
    assert limit["value"] == 281_249 // 288
    assert any(line.startswith("metrics0") for line in limit["evidence"])


def test_blocks_that_a_line_says_need_no_page(tmp_path: Path) -> None:
    """Without the concurrency's many readings: 64 blocks of 32 tokens."""
    lines = plain(64, block=32, length=1024)
    lines.insert(-2, said("vllm cache_config_info with initialization after num_gpu_blocks is: 64"))
    report = report_on(tmp_path, lines, request_tokens=(Request(600, 500),))
    assert the_row(report)["token_limit"]["value"] == 63 // -(-599 // 32)


def test_the_longest_requests_of_a_windows_model_are_at_least_what_is_reckoned(
    tmp_path: Path,
) -> None:
    """With a draft the groups are not known: 4,096 / 773 = 5.30 requests as the engine reckons,
    with a whole prefill in each window."""
    path = write(tmp_path, "config.json", json.dumps(WINDOWED))
    lines = [
        line.replace(
            "speculative_config=None",
            "speculative_config=SpeculativeConfig(method='mtp', model='/m', num_spec_tokens=3)",
        )
        for line in windowed()
    ]
    report = report_on(tmp_path, lines, config=path, request_tokens=(LONGEST,))
    limit = the_row(report)["token_limit"]
    assert limit["value"] is None
    assert (limit["at_least"], limit.get("at_most")) == (4096 // 773, None)
    assert len(found(report, "layout-not-used")) == 1


PADDED = (
    "Padding mamba page size by 82.86% to ensure that mamba page size and attention page size are "
    "exactly equal."
)


def states(blocks: int = 64, *more: str) -> list[str]:
    """Like the real qwen3next_gdn_kv4m: one group of attention and three of states, blocks of 128;
    a request of 2,048 takes 16 + 3 · 2 = 22 blocks where the last state is kept, too."""
    return start(
        blocks,
        16 + 3 * 2,
        2048,
        said(PADDED),
        said(
            "Setting attention block size to 128 tokens to ensure that attention page size is >= "
            "mamba page size."
        ),
        *more,
        said("kv cache group sizes (128, 128, 128, 128)"),
    )


def test_states_cost_blocks_that_tokens_divided_do_not_see(tmp_path: Path) -> None:
    """40 + 20 ran fifteen at once on 63 usable blocks, four blocks each; 5,957 // 60 is 99."""
    told = page(tmp_path, num_gpu_blocks="64", block_size="128", mamba_cache_mode="align")
    request = Request(60, 40)
    alone = the_row(report_on(tmp_path, states(), request_tokens=(request,)))["token_limit"]
    report = report_on(tmp_path, states(), metrics=told, request_tokens=(request,))

    assert report["kv_pool"]["tokens"]["value"] == int(64 / 22 * 2048) == 5957
    low, high = alone.get("at_least", alone["value"]), alone.get("at_most", alone["value"])
    assert low <= 15 <= high < 5957 // 60
    with_page = the_row(report)["token_limit"]
    assert with_page["value"] == 63 // 4 or (
        with_page["at_least"] <= 63 // 4 <= with_page["at_most"]
    )


def test_with_groups_and_blocks_known_short_requests_are_known(tmp_path: Path) -> None:
    """`kv cache group sizes` and a page leave which of four groups are states; a made-up
    configuration says one in four layers is attention."""
    model = {
        "model_type": "qwen3_next",
        "architectures": ["Qwen3NextForCausalLM"],
        "hidden_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "full_attention_interval": 4,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "torch_dtype": "bfloat16",
    }
    path = write(tmp_path, "config.json", json.dumps(model))
    told = page(tmp_path, num_gpu_blocks="64", block_size="128", mamba_cache_mode="align")
    report = report_on(
        tmp_path, states(), config=path, metrics=told, request_tokens=(Request(60, 40),)
    )
    assert the_row(report)["token_limit"]["value"] == 63 // (1 + 3) == 15


def test_a_page_may_supply_a_block_size_that_no_line_prints(tmp_path: Path) -> None:
    """2,048 tokens of 2.00x: 140 tokens fit 7 to 14 times, with blocks of 128 seven times."""
    request = Request(140, 130)
    lines = start(16, 8, 1024)
    alone = the_row(report_on(tmp_path, lines, request_tokens=(request,)))["token_limit"]
    told = page(tmp_path, num_gpu_blocks="16", block_size="128")
    limit = the_row(report_on(tmp_path, lines, metrics=told, request_tokens=(request,)))

    assert is_unknown(alone)
    assert alone["at_least"] <= 7 < 14 <= alone["at_most"]
    assert limit["token_limit"]["value"] == 15 // 2


def test_two_engines_are_twice_one(tmp_path: Path) -> None:
    lines = [
        asked(max_model_len=8192, block_size=16, max_num_seqs=64, data_parallel_size=2),
        config("0.33.0", 8192, data=2),
    ]
    for process in ("EngineCore_DP0 pid=7", "EngineCore_DP1 pid=8"):
        lines.append(budget("20.0", process))
        lines.append(sized_in_one(int(1001 / 512 * 8192), 8192, 1001 / 512, process))
        lines.append(said("init engine (profile, create kv cache, warmup model) took 9 s", process))
    row = the_row(report_on(tmp_path, [*lines, SERVES], request_tokens=(PAIR,)))

    assert row["max_concurrent"]["value"] == 3
    assert row["deployment_max_concurrent"]["value"] == 6


def test_of_two_engines_of_which_one_is_shown_the_least_is_a_bound(tmp_path: Path) -> None:
    lines = plain(max_num_seqs=64, data_parallel_size=2)
    lines[1] = config("0.33.0", 8192, data=2)
    row = the_row(report_on(tmp_path, lines, request_tokens=(PAIR,)))

    assert is_unknown(row["max_concurrent"])
    assert row["max_concurrent"]["at_most"] == 3
    assert row["deployment_max_concurrent"]["at_least"] == 3


# --- SGLang ---------------------------------------------------------------


def hybrid(full: int = 200_000, window: int = 40_000, **args: object) -> list[str]:
    return sglang_said(
        as_dict(**args),
        *weights(78.0, 10.0, "Gemma4ForCausalLM"),
        f"Use sliding window memory pool. full_layer_tokens={full}, swa_layer_tokens={window}",
        pool(window, round(window / 2**20, 2)),  # 1,024 B for the keys of two layers
        pool(full, round(full / 2**20, 2)),
        f"SWAKVPool mem usage: {(window + full) / 2**19:.2f} GB, swa size: {window}, "
        f"full size: {full}",
        pools_end(56.00),
        limits(full),
        UP,
    )


GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "torch_dtype": "bfloat16",
}


def test_sglangs_windows_pool_limits_beside_the_full_one(tmp_path: Path) -> None:
    """200,000 // 5,000 = 40 by the full pool; 4,000 // 128 = 31 windows at most."""
    path = write(tmp_path, "config.json", json.dumps(GPT_OSS))
    lines = hybrid(window=4000)
    row = the_row(report_on(tmp_path, lines, config=path, request_tokens=(Request(5000, 4500),)))
    limit = row["token_limit"]
    assert is_unknown(limit)
    assert limit["at_most"] == min(200_000 // 5000, 4000 // 128) == 31


def test_without_its_window_sglangs_full_pool_is_an_upper_limit(tmp_path: Path) -> None:
    limit = the_row(report_on(tmp_path, hybrid(), request_tokens=(5000,)))["token_limit"]
    assert is_unknown(limit)
    assert limit["at_most"] == 200_000 // 5000


def test_sglangs_full_pool_binds_where_windows_are_plenty(tmp_path: Path) -> None:
    """200,000 // 19,900 = 10 requests hold at most ten times 19,900 tokens of the other pool."""
    path = write(tmp_path, "config.json", json.dumps(GPT_OSS))
    lines = hybrid(window=240_000, page_size=1)
    report = report_on(tmp_path, lines, config=path, request_tokens=(Request(19_900, 19_000),))
    row = the_row(report)
    assert row["token_limit"]["value"] == 10
    assert row["bound_by"] == "tokens"


@pytest.mark.parametrize(
    ("args", "each"),
    [
        ({"disable_radix_cache": True}, 1),
        ({"disable_radix_cache": False, "mamba_radix_cache_strategy": "no_buffer"}, 3),
        (
            {
                "disable_radix_cache": False,
                "mamba_radix_cache_strategy": "extra_buffer",
                "disable_overlap_schedule": False,
            },
            5,
        ),
        (
            {
                "disable_radix_cache": False,
                "mamba_radix_cache_strategy": "extra_buffer",
                "disable_overlap_schedule": True,
            },
            4,
        ),
        ({"disable_radix_cache": False, "mamba_radix_cache_strategy": "extra_buffer_lazy"}, 4),
    ],
    ids=["no cache", "no buffer", "buffer", "buffer without overlap", "lazy"],
)
@pytest.mark.parametrize("words", [as_dict, as_repr])
def test_slots_of_states_are_shared_out_by_strategy(
    tmp_path: Path, words: Any, args: dict[str, object], each: int
) -> None:
    """360 slots (0.5.23 kv_cache_configurator.py:3062); 400,000 tokens hold 80 of 5,000."""
    lines = sglang_said(
        words(**args),
        *weights(78.0, 10.0, "Qwen3NextForCausalLM"),
        "Mamba Cache is allocated. max_mamba_cache_size: 360, conv_state size: 0.99GB, "
        "ssm_state size: 10.00GB ",
        pool(400_000, 10.00),
        pools_end(37.00),
        limits(400_000, requests=2048),
        UP,
    )
    row = the_row(report_on(tmp_path, lines, request_tokens=(5000,)))
    assert row["state_limit"]["value"] == 360 // each
    least = min(360 // each, 400_000 // 5000)
    assert row["max_concurrent"]["value"] == least
    assert row["bound_by"] == ("tokens" if least == 80 else "state")


def test_an_unprinted_strategy_of_slots_is_a_bound(tmp_path: Path) -> None:
    lines = sglang_said(
        as_dict(),
        "Mamba Cache is allocated. max_mamba_cache_size: 40, conv_state size: 0.99GB, "
        "ssm_state size: 10.00GB ",
        pool(400_000, 10.00),
        limits(400_000),
        UP,
    )
    row = the_row(report_on(tmp_path, lines, request_tokens=(5000,)))
    assert is_unknown(row["state_limit"])
    assert row["state_limit"]["at_most"] == 40
    assert is_unknown(row["max_concurrent"])
    assert row["max_concurrent"]["at_most"] == 40


def test_gauges_of_sglang_supply_what_a_log_lacks(tmp_path: Path) -> None:
    """A log that ends before its limits: 300,000 tokens in pages of one."""
    told = write(
        tmp_path,
        "metrics.txt",
        "# TYPE sglang:max_total_num_tokens gauge\n"
        'sglang:max_total_num_tokens{tp_rank="0"} 300000.0\n'
        "# TYPE sglang:page_size gauge\n"
        'sglang:page_size{tp_rank="0"} 1.0\n',
    )
    lines = sglang_said(as_dict(), *weights(78.0, 10.0), pools_end(38.00), UP)
    report = report_on(tmp_path, lines, metrics=told, request_tokens=(5000,))
    assert the_row(report)["token_limit"]["value"] == 300_000 // 5000


# --- what a page may be ---------------------------------------------------

SGLANG_PAGE = '# TYPE sglang:page_size gauge\nsglang:page_size{tp_rank="0"} 64.0\n'


def test_a_page_of_another_framework_is_pointed_out(tmp_path: Path) -> None:
    told = write(tmp_path, "metrics.txt", SGLANG_PAGE)
    report = report_on(tmp_path, plain(), metrics=told, request_tokens=(PAIR,))
    bare = report_on(tmp_path, plain(), request_tokens=(PAIR,))

    (finding,) = found(report, "metrics-say-nothing")
    assert "metrics.txt" in finding["message"]
    assert finding["evidence"] == ["metrics0"]
    assert report["concurrency"] == bare["concurrency"]


def test_a_page_that_says_something_is_not_pointed_out(tmp_path: Path) -> None:
    told = page(tmp_path, num_gpu_blocks="1001", block_size="16")
    report = report_on(tmp_path, plain(), metrics=told, request_tokens=(PAIR,))
    assert found(report, "metrics-say-nothing") == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("<html><body>502 Bad Gateway</body></html>\n", "no metrics page"),
        ("", "no sample"),
        ("# HELP a b\n# TYPE a gauge\n", "no sample"),
        ('vllm:cache_config_info{block_size="16" 1.0\n', "no metrics page"),
        ("vllm:cache_config_info{} one\n", "no metrics page"),
        ("\x00\x01\x02", "no metrics page"),
    ],
    ids=["html", "empty", "comments", "cut", "no number", "binary"],
)
def test_a_bad_page_is_one_line_and_exit_1(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str,
    words: str,
) -> None:
    log = write(tmp_path, "server.log", "\n".join(plain()) + "\n")
    told = write(tmp_path, "metrics.txt", content)
    code, out, err = call(monkeypatch, capsys, "analyze", log, "--metrics", told)

    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert told in line
    assert words in line


def test_a_page_that_is_not_there_is_one_line_and_exit_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write(tmp_path, "server.log", "\n".join(plain()) + "\n")
    missing = str(tmp_path / "none.txt")
    code, out, err = call(monkeypatch, capsys, "analyze", log, "--metrics", missing)

    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert "none.txt: cannot be read" in line


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str
) -> tuple[int, str, str]:
    """The command in this process: its exit code and both streams."""
    monkeypatch.setattr(sys, "argv", ["capacity", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


# --- the text report ------------------------------------------------------


def text_of(folder: Path, lines: list[str], **options: Any) -> str:
    path = write(folder, "server.log", "\n".join(lines) + "\n")
    report = analyse([path], Options(**options), shipped_plugins())
    return TextRenderer().render(report)


def section(text: str, head: str) -> list[str]:
    """The lines of a section, down to the next empty one."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(head))
    rest = lines[first:]
    return rest[: rest.index("")] if "" in rest else rest


def test_the_text_names_what_is_admitted_at_once(tmp_path: Path) -> None:
    text = text_of(tmp_path, plain(max_num_seqs=640), request_tokens=(Request(4017, 16),))
    lines = section(text, "Concurrency")

    (header, *_, row) = (line for line in lines if line.endswith("admitted") or "4,001" in line)
    assert header.split()[-1] == "admitted"
    assert row.split()[:3] == ["16", "+", "4,001"]
    assert row.split()[-1] == "500"
    assert any("without preemption" in line for line in lines)


def test_the_text_with_that_column_fits_100_columns(tmp_path: Path) -> None:
    text = text_of(tmp_path, plain(max_num_seqs=640), request_tokens=(Request(4017, 16),))
    assert max(map(len, text.splitlines())) <= 100


def test_lengths_and_bounds_of_millions_fit_100_columns_too(tmp_path: Path) -> None:
    """Bounds of seven digits for a length of seven digits, in five columns."""
    lines = sglang_said(
        as_dict(mamba_scheduler_strategy="extra_buffer", disable_overlap_schedule=False),
        *weights(78.0, 10.0, "Qwen3NextForCausalLM"),
        "Mamba Cache is allocated. max_mamba_cache_size: 15000000, conv_state size: 1.00GB, "
        "ssm_state size: 3.00GB ",
        pool(3_000_000_000, 10.0),
        pools_end(40.0),
        limits(3_000_000_000, 3_000_000).replace("context_len=32768", "context_len=8388608"),
        UP,
    )
    requests = (Request(2_000_000, 1_000_000), Request(1000, 500), Request(2, 1))
    text = text_of(tmp_path, lines, request_tokens=requests)
    assert "1,000,000" in text
    assert "impossible" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_text_has_no_such_column_for_plain_lengths(tmp_path: Path) -> None:
    text = text_of(tmp_path, plain(max_num_seqs=640), request_tokens=(4096,))
    assert "admitted" not in text


def test_the_text_shows_both_bounds(tmp_path: Path) -> None:
    """7 … 14, and 16 blocks of 1.00x more: bounds of unprinted block sizes."""
    text = text_of(tmp_path, start(16, 8, 1024), request_tokens=(Request(140, 130),))
    (row,) = [line for line in section(text, "Concurrency") if line.split()[:1] == ["130"]]
    low, high = row.split(" … ")[:2]
    assert int(low.split()[-1]) <= 7
    assert int(high.split()[0]) >= 14
    assert any("unknown:" in line for line in section(text, "Concurrency"))


def test_the_text_says_that_a_request_is_longer_than_the_context(tmp_path: Path) -> None:
    text = text_of(tmp_path, plain(max_num_seqs=64), request_tokens=(Request(8500, 8000),))
    lines = section(text, "Concurrency")
    (row,) = [line for line in lines if line.split()[:1] == ["8,000"]]
    assert row.split()[3:] == ["impossible"] * len(row.split()[3:])
    assert any("longer than the context length, 8,192" in line for line in lines)


# --- a real engine --------------------------------------------------------

LIVE = Path(__file__).parents[3] / "shared" / "live"
ROWS: list[Report] = (
    [json.loads(line) for line in (LIVE / "truth.jsonl").read_text("utf-8").splitlines()]
    if (LIVE / "truth.jsonl").is_file()
    else []
)
LOADS = [row for row in ROWS if row["kind"] == "concurrency" and (LIVE / row["log"]).is_file()]
INFO = {row["log"]: row["metrics_cache_config_info"] for row in ROWS if row["kind"] == "log"}
PLAIN_LOADS = [row for row in LOADS if "llama" in row["log"] or "mla" in row["log"]]


def each(loads: list[Report]) -> pytest.MarkDecorator:
    """A test for every load; skipped as a whole where the folder does not lie beside."""
    return pytest.mark.parametrize(
        "load",
        [
            pytest.param(row, id=f"{row['log']} {row['prompt']}+{row['output']} x{row['sent']}")
            for row in loads
        ],
    )


def estimate(folder: Path, load: Report, *, metrics: bool) -> Report:
    request = Request(load["prompt"] + load["output"], load["prompt"])
    options: dict[str, Any] = {"request_tokens": (request,)}
    if metrics:
        options["metrics"] = page(folder, **INFO[load["log"]])
    return the_row(report_of(LIVE / load["log"], **options))


@each(LOADS)
def test_no_load_that_is_said_to_fit_preempted_on_a_real_engine(
    tmp_path: Path, load: Report
) -> None:
    """What is sent at once and at most as many as fit, known or at least: none may be preempted."""
    row = estimate(tmp_path, load, metrics=True)
    for key in ("token_limit", "max_concurrent"):
        said_to_fit = row[key]["value"]
        if said_to_fit is None:
            said_to_fit = row[key].get("at_least", 0)
        assert said_to_fit < load["sent"] or load["preemptions"] == 0


@each([row for row in LOADS if not row["preemptions"]])
def test_what_ran_while_others_waited_is_not_more_than_is_said_to_fit(
    tmp_path: Path, load: Report
) -> None:
    """Without a preemption what ran did fit."""
    for metrics in (True, False):
        row = estimate(tmp_path, load, metrics=metrics)
        if row["bound_by"] == "requests":
            continue
        limit = row["token_limit"]
        most = limit["value"] if limit["value"] is not None else limit.get("at_most")
        assert most is None or most >= load["running_max_observed"]


@each(PLAIN_LOADS)
def test_blocks_and_one_kind_of_layer_make_the_count_known(tmp_path: Path, load: Report) -> None:
    """The rule that was never contradicted there: usable blocks over those of a request."""
    blocks, size = load["num_gpu_blocks"], load["block_size"]
    held = -(-(load["prompt"] + load["output"] - 1) // size)
    limit = estimate(tmp_path, load, metrics=True)["token_limit"]
    assert limit["value"] == (blocks - 1) // held


def test_the_real_runs_are_here() -> None:
    if not ROWS:
        pytest.skip("the folder shared/live does not lie beside this project")
    assert LOADS
