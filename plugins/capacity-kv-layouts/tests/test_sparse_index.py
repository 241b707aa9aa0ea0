"""Index keys: beside a latent (DeepSeek-V3.2, GLM-5) and beside keys and values (MiniMax-M3)."""

from __future__ import annotations

from typing import Any

import pytest

from capacity_core.api.kv_layouts import LayoutReading, Serving
from capacity_core.errors import LayoutError
from capacity_core.values import Unknown
from capacity_kv_layouts.latent import Latent

from .readings import ENGINES, Config, claimed_by, copies, number, per_token, read

ROW = 128 + 128 // 128 * 4
"""An index key of 128 in fp8 with a scale of 4 B: 132 B, whatever the KV type (SGLang 0.5.23
pool_configurator.py:567; vLLM 0.33.0 deepseek_v2.py:637)."""


def latent(**fields: Any) -> Config:
    """A sparse latent model of 8 layers; `fields` replace."""
    return {
        "model_type": "deepseek_v32",
        "architectures": ["DeepseekV32ForCausalLM"],
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 64,
        **fields,
    }


def indexed_layers(reading: Any) -> int:
    return sum(int(term.layers) for term in reading.terms if "index" in term.name)


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize("tensor", [1, 8])
def test_every_rank_holds_latent_and_index_whole(framework: str, tensor: int) -> None:
    reading = read(latent(), framework, tensor=tensor)
    assert per_token(reading) == 8 * (512 + 64) * 2 + 8 * ROW
    assert copies(reading) == tensor
    assert reading.family == "DSA"


@pytest.mark.parametrize(
    ("dtype", "expected"), [("bf16", 78_324), ("fp8_e4m3", 48_068)], ids=["bf16", "fp8"]
)
@pytest.mark.parametrize("framework", ENGINES)
def test_the_61_layers_of_deepseek_v32(framework: str, dtype: str, expected: int) -> None:
    # As both engines' code computed when run. bf16: 61 * 576 * 2 + 61 * 132; fp8 rows hold 512
    # elements, 4 scales of 4 B, and a rotary key of 64 in bf16.
    row = {"bf16": (512 + 64) * 2, "fp8_e4m3": 512 + 4 * 4 + 64 * 2}[dtype]
    assert 61 * row + 61 * ROW == expected
    assert per_token(read(latent(num_hidden_layers=61), framework, dtype=dtype)) == expected


SHARING = {
    # full, full, full, then one in four: 0, 1, 2, 6 (max(i - 3 + 1, 0) % 4 == 0).
    "a frequency with an offset": ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, 4),
    # max(i - 2 + 1, 0) % 2 == 0: 0, 1, 3, 5, 7.
    "a frequency alone": ({"index_topk_freq": 2}, 5),
    "a frequency of one": ({"index_topk_freq": 1}, 8),
    "a pattern": ({"index_topk_pattern": "FFSSFSSS"}, 3),
    "a pattern before a frequency": ({"index_topk_pattern": "FSSSSSSS", "index_topk_freq": 1}, 1),
    "a pattern shorter than the layers": ({"index_topk_pattern": "SS"}, 6),
    "all full": ({"indexer_types": ["full"] * 8, "index_topk_pattern": "F" * 8}, 8),
    "none": ({}, 8),
}


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize(("fields", "layers"), SHARING.values(), ids=SHARING.keys())
def test_layers_that_share_an_index_keep_none(fields: Config, layers: int, framework: str) -> None:
    reading = read(latent(**fields), framework)
    assert indexed_layers(reading) == layers
    assert per_token(reading) == 8 * (512 + 64) * 2 + layers * ROW


def test_a_list_of_indexer_types_is_read_by_sglang() -> None:
    types = ["full", "shared", "shared", "shared", "full", "shared", "shared", "shared"]
    reading = read(latent(indexer_types=types, model_type="glm_moe_dsa"), "sglang")
    assert per_token(reading) == 8 * (512 + 64) * 2 + 2 * ROW


def test_a_list_of_indexer_types_alone_is_not_read_by_vllm() -> None:
    # vLLM 0.33.0 vllm/model_executor/models/deepseek_v2.py:1145 reads index_topk_freq and
    # index_topk_pattern, and deepseek_v32/attention.py:166 the same: every layer has an indexer.
    types = ["full", "shared", "shared", "shared", "full", "shared", "shared", "shared"]
    reading = read(latent(indexer_types=types, model_type="glm_moe_dsa"), "vllm")
    assert per_token(reading) == 8 * (512 + 64) * 2 + 8 * ROW


