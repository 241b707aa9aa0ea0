"""Windows, chunks and layers that share a cache: what each engine keeps of them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest

from capacity_core.api.kv_layouts import Keeps, Serving
from capacity_core.errors import LayoutError
from capacity_core.values import Known, Unknown

from .readings import (
    ENGINES,
    Config,
    claimed_by,
    copies,
    layout_of,
    number,
    per_token,
    read,
    request,
    window,
)

HEAD = (64 + 64) * 2
"""One KV head's key and value of 64 in bf16."""


def model(**fields: Any) -> Config:
    """8 layers with 4 KV heads of 64; `fields` replace."""
    return {
        "model_type": "some_new_model",
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        **fields,
    }


def gpt_oss(**fields: Any) -> Config:
    """Alternating layers with a window of 128, from the first."""
    types = ["sliding_attention", "full_attention"] * 4
    named = {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]}
    return model(**{**named, "sliding_window": 128, "layer_types": types, **fields})


# --- every layer has the window -----------------------------------------


@pytest.mark.parametrize("kind", ["mistral", "mixtral", "phi3", "starcoder2", "minimax_m2"])
def test_vllm_frees_what_leaves_a_window_that_all_layers_have(kind: str) -> None:
    # vLLM 0.33.0 vllm/engine/arg_utils.py:2288: without layer_types the window is every layer's.
    reading = read(model(model_type=kind, sliding_window=4096), "vllm")
    assert per_token(reading) == 0
    assert per_token(reading, Keeps.WINDOW) == 8 * 4 * HEAD
    assert window(reading) == 4096
    assert request(reading, 100) == 100 * 8 * 4 * HEAD
    assert request(reading, 8192) == request(reading, 4096) == 4096 * 8 * 4 * HEAD


@pytest.mark.parametrize("kind", ["mistral", "mixtral", "phi3", "starcoder2", "minimax_m2"])
def test_sglang_masks_such_a_window_and_keeps_every_token(kind: str) -> None:
    # SGLang 0.5.23 srt/configs/model_config.py:2651: not among is_hybrid_swa_model.
    reading = read(model(model_type=kind, sliding_window=4096), "sglang")
    assert per_token(reading) == 8 * 4 * HEAD
    assert per_token(reading, Keeps.WINDOW) == 0
    assert reading.pool_bytes_per_token is None


@pytest.mark.parametrize("off", [{"use_sliding_window": False}, {"sliding_window": None}], ids=str)
def test_a_window_that_is_off_is_no_window(off: Config) -> None:
    config = model(**{"sliding_window": 4096, **off})
    assert claimed_by(config) == ["grouped-query"]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
@pytest.mark.parametrize("framework", ENGINES)
def test_qwens_window_begins_behind_max_window_layers(kind: str, framework: str) -> None:
    # transformers 5.24.0 Qwen2Config: sliding where i >= max_window_layers. With as many as there
    # are layers none slides, and vLLM then takes no window (vllm/engine/arg_utils.py:2288).
    config = model(
        model_type=kind, use_sliding_window=True, sliding_window=4096, max_window_layers=8
    )
    reading = read(config, framework)
    assert per_token(reading) == 8 * 4 * HEAD
    assert per_token(reading, Keeps.WINDOW) == 0


def test_qwens_window_in_all_layers() -> None:
    config = model(
        model_type="qwen2", use_sliding_window=True, sliding_window=4096, max_window_layers=0
    )
    reading = read(config, "vllm")
    assert per_token(reading) == 0
    assert per_token(reading, Keeps.WINDOW) == 8 * 4 * HEAD


def test_vllm_refuses_a_qwen_with_a_window_in_some_layers() -> None:
    # vllm/model_executor/models/qwen2.py:351 asserts max_window_layers == num_hidden_layers.
    config = model(
        model_type="qwen2", use_sliding_window=True, sliding_window=4096, max_window_layers=4
    )
    assert claimed_by(config) == ["windows"]
    with pytest.raises(LayoutError, match="max_window_layers"):
        read(config, "vllm")


