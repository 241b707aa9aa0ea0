"""The timeline of one rank: what every step between two readings of free memory is owed to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs

from capacity_core.api.ledger import Category, Checkpoint, Part, RankFacts, Role, Stage
from capacity_core.api.report import StepRow
from capacity_core.units import GIB
from capacity_core.values import Known, Origin, Unknown, Value, known, total

_HELD_SINCE = {
    Category.WEIGHTS: Stage.AFTER_WEIGHTS,
    Category.KV_POOL: Stage.AFTER_POOLS,
    Category.STATE_POOL: Stage.AFTER_POOLS,
    Category.CUDA_GRAPH: Stage.AFTER_GRAPHS,
}
"""The stage before which each category is allocated."""

_ORDER = list(Stage)
_NOTHING = known(0, GIB, Origin.DERIVED, name="nothing", how="no line owns this step")


@attrs.frozen(kw_only=True)
class _Allocation:
    """Parts of one role that begin to be held at one stage, and the steps in which that may be."""

    category: Category
    size: Value
    steps: range


def steps(rank: RankFacts) -> Iterator[StepRow]:
    """Each step in the order of the log. Their changes telescope: readings cancel exactly.

    What is allocated between two readings belongs to their step. Where the reading behind an
    allocation is not in the log, and others stand between its neighbours, it may belong to any of
    their steps: these are explained by nothing known.
    """
    points = [point for point in rank.timeline if isinstance(point.free, Known)]
    allocations = list(_allocations(rank, points))
    for number, (before, after) in enumerate(itertools.pairwise(points)):
        mine = [a for a in allocations if number in a.steps]
        change = before.free.named(_name(before)) - after.free.named(_name(after))
        explained = _explained(mine)
        yield StepRow(
            since=_name(before),
            until=_name(after),
            change=change,
            owners=tuple(dict.fromkeys(a.category for a in mine)),
            explained=explained,
            unattributed=change - explained,
        )


def _name(point: Checkpoint) -> str:
    role = "" if point.role is Role.TARGET else f",{point.role.value}"
    return f"free[{point.stage.value}{role}]"


def _explained(mine: Sequence[_Allocation]) -> Value:
    if not mine:
        return _NOTHING
    if any(len(allocation.steps) > 1 for allocation in mine):
        return Unknown(why="a reading between the steps of this one is not in the log", unit=GIB)
    return total([allocation.size for allocation in mine])


def _allocations(rank: RankFacts, points: Sequence[Checkpoint]) -> Iterator[_Allocation]:
    roles = {point.role for point in points} | {part.role for part in rank.parts}
    for role in sorted(roles):
        for category, default in _HELD_SINCE.items():
            parts = [p for p in rank.parts if p.category is category and p.role is role]
            for stage in sorted({_since(p, default) for p in parts}, key=_ORDER.index):
                held = [p.size.to(GIB) for p in parts if _since(p, default) is stage]
                where = _where(points, role, stage)
                yield _Allocation(category=category, size=total(held), steps=where)
            if not parts and category is not Category.STATE_POOL and _passed(points, role, default):
                why = f"{rank.label} prints no {category.value} of the {role.value}"
                size = Unknown(why=why, unit=GIB)
                where = _where(points, role, default)
                yield _Allocation(category=category, size=size, steps=where)


def _since(part: Part, default: Stage) -> Stage:
    return part.since or default


def _passed(points: Sequence[Checkpoint], role: Role, stage: Stage) -> bool:
    """Whether this role was past a stage, having been before it."""
    mine = [_ORDER.index(point.stage) for point in points if point.role is role]
    place = _ORDER.index(stage)
    return any(n < place for n in mine) and any(n >= place for n in mine)


def _where(points: Sequence[Checkpoint], role: Role, stage: Stage) -> range:
    """The steps, by number, in which something may have been allocated that a stage holds."""
    place = _ORDER.index(stage)
    earlier = later = None
    for number, point in enumerate(points):
        mine = point.role is role or point.stage is Stage.READY  # which closes every model's start
        if not mine:
            continue
        if point.role is role and point.stage is stage:
            return range(number - 1, number)
        if _ORDER.index(point.stage) < place:
            earlier = number
        elif later is None:
            later = number
    first = earlier if earlier is not None else 0
    if later is None:
        # A draft model's graphs are captured last of all.
        last = role is Role.DRAFT and stage is Stage.AFTER_GRAPHS
        return range(0) if last else range(first, max(first, len(points) - 1))
    return range(first, later)
