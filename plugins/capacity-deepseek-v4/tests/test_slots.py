"""Slots and pages, against the engine's own arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity_deepseek_v4.slots import (
    SLOT_LAYOUTS,
    V4,
    V41_FP4,
    V41_FP8,
    SlotLayout,
    page_bytes,
    slots_per_page,
)


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
    ],
    ids=["v4", "v41", "v41_fp4"],
)
def test_page_bytes_are_the_engines(layout: SlotLayout, expected: dict[int, int]) -> None:
    assert {slots: page_bytes(layout, slots) for slots in expected} == expected


def test_padding_by_hand() -> None:
    assert 64 * 584 == 37376  # 64.9 times 576
    assert page_bytes(V4, 64) == 65 * 576
    assert 2 * 528 == 1056  # 2.06 times 512
    assert page_bytes(V41_FP8, 2) == 3 * 512


def test_a_page_of_256_tokens_has_fewer_slots_the_more_it_is_compressed() -> None:
    assert [slots_per_page(ratio) for ratio in (1, 2, 4, 128)] == [256, 128, 64, 2]


@pytest.mark.parametrize("ratio", [0, -4, 3, 512])
def test_a_ratio_that_does_not_divide_the_page_is_refused(ratio: int) -> None:
    with pytest.raises(ValueError, match=f"ratio {ratio}"):
        slots_per_page(ratio)


def test_a_page_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        page_bytes(V4, 0)


@given(layout=st.sampled_from(SLOT_LAYOUTS), slots=st.integers(1, 4096))
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
