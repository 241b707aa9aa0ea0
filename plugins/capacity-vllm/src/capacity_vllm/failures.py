"""How a server dies, in vLLM's words."""

from __future__ import annotations

import attrs

from capacity_core.api import INTEGER, NUMBER, Matcher, Sample
from capacity_core.units import Count, Exact, ExactRatio, Gib, Requests, Tokens


@attrs.frozen(kw_only=True)
class NoKvMemory:
    """Nothing is left for KV blocks under the utilisation."""

    total: Gib | None = None


@attrs.frozen(kw_only=True)
class ContextExceedsPool:
    """One request of the longest length does not fit: what it needs, what there is, and what would
    fit; in the former engine the tokens that the cache holds."""

    length: Tokens
    needed: Gib | None = None
    available: Gib | None = None
    fits: Tokens | None = None
    held: Tokens | None = None


@attrs.frozen(kw_only=True)
class FreeMemoryRefused:
    """The device had less free memory at start-up than the utilisation asks for."""

    free: Gib
    total: Gib
    utilization: ExactRatio
    requested: Gib
    device: Count | None = None


@attrs.frozen(kw_only=True)
class HostMemoryRefused:
    """The host has less memory than was asked for: as the device itself, or to swap to."""

    requested: Gib
    total: Gib
    free: Gib | None = None
    utilization: ExactRatio | None = None


@attrs.frozen(kw_only=True)
class WeightsTooLarge:
    """The engine's own word that weights do not fit the device."""


@attrs.frozen(kw_only=True)
class MemoryMoved:
    """Others on the device changed their memory while it was measured, which ends the start."""


@attrs.frozen(kw_only=True)
class WarmUpOutOfMemory:
    """The device's memory ran out while dummy requests warmed up the sampler or the pooler."""

    requests: Requests


@attrs.frozen(kw_only=True)
class StateSlotsExceeded:
    """More requests were asked for than there are blocks for their states."""

    asked: Requests
    blocks: Count


@attrs.frozen(kw_only=True)
class NoFreeBlock:
    """The former engine's blocks ran out; bytes of the device did not."""


@attrs.frozen(kw_only=True)
class EngineDiedServing:
    """An engine ended that had been initialised."""


@attrs.frozen(kw_only=True)
class Stopping:
    """The server was asked to stop; errors of processes that end each other may follow."""


@attrs.frozen(kw_only=True)
class EngineDied:
    """An engine process ended."""


NO_KV_MEMORY = Matcher(
    name="vllm.no_kv_memory",
    anchor="No available memory for the cache blocks.",
    pattern=r"No available memory for the cache blocks\.",
    event=NoKvMemory,
    means="The KV budget is zero or negative.",
    seen_in="0.6.4.post1 … 0.33.0",
    samples=(
        Sample(
            "ValueError: No available memory for the cache blocks. Try increasing", NoKvMemory()
        ),
    ),
)

CONTEXT_EXCEEDS_POOL = Matcher(
    name="vllm.context_exceeds_pool",
    anchor="To serve at least one request with the model",
    pattern=(
        r"To serve at least one request with the model\S{0,3} max seq len "
        rf"\((?P<length>{INTEGER})\)"
        rf"(?:, \(?(?P<needed>{NUMBER}) Gi?B KV cache is needed, which is larger than "
        rf"the available KV cache memory \((?P<available>{NUMBER}) Gi?B\)"
        rf"(?:[^\n]{{0,60}}?the estimated maximum model length is (?P<fits>{INTEGER}))?)?"
    ),
    event=ContextExceedsPool,
    means="A request of max_model_len needs more KV memory than there is; the engine says what "
    "would fit.",
    seen_in="0.7.3 … 0.33.0",
    samples=(
        Sample(
            "To serve at least one request with the model's max seq len (262144), (18.35 GiB KV "
            "cache is needed, "
            "which is larger than the available KV cache memory (8.72 GiB). Based on the "
            "available memory, the "
            "estimated maximum model length is 121840. Try",
            ContextExceedsPool(
                length=262144, needed=Gib("18.35"), available=Gib("8.72"), fits=121840
            ),
        ),
        Sample(
            "To serve at least one request with the models's max seq len (4096), (0.50 GB KV "
            "cache is needed, "
            "which is larger than the available KV cache memory (0.25 GB). Try",
            ContextExceedsPool(length=4096, needed=Gib("0.50"), available=Gib("0.25")),
        ),
    ),
)

