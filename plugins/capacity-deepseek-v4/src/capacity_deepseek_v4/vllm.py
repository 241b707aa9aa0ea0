"""DeepSeek-V4 and V4.1 in vLLM 0.33.0: payloads grow, pages are padded, windows and states are
caches of their own in the same blocks.

Sources: vllm/models/deepseek_v4/attention.py, vllm/models/deepseek_v41/attention.py,
vllm/v1/core/kv_cache_planning.py `_get_kv_cache_bytes_per_block`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import lcm

from capacity_core.api.kv_layouts import CacheTerm, Serving
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_TOKEN
from capacity_core.values import Unknown, Value
from capacity_deepseek_v4 import terms
from capacity_deepseek_v4.layers import LATENT, Stage
from capacity_deepseek_v4.slots import (
    MXFP4,
    PAGE_TOKENS,
    V4,
    V41_FP4,
    V41_FP8,
    SlotLayout,
    padded,
    page_bytes,
    slots_per_page,
)

SOURCE = (
    "vLLM 0.33.0 vllm/models/deepseek_v4/attention.py, vllm/models/deepseek_v41/attention.py, "
    "vllm/v1/core/kv_cache_planning.py"
)
_FP32 = 4
_RING_ROWS = 8  # of the pair that is being compressed, ratio 2


def slots_of(stage: Stage, serving: Serving) -> tuple[SlotLayout, SlotLayout]:
    """The slots of the window and of compressed caches.

    Raises LayoutError where the device decides, and for slots that this engine does not store.
    """
    asked = None if serving.variant is None else serving.variant.removesuffix(MXFP4)
    fp4 = serving.dtype == "nvfp4_ds_mla"
    if fp4 and (asked not in (None, "v41_fp4") or not stage.shares):
        raise LayoutError("nvfp4_ds_mla stores V4.1's slots of 288 B alone (v41_fp4)")
    if fp4:
        asked = "v41_fp4"
    if stage.shares and {4, 128} & set(stage.owners):
        raise LayoutError("vLLM takes V4.1's ratios 0, 1 and 2 alone")
    if not stage.shares:
        if asked not in (None, "v4"):
            raise LayoutError(f"vLLM stores V4's slots of 584 B alone, no {asked}")
        return V4, V4
    choices = {"v4": (V4, V4), "v41": (V41_FP8, V41_FP8), "v41_fp4": (V41_FP8, V41_FP4)}
    if asked not in choices:
        raise LayoutError(
            ("" if asked is None else f"vLLM stores no slots {asked}: ")
            + "the device decides which slots vLLM stores of V4.1: name them with --layout v41 "
            "(SM100), v41_fp4 (SM100 with nvfp4_ds_mla) or v4 (others)"
        )
    return choices[asked]


def terms_of(stage: Stage, serving: Serving) -> tuple[CacheTerm, ...]:
    """Every cache of a stage, without the padding of its pages.

    Raises LayoutError for another page than the index takes
    (vllm/v1/attention/backends/mla/indexer.py:357).
    """
    if (serving.page_size or PAGE_TOKENS) != PAGE_TOKENS:
        raise LayoutError(f"vLLM keeps these caches in blocks of {PAGE_TOKENS} tokens alone")
    return tuple(_terms(stage, serving))


def _terms(stage: Stage, serving: Serving) -> Iterator[CacheTerm]:
    window, main = slots_of(stage, serving)
    for ratio in stage.owners:
        step = "no padding of its own: the whole block is padded, see what the engine divides by"
        stored = terms.Stored(layout=main, bytes=Fraction(main.slot_bytes), step=step)
        yield terms.compressed(stage, ratio, stored, SOURCE)
        if ratio != 128:
            key, words = _index_key(stage, serving)
            yield terms.index(stage, ratio, Fraction(key), words, SOURCE)
    held = terms.Stored(layout=window, bytes=Fraction(window.slot_bytes), step="blocks of its own")
    yield terms.window(stage, held, SOURCE)
    yield from _states(stage)


def _index_key(stage: Stage, serving: Serving) -> tuple[int, str]:
    """fp8 unless mxfp4 was asked for (vllm/config/attention.py:198, indexer.py:62)."""
    dim = stage.index_dim
    if serving.variant is None or not serving.variant.endswith(MXFP4):
        return dim + dim // 128 * 4, f"{dim} fp8 + {dim} / 128 * 4 scales"
    return dim // 2 + dim // 32, f"{dim} / 2 mxfp4 + {dim} / 32 scales"


def _states(stage: Stage) -> Iterator[CacheTerm]:
    """vllm/models/deepseek_v4/compressor.py: windows of 8 and 128 tokens in fp32."""
    if 4 in stage.owners:
        row = (4 * LATENT + 4 * stage.index_dim) * _FP32
        yield terms.state_in_window(stage, 4, Fraction(row), 8, f"{row} B", SOURCE)
    row = 2 * LATENT * _FP32
    if 128 in stage.owners:
        yield terms.state_in_window(stage, 128, Fraction(row), 128, f"{row} B", SOURCE)
    if 2 in stage.owners:
        words = f"{_RING_ROWS} rows * {row} B"
        yield terms.state_of_request(stage, 2, _RING_ROWS * row, words, SOURCE)


def divisor(stage: Stage, serving: Serving) -> Value:
    """Bytes of the pool for one token in full-length caches: a block's pages, each padded, the sum
    padded to what all of its kinds of pages align to."""
    window, main = slots_of(stage, serving)
    page = serving.page_size or PAGE_TOKENS
    key, _ = _index_key(stage, serving)
    if not stage.owners:
        why = "no layer of this stage owns a cache that grows"
        return Unknown(why=why, unit=BYTES_PER_TOKEN, evidence=stage.fields)
    aligns = {576} if main is V4 else {window.slot_bytes, main.slot_bytes}
    block = 0
    for ratio, layers in stage.owners.items():
        slots = slots_per_page(ratio, page)
        block += layers * page_bytes(main, slots)
        if ratio != 128:
            block += layers * padded(slots * key, 576 if main is V4 else 512)
    whole = padded(block, lcm(*aligns))
    how = f"{whole:,} B of a block of {page} tokens, padded to {lcm(*aligns)} / {page}"
    return terms.figure(Fraction(whole, page), BYTES_PER_TOKEN, how, stage)
