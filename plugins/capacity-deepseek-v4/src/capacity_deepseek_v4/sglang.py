"""DeepSeek-V4 and V4.1 in SGLang 0.5.12 … 0.5.23: what its pool configurator counts.

Source: srt/model_executor/pool_configurator.py `DSV4PoolConfigurator` of each release; how the
releases differ: references/kv-layouts.md#deepseek-v4.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

from capacity_core.api.kv_layouts import CacheTerm, Keeps, Serving
from capacity_core.api.versions import release_key
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_TOKEN
from capacity_core.values import Known, Unknown, Value, total
from capacity_deepseek_v4 import terms
from capacity_deepseek_v4.layers import LATENT, Stage
from capacity_deepseek_v4.slots import (
    CHOICES,
    MXFP4,
    PAGE_TOKENS,
    SlotLayout,
    page_bytes,
    slots_per_page,
)

SOURCE = "SGLang 0.5.23 srt/model_executor/pool_configurator.py `DSV4PoolConfigurator`"
_FP32 = 4
_RINGS = {4: 8, 128: 128}
_DRAFT_RINGS = {4: 16, 128: 256}
"""Rows of the compressor's ring, by ratio, without and with speculative decoding
(srt/mem_cache/deepseek_v4_memory_pool.py `get_compress_state_ring_size`)."""

_PAIR_ROWS = 2  # ratio 2; with speculative decoding as many as its draft tokens want

_FIRST = (0, 5, 12)
_STATE_FIXED_SINCE = (0, 5, 15)  # the state of ratio 128 left the coefficient
STAGED_SINCE = _STATE_FIXED_SINCE  # before, every stage counted all layers, the draft's too
_PADDED_SINCE = (0, 5, 21)  # pages count with their padding, state of ratio 4 by the page
_LOW_PRICED_SINCE = (0, 5, 23)  # ratio 1 and 2 at what their layout takes
_LOW_SLOT = 584  # up to then, whatever their layout
_LATEST = (999,)  # of a release that nobody named
_DEFAULT_SHARE = Decimal("0.1")


def terms_of(stage: Stage, serving: Serving) -> tuple[CacheTerm, ...]:
    """Every cache of a stage as this release counts it.

    Raises LayoutError for a page that ratio 128 does not divide.
    """
    page = serving.page_size or PAGE_TOKENS
    if page % 128:
        raise LayoutError(f"pages of {page} tokens: a page is a multiple of 128")
    release = release_of(serving)
    _refuse_early(stage, serving.variant or "v4", release)
    return tuple(_terms(stage, serving, page, release))


def release_of(serving: Serving) -> tuple[int, ...]:
    """The release, as a key to compare; without one the latest."""
    return release_key(serving.version) if serving.version else _LATEST


def _speculates(serving: Serving) -> bool:
    """The engine counts one draft layer, whatever the draft has."""
    return serving.speculative or serving.draft_layers > 0


def _refuse_early(stage: Stage, variant: str, release: tuple[int, ...]) -> None:
    since, what = _FIRST, "DeepSeek-V4"
    if stage.shares:
        since, what = _PADDED_SINCE, "V4.1"
    if variant != "v4":
        since, what = _PADDED_SINCE, f"slots {variant}"
    if variant == "v41_new":
        since, what = _LOW_PRICED_SINCE, f"slots {variant}"
    if variant.endswith(MXFP4):
        raise LayoutError("SGLang counts index keys by their ratio, whatever is stored")
    if release < since:
        raise LayoutError(f"SGLang has {what} since {'.'.join(map(str, since))}")


def _terms(
    stage: Stage, serving: Serving, page: int, release: tuple[int, ...]
) -> Iterator[CacheTerm]:
    choice = CHOICES[serving.variant or "v4"]
    is_padded = release >= _PADDED_SINCE
    for ratio in stage.owners:
        layout = choice.of(ratio)
        stored = _stored(layout, slots_per_page(ratio, page), is_padded)
        if ratio in (1, 2) and release < _LOW_PRICED_SINCE:
            stored = terms.Stored(
                layout=layout,
                bytes=Fraction(_LOW_SLOT),
                step="priced as v4 without padding, whatever the layout (0.5.21, 0.5.22)",
            )
        yield terms.compressed(stage, ratio, stored, SOURCE)
        if ratio != 128:
            yield terms.index(stage, ratio, *_index_key(stage, ratio), SOURCE)
    yield terms.window(stage, _stored(choice.window, page, is_padded), SOURCE)
    yield from _states(stage, page, release, draft=_speculates(serving))


def _stored(layout: SlotLayout, slots: int, is_padded: bool) -> terms.Stored:
    if not is_padded:
        step = "counted without padding (before 0.5.21)"
        return terms.Stored(layout=layout, bytes=Fraction(layout.slot_bytes), step=step)
    size = page_bytes(layout, slots)
    each = Fraction(size, slots)
    step = (
        f"{slots} slots * {layout.slot_bytes} B, padded to {layout.page_align} = {size:,} B,"
        f" {terms.shown(each)} B a slot"
    )
    return terms.Stored(layout=layout, bytes=each, step=step)


def _index_key(stage: Stage, ratio: int) -> tuple[Fraction, str]:
    """Ratio 4 counts fp8 keys even where fp4 ones are stored; ratio 1 and 2 always store fp4."""
    dim = stage.index_dim
    if ratio == 4:
        return Fraction(dim + dim // 128 * 4), f"{dim} fp8 + {dim} / 128 * 4 scales"
    return Fraction(dim // 2 + dim // 32), f"{dim} / 2 fp4 + {dim} / 32 scales"


def _states(
    stage: Stage, page: int, release: tuple[int, ...], *, draft: bool
) -> Iterator[CacheTerm]:
    rings = _DRAFT_RINGS if draft else _RINGS
    if 4 in stage.owners:
        span = page if release >= _PADDED_SINCE else stage.window
        row = (4 * LATENT + 4 * stage.index_dim) * _FP32
        words = f"{rings[4]} rows / {span} tokens * {row} B"
        cost = Fraction(rings[4] * row, span)
        yield terms.state_in_window(stage, 4, cost, stage.window, words, SOURCE)
    if 128 in stage.owners:
        row = 2 * LATENT * _FP32
        words = f"{rings[128]} rows * {row} B"
        if release < _STATE_FIXED_SINCE:
            cost = Fraction(rings[128] * row, stage.window)
            words = f"{rings[128]} rows / {stage.window} tokens * {row} B"
            yield terms.state_in_window(stage, 128, cost, stage.window, words, SOURCE)
        else:
            yield terms.state_of_request(stage, 128, rings[128] * row, words, SOURCE)
    if 2 in stage.owners:
        row = 2 * LATENT * _FP32
        words = f"{_PAIR_ROWS} rows * {row} B"
        per_layer = None if draft else _PAIR_ROWS * row
        yield terms.state_of_request(stage, 2, per_layer, words, SOURCE)


def divisor(parts: tuple[CacheTerm, ...], stage: Stage, serving: Serving) -> Value:
    """`bytes_per_full_token`: the growth, with a share of the window's cost in ratio mode.

    In cap and ring mode windows are fixed bytes. A draft layer raises both parts by (L + 1) / L.
    """
    growth, windows = (_sum(parts, keeps, stage) for keeps in (Keeps.ALL, Keeps.WINDOW))
    if not isinstance(growth, Known) or not isinstance(windows, Known):
        return growth
    mode = serving.sizing_mode
    if release_of(serving) < _PADDED_SINCE:
        mode = "ratio"  # the only one, and no line says so
    draft = Fraction(stage.layers + _speculates(serving), stage.layers)
    share = serving.window_share if serving.window_share is not None else _DEFAULT_SHARE
    capped = growth.number
    by_share = growth.number + share * windows.number
    if mode is not None and mode.startswith(("ring", "unified")):
        return Unknown(
            why="a unified pool stores rows of 1024 or 640 B in place of these slots",
            unit=BYTES_PER_TOKEN,
            evidence=stage.fields,
        )
    if mode is None:
        return Unknown(
            why=f"bytes_per_full_token is {_times(capped, draft):,} in cap mode and "
            f"{_times(by_share, draft):,} in ratio mode at {share}; 'DSV4 SWA sizing' in the log "
            "says which",
            unit=BYTES_PER_TOKEN,
            at_least=_times(capped, draft),
            evidence=stage.fields,
        )
    ratio = mode.startswith("ratio")
    number = Fraction(by_share if ratio else capped) * draft
    how = "growth" + (f" + {share} * window" if ratio else " (windows are fixed bytes)")
    if draft != 1:
        how = f"({how}) * {stage.layers + 1} / {stage.layers}"
    figure = terms.figure(number, BYTES_PER_TOKEN, how, stage)
    if ratio and serving.window_share is None:
        figure = figure.assume(f"swa_full_tokens_ratio is {_DEFAULT_SHARE}, its default")
    return figure


def _sum(parts: tuple[CacheTerm, ...], keeps: Keeps, stage: Stage) -> Value:
    nothing = terms.figure(0, BYTES_PER_TOKEN, "no layer owns any", stage)
    costs = [p.bytes_per_token for p in parts if p.keeps is keeps]
    return total([nothing, *(cost for cost in costs if cost is not None)])


def _times(number: Decimal, factor: Fraction) -> Decimal:
    exact = Fraction(number) * factor
    return (Decimal(exact.numerator) / Decimal(exact.denominator)).quantize(Decimal("0.01"))