FREE_MEMORY_REFUSED = Matcher(
    name="vllm.free_memory_refused",
    anchor=" GiB) on startup is less than ",
    pattern=(
        r"Free memory on device(?: [a-z]{1,12}(?::(?P<device>\d+))?)? "
        rf"\((?P<free>{NUMBER})/(?P<total>{NUMBER}) GiB\) on startup is less than "
        rf"[^(\n]{{0,120}}\((?P<utilization>[\d.]+), (?P<requested>{NUMBER}) GiB\)"
    ),
    event=FreeMemoryRefused,
    means="Something else holds the device's memory: free and total at start-up, and what was "
    "asked for.",
    seen_in="0.9.1 … 0.33.0",
    samples=(
        Sample(
            "Free memory on device (31.44/47.38 GiB) on startup is less than desired GPU memory "
            "utilization "
            "(0.95, 45.01 GiB). Decrease",
            FreeMemoryRefused(
                free=Gib("31.44"),
                total=Gib("47.38"),
                utilization=Exact("0.95"),
                requested=Gib("45.01"),
            ),
        ),
        Sample(
            "Free memory on device cuda:0 (1.5/2.0 GiB) on startup is less than desired GPU "
            "memory utilization "
            "(0.9, 1.8 GiB).",
            FreeMemoryRefused(
                free=Gib("1.5"),
                total=Gib("2.0"),
                utilization=Exact("0.9"),
                requested=Gib("1.8"),
                device=0,
            ),
        ),
    ),
)

_DEATHS = (
    ("engine_failed_to_start", "EngineCore failed to start", "0.9.1 … 0.33.0"),
    ("engine_exception", "EngineCore hit an exception", "0.8.0 … 0.8.5"),
    ("engine_not_initialized", "Engine core initialization failed", "0.8.3 … 0.33.0"),
    ("worker_failed_to_start", "WorkerProc failed to start", ""),
    ("worker_exception", "WorkerProc hit an exception", ""),
    ("engine_loop_died", "Engine loop is not running.", ""),
    ("worker_process_died", "Worker VllmWorkerProcess pid ", "0.4.2 … 0.10.2"),
    ("process_died", " died unexpectedly", "0.8.3 … 0.33.0"),
    ("engine_exited", "engine core exited unexpectedly", ""),
    ("fatal_signal", "ot fatal signal from worker process", "0.7.3 … 0.8.3"),
    ("engine_dead", "AsyncLLM output_handler failed.", "0.8.0 … 0.33.0"),
    ("background_failed", "Engine background task failed", "0.6.0 … 0.10.2"),
    ("rpc_died", "RPCServer process died before responding", ""),
    ("engine_timed_out", "Engine iteration timed out.", "0.4.2 … 0.10.2"),
)

DEATHS = tuple(
    Matcher(
        name=f"vllm.{name}",
        anchor=words,
        pattern=words,
        event=EngineDied,
        means="An engine process ended; the cause stands in the traceback near it.",
        seen_in=seen_in,
        samples=(Sample(f"ERROR {words}", EngineDied()),),
    )
    for name, words, seen_in in _DEATHS
)

ENGINE_FATAL = Matcher(
    name="vllm.engine_fatal",
    anchor="EngineCore encountered a fatal error",
    pattern="EngineCore encountered a fatal error",
    event=EngineDiedServing,
    means="An initialised engine ended; one that is not says 'failed to start'.",
    seen_in="0.8.3 … 0.33.0",
    samples=(Sample("ERROR EngineCore encountered a fatal error.", EngineDiedServing()),),
)

_STOPS = (
    ("server_stops", "Shutting down FastAPI HTTP server.", "0.4.2 … 0.33.0"),
    ("parent_exited", "Parent process exited, terminating worker", "0.9.2 … 0.33.0"),
    ("told_to_stop", "[shutdown] API server: shutdown triggered", "0.27.1 … 0.33.0"),
    ("engine_stops", "[shutdown] EngineCore: ", "0.27.1 … 0.33.0"),
    ("client_stops", "[shutdown] MPClient: start ", "0.27.1 … 0.33.0"),
    ("shutdown_initiated", "Shutdown initiated ", ""),
)

STOPS = tuple(
    Matcher(
        name=f"vllm.{name}",
        anchor=words,
        pattern=words.replace("[", r"\["),
        event=Stopping,
        means="The server stops; a clean stop prints errors of its processes, too.",
        seen_in=seen_in,
        samples=(Sample(f"INFO {words}", Stopping()),),
    )
    for name, words, seen_in in _STOPS
)

