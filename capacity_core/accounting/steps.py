"""The timeline of one rank: what every step between two readings of free memory is owed to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from capacity_core.api.ledger import Category, Checkpoint, RankFacts, Role, Stage
from capacity_core.api.report import StepRow
from capacity_core.units import GIB
from capacity_core.values import Known, Origin, Unknown, Value, known, total

# What is allocated on the way to a stage, after the reading before it.
_OWNERS: dict[Stage, tuple[Category, ...]] = {
    Stage.AFTER_WEIGHTS: (Category.WEIGHTS,),
    Stage.AFTER_POOLS: (Category.KV_POOL, Category.STATE_POOL),
    Stage.AFTER_GRAPHS: (Category.CUDA_GRAPH,),
}


def steps(rank: RankFacts) -> Iterator[StepRow]:
    """Each step in the order of the log. Their changes telescope: readings cancel exactly."""
    points = [point for point in rank.timeline if isinstance(point.free, Known)]
    for before, after in itertools.pairwise(points):
        owners = _OWNERS.get(after.stage, ())
        change = before.free.named(_name(before)) - after.free.named(_name(after))
        explained = _explained(rank, after.role, owners)
        yield StepRow(
            since=_name(before),
            until=_name(after),
            change=change,
            owner=owners[0] if owners else None,
            explained=explained,
            unattributed=change - explained,
        )


def _name(point: Checkpoint) -> str:
    role = "" if point.role is Role.TARGET else f",{point.role.value}"
    return f"free[{point.stage.value}{role}]"


def _explained(rank: RankFacts, role: Role, owners: tuple[Category, ...]) -> Value:
    """What lines say of these categories, for one role; nothing owns a step without owners."""
    if not owners:
        return known(0, GIB, Origin.DERIVED, name="nothing", how="no line owns this step")
    sizes = [
        part.size.to(GIB) for part in rank.parts if part.category in owners and part.role is role
    ]
    if not sizes:
        return Unknown(
            why=f"{rank.label} prints no {owners[0].value} of the {role.value}", unit=GIB
        )
    return total(sizes, f"{owners[0].value}[{role.value}]")
