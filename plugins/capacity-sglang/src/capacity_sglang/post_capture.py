"""KV pools that are sized after graph capture: what was reserved before is no memory."""

from __future__ import annotations

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Gib, Tokens


@attrs.frozen(kw_only=True)
class PostCapturePool:
    """A pool as it was sized after graph capture: replaces what was reserved before."""

    tokens: Tokens
    size: Gib | None = None
    dtype: str | None = None
    free: Gib | None = None
    draft: str | None = None


@attrs.frozen(kw_only=True)
class PostCaptureSplit:
    """How tokens are split into a full and a sliding-window pool, after graph capture."""

    full_tokens: Tokens
    swa_tokens: Tokens


POST_CAPTURE_TOKENS = Matcher(
    name="sglang.post_capture_tokens",
    anchor="Post-capture KV sizing: max_total_num_tokens=",
    pattern=(
        r"Post-capture KV sizing: max_total_num_tokens=(?P<tokens>\d+), "
        rf"free memory=(?P<free>{NUMBER}) GB"
    ),
    event=PostCapturePool,
    means="Tokens after post-capture sizing, in its first words; the pool line before it was a "
    "bound.",
    seen_in="0.5.16 … 0.5.16",
    samples=(
        Sample(
            "Post-capture KV sizing: max_total_num_tokens=800000, free memory=9.80 GB",
            PostCapturePool(tokens=800000, free=Gib("9.80")),
        ),
    ),
)

POST_CAPTURE_POOL = Matcher(
    name="sglang.post_capture_pool",
    anchor="Post-capture KV sizing: ",
    pattern=(
        r"Post-capture KV sizing: (?:(?P<draft>draft) )?KV cache allocated\. dtype: "
        r"(?P<dtype>[\w.]+), "
        rf"#tokens: (?P<tokens>\d+), KV size: (?P<size>{NUMBER}) GB(?:, avail "
        rf"mem=(?P<free>{NUMBER}) GB)?"
    ),
    event=PostCapturePool,
    means="The pool's final size, decided after graph capture; replaces the reserved one.",
    seen_in="0.5.17 … 0.5.23",
    samples=(
        Sample(
            "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 8000, "
            "KV size: 9.50 GB, avail mem=3.25 GB",
            PostCapturePool(
                tokens=8000, size=Gib("9.50"), dtype="torch.bfloat16", free=Gib("3.25")
            ),
        ),
        Sample(
            "Post-capture KV sizing: draft KV cache allocated. dtype: torch.bfloat16, #tokens: "
            "8000, KV size: 0.50 GB",
            PostCapturePool(tokens=8000, size=Gib("0.50"), dtype="torch.bfloat16", draft="draft"),
        ),
    ),
    near_misses=("Post-capture KV sizing: max_running_requests 128 -> 96",),
)

POST_CAPTURE_SPLIT = Matcher(
    name="sglang.post_capture_split",
    anchor="Post-capture KV sizing: full_layer_tokens=",
    pattern=(
        r"Post-capture KV sizing: full_layer_tokens=(?P<full_tokens>\d+), "
        r"swa_layer_tokens=(?P<swa_tokens>\d+)"
    ),
    event=PostCaptureSplit,
    means="The final tokens of the full and of the sliding-window pool.",
    seen_in="0.5.18 … 0.5.23",
    samples=(
        Sample(
            "Post-capture KV sizing: full_layer_tokens=8000, swa_layer_tokens=1600",
            PostCaptureSplit(full_tokens=8000, swa_tokens=1600),
        ),
    ),
)

MATCHERS = (
    POST_CAPTURE_SPLIT,
    POST_CAPTURE_TOKENS,
    POST_CAPTURE_POOL,
)
