"""One small log per release that worded its lines anew, and what the report must say of it.

A case is a folder: `server.log` in the exact words of one release, with invented figures that add
up, and `expected.json`, worked out by hand from those lines (`why` has the arithmetic). A check is
a path into the report and one expectation:

    {"path": P, "equals": X, "tol": t}    every value at P is X, within t
    {"path": P, "in": [X, null], "tol": t}    it is one of these; null allows that it is unknown
    {"path": P, "unknown": true}    the log does not say it: nothing there, or no value
    {"path": P, "at_most": N}    not known, but bounded (`at_least` likewise)

A path is dotted keys; `[key=value,key=value]` keeps the rows of a list that have them, `[]` keeps
all, `length` counts them. A value object stands for its value.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.rendering.json import JsonRenderer
from capacity_core.testing.reference import own_plugins

CASES = Path(__file__).parent / "cases"
REFERENCES = Path(__file__).parents[2] / "references"

_STEP = re.compile(r"(?P<key>[^.\[\]]+)(?:\[(?P<rows>[^\]]*)\])?(?:\.|$)")


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.iterdir()))
def test_the_report_says_what_the_lines_say(name: str) -> None:
    expected = json.loads((CASES / name / "expected.json").read_text(encoding="utf-8"))
    report = _report(CASES / name / "server.log")

    assert expected["checks"]
    wrong = [said for check in expected["checks"] if (said := _judge(check, report))]

    if wrong:
        said = "\n".join(wrong)
        pytest.fail(f"{name}, as {expected['release']} prints it:\n{said}", pytrace=False)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("a.b", [1]),
        ("a.c", []),
        ("rows.length", [2]),
        ("rows[].size", [5, None]),
        ("rows[id=x/1].size", [5]),
        ("rows[id=y,tp=0].size", [None]),
        ("rows[id=z].size", []),
    ],
)
def test_a_path_finds_what_it_names(path: str, values: list[Any]) -> None:
    """Checks are worth as much as the finder: a path that finds nothing is no silent pass."""
    report = {
        "a": {"b": 1},
        "rows": [
            {"id": "x/1", "tp": None, "size": {"value": 5, "unit": "GiB"}},
            {"id": "y", "tp": 0, "size": {"value": None, "unit": "GiB"}},
        ],
    }
    assert [_plain(node) for node in _find(report, path)] == values


@cache
def _report(path: Path) -> dict[str, Any]:
    made = analyse([str(path)], Options(), own_plugins(REFERENCES))
    report: dict[str, Any] = json.loads(JsonRenderer().render(made))
    return report


def _find(report: Any, path: str) -> list[Any]:
    """Every node that a path leads to."""
    nodes, end = [report], 0
    for step in _STEP.finditer(path):
        assert step.start() == end, f"no path: {path}"
        end = step.end()
        nodes = [found for node in nodes for found in _follow(node, step["key"], step["rows"])]
    assert end == len(path), f"no path: {path}"
    return nodes


def _follow(node: Any, key: str, rows: str | None) -> list[Any]:
    if key == "length" and isinstance(node, list):
        return [len(node)]
    if not isinstance(node, dict) or key not in node:
        return []
    child = node[key]
    if rows is None:
        return [child]
    wanted = [pair.split("=", 1) for pair in rows.split(",") if pair]
    return [row for row in child if all(str(_plain(row.get(k))) == v for k, v in wanted)]


def _plain(node: Any) -> Any:
    """What a value object stands for."""
    while isinstance(node, dict) and "value" in node:
        node = node["value"]
    return node


def _judge(check: dict[str, Any], report: dict[str, Any]) -> str | None:
    """What is wrong about the report; nothing when it is as expected."""
    nodes = _find(report, check["path"])
    found = [_plain(node) for node in nodes]
    known = [value for value in found if value is not None]
    tol = check.get("tol", 0)
    if "unknown" in check:
        good, wanted = not known, "not known"
    elif "equals" in check:
        good, wanted = bool(found) and all(_same(v, check["equals"], tol) for v in found), "equals"
    elif "in" in check:
        allowed = check["in"]
        good, wanted = all(any(_same(v, x, tol) for x in allowed) for v in found or [None]), "in"
    else:
        wanted = "at_most" if "at_most" in check else "at_least"
        bounds = [node.get(wanted) for node in nodes if isinstance(node, dict)]
        good = bool(bounds) and not known and all(_same(b, check[wanted], tol) for b in bounds)
        found = bounds
    if good:
        return None
    asked = " ".join([wanted, *([str(check[wanted])] if wanted in check else [])])
    why = f" ({check['why']})" if "why" in check else ""
    return f"  {check['path']}: {found or 'nothing there'}, should be {asked} ± {tol}{why}"


def _same(got: Any, wanted: Any, tol: float) -> bool:
    if got is None or isinstance(got, str | bool) or isinstance(wanted, str | None):
        return bool(got == wanted)
    return bool(abs(got - wanted) <= tol + 1e-9)
