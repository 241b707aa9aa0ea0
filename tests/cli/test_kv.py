"""`capacity kv`: what it prints, as text and as JSON, and how it ends.

Models are small and made up; what they cost is arithmetic that stands in the test, by the rules of
references/kv-layouts.md. The command runs in this process, which is several times as fast.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capacity_core import loader
from capacity_core.api import hookimpl
from capacity_core.api.kv_layouts import KVLayout, LayoutReading, ModelConfig, Serving
from capacity_core.cli import main
from capacity_core.loader import Found

from .conftest import Capacity, Done

Config = dict[str, Any]


@pytest.fixture
def capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Capacity:
    """Run `capacity ARGS…` in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["capacity", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    return run


# Six layers of four KV heads, a key and a value of 64 elements each.
LLAMA: Config = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 6,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "torch_dtype": "bfloat16",
}
HEAD = (64 + 64) * 2  # bytes of one head of one layer in bf16
WHOLE = 6 * 4 * HEAD

LATENT: Config = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 5,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
}
INDEXED: Config = LATENT | {
    "model_type": "deepseek_v32",
    "architectures": ["DeepseekV32ForCausalLM"],
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
}
WINDOWS: Config = LLAMA | {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "sliding_window": 512,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}
HYBRID: Config = {
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 1024,
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
BLOCKS: Config = {
    "model_type": "nemotron-nas",
    "architectures": ["DeciLMForCausalLM"],
    "num_hidden_layers": 3,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "block_configs": [
        {"attention": {"no_op": no, "replace_with_linear": False, "n_heads_in_group": group}}
        for no, group in ((False, 4), (True, None), (False, 4))
    ],
    "torch_dtype": "bfloat16",
}
SPARSE: Config = LLAMA | {
    "model_type": "minimax_m3",
    "architectures": ["MiniMaxM3SparseForCausalLM"],
    "sparse_attention_config": {
        "sparse_attention_freq": [0, 0, 0, 1, 1, 1],
        "sparse_index_dim": 128,
        "sparse_disable_index_value": [0, 0, 0, 1, 1, 1],
    },
}
WHISPER: Config = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "decoder_layers": 4,
    "encoder_layers": 4,
    "d_model": 384,
    "decoder_attention_heads": 6,
    "encoder_attention_heads": 6,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "torch_dtype": "bfloat16",
}
COMPRESSED: Config = {
    "model_type": "deepseek_v4",
    "architectures": ["DeepseekV4ForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "compress_ratios": [0, 0, 4, 128],
    "sliding_window": 128,
    "torch_dtype": "bfloat16",
}
FAMILIES: dict[str, Config] = {
    "grouped-query": LLAMA,
    "latent": LATENT,
    "latent with an index": INDEXED,
    "windows": WINDOWS,
    "hybrid": HYBRID,
    "by-block": BLOCKS,
    "sparse-index": SPARSE,
    "encoder-decoder": WHISPER,
    "deepseek-v4": COMPRESSED,
}


def write(folder: Path, config: object, name: str = "config.json") -> str:
    (folder / name).write_text(json.dumps(config), encoding="utf-8")
    return name


def kv(capacity: Capacity, folder: Path, config: Config, *args: str) -> Any:
    """The JSON report on a configuration."""
    done = capacity("kv", write(folder, config), "--format", "json", *args)
    assert (done.code, done.err) == (0, "")
    return done.report


# --- JSON -----------------------------------------------------------------


def test_json_has_the_keys_of_the_contract(capacity: Capacity, tmp_path: Path) -> None:
    report = kv(capacity, tmp_path, LLAMA, "--request-tokens", "4096")

    assert report["schema"] == "capacity-kv/1"
    assert report["model"] == "config.json"
    layout = report["layout"]
    assert {"name", "family", "source", "terms"} <= set(layout)
    sums = (
        "bytes_per_token",
        "window_bytes_per_token",
        "window_tokens",
        "fixed_bytes_per_request",
        "replication",
        "pool_bytes_per_token",
    )
    for key in sums:
        assert {"value", "unit"} <= set(layout[key]), key
        assert layout[key]["value"] is not None or layout[key]["why"]
    (term,) = layout["terms"]
    assert {
        "name",
        "layers",
        "bytes_per_token",
        "window_tokens",
        "fixed_bytes_per_request",
    } <= set(term)
    assert (term["window_tokens"], term["fixed_bytes_per_request"]) == (None, None)
    assert term["formula"]
    assert term["source"]
    (row,) = report["requests"]
    assert (row["request_tokens"], row["bytes"]["value"]) == (4096, 4096 * WHOLE)
    assert row["bytes"]["unit"] == "B"


def test_the_models_own_name_is_shown_where_it_has_one(capacity: Capacity, tmp_path: Path) -> None:
    assert kv(capacity, tmp_path, LLAMA | {"_name_or_path": "acme/a"})["model"] == "acme/a"


@pytest.mark.parametrize(
    ("tensor", "heads", "copies"), [(1, 4, 1), (2, 2, 1), (4, 1, 1), (8, 1, 2), (16, 1, 4)]
)
def test_ranks_share_heads_until_each_has_one(
    capacity: Capacity, tmp_path: Path, tensor: int, heads: int, copies: int
) -> None:
    layout = kv(capacity, tmp_path, LLAMA, "--tp", str(tensor))["layout"]
    assert layout["bytes_per_token"]["value"] == 6 * heads * HEAD
    assert layout["replication"]["value"] == copies


def test_attention_data_parallel_groups_share_fewer_ranks(
    capacity: Capacity, tmp_path: Path
) -> None:
    """Eight ranks in four groups: two share four heads."""
    report = kv(capacity, tmp_path, LLAMA, "--tp", "8", "--attention-dp", "4")
    assert report["layout"]["bytes_per_token"]["value"] == 6 * 2 * HEAD
    assert report["parallel"]["attention_data"] == 4


@pytest.mark.parametrize(
    ("dtype", "head"),
    [
        ("bf16", 64 * 2),
        ("fp8_e4m3", 64),
        ("fp8_e5m2", 64),
        ("nvfp4", 64 // 2 + 64 // 16),
    ],
)
def test_the_stored_type_decides_the_bytes(
    capacity: Capacity, tmp_path: Path, dtype: str, head: int
) -> None:
    report = kv(capacity, tmp_path, LLAMA, "--kv-dtype", dtype)
    assert report["layout"]["bytes_per_token"]["value"] == 6 * 4 * 2 * head


def test_auto_is_the_models_own_type_and_says_that_it_is_assumed(
    capacity: Capacity, tmp_path: Path
) -> None:
    report = kv(capacity, tmp_path, LLAMA)
    assert report["kv_cache_dtype"]["value"] == "bf16"
    assert report["layout"]["bytes_per_token"]["value"] == WHOLE
    assert report["layout"]["bytes_per_token"]["assuming"]


def test_an_unknown_type_leaves_the_bytes_unknown(capacity: Capacity, tmp_path: Path) -> None:
    """Unknown is not an error of the file: the value says why, or the option is refused."""
    done = capacity("kv", write(tmp_path, LLAMA), "--kv-dtype", "fp3", "--format", "json")
    if done.code == 0:
        figure = done.report["layout"]["bytes_per_token"]
        assert figure["value"] is None
        assert "fp3" in figure["why"]
    else:
        assert (done.code in (1, 2), done.out) == (True, "")
        assert "fp3" in done.err


def test_a_request_of_prompt_and_output_is_their_sum(capacity: Capacity, tmp_path: Path) -> None:
    report = kv(capacity, tmp_path, LLAMA, "--request-tokens", "4096:512,1k")
    rows = [(row["request_tokens"], row["bytes"]["value"]) for row in report["requests"]]
    assert rows == [(4608, 4608 * WHOLE), (1024, 1024 * WHOLE)]


def test_prompt_and_output_of_a_request_stand_beside_their_sum(
    capacity: Capacity, tmp_path: Path
) -> None:
    """A length that was given as one number has neither."""
    report = kv(capacity, tmp_path, LLAMA, "--request-tokens", "100:50,150")
    split, whole = report["requests"]
    assert (split["prompt_tokens"], split["output_tokens"]) == (100, 50)
    assert split["request_tokens"] == whole["request_tokens"] == 100 + 50
    assert split["bytes"]["value"] == whole["bytes"]["value"] == (100 + 50) * WHOLE
    assert not {"prompt_tokens", "output_tokens"} & set(whole)


def test_requests_have_default_lengths(capacity: Capacity, tmp_path: Path) -> None:
    report = kv(capacity, tmp_path, LLAMA)
    assert [row["request_tokens"] for row in report["requests"]] == [4096, 6144, 8192]


def test_auto_of_a_sparse_model_is_not_known_without_the_device(
    capacity: Capacity, tmp_path: Path
) -> None:
    """SGLang takes bf16 or fp8 by the device: what a token costs is unknown and says so, and the
    rest is said; a type that is asked for gives the figure, 512 + 64 elements and an index key of
    128 with a scale of 4 B in each of 5 layers."""
    report = kv(capacity, tmp_path, INDEXED, "--framework", "sglang", "--tp", "8")
    layout, (row, *_) = report["layout"], report["requests"]
    for unknown in (report["kv_cache_dtype"], layout["bytes_per_token"], row["bytes"]):
        assert unknown["value"] is None
        assert "by the device" in unknown["why"]
    assert layout["replication"]["value"] == 8
    index = next(term for term in layout["terms"] if term["name"] == "index key")
    assert index["bytes_per_token"]["value"] == 5 * (128 + 4)

    asked = kv(capacity, tmp_path, INDEXED, "--framework", "sglang", "--kv-dtype", "bf16")
    assert asked["layout"]["bytes_per_token"]["value"] == 5 * ((512 + 64) * 2 + 128 + 4)


def test_requests_take_whole_pages(capacity: Capacity, tmp_path: Path) -> None:
    args = ("--page-size", "64", "--request-tokens", "64,65")
    report = kv(capacity, tmp_path, LLAMA, *args)
    assert report["page_size"] == 64
    assert [row["bytes"]["value"] for row in report["requests"]] == [64 * WHOLE, 128 * WHOLE]


def test_draft_layers_are_terms_of_their_own(capacity: Capacity, tmp_path: Path) -> None:
    terms = kv(capacity, tmp_path, LLAMA, "--draft-layers", "1")["layout"]["terms"]
    assert sorted(term["bytes_per_token"]["value"] for term in terms) == [4 * HEAD, WHOLE]


def test_a_latent_is_whole_on_every_rank(capacity: Capacity, tmp_path: Path) -> None:
    layout = kv(capacity, tmp_path, LATENT, "--tp", "8")["layout"]
    assert layout["bytes_per_token"]["value"] == 5 * (512 + 64) * 2
    assert layout["replication"]["value"] == 8


def test_windows_and_states_are_told_from_what_grows(capacity: Capacity, tmp_path: Path) -> None:
    """One full layer and five of 512 tokens; 1,000 tokens cost 1,000 + 5 · 512 layer tokens."""
    args = ("--framework", "vllm", "--request-tokens", "100,1000")
    report = kv(capacity, tmp_path, WINDOWS, *args)
    layout = report["layout"]
    assert layout["bytes_per_token"]["value"] == 1 * 4 * HEAD
    assert layout["window_bytes_per_token"]["value"] == 5 * 4 * HEAD
    assert layout["window_tokens"]["value"] == 512
    assert [row["bytes"]["value"] for row in report["requests"]] == [
        100 * WHOLE,
        (1000 + 5 * 512) * 4 * HEAD,
    ]


def test_a_state_is_a_fixed_cost_of_a_request(capacity: Capacity, tmp_path: Path) -> None:
    """Three GDN layers in bf16: (2 · 8 · 64 + 16 · 64) channels of 3 steps, and 16 · 64 · 64."""
    args = ("--framework", "vllm", "--request-tokens", "1000")
    report = kv(capacity, tmp_path, HYBRID, *args)
    state = 3 * ((2 * 8 * 64 + 16 * 64) * 3 * 2 + 16 * 64 * 64 * 2)
    grows = 1 * 2 * (128 + 128) * 2
    assert report["layout"]["bytes_per_token"]["value"] == grows
    assert report["layout"]["fixed_bytes_per_request"]["value"] == state
    assert report["requests"][0]["bytes"]["value"] == 1000 * grows + state


# --- frameworks and stages ------------------------------------------------


@pytest.mark.parametrize(("framework", "layers"), [("sglang", [3, 4]), ("vllm", [4, 3])])
def test_stages_are_cut_by_the_engines_own_rule(
    capacity: Capacity, tmp_path: Path, framework: str, layers: list[int]
) -> None:
    """Seven layers on two stages; the figures are of the largest."""
    model = LLAMA | {"num_hidden_layers": 7}
    report = kv(capacity, tmp_path, model, "--framework", framework, "--pp", "2")

    stages = [
        (stage["pp_rank"], stage["layout"]["bytes_per_token"]["value"])
        for stage in report["stages"]
    ]
    assert stages == [(n, count * 4 * HEAD) for n, count in enumerate(layers)]
    assert report["layout"]["bytes_per_token"]["value"] == 4 * 4 * HEAD


def test_one_stage_is_not_listed(capacity: Capacity, tmp_path: Path) -> None:
    assert not kv(capacity, tmp_path, LLAMA).get("stages")


def test_a_framework_may_name_its_release(capacity: Capacity, tmp_path: Path) -> None:
    report = kv(capacity, tmp_path, LLAMA, "--framework", "sglang==0.5.23")
    assert (report["framework"], report["framework_version"]) == ("sglang", "0.5.23")


def test_without_a_release_none_is_made_up(capacity: Capacity, tmp_path: Path) -> None:
    report = kv(capacity, tmp_path, LLAMA, "--framework", "vllm")
    assert (report["framework"], report["framework_version"]) == ("vllm", None)


def test_a_variant_of_a_layout_is_taken_by_its_name(capacity: Capacity, tmp_path: Path) -> None:
    """A layer of ratio 4, one of 128: pages of 64 and 2 slots, and an index key of 132 B. With v4
    585 and 864 B a slot behind padding, with v41 528 and 768."""
    args = ("--framework", "sglang==0.5.23")
    plain = kv(capacity, tmp_path, COMPRESSED, *args)
    v4 = kv(capacity, tmp_path, COMPRESSED, *args, "--layout", "v4")
    v41 = kv(capacity, tmp_path, COMPRESSED, *args, "--layout", "v41")

    assert v4["layout"]["bytes_per_token"]["value"] == (585 + 132) / 4 + 864 / 128
    assert v41["layout"]["bytes_per_token"]["value"] == (528 + 132) / 4 + 768 / 128
    assert plain["layout"]["bytes_per_token"] == v4["layout"]["bytes_per_token"]


def test_a_layout_is_taken_by_its_own_name(capacity: Capacity, tmp_path: Path) -> None:
    assert kv(capacity, tmp_path, LLAMA, "--layout", "grouped-query")["layout"]["name"] == (
        "grouped-query"
    )


# --- text -----------------------------------------------------------------


def test_text_shows_terms_sums_steps_and_requests(capacity: Capacity, tmp_path: Path) -> None:
    done = capacity("kv", write(tmp_path, LLAMA), "--framework", "vllm", "--request-tokens", "4k")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()

    assert lines[0].startswith("config.json · vllm · TP 1 · PP 1 · KV bf16")
    assert any(line.startswith("What one GPU keeps · grouped-query") for line in lines)
    assert f"{WHOLE:,} B/token" in done.out
    assert "One request on one GPU" in lines
    assert lines[-1].split() == ["4,096", f"{4096 * WHOLE:,}", f"{4096 * WHOLE / 2**20:,.1f}"]
    assert done.out.endswith("\n")


def test_text_shows_prompt_and_output_of_a_request(capacity: Capacity, tmp_path: Path) -> None:
    done = capacity("kv", write(tmp_path, LLAMA), "--request-tokens", "100:50")
    tokens, size = done.out.splitlines()[-1].rsplit(maxsplit=2)[:2]
    assert (tokens.strip(), size) == ("100 + 50", f"{150 * WHOLE:,}")


NAMES = ("each token", "in the window", "each request", "engine divides by", "copies of a head")


@pytest.mark.parametrize(
    ("config", "args", "shown"),
    [
        (LLAMA, (), {"each token", "copies of a head"}),
        (WINDOWS, ("--framework", "vllm"), {"each token", "in the window", "copies of a head"}),
        (HYBRID, ("--framework", "vllm"), {"each token", "each request", "copies of a head"}),
        (
            WINDOWS | {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]},
            ("--framework", "sglang"),
            {"each token", "in the window", "engine divides by", "copies of a head"},
        ),
    ],
    ids=["plain", "windows", "states", "a divisor of its own"],
)
def test_text_has_the_sums_of_what_a_model_has_and_no_others(
    capacity: Capacity, tmp_path: Path, config: Config, args: tuple[str, ...], shown: set[str]
) -> None:
    done = capacity("kv", write(tmp_path, config), *args)
    assert done.code == 0
    lines = [line.strip() for line in done.out.splitlines()]
    assert {name for name in NAMES if any(line.startswith(name) for line in lines)} == shown


def test_text_says_which_release_a_model_is_counted_as(capacity: Capacity, tmp_path: Path) -> None:
    """DeepSeek-V4's figures differ from release to release."""
    path = write(tmp_path, COMPRESSED)
    unsaid = capacity("kv", path, "--framework", "sglang")
    said = capacity("kv", path, "--framework", "sglang==0.5.23")
    assert "counted as in SGLang 0.5.23" in unsaid.out
    assert (said.code, "counted as" in said.out) == (0, False)


def test_text_lists_each_stage(capacity: Capacity, tmp_path: Path) -> None:
    model = LLAMA | {"num_hidden_layers": 7}
    done = capacity("kv", write(tmp_path, model), "--framework", "sglang", "--pp", "2")
    rows = [line.split()[:2] for line in done.out.splitlines() if line.split()[:1] > ["PP"]]
    assert [row for row in rows if row[0] in ("PP0", "PP1")] == [
        ["PP0", f"{3 * 4 * HEAD:,}"],
        ["PP1", f"{4 * 4 * HEAD:,}"],
    ]


@pytest.mark.parametrize("framework", ["sglang", "vllm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_text_of_every_family_fits_100_columns_and_its_json_is_whole(
    capacity: Capacity, tmp_path: Path, family: str, framework: str
) -> None:
    path = write(tmp_path, FAMILIES[family])
    done = capacity("kv", path, "--framework", framework, "--request-tokens", "4096:512,128k")
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.out.splitlines())) <= 100
    assert done.out == "\n".join(line.rstrip() for line in done.out.splitlines()) + "\n"

    terms = kv(capacity, tmp_path, FAMILIES[family], "--framework", framework)["layout"]["terms"]
    assert terms
    for term in terms:
        assert term["name"] in done.out
        assert term["formula"] or term["bytes_per_token"]["value"] is None
        assert term["source"]


