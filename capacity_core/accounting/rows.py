"""Rows of the report that put a run's facts side by side: the deployment, the KV pool, evidence."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from capacity_core.accounting.concurrency import over_workers
from capacity_core.api.extractors import Run
from capacity_core.api.ledger import Ledger, WorkerFacts
from capacity_core.api.matchers import printed_fields
from capacity_core.api.report import (
    DeploymentRow,
    EvidenceRow,
    GpuRow,
    KvPoolRow,
    LayoutRow,
    WorkerRow,
)
from capacity_core.units import GIB, TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, least, text


def deployment_row(ledger: Ledger, gpu: GpuRow) -> DeploymentRow:
    d = ledger.deployment
    return DeploymentRow(
        framework=text(ledger.framework, Origin.DERIVED, how="the events of its lines"),
        framework_version=d.version,
        model=d.model,
        quantization=d.quantization,
        kv_cache_dtype=d.kv_cache_dtype,
        kv_cache_dtype_resolved=d.kv_cache_dtype_resolved,
        mem_fraction_static=d.mem_fraction_static,
        gpu_memory_utilization=d.gpu_memory_utilization,
        context_length=d.context_length,
        page_size=d.page_size,
        chunked_prefill_size=d.chunked_prefill_size,
        max_prefill_tokens=d.max_prefill_tokens,
        speculative=d.speculative,
        disaggregation=d.disaggregation,
        parallel=d.parallel,
        workers=d.workers,
        gpu=gpu,
    )


def kv_pool_row(ledger: Ledger, layout: LayoutRow | None) -> KvPoolRow:
    workers = ledger.workers
    nothing = Unknown(why="no scheduler's pool is shown", unit=TOKENS)
    tokens = [worker.tokens for worker in workers]
    budgets = [w.budget for w in workers if isinstance(w.budget, Known) or w.budget.at_most]
    smallest = min(workers, key=_tokens_known, default=WorkerFacts(dp=0))
    return KvPoolRow(
        tokens=least(tokens) if tokens else nothing,
        deployment_tokens=over_workers(tokens, ledger.deployment.workers, "all workers")
        if tokens
        else nothing,
        size=_least_of([worker.size for worker in workers], "no KV pool size is printed"),
        # Printed by some workers alone where all have the same.
        budget=least(budgets) if budgets else Unknown(why="no KV budget is printed", unit=GIB),
        bytes_per_token=ledger.kv.bytes_per_token,
        bytes_per_full_token=ledger.kv.bytes_per_full_token,
        sizing_mode=ledger.kv.sizing_mode,
        dtype=ledger.kv.dtype,
        workers=tuple(
            WorkerRow(
                dp=worker.dp,
                tokens=worker.tokens,
                request_limit=worker.request_limit,
                size=worker.size,
            )
            for worker in workers
        ),
        pools=smallest.pools,
        state_slots=smallest.state_slots,
        layout=layout,
    )


def _tokens_known(worker: WorkerFacts) -> tuple[bool, bool, Decimal]:
    """Orders workers: the one that decides the tokens first, those that say nothing last."""
    tokens = worker.tokens
    number = tokens.number if isinstance(tokens, Known) else Decimal("inf")
    return not isinstance(tokens, Known), not worker.pools, number


def _least_of(sizes: Sequence[Value], why: str) -> Value:
    """What every worker has; at most the least one shown while others show none."""
    if any(size.interval[1] is not None for size in sizes if size.unit is not None):
        return least(sizes)
    return Unknown(why=why, unit=GIB)


def evidence_rows(run: Run) -> list[EvidenceRow]:
    return [
        EvidenceRow(
            id=sighting.line,
            rank=sighting.speaker.label or None,
            matcher=sighting.matcher,
            fields=printed_fields(sighting.event),
            text=sighting.text,
        )
        for sighting in run
    ]
