"""Bytes, replication and refusals of the grouped-query layout, against arithmetic and engines."""

from __future__ import annotations

from typing import Any

import pytest

from capacity_core.api.kv_layouts import Placement
from capacity_core.errors import LayoutError
from capacity_core.values import Known, Origin, Unknown
from capacity_kv_layouts.grouped_query import GroupedQuery

LAYOUT = GroupedQuery()
BF16, FP8 = 2, 1


def model(**fields: Any) -> dict[str, Any]:
    """A GQA model of 32 layers with 8 KV heads of 128, as in Llama 3.1 8B; `fields` replace."""
    return {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        **fields,
    }


def cost(config: dict[str, Any], tensor: int = 1, dtype_bytes: int = BF16) -> int:
    reading = LAYOUT.read(config, Placement(attention_tensor=tensor), dtype_bytes)
    assert isinstance(reading.bytes_per_token, Known)
    return int(reading.bytes_per_token.number)


def copies(config: dict[str, Any], tensor: int) -> int:
    reading = LAYOUT.read(config, Placement(attention_tensor=tensor), BF16)
    assert isinstance(reading.replication, Known)
    return int(reading.replication.number)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (1, 32 * 8 * (128 + 128) * 2),
        (2, 32 * 4 * (128 + 128) * 2),
        (8, 32 * 1 * (128 + 128) * 2),
        (16, 32 * 1 * (128 + 128) * 2),
    ],
)
def test_tensor_parallel_divides_heads_until_one_is_left(tensor: int, expected: int) -> None:
    assert cost(model(), tensor) == expected


