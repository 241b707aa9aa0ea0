"""The groups and numbers of blocks that a log may be of.

A log seldom prints blocks. It prints tokens and a concurrency, which follow from blocks, their
size, the groups of layers and what the engine reserves for a request in each. Every way to fill in
what is not printed is a candidate; those that do not give the printed figures fall away.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

import attrs

from capacity_core.api.kv_layouts import Keeps
from capacity_core.api.ledger import WorkerFacts
from capacity_core.api.report import LayoutRow
from capacity_core.units import BYTES
from capacity_core.values import Known, Value
from capacity_vllm.groups import MOST_GROUPS, Group, Plan, plans_of

_STATE_BLOCKS = {"none": (1,), "align": (2, 3)}
"""Blocks of a state by cache mode, 3 with the checkpoint of a prefill (0.33.0
vllm/v1/kv_cache_interface.py `MambaSpec`)."""

# What would take too long to try leaves bounds, never a count: of very many candidates the two that
# lie outside all others are kept (`_outermost`), and where blocks or a window's reservation are not
# narrowed so far, the largest is used as a bound (`_largest`) or the window stays open.
_MOST_RESERVATIONS = 256
_MOST_BLOCKS = 4096
_MOST_CANDIDATES = 1024


@attrs.frozen
class Candidate:
    """One way to read a log: the groups of layers, and the blocks that they share."""

    plan: Plan
    blocks: int


@attrs.frozen(kw_only=True)
class Printed:
    """What one run says of its blocks.

    `derived` says whether printed tokens are concurrency times context length (0.21 and later);
    None where the release is not known. `sizes` are the printed block sizes of all groups,
    `possible` those of a plain model where none is printed; `plain` whether the release prints a
    line for hybrid models and the log has none; `as_full` that windows
    were counted as full attention. `drafts` is how many tokens speculative decoding proposes in a
    step, None where it is off; its layers are in no configuration here. `unproven` is what taking
    the model for plain rests on. `blocks` are those of each worker, where a line or a metrics page
    says them. A worker's budget is that of one of `stages` pipeline stages; a block holds the
    tokens of `shards` ranks of decode context parallel (0.33.0 v1/core/kv_cache_utils.py:740).
    `preallocates` says that the release gives a request blocks of 64 tokens ahead.
    """

    length: int | None
    block: Value
    sizes: tuple[int, ...] = ()
    possible: tuple[int, ...] = ()
    plain: bool = False
    has_states: bool = False
    as_full: bool = False
    mode: str | None = None
    batched: Value
    async_known: bool | None = None
    derived: bool | None
    drafts: Value | None = None
    unproven: tuple[str, ...] = ()
    stages: int = 1
    shards: int = 1
    preallocates: bool = False
    blocks: Mapping[int, Known] = attrs.field(factory=dict)

    def candidates(self, layout: LayoutRow | None, worker: WorkerFacts) -> list[Candidate]:
        """Those that give what is printed; where there are very many, for each plan the two that
        bound it below and above."""
        told = worker.reported is not None and isinstance(worker.reported.value, Known)
        printed = self
        if told and worker.dp in self.blocks and not self.has_states:
            printed = attrs.evolve(self, plain=True)  # which blocks and concurrency confirm, or not
        found = [
            each for plan in printed._plans(layout) for each in printed._blocks_of(plan, worker)
        ]
        return found if len(found) <= _MOST_CANDIDATES else _outermost(found)

    def _plans(self, layout: LayoutRow | None) -> Iterator[Plan]:
        """Every way in which groups, states and windows may lie."""
        for block in self._sizes():
            for grouped in self._grouped(layout, block):
                plan = attrs.evolve(grouped, block_bytes=None) if self.stages > 1 else grouped
                if self.drafts is None:
                    yield from self._with_states(plan)
                elif all(group.keeps is Keeps.ALL for group in plan.groups):
                    # The layers of a draft are in the one group, and in no configuration.
                    yield attrs.evolve(plan, lag=1, block_bytes=None)

    def _sizes(self) -> tuple[int, ...]:
        """The tokens that a block of the smallest size may hold."""
        if isinstance(self.block, Known):
            return (int(self.block.number) * self.shards,)
        if self.sizes:
            return (min(self.sizes) * self.shards,)
        return () if self.has_states else tuple(size * self.shards for size in self.possible)

    def _grouped(self, layout: LayoutRow | None, block: int) -> list[Plan]:
        number = len(self.sizes)
        whole = Plan(groups=(Group(keeps=Keeps.ALL, count=1, block=block),))
        if self.as_full:
            return [whole]
        if layout is not None and layout.terms:
            plans = [p for p in plans_of(layout, block) if not number or p.number == number]
            return [self._of_states(plan) for plan in plans]
        if self.plain and not number:
            return [whole]
        if self.mode == "none" and set(self.sizes) == {block, self.length} and number > 1:
            states = self.sizes.count(self.length or 0)  # one of them holds a whole request
            return [
                Plan(
                    groups=(
                        Group(keeps=Keeps.ALL, count=number - states, block=block),
                        Group(keeps=Keeps.STATE, count=states, block=block),
                    )
                )
            ]
        if number < 2 or len(set(self.sizes)) > 1:
            return []
        other = Keeps.STATE if self.has_states else Keeps.WINDOW
        return [
            Plan(
                groups=(
                    Group(keeps=Keeps.ALL, count=full, block=block),
                    Group(keeps=other, count=number - full, block=block),
                )
            )
            for full in range(1, number)
        ]

    def _of_states(self, plan: Plan) -> Plan:
        """The plan; of states alone, of which one takes a block for the whole length, with those
        blocks (vllm/model_executor/models/config.py:786)."""
        states = all(group.keeps is Keeps.STATE for group in plan.groups)
        if not states or self.mode not in (None, "none") or self.length is None:
            return plan
        groups = tuple(attrs.evolve(group, block=self.length) for group in plan.groups)
        return attrs.evolve(plan, groups=groups)

    def _with_states(self, plan: Plan) -> Iterator[Plan]:
        kinds = {group.keeps for group in plan.groups}
        states: tuple[int, ...] = (1,)
        if Keeps.STATE in kinds:
            states = _STATE_BLOCKS.get(self.mode or "", (1, 2, 3))
            if self.mode in (None, "all"):  # every block's state is kept, as tokens are
                full = tuple(attrs.evolve(g, keeps=Keeps.ALL) for g in plan.groups)
                yield attrs.evolve(plan, groups=full)
            if self.mode == "all":
                return
        if not kinds & {Keeps.WINDOW, Keeps.CHUNK}:
            lag = 0 if self.async_known is False else 1
            yield from (attrs.evolve(plan, states=each, lag=lag) for each in states)
            return
        lags = (0, 1) if self.async_known is None else (int(self.async_known),)
        step = int(self.batched.number) if isinstance(self.batched, Known) else None
        for each in states:
            for lag in lags:
                for flight in self._in_flight(step):
                    yield attrs.evolve(plan, states=each, lag=lag, step=step, in_flight=flight)

    def _in_flight(self, step: int | None) -> tuple[int | None, ...]:
        """A step's tokens for each stage, and another's where scheduling runs ahead and the release
        reckons it (0.33.0 vllm/config/vllm.py:588)."""
        if step is None:
            return (None,)
        ahead = () if self.async_known is False else ((self.stages + 1) * step,)
        return (self.stages * step, *ahead)

    def _blocks_of(self, plan: Plan, worker: WorkerFacts) -> Iterator[Candidate]:
        """The numbers of blocks that give what is printed, each with its plan; one where they are
        printed themselves."""
        reckoned = plan.longest(self.length or 0)
        numbers = self._numbers(plan, worker)
        if reckoned is None and numbers is not None:
            for number in numbers:
                yield from self._solved(plan, number, worker)
        elif reckoned is None:
            yield from self._largest(plan, worker)
        elif worker.dp in self.blocks:
            number = int(self.blocks[worker.dp].number)
            if self._agrees(number, reckoned, plan, worker):
                yield Candidate(plan, number)
        else:
            yield from (Candidate(plan, n) for n in self._derived(reckoned, plan, worker))

    def _numbers(self, plan: Plan, worker: WorkerFacts) -> range | None:
        """The few numbers of blocks that are possible: the printed one, those that the tokens are
        made of, those that the budget makes; None where nothing says so."""
        if worker.dp in self.blocks:
            number = int(self.blocks[worker.dp].number)
            return range(number, number + 1)
        if self.derived is False and isinstance(worker.tokens, Known):
            share, left = divmod(int(worker.tokens.number), plan.smallest)
            return range(share * plan.number, (share + 1) * plan.number) if not left else range(0)
        low, high = _of_budget(plan, worker)
        if high is not None and high - low <= _MOST_BLOCKS:
            return range(low, high + 1)
        return None

    def _largest(self, plan: Plan, worker: WorkerFacts) -> Iterator[Candidate]:
        """Where neither blocks nor tokens in flight are printed: the most that a window may reckon
        for, and with it the most blocks that give what is printed. More blocks never fit fewer."""
        window = next(g for g in plan.groups if g.keeps in (Keeps.WINDOW, Keeps.CHUNK))
        last = -(-(self.length or 1) // window.block) + 1
        for cap in range(last, max(0, last - _MOST_RESERVATIONS), -1):
            capped = attrs.evolve(plan, cap=cap, is_bound=True)
            reckoned = capped.longest(self.length or 0) or 1
            found = [Candidate(capped, n) for n in self._derived(reckoned, capped, worker)]
            if found:
                yield from found
                return

    def _solved(self, plan: Plan, number: int, worker: WorkerFacts) -> Iterator[Candidate]:
        """What a window's group reckons for, from blocks and the concurrency; unknown where none is
        printed."""
        said = worker.reported
        windows = sum(g.count for g in plan.groups if g.keeps is Keeps.WINDOW)
        rest = attrs.evolve(
            plan, groups=tuple(g for g in plan.groups if g.keeps is not Keeps.WINDOW)
        ).longest(self.length or 0)
        if said is None or not isinstance(said.value, Known) or rest is None or not windows:
            yield Candidate(plan, number)
            return
        low, high = said.value.interval
        if low is None or high is None or low <= 0:
            return
        first, last = max(int(number / high), 1), int(number / low) + 1
        if last - first > _MOST_BLOCKS:
            yield Candidate(plan, number)
            return
        for reckoned in range(first, last + 1):
            share, left = divmod(reckoned - rest, windows)
            if left == 0 and share > 1 and self._agrees(number, reckoned, plan, worker):
                yield from (Candidate(sized, number) for sized in self._of_window(plan, share))

    def _of_window(self, plan: Plan, share: int) -> Iterator[Plan]:
        """The plan with the smallest and the largest window for which a group reserves `share`
        blocks beside the tokens in flight; with the share alone where those are not printed."""
        length, flight = self.length or 0, plan.in_flight
        if flight is None:
            yield attrs.evolve(plan, cap=share)
            return
        block = next(g.block for g in plan.groups if g.keeps is Keeps.WINDOW)
        largest = (share - 1) * block - flight + 1
        if (share - 1) * block >= length:
            largest = length  # more is never reserved than a whole request
        smallest = max((share - 2) * block - flight + 2, 1)
        for window in sorted({smallest, largest}):
            if smallest <= window <= largest:
                groups = (
                    attrs.evolve(g, window=window) if g.keeps is Keeps.WINDOW else g
                    for g in plan.groups
                )
                yield attrs.evolve(plan, groups=tuple(groups))

    def _derived(self, reckoned: int, plan: Plan, worker: WorkerFacts) -> Iterator[int]:
        if not isinstance(worker.tokens, Known):
            return
        tokens = int(worker.tokens.number)
        near: set[int] = set()
        if self.derived is not False:
            first = tokens * reckoned // (self.length or 1)
            near |= set(range(max(first, 1), (tokens + 1) * reckoned // (self.length or 1) + 2))
        if self.derived is not True and tokens % plan.smallest == 0:
            first = tokens // plan.smallest * plan.number
            near |= set(range(first, first + plan.number))
        yield from (n for n in sorted(near) if self._agrees(n, reckoned, plan, worker))

    def _agrees(self, number: int, reckoned: int, plan: Plan, worker: WorkerFacts) -> bool:
        """Whether so many blocks give the printed concurrency and tokens, and the budget gives
        them."""
        low, high = _of_budget(plan, worker)
        if number < low or (high is not None and number > high):
            return False
        said = worker.reported
        printed = said.value if said is not None else None
        if (
            isinstance(printed, Known)
            and abs(Decimal(number) / reckoned - printed.number) > printed.error
        ):
            return False
        if not isinstance(worker.tokens, Known):
            return True
        tokens = int(worker.tokens.number)
        product = int(number / reckoned * (self.length or 0))
        by_blocks = number // plan.number * plan.smallest
        if self.derived is None:
            return tokens in (product, by_blocks)
        return tokens == (product if self.derived else by_blocks)

    def could_make(self, number: int, worker: WorkerFacts) -> bool:
        """Whether so many blocks can be what the printed tokens and concurrency come from, in any
        model of so many groups as are printed."""
        said = worker.reported
        if said is None or not isinstance(said.value, Known) or self.length is None:
            return True
        low, high = (said.value.number + error for error in (-said.value.error, said.value.error))
        sizes = (*self._sizes(), self.length)  # a state may take a block of the whole length
        if low <= 0 or not self._sizes():
            return True
        groups = len(self.sizes) or (1 if self.plain and self.derived else MOST_GROUPS)
        # No group reckons more than a whole request and two blocks, or three of states.
        most = groups * (-(-self.length // min(sizes)) + 3)
        reckonings = range(math.ceil(number / high), min(int(number / low), most) + 1)
        if not reckonings or not isinstance(worker.tokens, Known):
            return bool(reckonings)
        tokens = int(worker.tokens.number)
        by_product = any(int(number / each * self.length) == tokens for each in reckonings)
        by_blocks = any(
            number // count * size == tokens for count in range(1, groups + 1) for size in sizes
        )
        if self.derived is None:
            return by_product or by_blocks
        return by_product if self.derived else by_blocks


def _outermost(candidates: Iterable[Candidate]) -> list[Candidate]:
    """For each plan the fewest blocks with the most that a window reckons, and the most with the
    least: more blocks never fit fewer, a larger reckoning never more."""
    by_plan: dict[Plan, list[Candidate]] = {}
    for each in candidates:
        by_plan.setdefault(attrs.evolve(each.plan, cap=None), []).append(each)
    found = []
    for same in by_plan.values():
        caps = [each.plan.cap for each in same if each.plan.cap is not None]
        numbers = [each.blocks for each in same]
        plan = same[0].plan
        found += [
            Candidate(attrs.evolve(plan, cap=max(caps, default=None)), min(numbers)),
            Candidate(attrs.evolve(plan, cap=min(caps, default=None)), max(numbers)),
        ]
    return found


def _of_budget(plan: Plan, worker: WorkerFacts) -> tuple[int, int | None]:
    """The fewest and the most blocks that a worker's pool makes; no limit where nothing says."""
    size = worker.size.to(BYTES) if isinstance(worker.size, Known) else worker.size
    if plan.block_bytes is None or not plan.block_bytes or not isinstance(size, Known):
        return 0, None
    low, high = ((size.number + error) / plan.block_bytes for error in (-size.error, size.error))
    return max(int(low), 0), int(high)
