"""How a server dies, in SGLang's words."""

from __future__ import annotations

from decimal import Decimal

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Exact, ExactRatio, Gb, Gib, Ratio, Slots, Tokens


@attrs.frozen(kw_only=True)
class NoKvMemory:
    """After weights nothing is left for the KV pool under the fraction; `suggested` is the engine's
    own cure, `minimum` the least that would do, rounded."""

    mem_fraction_static: ExactRatio | None = None
    suggested: Ratio | None = None
    minimum: Ratio | None = None


@attrs.frozen(kw_only=True)
class NoPoolForStates:
    """The budget does not hold the states of a hybrid model."""

    budget: Gib | None = None
    slots: Slots | None = None


@attrs.frozen(kw_only=True)
class OneRequestTooLarge:
    """A pool was made, and one request does not fit into it."""

    tokens: Tokens | None = None


@attrs.frozen(kw_only=True)
class HostMemoryRefused:
    """The host has less memory than a pool in it needs."""

    requested: Gb | None = None
    free: Gb | None = None


@attrs.frozen(kw_only=True)
class CheckpointPoolRefused:
    """The headroom does not hold the pool of eight-bit states."""

    needed: Gib
    free: Gib


@attrs.frozen(kw_only=True)
class SlotsExhausted:
    """Slots of the token pool or of the request table ran out; bytes of the device did not."""


@attrs.frozen(kw_only=True)
class PoolLeak:
    """The scheduler's check of its pools failed: a count is off."""


@attrs.frozen(kw_only=True)
class CaptureFailed:
    """A graph capture failed, which ends the server; `reason` is what it says."""

    reason: str | None = None


@attrs.frozen(kw_only=True)
class Crashed:
    """A process of the server hit an exception that it does not survive; `who` as printed."""

    who: str | None = None


NOT_ENOUGH = Matcher(
    name="sglang.not_enough_memory",
    anchor="Not enough memory. Please try to increase --mem-fraction-static",
    pattern=(
        r"Not enough memory\. Please try to increase --mem-fraction-static\.?"
        r"(?: Current value: (?:self\.server_args\.)?mem_fraction_static="
        rf"(?P<mem_fraction_static>{NUMBER}))?"
    ),
    event=NoKvMemory,
    means="The KV budget is zero or negative: the fraction is smaller than what weights take.",
    seen_in="0.2.15 … 0.5.23",
    samples=(
        Sample("Not enough memory. Please try to increase --mem-fraction-static.", NoKvMemory()),
        Sample(
            "Not enough memory. Please try to increase --mem-fraction-static. "
            "Current value: self.server_args.mem_fraction_static=0.8",
            NoKvMemory(mem_fraction_static=Exact("0.8")),
        ),
    ),
)

WEIGHTS_LEAVE_NONE = Matcher(
    name="sglang.weights_leave_none",
    anchor="Loaded weights leave no GPU memory for the KV cache",
    pattern=(
        r"Loaded weights leave no GPU memory for the KV cache"
        rf"(?: under --mem-fraction-static=(?P<mem_fraction_static>{NUMBER}))?"
        rf"(?:\. Raise --mem-fraction-static above (?P<suggested>{NUMBER}) "
        rf"\(minimum viable = [^=\n]{{1,60}} = (?P<minimum>{NUMBER})\))?"
    ),
    event=NoKvMemory,
    means="The same in newer words, with the fraction.",
    seen_in="0.5.14 … 0.5.23",
    samples=(
        Sample(
            "Loaded weights leave no GPU memory for the KV cache under "
            "--mem-fraction-static=0.88. Raise",
            NoKvMemory(mem_fraction_static=Exact("0.88")),
        ),
        Sample(
            "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5. "
            "Raise --mem-fraction-static above 0.612 (minimum viable = 1 - available/pre = "
            "0.6021).",
            NoKvMemory(
                mem_fraction_static=Exact("0.5"),
                suggested=Decimal("0.612"),
                minimum=Decimal("0.6021"),
            ),
        ),
    ),
)

_PROCESSES = (
    "Scheduler|TpModelWorkerClient|DataParallelController|TokenizerManager|DetokenizerManager"
    "|MultiTokenizerRouter|MultiDetokenizerRouter|GrpcRequestManager"
)

