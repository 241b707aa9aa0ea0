"""The command as a user runs it: a process, its streams and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest


@attrs.frozen
class Done:
    """What a call of the command left behind."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> Any:
        return json.loads(self.out)


Capacity = Callable[..., Done]


@pytest.fixture
def capacity(tmp_path: Path) -> Capacity:
    """Run `capacity ARGS…` in a folder of its own; `path=` adds import paths, `env=` variables."""

    def run(
        *args: str, stdin: bytes = b"", path: str = "", env: dict[str, str] | None = None
    ) -> Done:
        done = subprocess.run(
            [sys.executable, "-c", "from capacity_core.cli import main; main()", *args],
            input=stdin,
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


_STAMP = "[2026-01-02 03:04:05] "

SGLANG = "".join(
    f"{_STAMP}{message}\n"
    for message in (
        "server_args=ServerArgs(model_path='/models/small', tp_size=1, pp_size=1, dp_size=1, "
        "ep_size=1, nnodes=1, page_size=1, mem_fraction_static=0.88, kv_cache_dtype='auto', "
        "quantization=None)",
        "Load weight begin. avail mem=78.50 GB",
        "Load weight end. elapsed=9.50 s, type=SmallForCausalLM, avail mem=63.00 GB, "
        "mem usage=15.50 GB.",
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 409599, K size: 25.00 GB, "
        "V size: 25.00 GB",
        "Memory pool end. avail mem=12.90 GB",
        "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2], "
        "avail mem=12.80 GB",
        "Capture target decode CUDA graph end. elapsed=9.90 s, mem usage=1.20 GB, "
        "avail mem=11.60 GB.",
        "max_total_num_tokens=409599, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=64, context_len=32768, available_gpu_mem=11.50 GB",
        "The server is fired up and ready to roll!",
    )
)


@pytest.fixture
def sglang_log(tmp_path: Path) -> str:
    """One GPU; K + V over tokens + page is 131,072 bytes a token: 50 GiB / 409,600."""
    (tmp_path / "server.log").write_text(SGLANG)
    return "server.log"
