"""The terms of one rank: from the slot to the page, to what a model token adds, step by step."""

from __future__ import annotations

from fractions import Fraction

import attrs

from capacity_core.api.kv_layouts import CacheTerm, Keeps
from capacity_core.units import BYTES_PER_REQUEST, BYTES_PER_SLOT, BYTES_PER_TOKEN, TOKENS, Unit
from capacity_core.values import Known, Origin, Unknown, Value, known
from capacity_deepseek_v4.layers import Stage
from capacity_deepseek_v4.slots import SlotLayout


@attrs.frozen(kw_only=True)
class Stored:
    """A slot as it counts in a cache: its layout, its bytes with its share of a page's padding, and
    how these came about."""

    layout: SlotLayout
    bytes: Fraction
    step: str


def figure(number: Fraction | int, unit: Unit, how: str, stage: Stage) -> Known:
    return known(number, unit, Origin.THEORETICAL, how=how, evidence=stage.fields)


def compressed(stage: Stage, ratio: int, stored: Stored, source: str) -> CacheTerm:
    """The compressed caches of one ratio: one slot for `ratio` tokens in each layer that owns."""
    layers = stage.owners[ratio]
    how = f"{_layers(layers)} * {shown(stored.bytes)} B / {_tokens(ratio)}"
    layout = stored.layout
    slot = figure(
        layout.slot_bytes,
        BYTES_PER_SLOT,
        f"{layout.payload_bytes} payload + {layout.scale_bytes} scales",
        stage,
    )
    return CacheTerm(
        name=f"compressed, ratio {ratio}",
        layers=layers,
        bytes_per_token=figure(layers * stored.bytes / ratio, BYTES_PER_TOKEN, how, stage),
        slot=slot.assume(layout.used),
        formula=how,
        source=source,
        steps=(
            f"payload: {slot.how} = {layout.slot_bytes} B a slot ({layout.name})",
            f"page: {stored.step}",
            f"owners: {layers} of {stage.layers} layers; a slot holds {_tokens(ratio)}",
            f"growth: {how}",
        ),
    )


def index(stage: Stage, ratio: int, key: Fraction, words: str, source: str) -> CacheTerm:
    """The index keys of one ratio, one for each slot."""
    layers = stage.owners[ratio]
    how = f"{_layers(layers)} * {shown(key)} B / {_tokens(ratio)}"
    return CacheTerm(
        name=f"index keys, ratio {ratio}",
        layers=layers,
        bytes_per_token=figure(layers * key / ratio, BYTES_PER_TOKEN, how, stage),
        formula=how,
        source=source,
        steps=(f"key: {words}", f"growth: {how}"),
    )


def window(stage: Stage, stored: Stored, source: str) -> CacheTerm:
    """The sliding window, which every layer has."""
    how = f"{stage.layers} layers * {shown(stored.bytes)} B"
    layout = stored.layout
    return CacheTerm(
        name="sliding window",
        layers=stage.layers,
        keeps=Keeps.WINDOW,
        bytes_per_token=figure(stage.layers * stored.bytes, BYTES_PER_TOKEN, how, stage),
        window_tokens=tokens(stage.window, stage),
        formula=how,
        source=source,
        steps=(
            f"payload: {layout.payload_bytes} payload + {layout.scale_bytes} scales"
            f" = {layout.slot_bytes} B a slot ({layout.name})",
            f"page: {stored.step}",
            f"while in the window: {how}",
        ),
    )


def state_in_window(
    stage: Stage, ratio: int, per_token: Fraction, held: int, words: str, source: str
) -> CacheTerm:
    """The compressor's state of one ratio, where it is held by the last `held` tokens."""
    layers = stage.owners[ratio]
    how = f"{layers} layers * {words}"
    return CacheTerm(
        name=f"compressor state, ratio {ratio}",
        layers=layers,
        keeps=Keeps.WINDOW,
        bytes_per_token=figure(layers * per_token, BYTES_PER_TOKEN, how, stage),
        window_tokens=tokens(held, stage),
        formula=how,
        source=source,
    )


def state_of_request(
    stage: Stage, ratio: int, per_layer: int | None, words: str, source: str
) -> CacheTerm:
    """The compressor's state of one ratio, where every request has one; None where its rows depend
    on what the configuration does not say."""
    layers = stage.owners[ratio]
    how = f"{layers} layers * {words}"
    why = "the rows of the ring depend on the draft tokens of speculative decoding"
    fixed: Value = Unknown(why=why, unit=BYTES_PER_REQUEST, evidence=stage.fields)
    if per_layer is not None:
        fixed = figure(layers * per_layer, BYTES_PER_REQUEST, how, stage)
    return CacheTerm(
        name=f"compressor state, ratio {ratio}",
        layers=layers,
        keeps=Keeps.STATE,
        fixed_bytes_per_request=fixed,
        formula=how,
        source=source,
    )


def tokens(count: int, stage: Stage) -> Known:
    return known(count, TOKENS, Origin.THEORETICAL, how="last tokens kept", evidence=stage.fields)


def _layers(number: int) -> str:
    return f"{number} layer{'' if number == 1 else 's'}"


def _tokens(number: int) -> str:
    return f"{number} token{'' if number == 1 else 's'}"


def shown(number: Fraction) -> str:
    """A figure of a formula as a reader writes it."""
    return f"{float(number):,.10g}"