CONTEXT_EXCEEDS_BLOCKS = Matcher(
    name="vllm.context_exceeds_blocks",
    anchor="is larger than the maximum number of tokens that can be stored in KV cache",
    pattern=(
        rf"max seq len \((?P<length>{INTEGER})\) is larger than the maximum number of tokens "
        rf"that can be stored in KV cache \((?P<held>{INTEGER})\)"
    ),
    event=ContextExceedsPool,
    means="The former engine: max_model_len is more than all blocks hold.",
    seen_in="0.2.7 … 0.10.2",
    samples=(
        Sample(
            "ValueError: The model's max seq len (131072) is larger than the maximum number of "
            "tokens that can be stored in KV cache (81536). Try increasing",
            ContextExceedsPool(length=131072, held=81536),
        ),
    ),
)

HOST_MEMORY_REFUSED = Matcher(
    name="vllm.host_memory_refused",
    anchor="is less than requested memory for kv",
    pattern=(
        rf"Available memory on node \d+ \((?P<free>{NUMBER})/(?P<total>{NUMBER}) GiB\) on kv cache "
        rf"allocation is less than requested memory for kv "
        rf"\((?P<requested>{NUMBER})(?:/{NUMBER})? GiB\)"
    ),
    event=HostMemoryRefused,
    means="An engine on the host has less memory than the KV cache was given.",
    samples=(
        Sample(
            "Available memory on node 0 (12.67/14.96 GiB) on kv cache allocation is less than "
            "requested memory for kv (40.0 GiB). Decrease",
            HostMemoryRefused(free=Gib("12.67"), total=Gib("14.96"), requested=Gib("40.0")),
        ),
        Sample(
            "Available memory on node 0 (4.75/14.96 GiB) on kv cache allocation is less than "
            "requested memory for kv (7.25/13.5 GiB). Reduce",
            HostMemoryRefused(free=Gib("4.75"), total=Gib("14.96"), requested=Gib("7.25")),
        ),
    ),
)

HOST_START_REFUSED = Matcher(
    name="vllm.host_start_refused",
    anchor="is less than desired CPU memory utilization",
    pattern=(
        rf"Available memory on node \d+ \((?P<free>{NUMBER})/(?P<total>{NUMBER}) GiB\) on startup "
        rf"is less than desired CPU memory utilization \((?P<utilization>[\d.]+), "
        rf"(?P<requested>{NUMBER}) GiB\)"
    ),
    event=HostMemoryRefused,
    means="An engine on the host finds less free memory than the utilisation asks for.",
    seen_in="0.20.0 … 0.27.1",
    samples=(
        Sample(
            "Available memory on node 0 (4.75/14.96 GiB) on startup is less than desired CPU "
            "memory utilization (0.9, 13.46 GiB). Decrease",
            HostMemoryRefused(
                free=Gib("4.75"),
                total=Gib("14.96"),
                utilization=Exact("0.9"),
                requested=Gib("13.46"),
            ),
        ),
    ),
)

HOST_NONE_LEFT = Matcher(
    name="vllm.host_none_left",
    anchor="GiB of CPU memory reserved for it on node ",
    pattern=r"GiB of CPU memory reserved for it on node \d+, leaving none for the KV cache",
    event=NoKvMemory,
    means="An engine on the host: weights and the rest are more than was reserved.",
    seen_in="0.33.0 … 0.33.0",
    samples=(
        Sample(
            "more than the 3.5 GiB of CPU memory reserved for it on node 0, leaving none for the "
            "KV cache. On",
            NoKvMemory(),
        ),
    ),
)

WEIGHTS_ELSEWHERE_TOO_LARGE = Matcher(
    name="vllm.weights_elsewhere_too_large",
    anchor="Externally held weights on device ",
    pattern=(
        rf"Externally held weights on device \S+ \({NUMBER}/(?P<total>{NUMBER}) GiB\) exceed the "
        r"desired GPU memory utilization"
    ),
    event=NoKvMemory,
    means="Weights of another process are more than the utilisation allows: nothing is left.",
    seen_in="0.33.0 … 0.33.0",
    samples=(
        Sample(
            "Externally held weights on device cuda:0 (75.5/79.11 GiB) exceed the desired GPU "
            "memory utilization (0.9, 71.2 GiB).",
            NoKvMemory(total=Gib("79.11")),
        ),
    ),
)

RESERVED_TOO_MUCH = Matcher(
    name="vllm.reserved_too_much",
    anchor="frontend multimodal GPU decoding reserves ",
    pattern=r"frontend multimodal GPU decoding reserves ",
    event=NoKvMemory,
    means="What multimodal decoding sets aside leaves nothing for KV blocks.",
    seen_in="0.33.0 … 0.33.0",
    samples=(
        Sample("ValueError: frontend multimodal GPU decoding reserves 2.25 GiB (", NoKvMemory()),
    ),
)

_BLOCKS_GONE = (
    ("no_free_block", "Out of memory! No free blocks are available.", "0.4.2 … 0.4.2"),
    ("no_cache_left", "No usable cache memory left", "0.4.2 … 0.8.5"),
)

