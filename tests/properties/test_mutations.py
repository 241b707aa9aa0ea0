"""Golden logs with one line taken out: what the others say stays as it was, or becomes unknown.

Logs are cut, wrapped, filtered and rotated; a reader that fills the gap with another rank's figure,
the draft model's or the next capture's says a number that no line says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from .goldens import Figures, Report, figures_of, golden_logs, lines_of, original, report_of

FALLBACK = 0.7
"""How far another way to the same memory may differ (GiB): it also holds request tables, page
padding and the allocator's leftovers."""

START = re.compile(r"server_args=|API server version |args: |Initializing an? \w*\s?LLM engine")


@pytest.fixture(scope="module")
def shortened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each log's reports with each line taken out in turn; made once for all tests."""
    folder = tmp_path_factory.mktemp("shortened")

    @cache
    def reports(name: str) -> tuple[tuple[int, str, Report], ...]:
        lines = lines_of(name)
        made = (
            (number, line, report_of(lines[: number - 1] + lines[number:], folder))
            for number, line in enumerate(lines, 1)
        )
        return tuple((number, line, report) for number, line, report in made if report is not None)

    return reports


every_log = pytest.mark.parametrize("name", sorted(golden_logs()))


@every_log
def test_no_figure_changes(name: str, shortened: Any) -> None:
    """Known before and known after: the same, within both errors, or another way to it."""
    figures = figures_of(original(name))
    wrong = [
        f"{_said(number, line)}\n    {path}: {_shown(before)} became {_shown(after)}"
        for number, line, report in shortened(name)
        for path, before, after in _common(figures, figures_of(report))
        if ".steps[" not in path and not _may_become(before, after, path, report, original(name))
    ]
    _none(wrong)


@every_log
def test_what_was_unknown_stays_within_its_bounds(name: str, shortened: Any) -> None:
    """A line less tells no more: what appears was at best hidden by a contradiction."""
    figures = figures_of(original(name))
    wrong = [
        f"{_said(number, line)}\n    {path}: {_shown(before)} became {_shown(after)}"
        for number, line, report in shortened(name)
        for path, before, after in _common(figures, figures_of(report))
        if before["value"] is None and after["value"] is not None
        if after["origin"] != "derived" or not _within(after, before)
    ]
    _none(wrong)


@every_log
def test_bounds_hold_what_was_known(name: str, shortened: Any) -> None:
    figures = figures_of(original(name))
    wrong = [
        f"{_said(number, line)}\n    {path}: {_shown(before)} became {_shown(after)}"
        for number, line, report in shortened(name)
        for path, before, after in _common(figures, figures_of(report))
        if _number(before) is not None and after["value"] is None and not _within(before, after)
    ]
    _none(wrong)


@every_log
def test_a_minimum_over_ranks_that_are_not_all_shown_is_a_bound(name: str, shortened: Any) -> None:
    """Where a rank's pool was known and is not any more, it may have been the least."""
    pools = _pools(original(name))
    wrong = []
    for number, line, report in shortened(name):
        shown, size = _pools(report), report["kv_pool"]["size"]
        missing = [rank for rank in pools if rank not in shown]
        if missing and shown and (size["value"] is not None or "at_most" not in size):
            wrong.append(f"{_said(number, line)}\n    kv_pool.size, {missing}: {_shown(size)}")
    _none(wrong)


@every_log
def test_a_step_over_a_missing_reading_owns_what_its_parts_owned(name: str, shortened: Any) -> None:
    """Changes of free memory add up, and so does what no line explains of them."""
    wrong = []
    for number, line, report in shortened(name):
        before = {rank["id"]: rank for rank in original(name)["ranks"]}
        for rank in report["ranks"]:
            former = before.get(rank["id"], {"steps": [], "memory": rank["memory"]})
            # A state pool that no line tells counts as nothing (design/report.md).
            lost = former["memory"]["state_pool"]["value"] != rank["memory"]["state_pool"]["value"]
            for step in rank["steps"]:
                parts = _between(former["steps"], step["since"], step["until"])
                for field in ("change",) if lost else ("change", "unattributed"):
                    if said := _sum_differs([part[field] for part in parts], step[field]):
                        where = f"{rank['id']} {step['since']} … {step['until']} {field}"
                        wrong.append(f"{_said(number, line)}\n    {where}: {said}")
    _none(wrong)


