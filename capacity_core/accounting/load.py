"""What a running server's lines showed, beside what its start-up lines planned."""

from __future__ import annotations

from capacity_core.api.ledger import Load
from capacity_core.api.report import LoadRow
from capacity_core.values import Known, Value


def load_row(load: Load | None, planned: Value) -> LoadRow | None:
    """The peaks with the planned limit of requests; None when no run-time line was seen."""
    if load is None:
        return None
    return LoadRow(
        peak_running=load.peak_running,
        peak_waiting=load.peak_waiting,
        peak_kv_usage=load.peak_kv_usage,
        last_kv_usage=load.last_kv_usage,
        retracted=load.retracted,
        preempted=load.preempted,
        peak_throughput=load.peak_throughput,
        planned=planned,
        summary=_summary(load, planned),
    )


def _summary(load: Load, planned: Value) -> str:
    plan = f"planned {planned.number:,}" if isinstance(planned, Known) else "no limit is known"
    seen = "no count of running requests is printed"
    if isinstance(load.peak_running, Known):
        seen = f"seen {load.peak_running.number:,} running"
    pool = ""
    if isinstance(load.peak_kv_usage, Known):
        pool = f", the pool used up to {100 * load.peak_kv_usage.number:.0f} %"
    return f"{plan}, {seen}{pool}"
