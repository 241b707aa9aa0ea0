"""KV heads that differ by layer: Nemotron-NAS."""

from __future__ import annotations

from typing import Any

import pytest

from capacity_core.errors import LayoutError

from .readings import ENGINES, Config, claimed_by, copies, per_token, read

HEAD = (128 + 128) * 2
NONE: Config = {"attention": {"no_op": True, "n_heads_in_group": None}}
LINEAR: Config = {
    "attention": {"no_op": False, "replace_with_linear": True, "n_heads_in_group": None}
}


def block(group: object) -> Config:
    """A layer whose query heads share a KV head in groups of `group`."""
    return {"attention": {"no_op": False, "replace_with_linear": False, "n_heads_in_group": group}}


def model(*blocks: Config, **fields: Any) -> Config:
    """32 query heads of 4096 / 32 = 128; `fields` replace."""
    return {
        "model_type": "nemotron-nas",
        "architectures": ["DeciLMForCausalLM"],
        "num_hidden_layers": len(blocks),
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "block_configs": list(blocks),
        **fields,
    }


EVEN = (block(4), NONE, block(4), NONE, NONE, block(4))
MIXED = (block(4), NONE, block(8), block(16))


@pytest.mark.parametrize("tensor", [1, 2, 8, 16])
def test_vllm_counts_the_layers_with_attention(tensor: int) -> None:
    # vLLM 0.33.0 vllm/model_executor/models/nemotron_nas.py:133.
    reading = read(model(*EVEN), "vllm", tensor=tensor)
    assert per_token(reading) == 3 * max(1, 8 // tensor) * HEAD
    assert sum(term.layers or 0 for term in reading.terms) == 3
    assert copies(reading) == max(1, tensor // 8)


def test_sglang_counts_every_layer() -> None:
    # SGLang 0.5.23 srt/configs/model_config.py:1655: one number of heads, num_hidden_layers layers.
    assert per_token(read(model(*EVEN), "sglang")) == 6 * 8 * HEAD


@pytest.mark.parametrize("tensor", [1, 4])
def test_vllm_counts_the_heads_of_each_layer(tensor: int) -> None:
    reading = read(model(*MIXED), "vllm", tensor=tensor)
    held = [max(1, heads // tensor) for heads in (8, 4, 2)]
    assert per_token(reading) == sum(held) * HEAD


def test_sglang_refuses_heads_that_differ() -> None:
    # srt/configs/model_config.py:1667: "Variable Grouped Query Attention (VGQA)".
    with pytest.raises(LayoutError, match="VGQA"):
        read(model(*MIXED), "sglang")


def test_a_linear_layer_keeps_nothing() -> None:
    reading = read(model(block(4), LINEAR, block(4)), "vllm")
    assert per_token(reading) == 2 * 8 * HEAD


def test_nemotron_super_49b_as_vllm_computed_it() -> None:
    # 49 of 80 layers with 64 / 8 = 8 KV heads: 200,704 B.
    blocks = [block(8)] * 49 + [NONE] * 31
    config = model(*blocks, hidden_size=8192, num_attention_heads=64)
    assert per_token(read(config, "vllm")) == 49 * 8 * (128 + 128) * 2 == 200_704


def test_a_stage_holds_the_blocks_of_its_layers() -> None:
    first, last = (
        per_token(read(model(*MIXED), "vllm", pipeline=2, stage=stage)) for stage in (0, 1)
    )
    assert (first, last) == (8 * HEAD, (4 + 2) * HEAD)


def test_a_stage_without_attention_keeps_nothing() -> None:
    reading = read(model(NONE, NONE, block(4), block(4)), "vllm", pipeline=2, stage=0)
    assert per_token(reading) == 0


@pytest.mark.parametrize("framework", [None, *ENGINES])
def test_blocks_are_claimed_by_one_layout(framework: str | None) -> None:
    assert claimed_by(model(*EVEN)) == ["by-block"]


@pytest.mark.parametrize(
    "config",
    [
        model(NONE, NONE),
        model(block(4), num_hidden_layers=2),
        model(block(5)),
        model(block(0)),
        model(block(None)),
        model(block("8")),
        model({}),
        model({"attention": None}),
        model(block(4), num_attention_heads=None),
        model(block(4), hidden_size=None),
    ],
    ids=[
        "no attention",
        "fewer blocks than layers",
        "groups that do not divide",
        "a group of 0",
        "a group of null",
        "a group in quotes",
        "an empty block",
        "null attention",
        "no query heads",
        "no hidden size",
    ],
)
@pytest.mark.parametrize("framework", ENGINES)
def test_what_lacks_something_is_refused(config: Config, framework: str) -> None:
    with pytest.raises(LayoutError):
        read(config, framework)


def test_the_engine_must_be_named_where_they_differ() -> None:
    # 3 layers of 6 in vLLM, 6 in SGLang: no figure holds for both.
    with pytest.raises(LayoutError, match="--framework"):
        read(model(*EVEN))


@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": 128},
        {"kv_lora_rank": 512},
        {"model_type": "nemotron_h_puzzle", "mamba_num_heads": 64, "ssm_state_size": 128},
    ],
    ids=["a window", "a latent", "states (Nemotron-H Puzzle)"],
)
def test_blocks_beside_another_cache_are_not_claimed(fields: Config) -> None:
    # SGLang 0.5.23 srt/configs/nemotron_h.py:530: Nemotron-H Puzzle has block_configs, too.
    assert claimed_by(model(*EVEN, **fields)) == []
