"""What helps against a failure, and what makes it worse: by the term that ran out."""

from __future__ import annotations

from typing import Any

from capacity_core.api.extractors import Sighting
from capacity_core.api.ledger import FailureKind
from capacity_core.api.process import KernelOutOfResources
from capacity_core.values import Known, Value
from capacity_sglang.failures import (
    CheckpointPoolRefused,
    HostMemoryRefused,
    NoPoolForStates,
    OneRequestTooLarge,
)

_LOWER = "lower --mem-fraction-static: it leaves room beside the pools"
_RAISE = "raise --mem-fraction-static"
_SHARD = "spread the weights over more devices (--tp-size), or quantize them"
_FEWER_GRAPHS = "capture fewer sizes (--cuda-graph-max-bs), or none (--disable-cuda-graph)"
_SMALLER_CHUNKS = "lower --chunked-prefill-size or --max-running-requests: smaller peaks"
_FEWER_REQUESTS = "lower --max-running-requests"

_CURES: dict[FailureKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    FailureKind.WEIGHTS_OUT_OF_MEMORY: (
        (_SHARD, "end other processes on the device"),
        ("changing --mem-fraction-static: weights are loaded whatever it says",),
    ),
    FailureKind.PROFILING_OUT_OF_MEMORY: (
        (_LOWER, _SHARD),
        ("raising --mem-fraction-static: the pools grow into what is missing",),
    ),
    FailureKind.NO_KV_MEMORY: (
        (_RAISE, _SHARD, "--kv-cache-dtype fp8_e4m3, where it is not in use"),
        ("lowering --mem-fraction-static: the KV pool is what it leaves",),
    ),
    FailureKind.CONTEXT_EXCEEDS_KV_POOL: (
        ("lower --context-length", _RAISE),
        ("lowering --mem-fraction-static: the pools shrink",),
    ),
    FailureKind.GRAPH_CAPTURE_OUT_OF_MEMORY: (
        (_LOWER, _FEWER_GRAPHS),
        ("raising --mem-fraction-static: the pools take what the capture needs",),
    ),
    FailureKind.RUNTIME_OUT_OF_MEMORY: (
        (_LOWER, _SMALLER_CHUNKS),
        ("raising --mem-fraction-static: the pools take what batches need",),
    ),
    FailureKind.DEVICE_MEMORY_TAKEN: (
        ("end the other processes on the device (nvidia-smi lists them)",),
        ("raising --mem-fraction-static: it asks for still more",),
    ),
    FailureKind.HOST_MEMORY: (
        ("give the container more memory or shared memory (--shm-size, --ipc=host)",),
        ("changing --mem-fraction-static: the device is not what ran out",),
    ),
    FailureKind.TOKEN_POOL_EXHAUSTED: (
        (_FEWER_REQUESTS, "raise --schedule-conservativeness: fewer requests are admitted"),
        ("lowering --mem-fraction-static: the pool is slots, and it shrinks",),
    ),
}


def cures_of(
    kind: FailureKind, sighting: Sighting[Any], minimum: Value
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what helps, what harms); `minimum` is the fraction below which nothing is left for the
    pool."""
    cures, harmful = _CURES.get(kind, ((), ()))
    event = sighting.event
    if isinstance(event, NoPoolForStates):
        cures = (_FEWER_REQUESTS, _RAISE, "lower --speculative-num-draft-tokens")
    elif kind is FailureKind.NO_KV_MEMORY and isinstance(minimum, Known):
        cures = (f"{_RAISE} above {minimum.number:.3f}, the least that would do", *cures[1:])
    if isinstance(event, HostMemoryRefused):
        cures = ("lower --hicache-ratio or --hicache-size",)
    elif isinstance(event, OneRequestTooLarge) and event.tokens is not None:
        cures = ("raise --swa-full-tokens-ratio", _RAISE)
    elif isinstance(event, CheckpointPoolRefused):
        cures = ("lower --int8-mamba-ckpt-size", _LOWER)
        harmful = ("raising --mem-fraction-static: this pool lives in the headroom",)
    elif isinstance(event, KernelOutOfResources):
        cures = ("another attention or quantization back-end: this kernel is too large here",)
        harmful = ("any change of the memory settings: no device memory is short",)
    return cures, harmful
