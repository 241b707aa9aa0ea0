"""How many requests a pool of blocks takes: which ways to read a log are left, and what they say.

A log seldom prints blocks. It prints tokens and a concurrency, which follow from blocks, their
size, the groups of layers and what a request reckons for in each. Every way to fill in what is not
printed is tried; those that do not give the printed figures fall away. What all that are left agree
on is known, the rest lies between their bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

import attrs

from capacity_core.api.admission import Fit, Request
from capacity_core.api.kv_layouts import Keeps
from capacity_core.api.ledger import WorkerFacts
from capacity_core.api.report import LayoutRow
from capacity_core.units import COUNT, REQUESTS
from capacity_core.values import Known, Origin, Unknown, Value, known
from capacity_vllm.groups import Group, Plan, groups_of

_STATE_BLOCKS = {"none": (1,), "align": (2, 3)}  # 3 with the checkpoint of a prefill


_NO_BLOCKS = Unknown(why="no line prints the blocks", unit=COUNT)

_MOST_CAPS = 256
"""How many ways to fill in a window's blocks are tried: one in a few gives what is printed."""

Way = tuple[Plan, int]
"""One way to read a log: the groups, and the blocks that they share."""


@attrs.frozen(kw_only=True)
class VllmAdmission:
    """What one run says of its blocks.

    `derived` says whether printed tokens are concurrency times context length (0.21 and later);
    None where the release is not known. `sizes` are the printed block sizes of all groups,
    `possible` those of a plain model where none is printed; `plain`
    that no line of a hybrid was printed by a release that would print one; `as_full` that windows
    were counted as full attention. `draft` says that speculative decoding is on, whose layers are
    in no configuration here.
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
    context_parallel: bool = False
    draft: bool = False
    blocks: Value = _NO_BLOCKS

    def fit(self, worker: WorkerFacts, request: Request, layout: LayoutRow | None) -> Fit | None:
        """Requests of one kind without preemption, and how many are let in at once."""
        if self.length is None or self.context_parallel or self.draft:
            return None
        ways = [way for plan in self._plans(layout) for way in self._blocks_of(plan, worker)]
        if not ways:
            return None
        lowest, highest, admitted = self._bounds(ways, request)
        evidence = self._evidence(worker, layout)
        how = self._how(ways, request)
        return Fit(
            tokens=_between(lowest, highest, how, evidence, self._open(ways)),
            admitted=None
            if request.prompt is None
            else _between(*admitted, "prompts that blocks take at once", evidence, "as above"),
        )

    # --- ways to read ---

    def _plans(self, layout: LayoutRow | None) -> Iterator[Plan]:
        """Every way in which groups, states and windows may lie."""
        for block in self._sizes():
            for groups in self._grouped(layout, block):
                yield from self._with_states(groups)

    def _sizes(self) -> tuple[int, ...]:
        if isinstance(self.block, Known):
            return (int(self.block.number),)
        if self.sizes:
            return (min(self.sizes),)
        return () if self.has_states else self.possible

    def _grouped(self, layout: LayoutRow | None, block: int) -> list[tuple[Group, ...]]:
        number = len(self.sizes)
        if self.as_full:
            return [(Group(keeps=Keeps.ALL, count=1, block=block),)]
        if layout is not None and layout.terms:
            found = groups_of(layout, block)
            return [g for g in found if not number or sum(each.count for each in g) == number]
        if self.plain and not number:
            return [(Group(keeps=Keeps.ALL, count=1, block=block),)]
        if number < 2 or len(set(self.sizes)) > 1:
            return []
        other = Keeps.STATE if self.has_states else Keeps.WINDOW
        return [
            (
                Group(keeps=Keeps.ALL, count=full, block=block),
                Group(keeps=other, count=number - full, block=block),
            )
            for full in range(1, number)
        ]

    def _with_states(self, groups: tuple[Group, ...]) -> Iterator[Plan]:
        kinds = {group.keeps for group in groups}
        states: tuple[int, ...] = (1,)
        if Keeps.STATE in kinds:
            states = _STATE_BLOCKS.get(self.mode or "", (1, 2, 3))
            if self.mode in (None, "all"):  # every block's state is kept, as tokens are
                yield Plan(groups=tuple(attrs.evolve(g, keeps=Keeps.ALL) for g in groups))
            if self.mode == "all":
                return
        if not kinds & {Keeps.WINDOW, Keeps.CHUNK}:
            lag = 0 if self.async_known is False else 1
            yield from (Plan(groups=groups, states=each, lag=lag) for each in states)
            return
        lags = (0, 1) if self.async_known is None else (int(self.async_known),)
        for each in states:
            for lag in lags:
                plan = Plan(groups=groups, states=each, lag=lag)
                if isinstance(self.batched, Known):
                    plan = attrs.evolve(plan, in_flight=int(self.batched.number) * (1 + lag))
                yield plan

    def _blocks_of(self, plan: Plan, worker: WorkerFacts) -> Iterator[Way]:
        """The numbers of blocks that give what is printed, each with its plan; one where they are
        printed themselves."""
        reckoned = plan.longest(self.length or 0)
        if isinstance(self.blocks, Known):
            number = int(self.blocks.number)
            if reckoned is None:
                yield from self._solved(plan, number, worker)
            elif self._agrees(number, reckoned, plan, worker):
                yield plan, number
            return
        if reckoned is not None:
            yield from ((plan, n) for n in self._derived(reckoned, plan, worker))
        elif plan.windowed:
            yield from self._largest(plan, worker)

    def _largest(self, plan: Plan, worker: WorkerFacts) -> Iterator[Way]:
        """Where neither blocks nor tokens in flight are printed: the most that a window may reckon
        for, and with it the most blocks that give what is printed. More blocks never fit fewer."""
        window = next(g for g in plan.groups if g.keeps in (Keeps.WINDOW, Keeps.CHUNK))
        last = -(-(self.length or 1) // window.block) + 1
        for cap in range(last, max(0, last - _MOST_CAPS), -1):
            capped = attrs.evolve(plan, cap=cap, is_bound=True)
            reckoned = capped.longest(self.length or 0) or 1
            found = [(capped, n) for n in self._derived(reckoned, capped, worker)]
            if found:
                yield from found
                return

    def _solved(self, plan: Plan, number: int, worker: WorkerFacts) -> Iterator[Way]:
        """What a window's group reckons for, from blocks and the concurrency; unknown where none is
        printed."""
        said = worker.reported
        windows = sum(g.count for g in plan.groups if g.keeps is Keeps.WINDOW)
        rest = attrs.evolve(
            plan, groups=tuple(g for g in plan.groups if g.keeps is not Keeps.WINDOW)
        ).longest(self.length or 0)
        if said is None or not isinstance(said.value, Known) or rest is None or not windows:
            yield plan, number
            return
        low, high = said.value.interval
        if low is None or high is None or low <= 0:
            return
        first = int(number / high)
        for reckoned in range(max(first, 1), int(number / low) + 2):
            share, left = divmod(reckoned - rest, windows)
            capped = attrs.evolve(plan, cap=share)
            if left == 0 and share > 1 and self._agrees(number, reckoned, capped, worker):
                yield capped, number

    def _derived(self, reckoned: int, plan: Plan, worker: WorkerFacts) -> Iterator[int]:
        if not isinstance(worker.tokens, Known):
            return
        tokens = int(worker.tokens.number)
        near: set[int] = set()
        if self.derived is not False:
            first = tokens * reckoned // (self.length or 1)
            near |= set(range(max(first, 1), (tokens + 1) * reckoned // (self.length or 1) + 2))
        if self.derived is not True:
            size = min(group.block for group in plan.groups)
            if tokens % size == 0:
                first = tokens // size * plan.number
                near |= set(range(first, first + plan.number))
        yield from (n for n in sorted(near) if self._agrees(n, reckoned, plan, worker))

    def _agrees(self, number: int, reckoned: int, plan: Plan, worker: WorkerFacts) -> bool:
        """Whether so many blocks give the printed concurrency and tokens."""
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
        size = min(group.block for group in plan.groups)
        by_blocks = number // plan.number * size
        if self.derived is None:
            return tokens in (product, by_blocks)
        return tokens == (product if self.derived else by_blocks)

    # --- what they say ---

    def _bounds(
        self, ways: Sequence[Way], request: Request
    ) -> tuple[int | None, int, tuple[int, int]]:
        """The least and the most that fit, and that are let in, over all ways; where the prompt is
        not said, over a request that is all prompt and one that is all output."""
        splits = [(request.tokens - 1 or 1, 1), (1, request.tokens - 1 or 1)]
        if request.prompt is not None:
            splits = [(request.prompt, request.tokens - request.prompt)]
        lows, highs, admitted = [], [], []
        for plan, number in ways:
            usable = number - 1  # one block is never given away (v1/core/block_pool.py)
            for prompt, output in splits:
                low, high = plan.fit(usable, prompt, output, self.length or 0)
                lows.append(low)
                highs.append(high)
                least, most = plan.holds(prompt, output, self.length or 0)
                admitted += [most.admitted(usable), least.admitted(usable)]
        bound = any(plan.is_bound for plan, _ in ways)
        return None if bound else min(lows), max(highs), (min(admitted), max(admitted))

    def _how(self, ways: Sequence[Way], request: Request) -> str:
        plan, number = ways[0]
        said = (
            f"{request.tokens} tokens"
            if request.prompt is None
            else f"{request.prompt} + {request.output} tokens"
        )
        many = {(p.groups, n) for p, n in ways}
        pool = f"{number - 1} usable blocks" if len({n for _, n in many}) == 1 else "usable blocks"
        return f"{pool} // blocks of {said} in {plan.number} group{'s' * (plan.number > 1)}"

    def _open(self, ways: Sequence[Way]) -> str:
        """What leaves the count open."""
        if len({plan.groups for plan, _ in ways}) > 1:
            return "the size of a block, or its groups, are not printed and decide the count"
        if any(plan.windowed for plan, _ in ways):
            return (
                "what windows hold beside a prompt depends on its length, on the tokens in flight "
                "and on the window"
            )
        return "when requests cross a block, each holds two states in a group for a step"

    def _evidence(self, worker: WorkerFacts, layout: LayoutRow | None) -> tuple[str, ...]:
        values = [self.blocks, worker.tokens, self.block]
        if worker.reported is not None:
            values.append(worker.reported.value)
        if layout is not None:
            values.append(layout.bytes_per_token)
        lines = [line for value in values if isinstance(value, Known) for line in value.evidence]
        return tuple(dict.fromkeys(lines))


def _between(low: int | None, high: int, how: str, evidence: tuple[str, ...], why: str) -> Value:
    if low == high:
        return known(low, REQUESTS, Origin.DERIVED, how=how, evidence=evidence)
    return Unknown(
        why=why,
        unit=REQUESTS,
        at_least=None if low is None else Decimal(low),
        at_most=Decimal(high),
        evidence=evidence,
    )
