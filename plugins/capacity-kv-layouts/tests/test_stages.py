"""Pipeline stages of the engines' own cut, draft layers, and ranks that share tokens."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from capacity_core.api.kv_layouts import Keeps, LayoutReading, Placement
from capacity_core.errors import LayoutError
from capacity_core.values import Unknown

from .readings import (
    ENGINES,
    SPLITS,
    Config,
    number,
    per_token,
    read,
    sglang_split,
    stages,
    state,
    vllm_split,
)

HEAD = (64 + 64) * 2
"""One KV head's key and value of 64 in bf16."""


def heads(layers: int = 61, **fields: Any) -> Config:
    """Layers with 2 KV heads of 64; `fields` replace."""
    return {
        "model_type": "llama",
        "dtype": "bfloat16",
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        **fields,
    }


def windows(*kinds: str) -> Config:
    """Layers of a window ("W") or of all tokens ("A"), in a model that SGLang keeps two pools
    for."""
    named = {"A": "full_attention", "W": "sliding_attention"}
    return heads(
        len(kinds),
        model_type="gpt_oss",
        architectures=["GptOssForCausalLM"],
        sliding_window=128,
        layer_types=[named[kind] for kind in kinds],
    )


def sparse(layers: int = 8, **fields: Any) -> Config:
    """A latent with an index in every 4th layer."""
    return heads(
        layers,
        model_type="deepseek_v32",
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        index_topk=2048,
        index_head_dim=128,
        index_topk_freq=4,
        index_skip_topk_offset=1,
        **fields,
    )


def delta(layers: int = 8, **fields: Any) -> Config:
    """A gated delta net, every 4th layer of attention."""
    return heads(
        layers,
        model_type="qwen3_next",
        full_attention_interval=4,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=32,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        **fields,
    )


ONE_STATE = (2 * 4 * 32 + 8 * 64) * 3 * 2 + 8 * 64 * 32 * 4  # SGLang's, in fp32


def layers_of(readings: list[LayoutReading]) -> list[int]:
    return [sum(term.layers or 0 for term in reading.terms) for reading in readings]


# --- the cut -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("framework", "layers", "pipeline", "expected"),
    [
        ("sglang", 61, 2, [30, 31]),
        ("vllm", 61, 2, [31, 30]),
        ("sglang", 61, 4, [15, 15, 15, 16]),
        ("vllm", 61, 4, [15, 15, 16, 15]),
        ("sglang", 62, 4, [15, 15, 16, 16]),
        ("vllm", 62, 4, [15, 16, 16, 15]),
        ("sglang", 63, 4, [15, 16, 16, 16]),
        ("vllm", 63, 4, [16, 16, 16, 15]),
        ("sglang", 64, 4, [16, 16, 16, 16]),
        ("vllm", 64, 4, [16, 16, 16, 16]),
    ],
)
def test_each_engine_cuts_by_its_own_rule(
    framework: str, layers: int, pipeline: int, expected: list[int]
) -> None:
    readings = stages(heads(layers), framework, SPLITS[framework], pipeline)
    assert layers_of(readings) == expected
    assert [per_token(each) for each in readings] == [count * 2 * HEAD for count in expected]


def test_without_a_rule_only_what_divides_is_cut() -> None:
    assert layers_of(stages(heads(60), "sglang", None, 4)) == [15] * 4
    with pytest.raises(LayoutError, match="61 layers do not divide into 4"):
        read(heads(61), "sglang", pipeline=4)


@pytest.mark.parametrize("split", [None, sglang_split, vllm_split])
def test_more_stages_than_layers_are_refused(split: Any) -> None:
    with pytest.raises(LayoutError, match="3 layers are fewer than 4 pipeline stages"):
        read(heads(3), "sglang", pipeline=4, split=split)


def test_stages_are_slices_in_order() -> None:
    placed = [Placement(pipeline=3, stage=stage, split=vllm_split) for stage in range(3)]
    assert [list(each.layers(8)) for each in placed] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    placed = [Placement(pipeline=3, stage=stage, split=sglang_split) for stage in range(3)]
    assert [list(each.layers(8)) for each in placed] == [[0, 1], [2, 3, 4], [5, 6, 7]]


def test_a_stage_has_its_own_kinds_of_layers() -> None:
    first, last = stages(windows("W", "A", "W", "W", "A", "A"), "vllm", vllm_split, 2)
    assert (per_token(first), per_token(first, Keeps.WINDOW)) == (2 * HEAD, 2 * 2 * HEAD)
    assert (per_token(last), per_token(last, Keeps.WINDOW)) == (2 * 2 * HEAD, 2 * HEAD)


def test_a_stage_of_windows_alone_has_a_pool_without_a_share() -> None:
    # SGLang 0.5.23 pool_configurator.py:789, for the layers of the rank.
    first, last = stages(windows("W", "W", "A", "W"), "sglang", sglang_split, 2)
    assert number(first.pool_bytes_per_token) == 2 * 2 * HEAD
    assert number(last.pool_bytes_per_token) == 2 * HEAD + Decimal("0.8") * 2 * HEAD


def test_a_stage_has_its_own_indexes() -> None:
    first, last = stages(sparse(), "vllm", vllm_split, 2)
    assert per_token(first) == per_token(last) == 4 * (512 + 64) * 2 + 132
    # Layers 0 and 4 of 6 have an index: one on each of 3 + 3.
    first, last = stages(sparse(6), "sglang", sglang_split, 2)
    assert per_token(first) == per_token(last) == 3 * (512 + 64) * 2 + 132


