"""The reader of nvidia-smi's CSV: every shape that is read, and every one that is refused."""

from __future__ import annotations

from decimal import Decimal

import pytest

from capacity_core.api.device_readers import DeviceReading
from capacity_core.errors import UnusableInput
from capacity_core.units import MIB
from capacity_core.values import Known, Origin, Unknown, Value
from capacity_gpu_specs.nvidia_csv import COMMAND, NvidiaSmiCsv

READER = NvidiaSmiCsv()


def read(text: str) -> tuple[DeviceReading, ...]:
    assert READER.recognises(text)
    return READER.read(text, "smi0")


def mib(value: Value) -> int | None:
    """The amount of a known value, None of an unknown one."""
    if isinstance(value, Unknown):
        return None
    assert value.unit is MIB
    return int(value.number)


def figures(reading: DeviceReading) -> tuple[int | None, ...]:
    return tuple(mib(v) for v in (reading.used, reading.free, reading.total, reading.reserved))


def test_a_header_with_units_names_every_column() -> None:
    (gpu,) = read(
        "index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB]\n"
        "3, NVIDIA H100 80GB HBM3, 81559 MiB, 1000 MiB, 80080 MiB\n"
    )
    assert (gpu.index, gpu.name, gpu.line) == (3, "NVIDIA H100 80GB HBM3", 2)
    assert figures(gpu) == (1000, 80080, 81559, 479)


def test_a_measured_value_says_where_it_stands() -> None:
    (gpu,) = read("memory.used [MiB]\n70 MiB\n")
    assert gpu.used == Known(
        amount=Decimal(70),
        unit=MIB,
        error=Decimal("0.5"),
        origin=Origin.MEASURED,
        name="used",
        how="nvidia-smi",
        evidence=("smi0:2",),
    )


def test_the_reserve_is_derived_when_it_is_not_printed() -> None:
    (gpu,) = read("memory.free, memory.used, memory.total\n900, 70, 1000\n")
    assert isinstance(gpu.reserved, Known)
    assert gpu.reserved.origin is Origin.DERIVED
    assert (gpu.reserved.name, gpu.reserved.how) == ("reserved", "total - used - free")
    assert gpu.reserved.error == Decimal("1.5")


def test_a_printed_reserve_is_measured() -> None:
    (gpu,) = read(
        "memory.total [MiB], memory.reserved [MiB], memory.used [MiB], memory.free [MiB]\n"
        "1000 MiB, 31 MiB, 70 MiB, 900 MiB\n"
    )
    assert isinstance(gpu.reserved, Known)
    assert (gpu.reserved.number, gpu.reserved.origin) == (Decimal(31), Origin.MEASURED)


@pytest.mark.parametrize(("free", "reserved"), [(931, -1), (932, None)])
def test_a_reserve_below_zero_is_rounding_or_unknown(free: int, reserved: int | None) -> None:
    (gpu,) = read(f"memory.total, memory.used, memory.free\n1000, 70, {free}\n")
    assert mib(gpu.reserved) == reserved


def test_a_negative_reserve_says_why() -> None:
    (gpu,) = read("memory.total, memory.used, memory.free\n1000, 70, 990\n")
    assert isinstance(gpu.reserved, Unknown)
    assert "exceed memory.total" in gpu.reserved.why


def test_units_in_the_header_may_be_missing_in_the_cells() -> None:
    (gpu,) = read("index, memory.used [MiB], memory.free [MiB]\n0, 11, 22\n")
    assert figures(gpu) == (11, 22, None, None)


def test_other_columns_and_long_names_of_columns() -> None:
    (gpu,) = read(
        "timestamp, gpu_uuid, gpu_name, utilization.gpu [%], memory.used [MiB], pstate\n"
        "2026/02/03 04:05:06.789, GPU-ab, Tesla T4, 7 %, 11 MiB, P0\n"
    )
    assert (gpu.index, gpu.name) == (None, "Tesla T4")
    assert figures(gpu) == (11, None, None, None)


@pytest.mark.parametrize("suffix", [" MiB", ""])
def test_three_columns_without_a_header(suffix: str) -> None:
    text = f"4, 11{suffix}, 22{suffix}\n5, 33{suffix}, 44{suffix}\n"
    gpus = read(text)
    assert [gpu.index for gpu in gpus] == [4, 5]
    assert [figures(gpu) for gpu in gpus] == [(11, 22, None, None), (33, 44, None, None)]
    assert isinstance(gpus[0].used, Known)
    assert gpus[0].used.assuming == (
        "without a header, three columns are index, memory.used, memory.free",
    )


