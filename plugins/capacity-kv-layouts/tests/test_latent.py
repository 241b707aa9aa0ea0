"""Bytes, replication and refusals of the latent layout."""

from __future__ import annotations

from typing import Any

import pytest

from capacity_core.api.kv_layouts import Placement
from capacity_core.errors import LayoutError
from capacity_core.values import Known, Unknown
from capacity_kv_layouts.latent import Latent

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
    ("dtype_bytes", "expected"), [(2, 61 * (512 + 64) * 2), (2, 70272), (1, 35136)]
)
@pytest.mark.parametrize("tensor", [1, 8, 16])
def test_every_rank_holds_the_whole_latent(tensor: int, dtype_bytes: int, expected: int) -> None:
    reading = Latent().read(DEEPSEEK_V3, Placement(attention_tensor=tensor), dtype_bytes)
    assert isinstance(reading.bytes_per_token, Known)
    assert reading.bytes_per_token.number == expected
    assert isinstance(reading.replication, Known)
    assert reading.replication.number == tensor


def test_a_pipeline_stage_holds_its_own_layers() -> None:
    config = {**DEEPSEEK_V3, "num_hidden_layers": 60}
    reading = Latent().read(config, Placement(pipeline=2, stage=1), 2)
    assert isinstance(reading.bytes_per_token, Known)
    assert reading.bytes_per_token.number == 30 * (512 + 64) * 2


def test_the_figure_says_where_it_comes_from() -> None:
    size = Latent().read(DEEPSEEK_V3, Placement(), 2).bytes_per_token
    assert isinstance(size, Known)
    assert size.how == "61 layers * (512 kv_lora_rank + 64 qk_rope_head_dim) * 2 B"
    assert size.evidence == (
        "config0:num_hidden_layers",
        "config0:kv_lora_rank",
        "config0:qk_rope_head_dim",
    )


def test_without_a_dtype_only_the_bytes_are_unknown() -> None:
    reading = Latent().read(DEEPSEEK_V3, Placement(attention_tensor=8), None)
    assert isinstance(reading.bytes_per_token, Unknown)
    assert isinstance(reading.replication, Known)
    assert reading.replication.number == 8


@pytest.mark.parametrize("field", ["num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim"])
def test_null_fields_are_refused_by_name(field: str) -> None:
    with pytest.raises(LayoutError, match=f"{field} is null"):
        Latent().read({**DEEPSEEK_V3, field: None}, Placement(), 2)
