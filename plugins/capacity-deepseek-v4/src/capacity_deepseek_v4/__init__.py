"""The KV layout of DeepSeek-V4 and V4.1, and an example for a layout of another model."""

from __future__ import annotations

from capacity_core.api import hookimpl
from capacity_core.api.kv_layouts import KVLayout
from capacity_deepseek_v4.layout import DeepSeekV4


@hookimpl
def capacity_kv_layouts() -> tuple[KVLayout, ...]:
    return (DeepSeekV4(),)
