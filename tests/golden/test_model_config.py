"""What a model's config.json adds to a log, and what it must not: the arithmetic stands in the
tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.loader import load
from capacity_core.rendering.json import JsonRenderer

from .sglang_lines import pools_end, said, typed, weights

PLUGINS = load()

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "torch_dtype": "bfloat16",
}
BLOCK = 16
BLOCKS = 23_193  # of one KV block each: 371,088 tokens


def vllm_log(*, version: str = "0.27.1", length: int = 8192, block: int | None = BLOCK) -> str:
    """A start of a release that prints int(blocks / ceil(length / block) · length) tokens
    (v1/core/kv_cache_utils.py of 0.27.1)."""
    size = BLOCK if block is None else block
    concurrency = BLOCKS / -(-length // size)
    tokens = int(concurrency * length)
    asked: dict[str, Any] = {"model": "/m", "max_model_len": length, "max_num_seqs": 100_000}
    if block is not None:
        asked["block_size"] = block
    return "\n".join(
        [
            f"(APIServer pid=1) INFO non-default args: {asked}",
            f"(EngineCore pid=2) INFO Initializing a V1 LLM engine (v{version}) with config: "
            f"model='/m', speculative_config=None, dtype=torch.bfloat16, max_seq_len={length}, "
            "tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, "
            "quantization=None, kv_cache_dtype=auto, device_config=cuda, seed=0",
            "(EngineCore pid=2) INFO Available KV cache memory: 45.30 GiB",
            f"(EngineCore pid=2) INFO GPU KV cache size: {tokens:,} tokens",
            f"(EngineCore pid=2) INFO Maximum concurrency for {length:,} tokens per request: "
            f"{concurrency:.2f}x",
            "",
        ]
    )


def report_on(
    folder: Path, log: str, config: dict[str, Any] | None = None, lengths: tuple[int, ...] = (4096,)
) -> dict[str, Any]:
    (folder / "server.log").write_text(log, encoding="utf-8")
    path = None
    if config is not None:
        path = folder / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
    options = Options(config=None if path is None else str(path), request_tokens=lengths)
    report = analyse([str(folder / "server.log")], options, PLUGINS)
    parsed: dict[str, Any] = json.loads(JsonRenderer().render(report))
    return parsed


def token_limits(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [row["token_limit"] for row in report["concurrency"]["rows"]]


# --- requests shorter than the longest --------------------------------


def test_tokens_derived_for_the_longest_request_say_no_count_for_shorter_ones(
    tmp_path: Path,
) -> None:
    (limit,) = token_limits(report_on(tmp_path, vllm_log()))
    assert limit["value"] is None


@pytest.mark.parametrize("length", [1, 16, 1000, 4096, 6144])
def test_a_model_of_one_kind_of_layer_pays_the_same_for_every_token(
    tmp_path: Path, length: int
) -> None:
    """One block is the engine's own (v1/core/block_pool.py), a request takes whole blocks."""
    (limit,) = token_limits(report_on(tmp_path, vllm_log(), LLAMA, (length,)))
    assert limit["value"] == (BLOCKS - 1) // -(-length // BLOCK)


