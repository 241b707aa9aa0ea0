"""How many requests SGLang's pools take without retraction: the full pool, the sliding-window pool,
the slots of states.

Sources: 0.5.23 srt/managers/schedule_policy.py, srt/mem_cache/common.py (what leaves a window),
srt/mem_cache/kv_cache_configurator.py:3062 (slots of a request); of older releases those beside the
code. SGLang does not print its release: where several may have printed a log, the least that one of
them takes is the lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import attrs

from capacity_core.api.admission import Fit, Request
from capacity_core.api.extractors import Run
from capacity_core.api.ledger import Deployment, KvFacts, TokenUse, WorkerFacts
from capacity_core.api.report import LayoutRow
from capacity_core.api.versions import release_key
from capacity_core.units import REQUESTS, SLOTS, TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, known
from capacity_sglang.args import Settings
from capacity_sglang.compressed import CompressedPools
from capacity_sglang.limits import RequestLimit
from capacity_sglang.pools import SlidingWindowTokens, UnifiedPool
from capacity_sglang.reading import RankReading
from capacity_sglang.workers import windows_alone

_EVICTION_INTERVAL = 128
"""Tokens between two looks at what has left the window (SGLANG_SWA_EVICTION_INTERVAL)."""


_NOT_PRINTED = Unknown(why="not printed", unit=TOKENS)

_COUNTED = "what drafts reserve is counted among a request's tokens"

Release = tuple[int, ...]


@attrs.frozen(kw_only=True)
class SglangAdmission:
    """What one run says of its pools beside the tokens.

    `since` is the earliest release that can have printed it, empty when any can. `slots_each` is
    how many slots of states a request takes, and `limit_has_states` whether the printed request
    limit has them counted in; `cached` whether finished prompts stay in the radix cache and `ahead`
    whether scheduling overlaps, None where the arguments do not say. `alone` says that no pool but
    the full one binds; a `unified` pool has no pages of windows, but rings of requests or one
    buffer for all. `reserved` are the tokens that speculative decoding reserves for a request, None
    where it is off. `role` is that of a disaggregated server (prefill, decode), and `kept_free` the
    tokens that one which decodes keeps free for each request. `shards` are the ranks that share out
    a request's tokens, and `pool_shards` how many times more tokens than printed they hold
    together. With `windows_alone` there is no full pool.
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
    since: Release = ()
    limit_has_states: bool = False
    role: str | None = None
    kept_free: Value = _NOT_PRINTED
    shards: int = 1
    pool_shards: tuple[int, int] = (1, 1)
    windows_alone: bool = False

    def fit(self, worker: WorkerFacts, request: Request, layout: LayoutRow | None) -> Fit | None:
        """Requests of one kind by both pools and by states; None where tokens alone decide."""
        if self.role == "prefill" and request.prompt is not None:
            # The one that decodes generates the others (srt/disaggregation/prefill.py:482).
            request = Request(request.prompt + 1, request.prompt)
        state = self._by_state(worker)
        windows = self._window_tokens(worker)
        # A pool of no tokens is none: rings of requests keep the windows.
        has_windows = isinstance(windows, Known) and windows.number > 0
        alone = self.alone or (isinstance(windows, Known) and not has_windows)
        simple = request.prompt is None and self.reserved is None and self.shards == 1
        if isinstance(windows, Known) and has_windows and not self.unified:
            tokens = self._by_pools(worker, windows, request, layout)
        elif alone and not (simple and self.alone):
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
            if self.limit_has_states:
                return None
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
        page = (int(self.page.number) or 1) * self.shards
        smallest, pool = (int(worker.tokens.number) * shards for shards in self.pool_shards)
        least = most = request.tokens
        if request.prompt is not None:
            least = max(request.tokens - 1, 1)
        evidence = (*worker.tokens.evidence, *self.page.evidence)
        if self.role == "decode" and request.prompt is not None:
            # srt/disaggregation/decode.py of 0.5.12:853, 1045
            kept = int(self.kept_free.number) if isinstance(self.kept_free, Known) else 0
            least = max(least, request.prompt + kept)
            # Where it is not printed, a request may keep the whole pool.
            most = max(most, request.prompt + kept + page) if kept else request.prompt + pool
            evidence += self.kept_free.evidence
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
        low, high = smallest // _whole(most, page), pool // _whole(least, page)
        if (
            request.prompt is not None
            and low
            and smallest - (low - 1) * _whole(most, page) <= (most + page)
        ):
            low -= 1  # the last one is admitted only beside a page more (schedule_policy.py:851)
        low = min(low, self._beside_running(smallest, request, page))
        if low == high:
            times = f" * {self.pool_shards[0]}" if self.pool_shards[0] > 1 else ""
            how = f"floor(tokens{times} / {_whole(most, page)} tokens per request)"
            fits = known(low, REQUESTS, Origin.DERIVED, how=how, evidence=evidence)
            counted = self.reserved is not None and request.prompt is None
            return fits.assume(*((_COUNTED,) if counted else ()))
        return Unknown(
            why=self._why_open(smallest, pool),
            unit=REQUESTS,
            at_least=Decimal(low),
            at_most=Decimal(high),
            evidence=evidence,
        )

    def _beside_running(self, pool: int, request: Request, page: int) -> int:
        """The least that a server which decodes admits: beside requests that have generated all but
        their last token, each of which it keeps tokens free for (disaggregation/decode.py of
        0.5.12:1070). The whole pool for another server."""
        if self.role != "decode" or request.prompt is None or not isinstance(self.kept_free, Known):
            return pool
        kept = int(self.kept_free.number)
        last = max(request.prompt + kept, request.tokens)
        if pool < last:
            return 0
        return 1 + (pool - _whole(last, page)) // _whole(request.tokens - 1 + kept, page)

    def _why_open(self, smallest: int, pool: int) -> str:
        if smallest < pool:
            return (
                "whether the tokens of all context-parallel ranks are printed, or of one, is open"
            )
        if self.reserved is not None:
            return "how much of what a draft reserves is held at the end decides the count"
        if self.role == "decode":
            return "what a server that decodes keeps free for each request decides the count"
        return (
            "whether the last token takes a slot, and a page is kept free beside the last request, "
            "differs by release and decides the count"
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
        of_full = [
            unsaid if bound is None else int(bound)
            for bound, unsaid in zip(full.interval, (0, most), strict=True)
        ]
        if self.windows_alone:
            of_full = [most, most]
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
        """The most that one request holds of the window's pool (srt/mem_cache/common.py:76).

        A look each 128 tokens, up to 0.5.13 each window (schedule_batch.py of 0.5.11:2620). The
        radix cache locks two windows of a prompt, up to 0.5.15 its last chunk as a whole
        (swa_radix_cache.py of 0.5.15:670), up to 0.5.7 all that is generated as well
        (mem_cache/common.py of 0.5.5:428).
        """
        total = _whole(request.tokens, page)
        whole_window = _whole(max(span, page), page)
        interval, margin = _EVICTION_INTERVAL, 0
        if self.since < (0, 5, 14):
            interval, margin = max(span, page), page
        tail = _whole(max(whole_window + page, span + interval) + margin + 2, page)
        if self.cached is False:
            return min(total, tail)
        prompt = request.tokens if request.prompt is None else request.prompt
        locked = 2 * _whole(span, page)
        if self.since < (0, 5, 16):
            chunked = isinstance(self.chunk, Known) and self.chunk.number > 0
            chunk = int(self.chunk.number) if isinstance(self.chunk, Known) and chunked else prompt
            locked = max(locked, _whole(chunk, page) + _whole(span, page))
        if self.since < (0, 5, 8):
            tail = total
        return min(total, min(_whole(prompt, page), locked) + tail)


def admission_of(
    run: Run,
    readings: Sequence[RankReading],
    settings: Settings,
    deployment: Deployment,
    kv: KvFacts,
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
    since, until = (release_key(end) for end in run.version_range or ("", ""))
    role = deployment.disaggregation
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
        reserved=_reserved(settings, deployment, since),
        since=since,
        # Each request's slots are in the limit from 0.5.4 on (model_runner.py of 0.5.4:1659).
        limit_has_states=since >= (0, 5, 4),
        role=str(role.amount) if isinstance(role, Known) else None,
        kept_free=settings.number(TOKENS, "num_reserved_decode_tokens"),
        shards=settings.shards,
        pool_shards=_pool_shards(settings.shards, readings, since, until),
        windows_alone=windows_alone(run),
    )


def _pool_shards(
    shards: int, readings: Sequence[RankReading], since: Release, until: Release
) -> tuple[int, int]:
    """How many times more tokens than printed the ranks of decode context parallel hold together,
    at least and at most: up to 0.5.20 one rank's are printed (kv_cache_configurator.py of
    0.5.18:1714), from 0.5.21 on all (tp_worker.py of 0.5.21:552), which are more than its pool
    has."""
    for reading in readings:
        if reading.limits is not None and isinstance(reading.target_tokens, Known):
            of_all = reading.limits.event.tokens > reading.target_tokens.number
            return (1, 1) if of_all else (shards, shards)
    least = shards if until and until[:3] <= (0, 5, 20) else 1
    return least, 1 if since >= (0, 5, 21) else shards


def _reserved(settings: Settings, deployment: Deployment, since: Release) -> Value | None:
    """Tokens beside a request's that must be free for it to go on."""
    if not isinstance(deployment.speculative, Known):
        return None
    tokens = settings.number(TOKENS, "speculative_num_draft_tokens")
    page = deployment.page_size
    said = [tokens]
    factors = []
    for name in ("speculative_num_steps", "speculative_eagle_topk"):
        value = settings.number(TOKENS, name)
        said.append(value)
        # Where there is no draft model they are None, and count as 1.
        none = settings.arguments.get(name) == "None"
        factors.append(1 if none else int(value.number) if isinstance(value, Known) else None)
    steps, top = factors
    if not isinstance(tokens, Known) or not isinstance(page, Known) or steps is None or top is None:
        return Unknown(why="the steps and tokens of speculative decoding are not printed")
    amount = _reserve(since, steps, top, int(tokens.number), int(page.number) or 1)
    lines = tuple(dict.fromkeys(line for value in said for line in value.evidence))
    how = "what a step of speculative decoding reserves"
    return known(amount, TOKENS, Origin.DERIVED, how=how, evidence=lines)


def _reserve(since: Release, steps: int, top: int, tokens: int, page: int) -> int:
    """Twice what a step allocates (srt/speculative/allocation_sizing.py:32-79), up to 0.5.12 in
    whole pages (schedule_batch.py of 0.5.12:2128), up to 0.5.8 a page for each token that a step
    may draft (schedule_batch.py of 0.5.8:1797)."""
    if since < (0, 5, 9):
        return (tokens + top * steps) * page
    each = steps * top
    if page > 1 and top > 1:
        each = _whole(steps + page - 1, page) * top
    most = max(each, tokens)
    if since < (0, 5, 13):
        most = _whole(max(each, tokens), page) + page * (top > 1) * top
    return 2 * most


def _not(settings: Settings, key: str) -> bool | None:
    said = settings.flag(key)
    return None if said is None else not said


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
    unset = "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK is not set"
    return slots.assume(f"a request takes {slots.number} slots of states, as where {unset}")


def _whole(tokens: int, page: int) -> int:
    return -(-tokens // page) * page
