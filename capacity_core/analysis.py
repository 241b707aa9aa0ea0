"""The front door: `analyse(paths, options, plugins)` reads everything and returns one frozen
report."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Iterable, Sequence

import attrs

from capacity_core.accounting.advice import advise
from capacity_core.accounting.breakdown import device_capacity, rank_row
from capacity_core.accounting.concurrency import concurrency
from capacity_core.accounting.devices import by_rank
from capacity_core.accounting.findings import contradictions, disagreement
from capacity_core.accounting.gpus import gpu_row
from capacity_core.accounting.layouts import layout_of, named
from capacity_core.accounting.load import load_row
from capacity_core.accounting.ranks import shown_rank
from capacity_core.accounting.rows import deployment_row, evidence_rows, kv_pool_row
from capacity_core.accounting.serving import layer_split, serving_of
from capacity_core.api.admission import Request
from capacity_core.api.device_readers import DeviceReading
from capacity_core.api.extractors import Run
from capacity_core.api.kv_layouts import ModelConfig
from capacity_core.api.ledger import Finding, Ledger, RankFacts, Severity
from capacity_core.api.report import (
    ABSENT,
    SCHEMA,
    InputRow,
    LayoutRow,
    Outcome,
    PluginRow,
    Report,
    VersionRange,
)
from capacity_core.errors import UnusableInput, UsageError
from capacity_core.loader import Plugins
from capacity_core.reading.logs import Logs, read_logs, selected
from capacity_core.reading.metrics import read_metrics
from capacity_core.reading.model_config import read_model_config
from capacity_core.reading.scan import Scanner
from capacity_core.units import GIB
from capacity_core.values import Known, Origin, Unknown, Value, least, text

DEFAULT_LENGTHS = (Request(4096), Request(6144), Request(8192))


def _several(paths: str | Sequence[str] | None) -> tuple[str, ...]:
    return (paths,) if isinstance(paths, str) else tuple(paths or ())


def _requests(lengths: Iterable[Request | int]) -> tuple[Request, ...]:
    return tuple(each if isinstance(each, Request) else Request(each) for each in lengths)


@attrs.frozen(kw_only=True)
class Options:
    """What a caller may ask of an analysis; paths are as the user gave them.

    The k-th of `smi` belongs to the k-th log; `smi_map` says which device is which rank
    (`4=TP0,5=TP1`). `metrics` is a saved metrics page. `unmatched` asks for the lines that speak of
    memory and that nobody knew.
    """

    smi: tuple[str, ...] = attrs.field(default=(), converter=_several)
    smi_map: str | None = None
    config: str | None = None
    metrics: str | None = None
    gpu: str | None = None
    rank: str | None = None
    request_tokens: tuple[Request, ...] = attrs.field(default=DEFAULT_LENGTHS, converter=_requests)
    run: int | None = None
    layout: str | None = None
    unmatched: bool = False


@attrs.define
class _Trouble:
    """What went wrong while plugins read: their rows of the report, and findings."""

    plugins: Plugins
    rows: list[PluginRow] = attrs.field(factory=list)
    findings: list[Finding] = attrs.field(factory=list)

    def blame(self, item: str, why: str) -> None:
        """Mark the plugin that contributed an item as failed."""
        owner = self.plugins.owner_of(item)
        if owner is not None and owner.name not in {row.name for row in self.rows}:
            self.rows.append(attrs.evolve(owner, status="failed", error=f"{item}: {why}"))
        finding = Finding(
            code="plugin-failed",
            severity=Severity.ERROR,
            message=f"{item} failed while reading: {why}",
        )
        if finding not in self.findings:
            self.findings.append(finding)

    def doubt(self, why: str) -> None:
        """Say once that the configuration was not used for the concurrency."""
        finding = Finding(
            code="layout-not-used",
            severity=Severity.WARNING,
            message=f"the configuration does not tell how many requests fit: {why}",
            evidence=("config0",),
        )
        if finding not in self.findings:
            self.findings.append(finding)

    def all_rows(self) -> tuple[PluginRow, ...]:
        """Every plugin's row, the failed ones last and once."""
        names = {row.name for row in self.rows}
        return (*(row for row in self.plugins.rows if row.name not in names), *self.rows)


