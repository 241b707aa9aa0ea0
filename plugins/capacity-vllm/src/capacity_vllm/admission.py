"""How many requests a pool of blocks takes: what all candidates for a log agree on is known, the
rest lies between their bounds."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal

import attrs

from capacity_core.api.admission import Fit, Request
from capacity_core.api.kv_layouts import Keeps
from capacity_core.api.ledger import WorkerFacts
from capacity_core.api.report import LayoutRow
from capacity_core.units import REQUESTS
from capacity_core.values import Known, Origin, Unknown, Value, known
from capacity_vllm.candidates import Candidate, Printed

_OTHER_MODEL = (
    "its layers do not give the printed tokens, concurrency and budget: it is of another model, or "
    "the engine groups them otherwise"
)
_DRAFTED = "the layers of a draft model, which share the blocks, are not in it"
_OTHER_PAGE = (
    "num_gpu_blocks of the metrics page is not counted: the configuration and the printed budget "
    "make other blocks"
)


@attrs.frozen(kw_only=True)
class VllmAdmission:
    """What one run prints of its blocks; `lines` are those that say what is no figure there. Tokens
    of `context_parallel` ranks are counted together, and tell nothing."""

    printed: Printed
    context_parallel: bool = False
    lines: tuple[str, ...] = ()

    def fit(self, worker: WorkerFacts, request: Request, layout: LayoutRow | None) -> Fit | None:
        """Requests of one kind without preemption, and how many are admitted at once."""
        if self.printed.length is None or self.context_parallel:
            return None
        assumed = self._assumed(request)
        found, given = self.printed.candidates(layout, worker), layout
        if not found and layout is not None and worker.dp in self.printed.blocks:
            found = attrs.evolve(self.printed, blocks={}).candidates(layout, worker)
            assumed += (_OTHER_PAGE,) if found else ()
        if not found and layout is not None:
            layout, found = None, self.printed.candidates(None, worker)
        unused = None
        if layout is not given:
            unused = _OTHER_MODEL if self.printed.drafts is None else _DRAFTED
        if not found:
            fit = self._reckoned(worker, request, given)
            return fit if fit is None else attrs.evolve(fit, layout_unused=unused)
        unproven = self.printed.unproven if layout is None and _plain(found) else ()
        assumed += unproven
        lowest, highest, admitted = self._bounds(found, request)
        evidence = self._evidence(worker, layout)
        how = self._how(found, request)
        why = self._open(found, request)
        tokens = _between(lowest, highest, how, evidence, why)
        return Fit(
            tokens=tokens.assume(*assumed),
            layout_unused=unused,
            admitted=None
            if request.prompt is None
            else _between(*admitted, "prompts that blocks take at once", evidence, why),
        )

    def _reckoned(
        self, worker: WorkerFacts, request: Request, layout: LayoutRow | None
    ) -> Fit | None:
        """Where no candidate is left: what the engine reserves for its longest request is
        the least that fit of shorter ones. It is the count of the longest, where states are all
        that is kept beside full attention; windows keep less than is reckoned for a prefill."""
        said, printed = worker.reported, self.printed
        if said is None or not isinstance(said.value, Known) or printed.length is None:
            return None
        low, high = (said.value.number + error for error in (-said.value.error, said.value.error))
        # The block that is never given away costs a request where the pool is whole requests.
        least, most = (end.to_integral_value(ROUND_CEILING) - 1 for end in (low, high))
        evidence = (*said.value.evidence, *self.lines)
        windows = layout is not None and any(term.window_tokens for term in layout.terms)
        windows = windows or (len(printed.sizes) > 1 and not printed.has_states)
        if request.tokens >= printed.length and not windows:
            if not printed.has_states or least != most or least < 0:
                return None
            how = "the engine's own reckoning, but for the block that is never given away"
            count = known(least, REQUESTS, Origin.DERIVED, how=how, evidence=evidence)
            return Fit(tokens=count.assume("a request holds the states that the engine reckons"))
        if printed.has_states and printed.mode != "none":
            # A crossed block holds a third state for a step.
            least = (low * 2 / 3).to_integral_value(ROUND_CEILING) - 1
        return Fit(
            tokens=Unknown(
                why="how the layers of speculative decoding lie in groups is printed nowhere"
                if printed.drafts is not None
                else "neither log nor configuration says how the layers lie in groups",
                unit=REQUESTS,
                at_least=max(least, Decimal(0)),
                evidence=evidence,
            )
        )

    def _assumed(self, request: Request) -> tuple[str, ...]:
        if self.printed.drafts is not None and request.prompt is None:
            return ("what drafts reserve is counted among a request's tokens",)
        return ()

    def _bounds(
        self, candidates: Sequence[Candidate], request: Request
    ) -> tuple[int | None, int, tuple[int, int]]:
        """The least and the most that fit, and that are admitted, over all candidates; where no
        prompt is given, over a request that is all prompt and one that is all output."""
        lows, highs, admitted = [], [], []
        for each in candidates:
            plan, drafts = each.plan, self.printed.drafts
            if request.prompt is not None and isinstance(drafts, Known):
                plan = attrs.evolve(plan, drafted=_reserved(int(drafts.number)))
            if self.printed.preallocates:
                ahead = -(-_PREALLOCATED // plan.smallest) * plan.smallest
                plan = attrs.evolve(plan, drafted=plan.drafted + ahead)
            usable = each.blocks - 1  # one block is never given away (v1/core/block_pool.py)
            for prompt, output in _splits(request):
                low, high = plan.fit(usable, prompt, output, self.printed.length or 0)
                if request.prompt is None and plan.windowed:
                    low = plan.surely(usable, request.tokens, self.printed.length or 0)
                lows.append(low)
                highs.append(high)
                least, most = plan.holds(prompt, output, self.printed.length or 0)
                admitted += [most.admitted(usable), least.admitted(usable)]
        bound = any(each.plan.is_bound for each in candidates)
        if request.prompt is not None and isinstance(self.printed.drafts, Unknown):
            bound = True  # a draft may reserve any number of tokens
        return None if bound else min(lows), max(highs), (min(admitted), max(admitted))

    def _how(self, candidates: Sequence[Candidate], request: Request) -> str:
        """The formula of the first candidate; all others give the same."""
        plan, number = candidates[0].plan, candidates[0].blocks
        split = _splits(request)[0]
        _, most = plan.holds(*split, self.printed.length or 0)
        usable = number - 1
        count = f"min({usable} // {most.end}, 1 + ({usable} - {most.asked}) // {most.filled})"
        if plan.number == 1 and not plan.windowed:
            count = f"{usable} // {most.end}"
        said = f"{request.tokens} tokens"
        if request.prompt is not None:
            said = f"{request.prompt} + {request.output} tokens"
        groups = f" in {plan.number} groups" if plan.number > 1 else ""
        others = ", the same for every size that is not printed" if len(set(candidates)) > 1 else ""
        return f"{count}: blocks // what {said} take{groups}{others}"

    def _open(self, candidates: Sequence[Candidate], request: Request) -> str:
        """What leaves the count open."""
        if len({each.plan.groups for each in candidates}) > 1:
            return (
                "the size of a block, or how layers are grouped, is not printed and decides the "
                "count (--metrics or --config may tell)"
            )
        if any(each.plan.windowed for each in candidates):
            return (
                "what windows hold beside a prompt depends on its length, on the tokens in flight "
                "and on the window"
            )
        if self.printed.preallocates:
            return "how many of the blocks that are given ahead are held decides the count"
        if self.printed.drafts is not None and request.prompt is not None:
            return "how much of what a draft reserves is held at the end decides the count"
        return "when requests cross a block, each holds two states in a group for a step"

    def _evidence(self, worker: WorkerFacts, layout: LayoutRow | None) -> tuple[str, ...]:
        values = [worker.tokens, self.printed.block]
        if worker.dp in self.printed.blocks:
            values.insert(0, self.printed.blocks[worker.dp])
        if worker.reported is not None:
            values.append(worker.reported.value)
        if layout is not None:
            values += [layout.bytes_per_token, worker.size]
            if any(term.window_tokens is not None for term in layout.terms):
                values.append(self.printed.batched)
        lines = [line for value in values if isinstance(value, Known) for line in value.evidence]
        return tuple(dict.fromkeys((*lines, *self.lines)))


@attrs.frozen(kw_only=True)
class FormerAdmission:
    """The scheduler before V1, which prints its blocks: each request that grows needs a free block
    in the pool, whether it begins a new one or not (core/block_manager.py of 0.9.2:207), and a
    prompt is admitted beside a hundredth of all (watermark, core/block_manager.py of 0.9.2:65)."""

    block: int

    def fit(self, worker: WorkerFacts, request: Request, layout: LayoutRow | None) -> Fit | None:
        """Requests of one kind without preemption."""
        if not isinstance(worker.tokens, Known):
            return None
        blocks = int(worker.tokens.number) // self.block
        held = -(-max(request.tokens - 1, 1) // self.block)
        count = max(blocks - 1, 0) // held
        how = f"({blocks} blocks - 1) // {held} of {request.tokens} tokens"
        if request.prompt is not None:
            prompts, room = -(-request.prompt // self.block), blocks - blocks // 100
            if room // prompts < count:
                count, how = room // prompts, f"{room} of {blocks} blocks // {prompts} of a prompt"
        evidence = worker.tokens.evidence
        return Fit(tokens=known(count, REQUESTS, Origin.DERIVED, how=how, evidence=evidence))


_PREALLOCATED = 64
"""Tokens for which a request gets blocks ahead, up to 0.8.4 (v1/core/kv_cache_manager.py of
0.8.3:28)."""


def _reserved(proposed: int) -> int:
    """Slots beyond a request's tokens, at most: its drafts, as many again to look ahead, one more
    with dflash (0.33.0 vllm/config/vllm.py:626), and a step that runs ahead."""
    return 3 * proposed + 1


def _plain(candidates: Sequence[Candidate]) -> bool:
    """Whether all candidates take every layer to keep every token."""
    return all(group.keeps is Keeps.ALL for each in candidates for group in each.plan.groups)


def _splits(request: Request) -> list[tuple[int, int]]:
    """Prompt and output; where they are not said, all prompt and all output."""
    if request.prompt is not None:
        return [(request.prompt, request.tokens - request.prompt)]
    rest = max(request.tokens - 1, 1)
    return [(rest, 1), (1, rest)]


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
