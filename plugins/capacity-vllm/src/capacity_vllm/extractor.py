"""vLLM's meaning: which line starts a run, and what a run's lines add up to (V1 engine).

The accounting follows v1/worker and v1/core of 0.9.1 … 0.33.0; references/accounting.md has the
formulas with their files.
"""

from __future__ import annotations

import re
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
from capacity_core.api.process import AcceptsRequests, OutOfMemory, Traceback, crash
from capacity_core.api.versions import release_key
from capacity_core.units import BYTES, BYTES_PER_TOKEN, COUNT, GIB, RATIO, REQUESTS, TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, known, least
from capacity_vllm.args import (
    ChunkedPrefill,
    EngineConfig,
    ModelLength,
    NonDefaultArgs,
    ServerVersion,
    Settings,
)
from capacity_vllm.failures import ContextExceedsPool, EngineDied, FreeMemoryRefused, NoKvMemory
from capacity_vllm.graphs import CaptureTook, EstimateApplied, EstimateNotApplied, GraphPool
from capacity_vllm.limits import EngineReady, SleepMode
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
    MaxConcurrency,
)
from capacity_vllm.ranks import (
    WORKER_EVENTS,
    WorkerReading,
    estimate_applied,
    is_actor,
    process_of,
    rank_of,
    workers_of,
)
from capacity_vllm.usage import UsageSummary
from capacity_vllm.weights import WeightsLoaded

_FATAL = (NoKvMemory, ContextExceedsPool, FreeMemoryRefused, EngineDied)
_SIZED = (KvSize, MaxConcurrency)
_UP = (EngineReady, AcceptsRequests, SleepMode)
_PROGRESS = (*WORKER_EVENTS, *_SIZED, *_UP)

_REACHED = (
    (Stage.AFTER_WEIGHTS, WeightsLoaded),
    (Stage.AFTER_POOLS, KvSize),
    (Stage.AFTER_GRAPHS, UsageSummary),
    (Stage.AFTER_GRAPHS, GraphPool),
    (Stage.READY, EngineReady),
    (Stage.READY, AcceptsRequests),
    (Stage.READY, SleepMode),
)

# From here on the printed tokens are int(concurrency · longest length) for every model
# (v1/core/kv_cache_utils.py of 0.20.0:1679 and 0.21.0:1686).
_TOKENS_DERIVED_SINCE = (0, 21)

_BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)


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
            return _server_again(run, sighting)
        if isinstance(event, EngineConfig):
            return _engine_again(run, sighting)
        if isinstance(event, WeightsLoaded | KvBudget | ExplicitKv | FreeMemoryRefused):
            return _worker_again(run, sighting)
        if isinstance(event, KvSize):
            return run.has(NoKvMemory, ContextExceedsPool) or _other_engine(run, sighting)
        return False

    def extract(self, run: Run) -> Ledger:
        settings = Settings(run.of(EngineConfig, NonDefaultArgs))
        tensor = settings.number(COUNT, "tensor_parallel_size")
        size = int(tensor.number) if isinstance(tensor, Known) else None
        readings = workers_of(run, size)
        eager = settings.flag("enforce_eager")
        applied = estimate_applied(run)
        failure = _failure(run)
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

_DEATHS = (NoKvMemory, ContextExceedsPool, EngineDied)


def _server_again(run: Run, sighting: Sighting[Any]) -> bool:
    """The same server's line once more, or any server's after an engine's lines.

    Several API servers (ApiServer_1, …) repeat the first one's lines; data-parallel supervisors
    each have their own.
    """
    if (sighting.speaker.role or "").startswith("ApiServer_"):
        return False
    mine = (sighting.speaker.role, sighting.speaker.dp)
    said = [(s.speaker.role, s.speaker.dp) for s in run.of(type(sighting.event))]
    if mine in said:
        return True
    another = mine[1] is not None and said
    return run.has(EngineConfig, *_PROGRESS, *_FATAL) and not another


