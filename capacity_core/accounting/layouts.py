"""The KV layout of the model whose config.json was given: which one reads it, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

import attrs

from capacity_core.api.extractors import Extractor
from capacity_core.api.kv_layouts import (
    CacheTerm,
    Keeps,
    KVLayout,
    LayerSplit,
    LayoutReading,
    ModelConfig,
    Placement,
    Serving,
    in_bytes_per_request,
)
from capacity_core.api.ledger import Deployment, Finding, Ledger, Severity
from capacity_core.api.report import ABSENT, LayoutRow, TermRow
from capacity_core.errors import LayoutError, UsageError
from capacity_core.units import BYTES, BYTES_PER_REQUEST, BYTES_PER_TOKEN, COUNT, REQUESTS, TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, agree, known, least, text, total

_UNSAID = Unknown(why="the log prints no divisor", unit=BYTES_PER_TOKEN)
_WINDOWED = (Keeps.WINDOW, Keeps.CHUNK)

ONE_STAGE = known(1, COUNT, Origin.ASSUMED, how="all layers of the model")


Blame = Callable[[str, str], None]
"""Takes the name of a plugin's item that broke, and why."""


def named(layouts: Sequence[KVLayout], name: str | None) -> tuple[Sequence[KVLayout], str | None]:
    """The layouts that an option leaves, and the variant that it asks for: its name is a layout's
    or a variant's.

    Raises UsageError, naming what there is, when it is neither.
    """
    if name is None:
        return layouts, None
    for layout in layouts:
        if name == layout.name or name in _variants(layout):
            return (layout,), None if name == layout.name else name
    names = [each for layout in layouts for each in (layout.name, *_variants(layout))]
    raise UsageError(f"--layout {name}: there are: {', '.join(names) or 'none'}")


def _variants(layout: KVLayout) -> tuple[str, ...]:
    return getattr(layout, "variants", ())


def claim(
    config: ModelConfig, layouts: Iterable[KVLayout], blame: Blame, *, asked: bool
) -> KVLayout | None:
    """The first layout that applies; with `asked`, the first one."""
    for layout in layouts:
        try:
            if asked or layout.applies(config):
                return layout
        # The border of a plugin: another layout may still know the model.
        except Exception as error:  # noqa: BLE001
            blame(layout.name, f"{type(error).__name__}: {error}")
    return None


def layout_rows(
    config: ModelConfig, layout: KVLayout, serving: Serving, blame: Blame
) -> list[LayoutRow]:
    """What the layout says of one rank of each pipeline stage; nothing when it breaks.

    Raises LayoutError when it refuses the configuration.
    """
    rows = []
    for stage in range(serving.placement.pipeline):
        here = attrs.evolve(serving, placement=attrs.evolve(serving.placement, stage=stage))
        try:
            rows.append(_row(layout.name, layout.read(config, here), here))
        except LayoutError:
            raise
        # The border of a plugin: what it cannot read stays unknown.
        except Exception as error:  # noqa: BLE001
            blame(layout.name, f"{type(error).__name__}: {error}")
            return []
    return rows


def largest(rows: Iterable[LayoutRow]) -> LayoutRow:
    """The stage with the most bytes: by what a token costs, then a window's, then a state."""

    def weight(row: LayoutRow) -> tuple[Decimal, ...]:
        values = (row.bytes_per_token, row.window_bytes_per_token, row.fixed_bytes_per_request)
        return tuple(value.number if isinstance(value, Known) else Decimal(-1) for value in values)

    return max(rows, key=weight)


def layout_of(
    config: ModelConfig,
    layouts: Iterable[KVLayout],
    deployment: Deployment,
    serving: Serving,
    blame: Blame,
    *,
    asked: bool,
    printed: Value = _UNSAID,
) -> tuple[LayoutRow | None, list[Finding]]:
    """What the configuration says of a rank of a deployment, and what stands in the way of it.

    `printed` is the engine's own divisor, which tells variants of a layout apart.
    """
    layout = claim(config, layouts, blame, asked=asked)
    if layout is None:
        return None, [_finding("layout-unknown", nobody_knows(config))]
    try:
        placed = attrs.evolve(serving, placement=_placement(deployment, serving.placement.split))
        told = _by_divisor(config, layout, placed, blame, printed)
        if told is not None:
            return told, []
        rows = layout_rows(config, layout, placed, blame)
    except LayoutError as error:
        refused = _finding("layout-refused", f"{layout.name}: {error}")
        return _refused(layout.name, str(error)), [refused]
    return (largest(rows), []) if rows else (None, [])


