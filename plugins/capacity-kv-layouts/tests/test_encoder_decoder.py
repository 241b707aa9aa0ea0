"""An encoder's output as a second cache (Whisper), and layers of cross attention (mllama)."""

from __future__ import annotations

from typing import Any

import pytest

from capacity_core.api.kv_layouts import Keeps
from capacity_core.errors import LayoutError
from capacity_core.values import Unknown

from .readings import ENGINES, Config, claimed_by, copies, per_token, read, request, state


def whisper(**fields: Any) -> Config:
    """4 encoder and 4 decoder layers, 6 heads of 384 / 6 = 64, as whisper-tiny; `fields`
    replace."""
    return {
        "model_type": "whisper",
        "is_encoder_decoder": True,
        "d_model": 384,
        "encoder_layers": 4,
        "encoder_attention_heads": 6,
        "decoder_layers": 4,
        "decoder_attention_heads": 6,
        "num_hidden_layers": 4,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        **fields,
    }


@pytest.mark.parametrize("tensor", [1, 2, 3, 6])
def test_vllm_keeps_the_decoders_tokens_and_the_encoders(tensor: int) -> None:
    # vLLM 0.33.0 whisper.py: FullAttentionSpec and CrossAttentionSpec in each decoder layer.
    reading = read(whisper(), "vllm", tensor=tensor)
    layer = 6 // tensor * (64 + 64) * 2
    assert per_token(reading) == 4 * layer
    assert state(reading, Keeps.ENCODER) == 1500 * 4 * layer
    assert copies(reading) == 1
    assert request(reading, 10) == (10 + 1500) * 4 * layer


def test_whisper_tiny_as_the_engines_computed_it() -> None:
    vllm = read(whisper(), "vllm")
    assert per_token(vllm) == 4 * 6 * 128 * 2 == 6_144
    assert state(vllm, Keeps.ENCODER) == 1500 * 6_144
    assert per_token(read(whisper(), "sglang")) == (4 + 2 * 4) * 6 * 128 * 2 == 18_432


def test_sglang_prices_every_token_in_encoder_layers_and_twice_the_decoder_layers() -> None:
    # SGLang 0.5.23 srt/configs/model_config.py:1591.
    reading = read(whisper(encoder_layers=6, decoder_layers=2), "sglang")
    assert per_token(reading) == (6 + 2 * 2) * 6 * 128 * 2
    assert all(term.keeps is Keeps.ALL for term in reading.terms)
    assert state(reading, Keeps.ENCODER) == 0


def test_an_unknown_length_of_the_input_leaves_its_cache_unknown() -> None:
    reading = read(whisper(max_source_positions=None), "vllm")
    assert per_token(reading) == 6_144
    (cross,) = (term for term in reading.terms if term.keeps is Keeps.ENCODER)
    assert isinstance(cross.fixed_bytes_per_request, Unknown)
    assert "max_source_positions" in cross.fixed_bytes_per_request.why


def test_an_unknown_type_leaves_both_unknown() -> None:
    reading = read(whisper(), "vllm", dtype=None)
    own, cross = reading.terms
    assert isinstance(own.bytes_per_token, Unknown)
    assert isinstance(cross.fixed_bytes_per_request, Unknown)
    assert copies(reading) == 1


def test_fp8_halves_both() -> None:
    reading = read(whisper(), "vllm", dtype="fp8_e4m3")
    assert per_token(reading) == 4 * 6 * 128
    assert state(reading, Keeps.ENCODER) == 1500 * 4 * 6 * 128


@pytest.mark.parametrize(
    "field", ["decoder_layers", "encoder_layers", "decoder_attention_heads", "d_model"]
)
@pytest.mark.parametrize("framework", ENGINES)
def test_null_fields_are_refused(field: str, framework: str) -> None:
    with pytest.raises(LayoutError):
        read(whisper(**{field: None}), framework)


def test_a_null_d_model_is_refused_by_the_name_that_the_file_has() -> None:
    with pytest.raises(LayoutError, match="d_model"):
        read(whisper(d_model=None), "vllm")


def test_heads_that_do_not_divide_are_refused_by_the_name_that_the_file_has() -> None:
    with pytest.raises(LayoutError, match="6 decoder_attention_heads"):
        read(whisper(), "vllm", tensor=4)


@pytest.mark.parametrize("kind", ["bart", "t5", "speech_to_text", "cohere_asr"])
def test_other_encoders_and_decoders_are_not_claimed(kind: str) -> None:
    assert claimed_by(whisper(model_type=kind)) == []


def mllama(**fields: Any) -> Config:
    """10 layers of which 2 attend to an image, 8 KV heads of 128; `fields` replace."""
    return {
        "model_type": "mllama_text_model",
        "architectures": ["MllamaForConditionalGeneration"],
        "num_hidden_layers": 10,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "cross_attention_layers": [3, 8],
        **fields,
    }


@pytest.mark.parametrize("tensor", [1, 8, 16])
def test_sglang_sizes_cross_attention_like_any_other_layer(tensor: int) -> None:
    reading = read(mllama(), "sglang", tensor=tensor)
    assert per_token(reading) == 10 * max(1, 8 // tensor) * (128 + 128) * 2
    assert copies(reading) == max(1, tensor // 8)


def test_vllm_no_longer_serves_cross_attention_of_this_kind() -> None:
    with pytest.raises(LayoutError, match="vLLM"):
        read(mllama(), "vllm")


@pytest.mark.parametrize("config", [whisper(), mllama()], ids=["Whisper", "mllama"])
def test_each_is_claimed_once_and_needs_an_engine(config: Config) -> None:
    assert len(claimed_by(config)) == 1
    with pytest.raises(LayoutError, match="--framework"):
        read(config)


@pytest.mark.parametrize(
    "fields",
    [{"sliding_window": 128}, {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, {"mamba_d_state": 1}],
    ids=["a window", "a latent", "a state"],
)
def test_cross_attention_beside_another_cache_is_not_claimed(fields: Config) -> None:
    assert claimed_by(mllama(**fields)) == []
