"""What a config.json of DeepSeek-V4 or V4.1 says of the KV cache: the slots, and no total."""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api.kv_layouts import (
    CacheTerm,
    LayoutReading,
    ModelConfig,
    Placement,
)
from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_SLOT, BYTES_PER_TOKEN, COUNT
from capacity_core.values import Known, Origin, Unknown, known
from capacity_deepseek_v4.slots import SLOT_LAYOUTS, SlotLayout

_TYPES = ("deepseek_v4", "deepseek_v41", "deepseek_v41_text")
_OWNERS = ("kv_source_layer_ids", "compress_ratios")
_GEOMETRY = {"head_dim": 512, "qk_rope_head_dim": 64}

_PER_TOKEN = Unknown(
    why="the sliding-window share, sharing between layers, page padding and the sizing mode come "
    "from the engine: read bytes_per_full_token from the log, which is not comparable between "
    "versions",
    unit=BYTES_PER_TOKEN,
)


@attrs.frozen(kw_only=True)
class DeepSeekV4:
    """DeepSeek-V4 and V4.1: one latent for all heads, compressed by a ratio that differs by layer.

    It gives the sizes of one stored slot, each with when it is used (`assuming`), and no bytes
    per token. Every tensor-parallel rank holds the whole latent.

    Sources: SGLang 0.5.23 sglang/kernels/ops/attention/dsv4/kv_layout.py and
    srt/mem_cache/deepseek_v4_memory_pool.py. More: references/kv-layouts.md#deepseek-v4.
    """

    name: str = "deepseek-v4"

    def applies(self, config: ModelConfig) -> bool:
        """Whether it is one of these models, by its type and the fields that only they have."""
        return config.get("model_type", _TYPES[0]) in _TYPES and any(
            config.get(field) for field in _OWNERS
        )

    def read(
        self, config: ModelConfig, placement: Placement, dtype_bytes: int | None
    ) -> LayoutReading:
        """The three slots and the replication; `dtype_bytes` decides nothing here.

        Raises LayoutError when the configuration's latent is not the one that slots are known for.
        """
        for field, expected in _GEOMETRY.items():
            if config.get(field, expected) != expected:
                raise LayoutError(
                    f"{field} is {config[field]!r} in the configuration; "
                    f"the slots of DeepSeek-V4 are known for {expected} alone"
                )
        fields = tuple(f"config0:{field}" for field in _OWNERS if config.get(field))
        shared = "kv_source_layer_ids" in config
        return LayoutReading(
            family="DeepSeek-V4.1" if shared else "DeepSeek-V4",
            terms=tuple(_term(layout, fields) for layout in SLOT_LAYOUTS),
            replication=known(
                placement.attention_tensor,
                COUNT,
                Origin.THEORETICAL,
                how=f"every one of {placement.attention_tensor} ranks holds the one latent",
                evidence=fields,
            ),
            bytes_per_token=_PER_TOKEN.cite(*fields),
            formula="slot = payload + scales; page = ceil(slots * slot / align) * align",
            source="SGLang 0.5.23 sglang/kernels/ops/attention/dsv4/kv_layout.py",
        )


def _term(layout: SlotLayout, fields: tuple[str, ...]) -> CacheTerm:
    slot = Known(
        amount=Decimal(layout.slot_bytes),
        unit=BYTES_PER_SLOT,
        origin=Origin.THEORETICAL,
        how=f"{layout.payload_bytes} payload + {layout.scale_bytes} scales",
        evidence=fields,
        assuming=(layout.used,),
    )
    return CacheTerm(
        name=f"slot[{layout.name}]", bytes_per_token=_PER_TOKEN.cite(*fields), slot=slot
    )
