"""What a scheduler ended up with: tokens, requests, context length; and that the server is up."""

from __future__ import annotations

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Count, Gib, Requests, Slots, Tokens


@attrs.frozen(kw_only=True)
class Limits:
    """The final limits of one scheduler (a DP worker), printed by its first rank."""

    tokens: Tokens
    chunked_prefill_size: Tokens | None = None
    max_prefill_tokens: Tokens | None = None
    max_running_requests: Requests | None = None
    context_length: Tokens | None = None
    free: Gib | None = None


@attrs.frozen(kw_only=True)
class RequestLimit:
    """The request limit of one scheduler, before its other limits are printed; where it was
    lowered, from what."""

    max_running_requests: Requests
    asked: Requests | None = None
    slots: Slots | None = None
    slots_each: Count | None = None


@attrs.frozen(kw_only=True)
class PoolBelowContext:
    """The pool holds less than one request of the longest length."""

    tokens: Tokens
    length: Tokens


@attrs.frozen(kw_only=True)
class ServerUp:
    """The server takes requests."""


LIMITS = Matcher(
    name="sglang.limits",
    anchor="max_total_num_tokens=",
    pattern=(
        # Other lines hold the same words: a pool's own report, a check's.
        r"(?<![\w.])(?<!, )(?<!sizing: )max_total_num_tokens=(?P<tokens>\d+)(?=,|\s*$)(?:, "
        r"chunked_prefill_size=(?:(?P<chunked_prefill_size>-?\d+)|None))?"
        # A figure is whole only where something follows it: lines are cut.
        r"(?:, max_prefill_tokens=(?P<max_prefill_tokens>\d+)(?=,))?"
        r"(?:, max_running_requests=(?P<max_running_requests>\d+)(?=,))?"
        r"(?:, context_len=(?P<context_length>\d+))?"
        rf"(?:, available_[a-z]pu_mem=(?P<free>{NUMBER}) GB)?"
    ),
    event=Limits,
    means="Tokens and requests that one scheduler (DP worker) takes; free memory is read without "
    "emptying the cache.",
    seen_in="0.2.15 … 0.5.23",
    samples=(
        Sample(
            "max_total_num_tokens=185897, chunked_prefill_size=8192, max_prefill_tokens=16384, "
            "max_running_requests=48, context_len=65536, available_gpu_mem=6.22 GB",
            Limits(
                tokens=185897,
                chunked_prefill_size=8192,
                max_prefill_tokens=16384,
                max_running_requests=48,
                context_length=65536,
                free=Gib("6.22"),
            ),
        ),
        Sample(
            "max_total_num_tokens=56524, max_prefill_tokens=16384, max_running_requests=2049, "
            "context_len=32768",
            Limits(
                tokens=56524,
                max_prefill_tokens=16384,
                max_running_requests=2049,
                context_length=32768,
            ),
        ),
        Sample(
            "max_total_num_tokens=20, chunked_prefill_size=-1, max_prefill_tokens=16, "
            "max_running_requests=2, "
            "context_len=64",
            Limits(
                tokens=20,
                chunked_prefill_size=-1,
                max_prefill_tokens=16,
                max_running_requests=2,
                context_length=64,
            ),
        ),
        Sample("max_total_num_tokens=1256440", Limits(tokens=1256440)),
    ),
    near_misses=(
        "max_total_num_tokens=None, x=1",
        "total_bytes=1, full_max_total_num_tokens=2, swa_max_total_num_tokens=1",
        "[unified-memory-pool] total_bytes=1, max_total_num_tokens=777000, max_mamba_cache_size=8",
        "memory leak detected! self.max_total_num_tokens=400000, available_size=3",
        "Post-capture KV sizing: max_total_num_tokens=800000, free memory=9.80 GB",
    ),
)

