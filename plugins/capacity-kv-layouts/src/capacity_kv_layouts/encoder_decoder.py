"""A decoder that also attends to an encoder's output, which is kept as keys and values of its own:
Whisper, mllama."""

from __future__ import annotations

import attrs

from capacity_core.api.config_fields import as_int, count, given, layer_count
from capacity_core.api.kv_layouts import (
    Keeps,
    LayoutReading,
    ModelConfig,
    Serving,
)
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_REQUEST
from capacity_core.values import Known, Unknown
from capacity_kv_layouts.every_token import keeps_every_token
from capacity_kv_layouts.heads import (
    LAYERS,
    SOURCE,
    family_of,
    head_dims,
    kv_cache,
    kv_heads_of,
    query_heads,
    shared_out,
)
from capacity_kv_layouts.latent import has_latent
from capacity_kv_layouts.layers import Cache, amount, assemble, one_framework

_SPEECH_SOURCE = (
    "vLLM 0.33.0 vllm/model_executor/models/whisper.py, vllm/v1/kv_cache_interface.py "
    "`CrossAttentionSpec`; SGLang 0.5.23 srt/configs/model_config.py:1591"
)


@attrs.frozen(kw_only=True)
class EncoderDecoder:
    """Whisper: vLLM keeps the decoder's own tokens and, for each request, those of the encoder.
    SGLang prices every token in `encoder_layers` + 2 * `decoder_layers` layers. More:
    references/kv-layouts.md#encoder-decoder."""

    name: str = "encoder-decoder"

    def applies(self, config: ModelConfig) -> bool:
        """Whether it is of this type, with both stacks."""
        return config.get("model_type") == "whisper" and "decoder_layers" in config

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        """Bytes per token and per request of one rank.

        Raises LayoutError when a field is absent or null, and when no framework is named.
        """
        framework = one_framework(serving, "an encoder's tokens")
        decoder = layer_count(config, "decoder_layers")
        encoder = layer_count(config, "encoder_layers")
        heads = query_heads(config, serving.placement, ("decoder_attention_heads",))
        own = kv_cache("keys and values", heads, head_dims(config, heads, ("d_model",)), serving)
        own = attrs.evolve(own, source=_SPEECH_SOURCE)
        caches: tuple[Cache, ...] = (own,)
        layers = as_int(encoder) + 2 * as_int(decoder)
        if framework != "sglang":
            caches, layers = (own, _of_encoder(config, own)), as_int(decoder)
        return assemble(
            "encoder-decoder",
            [caches] * layers,
            serving,
            counted=(*decoder.evidence, *encoder.evidence),
            replication=shared_out(heads, serving.placement)[1],
            formula="decoder layers * 2 * heads * head_dim * dtype_bytes, and the same for each "
            "token of the encoder",
            source=_SPEECH_SOURCE,
        )


def _of_encoder(config: ModelConfig, own: Cache) -> Cache:
    """What a request keeps of its encoder's output: all of the longest input."""
    cost = own.per_token
    if not given(config, "max_source_positions"):
        why = "max_source_positions, the encoder's tokens, is not in the configuration"
        state: Known | Unknown = Unknown(why=why, unit=BYTES_PER_REQUEST)
    elif isinstance(cost, Known):
        tokens = count(config, "max_source_positions")
        how = f"{tokens.number} encoder tokens * {cost.how}"
        operands = tuple(value for value in cost.operands if isinstance(value, Known))
        state = amount(int(cost.number * tokens.number), BYTES_PER_REQUEST, how, tokens, *operands)
    else:
        state = Unknown(why="the KV dtype is not known", unit=BYTES_PER_REQUEST)
    return Cache(
        name="encoder's keys and values",
        keeps=Keeps.ENCODER,
        state=state,
        formula="layers * max_source_positions * 2 * heads * head_dim * dtype_bytes",
        source=_SPEECH_SOURCE,
    )


@attrs.frozen(kw_only=True)
class CrossAttention:
    """mllama: some layers attend to an image alone. SGLang sizes them like any other layer, and
    takes the image's tokens from the same pool. More: references/kv-layouts.md#encoder-decoder."""

    name: str = "cross-attention"

    def applies(self, config: ModelConfig) -> bool:
        """Whether layers of cross attention are all that the file says beside full KV."""
        rest = {name: field for name, field in config.items() if name != "cross_attention_layers"}
        return (
            bool(config.get("cross_attention_layers"))
            and not has_latent(config)
            and keeps_every_token(rest)
        )

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        """Bytes per token of one rank, the image's tokens included.

        Raises LayoutError as grouped-query does, and for vLLM, which last served it in 0.10.2.
        """
        if one_framework(serving, "cross attention") == "vllm":
            raise LayoutError("vLLM has not served cross attention of this kind since 0.10.2")
        heads, kv_heads = query_heads(config, serving.placement), kv_heads_of(config)
        cache = kv_cache("keys and values", kv_heads, head_dims(config, heads), serving)
        layers = layer_count(config, *LAYERS)
        return assemble(
            f"{family_of(heads, kv_heads)} with cross attention",
            [(cache,)] * as_int(layers),
            serving,
            counted=layers.evidence,
            replication=shared_out(kv_heads, serving.placement)[1],
            formula="layers, those of cross attention included, * max(1, kv_heads // "
            "attention_tensor) * (head_dim + v_head_dim) * dtype_bytes",
            source=SOURCE,
        )
