"""What a running engine prints of its load: every ten seconds, and when it preempts a request."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import Load
from capacity_core.api.process import Quoted
from capacity_core.units import RATIO, REQUESTS, TOKENS_PER_SECOND, Requests, TokensPerSecond
from capacity_core.values import Known, Origin, Unknown, Value, known


@attrs.frozen(kw_only=True)
class Stats:
    """One engine's load over the last interval; `usage` is a percentage of its KV blocks.

    `preempted` counts the preemptions of the interval and is printed only when there were any.
    """

    running: Requests | None = None
    waiting: Requests | None = None
    pending: Requests | None = None
    usage: Decimal | None = None
    generation: TokensPerSecond | None = None
    preempted: Requests | None = None


@attrs.frozen(kw_only=True)
class RequestFailed:
    """A request was given up: all blocks of the former engine do not hold it."""


@attrs.frozen(kw_only=True)
class Preempted:
    """The former engine's warning, at the first preemption and every fiftieth: how many so far."""

    preempted: Requests


_SPEED = (
    rf" throughput: {NUMBER} tokens/s, Avg generation throughput: (?P<generation>{NUMBER}) "
    r"tokens/s, Running: (?P<running>\d+) reqs, "
)
# Deferred requests and fetches from elsewhere are told between the two, where there are any.
_OTHERS = r"(?:(?!Preemptions|GPU|CPU)[A-Z][\w ]{1,30}: (?:(?!Preemptions)[^\n]){1,90}?, )?"
_USAGE = rf"[A-Z][\w+ ]{{0,12}} KV cache usage: (?P<usage>{NUMBER})%"

STATS = Matcher(
    name="vllm.stats",
    anchor="Avg prompt throughput: ",
    pattern=(
        rf"Avg prompt{_SPEED}"
        r"(?:Waiting: (?P<waiting>\d+) reqs, |Swapped: \d+ reqs, Pending: (?P<pending>\d+) reqs, )"
        rf"{_OTHERS}{_USAGE}"
    ),
    event=Stats,
    means="An engine's load over the last interval, in one line; a sum where several are reported.",
    seen_in="0.2.7 … 0.33.0",
    samples=(
        Sample(
            "Engine 000: Avg prompt throughput: 17.2 tokens/s, Avg generation throughput: 30.5 "
            "tokens/s, Running: 7 reqs, Waiting: 1 reqs, GPU KV cache usage: 93.3%, Prefix cache",
            Stats(running=7, waiting=1, usage=Decimal("93.3"), generation=Decimal("30.5")),
        ),
        Sample(
            "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, "
            "Running: 3 reqs, Swapped: 0 reqs, Pending: 2 reqs, GPU KV cache usage: 1.5%, CPU KV",
            Stats(running=3, pending=2, usage=Decimal("1.5"), generation=Decimal("0.0")),
        ),
    ),
    run_time=True,
)

STATS_PREEMPTED = Matcher(
    name="vllm.stats_preempted",
    anchor=", Preemptions: ",
    pattern=(
        rf"Avg prompt{_SPEED}Waiting: (?P<waiting>\d+) reqs, {_OTHERS}"
        rf"Preemptions: (?P<preempted>\d+), {_OTHERS}{_USAGE}"
    ),
    event=Stats,
    means="The same of an interval in which requests lost their KV and are computed anew.",
    seen_in="0.11.2 … 0.33.0",
    samples=(
        Sample(
            "Avg prompt throughput: 17.2 tokens/s, Avg generation throughput: 30.5 tokens/s, "
            "Running: 7 reqs, Waiting: 1 reqs, Preemptions: 4, GPU KV cache usage: 99.5%,",
            Stats(
                running=7,
                waiting=1,
                preempted=4,
                usage=Decimal("99.5"),
                generation=Decimal("30.5"),
            ),
        ),
    ),
)

QUEUES = Matcher(
    name="vllm.queues",
    anchor="RUNNING: ",
    pattern=r"RUNNING: (?P<running>\d+) \| WAITING: (?P<waiting>\d+)",
    event=Stats,
    means="Running and waiting requests of the first V1 engines.",
    seen_in="0.6.4.post1 … 0.7.3",
    samples=(Sample("RUNNING: 7 | WAITING: 2", Stats(running=7, waiting=2)),),
    run_time=True,
)

