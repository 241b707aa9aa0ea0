"""How many requests of a length fit: by tokens, by the request limit, on one worker and on all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal

import attrs

from capacity_core.api.admission import Fit, Request
from capacity_core.api.ledger import (
    Deployment,
    KvFacts,
    Ledger,
    TokenUse,
    WorkerFacts,
    least_reported,
)
from capacity_core.api.report import ABSENT, Concurrency, ConcurrencyRow, LayoutRow
from capacity_core.errors import OnFailure
from capacity_core.units import REQUESTS, TOKENS, TOKENS_PER_REQUEST
from capacity_core.values import Known, Origin, Unknown, Value, known, least, total

_NO_WINDOWS = "no layer keeps a sliding window (with windows more fit than the engine estimates)"
NO_WORKER = Unknown(why="no scheduler shows its limits", unit=REQUESTS)


def concurrency(
    ledger: Ledger,
    requests: Sequence[Request],
    layout: LayoutRow | None,
    on_failure: OnFailure,
    on_unused_layout: Callable[[str], None],
) -> Concurrency:
    """A row for each kind of request, for the worker that takes least and for the deployment.

    `layout` is what the configuration says of all layers of the model. A framework's plugin that
    fails is reported to `on_failure`, and to `on_unused_layout` why the layout was not used.
    """
    limits = [worker.request_limit for worker in ledger.workers]
    return Concurrency(
        workers=ledger.deployment.workers,
        request_limit=least(limits) if limits else NO_WORKER,
        reported=least_reported(worker.reported for worker in ledger.workers),
        rows=tuple(
            _row(ledger, request, layout, on_failure, on_unused_layout) for request in requests
        ),
    )


def over_workers(values: Sequence[Value], workers: Value, name: str) -> Value:
    """The sum over all workers; at least the sum of those shown when their number is not known."""
    if not values:
        return Unknown(why="no scheduler is shown", unit=REQUESTS)
    result = total(values, name)
    if isinstance(workers, Known):
        return result
    low, _ = result.interval
    return Unknown(
        why="the log does not say how many schedulers there are",
        unit=result.unit,
        at_least=low,
        evidence=result.evidence,
    )


def _row(
    ledger: Ledger,
    request: Request,
    layout: LayoutRow | None,
    on_failure: OnFailure,
    on_unused_layout: Callable[[str], None],
) -> ConcurrencyRow:
    beyond = _beyond_context(ledger.deployment, request.tokens)
    if beyond is not None or not ledger.workers:
        return _unanswered(request, beyond or NO_WORKER)
    fits = [_fit(ledger, worker, request, layout, on_failure) for worker in ledger.workers]
    for fit in fits:
        if fit.layout_unused is not None:
            on_unused_layout(fit.layout_unused)
    by_tokens = [fit.tokens or NO_WORKER for fit in fits]
    by_state = _of_all([fit.state for fit in fits])
    by_requests = [worker.request_limit for worker in ledger.workers]
    maxima = [
        _most(tokens, fit.state, limit)
        for tokens, fit, limit in zip(by_tokens, fits, by_requests, strict=True)
    ]
    admitted = _of_all([fit.admitted for fit in fits])
    token_limit, request_limit = least(by_tokens), least(by_requests)
    state_limit = least(by_state) if by_state else None
    return attrs.evolve(
        _unanswered(request, NO_WORKER),
        token_limit=token_limit,
        state_limit=ABSENT if state_limit is None else state_limit,
        request_limit=request_limit,
        admitted_at_once=_at_once(admitted, by_requests) if admitted else ABSENT,
        max_concurrent=least(maxima),
        bound_by=_bound_by(
            {"tokens": token_limit, "state": state_limit, "requests": request_limit}
        ),
        deployment_max_concurrent=over_workers(maxima, ledger.deployment.workers, "all workers"),
    )


def _unanswered(request: Request, why: Unknown) -> ConcurrencyRow:
    """The row of a request of which nothing is known."""
    return ConcurrencyRow(
        request_tokens=request.tokens,
        prompt_tokens=ABSENT if request.prompt is None else request.prompt,
        output_tokens=ABSENT if request.output is None else request.output,
        token_limit=why,
        state_limit=ABSENT,
        request_limit=why,
        admitted_at_once=ABSENT,
        max_concurrent=why,
        bound_by=None,
        deployment_max_concurrent=why,
    )


def _at_once(admitted: Sequence[Value], limits: Sequence[Value]) -> Value:
    """What the scheduler that admits least admits: prompts, as far as its request limit allows."""
    return least(
        least((prompts.named("prompts admitted"), limit.named("request limit")))
        for prompts, limit in zip(admitted, limits, strict=True)
    )


def _of_all(values: Sequence[Value | None]) -> list[Value]:
    """The figures of all schedulers, unknown for one that shows none; nothing where none does."""
    if all(value is None for value in values):
        return []
    unsaid = Unknown(why="not every scheduler shows it", unit=REQUESTS)
    return [unsaid if value is None else value for value in values]


def _most(tokens: Value, state: Value | None, requests: Value) -> Value:
    limits = [tokens.named("token limit"), requests.named("request limit")]
    return least(limits if state is None else [*limits, state.named("state limit")])


def _fit(
    ledger: Ledger,
    worker: WorkerFacts,
    request: Request,
    layout: LayoutRow | None,
    on_failure: OnFailure,
) -> Fit:
    """What the framework's plugin knows of the way in; else what tokens alone say."""
    by_tokens = _token_limit(ledger, worker, request.tokens)
    fit = None
    if ledger.admission is not None:
        try:
            fit = ledger.admission.fit(worker, request, layout)
            if fit is not None and not isinstance(fit, Fit):
                raise TypeError(f"fit gave {type(fit).__name__}")
        # The border of a plugin: its tokens still say something.
        except Exception as error:  # noqa: BLE001
            on_failure(ledger.framework, f"{type(error).__name__}: {error}")
    if fit is None or fit.tokens is None:
        return attrs.evolve(fit or Fit(), tokens=by_tokens)
    if isinstance(fit.tokens, Unknown) and fit.tokens.at_most is None:
        # What tokens allow is a bound still, unless it is assumed.
        assumed = isinstance(by_tokens, Known) and by_tokens.assuming
        high = None if assumed or ledger.kv.assumes else by_tokens.interval[1]
        return attrs.evolve(fit, tokens=attrs.evolve(fit.tokens, at_most=high))
    return fit


