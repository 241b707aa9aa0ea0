"""What is publicly known of a device: names, the vendor's capacity label, totals that were seen."""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.units import Mib


@attrs.frozen(kw_only=True)
class Source:
    """Where a fact of the catalogue can be read."""

    url: str
    what: str


@attrs.frozen(kw_only=True)
class GpuSpec:
    """One device of the catalogue.

    `nominal_gb` is the vendor's label and is shown, never computed with. `aliases` are what users
    type, lower case;
    `printed_names` what tools print; `seen_totals` whole-device totals that tools or engines
    reported (MiB), by which a measured total confirms or contradicts a name; `unified` devices
    share the host's memory.
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    printed_names: tuple[str, ...] = ()
    nominal_gb: Decimal | None = None
    memory_kind: str | None = None
    unified: bool = False
    seen_totals: tuple[Mib, ...] = ()
    sources: tuple[Source, ...] = ()
    note: str = ""
