"""What loading the weights took (target and draft together, in one measurement)."""

from __future__ import annotations

import attrs

from capacity_core.api import Matcher, Sample
from capacity_core.units import Gib


@attrs.frozen(kw_only=True)
class WeightsLoaded:
    """Memory that one worker's weights took, by torch's allocator: without CUDA context and
    communication buffers."""

    used: Gib


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
    WEIGHTS_TOOK_GB,
    WEIGHTS_TOOK,
    WEIGHTS_TOOK_MEMORY,
    WEIGHTS_TOOK_ROUNDED,
    WEIGHTS_TOOK_RUNNER,
)
