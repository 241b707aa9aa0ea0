"""Fields that published files leave out, as the classes of transformers 5.24.0 fill them in.

The totals are those of the engines' own classes (SGLang 0.5.23 `ModelConfig` and pool configurator,
vLLM 0.33.0 `get_kv_cache_spec` of each layer), run on the same files.
"""

from __future__ import annotations

from typing import Any

import pytest

from capacity_core.api.kv_layouts import Keeps
from capacity_core.errors import LayoutError
from capacity_core.values import Known
from capacity_kv_layouts.class_defaults import filled

from .readings import Config, number, per_token, read, window


def gemma3(**text: Any) -> Config:
    """As the servers read it: a text model's fields on top, and where they came from."""
    inner = {"model_type": "gemma3_text", "sliding_window": 1024, **text}
    return {"text_config": inner, "architectures": ["Gemma3ForConditionalGeneration"], **inner}


GEMMA3_12B = gemma3(
    hidden_size=3840, num_hidden_layers=48, num_attention_heads=16, num_key_value_heads=8
)
GEMMA3_4B = gemma3(hidden_size=2560, num_hidden_layers=34)


def test_a_head_is_as_long_as_its_class_says_and_that_is_assumed() -> None:
    """256, not 3,840 // 16 = 240: every sixth of 48 layers keeps all tokens in vLLM."""
    reading = read(GEMMA3_12B, "vllm")
    assert per_token(reading) == 8 * 8 * 2 * 256 * 2 == 65_536
    assert per_token(reading, Keeps.WINDOW) == 40 * 8 * 2 * 256 * 2 == 327_680
    assert window(reading) == 1024
    for term in reading.terms:
        assert isinstance(term.bytes_per_token, Known)
        assert any("head_dim is 256" in why for why in term.bytes_per_token.assuming)
        assert "config0:head_dim" not in term.bytes_per_token.evidence
    assert per_token(read(GEMMA3_12B, "sglang")) == 48 * 8 * 2 * 256 * 2 == 393_216


def test_a_text_model_inside_a_wrapper_has_the_sizes_of_its_class() -> None:
    """8 query and 4 KV heads, which gemma-3-4b's file leaves out."""
    reading = read(GEMMA3_4B, "vllm")
    assert per_token(reading) == 5 * 4 * 2 * 256 * 2 == 20_480
    assert per_token(reading, Keeps.WINDOW) == 29 * 4 * 2 * 256 * 2 == 118_784
    llava = {"model_type": "llama", "text_config": {"model_type": "llama"}}
    assert per_token(read(llava, "vllm")) == 32 * 32 * 2 * 128 * 2 == 524_288


def test_a_file_that_lacks_its_own_sizes_lacks_them() -> None:
    with pytest.raises(LayoutError, match="num_hidden_layers"):
        read({"model_type": "llama", "num_attention_heads": 32, "hidden_size": 4096}, "vllm")


def test_a_null_is_not_absent() -> None:
    assert filled({"model_type": "mistral", "sliding_window": None}) == {
        "model_type": "mistral",
        "sliding_window": None,
    }


def plain(kind: str, **fields: Any) -> Config:
    return {
        "model_type": kind,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_size": 512,
        "head_dim": 64,
        **fields,
    }


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "qwen3_moe", "smollm3"])
def test_windows_that_a_class_leaves_off_are_off(kind: str) -> None:
    reading = read(plain(kind, sliding_window=4096), "vllm")
    assert per_token(reading) == 8 * 4 * 2 * 64 * 2
    assert per_token(reading, Keeps.WINDOW) == 0


def test_mistrals_class_has_a_window_which_vllm_alone_keeps() -> None:
    reading = read(plain("mistral"), "vllm")
    assert (per_token(reading), window(reading)) == (0, 4096)
    assert per_token(read(plain("mistral"), "sglang")) == 8 * 4 * 2 * 64 * 2