ITERATION = Matcher(
    name="vllm.iteration",
    anchor="Iteration(",
    pattern=rf"Iteration\(\d+\): [^\n]{{1,240}}?, {_USAGE}",
    event=Stats,
    means="The KV usage of one step, for those who ask for every step.",
    seen_in="0.28.0 … 0.33.0",
    samples=(
        Sample(
            "Iteration(12): 2 context requests, 99 context tokens, 5 generation requests, 5 "
            "generation tokens, iteration elapsed time: 12.34 ms, GPU KV cache usage: 12.3%",
            Stats(usage=Decimal("12.3")),
        ),
    ),
    run_time=True,
)

REQUEST_FAILED = Matcher(
    name="vllm.request_failed",
    anchor=" because there's not enough kv cache blocks",
    pattern=r"Failing the request \S+ because there's not enough kv cache blocks",
    event=RequestFailed,
    means="A request is longer than all blocks of the former engine.",
    seen_in="0.4.2 … 0.8.5",
    samples=(
        Sample(
            "Failing the request r1 because there's not enough kv cache blocks to run the entire",
            RequestFailed(),
        ),
    ),
)

PREEMPTED = Matcher(
    name="vllm.preempted",
    anchor="total_num_cumulative_preemption=",
    pattern=r"total_num_cumulative_preemption=(?P<preempted>\d+)",
    event=Preempted,
    means="How many preemptions the former engine has counted.",
    seen_in="0.4.3 … 0.10.2",
    samples=(Sample("memory. total_num_cumulative_preemption=51", Preempted(preempted=51)),),
)

QUOTED = tuple(
    Matcher(
        name=f"vllm.request_{name}",
        anchor=words,
        pattern=rf"{words}\S+?: (?:prompt|output|params): ",
        event=Quoted,
        means="A logged request or answer; nothing in it is the server's own word.",
        seen_in=seen_in,
        quotes=True,
        samples=(Sample(f"{words}cmpl-1: {what}: 'b'", Quoted()),),
    )
    for name, words, what, seen_in in (
        ("received", "Received request ", "prompt", "0.2.7 … 0.33.0"),
        ("answered", "Generated response ", "output", "0.11.0 … 0.33.0"),
    )
)

MATCHERS = (*QUOTED, STATS, STATS_PREEMPTED, QUEUES, ITERATION, REQUEST_FAILED, PREEMPTED)


def load_of(run: Run) -> Load | None:
    """The peaks of a run; None when its engine printed no load."""
    stats = run.of(Stats)
    warnings = run.of(Preempted)
    if not stats and not warnings:
        return None
    usages = [_usage(s) for s in stats if s.event.usage is not None]
    return Load(
        peak_running=_peak(stats, "running"),
        peak_waiting=_peak(stats, "waiting", "pending"),
        peak_kv_usage=_largest(usages, "KV usage"),
        last_kv_usage=usages[-1] if usages else Unknown(why="no usage is printed", unit=RATIO),
        retracted=Unknown(why="not a figure of vLLM", unit=REQUESTS),
        preempted=_preempted(run, stats, warnings),
        peak_throughput=_peak(stats, "generation").to(TOKENS_PER_SECOND),
    )


def _peak(sightings: list[Sighting[Stats]], *fields: str) -> Value:
    values = [
        sighting.value(field)
        for sighting in sightings
        for field in fields
        if getattr(sighting.event, field) is not None
    ]
    return _largest([v for v in values if isinstance(v, Known)], " or ".join(fields))


def _largest(values: list[Known], what: str) -> Value:
    if not values:
        return Unknown(why=f"no {what} is printed")
    return max(values, key=lambda value: value.number)


def _usage(sighting: Sighting[Any]) -> Known:
    """A printed percentage as a share of one."""
    percent = known(sighting.event.usage, RATIO, Origin.PRINTED)
    return attrs.evolve(
        percent,
        amount=percent.number / 100,
        error=percent.error / 100,
        how=sighting.matcher,
        evidence=(sighting.line,),
    )


def _preempted(
    run: Run, stats: list[Sighting[Stats]], warnings: list[Sighting[Preempted]]
) -> Value:
    """The intervals' counts added up (0.11.2 and later), else the last count of the former engine,
    which may have gone on to the next fifty."""
    if warnings:
        last = warnings[-1]
        return Unknown(
            why="the former engine prints every fiftieth preemption",
            unit=REQUESTS,
            at_least=Decimal(last.event.preempted),
            evidence=(last.line,),
        )
    lines = tuple(s.line for s in stats if s.event.preempted is not None)
    if lines:
        total = run.sum_of(Stats, "preempted")
        how = "preemptions of all intervals"
        return known(total, REQUESTS, Origin.DERIVED, how=how, evidence=lines[:8])
    return Unknown(why="no interval with preemptions is printed", unit=REQUESTS)