def test_sglangs_auto_depends_on_the_device() -> None:
    # srt/arg_groups/overrides.py:491: fp8_e4m3 on SM100 and later, else bf16.
    served = Serving(framework="sglang", dtype="bf16", dtype_assumed=True)
    reading = Latent().read(latent(), served)
    assert isinstance(reading.dtype, Unknown)
    main = next(term for term in reading.terms if "index" not in term.name)
    assert isinstance(main.bytes_per_token, Unknown)
    vllm = Latent().read(latent(), Serving(framework="vllm", dtype="bf16", dtype_assumed=True))
    assert per_token(vllm) == 8 * ((512 + 64) * 2 + ROW)


def on_npu(dtype: str | None, framework: str = "sglang", *, auto: bool = False) -> LayoutReading:
    """The 61 layers of DeepSeek-V3.2 on an NPU."""
    served = Serving(framework=framework, dtype=dtype, dtype_assumed=auto, device="npu")
    return Latent().read(latent(num_hidden_layers=61), served)


def index_of(reading: LayoutReading) -> Any:
    (index,) = (term for term in reading.terms if "index" in term.name)
    return index.bytes_per_token


@pytest.mark.parametrize(("dtype", "element"), [("bf16", 2), ("fp16", 2), ("fp8_e5m2", 1)])
def test_npus_of_sglang_keep_the_index_in_the_kv_type(dtype: str, element: int) -> None:
    # srt/model_executor/pool_configurator.py `_get_npu_dsa_indexer_size_per_token`: index_head_dim
    # elements of the KV type, without scales.
    reading = on_npu(dtype)
    assert number(index_of(reading)) == 61 * 128 * element
    assert per_token(reading) == 61 * ((512 + 64) * element + 128 * element)


def test_deepseek_v32_in_bf16_on_npus_of_sglang() -> None:
    # 61 * (1,152 + 256) = 85,888 B, where another device takes 61 * (1,152 + 132) = 78,324.
    assert per_token(on_npu("bf16")) == 61 * (576 * 2 + 128 * 2) == 85_888
    assert per_token(on_npu("bf16", "vllm")) == 61 * (576 * 2 + ROW) == 78_324


def test_in_fp8_npus_keep_the_index_with_its_scales() -> None:
    assert number(index_of(on_npu("fp8_e4m3"))) == 61 * ROW


def test_auto_is_the_models_own_type_on_npus() -> None:
    # srt/arg_groups/overrides.py `_dsa_kv_cache_dtype_default` leaves them alone.
    reading = on_npu("bf16", auto=True)
    assert reading.dtype is None
    assert per_token(reading) == per_token(on_npu("bf16"))


@pytest.mark.parametrize("device", [None, "cuda"])
def test_auto_is_not_known_on_other_devices(device: str | None) -> None:
    served = Serving(framework="sglang", dtype="bf16", dtype_assumed=True, device=device)
    reading = Latent().read(latent(), served)
    assert isinstance(reading.dtype, Unknown)
    assert "device" in reading.dtype.why


@pytest.mark.parametrize("dtype", [None, "nvfp4"])
def test_an_index_of_a_type_that_is_not_known_is_unknown_on_npus(dtype: str | None) -> None:
    cost = index_of(on_npu(dtype))
    assert isinstance(cost, Unknown)
    assert (dtype or "dtype") in cost.why


def test_a_packed_row_of_another_latent_is_refused() -> None:
    with pytest.raises(LayoutError, match="512 \\+ 64"):
        read(latent(kv_lora_rank=256), "vllm", dtype="fp8_e4m3")


def test_sglang_keeps_the_whole_index_on_each_rank_that_shares_tokens() -> None:
    # pool_configurator.py:402: the index is replicated under DCP while the latent shards.
    reading = read(latent(), "sglang", context=2)
    assert per_token(reading) == 8 * (512 + 64) * 2 // 2 + 8 * ROW