CRASHED = Matcher(
    name="sglang.crashed",
    anchor=" hit an exception: ",
    pattern=rf"\b(?P<who>{_PROCESSES}) hit an exception: ",
    event=Crashed,
    means="A process of the server died; a traceback follows.",
    seen_in="0.3.6.post3 … 0.5.23",
    samples=(
        Sample(
            "Scheduler hit an exception: Traceback (most recent call last):",
            Crashed(who="Scheduler"),
        ),
    ),
)

CAPTURE_FAILED = Matcher(
    name="sglang.capture_failed",
    anchor=" graph failed: ",
    pattern=(
        r"Capture (?:[\w\-]+ ){0,3}(?i:cuda|npu|cpu|xpu) graph failed: "
        r"(?=(?P<reason>[^\n\r]{1,200}))"
    ),
    event=CaptureFailed,
    means="A graph capture failed, which ends the server.",
    seen_in="0.4.6.post5 … 0.5.23",
    samples=(
        Sample(
            "Exception: Capture cuda graph failed: X out of memory.",
            CaptureFailed(reason="X out of memory."),
        ),
    ),
)

NO_STATE_MEMORY = Matcher(
    name="sglang.no_state_memory",
    anchor="Not enough GPU memory for hybrid",
    pattern=(
        r"Not enough GPU memory for hybrid(?:[^\n]{0,120}?max_mamba_cache_size=(?P<slots>-?\d+) "
        rf"\(total_rest_memory=(?P<budget>{NUMBER}) GB)?"
    ),
    event=NoPoolForStates,
    means="The budget does not hold the states of a hybrid model.",
    seen_in="0.5.15 … 0.5.23",
    samples=(
        Sample(
            "Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed "
            "max_mamba_cache_size=0 (total_rest_memory=0.25 GB, mamba_cache_per_req=64.00 MB).",
            NoPoolForStates(slots=0, budget=Gib("0.25")),
        ),
    ),
)

NO_STATE_SLOTS = Matcher(
    name="sglang.no_state_slots",
    anchor=" state cache is too small to serve any requests.",
    pattern=(
        r" state cache is too small to serve any requests\."
        r"(?: max_mamba_cache_size=(?P<slots>-?\d+))?"
    ),
    event=NoPoolForStates,
    means="Fewer states fit than one request needs.",
    seen_in="0.5.15 … 0.5.23",
    samples=(
        Sample(
            "Hybrid (mamba/linear-attention) state cache is too small to serve any requests. "
            "max_mamba_cache_size=2, mamba_ratio=3, resulting",
            NoPoolForStates(slots=2),
        ),
    ),
)

WINDOW_POOL_TOO_SMALL = Matcher(
    name="sglang.window_pool_too_small",
    anchor=" tokens) cannot hold even one request",
    pattern=r"SWA pool \((?P<tokens>\d+) tokens\) cannot hold even one request",
    event=OneRequestTooLarge,
    means="The sliding-window pool is smaller than a window and a page.",
    seen_in="0.5.18 … 0.5.23",
    samples=(
        Sample(
            "SWA pool (512 tokens) cannot hold even one request: the prefill admission floor is",
            OneRequestTooLarge(tokens=512),
        ),
    ),
)

UNIFIED_POOL_TOO_SMALL = Matcher(
    name="sglang.unified_pool_too_small",
    anchor=" cannot fit ONE worst-case request",
    pattern=r"byte budget \d+ cannot fit ONE worst-case request",
    event=OneRequestTooLarge,
    means="The shared buffer of a hybrid model does not hold one request of the longest length.",
    seen_in="0.5.19 … 0.5.23",
    samples=(
        Sample("x: byte budget 9 cannot fit ONE worst-case request (bs=1", OneRequestTooLarge()),
    ),
)

HOST_MEMORY_REFUSED = Matcher(
    name="sglang.host_memory_refused",
    anchor="Not enough host memory ",
    pattern=(
        r"Not enough host memory (?!for request)[^\n]{1,80}?"
        rf"(?:Requesting (?P<requested>{NUMBER}) GB but only have (?P<free>{NUMBER}) GB free"
        r"|caches)"
    ),
    event=HostMemoryRefused,
    means='The host has less free memory than a pool in it needs; "GB" is 10^9 bytes.',
    seen_in="0.4.3.post4 … 0.5.23",
    samples=(
        Sample(
            "ValueError: Not enough host memory available. Requesting 512.00 GB but only have "
            "230.50 GB free. Please reduce",
            HostMemoryRefused(requested=Gb("512.00"), free=Gb("230.50")),
        ),
        Sample(
            "Not enough host memory for M3.1 NVFP4 KV, index and draft caches", HostMemoryRefused()
        ),
    ),
    near_misses=("Not enough host memory for request a1b2c3",),
)

