"""Bytes of one KV head's key and value of one token in each stored type."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity_core.errors import LayoutError
from capacity_core.values import Unknown
from capacity_kv_layouts.formats import head_of

from .readings import Config, copies, number, per_token, read

PLAIN = ["fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"]
SCALED = [
    "mxfp8",
    "nvfp4",
    "fp4_mx_block16",
    "fp8_per_token_head",
    "int8_per_token_head",
    "int4_per_token_head",
]
PACKED = ["turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"]


def model(**fields: object) -> Config:
    """36 layers with 8 KV heads of 128, as in Qwen3-8B; `fields` replace."""
    return {
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        **fields,
    }


# SGLang 0.5.23 pool_configurator.py:492-530 and fp4_kv_cache_quant_method.py:744, :897; vLLM 0.33.0
# triton_attn.py:308, flashinfer.py:558, quantization/turboquant/config.py:131-176.
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("fp32", (128 + 128) * 4),
        ("bf16", (128 + 128) * 2),
        ("fp16", (128 + 128) * 2),
        ("fp8_e4m3", 128 + 128),
        ("fp8_e5m2", 128 + 128),
        ("mxfp8", (128 + 128) + (128 + 128) // 32),
        ("nvfp4", 2 * (128 // 2 + 128 // 16)),
        ("fp4_mx_block16", 2 * (128 // 2 + 128 // 16)),
        ("fp8_per_token_head", (128 + 4) + (128 + 4)),
        ("int8_per_token_head", (128 + 4) + (128 + 4)),
        ("int4_per_token_head", (128 // 2 + 4) + (128 // 2 + 4)),
        ("turboquant_k8v4", 128 + (128 * 4 // 8 + 4)),
        ("turboquant_4bit_nc", (128 * 4 // 8 + 2) + (128 * 4 // 8 + 4)),
        ("turboquant_k3v4_nc", (128 * 3 // 8 + 2) + (128 * 4 // 8 + 4)),
        ("turboquant_3bit_nc", (128 * 3 // 8 + 2) + (128 * 3 // 8 + 4)),
    ],
    ids=lambda case: case if isinstance(case, str) else None,
)
def test_a_head_of_128(dtype: str, expected: int) -> None:
    head = head_of(dtype, 128, 128)
    assert head is not None
    assert head.bytes == expected


# Computed by running vLLM 0.33.0's TurboQuantConfig on these head dimensions.
@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (64, (100, 70, 62, 54)),
        (80, (124, 86, 76, 66)),
        (96, (148, 102, 90, 78)),
        (112, (172, 118, 104, 90)),
        (192, (292, 198, 174, 150)),
        (256, (388, 262, 230, 198)),
    ],
    ids=lambda case: str(case) if isinstance(case, int) else None,
)
def test_packed_slots_of_other_heads(dim: int, expected: tuple[int, ...]) -> None:
    heads = [head_of(dtype, dim, dim) for dtype in PACKED]
    assert tuple(head.bytes for head in heads if head is not None) == expected


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bf16", (192 + 128) * 2),
        ("fp8_e4m3", 192 + 128),
        ("mxfp8", (192 + 128) + (192 + 128) // 32),
        ("fp8_per_token_head", (192 + 4) + (128 + 4)),
        ("int4_per_token_head", (192 // 2 + 4) + (128 // 2 + 4)),
    ],
    ids=lambda case: case if isinstance(case, str) else None,
)
def test_a_value_shorter_than_its_key(dtype: str, expected: int) -> None:
    head = head_of(dtype, 192, 128)
    assert head is not None
    assert head.bytes == expected


@pytest.mark.parametrize("dtype", ["nvfp4", "fp4_mx_block16"])
def test_sglang_sizes_fp4_values_as_long_as_keys(dtype: str) -> None:
    # fp4_kv_cache_quant_method.py:744 and :897 take head_dim alone: `head_num * (head_dim // 2) *
    # num_layers * 2`, and the same of scales.
    reading = read(model(head_dim=192, v_head_dim=128), "sglang", dtype=dtype)
    assert per_token(reading) == 36 * 8 * 2 * (192 // 2 + 192 // 16)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bf16", 36 * 8 * 512),
        ("fp8_e4m3", 36 * 8 * 256),
        ("mxfp8", 36 * 8 * 264),
        ("nvfp4", 36 * 8 * 144),
        ("int4_per_token_head", 36 * 8 * 136),
        ("turboquant_3bit_nc", 36 * 8 * 102),
    ],
    ids=lambda case: case if isinstance(case, str) else None,
)
def test_a_model_takes_so_many_heads(dtype: str, expected: int) -> None:
    assert per_token(read(model(), dtype=dtype)) == expected
    assert per_token(read(model(), dtype=dtype, tensor=8)) * 8 == expected
    assert per_token(read(model(), dtype=dtype, tensor=16)) * 8 == expected


@pytest.mark.parametrize("dtype", [None, "fp3", "BF16 ", "fp8", "auto"], ids=repr)
def test_an_unknown_type_leaves_the_bytes_unknown_and_the_replication_known(
    dtype: str | None,
) -> None:
    reading = read(model(), dtype=dtype, tensor=16)
    (term,) = reading.terms
    assert isinstance(term.bytes_per_token, Unknown)
    assert (dtype or "dtype") in term.bytes_per_token.why
    assert copies(reading) == 2


@pytest.mark.parametrize("dtype", PLAIN + SCALED + PACKED)
def test_the_figure_says_how_its_type_comes_about(dtype: str) -> None:
    head = head_of(dtype, 128, 64)
    assert head is not None
    assert "128 head_dim" in head.words
    scaled = dtype not in PLAIN
    assert ("scale" in head.words) == scaled


@pytest.mark.parametrize("dtype", ["fp8_ds_mla", "nvfp4_ds_mla"])
def test_rows_of_a_latent_are_no_type_of_heads(dtype: str) -> None:
    assert head_of(dtype, 128, 128) is None


def test_rows_of_a_latent_are_of_one_geometry() -> None:
    # vLLM 0.33.0 mla_attention.py:1386: constants, for 512 + 64.
    latent: Config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }
    assert per_token(read(latent, "vllm", dtype="fp8_ds_mla")) == 4 * 656
    assert per_token(read(latent, "vllm", dtype="nvfp4_ds_mla")) == 4 * 352
    other = {**latent, "kv_lora_rank": 256}
    with pytest.raises(LayoutError, match="512 \\+ 64"):
        read(other, "vllm", dtype="fp8_ds_mla")


dims = st.sampled_from([32, 64, 80, 96, 112, 128, 192, 256, 512])


@given(key=dims, value=dims)
def test_fewer_bits_never_take_more_bytes(key: int, value: int) -> None:
    def size(dtype: str) -> Fraction:
        head = head_of(dtype, key, value)
        assert head is not None
        return head.bytes

    assert size("fp8_e4m3") < size("mxfp8") < size("bf16") < size("fp32")
    assert size("nvfp4") < size("fp8_e4m3") < size("fp8_per_token_head")
    assert size("int4_per_token_head") < size("int8_per_token_head")


@given(dim=dims)
def test_packed_types_are_ordered_by_their_bits_and_even(dim: int) -> None:
    sizes = [head.bytes for dtype in PACKED if (head := head_of(dtype, dim, dim)) is not None]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size % 2 == 0 for size in sizes)


@given(dtype=st.sampled_from(PLAIN + SCALED), dim=dims, tensor=st.sampled_from([1, 2, 4, 8]))
def test_ranks_share_a_scaled_type_evenly(dtype: str, dim: int, tensor: int) -> None:
    whole = per_token(read(model(head_dim=dim), dtype=dtype))
    assert per_token(read(model(head_dim=dim), dtype=dtype, tensor=tensor)) * tensor == whole


@given(dtype=st.text(max_size=12))
def test_any_name_of_a_type_is_known_or_unknown(dtype: str) -> None:
    (term,) = read(model(), dtype=dtype).terms
    if not isinstance(term.bytes_per_token, Unknown):
        assert number(term.bytes_per_token) > 0
