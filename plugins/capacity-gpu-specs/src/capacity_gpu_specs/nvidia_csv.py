"""Reads `nvidia-smi --query-gpu=… --format=csv`, with or without header and units.

Cells of memory are whole MiB or text such as `[N/A]`. Whatever else stands there is refused with
the line and the cell: a figure in another unit, a row that is too short, or columns that
nothing names. A figure is never dropped and never guessed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import NoReturn

import attrs

from capacity_core.api.device_readers import DeviceReading
from capacity_core.errors import UnusableInput
from capacity_core.units import MIB
from capacity_core.values import Known, Origin, Unknown, Value, known

COMMAND = "nvidia-smi --query-gpu=index,name,memory.used,memory.free,memory.total --format=csv"

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TIMESTAMP = re.compile(r"\d{4}/\d{2}/\d{2} \d{2}:\d{2}:\d{2}(\.\d+)?")
# `memory.used [MiB]`, `utilization.gpu [%]`, `index`
_FIELD = re.compile(r"(?P<field>[a-z][A-Za-z0-9_.]*)(?: \[(?P<unit>[^\]]+)\])?")
_FIELD_SYNONYMS = {"gpu_name": "name", "gpu_uuid": "uuid"}
_MEMORY = ("memory.used", "memory.free", "memory.total", "memory.reserved")

_INDEX = re.compile(r"[0-9]{1,3}")
_MIB = re.compile(r"([0-9]+)(?: ?MiB)?")
_WITH_MEMORY_UNIT = re.compile(r"[0-9.]+ ?(?:[KMGT]i?B|B)")
# `[N/A]`, `[Not Supported]`, `[Unknown Error]`, `[Requested functionality has been deprecated]`
_NOT_AVAILABLE = re.compile(r"|N/A|Not Supported|Unknown Error|ERR!|\[[^\]0-9]+\]")
_DEVICE = re.compile(r"(?:NVIDIA|Tesla|GeForce|Quadro|GRID|GH200) .+")
# What else a query prints beside the name: numbers with their unit, versions, ids, states.
# A process's name is none of these, so a list of processes is not taken for a list of devices.
_PLAIN = re.compile(
    r"[0-9.]+(?: ?(?:%|W|C|MHz|[KMGT]i?B|B))?|GPU-[0-9a-f-]+|[0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+"
    r"|0x[0-9A-Fa-f]+|P[0-9]{1,2}|Enabled|Disabled|Active|Not Active|Default"
)


@attrs.frozen(kw_only=True)
class _Row:
    """A line that is not blank: its number, and its cells without the blanks around them."""

    line: int
    cells: tuple[str, ...]


@attrs.frozen(kw_only=True)
class _Table:
    """The devices' rows, the field of each column, and what naming the columns rests on."""

    fields: tuple[str, ...]
    rows: tuple[_Row, ...]
    assuming: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class NvidiaSmiCsv:
    """The reader of nvidia-smi's CSV, one reading per row.

    Without a header two forms are read, under an assumption that every value carries:
    `index, used, free`, and rows with a device's name and one cell in MiB, its total.
    """

    name: str = "nvidia-smi-csv"
    command: str = COMMAND

    def recognises(self, text: str) -> bool:
        """Whether the first line that is not blank is such a header, or such a row."""
        rows = _rows(text)
        if not rows:
            return False
        cells = _without_timestamp(rows[0]).cells
        return _is_header(rows[0].cells) or _is_index_used_free(cells) or _is_described(cells)

    def read(self, text: str, source: str) -> tuple[DeviceReading, ...]:
        """One reading per device, MiB; raises UnusableInput with the line and the cell."""
        rows = _rows(text)
        if not rows:
            raise UnusableInput(f"{source}: no line in it. Save the output of `{COMMAND}`")
        if _is_header(rows[0].cells):
            table = _with_header(rows, source)
        else:
            table = _bare(tuple(_without_timestamp(row) for row in rows), source)
        readings = tuple(_reading(row, table, source) for row in table.rows)
        _refuse_repeats(table, source)
        if table.assuming:
            _refuse_disorder(readings, source)
        return readings


