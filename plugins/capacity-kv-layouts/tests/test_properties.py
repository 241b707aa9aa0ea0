"""What holds for every layout, model and placement."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity_core.api.kv_layouts import Keeps, KVLayout, LayoutReading
from capacity_core.errors import LayoutError
from capacity_core.values import Known
from capacity_kv_layouts.grouped_query import GroupedQuery
from capacity_kv_layouts.latent import Latent

from .readings import (
    ENGINES,
    LAYOUTS,
    SPLITS,
    Config,
    claimed_by,
    copies,
    known_values,
    layout_of,
    number,
    per_token,
    read,
    request,
    serving,
    stages,
)

powers = st.sampled_from([1, 2, 4, 8, 16, 32])
layer_counts = st.integers(1, 200)
dtypes = st.sampled_from(["fp8_e4m3", "bf16", "fp32", "mxfp8", "int4_per_token_head"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 999) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)

SHARED: Config = {
    "dtype": "bfloat16",
    "num_hidden_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
LATENT: Config = {**SHARED, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64}
HALF = ["sliding_attention", "full_attention"] * 4
MAMBA: Config = {
    **SHARED,
    "mamba_n_heads": 32,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
DELTA: Config = {
    **SHARED,
    "full_attention_interval": 4,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
MODELS: dict[str, Config] = {
    "grouped-query": {**SHARED, "model_type": "llama"},
    "multi-query": {**SHARED, "model_type": "falcon", "multi_query": True},
    "latent": {**LATENT, "model_type": "deepseek_v3"},
    "latent, two in a layer": {**LATENT, "model_type": "longcat_flash"},
    "latent, expanded in vLLM": {**LATENT, "model_type": "minicpm3"},
    "latent with an index": {
        **LATENT,
        "model_type": "glm_moe_dsa",
        "index_topk": 64,
        "index_head_dim": 128,
        "index_topk_freq": 4,
    },
    "windows in all layers": {**SHARED, "model_type": "mistral", "sliding_window": 128},
    "windows, one pool each": {
        **SHARED,
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "sliding_window": 128,
        "layer_types": HALF,
    },
    "windows with heads of their own": {
        **SHARED,
        "model_type": "mimo_v2_flash",
        "swa_num_key_value_heads": 8,
        "swa_head_dim": 64,
        "v_head_dim": 32,
        "sliding_window": 128,
        "hybrid_layer_pattern": [0, 1] * 4,
    },
    "windows with layers that share": {
        **SHARED,
        "model_type": "gemma4_text",
        "global_head_dim": 128,
        "sliding_window": 128,
        "num_kv_shared_layers": 2,
        "layer_types": HALF,
    },
    "windows, of Cohere": {**SHARED, "model_type": "cohere2", "sliding_window": 128},
    "chunks": {
        **SHARED,
        "model_type": "llama4_text",
        "architectures": ["Llama4ForConditionalGeneration"],
        "attention_chunk_size": 128,
    },
    "by block": {
        **SHARED,
        "model_type": "nemotron-nas",
        "block_configs": [{"attention": {"n_heads_in_group": 2}}, {"attention": {"no_op": True}}]
        * 4,
    },
    "encoder and decoder": {
        "model_type": "whisper",
        "d_model": 512,
        "encoder_layers": 4,
        "decoder_layers": 8,
        "decoder_attention_heads": 8,
        "max_source_positions": 150,
    },
    "cross attention": {**SHARED, "model_type": "mllama", "cross_attention_layers": [1, 5]},
    "sparse index": {
        **SHARED,
        "model_type": "minimax_m3",
        "sparse_attention_config": {"sparse_attention_freq": [0, 1] * 4, "sparse_index_dim": 128},
    },
    "Mamba-2": {
        **SHARED,
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-M*M-M*",
        "mamba_num_heads": 16,
        "mamba_head_dim": 32,
        "n_groups": 2,
        "ssm_state_size": 64,
        "conv_kernel": 4,
    },
    "Mamba-2 and attention": {**MAMBA, "model_type": "falcon_h1", "mamba_d_ssm": 1024},
    "Mamba-2, of Granite": {
        **MAMBA,
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba", "attention"] * 4,
    },
    "Mamba-1": {
        **SHARED,
        "model_type": "jamba",
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "mamba_expand": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
    },
    "attention-free": {
        "model_type": "falcon_mamba",
        "dtype": "bfloat16",
        "num_hidden_layers": 8,
        "intermediate_size": 1024,
        "state_size": 16,
        "conv_kernel": 4,
    },
    "GDN": {**DELTA, "model_type": "qwen3_next"},
    "GDN with a type of its own": {
        **DELTA,
        "model_type": "qwen3_5_text",
        "mamba_ssm_dtype": "float32",
    },
    "KDA": {
        **LATENT,
        "model_type": "kimi_linear",
        "linear_attn_config": {
            "kda_layers": [1, 2, 3, 5, 6, 7],
            "num_heads": 8,
            "head_dim": 32,
            "short_conv_kernel_size": 4,
        },
    },
    "lightning": {**LATENT, "model_type": "bailing_hybrid", "layer_group_size": 4},
    "short convolution": {
        **SHARED,
        "model_type": "lfm2_moe",
        "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention"] * 4,
    },
}
every_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
few = settings(max_examples=20, deadline=None)  # of each model and engine
every_engine = pytest.mark.parametrize("framework", ENGINES)


def reading_of(config: Config, framework: str, **served: Any) -> LayoutReading | None:
    """The reading, or None of a model that the engine does not serve."""
    try:
        return read(config, framework, **served)
    except LayoutError as error:
        if "shared out evenly" in str(error) or "share" in str(error):
            return None  # ranks that do not divide what they share
        with pytest.raises(LayoutError):  # not for this placement: for none
            read(config, framework)
        return None


# --- engines ------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "latent, expanded in vLLM",
        "windows in all layers",
        "windows, one pool each",
        "chunks",
        "by block",
        "encoder and decoder",
        "cross attention",
        "sparse index",
        "Mamba-2",
        "Mamba-1",
        "attention-free",
        "GDN",
        "KDA",
        "lightning",
        "short convolution",
    ],
)
def test_where_engines_differ_a_third_one_is_refused_by_name(name: str) -> None:
    """Its ways stand nowhere here: neither engine's are taken for them."""
    with pytest.raises(LayoutError, match=r"how acme keeps .* is not known"):
        read(MODELS[name], "acme")