POOL_BELOW_CONTEXT = Matcher(
    name="sglang.pool_below_context",
    anchor=" tokens, fewer than --context-length ",
    pattern=r"KV pool holds (?P<tokens>\d+) tokens, fewer than --context-length (?P<length>\d+)",
    event=PoolBelowContext,
    means="One longest request does not fit the pool; the server starts all the same.",
    seen_in="0.5.23 … 0.5.23",
    samples=(
        Sample(
            "KV pool holds 4096 tokens, fewer than --context-length 8192. One full-length",
            PoolBelowContext(tokens=4096, length=8192),
        ),
    ),
)

REQUEST_LIMIT = Matcher(
    name="sglang.request_limit",
    anchor="from the finalized token capacity: max_num_reqs=",
    pattern=r"from the finalized token capacity: max_num_reqs=(?P<max_running_requests>\d+)",
    event=RequestLimit,
    means="The request limit of this scheduler.",
    seen_in="0.5.13 … 0.5.13.post1",
    samples=(
        Sample(
            "Max concurrent requests (per dp worker) from the finalized token capacity: "
            "max_num_reqs=48.",
            RequestLimit(max_running_requests=48),
        ),
    ),
)

SERVER_UP = Matcher(
    name="sglang.server_up",
    anchor="The server is fired up and ready to roll!",
    pattern=r"The server is fired up and ready to roll!",
    event=ServerUp,
    means="The server takes requests.",
    seen_in="0.2.15 … 0.5.23",
    samples=(Sample("The server is fired up and ready to roll!", ServerUp()),),
)

REQUEST_LIMIT_REDUCED = Matcher(
    name="sglang.request_limit_reduced",
    anchor="max_running_requests was reduced from the requested ",
    pattern=(
        r"max_running_requests was reduced from the requested (?P<asked>\d+) to "
        r"(?P<max_running_requests>\d+)"
    ),
    event=RequestLimit,
    means="The KV pool does not allow as many requests as were asked for.",
    seen_in="0.5.15 … 0.5.23",
    samples=(
        Sample(
            "max_running_requests was reduced from the requested 256 to 96 (per dp worker) due to",
            RequestLimit(max_running_requests=96, asked=256),
        ),
    ),
)

REQUEST_LIMIT_BY_STATES = Matcher(
    name="sglang.request_limit_by_states",
    anchor=" by the mamba state cache (max_mamba_cache_size=",
    pattern=(
        r"max_running_requests is capped to (?P<max_running_requests>\d+) by the mamba state cache "
        r"\(max_mamba_cache_size=(?P<slots>\d+), (?P<slots_each>\d+) state slots per request\)"
    ),
    event=RequestLimit,
    means="The state pool allows no more requests: its slots over the slots of one request.",
    seen_in="0.5.18 … 0.5.23",
    samples=(
        Sample(
            "max_running_requests is capped to 120 by the mamba state cache (max_mamba_cache_size="
            "360, 3 state slots per request). To raise it",
            RequestLimit(max_running_requests=120, slots=360, slots_each=3),
        ),
    ),
)

REQUEST_LIMIT_POST_CAPTURE = Matcher(
    name="sglang.request_limit_post_capture",
    anchor="Post-capture KV sizing: max_running_requests ",
    pattern=(
        r"Post-capture KV sizing: max_running_requests (?P<asked>\d+) -> "
        r"(?P<max_running_requests>\d+)"
    ),
    event=RequestLimit,
    means="Post-capture sizing lowered the request limit.",
    seen_in="0.5.18 … 0.5.23",
    samples=(
        Sample(
            "Post-capture KV sizing: max_running_requests 128 -> 96",
            RequestLimit(max_running_requests=96, asked=128),
        ),
    ),
)

MATCHERS = (
    LIMITS,
    POOL_BELOW_CONTEXT,
    REQUEST_LIMIT,
    REQUEST_LIMIT_REDUCED,
    REQUEST_LIMIT_BY_STATES,
    REQUEST_LIMIT_POST_CAPTURE,
    SERVER_UP,
)
