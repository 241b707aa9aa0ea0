"""What a start of the command imports: help loads no plugin, and no module that only a report
needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROBE = """
import json, sys
sys.argv = ["capacity", *{args!r}]
from capacity_core.cli import main
try:
    main()
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def modules_after(*args: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(args=list(args))],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("analyze", "--help")])
def test_help_loads_no_plugin(args: tuple[str, ...]) -> None:
    loaded = modules_after(*args)
    plugins = {
        name
        for name in loaded
        if name.startswith("capacity_") and not name.startswith("capacity_core")
    }
    assert plugins == set()
    assert "tabulate" not in loaded
    assert "ahocorasick_rs" not in loaded
    assert "capacity_core.analysis" not in loaded


def test_the_package_itself_imports_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); import capacity_core; "
        "print(len(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
