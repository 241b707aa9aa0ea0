"""Totals that the engines' own code gave for files where a plausible rule gives another.

SGLang 0.5.23 `ModelConfig` with its pool configurator, vLLM 0.33.0 `get_kv_cache_spec` of each
layer, run on the same configurations (bf16 unless said); states and figures of SGLang's attention
data parallel by its source.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from capacity_core.api.kv_layouts import Keeps
from capacity_core.errors import LayoutError
from capacity_core.values import Known

from .readings import ENGINES, Config, claimed_by, number, per_token, read, state, window


@pytest.mark.parametrize("framework", ENGINES)
def test_longcat_is_known_by_its_architecture(framework: str) -> None:
    """28 layers of two attentions; the published file names no model type."""
    config = {
        "architectures": ["LongcatFlashForCausalLM"],
        "num_layers": 28,
        "num_attention_heads": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
    }
    assert per_token(read(config, framework)) == 28 * 2 * 576 * 2 == 64_512


def test_another_architecture_without_a_type_is_not_taken_for_deepseek() -> None:
    config = {"architectures": ["SomeForCausalLM"], "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert claimed_by({**config, "num_hidden_layers": 4, "num_attention_heads": 8}) == []


def test_keys_of_two_parts_are_not_taken_for_heads() -> None:
    """openPangu-Pro-MoE-V2: vLLM's key has 128 + 64 elements, its value 128 (openpangu.py:570)."""
    config = {
        "num_hidden_layers": 50,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "hidden_size": 5120,
        "qk_nope_dim": 128,
        "qk_rope_dim": 64,
        "v_channels": 128,
    }
    assert claimed_by(config) == []


# --- states ---------------------------------------------------------------


def gdn(keys: int, values: int, **more: Any) -> Config:
    return {
        "model_type": "qwen3_next",
        "num_hidden_layers": 48,
        "full_attention_interval": 4,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": keys,
        "linear_num_value_heads": values,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "torch_dtype": "bfloat16",
        **more,
    }


def test_sglang_gives_each_rank_a_key_head_of_a_delta_net() -> None:
    """8 key heads on 16 ranks count as 16 (qwen3_next.py:300); vLLM divides the channels."""
    one = (2 * 16 * 128 + 16 * 128) // 16 * 3 * 2 + 1 * 128 * 128 * 4
    assert state(read(gdn(8, 16), "sglang", tensor=16)) == 36 * one == 2_442_240
    vllm = (2 * 8 * 128 + 16 * 128) // 16 * 3 * 2 + 1 * 128 * 128 * 2
    assert state(read(gdn(8, 16), "vllm", tensor=16)) == 36 * vllm


def mamba2(**more: Any) -> Config:
    return {
        "model_type": "mamba2",
        "hidden_size": 4096,
        "intermediate_size": 8192,
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "num_hidden_layers": 64,
        "torch_dtype": "bfloat16",
        **more,
    }


def test_attention_data_parallel_leaves_a_model_without_attention_whole() -> None:
    """SGLang divides its states by tp_size, 8 (configs/mamba2.py:44), not by 8 // 8."""
    spread = read(mamba2(), "sglang", tensor=1, attention_data=8)
    assert state(spread) == state(read(mamba2(), "sglang", tensor=8)) == 34_045_952


def test_a_class_takes_mambas_channels_from_the_hidden_size() -> None:
    """mamba-130m without intermediate_size: expand * hidden = 1,536 channels, 24 layers."""
    config = {
        "model_type": "mamba",
        "hidden_size": 768,
        "expand": 2,
        "state_size": 16,
        "conv_kernel": 4,
        "num_hidden_layers": 24,
    }
    assert state(read(config, "sglang")) == 24 * 1536 * (3 * 2 + 16 * 4) == 2_580_480


# --- index, draft ---------------------------------------------------------


