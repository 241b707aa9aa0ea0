"""What a device tool measured: one reading per device, and the readers of the tools' outputs."""

from __future__ import annotations

from typing import Protocol

import attrs

from capacity_core.values import Value


@attrs.frozen(kw_only=True)
class DeviceReading:
    """One device as a tool printed it: index (None when not printed), name, and MiB used, free,
    total, reserved.

    `line` is the number of its line in the file. A field that the tool did not print, or printed as
    not available, is unknown.
    """

    index: int | None
    name: str | None
    used: Value
    free: Value
    total: Value
    reserved: Value
    line: int


class DeviceReader(Protocol):
    """Reads the output of one device tool in one of its forms."""

    @property
    def name(self) -> str: ...

    @property
    def command(self) -> str:
        """The command whose output this reads, for the message that refuses anything else."""
        ...

    def recognises(self, text: str) -> bool:
        """Whether the text is of this form."""
        ...

    def read(self, text: str, source: str) -> tuple[DeviceReading, ...]:
        """Every device of the text; evidence ids are `source:line`. Raises UnusableInput naming the
        line and cell."""
        ...
