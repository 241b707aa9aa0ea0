"""What holds for every model and placement."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity_core.api.kv_layouts import LayoutReading, Placement
from capacity_core.errors import LayoutError
from capacity_core.values import Known
from capacity_kv_layouts.grouped_query import GroupedQuery
from capacity_kv_layouts.latent import Latent

powers = st.sampled_from([1, 2, 4, 8, 16, 32])
layer_counts = st.integers(1, 200)
dtypes = st.sampled_from([1, 2, 4])
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 999) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


def heads(layers: int, kv_heads: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": kv_heads,
        "head_dim": 64,
    }


def numbers(reading: LayoutReading) -> tuple[int, int]:
    size, replication = reading.bytes_per_token, reading.replication
    assert isinstance(size, Known)
    assert isinstance(replication, Known)
    return int(size.number), int(replication.number)


@given(layers=layer_counts, kv_heads=powers, tensor=powers, dtype_bytes=dtypes)
def test_all_ranks_hold_each_head_as_often_as_replication_says(
    layers: int, kv_heads: int, tensor: int, dtype_bytes: int
) -> None:
    layout, config = GroupedQuery(), heads(layers, kv_heads)
    whole, _ = numbers(layout.read(config, Placement(), dtype_bytes))
    size, copies = numbers(layout.read(config, Placement(attention_tensor=tensor), dtype_bytes))
    assert size * tensor == whole * copies


@given(layers=layer_counts, kv_heads=powers, times=powers)
def test_more_ranks_than_heads_divide_nothing_further(
    layers: int, kv_heads: int, times: int
) -> None:
    layout, config = GroupedQuery(), heads(layers, kv_heads)
    one_head, _ = numbers(layout.read(config, Placement(attention_tensor=kv_heads), 2))
    wider = Placement(attention_tensor=kv_heads * times)
    assert numbers(layout.read(config, wider, 2)) == (one_head, times)


@given(kv_heads=st.integers(1, 64), tensor=st.integers(1, 64))
def test_heads_are_shared_out_evenly_or_refused(kv_heads: int, tensor: int) -> None:
    config, placement = heads(4, kv_heads), Placement(attention_tensor=tensor)
    if kv_heads % tensor == 0 or tensor % kv_heads == 0:
        numbers(GroupedQuery().read(config, placement, 2))
    else:
        with pytest.raises(LayoutError, match=f"{kv_heads} KV heads and {tensor} tensor-parallel"):
            GroupedQuery().read(config, placement, 2)


@given(layers=layer_counts, kv_heads=powers)
def test_more_layers_take_more_bytes(layers: int, kv_heads: int) -> None:
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    for layout in (GroupedQuery(), Latent()):
        fewer, _ = numbers(layout.read({**heads(layers, kv_heads), **latent}, Placement(), 2))
        more, _ = numbers(layout.read({**heads(layers + 1, kv_heads), **latent}, Placement(), 2))
        assert more > fewer


@given(share=st.integers(1, 40), stages=st.integers(1, 8), kv_heads=powers)
def test_the_stages_add_up_to_the_model(share: int, stages: int, kv_heads: int) -> None:
    layout, config = GroupedQuery(), heads(share * stages, kv_heads)
    parts = [
        numbers(layout.read(config, Placement(pipeline=stages, stage=stage), 2))[0]
        for stage in range(stages)
    ]
    assert sum(parts) == numbers(layout.read(config, Placement(), 2))[0]


@given(
    config=st.dictionaries(
        st.sampled_from(
            [*heads(1, 1), "kv_lora_rank", "qk_rope_head_dim", "layer_types", "sliding_window"]
        )
        | st.text(max_size=12),
        anything,
    )
)
def test_any_configuration_gives_a_reading_or_a_refusal(config: dict[str, Any]) -> None:
    for layout in (GroupedQuery(), Latent()):
        if layout.applies(config):
            with contextlib.suppress(LayoutError):
                size, _ = numbers(layout.read(config, Placement(), 2))
                assert size > 0
