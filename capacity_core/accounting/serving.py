"""How a model is served, as far as a log says: what a KV layout needs beside the configuration."""

from __future__ import annotations

from collections.abc import Mapping

from capacity_core.api.extractors import Extractor
from capacity_core.api.kv_layouts import (
    LayerSplit,
    ModelConfig,
    Placement,
    Serving,
    plain_type,
)
from capacity_core.api.ledger import Deployment, Ledger
from capacity_core.errors import LayoutError, OnFailure
from capacity_core.values import Known, Unknown, Value


def serving_of(ledger: Ledger, config: ModelConfig, split: LayerSplit | None) -> Serving:
    """How a log's server serves the model; the stored type is as allocated, as asked for, or for
    `auto` the model's own. The sizes of its placement are not judged here."""
    deployment, kv = ledger.deployment, ledger.kv
    types = [
        value
        for value in (deployment.kv_cache_dtype_resolved, deployment.kv_cache_dtype)
        if isinstance(value, Known)
    ]
    named = next((value for value in types if value.amount != "auto"), None)
    dtype, assumed = stored_type("auto" if named is None else str(named.amount), config)
    said = [
        value
        for value in (
            *(types[-1:] if named is None else (named,)),
            deployment.page_size,
            deployment.version,
            kv.sizing_mode,
            kv.window_share,
            deployment.state_dtype,
        )
        if isinstance(value, Known)
    ]
    return Serving(
        framework=ledger.framework,
        version=_text(deployment.version),
        placement=Placement(split=split),
        dtype=dtype if types else None,
        dtype_assumed=assumed and bool(types),
        page_size=_whole(deployment.page_size),
        speculative=isinstance(deployment.speculative, Known),
        sizing_mode=_text(kv.sizing_mode),
        window_share=kv.window_share.number if isinstance(kv.window_share, Known) else None,
        keeps_all=kv.keeps_all,
        state_dtype=_text(deployment.state_dtype),
        device=_text(deployment.device),
        evidence=tuple(dict.fromkeys(line for value in said for line in value.evidence)),
    )


def stored_type(asked: str, config: ModelConfig) -> tuple[str | None, bool]:
    """The name of the stored type, and whether it was assumed: `auto` is the model's own, unless
    its quantization names one for KV."""
    if asked != "auto":
        return plain_type(asked), False
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        told = {name: said for name, said in quantization.items() if "kv_cache" in name and said}
        if told:
            return _stored_by(quantization, told), True
    own = config.get("dtype") or config.get("torch_dtype")
    name = None if own is None else plain_type(str(own))
    # Engines load checkpoints of 32 bits in 16, in a type that they choose.
    return (None if name == "fp32" else name), True


def _stored_by(quantization: Mapping[str, object], told: Mapping[str, object]) -> str | None:
    """The stored type that a checkpoint's quantization names for KV, where all engines read it so:
    eight-bit floats of modelopt (sources: references/kv-layouts.md#rules-that-hold-for-all)."""
    if not str(quantization.get("quant_method")).startswith("modelopt"):
        return None
    scheme = told.get("kv_cache_scheme")
    floats = (
        isinstance(scheme, dict) and scheme.get("num_bits") == 8 and scheme.get("type") == "float"
    )
    return "fp8_e4m3" if floats or told.get("kv_cache_quant_algo") == "FP8" else None


def placements_of(
    deployment: Deployment, split: LayerSplit | None, stages: int | None = None
) -> tuple[tuple[Placement, ...], tuple[str, ...], str | None]:
    """Where the layers and heads of a rank lie, the lines that say so, and what is open; with
    `stages` as if there were so many. Context-parallel ranks of a prefill hold copies, so a log's
    are not counted.

    Where the tensor-parallel size is not known, every usual one: a latent is the same in all.
    Raises LayoutError, with the reason, when the pipeline size is not known.
    """
    parallel = deployment.parallel
    lines: tuple[str, ...] = ()
    if stages is None:
        stages, lines = _size("pipeline parallel", parallel.pipeline)
    sizes: tuple[int, ...] = _USUAL_SIZES
    more: tuple[str, ...] = ()
    why = None
    try:
        tensor, more = _size("attention tensor parallel", parallel.attention_tensor)
        sizes = (tensor,)
    except LayoutError as error:
        why = str(error)
    split_up = parallel.attention_data
    groups = int(split_up.number) if isinstance(split_up, Known) and split_up.number >= 1 else 1
    placements = tuple(
        Placement(attention_tensor=size, attention_data=groups, pipeline=stages, split=split)
        for size in sizes
    )
    return placements, (*more, *lines), why


def layer_split(extractor: Extractor | None, on_failure: OnFailure) -> LayerSplit | None:
    """How a framework cuts layers into stages; None when its plugin does not say. What breaks there
    is reported as the framework's, whichever layout asks."""
    split: LayerSplit | None = getattr(extractor, "split_layers", None)
    if extractor is None or split is None:
        return None
    framework = extractor.framework

    def stages_of(layers: int, stages: int) -> tuple[int, ...]:
        try:
            return split(layers, stages)
        # The border of a plugin, inside that of the layout which asks.
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            on_failure(framework, why)
            raise LayoutError(f"{framework} failed to split the layers: {why}") from error

    return stages_of


_USUAL_SIZES = (1, 2, 4, 8, 16, 32)


def _size(name: str, size: Value) -> tuple[int, tuple[str, ...]]:
    if not isinstance(size, Known) or size.number < 1:
        why = size.why if isinstance(size, Unknown) else "it is printed as less than 1"
        raise LayoutError(f"the {name} size is not known ({why})")
    return int(size.number), size.evidence


def _text(value: Value) -> str | None:
    return str(value.amount) if isinstance(value, Known) else None


def _whole(value: Value) -> int | None:
    return int(value.number) if isinstance(value, Known) and value.number > 0 else None
