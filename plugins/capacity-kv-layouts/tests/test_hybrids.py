"""States of a request, and attention between them."""

from __future__ import annotations

from typing import Any

import pytest

from capacity_core.api.kv_layouts import Keeps, LayoutReading, Serving
from capacity_core.errors import LayoutError
from capacity_core.values import Unknown

from .readings import (
    ENGINES,
    Config,
    claimed_by,
    copies,
    layout_of,
    per_token,
    read,
    state,
)

HEAD = (64 + 64) * 2
"""One KV head's key and value of 64 in bf16."""


def model(kind: str, **fields: Any) -> Config:
    """8 query heads and 2 KV heads of 64; `fields` replace."""
    return {
        "model_type": kind,
        "dtype": "bfloat16",
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        **fields,
    }


# --- Mamba-2 --------------------------------------------------------------


def nemotron(**fields: Any) -> Config:
    """Nemotron-H: 8 layers, 4 Mamba-2 (16 heads of 32, 4 groups, state 64, kernel 4), 1 attention,
    2 MLP, 1 of experts."""
    return model(
        "nemotron_h",
        **{
            "hybrid_override_pattern": "M-M*ME-M",
            "num_hidden_layers": 8,
            "mamba_num_heads": 16,
            "mamba_head_dim": 32,
            "n_groups": 4,
            "ssm_state_size": 64,
            "conv_kernel": 4,
            **fields,
        },
    )


