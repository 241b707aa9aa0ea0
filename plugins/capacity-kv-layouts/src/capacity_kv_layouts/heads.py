"""Keys and values by KV heads: which heads a rank holds, how long they are, what a token costs."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

from capacity_core.api.config_fields import Completed, as_int, cited, count, given
from capacity_core.api.kv_layouts import Keeps, ModelConfig, Placement, Serving
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_TOKEN, COUNT
from capacity_core.values import Known, Origin, Unknown, Value, known
from capacity_kv_layouts.formats import head_of
from capacity_kv_layouts.layers import Cache, amount, type_unknown

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
QUERY_HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = (  # the engines' order: Falcon, ChatGLM, Step-3 have names of their own
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
_HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
_HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
# Their classes take the query heads where the file has no KV heads (transformers 5.24.0).
_AS_MANY = (
    "falcon",
    "gpt2",
    "gpt_bigcode",
    "gptj",
    "gpt_neox",
    "bloom",
    "opt",
    "codegen",
    "mpt",
    "llama",
    "phi",
    "persimmon",
    "baichuan",
    "internlm",
    "qwen",
    "olmo",
    "olmo3",
    "cohere",
    "cohere2",
    "granite",
    "granitemoe",
    "nemotron",
    "apertus",
    "flex_olmo",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
)
_ONE_DIM = ("nvfp4", "fp4_mx_block16")

SOURCE = (
    "SGLang 0.5.23 srt/model_executor/pool_configurator.py `_compute_cell_size`; "
    "vLLM 0.33.0 vllm/v1/kv_cache_interface.py `AttentionSpec`"
)


def kv_cache(
    name: str,
    kv_heads: Known,
    dims: tuple[Known, Known],
    serving: Serving,
    *,
    keeps: Keeps = Keeps.ALL,
    window: Known | None = None,
    pooled: bool = False,
    source: str = SOURCE,
) -> Cache:
    """The keys and values of one layer on one rank; `pooled` where SGLang has a pool for windows.

    Raises LayoutError when neither of KV heads and attention_tensor divides the other.
    """
    held, _ = shared_out(kv_heads, serving.placement)
    _refuse_context(kv_heads, serving)
    key, value = dims
    # SGLang sizes both sides by the key (fp4_kv_cache_quant_method.py:744).
    if serving.framework == "sglang" and serving.dtype in _ONE_DIM:
        value = key
    head = head_of(serving.dtype, as_int(key), as_int(value))
    layer = Fraction(0) if head is None else as_int(held) * head.bytes
    if pooled or serving.dtype == "fp4_mx_block16":  # whole bytes (pool_configurator.py:663)
        layer = Fraction(layer // 1)
    return Cache(
        name=name,
        keeps=keeps,
        window=window,
        formula="layers * KV heads * (head_dim + v_head_dim) * dtype_bytes",
        source=source,
        per_token=type_unknown(serving.dtype, kv_heads, key, value)
        if head is None
        else amount(
            layer,
            BYTES_PER_TOKEN,
            f"{held.number} KV heads * {head.words}",
            kv_heads,
            key,
            value,
        ),
    )


def _refuse_context(kv_heads: Known, serving: Serving) -> None:
    """vLLM shares tokens only among ranks that hold the same head (config/model.py:1579)."""
    placement = serving.placement
    copies = placement.ranks // as_int(kv_heads)
    if serving.framework == "vllm" and placement.context > max(1, copies):
        raise LayoutError(
            f"vLLM shares a request's tokens only among ranks that hold the same KV head: "
            f"{placement.context} context-parallel ranks, {copies} hold each of "
            f"{kv_heads.number} heads"
        )


def query_heads(
    config: ModelConfig, placement: Placement, names: tuple[str, ...] = QUERY_HEADS
) -> Known:
    """The query heads, which tensor parallel must divide.

    Raises LayoutError when it does not.
    """
    heads = count(config, *names)
    ranks = placement.ranks
    if as_int(heads) % ranks:
        raise LayoutError(
            f"{heads.number} {heads.name} cannot be shared out evenly among {ranks} "
            "tensor-parallel ranks; engines refuse it"
        )
    return heads


def kv_heads_of(config: ModelConfig) -> Known:
    """One when `multi_query` is on, which Falcon's newer decoder ignores; otherwise the field.

    An absent field is refused: engines then take the class's default, which is not in the file.
    """
    if config.get("multi_query") is True and config.get("new_decoder_architecture") is not True:
        of_class = isinstance(config, Completed) and "multi_query" in config.defaults
        evidence = ("config0:model_type" if of_class else "config0:multi_query",)
        return known(1, COUNT, Origin.THEORETICAL, name="kv_heads", evidence=evidence)
    nested = config.get("attn_config")  # DBRX, MPT
    if isinstance(nested, dict) and nested.get("kv_n_heads") is not None:
        return count(nested, "kv_n_heads", inside="attn_config")
    phi = config.get("model_type") == "phi"  # whose files have a null for it
    if phi and not given(config, *KV_HEADS):
        return count(config, *QUERY_HEADS)
    if not any(name in config for name in KV_HEADS):
        if config.get("model_type") in _AS_MANY:
            return count(config, *QUERY_HEADS)
        raise LayoutError(
            "the configuration has no num_key_value_heads, for which engines take the default of "
            "the model's class; add the field (for multi-head attention: num_attention_heads)"
        )
    return count(config, *KV_HEADS)


def shared_out(kv_heads: Known, placement: Placement) -> tuple[Known, Known]:
    """KV heads on one rank, and how many ranks hold each of them.

    Raises LayoutError when neither of KV heads and attention_tensor divides the other.
    """
    heads, ranks = as_int(kv_heads), placement.attention_tensor
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
    ).assume(*kv_heads.assuming)
    replication = Known(
        amount=Decimal(max(1, ranks // heads)),
        unit=COUNT,
        origin=Origin.THEORETICAL,
        how=f"max(1, {ranks} ranks // {heads} KV heads)",
        operands=(kv_heads, per_rank),
        evidence=kv_heads.evidence,
        assuming=kv_heads.assuming,
    )
    return per_rank, replication


def copies_of(kinds: Iterable[Known], placement: Placement) -> Value:
    """How many ranks hold each head, where layers differ in their KV heads: known if it is the same
    for all."""
    each = {
        copies.number: copies for heads in kinds for copies in [shared_out(heads, placement)[1]]
    }
    if len(each) == 1:
        return next(iter(each.values()))
    numbers = " or ".join(str(number) for number in sorted(each))
    evidence = tuple(dict.fromkeys(line for value in each.values() for line in value.evidence))
    return Unknown(why=f"{numbers}, by kind of layer", unit=COUNT, evidence=evidence)


def head_dims(
    config: ModelConfig, heads: Known, hidden_names: tuple[str, ...] = _HIDDEN
) -> tuple[Known, Known]:
    """Elements of one head's key and of its value, which is as long unless the file says more."""
    if given(config, *_HEAD_DIM):
        key = count(config, *_HEAD_DIM)
    else:
        hidden = count(config, *hidden_names)
        if as_int(hidden) < as_int(heads):
            raise LayoutError(
                f"{hidden.name} {hidden.number} is less than {heads.name} "
                f"{heads.number}: a head would have no element"
            )
        key = known(
            as_int(hidden) // as_int(heads),
            COUNT,
            Origin.THEORETICAL,
            name="head_dim",
            how=f"{hidden.number} {hidden.name} // {heads.number} {heads.name}",
            evidence=cited(hidden, heads),
        ).assume(*hidden.assuming, *heads.assuming)
    # SGLang takes a v_head_dim of 0 or null as head_dim (srt/configs/model_config.py).
    return key, count(config, "v_head_dim") if config.get("v_head_dim") else key


def family_of(heads: Known, kv_heads: Known) -> str:
    """MHA, MQA or GQA."""
    if kv_heads.number == heads.number:
        return "MHA"
    return "MQA" if kv_heads.number == 1 else "GQA"
