"""That an engine is initialised."""

from __future__ import annotations

import attrs

from capacity_core.api import Matcher, Sample


@attrs.frozen(kw_only=True)
class EngineReady:
    """An engine has profiled, made its KV cache and warmed up."""


ENGINE_READY = Matcher(
    name="vllm.engine_ready",
    anchor="init engine (profile, create kv cache, warmup model) took ",
    pattern=r"init engine \(profile, create kv cache, warmup model\) took ",
    event=EngineReady,
    means="An engine is initialised.",
    seen_in="0.6.6.post1 … 0.33.0",
    samples=(
        Sample(
            "init engine (profile, create kv cache, warmup model) took 23.02 seconds", EngineReady()
        ),
    ),
)

MATCHERS = (ENGINE_READY,)