def _engine_again(run: Run, sighting: Sighting[Any]) -> bool:
    """Each data-parallel engine prints its configuration once: the same one again is a restart.

    Engines side by side that leave their rank out have other pids, and come before any worker.
    """
    started = run.has(*_PROGRESS, *_FATAL)
    said = run.of(EngineConfig)
    same = [s for s in said if s.speaker.dp == sighting.speaker.dp]
    if same and all(_other_process(s, sighting) for s in same):
        return started and not is_actor(sighting)
    return bool(same) or (started and not said)


def _worker_again(run: Run, sighting: Sighting[Any]) -> bool:
    """Without a start line: the same rank under another pid, lines of a rank that was sized, or
    lines after a death."""
    refused = isinstance(sighting.event, FreeMemoryRefused)
    if run.has(*_DEATHS) and not refused:
        return True
    mine = rank_of(sighting)
    if refused:
        # It is printed several times by processes that die of it, and before any weights.
        later = run.of(WeightsLoaded, KvBudget)
        return run.has(NoKvMemory, *_SIZED) or any(rank_of(s) == mine for s in later)
    others = [
        s
        for s in run.of(*WORKER_EVENTS)
        if s.speaker.role == sighting.speaker.role
        and rank_of(s) == mine
        and _other_process(s, sighting)
    ]
    if others:
        pids = {process_of(s) for s in others} | {process_of(sighting)}
        bare = sighting.speaker.role == "Worker" and not sighting.speaker.label
        # Replicas whose prefixes leave their data-parallel rank out, or workers without ranks: only
        # one that begins after the pool was sized is a restart.
        several = bare or len(pids) <= _engines(run)
        return run.has(*_SIZED) if several else True
    same = [s for s in run.of(type(sighting.event)) if rank_of(s) == mine]
    if not [s for s in same if s.speaker.role == sighting.speaker.role]:
        return False
    begun = isinstance(sighting.event, WeightsLoaded) and run.has(KvBudget)
    return begun or run.has(*_SIZED, Traceback, OutOfMemory)


def _engines(run: Run) -> int:
    """How many engines of one deployment there are, by the arguments and by their prefixes."""
    asked = Settings(run.of(NonDefaultArgs)).asked(COUNT, "data_parallel_size")
    said = [s for s in run if (s.speaker.role or "").startswith("EngineCore")]
    shown = len({s.speaker.dp for s in said})
    return max(shown, int(asked.number)) if isinstance(asked, Known) else shown


def _other_process(a: Sighting[Any], b: Sighting[Any]) -> bool:
    known_pids = None not in (a.speaker.pid, b.speaker.pid)
    return known_pids and process_of(a) != process_of(b)


def _other_engine(run: Run, sighting: Sighting[Any]) -> bool:
    """Whether an engine of the same data-parallel rank but another pid sized its pool before."""
    return not is_actor(sighting) and any(
        s.speaker.dp == sighting.speaker.dp and _other_process(s, sighting) for s in run.of(KvSize)
    )


def _reached(run: Run) -> Stage | None:
    seen = [stage for stage, event in _REACHED if run.has(event)]
    if not seen or seen[-1] is Stage.AFTER_POOLS:
        return Stage.AFTER_GRAPHS if _captured(run) else seen[-1] if seen else None
    return seen[-1]


def _captured(run: Run) -> bool:
    """Whether graphs were captured after the pool was sized."""
    sized = False
    for sighting in run:
        if isinstance(sighting.event, _SIZED):
            sized = True
        elif isinstance(sighting.event, CaptureTook) and sized:
            return True
    return False


def _status(run: Run, failure: Failure | None, eager: Known | None) -> Status:
    if failure is not None:
        return Status.FAILED
    done = run.has(*_UP, UsageSummary, GraphPool) or _captured(run)
    return Status.READY if done or (eager is not None and run.has(*_SIZED)) else Status.INCOMPLETE


# --- deployment -------------------------------------------------------


