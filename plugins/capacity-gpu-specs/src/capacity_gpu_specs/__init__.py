"""The device catalogue, and the reader of nvidia-smi's CSV."""

from __future__ import annotations

from capacity_core.api import hookimpl
from capacity_core.api.device_readers import DeviceReader
from capacity_core.api.gpu_specs import GpuSpec


@hookimpl
def capacity_gpu_specs() -> tuple[GpuSpec, ...]:
    """Every device of the catalogue."""
    from capacity_gpu_specs.catalogue import gpu_specs

    return gpu_specs()


@hookimpl
def capacity_device_readers() -> tuple[DeviceReader, ...]:
    """The reader of `nvidia-smi --query-gpu=… --format=csv`."""
    from capacity_gpu_specs.nvidia_csv import NvidiaSmiCsv

    return (NvidiaSmiCsv(),)
