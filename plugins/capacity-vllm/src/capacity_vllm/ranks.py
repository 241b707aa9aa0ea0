"""One worker's accounting: which process is which rank, and what its lines say of its memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import (
    Category,
    Checkpoint,
    Part,
    RankFacts,
    RankId,
    Role,
    Stage,
)
from capacity_core.api.process import OutOfMemory
from capacity_core.api.versions import release_key
from capacity_core.units import GIB
from capacity_core.values import Known, Origin, Unknown, Value, agree, known
from capacity_vllm.blocks import GpuBlocks
from capacity_vllm.failures import FreeMemoryRefused
from capacity_vllm.graphs import (
    CaptureTook,
    EstimateApplied,
    EstimateNotApplied,
    GraphEstimate,
    GraphPool,
)
from capacity_vllm.pools import ExplicitKv, KvBudget, KvSize, MaxConcurrency
from capacity_vllm.usage import FreeAfter, InitialFree, Profiled, ProfileResult, UsageSummary
from capacity_vllm.weights import WeightsLoaded

WORKER_EVENTS = (
    WeightsLoaded,
    KvBudget,
    ExplicitKv,
    CaptureTook,
    GraphPool,
    GraphEstimate,
    UsageSummary,
    ProfileResult,
    Profiled,
    InitialFree,
    FreeAfter,
    FreeMemoryRefused,
)
"""What a worker prints of its own device."""

SIZING = (KvBudget, ExplicitKv, KvSize, MaxConcurrency, GpuBlocks)
"""The lines of sizing the pool: a capture before them was a measurement."""

# Workers whose prefix has no rank: the executor of the former engine, and Ray's.
_PID_ONLY = ("VllmWorkerProcess", "RayWorkerWrapper", "RayWorkerProc")


def rank_of(sighting: Sighting[Any], tensor: int | None = None) -> RankId:
    """The rank that a worker's line speaks for, as far as its prefix says it.

    A rank number alone is global: pp · tp_size + tp. Without any coordinate the line is of the only
    worker, which runs inside the engine process.
    """
    speaker = sighting.speaker
    if speaker.rank is not None:
        size = tensor or speaker.rank + 1
        return RankId(dp=0, pp=speaker.rank // size, tp=speaker.rank % size)
    named = (speaker.dp, speaker.pp, speaker.tp) != (None, None, None)
    if not named and (speaker.role in _PID_ONLY or is_actor(sighting)):
        return RankId(dp=None, pp=None, tp=None, pid=speaker.pid, node=speaker.node)
    return RankId(dp=speaker.dp or 0, pp=speaker.pp or 0, tp=speaker.tp or 0)


def speaks_for_one(sighting: Sighting[Any], *, several: bool) -> bool:
    """Whether what a line says of a device is of the speaker's own: an engine above `several`
    workers, or a line without a prefix, repeats what any of them said."""
    if "Worker" in (sighting.speaker.role or "") or is_actor(sighting):
        return True
    # Without a prefix, a device's number is all that tells a worker.
    return not several and not getattr(sighting.event, "device", None)


def has_workers(run: Run) -> bool:
    """Whether workers run in processes of their own."""
    return any("Worker" in (s.speaker.role or "") for s in run)


def is_actor(sighting: Sighting[Any]) -> bool:
    """Whether a Ray actor speaks, which is told apart by its pid and node alone."""
    return (sighting.speaker.role or "").endswith("Actor") and sighting.speaker.dp is None


def process_of(sighting: Sighting[Any]) -> tuple[int | None, str | None]:
    return sighting.speaker.pid, sighting.speaker.node


def workers_of(run: Run, tensor: int | None, asked: Value) -> list[WorkerReading]:
    """Every worker that printed anything of its device, in the order of ranks. `asked` are the KV
    bytes of the arguments.

    Several processes with the same coordinates (replicas whose prefixes leave the data-parallel
    rank out, servers side by side) are told apart by their pids. A line without a prefix is
    nobody's where the other workers have ranks.
    """
    sightings: list[Sighting[Any]] = run.of(*WORKER_EVENTS)
    if any(s.speaker.label for s in sightings):
        sightings = [s for s in sightings if s.speaker.role is not None]
    several = has_workers(run) or (tensor or 1) > 1
    sightings = [
        s
        for s in sightings
        if not isinstance(s.event, FreeMemoryRefused) or speaks_for_one(s, several=several)
    ]
    # The allocator's message names a rank only by its prefix: without one it may be any rank's.
    alone = len({rank_of(s, tensor) for s in sightings}) < 2
    sightings += [
        s
        for s in run.of(OutOfMemory)
        if s.event.total is not None
        and speaks_for_one(s, several=several or not (alone or s.speaker.label))
    ]
    processes: dict[RankId, set[tuple[int | None, str | None]]] = {}
    for sighting in sightings:
        if sighting.speaker.pid is not None:
            processes.setdefault(rank_of(sighting, tensor), set()).add(process_of(sighting))
    by_rank: dict[RankId, list[Sighting[Any]]] = {}
    labels: dict[RankId, str] = {}
    for sighting in sightings:
        rank = rank_of(sighting, tensor)
        label = sighting.speaker.label or rank.text.rpartition("/")[2]
        if len(processes.get(rank, ())) > 1 and sighting.speaker.pid is not None:
            pid, node = process_of(sighting)
            label = f"{label} pid {pid}"
            rank = RankId(dp=None, pp=None, tp=None, pid=pid, node=node)
        by_rank.setdefault(rank, []).append(sighting)
        labels.setdefault(rank, label)
    captures = _final_captures(run)
    return [
        WorkerReading(rank, labels[rank], by_rank[rank], captures, asked)
        for rank in sorted(by_rank, key=lambda r: r.order)
    ]


def _final_captures(run: Run) -> frozenset[int]:
    """The ids of captures that stay: profiling captures the graphs once before the pool is sized,
    in the same words (v1/worker/gpu/model_runner.py of 0.33.0:1069)."""
    final = set()
    before = run.version_range is not None and release_key(run.version_range[1])[:2] < (0, 18)
    sized = before or not run.has(GraphEstimate, *SIZING)
    # A worker's own estimate follows its profiling capture, whatever others print meanwhile.
    estimated = {_worker_of(s): id(s) for s in run.of(GraphEstimate)}
    waiting = set(estimated)
    for sighting in run:
        process = _worker_of(sighting)
        if estimated.get(process) == id(sighting):
            waiting.discard(process)
        if isinstance(sighting.event, SIZING):
            sized = True
        elif isinstance(sighting.event, CaptureTook) and sized and process not in waiting:
            final.add(id(sighting))
    return frozenset(final)


def _worker_of(sighting: Sighting[Any]) -> tuple[object, ...]:
    """Tells workers apart: containers of several nodes have the same pids."""
    return (*process_of(sighting), sighting.speaker.label)


class WorkerReading:
    """What one worker printed."""

    def __init__(
        self,
        rank: RankId,
        label: str,
        sightings: Iterable[Sighting[Any]],
        final_captures: frozenset[int],
        asked: Value,
    ) -> None:
        self.rank = rank
        self._asked = asked
        self.label = label
        self._lines: dict[type, list[Sighting[Any]]] = {}
        for sighting in sightings:
            event = sighting.event
            if isinstance(event, CaptureTook) and id(sighting) not in final_captures:
                continue
            self._lines.setdefault(type(event), []).append(sighting)

    def last(self, event: type) -> Sighting[Any] | None:
        lines = self._lines.get(event)
        return lines[-1] if lines else None

    def _value(self, event: type, field: str, name: str) -> Value:
        """The field as printed; unknown when one worker printed it with different figures."""
        lines = self._lines.get(event, [])
        said = {getattr(s.event, field): s for s in lines if getattr(s.event, field) is not None}
        if len(said) > 1:
            ids = tuple(s.line for s in said.values())
            why = f"{self.label} prints different figures of {field}: {', '.join(ids)}"
            return Unknown(why=why, unit=GIB, name=name, evidence=ids)
        if not said:
            why = f"{self.label} prints no {event.__name__} line"
            return Unknown(why=why, unit=GIB, name=name)
        return next(iter(said.values())).value(field, name)

    # --- terms of the account -----------------------------------------

    @property
    def weights(self) -> Value:
        """As its own line says, which has more decimals than the summary."""
        own = self._value(WeightsLoaded, "used", "weights")
        in_summary = self._value(UsageSummary, "weights", "weights")
        if isinstance(own, Unknown) and own.evidence:
            return own | in_summary  # two figures: the reason stays
        # What the former engine profiled is the target's alone.
        for profiled in (Profiled, ProfileResult):
            in_summary = in_summary | self._value(profiled, "weights", "weights")
        if isinstance(own, Unknown) and isinstance(in_summary, Unknown):
            return Unknown(
                why=f"no 'Model loading took' line of {self.label}", unit=GIB, name="weights"
            )
        return own | in_summary

    @property
    def budgets(self) -> int:
        """How many different budgets one worker printed: a start has one."""
        return len({s.event.budget for s in self._lines.get(KvBudget, [])})

    @property
    def kv_budget(self) -> Value:
        own = self._value(KvBudget, "budget", "kv_pool")
        said = (
            own
            | self._explicit()
            | self._value(UsageSummary, "kv", "kv_pool")
            | self._value(UsageSummary, "kv_bytes", "kv_pool")
            | self._value(Profiled, "kv", "kv_pool")
        )
        if isinstance(said, Unknown):
            if own.evidence:
                return own  # two figures: the reason stays
            return Unknown(
                why=f"no 'Available KV cache memory' line of {self.label}", unit=GIB, name="kv_pool"
            )
        return said.to(GIB)

    def _explicit(self) -> Value:
        """KV memory that was asked for: to the byte where the arguments are shown, since a small
        one is printed as 0.0."""
        printed = self._value(ExplicitKv, "size", "kv_pool")
        return self._asked.named("kv_pool") if agree(printed, self._asked) else printed

    def _first(self, field: str, name: str, *events: type) -> Value:
        """The field of the first of these events that the worker printed with it."""
        for event in events:
            value = self._value(event, field, name)
            if isinstance(value, Known):
                return value
        why = f"no memory summary of {self.label} is printed"
        return Unknown(why=why, unit=GIB, name=name)

    @property
    def total(self) -> Value:
        sources = (
            UsageSummary,
            FreeMemoryRefused,
            Profiled,
            ExplicitKv,
            InitialFree,
            OutOfMemory,
        )
        return self._first("total", "device total", *sources)

    @property
    def free_at_start(self) -> Value:
        sources = (UsageSummary, FreeMemoryRefused, InitialFree, ExplicitKv)
        return self._first("free", "free[startup]", *sources)

    @property
    def non_torch(self) -> Value:
        """Memory outside torch's allocator; from 0.27 what is consumed beyond the weights."""
        printed = self._first("non_torch", "non_torch", UsageSummary, Profiled)
        consumed = self._first("consumed", "consumed", UsageSummary)
        return printed | (consumed - self.weights).named("non_torch")

    @property
    def framework(self) -> Value:
        """device total − free at start-up, plus what profiling found outside torch.

        From 0.11.0 the start-up reading follows NCCL's initialisation, before it preceded it
        (v1/worker/gpu_worker.py of 0.10.2:175 and 0.11.0:169): the sum is the same.
        """
        outside = (self.total - self.free_at_start) + self.non_torch
        return outside.named("framework")

    def graphs(self, eager: Known | None) -> Value:
        """What the graphs hold: the pool's actual size, else the capture that follows the KV
        budget."""
        name = "cuda_graph"
        said = self._value(GraphPool, "actual", name) | self._value(UsageSummary, "graphs", name)
        if isinstance(said, Known):
            return said
        took = self._value(CaptureTook, "used", name)
        if isinstance(took, Known) or self.last(CaptureTook) is not None:
            return took
        if eager is not None:
            return known(
                0, GIB, Origin.CONFIGURED, how="enforce_eager", name=name, evidence=eager.evidence
            )
        return Unknown(why=f"no capture of {self.label} is printed", unit=GIB, name=name)

    @property
    def estimate(self) -> Value:
        """The graph memory that profiling estimated."""
        pool = self._value(GraphPool, "estimated", "graph_estimate")
        return pool | self._value(GraphEstimate, "estimate", "graph_estimate")

    def activation(self, applied: bool | None) -> Value:
        """The activation peak without the graph estimate.

        In 0.18 and from 0.27 on the printed peak contains the applied estimate, in between it does
        not: which of the two identities closes on the printed budget decides. `applied` is None
        when no line tells whether an estimate came off the budget.
        """
        peak = self._value(UsageSummary, "activation", "peak")
        if isinstance(peak, Unknown):
            return self._profiled_activation()
        estimate = self.estimate
        if applied is False or (applied is None and isinstance(estimate, Unknown)):
            return peak.named("activation")
        held = self._value(UsageSummary, "consumed", "consumed") | (
            self._value(UsageSummary, "weights", "weights")
            + self._value(UsageSummary, "non_torch", "non_torch")
        )
        left = self._value(UsageSummary, "requested", "requested") - held - peak
        budget = self.kv_budget
        if isinstance(estimate, Unknown):
            if agree(left, budget) is False:
                return peak.named("activation")  # what is missing is the estimate
            why = "the printed peak contains the graph estimate, which the log does not show"
            most = peak.interval[1]
            return Unknown(
                why=why, unit=GIB, name="activation", at_most=most, evidence=peak.evidence
            )
        if agree(left, budget) and applied is None:
            why = "no line tells whether the graph estimate is part of the printed peak"
            return Unknown(
                why=why,
                unit=GIB,
                name="activation",
                at_least=(peak - estimate).interval[0],
                at_most=peak.interval[1],
                evidence=peak.evidence,
            )
        if agree(left, budget):
            return (peak - estimate).named("activation")
        if agree(left - estimate, budget):
            return peak.named("activation")
        why = "the printed peak may contain the graph estimate or not: neither sum closes"
        return Unknown(why=why, unit=GIB, name="activation")

    def _profiled_activation(self) -> Value:
        """As DEBUG logs and the former engine print it; in 0.6.4 the peak less the weights."""
        printed = self._first("activation", "activation", ProfileResult, Profiled)
        peak = self._value(Profiled, "peak", "peak_torch_memory")
        return printed | (peak - self.weights).named("activation")

    @property
    def former_left(self) -> Value:
        """total · utilisation − weights − non-torch − activation, as the former engine prints them
        (worker/worker.py of 0.6.6:177)."""
        left = self._value(Profiled, "requested", "requested")
        for field in ("weights", "non_torch", "activation"):
            left = left - self._value(Profiled, field, field)
        return left

    def facts(self, eager: Known | None, applied: bool | None) -> RankFacts:
        graphs = self.graphs(eager)
        memory = {
            Category.FRAMEWORK: self.framework,
            Category.WEIGHTS: self.weights,
            Category.KV_POOL: self.kv_budget,
            Category.STATE_POOL: Unknown(why="state pools lie inside the KV pool", unit=GIB),
            Category.CUDA_GRAPH: graphs,
            Category.ACTIVATION: self.activation(applied),
        }
        free = self.free_at_start
        return RankFacts(
            id=self.rank,
            label=self.label,
            memory=memory,
            parts=tuple(self._parts(graphs)),
            timeline=tuple(self._timeline(free)),
            inside={Category.STATE_POOL: Category.KV_POOL},
            notes={Category.KV_POOL: "the budget: whole blocks are made of it"},
            device_total=self.total,
        )

    def _timeline(self, free: Value) -> Iterable[Checkpoint]:
        """Free memory at the start, and in DEBUG logs after weights and profiling."""
        after = self._value(FreeAfter, "free", "free[after_weights]")
        for stage, reading in ((Stage.STARTUP, free), (Stage.AFTER_WEIGHTS, after)):
            if isinstance(reading, Known):
                yield Checkpoint(stage=stage, role=Role.TARGET, free=reading)

    def _parts(self, graphs: Value) -> Iterable[Part]:
        pieces: Sequence[tuple[Category, str, Value]] = (
            (Category.FRAMEWORK, "non-torch", self.non_torch),
            (Category.WEIGHTS, "weights (target and draft)", self.weights),
            (Category.KV_POOL, "budget", self.kv_budget),
            (Category.CUDA_GRAPH, "graphs", graphs),
        )
        for category, label, size in pieces:
            if isinstance(size, Known):
                yield Part(category=category, role=Role.TARGET, label=label, size=size)


def estimate_applied(run: Run) -> bool | None:
    """Whether the graph estimate came off the budget: the line that says so decides, not the
    release. None when neither line is in the log."""
    if run.has(EstimateApplied):
        return True
    return False if run.has(EstimateNotApplied) else None
