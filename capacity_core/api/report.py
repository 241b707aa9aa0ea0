"""The report: one frozen object with the names of the contract `capacity-report/1`; every renderer
is a view of it.

Attribute names are the JSON names. A field that is `ABSENT` is left out; `None` is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import attrs

from capacity_core.api.kv_layouts import Keeps
from capacity_core.api.ledger import (
    Category,
    Deployment,
    Failure,
    Finding,
    HostPool,
    KvFacts,
    Parallel,
    Pool,
    Reported,
    Role,
    Severity,
    Stage,
    Status,
)
from capacity_core.values import Value

SCHEMA = "capacity-report/1"


class Absent(Enum):
    """A key that a report does not have."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


@attrs.frozen(kw_only=True)
class PluginRow:
    """One plugin that was found: what it is, and whether it took part."""

    name: str
    distribution: str | None
    version: str | None
    module: str
    status: str  # active, disabled or failed
    error: str | None = None
    hooks: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class InputRow:
    """One file that was read."""

    id: str
    kind: str  # log, smi, config or metrics
    path: str
    bytes: int | None
    sha256: str | None = None


@attrs.frozen(kw_only=True)
class RunRow:
    """One server start of the logs, from its first to its last recognised line."""

    index: int
    first: str
    last: str
    inputs: tuple[str, ...]
    framework: str
    status: Status


@attrs.frozen(kw_only=True)
class GpuRow:
    """Which device it is, as far as known: a catalogue key, a printed name, what else fits."""

    key: Value
    name: Value
    candidates: tuple[str, ...]
    total: Value
    nominal_gb: Value


@attrs.frozen(kw_only=True)
class DeploymentRow:
    """What was started, and how; every leaf a value."""

    framework: Value
    framework_version: Value
    model: Value
    quantization: Value
    kv_cache_dtype: Value
    kv_cache_dtype_resolved: Value
    mem_fraction_static: Value
    gpu_memory_utilization: Value
    context_length: Value
    page_size: Value
    chunked_prefill_size: Value
    max_prefill_tokens: Value
    speculative: Value
    disaggregation: Value
    parallel: Parallel
    workers: Value
    gpu: GpuRow


@attrs.frozen(kw_only=True)
class VersionRange:
    """A version that no line prints, between the releases that the wordings leave."""

    range: tuple[str, str] | None
    why: str


@attrs.frozen(kw_only=True)
class Outcome:
    """How the run ended; `stage` is the last one reached."""

    status: Status
    stage: Stage | None
    failure: Failure | None


@attrs.frozen(kw_only=True)
class CategoryRow:
    """One category of a rank's memory: its size, and its share of `share_of`."""

    value: Value
    share: float | None = None
    inside: Category | None = None
    note: str | None = None


@attrs.frozen(kw_only=True)
class PartRow:
    category: Category
    role: Role
    label: str
    size: Value
    tokens: Value | Absent = ABSENT


@attrs.frozen(kw_only=True)
class CheckpointRow:
    stage: Stage
    free: Value
    role: Role | Absent = ABSENT


@attrs.frozen(kw_only=True)
class StepRow:
    """What happened to free memory between two readings of one rank (GiB).

    `change` is free before minus free after: below zero where memory came back. `explained` is what
    lines say of the `owners`' part in it, `unattributed` the rest.
    The changes of all steps add up to
    the first reading minus the last one.
    """

    since: str
    until: str
    change: Value
    owners: tuple[Category, ...]
    explained: Value
    unattributed: Value


@attrs.frozen(kw_only=True)
class DeviceRow:
    """What a device tool measured for this rank (MiB)."""

    used: Value
    free: Value
    total: Value
    reserved: Value


@attrs.frozen(kw_only=True)
class RankRow:
    """One rank: its memory by category (GiB), the parts behind them, free memory by stage."""

    id: str
    dp: int | None
    pp: int | None
    tp: int | None
    label: str
    memory: Mapping[str, CategoryRow]
    share_of: str | None
    parts: tuple[PartRow, ...]
    timeline: tuple[CheckpointRow, ...]
    steps: tuple[StepRow, ...]
    device: DeviceRow | None
    host_pools: tuple[HostPool, ...]


@attrs.frozen(kw_only=True)
class WorkerRow:
    """One scheduler with its own KV pool."""

    dp: int
    tokens: Value
    request_limit: Value
    size: Value


@attrs.frozen(kw_only=True)
class TermRow:
    """One kind of cache: what a token or a request pays for it on one device, where the engine
    computes it, and the steps that led there."""

    name: str
    layers: int | None
    keeps: Keeps
    bytes_per_token: Value
    window_tokens: Value | None
    fixed_bytes_per_request: Value | None
    formula: str | None
    source: str | None
    steps: tuple[str, ...] = ()
    slot: Value | Absent = ABSENT


