"""What SGLang prints at its start, message by message, in the words of the releases named."""

from __future__ import annotations

UP = "The server is fired up and ready to roll!"
TRACEBACK = "Traceback (most recent call last):"


def said(*messages: str, rank: str = "", at: str = "10:00") -> list[str]:
    """Messages with SGLang's prefix; `rank` begins with a blank, as it is printed."""
    return [f"[2026-03-01 {at}:{n:02d}{rank}] {message}" for n, message in enumerate(messages)]


ARGUMENTS: dict[str, object] = {
    "model_path": "/models/a",
    "context_length": 32768,
    "kv_cache_dtype": "auto",
    "mem_fraction_static": 0.85,
    "page_size": 1,
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "enable_dp_attention": False,
}


def as_repr(**changes: object) -> str:
    """0.2.15 … 0.5.18"""
    inner = ", ".join(f"{name}={value!r}" for name, value in (ARGUMENTS | changes).items())
    return f"server_args=ServerArgs({inner})"


def as_dict(**changes: object) -> str:
    """0.5.19 … 0.5.23"""
    return f"server_args={ARGUMENTS | changes!r}"


def begin(free: float) -> str:
    return f"Load weight begin. avail mem={free:.2f} GB"


def weights(before: float, used: float, model: str = "LlamaForCausalLM") -> list[str]:
    return [
        begin(before),
        f"Load weight end. elapsed=9.00 s, type={model}, avail mem={before - used:.2f} GB, "
        f"mem usage={used:.2f} GB.",
    ]


def old_weights(before: float, used: float) -> list[str]:
    """0.2.15 … 0.4.0: without a usage."""
    return [
        begin(before),
        f"Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, "
        f"avail mem={before - used:.2f} GB",
    ]


def pool(tokens: int, half: float, words: str = "KV Cache is allocated.") -> str:
    return f"{words} #tokens: {tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB"


def typed(tokens: int, half: float, words: str = "KV Cache is allocated.") -> str:
    """From 0.5.15 the line says its element type."""
    return pool(tokens, half, f"{words} dtype: torch.bfloat16,")


def pools_end(free: float) -> str:
    return f"Memory pool end. avail mem={free:.2f} GB"


def graph(before: float, used: float, what: str = "cuda graph") -> list[str]:
    """0.4.6 … 0.5.12"""
    return [
        f"Capture {what} begin. This can take up to several minutes. avail mem={before:.2f} GB",
        f"Capture {what} end. Time elapsed: 5.00 s. mem usage={used:.2f} GB. "
        f"avail mem={before - used:.2f} GB.",
    ]


def new_graph(before: float, used: float, what: str) -> list[str]:
    """0.5.18 … 0.5.21"""
    return [
        f"Capture {what} begin. backend=full, num_tokens_per_req=1, bs=[1, 2, 4], "
        f"avail mem={before:.2f} GB",
        f"Capture {what} end. elapsed=5.00 s, mem usage={used:.2f} GB, "
        f"avail mem={before - used:.2f} GB.",
    ]


def limits(tokens: int, requests: int = 2048, free: float = 12.00) -> str:
    return (
        f"max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        f"max_running_requests={requests}, context_len=32768, available_gpu_mem={free:.2f} GB"
    )


def start(used: float = 16.00, tokens: int = 400_000, half: float = 24.00) -> list[str]:
    """Weights, pool, graphs and limits of one rank; 78.00 GiB are free before weights."""
    free = 78.00 - used - 2 * half
    return [
        *weights(78.00, used),
        pool(tokens, half),
        pools_end(free),
        *graph(free, 1.00),
        limits(tokens, free=free - 1.00),
    ]
