"""What a framework's plugin does with what was read: runs of sightings in, a ledger of neutral
facts out."""

from __future__ import annotations

import heapq
import itertools
import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, Generic, Protocol, TypeVar

import attrs

from capacity_core.api.ledger import Ledger
from capacity_core.api.matchers import number_fields, unit_of
from capacity_core.api.prefixes import Speaker
from capacity_core.api.versions import narrowed
from capacity_core.values import Origin, Unknown, Value, known, text

_TIME_STAMP = re.compile(r"(?:(?:\d{4}-)?\d\d-\d\d[ T])?\d\d:\d\d:\d\d")

Event = TypeVar("Event")
Event_co = TypeVar("Event_co", covariant=True)

KEPT_PER_SPEAKER = 200
"""How many sightings of one matcher from one speaker a run keeps: the first half and the last
half."""


@attrs.frozen(kw_only=True)
class Sighting(Generic[Event_co]):
    """An event seen at a line (`log0:15`) from a speaker.

    `text` is the line, cut at 300 characters; `seen_in` the releases known to print this wording.
    """

    event: Event_co
    matcher: str
    speaker: Speaker
    line: str
    text: str = ""
    seen_in: str = ""

    def value(self, field: str, name: str | None = None) -> Value:
        """The printed quantity, text or flag in a field of the event; unknown when the line does
        not print it."""
        amount = getattr(self.event, field)
        kind: type[object] = type(self.event)
        unit = unit_of(kind, field)
        if amount is None:
            return Unknown(
                why=f"{self.line} does not print {field}",
                unit=unit,
                evidence=(self.line,),
                name=name,
            )
        if unit is None:
            return text(amount, Origin.PRINTED, how=self.matcher, evidence=(self.line,))
        return known(
            Decimal(amount),
            unit,
            Origin.PRINTED,
            how=self.matcher,
            name=name,
            evidence=(self.line,),
        )


