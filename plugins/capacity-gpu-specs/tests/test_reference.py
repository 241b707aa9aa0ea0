"""references/gpu-specs.md shows the catalogue as it is."""

from __future__ import annotations

from pathlib import Path

from capacity_gpu_specs.reference import BEGIN, END, table

PAGE = Path(__file__).parents[3] / "references" / "gpu-specs.md"


def test_the_reference_is_in_step_with_the_catalogue() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = text.split(BEGIN)[1].split(END)[0].strip()
    assert shown == table(), (
        "references/gpu-specs.md is stale: put the output of capacity_gpu_specs.reference.table() "
        "between its markers"
    )
