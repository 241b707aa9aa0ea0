"""What a running scheduler prints of its load: every batch, and when it retracts requests."""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import Load
from capacity_core.api.process import Quoted
from capacity_core.units import (
    RATIO,
    REQUESTS,
    TOKENS_PER_SECOND,
    Ratio,
    Requests,
    Tokens,
    TokensPerSecond,
)
from capacity_core.values import Known, Origin, Unknown, Value, known


@attrs.frozen(kw_only=True)
class Batch:
    """One scheduler's load at a batch: `usage` is of the pool that holds full-length KV."""

    running: Requests | None = None
    waiting: Requests | None = None
    usage: Ratio | None = None
    swa_usage: Ratio | None = None
    state_usage: Ratio | None = None
    generation: TokensPerSecond | None = None


@attrs.frozen(kw_only=True)
class Retracted:
    """The pool was full: running requests went back to the queue."""

    retracted: Requests


@attrs.frozen(kw_only=True)
class RequestAborted:
    """A request was given up because the pool has no room for it alone."""


@attrs.frozen(kw_only=True)
class RequestTruncated:
    """A request was longer than the pool or the context."""

    limit: Tokens | None = None


_USAGE = (
    rf"(?:(?:#(?:full |gpu )?token: \d+, )?(?:full |gpu )?token usage: (?P<usage>{NUMBER}), )?"
    rf"(?:(?:#swa token: \d+, )?swa token usage: (?P<swa_usage>{NUMBER}), )?"
    rf"(?:(?:mamba num: \d+, )?mamba usage: (?P<state_usage>{NUMBER}), )?"
)

DECODE_BATCH = Matcher(
    name="sglang.decode_batch",
    anchor="Decode batch",
    pattern=(
        rf"Decode batch(?: \[\d+\])?[.,] #running-req: (?P<running>\d+), {_USAGE}"
        rf"(?:[^\n]{{0,300}}?gen throughput \(token/s\): (?P<generation>{NUMBER}), "
        r"[^\n]{0,80}?#queue-req: (?P<waiting>\d+))?"
    ),
    event=Batch,
    means="Running and waiting requests, the share of the pool in use, tokens made in a second.",
    seen_in="0.2.15 … 0.5.23",
    samples=(
        Sample(
            "Decode batch. #running-req: 3, #token: 65536, token usage: 0.32, gen throughput "
            "(token/s): 512.70, #queue-req: 1",
            Batch(running=3, usage=Decimal("0.32"), generation=Decimal("512.70"), waiting=1),
        ),
        Sample(
            "Decode batch [17], #running-req: 3, #full token: 20512, full token usage: 0.32, #swa "
            "token: 8192, swa token usage: 0.51, cuda graph: True, gen throughput (token/s): 2.7, "
            "#queue-req: 0, ",
            Batch(
                running=3,
                usage=Decimal("0.32"),
                swa_usage=Decimal("0.51"),
                generation=Decimal("2.7"),
                waiting=0,
            ),
        ),
        Sample(
            "Decode batch, #running-req: 3, #full token: 20512, full token usage: 0.32, mamba "
            "num: 12, mamba usage: 0.25, cuda graph: True",
            Batch(running=3, usage=Decimal("0.32"), state_usage=Decimal("0.25")),
        ),
    ),
    run_time=True,
)

PREFILL_BATCH = Matcher(
    name="sglang.prefill_batch",
    anchor="Prefill batch",
    pattern=(
        r"Prefill batch(?: \[\d+\])?[.,] #new-seq: \d+, #new-token: \d+, (?:#replay-token: \d+, )?"
        rf"#cached-token: \d+, (?:cache hit rate: {NUMBER}%, )?{_USAGE}"
        r"#running-req: (?P<running>\d+), (?:[^\n]{0,120}?#queue-req: (?P<waiting>\d+))?"
    ),
    event=Batch,
    means="The same before a prefill.",
    seen_in="0.2.15 … 0.5.23",
    samples=(
        Sample(
            "Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, token usage: 0.32, "
            "#running-req: 3, #queue-req: 2, #pending-token: 0, cuda graph: False",
            Batch(running=3, waiting=2, usage=Decimal("0.32")),
        ),
        Sample(
            "Prefill batch. #new-seq: 1, #new-token: 6, #cached-token: 0, cache hit rate: 12.30%, "
            "#running-req: 3, #queue-req: 2",
            Batch(running=3, waiting=2),
        ),
    ),
    run_time=True,
)