@pytest.mark.parametrize(("dim", "index"), [(64, 64), (128, 132), (192, 196)])
@pytest.mark.parametrize("framework", ENGINES)
def test_a_scale_stands_for_whole_blocks_of_an_index_key(
    framework: str, dim: int, index: int
) -> None:
    """`dim + dim // 128 * 4`: with 61 layers of 1,152 B 74,176 for 64 elements."""
    config = {
        "model_type": "deepseek_v32",
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_topk": 2048,
        "index_head_dim": dim,
    }
    assert per_token(read(config, framework)) == 61 * (1152 + index)


@pytest.mark.parametrize(("tensor", "total"), [(1, 139_763), (8, 46_067)])
def test_a_draft_of_layers_that_differ_costs_an_average_one_in_sglang(
    tensor: int, total: int
) -> None:
    """MiniMax-M3: int((122,880 + 57 * 256) * 1 / 60) = 2,291 B for the draft on one rank."""
    sparse = [0] * 3 + [1] * 57
    config = {
        "num_hidden_layers": 60,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "sparse_attention_config": {
            "sparse_attention_freq": sparse,
            "sparse_disable_index_value": sparse,
            "sparse_index_dim": 128,
        },
    }
    model = 60 * max(1, 4 // tensor) * 512 + 57 * 256
    assert model + model // 60 == total
    assert per_token(read(config, "sglang", tensor=tensor, draft=1)) == total


# --- types ----------------------------------------------------------------


def test_scales_of_a_stage_are_whole_bytes() -> None:
    """open-llama-3b, 13 layers, 2 heads of 100: 13 * 400 + 13 * 400 // 32 = 5,362 in mxfp8."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 13,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "hidden_size": 3200,
    }
    total = 13 * 400 + 13 * 400 // 32
    assert per_token(read(config, "sglang", dtype="mxfp8", tensor=16)) == total == 5362


def test_scales_of_a_layer_are_whole_bytes_where_windows_have_a_pool() -> None:
    """gpt-oss with a head of 72: 18 layers of 144 + 144 // 32 = 148 B of each kind."""
    config = {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 72,
        "sliding_window": 128,
    }
    reading = read(config, "sglang", dtype="mxfp8")
    both = per_token(reading), per_token(reading, Keeps.WINDOW)
    assert both == (18 * 148, 18 * 148) == (2664, 2664)
    assert number(reading.pool_bytes_per_token) == Decimal("4795.2")  # 2,664 + 0.8 * 2,664


@pytest.mark.parametrize("dtype", ["nvfp4", "fp4_mx_block16"])
def test_a_latent_in_four_bits(dtype: str) -> None:
    """SGLang: 576 // 2 + 576 // 16 = 324 B in each of 61 layers."""
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }
    assert per_token(read(config, "sglang", dtype=dtype)) == 61 * 324 == 19_764


PLAIN = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


@pytest.mark.parametrize(
    ("framework", "dtype"),
    [("vllm", "mxfp8"), ("sglang", "int4_per_token_head"), ("vllm", "fp7"), ("sglang", "fp16")],
)
def test_a_type_that_an_engine_does_not_have_is_refused(framework: str, dtype: str) -> None:
    """SGLang arg_groups/fields/model.py:209, vLLM config/cache.py:44."""
    with pytest.raises(LayoutError, match=rf"{framework} has no KV type {dtype}; it has bf16"):
        read(PLAIN, framework, dtype=dtype)


# --- windows, classes -----------------------------------------------------


def test_a_window_that_looks_both_ways_has_half_of_it_behind() -> None:
    """EmbeddingGemma: 512 // 2 + 1 (configuration_gemma3.py:101)."""
    config = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "_sliding_window_pattern": 6,
        "use_bidirectional_attention": True,
    }
    reading = read(config, "vllm")
    assert (per_token(reading), window(reading)) == (3 * 1024, 257)


def test_a_prefix_of_dense_layers_changes_no_window() -> None:
    """Command of 32 layers, every fourth full, 8 heads of 128."""
    config = {
        "model_type": "cohere2_moe",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "prefix_dense_sliding_window_pattern": 1,
    }
    reading = read(config, "vllm")
    assert (per_token(reading), per_token(reading, Keeps.WINDOW)) == (32_768, 98_304)
    assert window(reading) == 4097
    assert per_token(read(config, "sglang")) == 131_072


