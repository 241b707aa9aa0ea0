"""`capacity explain` and `analyze --unmatched`: what a line was read as, what a value rests on, and
which lines nobody knew. Figures are those of the small log in conftest."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.cli import main
from capacity_core.explanation import explain_value
from capacity_core.rendering.explanation import value_json
from capacity_core.rendering.json import JsonRenderer
from capacity_core.testing.reference import own_plugins

from .conftest import SGLANG, Capacity, Done

ROOT = Path(__file__).parents[2]
LINES = SGLANG.splitlines()
STAMP = "[2026-01-02 03:04:05] "

Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process, in a folder with the small log."""
    (tmp_path / "server.log").write_text(SGLANG)
    monkeypatch.chdir(tmp_path)

    def call(*args: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["capacity", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        streams = capsys.readouterr()
        return Done(int(ended.value.code or 0), streams.out, streams.err)

    return call


def write(folder: Path, name: str, lines: Sequence[str]) -> str:
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return name


def flat(text: str) -> str:
    """Without the line breaks of a paragraph."""
    return " ".join(text.split())


def explained(run: Run, log: str, line: int | str) -> Any:
    done = run("explain", log, "--line", str(line), "--format", "json")
    assert (done.code, done.err) == (0, "")
    return done.report


def reading(story: Any) -> dict[str, dict[str, str]]:
    """Matcher and fields of what was read."""
    return {row["matcher"]: row["fields"] for row in story["attempts"] if row["used"]}


def missed(story: Any) -> dict[str, Any]:
    return {row["matcher"]: row for row in story["attempts"] if row["fields"] is None}


# --- a line -----------------------------------------------------------


def test_a_line_that_was_read(run: Run) -> None:
    done = run("explain", "server.log", "--line", "3")

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("log0:3\n")
    assert LINES[2] in flat(done.out)
    assert "speaker: [2026-01-02 03:04:05]" in done.out
    assert (
        "sglang.weights_loaded: read it\n"
        "  free = 63.00, used = 15.50, model_class = SmallForCausalLM\n"
    ) in done.out
    assert max(map(len, done.out.splitlines())) <= 100


def test_a_line_that_was_read_as_json(run: Run) -> None:
    story = explained(run, "server.log", 3)

    assert set(story) == {"line", "text", "speaker", "attempts"}
    assert (story["line"], story["text"]) == ("log0:3", LINES[2])
    assert story["speaker"] == STAMP.strip()
    assert reading(story) == {
        "sglang.weights_loaded": {
            "free": "63.00",
            "used": "15.50",
            "model_class": "SmallForCausalLM",
        }
    }
    for row in story["attempts"]:
        assert set(row) == {"matcher", "used", "fields", "reached", "expected"}
    names = [row["matcher"] for row in story["attempts"]]
    assert names == sorted(names)


@pytest.mark.parametrize("number", range(1, len(LINES) + 1))
def test_every_line_is_found_by_its_number(run: Run, number: int) -> None:
    story = explained(run, "server.log", number)

    assert story["text"] == LINES[number - 1]
    assert reading(story), "every line of this log is known"


@pytest.mark.parametrize(
    ("message", "matcher", "reached", "expected"),
    [
        (
            "Load weight begin. avail mem=many GB",
            "sglang.weights_begin",
            "Load weight begin. avail mem=",
            " GB",
        ),
        (
            "Load weight begin. avail mem=78.50 MB",
            "sglang.weights_begin",
            "Load weight begin. avail mem=78.50 ",
            "GB",
        ),
        (
            "Load weight begin. free mem=78.50 GB",
            "sglang.weights_begin",
            "Load weight begin. ",
            " GB",
        ),
    ],
    ids=["no number", "another unit", "another word"],
)
def test_a_near_miss_tells_how_far_its_pattern_got(
    run: Run, tmp_path: Path, message: str, matcher: str, reached: str, expected: str
) -> None:
    log = write(tmp_path, "near.log", ["hello", STAMP + message])
    story = explained(run, log, 2)

    assert reading(story) == {}
    row = missed(story)[matcher]
    assert row["used"] is False
    assert row["reached"] == reached
    assert row["expected"].endswith(expected)
    text = run("explain", log, "--line", "2").out
    assert f"{matcher}: near miss\n  took   {reached!r}\n  wanted " in text


def test_a_line_with_two_messages_has_both(run: Run, tmp_path: Path) -> None:
    """Of two processes that wrote at once."""
    log = write(tmp_path, "two.log", [LINES[1] + LINES[4]])
    story = explained(run, log, 1)

    assert reading(story) == {
        "sglang.weights_begin": {"free": "78.50"},
        "sglang.pools_ready": {"free": "12.90"},
    }


def test_a_line_with_one_message_of_two_ranks_has_both(run: Run, tmp_path: Path) -> None:
    """The report has 78.50 of one and 77.25 of the other."""
    glued = "".join(
        f"[2026-01-02 03:04:05 TP{tp}] Load weight begin. avail mem={free} GB"
        for tp, free in ((0, "78.50"), (1, "77.25"))
    )
    log = write(tmp_path, "same.log", [glued])
    done = run("explain", log, "--line", "1", "--format", "json")

    fields = [row["fields"] for row in done.report["attempts"] if row["used"]]
    assert "78.50" in str(fields)
    assert "77.25" in str(fields)


def test_a_line_of_nobody(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path, "other.log", ["hello", "INFO:     Uvicorn running on http://1.2.3.4:1"])
    story = explained(run, log, 1)

    assert (story["text"], story["speaker"], story["attempts"]) == ("hello", "", [])
    text = run("explain", log, "--line", "1").out
    assert "speaker: nobody" in text
    assert "no matcher's anchor stands in this line" in text


def test_a_line_of_the_second_log(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "other.log", ["one", "two", LINES[4]])
    done = run("explain", "server.log", "other.log", "--line", "log1:3", "--format", "json")

    assert (done.report["line"], done.report["text"]) == ("log1:3", LINES[4])
    first = run("explain", "server.log", "other.log", "--line", "log0:3", "--format", "json")
    assert first.report["text"] == LINES[2]
    bare = run("explain", "server.log", "other.log", "--line", "3", "--format", "json")
    assert bare.report["line"] == "log0:3"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("0", "9 lines"),
        ("10", "9 lines"),
        ("999999999999", "9 lines"),
        ("log0:10", "9 lines"),
        ("log1:1", "no log1"),
        ("log9999:1", "no log9999"),
        ("abc", "write a number"),
        ("-3", "write a number"),
        ("1.5", "write a number"),
        ("log0:", "write a number"),
        ("log0", "write a number"),
        ("smi0:1", "write a number"),
        ("1-3", "write a number"),
        ("", "write a number"),
        ("²", "write a number"),
        ("9" * 5000, "write a number"),
    ],
)
def test_a_line_that_is_not_there_is_wrong_usage(run: Run, spec: str, said: str) -> None:
    done = run("explain", "server.log", f"--line={spec}")

    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert said in done.err
    assert "--line" in done.err