BLOCKS_GONE = tuple(
    Matcher(
        name=f"vllm.{name}",
        anchor=words,
        pattern=words.replace(".", r"\."),
        event=NoFreeBlock,
        means="The former engine found no block for a sequence.",
        seen_in=seen_in,
        samples=(Sample(f"ValueError: {words}", NoFreeBlock()),),
    )
    for name, words, seen_in in _BLOCKS_GONE
)

SWAP_TOO_LARGE = Matcher(
    name="vllm.swap_too_large",
    anchor="Too large swap space. ",
    pattern=(
        rf"Too large swap space\. (?P<requested>{NUMBER}) GiB out of the (?P<total>{NUMBER}) GiB "
        r"total CPU memory"
    ),
    event=HostMemoryRefused,
    means="The swap space of all workers is most of the host's memory.",
    seen_in="0.2.7 … 0.17.1",
    samples=(
        Sample(
            "ValueError: Too large swap space. 64.00 GiB out of the 62.50 GiB total CPU memory is",
            HostMemoryRefused(requested=Gib("64.00"), total=Gib("62.50")),
        ),
    ),
)

NO_ROOM_FOR_WEIGHTS = Matcher(
    name="vllm.no_room_for_weights",
    anchor="Failed to load model - not enough GPU memory.",
    pattern=r"Failed to load model - not enough GPU memory\.",
    event=WeightsTooLarge,
    means="The device's memory ran out while weights were loaded.",
    seen_in="0.20.0 … 0.33.0",
    samples=(
        Sample("Failed to load model - not enough GPU memory. Try lowering", WeightsTooLarge()),
    ),
)

MEMORY_MOVED = Matcher(
    name="vllm.memory_moved",
    anchor="Error in memory profiling.",
    pattern=r"Error in memory profiling\.",
    event=MemoryMoved,
    means="Free memory grew while it was measured: another process on the device ended or shrank.",
    seen_in="0.4.2 … 0.33.0",
    samples=(
        Sample("AssertionError: Error in memory profiling. Initial free memory", MemoryMoved()),
    ),
)

NO_TOKEN_FITS = Matcher(
    name="vllm.no_token_fits",
    anchor="Cannot auto-fit max_model_len: not enough GPU memory",
    pattern=r"Cannot auto-fit max_model_len: not enough GPU memory",
    event=NoKvMemory,
    means="Not even one token fits, so no longest length could be chosen.",
    seen_in="0.20.0 … 0.33.0",
    samples=(
        Sample("Cannot auto-fit max_model_len: not enough GPU memory available", NoKvMemory()),
    ),
)

WARM_UP_OUT_OF_MEMORY = Matcher(
    name="vllm.warm_up_out_of_memory",
    anchor="CUDA out of memory occurred when warming up ",
    pattern=r"out of memory occurred when warming up [^\n]{1,60}? with (?P<requests>\d+) dummy",
    event=WarmUpOutOfMemory,
    means="The sampler's or pooler's own buffers did not fit.",
    seen_in="0.8.0 … 0.33.0",
    samples=(
        Sample(
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy "
            "requests. Please try",
            WarmUpOutOfMemory(requests=256),
        ),
    ),
)

STATE_SLOTS_EXCEEDED = Matcher(
    name="vllm.state_slots_exceeded",
    anchor=") exceeds available Mamba cache blocks (",
    pattern=(
        r"max_num_seqs \((?P<asked>\d+)\) exceeds available Mamba cache blocks "
        r"\((?P<blocks>\d+)\)"
    ),
    event=StateSlotsExceeded,
    means="Each running request of a state-space model takes a block; there are fewer blocks.",
    seen_in="0.20.0 … 0.33.0",
    samples=(
        Sample(
            "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (730). Each",
            StateSlotsExceeded(asked=1024, blocks=730),
        ),
    ),
)

MATCHERS = (
    CONTEXT_EXCEEDS_BLOCKS,
    HOST_MEMORY_REFUSED,
    HOST_START_REFUSED,
    HOST_NONE_LEFT,
    WEIGHTS_ELSEWHERE_TOO_LARGE,
    RESERVED_TOO_MUCH,
    *BLOCKS_GONE,
    SWAP_TOO_LARGE,
    NO_ROOM_FOR_WEIGHTS,
    MEMORY_MOVED,
    NO_TOKEN_FITS,
    WARM_UP_OUT_OF_MEMORY,
    STATE_SLOTS_EXCEEDED,
    NO_KV_MEMORY,
    CONTEXT_EXCEEDS_POOL,
    FREE_MEMORY_REFUSED,
    *DEATHS,
    ENGINE_FATAL,
    *STOPS,
)