@every_log
def test_runs_are_told_apart_by_start_lines_alone(name: str, shortened: Any) -> None:
    wrong = [
        _said(number, line)
        for number, line, report in shortened(name)
        if len(report["runs"]) != len(original(name)["runs"]) and not START.search(line)
    ]
    _none(wrong)


@every_log
def test_nothing_fails_and_nothing_contradicts(name: str, shortened: Any) -> None:
    """These servers started well, and their figures add up: a gap is no contradiction."""
    before = {finding["code"] for finding in original(name)["findings"]}
    wrong = [
        f"{_said(number, line)}\n    {finding['code']}: {finding['message']}"
        for number, line, report in shortened(name)
        for finding in report["findings"]
        if finding["severity"] != "info" and finding["code"] not in before
    ]
    wrong += [
        f"{_said(number, line)}\n    {report['outcome']['failure']}"
        for number, line, report in shortened(name)
        if report["outcome"]["failure"] is not None
    ]
    _none(wrong)


def _none(wrong: list[str]) -> None:
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


# --- what may differ --------------------------------------------------


def _may_become(
    before: dict[str, Any], after: dict[str, Any], path: str, report: Report, whole: Report
) -> bool:
    if before["value"] is None or after["value"] is None:
        return True
    old, new = _number(before), _number(after)
    if old is None or new is None:
        return bool(before["value"] == after["value"])
    slack = before["error"] + after["error"] + 1e-6
    if abs(old - new) <= slack:
        return True
    if path.endswith(".memory.unattributed"):
        # A state pool that no line tells counts as nothing in it (design/report.md).
        rank = path.rsplit(".", 1)[0] + ".state_pool"
        pool, now = figures_of(whole)[rank], figures_of(report)[rank]
        if pool["value"] is not None and now["value"] is None:
            return bool(abs(new - old - pool["value"]) <= slack)
    another_way = after["origin"] == "derived" and after["how"] != before["how"]
    return bool(before["unit"] == "GiB" and another_way and abs(old - new) < FALLBACK)


def _within(known: dict[str, Any], unknown: dict[str, Any]) -> bool:
    number = _number(known)
    if number is None:
        return True
    error = known["error"] + 1e-6
    low, high = unknown.get("at_least"), unknown.get("at_most")
    return (low is None or low <= number + error) and (high is None or number - error <= high)


def _sum_differs(parts: list[dict[str, Any]], whole: dict[str, Any]) -> str | None:
    """What is wrong when known parts do not add up to a known whole."""
    if not parts or whole["value"] is None or any(part["value"] is None for part in parts):
        return None
    total = sum(part["value"] for part in parts)
    error = sum(part["error"] for part in parts) + whole["error"]
    if abs(total - whole["value"]) <= error + 1e-6:
        return None
    return f"{total:.2f} in {len(parts)} steps became {_shown(whole)}"


# --- reading reports --------------------------------------------------


def _common(before: Figures, after: Figures) -> Iterator[tuple[str, dict[str, Any], Any]]:
    return ((path, value, after[path]) for path, value in before.items() if path in after)


def _pools(report: Report) -> dict[str, float]:
    """KV pool of each rank that tells it."""
    pools = {rank["id"]: rank["memory"]["kv_pool"]["value"] for rank in report["ranks"]}
    return {rank: size for rank, size in pools.items() if size is not None}


def _between(steps: list[dict[str, Any]], since: str, until: str) -> list[dict[str, Any]]:
    """The steps that lead from one reading to another; none when the readings are others."""
    first = next((n for n, step in enumerate(steps) if step["since"] == since), None)
    last = next((n for n, step in enumerate(steps) if step["until"] == until), None)
    return [] if first is None or last is None else steps[first : last + 1]


def _number(value: dict[str, Any]) -> float | None:
    amount = value["value"]
    return amount if isinstance(amount, int | float) and not isinstance(amount, bool) else None


def _shown(value: dict[str, Any]) -> str:
    if value["value"] is None:
        bounds = {key: value[key] for key in ("at_most", "at_least") if key in value}
        return f"unknown {bounds or ''}"
    return f"{value['value']} ± {value.get('error')} ({value['origin']}: {value['how']})"


def _said(number: int, line: str) -> str:
    return f"  without line {number}, {line[:60]} … {line[-60:].strip()}:"