@every_model
@every_engine
def test_sources_are_those_of_the_engine_that_serves(config: Config, framework: str) -> None:
    reading = reading_of(config, framework)
    if reading is None:
        return
    own, other = ("SGLang ", "vLLM ") if framework == "sglang" else ("vLLM ", "SGLang ")
    for source in (reading.source, *(term.source for term in reading.terms)):
        assert source is not None
        assert all(part.startswith(own) for part in source.split("; "))
        assert other not in source


def test_without_an_engine_the_sources_of_both_stand_beside_each_other() -> None:
    (term,) = read(MODELS["grouped-query"]).terms
    assert term.source is not None
    assert "SGLang 0.5.23" in term.source
    assert "vLLM 0.33.0" in term.source


# --- every layout -------------------------------------------------------------


def test_every_layout_has_a_model_here() -> None:
    assert {layout.name for layout in LAYOUTS} == {
        layout_of(config).name for config in MODELS.values()
    }


@every_model
def test_every_model_is_claimed_once_and_read_for_an_engine(config: Config) -> None:
    assert len(claimed_by(config)) == 1
    assert any(reading_of(config, framework) for framework in ENGINES)


@every_model
@every_engine
@few
@given(
    tokens=st.integers(0, 400),
    tensor=st.sampled_from([1, 2, 4, 8]),
    dtype=st.sampled_from(["bf16", "fp8_e4m3"]),
)
def test_a_token_more_never_costs_less(
    config: Config, framework: str, tokens: int, tensor: int, dtype: str
) -> None:
    reading = reading_of(config, framework, tensor=tensor, dtype=dtype)
    if reading is not None:
        assert 0 <= request(reading, tokens) <= request(reading, tokens + 1)


@every_model
@every_engine
@few
@given(tokens=st.integers(0, 400), tensor=st.sampled_from([1, 2, 4, 8]))
def test_fp8_never_costs_more_than_bf16(
    config: Config, framework: str, tokens: int, tensor: int
) -> None:
    short = reading_of(config, framework, tensor=tensor, dtype="fp8_e4m3")
    long = reading_of(config, framework, tensor=tensor, dtype="bf16")
    assert (short is None) == (long is None)
    if short is not None and long is not None:
        assert request(short, tokens) <= request(long, tokens)