def test_an_empty_chunk_size_is_off() -> None:
    config = {**PLAIN, "attention_chunk_size": []}
    assert claimed_by(config) == ["grouped-query"]


def test_an_engines_own_class_has_its_own_rule() -> None:
    """AFMoE: a head of 3,072 // 48 in SGLang (configs/afmoe.py:63), of 128 in transformers."""
    config = {
        "model_type": "afmoe",
        "num_hidden_layers": 60,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "hidden_size": 3072,
        "sliding_window": 4096,
        "global_attn_every_n_layers": 4,
    }
    assert per_token(read(config, "sglang")) == 60 * 8 * 2 * 64 * 2 == 122_880
    assert per_token(read(config, "vllm")) == 15 * 8 * 2 * 128 * 2


def test_a_wrappers_class_stands_in_for_its_text_models() -> None:
    """Voxtral: 8 KV heads of 128 in its own class; a llama alone would have 40 of 5,120 // 32."""
    text = {
        "model_type": "llama",
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "hidden_size": 5120,
    }
    wrapper = {"architectures": ["VoxtralForConditionalGeneration"], "text_config": text, **text}
    assert per_token(read(wrapper, "vllm")) == 40 * 8 * 2 * 128 * 2 == 163_840


@pytest.mark.parametrize(
    ("named", "assumed"),
    [
        ({"model_type": "foobar", "architectures": ["FooBarForCausalLM"]}, "FooBarForCausalLM"),
        ({"model_type": None, "architectures": None}, "no architecture"),
    ],
)
def test_an_architecture_that_no_engine_names_is_said(named: Config, assumed: str) -> None:
    reading = read({**PLAIN, **named}, "vllm")
    assert per_token(reading) == per_token(read(PLAIN, "vllm"))
    assert any(assumed in why for why in reading.assumes)
    assert read(PLAIN, "vllm").assumes == ()
    (term,) = reading.terms
    assert isinstance(term.bytes_per_token, Known)


def test_vllm_never_quantizes_falcons_kv() -> None:
    """falcon-7b: 32 layers of one head of 64 in bf16, whatever --kv-cache-dtype says
    (models/falcon.py:173); SGLang takes a byte an element."""
    falcon = {
        "model_type": "falcon",
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "hidden_size": 4544,
        "multi_query": True,
        "torch_dtype": "bfloat16",
    }
    assert per_token(read(falcon, "vllm", dtype="fp8_e4m3")) == 32 * 2 * 64 * 2 == 8192
    assert per_token(read(falcon, "sglang", dtype="fp8_e4m3")) == 32 * 2 * 64


@pytest.mark.parametrize("framework", ENGINES)
def test_a_bigcode_model_has_one_head_unless_its_file_says_more(framework: str) -> None:
    """GPTBigCodeConfig.multi_query is True (transformers 5.24.0): 24 layers of one head of 128."""
    config = {"model_type": "gpt_bigcode", "n_layer": 24, "n_head": 16, "n_embd": 2048}
    assert per_token(read(config, framework)) == 24 * 2 * 128 * 2 == 12_288
    many = {**config, "multi_query": False}
    assert per_token(read(many, framework)) == 16 * 12_288


def test_engines_have_classes_of_their_own_for_beam() -> None:
    """vLLM: 5,120 // 48 elements in a head, and a window of 4,096 in all 52 layers
    (transformers_utils/configs/beam.py)."""
    beam = {
        "model_type": "beam",
        "architectures": ["BeamForCausalLM"],
        "num_hidden_layers": 52,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "hidden_size": 5120,
    }
    reading = read(beam, "vllm")
    assert (per_token(reading), per_token(reading, Keeps.WINDOW)) == (0, 52 * 8 * 2 * 106 * 2)
    assert window(reading) == 4096
    with pytest.raises(LayoutError, match="layer_types"):
        read(beam, "sglang")
