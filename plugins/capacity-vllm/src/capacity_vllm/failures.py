"""How a server dies, in vLLM's words."""

from __future__ import annotations

import attrs

from capacity_core.api import COUNT, NUMBER, Matcher, Sample
from capacity_core.units import Exact, ExactRatio, Gib, Tokens


@attrs.frozen(kw_only=True)
class NoKvMemory:
    """Nothing is left for KV blocks under the utilisation."""


@attrs.frozen(kw_only=True)
class ContextExceedsPool:
    """One request of the longest length does not fit: what it needs, what there is, and what would
    fit."""

    length: Tokens
    needed: Gib | None = None
    available: Gib | None = None
    fits: Tokens | None = None


@attrs.frozen(kw_only=True)
class FreeMemoryRefused:
    """The device had less free memory at start-up than the utilisation asks for."""

    free: Gib
    total: Gib
    utilization: ExactRatio
    requested: Gib


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
        rf"\((?P<length>{COUNT})\)"
        rf"(?:, \(?(?P<needed>{NUMBER}) Gi?B KV cache is needed, which is larger than "
        rf"the available KV cache memory \((?P<available>{NUMBER}) Gi?B\)"
        rf"(?:[^\n]{{0,60}}?the estimated maximum model length is (?P<fits>{COUNT}))?)?"
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
        rf"Free memory on device(?: \S+)? \((?P<free>{NUMBER})/(?P<total>{NUMBER}) GiB\) on "
        rf"startup is less than "
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
                free=Gib("1.5"), total=Gib("2.0"), utilization=Exact("0.9"), requested=Gib("1.8")
            ),
        ),
    ),
)

_DEATHS = (
    ("engine_failed_to_start", "EngineCore failed to start", "0.9.1 … 0.33.0"),
    ("engine_exception", "EngineCore hit an exception", "0.8.0 … 0.8.5"),
    ("engine_fatal", "EngineCore encountered a fatal error", "0.8.3 … 0.33.0"),
    ("engine_not_initialized", "Engine core initialization failed", "0.8.3 … 0.33.0"),
    ("worker_failed_to_start", "WorkerProc failed to start", ""),
    ("worker_exception", "WorkerProc hit an exception", ""),
    ("sleep_allocator_failed", "Error: out of memory at ", ""),
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

MATCHERS = (NO_KV_MEMORY, CONTEXT_EXCEEDS_POOL, FREE_MEMORY_REFUSED, *DEATHS)
