"""What a saved /metrics page says of a scheduler's pools (0.5.12 and later; before, only use)."""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api.arguments import plausible_number
from capacity_core.api.ledger import Finding, Ledger, Severity, TokenUse
from capacity_core.api.metrics import Metrics
from capacity_core.units import TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, known
from capacity_sglang.admission import SglangAdmission


def with_metrics(ledger: Ledger, samples: Metrics) -> Ledger:
    """The ledger with page size, context length and the pools' tokens where its log has none.

    What the page says against the log is not used, and a finding says so: it is of another server,
    or of another of its runs.
    """
    findings: list[Finding] = []

    def told(value: Value, name: str, label: str, dp: int | None = None) -> Value:
        said = _least(samples, name, dp)
        if said is None or isinstance(value, Unknown):
            return said or value
        if said.number != value.number:
            findings.append(_disagree(label, said, value))
        return value

    deployment = attrs.evolve(
        ledger.deployment,
        page_size=told(ledger.deployment.page_size, "page_size", "page size"),
        context_length=told(ledger.deployment.context_length, "context_len", "context length"),
    )
    workers = [
        attrs.evolve(w, tokens=told(w.tokens, "max_total_num_tokens", f"DP{w.dp}: tokens", w.dp))
        for w in ledger.workers
    ]
    admission, kv = ledger.admission, ledger.kv
    if isinstance(admission, SglangAdmission):
        window = told(admission.window_tokens, "max_total_num_tokens_swa", "tokens of windows")
        admission = attrs.evolve(admission, page=deployment.page_size, window_tokens=window)
        if isinstance(window, Known) and kv.token_use is TokenUse.ANY_LENGTH:
            why = "the sliding-window pool, which the metrics page shows, binds as well"
            kv = attrs.evolve(kv, token_use=TokenUse.UPPER_LIMIT, token_use_why=why)
    return attrs.evolve(
        ledger,
        deployment=deployment,
        kv=kv,
        admission=admission,
        workers=tuple(workers),
        findings=(*ledger.findings, *findings),
    )


def _least(samples: Metrics, name: str, dp: int | None) -> Known | None:
    """The least that the schedulers of a data-parallel rank show: their pools are of one size."""
    said = [
        (number, sample)
        for sample in samples
        if sample.name == f"sglang:{name}"
        and (number := plausible_number(str(sample.value), TOKENS)) is not None
        and number >= 1
        and (dp is None or sample.labels.get("dp_rank", str(dp)) == str(dp))
    ]
    if not said:
        return None
    number, sample = min(said, key=lambda pair: pair[0])
    return known(
        Decimal(int(number)), TOKENS, Origin.PRINTED, how=sample.name, evidence=(sample.id,)
    )


def _disagree(what: str, told: Known, printed: Known) -> Finding:
    return Finding(
        code="metrics-disagree",
        severity=Severity.WARNING,
        message=(
            f"{what}: {told.number:,} on the metrics page, {printed.number:,} in the log: the page "
            "is of another server or run, and the log counts"
        ),
        evidence=(*told.evidence, *printed.evidence),
    )
