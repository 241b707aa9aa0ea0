"""The groups of KV blocks that a model's layers fall into, and the blocks that a request holds in
each.

All groups take their blocks from one pool. Source: 0.33.0 vllm/v1/core/kv_cache_planning.py
`get_kv_cache_groups`, vllm/v1/kv_cache_interface.py, vllm/v1/core/sched/scheduler.py; the formulas
were held against the scheduler itself (references/accounting.md#vllm-concurrency).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

import attrs

from capacity_core.api.kv_layouts import Keeps
from capacity_core.api.report import LayoutRow, TermRow
from capacity_core.values import Known

MOST_GROUPS = 64
"""More than any model has, where a log does not say how many."""

_MOST_PROMPTS = 4096
"""Of a step; more are no longer than a block, and hold no chunk beyond it."""


@attrs.frozen(kw_only=True)
class Group:
    """`count` groups of one kind, in blocks of `block` tokens; a window not known is None."""

    keeps: Keeps
    count: int
    block: int
    window: int | None = None


@attrs.frozen(kw_only=True)
class Plan:
    """The groups of a model as one way to read a log has them.

    `states` is how many blocks the engine reckons for a request in each group of states (2 where
    prefix caching keeps the last state beside the running one). `in_flight` are the tokens that
    windows reckon on top, for what is scheduled and not settled; `step` those of one step. `cap` is
    the blocks of a window's group where they are known without it, and with `is_bound` the most
    that they may be. `lag` is 1 where scheduling runs a step ahead; `drafted` the tokens that a
    draft may reserve beyond a request's. `block_bytes` is what one block takes on a device, where a
    configuration says so.
    """

    groups: tuple[Group, ...]
    states: int = 1
    in_flight: int | None = None
    step: int | None = None
    cap: int | None = None
    is_bound: bool = False
    lag: int = 0
    drafted: int = 0
    block_bytes: Decimal | None = None

    @property
    def windowed(self) -> bool:
        return any(group.keeps in (Keeps.WINDOW, Keeps.CHUNK) for group in self.groups)

    @property
    def number(self) -> int:
        """How many groups there are."""
        return sum(group.count for group in self.groups)

    @property
    def smallest(self) -> int:
        """Tokens of the smallest block."""
        return min(group.block for group in self.groups)

    def longest(self, length: int) -> int | None:
        """Blocks that the engine reckons for a request of `length`, the context length; None when a
        window's cost is not known."""
        total = 0
        for group in self.groups:
            held = self._reckoned(group, length, length)
            if held is None:
                return None
            total += group.count * held
        return total

    def _reckoned(self, group: Group, tokens: int, length: int) -> int | None:
        """Blocks that one group asks for when a request of `tokens` is admitted."""
        if group.keeps is Keeps.ALL:
            return _blocks(tokens, group.block)
        if group.keeps is Keeps.STATE:
            return self.states
        if self.cap is not None:
            return self.cap
        if group.window is None or self.in_flight is None:
            return None
        if group.keeps is Keeps.CHUNK:
            return _blocks(min(group.window + self.in_flight, length), group.block)
        return _blocks(min(group.window - 1 + self.in_flight, length), group.block) + 1

    def fit(self, usable: int, prompt: int, output: int, length: int) -> tuple[int, int]:
        """The least and the most requests that run to their end beside one another."""
        least, most = self.holds(prompt, output, length)
        # While the last one's prompt is read the others grow: none yet, or all of them.
        low = 0 if self.is_bound else most.fit(usable, beside=max(most.filled, most.end))
        if self.windowed:
            low = min(low, self._beside_prompts(least, most, usable, prompt))
        return low, least.fit(usable, beside=least.filled)

    def surely(self, usable: int, tokens: int, length: int) -> int:
        """The least that fit of requests of `tokens`, whatever part of them is the prompt: all hold
        the most that a prompt of all tokens asks for, or that is held at the end."""
        _, most = self.holds(max(tokens - 1, 1), 1, length)
        return usable // max(most.asked + self.lag * self.number, most.filled, most.end)

    def _beside_prompts(self, least: Hold, most: Hold, usable: int, prompt: int) -> int:
        """The most that surely run where prompts hold whole chunks: as many as a step reads are
        admitted while there is room beside those that generate, which then want their next block; a
        step ahead the prompts want theirs as well."""
        at_once = usable // most.asked
        if self.step is not None:
            at_once = min(at_once, _blocks(self.step, prompt) * (1 + self.lag))
        safe = usable
        for prompts in range(1, min(at_once, _MOST_PROMPTS) + 1):
            left = usable - prompts * (most.asked + self.lag * self.number)
            crowd = max(left, -1) // most.end + 1  # so many that generate want more than is left
            if crowd * least.filled <= usable - prompts * most.asked:
                safe = min(safe, prompts + crowd - 1)
        return safe

    def holds(self, prompt: int, output: int, length: int) -> tuple[Hold, Hold]:
        """The least and the most that one request may hold."""
        held = [self._hold(group, prompt, output, length) for group in self.groups]
        return _sum(low for low, _ in held), _sum(high for _, high in held)

    def _hold(self, group: Group, prompt: int, output: int, length: int) -> tuple[Hold, Hold]:
        size, last = group.block, prompt + output - 1
        whole, first = _blocks(prompt, size), _blocks(min(prompt + 1, last), size)
        end = _blocks(last, size)
        if group.keeps is Keeps.ALL:
            drafting = Hold(
                asked=whole,
                filled=_blocks(min(min(prompt + 1, last) + self.drafted, length), size),
                end=_blocks(min(last + self.drafted, length), size),
            )
            plain = Hold(asked=whole, filled=first, end=end)
            return plain.times(group.count), drafting.times(group.count)
        if group.keeps is Keeps.STATE:
            # The gate asks for one; former states stay for a step when a block is crossed, and for
            # another where scheduling runs ahead.
            crossing = 1 + self.lag if self.states > 1 and last > size else 0
            return (
                Hold(asked=1, filled=1, end=1).times(group.count),
                Hold(asked=1 + crossing, filled=1 + crossing, end=1 + crossing).times(group.count),
            )
        least, most = self._steady(group, end)
        reckoned = self._reckoned(group, length, length)
        chunk = whole if reckoned is None else min(whole, reckoned)
        sure = min(whole, least) if reckoned is None else chunk
        low = Hold(asked=sure, filled=min(whole, least), end=min(end, least))
        high = Hold(asked=chunk, filled=min(whole, most), end=min(end, most))
        return low.times(group.count), high.times(group.count)

    def _steady(self, group: Group, end: int) -> tuple[int, int]:
        """Blocks of a window's group while a request generates, at least and at most: a window need
        not begin with a block, a chunk begins anew."""
        if group.window is None:
            return 1, end if self.cap is None else self.cap
        if group.keeps is Keeps.CHUNK:
            whole = _blocks(group.window, group.block)
            apart = self.lag or group.window % group.block
            return 1, whole + 1 if apart else whole
        steady = _blocks(group.window - 1, group.block)
        return max(1, steady), _blocks(group.window - 1 + self.lag, group.block) + 1


