"""What a model's KV costs without a log: `size_kv(path, options, plugins)` reads a config.json and
returns one frozen report."""

from __future__ import annotations

import attrs

from capacity_core.accounting.layout_rows import largest, request_bytes
from capacity_core.accounting.layouts import claim, layout_rows, named, nobody_knows
from capacity_core.accounting.serving import layer_split, stored_type
from capacity_core.api.admission import DEFAULT_LENGTHS, Request
from capacity_core.api.kv_layouts import ModelConfig, Placement, Serving
from capacity_core.api.kv_report import KV_SCHEMA, KvReport, ParallelRow, RequestRow, StageRow
from capacity_core.api.report import ABSENT, LayoutRow
from capacity_core.api.versions import release_key
from capacity_core.errors import LayoutError, PluginError, UnusableInput, UsageError
from capacity_core.loader import Plugins, tool_version
from capacity_core.reading.model_config import read_model_config
from capacity_core.trouble import Trouble
from capacity_core.values import Known, Unknown


@attrs.frozen(kw_only=True)
class KvOptions:
    """How a model is asked to be served; `framework` may name a release, as in `engine==1.2`."""

    framework: str | None = None
    tensor: int = 1
    pipeline: int = 1
    attention_data: int = 1
    context: int = 1
    dtype: str = "auto"
    page_size: int | None = None
    draft_layers: int = 0
    layout: str | None = None
    requests: tuple[Request, ...] = DEFAULT_LENGTHS


def size_kv(path: str, options: KvOptions, plugins: Plugins) -> KvReport:
    """The report for a config.json.

    Raises UnusableInput when the file cannot be used, no layout knows the model, or the one that
    does lacks what every figure needs; UsageError when an option names what does not exist;
    PluginError when the one that knows the model breaks.
    """
    config = _config(path)
    trouble = Trouble(plugins)
    serving = _serving(options, config, trouble)
    rows = _rows(path, config, serving, options.layout, trouble)
    most = largest(rows)
    _refuse_nothing(path, most)
    several = len(rows) > 1
    return KvReport(
        schema=KV_SCHEMA,
        tool=tool_version(),
        model=str(config.get("_name_or_path") or path),
        framework=serving.framework,
        framework_version=serving.version,
        parallel=ParallelRow(
            tensor=options.tensor,
            pipeline=options.pipeline,
            attention_data=options.attention_data,
            context=options.context,
        ),
        kv_cache_dtype=most.dtype,
        page_size=serving.page_size,
        layout=most,
        stages=tuple(StageRow(pp_rank=i, layout=row) for i, row in enumerate(rows) if several),
        requests=tuple(
            RequestRow(
                request_tokens=request.tokens,
                prompt_tokens=ABSENT if request.prompt is None else request.prompt,
                output_tokens=ABSENT if request.output is None else request.output,
                bytes=request_bytes(rows, request.tokens, serving.page_size),
            )
            for request in options.requests
        ),
        plugins=trouble.all_rows(),
    )


def _rows(
    path: str,
    config: ModelConfig,
    serving: Serving,
    name: str | None,
    trouble: Trouble,
) -> list[LayoutRow]:
    """A row for one rank of each pipeline stage."""
    layouts, variant = named(trouble.plugins.kv_layouts, name)
    served = attrs.evolve(serving, variant=variant)
    failed = trouble.report_failure
    try:
        layout = claim(config, layouts, failed, asked=name is not None)
        rows = [] if layout is None else layout_rows(config, layout, served, failed)
    except LayoutError as error:
        raise UnusableInput(f"{path}: {error}.") from None
    if layout is None:
        raise UnusableInput(f"{path}: {nobody_knows(config)}.{trouble.told}")
    if not rows:
        raise PluginError(f"{path}:{trouble.told}")
    return rows


def _refuse_nothing(path: str, layout: LayoutRow) -> None:
    """Raises UnusableInput when every cost is unknown."""
    costs = [
        cost
        for term in layout.terms
        for cost in (term.bytes_per_token, term.fixed_bytes_per_request)
        if cost is not None and not (isinstance(cost, Known) and not cost.number)
    ]
    if costs and all(isinstance(cost, Unknown) for cost in costs):
        why = "; ".join(
            dict.fromkeys(
                value.why for value in (*costs, layout.dtype) if isinstance(value, Unknown)
            )
        )
        ask = ". Give the stored type with --kv-dtype" if isinstance(layout.dtype, Unknown) else ""
        raise UnusableInput(f"{path}: {layout.name}: {why}{ask}.")


def _config(path: str) -> ModelConfig:
    try:
        with open(path, "rb") as file:
            return read_model_config(file.read(), path)
    except OSError as error:
        raise UnusableInput(f"{path}: cannot be read: {error.strerror}.") from None


def _serving(options: KvOptions, config: ModelConfig, trouble: Trouble) -> Serving:
    framework, named_release, version = (options.framework or "").partition("==")
    if named_release and not release_key(version):
        raise UsageError(f"--framework {options.framework}: no release stands behind ==")
    extractor = trouble.plugins.extractor_of(framework)
    if framework and extractor is None:
        names = ", ".join(each.framework for each in trouble.plugins.extractors) or "none"
        raise UsageError(f"--framework {framework}: unknown; there are: {names}")
    ways = options.attention_data * options.context
    if options.tensor % ways:
        raise UsageError(
            f"--tp {options.tensor} does not divide into {options.attention_data} attention "
            f"data-parallel and {options.context} context-parallel ranks"
        )
    dtype, assumed = stored_type(options.dtype, config)
    return Serving(
        framework=framework or None,
        version=version or None,
        placement=Placement(
            attention_tensor=options.tensor // ways,
            context=options.context,
            attention_data=options.attention_data,
            pipeline=options.pipeline,
            split=layer_split(extractor, trouble.report_failure),
        ),
        dtype=dtype,
        dtype_assumed=assumed,
        page_size=options.page_size,
        draft_layers=options.draft_layers,
    )
