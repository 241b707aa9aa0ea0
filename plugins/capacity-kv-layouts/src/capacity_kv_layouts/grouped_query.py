"""Keys and values by KV heads: multi-head, grouped-query and multi-query attention."""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api.kv_layouts import CacheTerm, LayoutReading, ModelConfig, Placement
from capacity_core.errors import LayoutError
from capacity_core.units import COUNT
from capacity_core.values import Known, Origin, known
from capacity_kv_layouts.config_fields import bytes_per_token, cited, count, given, whole
from capacity_kv_layouts.every_token import keeps_every_token

_LAYERS = ("num_hidden_layers", "n_layer")
_QUERY_HEADS = ("num_attention_heads", "n_head")
_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads")  # the engines' order
_HEAD_DIM = ("head_dim", "kv_channels")  # JetMoe, ChatGLM
_HIDDEN = ("hidden_size", "n_embd")


@attrs.frozen(kw_only=True)
class GroupedQuery:
    """MHA, GQA, MQA: a layer keeps a key and a value of each token for each KV head of the rank.

    Tensor parallel divides the KV heads, and once it exceeds them replicates each over
    attention_tensor // kv_heads ranks. Figures are bytes of one rank.

    Sources: SGLang 0.5.23 srt/configs/model_config.py `get_num_kv_heads` and
    srt/model_executor/pool_configurator.py `_compute_cell_size`; vLLM 0.33.0
    vllm/v1/kv_cache_interface.py `AttentionSpec`. More: references/kv-layouts.md#grouped-query.
    """

    name: str = "grouped-query"

    def applies(self, config: ModelConfig) -> bool:
        """Whether the model has attention heads, no latent, and full attention in every layer."""
        has_heads = any(name in config for name in (*_QUERY_HEADS, *_KV_HEADS))
        return has_heads and not _has_latent(config) and keeps_every_token(config)

    def read(
        self, config: ModelConfig, placement: Placement, dtype_bytes: int | None
    ) -> LayoutReading:
        """Bytes per token of one rank, B/token; without `dtype_bytes` the replication alone.

        Raises LayoutError when a field is absent, null or no whole number of at least 1, and when
        neither of KV heads and attention_tensor divides the other.
        """
        query_heads, kv_heads = count(config, *_QUERY_HEADS), _kv_heads(config)
        per_rank, replication = _shared_out(kv_heads, placement)
        layers = count(config, *_LAYERS)
        held = len(placement.layers(whole(layers)))
        key, value = _head_dims(config, query_heads)
        size = bytes_per_token(
            held * whole(per_rank) * (whole(key) + whole(value)),
            f"{held} layers * {per_rank.number} KV heads"
            f" * ({key.number} head_dim + {value.number} v_head_dim)",
            (layers, per_rank, key, value),
            dtype_bytes,
        )
        return LayoutReading(
            family=_family(whole(query_heads), whole(kv_heads)),
            terms=(CacheTerm(name="keys and values", layers=held, bytes_per_token=size),),
            replication=replication,
            bytes_per_token=size,
            formula="layers * max(1, kv_heads // attention_tensor) * (head_dim + v_head_dim)"
            " * dtype_bytes",
            source="SGLang 0.5.23 srt/model_executor/pool_configurator.py;"
            " vLLM 0.33.0 vllm/v1/kv_cache_interface.py",
        )


def _has_latent(config: ModelConfig) -> bool:
    """Whether there is a latent that `use_mla` leaves on, or a key of two parts."""
    split = any(config.get(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim"))
    return split or ("kv_lora_rank" in config and config.get("use_mla") is not False)


def _family(query_heads: int, kv_heads: int) -> str:
    if kv_heads == query_heads:
        return "MHA"
    return "MQA" if kv_heads == 1 else "GQA"


def _kv_heads(config: ModelConfig) -> Known:
    """One when `multi_query` is on, which Falcon's newer decoder ignores; otherwise the field.

    An absent field is refused: engines then take the class's default, which is not in the file.
    """
    if config.get("multi_query") is True and config.get("new_decoder_architecture") is not True:
        return known(
            1, COUNT, Origin.THEORETICAL, name="kv_heads", evidence=("config0:multi_query",)
        )
    if not any(name in config for name in _KV_HEADS):
        raise LayoutError(
            "the configuration has no num_key_value_heads, for which engines take the default of "
            "the model's class; add the field (for multi-head attention: num_attention_heads)"
        )
    return count(config, *_KV_HEADS)


def _shared_out(kv_heads: Known, placement: Placement) -> tuple[Known, Known]:
    """KV heads on one rank, and how many ranks hold each of them."""
    heads, ranks = whole(kv_heads), placement.attention_tensor
    if heads % ranks and ranks % heads:
        raise LayoutError(
            f"{heads} KV heads and {ranks} tensor-parallel ranks: neither number divides the other,"
            " so the heads cannot be shared out evenly"
        )
    per_rank = known(
        max(1, heads // ranks),
        COUNT,
        Origin.THEORETICAL,
        name="kv_heads_per_rank",
        how=f"max(1, {heads} KV heads // {ranks} ranks)",
        evidence=kv_heads.evidence,
    )
    replication = Known(
        amount=Decimal(max(1, ranks // heads)),
        unit=COUNT,
        origin=Origin.THEORETICAL,
        how=f"max(1, {ranks} ranks // {heads} KV heads)",
        operands=(kv_heads, per_rank),
        evidence=kv_heads.evidence,
    )
    return per_rank, replication


def _head_dims(config: ModelConfig, query_heads: Known) -> tuple[Known, Known]:
    """Elements of one head's key and of its value, which is as long unless the file says more."""
    if given(config, *_HEAD_DIM):
        key = count(config, *_HEAD_DIM)
    else:
        hidden = count(config, *_HIDDEN)
        if whole(hidden) < whole(query_heads):
            raise LayoutError(
                f"{hidden.name} {hidden.number} is less than {query_heads.name} "
                f"{query_heads.number}: a head would have no element"
            )
        key = known(
            whole(hidden) // whole(query_heads),
            COUNT,
            Origin.THEORETICAL,
            name="head_dim",
            how=f"{hidden.number} {hidden.name} // {query_heads.number} {query_heads.name}",
            evidence=cited(hidden, query_heads),
        )
    # SGLang takes a v_head_dim of 0 or null as head_dim (srt/configs/model_config.py).
    return key, count(config, "v_head_dim") if config.get("v_head_dim") else key