# --- layers alternate -----------------------------------------------------


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
@pytest.mark.parametrize("framework", ENGINES)
def test_half_of_the_layers_keep_a_window(framework: str, tensor: int) -> None:
    reading = read(gpt_oss(), framework, tensor=tensor)
    held = max(1, 4 // tensor)
    assert per_token(reading) == 4 * held * HEAD
    assert per_token(reading, Keeps.WINDOW) == 4 * held * HEAD
    assert copies(reading) == max(1, tensor // 4)
    assert window(reading) == 128


def test_the_pool_of_sglang_is_sized_by_a_share_of_the_window() -> None:
    # pool_configurator.py:795: full + 0.8 * window.
    pool = number(read(gpt_oss(), "sglang").pool_bytes_per_token)
    assert pool == 4 * 4 * HEAD + Decimal("0.8") * 4 * 4 * HEAD
    assert read(gpt_oss(), "vllm").pool_bytes_per_token is None


def test_the_pool_of_gpt_oss_120b_as_sglang_computed_it() -> None:
    # 36 layers of 8 KV heads of 64: 18 * 8 * 256 * 1.8 = 66,355.2.
    config = gpt_oss(
        num_hidden_layers=36,
        num_attention_heads=64,
        num_key_value_heads=8,
        layer_types=["sliding_attention", "full_attention"] * 18,
    )
    assert number(read(config, "sglang").pool_bytes_per_token) == Decimal("66355.2")


def test_the_share_of_the_window_that_was_asked_for_counts() -> None:
    # srt/arg_groups/fields/schedule.py:150 `swa_full_tokens_ratio`: 0.8 is the default only.
    served = Serving(framework="sglang", dtype="bf16", window_share=Decimal("0.5"))
    pool = layout_of(gpt_oss()).read(gpt_oss(), served).pool_bytes_per_token
    assert number(pool) == 4 * 4 * HEAD + Decimal("0.5") * 4 * 4 * HEAD


def test_a_share_that_nobody_said_is_assumed_to_be_the_default() -> None:
    # The same server, told 0.8: as much, and nothing is assumed.
    unsaid = read(gpt_oss(), "sglang").pool_bytes_per_token
    served = Serving(framework="sglang", dtype="bf16", window_share=Decimal("0.8"))
    asked = layout_of(gpt_oss()).read(gpt_oss(), served).pool_bytes_per_token
    assert isinstance(unsaid, Known)
    assert isinstance(asked, Known)
    assert unsaid.number == asked.number == 4 * 4 * HEAD + Decimal("0.8") * 4 * 4 * HEAD
    assert asked.assuming == ()
    (why,) = unsaid.assuming
    assert "swa_full_tokens_ratio is 0.8" in why


def test_a_pool_of_windows_alone_has_no_share() -> None:
    # pool_configurator.py:789: "all-SWA has no full pool to relate to".
    config = gpt_oss(layer_types=["sliding_attention"] * 8)
    reading = read(config, "sglang")
    assert per_token(reading) == 0
    assert number(reading.pool_bytes_per_token) == 8 * 4 * HEAD


def test_sglang_does_not_size_fp4_windows() -> None:
    with pytest.raises(LayoutError, match="nvfp4"):
        read(gpt_oss(), "sglang", dtype="nvfp4")
    assert per_token(read(gpt_oss(), "vllm", dtype="nvfp4")) == 4 * 4 * 2 * (64 // 2 + 64 // 16)


def test_mxfp8_windows_have_scales() -> None:
    # pool_configurator.py:713: a byte for each 32 elements.
    reading = read(gpt_oss(), "sglang", dtype="mxfp8")
    assert per_token(reading) == 4 * 4 * ((64 + 64) + (64 + 64) // 32)
    assert per_token(reading, Keeps.WINDOW) == per_token(reading)


def test_without_a_type_every_cache_is_unknown() -> None:
    reading = read(gpt_oss(), "sglang", dtype=None, tensor=8)
    assert all(isinstance(term.bytes_per_token, Unknown) for term in reading.terms)
    assert isinstance(reading.pool_bytes_per_token, Unknown)
    assert copies(reading) == 2
    assert window(reading) == 128


# full layers of 12 where the file has no layer_types (transformers 5.24.0's classes).
@pytest.mark.parametrize(
    ("kind", "full"),
    [
        ("gemma2", 12 // 2),
        ("vaultgemma", 12 // 2),
        ("gpt_oss", 12 // 2),
        ("gemma3_text", 12 // 6),
        ("gemma3", 12 // 6),
        ("cohere2", 12 // 4),
        ("olmo3", 12 // 4),
        ("exaone4", 12 // 4),
    ],
)
def test_a_class_has_a_rule_where_the_file_lists_no_layers(kind: str, full: int) -> None:
    reading = read(model(model_type=kind, num_hidden_layers=12, sliding_window=512), "vllm")
    assert per_token(reading) == full * 4 * HEAD
    assert per_token(reading, Keeps.WINDOW) == (12 - full) * 4 * HEAD


@pytest.mark.parametrize(
    ("fields", "full"),
    [
        ({"sliding_window_pattern": 6}, 1),
        ({"_sliding_window_pattern": 6}, 1),
        ({"sliding_window_pattern": 2}, 4),
        ({"sliding_window_pattern": "LLLG", "model_type": "exaone4"}, 2),
        ({"layer_types": ["full_attention"] + ["sliding_attention"] * 7}, 1),
    ],
    ids=["six", "six, of transformers 4", "two", "letters", "a list"],
)
def test_a_file_tells_layers_apart(fields: Config, full: int) -> None:
    reading = read(model(**{"sliding_window": 512, **fields}), "vllm")
    assert per_token(reading) == full * 4 * HEAD
    assert per_token(reading, Keeps.WINDOW) == (8 - full) * 4 * HEAD


@pytest.mark.parametrize(
    "kind", ["gemma2", "gemma3_text", "cohere2", "olmo3", "exaone4", "gemma3n_text"]
)
def test_sglang_keeps_every_token_of_these(kind: str) -> None:
    config = model(model_type=kind, sliding_window=512, num_kv_shared_layers=0)
    reading = read(config, "sglang")
    assert per_token(reading) == 8 * 4 * HEAD
    assert [term.keeps for term in reading.terms] == [Keeps.ALL]


def test_cohere2_sees_one_token_more() -> None:
    # vLLM 0.33.0 vllm/model_executor/models/commandr.py:243.
    assert window(read(model(model_type="cohere2", sliding_window=4096), "vllm")) == 4097
    assert window(read(model(model_type="gemma2", sliding_window=4096), "vllm")) == 4096


def test_gemma2_2b_as_the_engines_computed_it() -> None:
    # 26 layers of 4 KV heads of 256: SGLang 106,496; vLLM 53,248 and as much in the window.
    config = model(
        model_type="gemma2",
        architectures=["Gemma2ForCausalLM"],
        num_hidden_layers=26,
        head_dim=256,
        sliding_window=4096,
    )
    assert per_token(read(config, "sglang")) == 26 * 4 * 512 * 2 == 106_496
    assert per_token(read(config, "vllm")) == 13 * 4 * 512 * 2 == 53_248
    assert per_token(read(config, "vllm"), Keeps.WINDOW) == 53_248


# --- heads that differ by kind --------------------------------------------


def mimo(**fields: Any) -> Config:
    """MiMo-V2: full layers of 4 heads of 192 and 128, window layers of 8."""
    return model(
        **{
            "model_type": "mimo_v2_flash",
            "architectures": ["MiMoV2FlashForCausalLM"],
            "num_attention_heads": 64,
            "head_dim": 192,
            "v_head_dim": 128,
            "swa_num_key_value_heads": 8,
            "swa_num_attention_heads": 64,
            "swa_head_dim": 192,
            "swa_v_head_dim": 128,
            "hybrid_layer_pattern": [0, 1, 1, 1, 0, 1, 1, 1],
            "sliding_window": 128,
            "sliding_window_size": 128,
            "attention_chunk_size": 128,
            **fields,
        }
    )


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize("tensor", [1, 4, 8])
def test_windows_have_heads_of_their_own(framework: str, tensor: int) -> None:
    reading = read(mimo(), framework, tensor=tensor)
    assert per_token(reading) == 2 * max(1, 4 // tensor) * (192 + 128) * 2
    assert per_token(reading, Keeps.WINDOW) == 6 * max(1, 8 // tensor) * (192 + 128) * 2
    assert window(reading) == 128


def test_a_windows_value_is_as_long_as_its_key_where_the_file_is_silent() -> None:
    # SGLang 0.5.23 srt/configs/model_config.py:1350: swa_head_dim, not v_head_dim.
    config = mimo()
    del config["swa_v_head_dim"]
    reading = read(config, "sglang")
    assert per_token(reading) == 2 * 4 * (192 + 128) * 2
    assert per_token(reading, Keeps.WINDOW) == 6 * 8 * (192 + 192) * 2


def gemma4(**fields: Any) -> Config:
    """Gemma-4: window layers of 4 heads of 64, full layers of 2 heads of 128."""
    return model(
        **{
            "model_type": "gemma4_text",
            "architectures": ["Gemma4ForConditionalGeneration"],
            "global_head_dim": 128,
            "num_global_key_value_heads": 2,
            "attention_k_eq_v": True,
            "num_kv_shared_layers": 0,
            "sliding_window": 512,
            "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
            **fields,
        }
    )


@pytest.mark.parametrize("framework", ENGINES)
def test_global_layers_have_heads_of_their_own(framework: str) -> None:
    # Values are stored although they equal the keys (gemma4.py:577).
    reading = read(gemma4(), framework)
    assert per_token(reading) == 2 * 2 * (128 + 128) * 2
    assert per_token(reading, Keeps.WINDOW) == 6 * 4 * HEAD


@pytest.mark.parametrize("framework", ENGINES)
def test_global_heads_count_only_where_values_equal_keys(framework: str) -> None:
    # transformers 5.24.0 configuration_gemma4.py:208.
    reading = read(gemma4(attention_k_eq_v=False), framework)
    assert per_token(reading) == 2 * 4 * (128 + 128) * 2


def test_gemma4_26b_as_the_engines_computed_it() -> None:
    # 5 of 30 layers full: 5 * 2 * 1024 * 2 = 20,480; 25 * 8 * 512 * 2 = 204,800 in the window;
    # SGLang divides by 20,480 + 0.8 * 204,800 = 184,320.
    config = gemma4(
        num_hidden_layers=30,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=256,
        global_head_dim=512,
        sliding_window=1024,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 5,
    )
    for framework in ENGINES:
        reading = read(config, framework)
        assert per_token(reading) == 5 * 2 * (512 + 512) * 2 == 20_480
        assert per_token(reading, Keeps.WINDOW) == 25 * 8 * (256 + 256) * 2 == 204_800
    assert number(read(config, "sglang").pool_bytes_per_token) == 184_320


def test_the_last_layer_of_gemma4_keeps_all_where_the_file_lists_none() -> None:
    # transformers 5.24.0: every 6th, and the last.
    config = gemma4()
    del config["layer_types"]
    reading = read(config, "vllm")
    assert per_token(reading) == 2 * 2 * (128 + 128) * 2
    assert per_token(reading, Keeps.WINDOW) == 6 * 4 * HEAD


GEMMA_HEADS = ("config0:num_global_key_value_heads", "config0:num_key_value_heads")
MIMO_HEADS = ("config0:num_key_value_heads", "config0:swa_num_key_value_heads")


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize(
    ("config", "tensor", "both", "fields"),
    [
        # 16 ranks: 2 heads of full layers are held by 8 ranks each, 8 of window layers by 2.
        (gemma4(num_attention_heads=16, num_key_value_heads=8), 16, (2, 8), GEMMA_HEADS),
        # 4 ranks: by 2 each, and by one.
        (gemma4(num_attention_heads=16, num_key_value_heads=8), 4, (1, 2), GEMMA_HEADS),
        # 8 ranks: 4 heads of full layers by 2 each, 8 of window layers by one.
        (mimo(), 8, (1, 2), MIMO_HEADS),
        (mimo(), 16, (2, 4), MIMO_HEADS),
    ],
    ids=["gemma4 on 16", "gemma4 on 4", "mimo on 8", "mimo on 16"],
)
def test_copies_that_differ_by_kind_of_layer_are_both_named_and_neither_is_claimed(
    framework: str, config: Config, tensor: int, both: tuple[int, int], fields: tuple[str, str]
) -> None:
    value = read(config, framework, tensor=tensor).replication
    assert isinstance(value, Unknown)
    assert tuple(int(found) for found in re.findall(r"\d+", value.why)) == both
    assert set(value.evidence) == set(fields)


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize(
    ("config", "tensor", "expected"),
    [
        (gemma4(num_key_value_heads=8), 2, 1),  # 2 and 8 heads are divided among 2 ranks
        (mimo(), 4, 1),  # so are 4 and 8 among 4
        (mimo(swa_num_key_value_heads=4), 16, 4),  # 4 and 4 among 16
    ],
    ids=["gemma4", "mimo", "as many heads"],
)
def test_copies_that_are_the_same_in_all_layers_are_known(
    framework: str, config: Config, tensor: int, expected: int
) -> None:
    assert copies(read(config, framework, tensor=tensor)) == expected


def test_where_sglang_keeps_every_token_there_is_one_number_of_heads() -> None:
    # A window that only masks is no kind of its own (srt/model_executor/pool_configurator.py
    # `_compute_cell_size` takes num_key_value_heads for all layers): 4 heads on 16 ranks.
    assert copies(read(mimo(architectures=["SomeForCausalLM"]), "sglang", tensor=16)) == 16 // 4


def step(**fields: Any) -> Config:
    """Step-3.5: groups for heads, and entries for prediction layers behind the model's own."""
    config = model(
        **{
            "model_type": "step3p5",
            "architectures": ["Step3p5ForCausalLM"],
            "num_attention_groups": 4,
            "attention_other_setting": {
                "attention_type": "sliding_attention",
                "num_attention_heads": 12,
                "num_attention_groups": 4,
                "head_dim": 64,
            },
            "sliding_window": 512,
            "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 2
            + ["sliding_attention"] * 3,
            **fields,
        }
    )
    del config["num_key_value_heads"]
    return config


@pytest.mark.parametrize("framework", ENGINES)
def test_groups_are_heads_and_layers_behind_the_last_are_not_counted(framework: str) -> None:
    reading = read(step(), framework)
    assert per_token(reading) == 2 * 4 * HEAD
    assert per_token(reading, Keeps.WINDOW) == 6 * 4 * HEAD


# --- chunks -----------------------------------------------------------------


def llama4(**fields: Any) -> Config:
    """Llama 4: three layers in four keep the running chunk."""
    return model(
        **{
            "model_type": "llama4_text",
            "architectures": ["Llama4ForConditionalGeneration"],
            "attention_chunk_size": 8192,
            "no_rope_layers": [1, 1, 1, 0] * 2,
            **fields,
        }
    )


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize("rope", [[1, 1, 1, 0] * 2, [], None], ids=["listed", "empty", "null"])
def test_every_fourth_layer_keeps_all_and_others_a_chunk(framework: str, rope: object) -> None:
    reading = read(llama4(no_rope_layers=rope), framework)
    assert per_token(reading) == 2 * 4 * HEAD
    assert per_token(reading, Keeps.CHUNK) == 6 * 4 * HEAD
    assert window(reading) == 8192


def test_llama4s_text_model_alone_keeps_every_token_in_sglang() -> None:
    # Llama4ForCausalLM is not among srt/configs/model_config.py:2651.
    alone = llama4(architectures=["Llama4ForCausalLM"])
    assert per_token(read(alone, "sglang")) == 8 * 4 * HEAD
    assert per_token(read(alone, "vllm")) == 2 * 4 * HEAD


# --- layers that share --------------------------------------------------------


def gemma3n(**fields: Any) -> Config:
    """Gemma-3n: 10 layers, every 5th full, of which the last 4 read the cache of another."""
    return model(
        **{
            "model_type": "gemma3n_text",
            "architectures": ["Gemma3nForConditionalGeneration"],
            "num_hidden_layers": 10,
            "num_kv_shared_layers": 4,
            "sliding_window": 512,
            "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
            **fields,
        }
    )


def test_layers_that_share_own_nothing_in_vllm() -> None:
    reading = read(gemma3n(), "vllm")
    assert per_token(reading) == 1 * 4 * HEAD
    assert per_token(reading, Keeps.WINDOW) == 5 * 4 * HEAD


def test_layers_that_share_are_sized_like_others_in_sglang() -> None:
    assert per_token(read(gemma3n(), "sglang")) == 10 * 4 * HEAD


def test_sglang_counts_layers_that_share_in_its_window_pool() -> None:
    # gemma4_causal.py only redirects; srt/configs/model_config.py:2766 counts all of layer_types.
    reading = read(gemma4(num_kv_shared_layers=4), "sglang")
    assert per_token(reading, Keeps.WINDOW) == 6 * 4 * HEAD
    vllm = read(gemma4(num_kv_shared_layers=4), "vllm")
    assert per_token(vllm) == 1 * 2 * (128 + 128) * 2
    assert per_token(vllm, Keeps.WINDOW) == 3 * 4 * HEAD


def test_what_the_file_of_gemma3n_says_beside_is_no_obstacle() -> None:
    # As its config.json has: sparsity of activations by layer is of the feed-forward part.
    config = gemma3n(
        activation_sparsity_pattern=[0.95] * 4 + [0.0] * 6,
        intermediate_size=[16384] * 10,
        altup_num_inputs=4,
        laurel_rank=64,
        hidden_size_per_layer_input=256,
        vocab_size_per_layer_input=262144,
    )
    assert claimed_by(config) == ["windows"]


@pytest.mark.parametrize("shared", [8, 9, 100])
def test_a_model_whose_layers_all_share_is_refused(shared: int) -> None:
    with pytest.raises(LayoutError, match="num_kv_shared_layers"):
        read(gemma4(num_kv_shared_layers=shared), "vllm")


# --- refusals -----------------------------------------------------------------


def test_the_engine_must_be_named() -> None:
    with pytest.raises(LayoutError, match="--framework"):
        read(gpt_oss())


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["full_attention"] * 3},
        {"sliding_window": True},
        {"sliding_window": 128.5},
        {"sliding_window_pattern": -2, "layer_types": None},
        {"sliding_window_pattern": 1.5, "layer_types": None},
        {"hybrid_layer_pattern": [1, 0]},
    ],
    ids=str,
)
def test_what_is_no_window_is_refused(fields: Config) -> None:
    with pytest.raises(LayoutError):
        read(gpt_oss(**fields), "vllm")


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["sliding_attention", "mamba"] * 4},
        {"layer_types": ["sliding_attention", "linear_attention"] * 4},
        {"kv_lora_rank": 512},
        {"mamba_d_state": 16},
        {"index_topk": 2048},
        {"cross_attention_layers": [1]},
    ],
    ids=str,
)
def test_a_window_beside_something_else_is_not_claimed(fields: Config) -> None:
    assert claimed_by(model(sliding_window=128, **fields)) == []
