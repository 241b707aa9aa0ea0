"""references/findings.md lists every finding and advice that the code can emit, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "references" / "findings.md"

_CODE = re.compile(r'(?:\bcode=|\b_finding\(\s*)"([a-z0-9-]+)"(?:,\s*severity=Severity\.([A-Z]+))?')
_ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (\w+) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)


def _emitted() -> dict[str, str | None]:
    """Every code in the sources, with its severity where it stands beside it."""
    sources = [
        *(ROOT / "capacity_core").rglob("*.py"),
        *ROOT.glob("plugins/*/src/**/*.py"),
    ]
    found: dict[str, str | None] = {}
    for path in sources:
        for code, severity in _CODE.findall(path.read_text(encoding="utf-8")):
            found[code] = severity.lower() or found.get(code)
    return found


def _listed() -> dict[str, str]:
    return dict(_ROW.findall(PAGE.read_text(encoding="utf-8")))


def test_every_emitted_code_is_listed() -> None:
    assert sorted(set(_emitted()) - set(_listed())) == []


def test_every_listed_code_is_emitted() -> None:
    assert sorted(set(_listed()) - set(_emitted())) == []


def test_no_code_is_listed_twice() -> None:
    codes = [code for code, _ in _ROW.findall(PAGE.read_text(encoding="utf-8"))]
    assert sorted(codes) == sorted(set(codes))


@pytest.mark.parametrize(
    ("code", "severity"), [(code, said) for code, said in _emitted().items() if said]
)
def test_severities_are_as_listed(code: str, severity: str) -> None:
    assert _listed().get(code) == severity


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ('Finding(code="a-b", severity=Severity.INFO)', "a-b"),
        ('Finding(\n    code="a-b",\n    severity=Severity.INFO,\n)', "a-b"),
        ('return {}, [_finding("a-b", why, readings)]', "a-b"),
    ],
)
def test_the_ways_in_which_sources_write_a_code(source: str, code: str) -> None:
    assert [found for found, _ in _CODE.findall(source)] == [code]