@every_model
@every_engine
@few
@given(tokens=st.integers(0, 400), tensor=st.sampled_from([1, 2, 4, 8]))
def test_all_ranks_together_hold_at_least_the_whole(
    config: Config, framework: str, tokens: int, tensor: int
) -> None:
    one = reading_of(config, framework)
    many = reading_of(config, framework, tensor=tensor)
    if one is not None and many is not None:
        assert request(many, tokens) * tensor >= request(one, tokens) >= request(many, tokens)
        if isinstance(many.replication, Known):  # else layers differ in their heads
            assert 1 <= copies(many) <= tensor


@every_model
@every_engine
@few
@given(
    tokens=st.integers(0, 400),
    pipeline=st.integers(1, 8),
    tensor=st.sampled_from([1, 2, 4]),
)
def test_the_stages_together_hold_the_whole(
    config: Config, framework: str, tokens: int, pipeline: int, tensor: int
) -> None:
    one = reading_of(config, framework, tensor=tensor)
    if one is not None:
        parts = stages(config, framework, SPLITS[framework], pipeline, tensor=tensor)
        assert sum(request(part, tokens) for part in parts) == request(one, tokens)


@every_model
@every_engine
@few
@given(draft=st.integers(0, 4), tensor=st.sampled_from([1, 2, 4, 8]))
def test_a_draft_never_makes_the_model_itself_cheaper(
    config: Config, framework: str, draft: int, tensor: int
) -> None:
    plain = reading_of(config, framework, tensor=tensor)
    drafted = reading_of(config, framework, tensor=tensor, draft=draft)
    if plain is not None and drafted is not None:
        own = [term for term in drafted.terms if "draft" not in term.name]
        if framework == "vllm" and draft:  # whose states grow with what is drafted
            own, plain_terms = (
                [term for term in terms if term.keeps is not Keeps.STATE]
                for terms in (own, plain.terms)
            )
            assert own == plain_terms
        else:
            assert own == list(plain.terms)


@every_model
@every_engine
@few
@given(tensor=st.sampled_from([1, 2, 4]), context=st.sampled_from([1, 2, 4]))
def test_ranks_that_share_tokens_hold_them_all_together(
    config: Config, framework: str, tensor: int, context: int
) -> None:
    one = reading_of(config, framework, tensor=tensor)
    shared = reading_of(config, framework, tensor=tensor, context=context)
    if one is not None and shared is not None:
        assert per_token(shared) * context >= per_token(one) >= per_token(shared)
        assert per_token(shared, Keeps.WINDOW) == per_token(one, Keeps.WINDOW)


# --- where figures come from ------------------------------------------------------


@every_model
@every_engine
@pytest.mark.parametrize("tensor", [1, 8])
def test_every_term_says_where_it_comes_from(config: Config, framework: str, tensor: int) -> None:
    reading = reading_of(config, framework, tensor=tensor)
    if reading is None:
        return
    assert reading.formula
    assert reading.source
    assert reading.terms
    for term in reading.terms:
        assert term.source
        assert term.layers
        costs = [term.bytes_per_token, term.fixed_bytes_per_request]
        own = [cost for cost in costs if isinstance(cost, Known) and cost.number]
        assert own
        for cost in own:
            assert term.formula or cost.how
            assert cost.evidence


@every_model
@every_engine
def test_every_figure_cites_fields_that_the_file_has(config: Config, framework: str) -> None:
    reading = reading_of(config, framework, tensor=2)
    for value in known_values(reading) if reading else ():
        for cited in value.evidence:
            place, _, field = cited.partition(":")
            assert place == "config0"
            found: Any = config
            for part in field.split("."):
                assert part in found, cited
                found = found[part]


# --- anything as a configuration ----------------------------------------------------

