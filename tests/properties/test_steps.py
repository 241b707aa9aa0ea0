"""Free memory step by step: what a rank's readings and parts add up to, whatever they are.

Ranks are made up: any stages of either model, in any order, with parts of any size. What must hold
of their steps is arithmetic alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from decimal import Decimal
from random import Random

import attrs
from hypothesis import given
from hypothesis import strategies as st

from capacity_core.accounting.breakdown import rank_row
from capacity_core.accounting.steps import steps
from capacity_core.api.ledger import (
    Category,
    Checkpoint,
    Part,
    RankFacts,
    RankId,
    Role,
    Stage,
)
from capacity_core.api.report import StepRow
from capacity_core.units import GIB
from capacity_core.values import Known, Origin, Unknown, Value, known

STAGES = tuple(stage for stage in Stage if stage is not Stage.SERVING)
IN_STEPS = (Category.WEIGHTS, Category.KV_POOL, Category.STATE_POOL, Category.CUDA_GRAPH)

# As printed: two decimals, or unrounded; memory that came back is negative.
AMOUNTS = st.one_of(
    st.integers(-20_000, 20_000).map(lambda n: Decimal(n) / 100),
    st.integers(-(10**9), 10**9).map(lambda n: Decimal(n) / 10**6),
)


def printed(amount: Decimal, line: int = 1) -> Known:
    return known(amount, GIB, Origin.PRINTED, how="made.up", evidence=(f"log0:{line}",))


UNKNOWN = Unknown(why="the line is cut", unit=GIB)
SIZES: st.SearchStrategy[Value] = st.one_of(AMOUNTS.map(printed), st.just(UNKNOWN))
POINTS = st.builds(
    Checkpoint,
    stage=st.sampled_from(STAGES),
    role=st.sampled_from(Role),
    free=st.one_of(AMOUNTS.map(printed), AMOUNTS.map(printed), st.just(UNKNOWN)),
)
PARTS = st.builds(
    Part,
    category=st.sampled_from([*IN_STEPS, Category.FRAMEWORK]),
    role=st.sampled_from(Role),
    label=st.just("a part"),
    size=SIZES,
    since=st.one_of(st.none(), st.sampled_from(STAGES)),
)


@st.composite
def timelines(draw: st.DrawFn) -> tuple[Checkpoint, ...]:
    """Any readings in any order, or a subset of them in the order of a start."""
    points = draw(st.lists(POINTS, max_size=9))
    if draw(st.booleans()):
        one_each = {(point.role, point.stage): point for point in points}
        points = sorted(one_each.values(), key=lambda p: (p.role, STAGES.index(p.stage)))
    return tuple(points)


RANKS = st.builds(
    RankFacts,
    id=st.just(RankId()),
    label=st.just("TP0"),
    memory=st.just({}),
    timeline=timelines(),
    parts=st.lists(PARTS, max_size=8).map(tuple),
)


def readings_of(rank: RankFacts) -> list[Known]:
    return [point.free for point in rank.timeline if isinstance(point.free, Known)]


def number(value: Value) -> Decimal:
    assert isinstance(value, Known), value
    return value.number


@given(RANKS)
def test_there_is_a_step_between_any_two_readings(rank: RankFacts) -> None:
    """A reading that is not in the log is none."""
    rows, frees = list(steps(rank)), readings_of(rank)

    assert len(rows) == max(0, len(frees) - 1)
    for row, (before, after) in zip(rows, itertools.pairwise(frees), strict=True):
        assert number(row.change) == before.number - after.number
        assert row.change.evidence
    for one, other in itertools.pairwise(rows):
        assert one.until == other.since


@given(RANKS)
def test_changes_telescope(rank: RankFacts) -> None:
    """To the last digit: what lies between the first and the last reading cancels."""
    rows, frees = list(steps(rank)), readings_of(rank)

    if rows:
        assert sum(number(row.change) for row in rows) == frees[0].number - frees[-1].number


@given(RANKS)
def test_what_is_not_explained_is_unattributed(rank: RankFacts) -> None:
    for row in steps(rank):
        if isinstance(row.explained, Unknown):
            assert isinstance(row.unattributed, Unknown)
            assert row.unattributed.why
        else:
            assert number(row.unattributed) == number(row.change) - row.explained.number


@given(st.lists(AMOUNTS, min_size=2, max_size=8))
def test_memory_that_comes_back_is_a_negative_change(amounts: list[Decimal]) -> None:
    points = [
        Checkpoint(stage=stage, role=Role.TARGET, free=printed(free))
        for stage, free in zip(itertools.cycle(STAGES), amounts, strict=False)
    ]
    rank = RankFacts(id=RankId(), label="TP0", memory={}, timeline=tuple(points))
    for row, (before, after) in zip(steps(rank), itertools.pairwise(amounts), strict=True):
        assert (number(row.change) < 0) is (after > before)
        assert (number(row.change) > 0) is (after < before)


# --- what explains a step ---------------------------------------------


@attrs.frozen
class Marked:
    """Parts whose sizes are powers of two, so that a sum tells which of them are in it."""

    rank: RankFacts

    def parts_in(self, row: StepRow) -> list[Part]:
        total = number(row.explained)
        assert total == total.to_integral_value()
        bits = int(total)
        assert 0 <= bits < 2 ** len(self.rank.parts)
        return [part for at, part in enumerate(self.rank.parts) if bits >> at & 1]


@st.composite
def marked(draw: st.DrawFn) -> Marked:
    rank = draw(RANKS)
    parts = [attrs.evolve(part, size=printed(Decimal(2**at))) for at, part in enumerate(rank.parts)]
    return Marked(attrs.evolve(rank, parts=tuple(parts)))


@given(marked())
def test_what_is_explained_is_a_sum_of_parts(made: Marked) -> None:
    """Each part is in one step at most, and each step names the categories of its parts."""
    found: list[Part] = []
    for row in steps(made.rank):
        if not isinstance(row.explained, Known):
            continue
        mine = made.parts_in(row)
        assert {part.category for part in mine} == set(row.owners)
        assert all(part.category in IN_STEPS for part in mine)
        found += mine
    assert len({part.size for part in found}) == len(found)


@given(marked())
def test_a_part_is_in_the_step_to_the_reading_behind_it(made: Marked) -> None:
    """Of its own model, in a log that has that reading and one before it."""
    held_since = {
        Category.WEIGHTS: Stage.AFTER_WEIGHTS,
        Category.KV_POOL: Stage.AFTER_POOLS,
        Category.STATE_POOL: Stage.AFTER_POOLS,
        Category.CUDA_GRAPH: Stage.AFTER_GRAPHS,
    }
    points = [point for point in made.rank.timeline if isinstance(point.free, Known)]
    rows = list(steps(made.rank))
    for part in made.rank.parts:
        if part.category not in held_since:
            continue
        stage = part.since or held_since[part.category]
        at = [n for n, p in enumerate(points) if (p.role, p.stage) == (part.role, stage)]
        if not at or at[0] == 0 or len(at) > 1:
            continue
        row = rows[at[0] - 1]
        assert part.category in row.owners
        if isinstance(row.explained, Known):
            assert part in made.parts_in(row)


@given(RANKS)
def test_a_step_with_an_unknown_part_is_not_explained(rank: RankFacts) -> None:
    """A figure that is missing is no zero."""
    known_parts = tuple(part for part in rank.parts if isinstance(part.size, Known))
    rows = list(steps(rank))
    for row, without in zip(rows, steps(attrs.evolve(rank, parts=known_parts)), strict=True):
        if isinstance(row.explained, Known) and isinstance(without.explained, Known):
            assert row.explained.number == without.explained.number


@given(RANKS, st.randoms(use_true_random=False))
def test_the_order_of_parts_does_not_matter(rank: RankFacts, random: Random) -> None:
    parts = list(rank.parts)
    random.shuffle(parts)
    shuffled = list(steps(attrs.evolve(rank, parts=tuple(parts))))
    for row, other in zip(steps(rank), shuffled, strict=True):
        assert row.explained.interval == other.explained.interval
        assert set(row.owners) == set(other.owners)


# --- a whole start ----------------------------------------------------

START = (
    Stage.BEFORE_WEIGHTS,
    Stage.AFTER_WEIGHTS,
    Stage.AFTER_POOLS,
    Stage.BEFORE_GRAPHS,
    Stage.AFTER_GRAPHS,
    Stage.READY,
)
CENTS = st.integers(1, 4_000).map(lambda n: Decimal(n) / 100)


def start_of(
    weights: Decimal, pool: Decimal, graphs: Decimal, lost: Sequence[Decimal]
) -> RankFacts:
    """A start in which `lost` is what nobody says, in each of the five steps."""
    free = Decimal(300)
    taken = (weights, pool, Decimal(0), graphs, Decimal(0))
    points = [Checkpoint(stage=START[0], role=Role.TARGET, free=printed(free, 1))]
    for stage, size, more in zip(START[1:], taken, lost, strict=True):
        free -= size + more
        points.append(Checkpoint(stage=stage, role=Role.TARGET, free=printed(free, len(points))))
    sizes = ((Category.WEIGHTS, weights), (Category.KV_POOL, pool), (Category.CUDA_GRAPH, graphs))
    parts = [
        Part(category=category, role=Role.TARGET, label="its own", size=printed(size))
        for category, size in sizes
    ]
    return RankFacts(
        id=RankId(), label="TP0", memory={}, timeline=tuple(points), parts=tuple(parts)
    )


LOST = st.lists(st.integers(-100, 100).map(lambda n: Decimal(n) / 100), min_size=5, max_size=5)


@given(CENTS, CENTS, CENTS, LOST)
def test_each_step_of_a_whole_start_has_its_owner(
    weights: Decimal, pool: Decimal, graphs: Decimal, lost: list[Decimal]
) -> None:
    rows = list(steps(start_of(weights, pool, graphs, lost)))

    assert [row.owners for row in rows] == [
        (Category.WEIGHTS,),
        (Category.KV_POOL,),
        (),
        (Category.CUDA_GRAPH,),
        (),
    ]
    assert [number(row.explained) for row in rows] == [weights, pool, 0, graphs, 0]
    assert [number(row.unattributed) for row in rows] == lost
    assert [row.until for row in rows] == [f"free[{stage.value}]" for stage in START[1:]]


@given(
    CENTS,
    CENTS,
    CENTS,
    LOST,
    st.sets(st.integers(1, 4), max_size=4),
)
def test_a_step_over_missing_readings_adds_up_what_they_parted(
    weights: Decimal, pool: Decimal, graphs: Decimal, lost: list[Decimal], missing: set[int]
) -> None:
    """Readings between the first and the last may be cut out: the rest is owed to the same."""
    whole = start_of(weights, pool, graphs, lost)
    kept = [point for at, point in enumerate(whole.timeline) if at not in missing]
    rows = list(steps(attrs.evolve(whole, timeline=tuple(kept))))

    total = weights + pool + graphs
    assert sum(number(row.change) for row in rows) == total + sum(lost)
    if all(isinstance(row.explained, Known) for row in rows):
        assert sum(number(row.explained) for row in rows) == total
        assert sum(number(row.unattributed) for row in rows) == sum(lost)
    places = [at for at in range(len(START)) if at not in missing]
    for row, (low, high) in zip(rows, itertools.pairwise(places), strict=True):
        if isinstance(row.unattributed, Known):
            assert row.unattributed.number == sum(lost[low:high])


@given(CENTS, CENTS, CENTS, LOST)
def test_a_report_has_the_steps_of_its_ranks(
    weights: Decimal, pool: Decimal, graphs: Decimal, lost: list[Decimal]
) -> None:
    rank = start_of(weights, pool, graphs, lost)

    assert rank_row(rank, None).steps == tuple(steps(rank))


@given(CENTS, CENTS, CENTS, CENTS, CENTS, CENTS)
def test_a_draft_models_steps_are_its_own(
    weights: Decimal,
    pool: Decimal,
    graphs: Decimal,
    draft_weights: Decimal,
    draft_pool: Decimal,
    draft_graphs: Decimal,
) -> None:
    """The order of 0.5.12: first all of the target's, then all of the draft's."""
    order = (
        (Role.TARGET, Stage.BEFORE_WEIGHTS, Decimal(0)),
        (Role.TARGET, Stage.AFTER_WEIGHTS, weights),
        (Role.TARGET, Stage.AFTER_POOLS, pool),
        (Role.TARGET, Stage.AFTER_GRAPHS, graphs),
        (Role.DRAFT, Stage.BEFORE_WEIGHTS, Decimal(0)),
        (Role.DRAFT, Stage.AFTER_WEIGHTS, draft_weights),
        (Role.DRAFT, Stage.AFTER_POOLS, draft_pool),
        (Role.DRAFT, Stage.AFTER_GRAPHS, draft_graphs),
        (Role.TARGET, Stage.READY, Decimal(0)),
    )
    free = Decimal(500)
    points = []
    for role, stage, size in order:
        free -= size
        points.append(Checkpoint(stage=stage, role=role, free=printed(free)))
    sizes = (
        (Role.TARGET, Category.WEIGHTS, weights),
        (Role.TARGET, Category.KV_POOL, pool),
        (Role.TARGET, Category.CUDA_GRAPH, graphs),
        (Role.DRAFT, Category.WEIGHTS, draft_weights),
        (Role.DRAFT, Category.KV_POOL, draft_pool),
        (Role.DRAFT, Category.CUDA_GRAPH, draft_graphs),
    )
    parts = [
        Part(category=category, role=role, label="its own", size=printed(size))
        for role, category, size in sizes
    ]
    rank = RankFacts(
        id=RankId(), label="TP0", memory={}, timeline=tuple(points), parts=tuple(parts)
    )
    rows = list(steps(rank))

    assert [number(row.explained) for row in rows] == [size for _, _, size in order[1:]]
    assert all(number(row.unattributed) == 0 for row in rows)
    assert rows[3].until == "free[before_weights,draft]"


def test_a_category_that_no_line_sizes_leaves_its_step_open() -> None:
    """0.4.0 prints no graph memory: what its step took is not known to be anything's."""
    rank = start_of(Decimal(16), Decimal(40), Decimal(1), [Decimal(0)] * 5)
    without = tuple(p for p in rank.parts if p.category is not Category.CUDA_GRAPH)
    rows = list(steps(attrs.evolve(rank, parts=without)))

    assert isinstance(rows[3].explained, Unknown)
    assert isinstance(rows[3].unattributed, Unknown)
    assert rows[3].owners == (Category.CUDA_GRAPH,)
    assert number(rows[1].unattributed) == 0