def _beyond_context(deployment: Deployment, length: int) -> Unknown | None:
    context = deployment.context_length
    if not isinstance(context, Known) or length <= context.number:
        return None
    why = f"requests of {length:,} tokens are longer than the context length, {context.number:,}"
    return Unknown(why=why, unit=REQUESTS, evidence=context.evidence)


def _token_limit(ledger: Ledger, worker: WorkerFacts, length: int) -> Value:
    kv = ledger.kv
    context = ledger.deployment.context_length
    longest = isinstance(context, Known) and context.number == length
    if kv.token_use is TokenUse.ANY_LENGTH:
        fits = _for_any_page(worker, kv, ledger.deployment.page_size, length)
        return fits.assume(*kv.assumes)
    if kv.token_use is TokenUse.LONGEST_ONLY and longest:
        reckoned = _whole(_longest(worker, kv, length))
        return reckoned if kv.share_bounds else reckoned.assume(_NO_WINDOWS)
    if kv.token_use is TokenUse.UNCLEAR:
        return _by_reported(worker, kv, length)
    most = _by_cost(worker, attrs.evolve(kv, unusable=None), _cost(length))
    if isinstance(most, Unknown):
        return most
    bound: Decimal | None = most.number + most.error
    if kv.token_use is TokenUse.LONGEST_ONLY:
        bound = _most_for_shorter(worker, kv, context, length)
    return Unknown(why=kv.token_use_why, unit=REQUESTS, at_most=bound, evidence=most.evidence)