def _deployment(run: Run, settings: Settings, tensor: Value) -> Deployment:
    data = _data_parallel(run, settings)
    return Deployment(
        version=_version(run),
        model=settings.text("model", "model_tag"),
        quantization=settings.text("quantization"),
        kv_cache_dtype=settings.text("kv_cache_dtype"),
        kv_cache_dtype_resolved=Unknown(why="vLLM does not print the resolved element type"),
        mem_fraction_static=Unknown(why="not a setting of vLLM", unit=RATIO),
        gpu_memory_utilization=_utilization(run, settings),
        context_length=_context_length(run, settings),
        page_size=_block_size(run, settings),
        chunked_prefill_size=_chunked_prefill(run, settings),
        max_prefill_tokens=Unknown(why="not a setting of vLLM", unit=TOKENS),
        speculative=settings.nested("speculative_config", "method"),
        disaggregation=Unknown(why="the log does not say"),
        parallel=Parallel(
            tensor=tensor | _default_size(run, settings, "tensor_parallel_size"),
            pipeline=settings.number(COUNT, "pipeline_parallel_size")
            | _default_size(run, settings, "pipeline_parallel_size"),
            data=data,
            context=_context_parallel(run, settings),
            nodes=settings.number(COUNT, "nnodes"),
        ),
        workers=data,
    )


def _default_size(run: Run, settings: Settings, key: str) -> Value:
    """One, when the arguments leave the size out and no rank of the run contradicts it."""
    if any(s.speaker.tp or s.speaker.pp or s.speaker.rank for s in run):
        return Unknown(why=f"{key} is not printed", unit=COUNT)
    return settings.default(1, COUNT, key)


def _data_parallel(run: Run, settings: Settings) -> Value:
    """As asked for: the configuration of dense models says 1 from 0.14.1 on, whatever was asked
    (v1/engine/core.py:921). Engines that speak by their rank are counted as well."""
    said = (
        settings.asked(COUNT, "data_parallel_size")
        | settings.number(COUNT, "data_parallel_size")
        | settings.default(1, COUNT, "data_parallel_size")
    )
    ranked = [s for s in run if s.speaker.dp is not None]
    shown = max((s.speaker.dp or 0 for s in ranked), default=-1) + 1
    if isinstance(said, Known) and shown > said.number:
        lines = tuple(s.line for s in ranked if s.speaker.dp == shown - 1)[:1]
        return known(shown, COUNT, Origin.DERIVED, how="highest DP rank + 1", evidence=lines)
    return said


def _block_size(run: Run, settings: Settings) -> Value:
    """As the back-end or the state layers set it, else as asked for."""
    said: list[list[Sighting[Any]]] = [[*run.of(HybridSign)], [*run.of(BlockSize)]]
    for sightings in said:
        blocks = {s.event.block: s for s in sightings if s.event.block is not None}
        if len(blocks) == 1:
            return next(iter(blocks.values())).value("block")
    return settings.number(TOKENS, "block_size")