def test_a_stage_has_its_own_states() -> None:
    first, last = stages(delta(6), "sglang", sglang_split, 2)
    assert (per_token(first), state(first)) == (0, 3 * ONE_STATE)
    assert (per_token(last), state(last)) == (2 * HEAD, 2 * ONE_STATE)


# --- draft layers ---------------------------------------------------------------


def test_draft_layers_cost_what_the_models_do() -> None:
    plain = 4 * 2 * HEAD
    assert per_token(read(heads(4), draft=0)) == plain
    for framework in ENGINES:
        assert per_token(read(heads(4), framework, draft=1)) == plain + 2 * HEAD
        assert per_token(read(heads(4), framework, draft=3)) == plain + 3 * 2 * HEAD


def test_draft_layers_are_a_term_of_their_own() -> None:
    main, draft = read(heads(4), "sglang", draft=2).terms
    assert (main.layers, draft.layers) == (4, 2)
    assert "draft" in draft.name
    assert "draft" not in main.name


def test_sglang_charges_each_stage_for_the_draft_and_vllm_the_last() -> None:
    # SGLang 0.5.23 pool_configurator.py:258; vLLM 0.33.0 puts draft layers on the last stage.
    sglang = stages(heads(4), "sglang", sglang_split, 2, draft=1)
    assert [per_token(each) for each in sglang] == [3 * 2 * HEAD] * 2
    vllm = stages(heads(4), "vllm", vllm_split, 2, draft=1)
    assert [per_token(each) for each in vllm] == [2 * 2 * HEAD, 3 * 2 * HEAD]


@pytest.mark.parametrize("framework", ENGINES)
def test_a_draft_of_a_sparse_latent_has_an_index_in_every_layer(framework: str) -> None:
    # SGLang pool_configurator.py:300 `allocate_all_layers`; vLLM deepseek_v2.py:1162: layers behind
    # the model's own always build an indexer. 2 of the model's 8 layers have one.
    reading = read(sparse(), framework, draft=2)
    assert per_token(reading) == (8 + 2) * (512 + 64) * 2 + (2 + 2) * 132


@pytest.mark.parametrize("framework", ENGINES)
def test_a_draft_of_a_hybrid_has_attention_and_no_state(framework: str) -> None:
    # SGLang: cell * draft / attention layers; vLLM: qwen3_next_mtp is a layer of full attention.
    plain, drafted = read(delta(), framework), read(delta(), framework, draft=1)
    assert per_token(drafted) == per_token(plain) + 2 * HEAD
    if framework == "sglang":
        assert state(drafted) == state(plain)
        return
    (states,) = (term for term in drafted.terms if term.keeps is Keeps.STATE)
    # Their convolution and their number grow by the tokens of a step (mamba/abstract.py:86).
    assert isinstance(states.fixed_bytes_per_request, Unknown)


@pytest.mark.parametrize("framework", ENGINES)
def test_whether_a_draft_keeps_a_window_is_not_known(framework: str) -> None:
    reading = read(windows("W", "A"), framework, draft=1)
    (draft,) = (term for term in reading.terms if "draft" in term.name)
    assert isinstance(draft.bytes_per_token, Unknown)
    assert "window" in draft.bytes_per_token.why
    assert len([term for term in reading.terms if "draft" not in term.name]) == 2


@pytest.mark.parametrize("framework", ENGINES)
def test_a_draft_of_windows_alone_is_not_free(framework: str) -> None:
    # Nothing says what the draft's layers keep: its cost is unknown, not left out.
    config = heads(4, model_type="gpt_oss", architectures=["GptOssForCausalLM"])
    config |= {"sliding_window": 128, "layer_types": ["sliding_attention"] * 4}
    reading = read(config, framework, draft=1)
    assert any(isinstance(term.bytes_per_token, Unknown) for term in reading.terms)


def test_a_pool_with_a_draft_of_unknown_cost_is_unknown() -> None:
    pool = read(windows("W", "A"), "sglang", draft=1).pool_bytes_per_token
    assert isinstance(pool, Unknown)


# --- ranks that share tokens ------------------------------------------------------


def test_ranks_share_the_tokens_of_a_latent() -> None:
    latent = heads(8, model_type="deepseek_v3", kv_lora_rank=512, qk_rope_head_dim=64)
    for framework in ENGINES:
        for context in (1, 2, 4):
            reading = read(latent, framework, context=context)
            assert per_token(reading) * context == 8 * (512 + 64) * 2


def test_ranks_share_the_tokens_of_heads() -> None:
    # SGLang 0.5.23 srt/configs/model_config.py:1700: heads by tp // dcp, here 4 // 2.
    reading = read(heads(8), "sglang", tensor=2, context=2)
    assert per_token(reading) == Decimal(8 * 1 * HEAD) / 2


def test_each_rank_keeps_every_window_and_state_whole() -> None:
    # vLLM 0.33.0 vllm/v1/kv_cache_interface.py:937: what leaves a window is not shared out. It
    # shares tokens only among ranks that hold the same head (config/model.py:1579).
    one = windows("W", "A") | {"num_key_value_heads": 1}
    assert per_token(read(one, "vllm", context=2), Keeps.WINDOW) == HEAD
    assert per_token(read(one, "vllm", context=2)) == HEAD / 2
    # States are shared out among all ranks, as query heads are.
    assert state(read(delta(), "sglang", context=2)) == 6 * ONE_STATE / 2


def test_the_figure_says_that_tokens_are_shared() -> None:
    (term,) = read(heads(8), "sglang", context=2).terms
    how = getattr(term.bytes_per_token, "how", "")
    assert how.endswith("/ 2 ranks that share the tokens")
