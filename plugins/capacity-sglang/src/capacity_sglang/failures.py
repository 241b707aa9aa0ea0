"""How a server dies, in SGLang's words."""

from __future__ import annotations

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Exact, ExactRatio


@attrs.frozen(kw_only=True)
class NoKvMemory:
    """After weights nothing is left for the KV pool under the fraction."""

    mem_fraction_static: ExactRatio | None = None


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
    pattern=r"Capture (?:[\w\-]+ ){0,3}(?i:cuda|npu|cpu|xpu) graph failed: ",
    event=Crashed,
    means="A graph capture failed, which ends the server.",
    seen_in="0.4.6.post5 … 0.5.23",
    samples=(Sample("Exception: Capture cuda graph failed: X out of memory.", Crashed()),),
)

NO_STATE_MEMORY = Matcher(
    name="sglang.no_state_memory",
    anchor="Not enough GPU memory for hybrid",
    pattern=r"Not enough GPU memory for hybrid",
    event=NoKvMemory,
    means="The budget does not hold the states of a hybrid model.",
    seen_in="0.5.15 … 0.5.23",
    samples=(
        Sample(
            "Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed",
            NoKvMemory(),
        ),
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

SCHEDULER_DEAD = Matcher(
    name="sglang.scheduler_dead",
    anchor=" scheduler is dead.",
    pattern=r"Rank \d+ scheduler is dead\.",
    event=Crashed,
    means="The launcher found a scheduler process gone; its exit code follows.",
    samples=(Sample("Rank 0 scheduler is dead. Please check if there are", Crashed()),),
)

NO_REQUEST_SLOT = Matcher(
    name="sglang.no_request_slot",
    anchor="alloc_req_slots runs out of memory.",
    pattern=r"alloc_req_slots runs out of memory\.",
    event=Crashed,
    means="The request table is full although the limit let a request in; the scheduler dies of "
    "it.",
    seen_in="0.4.3.post4 … 0.5.23",
    samples=(
        Sample("alloc_req_slots runs out of memory. Please set a smaller number for", Crashed()),
    ),
)

MATCHERS = (
    NOT_ENOUGH,
    WEIGHTS_LEAVE_NONE,
    NO_STATE_MEMORY,
    NO_FULL_POOL,
    CRASHED,
    CHILD_DIED,
    SCHEDULER_DEAD,
    CAPTURE_FAILED,
    NO_REQUEST_SLOT,
)
