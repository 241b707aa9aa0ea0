"""The front door: `analyse(paths, options, plugins)` reads everything and returns one frozen
report."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

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
from capacity_core.api.device_readers import DeviceReading
from capacity_core.api.extractors import Run
from capacity_core.api.kv_layouts import ModelConfig
from capacity_core.api.ledger import Finding, Ledger, RankFacts, RankId, Severity
from capacity_core.api.report import (
    ABSENT,
    SCHEMA,
    InputRow,
    LayoutRow,
    Outcome,
    Report,
    VersionRange,
)
from capacity_core.errors import UsageError
from capacity_core.inputs import Inputs, Options, read_inputs
from capacity_core.loader import Plugins, tool_version
from capacity_core.trouble import Trouble
from capacity_core.units import GIB
from capacity_core.values import Known, Origin, Unknown, Value, least, text


def analyse(paths: Sequence[str], options: Options, plugins: Plugins) -> Report:
    """Read logs, device readings and a configuration, and account for the last run that says
    anything.

    Raises UnusableInput for an input that cannot be used, NothingRecognised when no line of any log
    is known, and UsageError when an option names what does not exist. A plugin that fails while
    reading is named in the report.
    """
    _refuse(options, len(paths))
    trouble = Trouble(plugins)
    inputs = read_inputs(paths, options, trouble)
    ledger, run = inputs.ledger, inputs.chosen.run
    layout, whole, layout_findings = _layout(inputs.config, options, ledger, trouble)
    facts = tuple(sorted(ledger.ranks, key=lambda rank: rank.id.order))
    devices, measured, device_findings = _devices(inputs, facts, options.smi_map)
    ranks = tuple(rank_row(rank, devices.get(rank.id)) for rank in facts)
    shown, asked = shown_rank(facts, options.rank)
    name, total = _device_name(ledger, measured), _device_total(facts, measured)
    gpu, clash = gpu_row(plugins.gpu_specs, options.gpu, name, total)
    fits = concurrency(
        ledger,
        options.request_tokens,
        whole,
        trouble.report_failure,
        trouble.report_unused_layout,
    )
    return Report(
        schema=SCHEMA,
        tool=tool_version(),
        title=ledger.title,
        plugins=trouble.all_rows(),
        inputs=(*inputs.logs.inputs, *inputs.rows),
        runs=tuple(read.row for read in inputs.logs.reads),
        selected_run=inputs.chosen.row.index,
        deployment=deployment_row(ledger, gpu),
        version_range=_version_range(ledger),
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
            *_left_out_findings(inputs.logs.inputs, run),
            *trouble.findings,
        ),
        advice=tuple(advise(ledger, fits, layout)),
        load=load_row(ledger.load, fits.request_limit),
        evidence=tuple(evidence_rows(run)),
        evidence_omitted=dict(run.omitted),
        unmatched=tuple(inputs.logs.unmatched) if options.unmatched else ABSENT,
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


# --- what the inputs say ----------------------------------------------


def _version_range(ledger: Ledger) -> VersionRange:
    why = "narrow" if ledger.version_range else "do not narrow"
    return VersionRange(range=ledger.version_range, why=f"the wordings of this run {why} it")


def _devices(
    inputs: Inputs, facts: Sequence[RankFacts], smi_map: str | None
) -> tuple[Mapping[RankId, DeviceReading], tuple[DeviceReading, ...], list[Finding]]:
    """The device of each rank, all devices of this server, and what is wrong with them."""
    devices, findings = by_rank(inputs.readings, facts, inputs.ledger.deployment, smi_map)
    # Beside those that a map names there may be devices of other servers.
    measured = inputs.measured if smi_map is None else tuple(devices.values())
    return devices, measured, findings


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
    config: ModelConfig | None, options: Options, ledger: Ledger, trouble: Trouble
) -> tuple[LayoutRow | None, LayoutRow | None, list[Finding]]:
    """What the configuration says of the largest stage, and of all layers on one rank, None where
    the log contradicts it."""
    if config is None:
        return None, None, []
    layouts, variant = named(trouble.plugins.kv_layouts, options.layout)
    extractor = trouble.plugins.extractor_of(ledger.framework)
    split = layer_split(extractor, trouble.report_failure)
    serving = attrs.evolve(serving_of(ledger, config, split), variant=variant)
    of_rank = functools.partial(
        layout_of,
        config,
        layouts,
        ledger.deployment,
        serving,
        trouble.report_failure,
        asked=options.layout is not None,
        printed=ledger.kv.bytes_per_full_token,
        releases=ledger.version_range or (),
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


__all__ = ["Options", "analyse"]
