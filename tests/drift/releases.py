"""The source of released engines, as their wheels on the package index hold it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = "CAPACITY_DRIFT_CACHE"
"""The variable that names a folder in which unpacked sources are kept from run to run."""

# Wheels are only unpacked: any Python and any of these platforms will do.
_PLATFORMS = ("manylinux1", "manylinux2014", *(f"manylinux_2_{n}" for n in (28, 31, 34, 35, 39)))


@contextmanager
def source(package: str, version: str) -> Iterator[Path]:
    """A folder that holds the Python files of a release of a package.

    Raises RuntimeError with pip's own words when the release cannot be had.
    """
    kept = os.environ.get(CACHE)
    if kept:
        folder = Path(kept) / f"{package}-{version}"
        if not folder.is_dir():
            _unpack(package, version, folder)
        yield folder
        return
    with tempfile.TemporaryDirectory() as folder:
        _unpack(package, version, Path(folder))
        yield Path(folder)


def _unpack(package: str, version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version=3.11", f"--dest={downloads}"]
        command += [f"--platform={platform}_x86_64" for platform in _PLATFORMS]
        done = subprocess.run(
            [*command, f"{package}=={version}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"pip download {package}=={version}: {done.stderr.strip()}")
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            modules = [name for name in archive.namelist() if name.endswith(".py")]
            archive.extractall(folder, modules)
