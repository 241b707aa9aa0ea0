"""Bytes, replication and refusals of the latent layout."""

from __future__ import annotations

from typing import Any

import pytest

from capacity_core.errors import LayoutError
from capacity_core.values import Known, Unknown
from capacity_kv_layouts.latent import Latent

from .readings import ENGINES, copies, per_token, serving

DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}


# 70,272 and 35,136: what SGLang 0.5.23 and vLLM 0.33.0 computed for DeepSeek-V3 and Kimi-K2 when
# their code was run on the configuration.
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("bf16", 61 * (512 + 64) * 2), ("bf16", 70272), ("fp8_e4m3", 35136)],
)
@pytest.mark.parametrize("tensor", [1, 8, 16])
@pytest.mark.parametrize("framework", [None, *ENGINES])
def test_every_rank_holds_the_whole_latent(
    framework: str | None, tensor: int, dtype: str, expected: int
) -> None:
    reading = Latent().read(DEEPSEEK_V3, serving(framework, dtype=dtype, tensor=tensor))
    assert per_token(reading) == expected
    assert copies(reading) == tensor
    assert reading.family == "MLA"


def test_a_pipeline_stage_holds_its_own_layers() -> None:
    config = {**DEEPSEEK_V3, "num_hidden_layers": 60}
    assert per_token(Latent().read(config, serving(pipeline=2, stage=1))) == 30 * (512 + 64) * 2


def test_the_figure_says_where_it_comes_from() -> None:
    (term,) = Latent().read(DEEPSEEK_V3, serving()).terms
    size = term.bytes_per_token
    assert isinstance(size, Known)
    assert size.how == "61 layers * (512 kv_lora_rank + 64 qk_rope_head_dim) * 2 B"
    assert set(size.evidence) == {
        "config0:num_hidden_layers",
        "config0:kv_lora_rank",
        "config0:qk_rope_head_dim",
    }


def test_without_a_dtype_only_the_bytes_are_unknown() -> None:
    reading = Latent().read(DEEPSEEK_V3, serving(dtype=None, tensor=8))
    (term,) = reading.terms
    assert isinstance(term.bytes_per_token, Unknown)
    assert copies(reading) == 8


@pytest.mark.parametrize("field", ["num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim"])
def test_null_fields_are_refused_by_name(field: str) -> None:
    with pytest.raises(LayoutError, match=f"{field} is null"):
        Latent().read({**DEEPSEEK_V3, field: None}, serving())


def test_longcat_flash_has_two_attentions_in_a_layer() -> None:
    # SGLang 0.5.23 srt/configs/model_config.py:1583; vLLM 0.33.0
    # vllm/model_executor/models/longcat_flash.py:267.
    config = {
        "model_type": "longcat_flash",
        "num_layers": 28,
        "num_attention_heads": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }
    for framework in ENGINES:
        reading = Latent().read(config, serving(framework))
        assert per_token(reading) == 2 * 28 * (512 + 64) * 2


MINICPM3: dict[str, Any] = {
    "model_type": "minicpm3",
    "num_hidden_layers": 62,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
}


def test_minicpm3_is_latent_in_sglang_and_expanded_in_vllm() -> None:
    sglang = Latent().read(MINICPM3, serving("sglang", tensor=2))
    assert per_token(sglang) == 62 * (256 + 32) * 2
    assert copies(sglang) == 2
    # vLLM 0.33.0 vllm/model_executor/models/minicpm3.py:72: keys and values of nope + rope.
    vllm = Latent().read(MINICPM3, serving("vllm", tensor=2))
    assert per_token(vllm) == 62 * (40 // 2) * 2 * (64 + 32) * 2
    assert copies(vllm) == 1


def test_minicpm3_needs_a_framework() -> None:
    with pytest.raises(LayoutError, match="--framework"):
        Latent().read(MINICPM3, serving())