NAMES = sorted({name for config in MODELS.values() for name in config})
KINDS = sorted({str(config["model_type"]) for config in MODELS.values()})
junk = st.dictionaries(
    st.sampled_from(NAMES) | st.text(max_size=12), anything, max_size=12
) | st.builds(
    lambda config, changed: {**config, **changed},
    st.sampled_from(list(MODELS.values())),
    st.dictionaries(st.sampled_from(NAMES), anything | st.sampled_from(KINDS), max_size=3),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@every_engine
@settings(deadline=None)
@given(
    config=junk,
    tensor=st.sampled_from([1, 2, 3, 8]),
    pipeline=st.sampled_from([1, 2, 3]),
    draft=st.sampled_from([0, 1]),
    dtype=st.sampled_from(["bf16", "fp8_e4m3", "nvfp4", None]),
)
def test_any_configuration_that_is_claimed_gives_a_reading_or_a_refusal(
    layout: KVLayout,
    framework: str,
    config: Config,
    tensor: int,
    pipeline: int,
    draft: int,
    dtype: str | None,
) -> None:
    if not layout.applies(config):
        return
    split = SPLITS[framework]
    for stage in range(pipeline):
        placed = {"tensor": tensor, "pipeline": pipeline, "stage": stage, "split": split}
        with contextlib.suppress(LayoutError):
            reading = layout.read(config, serving(framework, dtype=dtype, draft=draft, **placed))
            assert all(value.number >= 0 for value in known_values(reading))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("framework", [None, *ENGINES])
@settings(deadline=None)
@given(config=junk)
def test_any_configuration_that_is_forced_on_a_layout_gives_a_reading_or_a_refusal(
    layout: KVLayout, framework: str | None, config: Config
) -> None:
    # As with --layout.
    with contextlib.suppress(LayoutError):
        layout.read(config, serving(framework))


@settings(deadline=None)
@given(config=junk)
def test_no_configuration_is_claimed_by_two_layouts(config: Config) -> None:
    assert len(claimed_by(config)) <= 1


# --- heads and latents ------------------------------------------------------------


def heads(layers: int, kv_heads: int) -> Config:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": 1024,
        "num_key_value_heads": kv_heads,
        "head_dim": 64,
    }


def numbers(layout: KVLayout, config: Config, **served: Any) -> tuple[Any, int]:
    reading = layout.read(config, serving(**served))
    return per_token(reading), copies(reading)


@given(layers=layer_counts, kv_heads=powers, tensor=powers, dtype=dtypes)
def test_all_ranks_hold_each_head_as_often_as_replication_says(
    layers: int, kv_heads: int, tensor: int, dtype: str
) -> None:
    layout, config = GroupedQuery(), heads(layers, kv_heads)
    whole, _ = numbers(layout, config, dtype=dtype)
    size, times = numbers(layout, config, dtype=dtype, tensor=tensor)
    assert size * tensor == whole * times


@given(layers=layer_counts, kv_heads=powers, times=powers)
def test_more_ranks_than_heads_divide_nothing_further(
    layers: int, kv_heads: int, times: int
) -> None:
    layout, config = GroupedQuery(), heads(layers, kv_heads)
    one_head, _ = numbers(layout, config, tensor=kv_heads)
    assert numbers(layout, config, tensor=kv_heads * times) == (one_head, times)


@given(kv_heads=st.integers(1, 64), tensor=st.integers(1, 64))
def test_heads_are_shared_out_evenly_or_refused(kv_heads: int, tensor: int) -> None:
    config = {**heads(4, kv_heads), "num_attention_heads": 64 * tensor}
    if kv_heads % tensor == 0 or tensor % kv_heads == 0:
        numbers(GroupedQuery(), config, tensor=tensor)
    else:
        with pytest.raises(LayoutError, match=f"{kv_heads} KV heads and {tensor} tensor-parallel"):
            GroupedQuery().read(config, serving(tensor=tensor))


@given(layers=layer_counts, kv_heads=powers)
def test_more_layers_take_more_bytes(layers: int, kv_heads: int) -> None:
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    for layout in (GroupedQuery(), Latent()):
        fewer, _ = numbers(layout, {**heads(layers, kv_heads), **latent})
        more, _ = numbers(layout, {**heads(layers + 1, kv_heads), **latent})
        assert more > fewer


@given(share=st.integers(1, 40), count=st.integers(1, 8), kv_heads=powers)
def test_the_stages_add_up_to_the_model(share: int, count: int, kv_heads: int) -> None:
    layout, config = GroupedQuery(), heads(share * count, kv_heads)
    parts = [numbers(layout, config, pipeline=count, stage=stage)[0] for stage in range(count)]
    assert sum(parts) == numbers(layout, config)[0]


@given(window=st.integers(1, 5000), tokens=st.integers(0, 10000))
def test_a_window_keeps_no_more_than_itself(window: int, tokens: int) -> None:
    config = {**SHARED, "model_type": "mistral", "sliding_window": window}
    reading = read(config, "vllm")
    (term,) = reading.terms
    assert request(reading, tokens) == number(term.bytes_per_token) * min(tokens, window)