def test_vllm_shares_the_tokens_of_the_index_too() -> None:
    # vLLM 0.33.0 deepseek_v2.py:657: the indexer's MLAAttentionSpec leaves dcp_sharded at True
    # (vllm/v1/kv_cache_interface.py:553, :646).
    reading = read(latent(), "vllm", context=2)
    assert per_token(reading) == 8 * (512 + 64) * 2 // 2 + 8 * ROW // 2


def minimax(**fields: Any) -> Config:
    """6 layers, of which the first 2 are dense; `fields` replace those of the section."""
    return {
        "model_type": "minimax_m3",
        "num_hidden_layers": 6,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "sparse_attention_config": {
            "sparse_attention_freq": [0, 0, 1, 1, 1, 1],
            "sparse_index_dim": 128,
            "sparse_disable_index_value": [1, 1, 1, 1, 1, 1],
            **fields,
        },
    }


@pytest.mark.parametrize("framework", ENGINES)
@pytest.mark.parametrize("tensor", [1, 4, 8])
def test_ranks_share_the_heads_of_minimax_and_not_the_index(framework: str, tensor: int) -> None:
    reading = read(minimax(), framework, tensor=tensor)
    held = max(1, 4 // tensor)
    assert per_token(reading) == 6 * 2 * held * 128 * 2 + 4 * 128 * 2
    assert copies(reading) == max(1, tensor // 4)


@pytest.mark.parametrize("framework", ENGINES)
def test_the_index_of_minimax_stays_bf16(framework: str) -> None:
    reading = read(minimax(), framework, dtype="fp8_e4m3")
    assert per_token(reading) == 6 * 2 * 4 * 128 * 1 + 4 * 128 * 2


def test_the_60_layers_of_minimax_m3() -> None:
    # As both engines' code computed: 137,472 B at TP1 and 45,312 B at TP8.
    flags = [0] * 3 + [1] * 57
    config = {**minimax(sparse_attention_freq=flags, sparse_disable_index_value=flags)}
    config |= {"num_hidden_layers": 60, "num_attention_heads": 64}
    assert 60 * 2 * 4 * 128 * 2 + 57 * 128 * 2 == 137_472
    for framework in ENGINES:
        assert per_token(read(config, framework)) == 137_472
        assert per_token(read(config, framework, tensor=8)) == 45_312


def test_index_values_are_kept_by_sglang_where_not_disabled() -> None:
    # pool_configurator.py:477: K and V in sparse layers that are not K-only; vLLM keeps K alone
    # (vllm/models/minimax_m3/common/indexer.py:145).
    mixed = minimax(sparse_disable_index_value=[0, 0, 1, 1, 0, 0])
    main = 6 * 2 * 4 * 128 * 2
    assert per_token(read(mixed, "sglang")) == main + 2 * 128 * 2 + 2 * 2 * 128 * 2
    assert per_token(read(mixed, "vllm")) == main + 4 * 128 * 2


def test_index_values_are_kept_where_nothing_is_said() -> None:
    silent = minimax()
    del silent["sparse_attention_config"]["sparse_disable_index_value"]
    main = 6 * 2 * 4 * 128 * 2
    assert per_token(read(silent, "sglang")) == main + 4 * 2 * 128 * 2
    assert per_token(read(silent, "vllm")) == main + 4 * 128 * 2


def test_the_index_of_minimax_is_a_term_of_its_layers() -> None:
    reading = read(minimax(), "vllm", tensor=2)
    (index,) = (term for term in reading.terms if "index" in term.name)
    assert index.layers == 4
    assert number(index.bytes_per_token) == 4 * 128 * 2


@pytest.mark.parametrize(
    "fields",
    [{"sparse_attention_freq": [0, 1]}, {"sparse_index_dim": None}, {"sparse_index_dim": 0}],
    ids=["a list too short", "no size", "a size of 0"],
)
def test_a_section_that_lacks_something_is_refused(fields: Config) -> None:
    with pytest.raises(LayoutError, match="sparse_"):
        read(minimax(**fields), "vllm")


def test_the_engine_must_be_named() -> None:
    with pytest.raises(LayoutError, match="--framework"):
        read(minimax())


def test_an_index_beside_a_window_is_not_claimed() -> None:
    assert claimed_by({**minimax(), "sliding_window": 128}) == []
    assert claimed_by(latent(sliding_window=128)) == []
    assert claimed_by(latent(model_type="glm5_next", index_kpool=2)) == []
