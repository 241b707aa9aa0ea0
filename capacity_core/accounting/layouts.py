"""The KV layout of the model whose config.json was given: which one reads it, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal

import attrs

from capacity_core.api.kv_layouts import (
    CacheTerm,
    KVLayout,
    LayoutReading,
    ModelConfig,
    Placement,
)
from capacity_core.api.ledger import Deployment, Finding, Ledger, Severity, TokenUse
from capacity_core.api.report import ABSENT, LayoutRow, TermRow
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_REQUEST, BYTES_PER_TOKEN, COUNT, TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, total

# Types that store an element in so many bytes and nothing beside it: those with scales per block or
# per head take more.
_ELEMENT_BYTES = {
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "fp16": 2,
    "half": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
}


def layout_row(
    config: ModelConfig,
    layouts: Iterable[KVLayout],
    deployment: Deployment,
    blame: Callable[[str, str], None],
    *,
    asked: bool,
) -> tuple[LayoutRow | None, list[Finding]]:
    """What the first layout that applies says of one rank; with `asked`, what the first one says.

    A layout that breaks is reported to `blame` by name and reason.
    """
    dtype_bytes, assumption = _element_bytes(deployment, config)
    for layout in layouts:
        try:
            if not asked and not layout.applies(config):
                continue
            reading = layout.read(config, _placement(deployment), dtype_bytes)
            return _row(layout.name, reading, assumption), []
        except LayoutError as error:
            refused = Finding(
                code="layout-refused",
                severity=Severity.WARNING,
                message=f"{layout.name}: {error}",
                evidence=("config0",),
            )
            return _refused(layout.name, str(error)), [refused]
        # The border of a plugin: another layout may still know the model.
        except Exception as error:  # noqa: BLE001
            blame(layout.name, f"{type(error).__name__}: {error}")
    kind = config.get("model_type") or config.get("architectures") or "this model"
    unknown = Finding(
        code="layout-unknown",
        severity=Severity.WARNING,
        message=(
            f"no KV layout knows every layer of {kind}: bytes per token stay unknown "
            "rather than counting all layers as full attention"
        ),
        evidence=("config0",),
    )
    return None, [unknown]


def with_layout(ledger: Ledger, layout: LayoutRow | None) -> Ledger:
    """The ledger, told by the configuration that all layers keep every token at one price.

    Then tokens that an engine derived for its longest request hold at any length, provided that
    this longest request is whole blocks (else they are fewer than the pool has) and no draft model,
    which the configuration does not describe, shares the pool.
    """
    kv, context = ledger.kv, ledger.deployment.context_length
    if (
        kv.token_use is not TokenUse.LONGEST_ONLY
        or layout is None
        or not _one_price(layout)
        or isinstance(ledger.deployment.speculative, Known)
        or not kv.blocks
        or not isinstance(context, Known)
        or any(int(context.number) % block for block in kv.blocks)
    ):
        return ledger
    # What the engine cut off when it made the product a whole number.
    half = Decimal(1) / 2
    cut = Known(amount=half, error=half, unit=TOKENS, origin=Origin.DERIVED, how="cut off")
    unusable = cut if kv.unusable is None else kv.unusable - cut
    return attrs.evolve(
        ledger, kv=attrs.evolve(kv, token_use=TokenUse.ANY_LENGTH, unusable=unusable)
    )


def _one_price(layout: LayoutRow) -> bool:
    return bool(layout.terms) and all(
        term.window_tokens is None and term.fixed_bytes_per_request is None and term.slot is ABSENT
        for term in layout.terms
    )


def _placement(deployment: Deployment) -> Placement:
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
    return Placement(attention_tensor=sizes[0], pipeline=sizes[1])


def _element_bytes(deployment: Deployment, config: ModelConfig) -> tuple[int | None, str | None]:
    """Bytes of a stored element, and what was assumed to know them.

    As allocated, as asked for, and for `auto` the model's own type, unless its configuration brings
    a quantization, which may cover KV as well.
    """
    for value in (deployment.kv_cache_dtype_resolved, deployment.kv_cache_dtype):
        if isinstance(value, Known) and value.amount != "auto":
            return _ELEMENT_BYTES.get(str(value.amount).removeprefix("torch.").lower()), None
    asked = deployment.kv_cache_dtype
    own = config.get("dtype") or config.get("torch_dtype")
    if isinstance(asked, Known) and not config.get("quantization_config"):
        size = _ELEMENT_BYTES.get(str(own).removeprefix("torch."))
        return size, f"the KV cache's auto type is the model's own, {own}" if size else None
    return None, None


def _row(name: str, reading: LayoutReading, assumption: str | None) -> LayoutRow:
    fixed = [t.fixed_bytes_per_request for t in reading.terms if t.fixed_bytes_per_request]
    return LayoutRow(
        name=name,
        family=reading.family,
        replication=reading.replication,
        terms=tuple(_term(term, assumption) for term in reading.terms),
        bytes_per_token=_assuming(reading.bytes_per_token, assumption),
        fixed_bytes_per_request=total(fixed)
        if fixed
        else Unknown(why="this layout has no state that does not grow", unit=BYTES_PER_REQUEST),
        formula=reading.formula,
        source=reading.source,
    )


def _term(term: CacheTerm, assumption: str | None) -> TermRow:
    return TermRow(
        name=term.name,
        layers=term.layers,
        bytes_per_token=_assuming(term.bytes_per_token, assumption),
        window_tokens=term.window_tokens,
        fixed_bytes_per_request=term.fixed_bytes_per_request,
        slot=ABSENT if term.slot is None else term.slot,
    )


def _assuming(value: Value, assumption: str | None) -> Value:
    return value.assume(assumption) if assumption else value


def _refused(name: str, why: str) -> LayoutRow:
    return LayoutRow(
        name=name,
        family=None,
        replication=Unknown(why=why, unit=COUNT),
        terms=(),
        bytes_per_token=Unknown(why=why, unit=BYTES_PER_TOKEN),
        fixed_bytes_per_request=Unknown(why=why, unit=BYTES_PER_REQUEST),
        formula=None,
        source=None,
    )
