"""The generated tables of references/ are in step with what the project's plugins register."""

from __future__ import annotations

from pathlib import Path

import pytest

from capacity_core.api.matchers import Matcher
from capacity_core.errors import UnusableInput
from capacity_core.loader import Plugins
from capacity_core.testing.reference import (
    BEGIN,
    END,
    PAGE,
    between_markers,
    log_patterns,
    own_plugins,
    rewritten,
)

REFERENCES = Path(__file__).parents[2] / "references"


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return own_plugins(REFERENCES)


@pytest.fixture(scope="module")
def page() -> str:
    return (REFERENCES / PAGE).read_text(encoding="utf-8")


def test_log_patterns_are_in_step(plugins: Plugins, page: str) -> None:
    assert between_markers(page) == log_patterns(plugins), (
        "references/log-patterns.md is stale: run "
        "python -m capacity_core.testing.reference references/"
    )


def test_every_matcher_has_a_row(plugins: Plugins, page: str) -> None:
    rows = [line.split("`")[1] for line in between_markers(page).splitlines() if "| `" in line[:3]]
    assert sorted(rows) == sorted(matcher.name for matcher in plugins.matchers)


def test_every_row_has_as_many_cells_as_its_header(page: str) -> None:
    rows = [line for line in between_markers(page).splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in rows} == {6}


def test_every_matcher_says_what_it_means(plugins: Plugins) -> None:
    """The reference has nothing else to say of a message."""
    silent: list[Matcher] = [m for m in plugins.matchers if not m.means or not m.samples]
    assert [matcher.name for matcher in silent] == []


def test_rewriting_touches_nothing_else() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = rewritten(page, "new | x")
    assert once == f"before\n{BEGIN}\n\nnew | x\n\n{END}\nafter\n"
    assert rewritten(once, "new | x") == once


@pytest.mark.parametrize("page", ["", f"{BEGIN}\n", f"{END}\n{BEGIN}\n"])
def test_a_page_without_markers_is_refused(page: str) -> None:
    with pytest.raises(UnusableInput, match="in this order"):
        rewritten(page, "x")
