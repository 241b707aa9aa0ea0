"""KV blocks: how many there are, how large, and the signs that a model has several kinds."""

from __future__ import annotations

import attrs

from capacity_core.api import INTEGER, Matcher, Sample
from capacity_core.units import Count, Tokens


@attrs.frozen(kw_only=True)
class GpuBlocks:
    """Blocks on every device and in host memory, in releases that print no tokens: the minimum over
    workers, printed once (by the first V1 engines once for each worker)."""

    blocks: Count
    host_blocks: Count | None = None


@attrs.frozen(kw_only=True)
class BlocksOverridden:
    """The profiled number of blocks was replaced by an argument."""

    profiled: Count
    used: Count


@attrs.frozen(kw_only=True)
class HybridSign:
    """A line that only models with more than one kind of KV cache print.

    `sizes` are the block sizes of all groups, `states` the words that only state layers print.
    """

    block: Tokens | None = None
    sizes: str | None = None
    states: str | None = None


@attrs.frozen(kw_only=True)
class StateMode:
    """Which states of a request are kept: none but the running one, the last at a block's end
    (align), or all."""

    mode: str


@attrs.frozen(kw_only=True)
class BlockSize:
    """The size of a KV block as the attention back-end sets it, whatever the arguments say."""

    block: Tokens


@attrs.frozen(kw_only=True)
class BlockCount:
    """How many blocks a worker's cache has, printed after initialisation."""

    blocks: Count


@attrs.frozen(kw_only=True)
class HybridDisabled:
    """Every layer of a hybrid model is counted as full attention."""


GPU_BLOCKS = Matcher(
    name="vllm.gpu_blocks",
    anchor=", # CPU blocks: ",
    pattern=r"# (?:[A-Z]{3,4}|[a-z]{3,4}) blocks: (?P<blocks>\d+), "
    r"# CPU blocks: (?P<host_blocks>\d+)",
    event=GpuBlocks,
    means="Blocks of the KV cache on each device, and of the swap space in host memory.",
    seen_in="0.2.7 … 0.10.2",
    samples=(
        Sample("# GPU blocks: 2987, # CPU blocks: 4096", GpuBlocks(blocks=2987, host_blocks=4096)),
        Sample("# cuda blocks: 7, # CPU blocks: 5", GpuBlocks(blocks=7, host_blocks=5)),
        Sample("# CUDA blocks: 7, # CPU blocks: 5", GpuBlocks(blocks=7, host_blocks=5)),
    ),
)

GPU_BLOCKS_FIRST = Matcher(
    name="vllm.gpu_blocks_first",
    anchor="# GPU blocks: ",
    pattern=r"# GPU blocks: (?P<blocks>\d+)(?!, # CPU|\d)",
    event=GpuBlocks,
    means="Blocks of the KV cache, from the first V1 engines.",
    seen_in="0.6.4.post1 … 0.7.3",
    samples=(Sample("# GPU blocks: 1381", GpuBlocks(blocks=1381)),),
    near_misses=("# GPU blocks: 2987, # CPU blocks: 4096",),
)

BLOCKS_OVERRIDDEN = Matcher(
    name="vllm.blocks_overridden",
    anchor="Overriding num_gpu_blocks=",
    pattern=r"Overriding num_gpu_blocks=(?P<profiled>\d+) with "
    r"num_gpu_blocks_override=(?P<used>\d+)",
    event=BlocksOverridden,
    means="An argument replaced the number of blocks that the budget would have made.",
    seen_in="0.6.4.post1 … 0.33.0",
    samples=(
        Sample(
            "Overriding num_gpu_blocks=512 with num_gpu_blocks_override=10",
            BlocksOverridden(profiled=512, used=10),
        ),
    ),
)

HYBRID_BLOCK = Matcher(
    name="vllm.hybrid_block",
    anchor="Setting attention block size to ",
    pattern=rf"Setting attention block size to (?P<block>{INTEGER}) tokens"
    r"(?: to ensure that attention page size is >= (?P<states>mamba page size))?",
    event=HybridSign,
    means="The model mixes attention with state-space layers.",
    seen_in="0.10.2 … 0.33.0",
    samples=(
        Sample(
            "Setting attention block size to 544 tokens to ensure that attention page size is >= "
            "mamba page size.",
            HybridSign(block=544, states="mamba page size"),
        ),
        Sample("Setting attention block size to 64 tokens so the", HybridSign(block=64)),
    ),
)

HYBRID_PADDING = Matcher(
    name="vllm.hybrid_padding",
    anchor=" padding layers, may waste at most ",
    pattern=r"Add \d+ padding layers, may waste at most",
    event=HybridSign,
    means="The model's layers fall into groups of different sizes.",
    seen_in="0.9.1 … 0.33.0",
    samples=(
        Sample(
            "Add 2 padding layers, may waste at most 9.09% KV cache memory",
            HybridSign(),
        ),
    ),
)

