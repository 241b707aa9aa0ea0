"""What goes wrong at the border of a plugin, collected until the report is made."""

from __future__ import annotations

import attrs

from capacity_core.api.ledger import Finding, Severity
from capacity_core.api.report import PluginRow
from capacity_core.loader import Plugins


@attrs.define
class Trouble:
    """Plugins that failed while they read, by the row of the report that names them, and the
    findings that say so."""

    plugins: Plugins
    rows: list[PluginRow] = attrs.field(factory=list)
    findings: list[Finding] = attrs.field(factory=list)

    def report_failure(self, item: str, why: str) -> None:
        """Mark the plugin that contributed an item (a matcher, a layout, …) as failed."""
        owner = self.plugins.owner_of(item)
        if owner is not None and owner.name not in {row.name for row in self.rows}:
            self.rows.append(attrs.evolve(owner, status="failed", error=f"{item}: {why}"))
        finding = Finding(
            code="plugin-failed",
            severity=Severity.ERROR,
            message=f"{item} failed while reading: {why}",
        )
        if finding not in self.findings:
            self.findings.append(finding)

    def report_unused_layout(self, why: str) -> None:
        """Say once that the configuration was not used for the concurrency."""
        finding = Finding(
            code="layout-not-used",
            severity=Severity.WARNING,
            message=f"the configuration does not tell how many requests fit: {why}",
            evidence=("config0",),
        )
        if finding not in self.findings:
            self.findings.append(finding)

    @property
    def told(self) -> str:
        """What failed, in one line behind an error that ends everything."""
        return "".join(f" {finding.message}." for finding in self.findings)

    def all_rows(self) -> tuple[PluginRow, ...]:
        """Every plugin's row, the failed ones last and once."""
        names = {row.name for row in self.rows}
        return (*(row for row in self.plugins.rows if row.name not in names), *self.rows)
