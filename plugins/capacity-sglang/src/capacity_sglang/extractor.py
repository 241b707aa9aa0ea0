"""SGLang's meaning: which line starts a run, and what a run's lines add up to.

The accounting follows srt/model_executor and srt/mem_cache of 0.4.6 … 0.5.23;
references/accounting.md has the formulas with their files.
"""

from __future__ import annotations

from typing import Any

import attrs

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import (
    Deployment,
    Failure,
    Ledger,
    Levers,
    RankId,
    Stage,
    Status,
)
from capacity_core.api.metrics import Metrics
from capacity_core.api.process import Traceback, log_of
from capacity_core.api.versions import release_key
from capacity_core.units import COUNT, GIB, RATIO, TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, known, least
from capacity_sglang.admission import admission_of
from capacity_sglang.args import ServerArgs, Settings
from capacity_sglang.checks import findings_of
from capacity_sglang.failures import (
    CaptureFailed,
    CheckpointPoolRefused,
    Crashed,
    HostMemoryRefused,
    NoKvMemory,
    NoPoolForStates,
    OneRequestTooLarge,
    PoolLeak,
    SlotsExhausted,
)
from capacity_sglang.graphs import CaptureBegin, CaptureEnd
from capacity_sglang.limits import Limits, PoolBelowContext, RequestLimit, ServerUp
from capacity_sglang.load import SERVING, load_of
from capacity_sglang.metrics import with_metrics
from capacity_sglang.outcome import every_worker_ready, failure_of, stage_reached
from capacity_sglang.pools import (
    KvBudget,
    KvDtype,
    KvReserved,
    PoolAllocated,
    TokenCapIgnored,
)
from capacity_sglang.ranks import rank_facts
from capacity_sglang.reading import RankReading
from capacity_sglang.starts import (
    RANK_EVENTS,
    arguments_of,
    loaded_again,
    loads_anew,
    other_node,
    pasted_again,
    rank_of,
)
from capacity_sglang.states import StatePool, StateSlots
from capacity_sglang.weights import FractionReduced, Unbalanced, WeightsBegin, WeightsLoaded
from capacity_sglang.workers import kv_dtype, kv_facts, workers_of

DEAD = (NoKvMemory, NoPoolForStates, OneRequestTooLarge, SlotsExhausted, CaptureFailed, Crashed)

# From here on draft weights are loaded before the target's pool is made.
_DRAFT_FIRST_SINCE = (0, 5, 14)


@attrs.frozen
class SglangExtractor:
    """Reads runs of SGLang, and of forks that print its events."""

    framework: str = "sglang"
    title: str = "SGLang"
    events: tuple[type, ...] = (
        *RANK_EVENTS,
        ServerArgs,
        KvDtype,
        RequestLimit,
        PoolBelowContext,
        ServerUp,
        *SERVING,
        KvReserved,
        TokenCapIgnored,
        FractionReduced,
        Unbalanced,
        NoKvMemory,
        NoPoolForStates,
        OneRequestTooLarge,
        HostMemoryRefused,
        CheckpointPoolRefused,
        SlotsExhausted,
        PoolLeak,
        CaptureFailed,
        Crashed,
    )

    def starts_run(self, run: Run, sighting: Sighting[object]) -> bool:
        """A server_args line after memory lines, or memory lines that begin again.

        The same arguments printed twice (offline Engine), arguments of another node, and a draft
        model's repeated lines start nothing.
        """
        event = sighting.event
        if isinstance(event, ServerArgs):
            began = run.has(*RANK_EVENTS, *SERVING, *DEAD, Traceback)
            return began and not other_node(run, event)
        if isinstance(event, WeightsBegin):
            return loads_anew(run, sighting, event)
        if isinstance(event, WeightsLoaded):
            return loaded_again(run, sighting, event)
        if isinstance(event, PoolAllocated):
            return pasted_again(run, sighting, event)
        return False

    def split_layers(self, layers: int, stages: int) -> tuple[int, ...]:
        """Layers of each pipeline stage: the last ones take what does not divide
        (srt/distributed/utils.py `get_pp_indices`); SGLANG_PP_LAYER_PARTITION overrules it."""
        share, left = divmod(layers, stages)
        return tuple(share + (stage >= stages - left) for stage in range(stages))

    def with_metrics(self, ledger: Ledger, samples: Metrics) -> Ledger:
        """The ledger with what a saved metrics page says of its pools."""
        return with_metrics(ledger, samples)

    def extract(self, run: Run) -> Ledger:
        settings = Settings(arguments_of(run))
        readings = _readings(run, settings)
        off = settings.text("disable_cuda_graph")
        graphs_off = off if isinstance(off, Known) and off.amount == "True" else None
        phases = frozenset(phase for reading in readings for phase in reading.draft_phases)
        fraction = _fraction(run, settings)
        failure = failure_of(run, readings, fraction)
        up = run.has(ServerUp, *SERVING) or every_worker_ready(readings)
        status = Status.FAILED if failure else Status.READY if up else Status.INCOMPLETE
        workers = workers_of(run, readings, settings)
        alone = len(readings) == 1 and _ranks_asked(settings) == 1
        deployment = _deployment(run, settings, fraction)
        kv = kv_facts(run, readings, settings)
        return Ledger(
            admission=admission_of(run, readings, settings, deployment, kv),
            framework=self.framework,
            title=self.title,
            status=status,
            reached=stage_reached(run),
            deployment=deployment,
            ranks=tuple(
                rank_facts(reading, graphs_off, phases, _seen_total(reading, alone, failure))
                for reading in readings
            ),
            workers=workers,
            kv=kv,
            failure=failure,
            load=load_of(run),
            findings=tuple(findings_of(run, readings, settings, fraction)),
            levers=_levers(readings, settings, fraction),
            version_range=run.version_range,
        )


