"""Which rank a report shows: the one asked for, else the one with least room."""

from __future__ import annotations

import re
from collections.abc import Sequence

from capacity_core.api.ledger import RankFacts, Stage
from capacity_core.errors import UsageError
from capacity_core.values import Known

_COORDINATE = r"(DP|PP|TP|PID)\s*([0-9]{1,9})"


def shown_rank(facts: Sequence[RankFacts], spec: str | None) -> tuple[str | None, bool]:
    """The rank whose table is shown: the one asked for, else the one with least free at the last
    common stage."""
    if spec is not None:
        return rank_named(facts, spec, "--rank").id.text, True
    for stage in reversed(Stage):
        frees = [
            (free.number, rank.id.text)
            for rank in facts
            if isinstance(free := rank.free(stage), Known)
        ]
        if frees and len(frees) == len(facts):
            return min(frees)[1], False
    return (facts[0].id.text if facts else None), False


def rank_named(facts: Sequence[RankFacts], spec: str, option: str) -> RankFacts:
    """The one rank that coordinates single out; raises UsageError, naming the option."""
    wanted = _coordinates(spec)
    found = [
        rank
        for rank in facts
        if wanted and all(getattr(rank.id, name) == number for name, number in wanted.items())
    ]
    if len(found) == 1:
        return found[0]
    there = ", ".join(rank.id.text for rank in facts) or "none"
    why = "names no rank of the log" if not found else "names several ranks"
    raise UsageError(f"{option} {spec}: {why}; there are: {there}")


def _coordinates(spec: str) -> dict[str, int]:
    """`TP3`, `DP1/PP0/TP3`, `pid 77` and a bare number (tensor parallel) as coordinates; empty when
    it is none."""
    if re.fullmatch(r"[0-9]{1,9}", spec):
        return {"tp": int(spec)}
    pairs = re.findall(_COORDINATE, spec.upper())
    clean = re.sub(rf"{_COORDINATE}|[\s/,]", "", spec.upper())
    repeated = len({name for name, _ in pairs}) < len(pairs)
    return {} if clean or repeated else {name.lower(): int(number) for name, number in pairs}
