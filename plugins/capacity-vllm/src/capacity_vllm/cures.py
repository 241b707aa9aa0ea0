"""What helps against a failure, and what makes it worse: by the term that ran out."""

from __future__ import annotations

from typing import Any

from capacity_core.api.extractors import Sighting
from capacity_core.api.ledger import FailureKind
from capacity_core.api.process import KernelOutOfResources
from capacity_vllm.failures import ContextExceedsPool, HostMemoryRefused, StateSlotsExceeded

_LOWER = "lower --gpu-memory-utilization: it leaves room beside the KV cache"
_RAISE = "raise --gpu-memory-utilization, as far as other processes leave the device free"
_SMALLER_STEP = "lower --max-num-batched-tokens or --max-num-seqs: the profiled peak shrinks"
_SHARD = "spread the weights over more devices (--tensor-parallel-size), or quantize them"
_FEWER_GRAPHS = "capture fewer sizes (--max-cudagraph-capture-size), or none (--enforce-eager)"

_CURES: dict[FailureKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    FailureKind.WEIGHTS_OUT_OF_MEMORY: (
        (_SHARD, "end other processes on the device"),
        ("changing --gpu-memory-utilization: weights are loaded whatever it says",),
    ),
    FailureKind.PROFILING_OUT_OF_MEMORY: (
        (_SMALLER_STEP, _SHARD),
        ("raising --gpu-memory-utilization: the profiling run does not heed it",),
    ),
    FailureKind.NO_KV_MEMORY: (
        (_RAISE, _SMALLER_STEP, _SHARD),
        ("lowering --gpu-memory-utilization: the KV cache is what it leaves",),
    ),
    FailureKind.CONTEXT_EXCEEDS_KV_POOL: (
        (
            "lower --max-model-len",
            _RAISE,
            "--kv-cache-dtype fp8, where it is not in use: a token takes half the bytes",
        ),
        ("lowering --gpu-memory-utilization: the KV cache is what it leaves",),
    ),
    FailureKind.GRAPH_CAPTURE_OUT_OF_MEMORY: (
        (_LOWER, _FEWER_GRAPHS, "lower --max-num-seqs"),
        ("raising --gpu-memory-utilization: the KV cache takes what the capture needs",),
    ),
    FailureKind.RUNTIME_OUT_OF_MEMORY: (
        (_LOWER, "lower --max-num-batched-tokens or --max-num-seqs: smaller peaks"),
        ("raising --gpu-memory-utilization: the KV cache takes what requests need",),
    ),
    FailureKind.DEVICE_MEMORY_TAKEN: (
        ("end the other processes on the device (nvidia-smi lists them)", _LOWER),
        ("raising --gpu-memory-utilization: it asks for still more",),
    ),
    FailureKind.HOST_MEMORY: (
        ("give the container more memory or shared memory (--shm-size, --ipc=host)",),
        ("changing --gpu-memory-utilization: the device is not what ran out",),
    ),
    FailureKind.TOKEN_POOL_EXHAUSTED: (("lower --max-num-seqs", _RAISE), ()),
}


def cures_of(kind: FailureKind, sighting: Sighting[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what helps, what harms); figures of the message are in the cure that they belong to."""
    cures, harmful = _CURES.get(kind, ((), ()))
    event = sighting.event
    if isinstance(event, ContextExceedsPool):
        fits = event.fits or event.held
        if fits is not None:
            cures = (f"--max-model-len {fits} or less, which fits", *cures[1:])
    elif isinstance(event, HostMemoryRefused):
        lower = "lower --kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE"
        if event.utilization is not None:
            lower = "lower --gpu-memory-utilization: on a host it is a share of the host's memory"
        cures = (lower, "end other processes on the host")
        harmful = ()
    elif isinstance(event, StateSlotsExceeded):
        cures = (f"--max-num-seqs {event.blocks} or less", _RAISE)
    elif isinstance(event, KernelOutOfResources):
        cures = ("another attention or quantization back-end: this kernel is too large here",)
        harmful = ("any change of the memory settings: no device memory is short",)
    return cures, harmful