def test_llama4s_class_has_chunks() -> None:
    reading = read(plain("llama4_text"), "vllm")
    assert per_token(reading) == 2 * 4 * 2 * 64 * 2
    assert per_token(reading, Keeps.CHUNK) == 6 * 4 * 2 * 64 * 2
    assert window(reading) == 8192


def test_sglang_has_one_pattern_of_llama4s_layers() -> None:
    """srt/configs/model_config.py:2705; vLLM reads no_rope_layers."""
    config = plain(
        "llama4_text",
        no_rope_layers=[1] * 7 + [0],
        architectures=["Llama4ForConditionalGeneration"],
    )
    chunks = {e: per_token(read(config, e), Keeps.CHUNK) for e in ("sglang", "vllm")}
    layer = 4 * 2 * 64 * 2
    assert chunks == {"sglang": 6 * layer, "vllm": 7 * layer}


def test_falcons_class_has_one_kv_head() -> None:
    config = plain("falcon", head_dim=None)
    del config["num_key_value_heads"], config["head_dim"]
    assert per_token(read(config, "vllm")) == 8 * 1 * 2 * 64 * 2


def test_phis_null_is_as_many_as_query_heads() -> None:
    assert per_token(read(plain("phi", num_key_value_heads=None), "vllm")) == 8 * 8 * 2 * 64 * 2


@pytest.mark.parametrize("kind", ["cwm", "granite_swa", "mellum", "muse_glimmer", "smollm3"])
def test_a_pattern_that_nobody_here_knows_is_refused(kind: str) -> None:
    config = plain(kind, sliding_window=128, use_sliding_window=True)
    with pytest.raises(LayoutError, match="layer_types"):
        read(config, "vllm")


def test_sparse_layers_in_types_with_scales_count_none_in_sglang() -> None:
    """pool_configurator.py:476: a byte for each element, and an index in bf16."""
    config = plain(
        "minimax_m3",
        sparse_attention_config={
            "sparse_attention_freq": [0] * 4 + [1] * 4,
            "sparse_disable_index_value": [1] * 8,
            "sparse_index_dim": 128,
        },
    )
    for dtype in ("mxfp8", "nvfp4"):
        reading = read(config, "sglang", dtype=dtype)
        assert per_token(reading) == 8 * 4 * 2 * 64 + 4 * 128 * 2
    assert number(reading.replication) == 1


# A file of each kind that leaves a default out, and what must be said of it.
PLAIN = {
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 1024,
}
LEFT_OUT: list[tuple[Config, str]] = [
    (
        {
            "model_type": "falcon",
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "hidden_size": 1024,
        },
        "multi_query is True",
    ),
    ({**PLAIN, "model_type": "cohere2"}, "sliding_window is 4096"),
    ({**PLAIN, "model_type": "qwen3", "sliding_window": 4096}, "use_sliding_window is False"),
    ({**PLAIN, "model_type": "qwen3"}, "head_dim is 128"),
    (
        {
            **PLAIN,
            "model_type": "glm_moe_dsa",
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "index_head_dim": 128,
        },
        "index_topk is 2048",
    ),
    (
        {
            **PLAIN,
            "architectures": ["VoxtralForConditionalGeneration"],
            "model_type": "llama",
            "text_config": {"model_type": "llama"},
        },
        "head_dim is 128, as in the class of VoxtralForConditionalGeneration",
    ),
]


@pytest.mark.parametrize(
    ("config", "said"), LEFT_OUT, ids=lambda x: x if isinstance(x, str) else ""
)
def test_every_default_is_said_and_no_figure_cites_a_field_that_is_not_there(
    config: Config, said: str
) -> None:
    reading = read(config, "vllm")
    figures = [
        figure
        for term in reading.terms
        for figure in (term.bytes_per_token, term.window_tokens)
        if isinstance(figure, Known)
    ]
    told = {why for figure in figures for why in figure.assuming} | set(reading.assumes)
    assert any(why.startswith(said) for why in told)
    for figure in figures:
        for line in figure.evidence:
            assert line.removeprefix("config0:") in config
