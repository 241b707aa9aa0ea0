"""Writes a long server log for measuring: a few server starts, far apart, and run-time lines
between them.

The same arguments give the same bytes. The lines have the form of SGLang 0.5.x and vLLM 0.22; every
number in them is made up.

    python tests/benchmarks/generate_log.py --framework sglang --megabytes 200 -o server.log
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

MEGABYTE = 1_000_000
STARTS = 4
RANKS = range(8)
PIECE = 2000
"""Run-time lines of one write."""

Line = Callable[[random.Random, datetime], str]


def sglang_start(rng: random.Random, now: datetime) -> Iterator[str]:
    """What one SGLang server with eight ranks prints until it is up."""
    arguments = ", ".join(f"option_{number}={rng.randrange(9999)}" for number in range(300))
    yield (
        f"[{now:%Y-%m-%d %H:%M:%S}] server_args=ServerArgs(model_path='/models/acme-70b', "
        f"tp_size=8, dp_size=1, mem_fraction_static=0.88, {arguments}, context_length=131072)"
    )
    for rank in RANKS:
        at = f"[{now:%Y-%m-%d %H:%M:%S} TP{rank}]"
        free = 78.5 - rank / 50
        yield f"{at} Init torch distributed ends. mem usage=1.{rank:02d} GB"
        yield f"{at} Load weight begin. avail mem={free:.2f} GB"
        yield (
            f"{at} Load weight end. elapsed=41.20 s, type=AcmeForCausalLM, dtype=torch.bfloat16, "
            f"avail mem={free - 17.51:.2f} GB, mem usage=17.51 GB."
        )
        yield f"{at} Using KV cache dtype: torch.bfloat16"
        yield (f"{at} KV Cache is allocated. #tokens: 1327104, K size: 25.31 GB, V size: 25.31 GB")
        yield f"{at} Memory pool end. avail mem={free - 68.20:.2f} GB"
        yield (
            f"{at} Capture cuda graph begin. This can take up to several minutes. "
            f"avail mem={free - 68.70:.2f} GB"
        )
    bars = (f"Capturing batches (bs={size} avail_mem=9.31 GB): {size}%" for size in range(100))
    yield "\r".join(bars)
    for rank in RANKS:
        at = f"[{now:%Y-%m-%d %H:%M:%S} TP{rank}]"
        free = 9.80 - rank / 50
        yield (
            f"{at} Capture cuda graph end. Time elapsed: 24.11 s. mem usage=1.02 GB. "
            f"avail mem={free - 1.02:.2f} GB."
        )
        yield (
            f"{at} max_total_num_tokens=1327104, chunked_prefill_size=8192, "
            f"max_prefill_tokens=16384, max_running_requests=2048, context_len=131072, "
            f"available_gpu_mem={free - 1.02:.2f} GB"
        )
    yield f"[{now:%Y-%m-%d %H:%M:%S}] The server is fired up and ready to roll!"


def sglang_batch(rng: random.Random, now: datetime) -> str:
    """One line of a running SGLang server."""
    at = f"[{now:%Y-%m-%d %H:%M:%S} TP0]"
    kind = rng.random()
    if kind < 0.7:
        running = rng.randrange(1, 256)
        return (
            f"{at} Decode batch, #running-req: {running}, #token: {running * 2713}, "
            f"token usage: {running / 512:.2f}, cuda graph: True, "
            f"gen throughput (token/s): {running * 31.7:.2f}, #queue-req: {rng.randrange(9)}"
        )
    if kind < 0.95:
        return (
            f"{at} Prefill batch, #new-seq: {rng.randrange(1, 9)}, "
            f"#new-token: {rng.randrange(8192)}, #cached-token: {rng.randrange(65536)}, "
            f"token usage: {rng.random():.2f}, #running-req: {rng.randrange(256)}, "
            f"#queue-req: {rng.randrange(9)}, input throughput (token/s): {rng.random() * 9e3:.2f}"
        )
    return (
        f"[{now:%Y-%m-%d %H:%M:%S}] INFO:     10.0.3.{rng.randrange(256)}:{rng.randrange(65536)} - "
        f'"POST /v1/chat/completions HTTP/1.1" 200 OK'
    )


def vllm_start(rng: random.Random, now: datetime) -> Iterator[str]:
    """What one vLLM server with eight workers prints until it is up."""
    at = f"INFO {now:%m-%d %H:%M:%S}"
    yield f"(APIServer pid=1) {at} [utils.py:299] vLLM API server version 0.22.1"
    yield (
        f"(APIServer pid=1) {at} [utils.py:278] non-default args: {{'model': '/models/acme-70b', "
        f"'tensor_parallel_size': 8, 'max_model_len': 131072, 'gpu_memory_utilization': 0.92}}"
    )
    options = ", ".join(f"option_{number}={rng.randrange(9999)}" for number in range(200))
    yield (
        f"(EngineCore pid=203) {at} [core.py:112] Initializing a V1 LLM engine (v0.22.1) with "
        f"config: model='/models/acme-70b', max_seq_len=131072, tensor_parallel_size=8, {options}"
    )
    for rank in RANKS:
        worker = f"(Worker_TP{rank} pid={300 + rank}) {at}"
        yield f"{worker} [default_loader.py:397] Loading weights took 18.93 seconds"
        yield (
            f"{worker} [gpu_model_runner.py:5132] Model loading took 17.51 GiB memory and "
            f"{20 + rank}.567233 seconds"
        )
        yield f"{worker} [gpu_model_runner.py:6365] Estimated CUDA graph memory: 0.94 GiB total"
        yield (
            f"{worker} [gpu_worker.py:466] Available KV cache memory: {50.62 - rank / 50:.2f} GiB"
        )
    yield (
        f"(EngineCore pid=203) {at} [kv_cache_utils.py:1733] GPU KV cache size: 1,323,440 tokens"
    )
    yield (
        f"(EngineCore pid=203) {at} [kv_cache_utils.py:1734] Maximum concurrency for 131,072 "
        f"tokens per request: 10.10x"
    )
    for rank in RANKS:
        worker = f"(Worker_TP{rank} pid={300 + rank}) {at}"
        yield (
            f"{worker} [gpu_model_runner.py:6456] Graph capturing finished in 10 secs, "
            f"took 1.02 GiB"
        )
    yield (
        f"(EngineCore pid=203) {at} [core.py:302] init engine (profile, create kv cache, warmup "
        f"model) took 75.54 s (compilation: 46.50 s)"
    )
    yield "(APIServer pid=1) INFO:     Application startup complete."


def vllm_statistics(rng: random.Random, now: datetime) -> str:
    """One line of a running vLLM server."""
    if rng.random() < 0.5:
        return (
            f"(APIServer pid=1) INFO:     10.0.3.{rng.randrange(256)}:{rng.randrange(65536)} - "
            f'"POST /v1/chat/completions HTTP/1.1" 200 OK'
        )
    running = rng.randrange(1, 256)
    return (
        f"(APIServer pid=1) INFO {now:%m-%d %H:%M:%S} [loggers.py:271] Engine 000: "
        f"Avg prompt throughput: {rng.random() * 9e3:.1f} tokens/s, "
        f"Avg generation throughput: {running * 31.7:.1f} tokens/s, Running: {running} reqs, "
        f"Waiting: {rng.randrange(9)} reqs, GPU KV cache usage: {running / 5.12:.1f}%, "
        f"Prefix cache hit rate: {rng.random() * 100:.1f}%"
    )


FRAMEWORKS: dict[str, tuple[Callable[[random.Random, datetime], Iterator[str]], Line]] = {
    "sglang": (sglang_start, sglang_batch),
    "vllm": (vllm_start, vllm_statistics),
}


def generate(framework: str, megabytes: int, path: str) -> None:
    """Write the log; it is at most one piece longer than asked for."""
    start, runtime = FRAMEWORKS[framework]
    rng = random.Random(framework)  # noqa: S311  # made-up numbers, the same each time
    now = datetime(2026, 1, 2, 3, 4, 5)
    with open(path, "wb") as file:
        for number in range(1, STARTS + 1):
            file.write("".join(f"{line}\n" for line in start(rng, now)).encode())
            while file.tell() < megabytes * MEGABYTE * number // STARTS:
                piece = []
                for _ in range(PIECE):
                    now += timedelta(milliseconds=rng.randrange(900))
                    piece.append(f"{runtime(rng, now)}\n")
                file.write("".join(piece).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--framework", choices=sorted(FRAMEWORKS), required=True)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("-o", "--output", required=True, metavar="FILE")
    options = parser.parse_args()
    generate(options.framework, options.megabytes, options.output)


if __name__ == "__main__":
    main()
