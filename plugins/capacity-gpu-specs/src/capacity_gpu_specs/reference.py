"""The table of references/gpu-specs.md, made from the catalogue."""

from __future__ import annotations

from collections.abc import Mapping

from tabulate import tabulate

from capacity_core.api.gpu_specs import GpuSpec
from capacity_gpu_specs.catalogue import gpu_specs

BEGIN = "<!-- generated: gpu-specs -->"
END = "<!-- end -->"

_HEADERS = (
    "name",
    "device",
    "vendor GB",
    "memory",
    "unified",
    "also typed as",
    "totals seen, MiB",
    "sources",
)


def table() -> str:
    """The catalogue as a Markdown table, one row per device by name, and its links below it."""
    urls = dict.fromkeys(source.url for spec in gpu_specs() for source in spec.sources)
    numbers = {url: number for number, url in enumerate(urls, start=1)}
    rows = [_row(spec, numbers) for spec in gpu_specs()]
    shown = tabulate(rows, _HEADERS, tablefmt="github", disable_numparse=True)
    links = "\n".join(f"[{number}]: {url}" for url, number in numbers.items())
    return f"{shown}\n\n{links}"


def _row(spec: GpuSpec, numbers: Mapping[str, int]) -> tuple[str, ...]:
    return (
        f"`{spec.name}`",
        spec.title,
        "not stated" if spec.nominal_gb is None else str(spec.nominal_gb),
        spec.memory_kind or "",
        "yes" if spec.unified else "",
        ", ".join(f"`{alias}`" for alias in spec.aliases),
        ", ".join(str(total) for total in spec.seen_totals),
        "; ".join(f"[{source.what}][{numbers[source.url]}]" for source in spec.sources),
    )
