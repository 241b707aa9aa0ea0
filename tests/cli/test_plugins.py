"""Strangers' plugins: a fork changes the report as it should, a broken one leaves the others
intact."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Capacity

FORK = """
from __future__ import annotations

from capacity_core.api import Matcher, Prefix, Sample, hookimpl
from capacity_sglang.pools import PoolAllocated

POOL_READY = Matcher(
    name="acmefork.pool_ready",
    anchor="pool ready:",
    pattern=r"pool ready: (?P<tokens>\\d+) tokens",
    event=PoolAllocated,
    samples=(Sample("pool ready: 4096 tokens", PoolAllocated(tokens=4096)),),
)


@hookimpl
def capacity_matchers() -> tuple[Matcher, ...]:
    return (POOL_READY,)
"""

FORK_PREFIX = """

@hookimpl
def capacity_prefixes() -> tuple[Prefix, ...]:
    return (Prefix(name="acmefork.gpu", framework="sglang", pattern=r"<gpu (?P<tp>[0-9]+)>"),)
"""

FORK_LOG = """\
<gpu 0> Load weight begin. avail mem=78.50 GB
<gpu 1> Load weight begin. avail mem=78.40 GB
<gpu 0> pool ready: 4096 tokens
<gpu 1> pool ready: 4096 tokens
"""


def install(folder: Path, name: str, source: str) -> str:
    """A distribution on disk, as pip leaves it; the folder to put on the import path."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[capacity_core.v1]\n{name} = {name}\n")
    return str(folder)


def test_a_forks_matcher_and_prefix_change_the_report(capacity: Capacity, tmp_path: Path) -> None:
    (tmp_path / "fork.log").write_text(FORK_LOG)
    without = capacity("analyze", "fork.log", "--format", "json").report
    assert without["kv_pool"]["tokens"]["value"] is None
    assert [rank["id"] for rank in without["ranks"]] == ["DP0/PP0/TP0"]

    plain = tmp_path / "plain"
    plain.mkdir()
    path = install(plain, "acmefork", FORK)
    worded = capacity("analyze", "fork.log", "--format", "json", path=path)
    assert worded.code == 0
    assert worded.report["kv_pool"]["pools"][0]["tokens"]["value"] == 4096

    prefixed = tmp_path / "prefixed"
    prefixed.mkdir()
    path = install(prefixed, "acmefork", FORK + FORK_PREFIX)
    report = capacity("analyze", "fork.log", "--format", "json", path=path).report
    frees = {rank["id"]: rank["timeline"][0]["free"]["value"] for rank in report["ranks"]}
    assert frees == {"DP0/PP0/TP0": 78.5, "DP0/PP0/TP1": 78.4}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise RuntimeError('broken at import')\n", "broken at import"),
        ("raise SystemExit(5)\n", "SystemExit"),
        (FORK.replace("capacity_matchers", "capacity_machters"), "capacity_machters"),
        (FORK.replace("return (POOL_READY,)", "return [POOL_READY]"), "not a tuple"),
        (FORK.replace("return (POOL_READY,)", 'return ("pool ready",)'), "not a Matcher"),
    ],
)
def test_a_broken_plugin_is_named_and_the_report_of_the_others_is_intact(
    capacity: Capacity, sglang_log: str, tmp_path: Path, source: str, why: str
) -> None:
    whole = capacity("analyze", sglang_log, "--format", "json").report
    folder = tmp_path / "broken"
    folder.mkdir()
    path = install(folder, "brokenfork", source)
    done = capacity("analyze", sglang_log, "--format", "json", path=path)
    assert done.code == 3
    assert "brokenfork" in done.err
    assert why in done.err
    (row,) = [row for row in done.report["plugins"] if row["name"] == "brokenfork"]
    assert row["status"] == "failed"
    assert why in row["error"]
    without_plugins = {key: value for key, value in done.report.items() if key != "plugins"}
    assert without_plugins == {key: value for key, value in whole.items() if key != "plugins"}
    assert "brokenfork" in capacity("analyze", sglang_log, path=path).out
    listed = capacity("plugins", "list", path=path)
    assert listed.code == 3
    assert "failed" in listed.out
    assert capacity("analyze", sglang_log, "--disable-plugin", "brokenfork", path=path).code == 0
    strict = capacity("analyze", sglang_log, path=path, env={"CAPACITY_STRICT_PLUGINS": "1"})
    assert (strict.code, strict.out) == (3, "")


def test_an_extractor_that_raises_leaves_a_report_and_exit_3(
    capacity: Capacity, sglang_log: str, tmp_path: Path
) -> None:
    source = """
from __future__ import annotations

import attrs
from capacity_core.api import Matcher, Sample, hookimpl


@attrs.frozen(kw_only=True)
class Up:
    pass


class Extractor:
    framework, title, events = "acme", "ACME", (Up,)

    def starts_run(self, run, sighting):
        return False

    def extract(self, run):
        raise ValueError("no idea")


@hookimpl
def capacity_matchers():
    return (
        Matcher(
            name="acme.up",
            anchor="ready to roll",
            pattern="to roll",
            event=Up,
            samples=(Sample("ready to roll", Up()),),
        ),
    )


@hookimpl
def capacity_extractors():
    return (Extractor(),)
"""
    folder = tmp_path / "acme"
    folder.mkdir()
    path = install(folder, "acmeframe", source)
    done = capacity("analyze", sglang_log, "--format", "json", path=path)
    assert done.code == 3
    assert "acmeframe" in done.err
    assert done.report["kv_pool"]["tokens"]["value"] == 409599
    codes = {finding["code"] for finding in done.report["findings"]}
    assert {"plugin-failed", "matcher-clash"} <= codes


def test_only_plugins_leaves_the_others_out_but_visible(
    capacity: Capacity, sglang_log: str
) -> None:
    done = capacity("analyze", sglang_log, "--only-plugins", "sglang", "--format", "json")
    assert done.code == 0
    status = {row["name"]: row["status"] for row in done.report["plugins"]}
    assert status["vllm"] == "disabled"
    assert status["sglang"] == status["renderers"] == "active"
