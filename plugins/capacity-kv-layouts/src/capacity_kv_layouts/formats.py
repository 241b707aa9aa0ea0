"""How many bytes one KV head's key and value of one token take in each stored type.

A type is named as the engines' options name it. Types of whole bytes are in the core's contract;
here are those that keep scales beside the elements. Sources: SGLang 0.5.23
srt/model_executor/pool_configurator.py `_compute_cell_size` and
srt/mem_cache/fp4_kv_cache_quant_method.py; vLLM 0.33.0 vllm/v1/attention/backends/triton_attn.py,
flashinfer.py, and vllm/model_executor/layers/quantization/turboquant/config.py.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import attrs

from capacity_core.api.kv_layouts import Serving, element_bytes
from capacity_core.errors import LayoutError


@attrs.frozen
class _Side:
    """One side of a head, key or value: bytes of an element, elements that share one byte of scale,
    and bytes beside them for each head and token."""

    element: Fraction
    elements_of_scale: int | None = None
    beside: int = 0

    by_layer: bool = False
    """Whether what is no whole byte is dropped from a layer's sum, not from a side."""

    def bytes_of(self, dim: int) -> Fraction:
        scales = Fraction(dim, self.elements_of_scale) if self.elements_of_scale else Fraction(0)
        if self.by_layer:
            return self.element * dim + scales
        return Fraction(self.element * dim // 1 + scales // 1 + self.beside)

    def words(self, dim: int, name: str) -> str:
        words = f"{dim} {name}" if self.element == 1 else f"{dim} {name} * {self.element}"
        if self.elements_of_scale:
            words += f" + {dim} / {self.elements_of_scale} scales"
        return words + (f" + {self.beside} scale" if self.beside else "")


@attrs.frozen
class Head:
    """What one KV head's key and value of one token take: bytes, and how they come about."""

    bytes: Fraction
    words: str


_FP4 = _Side(Fraction(1, 2), 16)
_SCALED = _Side(Fraction(1), beside=4)  # one fp32 scale for each head and token
_MXFP8 = _Side(Fraction(1), 32, by_layer=True)
_MX4 = _Side(Fraction(1, 2), 16, by_layer=True)
_INT4 = _Side(Fraction(1, 2), beside=4)
_SIDES = {
    "mxfp8": (_MXFP8, _MXFP8),
    "nvfp4": (_FP4, _FP4),
    "fp4_e2m1": (_FP4, _FP4),
    "fp4_mx_block16": (_MX4, _MX4),
    "fp8_per_token_head": (_SCALED, _SCALED),
    "int8_per_token_head": (_SCALED, _SCALED),
    "int4_per_token_head": (_INT4, _INT4),
}
# Bits of a key and of a value. Beside them: a norm of 2 B for keys that are not fp8, and scale and
# zero point of values, 4 B. One slot holds both, sized by the key's dimension.
_PACKED_BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}


_BY_ENGINE = {
    # srt/arg_groups/fields/model.py:209
    "sglang": ("bf16", "fp8_e4m3", "fp8_e5m2", "fp4_mx_block16", "mxfp8", "nvfp4"),
    # vllm/config/cache.py:44
    "vllm": (
        "bf16",
        "fp16",
        "fp8_e4m3",
        "fp8_e5m2",
        "fp8_inc",
        "fp8_ds_mla",
        "fp8_per_token_head",
        "int4_per_token_head",
        "int8_per_token_head",
        "nvfp4",
        "nvfp4_ds_mla",
        "nvfp4_4over6",
        "octave_k3v3",
        "octave_k3v3_compact",
        "octave_k3v4",
        "ultraquant_4bit",
        *_PACKED_BITS,
    ),
}


def refuse_type(serving: Serving) -> None:
    """Raises LayoutError for a stored type that was asked for and that the engine does not have."""
    types = _BY_ENGINE.get(str(serving.framework))
    if types is None or serving.dtype is None or serving.dtype_assumed or serving.evidence:
        return
    if serving.dtype not in types:
        raise LayoutError(
            f"{serving.framework} has no KV type {serving.dtype}; it has {', '.join(types)}"
        )


def head_of(dtype: str | None, key: int, value: int) -> Head | None:
    """Bytes of a key of `key` and a value of `value` elements; None for a type that is not known,
    and for no name."""
    if dtype is None:
        return None
    size = element_bytes(dtype)
    if size is not None:
        return Head(
            Fraction((key + value) * size), f"({key} head_dim + {value} v_head_dim) * {size} B"
        )
    if dtype in _PACKED_BITS:
        return _packed(key, *_PACKED_BITS[dtype])
    if dtype not in _SIDES:
        return None
    key_side, value_side = _SIDES[dtype]
    words = f"({key_side.words(key, 'head_dim')} + {value_side.words(value, 'v_head_dim')}) B"
    return Head(key_side.bytes_of(key) + value_side.bytes_of(value), words)


def _packed(dim: int, key_bits: int, value_bits: int) -> Head:
    norm = 0 if key_bits == 8 else 2  # whole bytes are fp8, which keeps no norm
    slot = ceil(Fraction(dim * key_bits, 8)) + norm + ceil(Fraction(dim * value_bits, 8)) + 4
    beside = f"{norm} norm + 4 scale" if norm else "4 scale"
    words = f"({dim} head_dim * ({key_bits} + {value_bits}) / 8 + {beside}) B"
    return Head(Fraction(slot + slot % 2), words)
