"""What the layout claims, what it refuses, and what holds for every configuration."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import capacity_deepseek_v4
from capacity_core.api.kv_layouts import CacheTerm, Keeps, LayoutReading, Placement, Serving
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_REQUEST, BYTES_PER_SLOT, BYTES_PER_TOKEN
from capacity_core.values import Known, Origin, Unknown
from capacity_deepseek_v4.layout import DeepSeekV4
from capacity_deepseek_v4.slots import CHOICES

V4: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "sliding_window": 128,
    "compress_ratios": [0, 4, 128, 4],
}
V41: dict[str, Any] = {
    **V4,
    "model_type": "deepseek_v41_text",
    "compress_ratios": [0, 2, 2, 1],
    "kv_source_layer_ids": [1, 3],
}


def read(config: dict[str, Any], framework: str | None = "sglang", **serving: Any) -> LayoutReading:
    asked = {"dtype": "fp8_e4m3", "sizing_mode": "cap", **serving}
    return DeepSeekV4().read(config, Serving(framework=framework, **asked))


def term(reading: LayoutReading, name: str) -> CacheTerm:
    return next(each for each in reading.terms if each.name == name)


def number(value: object) -> Decimal:
    assert isinstance(value, Known)
    return value.number


# ---- claims ----


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


def test_the_plugin_contributes_the_layout() -> None:
    assert capacity_deepseek_v4.capacity_kv_layouts() == (DeepSeekV4(),)


def test_every_choice_of_slots_can_be_asked_for() -> None:
    slots = ("v4", "v41", "v41_fp8", "v41_fp4", "v41_new")
    assert DeepSeekV4().variants == (*slots, "v4+mxfp4", "v41+mxfp4", "v41_fp4+mxfp4")


def test_the_family_and_the_fields_it_rests_on() -> None:
    v4, v41 = read(V4), read(V41)
    assert (v4.family, v41.family) == ("DeepSeek-V4", "DeepSeek-V4.1")
    sizes = ("config0:num_hidden_layers", "config0:sliding_window", "config0:index_head_dim")
    assert v4.replication.evidence == ("config0:compress_ratios", *sizes)
    assert v41.replication.evidence == (
        "config0:kv_source_layer_ids",
        "config0:compress_ratios",
        *sizes,
    )


# ---- slots ----


def test_three_slots_each_with_its_sum_and_its_use() -> None:
    """V4 stores 584 B for ratio 4; asked for v41 it stores 528 B, and V4.1 288 B."""
    values = [
        term(read(V4), "compressed, ratio 4").slot,
        term(read(V4, variant="v41"), "compressed, ratio 4").slot,
        term(read(V41, variant="v41"), "compressed, ratio 1").slot,
    ]
    slots = [slot for slot in values if isinstance(slot, Known)]
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


@pytest.mark.parametrize(
    ("framework", "dtype"),
    [("sglang", None), ("vllm", None), ("vllm", "fp8_ds_mla")],
)
def test_the_name_of_the_fp8_type_changes_no_figure(framework: str, dtype: str | None) -> None:
    named, other = read(V4, framework, dtype="fp8_e4m3"), read(V4, framework, dtype=dtype)
    assert other.terms == named.terms
    assert other.pool_bytes_per_token == named.pool_bytes_per_token


@pytest.mark.parametrize(("framework", "stored"), [("sglang", "fp8_e4m3"), ("vllm", "fp8_ds_mla")])
def test_auto_stores_fp8_whatever_the_model_s_own_type(framework: str, stored: str) -> None:
    """SGLang 0.5.23 srt/arg_groups/overrides.py `_deepseek_v4_kv_cache_dtype`; vLLM 0.33.0
    vllm/models/deepseek_v4/attention.py `_resolve_dsv4_kv_cache_dtype`."""
    reading = read(V4, framework, dtype="bf16", dtype_assumed=True)
    assert isinstance(reading.dtype, Known)
    assert reading.dtype.amount == stored
    assert reading.terms == read(V4, framework).terms


def test_a_type_that_was_asked_for_is_not_repeated() -> None:
    assert read(V4, dtype="fp8_e4m3").dtype is None


# ---- steps ----


def _in_order(words: tuple[str, ...], *parts: str) -> None:
    for step, part in zip(words, parts, strict=True):
        assert part in step, f"{part!r} is not in {step!r}"


def test_a_compressed_cache_goes_from_payload_to_page_to_owners_to_growth() -> None:
    """V4: 2 of 4 layers have ratio 4. 64 * 584 = 37,376, padded to 65 * 576 = 37,440, / 64 = 585.
    2 * 585 / 4 = 292.5 for a token."""
    compressed = term(read(V4), "compressed, ratio 4")
    heads = [step.partition(":")[0] for step in compressed.steps]
    assert heads == ["payload", "page", "owners", "growth"]
    _in_order(compressed.steps, "576 payload + 8 scales", "37,440 B", "2 of 4 layers", "585 B / 4")
    assert "584 B" in compressed.steps[0]
    assert "64 slots * 584 B" in compressed.steps[1]
    assert "585 B a slot" in compressed.steps[1]
    assert "a slot holds 4 tokens" in compressed.steps[2]
    assert number(compressed.bytes_per_token) == Decimal("292.5")
    assert compressed.layers == 2


def test_only_sources_own_what_layers_of_ratio_2_read() -> None:
    """V4.1: layers 1 and 2 have ratio 2, layer 1 is the source. 288 / 2 = 144."""
    compressed = term(read(V41, variant="v41"), "compressed, ratio 2")
    assert "1 of 4 layers" in compressed.steps[2]
    assert compressed.layers == 1
    assert number(compressed.bytes_per_token) == 144


def test_index_keys_go_from_key_to_growth() -> None:
    """128 fp8 and 128 / 128 scales of 4 B = 132; 2 layers * 132 / 4 = 66."""
    keys = term(read(V4), "index keys, ratio 4")
    assert [step.partition(":")[0] for step in keys.steps] == ["key", "growth"]
    _in_order(keys.steps, "128 fp8 + 128 / 128 * 4 scales", "2 layers * 132 B / 4 tokens")
    assert number(keys.bytes_per_token) == 66


def test_the_window_goes_from_payload_to_page_to_what_it_costs_meanwhile() -> None:
    """256 * 584 = 149,504, padded to 260 * 576 = 149,760, / 256 = 585; 4 layers * 585 = 2,340."""
    window = term(read(V4), "sliding window")
    _in_order(window.steps, "payload: 576 payload + 8 scales", "page: 256 slots", "4 layers")
    assert "149,760 B" in window.steps[1]
    assert window.keeps is Keeps.WINDOW
    assert number(window.window_tokens) == 128
    assert number(window.bytes_per_token) == 2340


# ---- refusals ----


@pytest.mark.parametrize(
    ("field", "other"), [("head_dim", 256), ("qk_rope_head_dim", 128), ("head_dim", None)]
)
def test_a_latent_of_another_shape_is_refused_by_name(field: str, other: int | None) -> None:
    with pytest.raises(LayoutError, match=f"{field} is {other}"):
        read({**V4, field: other})


@pytest.mark.parametrize("framework", ["sglang", "vllm"])
@pytest.mark.parametrize(
    "field", ["index_head_dim", "sliding_window", "num_hidden_layers", "compress_ratios"]
)
def test_a_field_that_is_missing_is_refused_by_name(framework: str, field: str) -> None:
    config = {name: said for name, said in V4.items() if name != field}
    with pytest.raises(LayoutError, match=field):
        read({**config, "kv_source_layer_ids": [1]}, framework)


@pytest.mark.parametrize("said", ["128", True, 0, -1, 128.0, [128]])
def test_a_number_that_is_none_is_refused_by_name(said: object) -> None:
    with pytest.raises(LayoutError, match="index_head_dim"):
        read({**V4, "index_head_dim": said})


def test_low_ratios_without_sources_are_refused() -> None:
    with pytest.raises(LayoutError, match="kv_source_layer_ids"):
        read({**V41, "kv_source_layer_ids": None})


@pytest.mark.parametrize("ratio", [3, 8, 64, -4])
def test_a_ratio_that_no_engine_reads_is_refused(ratio: int) -> None:
    with pytest.raises(LayoutError, match=f"compress_ratios has {ratio},"):
        read({**V4, "compress_ratios": [0, 4, ratio, 4]})


@pytest.mark.parametrize("ratios", [[0, 4, 128, "4"], [0, 4, True, 4], "0448", {"0": 4}])
def test_ratios_that_are_no_numbers_are_refused(ratios: object) -> None:
    with pytest.raises(LayoutError, match="compress_ratios"):
        read({**V4, "compress_ratios": ratios})


def test_fewer_ratios_than_layers_are_refused() -> None:
    with pytest.raises(LayoutError, match="compress_ratios has 3 entries for 4 layers"):
        read({**V4, "compress_ratios": [0, 4, 128]})


def test_ratios_of_draft_layers_after_the_last_layer_count_nothing() -> None:
    assert read({**V4, "compress_ratios": [0, 4, 128, 4, 0, 0]}) == read(V4)


@pytest.mark.parametrize("framework", ["sglang", "vllm"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8_e5m2", "int8"])
def test_a_type_with_other_slots_is_refused_by_name(framework: str, dtype: str) -> None:
    with pytest.raises(LayoutError, match=dtype):
        read(V4, framework, dtype=dtype)


def test_without_a_framework_nothing_is_counted() -> None:
    with pytest.raises(LayoutError, match="--framework"):
        read(V4, None)


def test_a_framework_that_nobody_wrote_down_is_refused_by_name() -> None:
    """Neither engine's rules are taken for a third one's."""
    with pytest.raises(LayoutError, match="tgi"):
        read(V4, "tgi")


@pytest.mark.parametrize("variant", ["v41_fp8", "v41_new", "v41_fp8+mxfp4"])
def test_slots_that_vllm_does_not_store_are_refused_by_their_name(variant: str) -> None:
    """vllm/models/deepseek_v41/attention.py knows 584, 528 and 288 B and no other."""
    with pytest.raises(LayoutError, match=f"no slots {variant.removesuffix('+mxfp4')}:"):
        read(V41, "vllm", variant=variant)


def test_where_no_slots_are_asked_for_none_are_said_to_be_unknown() -> None:
    with pytest.raises(LayoutError) as refused:
        read(V41, "vllm")
    assert "no slots" not in str(refused.value)
    assert "None" not in str(refused.value)


# ---- what every figure rests on ----


@pytest.mark.parametrize(
    ("framework", "release", "counted"),
    [("sglang", "0.5.23", "SGLang 0.5.23"), ("vllm", "0.33.0", "vLLM 0.33.0")],
)
def test_without_a_release_the_reading_says_which_it_is_counted_as(
    framework: str, release: str, counted: str
) -> None:
    unsaid, said = read(V4, framework), read(V4, framework, version=release)
    (why,) = unsaid.assumes
    assert counted in why
    assert said.assumes == ()
    assert (said.terms, said.pool_bytes_per_token) == (unsaid.terms, unsaid.pool_bytes_per_token)


@pytest.mark.parametrize("framework", ["sglang", "vllm"])
@pytest.mark.parametrize("ratios", [[0, 4, 128, 4], [0, 0, 0, 0]], ids=["caches", "windows alone"])
def test_every_figure_cites_the_sizes_of_the_configuration(
    framework: str, ratios: list[int]
) -> None:
    """Layers, window and index key decide what a rank holds, whatever the ratios."""
    reading = read({**V4, "compress_ratios": ratios}, framework)
    figures = [
        figure
        for each in reading.terms
        for figure in (
            each.bytes_per_token,
            each.window_tokens,
            each.fixed_bytes_per_request,
            each.slot,
        )
        if figure is not None
    ]
    sizes = {"config0:num_hidden_layers", "config0:sliding_window", "config0:index_head_dim"}
    for figure in (*figures, reading.replication, reading.pool_bytes_per_token):
        assert figure is not None
        assert sizes <= set(figure.evidence)


def test_what_vllm_divides_by_is_unknown_where_no_layer_owns_a_cache_that_grows() -> None:
    """Nothing but windows: 0 B for a token would say that any number of them fit."""
    reading = read({**V4, "compress_ratios": [0, 0, 0, 0]}, "vllm")
    assert [each.keeps for each in reading.terms] == [Keeps.WINDOW]
    assert isinstance(reading.pool_bytes_per_token, Unknown)
    assert "no layer of this stage" in reading.pool_bytes_per_token.why


def test_what_vllm_divides_by_is_that_of_the_stage() -> None:
    """Two stages of two layers; the first owns nothing. The second has a layer of ratio 4, with
    64 * 584 padded to 65 * 576 and 64 * 132 padded to 15 * 576, and one of ratio 128, with
    2 * 584 padded to 3 * 576: 83 * 576 = 47,808 B for 256 tokens."""
    config = {**V4, "compress_ratios": [0, 0, 4, 128]}
    first, second = (
        read(config, "vllm", placement=Placement(pipeline=2, stage=stage)).pool_bytes_per_token
        for stage in (0, 1)
    )
    assert isinstance(first, Unknown)
    assert number(second) == Decimal((65 + 15 + 3) * 576) / 256


# ---- what holds for all ----


@pytest.mark.parametrize("tensor", [1, 8, 16])
def test_every_rank_holds_the_one_latent(tensor: int) -> None:
    replication = read(V4, placement=Placement(attention_tensor=tensor)).replication
    assert isinstance(replication, Known)
    assert replication.number == tensor


@pytest.mark.parametrize(
    ("config", "framework", "variant"),
    [
        *((config, "sglang", variant) for config in (V4, V41) for variant in CHOICES),
        (V4, "vllm", None),
        *((V41, "vllm", variant) for variant in ("v4", "v41", "v41_fp4")),
    ],
)
@pytest.mark.parametrize("tensor", [2, 16])
def test_tensor_parallel_changes_nothing_but_the_copies(
    config: dict[str, Any], framework: str, variant: str | None, tensor: int
) -> None:
    alone = read(config, framework, variant=variant)
    split = read(config, framework, variant=variant, placement=Placement(attention_tensor=tensor))
    assert split.terms == alone.terms
    assert split.pool_bytes_per_token == alone.pool_bytes_per_token
    assert number(alone.replication) == 1
    assert number(split.replication) == tensor


@st.composite
def models(draw: st.DrawFn, low: bool | None = None) -> dict[str, Any]:
    """8 layers of V4 (ratio 0, 4, 128) or of V4.1 (ratio 0, 1, 2, of which some are sources). The
    last layer owns a cache, so that a whole model always grows. In V4.1 every layer finds a source
    of its ratio below it on the same of two stages, as both engines require."""
    is_low = draw(st.booleans()) if low is None else low
    ratios = draw(
        st.lists(st.sampled_from([0, 1, 2] if is_low else [0, 4, 128]), min_size=7, max_size=7)
    )
    ratios.append(draw(st.sampled_from([1, 2] if is_low else [4, 128])))
    config = {**V4, "num_hidden_layers": 8, "compress_ratios": ratios}
    if not is_low:
        return config
    sources: list[int] = []
    for layer, ratio in enumerate(ratios):
        reads = sources[-1] if sources else None
        if ratio and (
            reads is None
            or ratios[reads] != ratio
            or (reads < 4 <= layer)
            or layer == 7
            or draw(st.booleans())
        ):
            sources.append(layer)
    return {**config, "model_type": "deepseek_v41", "kv_source_layer_ids": sources}


def _sums(reading: LayoutReading) -> dict[Keeps, Decimal]:
    """What a token costs, by which tokens are kept, and what a request costs."""
    sums = dict.fromkeys(Keeps, Decimal(0))
    for each in reading.terms:
        fixed = each.fixed_bytes_per_request
        sums[each.keeps] += number(each.bytes_per_token) if fixed is None else number(fixed)
    return sums


@given(config=models(), stages=st.sampled_from([2, 4, 8]), variant=st.sampled_from([*CHOICES]))
def test_stages_add_up_to_the_whole(config: dict[str, Any], stages: int, variant: str) -> None:
    stages = 2 if "kv_source_layer_ids" in config else stages
    asked = {"variant": variant, "sizing_mode": "ratio (explicit)"}
    whole = _sums(read(config, **asked))
    parts = [
        _sums(read(config, **asked, placement=Placement(pipeline=stages, stage=stage)))
        for stage in range(stages)
    ]
    assert {keeps: sum(part[keeps] for part in parts) for keeps in Keeps} == whole


@given(config=models(), version=st.sampled_from(["0.5.21", "0.5.23"]))
def test_smaller_slots_never_cost_more(config: dict[str, Any], version: str) -> None:
    """584, then 528 everywhere, then 288 where it is the default, then 288 in all compressed
    caches. (0.5.21 and 0.5.22 price ratio 1 and 2 alike, which is no more either.)"""
    for keeps in (Keeps.ALL, Keeps.WINDOW):
        costs = [
            _sums(read(config, variant=variant, version=version))[keeps]
            for variant in ("v4", "v41_fp8", "v41", "v41_fp4")
        ]
        assert costs == sorted(costs, reverse=True)


@given(config=models())
def test_scales_behind_each_payload_never_cost_more(config: dict[str, Any]) -> None:
    block_split, interleaved = (_sums(read(config, variant=v)) for v in ("v41", "v41_new"))
    assert all(interleaved[keeps] <= block_split[keeps] for keeps in Keeps)


@given(config=models(low=False))
def test_padding_never_lessens_the_growth(config: dict[str, Any]) -> None:
    """SGLang counts pages with their padding since 0.5.21."""
    before, since = (_sums(read(config, version=v))[Keeps.ALL] for v in ("0.5.20", "0.5.21"))
    assert before <= since


@given(config=models(), framework=st.sampled_from(["sglang", "vllm"]))
def test_every_term_says_how_and_where_the_engine_counts_it(
    config: dict[str, Any], framework: str
) -> None:
    low = "kv_source_layer_ids" in config
    variant = "v41" if low else "v4"
    reading = read(config, framework, variant=variant)
    assert reading.terms
    engine = {"sglang": "SGLang 0.5.23", "vllm": "vLLM 0.33.0"}[framework]
    for each in reading.terms:
        assert each.formula
        assert each.source is not None
        assert engine in each.source
        if each.keeps is Keeps.STATE:
            assert each.bytes_per_token is None
        else:
            assert isinstance(each.bytes_per_token, Known)
            assert each.bytes_per_token.unit is BYTES_PER_TOKEN
            assert each.bytes_per_token.origin is Origin.THEORETICAL
            assert "config0:compress_ratios" in each.bytes_per_token.evidence
        if each.fixed_bytes_per_request is not None:
            assert isinstance(each.fixed_bytes_per_request, Known)
            assert each.fixed_bytes_per_request.unit is BYTES_PER_REQUEST
        if each.keeps is Keeps.WINDOW:
            assert isinstance(each.window_tokens, Known)
    assert len({each.name for each in reading.terms}) == len(reading.terms)


@given(config=models(), framework=st.sampled_from(["sglang", "vllm"]))
def test_every_layer_has_a_window_and_owners_alone_a_compressed_cache(
    config: dict[str, Any], framework: str
) -> None:
    low = "kv_source_layer_ids" in config
    reading = read(config, framework, variant="v41" if low else "v4")
    ratios, sources = config["compress_ratios"], config.get("kv_source_layer_ids", range(8))
    owned = {
        each.name: each.layers for each in reading.terms if each.name.startswith("compressed,")
    }
    expected = {
        f"compressed, ratio {ratio}": sum(ratios[i] == ratio for i in sources)
        for ratio in (1, 2, 4, 128)
    }
    assert owned == {name: layers for name, layers in expected.items() if layers}
    assert term(reading, "sliding window").layers == 8