HOST_POOL_TOO_SMALL = Matcher(
    name="sglang.host_pool_too_small",
    anchor="ost pool must hold a retraction and a receive page",
    pattern=r"[Hh]ost pool must hold a retraction and a receive page",
    event=HostMemoryRefused,
    means="A pool in host memory is too small for what decoding puts there.",
    seen_in="0.5.21 … 0.5.23",
    samples=(
        Sample(
            "ValueError: Host pool must hold a retraction and a receive page; increase",
            HostMemoryRefused(),
        ),
    ),
)

CHECKPOINT_POOL_REFUSED = Matcher(
    name="sglang.checkpoint_pool_refused",
    anchor="int8 mamba checkpoint pool needs ",
    pattern=(
        rf"int8 mamba checkpoint pool needs ~(?P<needed>{NUMBER})GB but only (?P<free>{NUMBER})GB"
    ),
    event=CheckpointPoolRefused,
    means="The headroom does not hold the pool of eight-bit states.",
    seen_in="0.5.15 … 0.5.23",
    samples=(
        Sample(
            "int8 mamba checkpoint pool needs ~4.50GB but only 3.25GB HBM is free. Lower",
            CheckpointPoolRefused(needed=Gib("4.50"), free=Gib("3.25")),
        ),
    ),
)

POOL_LEAK = Matcher(
    name="sglang.pool_leak",
    anchor=" leak detected!",
    pattern=r"(?:pool|allocator)(?: memory)? leak detected!",
    event=PoolLeak,
    means="The scheduler's own check found a count of its pools off.",
    seen_in="0.3.6.post3 … 0.5.23",
    samples=(
        Sample("KV cache pool leak detected!available_size=1, x", PoolLeak()),
        Sample("token_to_kv_pool_allocator memory leak detected! x", PoolLeak()),
    ),
)

NO_FULL_POOL = Matcher(
    name="sglang.no_full_pool",
    anchor="leaves no room for the full KV pool",
    pattern=r"leaves no room for the full KV pool",
    event=NoKvMemory,
    means="The sliding-window pool takes the whole budget.",
    seen_in="0.5.15 … 0.5.23",
    samples=(Sample("SWA pool cap (x) leaves no room for the full KV pool", NoKvMemory()),),
)

RANKS_LEFT_BEHIND = Matcher(
    name="sglang.ranks_left_behind",
    anchor=" could finish the model loading, but there are other ranks",
    pattern=r"TP rank \d+ could finish the model loading, but there are other ranks",
    event=Crashed,
    means="Another rank did not finish loading; its own lines say why.",
    seen_in="0.4.6.post5 … 0.5.23",
    samples=(
        Sample(
            "TP rank 0 could finish the model loading, but there are other ranks that", Crashed()
        ),
    ),
)

_HOST_ENDS = (
    ("host_pool_no_room", "No host memory is left for HiCache"),
    ("host_pool_no_size", "Cannot automatically size HiCache host memory"),
    ("host_pool_no_pages", "for a HiCache host pool failed"),
    ("host_pool_no_pointer", " returned a null pointer"),
)

HOST_ENDS = tuple(
    Matcher(
        name=f"sglang.{name}",
        anchor=words,
        pattern=words if words[0] != " " else rf"host memory allocation of [^\n]{{1,80}}?{words}",
        event=HostMemoryRefused,
        means="The host has no memory for a pool that was to be allocated in it.",
        seen_in="0.5.23 … 0.5.23",
        samples=(
            Sample(f"Pinned host memory allocation of 12.3 GiB {words}", HostMemoryRefused()),
        ),
    )
    for name, words in _HOST_ENDS
)

CHILD_DIED = Matcher(
    name="sglang.child_died",
    anchor="Received sigquit from a child process.",
    pattern=r"Received sigquit from a child process\.",
    event=Crashed,
    means="A scheduler or detokenizer process ended, and the server with it.",
    samples=(
        Sample(
            "Received sigquit from a child process. It usually means the child failed.", Crashed()
        ),
    ),
)

