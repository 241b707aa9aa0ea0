"""Golden logs in another order or with other lines between: the figures stay the same.

Ranks write to one stream as they come, and whatever else runs in the container writes between.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .goldens import Report, figures_of, golden_logs, lines_of, original, report_of

START_AND_END = (
    r"server_args=|API server version |args: |Initializing an? \w*\s?LLM engine"
    r"|init engine \(|Starting vLLM API server|Started server process|startup complete|fired up"
)
"""Lines printed before any rank speaks, or after all have: nothing passes them."""

SIZING = r"KV cache size: |Maximum concurrency for |# GPU blocks: "
"""What vLLM's engine prints after its workers profiled and before they capture, who wait for it."""

SPEAKER = re.compile(
    r"\[\d[\d:\- ]+(?P<rank>(?: (?:DP|PP|TP)\d+)+)\]"  # [2026-03-04 09:12:40 DP0 TP1]
    r"|\((?P<process>\w+(?: rank=\d+)?) pid=(?P<pid>\d+)\)"  # (Worker_TP1 pid=9)
)

NOISE = (
    "",
    "   ",
    "\r",
    "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.21s/it]",
    "node7:211:402 [0] NCCL INFO Channel 00/24 :    0   1   2   3",
    "/opt/venv/lib/python3.12/site-packages/x.py:40: UserWarning: 12.50 GB of memory is a guess",
    "INFO 11-26 09:30:21 weight_utils.py:243] Using model weights format ['*.safetensors']",
    'INFO:     10.0.0.7:40122 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "2026-03-04 09:12:40.112 sidecar: scrape ok, memory=78.50GiB",
    "Sat Mar  7 10:00:00 2026 kernel: usb 1-1: new device",
    '{"level":"info","msg":"health","free":"61.20 GB"}',
)

quick = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def speaker_of(line: str) -> str:
    """Who printed a line; V0's driver and wrapped progress bars print without a prefix."""
    found = SPEAKER.search(line)
    return found[0] if found and found["process"] else (found["rank"] if found else "")


def segments_of(lines: Sequence[str], pinned: str) -> list[list[str]]:
    """Stretches of lines whose order is free between speakers; a pinned line is one by itself."""
    segments: list[list[str]] = [[]]
    for line in lines:
        if re.search(pinned, line):
            segments += [[line], []]
        else:
            segments[-1].append(line)
    return segments


def several_speak(name: str) -> bool:
    """Whether ranks of their own take part, beside a launcher."""
    speakers = {speaker_of(line) for line in lines_of(name)}
    return len({said for said in speakers if not re.search("APIServer", said)} - {""}) > 1 or any(
        "VllmWorkerProcess" in said for said in speakers
    )


many_ranks = pytest.mark.parametrize("name", [n for n in golden_logs() if several_speak(n)])
every_log = pytest.mark.parametrize("name", list(golden_logs()))


@many_ranks
@quick
@given(data=st.data())
def test_ranks_may_speak_in_any_order(name: str, data: st.DataObject, tmp_path: Path) -> None:
    """Each speaker's own lines stay in order, whoever speaks between them."""
    merged: list[str] = []
    for segment in segments_of(lines_of(name), f"{START_AND_END}|{SIZING}"):
        queues: dict[str, list[str]] = {}
        for line in segment:
            queues.setdefault(speaker_of(line), []).append(line)
        turns = [speaker for speaker, said in queues.items() for _ in said]
        for speaker in data.draw(st.permutations(turns)):
            merged.append(queues[speaker].pop(0))

    _same(report_of(merged, tmp_path), name)


@many_ranks
@pytest.mark.parametrize("backwards", [False, True])
def test_one_rank_after_another(name: str, backwards: bool, tmp_path: Path) -> None:
    """Collectors that group lines by process lose what came first: less may be known, nothing else
    may be."""
    merged = [
        line
        for segment in segments_of(lines_of(name), START_AND_END)
        for line in sorted(segment, key=speaker_of, reverse=backwards)
    ]
    _same(report_of(merged, tmp_path), name, less=True)


@every_log
@quick
@given(data=st.data())
def test_other_lines_change_nothing(name: str, data: st.DataObject, tmp_path: Path) -> None:
    lines = list(lines_of(name))
    places = st.tuples(st.integers(0, len(lines)), st.sampled_from(NOISE))
    for place, noise in data.draw(st.lists(places, min_size=1, max_size=8)):
        lines.insert(place, noise)

    _same(report_of(lines, tmp_path), name)


@every_log
def test_other_lines_everywhere_change_nothing(name: str, tmp_path: Path) -> None:
    lines = [part for line in lines_of(name) for part in (*NOISE, line)]

    _same(report_of(lines, tmp_path), name)


@every_log
def test_every_known_value_cites_lines_that_are_there(name: str) -> None:
    lines = lines_of(name)
    for path, value in figures_of(original(name)).items():
        for cited in value["evidence"]:
            source, _, number = cited.partition(":")
            assert source == "log0", path
            assert lines[int(number) - 1].strip(), f"{path} cites {cited}, an empty line"
        stated = value["value"] is not None and value["origin"] == "printed"
        assert value["evidence"] or not stated, f"{path}: printed where?"


def _same(report: Report | None, name: str, *, less: bool = False) -> None:
    """The report tells what the original one tells, or `less`; fails with what differs."""
    assert report is not None, "nothing recognised"
    before, after = told(original(name)), told(report)
    different = [
        f"  {key}: {before.get(key, 'nothing')} became {after.get(key, 'nothing')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not (less and _is_less(before, after, key))
    ]
    if different:
        pytest.fail("\n".join(different), pytrace=False)


def _is_less(before: dict[str, Any], after: dict[str, Any], key: str) -> bool:
    """Whether what was known is not known any more, and words follow it."""
    if key in ("advice", "bound by", "findings"):
        return True
    return key not in after or (isinstance(after[key], dict) and after[key].get("value") is None)


def told(report: Report) -> dict[str, Any]:
    """What a report says, without where it was read: figures, words and what follows from them."""
    left_out = ("evidence", "why", "how")
    figures: dict[str, Any] = {
        path: {key: said for key, said in value.items() if key not in left_out}
        for path, value in figures_of(report).items()
    }
    return figures | {
        "ranks": [rank["id"] for rank in report["ranks"]],
        "runs": len(report["runs"]),
        "status": report["outcome"]["status"],
        "bound by": [row["bound_by"] for row in report["concurrency"]["rows"]],
        "findings": sorted((f["code"], f["message"]) for f in report["findings"]),
        "advice": sorted((a["code"], str(a["change"])) for a in report["advice"]),
    }