def _ranks_asked(settings: Settings) -> int:
    return (settings.whole("tp_size") or 1) * (settings.whole("pp_size") or 1)


def _seen_total(reading: RankReading, alone: bool, failure: Failure | None) -> Value:
    """The device's total as the allocator's message has it, where it is surely this rank's."""
    mine = {reading.rank.text, None} if alone else {reading.rank.text}
    if failure is None or failure.rank not in mine:
        return Unknown(why="no line tells the device's total", unit=GIB)
    return failure.total


def _readings(run: Run, settings: Settings) -> list[RankReading]:
    """Every rank that printed anything of itself.

    Where ranks are printed, a line without one is nobody's: the file was cut inside its prefix, or
    its message was wrapped. A wrapped state line belongs to the line above it; the limits of a
    benchmark are printed without a prefix.
    """
    sightings: list[Sighting[Any]] = run.of(*RANK_EVENTS)
    ranked = any(s.speaker.label for s in sightings) or _several_unnamed(run, settings)
    up = {log_of(s): s for s in reversed(run.of(ServerUp))}
    by_rank: dict[RankId, list[Sighting[Any]]] = {}
    labels: dict[RankId, str] = {}
    above: Sighting[Any] | None = None
    serving: set[str] = set()
    for sighting in run:
        if sighting is up.get(log_of(sighting)):
            serving.add(log_of(sighting))
        if not isinstance(sighting.event, RANK_EVENTS):
            continue
        anew = log_of(sighting) in serving
        if anew and isinstance(sighting.event, CaptureBegin | CaptureEnd):
            continue  # captured anew by a running server
        speaker = sighting
        if ranked and not sighting.speaker.label and not isinstance(sighting.event, Limits):
            wrapped = isinstance(sighting.event, StatePool) and above is not None
            if not wrapped or above is None or not isinstance(above.event, StateSlots):
                continue
            speaker = above
        above = sighting
        rank = rank_of(speaker)
        by_rank.setdefault(rank, []).append(sighting)
        said = speaker.speaker.ranks if speaker.speaker.label else None
        labels[rank] = labels.get(rank) or said or speaker.speaker.label
    span = run.version_range
    old_order = None
    if span is not None and release_key(span[1])[:3] < _DRAFT_FIRST_SINCE:
        old_order = True
    elif span is not None and release_key(span[0])[:3] >= _DRAFT_FIRST_SINCE:
        old_order = False
    speculative = _has_draft(settings)
    return [
        RankReading(
            rank,
            labels[rank] or "TP0",
            by_rank[rank],
            old_order=old_order,
            speculative=speculative,
        )
        for rank in sorted(by_rank, key=lambda r: r.order)
    ]


