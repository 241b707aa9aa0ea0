"""How an engine lets requests in: what a framework's plugin knows of its scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from capacity_core.units import REQUESTS
from capacity_core.values import Known, Unknown, Value

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


DEFAULT_LENGTHS = (Request(4096), Request(6144), Request(8192))
"""What is answered where nobody asks for a length."""


def _requests(instance: object, attribute: attrs.Attribute[Value | None], value: object) -> None:
    """A plugin's figure must be a value in requests, or none."""
    if value is None:
        return
    if not isinstance(value, Known | Unknown) or value.unit not in (None, REQUESTS):
        raise TypeError(f"{attribute.name} of a Fit is {value!r}, no value in requests")


@attrs.frozen(kw_only=True)
class Fit:
    """How many requests of one kind a worker's pools hold.

    `tokens` is the number that runs to its end without being preempted or retracted, as far as the
    KV pools decide, None where the worker's tokens alone do; `state` the number that the slots of
    states allow, None where there are none; `admitted` the number that the engine admits at once,
    which may be more than fit. `layout_unused` is why what the configuration says was not used.
    """

    tokens: Value | None = attrs.field(default=None, validator=_requests)
    state: Value | None = attrs.field(default=None, validator=_requests)
    admitted: Value | None = attrs.field(default=None, validator=_requests)
    layout_unused: str | None = None


class Admission(Protocol):
    """What a framework's plugin knows of the way in, of one run."""

    def fit(self, worker: WorkerFacts, request: Request, layout: LayoutRow | None) -> Fit | None:
        """How many fit, given what the configuration says of all layers of the model; None when
        nothing more is known than what the worker's tokens allow."""
        ...