@pytest.mark.parametrize("length", [1000, 4096])
def test_blocks_of_unprinted_size_bound_the_count(tmp_path: Path, length: int) -> None:
    (limit,) = token_limits(report_on(tmp_path, vllm_log(block=None), LLAMA, (length,)))
    true = (BLOCKS - 1) // -(-length // BLOCK)
    if limit["value"] is None:
        assert limit["at_least"] <= true <= limit["at_most"]
    else:
        assert limit["value"] == true


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention", "sliding_attention"] * 16},
        {"model_type": "qwen3_next", "linear_num_key_heads": 16},
    ],
    ids=["layers", "linear"],
)
def test_a_model_of_several_kinds_of_layers_gains_nothing(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    (limit,) = token_limits(report_on(tmp_path, vllm_log(), LLAMA | changes))
    assert limit["value"] is None


def test_a_request_within_every_layers_window_pays_every_token(tmp_path: Path) -> None:
    """45.30 GiB are 23,193 blocks of 32 layers · 16 tokens · 4,096 B, 256 of which it holds."""
    windows = LLAMA | {"sliding_window": 4096, "use_sliding_window": True}
    (limit,) = token_limits(report_on(tmp_path, vllm_log(), windows))
    assert limit["value"] == (BLOCKS - 1) // 256


def test_a_longest_request_that_is_no_whole_blocks_still_tells_the_blocks(tmp_path: Path) -> None:
    """5,000 tokens take 313 blocks of 16: the printed tokens, int(blocks / 313 · 5,000), are fewer
    than the pool has, and the blocks follow from them."""
    (limit,) = token_limits(report_on(tmp_path, vllm_log(length=5000), LLAMA, (2048,)))
    assert limit["value"] == (BLOCKS - 1) // 128


# --- the type of an element -------------------------------------------


def test_auto_is_the_models_own_type_and_says_that_it_is_assumed(tmp_path: Path) -> None:
    figure = report_on(tmp_path, vllm_log(), LLAMA)["kv_pool"]["layout"]["bytes_per_token"]
    assert figure["value"] == 32 * 8 * (128 + 128) * 2
    assert any("bf16" in why for why in figure["assuming"])


@pytest.mark.parametrize(
    "changes",
    [
        {"torch_dtype": "float32"},
        {"torch_dtype": None},
        {"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}},
    ],
    ids=["float32", "none", "quantized"],
)
def test_auto_is_not_known_where_the_engine_may_choose_another_type(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    report = report_on(tmp_path, vllm_log(), LLAMA | changes)
    assert report["kv_pool"]["layout"]["bytes_per_token"]["value"] is None


@pytest.mark.parametrize(
    "told",
    [
        {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}},
        {"kv_cache_quant_algo": "FP8"},
    ],
    ids=["scheme", "algorithm"],
)
def test_auto_of_a_modelopt_checkpoint_is_what_it_says(
    tmp_path: Path, told: dict[str, Any]
) -> None:
    """SGLang 0.5.23 srt/mem_cache/kv_cache_dtype.py, vLLM 0.33.0 vllm/utils/torch_utils.py:443."""
    quantized = LLAMA | {"quantization_config": {"quant_method": "modelopt", **told}}
    value = report_on(tmp_path, vllm_log(), quantized)["kv_pool"]["layout"]["bytes_per_token"]
    assert value["value"] == 32 * 8 * (128 + 128)


@pytest.mark.parametrize(
    ("dtype", "of_head"),
    [
        ("fp8_ds_mla", None),  # a latent's row, no head's
        ("int8_per_token_head", 2 * (128 + 4)),
        ("nvfp4", 2 * (128 // 2 + 128 // 16)),
        ("turboquant_k8v4", 128 + 128 // 2 + 4),
    ],
)
def test_a_type_with_scales_of_its_own_is_not_one_byte(
    tmp_path: Path, dtype: str, of_head: int | None
) -> None:
    log = vllm_log().replace("kv_cache_dtype=auto", f"kv_cache_dtype={dtype}")
    report = report_on(tmp_path, log, LLAMA)
    value = report["kv_pool"]["layout"]["bytes_per_token"]["value"]
    assert value == (None if of_head is None else 32 * 8 * of_head)


# --- where heads lie --------------------------------------------------

ARGUMENTS = "model_path='/m', page_size=1, kv_cache_dtype='bfloat16', pp_size=1, "


def sglang_log(arguments: str) -> str:
    return (
        f"[2026-03-01 10:00:00] server_args=ServerArgs({ARGUMENTS}{arguments}\n"
        "[2026-03-01 10:00:01 TP0] Load weight begin. avail mem=78.00 GB\n"
    )


@pytest.mark.parametrize(
    ("arguments", "heads"),
    [
        ("tp_size=8, dp_size=1, enable_dp_attention=False)", 1),
        ("tp_size=8, dp_size=4, enable_dp_attention=True)", 4),
        ("tp_size=8, dp_size=1, attn_dp_size=4, enable_dp_attention=True)", 4),
        ("tp_size=8, dp_size=2, attn_cp_size=2, enable_dp_attention=True)", 4),
        ("tp_size=4)", 2),  # all arguments of a release that has neither
    ],
)
def test_heads_are_divided_by_the_attention_tensor_parallel_size(
    tmp_path: Path, arguments: str, heads: int
) -> None:
    report = report_on(tmp_path, sglang_log(arguments), LLAMA)
    per_token = report["kv_pool"]["layout"]["bytes_per_token"]
    assert per_token["value"] == 32 * heads * (128 + 128) * 2


@pytest.mark.parametrize(
    "arguments", ["tp_size=8, dp_size=4, enable_dp_", "dp_size=1, enable_dp_attention=False)"]
)
def test_a_size_that_the_log_leaves_open_is_not_one(tmp_path: Path, arguments: str) -> None:
    """Arguments that a paste cut off may have gone on with anything."""
    report = report_on(tmp_path, sglang_log(arguments), LLAMA)
    layout = report["kv_pool"]["layout"]
    assert layout["bytes_per_token"]["value"] is None
    assert "attention tensor parallel size is not known" in layout["bytes_per_token"]["why"]
    assert "layout-refused" in {finding["code"] for finding in report["findings"]}


# --- a log without its arguments --------------------------------------

LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
}


def cut_log(rank: str) -> str:
    lines = said(*weights(78.0, 16.0), typed(400_000, 12.0), pools_end(38.0), rank=rank)
    return "".join(f"{line}\n" for line in lines)


def test_a_latent_is_the_same_whatever_the_ranks(tmp_path: Path) -> None:
    """The prefix of a rank would name its pipeline stage; how many ranks there are is not said."""
    layout = report_on(tmp_path, cut_log(" TP0"), LATENT)["kv_pool"]["layout"]
    assert layout["bytes_per_token"]["value"] == 61 * (512 + 64) * 2
    assert layout["replication"]["value"] is None
    assert "tensor parallel" in layout["replication"]["why"]


def test_heads_that_ranks_divide_stay_unknown(tmp_path: Path) -> None:
    report = report_on(tmp_path, cut_log(" TP0"), LLAMA)
    assert report["kv_pool"]["layout"]["bytes_per_token"]["value"] is None
    assert [f["code"] for f in report["findings"]] == ["layout-refused"]


@pytest.mark.parametrize("rank", ["", " PP0 TP0", " TP0 PP0"])
def test_stages_that_no_prefix_excludes_leave_the_layers_unknown(tmp_path: Path, rank: str) -> None:
    report = report_on(tmp_path, cut_log(rank), LATENT)
    assert report["deployment"]["parallel"]["pipeline"]["value"] is None
    assert report["kv_pool"]["layout"]["bytes_per_token"]["value"] is None


V41 = {
    "model_type": "deepseek_v41",
    "architectures": ["DeepseekV41ForCausalLM"],
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20,
    "kv_source_layer_ids": [2, 8, 14, 20],
    "sliding_window": 128,
}


def test_the_printed_divisor_tells_release_and_draft(tmp_path: Path) -> None:
    """0.5.21 and 0.5.22 price a source of ratio 1 at 584 + 68 B and three of ratio 2 at half of it:
    1,630; a draft's layer makes it 1,630 * 41 / 40 = 1,670.75 (pool_configurator.py of 0.5.21)."""
    lines = said(
        *weights(78.0, 10.0, "DeepseekV41ForCausalLM"),
        "DSV4 SWA sizing: mode=cap, swa_tokens=13312, request_cap+headroom=13312, prefix_tails=16",
        "DSV4 memory calculation: bytes_per_full_token=1670.75, available_bytes=8.84 GB, "
        "c128_state_fixed=0.00 GB, swa_fixed=0.30 GB, full_token=5491200",
        "DSV4 pool sizes: full=5491200, swa=13312, c4=1372800, c128=42900, c4_state=1664, "
        "c128_state=0",
        pools_end(9.90),
        rank=" TP0",
    )
    report = report_on(tmp_path, "".join(f"{line}\n" for line in lines), V41)
    layout = report["kv_pool"]["layout"]
    assert (584 + 68) + 3 * (584 + 68) / 2 == 1630
    assert layout["bytes_per_token"]["value"] == 1630
    assert layout["pool_bytes_per_token"]["value"] == 1630 * 41 / 40 == 1670.75
    assuming = layout["bytes_per_token"]["assuming"]
    assert any("in 0.5.21 with a layer of a draft" in why for why in assuming)
    assert "layout-disagrees" not in [finding["code"] for finding in report["findings"]]
