"""Which layers of a stage own which cache: the fields of a configuration, judged and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from capacity_core.api.config_fields import as_int, count, counts
from capacity_core.api.kv_layouts import ModelConfig, Placement
from capacity_core.errors import LayoutError

RATIOS = (4, 128, 1, 2)
OWNERS = ("kv_source_layer_ids", "compress_ratios")
_SIZES = ("num_hidden_layers", "sliding_window", "index_head_dim")
# Slots are known for this latent alone.
_GEOMETRY = {"head_dim": 512, "qk_rope_head_dim": 64}

LATENT = 512
"""Elements of a latent."""


@attrs.frozen(kw_only=True)
class Stage:
    """The layers of one pipeline stage: how many there are, how many own a compressed cache of each
    ratio, the elements of an index key, the tokens of the window, and whether layers of this model
    share."""

    layers: int
    owners: Mapping[int, int]
    index_dim: int
    window: int
    shares: bool
    fields: tuple[str, ...]


def stage_of(config: ModelConfig, placement: Placement, *, untrimmed: bool = False) -> Stage:
    """The stage of a placement. Every layer of ratio 4 and 128 owns its cache, of ratio 1 and 2
    only sources do (SGLang 0.5.23 srt/mem_cache/deepseek_v4_memory_pool.py
    `collect_sources_by_ratio`). With `untrimmed` the stage is every entry of the list, the draft's
    among them, as the first release had it.

    Raises LayoutError when a field is absent or says what no engine reads, and when a stage would
    cut layers off from the one whose cache they read.
    """
    for field, expected in _GEOMETRY.items():
        if config.get(field, expected) != expected:
            raise LayoutError(
                f"{field} is {config[field]!r} in the configuration; "
                f"the slots of DeepSeek-V4 are known for {expected} alone"
            )
    ratios = counts(config, "compress_ratios")
    layers = as_int(count(config, "num_hidden_layers"))
    if len(ratios) < layers:
        raise LayoutError(f"compress_ratios has {len(ratios)} entries for {layers} layers")
    here = range(len(ratios)) if untrimmed else placement.layers(layers)
    unknown = sorted({ratios[i] for i in here} - {0, *RATIOS})
    if unknown:
        raise LayoutError(f"compress_ratios has {unknown[0]}, which no engine reads")
    low = any(ratio in (1, 2) for ratio in ratios[:layers])
    sources = counts(config, "kv_source_layer_ids") if low else ()
    _refuse_cut_groups(ratios, sources, here)
    owners = {ratio: sum(ratios[i] == ratio for i in here) for ratio in (4, 128)}
    owners |= {ratio: sum(ratios[i] == ratio for i in sources if i in here) for ratio in (1, 2)}
    return Stage(
        layers=len(here),
        owners={ratio: owners[ratio] for ratio in RATIOS if owners[ratio]},
        index_dim=as_int(count(config, "index_head_dim")),
        window=as_int(count(config, "sliding_window")),
        shares=low,
        fields=tuple(f"config0:{field}" for field in (*OWNERS, *_SIZES) if config.get(field)),
    )


def _refuse_cut_groups(ratios: Sequence[int], sources: Sequence[int], here: range) -> None:
    """Both engines refuse it (vLLM 0.33.0 vllm/models/deepseek_v41/attention.py:466; SGLang 0.5.23
    srt/mem_cache/deepseek_v4_memory_pool.py:1819)."""
    for layer in here:
        if ratios[layer] not in (1, 2):
            continue
        before = [s for s in sources if s <= layer and ratios[s] == ratios[layer]]
        if not before or max(before) not in here:
            raise LayoutError(
                f"layer {layer} reads the cache of a layer that is not in its pipeline stage "
                f"({here.start} to {here.stop - 1}); engines refuse such a cut"
            )
