"""bytes_per_full_token of SGLang, release by release.

Expected figures were made by running `DSV4PoolConfigurator` of each release on a CPU; the
arithmetic beside them is the same by hand. SGLang's window share is 0.1 unless said otherwise.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from capacity_core.api.kv_layouts import Keeps, LayoutReading, Placement, Serving
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_TOKEN
from capacity_core.values import Known, Unknown, Value
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
    [0, 0] + [2] * 18 + [1] * 20, model_type="deepseek_v41", kv_source_layer_ids=[2, 8, 14, 20]
)
"""40 layers: three sources of ratio 2 and one of ratio 1."""

MIXED = _model(
    [4] * 9 + [128] * 9 + [1] * 11 + [2] * 11,
    model_type="deepseek_v41",
    kv_source_layer_ids=[18, 20, 29, 31],
)
"""40 layers of no checkpoint: 9 of ratio 4, 9 of 128, two sources each of ratio 1 and 2."""


def _last_stages_take_the_rest(layers: int, stages: int) -> tuple[int, ...]:
    """`get_pp_indices` of SGLang 0.5.23 (srt/distributed/utils.py)."""
    share, left = divmod(layers, stages)
    return tuple(share + (stage >= stages - left) for stage in range(stages))


def stage_of(stages: int, stage: int) -> Placement:
    return Placement(pipeline=stages, stage=stage, split=_last_stages_take_the_rest)


def read(config: dict[str, Any], mode: str | None = "cap", **serving: Any) -> LayoutReading:
    asked = {"dtype": "fp8_e4m3", **serving}
    return DeepSeekV4().read(config, Serving(framework="sglang", sizing_mode=mode, **asked))


def number(value: Value | None) -> Decimal:
    assert isinstance(value, Known)
    return value.number


def per_full_token(config: dict[str, Any], mode: str | None = "cap", **serving: Any) -> Decimal:
    """As the log prints it, with two decimals, unless the figure has more by itself."""
    value = read(config, mode, **serving).pool_bytes_per_token
    assert isinstance(value, Known)
    assert value.unit is BYTES_PER_TOKEN
    return value.number


def printed(figure: Decimal) -> Decimal:
    return figure.quantize(Decimal("0.01"))


def growth(config: dict[str, Any], keeps: Keeps = Keeps.ALL, **serving: Any) -> Decimal:
    terms = read(config, **serving).terms
    return sum((number(term.bytes_per_token) for term in terms if term.keeps is keeps), Decimal(0))


def of_a_request(config: dict[str, Any], **serving: Any) -> dict[str, Decimal]:
    terms = read(config, **serving).terms
    return {
        term.name: number(term.fixed_bytes_per_request)
        for term in terms
        if term.fixed_bytes_per_request is not None
    }


RATIO = "ratio (explicit)"

# ---- 0.5.23, whole models ----


@pytest.mark.parametrize(
    ("config", "variant", "expected"),
    [
        # 21 * (585 + 132) / 4 = 3764.25;  20 * 864 / 128 = 135
        (V4_FLASH, "v4", "3899.25"),
        # 21 * (528 + 132) / 4 = 3465;  20 * 768 / 128 = 120
        (V4_FLASH, "v41", "3585.00"),
        (V4_FLASH, "v41_fp8", "3585.00"),
        # 3465;  20 * 528 / 128 = 82.5: pages of two slots are not padded
        (V4_FLASH, "v41_new", "3547.50"),
        # 21 * (288 + 132) / 4 = 2205;  20 * 384 / 128 = 60
        (V4_FLASH, "v41_fp4", "2265.00"),
        # 30 * (585 + 132) / 4 = 5377.5;  31 * 864 / 128 = 209.25
        (V4_PRO, "v4", "5586.75"),
        # 30 * (528 + 132) / 4 = 4950;  31 * 768 / 128 = 186
        (V4_PRO, "v41", "5136.00"),
        # one source of ratio 1 and three of ratio 2: (slot + 68) * (1 + 3 / 2)
        (V41_FLASH, "v4", "1632.50"),  # (585 + 68) * 2.5
        (V41_FLASH, "v41", "890.00"),  # (288 + 68) * 2.5 = 356 + 534
        (V41_FLASH, "v41_fp4", "890.00"),
        (V41_FLASH, "v41_new", "890.00"),
        (V41_FLASH, "v41_fp8", "1490.00"),  # (528 + 68) * 2.5
    ],
)
def test_cap_mode_divides_by_the_growth_of_a_token(
    config: dict[str, Any], variant: str, expected: str
) -> None:
    assert per_full_token(config, "cap", variant=variant) == Decimal(expected)
    assert growth(config, variant=variant) == Decimal(expected)


@pytest.mark.parametrize(
    ("config", "variant", "in_window", "expected"),
    [
        # The state of ratio 4 for one slot of the window: 8 / 256 * 4 * (4 * 512 + 4 * 128) = 320.
        (V4_FLASH, "v4", 43 * 585 + 21 * 320, "7086.75"),  # 3899.25 + 3187.5
        (V4_FLASH, "v41", 43 * 528 + 21 * 320, "6527.40"),  # 3585 + 2942.4
        (V4_FLASH, "v41_new", 43 * 528 + 21 * 320, "6489.90"),  # 3547.5 + 2942.4
        (V4_FLASH, "v41_fp4", 43 * 528 + 21 * 320, "5207.40"),  # 2265 + 2942.4
        (V4_PRO, "v4", 61 * 585 + 30 * 320, "10115.25"),  # 5586.75 + 4528.5
        (V4_PRO, "v41", 61 * 528 + 30 * 320, "9316.80"),  # 5136 + 4180.8
        (V41_FLASH, "v4", 40 * 585, "3972.50"),  # 1632.5 + 2340
        (V41_FLASH, "v41", 40 * 528, "3002.00"),  # 890 + 2112
        (V41_FLASH, "v41_fp8", 40 * 528, "3602.00"),  # 1490 + 2112
    ],
)
def test_ratio_mode_adds_a_tenth_of_the_window(
    config: dict[str, Any], variant: str, in_window: int, expected: str
) -> None:
    assert growth(config, Keeps.WINDOW, variant=variant) == in_window
    assert per_full_token(config, RATIO, variant=variant) == Decimal(expected)


def test_the_windows_of_both_models_are_those_that_the_engine_counts() -> None:
    """bytes_per_swa_token."""
    windows = [
        growth(config, Keeps.WINDOW, variant=variant)
        for config in (V4_FLASH, V4_PRO, V41_FLASH)
        for variant in ("v4", "v41")
    ]
    assert windows == [31875, 29424, 45285, 41808, 23400, 21120]


def test_v4_is_what_is_stored_unless_another_is_asked_for() -> None:
    for config in (V4_FLASH, V4_PRO, V41_FLASH):
        assert read(config).terms == read(config, variant="v4").terms


def test_a_slot_for_every_layer_is_an_order_of_magnitude_too_much() -> None:
    """890 is neither 288 nor 528 nor either of them for 40 layers."""
    assert per_full_token(V41_FLASH, variant="v41") == Decimal(288 + 68) + 3 * Decimal(288 + 68) / 2
    assert 288 * 40 / Decimal(890) > Decimal("12.9")


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        ("0.2", "10274.25"),  # 3899.25 + 0.2 * 31875
        ("0.05", "5493.00"),  # 3899.25 + 1593.75
        ("1", "35774.25"),  # 3899.25 + 31875
    ],
)
def test_ratio_mode_adds_the_share_that_was_asked_for(share: str, expected: str) -> None:
    assert per_full_token(V4_FLASH, RATIO, window_share=Decimal(share)) == Decimal(expected)


@pytest.mark.parametrize(("version", "mode"), [("0.5.23", RATIO), ("0.5.20", None)])
def test_a_share_that_nobody_said_is_assumed_to_be_the_default(
    version: str, mode: str | None
) -> None:
    """0.5.23 srt/model_executor/pool_configurator.py:1046: 0.1 where none is set. The figure is
    that of a server that was asked for 0.1, which assumes nothing."""
    unsaid = read(V4_FLASH, mode, version=version).pool_bytes_per_token
    asked = read(V4_FLASH, mode, version=version, window_share=Decimal("0.1")).pool_bytes_per_token
    assert isinstance(unsaid, Known)
    assert isinstance(asked, Known)
    assert unsaid.number == asked.number
    assert asked.assuming == ()
    (why,) = unsaid.assuming
    assert "swa_full_tokens_ratio is 0.1" in why


def test_cap_mode_assumes_no_share_of_the_window() -> None:
    value = read(V4_FLASH, "cap").pool_bytes_per_token
    assert isinstance(value, Known)
    assert value.assuming == ()


def test_cap_mode_takes_no_share_of_the_window() -> None:
    assert per_full_token(V4_FLASH, "cap", window_share=Decimal("0.5")) == Decimal("3899.25")


def test_without_a_mode_both_figures_are_named_and_none_is_claimed() -> None:
    value = read(V4_FLASH, None).pool_bytes_per_token
    assert isinstance(value, Unknown)
    assert value.at_least == Decimal("3899.25")
    assert "3,899.25" in value.why
    assert "7,086.75" in value.why
    assert "DSV4 SWA sizing" in value.why


def test_a_unified_pool_is_not_counted_as_pages() -> None:
    """Mode `ring` is the unified pool, whose rows are 1024 B (or 640 B in fp8), not 585
    (pool_configurator.py `_get_paged_kv_bytes_per_token`: `if self._unified: return self.kv_bytes`,
    which is `_unified_row_bytes`): 21 * (1024 + 132) / 4 + 20 * 1024 / 128 = 6229, or in fp8
    21 * (640 + 132) / 4 + 20 * 640 / 128 = 4153."""
    try:
        value = read(V4_FLASH, "ring (paged swa_tokens vestigial)").pool_bytes_per_token
    except LayoutError:
        return
    assert not isinstance(value, Known) or value.number in (6229, 4153)


def test_pages_of_128_tokens_hold_half_the_slots() -> None:
    """32 * 584 = 18,688 is padded to 19,008 = 32 * 594 for ratio 4, and one slot of ratio 128 to
    1,152: 21 * (594 + 132) / 4 + 20 * 1152 / 128 = 3811.5 + 180. Ratio 4 has 8 rows for 128."""
    assert growth(V4_FLASH, page_size=128) == Decimal("3991.5")
    assert growth(V4_FLASH, Keeps.WINDOW, page_size=128) == 43 * 585 + 21 * 640


@pytest.mark.parametrize("page", [1, 64, 200])
def test_a_page_that_is_no_multiple_of_128_is_refused(page: int) -> None:
    """`assert page_size % 128 == 0` in `calculate_pool_sizes`."""
    with pytest.raises(LayoutError, match="multiple of 128"):
        read(V4_FLASH, page_size=page)


# ---- the state of a request ----


def test_the_state_of_ratio_128_is_held_by_requests() -> None:
    """128 rows of 2 * 512 fp32 for each layer."""
    name = "compressor state, ratio 128"
    assert of_a_request(V4_FLASH) == {name: 20 * 128 * 1024 * 4} == {name: 10_485_760}
    assert of_a_request(V4_PRO) == {name: 31 * 128 * 1024 * 4} == {name: 16_252_928}


def test_the_state_of_ratio_2_is_held_by_requests() -> None:
    """2 rows of 2 * 512 fp32 for each source."""
    assert of_a_request(V41_FLASH, variant="v41") == {"compressor state, ratio 2": 3 * 2 * 1024 * 4}
    assert 3 * 2 * 1024 * 4 == 24_576


@pytest.mark.parametrize("version", ["0.5.15", "0.5.20", "0.5.21", "0.5.23"])
def test_since_0_5_15_the_state_of_ratio_128_is_no_part_of_the_window(version: str) -> None:
    assert of_a_request(V4_FLASH, version=version) == {"compressor state, ratio 128": 10_485_760}


def test_before_0_5_15_the_state_of_ratio_128_is_part_of_the_window() -> None:
    """128 rows / 128 tokens * 1024 * 4 * 20 layers = 81,920 beside 43 * 584 and
    8 / 128 * 10,240 * 21 = 13,440."""
    assert of_a_request(V4_FLASH, version="0.5.12") == {}
    assert growth(V4_FLASH, Keeps.WINDOW, version="0.5.12") == 43 * 584 + 13_440 + 81_920


# ---- releases ----

# 0.1 * 584 * 43 = 2511.2;  21 * 584 / 4 = 3066;  20 * 584 / 128 = 91.25;  21 * 132 / 4 = 693;
# state of ratio 4: 0.1 * 8 / 128 * (4 * 512 + 4 * 128) * 4 * 21 = 1344;
# state of ratio 128: 0.1 * 128 / 128 * 2 * 512 * 4 * 20 = 8192
_STATE_AND_ALL = Decimal("2511.2") + 3066 + Decimal("91.25") + 693 + 1344 + 8192
_STATE_IS_FIXED = _STATE_AND_ALL - 8192
_PADDED = Decimal("3187.5") + Decimal("3071.25") + 693 + 135


@pytest.mark.parametrize(
    ("version", "by_hand", "expected"),
    [
        ("0.5.12", _STATE_AND_ALL, "15897.45"),
        ("0.5.15", _STATE_IS_FIXED, "7705.45"),
        ("0.5.18", _STATE_IS_FIXED, "7705.45"),
        ("0.5.19", _STATE_IS_FIXED, "7705.45"),
        ("0.5.20", _STATE_IS_FIXED, "7705.45"),
        ("0.5.21", _PADDED, "7086.75"),
        ("0.5.22", _PADDED, "7086.75"),
        ("0.5.23", _PADDED, "7086.75"),
        (None, _PADDED, "7086.75"),
    ],
)
def test_one_model_has_another_coefficient_in_another_release(
    version: str | None, by_hand: Decimal, expected: str
) -> None:
    assert by_hand == Decimal(expected)
    assert per_full_token(V4_FLASH, RATIO, version=version) == Decimal(expected)


@pytest.mark.parametrize("version", ["0.5.21", "0.5.22", "0.5.23", "0.5.23.post1"])
def test_cap_mode_is_there_since_0_5_21(version: str) -> None:
    assert per_full_token(V4_FLASH, "cap", version=version) == Decimal("3899.25")


@pytest.mark.parametrize(
    ("version", "expected"), [("0.5.12", "15897.45"), ("0.5.15", "7705.45"), ("0.5.20", "7705.45")]
)
def test_before_0_5_21_no_mode_has_to_be_known(version: str, expected: str) -> None:
    """Those releases size by the ratio alone and print no line 'DSV4 SWA sizing'
    (pool_configurator.py `_get_bytes_per_full_token` multiplies by `self.swa_ratio` always)."""
    assert per_full_token(V4_FLASH, None, version=version) == Decimal(expected)


# 40 layers in ratio mode. v41: window 0.1 * (40 * 528 + 9 * 320) = 2400, ratio 4 9 * (132 + 33) =
# 1485, ratio 128 9 * 6 = 54, ratio 1 2 * (288 + 68) = 712, ratio 2 2 * (288 + 68) / 2 = 356.
@pytest.mark.parametrize(
    ("version", "variant", "expected"),
    [
        ("0.5.23", "v41", "5007"),
        ("0.5.23", "v41_fp8", "5727"),  # ratio 1 and 2 at 528 + 68 = 596: 1788, not 1068
        ("0.5.23", "v41_new", "4990.125"),  # ratio 128 at 9 * 528 / 128 = 37.125, not 54
        # 0.1 * (40 * 585 + 2880) = 2628; 9 * 717 / 4 = 1613.25; 9 * 6.75 = 60.75; 3 * 653 = 1959
        ("0.5.23", "v4", "6261"),
        # ratio 1 and 2 at 584 + 68 = 652 whatever the layout: 3 * 652 = 1956, not 1068
        ("0.5.21", "v41", "5895"),
        ("0.5.22", "v41", "5895"),
        ("0.5.21", "v4", "6258"),  # 6261 - 1959 + 1956
    ],
)
def test_both_kinds_of_ratio_in_one_model(version: str, variant: str, expected: str) -> None:
    assert per_full_token(MIXED, RATIO, version=version, variant=variant) == Decimal(expected)


@pytest.mark.parametrize("version", ["0.5.21", "0.5.22"])
def test_two_releases_price_low_ratios_above_what_they_store(version: str) -> None:
    """652 and 326 for each source, where 356 and 178 are stored; the payload stays 288."""
    reading = read(MIXED, RATIO, version=version, variant="v41")
    costs = {
        term.name: number(term.bytes_per_token)
        for term in reading.terms
        if term.bytes_per_token is not None
    }
    assert costs["compressed, ratio 1"] + costs["index keys, ratio 1"] == 2 * 652
    assert costs["compressed, ratio 2"] + costs["index keys, ratio 2"] == 2 * 326
    slots = {term.name: term.slot for term in reading.terms if term.slot is not None}
    assert number(slots["compressed, ratio 2"]) == 288
    priced = next(term for term in reading.terms if term.name == "compressed, ratio 2").steps[1]
    assert "0.5.21" in priced


@pytest.mark.parametrize("version", ["0.5.12", "0.5.15", "0.5.20"])
@pytest.mark.parametrize("variant", ["v41", "v41_fp8", "v41_fp4", "v41_new"])
def test_a_layout_that_a_release_does_not_have_is_refused(version: str, variant: str) -> None:
    """sglang/kernels/ops/attention/dsv4/kv_layout.py is first in 0.5.21; until then
    `kv_bytes` is 448 + 64 * 2 + 8 and nothing else."""
    with pytest.raises(LayoutError, match=variant):
        read(V4_FLASH, RATIO, version=version, variant=variant)


@pytest.mark.parametrize("version", ["0.5.21", "0.5.22"])
def test_interleaved_scales_are_refused_before_0_5_23(version: str) -> None:
    """`KVLayout` of 0.5.21 has V4, V41 and V41_FP4."""
    with pytest.raises(LayoutError, match="v41_new"):
        read(V4_FLASH, RATIO, version=version, variant="v41_new")


@pytest.mark.parametrize("version", ["0.4.9", "0.5.11", "0.5.11.post1"])
@pytest.mark.parametrize("config", [V4_FLASH, V4_PRO])
def test_releases_before_the_model_are_refused(config: dict[str, Any], version: str) -> None:
    """`DSV4PoolConfigurator` is first in 0.5.12; 0.5.10.post1 has no such class."""
    with pytest.raises(LayoutError, match=r"since 0\.5\.12$"):
        read(config, RATIO, version=version)


@pytest.mark.parametrize("version", ["0.5.12", "0.5.15", "0.5.20"])
def test_a_model_that_a_release_does_not_serve_is_refused(version: str) -> None:
    """`kv_source_layer_ids` and the ratios 1 and 2 are first in 0.5.21; before,
    pool_configurator.py counts `r == 4` and `r == 128` alone."""
    with pytest.raises(LayoutError):
        read(V41_FLASH, RATIO, version=version)


# ---- pipeline stages ----


@pytest.mark.parametrize(
    ("config", "variant", "stage", "expected"),
    [
        # layers 0-20: 10 of ratio 4, 9 of ratio 128: 10 * 717 / 4 + 9 * 6.75 = 1853.25, and
        # 0.1 * (21 * 585 + 10 * 320) = 1548.5
        (V4_FLASH, "v4", 0, "3401.75"),
        # layers 21-42: 11 and 11: 11 * 717 / 4 + 11 * 6.75 = 2046, and
        # 0.1 * (22 * 585 + 11 * 320) = 1639
        (V4_FLASH, "v4", 1, "3685.00"),
        (V41_FLASH, "v41", 0, "1590.00"),  # sources 2, 8, 14: 534, and 0.1 * 20 * 528 = 1056
        (V41_FLASH, "v41", 1, "1412.00"),  # source 20: 356, and 1056
    ],
)
def test_a_stage_counts_its_own_layers(
    config: dict[str, Any], variant: str, stage: int, expected: str
) -> None:
    placement = stage_of(2, stage)
    assert per_full_token(config, RATIO, variant=variant, placement=placement) == Decimal(expected)


def test_a_stage_that_owns_nothing_pays_for_its_windows() -> None:
    """Two layers of the window alone on the first stage: the engine sums no caches and
    0.1 * 2 * 585 (`_get_bytes_per_full_token`)."""
    value = per_full_token(_model([0, 0, 4, 128]), RATIO, placement=stage_of(2, 0))
    assert value == Decimal("117")


@pytest.mark.parametrize("stage", [1, 3])
def test_a_cut_inside_layers_that_share_is_refused(stage: int) -> None:
    """V4.1-Flash on four stages: layers 10-13 read layer 8 and layers 30-39 layer 20, which are on
    another. `_init_compressed_layer_mapping` (deepseek_v4_memory_pool.py:1837) looks the source up
    among the stage's own and fails."""
    with pytest.raises(LayoutError, match=r"stage|pipeline|PP|split|share"):
        read(V41_FLASH, RATIO, variant="v41", placement=stage_of(4, stage))


