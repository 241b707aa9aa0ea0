"""vLLM's meaning: which line starts a run, and what a run's lines add up to (V1 engine).

The accounting follows v1/worker and v1/core of 0.9.1 … 0.33.0; references/accounting.md has the
formulas with their files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import attrs

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import (
    Deployment,
    Failure,
    FailureKind,
    Finding,
    KvFacts,
    Ledger,
    Levers,
    Parallel,
    Reported,
    Severity,
    Stage,
    Status,
    TokenUse,
    WorkerFacts,
    least_reported,
)
from capacity_core.api.process import AcceptsRequests, crash
from capacity_core.api.versions import release_key
from capacity_core.units import BYTES, BYTES_PER_TOKEN, COUNT, GIB, RATIO, REQUESTS, TOKENS
from capacity_core.values import Known, Unknown, Value, least
from capacity_vllm.args import EngineConfig, ModelLength, NonDefaultArgs, ServerVersion, Settings
from capacity_vllm.failures import ContextExceedsPool, EngineDied, FreeMemoryRefused, NoKvMemory
from capacity_vllm.graphs import CaptureTook, EstimateApplied, EstimateNotApplied, GraphPool
from capacity_vllm.limits import EngineReady
from capacity_vllm.pools import (
    BlockCount,
    BlocksOverridden,
    ContextParallel,
    FittedLength,
    HybridSign,
    KvBudget,
    KvReserved,
    KvSize,
    MaxConcurrency,
)
from capacity_vllm.ranks import WORKER_EVENTS, WorkerReading, estimate_applied, rank_of, workers_of
from capacity_vllm.usage import UsageSummary
from capacity_vllm.weights import WeightsLoaded

_FATAL = (NoKvMemory, ContextExceedsPool, FreeMemoryRefused, EngineDied)
_SIZED = (KvSize, MaxConcurrency)
_PROGRESS = (*WORKER_EVENTS, *_SIZED, EngineReady, AcceptsRequests)

_REACHED = (
    (Stage.AFTER_WEIGHTS, WeightsLoaded),
    (Stage.AFTER_POOLS, KvSize),
    (Stage.AFTER_GRAPHS, UsageSummary),
    (Stage.AFTER_GRAPHS, GraphPool),
    (Stage.READY, EngineReady),
    (Stage.READY, AcceptsRequests),
)

# From here on the printed tokens are int(concurrency · longest length) for every model
# (v1/core/kv_cache_utils.py of 0.20.0:1679 and 0.21.0:1686).
_TOKENS_DERIVED_SINCE = (0, 21)

_BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024)


@attrs.frozen
class VllmExtractor:
    """Reads runs of vLLM, and of forks that print its events."""

    framework: str = "vllm"
    title: str = "vLLM"
    events: tuple[type, ...] = (
        *WORKER_EVENTS,
        *_SIZED,
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
        EngineReady,
        NoKvMemory,
        ContextExceedsPool,
        EngineDied,
    )

    def starts_run(self, run: Run, sighting: Sighting[object]) -> bool:
        """A version, argument or configuration line after an engine's lines; else a worker that
        begins again."""
        event = sighting.event
        if isinstance(event, ServerVersion | NonDefaultArgs):
            extra_server = (sighting.speaker.role or "").startswith("ApiServer_")
            return run.has(EngineConfig, *_PROGRESS, *_FATAL) and not extra_server
        if isinstance(event, EngineConfig):
            return _engine_again(run, sighting)
        if isinstance(event, WeightsLoaded | KvBudget):
            return _worker_again(run, sighting)
        if isinstance(event, KvSize):
            return _other_process(run.of(KvSize), sighting)
        return False

    def extract(self, run: Run) -> Ledger:
        settings = Settings(run.of(EngineConfig, NonDefaultArgs))
        tensor = settings.number(COUNT, "tensor_parallel_size")
        size = int(tensor.number) if isinstance(tensor, Known) else None
        readings = workers_of(run, size)
        eager = settings.flag("enforce_eager")
        applied = estimate_applied(run)
        failure = _failure(run, readings)
        kv = _KvReading(run, readings, settings)
        deployment = _deployment(run, settings, tensor)
        return Ledger(
            framework=self.framework,
            title=self.title,
            status=_status(run, failure, eager),
            reached=_reached(run),
            deployment=deployment,
            ranks=tuple(reading.facts(eager, applied) for reading in readings),
            workers=kv.workers(deployment),
            kv=kv.facts(),
            failure=failure,
            findings=tuple(_findings(run)),
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


# --- runs -------------------------------------------------------------


def _engine_again(run: Run, sighting: Sighting[Any]) -> bool:
    """Each data-parallel engine prints its configuration once: the same one again is a restart."""
    same = [s for s in run.of(EngineConfig) if s.speaker.dp == sighting.speaker.dp]
    return bool(same) or (run.has(*_PROGRESS, *_FATAL) and not run.has(EngineConfig))


def _worker_again(run: Run, sighting: Sighting[Any]) -> bool:
    """Without a start line: the same rank under another pid, lines of a rank that was sized, lines
    after a death."""
    if run.has(NoKvMemory, ContextExceedsPool, EngineDied):
        return True
    same = [
        s
        for s in run.of(type(sighting.event))
        if rank_of(s, None) == rank_of(sighting, None) and s.speaker.role == sighting.speaker.role
    ]
    if not same:
        return False
    others = [s for s in run.of(*WORKER_EVENTS) if _same_rank_other_pid(s, sighting)]
    bare = sighting.speaker.role == "Worker" and not sighting.speaker.label
    if others:
        # Workers without ranks may simply be several: only one that begins after the pool was sized
        # is a restart.
        return not bare or run.has(*_SIZED)
    return run.has(*_SIZED) or (isinstance(sighting.event, WeightsLoaded) and run.has(KvBudget))


def _same_rank_other_pid(a: Sighting[Any], b: Sighting[Any]) -> bool:
    pids = (a.speaker.pid, b.speaker.pid)
    return (
        a.speaker.role == b.speaker.role
        and rank_of(a, None) == rank_of(b, None)
        and None not in pids
        and pids[0] != pids[1]
    )


def _other_process(before: Sequence[Sighting[Any]], sighting: Sighting[Any]) -> bool:
    """Whether an engine of the same data-parallel rank but another pid printed this before."""
    return any(
        s.speaker.dp == sighting.speaker.dp
        and None not in (s.speaker.pid, sighting.speaker.pid)
        and s.speaker.pid != sighting.speaker.pid
        for s in before
    )


def _reached(run: Run) -> Stage | None:
    seen = [stage for stage, event in _REACHED if run.has(event)]
    return seen[-1] if seen else None


def _status(run: Run, failure: Failure | None, eager: Known | None) -> Status:
    if failure is not None:
        return Status.FAILED
    sized = run.last_of(*_SIZED)
    took = run.last_of(CaptureTook)
    order = {id(s): number for number, s in enumerate(run)}
    captured = sized and took and order[id(took)] > order[id(sized)]
    done = run.has(EngineReady, AcceptsRequests, UsageSummary, GraphPool) or captured
    return Status.READY if done or (eager is not None and sized) else Status.INCOMPLETE


# --- deployment -------------------------------------------------------


def _deployment(run: Run, settings: Settings, tensor: Value) -> Deployment:
    data = settings.number(COUNT, "data_parallel_size") | settings.default(
        1, COUNT, "data_parallel_size"
    )
    return Deployment(
        version=_version(run),
        model=settings.text("model", "model_tag"),
        quantization=settings.text("quantization"),
        kv_cache_dtype=settings.text("kv_cache_dtype"),
        kv_cache_dtype_resolved=Unknown(why="vLLM does not print the resolved element type"),
        mem_fraction_static=Unknown(why="not a setting of vLLM", unit=RATIO),
        gpu_memory_utilization=_utilization(run, settings),
        context_length=_context_length(run, settings),
        page_size=settings.number(TOKENS, "block_size"),
        chunked_prefill_size=settings.number(TOKENS, "max_num_batched_tokens"),
        max_prefill_tokens=Unknown(why="not a setting of vLLM", unit=TOKENS),
        speculative=settings.nested("speculative_config", "method"),
        disaggregation=Unknown(why="the log does not say"),
        parallel=Parallel(
            tensor=tensor | settings.default(1, COUNT, "tensor_parallel_size"),
            pipeline=settings.number(COUNT, "pipeline_parallel_size")
            | settings.default(1, COUNT, "pipeline_parallel_size"),
            data=data,
            context=_context_parallel(run, settings),
            nodes=settings.number(COUNT, "nnodes"),
        ),
        workers=data,
    )


def _version(run: Run) -> Value:
    said = (*run.of(EngineConfig), *run.of(ServerVersion))
    if not said:
        return Unknown(why="no line of this run prints the release")
    return said[0].value("version")


def _utilization(run: Run, settings: Settings) -> Value:
    value = settings.number(RATIO, "gpu_memory_utilization")
    for event in (UsageSummary, FreeMemoryRefused, EstimateApplied, EstimateNotApplied):
        sighting = run.last_of(event)
        if sighting is not None:
            value = value | sighting.value("utilization")
    return value


def _context_length(run: Run, settings: Settings) -> Value:
    """The effective longest length: auto-fit's choice, the configuration, or what the capacity line
    is about."""
    fitted = run.last_of(FittedLength)
    value: Value = Unknown(why="no auto-fit line", unit=TOKENS)
    if fitted is not None:
        value = fitted.value("length")
    value = value | settings.number(TOKENS, "max_seq_len", "max_model_len")
    for event, field in (
        (KvSize, "request_tokens"),
        (MaxConcurrency, "request_tokens"),
        (ContextExceedsPool, "length"),
    ):
        sighting = run.last_of(event)
        if sighting is not None:
            value = value | sighting.value(field)
    lengths = {s.event.length for s in run.of(ModelLength)}
    if len(lengths) == 1:
        value = value | run.of(ModelLength)[0].value("length")
    return value


def _context_parallel(run: Run, settings: Settings) -> Value:
    value = settings.number(COUNT, "decode_context_parallel_size")
    factor = run.last_of(ContextParallel)
    return value if factor is None else factor.value("factor") | value


# --- KV ---------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _Size:
    """One statement of an engine: tokens, and the concurrency printed with it."""

    dp: int
    tokens: Value
    reported: Reported | None


class _KvReading:
    """What the engines of a run say of their KV caches."""

    def __init__(self, run: Run, readings: Sequence[WorkerReading], settings: Settings) -> None:
        self._run = run
        self._readings = readings
        self._settings = settings
        self._sizes = list(_sizes(run))
        self._block = self._plain_block()

    # A worker here is one engine with its own pool: a data-parallel rank.
    def workers(self, deployment: Deployment) -> tuple[WorkerFacts, ...]:
        count = deployment.workers
        named = set(range(int(count.number))) if isinstance(count, Known) else set()
        shown = {size.dp for size in self._sizes} | {r.rank.dp or 0 for r in self._readings}
        return tuple(self._worker(dp) for dp in sorted(named | shown))

    def _worker(self, dp: int) -> WorkerFacts:
        sizes = [size for size in self._sizes if size.dp == dp]
        budgets = [
            reading.kv_budget
            for reading in self._readings
            if (reading.rank.dp or 0) == dp and isinstance(reading.kv_budget, Known)
        ]
        budget = least(budgets) if budgets else Unknown(why="no KV budget is printed", unit=GIB)
        limit = self._settings.number(REQUESTS, "max_num_seqs")
        if isinstance(limit, Unknown):
            why = "max_num_seqs is not printed; its default depends on release and device"
            limit = Unknown(why=why, unit=REQUESTS)
        return WorkerFacts(
            dp=dp,
            # Up to 0.11.0 each worker's own count is printed before the engine takes the minimum.
            tokens=least([size.tokens for size in sizes])
            if sizes
            else Unknown(why="no 'KV cache size' line", unit=TOKENS),
            request_limit=limit,
            size=budget,
            budget=budget,
            reported=least_reported([size.reported for size in sizes]),
        )

    def facts(self) -> KvFacts:
        use, why = self._token_use()
        return KvFacts(
            token_use=use,
            token_use_why=why,
            bytes_per_token=self._bytes_per_token(),
            bytes_per_full_token=Unknown(why="not a figure of vLLM", unit=BYTES_PER_TOKEN),
            sizing_mode=Unknown(why="not a setting of vLLM"),
            dtype=Unknown(why="vLLM does not print the resolved element type"),
        )

    def _token_use(self) -> tuple[TokenUse, str]:
        """What the printed tokens mean for other lengths; see KvSize."""
        longest = (
            "these tokens are concurrency · max_model_len: they hold at that length, shorter "
            "requests cost more "
            "than their share wherever a model keeps more than full-length KV"
        )
        derived = self._derived_tokens()
        if derived:
            return TokenUse.LONGEST_ONLY, longest
        if self._block is not None:
            if derived is False:
                return TokenUse.ANY_LENGTH, ""
            return TokenUse.LONGEST_ONLY, f"the release is not known; {longest}"
        if self._run.has(HybridSign) or any(size.reported is not None for size in self._sizes):
            return TokenUse.UNCLEAR, "a hybrid model's printed tokens are divided by its groups"
        return TokenUse.UNCLEAR, "no concurrency line tells whether all layers keep full-length KV"

    def _derived_tokens(self) -> bool | None:
        """Whether tokens are derived from the concurrency (0.21.0 and later); None when the release
        is not known."""
        version = _version(self._run)
        if isinstance(version, Known):
            return release_key(str(version.amount))[:2] >= _TOKENS_DERIVED_SINCE
        span = self._run.version_range
        if span is None:
            return None
        if release_key(span[0])[:2] >= _TOKENS_DERIVED_SINCE:
            return True
        return False if release_key(span[1])[:2] < _TOKENS_DERIVED_SINCE else None

    def _plain_block(self) -> int | None:
        """The least block size for which tokens are blocks · size and the concurrency follows from
        them.

        concurrency = blocks / ceil(longest / size) holds for models with one kind of KV cache alone
        (v1/core/kv_cache_utils.py of 0.9.2:740 … 0.20.0:872); two decimals are printed.
        """
        if self._run.has(HybridSign, ContextParallel) or not self._sizes:
            return None
        fitting = set(_BLOCK_SIZES)
        for size in self._sizes:
            fitting &= set(_blocks_that_fit(size))
        return min(fitting, default=None)

    def _bytes_per_token(self) -> Value:
        """budget / tokens, too high by less than one block: floor(budget / block bytes) blocks are
        made."""
        unit = BYTES_PER_TOKEN
        if self._derived_tokens() is not False:
            why = (
                "the printed tokens are derived from the concurrency (or the release is not known)"
            )
            return Unknown(why=why, unit=unit)
        if self._block is None:
            return Unknown(why="the model may keep more than one kind of KV cache", unit=unit)
        if self._run.has(BlocksOverridden, KvReserved):
            return Unknown(why="the pool is not made of the whole printed budget", unit=unit)
        budgets = [r.kv_budget for r in self._readings if isinstance(r.kv_budget, Known)]
        tokens = least([size.tokens for size in self._sizes]).named("tokens")
        if not budgets or not isinstance(tokens, Known):
            return Unknown(why="no KV budget or no tokens are printed", unit=unit)
        per_token = least(budgets).named("kv_budget").to(BYTES) / tokens
        if isinstance(per_token, Known) and tokens.number > 0:
            slack = per_token.number * self._block / tokens.number
            per_token = attrs.evolve(per_token, error=per_token.error + slack)
        return per_token


def _sizes(run: Run) -> Iterator[_Size]:
    """Each size line with its concurrency, which up to 0.27 follows on a line of its own."""
    pending: dict[int, Sighting[Any]] = {}
    for sighting in run.of(KvSize, MaxConcurrency):
        dp = sighting.speaker.dp or 0
        event = sighting.event
        if isinstance(event, KvSize):
            if dp in pending:
                yield _size(dp, pending.pop(dp), None)
            if event.concurrency is not None:
                yield _size(dp, sighting, sighting)
            else:
                pending[dp] = sighting
        else:
            yield _size(dp, pending.pop(dp, None), sighting)
    for dp, sighting in pending.items():
        yield _size(dp, sighting, None)


def _size(dp: int, size: Sighting[Any] | None, concurrency: Sighting[Any] | None) -> _Size:
    tokens: Value = Unknown(why="no 'KV cache size' line", unit=TOKENS)
    reported = None
    if size is not None:
        tokens = size.value("tokens", f"tokens[DP{dp}]")
    if concurrency is not None:
        reported = Reported(
            request_tokens=concurrency.event.request_tokens,
            value=concurrency.value("concurrency"),
        )
    return _Size(dp=dp, tokens=tokens, reported=reported)


def _blocks_that_fit(size: _Size) -> list[int]:
    if not isinstance(size.tokens, Known) or size.reported is None:
        return []
    printed = size.reported.value
    if not isinstance(printed, Known) or size.reported.request_tokens <= 0:
        return []
    tokens = int(size.tokens.number)
    found = []
    for block in _BLOCK_SIZES:
        whole = -(-size.reported.request_tokens // block) * block
        off = abs(Decimal(tokens) / whole - printed.number)
        if tokens % block == 0 and off <= printed.error:
            found.append(block)
    return found


# --- outcome ----------------------------------------------------------

_KINDS: tuple[tuple[type[object], FailureKind], ...] = (
    (ContextExceedsPool, FailureKind.CONTEXT_EXCEEDS_KV_POOL),
    (NoKvMemory, FailureKind.NO_KV_MEMORY),
    (FreeMemoryRefused, FailureKind.UNKNOWN),
    (EngineDied, FailureKind.UNKNOWN),
)


def _failure(run: Run, readings: Sequence[WorkerReading]) -> Failure | None:
    """The first message of the most telling kind: causes are repeated by every process that dies of
    them."""
    for event, kind in _KINDS:
        found = run.of(event)
        if found:
            return _failed(run, found[0], kind)
    sighting = crash(run, _PROGRESS, (EngineReady, AcceptsRequests))
    return _failed(run, sighting, FailureKind.UNKNOWN) if sighting is not None else None


def _failed(run: Run, sighting: Sighting[Any], kind: FailureKind) -> Failure:
    order = {id(s): number for number, s in enumerate(run)}
    up = [
        s
        for s in run.of(EngineReady, AcceptsRequests, CaptureTook)
        if order[id(s)] < order[id(sighting)]
    ]
    served = any(isinstance(s.event, EngineReady | AcceptsRequests) for s in up) or (
        up and run.has(*_SIZED)
    )
    stage = Stage.SERVING if served else _reached(run) or Stage.STARTUP
    return Failure(
        kind=kind,
        stage=stage,
        rank=rank_of(sighting, None).text if sighting.speaker.label else None,
        message=sighting.text,
        evidence=(sighting.line,),
    )


def _findings(run: Run) -> Iterator[Finding]:
    override = run.last_of(BlocksOverridden)
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
    if len(sizes) > 1 and len({s.speaker.dp for s in run.of(KvSize)}) == 1:
        yield Finding(
            code="tokens-differ",
            severity=Severity.INFO,
            message=f"workers printed {len(sizes)} different token counts: the engine uses the "
            f"least.",
            evidence=tuple(s.line for s in run.of(KvSize))[:8],
        )
    pool = run.last_of(GraphPool)
    if pool is not None and pool.event.actual < 0:
        yield Finding(
            code="negative-graphs",
            severity=Severity.INFO,
            message="graph memory is negative as printed: memory came back on the device during "
            "the capture.",
            evidence=(pool.line,),
        )
