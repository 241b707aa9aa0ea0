"""Slots and pages, against the engine's own arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity_deepseek_v4.slots import (
    CHOICES,
    V4,
    V41_FP4,
    V41_FP4_INTERLEAVED,
    V41_FP8,
    V41_FP8_INTERLEAVED,
    SlotLayout,
    page_bytes,
    slots_per_page,
)

SLOT_LAYOUTS = (V4, V41_FP8, V41_FP4)
EVERY_LAYOUT = (*SLOT_LAYOUTS, V41_FP8_INTERLEAVED, V41_FP4_INTERLEAVED)


def test_a_slot_is_payload_and_scales() -> None:
    assert [layout.slot_bytes for layout in SLOT_LAYOUTS] == [576 + 8, 512 + 16, 256 + 32]
    assert [layout.slot_bytes for layout in SLOT_LAYOUTS] == [584, 528, 288]


# `KVLayout.page_bytes` of SGLang 0.5.23 (kernels/ops/attention/dsv4/kv_layout.py), run by hand.
@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (V4, {2: 1728, 32: 19008, 64: 37440, 128: 74880, 256: 149760}),
        (V41_FP8, {2: 1536, 32: 16896, 64: 33792, 128: 67584, 256: 135168}),
        (V41_FP4, {2: 768, 32: 9216, 64: 18432, 128: 36864, 256: 73728}),
        (V41_FP8_INTERLEAVED, {2: 1056, 32: 16896, 64: 33792, 128: 67584, 256: 135168}),
        (V41_FP4_INTERLEAVED, {2: 576, 32: 9216, 64: 18432, 128: 36864, 256: 73728}),
    ],
    ids=lambda each: each.name if isinstance(each, SlotLayout) else "",
)
def test_page_bytes_are_the_engines(layout: SlotLayout, expected: dict[int, int]) -> None:
    assert {slots: page_bytes(layout, slots) for slots in expected} == expected


def test_padding_by_hand() -> None:
    assert 64 * 584 == 37376  # 64.9 times 576
    assert page_bytes(V4, 64) == 65 * 576
    assert 2 * 528 == 1056  # 2.06 times 512
    assert page_bytes(V41_FP8, 2) == 3 * 512


def test_a_page_of_two_slots_is_padded_by_a_third_to_a_half() -> None:
    """584 -> 864, 528 -> 768, 288 -> 384 B a slot; scales behind each payload pad nothing."""
    padded = {layout.name: page_bytes(layout, 2) / 2 for layout in EVERY_LAYOUT}
    assert padded == {
        "v4": 3 * 576 / 2,
        "v41": 3 * 512 / 2,
        "v41_fp4": 3 * 256 / 2,
        "v41_new": 528,
        "v41_fp4_new": 288,
    }


def test_a_slot_is_known_by_what_it_is_made_of() -> None:
    """448 fp8 + 64 bf16 and 7 scales with 1 byte of padding; 512 fp8 and a scale for 32; 512 of
    half a byte and a scale for 16."""
    made = {layout.name: (layout.payload_bytes, layout.scale_bytes) for layout in EVERY_LAYOUT}
    assert made["v4"] == (448 + 64 * 2, 448 // 64 + 1)
    assert made["v41"] == made["v41_new"] == (512, 512 // 32)
    assert made["v41_fp4"] == made["v41_fp4_new"] == (512 // 2, 512 // 16)


# `resolve_compressed_kv_layout` of SGLang 0.5.23 (srt/mem_cache/deepseek_v4_memory_pool.py): by
# itself fp4 for ratio 1 and 2 alone, which SGLANG_DSV4_COMPRESSED_KV_LAYOUT overrules for all.
@pytest.mark.parametrize(
    ("choice", "window", "high", "low"),
    [
        ("v4", 584, 584, 584),
        ("v41", 528, 528, 288),
        ("v41_fp8", 528, 528, 528),
        ("v41_fp4", 528, 288, 288),
        ("v41_new", 528, 528, 288),
    ],
)
def test_a_choice_names_the_slot_of_every_cache(
    choice: str, window: int, high: int, low: int
) -> None:
    chosen = CHOICES[choice]
    assert chosen.window.slot_bytes == window
    assert [chosen.of(ratio).slot_bytes for ratio in (4, 128)] == [high, high]
    assert [chosen.of(ratio).slot_bytes for ratio in (1, 2)] == [low, low]


def test_scales_behind_each_payload_are_behind_it_in_every_cache() -> None:
    """`with_interleaved`: the window and both compressed caches are of one kind."""
    chosen = CHOICES["v41_new"]
    assert [chosen.window.page_align, chosen.high.page_align, chosen.low.page_align] == [
        528,
        528,
        288,
    ]


def test_a_page_of_256_tokens_has_fewer_slots_the_more_it_is_compressed() -> None:
    assert [slots_per_page(ratio) for ratio in (1, 2, 4, 128)] == [256, 128, 64, 2]
    assert [slots_per_page(ratio, 128) for ratio in (1, 2, 4, 128)] == [128, 64, 32, 1]


@pytest.mark.parametrize("ratio", [0, -4, 3, 512])
def test_a_ratio_that_does_not_divide_the_page_is_refused(ratio: int) -> None:
    with pytest.raises(ValueError, match=f"ratio {ratio}"):
        slots_per_page(ratio)


def test_a_page_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        page_bytes(V4, 0)


@given(layout=st.sampled_from(EVERY_LAYOUT), slots=st.integers(1, 4096))
def test_a_page_holds_its_slots_and_less_than_one_unit_of_padding(
    layout: SlotLayout, slots: int
) -> None:
    size, stored = page_bytes(layout, slots), slots * layout.slot_bytes
    assert size % layout.page_align == 0
    assert stored <= size < stored + layout.page_align


def _per_token(layout: SlotLayout, ratio: int, index_bytes: int = 0) -> float:
    """What one layer of `ratio` adds to bytes_per_full_token: a padded slot and its index key."""
    slots = slots_per_page(ratio)
    return (page_bytes(layout, slots) / slots + index_bytes) / ratio


def test_slots_add_up_to_what_the_engine_says_of_a_whole_model() -> None:
    """SGLang 0.5.23, cap mode, run by hand: 3899.25 for V4-Flash and 890.00 for V4.1-Flash.

    V4-Flash has 21 layers of ratio 4 with an index and 20 of ratio 128; in V4.1-Flash one layer
    of ratio 1 and three of ratio 2 store for all 38.
    """
    v4_flash = 21 * _per_token(V4, 4, index_bytes=132) + 20 * _per_token(V4, 128)
    v41_flash = _per_token(V41_FP4, 1, index_bytes=68) + 3 * _per_token(V41_FP4, 2, index_bytes=68)
    assert (v4_flash, v41_flash) == (3899.25, 890.0)
