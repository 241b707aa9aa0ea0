"""How many requests SGLang's pools take without retraction: the full pool, the sliding-window pool,
the slots of states.

Sources: 0.5.23 srt/managers/schedule_policy.py, srt/mem_cache/common.py (what leaves a window),
srt/mem_cache/kv_cache_configurator.py:3062 (slots of a request).
"""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api.admission import Fit, Request
from capacity_core.api.extractors import Run
from capacity_core.api.ledger import Deployment, KvFacts, TokenUse, WorkerFacts
from capacity_core.api.report import LayoutRow
from capacity_core.units import REQUESTS, SLOTS, TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, known
from capacity_sglang.args import Settings
from capacity_sglang.compressed import CompressedPools
from capacity_sglang.limits import RequestLimit
from capacity_sglang.pools import SlidingWindowTokens, UnifiedPool

_EVICTION_INTERVAL = 128
"""Tokens between two looks at what has left the window (SGLANG_SWA_EVICTION_INTERVAL)."""


_COUNTED = "what drafts reserve is counted among a request's tokens"


@attrs.frozen(kw_only=True)
class SglangAdmission:
    """What one run says of its pools beside the tokens.

    `slots_each` is how many slots of states a request takes; `cached` whether finished prompts stay
    in the radix cache and `ahead` whether scheduling overlaps, None where the arguments do not say.
    `alone` says that no pool but the full one binds; a `unified` pool has no pages of windows, but
    rings of requests or one buffer for all. `reserved` are the tokens that speculative decoding
    reserves for a request, None where it is off.
    """

    page: Value
    window_tokens: Value
    alone: bool
    unified: bool
    chunk: Value
    cached: bool | None
    ahead: bool | None
    slots_each: Value
    reserved: Value | None

    def fit(self, worker: WorkerFacts, request: Request, layout: LayoutRow | None) -> Fit | None:
        """Requests of one kind by both pools and by states; None where tokens alone decide."""
        state = self._by_state(worker)
        windows = self._window_tokens(worker)
        if isinstance(windows, Known) and not self.unified:
            tokens = self._by_pools(worker, windows, request, layout)
        elif self.alone and (request.prompt is not None or self.reserved is not None):
            tokens = self._by_tokens(worker, request)
        else:
            tokens = None
        if tokens is None and state is None:
            return None
        return Fit(tokens=tokens, state=state)

    def _window_tokens(self, worker: WorkerFacts) -> Value:
        """What the window's pool was split to, else what was allocated for it."""
        for pool in worker.pools:
            if isinstance(self.window_tokens, Unknown) and pool.label == "swa":
                return pool.tokens
        return self.window_tokens

    def _by_state(self, worker: WorkerFacts) -> Value | None:
        slots = worker.state_slots
        if slots is None:
            return None
        if not isinstance(slots, Known) or not isinstance(self.slots_each, Known):
            why = "how many slots of states a request takes is not printed"
            bound = slots.number if isinstance(slots, Known) else None
            return Unknown(why=why, unit=REQUESTS, at_most=bound, evidence=slots.evidence)
        number = slots.number // self.slots_each.number
        fits = known(
            number,
            REQUESTS,
            Origin.DERIVED,
            how=f"{slots.number} slots // {self.slots_each.number} a request",
            evidence=(*slots.evidence, *self.slots_each.evidence),
        )
        return fits.assume(*self.slots_each.assuming)

    def _by_tokens(self, worker: WorkerFacts, request: Request) -> Value | None:
        """The full pool alone, in whole pages: the last token takes no slot in some releases, and a
        draft's are reserved beside (srt/speculative/allocation_sizing.py). None without figures."""
        if not isinstance(worker.tokens, Known) or not isinstance(self.page, Known):
            return None
        page, pool = int(self.page.number) or 1, int(worker.tokens.number)
        least = most = request.tokens
        if request.prompt is not None:
            least = max(request.tokens - 1, 1)
        evidence = (*worker.tokens.evidence, *self.page.evidence)
        if self.reserved is not None and request.prompt is not None:
            if isinstance(self.reserved, Unknown):
                return attrs.evolve(
                    self.reserved,
                    unit=REQUESTS,
                    at_most=Decimal(pool // _whole(least, page)),
                    evidence=evidence,
                )
            most += int(self.reserved.number)
            evidence += self.reserved.evidence
        low, high = pool // _whole(most, page), pool // _whole(least, page)
        if low == high:
            how = f"floor(tokens / {_whole(most, page)} tokens per request)"
            fits = known(low, REQUESTS, Origin.DERIVED, how=how, evidence=evidence)
            counted = self.reserved is not None and request.prompt is None
            return fits.assume(*((_COUNTED,) if counted else ()))
        return Unknown(
            why="whether the last token takes a slot, which differs by release, decides the count"
            if self.reserved is None
            else "how much of what a draft reserves is held at the end decides the count",
            unit=REQUESTS,
            at_least=Decimal(low),
            at_most=Decimal(high),
            evidence=evidence,
        )

    def _by_pools(
        self,
        worker: WorkerFacts,
        windows: Known,
        request: Request,
        layout: LayoutRow | None,
    ) -> Value | None:
        """Both pools: the window's holds a request's last window and what has not left it yet.

        Between a window alone and what the radix cache locks and evicts late, beside a prefill.
        """
        full = self._by_tokens(worker, request)
        window = None if layout is None else layout.window_tokens
        if full is None or not isinstance(window, Known) or not isinstance(self.page, Known):
            return None
        page, span = int(self.page.number) or 1, int(window.number)
        pool = int(windows.number)
        most = pool // _whole(min(max(request.tokens - 1, 1), span), page)
        if isinstance(self.chunk, Known) and self.chunk.number > 0:
            spare = int(self.chunk.number) * (1 if self.ahead is False else 2) + page
        else:
            spare = request.tokens  # a whole prompt at once
        spare = min(spare, 2 * _whole(request.tokens, page))
        fewest = max(0, pool - spare) // self._held(request, span, page)
        of_full = [most if bound is None else int(bound) for bound in full.interval]
        low, high = min(of_full[0], fewest), min(of_full[1], most)
        evidence = (*full.evidence, *windows.evidence, *window.evidence, *self.chunk.evidence)
        if self.reserved is not None:
            return Unknown(
                why="what a draft keeps in the window's pool beside a window is not reckoned",
                unit=REQUESTS,
                at_most=Decimal(high),
                evidence=evidence,
            )
        if low == high:
            how = "least of the full pool's and the window's pool's tokens by those of a request"
            fits = known(low, REQUESTS, Origin.DERIVED, how=how, evidence=evidence)
            default = f"SGLANG_SWA_EVICTION_INTERVAL is {_EVICTION_INTERVAL}, its default"
            return fits.assume(*((default,) if fewest < of_full[0] else ()))
        return Unknown(
            why="what the window's pool holds beside a window depends on what is cached and "
            "prefilled at the time",
            unit=REQUESTS,
            at_least=Decimal(low),
            at_most=Decimal(high),
            evidence=evidence,
        )

    def _held(self, request: Request, span: int, page: int) -> int:
        """The most that one request holds of the window's pool (srt/mem_cache/common.py:76)."""
        total = _whole(request.tokens, page)
        whole_window = _whole(max(span, page), page)
        tail = _whole(max(whole_window + page, span + _EVICTION_INTERVAL) + 2, page)
        if self.cached is False:
            return min(total, tail)
        prompt = request.tokens if request.prompt is None else request.prompt
        locked = min(_whole(prompt, page), 2 * _whole(span, page))
        return min(total, locked + tail)


def admission_of(
    run: Run, settings: Settings, deployment: Deployment, kv: KvFacts
) -> SglangAdmission:
    """What a run says of the way in."""
    limit = run.last_of(RequestLimit)
    pool: Value = Unknown(why="the window's pool is not printed", unit=TOKENS)
    hybrid, compressed = run.last_of(SlidingWindowTokens), run.last_of(CompressedPools)
    if hybrid is not None:
        pool = hybrid.value("swa_tokens")
    elif compressed is not None:
        pool = compressed.value("swa")
    mode = str(kv.sizing_mode.amount) if isinstance(kv.sizing_mode, Known) else ""
    return SglangAdmission(
        page=deployment.page_size,
        window_tokens=pool,
        alone=kv.token_use is TokenUse.ANY_LENGTH,
        unified=mode.startswith(("unified", "ring")) or run.has(UnifiedPool),
        chunk=deployment.chunked_prefill_size,
        cached=_not(settings, "disable_radix_cache"),
        ahead=_not(settings, "disable_overlap_schedule"),
        slots_each=limit.value("slots_each")
        if limit is not None and limit.event.slots_each is not None
        else _slots_each(settings),
        reserved=_reserved(settings, deployment),
    )


def _reserved(settings: Settings, deployment: Deployment) -> Value | None:
    """Twice what a step allocates (srt/speculative/allocation_sizing.py:32-79)."""
    if not isinstance(deployment.speculative, Known):
        return None
    names = ("num_steps", "eagle_topk", "num_draft_tokens")
    said = [settings.number(TOKENS, f"speculative_{name}") for name in names]
    page = deployment.page_size
    numbers = [int(value.number) for value in (*said, page) if isinstance(value, Known)]
    if len(numbers) < 4:
        return Unknown(why="the steps and tokens of speculative decoding are not printed")
    steps, top, tokens, size = numbers
    each = steps * top
    if size > 1 and top > 1:
        each = (2 * size - 2 + steps) // size * size * top
    lines = tuple(dict.fromkeys(line for value in said for line in value.evidence))
    how = f"2 * max({each}, {tokens} draft tokens)"
    return known(2 * max(each, tokens), TOKENS, Origin.DERIVED, how=how, evidence=lines)


def _not(settings: Settings, key: str) -> bool | None:
    said = settings.text(key)
    return said.amount != "True" if isinstance(said, Known) else None


def _slots_each(settings: Settings) -> Value:
    """Slots by strategy: 1 without radix cache, 3 without a buffer, else 5, or 4 without overlap or
    with the lazy buffer (srt/mem_cache/kv_cache_configurator.py:3062)."""
    if _not(settings, "disable_radix_cache") is False:
        return known(1, SLOTS, Origin.CONFIGURED, how="no radix cache")
    strategy = settings.text("mamba_radix_cache_strategy") | settings.text(
        "mamba_scheduler_strategy"
    )
    overlap = _not(settings, "disable_overlap_schedule")
    each = {"no_buffer": 3, "extra_buffer_lazy": 4}
    if isinstance(strategy, Known) and strategy.amount == "extra_buffer" and overlap is not None:
        each["extra_buffer"] = 5 if overlap else 4
    if not isinstance(strategy, Known) or str(strategy.amount) not in each:
        return Unknown(why="the strategy of state slots is not printed", unit=SLOTS)
    slots = known(
        each[str(strategy.amount)],
        SLOTS,
        Origin.CONFIGURED,
        how=f"strategy {strategy.amount}",
        evidence=strategy.evidence,
    )
    return slots.assume("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK is not set")


def _whole(tokens: int, page: int) -> int:
    return -(-tokens // page) * page
