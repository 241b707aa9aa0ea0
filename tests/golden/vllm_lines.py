"""What vLLM prints at its start, message by message, in the words of the releases named."""

from __future__ import annotations

ENGINE = "EngineCore pid=7"
TRACEBACK = "Traceback (most recent call last):"


def said(message: str, process: str = ENGINE, level: str = "INFO") -> str:
    """0.8.0 and later; which process speaks is printed by ever more of them."""
    return f"({process}) {level} 03-01 10:00:00 [gpu_worker.py:298] {message}"


def bare(message: str) -> str:
    """The only process of 0.7.3 and before: no process, no bracket before the file's name."""
    return f"INFO 03-01 10:00:00 worker.py:241] {message}"


def asked(process: str = "APIServer pid=1", **arguments: object) -> str:
    """0.9.0 and later: what differs from the defaults."""
    return said(f"non-default args: { ({'model': '/m'} | arguments)!r}", process)


def namespace(**arguments: object) -> str:
    """0.4.2 … 0.8.5: all arguments, resolved or not."""
    inner = ", ".join(f"{name}={value!r}" for name, value in ({"model": "/m"} | arguments).items())
    return f"args: Namespace(host=None, port=8000, allowed_origins=['*'], {inner})"


def config(
    version: str = "0.17.1",
    length: int = 8192,
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    eager: bool = False,
) -> str:
    words = {"0.6": "an LLM", "0.7": "a V0 LLM"}.get(version[:3], "a V1 LLM")
    return (
        f"Initializing {words} engine (v{version}) with config: model='/m', "
        f"speculative_config=None, tokenizer='/m', dtype=torch.bfloat16, max_seq_len={length}, "
        f"download_dir=None, load_format=auto, tensor_parallel_size={tensor}, "
        f"pipeline_parallel_size={pipeline}, data_parallel_size={data}, quantization=None, "
        f"enforce_eager={eager}, kv_cache_dtype=auto, seed=0"
    )


def loaded(weights: str, process: str = ENGINE) -> str:
    """0.14.1 and later."""
    return said(f"Model loading took {weights} GiB memory and 9.123456 seconds", process)


def budget(size: str, process: str = ENGINE) -> str:
    return said(f"Available KV cache memory: {size} GiB", process)


def sized(
    tokens: int, length: int, concurrency: float, process: str = ENGINE, device: str = "GPU"
) -> list[str]:
    """The two lines of 0.8.0 … 0.27."""
    return [
        said(f"{device} KV cache size: {tokens:,} tokens", process),
        said(f"Maximum concurrency for {length:,} tokens per request: {concurrency:.2f}x", process),
    ]


def sized_in_one(
    tokens: int, length: int, concurrency: float, process: str = ENGINE, device: str = "GPU"
) -> str:
    """0.28.0 and later; from 0.30 the device's own name."""
    return said(
        f"{device} KV cache size: {tokens:,} tokens, Maximum concurrency for {length:,} tokens per "
        f"request: {concurrency:.2f}x",
        process,
    )


def plain(blocks: int, length: int = 8192, block: int = 16, process: str = ENGINE) -> list[str]:
    """One kind of KV cache: blocks · size tokens, blocks / ceil(length / size) requests."""
    return sized(blocks * block, length, blocks / -(-length // block), process)


def captured(size: str, process: str = ENGINE) -> str:
    return said(f"Graph capturing finished in 12 secs, took {size} GiB", process)


def graph_pool(actual: str, estimated: str, process: str = ENGINE, percent: str = "9.9") -> str:
    difference = round(float(actual) - float(estimated), 2)
    return said(
        f"CUDA graph pool memory: {actual} GiB (actual), {estimated} GiB (estimated), "
        f"difference: {difference} GiB ({percent}%).",
        process,
    )


ESTIMATE = said("Estimated CUDA graph memory: 0.86 GiB total")
# A device of 79.1 GiB; the equivalent is 0.86 / 79.1 = 0.0109 less.
APPLIED = {
    "0.18": said(
        "CUDA graph memory profiling is enabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1). This "
        "will become the default in v0.19. The current --gpu-memory-utilization=0.9000 is "
        "equivalent to --gpu-memory-utilization=0.8891 without CUDA graph memory profiling. To "
        "maintain the same effective KV cache size as before, increase --gpu-memory-utilization to "
        "0.9109."
    ),
    "0.20": said(
        "CUDA graph memory profiling is enabled (default since v0.21.0). The current "
        "--gpu-memory-utilization=0.9000 is equivalent to --gpu-memory-utilization=0.8891 without "
        "CUDA graph memory profiling. To maintain the same effective KV cache size as before, "
        "increase --gpu-memory-utilization to 0.9109. To disable, set "
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0."
    ),
}
NOT_APPLIED = {
    "0.18": said(
        "In v0.19, CUDA graph memory profiling will be enabled by default "
        "(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1), which more accurately accounts for CUDA "
        "graph memory during KV cache allocation. To try it now, set "
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1 and increase --gpu-memory-utilization from "
        "0.9000 to 0.9109 to maintain the same effective KV cache size."
    ),
    "0.20": said(
        "CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0). "
        "Without it, CUDA graph memory is not accounted for during KV cache allocation, which may "
        "require lowering --gpu-memory-utilization to avoid OOM. Consider re-enabling it (the "
        "default as of v0.21.0) and increasing --gpu-memory-utilization from 0.9000 to 0.9109."
    ),
}

# Of a device of 79.1 GiB 78.5 were free at the start, and 0.9 · 79.1 = 71.19 are asked for.
HEAD = (
    "Free memory on device (78.5/79.1 GiB) on startup. "
    "Desired GPU memory utilization is (0.9, 71.19 GiB). "
)


def summary(usage: str, kv: str, process: str = ENGINE) -> str:
    """A worker's account; `kv` with its unit."""
    return said(
        f"{HEAD}Actual usage is {usage} Replace gpu_memory_utilization config with "
        "`--kv-cache-memory=52613349376` (49.0 GiB) to fit into requested memory, or "
        "`--kv-cache-memory=60461949952` (56.31 GiB) to fully utilize gpu memory. "
        f"Current kv cache memory in use is {kv}.",
        process,
    )


def separate(weights: str, peak: str, non_torch: str, graphs: str) -> str:
    """0.10.2 … 0.26"""
    return (
        f"{weights} GiB for weight, {peak} GiB for peak activation, {non_torch} GiB for non-torch "
        f"memory, and {graphs} GiB for CUDAGraph memory."
    )


def together(consumed: str, peak: str, graphs: str) -> str:
    """0.27 and later"""
    return (
        f"{consumed} GiB for consumed memory (weights + non-torch), {peak} GiB for peak "
        f"activation, and {graphs} GiB for CUDAGraph memory."
    )


def failed(*messages: str, process: str = ENGINE) -> list[str]:
    """An engine's traceback as its log shows it: the heads, then what was raised."""
    lines = [said("EngineCore failed to start.", process, "ERROR")]
    lines.append(said(TRACEBACK, process, "ERROR"))
    return lines + [said(message, process, "ERROR") for message in messages]


SERVES = "(APIServer pid=1) INFO:     Application startup complete."
