"""What a saved /metrics page says of a scheduler's pools (0.5.12 and later; before, only use)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import attrs

from capacity_core.api.ledger import Ledger, WorkerFacts
from capacity_core.api.metrics import Metrics
from capacity_core.units import TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, known
from capacity_sglang.admission import SglangAdmission


def with_metrics(ledger: Ledger, samples: Metrics) -> Ledger:
    """The ledger with page size, context length and the pools' tokens where its log has none.

    Gauges are per scheduler; the least of all counts for a worker that the log does not size.
    """
    told = {
        name: _least(samples, f"sglang:{name}")
        for name in ("page_size", "context_len", "max_total_num_tokens", "max_total_num_tokens_swa")
    }
    if all(value is None for value in told.values()):
        return ledger
    deployment = attrs.evolve(
        ledger.deployment,
        page_size=_known(ledger.deployment.page_size, told["page_size"]),
        context_length=_known(ledger.deployment.context_length, told["context_len"]),
    )
    admission = ledger.admission
    if isinstance(admission, SglangAdmission):
        admission = attrs.evolve(
            admission,
            page=deployment.page_size,
            window_tokens=_known(admission.window_tokens, told["max_total_num_tokens_swa"]),
            windows=admission.windows or told["max_total_num_tokens_swa"] is not None,
        )
    return attrs.evolve(
        ledger,
        deployment=deployment,
        admission=admission,
        workers=tuple(_worker(worker, told) for worker in ledger.workers),
    )


def _worker(worker: WorkerFacts, told: Mapping[str, Known | None]) -> WorkerFacts:
    return attrs.evolve(worker, tokens=_known(worker.tokens, told["max_total_num_tokens"]))


def _known(value: Value, told: Known | None) -> Value:
    return told if isinstance(value, Unknown) and told is not None else value


def _least(samples: Metrics, name: str) -> Known | None:
    said = [sample for sample in samples if sample.name == name and sample.value > 0]
    if not said:
        return None
    least = min(said, key=lambda sample: sample.value)
    return known(Decimal(int(least.value)), TOKENS, Origin.PRINTED, how=name, evidence=(least.id,))
