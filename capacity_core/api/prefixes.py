"""How a framework's log lines begin, and the speaker that such a beginning names."""

from __future__ import annotations

import re
from functools import cached_property

import attrs

COORDINATES = ("dp", "pp", "tp", "rank", "node", "pid")


_DIGITS = {"dp": 5, "pp": 5, "tp": 5, "rank": 5, "pid": 10}
"""The numbers of a speaker, and how many digits of each make sense."""


@attrs.frozen(kw_only=True)
class Speaker:
    """Who printed a message, as far as printed: parallel ranks, global rank, node, process.

    A coordinate that is not printed is None: what that covers is the extractor's to decide. `ranks`
    are all ranks in the words of the line, those too that are no coordinate here.
    """

    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    rank: int | None = None
    node: str | None = None
    pid: int | None = None
    role: str | None = None
    ranks: str | None = None

    @property
    def label(self) -> str:
        """The ranks as printed, such as `DP1 TP3`; empty when none is."""
        ranks = (("DP", self.dp), ("PP", self.pp), ("TP", self.tp), ("rank ", self.rank))
        return " ".join(f"{name}{number}" for name, number in ranks if number is not None)


NOBODY = Speaker()


@attrs.frozen(kw_only=True, slots=False)
class Prefix:
    """One way in which a framework's log lines begin.

    `pattern`'s named groups are the speaker's coordinates: `dp`, `pp`, `tp`, `rank`, `pid` (whole
    numbers), `node`, `role` and `ranks` (text). The speaker of a message is the nearest prefix to
    its left in the same line.
    Every sample must match, from its first character on.

    Example::

        Prefix(
            name="acme.ranks",
            framework="acme",
            pattern=r"<gpu (?P<tp>[0-9]+)>",
            samples=("<gpu 3> ready",),
        )
    """

    name: str
    framework: str
    pattern: str
    samples: tuple[str, ...] = ()

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def problems(self) -> list[str]:
        """What is wrong with this prefix, one sentence each."""
        try:
            regex = re.compile(self.pattern)
        except re.error as error:
            return [f"{self.name}: the pattern is no regular expression: {error}"]
        foreign = set(regex.groupindex) - {*COORDINATES, "role", "ranks"}
        found = [f"{self.name}: group {group!r} is no coordinate" for group in sorted(foreign)]
        found += [
            f"{self.name}: does not match its sample {s!r}"
            for s in self.samples
            if not regex.match(s)
        ]
        return found

    def speaker(self, match: re.Match[str]) -> Speaker:
        """The speaker that a match of this prefix names."""
        groups = match.groupdict()
        numbers = {
            name: int(value)
            for name, digits in _DIGITS.items()
            if (value := groups.get(name)) and value.isdecimal() and len(value) <= digits
        }
        return Speaker(
            **numbers,
            node=groups.get("node"),
            role=groups.get("role"),
            ranks=groups.get("ranks"),
        )
