"""What was started, and how: from arguments, configuration and what the engines made of them."""

from __future__ import annotations

from typing import Any

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import (
    Deployment,
    Parallel,
)
from capacity_core.api.versions import release_key
from capacity_core.units import COUNT, RATIO, TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, known, text
from capacity_vllm.args import (
    ChunkedPrefill,
    EngineConfig,
    ModelLength,
    ServerVersion,
    Settings,
)
from capacity_vllm.blocks import BlockSize, HybridSign
from capacity_vllm.failures import ContextExceedsPool, FreeMemoryRefused, HostMemoryRefused
from capacity_vllm.graphs import EstimateApplied, EstimateNotApplied
from capacity_vllm.pools import ContextParallel, FittedLength, KvDtype, KvSize, MaxConcurrency
from capacity_vllm.usage import InitialFree, Profiled, UsageSummary


def deployment_of(run: Run, settings: Settings, tensor: Value) -> Deployment:
    data = _data_parallel(run, settings)
    tensor = tensor | _default_size(run, settings, "tensor_parallel_size")
    context = _context_parallel(run, settings)
    return Deployment(
        version=version_of(run),
        model=settings.text("model", "model_tag"),
        quantization=settings.text("quantization"),
        kv_cache_dtype=settings.text("kv_cache_dtype"),
        kv_cache_dtype_resolved=kv_dtype(run),
        mem_fraction_static=Unknown(why="not a setting of vLLM", unit=RATIO),
        gpu_memory_utilization=_utilization(run, settings),
        context_length=_context_length(run, settings),
        page_size=block_size_of(run, settings),
        chunked_prefill_size=_chunked_prefill(run, settings),
        max_prefill_tokens=Unknown(why="not a setting of vLLM", unit=TOKENS),
        speculative=settings.nested("speculative_config", "method"),
        disaggregation=_disaggregation(settings),
        parallel=Parallel(
            tensor=tensor,
            pipeline=settings.number(COUNT, "pipeline_parallel_size")
            | _default_size(run, settings, "pipeline_parallel_size"),
            data=data,
            attention_tensor=_attention_tensor(tensor, context),
            context=context,
            nodes=settings.number(COUNT, "nnodes"),
        ),
        workers=data,
        device=settings.text("device_config"),
        state_dtype=_unless_auto(settings.text("mamba_ssm_cache_dtype")),
    )


def _unless_auto(said: Value) -> Value:
    if isinstance(said, Known) and said.amount == "auto":
        return Unknown(why="it is left to the engine", evidence=said.evidence)
    return said


_TRANSFER_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def _disaggregation(settings: Settings) -> Value:
    """What a server with a one-way transfer of KV does (0.33.0 config/kv_transfer.py)."""
    role = settings.nested("kv_transfer_config", "kv_role")
    serves = _TRANSFER_ROLES.get(str(role.amount)) if isinstance(role, Known) else None
    if not isinstance(role, Known) or serves is None:
        return Unknown(why="the log does not say")
    return text(serves, Origin.CONFIGURED, how=role.how, evidence=role.evidence)


def kv_dtype(run: Run) -> Value:
    sighting = run.last_of(KvDtype)
    if sighting is None:
        return Unknown(why="vLLM does not print the resolved element type")
    return sighting.value("dtype")


def _default_size(run: Run, settings: Settings, key: str) -> Value:
    """One, when the arguments leave the size out and no rank of the run contradicts it."""
    if any(s.speaker.tp or s.speaker.pp or s.speaker.rank for s in run):
        return Unknown(why=f"{key} is not printed", unit=COUNT)
    return settings.default(1, COUNT, key)


def _data_parallel(run: Run, settings: Settings) -> Value:
    """As asked for: the configuration of dense models says 1 from 0.14.1 on, whatever was asked
    (v1/engine/core.py:921). Engines that speak by their rank are counted as well."""
    said = (
        settings.asked(COUNT, "data_parallel_size")
        | settings.number(COUNT, "data_parallel_size")
        | settings.default(1, COUNT, "data_parallel_size")
    )
    ranked = [s for s in run if s.speaker.dp is not None]
    shown = max((s.speaker.dp or 0 for s in ranked), default=-1) + 1
    if isinstance(said, Known) and shown > said.number:
        lines = tuple(s.line for s in ranked if s.speaker.dp == shown - 1)[:1]
        return known(shown, COUNT, Origin.DERIVED, how="highest DP rank + 1", evidence=lines)
    return said


