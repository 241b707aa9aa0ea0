"""The framework-neutral facts of one run: what an extractor hands over and everything behind it
works on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import Enum

import attrs

from capacity_core.api.admission import Admission
from capacity_core.api.kv_layouts import Keeps
from capacity_core.units import GIB, RATIO, REQUESTS, TOKENS, TOKENS_PER_SECOND
from capacity_core.values import Unknown, Value, least, total


class Stage(str, Enum):
    """A checkpoint of a server's start, in order."""

    STARTUP = "startup"
    BEFORE_WEIGHTS = "before_weights"
    AFTER_WEIGHTS = "after_weights"
    AFTER_POOLS = "after_pools"
    BEFORE_GRAPHS = "before_graphs"
    AFTER_GRAPHS = "after_graphs"
    READY = "ready"
    SERVING = "serving"  # only as the stage of a failure


class Role(str, Enum):
    """Whether something belongs to the served model or to its draft model."""

    TARGET = "target"
    DRAFT = "draft"


class Category(str, Enum):
    """What holds memory on a device; `ACTIVATION` is set aside for peaks, beside the others."""

    FRAMEWORK = "framework"
    WEIGHTS = "weights"
    KV_POOL = "kv_pool"
    STATE_POOL = "state_pool"
    CUDA_GRAPH = "cuda_graph"
    ACTIVATION = "activation"


HELD = (
    Category.FRAMEWORK,
    Category.WEIGHTS,
    Category.KV_POOL,
    Category.STATE_POOL,
    Category.CUDA_GRAPH,
)
"""The categories that, with `other`, add up to what is used."""


class Status(str, Enum):
    """How a run ended, as far as its log shows."""

    READY = "ready"
    INCOMPLETE = "incomplete"
    FAILED = "failed"


class FailureKind(str, Enum):
    """Why a run failed. Which kind of memory ran out decides, not the words `out of memory`."""

    WEIGHTS_OUT_OF_MEMORY = "weights_out_of_memory"
    PROFILING_OUT_OF_MEMORY = "profiling_out_of_memory"  # after weights, before the pool is made
    NO_KV_MEMORY = "no_kv_memory"
    CONTEXT_EXCEEDS_KV_POOL = "context_exceeds_kv_pool"
    GRAPH_CAPTURE_OUT_OF_MEMORY = "graph_capture_out_of_memory"
    RUNTIME_OUT_OF_MEMORY = "runtime_out_of_memory"
    DEVICE_MEMORY_TAKEN = "device_memory_taken"  # by others, before the server began
    HOST_MEMORY = "host_memory"
    # Slots of a pool, not bytes of a device.
    TOKEN_POOL_EXHAUSTED = "token_pool_exhausted"  # noqa: S105  # a token of text, no password
    NOT_MEMORY = "not_memory"
    UNKNOWN = "unknown"