@attrs.frozen(kw_only=True)
class LayoutRow:
    """What the model's configuration says of its KV cache on one device.

    `bytes_per_token` is what each token of a request costs, `window_bytes_per_token` what a token
    costs while it is inside a window of `window_tokens`; `pool_bytes_per_token` is the engine's own
    divisor where it is neither. `dtype` is the stored type that the figures are of.
    """

    name: str
    family: str | None
    source: str | None
    formula: str | None
    dtype: Value
    terms: tuple[TermRow, ...]
    bytes_per_token: Value
    window_bytes_per_token: Value
    window_tokens: Value
    fixed_bytes_per_request: Value
    replication: Value
    pool_bytes_per_token: Value


@attrs.frozen(kw_only=True)
class KvPoolRow:
    tokens: Value
    deployment_tokens: Value
    size: Value
    budget: Value
    bytes_per_token: Value
    bytes_per_full_token: Value
    sizing_mode: Value
    dtype: Value
    workers: tuple[WorkerRow, ...]
    pools: tuple[Pool, ...]
    state_slots: Value | None
    layout: LayoutRow | None


@attrs.frozen(kw_only=True)
class ConcurrencyRow:
    """How many requests of one length fit, without one being preempted: by the KV pools, by slots
    of states, by the request limit, and at all.

    `admitted_at_once` is how many prompts are admitted at once, which may be more: their output
    comes on top. It is given where prompt and output are.
    """

    request_tokens: int
    prompt_tokens: int | Absent
    output_tokens: int | Absent
    token_limit: Value
    state_limit: Value | Absent
    request_limit: Value
    admitted_at_once: Value | Absent
    max_concurrent: Value
    bound_by: str | None
    deployment_max_concurrent: Value


@attrs.frozen(kw_only=True)
class Concurrency:
    workers: Value
    request_limit: Value
    reported: Reported | None
    rows: tuple[ConcurrencyRow, ...]


@attrs.frozen(kw_only=True)
class LoadRow:
    """What a running server's lines showed at their peaks, beside the limit that was planned."""

    peak_running: Value
    peak_waiting: Value
    peak_kv_usage: Value
    last_kv_usage: Value
    retracted: Value
    preempted: Value
    peak_throughput: Value
    planned: Value
    summary: str


UNMATCHED_KEPT = 200
"""How many lines that nobody knew a report lists."""


@attrs.frozen(kw_only=True)
class UnmatchedRow:
    """A line that speaks of memory, and that no matcher knows."""

    id: str
    text: str


@attrs.frozen(kw_only=True)
class Advice:
    """A change worth trying: what to set, what it gives, what it costs."""

    code: str
    severity: Severity
    message: str
    change: str
    effect: Value
    cost: str
    evidence: tuple[str, ...]


@attrs.frozen(kw_only=True)
class EvidenceRow:
    """One recognised line."""

    id: str
    rank: str | None
    matcher: str
    fields: Mapping[str, str]
    text: str


VIEW_ONLY = frozenset({"title", "shown_rank", "asked_rank", "version_range"})
"""Fields of a report that the text alone shows; JSON leaves them out."""


@attrs.frozen(kw_only=True)
class Report:
    """Everything that `capacity analyze` says."""

    schema: str
    tool: str
    title: str
    plugins: tuple[PluginRow, ...]
    inputs: tuple[InputRow, ...]
    runs: tuple[RunRow, ...]
    selected_run: int
    deployment: DeploymentRow
    version_range: VersionRange
    outcome: Outcome
    ranks: tuple[RankRow, ...]
    shown_rank: str | None
    asked_rank: bool
    kv_pool: KvPoolRow
    concurrency: Concurrency
    findings: tuple[Finding, ...]
    advice: tuple[Advice, ...]
    load: LoadRow | None
    evidence: tuple[EvidenceRow, ...]
    evidence_omitted: Mapping[str, int]
    unmatched: tuple[UnmatchedRow, ...] | Absent = ABSENT


__all__ = [
    "ABSENT",
    "SCHEMA",
    "Absent",
    "Advice",
    "CategoryRow",
    "CheckpointRow",
    "Concurrency",
    "ConcurrencyRow",
    "Deployment",
    "DeploymentRow",
    "DeviceRow",
    "EvidenceRow",
    "GpuRow",
    "InputRow",
    "KvFacts",
    "KvPoolRow",
    "LayoutRow",
    "LoadRow",
    "Outcome",
    "PartRow",
    "PluginRow",
    "RankRow",
    "Report",
    "RunRow",
    "StepRow",
    "TermRow",
    "UnmatchedRow",
    "VersionRange",
    "WorkerRow",
]