class Run:
    """One start of one server: its sightings in the order of the log; `interleaved` when lines of
    another server of the framework stand between them.

    Memory is bounded whatever a log repeats: of each matcher and speaker the first and the last
    `KEPT_PER_SPEAKER` / 2 sightings are kept, and of the others those with the largest numbers;
    `omitted` counts what was let go exactly.
    """

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.first = ""
        self.last = ""
        self.inputs: list[str] = []
        self.interleaved = False
        self.processes: set[tuple[int, str | None]] = set()
        self.omitted: dict[str, int] = defaultdict(int)
        self.clashes: list[tuple[str, str, str]] = []
        self._kept: dict[int, Sighting[Any]] = {}
        self._order: dict[tuple[str, Speaker], list[int]] = defaultdict(list)
        self._by_event: dict[type, list[int]] = defaultdict(list)
        self._peaks: dict[tuple[str, Speaker, str], tuple[Any, int]] = {}
        self._sums: dict[tuple[type, str], Decimal] = defaultdict(Decimal)
        self._next = 0

    def add(self, sighting: Sighting[object]) -> None:
        """Append a sighting; beyond the cap the middle ones are let go."""
        event: Any = sighting.event
        number = self._next
        self._next += 1
        self.first = self.first or sighting.line
        self.last = sighting.line
        if sighting.speaker.pid is not None:
            self.processes.add((sighting.speaker.pid, sighting.speaker.node))
        name = sighting.line.partition(":")[0]
        if name not in self.inputs:
            self.inputs.append(name)
        self._kept[number] = sighting
        self._by_event[type(event)].append(number)
        for field in number_fields(type(event)):
            amount, key = getattr(event, field), (sighting.matcher, sighting.speaker, field)
            if amount is not None and (key not in self._peaks or amount > self._peaks[key][0]):
                self._peaks[key] = (amount, number)
        same = self._order[sighting.matcher, sighting.speaker]
        same.append(number)
        if len(same) > KEPT_PER_SPEAKER:
            self._let_go(same, sighting)

    @classmethod
    def joined(cls, runs: Iterable[Run]) -> Run:
        """The runs of several nodes as one: by their time stamps where every one has them, else in
        the order given. Lines of one run keep their order."""
        parts = list(runs)
        if not parts:
            raise ValueError("no run to join")
        whole = cls(parts[0].framework)
        stamped = [_stamped(run) for run in parts]
        timed = all(rows and rows[0][0] for rows in stamped)
        one_by_one = itertools.chain.from_iterable(stamped)
        in_time = heapq.merge(*stamped, key=operator.itemgetter(0))
        for _, sighting in in_time if timed else one_by_one:
            whole.add(sighting)
        for run in parts:
            for matcher, count in run.omitted.items():
                whole.omitted[matcher] += count
            for field, amount in run._sums.items():
                whole._sums[field] += amount
            whole.clashes += run.clashes
            whole.interleaved = whole.interleaved or run.interleaved
        return whole

    def _let_go(self, same: list[int], sighting: Sighting[Any]) -> None:
        """Forget the middle one of a speaker's sightings that holds no largest number."""
        fields = number_fields(type(sighting.event))
        keys = [(sighting.matcher, sighting.speaker, field) for field in fields]
        peaks = {self._peaks[key][1] for key in keys if key in self._peaks}
        at = next(i for i in range(KEPT_PER_SPEAKER // 2, len(same)) if same[i] not in peaks)
        number = same.pop(at)
        gone = self._kept.pop(number)
        self._by_event[type(sighting.event)].remove(number)
        self.omitted[sighting.matcher] += 1
        for field in fields:
            self._sums[type(gone.event), field] += getattr(gone.event, field) or 0

    def sum_of(self, event: type, field: str) -> Decimal:
        """The sum of a number over every sighting of an event, those that were let go included."""
        result = self._sums.get((event, field), Decimal(0))
        sightings: list[Sighting[Any]] = self.of(event)
        for sighting in sightings:
            result += getattr(sighting.event, field) or 0
        return result

    def __iter__(self) -> Iterator[Sighting[object]]:
        return iter(self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, *events: type[Event]) -> list[Sighting[Event]]:
        """The sightings of these event classes, in the order of the log."""
        numbers = sorted(number for event in events for number in self._by_event.get(event, ()))
        return [self._kept[number] for number in numbers]

    @property
    def version_range(self) -> tuple[str, str] | None:
        """The releases, first and last, that print every wording of this run."""
        return narrowed({sighting.seen_in for sighting in self if sighting.seen_in})

    def has(self, *events: type) -> bool:
        return any(self._by_event.get(event) for event in events)

    def last_of(self, *events: type[Event]) -> Sighting[Event] | None:
        """The last sighting of these event classes, or None."""
        numbers = [self._by_event[event][-1] for event in events if self._by_event.get(event)]
        return self._kept[max(numbers)] if numbers else None


class Extractor(Protocol):
    """A framework's meaning: which sightings start a run, and what a run's sightings add up to.

    `events` are the event classes that this framework's messages become; matchers of other
    distributions that build them (a private fork's) reach this extractor, too.

    It may also have `split_layers(layers, stages) -> tuple[int, ...]`, how many layers each
    pipeline stage gets; without it, layers that do not divide are refused. And
    `with_metrics(ledger, samples) -> Ledger`, what a saved metrics page adds to a run.
    """

    @property
    def framework(self) -> str: ...

    @property
    def title(self) -> str:
        """The framework's name as a reader writes it."""
        ...

    @property
    def events(self) -> tuple[type, ...]: ...

    def starts_run(self, run: Run, sighting: Sighting[object]) -> bool:
        """Whether `sighting` belongs to a newer server start than `run`, which holds all before
        it."""
        ...

    def extract(self, run: Run) -> Ledger:
        """What the run says. Never fills a gap from another rank."""
        ...


def _stamped(run: Run) -> list[tuple[str, Sighting[object]]]:
    """Sightings with the last time stamp that was printed until then; the first one's is its
    successors' while it has none."""
    rows: list[tuple[str, Sighting[object]]] = []
    stamp = ""
    for sighting in run:
        match = _TIME_STAMP.search(sighting.text)
        stamp = match[0] if match else stamp
        rows.append((stamp, sighting))
    first = next((said for said, _ in rows if said), "")
    return [(said or first, sighting) for said, sighting in rows]