def _chunked_prefill(run: Run, settings: Settings) -> Value:
    value = settings.number(TOKENS, "max_num_batched_tokens")
    sighting = run.last_of(ChunkedPrefill)
    return value if sighting is None else sighting.value("batched") | value


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
    """The effective longest length: auto-fit's choice, what the capacity line is about, the
    configuration, the arguments."""
    value: Value = Unknown(why="no line tells the longest length", unit=TOKENS)
    for event, field in (
        (FittedLength, "length"),
        (KvSize, "request_tokens"),
        (MaxConcurrency, "request_tokens"),
        (ContextExceedsPool, "length"),
    ):
        sighting = run.last_of(event)
        if sighting is not None and getattr(sighting.event, field) is not None:
            value = value | sighting.value(field)
    asked = settings.number(TOKENS, "max_seq_len", "max_model_len")
    if isinstance(asked, Known) and asked.number > 0:
        value = value | asked
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
        self._blocks = self._plain_blocks()

    # A worker here is one engine with its own pool: a data-parallel rank.
    def workers(self, deployment: Deployment) -> tuple[WorkerFacts, ...]:
        count = deployment.workers
        named = set(range(int(count.number))) if isinstance(count, Known) else set()
        shown = {size.dp for size in self._sizes} | {r.rank.dp or 0 for r in self._readings}
        return tuple(self._worker(dp) for dp in sorted(named | shown))

    def _worker(self, dp: int) -> WorkerFacts:
        sizes = [size for size in self._sizes if size.dp == dp]
        tokens = [size.tokens for size in sizes if isinstance(size.tokens, Known)]
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
            tokens=least(tokens) if tokens else Unknown(why="no 'KV cache size' line", unit=TOKENS),
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
            blocks=self._possible_blocks(),
            unusable=self._null_block(),
            bytes_per_token=self._bytes_per_token(),
            bytes_per_full_token=Unknown(why="not a figure of vLLM", unit=BYTES_PER_TOKEN),
            sizing_mode=Unknown(why="not a setting of vLLM"),
            dtype=Unknown(why="vLLM does not print the resolved element type"),
        )

    def _token_use(self) -> tuple[TokenUse, str]:
        """What the printed tokens mean for other lengths; see KvSize."""
        longest = (
            "these tokens are concurrency · max_model_len: they hold at that length, shorter "
            "requests cost more than their share wherever a model keeps more than full-length KV"
        )
        derived = self._derived_tokens()
        if derived:
            return TokenUse.LONGEST_ONLY, longest
        if self._blocks:
            if derived is False:
                return TokenUse.ANY_LENGTH, ""
            return TokenUse.LONGEST_ONLY, f"the release is not known; {longest}"
        if self._run.has(ContextParallel):
            return TokenUse.UNCLEAR, "the tokens are of all context-parallel ranks together"
        if any(size.reported is not None for size in self._sizes):
            return TokenUse.UNCLEAR, "tokens and concurrency do not agree on one kind of KV cache"
        return TokenUse.UNCLEAR, "no concurrency line tells whether all layers keep full-length KV"

    def _derived_tokens(self) -> bool | None:
        """Whether tokens are derived from the concurrency, as from 0.21.0 on; None when the release
        is not known: builds from source call themselves 0.1.dev, builds towards 0.21 0.20.x."""
        if any(isinstance(s.event, KvSize) and s.event.concurrency for s in self._run.of(KvSize)):
            return True  # one line: 0.28.0 and later
        version = _version(self._run)
        if isinstance(version, Known):
            release = release_key(str(version.amount))[:2]
            built = re.search(r"dev|rc", str(version.amount)) is not None
            if release > (0, 1) and not (built and release == (0, 20)):
                return release >= _TOKENS_DERIVED_SINCE
        span = self._run.version_range
        if span is None:
            return None
        if release_key(span[0])[:2] >= _TOKENS_DERIVED_SINCE:
            return True
        return False if release_key(span[1])[:2] < _TOKENS_DERIVED_SINCE else None

    def _plain_blocks(self) -> list[int]:
        """The block sizes for which tokens are blocks · size and the concurrency follows from them.

        concurrency = blocks / ceil(longest / size) holds for models with one kind of KV cache alone
        (v1/core/kv_cache_utils.py of 0.9.2:740 … 0.20.0:872); two decimals are printed. Where the
        tokens are whole longest requests, state-space models with one block a request fit, too.
        """
        if self._run.has(HybridSign, ContextParallel):
            return []
        sizes = [s for s in self._sizes if isinstance(s.tokens, Known) and s.reported is not None]
        fitting = set(_BLOCK_SIZES) if sizes else set()
        for size in sizes:
            fitting &= set(_blocks_that_fit(size))
        return sorted(fitting)

    def _possible_blocks(self) -> tuple[int, ...]:
        """The block sizes that this cache may have: the printed one, the usual ones for a log that
        shows its start, and none when a hybrid model's own may be missing."""
        said = _block_size(self._run, self._settings)
        if isinstance(said, Known):
            return (int(said.number),)
        started = self._run.has(EngineConfig) and not self._run.has(HybridSign)
        return _BLOCK_SIZES if started else ()

    def _null_block(self) -> Value | None:
        """One block is never given to a request (v1/core/block_pool.py of 0.10.2:315)."""
        said = _block_size(self._run, self._settings)
        if isinstance(said, Known):
            return said
        largest = self._blocks[-1] if self._blocks else _BLOCK_SIZES[-1]
        half = Decimal(1 + largest) / 2
        return Known(
            amount=half,
            unit=TOKENS,
            error=half - 1,
            origin=Origin.ASSUMED,
            how="one block of an unprinted size",
        )

    def _bytes_per_token(self) -> Value:
        """budget / tokens, too high by less than one block: floor(budget / block bytes) blocks are
        made."""
        unit = BYTES_PER_TOKEN
        if self._derived_tokens() is not False:
            why = "the printed tokens are derived from the concurrency (or the release is unknown)"
            return Unknown(why=why, unit=unit)
        if not self._blocks:
            return Unknown(why="the model may keep more than one kind of KV cache", unit=unit)
        if self._run.has(KvReserved) or _overridden(self._run) is not None:
            return Unknown(why="the pool is not made of the whole printed budget", unit=unit)
        budgets = [r.kv_budget for r in self._readings if isinstance(r.kv_budget, Known)]
        said = [size.tokens for size in self._sizes if isinstance(size.tokens, Known)]
        if not budgets or not said:
            return Unknown(why="no KV budget or no tokens are printed", unit=unit)
        tokens = least(said).named("tokens")
        per_token = least(budgets).named("kv_budget").to(BYTES) / tokens
        if isinstance(per_token, Known) and isinstance(tokens, Known):
            slack = per_token.number * self._blocks[-1] / tokens.number
            per_token = attrs.evolve(per_token, error=per_token.error + slack)
        return per_token