def _by_divisor(
    config: ModelConfig, layout: KVLayout, serving: Serving, blame: Blame, printed: Value
) -> LayoutRow | None:
    """The row of the one variant that gives the divisor that the engine printed; None where none
    does, several do, or one was asked for."""
    if serving.variant is not None or not isinstance(printed, Known):
        return None
    fitting: dict[Value, LayoutRow] = {}
    for name in _variants(layout):
        try:
            rows = layout_rows(config, layout, attrs.evolve(serving, variant=name), blame)
        except LayoutError:
            continue  # a variant that this engine or release does not have
        if not rows:
            continue
        row = largest(rows)
        if agree(row.pool_bytes_per_token, printed):
            why = f"the printed divisor, {printed.number:,}, is that of {name}"
            assumed = attrs.evolve(row, bytes_per_token=row.bytes_per_token.assume(why))
            fitting.setdefault(row.bytes_per_token, assumed)
    return next(iter(fitting.values())) if len(fitting) == 1 else None


def _finding(code: str, message: str) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, message=message, evidence=("config0",))


def nobody_knows(config: ModelConfig) -> str:
    """What to say of a model that no layout claims."""
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    kind = config.get("model_type") or first or "this model (no model_type, no architectures)"
    return (
        f"no KV layout knows every layer of {kind}: bytes per token stay unknown "
        "rather than counting all layers as full attention"
    )


def serving_of(ledger: Ledger, config: ModelConfig, split: LayerSplit | None) -> Serving:
    """How a log's server serves the model; the stored type is as allocated, as asked for, or for
    `auto` the model's own. The sizes of its placement are not judged here."""
    deployment = ledger.deployment
    types = [
        str(value.amount)
        for value in (deployment.kv_cache_dtype_resolved, deployment.kv_cache_dtype)
        if isinstance(value, Known)
    ]
    page, version = deployment.page_size, deployment.version
    dtype, assumed = stored_type(next((t for t in types if t != "auto"), "auto"), config)
    return Serving(
        framework=ledger.framework,
        version=str(version.amount) if isinstance(version, Known) else None,
        placement=Placement(split=split),
        dtype=dtype if types else None,
        dtype_assumed=assumed,
        page_size=int(page.number) if isinstance(page, Known) and page.number > 0 else None,
        speculative=isinstance(deployment.speculative, Known),
        sizing_mode=str(mode.amount) if isinstance(mode := ledger.kv.sizing_mode, Known) else None,
        window_share=share.number if isinstance(share := ledger.kv.window_share, Known) else None,
    )


def layer_split(extractor: Extractor | None) -> LayerSplit | None:
    """How a framework cuts layers into stages; None when its plugin does not say."""
    return getattr(extractor, "split_layers", None)


def stored_type(asked: str, config: ModelConfig) -> tuple[str | None, bool]:
    """The name of the stored type, and whether it was assumed: `auto` is the model's own, unless
    its quantization names one for KV."""
    if asked != "auto":
        return _plain(asked), False
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict) and any(
        said for name, said in quantization.items() if "kv_cache" in name
    ):
        return None, True
    own = config.get("dtype") or config.get("torch_dtype")
    name = None if own is None else _plain(str(own))
    # Engines load checkpoints of 32 bits in 16, in a type that they choose.
    return (None if name == "fp32" else name), True


_NAMES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8_e5m2fnuz": "fp8_e5m2",
}


def _plain(dtype: str) -> str:
    """One name for a type, however it was printed."""
    name = dtype.removeprefix("torch.").lower()
    return _NAMES.get(name, name)


def _placement(deployment: Deployment, split: LayerSplit | None) -> Placement:
    """Raises LayoutError, with the reason, when the log leaves a size open."""
    parallel = deployment.parallel
    sizes = []
    for name, size in (
        ("attention tensor parallel", parallel.attention_tensor),
        ("pipeline parallel", parallel.pipeline),
    ):
        if not isinstance(size, Known) or size.number < 1:
            why = size.why if isinstance(size, Unknown) else "it is printed as less than 1"
            raise LayoutError(f"the {name} size is not known ({why})")
        sizes.append(int(size.number))
    return Placement(attention_tensor=sizes[0], pipeline=sizes[1], split=split)


