"""What `capacity kv` says: the bytes that a model's tokens and requests cost on one device."""

from __future__ import annotations

import attrs

from capacity_core.api.report import ABSENT, Absent, LayoutRow, PluginRow
from capacity_core.values import Value

KV_SCHEMA = "capacity-kv/1"


@attrs.frozen(kw_only=True)
class StageRow:
    """One pipeline stage, and what a rank of it keeps."""

    pp_rank: int
    layout: LayoutRow


@attrs.frozen(kw_only=True)
class RequestRow:
    """What one request of so many tokens, prompt and output together, keeps on one device."""

    request_tokens: int
    prompt_tokens: int | Absent = ABSENT
    output_tokens: int | Absent = ABSENT
    bytes: Value


@attrs.frozen(kw_only=True)
class ParallelRow:
    """How the model is spread, as it was asked for."""

    tensor: int
    pipeline: int
    attention_data: int
    context: int


@attrs.frozen(kw_only=True)
class KvReport:
    """The layout of a model's KV under one way to serve it.

    `layout` is of the largest pipeline stage, `requests` of the one that they cost most; `stages`
    lists each where there are several.
    """

    schema: str
    tool: str
    model: str
    framework: str | None
    framework_version: str | None
    parallel: ParallelRow
    kv_cache_dtype: Value
    page_size: int | None
    layout: LayoutRow
    stages: tuple[StageRow, ...]
    requests: tuple[RequestRow, ...]
    plugins: tuple[PluginRow, ...]
