"""What a caller gives an analysis, read: logs, device readings, a configuration, a metrics page."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import attrs

from capacity_core.api.admission import DEFAULT_LENGTHS, Request
from capacity_core.api.device_readers import DeviceReading
from capacity_core.api.kv_layouts import ModelConfig
from capacity_core.api.ledger import Finding, Ledger, Severity
from capacity_core.api.metrics import Metrics
from capacity_core.api.report import InputRow
from capacity_core.errors import PluginError, UnusableInput
from capacity_core.reading.logs import Logs, Read, read_logs, selected
from capacity_core.reading.metrics import read_metrics
from capacity_core.reading.model_config import read_model_config
from capacity_core.reading.scan import Scanner
from capacity_core.trouble import Trouble


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


@attrs.frozen(kw_only=True)
class Inputs:
    """What was read: the logs with the run that the report is about, its ledger with what a metrics
    page adds, the readings of each device tool, the configuration, and a row for each small input
    (those of logs are in `logs`)."""

    logs: Logs
    chosen: Read
    ledger: Ledger
    readings: tuple[tuple[DeviceReading, ...], ...]
    config: ModelConfig | None
    rows: tuple[InputRow, ...]

    @property
    def measured(self) -> tuple[DeviceReading, ...]:
        """The readings of all device tools together."""
        return tuple(reading for of_one in self.readings for reading in of_one)


def read_inputs(paths: Sequence[str], options: Options, trouble: Trouble) -> Inputs:
    """Read everything, the small inputs first: a wrong one is told before a long log is read.

    Raises as `analyse` does.
    """
    rows: list[InputRow] = []
    readings = tuple(
        _device_readings(_content(path, f"smi{number}", rows), path, f"smi{number}", trouble)
        for number, path in enumerate(options.smi)
    )
    config = None
    if options.config is not None:
        config = read_model_config(_content(options.config, "config0", rows), options.config)
    metrics = None
    if options.metrics is not None:
        metrics = read_metrics(_content(options.metrics, "metrics0", rows), options.metrics)
    logs = _read(paths, options, trouble)
    chosen = selected(logs.reads, options.run)
    ledger = chosen.ledger
    if metrics is not None:
        ledger = _with_metrics(ledger, metrics, str(options.metrics), trouble)
    return Inputs(
        logs=logs,
        chosen=chosen,
        ledger=ledger,
        readings=readings,
        config=config,
        rows=tuple(rows),
    )


def _read(paths: Sequence[str], options: Options, trouble: Trouble) -> Logs:
    plugins = trouble.plugins
    owners = {event: e.framework for e in plugins.extractors for event in e.events}
    scanner = Scanner(plugins.matchers, plugins.prefixes, owners, keep_unmatched=options.unmatched)
    logs = read_logs(paths, scanner, plugins.extractors, trouble.report_failure, wanted=options.run)
    trouble.findings += [_cut_finding(name, path) for name, path in logs.cut]
    trouble.findings += _scan_findings(scanner)
    for name, error in sorted(scanner.broken.items()):
        trouble.report_failure(name, error)
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


def _with_metrics(ledger: Ledger, samples: Metrics, path: str, trouble: Trouble) -> Ledger:
    """The ledger with what a saved metrics page adds; its framework's plugin knows the names."""
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
        trouble.report_failure(ledger.framework, f"{type(error).__name__}: {error}")
        return ledger
    if told == ledger:
        trouble.findings.append(
            Finding(
                code="metrics-say-nothing",
                severity=Severity.INFO,
                message=(
                    f"{path}: adds nothing to what the log says of {ledger.title}'s KV cache"
                    if read is not None
                    else f"{path}: the plugin of {ledger.title} reads no metrics page"
                ),
                evidence=("metrics0",),
            )
        )
    return told


def _device_readings(
    raw: bytes, path: str, name: str, trouble: Trouble
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
            trouble.report_failure(reader.name, f"{type(error).__name__}: {error}")
    if trouble.findings:
        raise PluginError(f"{path}:{trouble.told}")
    commands = "; ".join(reader.command for reader in readers) or "no reader is active"
    raise UnusableInput(f"{path}: not a device reading that is known. Make one with: {commands}")


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


def _cut_finding(name: str, path: str) -> Finding:
    return Finding(
        code="input-cut",
        severity=Severity.WARNING,
        message=f"{path}: the compressed data ends early; what came before it was read",
        evidence=(name,),
    )