def request_bytes(layout: LayoutRow, tokens: int, page: int | None) -> Value:
    """What one request of so many tokens keeps on one device, in whole pages where their size is
    known: every token in the caches that keep all, at most a window in others, and its states."""
    pages = tokens if page is None else -(-tokens // page) * page
    parts = [_term_bytes(term, pages, page) for term in layout.terms]
    return total(parts) if parts else known(0, BYTES, Origin.THEORETICAL, how="no layer keeps KV")


def _term_bytes(term: TermRow, tokens: int, page: int | None) -> Value:
    held: Value = known(tokens, TOKENS, Origin.CONFIGURED, name=f"{tokens} tokens")
    if term.window_tokens is not None:
        window = term.window_tokens
        if isinstance(window, Known) and page is not None:
            whole = -(-int(window.number) // page) * page
            window = known(whole, TOKENS, Origin.THEORETICAL, evidence=window.evidence)
        held = least((held, window))
    cost = (term.bytes_per_token * held).to(BYTES)
    if term.fixed_bytes_per_request is None:
        return cost
    one = known(1, REQUESTS, Origin.CONFIGURED, name="1 request")
    return cost + (term.fixed_bytes_per_request * one).to(BYTES)


# --- rows -------------------------------------------------------------


def _row(name: str, reading: LayoutReading, serving: Serving) -> LayoutRow:
    terms = [_assuming(term, reading, serving) for term in reading.terms]
    growing = [t.bytes_per_token for t in terms if t.keeps is Keeps.ALL]
    windowed = [term for term in terms if term.keeps in _WINDOWED]
    fixed = [t.fixed_bytes_per_request for t in terms if t.fixed_bytes_per_request]
    no_state = "this layout has no state that does not grow"
    return LayoutRow(
        name=name,
        family=reading.family,
        source=reading.source,
        formula=reading.formula,
        dtype=reading.dtype or _dtype(serving),
        terms=tuple(_term(term) for term in terms),
        bytes_per_token=total(growing) if growing else _none(),
        window_bytes_per_token=total([t.bytes_per_token for t in windowed])
        if windowed
        else Unknown(why="no layer keeps a window", unit=BYTES_PER_TOKEN),
        window_tokens=_window(windowed),
        fixed_bytes_per_request=total(fixed) if fixed else in_bytes_per_request(no_state),
        replication=reading.replication,
        pool_bytes_per_token=reading.pool_bytes_per_token
        or Unknown(why="the engine divides by the sum of the terms", unit=BYTES_PER_TOKEN),
    )


def _assuming(term: CacheTerm, reading: LayoutReading, serving: Serving) -> CacheTerm:
    """A term whose bytes rest on what `auto` is taken for."""
    if not serving.dtype_assumed or reading.dtype is not None or serving.dtype is None:
        return term
    return attrs.evolve(term, bytes_per_token=term.bytes_per_token.assume(_own_type(serving)))


def _own_type(serving: Serving) -> str:
    return f"the KV cache's auto type is the model's own, {serving.dtype}"


def _dtype(serving: Serving) -> Value:
    """The stored type that the figures are of."""
    if serving.dtype is None:
        return Unknown(why="auto, and nothing says which type that is here")
    if serving.dtype_assumed:
        own = text(serving.dtype, Origin.ASSUMED, how="the model's own type")
        return own.assume(_own_type(serving))
    return text(serving.dtype, Origin.CONFIGURED, how="the KV type that was asked for")


def _none() -> Known:
    """No layer of the model keeps every token."""
    return known(0, BYTES_PER_TOKEN, Origin.THEORETICAL, how="no layer keeps every token")


def _window(windowed: Sequence[CacheTerm]) -> Value:
    values = [term.window_tokens for term in windowed if term.window_tokens is not None]
    if not values:
        return Unknown(why="no layer keeps a window", unit=TOKENS)
    sizes = {value.number if isinstance(value, Known) else None for value in values}
    if len(sizes) == 1:
        return values[0]
    return Unknown(why="windows of several sizes: see the terms", unit=TOKENS)


def _term(term: CacheTerm) -> TermRow:
    per_token = term.bytes_per_token
    return TermRow(
        name=term.name,
        layers=term.layers,
        keeps=term.keeps,
        bytes_per_token=per_token,
        window_tokens=term.window_tokens,
        fixed_bytes_per_request=term.fixed_bytes_per_request,
        formula=term.formula or (per_token.how if isinstance(per_token, Known) else None),
        source=term.source,
        steps=term.steps,
        slot=ABSENT if term.slot is None else term.slot,
    )


def _refused(name: str, why: str) -> LayoutRow:
    per_token = Unknown(why=why, unit=BYTES_PER_TOKEN)
    return LayoutRow(
        name=name,
        family=None,
        source=None,
        formula=None,
        dtype=Unknown(why=why),
        terms=(),
        bytes_per_token=per_token,
        window_bytes_per_token=per_token,
        window_tokens=Unknown(why=why, unit=TOKENS),
        fixed_bytes_per_request=Unknown(why=why, unit=BYTES_PER_REQUEST),
        replication=Unknown(why=why, unit=COUNT),
        pool_bytes_per_token=per_token,
    )
