"""Views of a report."""

from __future__ import annotations

from typing import Protocol

from capacity_core.api.report import Report


class Renderer(Protocol):
    """One output format: `--format NAME`."""

    @property
    def name(self) -> str: ...

    def render(self, report: Report) -> str:
        """The whole report, ending in a newline."""
        ...
