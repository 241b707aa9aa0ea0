"""vLLM's meaning: which line starts a run, and what a run's lines add up to (V1 engine).

The accounting follows v1/worker and v1/core of 0.9.1 … 0.33.0; references/accounting.md has the
formulas with their files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import (
    Finding,
    Ledger,
    Levers,
    Severity,
)
from capacity_core.units import COUNT
from capacity_core.values import Known
from capacity_vllm.args import (
    ChunkedPrefill,
    EngineConfig,
    ModelLength,
    NonDefaultArgs,
    ServerVersion,
    Settings,
)
from capacity_vllm.deployment import deployment_of
from capacity_vllm.failures import ContextExceedsPool, EngineDied, FreeMemoryRefused, NoKvMemory
from capacity_vllm.graphs import EstimateApplied, EstimateNotApplied
from capacity_vllm.kv import KvReading, engine_of, override_of
from capacity_vllm.limits import EngineReady, SleepMode
from capacity_vllm.outcome import failure_of, stage_reached, status_of
from capacity_vllm.pools import (
    BlockCount,
    BlockSize,
    BlocksOverridden,
    ContextParallel,
    ExplicitKv,
    FittedLength,
    HybridSign,
    KvBudget,
    KvReserved,
    KvSize,
)
from capacity_vllm.ranks import (
    WORKER_EVENTS,
    WorkerReading,
    estimate_applied,
    workers_of,
)
from capacity_vllm.starts import (
    SIZED,
    after_death,
    engine_again,
    other_engine,
    server_again,
    worker_again,
)
from capacity_vllm.weights import WeightsLoaded


@attrs.frozen
class VllmExtractor:
    """Reads runs of vLLM, and of forks that print its events."""

    framework: str = "vllm"
    title: str = "vLLM"
    events: tuple[type, ...] = (
        *WORKER_EVENTS,
        *SIZED,
        ServerVersion,
        NonDefaultArgs,
        EngineConfig,
        ModelLength,
        ContextParallel,
        BlocksOverridden,
        FittedLength,
        HybridSign,
        BlockCount,
        KvReserved,
        EstimateApplied,
        EstimateNotApplied,
        BlockSize,
        ChunkedPrefill,
        EngineReady,
        SleepMode,
        NoKvMemory,
        ContextExceedsPool,
        EngineDied,
    )

    def starts_run(self, run: Run, sighting: Sighting[object]) -> bool:
        """A version, argument or configuration line that comes again; else a worker that does."""
        event = sighting.event
        if isinstance(event, ServerVersion | NonDefaultArgs):
            return server_again(run, sighting)
        if isinstance(event, EngineConfig):
            return engine_again(run, sighting)
        if isinstance(event, WeightsLoaded | KvBudget | ExplicitKv | FreeMemoryRefused):
            return worker_again(run, sighting)
        if isinstance(event, KvSize):
            return after_death(run, sighting) or other_engine(run, sighting)
        return False

    def extract(self, run: Run) -> Ledger:
        settings = Settings(run.of(EngineConfig, NonDefaultArgs))
        tensor = settings.number(COUNT, "tensor_parallel_size")
        size = int(tensor.number) if isinstance(tensor, Known) else None
        readings = workers_of(run, size)
        eager = settings.flag("enforce_eager")
        applied = estimate_applied(run)
        failure = failure_of(run)
        kv = KvReading(run, readings, settings)
        deployment = deployment_of(run, settings, tensor)
        return Ledger(
            framework=self.framework,
            title=self.title,
            status=status_of(run, failure, eager),
            reached=stage_reached(run),
            deployment=deployment,
            ranks=tuple(reading.facts(eager, applied) for reading in readings),
            workers=kv.workers(deployment),
            kv=kv.facts(),
            failure=failure,
            findings=(*_findings(run), *_negative_graphs(readings, eager)),
            levers=Levers(
                fraction_flag="--gpu-memory-utilization",
                fraction=deployment.gpu_memory_utilization,
                request_limit_flag="--max-num-seqs",
                kv_dtype_flag="--kv-cache-dtype fp8",
                split_flag="--data-parallel-size N (with --enable-expert-parallel for expert "
                "layers)",
            ),
            version_range=run.version_range,
        )


def _findings(run: Run) -> Iterator[Finding]:
    override = override_of(run)
    if override is not None:
        profiled, used = (getattr(override.event, f) for f in ("profiled", "used"))
        yield Finding(
            code="blocks-overridden",
            severity=Severity.WARNING,
            message=f"num_gpu_blocks_override made {used} blocks of {profiled}: the budget is not "
            f"the pool.",
            evidence=(override.line,),
        )
    reserved = run.last_of(KvReserved)
    if reserved is not None:
        yield Finding(
            code="budget-reduced",
            severity=Severity.INFO,
            message=f"after the budget was printed, {reserved.event.left} GiB of it were left for "
            f"KV.",
            evidence=(reserved.line,),
        )
    sizes = {s.event.tokens for s in run.of(KvSize)}
    if len(sizes) > 1 and len({engine_of(s) for s in run.of(KvSize)}) == 1:
        yield Finding(
            code="tokens-differ",
            severity=Severity.INFO,
            message=f"workers printed {len(sizes)} different token counts: the engine uses the "
            f"least.",
            evidence=tuple(s.line for s in run.of(KvSize))[:8],
        )


def _negative_graphs(readings: Sequence[WorkerReading], eager: Known | None) -> Iterator[Finding]:
    graphs = [reading.graphs(eager) for reading in readings]
    negative = [value for value in graphs if isinstance(value, Known) and value.number < 0]
    if negative:
        yield Finding(
            code="negative-graphs",
            severity=Severity.INFO,
            message="graph memory is negative as printed: memory came back on the device during "
            "the capture.",
            evidence=tuple(line for value in negative for line in value.evidence)[:8],
        )