class Severity(str, Enum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_UNSAID_GIB = Unknown(why="the log does not say it", unit=GIB)
_UNSAID = Unknown(why="the log does not say it")
_UNSAID_TOKENS = Unknown(why="the log does not say it", unit=TOKENS)
_UNSAID_REQUESTS = Unknown(why="the log does not say it", unit=REQUESTS)
_UNSAID_RATIO = Unknown(why="the log does not say it", unit=RATIO)
_UNSAID_SPEED = Unknown(why="the log does not say it", unit=TOKENS_PER_SECOND)


@attrs.frozen(kw_only=True)
class Finding:
    """A contradiction, a trap met, or a thing that a careful engineer would point at."""

    code: str
    severity: Severity
    message: str
    evidence: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Part:
    """A piece behind a category of one rank: one model's weights, one pool, one graph capture
    (GiB). `since` is the first stage that it is held at, where that is not its category's own."""

    category: Category
    role: Role
    label: str
    size: Value
    tokens: Value | None = None
    since: Stage | None = None


@attrs.frozen(kw_only=True)
class Checkpoint:
    """Free device memory of a rank at a stage (GiB), as its process read it."""

    stage: Stage
    role: Role
    free: Value


@attrs.frozen(kw_only=True)
class RankId:
    """A rank of a deployment. Coordinates are None only for a worker that is told apart by its pid
    (and node) alone."""

    dp: int | None = 0
    pp: int | None = 0
    tp: int | None = 0
    pid: int | None = None
    node: str | None = None

    @property
    def text(self) -> str:
        if self.tp is None:
            return f"pid {self.pid}" + (f" on {self.node}" if self.node else "")
        return f"DP{self.dp}/PP{self.pp}/TP{self.tp}"

    @property
    def order(self) -> tuple[bool, int, int, int, int, str]:
        here = (self.dp or 0, self.pp or 0, self.tp or 0, self.pid or 0, self.node or "")
        return (self.tp is None, *here)


@attrs.frozen(kw_only=True)
class HostPool:
    """A pool in the host's memory (GiB), which is no part of the device's account."""

    label: str
    size: Value
    tokens: Value | None = None


@attrs.frozen(kw_only=True)
class RankFacts:
    """What the log says of one rank.

    `memory` holds the categories that the extractor could account for (GiB, known or unknown with
    the reason);
    `inside` names, for a category without a figure of its own, the one that contains it;
    `device_total` is a printed total; the timeline is in the order of the log.
    """

    id: RankId
    label: str
    memory: Mapping[Category, Value]
    parts: tuple[Part, ...] = ()
    timeline: tuple[Checkpoint, ...] = ()
    inside: Mapping[Category, Category] = attrs.field(factory=dict)
    notes: Mapping[Category, str] = attrs.field(factory=dict)
    device_total: Value = _UNSAID_GIB
    host_pools: tuple[HostPool, ...] = ()

    def free(self, stage: Stage, role: Role = Role.TARGET) -> Value:
        """Free memory at a stage, unknown when this rank printed none."""
        for checkpoint in self.timeline:
            if checkpoint.stage is stage and checkpoint.role is role:
                return checkpoint.free
        return Unknown(why=f"{self.label} prints no free memory at {stage.value}", unit=GIB)


@attrs.frozen(kw_only=True)
class Pool:
    """One KV pool of a worker: its tokens, and its size on one rank (GiB)."""

    role: Role
    label: str
    tokens: Value
    size: Value
    k_size: Value | None = None
    v_size: Value | None = None


@attrs.frozen(kw_only=True)
class Reported:
    """A concurrency that the engine itself printed, and the request length it holds for."""

    request_tokens: int
    value: Value


def least_reported(statements: Iterable[Reported | None]) -> Reported | None:
    """The statement with the smallest concurrency: what holds for all of them, and a bound while
    one of them is missing."""
    given = list(statements)
    said = [statement for statement in given if statement is not None]
    if not said:
        return None
    missing = Unknown(why="not every statement of the engine is in the log", unit=RATIO)
    values = [statement.value for statement in said]
    value = least(values if len(said) == len(given) else [*values, missing])
    low = min(said, key=lambda statement: statement.value.interval[1] or Decimal("inf"))
    return low if value == low.value else attrs.evolve(low, value=value)


@attrs.frozen(kw_only=True)
class WorkerFacts:
    """One scheduler with its own KV pool (a DP rank).

    `tokens` is what it can hold; `size` and `budget` are GiB on one GPU.
    """

    dp: int
    tokens: Value = _UNSAID_TOKENS
    request_limit: Value = _UNSAID_REQUESTS
    size: Value = _UNSAID_GIB
    budget: Value = _UNSAID_GIB
    state_slots: Value | None = None
    pools: tuple[Pool, ...] = ()
    reported: Reported | None = None


class TokenUse(str, Enum):
    """What a worker's token count means for requests of another length than the longest."""

    ANY_LENGTH = "any_length"  # every token costs the same: tokens // length
    LONGEST_ONLY = (
        "longest_only"  # derived for the context length; shorter requests: an upper limit
    )
    UPPER_LIMIT = "upper_limit"  # other pools bind as well: an upper limit at every length
    UNCLEAR = "unclear"  # no limit at any length follows from it


@attrs.frozen(kw_only=True)
class KvFacts:
    """What the log says of the KV cache as a whole.

    `blocks` are the block sizes (tokens) that the cache may be made of, on which the bound of a
    shorter request rests: one when it is printed, none when nothing limits it. `share_bounds` says
    whether a shorter request surely costs its share of the longest one's. `unusable` is what the
    pool counts but no request can have (tokens). `window_share` is the tokens of a window's pool
    over those of the full one, where it was asked for. `keeps_all` says that the log shows every
    layer keeping every token, whatever windows it has. `assumes` is what the use of the tokens
    rests on.

    `if_plain` is what a token costs if every layer keeps every token, where the log does not say
    that. `kinds` are the costs of kinds of caches that have pools of their own: B/token, of states
    B/request.
    """

    token_use: TokenUse = TokenUse.ANY_LENGTH
    token_use_why: str = ""
    blocks: tuple[int, ...] = ()
    share_bounds: bool = True
    unusable: Value | None = None
    bytes_per_token: Value = _UNSAID
    bytes_per_full_token: Value = _UNSAID
    sizing_mode: Value = _UNSAID
    window_share: Value = _UNSAID_RATIO
    keeps_all: bool = False
    dtype: Value = _UNSAID
    assumes: tuple[str, ...] = ()
    if_plain: Value = _UNSAID
    kinds: Mapping[Keeps, Value] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Parallel:
    """How a deployment is spread; each a count without unit of its own.

    `attention_tensor` is the tensor-parallel size that divides KV heads.
    """

    tensor: Value = _UNSAID
    pipeline: Value = _UNSAID
    data: Value = _UNSAID
    expert: Value = _UNSAID
    attention_data: Value = _UNSAID
    attention_tensor: Value = _UNSAID
    context: Value = _UNSAID
    nodes: Value = _UNSAID


@attrs.frozen(kw_only=True)
class Deployment:
    """What was started, and how. `device` is its kind, as in cuda or npu; `state_dtype` the type of
    recurrent states where one was asked for."""

    version: Value = _UNSAID
    model: Value = _UNSAID
    quantization: Value = _UNSAID
    kv_cache_dtype: Value = _UNSAID
    kv_cache_dtype_resolved: Value = _UNSAID
    mem_fraction_static: Value = _UNSAID
    gpu_memory_utilization: Value = _UNSAID
    context_length: Value = _UNSAID_TOKENS
    page_size: Value = _UNSAID_TOKENS
    chunked_prefill_size: Value = _UNSAID_TOKENS
    max_prefill_tokens: Value = _UNSAID_TOKENS
    speculative: Value = _UNSAID
    disaggregation: Value = _UNSAID
    parallel: Parallel = Parallel()
    workers: Value = _UNSAID
    gpu_name: Value = _UNSAID
    device: Value = _UNSAID
    state_dtype: Value = _UNSAID


@attrs.frozen(kw_only=True)
class Failure:
    """Why a run failed: its kind, the stage it had reached, the engine's own words.

    `needed`, `available` and `total` are GiB as the message has them, `short` is the first less
    the second.
    `cures` change the term that ran out, `harmful` are changes that make it worse.
    """

    kind: FailureKind
    stage: Stage
    rank: str | None
    message: str
    evidence: tuple[str, ...]
    needed: Value = _UNSAID_GIB
    available: Value = _UNSAID_GIB
    total: Value = _UNSAID_GIB
    short: Value = attrs.field(init=False)
    cures: tuple[str, ...] = ()
    harmful: tuple[str, ...] = ()

    @short.default
    def _short(self) -> Value:
        return self.needed.named("needed") - self.available.named("available")


@attrs.frozen(kw_only=True)
class Load:
    """What a running server's lines showed at their peaks: of the scheduler that showed most.

    `retracted` and `preempted` are the sums of all lines; a figure that no line prints is unknown.
    """

    peak_running: Value = _UNSAID_REQUESTS
    peak_waiting: Value = _UNSAID_REQUESTS
    peak_kv_usage: Value = _UNSAID_RATIO
    last_kv_usage: Value = _UNSAID_RATIO
    retracted: Value = _UNSAID_REQUESTS
    preempted: Value = _UNSAID_REQUESTS
    peak_throughput: Value = _UNSAID_SPEED


@attrs.frozen(kw_only=True)
class Levers:
    """The framework's own names for what can be tuned, where the log gives what is needed to judge
    it.

    `fraction_base` is the memory (GiB) of which the fraction is taken; None when a lever does not
    exist. `request_limit_shared`: the flag is a number for all workers, who divide it; None
    where the log does not say.
    """

    fraction_flag: str | None = None
    fraction: Value | None = None
    fraction_base: Value | None = None
    request_limit_flag: str | None = None
    request_limit_shared: bool | None = False
    kv_dtype_flag: str | None = None
    split_flag: str | None = None


@attrs.frozen(kw_only=True)
class Ledger:
    """Everything one run says, in the words every framework shares."""

    framework: str
    title: str
    status: Status
    reached: Stage | None
    deployment: Deployment
    ranks: tuple[RankFacts, ...] = ()
    workers: tuple[WorkerFacts, ...] = ()
    kv: KvFacts = KvFacts()
    failure: Failure | None = None
    load: Load | None = None
    findings: tuple[Finding, ...] = ()
    levers: Levers = Levers()
    admission: Admission | None = None
    version_range: tuple[str, str] | None = None

    @property
    def says_memory(self) -> bool:
        """Whether the run has a memory figure or a failure: what makes it worth reporting."""
        figures = any(rank.parts or rank.timeline for rank in self.ranks)
        return (
            figures
            or self.failure is not None
            or any(not isinstance(worker.tokens, Unknown) for worker in self.workers)
        )


def sum_of(parts: Iterable[Part], category: Category, why: str) -> Value:
    """The parts of a category added up; unknown with `why` when there is none."""
    sizes = [part.size for part in parts if part.category is category]
    return (
        total(sizes, category.value) if sizes else Unknown(why=why, unit=GIB, name=category.value)
    )
