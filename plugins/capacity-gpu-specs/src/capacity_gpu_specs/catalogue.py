"""The device catalogue: gpus.json as `GpuSpec` objects."""

from __future__ import annotations

import functools
import json
from decimal import Decimal
from importlib import resources
from typing import Any

from capacity_core.api.gpu_specs import GpuSpec, Source
from capacity_core.units import Mib


@functools.cache
def gpu_specs() -> tuple[GpuSpec, ...]:
    """Every device of the catalogue, sorted by name; the file is read once.

    `nominal_gb` is the vendor's label, which converts to nothing; `seen_totals` are MiB.
    """
    text = resources.files(__package__).joinpath("gpus.json").read_text(encoding="utf-8")
    return tuple(_spec(row) for row in json.loads(text, parse_int=Decimal, parse_float=Decimal))


def _spec(row: dict[str, Any]) -> GpuSpec:
    """One device; a key of the file that is missing or unknown is an error."""
    return GpuSpec(
        aliases=tuple(row.pop("aliases")),
        printed_names=tuple(row.pop("printed_names")),
        seen_totals=tuple(Mib(total) for total in row.pop("seen_totals_mib")),
        sources=tuple(Source(**source) for source in row.pop("sources")),
        **row,
    )
