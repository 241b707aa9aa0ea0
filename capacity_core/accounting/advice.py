"""Tuning notes: only with evidence, and none that the log contradicts."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_FLOOR, Decimal

from capacity_core.api.ledger import Category, Ledger, Role, Severity, Stage, Status
from capacity_core.api.report import Advice, Concurrency, LayoutRow
from capacity_core.units import BYTES, GIB, RATIO, REQUESTS, TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, known, least

HEADROOM_KEPT = Decimal("3.5")
"""GiB that a raised fraction leaves free: activations and captures need room that no start-up line
shows."""

_WIDE_DTYPES = ("bfloat16", "float16", "bf16", "fp16", "half")


def advise(ledger: Ledger, concurrency: Concurrency, layout: LayoutRow | None) -> Iterator[Advice]:
    """What is worth trying, most certain first. A server that failed gets none: its failure comes
    first."""
    if ledger.status is Status.FAILED:
        return
    yield from _raise_request_limit(ledger, concurrency)
    yield from _raise_fraction(ledger)
    yield from _narrower_kv(ledger)
    yield from _less_replication(ledger, layout)


def _raise_request_limit(ledger: Ledger, concurrency: Concurrency) -> Iterator[Advice]:
    flag = ledger.levers.request_limit_flag
    bound = [row for row in concurrency.rows if row.bound_by == "requests"]
    # Where states are slots, the limit may be what they allow: the flag would change nothing.
    if flag is None or not bound or any(w.state_slots is not None for w in ledger.workers):
        return
    row = bound[-1]
    fits, limit = row.token_limit, row.request_limit
    if not isinstance(fits, Known) or not isinstance(limit, Known):
        return
    asked = fits.number
    shared, workers = ledger.levers.request_limit_shared, ledger.deployment.workers
    if shared is not False:
        if not isinstance(workers, Known) or (shared is None and workers.number != 1):
            return
        asked *= workers.number
    yield Advice(
        code="request-limit-binds",
        severity=Severity.INFO,
        message=(
            f"The request limit ({limit.number:,}) binds at {len(bound)} of "
            f"{len(concurrency.rows)} lengths; "
            f"the pool's tokens would take {fits.number:,} requests of {row.request_tokens:,} "
            f"tokens."
        ),
        change=f"{flag} {asked}",
        effect=fits,
        cost="Larger batches: more graph memory, and state per request where the model has any.",
        evidence=(*limit.evidence, *fits.evidence),
    )


def _raise_fraction(ledger: Ledger) -> Iterator[Advice]:
    levers = ledger.levers
    free = _least_free_at_ready(ledger)
    if (
        levers.fraction_flag is None
        or not isinstance(levers.fraction, Known)
        or not isinstance(levers.fraction_base, Known)
        or levers.fraction_base.number <= 0
        or free is None
    ):
        return
    spare = free.number - HEADROOM_KEPT
    step = (spare / levers.fraction_base.number).quantize(Decimal("0.01"), ROUND_FLOOR)
    step = min(step, Decimal("0.97") - levers.fraction.number)
    if step < Decimal("0.01"):
        return
    gain = (
        known(step, RATIO, Origin.DERIVED, name=str(step)) * levers.fraction_base.named("base")
    ).named("pool gain")
    tokens = _tokens_of(ledger, gain)
    yield Advice(
        code="memory-left-free",
        severity=Severity.INFO,
        message=(
            f"{free.number} GiB are free at ready. A fraction of {levers.fraction.number + step} "
            f"adds "
            f"{_shown(gain)} GiB to the pool and leaves about "
            f"{free.number - _number(gain):.1f} GiB."
        ),
        change=f"{levers.fraction_flag} {levers.fraction.number + step}",
        effect=tokens,
        cost="Less room for activations and for whatever else uses the device.",
        evidence=(*free.evidence, *levers.fraction.evidence),
    )


def _least_free_at_ready(ledger: Ledger) -> Known | None:
    """The least free memory of all ranks that print it; None while one of a scheduler's stages
    prints none."""
    said = [(rank.id, rank.free(Stage.READY)) for rank in ledger.ranks]
    stages = {(rank.id.dp, rank.id.pp) for rank in ledger.ranks}
    told = {(rank.dp, rank.pp) for rank, free in said if isinstance(free, Known)}
    if not told or told != stages:
        return None
    value = least([free for _, free in said if isinstance(free, Known)])
    return value if isinstance(value, Known) else None


def _tokens_of(ledger: Ledger, gain: Value) -> Value:
    per_token = ledger.kv.bytes_per_token
    parts = [part for rank in ledger.ranks for part in rank.parts]
    if any(p.category is Category.STATE_POOL or p.role is Role.DRAFT for p in parts):
        why = "states or a draft model's pool take their share of it"
        return Unknown(why=f"tokens of {_shown(gain)} GiB: {why}", unit=TOKENS)
    if isinstance(per_token, Unknown):
        return Unknown(why=f"tokens of {_shown(gain)} GiB: {per_token.why}", unit=TOKENS)
    return (gain.to(BYTES) / per_token.named("bytes_per_token")).floor()


def _narrower_kv(ledger: Ledger) -> Iterator[Advice]:
    dtype = ledger.deployment.kv_cache_dtype_resolved
    flag = ledger.levers.kv_dtype_flag
    if flag is None or not isinstance(dtype, Known):
        return
    if not any(str(dtype.amount).endswith(wide) for wide in _WIDE_DTYPES):
        return
    tokens = least([worker.tokens for worker in ledger.workers]) if ledger.workers else None
    exact = isinstance(ledger.kv.bytes_per_token, Known)
    effect: Value = Unknown(why="a token's bytes are no single figure here", unit=TOKENS)
    if exact and isinstance(tokens, Known):
        effect = tokens.named("tokens") * 2
    yield Advice(
        code="kv-in-16-bit",
        severity=Severity.INFO,
        message=f"The KV cache holds {dtype.amount}. Eight-bit elements take half the bytes of a "
        f"token.",
        change=flag,
        effect=effect,
        cost="Accuracy: check it on your own tasks; some attention kernels do not support it.",
        evidence=dtype.evidence,
    )


def _less_replication(ledger: Ledger, layout: LayoutRow | None) -> Iterator[Advice]:
    flag = ledger.levers.split_flag
    if layout is None or flag is None or not isinstance(layout.replication, Known):
        return
    copies = layout.replication
    if copies.number <= 1:
        return
    yield Advice(
        code="kv-replicated",
        severity=Severity.INFO,
        message=(
            f"Each token's KV is stored {copies.number} times over the tensor-parallel ranks "
            f"({layout.family}). Data-parallel attention gives every rank tokens of its own "
            f"instead."
        ),
        change=flag,
        effect=Unknown(
            why="attention weights are then replicated, which the log does not price", unit=REQUESTS
        ),
        cost="Attention weights on every rank, and requests balanced over more schedulers.",
        evidence=copies.evidence,
    )


def _shown(value: Value) -> str:
    return f"{_number(value):.2f}"


def _number(value: Value) -> Decimal:
    return value.to(GIB).number if isinstance(value, Known) else Decimal(0)