_DEATHS = (
    (
        "child_failed",
        "It usually means one child failed",
        r"It usually means one child failed",
        "SIGQUIT received. It usually means one child failed.",
        "A child process ended, and the server with it.",
    ),
    (
        "subprocess_crashed",
        " crashed with exit code ",
        r"Subprocess \S+ \(pid=\d+\) crashed with exit code ",
        "Subprocess scheduler_0 (pid=12) crashed with exit code -9.",
        "The same, with the exit code.",
    ),
    (
        "watchdog",
        "atchdog timeout (",
        r"[Ww]atchdog timeout \((?![^)\n]{0,200}soft=True)",
        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        "A process that makes no progress is ended.",
    ),
    (
        "warm_up_failed",
        "Initialization failed. ",
        r"Initialization failed\. (?:warmup error|Please see)",
        "Initialization failed. warmup error: Traceback",
        "The first request failed, which ends the server.",
    ),
    (
        "terminated",
        "Scheduler or DataParallelController ",
        r"Scheduler or DataParallelController \d+ terminated with (?!0\b|-15\b|-2\b)",
        "Scheduler or DataParallelController 12 terminated with -9",
        "A process of another node ended.",
    ),
    (
        "model_server",
        "Exception in ",
        r"Exception in (?:ModelTpServer|Controller(?:Single|Multi)):",
        "Exception in ModelTpServer:",
        "A process of the server died; a traceback follows.",
    ),
)

ENDED = tuple(
    Matcher(
        name=f"sglang.{name}",
        anchor=anchor,
        pattern=pattern,
        event=Crashed,
        means=means,
        samples=(Sample(sample, Crashed()),),
    )
    for name, anchor, pattern, sample, means in _DEATHS
)

SCHEDULER_DEAD = Matcher(
    name="sglang.scheduler_dead",
    anchor=" scheduler is dead.",
    pattern=r"Rank \d+ scheduler is dead\.",
    event=Crashed,
    means="The launcher found a scheduler process gone; its exit code follows.",
    samples=(Sample("Rank 0 scheduler is dead. Please check if there are", Crashed()),),
)

_SLOTS = (
    (
        "no_request_slot",
        "alloc_req_slots runs out of memory.",
        "0.4.3.post4 … 0.5.23",
        "The request table is full although the limit let a request in.",
    ),
    (
        "no_request_slot_old",
        "Out of memory. Please set a smaller number for `--max-running-requests`",
        "0.2.15 … 0.4.0.post2",
        "The same in older words.",
    ),
    (
        "no_prefill_slot",
        "Prefill out of memory. Try to lower your batch size.",
        "0.2.15 … 0.5.23",
        "The token pool has no room for a prompt that was admitted.",
    ),
    (
        "no_slot",
        "Out of memory. Try to lower your batch size.",
        "0.5.5.post3 … 0.5.23",
        "The token pool has no room for what a batch needs.",
    ),
    (
        "no_draft_slot",
        "draft OOM when allocating ",
        "0.5.12 … 0.5.12",
        "The token pool has no room for a draft's block.",
    ),
    (
        "no_decode_slot",
        "Decode out of memory. Try to lower your batch size.",
        "0.3.6.post3 … 0.5.23",
        "The token pool has no room for the next tokens.",
    ),
    (
        "nothing_to_retract",
        "Failed to retract any request. No space left for only one request.",
        "0.4.9.post6 … 0.5.5.post3",
        "The token pool does not hold one request to its end.",
    ),
    (
        "nothing_left_to_retract",
        "Out of memory even after retracting all other requests",
        "0.5.8 … 0.5.8",
        "The same in newer words.",
    ),
)

SLOTS_EXHAUSTED = tuple(
    Matcher(
        name=f"sglang.{name}",
        anchor=words,
        pattern=words.replace(".", r"\."),
        event=SlotsExhausted,
        means=means,
        seen_in=seen_in,
        samples=(Sample(f"RuntimeError: {words}", SlotsExhausted()),),
    )
    for name, words, seen_in, means in _SLOTS
)

MATCHERS = (
    NOT_ENOUGH,
    WEIGHTS_LEAVE_NONE,
    NO_STATE_MEMORY,
    NO_STATE_SLOTS,
    NO_FULL_POOL,
    WINDOW_POOL_TOO_SMALL,
    UNIFIED_POOL_TOO_SMALL,
    HOST_MEMORY_REFUSED,
    HOST_POOL_TOO_SMALL,
    CHECKPOINT_POOL_REFUSED,
    POOL_LEAK,
    CRASHED,
    CHILD_DIED,
    RANKS_LEFT_BEHIND,
    *HOST_ENDS,
    SCHEDULER_DEAD,
    *ENDED,
    CAPTURE_FAILED,
    *SLOTS_EXHAUSTED,
)