@attrs.frozen(kw_only=True)
class Hold:
    """Blocks of one request: `asked` when it is admitted, `filled` after its prompt, `end` at most
    while it generates."""

    asked: int
    filled: int
    end: int

    def times(self, count: int) -> Hold:
        return Hold(asked=self.asked * count, filled=self.filled * count, end=self.end * count)

    def fit(self, usable: int, beside: int) -> int:
        """Requests that run to their end beside one another: the last one is admitted while each of
        the others holds `beside` blocks."""
        if usable < max(self.asked, self.end):
            return 0
        return min(usable // self.end, 1 + (usable - self.asked) // beside)

    def admitted(self, usable: int) -> int:
        """Requests that are admitted at once: the gate looks at prompts alone."""
        return 0 if usable < self.asked else 1 + (usable - self.asked) // self.filled


def _sum(holds: Iterable[Hold]) -> Hold:
    asked = filled = end = 0
    for hold in holds:
        asked, filled, end = asked + hold.asked, filled + hold.filled, end + hold.end
    return Hold(asked=asked, filled=filled, end=end)


def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)


# --- from a configuration ---------------------------------------------


def plans_of(layout: LayoutRow, block: int) -> list[Plan]:
    """The ways in which releases may group a model's layers; none where they cannot be told.

    Layers of one kind are divided into groups as large as the smallest kind, or as the largest
    where that is less than half as large again (0.16: a quarter).
    """
    kept = [term for term in layout.terms if term.layers]
    if all(term.keeps is Keeps.ALL for term in kept):
        group = Group(keeps=Keeps.ALL, count=1, block=block)
        cost = layout.bytes_per_token
        whole = cost.number * block if isinstance(cost, Known) else None
        return [Plan(groups=(group,), block_bytes=whole)] if kept else []
    kinds = {(term.keeps, _window(term)) for term in kept}
    if len(kinds) != len(kept) or any(term.keeps is Keeps.ENCODER for term in kept):
        return []
    counts = [term.layers or 0 for term in kept]
    sizes = {min(counts)}
    if max(counts) < min(counts) * 1.5:
        sizes.add(max(counts))
    page = _page_of_all(kept, block)
    if page is not None and page < _largest_state(kept):
        return []  # the engine would have made the block so large that a state has room in it
    return [
        Plan(
            groups=tuple(
                _group(term, _blocks(term.layers or 0, size), block, kept) for term in kept
            ),
            block_bytes=None if page is None else page * size,
        )
        for size in sorted(sizes)
    ]


def _page_of_all(kept: Sequence[TermRow], block: int) -> Decimal | None:
    """Bytes of a layer's block, which all groups share: smaller pages are padded."""
    pages = [_page(term) for term in kept if term.keeps is not Keeps.STATE]
    sizes = [page * block for page in pages if page is not None]
    return max(sizes) if sizes and len(sizes) == len(pages) else None


def _largest_state(kept: Sequence[TermRow]) -> Decimal:
    """Bytes of a request's state in one layer, of those that are known."""
    costs = [(term.fixed_bytes_per_request, term.layers) for term in kept]
    states = [cost.number / layers for cost, layers in costs if isinstance(cost, Known) and layers]
    return max(states, default=Decimal(0))


def _group(term: TermRow, count: int, block: int, kept: Sequence[TermRow]) -> Group:
    return Group(
        keeps=term.keeps, count=count, block=_block(term, block, kept), window=_window(term)
    )


def _block(term: TermRow, block: int, kept: Sequence[TermRow]) -> int:
    """A layer with smaller pages gets larger blocks where the pages divide, else padded ones."""
    pages = [page for each in kept if (page := _page(each)) is not None]
    mine = _page(term)
    if mine is None or not pages or max(pages) % mine:
        return block
    return block * int(max(pages) / mine)


def _page(term: TermRow) -> Decimal | None:
    """Bytes of one token in one layer."""
    cost = term.bytes_per_token
    if not isinstance(cost, Known) or not term.layers or term.keeps is Keeps.STATE:
        return None
    return cost.number / term.layers


def _window(term: TermRow) -> int | None:
    window = term.window_tokens
    return int(window.number) if isinstance(window, Known) else None