PREFILL_BATCH_MIXED = Matcher(
    name="sglang.prefill_batch_mixed",
    anchor="Prefill batch(mixed #running-req: ",
    pattern=(
        r"Prefill batch\(mixed #running-req: (?P<running>\d+)\)\. [^\n]{0,120}?"
        r"#queue-req: (?P<waiting>\d+)"
    ),
    event=Batch,
    means="The same where decoding requests ride along.",
    seen_in="0.2.15 … 0.2.15",
    samples=(
        Sample(
            "Prefill batch(mixed #running-req: 3). #new-seq: 1, #new-token: 6, #cached-token: 0, "
            "cache hit rate: 12.30%, #queue-req: 2",
            Batch(running=3, waiting=2),
        ),
    ),
    run_time=True,
)

RETRACTED = Matcher(
    name="sglang.retracted",
    anchor="#retracted_reqs: ",
    pattern=r"#retracted_reqs: (?P<retracted>\d+)",
    event=Retracted,
    means="The KV pool was full; so many running requests went back to the queue.",
    seen_in="0.2.15 … 0.5.23",
    samples=(
        Sample(
            "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.69",
            Retracted(retracted=3),
        ),
        Sample("Decode out of memory happened. #retracted_reqs: 1, #new", Retracted(retracted=1)),
    ),
)

REQUEST_ABORTED = Matcher(
    name="sglang.request_aborted",
    anchor="retract_decode: aborted ",
    pattern=r"retract_decode: aborted (?:last )?request ",
    event=RequestAborted,
    means="A request was given up: the pool does not hold it alone.",
    seen_in="0.5.10.post1 … 0.5.23",
    samples=(
        Sample("retract_decode: aborted last request a1 due to OOM", RequestAborted()),
        Sample("retract_decode: aborted request a1, host pool exhausted", RequestAborted()),
    ),
)

REQUEST_TRUNCATED = Matcher(
    name="sglang.request_truncated",
    anchor="Request length is longer than the KV cache pool size or the max context length.",
    pattern=(
        r"Request length is longer than the KV cache pool size or the max context length\."
        r"(?:[^\n]{0,120}?max_req_input_len=(?P<limit>\d+))?"
    ),
    event=RequestTruncated,
    means="A request was cut to what the pool or the context holds.",
    seen_in="0.2.15 … 0.5.23",
    samples=(
        Sample(
            "Request length is longer than the KV cache pool size or the max context length. "
            "Truncated. len(req.origin_input_ids)=90000, max_req_input_len=81536.",
            RequestTruncated(limit=81536),
        ),
        Sample(
            "Request length is longer than the KV cache pool size or the max context length. "
            "Truncated!!!",
            RequestTruncated(),
        ),
    ),
)

QUOTED = tuple(
    Matcher(
        name=f"sglang.request_{name}",
        anchor=words,
        pattern=words,
        event=Quoted,
        means="A logged request or answer; nothing in it is the server's own word.",
        seen_in=seen_in,
        quotes=True,
        samples=(Sample(f"{words}GenerateReqInput(rid='a', text='b')", Quoted()),),
    )
    for name, words, seen_in in (
        ("received", "Receive: obj=", "0.4.3.post4 … 0.5.23"),
        ("finished", "Finish: obj=", "0.4.3.post4 … 0.5.23"),
    )
)

MATCHERS = (
    *QUOTED,
    DECODE_BATCH,
    PREFILL_BATCH,
    PREFILL_BATCH_MIXED,
    RETRACTED,
    REQUEST_ABORTED,
    REQUEST_TRUNCATED,
)

SERVING = (Batch, Retracted, RequestAborted, RequestTruncated)
"""What only a server prints that takes requests."""


def load_of(run: Run) -> Load | None:
    """The peaks of a run; None when its schedulers printed no load."""
    batches = run.of(Batch)
    if not batches and not run.has(Retracted):
        return None
    usages = [s.value("usage") for s in batches if s.event.usage is not None]
    last = usages[-1] if usages else Unknown(why="no token usage is printed", unit=RATIO)
    return Load(
        peak_running=_peak(batches, "running"),
        peak_waiting=_peak(batches, "waiting"),
        peak_kv_usage=_peak(batches, "usage"),
        last_kv_usage=last,
        retracted=_retracted(run),
        preempted=Unknown(why="SGLang retracts instead", unit=REQUESTS),
        peak_throughput=_peak(batches, "generation").to(TOKENS_PER_SECOND),
    )


def _peak(batches: list[Sighting[Batch]], field: str) -> Value:
    values = [s.value(field) for s in batches if getattr(s.event, field) is not None]
    said = [value for value in values if isinstance(value, Known)]
    if not said:
        return Unknown(why=f"no {field.replace('_', ' ')} is printed")
    return max(said, key=lambda value: value.number)


def _retracted(run: Run) -> Value:
    sightings = run.of(Retracted)
    if not sightings:
        return Unknown(why="no retraction is printed", unit=REQUESTS)
    total = run.sum_of(Retracted, "retracted")
    lines = tuple(s.line for s in sightings[:8])
    return known(total, REQUESTS, Origin.DERIVED, how="all retractions", evidence=lines)
