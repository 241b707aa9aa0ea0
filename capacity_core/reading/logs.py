"""Every run of every log, with what its framework makes of it; runs of several nodes' logs joined.

Several logs are the nodes of one deployment: each file is cut into runs by itself, and runs are
joined from the last ones backwards, where no rank is in both and nothing else speaks against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from capacity_core.api.extractors import Extractor, Run
from capacity_core.api.ledger import Deployment, Ledger, Status
from capacity_core.api.report import InputRow, RunRow, UnmatchedRow
from capacity_core.errors import NothingRecognised, OnFailure, UnusableInput, UsageError
from capacity_core.reading.runs import split
from capacity_core.reading.scan import Scanner
from capacity_core.reading.sources import Source
from capacity_core.values import Known, Value, agree


@attrs.frozen(kw_only=True)
class Read:
    """One run with what its framework's extractor made of it."""

    row: RunRow
    run: Run
    ledger: Ledger


@attrs.define(kw_only=True)
class Logs:
    """What was read: runs, oldest first; the inputs; paths whose compressed data ended early; lines
    that speak of memory and that nobody knew, when they were asked for."""

    reads: list[Read] = attrs.field(factory=list)
    inputs: list[InputRow] = attrs.field(factory=list)
    cut: list[tuple[str, str]] = attrs.field(factory=list)
    unmatched: list[UnmatchedRow] = attrs.field(factory=list)


def read_logs(
    paths: Sequence[str],
    scanner: Scanner,
    extractors: Sequence[Extractor],
    on_failure: OnFailure,
    *,
    wanted: int | None,
) -> Logs:
    """Read every log. Only runs that may be selected keep their sightings.

    Raises UnusableInput for a log that cannot be used, and NothingRecognised when no line of any
    log is known.
    """
    by_name = {extractor.framework: extractor for extractor in extractors}
    logs = Logs()
    files: list[list[Read]] = []
    unreadable: str | None = None
    for number, path in enumerate(paths):
        source = Source(f"log{number}", path)
        reads: list[Read] = []
        try:
            for run in split(scanner.scan(source), extractors, on_failure):
                reads.append(_read(run, by_name[run.framework], on_failure))
                if len(paths) == 1:
                    _forget_older(reads, wanted)
            row = InputRow(id=source.name, kind="log", path=path, bytes=source.bytes_read)
            logs.inputs.append(row)
            if source.truncated:
                logs.cut.append((source.name, path))
            if source.looks_binary:
                unreadable = path
        finally:
            source.close()
        files.append(reads)
    logs.unmatched = [UnmatchedRow(id=line, text=text) for line, text in scanner.unmatched]
    joined = list(_joined(files, by_name, on_failure)) if len(files) > 1 else files[0]
    logs.reads = [
        attrs.evolve(read, row=attrs.evolve(read.row, index=index))
        for index, read in enumerate(joined)
    ]
    if not logs.reads:
        if unreadable is not None:
            raise UnusableInput(f"{unreadable}: looks binary, and holds no line of a server's log.")
        raise NothingRecognised(tuple(paths), tuple(sorted(e.title for e in extractors)))
    return logs


def selected(reads: Sequence[Read], wanted: int | None) -> Read:
    """The run asked for, else the last one that says anything of memory or failed, else the last
    one. Raises UsageError when there is no such run."""
    if wanted is not None:
        for read in reads:
            if read.row.index == wanted:
                return read
        raise UsageError(f"--run {wanted}: there are runs 0 to {len(reads) - 1}")
    telling = [read for read in reads if read.ledger.says_memory]
    return (telling or list(reads))[-1]


def _read(run: Run, extractor: Extractor, on_failure: OnFailure) -> Read:
    try:
        ledger = extractor.extract(run)
        if not isinstance(ledger, Ledger):
            raise TypeError(f"extract returned a {type(ledger).__name__}, not a Ledger")
    # The border of a plugin: its run stays in the report, with nothing known of it and the plugin
    # named.
    except Exception as error:  # noqa: BLE001
        on_failure(extractor.framework, f"{type(error).__name__}: {error}")
        ledger = Ledger(
            framework=extractor.framework,
            title=extractor.title,
            status=Status.INCOMPLETE,
            reached=None,
            deployment=Deployment(),
        )
    row = RunRow(
        index=0,
        first=run.first,
        last=run.last,
        inputs=tuple(run.inputs),
        framework=run.framework,
        status=ledger.status,
    )
    return Read(row=row, run=run, ledger=ledger)


def _forget_older(reads: list[Read], wanted: int | None) -> None:
    """Let go of what no later step can ask for, so that a log of many restarts stays small in
    memory."""
    if len(reads) < 2 or wanted is not None or not reads[-1].ledger.says_memory:
        return
    old = reads[-2]
    reads[-2] = attrs.evolve(old, run=Run(old.run.framework))


# --- several nodes ----------------------------------------------------


def _joined(
    files: Sequence[list[Read]], extractors: Mapping[str, Extractor], on_failure: OnFailure
) -> Iterator[Read]:
    """Runs of the same place from the end, joined where they can be of one deployment."""
    for back in range(max(map(len, files), default=0), 0, -1):
        groups: list[list[Read]] = []
        for reads in files:
            if len(reads) < back:
                continue
            read = reads[-back]
            group = next((g for g in groups if all(_of_one(other, read) for other in g)), None)
            if group is None:
                groups.append([read])
            else:
                group.append(read)
        for group in groups:
            if len(group) == 1:
                yield group[0]
            else:
                run = Run.joined([read.run for read in group])
                yield _read(run, extractors[run.framework], on_failure)


def _of_one(a: Read, b: Read) -> bool:
    """Whether two runs can be nodes of one deployment: the same framework and model, no rank in
    both, no size that differs, and no word that there is one node alone."""
    mine, others = ({rank.id for rank in read.ledger.ranks} for read in (a, b))
    one, other = a.ledger.deployment, b.ledger.deployment
    same = (
        (one.model, other.model),
        (one.parallel.tensor, other.parallel.tensor),
        (one.parallel.pipeline, other.parallel.pipeline),
    )
    return (
        a.run.framework == b.run.framework
        and not mine & others
        and not any(_is_one(d.parallel.nodes) for d in (one, other))
        and all(agree(*pair) is not False for pair in same)
    )


def _is_one(nodes: Value) -> bool:
    return isinstance(nodes, Known) and nodes.number == 1
