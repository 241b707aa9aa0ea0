"""A saved metrics page, as a framework's plugin reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs


@attrs.frozen(kw_only=True)
class MetricSample:
    """One sample of a page; `id` is the line that a value cites."""

    id: str
    name: str
    labels: Mapping[str, str]
    value: float


Metrics = Sequence[MetricSample]