def test_0_5_12_counts_all_layers_on_every_stage() -> None:
    """0.5.12 pool_configurator.py:322 `self.compression_ratios = cfg.compress_ratios`, no slice;
    0.5.15 (:528) has `cfg.compress_ratios[mr.start_layer : mr.end_layer]`."""
    for stage in (0, 1):
        value = per_full_token(V4_FLASH, RATIO, version="0.5.12", placement=stage_of(2, stage))
        assert value == Decimal("15897.45")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.5.12", "15955.85"),  # 44 entries: 15897.45 + 0.1 * 584
        ("0.5.15", "7705.45"),
        ("0.5.23", "7086.75"),
    ],
)
def test_0_5_12_counts_the_ratio_of_the_draft_layer_too(version: str, expected: str) -> None:
    """`num_layers_total = len(self.compression_ratios)`, which 0.5.12 did not cut to the layers."""
    with_draft = {**V4_FLASH, "compress_ratios": [*V4_FLASH["compress_ratios"], 0]}
    assert per_full_token(with_draft, RATIO, version=version) == Decimal(expected)


# ---- speculative decoding ----

# Rings grow to 16 and 256 rows (deepseek_v4_memory_pool.py `get_compress_state_ring_size`), then
# all is multiplied by (43 + 1) / 43 (pool_configurator.py `draft_layers = 1`).
_DRAFT = Fraction(44, 43)


