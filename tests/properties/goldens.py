"""The golden logs, and reports on changed copies of them as flat tables that can be compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from capacity_core.analysis import Options, analyse
from capacity_core.errors import NothingRecognised
from capacity_core.loader import Plugins
from capacity_core.rendering.json import JsonRenderer
from capacity_core.testing.reference import own_plugins

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "references" / "examples"

Report = dict[str, Any]
Figures = dict[str, dict[str, Any]]
"""Path → value object."""

_NAMES = (
    "id",
    "dp",
    "category",
    "role",
    "label",
    "stage",
    "since",
    "until",
    "code",
    "request_tokens",
)
"""What tells the rows of a list apart, whatever their order: the fields that make no figures."""


@cache
def golden_logs() -> dict[str, Path]:
    """Name → log of every golden case and every example."""
    cases = {path.parent.name: path for path in Path(ROOT, "tests/golden/cases").glob("*/*.log")}
    examples = {f"example-{path.stem}": path for path in EXAMPLES.glob("*.log")}
    return dict(sorted((cases | examples).items()))


@cache
def lines_of(name: str) -> tuple[str, ...]:
    """A golden log's lines, each without its line feed."""
    text = golden_logs()[name].read_bytes().decode()
    return tuple(text.removesuffix("\n").split("\n"))


@cache
def original(name: str) -> Report:
    return _report(golden_logs()[name])


def report_of(lines: Sequence[str], folder: Path) -> Report | None:
    """The report on these lines; none when no line is recognised."""
    path = folder / "server.log"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    try:
        return _report(path)
    except NothingRecognised:
        return None


def figures_of(report: Report) -> Figures:
    """Every value of a report by its path; ranks, pools and rows go by their names.

    Findings and evidence are views of the rest; `load` is about what the run-time lines showed,
    which is another with every line.
    """
    left_out = {"findings", "evidence", "evidence_omitted", "load"}
    return dict(_figures({key: node for key, node in report.items() if key not in left_out}, ""))


def _report(path: Path) -> Report:
    made = analyse([str(path)], Options(), _plugins())
    report: Report = json.loads(JsonRenderer().render(made))
    return report


@cache
def _plugins() -> Plugins:
    return own_plugins(ROOT / "references")


def _figures(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict) and "value" in node and "unit" in node:
        yield path, node
    elif isinstance(node, dict):
        for key, child in node.items():
            yield from _figures(child, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        seen: Counter[str] = Counter()
        for row in node:
            name = _name(row)
            seen[name] += 1
            yield from _figures(row, f"{path}[{name}]" + f"#{seen[name]}" * (seen[name] > 1))


def _name(row: Any) -> str:
    if not isinstance(row, dict):
        return ""
    return ",".join(f"{key}={row[key]}" for key in _NAMES if isinstance(row.get(key), str | int))
