"""What the layout says of a configuration, and what it leaves unknown."""

from __future__ import annotations

from typing import Any

import pytest

import capacity_deepseek_v4
from capacity_core.api.kv_layouts import Placement
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_SLOT, BYTES_PER_TOKEN
from capacity_core.values import Known, Origin, Unknown
from capacity_deepseek_v4.layout import DeepSeekV4

V4: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "sliding_window": 128,
    "compress_ratios": [0, 4, 128, 4],
}
V41: dict[str, Any] = {
    **V4,
    "model_type": "deepseek_v41_text",
    "compress_ratios": [0, 2, 2, 1],
    "kv_source_layer_ids": [1, 3],
}


@pytest.mark.parametrize("config", [V4, V41, {**V41, "model_type": "deepseek_v41"}])
def test_v4_and_v41_are_claimed(config: dict[str, Any]) -> None:
    assert DeepSeekV4().applies(config)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "deepseek_v3"},
        {"model_type": "deepseek_v32"},
        {"compress_ratios": None},
        {"compress_ratios": []},
    ],
)
def test_others_are_not_claimed(fields: dict[str, Any]) -> None:
    assert not DeepSeekV4().applies({**V4, **fields})


def test_three_slots_each_with_its_sum_and_its_use() -> None:
    terms = DeepSeekV4().read(V4, Placement(), 1).terms
    slots = [term.slot for term in terms if isinstance(term.slot, Known)]
    assert [(int(slot.number), slot.how) for slot in slots] == [
        (584, "576 payload + 8 scales"),
        (528, "512 payload + 16 scales"),
        (288, "256 payload + 32 scales"),
    ]
    assert {slot.unit for slot in slots} == {BYTES_PER_SLOT}
    assert {slot.origin for slot in slots} == {Origin.THEORETICAL}
    default, fp8, fp4 = (" ".join(slot.assuming) for slot in slots)
    assert "default" in default
    assert "V4.1" in default
    for use in (fp8, fp4):
        assert "SM100" in use
        assert "no log line" in use


@pytest.mark.parametrize("dtype_bytes", [None, 1, 2])
def test_bytes_per_token_are_unknown_whatever_the_dtype(dtype_bytes: int | None) -> None:
    reading = DeepSeekV4().read(V41, Placement(), dtype_bytes)
    for value in (reading.bytes_per_token, *(term.bytes_per_token for term in reading.terms)):
        assert isinstance(value, Unknown)
        assert value.unit is BYTES_PER_TOKEN
        assert "bytes_per_full_token" in value.why
        assert (value.at_least, value.at_most) == (None, None)


@pytest.mark.parametrize("tensor", [1, 8, 16])
def test_every_rank_holds_the_one_latent(tensor: int) -> None:
    replication = DeepSeekV4().read(V4, Placement(attention_tensor=tensor), 1).replication
    assert isinstance(replication, Known)
    assert replication.number == tensor


def test_the_family_and_the_fields_it_rests_on() -> None:
    v4, v41 = (DeepSeekV4().read(config, Placement(), 1) for config in (V4, V41))
    assert (v4.family, v41.family) == ("DeepSeek-V4", "DeepSeek-V4.1")
    assert v4.replication.evidence == ("config0:compress_ratios",)
    assert v41.replication.evidence == (
        "config0:kv_source_layer_ids",
        "config0:compress_ratios",
    )


@pytest.mark.parametrize(
    ("field", "other"), [("head_dim", 256), ("qk_rope_head_dim", 128), ("head_dim", None)]
)
def test_a_latent_of_another_shape_is_refused_by_name(field: str, other: int | None) -> None:
    with pytest.raises(LayoutError, match=f"{field} is {other}"):
        DeepSeekV4().read({**V4, field: other}, Placement(), 1)


def test_the_plugin_contributes_the_layout() -> None:
    assert capacity_deepseek_v4.capacity_kv_layouts() == (DeepSeekV4(),)