def test_used_plus_free_is_never_the_total() -> None:
    (gpu,) = read("0, 11 MiB, 22 MiB\n")
    assert isinstance(gpu.total, Unknown)
    assert gpu.total.why == (
        "memory.total was not queried; used + free lacks what the driver reserves"
    )


def test_a_name_and_one_figure_without_a_header_are_a_total() -> None:
    gpus = read(
        "NVIDIA RTX A6000, 580.10, 49140 MiB, 300.00 W, 41, 2100 MHz\n"
        "NVIDIA L4, 580.10, 23034 MiB, 72.00 W, 38, 2040 MHz\n"
    )
    assert [gpu.name for gpu in gpus] == ["NVIDIA RTX A6000", "NVIDIA L4"]
    assert [figures(gpu) for gpu in gpus] == [(None, None, 49140, None), (None, None, 23034, None)]
    assert isinstance(gpus[0].total, Known)
    assert gpus[0].total.assuming != ()


def test_an_index_before_the_name_is_read_without_a_header() -> None:
    gpus = read("1, Tesla T4, 15360 MiB\n2, Tesla T4, 15360 MiB\n")
    assert [gpu.index for gpu in gpus] == [1, 2]


def test_a_leading_time_stamp_without_a_header() -> None:
    (gpu,) = read("2026/02/03 04:05:06.789, 0, 11 MiB, 22 MiB\n")
    assert (gpu.index, *figures(gpu)[:2]) == (0, 11, 22)


@pytest.mark.parametrize(
    "cell",
    [
        "[N/A]",
        "N/A",
        "[Not Supported]",
        "Not Supported",
        "[Unknown Error]",
        "[Requested functionality has been deprecated]",
        "",
    ],
)
def test_what_is_not_available_is_unknown_with_its_reason(cell: str) -> None:
    (gpu,) = read(f"memory.used [MiB], memory.total [MiB]\n{cell}, 1000 MiB\n")
    assert isinstance(gpu.used, Unknown)
    assert gpu.used.why == f"nvidia-smi printed {cell or 'nothing'} for memory.used"
    assert gpu.used.evidence == ("smi0:2",)
    assert mib(gpu.total) == 1000


def test_a_row_without_any_figure_hints_at_unified_memory() -> None:
    (gpu,) = read("name, memory.used [MiB], memory.total [MiB]\nNVIDIA GB10, [N/A], [N/A]\n")
    assert isinstance(gpu.total, Unknown)
    assert gpu.total.why.endswith("as it does for devices that share the host's memory")


def test_not_available_without_a_header() -> None:
    (gpu,) = read("0, [N/A], [N/A]\n")
    assert figures(gpu) == (None, None, None, None)


def test_a_name_that_is_not_available_is_none() -> None:
    (gpu,) = read("name, memory.used [MiB]\n[N/A], 3 MiB\n")
    assert gpu.name is None


def test_byte_order_mark_colours_carriage_returns_and_blank_lines() -> None:
    gpus = read("\ufeff\r\n\x1b[1m0\x1b[0m, 11 MiB, 22 MiB  \r\n\r\n1, 33 MiB, 44 MiB\r\n")
    assert [(gpu.index, mib(gpu.used), gpu.line) for gpu in gpus] == [(0, 11, 2), (1, 33, 4)]