@pytest.mark.parametrize("ending", ["\n", ""], ids=["ended", "open"])
def test_the_last_line_is_one_whether_it_is_ended_or_not(
    run: Run, tmp_path: Path, ending: str
) -> None:
    (tmp_path / "open.log").write_text("one\ntwo\nthree" + ending)

    assert explained(run, "open.log", 3)["text"] == "three"
    done = run("explain", "open.log", "--line", "4")
    assert done.code == 2
    assert "3 lines" in done.err


def test_a_number_that_the_end_may_have_cut_is_not_read(run: Run, tmp_path: Path) -> None:
    """As in the report: of 11.50 GB the copy has 11.5, or 11."""
    (tmp_path / "cut.log").write_text("\n".join(LINES[:4]) + f"\n{STAMP}# GPU blocks: 12")
    report = run("analyze", "cut.log", "--format", "json").report
    read = [row["matcher"] for row in report["evidence"] if row["id"] == "log0:5"]

    assert list(reading(explained(run, "cut.log", 5))) == read


def test_lines_of_a_log_in_chunks(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capacity_core.reading.sources.CHUNK", 33)
    for number in (1, 5, 9):
        assert explained(run, "server.log", number)["text"] == LINES[number - 1]


def test_a_line_far_down_in_a_large_log(run: Run, tmp_path: Path) -> None:
    filler = [f"INFO:     127.0.0.1:{n} - POST /generate HTTP/1.1 200 OK" for n in range(120_000)]
    log = write(tmp_path, "large.log", [*filler, LINES[2], "end"])

    assert (tmp_path / log).stat().st_size > 4 * 1024 * 1024
    assert explained(run, log, 120_001)["text"] == LINES[2]
    assert explained(run, log, 60_000)["text"] == filler[59_999]


# --- how a log is wrapped ---------------------------------------------


def wrapped(width: int) -> tuple[list[str], int]:
    """The small log in a terminal of this width, and the line that the third one begins at."""
    shown: list[str] = []
    third = 0
    for number, line in enumerate(LINES):
        third = len(shown) + 1 if number == 2 else third
        shown += [line[at : at + width] for at in range(0, len(line), width)]
    return shown, third


@pytest.mark.parametrize(
    "form",
    ["gz", "JSON", "compose", "colours", "CRLF", "UTF-16", "wrapped", "notebook", "entities"],
)
def test_a_line_is_explained_as_the_report_reads_it(run: Run, tmp_path: Path, form: str) -> None:
    """In every wrapper: the number is the file's own, the message without what wraps it."""
    path, number = tmp_path / "other.log", 3
    if form == "gz":
        path.write_bytes(gzip.compress(SGLANG.encode()))
    elif form == "JSON":
        rows = [{"log": f"{line}\n", "stream": "stderr", "time": "2026-01-02"} for line in LINES]
        write(tmp_path, path.name, [json.dumps(row) for row in rows])
    elif form == "compose":
        write(tmp_path, path.name, [f"sglang-1  | {line}" for line in LINES])
    elif form == "colours":
        write(tmp_path, path.name, [f"\x1b[36m{line}\x1b[0m" for line in LINES])
    elif form == "CRLF":
        path.write_bytes(SGLANG.replace("\n", "\r\n").encode())
    elif form == "UTF-16":
        path.write_bytes(SGLANG.encode("utf-16"))
    elif form == "wrapped":
        shown, number = wrapped(80)
        write(tmp_path, path.name, shown)
    elif form == "notebook":
        write(tmp_path, path.name, [repr(f"{line}\n") + "," for line in LINES])
    else:
        # Every message is damaged: the log is read again, with its entities replaced.
        damaged = [LINES[n].replace("=", "&#61;") for n in (0, 1, 2, 4, 7)]
        write(tmp_path, path.name, damaged)
    report = run("analyze", path.name, "--format", "json").report
    (evidence,) = [row for row in report["evidence"] if "weights_loaded" in row["matcher"]]
    assert (evidence["id"], evidence["fields"]["used"]) == (f"log0:{number}", "15.50")

    story = explained(run, path.name, number)
    assert reading(story) == {"sglang.weights_loaded": evidence["fields"]}
    assert "avail mem=63.00 GB, mem usage=15.50 GB." in story["text"]


def test_a_log_on_stdin(capacity: Capacity) -> None:
    done = capacity("explain", "-", "--line", "3", stdin=SGLANG.encode())
    value = capacity("explain", "-", "--value", "kv_pool.tokens", stdin=SGLANG.encode())

    assert done.code == value.code == 0
    assert "sglang.weights_loaded: read it" in done.out
    assert value.out.startswith("tokens = 409599 tokens\n") or "= 409599 tokens\n" in value.out


# --- a value ----------------------------------------------------------


def tree(run: Run, path: str, *more: str, log: str = "server.log") -> Any:
    done = run("explain", log, "--value", path, "--format", "json", *more)
    assert (done.code, done.err) == (0, ""), done.err
    return done.report


def leaves(story: Any) -> Iterator[Any]:
    if not story["operands"]:
        yield story
    for operand in story["operands"]:
        yield from leaves(operand)


def test_a_printed_value_and_its_line(run: Run) -> None:
    done = run("explain", "server.log", "--value", "ranks[tp=0].memory.weights")

    assert (done.code, done.err) == (0, "")
    first, second, *rest = done.out.splitlines()
    assert first == "weights = 15.5 ±0.005 GiB"
    assert second == "  printed: sglang.weights_loaded"
    assert flat(" ".join(rest)) == f"[log0:3] {LINES[2]}"


def test_a_derived_value_down_to_its_lines(run: Run) -> None:
    """78.50 - 11.50 - (15.50 + 50.00 + 1.20) = 0.30, of six readings."""
    story = tree(run, "ranks[tp=0].memory.unattributed")

    assert story["value"]["value"] == pytest.approx(78.50 - 11.50 - 15.50 - 50.00 - 1.20)
    assert story["value"]["origin"] == "derived"
    assert {(leaf["value"]["value"], leaf["lines"][0]["id"]) for leaf in leaves(story)} == {
        (78.5, "log0:2"),
        (11.5, "log0:8"),
        (15.5, "log0:3"),
        (25, "log0:4"),
        (1.2, "log0:7"),
    }
    assert sum(1 for _ in leaves(story)) == 6, "K and V are two"
    for leaf in leaves(story):
        (line,) = leaf["lines"]
        assert line["text"] == LINES[int(line["id"].removeprefix("log0:")) - 1]
    text = run("explain", "server.log", "--value", "ranks[tp=0].memory.unattributed").out
    shown = text.splitlines()
    assert shown[0] == "ranks[tp=0].memory.unattributed = 0.3 ±0.03 GiB"
    deep = next(line for line in shown if "K = 25" in line)
    assert len(deep) - len(deep.lstrip()) > 8, "an operand stands below what it is an operand of"
    assert max(map(len, shown)) <= 100


def test_a_tree_computes_what_it_shows(run: Run) -> None:
    """Tokens of a request: floor(409,599 / 8,192), and 64 requests at most."""
    story = tree(run, "concurrency.rows[request_tokens=8192].max_concurrent")

    assert story["value"]["value"] == min(409_599 // 8_192, 64)
    by_name = {operand["name"]: operand["value"]["value"] for operand in story["operands"]}
    assert sorted(by_name.values()) == [409_599 // 8_192, 64]


def test_an_unknown_value_has_its_reason(run: Run) -> None:
    done = run("explain", "server.log", "--value", "ranks[tp=0].memory.used")

    assert done.out == "used = unknown\n  no device reading was given (--smi)\n"
    assert tree(run, "ranks[tp=0].memory.used")["value"]["value"] is None


def test_an_unknown_value_has_its_bounds(run: Run, tmp_path: Path) -> None:
    """One of two workers is shown, one of two ranks."""
    two = [line.replace("dp_size=1", "dp_size=2") for line in LINES]
    write(tmp_path, "workers.log", two)
    least = run("explain", "workers.log", "--value", "kv_pool.deployment_tokens").out
    write(
        tmp_path,
        "ranks.log",
        [line.replace("tp_size=1", "tp_size=2") for line in LINES if "max_total" not in line],
    )
    most = run("explain", "ranks.log", "--value", "kv_pool.tokens").out

    assert "= unknown\n" in least
    assert "  at least 409599 tokens\n" in least
    assert "= unknown\n" in most
    assert "  at most 409599 tokens\n" in most
    story = tree(run, "kv_pool.tokens", log="ranks.log")
    assert story["value"]["at_most"] == 409_599
    assert story["value"]["why"]


def test_a_configured_value_and_its_argument(run: Run) -> None:
    done = run("explain", "server.log", "--value", "deployment.mem_fraction_static")

    assert "= 0.88" in done.out.splitlines()[0]
    assert "  configured: mem_fraction_static\n" in done.out
    assert "[log0:1]" in done.out
    text = run("explain", "server.log", "--value", "deployment.model").out
    assert text.splitlines()[0].endswith("= /models/small")


def test_a_measured_value_and_what_it_assumes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "smi.txt").write_text("0, 70000 MiB, 11080 MiB\n")
    story = tree(run, "ranks[tp=0].memory.framework", "--smi", "smi.txt")

    assert story["value"]["value"] == pytest.approx((70_000 + 11_080) / 1024 - 78.50)
    assert "smi0:1" in story["value"]["evidence"]
    assert story["value"]["assuming"]
    text = run(
        *("explain", "server.log", "--smi", "smi.txt"), "--value", "ranks[tp=0].memory.used"
    ).out
    assert "measured: nvidia-smi" in text
    assert "assuming" in text


def test_a_value_of_another_start(run: Run, tmp_path: Path) -> None:
    first = [line.replace("15.50 GB.", "14.25 GB.") for line in LINES]
    log = write(tmp_path, "twice.log", first + LINES)

    path = "ranks[tp=0].memory.weights"
    assert tree(run, path, log=log)["value"]["value"] == 15.5
    assert tree(run, path, "--run", "0", log=log)["value"]["value"] == 14.25
    assert run("explain", log, "--value", path, "--run", "7").code == 2


@pytest.mark.parametrize(
    "path",
    [
        "ranks[0].memory.weights",
        "ranks[tp=0].memory.weights",
        "ranks[tp=0,dp=0].memory.weights",
        "ranks[dp=0, pp=0, tp=0].memory.weights",
        "ranks[DP0/PP0/TP0].memory.weights",
        "ranks[id=DP0/PP0/TP0].memory.weights",
        "ranks[label=TP0].memory.weights",
        "ranks[0].parts[category=weights].size",
        "ranks[0].parts[category=weights,role=target].size",
    ],
)
def test_a_row_goes_by_its_number_its_id_or_its_fields(run: Run, path: str) -> None:
    assert tree(run, path)["value"]["value"] == 15.5


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("ranks[0].timeline[stage=ready].free", 11.5),
        ("ranks[0].steps[0].change", 15.5),
        ("kv_pool.workers[dp=0].tokens", 409_599),
        ("kv_pool.pools[0].k_size", 25),
        ("concurrency.request_limit", 64),
        ("deployment.parallel.tensor", 1),
        ("ranks[0].memory.kv_pool", 50),
    ],
)
def test_paths_reach_everywhere(run: Run, path: str, value: float) -> None:
    assert tree(run, path)["value"]["value"] == value


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("nothing", ["deployment", "ranks", "kv_pool", "concurrency"]),
        ("kv_pool.nothing", ["tokens", "deployment_tokens", "bytes_per_token"]),
        ("ranks[0].memory.gold", ["weights", "kv_pool", "cuda_graph", "unattributed"]),
        ("ranks[0].memory", ["weights", "kv_pool"]),
        ("kv_pool", ["tokens", "size"]),
        ("", ["deployment", "ranks"]),
        ("ranks", ["list of 1", "[0]"]),
        ("ranks.memory", ["list of 1"]),
        ("ranks[tp=7].memory.weights", ["DP0/PP0/TP0"]),
        ("ranks[7].memory.weights", ["DP0/PP0/TP0"]),
        ("ranks[].memory.weights", ["DP0/PP0/TP0"]),
        ("ranks[gpu=0].memory.weights", ["DP0/PP0/TP0"]),
        ("concurrency.rows[request_tokens=77].max_concurrent", ["4096", "8192"]),
        ("outcome.status", []),
        ("kv_pool.tokens.value.more", []),
        ("kv_pool..tokens", []),
        (".kv_pool.tokens", []),
        ("kv_pool[0].tokens", []),
        ("ranks[0", []),
        ("ranks]0[", []),
        ("__class__", []),
        ("kv_pool.__dict__", []),
        ("deployment.model.upper", []),
    ],
)
def test_a_path_to_nothing_says_what_there_is(run: Run, path: str, there: list[str]) -> None:
    done = run("explain", "server.log", f"--value={path}")

    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert "--value" in done.err
    assert all(name in done.err for name in there), done.err


