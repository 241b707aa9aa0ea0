"""Reads a saved metrics page in the Prometheus text format."""

from __future__ import annotations

from capacity_core.api.metrics import MetricSample
from capacity_core.errors import UnusableInput


def read_metrics(content: bytes, path: str) -> tuple[MetricSample, ...]:
    """Every sample of the page, in its order; a value cites its line, `metrics0:12`.

    Raises UnusableInput, naming the path, when the page is not in this format or has no sample.
    """
    from prometheus_client.parser import text_string_to_metric_families  # slow, and rarely needed

    text = content.decode("utf-8-sig", "replace")
    try:
        samples = [
            MetricSample(
                id=f"metrics0:{number}",
                name=sample.name,
                labels=dict(sample.labels),
                value=float(sample.value),
            )
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.startswith("#")
            for family in text_string_to_metric_families(line + "\n")
            for sample in family.samples
        ]
    # The parser raises many kinds of errors for text that is no such page.
    except Exception as error:  # noqa: BLE001
        raise UnusableInput(
            f"{path}: is no metrics page ({ascii(str(error))[:80]}). "
            "Save one with: curl -s HOST:PORT/metrics"
        ) from None
    if not samples:
        raise UnusableInput(
            f"{path}: has no sample. Save a metrics page with: curl -s HOST:PORT/metrics"
        )
    return tuple(samples)
