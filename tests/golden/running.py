"""Running the tool in this process on lines that a test wrote, and reading its JSON report."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.loader import Found, Plugins, load
from capacity_core.rendering.json import JsonRenderer

Report = dict[str, Any]

MODULES = {
    "deepseek-v4": "capacity_deepseek_v4",
    "gpu-specs": "capacity_gpu_specs",
    "kv-layouts": "capacity_kv_layouts",
    "legacy-fork": "capacity_legacy_fork",
    "process": "capacity_core.reading.process",
    "sglang": "capacity_sglang",
    "vllm": "capacity_vllm",
}
FIRST = "DP0/PP0/TP0"


@cache
def shipped_plugins() -> Plugins:
    """What the project ships, whatever else is installed here."""
    return load(
        [
            Found(name=name, module=module, load=partial(importlib.import_module, module))
            for name, module in MODULES.items()
        ]
    )


def report_on(folder: Path, lines: Iterable[str], **options: Any) -> Report:
    """The report on a log of these lines; carriage returns inside them stay."""
    path = folder / "server.log"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return report_of(path, **options)


def report_of(path: Path, **options: Any) -> Report:
    report = analyse([str(path)], Options(**options), shipped_plugins())
    parsed: Report = json.loads(JsonRenderer().render(report))
    return parsed


def rank_of(report: Report, name: str = FIRST) -> Report:
    found: list[Report] = [rank for rank in report["ranks"] if rank["id"] == name]
    assert len(found) == 1, [rank["id"] for rank in report["ranks"]]
    return found[0]


def memory(report: Report, category: str, rank: str = FIRST) -> Report:
    """One category of one rank, as the value object that the report has."""
    value: Report = rank_of(report, rank)["memory"][category]
    return value


def held(report: Report, category: str, rank: str = FIRST) -> float | None:
    value: float | None = memory(report, category, rank)["value"]
    return value


def by_rank(report: Report, category: str) -> dict[str, float | None]:
    return {rank["id"]: rank["memory"][category]["value"] for rank in report["ranks"]}


def parts(report: Report, category: str, rank: str = FIRST) -> list[tuple[str, float | None]]:
    """Role and GiB of every part of a category."""
    found = rank_of(report, rank)["parts"]
    return [(p["role"], p["size"]["value"]) for p in found if p["category"] == category]


def timeline(report: Report, rank: str = FIRST) -> list[tuple[str, float]]:
    """Stage and free memory of the served model, in the order of the log."""
    points = rank_of(report, rank)["timeline"]
    return [(p["stage"], p["free"]["value"]) for p in points if p.get("role", "target") == "target"]


def row_of(report: Report, length: int) -> Report:
    rows: list[Report] = report["concurrency"]["rows"]
    return next(row for row in rows if row["request_tokens"] == length)


def found(report: Report, *codes: str) -> list[Report]:
    """The findings of these codes; without any, all warnings and errors."""
    return [
        finding
        for finding in report["findings"]
        if finding["code"] in codes or (not codes and finding["severity"] != "info")
    ]


def is_unknown(value: Report) -> bool:
    """Whether a value is unknown in the way of the contract: null, and a reason with it."""
    return value["value"] is None and bool(value["why"])


def gib(value: float) -> Any:
    return pytest.approx(value, abs=0.0011)
