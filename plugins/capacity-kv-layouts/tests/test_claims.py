"""Which configurations are claimed, by which layout: only those whose every layer is known."""

from __future__ import annotations

from typing import Any

import pytest

from capacity_core.errors import LayoutError
from capacity_kv_layouts.latent import Latent

from .readings import LAYOUTS, claimed_by, read

PLAIN: dict[str, Any] = {
    "model_type": "some_new_model",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


OTHER_CACHES = {
    "sliding by layer": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "sliding by layer though switched off": {
        "use_sliding_window": False,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "sliding by interval": {"sliding_window_pattern": 6},
    "hybrid cache": {"cache_implementation": "hybrid"},
    "window heads": {"swa_num_key_value_heads": 8},
    "linear attention (Qwen3-Next)": {"full_attention_interval": 4, "linear_num_key_heads": 16},
    "linear attention by layer": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "linear attention (Kimi)": {"linear_attn_config": {"full_attn_layers": [4]}},
    "linear attention (MiniMax)": {"attn_type_list": [0, 0, 0, 1]},
    "linear attention in all layers": {"attn_type_list": [0, 0, 0, 0]},
    "linear attention (Ring)": {"layer_group_size": 5},
    "state space (Nemotron-H)": {"hybrid_override_pattern": "M-M*"},
    "state space (Jamba)": {"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16},
    "state space (Bamba)": {"attn_layer_indices": [1, 3]},
    "state space by block": {"layers_block_type": ["mamba", "attention"] * 2},
    "short convolution (LFM2)": {"full_attn_idxs": [2], "conv_L_cache": 3},
    "recurrent": {"block_types": ["recurrent", "recurrent", "attention"]},
    "compressed": {"compress_ratios": [0, 4, 128, 4]},
    "sparse": {"sparse_attention_config": {"sparse_index_dim": 128}},
    "block-sparse": {"blocksparse_block_size": 64, "dense_attention_every_n_layers": 2},
    "encoder and decoder": {"is_encoder_decoder": True},
    "encoder layers": {"encoder_layers": 4, "decoder_layers": 4},
    "heads by layer": {"num_key_value_heads_per_layer": [2, 2, 4, 4]},
    "heads by layer, in place (OpenELM)": {"num_kv_heads": [1, 2, 2, 4]},
    "global heads (Gemma-4)": {"num_global_key_value_heads": 2},
    "layers that run twice": {"num_loops": 2},
    "an unknown list by layer": {"retention_by_layer": [0, 1, 0, 1]},
    "an unknown list as long as the layers": {"keep": [0.1, 0.5, 0.5, 1.0]},
    "an unknown pattern": {"memory_pattern": "AABB"},
    "an unknown mapping of layers": {"layer_plan": {"0": "full", "1": "none"}},
}


# Claimed beside keys and values by heads, by the layout that knows them; never beside a latent.
WINDOW = {"sliding_window": 4096}
BLOCKS = [{"attention": {"n_heads_in_group": 4}}] * 4
SPARSE = {"sparse_attention_freq": [0, 1, 1, 1], "sparse_index_dim": 128}
KNOWN_CACHES: dict[str, tuple[dict[str, Any], str]] = {
    "sliding window": (WINDOW, "windows"),
    "sliding window, said to be on": ({**WINDOW, "use_sliding_window": True}, "windows"),
    "sliding by layer": (
        {**WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2},
        "windows",
    ),
    "sliding by interval": ({**WINDOW, "sliding_window_pattern": 6}, "windows"),
    "sliding, hybrid cache": ({**WINDOW, "cache_implementation": "hybrid"}, "windows"),
    "sliding, heads of its own": (
        {**WINDOW, "swa_num_key_value_heads": 8, "hybrid_layer_pattern": [0, 1, 1, 1]},
        "windows",
    ),
    "chunks": ({"attention_chunk_size": 8192}, "windows"),
    "shared by layers (Gemma-3n)": ({"num_kv_shared_layers": 2}, "windows"),
    "cross attention": ({"cross_attention_layers": [1, 3]}, "cross-attention"),
    "heads by block (Nemotron-NAS)": ({"block_configs": BLOCKS}, "by-block"),
    "sparse index (MiniMax-M3)": ({"sparse_attention_config": SPARSE}, "sparse-index"),
}


@pytest.mark.parametrize(("fields", "name"), KNOWN_CACHES.values(), ids=KNOWN_CACHES.keys())
def test_known_caches_are_claimed_by_one_layout(fields: dict[str, Any], name: str) -> None:
    assert claimed_by({**PLAIN, **fields}) == [name]


@pytest.mark.parametrize(
    "fields", [fields for fields, _ in KNOWN_CACHES.values()], ids=KNOWN_CACHES.keys()
)
def test_known_caches_beside_a_latent_are_not_claimed(fields: dict[str, Any]) -> None:
    assert claimed_by({**LATENT, **fields}) == []


@pytest.mark.parametrize(
    "names",
    [
        ("sliding window", "cross attention"),
        ("sliding window", "heads by block (Nemotron-NAS)"),
        ("sliding window", "sparse index (MiniMax-M3)"),
        ("cross attention", "heads by block (Nemotron-NAS)"),
        ("cross attention", "sparse index (MiniMax-M3)"),
        ("heads by block (Nemotron-NAS)", "sparse index (MiniMax-M3)"),
    ],
    ids=" and ".join,
)
def test_caches_of_two_families_in_one_file_are_not_claimed(names: tuple[str, str]) -> None:
    first, second = (KNOWN_CACHES[name][0] for name in names)
    assert claimed_by({**PLAIN, **first, **second}) == []


@pytest.mark.parametrize(
    "unknown",
    [
        "linear attention (Qwen3-Next)",
        "state space (Nemotron-H)",
        "compressed",
        "layers that run twice",
        "an unknown list by layer",
    ],
)
@pytest.mark.parametrize(
    "known",
    [
        "sliding window",
        "cross attention",
        "heads by block (Nemotron-NAS)",
        "sparse index (MiniMax-M3)",
    ],
)
def test_a_known_cache_beside_an_unknown_one_is_not_claimed(known: str, unknown: str) -> None:
    assert claimed_by({**PLAIN, **OTHER_CACHES[unknown], **KNOWN_CACHES[known][0]}) == []


def test_an_index_is_claimed_beside_a_latent_alone() -> None:
    index = {"index_topk": 2048, "index_head_dim": 128}
    assert claimed_by({**PLAIN, **index}) == []
    assert claimed_by({**LATENT, **index}) == ["latent"]


STATES: dict[str, dict[str, Any]] = {
    "nemotron_h": {"hybrid_override_pattern": "M-M*"},
    "falcon_h1": {"mamba_d_ssm": 1024},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "bamba": {"attn_layer_indices": [1, 3]},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "jamba": {"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16},
    "qwen3_next": {"full_attention_interval": 4, "linear_num_key_heads": 16},
    "qwen3_5_moe_text": {"full_attention_interval": 4, "linear_num_key_heads": 16},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "kimi_linear": {"linear_attn_config": {"full_attn_layers": [4]}},
    "bailing_hybrid": {"layer_group_size": 4},
    "minimax_text_01": {"attn_type_list": [0, 0, 0, 1]},
    "lfm2": {"full_attn_idxs": [2], "conv_L_cache": 3},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3},
}


@pytest.mark.parametrize("kind", STATES)
def test_a_state_is_claimed_by_the_type_of_its_model_alone(kind: str) -> None:
    config = {**PLAIN, **STATES[kind], "model_type": kind}
    assert claimed_by(config) == ["hybrid"]
    assert claimed_by({**config, "model_type": "some_new_model"}) == []
    assert claimed_by({**config, "sliding_window": 4096}) == []


@pytest.mark.parametrize("kind", ["qwen3_next", "bailing_hybrid"])
def test_a_window_that_is_switched_off_is_no_obstacle_to_a_hybrid(kind: str) -> None:
    # As Ling's and Qwen's files have it.
    off = {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 4}
    assert claimed_by({**PLAIN, **STATES[kind], **off, "model_type": kind}) == ["hybrid"]


def test_a_minimax_of_full_attention_is_of_heads() -> None:
    config = {**PLAIN, "model_type": "minimax_m2", "attn_type_list": [1, 1, 1, 1]}
    assert claimed_by(config) == ["grouped-query"]


@pytest.mark.parametrize("base", [PLAIN, LATENT], ids=["heads", "latent"])
@pytest.mark.parametrize("fields", OTHER_CACHES.values(), ids=OTHER_CACHES.keys())
def test_other_caches_are_not_claimed(base: dict[str, Any], fields: dict[str, Any]) -> None:
    assert claimed_by(base)
    assert claimed_by({**base, **fields}) == []


@pytest.mark.parametrize(
    "name",
    [
        "swa_head_dim",
        "local_attention",
        "dual_chunk_attention_config",
        "is_hybrid_swa",
        "mamba_d_state",
        "ssm_state_size",
        "conv_kernel",
        "lru_width",
        "rwkv_hidden_size",
        "recurrent_block_type",
        "hybrid_layer_ids",
        "linear_num_key_heads",
        "use_linear_attn",
        "lightning_nope",
        "use_delta_net",
        "kda_num_heads",
        "full_attn_idxs",
        "compress_rate",
        "index_topk",
        "indexer_types",
        "sparse_config",
        "use_sparse_attention",
        "blocksparse_block_size",
        "nsa_block",
        "moba_topk",
        "shared_kv",
        "share_kv",
        "kv_source_layer_ids",
        "attention_k_eq_v",
        "encoder_layers",
        "decoder_layers",
        "num_decoder_layers",
        "is_encoder_decoder",
        "add_cross_attention",
        "heads_per_layer",
        "block_configs",
        "mixer_types",
        "global_head_dim",
        "num_global_key_value_heads",
        "layer_pattern",
        "dense_attention_every_n_layers",
        "layer_group_size",
        "attn_layer_period",
        "attention_types",
        "loop_num",
        "num_loops",
        "attention_window_size",
    ],
)
def test_each_name_alone_is_enough(name: str) -> None:
    assert claimed_by({**PLAIN, name: 1}) == []
    assert claimed_by({**PLAIN, name: None}) == ["grouped-query"]


FULL_ATTENTION = {
    "window switched off (Qwen2.5)": {
        "use_sliding_window": False,
        "sliding_window": 131072,
        "max_window_layers": 28,
    },
    "null window (Mistral v0.2)": {"sliding_window": None},
    "all layers full": {"layer_types": ["full_attention"] * 4, "max_window_layers": 4},
    "all layers full (MiniMax-M2)": {
        "attn_type_list": [1, 1, 1, 1],
        "layernorm_full_attention_beta": 1.0,
        "layernorm_linear_attention_beta": 1.0,
    },
    "mixture of experts by layer": {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0, 3],
        "moe_layer_freq": [0, 1, 1, 1],
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
    },
    "no rotation in some layers (SmolLM3)": {
        "no_rope_layers": [1, 1, 1, 0],
        "no_rope_layer_interval": 4,
    },
    "no sharing of layers, though it says how many would (Hunyuan)": {
        "use_cla": False,
        "cla_share_factor": 2,
    },
    # SGLang 0.5.23 srt/models/hunyuan.py:71 sizes all layers; vLLM 0.33.0 reads neither field.
    "sharing of layers that no engine makes use of (Hunyuan-Large)": {
        "use_cla": True,
        "cla_share_factor": 2,
    },
    "what every configuration may carry": {
        "is_encoder_decoder": False,
        "add_cross_attention": False,
        "cross_attention_hidden_size": None,
        "chunk_size_feed_forward": 0,
        "encoder_no_repeat_ngram_size": 0,
        "num_nextn_predict_layers": 1,
        "eos_token_id": [1, 2],
        "use_cla": False,
        "rope_scaling": {"type": "yarn", "factor": 40},
        "quantization_config": {"modules_to_not_convert": ["lm_head"]},
        "vision_config": {"window_size": 112, "fullatt_block_indexes": [7, 15]},
    },
}


@pytest.mark.parametrize("fields", FULL_ATTENTION.values(), ids=FULL_ATTENTION.keys())
def test_what_only_looks_like_another_cache_is_claimed(fields: dict[str, Any]) -> None:
    assert claimed_by({**PLAIN, **fields}) == ["grouped-query"]
    assert claimed_by({**LATENT, **fields}) == ["latent"]


def test_a_model_without_attention_heads_is_not_claimed() -> None:
    assert claimed_by({"model_type": "rwkv", "num_heads": 128, "num_hidden_layers": 64}) == []
    assert claimed_by({}) == []


@pytest.mark.parametrize("name", ["attention_chunk_size", "num_kv_shared_layers", "sliding_window"])
def test_each_name_of_windows_alone_is_enough(name: str) -> None:
    assert claimed_by({**PLAIN, name: 1}) == ["windows"]
    assert claimed_by({**PLAIN, name: None}) == ["grouped-query"]


@pytest.mark.parametrize(
    "model_type", ["deepseek_v4", "glm5_next", "dots3_note", "hy_v4", "unheard_of"]
)
def test_a_latent_of_another_model_type_is_not_claimed(model_type: str) -> None:
    assert claimed_by({**LATENT, "model_type": model_type}) == []


KNOWN_LATENTS = [
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm_moe_dsa",
    "glm4_moe_lite",
    "kimi_k2",
    "longcat_flash",
    "minicpm3",
]


@pytest.mark.parametrize("model_type", KNOWN_LATENTS)
def test_the_known_latents_are_claimed_by_one_layout(model_type: str) -> None:
    assert claimed_by({**LATENT, "model_type": model_type}) == ["latent"]


def test_a_latent_that_is_null_is_not_counted_as_heads() -> None:
    assert claimed_by({**LATENT, "kv_lora_rank": None}) == ["latent"]
    assert claimed_by({**PLAIN, "kv_lora_rank": None}) == []
    assert claimed_by({**PLAIN, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}) == []


def test_deepseek_without_latent_has_heads() -> None:
    heads = {**PLAIN, "model_type": "deepseek_v2", "kv_lora_rank": None, "use_mla": False}
    assert not Latent().applies(heads)
    assert claimed_by(heads) == ["grouped-query"]


@pytest.mark.parametrize(
    "fields",
    [
        {"num_kv_heads": [1, 2, 2, 4]},
        {"num_loops": 2},
    ],
    ids=["OpenELM", "loops"],
)
def test_what_is_not_claimed_is_not_read_without_being_asked(fields: dict[str, Any]) -> None:
    assert claimed_by({**PLAIN, **fields}) == []


def test_names_of_layouts_are_unique() -> None:
    names = [layout.name for layout in LAYOUTS]
    assert len(set(names)) == len(names) == 8


def test_a_latent_with_a_list_of_heads_is_refused_and_not_guessed() -> None:
    with pytest.raises(LayoutError):
        read({**LATENT, "num_attention_heads": [8, 8]})