@pytest.mark.parametrize(
    ("version", "by_hand", "expected"),
    [
        # 2511.2 + 3066 + 91.25 + 693 + 2 * 1344 + 2 * 8192 = 25433.45
        ("0.5.12", _STATE_AND_ALL + 1344 + 8192, "26024.93"),
        ("0.5.15", _STATE_IS_FIXED + 1344, "9259.90"),  # 9049.45 * 44 / 43
        ("0.5.20", _STATE_IS_FIXED + 1344, "9259.90"),
        # 3899.25 + 0.1 * (25155 + 21 * 640) = 7758.75
        ("0.5.21", _PADDED + 672, "7939.19"),
        ("0.5.23", _PADDED + 672, "7939.19"),
    ],
)
def test_a_draft_layer_doubles_the_rings_and_raises_everything(
    version: str, by_hand: Decimal, expected: str
) -> None:
    exact = Fraction(by_hand) * _DRAFT
    assert printed(Decimal(exact.numerator) / exact.denominator) == Decimal(expected)
    value = per_full_token(V4_FLASH, RATIO, version=version, draft_layers=1)
    assert printed(value) == Decimal(expected)


def test_in_cap_mode_a_draft_layer_raises_the_growth_alone() -> None:
    """3899.25 * 44 / 43 = 3989.93: the state of ratio 4 is in the fixed part."""
    assert printed(per_full_token(V4_FLASH, "cap", draft_layers=1)) == Decimal("3989.93")