def test_what_is_offered_is_in_the_report(run: Run) -> None:
    """Paths are those of the JSON report, and so are the names that a wrong one is told."""
    report = run("analyze", "server.log", "--format", "json").report
    offered = run("explain", "server.log", "--value", "nothing").err
    names = offered.rpartition("there are: ")[2].strip().split(", ")

    assert set(names) - {"unmatched"} <= set(report)


def values_of(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value object of a JSON report by its path."""
    if isinstance(node, dict) and {"value", "unit", "evidence"} <= set(node):
        yield path, node
    elif isinstance(node, dict):
        for key, child in node.items():
            yield from values_of(child, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for number, child in enumerate(node):
            yield from values_of(child, f"{path}[{number}]")


def test_every_value_of_the_report_is_explained(tmp_path: Path) -> None:
    """At its place in the JSON report, with the same figures."""
    (tmp_path / "server.log").write_text(SGLANG)
    (tmp_path / "smi.txt").write_text("0, 70000 MiB, 11080 MiB\n")
    log, options = str(tmp_path / "server.log"), Options(smi=(str(tmp_path / "smi.txt"),))
    plugins = own_plugins(ROOT / "references")
    report = json.loads(JsonRenderer().render(analyse([log], options, plugins)))
    found = dict(values_of(report))

    assert len(found) > 80
    for path, value in found.items():
        story = json.loads(value_json(explain_value([log], path, options, plugins)))
        extra = {"share", "inside", "note", "range"}
        assert story["value"] == {k: v for k, v in value.items() if k not in extra}, path
        assert [line["id"] for line in story["lines"]] == value["evidence"], path


# --- usage ------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("server.log",), 2, "--line N or --value PATH"),
        (("server.log", "--line", "3", "--value", "kv_pool.tokens"), 2, "--line N or --value PATH"),
        (("server.log", "--line", "3", "--format", "yaml"), 2, "yaml"),
        (("missing.log", "--line", "3"), 1, "missing.log: cannot be read"),
        (("missing.log", "--value", "kv_pool.tokens"), 1, "missing.log: cannot be read"),
        ((".", "--line", "3"), 1, "is a directory"),
        (("empty.log", "--line", "1"), 1, "empty"),
        (("prose.log", "--value", "kv_pool.tokens"), 1, "no start-up line"),
        (("server.log", "--value", "kv_pool.tokens", "--smi", "missing.txt"), 1, "missing.txt"),
        (("server.log", "--value", "kv_pool.tokens", "--run", "4"), 2, "runs 0 to 0"),
        (("server.log", "--line", "3", "--disable-plugin", "nobody"), 2, "nobody"),
        (("server.log", "--line", "3", "-o", "no/such/folder.txt"), 1, "cannot be written"),
        (("server.log", "--run", "x", "--line", "3"), 2, "x"),
    ],
)
def test_a_mistake_is_told_with_its_exit_code(
    run: Run, tmp_path: Path, args: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "prose.log").write_text("Dear diary,\n")
    done = run("explain", *args)

    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_log_must_be_named(run: Run) -> None:
    done = run("explain", "--line", "3")

    assert (done.code, done.out) == (2, "")
    assert "LOG" in done.err


def test_a_line_of_a_log_that_nobody_knows_is_explained(run: Run, tmp_path: Path) -> None:
    """That is what one asks for: why was nothing recognised?"""
    log = write(tmp_path, "fork.log", [f"{STAMP}Load weights begin: 78.50 GB free"])
    done = run("explain", log, "--line", "1")

    assert done.code == 0
    assert "no matcher's anchor stands in this line" in done.out


def test_an_explanation_may_be_written_to_a_file(run: Run, tmp_path: Path) -> None:
    shown = run("explain", "server.log", "--line", "3").out
    done = run("explain", "server.log", "--line", "3", "-o", "out.txt")
    value = run(
        *("explain", "server.log", "--value", "kv_pool.tokens"),
        *("--format", "json", "--output", "out.json"),
    )

    assert (done.code, done.out, value.code, value.out) == (0, "", 0, "")
    assert (tmp_path / "out.txt").read_text() == shown
    assert json.loads((tmp_path / "out.json").read_text())["value"]["value"] == 409_599
    assert not list(tmp_path.glob(".capacity-*"))


@pytest.mark.parametrize("args", [("--line", "3"), ("--value", "ranks[0].memory.unattributed")])
def test_a_closed_pipe_is_quiet(sglang_log: str, tmp_path: Path, args: tuple[str, str]) -> None:
    code = "from capacity_core.cli import main; main()"
    quoted = f"{args[0]} '{args[1]}'"
    shell = f"{sys.executable} -c '{code}' explain {tmp_path / sglang_log} {quoted} | head -n 1"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)

    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def test_help_has_an_example(run: Run) -> None:
    done = run("explain", "--help")

    assert done.code == 0
    assert "Example" in done.out
    assert "capacity explain server.log --line" in done.out
    assert "--value" in done.out


def test_a_plugin_that_is_left_out_explains_nothing(run: Run) -> None:
    done = run("explain", "server.log", "--line", "3", "--disable-plugin", "sglang")

    assert done.code == 0
    assert "sglang." not in done.out


# --- lines that nobody knew -------------------------------------------

BATCH = (
    "Decode batch. #running-req: 3, #token: 4000, token usage: 0.50, cuda graph: True, gen "
    "throughput (token/s): 512.70, #queue-req: 1, "
)
STATS = (
    "(APIServer pid=1) INFO 03-01 10:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 17.2 "
    "tokens/s, Avg generation throughput: 30.5 tokens/s, Running: 7 reqs, Waiting: 1 reqs, GPU KV "
    "cache usage: 93.3%, Prefix cache hit rate: 0.0%"
)
ODD = (
    f"{STAMP}Reserved 2.25 GB for the draft's workspace",
    f"{STAMP}the memory of this rank was compacted",
    f"{STAMP}Load weight begin. avail mem=many GB",
)
PLAIN = ("INFO:     Uvicorn running on http://0.0.0.0:30000", "", "Loading safetensors: 100%")


def unmatched(run: Run, *logs: str) -> list[tuple[str, str]]:
    done = run("analyze", *logs, "--unmatched", "--format", "json")
    assert done.code == 0, done.err
    return [(row["id"], row["text"]) for row in done.report["unmatched"]]


def test_lines_about_memory_that_nobody_knew(run: Run, tmp_path: Path) -> None:
    """Not the lines that were read, nor those that say nothing of memory."""
    lines = [*LINES[:3], ODD[0], *PLAIN, *LINES[3:], ODD[1], *PLAIN, ODD[2]]
    log = write(tmp_path, "odd.log", lines)

    assert unmatched(run, log) == [
        ("log0:4", ODD[0]),
        (f"log0:{len(lines) - 4}", ODD[1]),
        (f"log0:{len(lines)}", ODD[2]),
    ]
    text = run("analyze", log, "--unmatched").out
    section = text[text.index("Lines about memory that nobody recognised") :].split("\n\n")[0]
    assert section.splitlines()[0].endswith("(3)")
    assert all(f"[:{number}]" in section for number in (4, len(lines) - 4, len(lines)))
    assert all(line in flat(section) for line in ODD)
    assert max(map(len, text.splitlines())) <= 100


def test_without_the_flag_there_is_no_such_list(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path, "odd.log", [*LINES, *ODD])

    assert "unmatched" not in run("analyze", log, "--format", "json").report
    assert "nobody recognised" not in run("analyze", log).out


def test_where_every_line_is_known_there_are_none(run: Run) -> None:
    assert unmatched(run, "server.log") == []
    assert (
        "Lines about memory that nobody recognised (none)"
        in run("analyze", "server.log", "--unmatched").out
    )


def test_lines_of_a_running_server_are_known(run: Run, tmp_path: Path) -> None:
    """Few of them are kept, and none of them is unknown."""
    sglang = write(tmp_path, "sglang.log", [*LINES, *[STAMP + BATCH] * 300, ODD[0]])
    vllm = write(tmp_path, "vllm.log", [*[STATS] * 300, ODD[0]])

    assert unmatched(run, sglang) == [(f"log0:{len(LINES) + 301}", ODD[0])]
    assert unmatched(run, vllm) == [("log0:301", ODD[0])]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_ids_are_right_far_down(run: Run, tmp_path: Path, packed: bool) -> None:
    """In the first line, at a start in the middle, and in the last of 60,000."""
    filler = [f"INFO:     127.0.0.1:{n} - POST /generate HTTP/1.1 200 OK" for n in range(30_000)]
    lines = [ODD[0], *filler, ODD[1], *LINES, *filler, ODD[2]]
    content = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / "long.log").write_bytes(gzip.compress(content) if packed else content)
    report = run("analyze", "long.log", "--unmatched", "--format", "json").report

    assert [(row["id"], row["text"]) for row in report["unmatched"]] == [
        ("log0:1", ODD[0]),
        ("log0:30002", ODD[1]),
        (f"log0:{len(lines)}", ODD[2]),
    ]
    weights = [row["id"] for row in report["evidence"] if row["matcher"] == "sglang.weights_loaded"]
    assert weights == [f"log0:{30_002 + 3}"]


@pytest.mark.parametrize("size", [40, 100, 1_000])
def test_where_chunks_end_changes_no_id(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    lines = [ODD[0], *LINES[:4], *PLAIN, ODD[1], *LINES[4:], ODD[2]]
    log = write(tmp_path, "odd.log", lines)
    monkeypatch.setattr("capacity_core.reading.sources.CHUNK", size)

    assert unmatched(run, log) == [
        ("log0:1", ODD[0]),
        ("log0:9", ODD[1]),
        (f"log0:{len(lines)}", ODD[2]),
    ]


def test_lines_of_several_logs(run: Run, tmp_path: Path) -> None:
    """Also of one in which not a line is known: each of its lines once."""
    write(tmp_path, "odd.log", [*LINES, ODD[0]])
    write(tmp_path, "other.log", ["hello", ODD[1]])

    assert unmatched(run, "odd.log", "other.log") == [
        (f"log0:{len(LINES) + 1}", ODD[0]),
        ("log1:2", ODD[1]),
    ]
    text = run("analyze", "odd.log", "other.log", "--unmatched").out
    assert f"[log0:{len(LINES) + 1}]" in text
    assert "[log1:2]" in text


def test_a_log_that_is_read_twice_has_its_lines_once(run: Run, tmp_path: Path) -> None:
    """Its messages are known only once its entities are replaced."""
    lines = [LINES[n].replace("=", "&#61;") for n in (0, 1, 2)]
    log = write(tmp_path, "damaged.log", [*lines, ODD[0]])

    assert unmatched(run, log) == [("log0:4", ODD[0])]


def test_more_lines_than_are_kept_are_not_said_to_be_all(run: Run, tmp_path: Path) -> None:
    """500 lines: a count that is told is 500, or told to be of the first ones."""
    many = [f"{STAMP}Reserved {n}.25 GB for a workspace" for n in range(500)]
    log = write(tmp_path, "many.log", [*LINES, *many])
    rows = unmatched(run, log)
    text = run("analyze", log, "--unmatched").out

    assert rows[0] == (f"log0:{len(LINES) + 1}", many[0])
    assert [int(line.removeprefix("log0:")) for line, _ in rows] == list(
        range(len(LINES) + 1, len(LINES) + 1 + len(rows))
    )
    heading = next(line for line in text.splitlines() if "nobody recognised" in line)
    assert len(rows) == 500 or not heading.endswith(f"({len(rows)})"), heading


def test_texts_are_shown_without_colours_and_bars(run: Run, tmp_path: Path) -> None:
    bar = "Loading shards: 50%|##   | 1/2\r"
    log = write(tmp_path, "odd.log", [*LINES, f"\x1b[33m{bar}{ODD[0]}\x1b[0m"])

    assert unmatched(run, log) == [(f"log0:{len(LINES) + 1}", ODD[0])]


def test_a_long_line_is_cut(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path, "odd.log", [*LINES, f"{STAMP}memory of " + "x" * 5_000])
    ((line, text),) = unmatched(run, log)

    assert line == f"log0:{len(LINES) + 1}"
    assert text.startswith(f"{STAMP}memory of xxx")
    assert len(text) <= 300


def test_an_unmatched_line_can_be_explained(run: Run, tmp_path: Path) -> None:
    log = write(tmp_path, "odd.log", [*LINES, ODD[2]])
    ((line, _),) = unmatched(run, log)

    assert "sglang.weights_begin" in missed(explained(run, log, line))


def test_a_value_of_another_length_is_explained(run: Run) -> None:
    done = run(
        "explain",
        "server.log",
        "--value",
        "concurrency.rows[request_tokens=1000].token_limit",
        "--request-tokens",
        "900:100",
    )
    assert done.code == 0
    assert "concurrency.rows[request_tokens=1000].token_limit" in done.out