@pytest.mark.parametrize(
    ("text", "line", "cell"),
    [
        ("0, 31.5 GiB, 48.1 GiB\n", 1, "'31.5 GiB'"),
        ("0, 11 MiB, 22 MiB\n1, 11 MiB, 22 GB\n", 2, "'22 GB'"),
        ("0, 11.5, 22.5\n", 1, "'11.5'"),
        ("memory.used [GiB]\n3\n", 1, "'memory.used [GiB]'"),
        ("memory.used [MiB]\n3 GiB\n", 2, "'3 GiB'"),
        ("memory.used [MiB]\n3 MB\n", 2, "'3 MB'"),
        ("memory.used [MiB]\n-3 MiB\n", 2, "'-3 MiB'"),
        ("memory.used [MiB]\nlots\n", 2, "'lots'"),
        ("index, memory.used [MiB]\nzero, 3 MiB\n", 2, "'zero'"),
        ("NVIDIA L4, 23034 MiB\nNVIDIA L4, 22.5 GiB\n", 2, "'22.5 GiB'"),
    ],
)
def test_a_figure_in_another_form_is_refused(text: str, line: int, cell: str) -> None:
    assert_refused(text, line, cell)


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("index, memory.used [MiB]\n0, 3 MiB\n1\n", 3, "cells are 1, the columns 2: '1'"),
        ("index, memory.used [MiB]\n0, 3 MiB, 4 MiB\n", 2, "cells are 3, the columns 2"),
        ("0, 11 MiB, 22 MiB\n1, 11 MiB\n", 2, "cells are 2, the columns 3"),
        ("0, 11 MiB, 22 MiB\n\n, ,\n1, 11 MiB, 22 MiB\n", 3, "the index is ''"),
        ("0, 11 MiB, 22 MiB\nDriver says hello\n", 2, "cells are 1, the columns 3"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(text: str, line: int, part: str) -> None:
    assert_refused(text, line, part)


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("NVIDIA L4, 70 MiB, 22000 MiB\n", 1, "which column '70 MiB', '22000 MiB' is"),
        ("0, 70 MiB, 22000 MiB, 23034 MiB\n", 1, "without a header"),
        ("70 MiB, 22000 MiB\n", 1, "without a header"),
        ("0, 1 MiB, 2 MiB\n0, 3 MiB, 4 MiB\n", 2, "index 0 stands in line 1 already"),
        ("2, 1 MiB, 2 MiB\n1, 3 MiB, 4 MiB\n", 2, "from 2 to 1, so it is no index"),
        ("index, memory.used\n0, 1\n1, 2\n0, 3\n", 4, "index 0 stands in line 2 already"),
        ("uuid, memory.used\nGPU-a, 1\nGPU-a, 3\n", 3, "uuid GPU-a stands in line 2 already"),
        ("memory.used, memory.used\n1, 2\n", 1, "stands there twice"),
        ("index, memory.used\n", 1, "no device below it"),
        ("index, memory.used\n0, 1\nindex, memory.used\n0, 2\n", 3, "the index is 'index'"),
    ],
)
def test_what_is_ambiguous_is_refused(text: str, line: int, part: str) -> None:
    assert_refused(text, line, part)


def assert_refused(text: str, line: int, part: str) -> None:
    assert READER.recognises(text), "it is refused with its cell, not as some other tool's output"
    with pytest.raises(UnusableInput) as caught:
        READER.read(text, "smi0")
    message = str(caught.value)
    assert message.startswith(f"smi0:{line}: ")
    assert part in message
    assert COMMAND in message


def test_devices_in_any_order_below_a_header() -> None:
    gpus = read("index, memory.used\n1, 11\n0, 22\n")
    assert [(gpu.index, mib(gpu.used)) for gpu in gpus] == [(1, 11), (0, 22)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n \n",
        "+------+\n| 0  NVIDIA L4   On  |\n|  70MiB / 23034MiB |\n",
        "==============NVSMI LOG==============\n    FB Memory Usage\n        Total : 23034 MiB\n",
        '<?xml version="1.0" ?>\n<nvidia_smi_log></nvidia_smi_log>\n',
        "GPU 0: NVIDIA L4 (UUID: GPU-00000000-0000-0000-0000-000000000001)\n",
        "GPU[0]\t\t: VRAM Total Memory (B): 206141652992\n",
        '{"card0": {"VRAM Total Memory (B)": "206141652992"}}\n',
        "pid, process_name, used_gpu_memory [MiB]\n17, python3, 100 MiB\n",
        "17, python3, 100 MiB\n",
        "NVIDIA L4, GPU-00000000-0000-0000-0000-000000000001, 17, VLLM::Worker_TP0, 100 MiB\n",
        'Device ID,Device Name,Memory Physical Size\n0,"Intel(R) Max","131072.00 MiB"\n',
        "Timestamp, DeviceId, GPU Memory Used (MiB)\n06:14:46.000,    0, 8192.00\n",
        "$ nvidia-smi --query-gpu=index,memory.used,memory.free --format=csv\n0, 1, 2\n",
        "index, name, temperature.gpu\n0, NVIDIA L4, 38\n",
        "INFO 02-03 04:05:06 [gpu_worker.py:1] Model loading took 3.5 GiB, 2.1 s\n",
    ],
)
def test_other_outputs_are_not_recognised(text: str) -> None:
    assert not READER.recognises(text)


def test_nothing_to_read_is_refused() -> None:
    with pytest.raises(UnusableInput, match="no line in it"):
        READER.read("\n", "smi0")
