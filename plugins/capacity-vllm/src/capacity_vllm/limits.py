"""That an engine is initialised, and that it has served."""

from __future__ import annotations

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Gib


@attrs.frozen(kw_only=True)
class EngineReady:
    """An engine has profiled, made its KV cache and warmed up."""


@attrs.frozen(kw_only=True)
class SleepMode:
    """A running engine gave its memory back for a while; the rest is the whole device's."""

    freed: Gib | None = None
    in_use: Gib | None = None


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

SLEEP_MODE = Matcher(
    name="vllm.sleep_mode",
    anchor=" GiB memory is still in use",
    pattern=(
        rf"Sleep mode (?:\(level=\d\) )?freed (?P<freed>{NUMBER}) GiB memory, "
        rf"(?P<in_use>{NUMBER}) GiB memory is still in use"
    ),
    event=SleepMode,
    means="A running engine was put to sleep.",
    seen_in="0.7.3 … 0.33.0",
    samples=(
        Sample(
            "Sleep mode freed 53.45 GiB memory, 20.25 GiB memory is still in use.",
            SleepMode(freed=Gib("53.45"), in_use=Gib("20.25")),
        ),
    ),
)

MATCHERS = (ENGINE_READY, SLEEP_MODE)