def _rows(text: str) -> tuple[_Row, ...]:
    rows = []
    for number, line in enumerate(_ANSI.sub("", text.removeprefix("\ufeff")).split("\n"), start=1):
        if line.strip():
            rows.append(_Row(line=number, cells=tuple(cell.strip() for cell in line.split(","))))
    return tuple(rows)


def _without_timestamp(row: _Row) -> _Row:
    cells = row.cells[1:] if _TIMESTAMP.fullmatch(row.cells[0]) else row.cells
    return _Row(line=row.line, cells=cells)


def _is_header(cells: tuple[str, ...]) -> bool:
    fields = [_FIELD.fullmatch(cell) for cell in cells]
    return all(fields) and any(field and field["field"] in _MEMORY for field in fields)


def _is_index_used_free(cells: tuple[str, ...]) -> bool:
    return (
        len(cells) == 3
        and _INDEX.fullmatch(cells[0]) is not None
        and all(_is_memory(cell) or _is_missing(cell) for cell in cells[1:])
    )


def _is_described(cells: tuple[str, ...]) -> bool:
    """Whether nothing but plain cells and a device's name stand there, one with a memory unit."""
    return any(_WITH_MEMORY_UNIT.fullmatch(cell) for cell in cells) and all(
        _PLAIN.fullmatch(cell) or _DEVICE.fullmatch(cell) or _is_missing(cell) for cell in cells
    )


def _is_memory(cell: str) -> bool:
    return re.fullmatch(r"[0-9.]+", cell) is not None or bool(_WITH_MEMORY_UNIT.fullmatch(cell))


def _is_missing(cell: str) -> bool:
    return _NOT_AVAILABLE.fullmatch(cell) is not None


def _with_header(rows: tuple[_Row, ...], source: str) -> _Table:
    header, devices = rows[0], rows[1:]
    fields = []
    for cell in header.cells:
        match = _FIELD.fullmatch(cell)
        field = match["field"] if match else ""
        unit = match["unit"] if match else None
        field = _FIELD_SYNONYMS.get(field, field)
        if field in _MEMORY and unit not in (None, "MiB"):
            _refuse(source, header.line, f"the column {cell!r} is not in MiB")
        if field in fields and field in (*_MEMORY, "index", "name", "uuid"):
            _refuse(source, header.line, f"the column {cell!r} stands there twice")
        fields.append(field)
    if not devices:
        _refuse(source, header.line, "a header, and no device below it")
    return _Table(fields=tuple(fields), rows=devices)


def _bare(rows: tuple[_Row, ...], source: str) -> _Table:
    """The columns of rows without a header, when the cells themselves tell."""
    first = rows[0]
    if _is_index_used_free(first.cells):
        fields = ("index", "memory.used", "memory.free")
        assumption = "without a header, three columns are index, memory.used, memory.free"
        return _Table(fields=fields, rows=rows, assuming=(assumption,))
    columns = range(len(first.cells))
    names = [at for at in columns if _DEVICE.fullmatch(first.cells[at])]
    memory = [at for at in columns if _WITH_MEMORY_UNIT.fullmatch(first.cells[at])]
    if len(names) != 1 or len(memory) != 1:
        figures = ", ".join(repr(first.cells[at]) for at in memory) or repr(first.cells[0])
        _refuse(source, first.line, f"without a header nothing says which column {figures} is")
    roles = {names[0]: "name", memory[0]: "memory.total"}
    if 0 not in roles and names[0] == 1 and _INDEX.fullmatch(first.cells[0]):
        roles[0] = "index"
    return _Table(
        fields=tuple(roles.get(at, "") for at in columns),
        rows=rows,
        assuming=("without a header, the one MiB figure beside a name is memory.total",),
    )