def _for_any_page(worker: WorkerFacts, kv: KvFacts, page: Value, length: int) -> Value:
    """A request occupies whole pages. Where their size is one of several, the result is known only
    if it is the same for all."""
    printed = isinstance(page, Known) and page.number > 0
    sizes = (int(page.number),) if isinstance(page, Known) and printed else kv.blocks or (1,)
    costs = sorted({-(-length // size) * size for size in sizes})
    fits = [_whole(_by_cost(worker, kv, _cost(cost))) for cost in costs]
    most, fewest = fits[0], fits[-1]
    if most == fewest or (isinstance(most, Unknown) and most.at_most is None):
        return most
    high, low = most.interval[1], fewest.interval[0]
    if high == low:
        return most
    return Unknown(
        why="the page size is not printed, and decides between two counts",
        unit=REQUESTS,
        at_most=high,
        at_least=low,
        evidence=most.evidence,
    )


def _by_cost(worker: WorkerFacts, kv: KvFacts, cost: Known) -> Value:
    tokens = worker.tokens.named("tokens")
    if kv.unusable is not None:
        tokens = tokens - kv.unusable.named("unusable")
    return (tokens / cost).floor()


def _longest(worker: WorkerFacts, kv: KvFacts, length: int) -> Value:
    """Requests of the length that the tokens were computed for.

    Such tokens are a product: the pool's pages over those of one request, times the length. They
    are whole requests only where pages are, and then the page that no request can have costs one.
    """
    one = known(1, TOKENS, Origin.DERIVED, how="a share of the unusable page")
    unusable = None if kv.unusable is None else one
    return _by_cost(worker, attrs.evolve(kv, unusable=unusable), _cost(length))


def _whole(fits: Value) -> Value:
    """A count is exact or not known: what rounding leaves open is an unknown between two bounds."""
    if isinstance(fits, Unknown) or not fits.error:
        return fits
    return Unknown(
        why="tokens that the pool counts and no request can have decide between two counts",
        unit=fits.unit,
        at_most=fits.number + fits.error,
        at_least=max(fits.number - fits.error, Decimal(0)),
        evidence=fits.evidence,
    )


def _most_for_shorter(
    worker: WorkerFacts, kv: KvFacts, context: Value, length: int
) -> Decimal | None:
    """The bound for requests shorter than those that the tokens were computed for.

    A request's cost is so many blocks for its length, plus what does not depend on it: a shorter
    one costs at least its share of the longest one's blocks. The printed tokens were cut to a
    whole number. Without any idea of the block there is no bound.
    """
    tokens = worker.tokens
    if (
        not (kv.blocks and kv.share_bounds)
        or not isinstance(context, Known)
        or not isinstance(tokens, Known)
    ):
        return None
    longest = int(context.number)
    share = max(Decimal(-(-longest // block)) / -(-length // block) for block in kv.blocks)
    return ((tokens.number + 1) * share / max(longest, 1)).to_integral_value(ROUND_FLOOR)


def _by_reported(worker: WorkerFacts, kv: KvFacts, length: int) -> Value:
    """At least what the engine itself reckons, for requests no longer than those it printed it for:
    it counts a whole prefill for each, which sliding windows do not keep, and the unusable page."""
    said = worker.reported
    if said is None or length > said.request_tokens or not isinstance(said.value, Known):
        return Unknown(why=kv.token_use_why, unit=REQUESTS, evidence=worker.tokens.evidence)
    fewest = said.value.number - said.value.error
    whole = fewest.to_integral_value(ROUND_FLOOR)
    if kv.unusable is not None and whole == fewest:
        whole -= 1
    return Unknown(
        why=kv.token_use_why,
        unit=REQUESTS,
        at_least=max(whole, Decimal(0)),
        evidence=said.value.evidence,
    )


def _cost(length: int) -> Known:
    return known(length, TOKENS_PER_REQUEST, Origin.CONFIGURED, name=f"{length} tokens per request")


def _bound_by(limits: Mapping[str, Value | None]) -> str | None:
    """Which limit is surely no larger than all others; the first of equals."""
    for name, limit in limits.items():
        if limit is None:
            continue
        highest = limit.interval[1]
        others = [other.interval[0] for other in limits.values() if other not in (None, limit)]
        if highest is not None and all(low is not None and highest <= low for low in others):
            return name
    return None