def test_head_dim_defaults_to_hidden_size_over_heads() -> None:
    assert cost(model()) == cost(model(head_dim=4096 // 32)) == cost(model(head_dim=None))


def test_kv_channels_are_a_head_dim() -> None:
    assert cost(model(kv_channels=64)) == 32 * 8 * (64 + 64) * 2


def test_value_heads_may_be_shorter_than_keys() -> None:
    assert cost(model(head_dim=192, v_head_dim=128)) == 32 * 8 * (192 + 128) * 2


def test_fp8_takes_half() -> None:
    assert cost(model(), dtype_bytes=FP8) * 2 == cost(model(), dtype_bytes=BF16)


# Bytes per token on one GPU as SGLang 0.5.23 (pool_configurator `_cell_size`) and vLLM 0.33.0
# (`get_kv_cache_spec`) computed them when run on these models' configurations; both agree.
@pytest.mark.parametrize(
    ("fields", "tensor", "dtype_bytes", "expected"),
    [
        # MiniMax-M2.5: bf16, TP1 and TP4
        ({"num_hidden_layers": 62, "num_attention_heads": 48, "head_dim": 128}, 1, 2, 253952),
        ({"num_hidden_layers": 62, "num_attention_heads": 48, "head_dim": 128}, 4, 2, 63488),
        # Qwen3-235B-A22B at TP8: 4 KV heads, so twice what plain division by 8 gives
        (
            {
                "num_hidden_layers": 94,
                "num_attention_heads": 64,
                "num_key_value_heads": 4,
                "head_dim": 128,
            },
            8,
            2,
            48128,
        ),
    ],
)
def test_equals_what_the_engines_compute(
    fields: dict[str, Any], tensor: int, dtype_bytes: int, expected: int
) -> None:
    assert cost(model(**fields), tensor, dtype_bytes) == expected


def test_multi_query_has_one_head_on_every_rank() -> None:
    bigcode = {
        "model_type": "gpt_bigcode",
        "n_layer": 40,
        "n_embd": 6144,
        "n_head": 48,
        "multi_query": True,
    }
    # 20,480 at any TP: as both engines compute for a GPTBigCode model of this shape.
    assert [cost(bigcode, tensor) for tensor in (1, 8)] == [40 * 1 * (128 + 128) * 2] * 2
    assert copies(bigcode, 8) == 8
    assert LAYOUT.read(bigcode, Placement(), BF16).family == "MQA"


def test_the_newer_falcon_decoder_ignores_multi_query() -> None:
    falcon = model(multi_query=True, new_decoder_architecture=True, num_kv_heads=8)
    del falcon["num_key_value_heads"]
    assert cost(falcon) == cost(model())
    assert cost({**falcon, "new_decoder_architecture": False}) * 8 == cost(model())


@pytest.mark.parametrize(
    ("kv_heads", "tensor", "expected"), [(8, 1, 1), (8, 8, 1), (4, 8, 2), (1, 8, 8), (32, 16, 1)]
)
def test_replication(kv_heads: int, tensor: int, expected: int) -> None:
    assert copies(model(num_key_value_heads=kv_heads), tensor) == expected


@pytest.mark.parametrize(("kv_heads", "family"), [(32, "MHA"), (8, "GQA"), (1, "MQA")])
def test_family(kv_heads: int, family: str) -> None:
    assert LAYOUT.read(model(num_key_value_heads=kv_heads), Placement(), BF16).family == family


def test_a_pipeline_stage_holds_its_own_layers() -> None:
    reading = LAYOUT.read(model(), Placement(pipeline=2, stage=1), BF16)
    assert isinstance(reading.bytes_per_token, Known)
    assert reading.bytes_per_token.number == 16 * 8 * (128 + 128) * 2
    assert [term.layers for term in reading.terms] == [16]


def test_the_figure_says_where_it_comes_from() -> None:
    size = LAYOUT.read(model(), Placement(attention_tensor=2), BF16).bytes_per_token
    assert isinstance(size, Known)
    assert size.origin is Origin.THEORETICAL
    assert size.how == "32 layers * 4 KV heads * (128 head_dim + 128 v_head_dim) * 2 B"
    assert set(size.evidence) == {
        "config0:num_hidden_layers",
        "config0:num_key_value_heads",
        "config0:hidden_size",
        "config0:num_attention_heads",
    }


def test_without_a_dtype_only_the_bytes_are_unknown() -> None:
    reading = LAYOUT.read(model(), Placement(attention_tensor=16), None)
    assert isinstance(reading.bytes_per_token, Unknown)
    assert "dtype" in reading.bytes_per_token.why
    assert isinstance(reading.replication, Known)
    assert reading.replication.number == 2
    heads = [each for each in reading.replication.operands if isinstance(each, Known)]
    assert [(each.name, int(each.number)) for each in heads] == [
        ("num_key_value_heads", 8),
        ("kv_heads_per_rank", 1),
    ]


def test_heads_that_do_not_divide_are_refused_with_both_numbers() -> None:
    with pytest.raises(LayoutError, match="6 KV heads and 4 tensor-parallel ranks"):
        cost(model(num_key_value_heads=6, num_attention_heads=24), tensor=4)
    with pytest.raises(LayoutError, match="4 KV heads and 6 tensor-parallel ranks"):
        cost(model(num_key_value_heads=4), tensor=6)


@pytest.mark.parametrize("field", ["num_key_value_heads", "num_attention_heads", "head_dim"])
@pytest.mark.parametrize("wrong", [0, -8, True, "8", 8.0, [8, 8]])
def test_what_is_no_number_of_heads_is_refused_by_name(field: str, wrong: object) -> None:
    with pytest.raises(LayoutError, match=rf"{field} is .* not a whole number of at least 1"):
        cost(model(**{field: wrong}))


@pytest.mark.parametrize(
    "field", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size"]
)
def test_absent_and_null_fields_are_refused_by_name(field: str) -> None:
    null, absent = model(**{field: None}), model()
    del absent[field]
    assert LAYOUT.applies(null)
    assert LAYOUT.applies(absent)
    with pytest.raises(LayoutError, match=f"{field} is null"):
        cost(null)
    with pytest.raises(LayoutError, match=f"has no {field}"):
        cost(absent)


def test_stages_of_different_length_are_refused() -> None:
    # SGLang gives the odd layer to the last stage, vLLM to the first of two: not in the file.
    with pytest.raises(LayoutError, match="61 layers do not divide into 2"):
        LAYOUT.read(model(num_hidden_layers=61), Placement(pipeline=2), BF16)