def _reading(row: _Row, table: _Table, source: str) -> DeviceReading:
    if len(row.cells) != len(table.fields):
        _refuse(
            source,
            row.line,
            f"the row's cells are {len(row.cells)}, the columns {len(table.fields)}: "
            f"{', '.join(row.cells)!r}",
        )
    cells = {field: cell for field, cell in zip(table.fields, row.cells, strict=True) if field}
    if "index" in cells and not _INDEX.fullmatch(cells["index"]):
        _refuse(source, row.line, f"the index is {cells['index']!r}, no small whole number")
    name = cells.get("name", "")
    memory = {field: _memory(field, cells, row, table, source) for field in _MEMORY}
    total, used, free = (memory[f"memory.{what}"] for what in ("total", "used", "free"))
    return DeviceReading(
        index=int(cells["index"]) if "index" in cells else None,
        name=None if _is_missing(name) else name,
        used=used,
        free=free,
        total=total,
        reserved=memory["memory.reserved"] | _reserve(total, used, free),
        line=row.line,
    )


def _memory(field: str, cells: Mapping[str, str], row: _Row, table: _Table, source: str) -> Value:
    name = field.removeprefix("memory.")
    evidence = (f"{source}:{row.line}",)
    cell = cells.get(field)
    if cell is None:
        return Unknown(why=_not_asked(field, cells), unit=MIB, name=name, evidence=evidence)
    if _is_missing(cell):
        why = f"nvidia-smi printed {cell or 'nothing'} for {field}"
        if all(_is_missing(cells[other]) for other in _MEMORY if other in cells):
            why += ", as it does for devices that share the host's memory"
        return Unknown(why=why, unit=MIB, name=name, evidence=evidence)
    match = _MIB.fullmatch(cell)
    if match is None:
        _refuse(source, row.line, f"{field} is {cell!r}, no whole number of MiB")
    value = known(
        Decimal(match[1]), MIB, Origin.MEASURED, how="nvidia-smi", name=name, evidence=evidence
    )
    return value.assume(*table.assuming)


def _not_asked(field: str, cells: Mapping[str, str]) -> str:
    if field == "memory.total" and "memory.used" in cells and "memory.free" in cells:
        return "memory.total was not queried; used + free lacks what the driver reserves"
    return f"{field} was not queried"


def _reserve(total: Value, used: Value, free: Value) -> Value:
    """What the driver keeps apart, when total, used and free all stand in the row."""
    reserve = total - used - free
    if isinstance(reserve, Known) and reserve.number < -reserve.error:
        return Unknown(
            why="memory.used and memory.free exceed memory.total",
            unit=MIB,
            evidence=reserve.evidence,
            name="reserved",
        )
    return reserve.named("reserved")


def _refuse_repeats(table: _Table, source: str) -> None:
    """Refuse a file that shows a device twice: samples of a loop, or two files in one."""
    for field in ("index", "uuid"):
        if field not in table.fields:
            continue
        at = table.fields.index(field)
        seen: dict[str, int] = {}
        for row in table.rows:
            cell = row.cells[at]
            if cell in seen and not _is_missing(cell):
                what = f"{field} {cell} stands in line {seen[cell]} already; keep one sample"
                _refuse(source, row.line, what)
            seen[cell] = row.line


def _refuse_disorder(readings: tuple[DeviceReading, ...], source: str) -> None:
    """Without a header, a first column is the index only if it increases from row to row."""
    for before, after in itertools.pairwise(readings):
        if before.index is not None and after.index is not None and after.index <= before.index:
            what = f"the first column goes from {before.index} to {after.index}, so it is no index"
            _refuse(source, after.line, what)


def _refuse(source: str, line: int, what: str) -> NoReturn:
    raise UnusableInput(f"{source}:{line}: {what}. Save the output of `{COMMAND}`")
