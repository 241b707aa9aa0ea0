"""What a saved /metrics page says of an engine's cache, which no log prints.

`vllm:cache_config_info` has every setting of the cache as a label (0.4.3 and later, then as
`vllm:cache_config`): among them the blocks and their size (v1/metrics/loggers.py). One sample for
each engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from capacity_core.api.arguments import plausible_number
from capacity_core.api.ledger import Finding, KvFacts, Ledger, Severity, TokenUse, WorkerFacts
from capacity_core.api.metrics import Metrics, MetricSample
from capacity_core.units import BYTES_PER_TOKEN, COUNT, TOKENS, Unit
from capacity_core.values import Known, Origin, Unknown, known
from capacity_vllm.admission import VllmAdmission
from capacity_vllm.candidates import Printed

_INFO = ("vllm:cache_config_info", "vllm:cache_config")
_UNSAID = (None, "None", "")


def with_metrics(ledger: Ledger, samples: Metrics) -> Ledger:
    """The ledger with blocks, block size and state mode of the page where its log has none.

    A page that speaks against the log is not used, and a finding says so.
    """
    infos = [sample for sample in samples if sample.name in _INFO and sample.value == 1]
    sizes = {size.number: size for info in infos if (size := _block(info)) is not None}
    told = next(iter(sizes.values())) if len(sizes) == 1 else None
    page_size = ledger.deployment.page_size
    if isinstance(page_size, Known) and told is not None and told.number != page_size.number:
        return _against(ledger, _other_size(told, page_size))
    page_size = told if isinstance(page_size, Unknown) and told is not None else page_size
    admission, kv = ledger.admission, ledger.kv
    if isinstance(admission, VllmAdmission):
        printed = admission.printed
        if isinstance(printed.block, Unknown) and told is not None:
            printed = attrs.evolve(printed, block=told)
        modes = {info.labels.get("mamba_cache_mode") for info in infos}
        mode = modes.pop() if len(modes) == 1 else None
        if mode not in _UNSAID and printed.mode is None:
            printed = attrs.evolve(printed, mode=mode)
        blocks = {w.dp: said for w in ledger.workers if (said := _blocks(w, infos)) is not None}
        for worker in ledger.workers:
            said = blocks.get(worker.dp)
            if said is None:
                continue
            logged = printed.blocks.get(worker.dp, said)
            if said.number != logged.number or not printed.could_make(int(said.number), worker):
                return _against(ledger, _other_blocks(worker, said))
            kv = _of_groups(kv, printed, worker, said)
        admission = attrs.evolve(
            admission, printed=attrs.evolve(printed, blocks=blocks | dict(printed.blocks))
        )
    deployment = attrs.evolve(ledger.deployment, page_size=page_size)
    return attrs.evolve(ledger, deployment=deployment, admission=admission, kv=kv)


def _of_groups(kv: KvFacts, printed: Printed, worker: WorkerFacts, blocks: Known) -> KvFacts:
    """Tokens that are fewer than the page's blocks hold are those of one of several groups."""
    block, tokens = printed.block, worker.tokens
    if (
        kv.token_use is not TokenUse.ANY_LENGTH
        or not isinstance(block, Known)
        or not isinstance(tokens, Known)
        or blocks.number * block.number == tokens.number
    ):
        return kv
    why = "the blocks on the metrics page are of several groups of layers"
    unknown = Unknown(why=why, unit=BYTES_PER_TOKEN, evidence=blocks.evidence)
    return attrs.evolve(kv, token_use=TokenUse.UNCLEAR, token_use_why=why, bytes_per_token=unknown)


def _against(ledger: Ledger, finding: Finding) -> Ledger:
    return attrs.evolve(ledger, findings=(*ledger.findings, finding))


def _block(info: MetricSample) -> Known | None:
    """The block as the attention layers have it, which a hybrid model raises."""
    return _number(info, "effective_attention_block_size", TOKENS) or _number(
        info, "block_size", TOKENS
    )


def _blocks(worker: WorkerFacts, infos: Sequence[MetricSample]) -> Known | None:
    """The blocks of a worker's engine; None where the page says none, or several."""
    own = [i for i in infos if i.labels.get("engine", str(worker.dp)) == str(worker.dp)]
    said = {n.number: n for info in own if (n := _number(info, "num_gpu_blocks", COUNT))}
    return next(iter(said.values())) if len(said) == 1 else None


def _other_size(told: Known, printed: Known) -> Finding:
    message = f"blocks of {told.number} tokens on the metrics page, of {printed.number} in the log"
    return _disagree(message, (*told.evidence, *printed.evidence))


def _other_blocks(worker: WorkerFacts, blocks: Known) -> Finding:
    message = (
        f"DP{worker.dp}: no model makes the printed tokens and concurrency of the "
        f"{blocks.number:,} blocks on the metrics page"
    )
    return _disagree(message, (*blocks.evidence, *worker.tokens.evidence))


def _disagree(message: str, evidence: tuple[str, ...]) -> Finding:
    return Finding(
        code="metrics-disagree",
        severity=Severity.WARNING,
        message=f"{message}: it is of another server or run, and is not used",
        evidence=evidence,
    )


def _number(info: MetricSample, label: str, unit: Unit) -> Known | None:
    number = plausible_number(info.labels.get(label), TOKENS)  # blocks may be many more than ranks
    if number is None or number < 1 or number != number.to_integral_value():
        return None
    how = f"{label} of {info.name}"
    return known(number, unit, Origin.PRINTED, how=how, evidence=(info.id,))
