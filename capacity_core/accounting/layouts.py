"""The KV layout of the model whose config.json was given: which one reads it, and what stands in
its way."""

from __future__ import annotations

import itertools
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
    names = " and ".join(layout.name for layout in left or claims)
    if not left:
        raise LayoutError(f"the layouts {names} each replace another; name one with --layout")
    if len(left) > 1:
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
    releases: tuple[str, ...] = (),
    stages: int | None = None,
) -> tuple[LayoutRow | None, list[Finding]]:
    """What the configuration says of a rank of a deployment, the largest stage's, and what stands
    in the way of it; `stages` overrules the pipeline size.

    `printed` is the engine's own divisor, which tells variants of a layout apart, and the first and
    last of the `releases` that may have printed it, where that is not said.
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
        found, refused = [], []
        for placement in placements:
            try:
                row = _placed(config, layout, served, placement, on_failure, printed, releases)
            except LayoutError as error:
                refused.append(error)  # perhaps not a size that this model can have
            else:
                found += [] if row is None else [row]
        if refused and not found:
            raise refused[0]
        if found and open_size is not None and len({costs(row) for row in found}) != 1:
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
    releases: tuple[str, ...],
) -> LayoutRow | None:
    """The largest stage of a placement, in the variant that gives the printed divisor."""
    placed = attrs.evolve(serving, placement=placement)
    assuming: tuple[str, ...] = ()
    if isinstance(printed, Known) and _variants(layout):
        placed, assuming = _by_divisor(config, layout, placed, on_failure, printed, releases)
    rows = layout_rows(config, layout, placed, on_failure, assuming)
    return largest(rows) if rows else None


def _by_divisor(
    config: ModelConfig,
    layout: KVLayout,
    serving: Serving,
    on_failure: OnFailure,
    printed: Known,
    releases: tuple[str, ...],
) -> tuple[Serving, tuple[str, ...]]:
    """How the model is served in the variant that gives the divisor which the engine printed, and
    what using it assumes; as it was given where none does, and where those that do differ.

    Without a release both ends of those that may have printed it are tried, and with each a
    draft's layer that the divisor has as well.
    """
    fitting: dict[Value, list[tuple[Serving, str]]] = {}
    for variant, release, drafts in itertools.product(
        (serving.variant,) if serving.variant else _variants(layout),
        (serving.version,) if serving.version else releases or (None,),
        (0, 1),
    ):
        served = attrs.evolve(serving, variant=variant, version=release, draft_layers=drafts)
        try:
            rows = layout_rows(config, layout, served, on_failure)
        except LayoutError:
            continue  # a variant that this engine or release does not have
        if rows and agree(largest(rows).pool_bytes_per_token, printed):
            in_release = f" in {release}" if release and release != serving.version else ""
            words = f"{variant}{in_release}{' with a layer of a draft' if drafts else ''}"
            fitting.setdefault(largest(rows).bytes_per_token, []).append((served, words))
    if len(fitting) != 1:
        return serving, ()
    (same,) = fitting.values()
    names = " or ".join(words for _, words in same)
    return same[0][0], (f"the printed divisor, {printed.number:,}, is that of {names}",)


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
