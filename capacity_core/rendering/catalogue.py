"""Views of what is installed and known: the accelerator catalogue and the plugins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from capacity_core.api.gpu_specs import GpuSpec
from capacity_core.api.report import PluginRow
from capacity_core.rendering.json import to_plain


def catalogue_table(specs: Sequence[GpuSpec]) -> str:
    """One row for each device; sizes are the vendors' labels."""
    rows = [
        (spec.name, spec.title, _label(spec), _memory(spec), ", ".join(spec.aliases[:3]))
        for spec in specs
    ]
    return _table(rows, ("name", "device", "vendor GB", "memory", "aliases"), (18, 36, 9, 12, 18))


def details(specs: Iterable[GpuSpec]) -> str:
    """Everything about a few devices, with sources."""
    return "\n".join("\n".join(_detail(spec)) for spec in specs) + "\n"


def _detail(spec: GpuSpec) -> Iterator[str]:
    import textwrap

    yield f"{spec.name}: {spec.title}"
    yield f"  vendor's label   {_label(spec)} GB (shown, never computed with)"
    yield f"  memory           {_memory(spec)}"
    facts = (
        ("printed names", ", ".join(spec.printed_names)),
        ("aliases", ", ".join(spec.aliases)),
        ("totals seen, MiB", ", ".join(f"{total:,}" for total in spec.seen_totals)),
        ("note", spec.note),
        *(("source", f"{source.url} ({source.what})") for source in spec.sources),
    )
    for name, said in facts:
        if said:
            yield from textwrap.wrap(
                said,
                100,
                initial_indent=f"  {name:<17}",
                subsequent_indent=" " * 19,
                break_long_words=False,
                break_on_hyphens=False,
            )


def catalogue_json(specs: Iterable[GpuSpec]) -> str:
    return json.dumps([to_plain(spec) for spec in specs], indent=1) + "\n"


def plugins_table(rows: Sequence[PluginRow]) -> str:
    table = [
        (
            row.name,
            f"{row.distribution or ''} {row.version or ''}".strip(),
            row.module,
            row.status,
            row.error or ", ".join(hook.removeprefix("capacity_") for hook in row.hooks),
        )
        for row in rows
    ]
    header = ("plugin", "distribution", "module", "status", "hooks or error")
    return _table(table, header, (16, 22, 22, 9, 25))


def plugins_json(rows: Iterable[PluginRow]) -> str:
    return json.dumps([to_plain(row) for row in rows], indent=1) + "\n"


def _label(spec: GpuSpec) -> str:
    return "not stated" if spec.nominal_gb is None else f"{spec.nominal_gb:g}"


def _memory(spec: GpuSpec) -> str:
    kind = spec.memory_kind or "kind not stated"
    return f"{kind}, unified" if spec.unified else kind


def _table(rows: Sequence[Sequence[str]], header: Sequence[str], widths: Sequence[int]) -> str:
    from tabulate import tabulate

    return (
        tabulate(
            rows,
            headers=header,
            tablefmt="plain",
            disable_numparse=True,
            maxcolwidths=list(widths) if rows else None,
        )
        + "\n"
    )
