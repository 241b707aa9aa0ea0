"""Which line of a log starts a run of SGLang."""

from __future__ import annotations

from typing import Any

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import (
    RankId,
)
from capacity_core.units import Gib
from capacity_sglang.args import ServerArgs
from capacity_sglang.compressed import (
    CompressedBudget,
    CompressedBuilt,
    CompressedPools,
    CompressedSizing,
    WindowRing,
)
from capacity_sglang.failures import Crashed, NoKvMemory
from capacity_sglang.graphs import CaptureBegin, CaptureEnd
from capacity_sglang.host import HostPoolAllocated
from capacity_sglang.limits import Limits, ServerUp
from capacity_sglang.load import SERVING
from capacity_sglang.pools import (
    KvBudget,
    PoolAllocated,
    PoolSkipped,
    PoolsReady,
    SlidingWindowTokens,
    SlidingWindowTotal,
    UnifiedPool,
)
from capacity_sglang.post_capture import PostCapturePool, PostCaptureSplit
from capacity_sglang.states import StateCheckpoints, StatePool, StateRings, StateSlots
from capacity_sglang.weights import (
    Baseline,
    DistributedReady,
    WeightsBegin,
    WeightsLoaded,
    WeightsOverlapped,
)

RANK_EVENTS = (
    DistributedReady,
    WeightsBegin,
    WeightsLoaded,
    PoolAllocated,
    SlidingWindowTotal,
    SlidingWindowTokens,
    StateSlots,
    StatePool,
    StateRings,
    PoolsReady,
    KvBudget,
    CompressedBudget,
    CompressedPools,
    CompressedSizing,
    PostCapturePool,
    PostCaptureSplit,
    StateCheckpoints,
    PoolSkipped,
    UnifiedPool,
    CompressedBuilt,
    WindowRing,
    HostPoolAllocated,
    WeightsOverlapped,
    Baseline,
    CaptureBegin,
    CaptureEnd,
    Limits,
)
"""What a rank prints of itself, in the order of a start."""


def other_node(run: Run, event: ServerArgs) -> bool:
    """Whether these are the arguments of another node of the deployment that `run` already
    shows."""
    for sighting in run.of(ServerArgs):
        first = sighting.event.arguments
        node = event.arguments.said("node_rank")
        same = first.said("model_path") == event.arguments.said("model_path")
        nodes = event.arguments.said("nnodes") not in (None, "1")
        if not (same and nodes and node not in (None, first.said("node_rank"))):
            return False
    return run.has(ServerArgs)


def arguments_of(run: Run) -> Sighting[ServerArgs] | None:
    """The arguments that the ranks got: of one node, the last ones before its ranks speak. Earlier
    ones are those of a start that died without a line that we know."""
    found: Sighting[ServerArgs] | None = None
    sightings: list[Sighting[Any]] = run.of(ServerArgs, *RANK_EVENTS)
    for sighting in sightings:
        if not isinstance(sighting.event, ServerArgs):
            break
        if _same_node(found, sighting.event):
            found = sighting
    return found or next(iter(run.of(ServerArgs)), None)


def _same_node(first: Sighting[ServerArgs] | None, event: ServerArgs) -> bool:
    node = event.arguments.said("node_rank")
    return first is None or first.event.arguments.said("node_rank") == node


def loads_anew(run: Run, sighting: Sighting[Any], event: WeightsBegin) -> bool:
    """Whether a rank that loaded before loads its served model again.

    After its limits or its death it does; else it does when it has about as much free memory as
    the first time: a draft model never starts with so much.
    """
    mine = [
        s.event
        for s in run.of(WeightsBegin, WeightsLoaded, Limits, Crashed, NoKvMemory)
        if rank_of(s) == rank_of(sighting)
    ]
    begins = [e for e in mine if isinstance(e, WeightsBegin)]
    ends = [e for e in mine if isinstance(e, WeightsLoaded)]
    if not begins and not ends:
        return run.has(*SERVING)  # of a server whose own start is not in the log
    if run.has(ServerUp) or any(isinstance(e, Limits | Crashed | NoKvMemory) for e in mine):
        return True
    if not begins or not ends:
        return False
    first, low = begins[0].free, ends[-1].free
    return first > low and event.free > (first + low) / 2


def loaded_again(run: Run, sighting: Sighting[Any], event: WeightsLoaded) -> bool:
    """Whether a rank's weights line, without the line that begins the load, is of another start:
    there was more free memory before this load than the rank had left.

    Ranks whose names are cut off look alike, and load side by side.
    """
    mine = [s.event for s in run.of(*RANK_EVENTS) if rank_of(s) == rank_of(sighting)]
    loads = [e for e in mine if isinstance(e, WeightsBegin | WeightsLoaded)]
    if event.used is None or not loads or isinstance(loads[-1], WeightsBegin):
        return False
    sized = any(isinstance(e, PoolAllocated | PoolsReady | Limits) for e in mine)
    if not sized and not (sighting.speaker.label and not run.has(WeightsBegin)):
        return False
    frees = (getattr(e, "free", None) for e in reversed(mine))
    left = next((free for free in frees if free is not None), None)
    return left is not None and event.free + event.used > left + max(Gib(1), event.used / 2)


def pasted_again(run: Run, sighting: Sighting[Any], event: PoolAllocated) -> bool:
    """A pool line of a rank whose pools are complete, with other tokens, and no draft model to
    explain it."""
    mine = [
        s
        for s in run.of(PoolAllocated, PoolsReady, WeightsBegin, WeightsLoaded)
        if rank_of(s) == rank_of(sighting)
    ]
    ended = any(isinstance(s.event, PoolsReady) for s in mine)
    loads = sum(isinstance(s.event, WeightsLoaded | WeightsBegin) for s in mine)
    known_tokens = {s.event.tokens for s in mine if isinstance(s.event, PoolAllocated)}
    return ended and loads == 0 and bool(known_tokens) and event.tokens not in known_tokens


def rank_of(sighting: Sighting[Any]) -> RankId:
    """The rank that a line speaks for. One GPU prints none, so no rank means the first."""
    speaker = sighting.speaker
    return RankId(dp=speaker.dp or 0, pp=speaker.pp or 0, tp=speaker.tp or 0)
