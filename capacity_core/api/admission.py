"""How an engine lets requests in: what a framework's plugin knows of its scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from capacity_core.values import Value

if TYPE_CHECKING:
    from capacity_core.api.ledger import WorkerFacts
    from capacity_core.api.report import LayoutRow


@attrs.frozen
class Request:
    """One kind of request: its tokens, prompt and output together, and how many of them are the
    prompt where that is said."""

    tokens: int
    prompt: int | None = None

    @property
    def output(self) -> int | None:
        """Tokens that are generated, where the prompt is said."""
        return None if self.prompt is None else self.tokens - self.prompt


@attrs.frozen(kw_only=True)
class Fit:
    """How many requests of one kind a worker's pools hold.

    `tokens` is the number that runs to its end without being preempted or retracted, as far as the
    KV pools decide, None where the worker's tokens alone do; `state` the number that the slots of
    states allow, None where there are none; `admitted` the number that is let in at once, which may
    be more than fit.
    """

    tokens: Value | None = None
    state: Value | None = None
    admitted: Value | None = None


class Admission(Protocol):
    """What a framework's plugin knows of the way in, of one run."""

    def fit(self, worker: WorkerFacts, request: Request, layout: LayoutRow | None) -> Fit | None:
        """How many fit, given what the configuration says of all layers of the model; None when
        nothing more is known than what the worker's tokens allow."""
        ...


@attrs.frozen(kw_only=True)
class MetricSample:
    """One sample of a saved metrics page; `id` is what a value cites."""

    id: str
    name: str
    labels: Mapping[str, str]
    value: float


Metrics = Sequence[MetricSample]
