"""Whatever a query prints reads back, and no text at all gets past the reader but by its error."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from capacity_core.errors import UnusableInput
from capacity_core.values import Known
from capacity_gpu_specs.nvidia_csv import NvidiaSmiCsv

READER = NvidiaSmiCsv()
MEMORY = ("memory.used", "memory.free", "memory.total", "memory.reserved")
OTHERS = {
    "utilization.gpu": ("utilization.gpu [%]", "0 %"),
    "timestamp": ("timestamp", "2026/02/03 04:05:06.789"),
    "pstate": ("pstate", "P0"),
    "temperature.gpu": ("temperature.gpu", "35"),
}

sizes = st.integers(min_value=0, max_value=2**20)
devices = st.fixed_dictionaries(
    {
        "name": st.sampled_from(("NVIDIA H200", "Tesla T4", "NVIDIA RTX A6000")),
        **{field: st.none() | sizes for field in MEMORY},
    }
)


@st.composite
def columns(draw: st.DrawFn) -> list[str]:
    """Some fields, among them one of memory, in any order."""
    memory = draw(st.sets(st.sampled_from(MEMORY), min_size=1))
    others = draw(st.sets(st.sampled_from(("index", "name", *OTHERS))))
    return draw(st.permutations(sorted(memory | others)))


@given(st.lists(devices, min_size=1, max_size=8), columns(), st.booleans(), st.booleans())
def test_a_rendered_table_reads_back(
    gpus: list[dict[str, object]], fields: list[str], header_units: bool, cell_units: bool
) -> None:
    def cell(field: str, index: int, gpu: dict[str, object]) -> str:
        if field in OTHERS:
            return OTHERS[field][1]
        if field == "index":
            return str(index)
        if field in MEMORY:
            size = gpu[field]
            return "[N/A]" if size is None else f"{size} MiB" if cell_units else str(size)
        return str(gpu[field])

    def head(field: str) -> str:
        if field in OTHERS:
            return OTHERS[field][0]
        return f"{field} [MiB]" if field in MEMORY and header_units else field

    lines = [", ".join(head(field) for field in fields)]
    lines += [", ".join(cell(f, i, gpu) for f in fields) for i, gpu in enumerate(gpus)]
    text = "\n".join(lines)

    assert READER.recognises(text)
    readings = READER.read(text, "smi0")
    assert len(readings) == len(gpus)
    for index, (reading, gpu) in enumerate(zip(readings, gpus, strict=True)):
        assert reading.line == index + 2
        assert reading.index == (index if "index" in fields else None)
        assert reading.name == (gpu["name"] if "name" in fields else None)
        for field in MEMORY[:3]:
            value = getattr(reading, field.removeprefix("memory."))
            expected = gpu[field] if field in fields else None
            assert (value.number if isinstance(value, Known) else None) == expected


@given(st.lists(st.tuples(sizes, sizes), min_size=1, max_size=8), st.booleans())
def test_three_bare_columns_read_back(gpus: list[tuple[int, int]], units: bool) -> None:
    unit = " MiB" if units else ""
    text = "".join(f"{i}, {used}{unit}, {free}{unit}\n" for i, (used, free) in enumerate(gpus))
    readings = READER.read(text, "smi0")
    # An Unknown has no number: reaching for one fails the test, which is what it is for.
    assert [(r.used.number, r.free.number) for r in readings] == gpus  # type: ignore[union-attr]


@given(
    st.text()
    | st.lists(
        st.sampled_from(
            ("0", "1", "3 MiB", "3 GiB", "[N/A]", "NVIDIA L4", "memory.used", ",", "\n", "x")
        )
    ).map("".join)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    READER.recognises(text)
    with contextlib.suppress(UnusableInput):
        assert READER.read(text, "smi0")
