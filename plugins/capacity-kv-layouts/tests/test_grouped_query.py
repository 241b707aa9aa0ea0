"""Bytes, replication and refusals of the grouped-query layout, against arithmetic and engines."""

from __future__ import annotations

from typing import Any

import pytest

from capacity_core.errors import LayoutError
from capacity_core.values import Known, Origin, Unknown
from capacity_kv_layouts.grouped_query import GroupedQuery

from .readings import ENGINES, copies, per_token, serving

LAYOUT = GroupedQuery()


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


def cost(config: dict[str, Any], tensor: int = 1, dtype: str = "bf16") -> int:
    costs = {
        per_token(LAYOUT.read(config, serving(framework, dtype=dtype, tensor=tensor)))
        for framework in (None, *ENGINES)
    }
    (number,) = costs  # the engines agree
    assert number == int(number)
    return int(number)


def held(config: dict[str, Any], tensor: int) -> int:
    return copies(LAYOUT.read(config, serving(tensor=tensor)))


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
    assert cost(model(), dtype="fp8_e4m3") * 2 == cost(model(), dtype="bf16")


# Bytes per token on one GPU as SGLang 0.5.23 (pool_configurator `_cell_size`) and vLLM 0.33.0
# (`get_kv_cache_spec`) computed them when run on these models' configurations; both agree.
@pytest.mark.parametrize(
    ("fields", "tensor", "expected"),
    [
        # MiniMax-M2.5: bf16, TP1 and TP4
        ({"num_hidden_layers": 62, "num_attention_heads": 48, "head_dim": 128}, 1, 253952),
        ({"num_hidden_layers": 62, "num_attention_heads": 48, "head_dim": 128}, 4, 63488),
        # Qwen3-235B-A22B at TP8: 4 KV heads, so twice what plain division by 8 gives
        (
            {
                "num_hidden_layers": 94,
                "num_attention_heads": 64,
                "num_key_value_heads": 4,
                "head_dim": 128,
            },
            8,
            48128,
        ),
    ],
)
def test_equals_what_the_engines_compute(
    fields: dict[str, Any], tensor: int, expected: int
) -> None:
    assert cost(model(**fields), tensor) == expected


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
    assert held(bigcode, 8) == 8
    assert LAYOUT.read(bigcode, serving()).family == "MQA"


def test_the_newer_falcon_decoder_ignores_multi_query() -> None:
    falcon = model(multi_query=True, new_decoder_architecture=True, num_kv_heads=8)
    del falcon["num_key_value_heads"]
    assert cost(falcon) == cost(model())
    assert cost({**falcon, "new_decoder_architecture": False}) * 8 == cost(model())


@pytest.mark.parametrize(
    ("kv_heads", "tensor", "expected"), [(8, 1, 1), (8, 8, 1), (4, 8, 2), (1, 8, 8), (32, 16, 1)]
)
def test_replication(kv_heads: int, tensor: int, expected: int) -> None:
    assert held(model(num_key_value_heads=kv_heads), tensor) == expected


@pytest.mark.parametrize(("kv_heads", "family"), [(32, "MHA"), (8, "GQA"), (1, "MQA")])
def test_family(kv_heads: int, family: str) -> None:
    assert LAYOUT.read(model(num_key_value_heads=kv_heads), serving()).family == family


def test_a_pipeline_stage_holds_its_own_layers() -> None:
    reading = LAYOUT.read(model(), serving(pipeline=2, stage=1))
    assert per_token(reading) == 16 * 8 * (128 + 128) * 2
    assert [term.layers for term in reading.terms] == [16]


def test_the_figure_says_where_it_comes_from() -> None:
    (term,) = LAYOUT.read(model(), serving(tensor=2)).terms
    size = term.bytes_per_token
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
    reading = LAYOUT.read(model(), serving(dtype=None, tensor=16))
    (term,) = reading.terms
    assert isinstance(term.bytes_per_token, Unknown)
    assert "dtype" in term.bytes_per_token.why
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
        cost(model(num_key_value_heads=4, num_attention_heads=24), tensor=6)


@pytest.mark.parametrize("field", ["num_key_value_heads", "num_attention_heads", "head_dim"])
@pytest.mark.parametrize("wrong", [0, -8, True, "8", 8.0, [8, 8]])
def test_what_is_no_number_of_heads_is_refused_by_name(field: str, wrong: object) -> None:
    with pytest.raises(LayoutError, match=rf"{field} is .* not a whole number of at least 1"):
        cost(model(**{field: wrong}))


@pytest.mark.parametrize(
    "field",
    [
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "hidden_size",
        "head_dim",
        "v_head_dim",
    ],
)
def test_a_number_that_no_model_has_is_refused_in_few_words(field: str) -> None:
    """10^400 is a number of JSON, and more than a float or a line of text holds."""
    with pytest.raises(LayoutError, match=f"{field} is 1") as refused:
        cost(model(**{field: 10**400}))
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "field", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size"]
)
def test_absent_and_null_fields_are_refused_by_name(field: str) -> None:
    null, absent = model(**{field: None}), model(model_type="qwen3")
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
        LAYOUT.read(model(num_hidden_layers=61), serving(pipeline=2))


def test_query_heads_that_do_not_divide_are_refused() -> None:
    # vLLM 0.33.0 vllm/config/model.py `verify_with_parallel_config`; SGLang asserts it in `Linear`.
    with pytest.raises(LayoutError, match="28 num_attention_heads cannot be shared out evenly"):
        cost(model(num_attention_heads=28, num_key_value_heads=4), tensor=8)


@pytest.mark.parametrize(
    "name", ["n_head_kv", "num_kv_heads", "multi_query_group_num", "num_attention_groups"]
)
def test_other_names_of_kv_heads(name: str) -> None:
    named = model(**{name: 8})
    del named["num_key_value_heads"]
    assert cost(named) == 32 * 8 * (128 + 128) * 2


def test_the_engines_order_decides_between_two_names() -> None:
    # SGLang 0.5.23 srt/configs/model_config.py: num_kv_heads stands before num_key_value_heads.
    assert cost(model(num_kv_heads=4, num_key_value_heads=8)) == 32 * 4 * (128 + 128) * 2


def test_dbrx_nests_its_kv_heads() -> None:
    # DBRX: 40 layers, 48 heads of 6144 / 48 = 128, 8 KV heads in attn_config. Both engines read
    # them there (SGLang 0.5.23 srt/configs/model_config.py:1653; vLLM 0.33.0
    # vllm/transformers_utils/model_arch_config_convertor.py `DbrxModelArchConfigConvertor`).
    dbrx = {
        "model_type": "dbrx",
        "architectures": ["DbrxForCausalLM"],
        "d_model": 6144,
        "n_heads": 48,
        "n_layers": 40,
        "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
    }
    assert LAYOUT.applies(dbrx)
    assert cost(dbrx) == 40 * 8 * (128 + 128) * 2