def block_size_of(run: Run, settings: Settings) -> Value:
    """As the back-end or the state layers set it, else as asked for."""
    said: list[list[Sighting[Any]]] = [[*run.of(HybridSign)], [*run.of(BlockSize)]]
    for sightings in said:
        blocks = {s.event.block: s for s in sightings if s.event.block is not None}
        if len(blocks) == 1:
            return next(iter(blocks.values())).value("block")
    return settings.number(TOKENS, "block_size")


def _chunked_prefill(run: Run, settings: Settings) -> Value:
    value = settings.number(TOKENS, "max_num_batched_tokens")
    sighting = run.last_of(ChunkedPrefill)
    return value if sighting is None else sighting.value("batched") | value


def version_of(run: Run) -> Value:
    said: list[Sighting[Any]] = [*run.of(EngineConfig), *run.of(ServerVersion)]
    for sighting in said:
        if sighting.event.version is not None:
            return sighting.value("version")
    return Unknown(why="no line of this run prints the release")


def _utilization(run: Run, settings: Settings) -> Value:
    value = settings.number(RATIO, "gpu_memory_utilization")
    for event in (
        UsageSummary,
        FreeMemoryRefused,
        HostMemoryRefused,
        InitialFree,
        EstimateApplied,
        EstimateNotApplied,
        Profiled,
    ):
        sightings: list[Sighting[Any]] = run.of(event)
        said = [s for s in sightings if s.event.utilization is not None]
        if said:
            value = value | said[-1].value("utilization")
    return value | settings.left_out("gpu_memory_utilization", _default_utilization(run))


def _default_utilization(run: Run) -> str:
    """What the release takes when nobody says it (config/cache.py:66): told, never used."""
    since = span_of(run)
    if since is None:
        return "0.9 up to 0.19.1, 0.92 from 0.20.0; the release is not known"
    first, last = (release_key(release)[:2] for release in since)
    if last < (0, 20):
        return "0.9 in this release"
    return "0.92 in this release" if first >= (0, 20) else "0.9 or 0.92, by the release"


def span_of(run: Run) -> tuple[str, str] | None:
    """The releases, first and last, that this run may be of: as printed, else as its wordings
    narrow it. Builds from source call themselves 0.1.dev."""
    version = version_of(run)
    if isinstance(version, Known) and release_key(str(version.amount))[:2] > (0, 1):
        return str(version.amount), str(version.amount)
    return run.version_range


def _context_length(run: Run, settings: Settings) -> Value:
    """The effective longest length: auto-fit's choice, what the capacity line is about, the
    configuration, the arguments."""
    value: Value = Unknown(why="no line tells the longest length", unit=TOKENS)
    for event, field in (
        (FittedLength, "length"),
        (KvSize, "request_tokens"),
        (MaxConcurrency, "request_tokens"),
        (ContextExceedsPool, "length"),
    ):
        sighting = run.last_of(event)
        if sighting is not None and getattr(sighting.event, field) is not None:
            value = value | sighting.value(field)
    asked = settings.number(TOKENS, "max_seq_len", "max_model_len")
    if isinstance(asked, Known) and asked.number > 0:
        value = value | asked
    lengths = {s.event.length for s in run.of(ModelLength)}
    if len(lengths) == 1:
        value = value | run.of(ModelLength)[0].value("length")
    return value


def _attention_tensor(tensor: Value, context: Value) -> Value:
    """The tensor-parallel size (0.33.0 config/model.py `get_num_kv_heads`), but where
    context-parallel ranks hold different tokens of the same heads."""
    if isinstance(context, Known) and context.number > 1:
        why = "context-parallel ranks share out a request's tokens"
        return Unknown(why=why, unit=COUNT, evidence=context.evidence)
    return tensor


def _context_parallel(run: Run, settings: Settings) -> Value:
    value = settings.number(COUNT, "decode_context_parallel_size")
    factor = run.last_of(ContextParallel)
    return value if factor is None else factor.value("factor") | value