BLOCK_SIZE_SET = Matcher(
    name="vllm.block_size_set",
    anchor="Setting kv cache block size to ",
    pattern=rf"Setting kv cache block size to (?P<block>{INTEGER}) for ",
    event=BlockSize,
    means="The block size that the attention back-end wants.",
    seen_in="0.18.0 … 0.33.0",
    samples=(
        Sample(
            "Setting kv cache block size to 64 for FLASHMLA backend(s).",
            BlockSize(block=64),
        ),
    ),
)

BLOCK_SIZE_FORCED = Matcher(
    name="vllm.block_size_forced",
    anchor="Forcing kv cache block size to ",
    pattern=rf"Forcing kv cache block size to (?P<block>{INTEGER}) for ",
    event=BlockSize,
    means="The same in older words.",
    seen_in="0.8.0 … 0.17.1",
    samples=(
        Sample("Forcing kv cache block size to 64 for FlashMLA backend.", BlockSize(block=64)),
    ),
)

BLOCK_COUNT = Matcher(
    name="vllm.block_count",
    anchor="after num_gpu_blocks is: ",
    pattern=r"cache_config_info with initialization after num_gpu_blocks is: (?P<blocks>\d+)",
    event=BlockCount,
    means="How many blocks the cache has; from 0.11.2 at INFO for several engines alone.",
    seen_in="0.9.0.1 … 0.33.0",
    samples=(
        Sample(
            "Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 28551",
            BlockCount(blocks=28551),
        ),
    ),
)

BLOCK_SIZE_REQUIRED = Matcher(
    name="vllm.block_size_required",
    anchor="backend requires block_size=",
    pattern=rf"backend requires block_size=(?P<block>{INTEGER}), overriding",
    event=BlockSize,
    means="A back-end replaced the block size that was asked for.",
    samples=(
        Sample(
            "CPU MLA backend requires block_size=16, overriding user-specified block_size=128.",
            BlockSize(block=16),
        ),
    ),
)

KV_GROUPS = Matcher(
    name="vllm.kv_groups",
    anchor="kv cache group sizes ",
    pattern=r"kv cache group sizes [\[(]"
    r"(?P<sizes>(?P<block>\d+)(?:, (?P=block))+(?=[\])])|\d+(?:, \d+)+)[\])]",
    event=HybridSign,
    means="The block sizes of a hybrid model's groups; one figure where all have the same.",
    seen_in="0.30.0 … 0.33.0",
    samples=(
        Sample("kv cache group sizes (32, 32, 32)", HybridSign(block=32, sizes="32, 32, 32")),
        Sample("kv cache group sizes (32, 128)", HybridSign(sizes="32, 128")),
    ),
    near_misses=("kv cache group sizes (32,)",),
)

HYBRID_PAGE = Matcher(
    name="vllm.hybrid_page",
    anchor="Padding mamba page size by ",
    pattern=r"Padding (?P<states>mamba page size) by ",
    event=HybridSign,
    means="The model mixes attention with state-space layers, whose pages were padded.",
    seen_in="0.10.2 … 0.33.0",
    samples=(
        Sample(
            "Padding mamba page size by 82.86% to ensure that mamba",
            HybridSign(states="mamba page size"),
        ),
    ),
)

STATE_MODE = Matcher(
    name="vllm.state_mode",
    anchor="Mamba cache mode is set to '",
    pattern=r"Mamba cache mode is set to '(?P<mode>none|align|all)'",
    event=StateMode,
    means="Which states are kept for prefix caching: it decides how many blocks a request takes.",
    seen_in="0.16.0 … 0.33.0",
    samples=(
        Sample(
            "Mamba cache mode is set to 'align' for Qwen3NextForCausalLM by default when prefix",
            StateMode(mode="align"),
        ),
    ),
)

HYBRID_DISABLED = Matcher(
    name="vllm.hybrid_disabled",
    anchor="Hybrid KV cache manager is disabled ",
    pattern=r"Hybrid KV cache manager is disabled (?:for this hybrid model|but failed to convert)",
    event=HybridDisabled,
    means="All layers of a hybrid model keep full-length KV.",
    seen_in="0.9.1 … 0.33.0",
    samples=(
        Sample("Hybrid KV cache manager is disabled for this hybrid model, This", HybridDisabled()),
    ),
)

WINDOWS_AS_FULL = Matcher(
    name="vllm.windows_as_full",
    anchor="treating sliding-window layers as full attention",
    pattern=r"treating sliding-window layers as full attention",
    event=HybridDisabled,
    means="The pages of a model's layers have sizes that do not fit one another.",
    seen_in="0.33.0 … 0.33.0",
    samples=(
        Sample(
            "KV cache page sizes cannot be unified; treating sliding-window layers as full "
            "attention for cache allocation.",
            HybridDisabled(),
        ),
    ),
)

MATCHERS = (
    WINDOWS_AS_FULL,
    GPU_BLOCKS,
    GPU_BLOCKS_FIRST,
    BLOCKS_OVERRIDDEN,
    HYBRID_BLOCK,
    HYBRID_PADDING,
    HYBRID_PAGE,
    HYBRID_DISABLED,
    BLOCK_SIZE_SET,
    BLOCK_SIZE_FORCED,
    BLOCK_SIZE_REQUIRED,
    BLOCK_COUNT,
    KV_GROUPS,
    STATE_MODE,
)
