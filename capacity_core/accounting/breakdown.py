"""Where each rank's memory went: categories, shares, what the log leaves open, beside what a device
tool measured."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from capacity_core.accounting.steps import steps
from capacity_core.api.device_readers import DeviceReading
from capacity_core.api.ledger import HELD, Category, RankFacts, Role, Stage
from capacity_core.api.report import (
    ABSENT,
    CategoryRow,
    CheckpointRow,
    DeviceRow,
    PartRow,
    RankRow,
)
from capacity_core.units import GIB
from capacity_core.values import Known, Unknown, Value, total

NOT_MEASURED = Unknown(why="no device reading was given (--smi)", unit=GIB)

# Without these the rest cannot be told from a part that is merely not known.
_ESSENTIAL = (Category.FRAMEWORK, Category.WEIGHTS, Category.KV_POOL, Category.CUDA_GRAPH)


def device_capacity(reading: DeviceReading | None) -> Value:
    """used + free of a device (GiB): what its processes can have. Not the tool's total, which holds
    the driver's reserve, too."""
    if reading is None:
        return NOT_MEASURED
    return (
        (reading.used.named("used") + reading.free.named("free"))
        .to(GIB)
        .named("device used + free")
    )


def rank_row(rank: RankFacts, reading: DeviceReading | None) -> RankRow:
    """One rank with its categories added up, as far as each is known."""
    memory = _memory(rank, reading)
    whole, share_of = _whole(rank, memory)
    return RankRow(
        id=rank.id.text,
        dp=rank.id.dp,
        pp=rank.id.pp,
        tp=rank.id.tp,
        label=rank.label,
        memory={
            name: CategoryRow(
                value=value,
                share=_share(value, whole) if name != "total" else None,
                inside=next((c for k, c in rank.inside.items() if k.value == name), None),
                note=next((n for k, n in rank.notes.items() if k.value == name), None),
            )
            for name, value in memory.items()
        },
        share_of=share_of,
        parts=tuple(
            PartRow(
                category=part.category,
                role=part.role,
                label=part.label,
                size=part.size,
                tokens=ABSENT if part.tokens is None else part.tokens,
            )
            for part in rank.parts
        ),
        timeline=tuple(
            CheckpointRow(
                stage=point.stage,
                free=point.free,
                role=ABSENT if point.role is Role.TARGET else point.role,
            )
            for point in rank.timeline
        ),
        steps=tuple(steps(rank)),
        device=None
        if reading is None
        else DeviceRow(
            used=reading.used, free=reading.free, total=reading.total, reserved=reading.reserved
        ),
        host_pools=rank.host_pools,
    )


def _memory(rank: RankFacts, reading: DeviceReading | None) -> dict[str, Value]:
    capacity = device_capacity(reading)
    held: dict[Category, Value] = {}
    for category in HELD:
        unsaid = Unknown(why=f"no line of {rank.label} says it", unit=GIB)
        held[category] = rank.memory.get(category, unsaid).named(category.value)
    before = rank.free(Stage.BEFORE_WEIGHTS)
    held[Category.FRAMEWORK] = (
        held[Category.FRAMEWORK] | (capacity - before.named("free[before_weights]"))
    ).named("framework")
    used: Value = NOT_MEASURED if reading is None else reading.used.to(GIB)
    free: Value = NOT_MEASURED if reading is None else reading.free.to(GIB)
    used = used.named("used")
    activation = rank.memory.get(
        Category.ACTIVATION, Unknown(why=f"no line of {rank.label} says it", unit=GIB)
    )
    return {
        "total": rank.device_total | capacity,
        **{category.value: value for category, value in held.items()},
        "other": used - _sum_of_held(held, _ESSENTIAL),
        "used": used,
        "free": free,
        "activation": activation,
        "unattributed": before.named("free[before_weights]")
        - rank.free(Stage.READY).named("free[ready]")
        - _sum_of_held(held, _ESSENTIAL[1:]),
    }


def _sum_of_held(held: Mapping[Category, Value], essential: tuple[Category, ...]) -> Value:
    """The essential categories, and the state pool where it is known: while it is null it counts as
    nothing."""
    terms = [held[category] for category in essential]
    state = held[Category.STATE_POOL]
    return total([*terms, state] if isinstance(state, Known) else terms)


def _whole(rank: RankFacts, memory: Mapping[str, Value]) -> tuple[Value | None, str | None]:
    for value, name in (
        (memory["used"], "used"),
        (rank.free(Stage.BEFORE_WEIGHTS), "free[before_weights]"),
    ):
        if isinstance(value, Known) and value.number > 0:
            return value, name
    return None, None


def _share(value: Value, whole: Value | None) -> float | None:
    if not isinstance(value, Known) or not isinstance(whole, Known):
        return None
    return round(float(value.number / whole.number), 4) if whole.number else None


def negative_beyond_error(value: Value) -> bool:
    """Whether a value is below zero by more than its rounding can explain."""
    return isinstance(value, Known) and value.number + value.error < Decimal(0)
