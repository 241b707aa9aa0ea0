"""The KV layout of the model whose config.json was given: which one reads it, and what stands in
its way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from capacity_core.accounting.layout_rows import costs, largest, layout_row, refused_row
from capacity_core.accounting.serving import placements_of
from capacity_core.api.kv_layouts import KVLayout, ModelConfig, Placement, Serving
from capacity_core.api.ledger import Deployment, Finding, Severity
from capacity_core.api.report import LayoutRow
from capacity_core.errors import LayoutError, OnFailure, UsageError
from capacity_core.units import BYTES_PER_TOKEN, COUNT
from capacity_core.values import Known, Unknown, Value, agree

_UNSAID = Unknown(why="the log prints no divisor", unit=BYTES_PER_TOKEN)


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
    raise UsageError(f"--layout {name}: unknown; there are: {', '.join(names) or 'none'}")


def _variants(layout: KVLayout) -> tuple[str, ...]:
    return tuple(getattr(layout, "variants", ()))


def claim(
    config: ModelConfig, layouts: Iterable[KVLayout], on_failure: OnFailure, *, asked: bool
) -> KVLayout | None:
    """The layout that applies, and that no other that does replaces; with `asked`, the first one.

    Raises LayoutError when several are left: none is guessed to be right.
    """
    claims = []
    for layout in layouts:
        try:
            if asked or layout.applies(config):
                claims.append(layout)
        # The border of a plugin: another layout may still know the model.
        except Exception as error:  # noqa: BLE001
            on_failure(layout.name, f"{type(error).__name__}: {error}")
    if asked or not claims:
        return claims[0] if claims else None
    replaced = {name for layout in claims for name in getattr(layout, "replaces", ())}
    left = [layout for layout in claims if layout.name not in replaced]
    if len(left) != 1:
        names = " and ".join(layout.name for layout in left or claims)
        raise LayoutError(
            f"the layouts {names} claim this model; name one with --layout, or let one say that it "
            "replaces the other"
        )
    return left[0]


def layout_rows(
    config: ModelConfig,
    layout: KVLayout,
    serving: Serving,
    on_failure: OnFailure,
    assuming: tuple[str, ...] = (),
) -> list[LayoutRow]:
    """What the layout says of one rank of each pipeline stage; nothing when it breaks.

    Raises LayoutError, with the layout's name, when it refuses the configuration.
    """
    rows = []
    for stage in range(serving.placement.pipeline):
        here = attrs.evolve(serving, placement=attrs.evolve(serving.placement, stage=stage))
        try:
            rows.append(layout_row(layout.name, layout.read(config, here), here, assuming))
        except LayoutError as error:
            raise LayoutError(f"{layout.name}: {error}") from None
        # The border of a plugin: what it cannot read stays unknown.
        except Exception as error:  # noqa: BLE001
            on_failure(layout.name, f"{type(error).__name__}: {error}")
            return []
    return rows


def layout_of(
    config: ModelConfig,
    layouts: Iterable[KVLayout],
    deployment: Deployment,
    serving: Serving,
    on_failure: OnFailure,
    *,
    asked: bool,
    printed: Value = _UNSAID,
    stages: int | None = None,
) -> tuple[LayoutRow | None, list[Finding]]:
    """What the configuration says of a rank of a deployment, the largest stage's, and what stands
    in the way of it; with `stages` as if there were so many.

    `printed` is the engine's own divisor, which tells variants of a layout apart.
    """
    try:
        layout = claim(config, layouts, on_failure, asked=asked)
    except LayoutError as error:
        return None, [_finding("layout-clash", str(error))]
    if layout is None:
        return None, [_finding("layout-unknown", nobody_knows(config))]
    try:
        placements, lines, open_size = placements_of(deployment, serving.placement.split, stages)
        served = attrs.evolve(serving, evidence=(*serving.evidence, *lines))
        found = []
        for placement in placements:
            try:
                row = _placed(config, layout, served, placement, on_failure, printed)
            except LayoutError:
                if open_size is None:
                    raise
                continue  # not a size that this model can have
            found += [] if row is None else [row]
        if open_size is not None and len({costs(row) for row in found}) != 1:
            raise LayoutError(f"{layout.name}: {open_size}")
    except LayoutError as error:
        return refused_row(layout.name, str(error)), [_finding("layout-refused", str(error))]
    if not found:
        return None, []
    if open_size is None:
        return found[0], []
    return attrs.evolve(found[0], replication=Unknown(why=open_size, unit=COUNT)), []


def _placed(
    config: ModelConfig,
    layout: KVLayout,
    serving: Serving,
    placement: Placement,
    on_failure: OnFailure,
    printed: Value,
) -> LayoutRow | None:
    """The largest stage of a placement, in the variant that gives the printed divisor."""
    placed = attrs.evolve(serving, placement=placement)
    variant = _by_divisor(config, layout, placed, on_failure, printed)
    assuming = () if variant is None else (variant[1],)
    if variant is not None:
        placed = attrs.evolve(placed, variant=variant[0])
    rows = layout_rows(config, layout, placed, on_failure, assuming)
    return largest(rows) if rows else None


def _by_divisor(
    config: ModelConfig, layout: KVLayout, serving: Serving, on_failure: OnFailure, printed: Value
) -> tuple[str, str] | None:
    """The variant that gives the divisor that the engine printed, and what using it assumes; None
    where none does, where those that do differ, or where one was asked for."""
    if serving.variant is not None or not isinstance(printed, Known):
        return None
    fitting: dict[Value, list[str]] = {}
    for name in _variants(layout):
        try:
            rows = layout_rows(config, layout, attrs.evolve(serving, variant=name), on_failure)
        except LayoutError:
            continue  # a variant that this engine or release does not have
        if rows and agree(largest(rows).pool_bytes_per_token, printed):
            fitting.setdefault(largest(rows).bytes_per_token, []).append(name)
    if len(fitting) != 1:
        return None
    (names,) = fitting.values()
    why = f"the printed divisor, {printed.number:,}, is that of {' and '.join(names)}"
    return names[0], why


def _finding(code: str, message: str) -> Finding:
    return Finding(code=code, severity=Severity.WARNING, message=message, evidence=("config0",))


def nobody_knows(config: ModelConfig) -> str:
    """What to say of a model that no layout claims."""
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    kind = config.get("model_type") or first or "this model (no model_type, no architectures)"
    if not any("layer" in name for name in config):
        return (
            f"the configuration of {kind} names no layers: one that leaves its fields to defaults "
            "cannot be read, take the file of the model itself"
        )
    return (
        f"no KV layout knows every layer of {kind}: bytes per token stay unknown "
        "rather than counting all layers as full attention"
    )
