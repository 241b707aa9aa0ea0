"""Contradictions between figures that the inputs give of one thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from capacity_core.accounting.breakdown import negative_beyond_error
from capacity_core.api.ledger import Finding, Ledger, Severity
from capacity_core.api.report import RankRow
from capacity_core.units import GIB
from capacity_core.values import Known

_NEVER_NEGATIVE = ("framework", "weights", "kv_pool", "state_pool")


def contradictions(ledger: Ledger, ranks: Sequence[RankRow]) -> Iterator[Finding]:
    """What cannot all be true, one finding for each rank or worker concerned."""
    for rank in ranks:
        yield from _impossible_parts(rank)
    for worker in ledger.workers:
        size, budget = worker.size, worker.budget
        if not isinstance(size, Known) or not isinstance(budget, Known) or budget.number <= 0:
            continue
        apart = abs(size.to(GIB).number - budget.to(GIB).number)
        # Padding pages and rounding to whole pages stay below this.
        if apart > size.error + budget.error and apart > budget.number / 20:
            yield Finding(
                code="pool-differs-from-budget",
                severity=Severity.WARNING,
                message=(
                    f"DP{worker.dp}: the KV pool takes {size.number:.2f} GiB, "
                    f"the budget before allocation was {budget.number:.2f} GiB"
                ),
                evidence=(*size.evidence, *budget.evidence),
            )


def _impossible_parts(rank: RankRow) -> Iterator[Finding]:
    for name in _NEVER_NEGATIVE:
        value = rank.memory[name].value
        if isinstance(value, Known) and negative_beyond_error(value):
            yield Finding(
                code="negative-category",
                severity=Severity.ERROR,
                message=(
                    f"{rank.label}: {name} comes out at {value.number:.2f} GiB "
                    f"({value.how}); its lines contradict each other"
                ),
                evidence=value.evidence,
            )
    other, used = rank.memory["other"].value, rank.memory["used"].value
    if isinstance(other, Known) and isinstance(used, Known) and negative_beyond_error(other):
        yield Finding(
            code="parts-exceed-used",
            severity=Severity.ERROR,
            message=(
                f"{rank.label}: the known parts add up to {used.number - other.number:.2f} "
                f"GiB, "
                f"the device tool says {used.number:.2f} GiB are used: the reading is of "
                f"another moment or device"
            ),
            evidence=(*used.evidence, *other.evidence),
        )