def _has_draft(settings: Settings) -> bool:
    """Whether a draft model is loaded; n-grams of the text itself need none."""
    algorithm = settings.text("speculative_algorithm")
    return isinstance(algorithm, Known) and str(algorithm.amount).upper() != "NGRAM"


def _several_unnamed(run: Run, settings: Settings) -> bool:
    """Whether lines of several ranks stand in the log, from which the ranks were cut off: more
    loads than one rank makes."""
    ranks = _ranks_asked(settings)
    models = 2 if _has_draft(settings) else 1
    return ranks > 1 and max(len(run.of(WeightsBegin)), len(run.of(WeightsLoaded))) > models


def _fraction(run: Run, settings: Settings) -> Value:
    """As the scheduler lowered it, else as resolved in the arguments, else as a later line has
    it."""
    reduced = run.last_of(FractionReduced)
    fraction = settings.number(RATIO, "mem_fraction_static")
    if reduced is not None:
        return reduced.value("mem_fraction_static")
    said: list[Sighting[Any] | None] = [run.last_of(KvBudget), run.last_of(NoKvMemory)]
    for sighting in said:
        if sighting is not None:
            fraction = fraction | sighting.value("mem_fraction_static")
    return fraction


def _deployment(run: Run, settings: Settings, fraction: Value) -> Deployment:
    limits = run.last_of(Limits)

    def limit(field: str, *keys: str) -> Value:
        printed: Value = Unknown(why="no max_total_num_tokens line", unit=TOKENS)
        if limits is not None:
            printed = limits.value(field)
        return printed | settings.number(TOKENS, *keys)

    return Deployment(
        version=Unknown(why="SGLang does not print its version at start-up"),
        model=settings.text("model_path"),
        quantization=settings.text("quantization"),
        kv_cache_dtype=settings.text("kv_cache_dtype"),
        kv_cache_dtype_resolved=kv_dtype(run),
        mem_fraction_static=fraction,
        context_length=limit("context_length", "context_length"),
        page_size=settings.number(TOKENS, "page_size"),
        chunked_prefill_size=limit("chunked_prefill_size", "chunked_prefill_size"),
        max_prefill_tokens=limit("max_prefill_tokens", "max_prefill_tokens"),
        speculative=settings.text("speculative_algorithm"),
        disaggregation=settings.text("disaggregation_mode", none=("null",)),
        parallel=attrs.evolve(
            settings.parallel, pipeline=settings.parallel.pipeline | _one_stage(run)
        ),
        workers=settings.workers,
        device=settings.text("device"),
        state_dtype=settings.text("mamba_ssm_dtype"),
    )


def _one_stage(run: Run) -> Value:
    """A rank's prefix names its pipeline stage wherever there are several (managers/scheduler.py of
    0.4.6:2271; releases before have none)."""
    ranks = [sighting for sighting in run if sighting.speaker.tp is not None]
    if not ranks or any(sighting.speaker.pp is not None for sighting in run):
        return Unknown(why="no line says the pipeline size", unit=COUNT)
    how = "a rank's prefix names no pipeline stage"
    return known(1, COUNT, Origin.DERIVED, how=how, evidence=(ranks[0].line,))


def _levers(readings: list[RankReading], settings: Settings, fraction: Value) -> Levers:
    """headroom = free[before_weights] · (1 − fraction), the minimum over ranks
    (kv_cache_configurator.py:2990)."""
    befores = [reading.free(Stage.BEFORE_WEIGHTS) for reading in readings]
    cap = settings.number(TOKENS, "max_total_tokens")
    tokens = [r.limits.event.tokens for r in readings if r.limits is not None]
    if isinstance(cap, Known) and tokens and min(tokens) <= cap.number < 1.02 * min(tokens):
        why = "max_total_tokens caps the pool, whatever the fraction"
        fraction = Unknown(why=why, unit=RATIO, evidence=cap.evidence)
    return Levers(
        fraction_flag="--mem-fraction-static",
        fraction=fraction,
        fraction_base=least(befores, "free[before_weights]") if befores else None,
        request_limit_flag="--max-running-requests",
        # Divided with attention DP (tp_worker.py of 0.5.5:286); else it depends on the release.
        request_limit_shared=settings.flag("enable_dp_attention") or None,
        kv_dtype_flag="--kv-cache-dtype fp8_e4m3",
        split_flag="--enable-dp-attention --dp-size N (with --ep-size N for expert layers)",
    )