def _sizes(run: Run) -> Iterator[_Size]:
    """Each size line with its concurrency, which up to 0.27 follows on a line of its own."""
    pending: dict[int, Sighting[Any]] = {}
    numbers = _engine_numbers(run)
    for sighting in run.of(KvSize, MaxConcurrency):
        dp = numbers[_engine_of(sighting)]
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


def _engine_of(sighting: Sighting[Any]) -> tuple[object, ...]:
    speaker = sighting.speaker
    return ("actor", *process_of(sighting)) if is_actor(sighting) else ("dp", speaker.dp or 0)


def _engine_numbers(run: Run) -> dict[tuple[object, ...], int]:
    """Data-parallel ranks of engines; actors print none and are numbered as they come."""
    engines = list(dict.fromkeys(_engine_of(s) for s in run.of(KvSize, MaxConcurrency)))
    numbers = {e: int(str(e[1])) for e in engines if e[0] == "dp"}
    free = (n for n in range(len(engines) + max(numbers.values(), default=0) + 1))
    unused = (n for n in free if n not in numbers.values())
    return numbers | {e: next(unused) for e in engines if e[0] == "actor"}


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
    if not tokens or tokens % size.reported.request_tokens == 0:
        return []
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


def _failure(run: Run) -> Failure | None:
    """The first message of the most telling kind: causes are repeated by every process that dies of
    them."""
    for event, kind in _KINDS:
        found = run.of(event)
        if found:
            return _failed(run, found[0], kind)
    sighting = crash(run, (EngineConfig, *_PROGRESS), _UP)
    return _failed(run, sighting, FailureKind.UNKNOWN) if sighting is not None else None


def _failed(run: Run, sighting: Sighting[Any], kind: FailureKind) -> Failure:
    served = False
    for earlier in run:
        if earlier is sighting:
            break
        served = served or isinstance(earlier.event, _UP)
    stage = Stage.SERVING if served else _reached(run) or Stage.STARTUP
    return Failure(
        kind=kind,
        stage=stage,
        rank=rank_of(sighting).text if sighting.speaker.label else None,
        message=sighting.text,
        evidence=(sighting.line,),
    )


def _overridden(run: Run) -> Sighting[BlocksOverridden] | None:
    """The override of the block count; graph profiling prints one of 0 blocks for itself."""
    real = [s for s in run.of(BlocksOverridden) if s.event.profiled > 0]
    return real[-1] if real else None


def _findings(run: Run) -> Iterator[Finding]:
    override = _overridden(run)
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
