"""What a saved /metrics page says of an engine's cache, which no log prints.

`vllm:cache_config_info` has every setting of the cache as a label (0.4.3 and later, then as
`vllm:cache_config`): among them the blocks and their size (v1/metrics/loggers.py).
"""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api.ledger import Ledger
from capacity_core.api.metrics import Metrics, MetricSample
from capacity_core.units import COUNT, TOKENS, Unit
from capacity_core.values import Known, Origin, known
from capacity_vllm.admission import VllmAdmission

_INFO = ("vllm:cache_config_info", "vllm:cache_config")
_PADDED = ("None", "")


def with_metrics(ledger: Ledger, samples: Metrics) -> Ledger:
    """The ledger with blocks, block size and state mode of the page, and with its tokens where the
    log has none. Engines of one deployment share their settings; the least blocks count."""
    infos = [sample for sample in samples if sample.name in _INFO]
    if not infos:
        return ledger
    blocks = [n for info in infos if (n := _number(info, "num_gpu_blocks", COUNT)) is not None]
    sizes = {n.number: n for info in infos if (n := _block(info)) is not None}
    modes = {info.labels.get("mamba_cache_mode") for info in infos}
    admission = ledger.admission
    deployment = ledger.deployment
    if len(sizes) == 1:
        deployment = attrs.evolve(deployment, page_size=next(iter(sizes.values())))
    if isinstance(admission, VllmAdmission):
        if blocks:
            fewest = min(blocks, key=lambda value: value.number)
            admission = attrs.evolve(admission, blocks=fewest)
        if len(sizes) == 1:
            admission = attrs.evolve(admission, block=next(iter(sizes.values())))
        mode = modes.pop() if len(modes) == 1 else None
        if mode not in (None, *_PADDED) and admission.mode is None:
            admission = attrs.evolve(admission, mode=mode)
    return attrs.evolve(ledger, deployment=deployment, admission=admission)


def _block(info: MetricSample) -> Known | None:
    """The block as the attention layers have it, which a hybrid model raises."""
    return _number(info, "effective_attention_block_size", TOKENS) or _number(
        info, "block_size", TOKENS
    )


def _number(info: MetricSample, label: str, unit: Unit) -> Known | None:
    text = info.labels.get(label, "")
    if not text.isdigit():
        return None
    how = f"{label} of {info.name}"
    return known(Decimal(text), unit, Origin.PRINTED, how=how, evidence=(info.id,))