def analyse(paths: Sequence[str], options: Options, plugins: Plugins) -> Report:
    """Read logs, device readings and a configuration, and account for the last run that says
    anything.

    Raises UnusableInput for an input that cannot be used, NothingRecognised when no line of any log
    is known, and UsageError when an option names what does not exist. A plugin that fails while
    reading is named in the report.
    """
    _refuse(options, len(paths))
    trouble = _Trouble(plugins)
    others: list[InputRow] = []
    readings = tuple(
        _device_readings(_content(path, f"smi{number}", others), path, f"smi{number}", trouble)
        for number, path in enumerate(options.smi)
    )
    config = None
    if options.config is not None:
        config = read_model_config(_content(options.config, "config0", others), options.config)
    logs = _read(paths, plugins, options, trouble)
    chosen = selected(logs.reads, options.run)
    ledger = _with_metrics(chosen.ledger, options.metrics, others, trouble)
    layout, whole, layout_findings = _layout(config, options, ledger, trouble)
    facts = tuple(sorted(ledger.ranks, key=lambda rank: rank.id.order))
    devices, device_findings = by_rank(readings, facts, ledger.deployment, options.smi_map)
    measured = tuple(reading for of_one in readings for reading in of_one)
    if options.smi_map is not None:
        measured = tuple(devices.values())  # the others are no devices of this server
    ranks = tuple(rank_row(rank, devices.get(rank.id)) for rank in facts)
    shown, asked = shown_rank(facts, options.rank)
    gpu, clash = gpu_row(
        plugins.gpu_specs,
        options.gpu,
        _device_name(ledger, measured),
        _device_total(facts, measured),
    )
    fits = concurrency(ledger, options.request_tokens, whole, trouble.blame, trouble.doubt)
    return Report(
        schema=SCHEMA,
        tool=tool_version(),
        title=ledger.title,
        plugins=trouble.all_rows(),
        inputs=(*logs.inputs, *others),
        runs=tuple(read.row for read in logs.reads),
        selected_run=chosen.row.index,
        deployment=deployment_row(ledger, gpu),
        version_range=VersionRange(
            range=ledger.version_range,
            why="the wordings of this run narrow it"
            if ledger.version_range
            else "the wordings of this run do not narrow it",
        ),
        outcome=Outcome(status=ledger.status, stage=ledger.reached, failure=ledger.failure),
        ranks=ranks,
        shown_rank=shown,
        asked_rank=asked,
        kv_pool=kv_pool_row(ledger, layout),
        concurrency=fits,
        findings=(
            *ledger.findings,
            *contradictions(ledger, ranks),
            *device_findings,
            *_clash_findings(clash, measured),
            *layout_findings,
            *_left_out_findings(logs.inputs, chosen.run),
            *trouble.findings,
        ),
        advice=tuple(advise(ledger, fits, layout)),
        load=load_row(ledger.load, fits.request_limit),
        evidence=tuple(evidence_rows(chosen.run)),
        evidence_omitted=dict(chosen.run.omitted),
        unmatched=tuple(logs.unmatched) if options.unmatched else ABSENT,
    )


def _refuse(options: Options, logs: int) -> None:
    """Raises UsageError for options that do not go together."""
    if options.layout is not None and options.config is None:
        raise UsageError("--layout says how to read a config.json: give one with --config")
    if len(options.smi) > max(logs, 1) and options.smi_map is None:
        raise UsageError(
            f"{len(options.smi)} --smi for {logs} logs: the k-th belongs to the k-th log; "
            "several of one log need --smi-map"
        )


# --- reading ----------------------------------------------------------


def _read(paths: Sequence[str], plugins: Plugins, options: Options, trouble: _Trouble) -> Logs:
    owners = {event: e.framework for e in plugins.extractors for event in e.events}
    scanner = Scanner(plugins.matchers, plugins.prefixes, owners, keep_unmatched=options.unmatched)
    logs = read_logs(paths, scanner, plugins.extractors, trouble.blame, wanted=options.run)
    trouble.findings += [_cut_finding(name, path) for name, path in logs.cut]
    trouble.findings += _scan_findings(scanner)
    for name, error in sorted(scanner.broken.items()):
        trouble.blame(name, error)
    return logs


def _content(path: str, name: str, rows: list[InputRow]) -> bytes:
    """A small input's bytes, read once, and its row: `smi0`, `smi1`, `config0`."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise UnusableInput(f"{path}: cannot be read: {error.strerror}.") from None
    sha256 = hashlib.sha256(content).hexdigest()
    kind = name.rstrip("0123456789")
    rows.append(InputRow(id=name, kind=kind, path=path, bytes=len(content), sha256=sha256))
    return content


def _with_metrics(
    ledger: Ledger, path: str | None, rows: list[InputRow], trouble: _Trouble
) -> Ledger:
    """The ledger with what a saved metrics page adds; its framework's plugin knows the names."""
    if path is None:
        return ledger
    samples = read_metrics(_content(path, "metrics0", rows), path)
    extractor = trouble.plugins.extractor_of(ledger.framework)
    read = getattr(extractor, "with_metrics", None)
    told = ledger
    try:
        if read is not None:
            told = read(ledger, samples)
        if not isinstance(told, Ledger):
            raise TypeError(f"with_metrics gave {type(told).__name__}")
    # The border of a plugin: the log still says what it says.
    except Exception as error:  # noqa: BLE001
        trouble.blame(ledger.framework, f"{type(error).__name__}: {error}")
        return ledger
    if told == ledger:
        trouble.findings.append(
            Finding(
                code="metrics-say-nothing",
                severity=Severity.INFO,
                message=f"{path}: adds nothing to what the log says of {ledger.title}'s KV cache",
                evidence=("metrics0",),
            )
        )
    return told


