"""Which device it is: names and aliases to catalogue entries, and what a measured total fits."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from decimal import Decimal

from capacity_core.api.gpu_specs import GpuSpec
from capacity_core.api.report import GpuRow
from capacity_core.errors import UsageError
from capacity_core.units import GIB, MIB, VENDOR_GB
from capacity_core.values import Known, Origin, Unknown, Value, known, text

TOLERANCE = Decimal("0.03")
"""How far a measured total may lie from one that was seen: drivers reserve differently."""

_DECORATION = re.compile(r"\((?:R|TM)\)", re.IGNORECASE)


def normalised(name: str) -> str:
    """A name as it is compared: lower case, words joined by `-`."""
    return "-".join(re.findall(r"[a-z0-9]+", _DECORATION.sub("", name).lower()))


def candidates(name: str, specs: Sequence[GpuSpec]) -> tuple[GpuSpec, ...]:
    """The catalogue entries that a typed or printed name may mean.

    A printed name may come without its first word (older tools leave the vendor out); a name cut
    with `...` matches as a beginning; the word of a family (`a100` where only `a100-…` exist) means
    all its members.
    """
    wanted = normalised(name.removesuffix("..."))
    if not wanted:
        return ()
    exact = tuple(spec for spec in specs if wanted in _names(spec))
    if exact:
        return exact
    if name.endswith("..."):
        return tuple(spec for spec in specs if any(n.startswith(wanted) for n in _names(spec)))
    return tuple(spec for spec in specs if spec.name.startswith(f"{wanted}-"))


def _names(spec: GpuSpec) -> set[str]:
    printed = {normalised(name) for name in (spec.title, *spec.printed_names)}
    bare = {name.partition("-")[2] for name in printed} - {""}
    return {normalised(name) for name in (spec.name, *spec.aliases)} | printed | bare


def resolved(name: str, specs: Sequence[GpuSpec]) -> tuple[GpuSpec, ...]:
    """The same for a name that a user typed. Raises UsageError with the nearest names when there is
    none."""
    found = candidates(name, specs)
    if not found:
        words = sorted({alias for spec in specs for alias in (spec.name, *spec.aliases)})
        near = difflib.get_close_matches(name.lower(), words, n=4, cutoff=0.4)
        hint = (
            f"nearest names, of other devices: {', '.join(near)}"
            if near
            else "`capacity gpus` lists them all"
        )
        raise UsageError(f"no device is named {name!r} in the catalogue; {hint}")
    return found


def fitting(total: Value, specs: Sequence[GpuSpec]) -> tuple[GpuSpec, ...]:
    """The entries of which a total like this was seen."""
    if not isinstance(total, Known):
        return ()
    mib = total.to(MIB).number
    return tuple(spec for spec in specs if _fits(mib, spec))


def _fits(mib: Decimal, spec: GpuSpec) -> bool:
    return any(abs(mib - seen) <= seen * TOLERANCE for seen in spec.seen_totals)


def gpu_row(
    specs: Sequence[GpuSpec], asked: str | None, printed: Value, total: Value
) -> tuple[GpuRow, str | None]:
    """The device as far as known, and a sentence when its name and its measured total contradict
    each other.

    The catalogue's size is shown, never computed with.
    """
    name: Value = printed
    if asked is not None:
        named = resolved(asked, specs)
        name = text(asked, Origin.CONFIGURED, how="--gpu")
    else:
        named = candidates(str(printed.amount), specs) if isinstance(printed, Known) else ()
    sized = fitting(total, specs)
    both = tuple(spec for spec in named if spec in sized) if isinstance(total, Known) else named
    clash = None
    if named and isinstance(total, Known) and not both and any(spec.seen_totals for spec in named):
        shown = f"{total.to(GIB).number:.2f}"
        what = name.amount if isinstance(name, Known) else "the device"
        fits = ", ".join(spec.title for spec in sized) or "nothing in the catalogue"
        clash = f"{what}: the measured total of {shown} GiB does not fit this name; it fits {fits}"
    left = both or named or sized
    one = left[0] if len(left) == 1 and (named or both) else None
    why = "no name was printed or given" if not left else "several devices fit"
    key: Value = Unknown(why=why)
    nominal: Value = Unknown(why=why, unit=VENDOR_GB)
    if one is not None:
        sources = tuple(source.url for source in one.sources[:1])
        key = text(one.name, Origin.CATALOGUE, how="name", evidence=sources)
        if one.nominal_gb is not None:
            nominal = known(
                one.nominal_gb, VENDOR_GB, Origin.CATALOGUE, how="vendor's label", evidence=sources
            ).assume("the vendor's label, not usable memory")
    return (
        GpuRow(
            key=key,
            name=name,
            candidates=tuple(spec.title for spec in left),
            total=total.to(GIB),
            nominal_gb=nominal,
        ),
        clash,
    )
