"""Bytes per token of vLLM 0.33.0: what a token adds, and what a block takes with its padding.

Expected figures were made by running the planner of 0.33.0 on a CPU (bytes of one block of 256
tokens); the arithmetic beside them is the same by hand.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from capacity_core.api.kv_layouts import CacheTerm, Keeps, LayoutReading, Placement, Serving
from capacity_core.errors import LayoutError
from capacity_core.values import Known, Value
from capacity_deepseek_v4.layout import DeepSeekV4


def _model(ratios: list[int], **fields: Any) -> dict[str, Any]:
    return {
        "model_type": "deepseek_v4",
        "num_hidden_layers": len(ratios),
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
        "sliding_window": 128,
        "compress_ratios": ratios,
        **fields,
    }


V4_FLASH = _model([0, 0] + [4, 128] * 20 + [4])
"""43 layers: 2 of the window alone, 21 of ratio 4, 20 of ratio 128."""

V4_PRO = _model([128] + [4, 128] * 30)
"""61 layers: 30 of ratio 4, 31 of ratio 128."""

V41_FLASH = _model(
    [0, 0] + [2] * 18 + [1] * 20,
    model_type="deepseek_v41",
    kv_source_layer_ids=[2, 8, 14, 20],
    index_source_layer_ids=[2, 8, 14, 20],
)
"""40 layers: three sources of ratio 2 and one of ratio 1."""


def read(config: dict[str, Any], **serving: Any) -> LayoutReading:
    return DeepSeekV4().read(config, Serving(framework="vllm", **{"dtype": "fp8_e4m3", **serving}))


def number(value: Value | None) -> Decimal:
    assert isinstance(value, Known)
    return value.number


def growth(reading: LayoutReading) -> Decimal:
    return sum(
        (number(term.bytes_per_token) for term in reading.terms if term.keeps is Keeps.ALL),
        Decimal(0),
    )


def term(reading: LayoutReading, name: str) -> CacheTerm:
    return next(each for each in reading.terms if each.name == name)


@pytest.mark.parametrize(
    ("config", "variant", "unpadded", "block"),
    [
        # 21 * (584 + 132) / 4 + 20 * 584 / 128 = 3759 + 91.25. In a block of 256 tokens ratio 4 has
        # 37,440 + 8,640 B (64 * 132 = 8,448 is padded to 15 * 576), ratio 128 1,728:
        # 21 * 46,080 + 20 * 1,728 = 1,002,240
        (V4_FLASH, None, "3850.25", 1_002_240),
        # 30 * 716 / 4 + 31 * 4.5625 = 5370 + 141.4375;  30 * 46,080 + 31 * 1,728 = 1,435,968
        (V4_PRO, None, "5511.4375", 1_435_968),
        # (288 + 68) * 2.5 = 890;  640 slots * 356 = 227,840, padded to 72 * lcm(528, 288) = 3,168
        (V41_FLASH, "v41_fp4+mxfp4", "890", 228_096),
        # (288 + 132) * 2.5 = 1050;  640 * 420 = 268,800, padded to 85 * 3,168
        (V41_FLASH, "v41_fp4", "1050", 269_280),
        # (528 + 68) * 2.5 = 1490;  640 * 596 = 381,440, padded to 723 * 528
        (V41_FLASH, "v41+mxfp4", "1490", 381_744),
        # (528 + 132) * 2.5 = 1650;  640 * 660 = 422,400 = 800 * 528
        (V41_FLASH, "v41", "1650", 422_400),
        # 21 * 652 / 4 + 91.25;  64 * 68 = 4,352 padded to 8 * 576: 21 * 42,048 + 20 * 1,728
        (V4_FLASH, "v4+mxfp4", "3514.25", 917_568),
        # (584 + 132) * 2.5 = 1790;  149,760 + 3 * 74,880 of latents, and of keys 33,984 (256 * 132
        # = 33,792 padded to 59 * 576) + 3 * 17,280 (128 * 132 = 16,896 padded to 30 * 576)
        (V41_FLASH, "v4", "1790", 460_224),
    ],
    ids=[
        "v4-flash",
        "v4-pro",
        "v41-nvfp4-mxfp4",
        "v41-nvfp4",
        "v41-fp8-mxfp4",
        "v41-fp8",
        "v4-flash-mxfp4",
        "v41-v4",
    ],
)
def test_what_a_token_adds_and_what_its_block_takes(
    config: dict[str, Any], variant: str | None, unpadded: str, block: int
) -> None:
    reading = read(config, variant=variant)
    assert growth(reading) == Decimal(unpadded)
    assert number(reading.pool_bytes_per_token) == Decimal(block) / 256


def test_padding_of_whole_models_by_hand() -> None:
    """The figures above as bytes per token."""
    pools = [
        number(read(config, variant=variant).pool_bytes_per_token)
        for config, variant in (
            (V4_FLASH, None),
            (V4_PRO, None),
            (V41_FLASH, "v41_fp4+mxfp4"),
            (V41_FLASH, "v41+mxfp4"),
            (V41_FLASH, "v4"),
        )
    ]
    assert pools == [
        Decimal("3915.00"),
        Decimal("5609.25"),
        Decimal("891.00"),
        Decimal("1491.1875"),
        Decimal("1797.75"),
    ]


@pytest.mark.parametrize(
    ("variant", "slot", "with_fp8_keys"),
    [("v41", 528, "1650"), ("v41_fp4", 288, "1050")],  # (slot + 132) * 2.5
)
def test_index_keys_are_fp8_unless_mxfp4_was_asked_for(
    variant: str, slot: int, with_fp8_keys: str
) -> None:
    """config/attention.py `indexer_kv_dtype = "auto"`, v1/attention/backends/mla/indexer.py:62
    `resolve_indexer_kv_dtype("fp8")`: on SM100 as well."""
    assert Decimal(slot + 132) * 5 / 2 == Decimal(with_fp8_keys)
    assert growth(read(V41_FLASH, variant=variant)) == Decimal(with_fp8_keys)


def test_nvfp4_names_the_slots_by_itself() -> None:
    named, asked = read(V41_FLASH, dtype="nvfp4_ds_mla"), read(V41_FLASH, variant="v41_fp4")
    assert named.terms == asked.terms
    assert number(named.pool_bytes_per_token) == Decimal("1051.875")


@pytest.mark.parametrize("variant", ["v4", "v41"])
def test_nvfp4_stores_no_other_slots(variant: str) -> None:
    """vllm/models/deepseek_v41/attention.py: `compressed_bytes_per_token = 288 if
    self.kv_cache_dtype == "nvfp4_ds_mla"`, and off SM100 it raises."""
    with pytest.raises(LayoutError):
        read(V41_FLASH, dtype="nvfp4_ds_mla", variant=variant)


def test_the_sliding_window_stays_fp8_beside_compressed_fp4() -> None:
    window = term(read(V41_FLASH, variant="v41_fp4"), "sliding window")
    assert number(window.bytes_per_token) == 40 * 528
    assert number(window.window_tokens) == 128


def test_windows_and_states_of_v4_are_caches_of_their_own() -> None:
    """vllm/models/deepseek_v4/compressor.py: fp32 rows of 2048 + 512 over a window of 8 for ratio
    4, of 1024 over a window of 128 for ratio 128."""
    reading = read(V4_FLASH)
    window = term(reading, "sliding window")
    assert number(window.bytes_per_token) == 43 * 584
    assert number(window.window_tokens) == 128
    four, many = (term(reading, f"compressor state, ratio {ratio}") for ratio in (4, 128))
    assert number(four.bytes_per_token) == 21 * (2048 + 512) * 4
    assert number(four.window_tokens) == 8
    assert number(many.bytes_per_token) == 20 * 1024 * 4
    assert number(many.window_tokens) == 128
    assert {four.keeps, many.keeps, window.keeps} == {Keeps.WINDOW}


def test_the_state_of_ratio_2_is_a_ring_of_eight_rows() -> None:
    """CircularBufferSpec: 8 * 1024 * 4 for each of three sources."""
    state = term(read(V41_FLASH, variant="v41"), "compressor state, ratio 2")
    assert state.keeps is Keeps.STATE
    assert number(state.fixed_bytes_per_request) == 8 * 1024 * 4 * 3 == 98_304


# ---- refusals ----


def test_v41_is_refused_until_its_slots_are_named() -> None:
    with pytest.raises(LayoutError, match="--layout v41"):
        read(V41_FLASH)


@pytest.mark.parametrize("variant", ["v41_fp8", "v41_new"])
def test_slots_of_the_other_engine_are_refused(variant: str) -> None:
    with pytest.raises(LayoutError, match="--layout"):
        read(V41_FLASH, variant=variant)


@pytest.mark.parametrize("variant", ["v41", "v41_fp8", "v41_fp4", "v41_new"])
def test_v4_has_no_slots_but_its_own(variant: str) -> None:
    with pytest.raises(LayoutError, match=f"584 B alone, no {variant}"):
        read(V4_FLASH, variant=variant)


def test_v4_has_no_nvfp4() -> None:
    with pytest.raises(LayoutError):
        read(V4_FLASH, dtype="nvfp4_ds_mla")


@pytest.mark.parametrize("page", [16, 64])
def test_a_block_that_ratio_128_does_not_divide_is_refused(page: int) -> None:
    with pytest.raises(LayoutError):
        read(V4_FLASH, page_size=page)


def test_v41_with_ratios_of_v4_is_refused() -> None:
    """vllm/models/deepseek_v41/attention.py:326: "only 0 (sliding window), 1 and 2 are
    supported"."""
    ratios = [0, 0] + [4] * 9 + [2] * 9 + [1] * 20
    mixed = {**V41_FLASH, "compress_ratios": ratios, "kv_source_layer_ids": [11, 20]}
    with pytest.raises(LayoutError):
        read(mixed, variant="v41")


@pytest.mark.parametrize("stage", [1, 3])
def test_a_cut_inside_layers_that_share_is_refused(stage: int) -> None:
    """vllm/models/deepseek_v41/attention.py:611: "PP splits inside a v4.1 kv-sharing group are not
    supported": layers 10-13 read layer 8, layers 30-39 read layer 20."""
    with pytest.raises(LayoutError, match=r"stage|pipeline|PP|split|share"):
        read(V41_FLASH, variant="v41", placement=Placement(pipeline=4, stage=stage))


@pytest.mark.parametrize("stage", [0, 1])
def test_a_cut_between_layers_that_share_is_read(stage: int) -> None:
    """Two stages of 20 layers: the second begins with a source. 3 * 420 / 2 and 420."""
    reading = read(V41_FLASH, variant="v41_fp4", placement=Placement(pipeline=2, stage=stage))
    assert growth(reading) == (630, 420)[stage]