def _device_readings(
    raw: bytes, path: str, name: str, trouble: _Trouble
) -> tuple[DeviceReading, ...]:
    content = raw.decode("utf-8-sig", "replace").replace("\r\n", "\n")
    readers = trouble.plugins.device_readers
    for reader in readers:
        try:
            if reader.recognises(content):
                return tuple(reader.read(content, name))
        except UnusableInput as error:
            raise UnusableInput(f"{path}: {error}") from None
        # The border of a plugin: another reader may still know the form.
        except Exception as error:  # noqa: BLE001
            trouble.blame(reader.name, f"{type(error).__name__}: {error}")
    commands = "; ".join(reader.command for reader in readers) or "no reader is active"
    raise UnusableInput(f"{path}: not a device reading that is known. Make one with: {commands}")


# --- what the readings say --------------------------------------------


def _device_name(ledger: Ledger, readings: Sequence[DeviceReading]) -> Value:
    names = {reading.name for reading in readings if reading.name}
    if len(names) == 1:
        evidence = tuple(line for reading in readings for line in reading.used.evidence)
        return text(names.pop(), Origin.MEASURED, how="device tool", evidence=evidence[:1])
    return ledger.deployment.gpu_name


def _device_total(facts: Sequence[RankFacts], readings: Sequence[DeviceReading]) -> Value:
    printed = [rank.device_total for rank in facts if isinstance(rank.device_total, Known)]
    measured = [device_capacity(reading) for reading in readings]
    said = printed or [value for value in measured if isinstance(value, Known)]
    said = said or [reading.total for reading in readings if isinstance(reading.total, Known)]
    return least(said) if said else Unknown(why="no total was printed or measured", unit=GIB)


def _layout(
    config: ModelConfig | None, options: Options, ledger: Ledger, trouble: _Trouble
) -> tuple[LayoutRow | None, LayoutRow | None, list[Finding]]:
    """What the configuration says of the largest stage, and of all layers on one rank, which is
    not to be used where the log contradicts it."""
    if config is None:
        return None, None, []
    layouts, variant = named(trouble.plugins.kv_layouts, options.layout)
    split = layer_split(trouble.plugins.extractor_of(ledger.framework))
    serving = attrs.evolve(serving_of(ledger, config, split), variant=variant)
    of_rank = functools.partial(
        layout_of,
        config,
        layouts,
        ledger.deployment,
        serving,
        trouble.blame,
        asked=options.layout is not None,
        printed=ledger.kv.bytes_per_full_token,
    )
    row, findings = of_rank()
    apart = list(disagreement(ledger, row))
    stages = ledger.deployment.parallel.pipeline
    if apart:
        return row, None, [*findings, *apart]
    if isinstance(stages, Known) and stages.number == 1:
        return row, row, findings
    whole, _ = of_rank(stages=1)
    return row, whole, findings


# --- what went wrong --------------------------------------------------


def _scan_findings(scanner: Scanner) -> list[Finding]:
    return [
        Finding(
            code="matcher-clash",
            severity=Severity.WARNING,
            message=(
                f"{clash.used} and {clash.dropped} both read this text; {clash.used} was used. "
                "One should say that it replaces the other."
            ),
            evidence=(clash.line,),
        )
        for clash in scanner.clashes
    ]


def _clash_findings(clash: str | None, readings: Sequence[DeviceReading]) -> list[Finding]:
    if clash is None:
        return []
    lines = tuple(line for reading in readings[:1] for line in reading.used.evidence)
    return [Finding(code="gpu-clash", severity=Severity.WARNING, message=clash, evidence=lines)]


def _left_out_findings(inputs: Sequence[InputRow], run: Run) -> list[Finding]:
    """Logs of which nothing is in the report, which is about one run of one deployment."""
    left = [row for row in inputs if row.id not in run.inputs]
    if not left:
        return []
    names = ", ".join(f"{row.path} ({row.id})" for row in left)
    return [
        Finding(
            code="log-not-in-report",
            severity=Severity.WARNING,
            message=f"the report is about one deployment; not in it: {names}. See --run.",
            evidence=tuple(row.id for row in left),
        )
    ]


def _cut_finding(name: str, path: str) -> Finding:
    return Finding(
        code="input-cut",
        severity=Severity.WARNING,
        message=f"{path}: the compressed data ends early; what came before it was read",
        evidence=(name,),
    )


def tool_version() -> str:
    try:
        return importlib.metadata.version("capacity-core")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


__all__ = ["DEFAULT_LENGTHS", "Options", "analyse", "tool_version"]
