"""The report as JSON: attribute names are keys, every value is an object with its provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Any

import attrs

from capacity_core.api.report import ABSENT, VIEW_ONLY, CategoryRow, Report
from capacity_core.units import BYTES
from capacity_core.values import Known, Unknown


@attrs.frozen
class JsonRenderer:
    name: str = "json"

    def render(self, report: Report) -> str:
        return json.dumps(to_plain(report), indent=1, ensure_ascii=False) + "\n"


def to_plain(node: Any) -> Any:
    """Dicts, lists, strings and numbers in the shape of the contract."""
    if isinstance(node, Report):
        return _report(node)
    if isinstance(node, Known | Unknown):
        return _value(node)
    if isinstance(node, CategoryRow):
        return _category(node)
    if isinstance(node, Enum):
        return node.value
    if isinstance(node, Decimal):
        return _number(node, whole=False)
    if isinstance(node, Mapping):
        return {key: to_plain(value) for key, value in node.items()}
    if isinstance(node, tuple | list):
        return [to_plain(item) for item in node]
    if attrs.has(type(node)):
        fields = {field.name: getattr(node, field.name) for field in attrs.fields(type(node))}
        return {name: to_plain(item) for name, item in fields.items() if item is not ABSENT}
    return node


def _report(report: Report) -> dict[str, Any]:
    """The top level; what only other views need is left out, and the version takes its range in."""
    plain: dict[str, Any] = {
        field.name: to_plain(getattr(report, field.name))
        for field in attrs.fields(Report)
        if field.name not in VIEW_ONLY and getattr(report, field.name) is not ABSENT
    }
    plain["tool"] = {"name": "capacity", "version": report.tool}
    if report.version_range.range is not None:
        version = plain["deployment"]["framework_version"]
        if version["value"] is None:
            version["range"] = list(report.version_range.range)
    return plain


def _value(value: Known | Unknown) -> dict[str, object]:
    unit = value.unit.symbol if value.unit else None
    if isinstance(value, Unknown):
        bounds = {"at_most": value.at_most, "at_least": value.at_least}
        return {
            "value": None,
            "unit": unit,
            **{k: _number(v, whole=False) for k, v in bounds.items() if v is not None},
            "why": value.why,
            "evidence": list(value.evidence),
        }
    plain: dict[str, object] = {"value": value.amount, "unit": unit}
    if isinstance(value.amount, Decimal):
        whole = value.unit is not None and (value.unit.counts or value.unit is BYTES)
        plain["value"] = _number(value.amount, whole=whole)
        plain["error"] = _number(value.error, whole=False)
    plain["origin"] = value.origin.value
    plain["how"] = value.how
    plain["evidence"] = list(value.evidence)
    if value.assuming:
        plain["assuming"] = list(value.assuming)
    return plain


def _category(row: CategoryRow) -> dict[str, object]:
    plain = _value(row.value)
    extra = {"share": row.share, "inside": row.inside, "note": row.note}
    return plain | {key: to_plain(item) for key, item in extra.items() if item is not None}


def _number(amount: Decimal, *, whole: bool) -> int | float:
    if whole or amount == amount.to_integral_value():
        return int(amount)
    return round(float(amount), 6)
