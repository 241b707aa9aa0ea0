"""What loading the weights took (target and draft together, in one measurement)."""

from __future__ import annotations

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Gib


@attrs.frozen(kw_only=True)
class WeightsLoaded:
    """Memory that one worker's weights took, by torch's allocator: without CUDA context and
    communication buffers."""

    used: Gib


@attrs.frozen(kw_only=True)
class WeightsRead:
    """One worker has read its weights; what they take is not said here."""


WEIGHTS_READ = Matcher(
    name="vllm.weights_read",
    anchor="Loading weights took ",
    pattern=rf"\w\.py:\d+\] Loading weights took {NUMBER} seconds",
    event=WeightsRead,
    means="Weights are read; without a figure of memory.",
    samples=(Sample("[default_loader.py:267] Loading weights took 2.48 seconds", WeightsRead()),),
    near_misses=("Loading weights took 2.48 seconds",),
)

MODEL_WEIGHTS_TOOK = Matcher(
    name="vllm.model_weights_took",
    anchor="Loading model weights took ",
    pattern=rf"Loading model weights took (?P<used>{NUMBER}) Gi?B",
    event=WeightsLoaded,
    means='The weights of one process of the former engine; "GB" is 2^30 bytes.',
    seen_in="0.4.2 … 0.9.2",
    samples=(
        Sample("Loading model weights took 13.9476 GB", WeightsLoaded(used=Gib("13.9476"))),
        Sample("Loading model weights took 13.9476 GiB", WeightsLoaded(used=Gib("13.9476"))),
    ),
)

WEIGHTS_TOOK_GB = Matcher(
    name="vllm.weights_took_gb",
    anchor="Model loading took ",
    pattern=r"Model loading took (?P<used>\d+\.\d{4}) GB and ",
    event=WeightsLoaded,
    means='The worker\'s weights; "GB" is 2^30 bytes.',
    seen_in="0.8.0 … 0.8.0",
    samples=(
        Sample(
            "Model loading took 15.4137 GB and 9.033798 seconds", WeightsLoaded(used=Gib("15.4137"))
        ),
    ),
)

WEIGHTS_TOOK = Matcher(
    name="vllm.weights_took",
    anchor="Model loading took ",
    pattern=r"Model loading took (?P<used>\d+\.\d{4}) GiB and ",
    event=WeightsLoaded,
    means="The worker's weights, four decimals.",
    seen_in="0.8.3 … 0.13.0",
    samples=(
        Sample(
            "Model loading took 14.2419 GiB and 5.123456 seconds",
            WeightsLoaded(used=Gib("14.2419")),
        ),
    ),
)

WEIGHTS_TOOK_MEMORY = Matcher(
    name="vllm.weights_took_memory",
    anchor="Model loading took ",
    pattern=r"Model loading took (?P<used>\d+\.\d{4}) GiB memory and ",
    event=WeightsLoaded,
    means="The same with one word more.",
    seen_in="0.11.2 … 0.13.0",
    samples=(
        Sample(
            "Model loading took 14.2419 GiB memory and 5.123456 seconds",
            WeightsLoaded(used=Gib("14.2419")),
        ),
    ),
)

WEIGHTS_TOOK_ROUNDED = Matcher(
    name="vllm.weights_took_rounded",
    anchor="Model loading took ",
    pattern=r"Model loading took (?P<used>\d+(?:\.\d{1,2})?) GiB memory and ",
    event=WeightsLoaded,
    means="The worker's weights, two decimals, trailing zeros gone.",
    seen_in="0.14.1 … 0.33.0",
    samples=(
        Sample(
            "Model loading took 14.2 GiB memory and 5.123456 seconds",
            WeightsLoaded(used=Gib("14.2")),
        ),
    ),
    near_misses=("Loading weights took 2.48 seconds",),
)

WEIGHTS_TOOK_RUNNER = Matcher(
    name="vllm.weights_took_runner",
    anchor="Model loading took ",
    pattern=r"Model loading took (?P<used>\d+(?:\.\d{1,2})?) GiB and ",
    event=WeightsLoaded,
    means="The same from the second model runner, which prints it for every worker.",
    seen_in="0.14.1 … 0.27.1",
    samples=(
        Sample(
            "Model loading took 15.27 GiB and 12.006092 seconds", WeightsLoaded(used=Gib("15.27"))
        ),
    ),
)

MATCHERS = (
    WEIGHTS_READ,
    MODEL_WEIGHTS_TOOK,
    WEIGHTS_TOOK_GB,
    WEIGHTS_TOOK,
    WEIGHTS_TOOK_MEMORY,
    WEIGHTS_TOOK_ROUNDED,
    WEIGHTS_TOOK_RUNNER,
)
