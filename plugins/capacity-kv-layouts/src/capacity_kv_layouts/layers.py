"""From what each layer keeps to the terms of one rank: the one way in which every family adds up.

A family says, for every layer of the model, which caches it has on one rank. The layers of the
rank's pipeline stage are then put together: equal caches are one term.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

import attrs

from capacity_core.api.config_fields import cited
from capacity_core.api.kv_layouts import (
    CacheTerm,
    Keeps,
    LayoutReading,
    Serving,
)
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_REQUEST, BYTES_PER_TOKEN, TOKENS, Unit
from capacity_core.values import Known, Origin, Unknown, Value, known


@attrs.frozen(kw_only=True)
class Cache:
    """What one layer keeps on one rank, and where the engine says so.

    `per_token` is B/token, `state` B/request; `window` the tokens of a window or chunk. Ranks of
    context parallel share the tokens of a `sharded` cache and each hold all of another. `formula`
    names the fields, for a cost that is not known.
    """

    name: str
    keeps: Keeps = Keeps.ALL
    per_token: Value | None = None
    state: Value | None = None
    window: Known | None = None
    sharded: bool = True
    formula: str
    source: str


Layers = Sequence[tuple[Cache, ...]]
"""For every layer of the model, the caches that it has on one rank."""


def amount(number: Fraction | int, unit: Unit, how: str, *operands: Known) -> Known:
    """A figure that follows from fields of the configuration, which it cites."""
    return attrs.evolve(
        known(number, unit, Origin.THEORETICAL, how=how, evidence=cited(*operands)),
        operands=operands,
        assuming=tuple(dict.fromkeys(why for operand in operands for why in operand.assuming)),
    )


def type_unknown(dtype: str | None, *operands: Known) -> Unknown:
    """What a cache costs whose stored type is not known."""
    why = (
        "the KV dtype is not known, hence not the bytes of an element"
        if dtype is None
        else f"the bytes of KV type {dtype} are not known"
    )
    return Unknown(why=why, unit=BYTES_PER_TOKEN, evidence=cited(*operands))


def assemble(
    family: str,
    layers: Layers,
    serving: Serving,
    *,
    counted: tuple[str, ...],
    replication: Value,
    formula: str,
    source: str,
    pool_ratio: Fraction | None = None,
    dtype: Value | None = None,
    average_draft: bool = False,
) -> LayoutReading:
    """The reading of one rank. `counted` are the fields that say how many layers there are and of
    which kind. With `pool_ratio` the engine divides its budget by the cost of all
    tokens plus that share of the cost of a window's; with `average_draft` a draft's layer costs
    what an average one of the stage does, else what the fullest one does.

    Raises LayoutError when the layers do not divide into the pipeline stages.
    """
    stage = serving.placement.layers(len(layers))
    counts = Counter(cache for index in stage for cache in layers[index])
    counts.update(
        _average_draft([layers[index] for index in stage], serving)
        if average_draft
        else _draft(layers, serving)
    )
    terms = tuple(
        _term(
            attrs.evolve(cache, source=_of_framework(cache.source, serving)), held, serving, counted
        )
        for cache, held in counts.items()
    )
    return LayoutReading(
        family=family,
        terms=terms,
        replication=replication,
        formula=formula,
        source=_of_framework(source, serving),
        pool_bytes_per_token=None if pool_ratio is None else _pool_divisor(terms, pool_ratio),
        dtype=dtype,
    )


_TITLES = {"sglang": "SGLang ", "vllm": "vLLM "}


def one_framework(serving: Serving, subject: str) -> str:
    """The framework's name, where engines differ in `subject`.

    Raises LayoutError when it is not given, and for one whose ways nobody wrote down here.
    """
    if serving.framework is None:
        raise LayoutError(
            f"engines differ in how they keep {subject}; name one with --framework sglang or vllm"
        )
    if serving.framework not in _TITLES:
        raise LayoutError(f"how {serving.framework} keeps {subject} is not known")
    return serving.framework


def _of_framework(source: str, serving: Serving) -> str:
    """What a list of sources says of the framework that serves; all of it where it says nothing."""
    title = _TITLES.get(serving.framework or "")
    own = [part for part in source.split("; ") if title and part.startswith(title)]
    return "; ".join(own) or source


def _draft(layers: Layers, serving: Serving) -> Counter[Cache]:
    """Caches of the draft's layers, which keep every token as the model's fullest layer does.

    SGLang charges every stage for them (pool_configurator.py:270), vLLM the last one.
    """
    placement = serving.placement
    last = placement.stage == placement.pipeline - 1
    if not serving.draft_layers or (serving.framework == "vllm" and not last):
        return Counter()
    kept = [tuple(c for c in caches if c.keeps is Keeps.ALL) for caches in layers]
    fullest = max(kept, key=len)
    if any(cache.window is not None for caches in layers for cache in caches):
        why = "whether the draft's layers keep a window is not in the configuration"
        nothing = Unknown(why=why, unit=BYTES_PER_TOKEN)
        some = fullest or layers[0]
        fullest = tuple(
            attrs.evolve(cache, keeps=Keeps.ALL, window=None, per_token=nothing) for cache in some
        )
    return Counter(
        {
            attrs.evolve(cache, name=f"{cache.name} of the draft"): serving.draft_layers
            for cache in fullest
        }
    )


def _average_draft(stage: Layers, serving: Serving) -> Counter[Cache]:
    """The draft's layers together, as SGLang prices them where layers differ: whole bytes of its
    share of the stage's layers (pool_configurator.py:310)."""
    caches = [cache for layer in stage for cache in layer if cache.per_token is not None]
    if not serving.draft_layers or not caches:
        return Counter()
    costs = [cache.per_token for cache in caches if isinstance(cache.per_token, Known)]
    share = Fraction(serving.draft_layers, len(stage))
    cost: Value | None = caches[0].per_token
    if len(costs) == len(caches):
        total = sum((Fraction(each.number) for each in costs), Fraction(0))
        how = f"{serving.draft_layers} / {len(stage)} of the stage's {total} B"
        cost = amount(total * share // 1, BYTES_PER_TOKEN, how, *dict.fromkeys(costs))
    return Counter(
        [attrs.evolve(caches[0], name="draft, priced as average layers", per_token=cost)]
    )


def _term(cache: Cache, layers: int, serving: Serving, counted: tuple[str, ...]) -> CacheTerm:
    ranks = serving.placement.context if cache.sharded and cache.keeps is Keeps.ALL else 1
    state = cache.state
    grows = cache.keeps is Keeps.STATE and serving.framework == "vllm"
    if state is not None and grows and serving.draft_layers:
        # A wider convolution, and a state for each (vllm/model_executor/layers/mamba/abstract.py).
        state = Unknown(why=_DRAFTED_STATE, unit=BYTES_PER_REQUEST, evidence=state.evidence)
    return CacheTerm(
        name=cache.name,
        layers=layers,
        keeps=cache.keeps,
        bytes_per_token=None
        if cache.per_token is None
        else _times(cache.per_token, layers, ranks, whole=serving.framework == "sglang").cite(
            *counted
        ),
        window_tokens=None if cache.window is None else attrs.evolve(cache.window, unit=TOKENS),
        fixed_bytes_per_request=None if state is None else _times(state, layers).cite(*counted),
        formula=None if isinstance(cache.per_token or state, Known) else cache.formula,
        source=cache.source,
    )


_DRAFTED_STATE = "how many tokens are drafted in a step, which its states grow by, is not said"


def _times(value: Value, layers: int, ranks: int = 1, *, whole: bool = False) -> Value:
    """The cost in so many layers; `whole` bytes where SGLang divides all scales by their block at
    once (pool_configurator.py:468)."""
    if isinstance(value, Unknown):
        return value
    cost = value.number * layers
    cost = (cost // 1 if whole else cost) / ranks
    shared = f" / {ranks} ranks that share the tokens" if ranks > 1 else ""
    return attrs.evolve(
        value,
        amount=cost,
        how=f"{layers} layer{'s' * (layers > 1)} * {value.how}{shared}",
    )


def _pool_divisor(terms: Sequence[CacheTerm], ratio: Fraction) -> Value:
    if all(term.keeps is not Keeps.ALL for term in terms):
        ratio = Fraction(1)  # a stage of windows alone has one pool (pool_configurator.py:789)
    share = Decimal(ratio.numerator) / Decimal(ratio.denominator)
    values = [
        term.bytes_per_token if term.keeps is Keeps.ALL else term.bytes_per_token * share
        for term in terms
        if term.bytes_per_token is not None
    ]
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result