# --- streams and files ----------------------------------------------------


def test_a_result_is_written_to_a_file(capacity: Capacity, tmp_path: Path) -> None:
    done = capacity("kv", write(tmp_path, LLAMA), "--format", "json", "-o", "out.json")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert json.loads((tmp_path / "out.json").read_text())["schema"] == "capacity-kv/1"
    assert not list(tmp_path.glob(".capacity-*"))


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    code = "from capacity_core.cli import main; main()"
    config = tmp_path / write(tmp_path, LLAMA)
    shell = f"{sys.executable} -c '{code}' kv {config} | head -n 1"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def test_help_has_an_example_and_the_exit_codes(capacity: Capacity) -> None:
    for flag in ("-h", "--help"):
        done = capacity("kv", flag)
        assert done.code == 0
        assert "capacity kv config.json --framework" in done.out
        assert "Exit codes" in done.out
        assert max(map(len, done.out.splitlines())) <= 100


# --- mistakes -------------------------------------------------------------


def without(config: Config, *fields: str) -> Config:
    return {key: value for key, value in config.items() if key not in fields}


BAD: dict[str, tuple[object, tuple[str, ...], tuple[str, ...]]] = {
    "array": ([1, 2], (), ("list",)),
    "number": (7, (), ("int",)),
    "empty object": ({}, (), ("model_type",)),
    "unknown architecture": (
        {"model_type": "zeppelin", "architectures": ["ZeppelinForCausalLM"]},
        (),
        ("zeppelin",),
    ),
    "unknown kind of layers": (LLAMA | {"every_n_layers_gas": 4}, (), ("llama",)),
    "null layers": (LLAMA | {"num_hidden_layers": None}, (), ("num_hidden_layers",)),
    "zero layers": (LLAMA | {"num_hidden_layers": 0}, (), ("num_hidden_layers",)),
    "negative layers": (LLAMA | {"num_hidden_layers": -1}, (), ("num_hidden_layers",)),
    "layers in words": (LLAMA | {"num_hidden_layers": "six"}, (), ("num_hidden_layers",)),
    "half a layer": (LLAMA | {"num_hidden_layers": 1.5}, (), ("num_hidden_layers",)),
    "layers that are a flag": (LLAMA | {"num_hidden_layers": True}, (), ("num_hidden_layers",)),
    "no layers": (without(LLAMA, "num_hidden_layers"), (), ("num_hidden_layers",)),
    "null heads": (LLAMA | {"num_key_value_heads": None}, (), ("num_key_value_heads",)),
    "zero heads": (LLAMA | {"num_key_value_heads": 0}, (), ("num_key_value_heads",)),
    "no size": (without(LLAMA, "head_dim", "hidden_size"), (), ("hidden_size",)),
    "null latent": (LATENT | {"kv_lora_rank": None}, (), ("kv_lora_rank",)),
    "no rotary size": (without(LATENT, "qk_rope_head_dim"), (), ("qk_rope_head_dim",)),
    "heads that do not divide": (
        LLAMA | {"num_key_value_heads": 6, "num_attention_heads": 12},
        ("--tp", "4"),
        ("6", "4", "heads"),
    ),
    "fewer layers than stages": (LLAMA, ("--pp", "7"), ("6 layers", "7")),
    "stages that nobody can cut": (LLAMA, ("--pp", "4"), ("6 layers", "4")),
    "a framework that decides": (WINDOWS, (), ("framework",)),
    "no type": (without(LLAMA, "torch_dtype"), (), ("--kv-dtype",)),
    "a type that nobody knows": (LLAMA, ("--kv-dtype", "fp7"), ("fp7",)),
    # As llava-hf's: the class's defaults stand in no file.
    "fields left to defaults": (
        {"model_type": "llava", "text_config": {"model_type": "internlm2"}},
        (),
        ("internlm2", "names no layers", "defaults"),
    ),
    "a release before the model": (COMPRESSED, ("--framework", "sglang==0.5.11"), ("0.5.12",)),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_config_that_cannot_be_used_is_one_line_that_names_what_is_wrong(
    capacity: Capacity, tmp_path: Path, name: str, form: str
) -> None:
    config, args, words = BAD[name]
    done = capacity("kv", write(tmp_path, config), "--format", form, *args)
    assert (done.code, done.out) == (1, "")
    (line,) = done.err.splitlines()
    assert line.startswith("capacity: config.json: ")
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no JSON"),
        (b"model: llama\n", "is no JSON"),
        (b'{"model_type": "llama",', "is no JSON"),
        (b"\xff\xfe\x00\x01", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
    ],
    ids=["empty", "yaml", "cut", "binary", "deep"],
)
def test_a_file_that_is_no_json_is_one_line(
    capacity: Capacity, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    done = capacity("kv", "config.json")
    assert (done.code, done.out) == (1, "")
    (line,) = done.err.splitlines()
    assert line.startswith("capacity: config.json: ")
    assert words in line


@pytest.mark.parametrize(("path", "words"), [("none.json", "none.json"), (".", ".: ")])
def test_a_file_that_cannot_be_read_is_one_line(capacity: Capacity, path: str, words: str) -> None:
    done = capacity("kv", path)
    assert (done.code, done.out) == (1, "")
    (line,) = done.err.splitlines()
    assert words in line
    assert "cannot be read" in line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--layout", "sky"), ("sky", "grouped-query", "latent", "deepseek-v4", "v41_fp4")),
        (("--framework", "tgi"), ("tgi", "sglang", "vllm")),
        (("--framework", "tgi==1.0"), ("tgi", "sglang", "vllm")),
        (("--framework", "vllm==abc"), ("vllm==abc", "release")),
        (("--framework", "vllm=="), ("vllm==", "release")),
        (("--tp", "4", "--attention-dp", "3"), ("4", "3")),
        (("--tp", "0"), ("--tp",)),
        (("--pp", "-1"), ("--pp",)),
        (("--page-size", "0"), ("--page-size",)),
        (("--draft-layers", "-1"), ("--draft-layers",)),
        (("--request-tokens", "0"), ("no positive number",)),
        (("--request-tokens", "4096:"), ("no positive number",)),
        (("--request-tokens", "1:2:3"), ("no positive number",)),
        (("--request-tokens", "4096:-5"), ("no positive number",)),
        (("--format", "yaml"), ("yaml",)),
        (("--disable-plugin", "nobody"), ("nobody",)),
    ],
)
def test_wrong_usage_is_exit_2_and_names_what_there_is(
    capacity: Capacity, tmp_path: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = capacity("kv", write(tmp_path, LLAMA), *args)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err


def test_without_a_config_the_usage_is_wrong(capacity: Capacity) -> None:
    done = capacity("kv")
    assert (done.code, done.out) == (2, "")
    assert "CONFIG" in done.err


def test_a_folder_that_is_not_there_takes_no_result(capacity: Capacity, tmp_path: Path) -> None:
    done = capacity("kv", write(tmp_path, LLAMA), "-o", "no/such/out.txt")
    assert (done.code, done.out) == (1, "")
    (line,) = done.err.splitlines()
    assert "cannot be written" in line


def test_without_the_layouts_plugin_nobody_knows_the_model(
    capacity: Capacity, tmp_path: Path
) -> None:
    done = capacity("kv", write(tmp_path, LLAMA), "--disable-plugin", "kv-layouts")
    assert (done.code, done.out) == (1, "")
    (line,) = done.err.splitlines()
    assert "llama" in line


# --- a layout from outside that breaks ------------------------------------


class Breaking:
    """Claims the model, and cannot read it."""

    name = "a-broken"
    replaces = ("grouped-query",)

    def applies(self, config: ModelConfig) -> bool:
        return True

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        raise ZeroDivisionError("no such arithmetic")


class BreakingClaim(Breaking):
    """Cannot even say whether it knows a model."""

    def applies(self, config: ModelConfig) -> bool:
        raise KeyError("model_type")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[KVLayout], None]:
    """Have an entry point name one more plugin, with this layout."""

    def one_more(layout: KVLayout) -> None:
        def capacity_kv_layouts() -> tuple[KVLayout, ...]:
            return (layout,)

        module = types.ModuleType("capacity_broken")
        module.__dict__["capacity_kv_layouts"] = hookimpl(capacity_kv_layouts)
        outside = Found(name="broken", module="capacity_broken", load=lambda: module)
        found = (*loader.find(), outside)
        monkeypatch.setattr(loader, "find", lambda: found)

    return one_more


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_layout_that_breaks_is_exit_3_and_one_line_that_names_it(
    capacity: Capacity, tmp_path: Path, install: Callable[[KVLayout], None], form: str
) -> None:
    """There is no report: nobody else reads what it claims."""
    install(Breaking())
    done = capacity("kv", write(tmp_path, LLAMA), "--format", form)
    assert (done.code, done.out) == (3, "")
    (line,) = done.err.splitlines()
    for word in ("config.json", "a-broken", "ZeroDivisionError", "no such arithmetic"):
        assert word in line


def test_a_layout_that_breaks_on_claiming_leaves_the_report_of_the_others_and_exit_3(
    capacity: Capacity, tmp_path: Path, install: Callable[[KVLayout], None]
) -> None:
    path = write(tmp_path, LLAMA)
    whole = capacity("kv", path, "--format", "json").report
    install(BreakingClaim())
    done = capacity("kv", path, "--format", "json")

    assert done.code == 3
    (line,) = done.err.splitlines()
    for word in ("broken", "a-broken", "KeyError"):
        assert word in line
    (failed,) = [row for row in done.report["plugins"] if row["status"] == "failed"]
    assert failed["name"] == "broken"
    assert {**done.report, "plugins": None} == {**whole, "plugins": None}


def test_a_layout_that_breaks_can_be_left_out(
    capacity: Capacity, tmp_path: Path, install: Callable[[KVLayout], None]
) -> None:
    install(Breaking())
    done = capacity("kv", write(tmp_path, LLAMA), "--disable-plugin", "broken")
    assert (done.code, done.err) == (0, "")
    assert f"{WHOLE:,} B/token" in done.out