@pytest.mark.parametrize("layers", [1, 3])
def test_however_many_draft_layers_there_are_one_is_counted(layers: int) -> None:
    """`draft_layers = 1` stands in the engine, for DSpark's three too."""
    assert printed(per_full_token(V4_FLASH, "cap", draft_layers=layers)) == Decimal("3989.93")


def test_a_draft_layer_weighs_more_on_a_stage_of_fewer_layers() -> None:
    """1853.25 * 22 / 21: `num_layers_total` is the stage's."""
    value = per_full_token(V4_FLASH, "cap", draft_layers=1, placement=stage_of(2, 0))
    assert value == Decimal("1941.5")


def test_with_a_draft_a_request_holds_256_rows_of_ratio_128() -> None:
    assert of_a_request(V4_FLASH, draft_layers=1) == {
        "compressor state, ratio 128": 20 * 256 * 1024 * 4
    }


def test_with_a_draft_a_request_holds_more_than_two_rows_of_ratio_2() -> None:
    """`1 << (num_draft_tokens + 1).bit_length()`: at least 4 rows, 8 for 4 draft tokens."""
    state = next(
        term.fixed_bytes_per_request
        for term in read(V41_FLASH, variant="v41", draft_layers=1).terms
        if term.name == "compressor state, ratio 2"
    )
    assert state is not None
    low, _ = state.interval
    assert low is None or low >= 3 * 4 * 1024 * 4


def test_with_a_draft_both_modes_are_named_with_the_draft() -> None:
    value = read(V4_FLASH, None, draft_layers=1).pool_bytes_per_token
    assert isinstance(value, Unknown)
    assert "3,989.93" in value.why
    assert "7,939.19" in value.why


# ---- growth and pool ----


@pytest.mark.parametrize("version", ["0.5.21", "0.5.22", "0.5.23"])
@pytest.mark.parametrize("variant", ["v4", "v41"])
@pytest.mark.parametrize("config", [V4_FLASH, V4_PRO, V41_FLASH, MIXED])
def test_the_pool_divides_by_the_sum_of_the_terms(
    config: dict[str, Any], variant: str, version: str
) -> None:
    serving: dict[str, Any] = {"variant": variant, "version": version}
    grows, in_window = growth(config, **serving), growth(config, Keeps.WINDOW, **serving)
    assert per_full_token(config, "cap", **serving) == grows
    assert per_full_token(config, RATIO, **serving) == grows + in_window / 10
