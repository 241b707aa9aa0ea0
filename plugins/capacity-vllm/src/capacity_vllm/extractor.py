"""vLLM's meaning: which line starts a run, and what a run's lines add up to.

The accounting follows worker/ of 0.2.7 … 0.10.2, v1/worker and v1/core of 0.6.4 … 0.33.0;
references/accounting.md has the formulas with their files.
"""

from __future__ import annotations

import attrs

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import Ledger, Levers
from capacity_core.api.metrics import Metrics
from capacity_core.units import BYTES, COUNT
from capacity_core.values import Known
from capacity_vllm.args import (
    ChunkedPrefill,
    EngineConfig,
    ModelLength,
    NonDefaultArgs,
    ServerVersion,
    Settings,
)
from capacity_vllm.blocks import (
    BlockCount,
    BlockSize,
    BlocksOverridden,
    GpuBlocks,
    HybridDisabled,
    HybridSign,
    StateMode,
)
from capacity_vllm.checks import findings_of
from capacity_vllm.deployment import deployment_of
from capacity_vllm.failures import (
    ContextExceedsPool,
    EngineDied,
    EngineDiedServing,
    FreeMemoryRefused,
    HostMemoryRefused,
    MemoryMoved,
    NoFreeBlock,
    NoKvMemory,
    StateSlotsExceeded,
    Stopping,
    WarmUpOutOfMemory,
    WeightsTooLarge,
)
from capacity_vllm.graphs import EstimateApplied, EstimateNotApplied
from capacity_vllm.kv import KvReading
from capacity_vllm.limits import EngineReady, SleepMode
from capacity_vllm.load import Preempted, RequestFailed, Stats, load_of
from capacity_vllm.metrics import with_metrics
from capacity_vllm.outcome import failure_of, stage_reached, status_of
from capacity_vllm.pools import (
    ContextParallel,
    ExplicitKv,
    FittedLength,
    KvBudget,
    KvDtype,
    KvReserved,
    KvSize,
    SizedByAllocator,
    WeightsElsewhere,
)
from capacity_vllm.ranks import (
    WORKER_EVENTS,
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
from capacity_vllm.weights import WeightsLoaded, WeightsRead


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
        HybridDisabled,
        StateMode,
        BlockCount,
        KvDtype,
        KvReserved,
        WeightsElsewhere,
        SizedByAllocator,
        EstimateApplied,
        EstimateNotApplied,
        BlockSize,
        ChunkedPrefill,
        WeightsRead,
        EngineReady,
        SleepMode,
        Stats,
        Preempted,
        NoKvMemory,
        ContextExceedsPool,
        HostMemoryRefused,
        WeightsTooLarge,
        MemoryMoved,
        WarmUpOutOfMemory,
        StateSlotsExceeded,
        NoFreeBlock,
        RequestFailed,
        EngineDied,
        EngineDiedServing,
        Stopping,
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
        if isinstance(event, KvSize | GpuBlocks):
            return after_death(run, sighting) or other_engine(run, sighting)
        return False

    def split_layers(self, layers: int, stages: int) -> tuple[int, ...]:
        """Layers of each pipeline stage: those before the last one take what does not divide
        (0.33.0 vllm/distributed/utils.py `get_pp_indices`); VLLM_PP_LAYER_PARTITION overrules
        it."""
        share, left = divmod(layers, stages)
        return tuple(share + (stages - 1 - left <= stage < stages - 1) for stage in range(stages))

    def with_metrics(self, ledger: Ledger, samples: Metrics) -> Ledger:
        """The ledger with what a saved metrics page says of its caches."""
        return with_metrics(ledger, samples)

    def extract(self, run: Run) -> Ledger:
        settings = Settings(run.of(EngineConfig, NonDefaultArgs))
        tensor = settings.number(COUNT, "tensor_parallel_size")
        size = int(tensor.number) if isinstance(tensor, Known) else None
        readings = workers_of(run, size, settings.number(BYTES, "kv_cache_memory_bytes"))
        eager = settings.flag("enforce_eager")
        applied = estimate_applied(run)
        failure = failure_of(run)
        kv = KvReading(run, readings, settings)
        deployment = deployment_of(run, settings, tensor)
        return Ledger(
            admission=kv.admission(deployment),
            framework=self.framework,
            title=self.title,
            status=status_of(run, failure, eager),
            reached=stage_reached(run),
            deployment=deployment,
            ranks=tuple(reading.facts(eager, applied) for reading in readings),
            workers=kv.workers(deployment),
            kv=kv.facts(),
            failure=failure,
            load=load_of(run),
            findings=tuple(findings_of(run, readings, eager)),
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