def mamba2(tensor: int, conv: int, recurrent: int, groups: int = 4) -> int:
    """As SGLang 0.5.23 srt/configs/mamba_utils.py:194 and vLLM 0.33.0 mamba_utils.py:186: groups
    that ranks cannot share out are replicated."""
    spread = groups if groups % tensor == 0 else tensor
    channels = (16 * 32 + 2 * spread * 64) // tensor
    return channels * (4 - 1) * conv + 16 // tensor * 32 * 64 * recurrent


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_states_of_nemotron_are_fp32_where_the_file_is_silent(framework: str, tensor: int) -> None:
    # vLLM: vllm/model_executor/models/config.py:1211.
    reading = read(nemotron(), framework, tensor=tensor)
    assert per_token(reading) == 1 * max(1, 2 // tensor) * HEAD
    assert state(reading) == 4 * mamba2(tensor, 2, 4)
    assert copies(reading) == max(1, tensor // 2)


def test_vllm_reads_the_type_of_nemotrons_state_and_sglang_another_field() -> None:
    # `mamba_ssm_cache_dtype` is read nowhere in SGLang 0.5.23; `mamba_ssm_dtype` nowhere in
    # vLLM's NemotronH.
    config = nemotron(mamba_ssm_cache_dtype="bfloat16")
    assert state(read(config, "vllm")) == 4 * mamba2(1, 2, 2)
    assert state(read(config, "sglang")) == 4 * mamba2(1, 2, 4)
    config = nemotron(mamba_ssm_dtype="bfloat16")
    assert state(read(config, "vllm")) == 4 * mamba2(1, 2, 4)
    assert state(read(config, "sglang")) == 4 * mamba2(1, 2, 2)


@pytest.mark.parametrize("framework", ENGINES)
def test_blocks_may_be_words_without_a_number_of_layers(framework: str) -> None:
    words = ["mamba", "moe", "mamba", "attention", "mamba", "moe", "mamba", "mlp"]
    config = nemotron(layers_block_type=words)
    del config["hybrid_override_pattern"], config["num_hidden_layers"]
    reading = read(config, framework)
    assert state(reading) == 4 * mamba2(1, 2, 4)
    assert per_token(reading) == 1 * 2 * HEAD


@pytest.mark.parametrize("layers", [4, 8, 12])
@pytest.mark.parametrize("framework", ENGINES)
def test_nemotron_has_as_many_layers_as_its_pattern(framework: str, layers: int) -> None:
    # SGLang 0.5.23 srt/configs/nemotron_h.py:442 and vLLM 0.33.0 nemotron_h.py take its length.
    reading = read(nemotron(num_hidden_layers=layers), framework)
    assert state(reading) == 4 * mamba2(1, 2, 4)


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3", "nvfp4", None])
def test_the_kv_type_never_changes_a_state(framework: str, dtype: str | None) -> None:
    assert state(read(nemotron(), framework, dtype=dtype)) == 4 * mamba2(1, 2, 4)


def test_nemotron_h_56b_as_the_engines_computed_it() -> None:
    # 118 layers: 54 Mamba-2 of 256 heads of 64, 8 groups, state 256; 10 attention of 8 KV heads.
    pattern = "M-" * 54 + "*" * 10
    assert len(pattern) == 118
    config = nemotron(
        hybrid_override_pattern=pattern,
        num_hidden_layers=118,
        hidden_size=8192,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        mamba_num_heads=256,
        mamba_head_dim=64,
        n_groups=8,
        ssm_state_size=256,
    )
    one = (256 * 64 + 2 * 8 * 256) * 3 * 2 + 256 * 64 * 256 * 4
    for framework in ENGINES:
        reading = read(config, framework)
        assert per_token(reading) == 10 * 8 * 256 * 2 == 40_960
        assert state(reading) == 54 * one
        assert round(54 * one / 1e6, 1) == 912.6  # as both engines' code computed


def mamba_model(kind: str, **fields: Any) -> Config:
    """4 layers with the fields of Bamba, Granite-4 and Falcon-H1: inner size 2 * 512 = 1024."""
    return model(
        kind,
        **{
            "num_hidden_layers": 4,
            "mamba_n_heads": 32,
            "mamba_d_head": 32,
            "mamba_n_groups": 1,
            "mamba_d_state": 64,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            **fields,
        },
    )


def mamba_state(inner: int, tensor: int, conv: int, recurrent: int) -> int:
    channels = (inner + 2 * 1 * tensor * 64) // tensor
    return channels * 3 * conv + 32 // tensor * 32 * 64 * recurrent


@pytest.mark.parametrize(("framework", "recurrent"), [("sglang", 4), ("vllm", 2)])
@pytest.mark.parametrize("tensor", [1, 2])
def test_falcon_h1_has_both_in_every_layer(framework: str, recurrent: int, tensor: int) -> None:
    config = mamba_model("falcon_h1", mamba_d_ssm=1024)
    reading = read(config, framework, tensor=tensor)
    assert per_token(reading) == 4 * (2 // tensor) * HEAD
    assert state(reading) == 4 * mamba_state(1024, tensor, 2, recurrent)


def test_falcon_h1_says_its_inner_size_or_it_is_expanded() -> None:
    wide = read(mamba_model("falcon_h1", mamba_d_ssm=2048), "sglang")
    assert state(wide) == 4 * mamba_state(2048, 1, 2, 4)
    silent = read(mamba_model("falcon_h1", mamba_d_ssm=None), "sglang")
    assert state(silent) == 4 * mamba_state(1024, 1, 2, 4)


@pytest.mark.parametrize(("framework", "recurrent"), [("sglang", 4), ("vllm", 2)])
def test_granite_4_reads_no_head_dim(framework: str, recurrent: int) -> None:
    types = ["mamba", "mamba", "attention", "mamba"]
    config = mamba_model("granitemoehybrid", layer_types=types, mamba_ssm_dtype="float16")
    # vLLM granitemoehybrid.py:240: hidden_size // heads, 512 / 8 = 64; no field for the state.
    reading = read({**config, "head_dim": None}, framework)
    assert per_token(reading) == 1 * 2 * HEAD
    assert state(reading) == 3 * mamba_state(1024, 1, 2, recurrent)


@pytest.mark.parametrize("framework", ENGINES)
def test_a_granite_of_attention_alone_has_no_state(framework: str) -> None:
    reading = read(mamba_model("granitemoehybrid", layer_types=["attention"] * 4), framework)
    assert per_token(reading) == 4 * 2 * HEAD
    assert state(reading) == 0
    assert all(term.keeps is Keeps.ALL for term in reading.terms)


def test_bamba_lists_its_layers_of_attention() -> None:
    reading = read(mamba_model("bamba", attn_layer_indices=[1]), "vllm")
    assert per_token(reading) == 1 * 2 * HEAD
    assert state(reading) == 3 * mamba_state(1024, 1, 2, 2)


def zamba2(**fields: Any) -> Config:
    """Zamba-2: every layer has a state, a hybrid one attention as well, with heads twice as long as
    hidden_size // heads."""
    return model(
        "zamba2",
        **{
            "head_dim": None,
            "num_key_value_heads": 8,
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
            "num_hidden_layers": 4,
            "attention_head_dim": 128,
            "n_mamba_heads": 16,
            "mamba_headdim": 64,
            "mamba_ngroups": 1,
            "mamba_d_state": 64,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            **fields,
        },
    )


@pytest.mark.parametrize("fields", [{}, {"kv_channels": 64}], ids=["plain", "with kv_channels"])
def test_zamba2_has_a_state_in_every_layer_and_heads_of_attention_head_dim(fields: Config) -> None:
    # vLLM 0.33.0 vllm/model_executor/models/zamba2.py:151, :197: attention_head_dim, all heads. Its
    # config.json has kv_channels, too, of half the length, which is not read.
    reading = read(zamba2(**fields), "vllm")
    assert state(reading) == 4 * ((1024 + 2 * 64) * 3 * 2 + 16 * 64 * 64 * 2)
    assert per_token(reading) == 2 * 8 * (128 + 128) * 2


@pytest.mark.parametrize(("framework", "recurrent"), [("sglang", 4), ("vllm", 2)])
def test_mamba2_keeps_no_token(framework: str, recurrent: int) -> None:
    config: Config = {
        "model_type": "mamba2",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 3,
        "hidden_size": 256,
        "expand": 2,
        "num_heads": 8,
        "head_dim": 64,
        "n_groups": 1,
        "state_size": 128,
        "conv_kernel": 4,
    }
    reading = read(config, framework)
    assert per_token(reading) == 0
    assert state(reading) == 3 * ((512 + 2 * 128) * 3 * 2 + 8 * 64 * 128 * recurrent)
    assert copies(reading) == 1


# --- Mamba-1 ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mamba", "falcon_mamba"])
@pytest.mark.parametrize(("framework", "recurrent"), [("sglang", 4), ("vllm", 2)])
@pytest.mark.parametrize("tensor", [1, 4])
def test_mamba1_keeps_no_token(kind: str, framework: str, recurrent: int, tensor: int) -> None:
    config: Config = {
        "model_type": kind,
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 3,
        "hidden_size": 256,
        "intermediate_size": 512,
        "state_size": 16,
        "conv_kernel": 4,
    }
    reading = read(config, framework, tensor=tensor)
    assert per_token(reading) == 0
    assert state(reading) == 3 * (512 // tensor) * (3 * 2 + 16 * recurrent)


def jamba(**fields: Any) -> Config:
    """Jamba: 8 layers, the 5th of which has attention."""
    return model(
        "jamba",
        **{
            "num_hidden_layers": 8,
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "mamba_expand": 2,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            **fields,
        },
    )


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_jamba_divides_its_states_among_ranks(tensor: int) -> None:
    reading = read(jamba(), "vllm", tensor=tensor)
    assert per_token(reading) == 1 * max(1, 2 // tensor) * HEAD
    assert state(reading) == 7 * (2 * 512 // tensor) * (3 * 2 + 16 * 2)


def test_jamba_v01_as_vllm_computed_it() -> None:
    config = jamba(
        num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8
    )
    reading = read(config, "vllm")
    assert per_token(reading) == 4 * 8 * (128 + 128) * 2 == 16_384
    assert state(reading) == 28 * 8192 * (3 * 2 + 16 * 2) == 8_716_288


# --- gated delta net ----------------------------------------------------------


def gdn(kind: str, **fields: Any) -> Config:
    """8 layers, every 4th full; 4 key heads of 32, 8 value heads of 64."""
    return model(
        kind,
        **{
            "num_hidden_layers": 8,
            "full_attention_interval": 4,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 64,
            "linear_conv_kernel_dim": 4,
            **fields,
        },
    )


def delta(tensor: int, recurrent: int) -> int:
    return (2 * 4 * 32 + 8 * 64) // tensor * 3 * 2 + 8 // tensor * 64 * 32 * recurrent


@pytest.mark.parametrize(("framework", "recurrent"), [("sglang", 4), ("vllm", 2)])
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_qwen3_next_has_a_state_of_each_engines_type(
    framework: str, recurrent: int, tensor: int
) -> None:
    reading = read(gdn("qwen3_next"), framework, tensor=tensor)
    assert per_token(reading) == 2 * max(1, 2 // tensor) * HEAD
    assert state(reading) == 6 * delta(tensor, recurrent)


def test_only_sglang_reads_the_type_of_qwen3_nexts_state() -> None:
    config = gdn("qwen3_next", mamba_ssm_dtype="bfloat16")
    assert state(read(config, "sglang")) == 6 * delta(1, 2)
    config = gdn("qwen3_next", mamba_ssm_dtype="float32")
    assert state(read(config, "vllm")) == 6 * delta(1, 2)


def test_qwen3_next_80b_as_the_engines_computed_it() -> None:
    # 36 states of 16 key heads and 32 value heads of 128: SGLang 77,266,944 B, vLLM 39,518,208 B.
    config = gdn(
        "qwen3_next",
        num_hidden_layers=48,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
    )
    conv = (2 * 16 * 128 + 32 * 128) * 3 * 2
    assert 36 * (conv + 32 * 128 * 128 * 4) == 77_266_944
    assert state(read(config, "sglang")) == 77_266_944
    assert state(read(config, "vllm")) == 36 * (conv + 32 * 128 * 128 * 2) == 39_518_208


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"])
@pytest.mark.parametrize("framework", ENGINES)
def test_both_read_the_type_of_qwen35s_state(kind: str, framework: str) -> None:
    config = gdn(kind, mamba_ssm_dtype="float32")
    assert state(read(config, framework)) == 6 * delta(1, 4)
    assert state(read(gdn(kind, mamba_ssm_dtype="bfloat16"), framework)) == 6 * delta(1, 2)


def asked_for(config: Config, framework: str, state_dtype: str) -> LayoutReading:
    """The reading of a server that was asked for a type of states."""
    served = Serving(framework=framework, dtype="bf16", state_dtype=state_dtype)
    return layout_of(config).read(config, served)


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5", "qwen3_5_moe_text"])
@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize(
    ("state_dtype", "recurrent"), [("float32", 4), ("bfloat16", 2), ("float16", 2)]
)
def test_a_type_that_was_asked_for_replaces_that_of_the_state(
    kind: str, framework: str, state_dtype: str, recurrent: int
) -> None:
    # SGLang 0.5.23 srt/configs/mamba_utils.py `mamba2_state_dtype` (--mamba-ssm-dtype); vLLM 0.33.0
    # mamba_utils.py `_mamba_state_dtype` (--mamba-ssm-cache-dtype). The convolution's window keeps
    # its two bytes, and so does what grows.
    reading = asked_for(gdn(kind), framework, state_dtype)
    assert state(reading) == 6 * delta(1, recurrent)
    assert per_token(reading) == 2 * 2 * HEAD


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize(
    ("written", "state_dtype", "recurrent"),
    [("float32", "bfloat16", 2), ("bfloat16", "float32", 4)],
)
def test_what_was_asked_for_stands_before_what_the_file_says(
    framework: str, written: str, state_dtype: str, recurrent: int
) -> None:
    config = gdn("qwen3_5", mamba_ssm_dtype=written)
    assert state(asked_for(config, framework, state_dtype)) == 6 * delta(1, recurrent)


@pytest.mark.parametrize("framework", ENGINES)
def test_a_list_of_layers_serves_where_there_is_no_interval(framework: str) -> None:
    config = gdn("qwen3_5", layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2)
    del config["full_attention_interval"]
    assert per_token(read(config, framework)) == 2 * 2 * HEAD


def test_olmo_hybrid_is_of_vllm_alone() -> None:
    types = (["linear_attention"] * 3 + ["full_attention"]) * 2
    config = gdn("olmo_hybrid", layer_types=types)
    assert state(read(config, "vllm")) == 6 * delta(1, 2)
    with pytest.raises(LayoutError, match="sglang does not serve olmo_hybrid"):
        read(config, "sglang")


# --- KDA, lightning ---------------------------------------------------------------


def kimi(**fields: Any) -> Config:
    """Kimi-Linear: 8 layers of which the 4th and 8th, counted from 1, keep a latent."""
    return model(
        "kimi_linear",
        **{
            "num_hidden_layers": 8,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "linear_attn_config": {
                "full_attn_layers": [4, 8],
                "kda_layers": [1, 2, 3, 5, 6, 7],
                "num_heads": 4,
                "head_dim": 32,
                "short_conv_kernel_size": 4,
            },
            **fields,
        },
    )


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize("tensor", [1, 4])
def test_kimi_divides_its_states_and_not_its_latents(framework: str, tensor: int) -> None:
    reading = read(kimi(), framework, tensor=tensor)
    assert per_token(reading) == 2 * (512 + 64) * 2
    assert state(reading) == 6 * (3 * 4 * 32 * 3 * 2 + 4 * 32 * 32 * 4) // tensor
    assert copies(reading) == tensor


def test_kdas_state_is_fp32_and_its_window_of_the_models_type_in_vllm() -> None:
    # A checkpoint of 32 bits is loaded in 16 (vLLM 0.33.0 vllm/config/model.py:2441).
    reading = read(kimi(dtype="float32"), "vllm")
    assert state(reading) == 6 * (3 * 4 * 32 * 3 * 2 + 4 * 32 * 32 * 4)
    reading = read(kimi(dtype="float32"), "sglang")
    assert state(reading) == 6 * (3 * 4 * 32 * 3 * 2 + 4 * 32 * 32 * 4)


def ring(**fields: Any) -> Config:
    """Ring-2.5: 8 layers, every 4th of which keeps a latent."""
    return model(
        "bailing_hybrid",
        **{
            "num_hidden_layers": 8,
            "layer_group_size": 4,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            **fields,
        },
    )


@pytest.mark.parametrize(("framework", "element"), [("sglang", 4), ("vllm", 2)])
@pytest.mark.parametrize("tensor", [1, 2])
def test_ring_keeps_a_latent_in_the_last_layer_of_each_group(
    framework: str, element: int, tensor: int
) -> None:
    # No convolution; SGLang's state is fp32 (srt/configs/bailing_hybrid.py:227), vLLM's the
    # model's type (mamba_utils.py:155).
    reading = read(ring(), framework, tensor=tensor)
    assert per_token(reading) == 2 * (512 + 64) * 2
    assert state(reading) == 6 * (8 // tensor) * 64 * 64 * element


@pytest.mark.parametrize("framework", ENGINES)
def test_ring_with_kda_has_states_of_kda(framework: str) -> None:
    reading = read(ring(short_conv_kernel_size=4), framework)
    assert per_token(reading) == 2 * (512 + 64) * 2
    assert state(reading) == 6 * (3 * 8 * 64 * 3 * 2 + 8 * 64 * 64 * 4)


@pytest.mark.parametrize("framework", ENGINES)
def test_kdas_state_is_of_the_type_that_was_asked_for(framework: str) -> None:
    # SGLang 0.5.23 srt/arg_groups/serving_hook.py:419; vLLM 0.33.0 `kda_state_dtype`.
    reading = asked_for(kimi(), framework, "bfloat16")
    assert state(reading) == 6 * (3 * 4 * 32 * 3 * 2 + 4 * 32 * 32 * 2)


@pytest.mark.parametrize(("framework", "element"), [("sglang", 2), ("vllm", 2)])
def test_vllm_reads_no_type_of_lightning_states(framework: str, element: int) -> None:
    # vLLM 0.33.0 mamba_utils.py `linear_attention_state_dtype`: the model's type.
    asked = "float32" if framework == "vllm" else "bfloat16"
    assert state(asked_for(ring(), framework, asked)) == 6 * 8 * 64 * 64 * element


def test_layers_behind_the_last_group_keep_latents_in_vllm() -> None:
    # vLLM 0.33.0 vllm/model_executor/models/bailing_moe_v3.py:131: layers 4, 8, 9, 10 of 10.
    reading = read(ring(short_conv_kernel_size=4, num_hidden_layers=10), "vllm")
    assert per_token(reading) == 4 * (512 + 64) * 2
    assert state(reading) == 6 * (3 * 8 * 64 * 3 * 2 + 8 * 64 * 64 * 4)


@pytest.mark.parametrize("kernel", [None, 4], ids=["lightning", "KDA"])
def test_layers_that_groups_do_not_divide_are_refused_for_sglang(kernel: int | None) -> None:
    # SGLang 0.5.23 srt/models/bailing_moe_v3.py:1228 and bailing_moe_linear.py:918 assert it.
    with pytest.raises(LayoutError, match="layer_group_size"):
        read(ring(short_conv_kernel_size=kernel, num_hidden_layers=10), "sglang")


def test_a_latent_without_rotary_key_is_shorter_in_sglang() -> None:
    # SGLang 0.5.23 srt/configs/model_config.py:1497: qk_rope_head_dim counts 0 with use_mla_nope.
    reading = read(ring(short_conv_kernel_size=4, use_mla_nope=True), "sglang")
    latents = sum(t.layers or 0 for t in reading.terms if t.keeps is Keeps.ALL)
    assert per_token(reading) == latents * 512 * 2


@pytest.mark.parametrize("kind", ["minimax", "minimax_text_01", "minimax_m1"])
def test_minimax_text_lists_its_layers(kind: str) -> None:
    config = model(kind, num_hidden_layers=8, attn_type_list=[0, 0, 0, 1] * 2)
    reading = read(config, "vllm", tensor=2)
    assert per_token(reading) == 2 * 1 * HEAD
    assert state(reading) == 6 * (8 // 2) * 64 * 64 * 2
    with pytest.raises(LayoutError, match="sglang does not serve"):
        read(config, "sglang")


# --- short convolution ----------------------------------------------------------------


def lfm(kind: str, **fields: Any) -> Config:
    """LFM2: 4 layers of which one has attention."""
    types = ["conv", "conv", "full_attention", "conv"]
    named = {"num_hidden_layers": 4, "layer_types": types, "conv_L_cache": 3}
    return model(kind, **{**named, **fields})


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize("tensor", [1, 2])
def test_a_short_convolution_keeps_its_last_inputs(framework: str, tensor: int) -> None:
    for config in (lfm("lfm2", conv_dim=512), lfm("lfm2_moe")):
        reading = read(config, framework, tensor=tensor)
        assert per_token(reading) == 1 * (2 // tensor) * HEAD
        assert state(reading) == 3 * (512 // tensor) * (3 - 1) * 2


def test_vllm_reads_the_channels_of_lfm2_and_sglang_its_hidden_size() -> None:
    config = lfm("lfm2", conv_dim=1024)
    assert state(read(config, "vllm")) == 3 * 1024 * 2 * 2
    assert state(read(config, "sglang")) == 3 * 512 * 2 * 2


def test_lfm2_may_list_its_layers_of_attention() -> None:
    config = lfm("lfm2", conv_dim=512, full_attn_idxs=[0, 2], layer_types=None)
    assert per_token(read(config, "vllm")) == 2 * 2 * HEAD


# --- what is refused -----------------------------------------------------------------


EVERY = [
    nemotron(),
    mamba_model("falcon_h1", mamba_d_ssm=1024),
    mamba_model("granitemoehybrid", layer_types=["mamba", "attention"] * 2),
    mamba_model("bamba", attn_layer_indices=[1]),
    zamba2(),
    jamba(),
    gdn("qwen3_next"),
    gdn("qwen3_5_moe_text"),
    kimi(),
    ring(),
    lfm("lfm2", conv_dim=512),
    lfm("lfm2_moe"),
]


@pytest.mark.parametrize("config", EVERY, ids=lambda config: config["model_type"])
def test_every_hybrid_is_claimed_once_and_needs_an_engine(config: Config) -> None:
    assert claimed_by(config) == ["hybrid"]
    with pytest.raises(LayoutError, match="--framework"):
        read(config)


@pytest.mark.parametrize("config", EVERY, ids=lambda config: config["model_type"])
def test_without_the_models_type_a_state_of_vllm_is_unknown(config: Config) -> None:
    silent = {name: field for name, field in config.items() if name != "dtype"}
    reading = read(silent, "vllm")
    states = [term for term in reading.terms if term.keeps is Keeps.STATE]
    assert states
    for term in states:
        assert isinstance(term.fixed_bytes_per_request, Unknown)
        assert "dtype" in term.fixed_bytes_per_request.why


@pytest.mark.parametrize("kind", ["bamba", "jamba", "zamba2"])
def test_sglang_does_not_serve_these(kind: str) -> None:
    (config,) = (config for config in EVERY if config["model_type"] == kind)
    with pytest.raises(LayoutError, match=f"sglang does not serve {kind}"):
        read(config, "sglang")


def test_heads_of_states_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(LayoutError, match="cannot be shared out evenly"):
        read(gdn("qwen3_next", linear_num_value_heads=6), "vllm", tensor=4)
    with pytest.raises(LayoutError, match="cannot be shared out evenly"):
        read(kimi(num_attention_heads=16), "vllm", tensor=8)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (nemotron(hybrid_override_pattern="M-M?"), "hybrid_override_pattern"),
        (nemotron(hybrid_override_pattern=None), "hybrid_override_pattern"),
        (nemotron(hybrid_override_pattern=["M", []]), "hybrid_override_pattern"),
        (nemotron(hybrid_override_pattern=7), "hybrid_override_pattern"),
        (nemotron(n_groups=None), "n_groups"),
        (jamba(attn_layer_offset=None), "attn_layer_offset"),
        (jamba(attn_layer_period=0), "attn_layer_period"),
        (gdn("qwen3_next", full_attention_interval=0), "full_attention_interval"),
        (gdn("qwen3_next", full_attention_interval=None), "layer_types"),
        (kimi(linear_attn_config=None), "linear_attn_config"),
        (kimi(linear_attn_config={"num_heads": 4}), "kda_layers"),
        (lfm("lfm2", conv_dim=512, conv_L_cache=None), "conv_L_cache"),
        (lfm("lfm2", conv_dim=None), "conv_dim"),
    ],
    ids=lambda case: case if isinstance(case, str) else None,
)
def test_what_lacks_a_field_is_refused_by_name(config: Config, match: str) -> None:
    with pytest.raises(LayoutError, match=match):
        read(config, "vllm")


@pytest.mark.parametrize(
    "config",
    [
        lfm("lfm2", layer_types=["conv", "full_attention"]),
        model("minimax_text_01", num_hidden_layers=8, attn_type_list=[0, 1]),
    ],
    ids=["LFM2", "MiniMax"],
)
def test_a_list_shorter_than_the_layers_is_refused(config: Config) -> None:
    with pytest.raises(LayoutError):
        read(config, "vllm")


@pytest.mark.parametrize(
    "config",
    [
        gdn("qwen3_5", full_attention_interval=None),
        gdn("olmo_hybrid", full_attention_interval=None),
        mamba_model("granitemoehybrid"),
        lfm("lfm2", conv_dim=512),
    ],
    ids=lambda config: config["model_type"],
)
def test_a_list_of_types_has_an_entry_for_each_layer(config: Config) -> None:
    # SGLang 0.5.23 and vLLM 0.33.0 build num_hidden_layers layers and look each up; what goes on
    # behind them is of a draft.
    layers = config["num_hidden_layers"]
    other = {"granitemoehybrid": "mamba", "lfm2": "conv"}.get(
        config["model_type"], "linear_attention"
    )
    full = "attention" if other == "mamba" else "full_attention"
    types = [full] + [other] * (layers - 1)
    whole, longer = (
        read({**config, "layer_types": listed}, "vllm") for listed in (types, [*types, full, other])
    )
    assert per_token(longer) == per_token(whole) == 1 * 2 * HEAD
    assert state(longer) == state(whole)
    with pytest.raises(LayoutError, match=f"layer_types has {layers - 1} entries for {layers}"):
        read({**config, "layer_types": types[:-1]}, "vllm")


@pytest.mark.parametrize(
    "kind", ["jet_nemotron", "plamo2", "zaya", "recurrent_gemma", "rwkv", "phi4flash", "qwen4_exp"]
)
def test_hybrids_that_nobody_here_knows_are_not_claimed(kind: str) -> None:
    assert claimed_by(mamba_model(kind, layers_block_type=["mamba", "attention"] * 2)) == []
