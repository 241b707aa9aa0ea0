"""`capacity analyze`: options in both spellings, streams, exit codes, files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SGLANG, Capacity

SMI = "0, 70000 MiB, 11080 MiB\n"
CONFIG = (
    '{"model_type": "qwen3", "num_hidden_layers": 32, "num_attention_heads": 32,'
    ' "num_key_value_heads": 8, "hidden_size": 4096, "head_dim": 128}'
)


def test_text_report_has_every_section_in_order_and_fits_100_columns(
    capacity: Capacity, sglang_log: str, tmp_path: Path
) -> None:
    (tmp_path / "smi.txt").write_text(SMI)
    done = capacity("analyze", sglang_log, "--smi", "smi.txt")
    assert (done.code, done.err) == (0, "")
    heads = (
        "Serving configuration",
        "Memory breakdown",
        "Ranks side by side",
        "KV pool",
        "Concurrency",
        "Tuning notes",
        "SGLang startup evidence",
    )
    places = [done.out.index(f"\n{head}") for head in heads]
    assert places == sorted(places)
    assert max(map(len, done.out.splitlines())) <= 100


def test_both_spellings_of_the_seed_invocation_give_one_report(
    capacity: Capacity, sglang_log: str, tmp_path: Path
) -> None:
    (tmp_path / "smi.txt").write_text(SMI)
    (tmp_path / "config.json").write_text(CONFIG)
    seed = capacity(
        *("analyze", "--log-file", sglang_log, "--nvidia-smi-file", "smi.txt", "--gpu", "h100"),
        *("--config-json", "config.json", "--target-rank", "0", "--format", "json"),
    )
    ours = capacity(
        *("analyze", sglang_log, "--smi", "smi.txt", "--gpu", "h100"),
        *("--config", "config.json", "--rank", "TP0", "--format", "json"),
    )
    assert (seed.code, ours.code) == (0, 0)
    assert seed.report == ours.report
    layout = ours.report["kv_pool"]["layout"]
    # 32 layers · 8 KV heads · (128 + 128) elements · 2 bytes
    assert layout["bytes_per_token"]["value"] == 32 * 8 * 256 * 2


def test_breakdown_with_a_device_reading_adds_up_to_used(
    capacity: Capacity, sglang_log: str, tmp_path: Path
) -> None:
    (tmp_path / "smi.txt").write_text(SMI)
    report = capacity("analyze", sglang_log, "--smi", "smi.txt", "--format", "json").report
    memory = report["ranks"][0]["memory"]
    used, capacity_gib = 70000 / 1024, (70000 + 11080) / 1024
    assert memory["used"]["value"] == pytest.approx(used, abs=1e-4)
    assert memory["framework"]["value"] == pytest.approx(capacity_gib - 78.50, abs=1e-4)
    held = sum(memory[c]["value"] for c in ("weights", "kv_pool", "cuda_graph", "framework"))
    assert held == pytest.approx(15.5 + 50.0 + 1.2 + capacity_gib - 78.5, abs=1e-4)
    assert memory["other"]["value"] == pytest.approx(used - held, abs=1e-4)
    assert memory["unattributed"]["value"] == pytest.approx(78.5 - 11.5 - 15.5 - 50 - 1.2, abs=1e-6)
    assert sum(
        memory[c]["share"] for c in ("weights", "kv_pool", "cuda_graph", "framework", "other")
    ) == (pytest.approx(1, abs=1e-3))


def test_concurrency_takes_the_lesser_of_tokens_and_requests(
    capacity: Capacity, sglang_log: str
) -> None:
    done = capacity("analyze", sglang_log, "--request-tokens", "4k,8192,65536", "--format", "json")
    short, long, beyond = done.report["concurrency"]["rows"]
    assert short["token_limit"]["value"] == 409599 // 4096 == 99
    assert (short["max_concurrent"]["value"], short["bound_by"]) == (64, "requests")
    assert (long["max_concurrent"]["value"], long["bound_by"]) == (409599 // 8192, "tokens")
    assert beyond["max_concurrent"]["value"] is None
    assert "context length" in beyond["max_concurrent"]["why"]
    assert done.report["kv_pool"]["bytes_per_token"]["value"] == pytest.approx(131072, abs=1)


def test_stdin_files_and_a_closed_pipe(capacity: Capacity, sglang_log: str, tmp_path: Path) -> None:
    piped = capacity("analyze", "-", "--format", "json", stdin=SGLANG.encode())
    assert piped.report["kv_pool"]["tokens"]["value"] == 409599
    written = capacity("analyze", sglang_log, "-o", "out.txt")
    assert (written.code, written.out) == (0, "")
    assert (tmp_path / "out.txt").read_text().startswith("SGLang")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".capacity")] == []
    code = "from capacity_core.cli import main; main()"
    shell = f"{sys.executable} -c '{code}' analyze {tmp_path / sglang_log} | head -n 1"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("analyze",), 2, "no log was named"),
        (("analyze", "missing.log"), 1, "missing.log: cannot be read"),
        (("analyze", "."), 1, "is a directory"),
        (("analyze", "empty.log"), 1, "empty"),
        (("analyze", "prose.log"), 1, "no start-up line of SGLang or vLLM"),
        (("analyze", "server.log", "--smi", "missing.txt"), 1, "missing.txt"),
        (("analyze", "server.log", "--smi", "prose.log"), 1, "nvidia-smi --query-gpu="),
        (("analyze", "server.log", "--config", "missing.json"), 1, "missing.json"),
        (("analyze", "server.log", "--config", "prose.log"), 1, "is no JSON"),
        (("analyze", "server.log", "--config", "list.json"), 1, "JSON list"),
        (("analyze", "server.log", "--gpu", "foo9000"), 2, "nearest names"),
        (("analyze", "server.log", "--gpu", "h20000"), 2, "devices: h200"),
        (("analyze", "server.log", "--rank", "TP9"), 2, "there are: DP0/PP0/TP0"),
        (("analyze", "server.log", "--rank", "all"), 2, "there are: DP0/PP0/TP0"),
        (("analyze", "server.log", "--run", "7"), 2, "runs 0 to 0"),
        (("analyze", "server.log", "--format", "yaml"), 2, "json, text"),
        (("analyze", "server.log", "--request-tokens", "0"), 2, "no positive number"),
        (("analyze", "server.log", "--request-tokens", "4096,-5"), 2, "no positive number"),
        (("analyze", "server.log", "--disable-plugin", "nobody"), 2, "no plugin is named nobody"),
        (("analyze", "server.log", "-o", "no/such/folder.txt"), 1, "cannot be written"),
        (("analyze", "server.log", "-o", "."), 1, "cannot be written"),
        (("analyze", "server.log", "--smi", ""), 1, "cannot be read"),
        (("analyze", "server.log", "--layout", "latent"), 2, "give one with --config"),
        (("analyze", "server.log", "--rank", "TP0/TP1"), 2, "there are: DP0/PP0/TP0"),
        (("analyze", "server.log", "--rank", "²"), 2, "there are: DP0/PP0/TP0"),
        (("analyze", "server.log", "--request-tokens", "9" * 5000), 2, "no positive number"),
        (("gpus", "foo9000"), 2, "no device is named 'foo9000'"),
    ],
)
def test_a_mistake_is_one_clear_line_and_an_exit_code(
    capacity: Capacity, sglang_log: str, tmp_path: Path, args: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "prose.log").write_text("Dear diary,\nnothing happened today.\n")
    (tmp_path / "list.json").write_text("[1, 2]")
    done = capacity(*args)
    assert done.code == code
    assert said in done.err
    assert done.out == ""
    assert "Traceback" not in done.err
    assert not list(tmp_path.glob(".capacity-*"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_what_cannot_be_printed_is_said_in_one_line(sglang_log: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from capacity_core.cli import main; main()", "analyze"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [*command, sglang_log], stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, check=False
        )
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "capacity: stdout cannot be written: No space left on device."
    ]


@pytest.mark.parametrize(
    ("argument", "absurd"),
    [
        ("dp_size=1", "dp_size=999999999999"),
        ("tp_size=1", "tp_size=1e999999999"),
        ("tp_size=1", "tp_size=nan"),
        ("pp_size=1", "pp_size=" + "9" * 5000),
        ("avail mem=78.50 GB", "avail mem=0.00 GB"),
    ],
)
def test_an_absurd_figure_is_no_fault_of_a_plugin(
    capacity: Capacity, tmp_path: Path, argument: str, absurd: str
) -> None:
    (tmp_path / "server.log").write_text(SGLANG.replace(argument, absurd))
    done = capacity("analyze", "server.log", "--format", "json")
    assert (done.code, done.err) == (0, "")
    if "_size" in absurd:
        name = {"dp": "data", "tp": "tensor", "pp": "pipeline"}[absurd[:2]]
        assert done.report["deployment"]["parallel"][name]["value"] is None


def test_several_logs_are_not_dropped_in_silence(
    capacity: Capacity, sglang_log: str, tmp_path: Path
) -> None:
    (tmp_path / "other.log").write_text(SGLANG)
    report = capacity("analyze", sglang_log, "other.log", "--format", "json").report
    said = [f for f in report["findings"] if f["code"] == "log-not-in-report"]
    assert [finding["evidence"] for finding in said] == [["log0"]]


def test_every_command_has_help_with_an_example(capacity: Capacity) -> None:
    for args in ((), ("analyze",), ("gpus",), ("plugins",), ("plugins", "list")):
        done = capacity(*args, "--help")
        assert done.code == 0
        assert "Example" in done.out


def test_gpus_lists_and_resolves(capacity: Capacity) -> None:
    assert "h200" in capacity("gpus").out
    shown = capacity("gpus", "NVIDIA H200")
    assert "never computed with" in shown.out
    assert "https://" in shown.out
    assert capacity("gpus", "foo9000").code == 2
