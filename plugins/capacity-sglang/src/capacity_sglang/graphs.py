"""Graph captures: target or draft, decode, verify, prefill or extend; the device word varies (CUDA,
npu, cpu)."""

from __future__ import annotations

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Gib


@attrs.frozen(kw_only=True)
class CaptureBegin:
    """A capture starts; `phase` is what is captured, as printed ("target decode", "draft", "" for
    the old form)."""

    phase: str = ""
    free: Gib | None = None


@attrs.frozen(kw_only=True)
class CaptureEnd:
    """A capture ended: what it took on this rank (may be negative), and free memory after it."""

    phase: str = ""
    used: Gib | None = None
    free: Gib | None = None


# The device word varies, and its case: `cuda graph`, `NPU graph`.
_DEVICE = r"(?i:cuda|npu|cpu|musa|xpu|hip)"

CAPTURE_BEGIN_OLD = Matcher(
    name="sglang.capture_begin_old",
    anchor=" This can take up to several minutes.",
    pattern=(
        rf"Capture (?:(?P<phase>draft extend|draft) )?{_DEVICE} graph begin(?: \(step \d+\))?\. "
        rf"This can take up to several minutes\.(?: avail mem=(?P<free>{NUMBER}) GB)?"
    ),
    event=CaptureBegin,
    means="A graph capture starts; before 0.4.3 without the free memory.",
    seen_in="0.2.15 … 0.5.13.post1",
    samples=(
        Sample(
            "Capture cuda graph begin. This can take up to several minutes. avail mem=11.16 GB",
            CaptureBegin(free=Gib("11.16")),
        ),
        Sample(
            "Capture draft extend npu graph begin. This can take up to several minutes. avail "
            "mem=5.16 GB",
            CaptureBegin(phase="draft extend", free=Gib("5.16")),
        ),
        Sample("Capture cuda graph begin. This can take up to several minutes.", CaptureBegin()),
        Sample(
            "Capture draft extend cuda graph begin (step 0). This can take up to several minutes. "
            "avail mem=5.16 GB",
            CaptureBegin(phase="draft extend", free=Gib("5.16")),
        ),
    ),
)

CAPTURE_END_OLD = Matcher(
    name="sglang.capture_end_old",
    anchor=" graph end. Time elapsed:",
    pattern=(
        rf"Capture (?:(?P<phase>draft extend|draft) )?{_DEVICE} graph end\. Time elapsed: [\d.]+ "
        rf"s\."
        rf" mem usage=(?P<used>{NUMBER}) GB\. avail mem=(?P<free>{NUMBER}) GB"
    ),
    event=CaptureEnd,
    means="What a capture took, and free memory after it.",
    seen_in="0.4.6.post5 … 0.5.13.post1",
    samples=(
        Sample(
            "Capture cuda graph end. Time elapsed: 25.99 s. mem usage=2.00 GB. avail mem=9.16 GB.",
            CaptureEnd(used=Gib("2.00"), free=Gib("9.16")),
        ),
        Sample(
            "Capture draft npu graph end. Time elapsed: 2.10 s. mem usage=-0.10 GB. avail "
            "mem=9.16 GB.",
            CaptureEnd(phase="draft", used=Gib("-0.10"), free=Gib("9.16")),
        ),
    ),
    near_misses=("Capture cuda graph end. Time elapsed: 2.19 s",),
)

CAPTURE_END_AVAIL_FIRST = Matcher(
    name="sglang.capture_end_avail_first",
    anchor=" graph end. Time elapsed:",
    pattern=(
        rf"Capture (?:(?P<phase>draft extend|draft) )?{_DEVICE} graph end\. Time elapsed: [\d.]+ "
        rf"s\."
        rf" avail mem=(?P<free>{NUMBER}) GB(?:\. mem usage=(?P<used>{NUMBER}) GB)?"
    ),
    event=CaptureEnd,
    means="The same with the free memory first (draft models of 0.4.6, all of 0.4.3).",
    seen_in="0.4.3.post4 … 0.4.7",
    samples=(
        Sample(
            "Capture draft cuda graph end. Time elapsed: 2.10 s. avail mem=9.16 GB. mem "
            "usage=0.10 GB.",
            CaptureEnd(phase="draft", used=Gib("0.10"), free=Gib("9.16")),
        ),
    ),
)

CAPTURE_END_BARE = Matcher(
    name="sglang.capture_end_bare",
    anchor=" graph end. Time elapsed:",
    pattern=rf"Capture {_DEVICE} graph end\. Time elapsed: [\d.]+ s(?!\.)",
    event=CaptureEnd,
    means="A capture ended; its memory is not printed.",
    seen_in="0.4.0.post2 … 0.4.0.post2",
    samples=(Sample("Capture cuda graph end. Time elapsed: 2.19 s", CaptureEnd()),),
)

CAPTURE_BEGIN_PIECEWISE = Matcher(
    name="sglang.capture_begin_piecewise",
    anchor="Capture piecewise CUDA graph begin.",
    pattern=rf"Capture (?P<phase>piecewise) CUDA graph begin\. avail mem=(?P<free>{NUMBER}) GB",
    event=CaptureBegin,
    means="The capture of prefill graphs starts.",
    seen_in="0.5.6 … 0.5.13.post1",
    samples=(
        Sample(
            "Capture piecewise CUDA graph begin. avail mem=8.16 GB",
            CaptureBegin(phase="piecewise", free=Gib("8.16")),
        ),
    ),
)

CAPTURE_END_PIECEWISE = Matcher(
    name="sglang.capture_end_piecewise",
    anchor="Capture piecewise CUDA graph end.",
    pattern=(
        r"Capture (?P<phase>piecewise) CUDA graph end\. Time elapsed: [\d.]+ s\."
        rf" mem usage=(?P<used>{NUMBER}) GB\. avail mem=(?P<free>{NUMBER}) GB"
    ),
    event=CaptureEnd,
    means="What the prefill graphs took, and free memory after them.",
    seen_in="0.5.6 … 0.5.13.post1",
    samples=(
        Sample(
            "Capture piecewise CUDA graph end. Time elapsed: 9.10 s. mem usage=1.50 GB. avail "
            "mem=6.66 GB.",
            CaptureEnd(phase="piecewise", used=Gib("1.50"), free=Gib("6.66")),
        ),
    ),
)

_PHASE = r"(?P<phase>(?:target|draft) (?:decode|verify|prefill|extend)|UNO tree draft)"

CAPTURE_BEGIN = Matcher(
    name="sglang.capture_begin",
    anchor=" graph begin. ",
    # The list of sizes may be long: it is passed over, not parsed.
    pattern=(
        rf"Capture {_PHASE} (?:CUDA|{_DEVICE}) graph begin\. (?!This)[^\n]{{0,3000}}? avail "
        rf"mem=(?P<free>{NUMBER}) GB"
    ),
    event=CaptureBegin,
    means="The capture of one role and phase starts, with free memory before it.",
    seen_in="0.5.14 … 0.5.23",
    samples=(
        Sample(
            "Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=16, bs=[1, "
            "2], avail mem=7.27 GB",
            CaptureBegin(phase="target verify", free=Gib("7.27")),
        ),
        Sample(
            "Capture draft extend CUDA graph begin. step=0, avail mem=7.27 GB",
            CaptureBegin(phase="draft extend", free=Gib("7.27")),
        ),
    ),
)

CAPTURE_END = Matcher(
    name="sglang.capture_end",
    anchor=" graph end. ",
    pattern=(
        rf"Capture {_PHASE} (?:CUDA|{_DEVICE}) graph end\. (?:step=\d+, )?(?:bs=\[[\d, ]*\], "
        rf")?elapsed=[\d.]+ s,"
        rf" mem usage=(?P<used>{NUMBER}) GB, avail mem=(?P<free>{NUMBER}) GB"
    ),
    event=CaptureEnd,
    means="What the capture of one role and phase took, and free memory after it.",
    seen_in="0.5.14 … 0.5.23",
    samples=(
        Sample(
            "Capture target decode CUDA graph end. elapsed=12.47 s, mem usage=1.26 GB, avail "
            "mem=10.35 GB.",
            CaptureEnd(phase="target decode", used=Gib("1.26"), free=Gib("10.35")),
        ),
        Sample(
            "Capture target decode CUDA graph end. bs=[1, 2, 4], elapsed=12.47 s, mem usage=1.26 "
            "GB, avail mem=1.35 GB.",
            CaptureEnd(phase="target decode", used=Gib("1.26"), free=Gib("1.35")),
        ),
        Sample(
            "Capture draft extend CUDA graph end. step=1, elapsed=2.47 s, mem usage=0.26 GB, "
            "avail mem=1.35 GB.",
            CaptureEnd(phase="draft extend", used=Gib("0.26"), free=Gib("1.35")),
        ),
    ),
)

CAPTURE_BEGIN_SINGLE = Matcher(
    name="sglang.capture_begin_single",
    anchor="Capture single-CG draft extend begin.",
    pattern=(
        rf"Capture single-CG (?P<phase>draft extend) begin\. [^\n]{{0,80}}?avail "
        rf"mem=(?P<free>{NUMBER}) GB"
    ),
    event=CaptureBegin,
    means="The capture of all draft extend steps in one graph starts.",
    seen_in="0.5.16 … 0.5.23",
    samples=(
        Sample(
            "Capture single-CG draft extend begin. This can take several minutes. avail mem=7.27 "
            "GB",
            CaptureBegin(phase="draft extend", free=Gib("7.27")),
        ),
    ),
)

CAPTURE_END_SINGLE = Matcher(
    name="sglang.capture_end_single",
    anchor="Capture single-CG draft extend end.",
    pattern=(
        r"Capture single-CG (?P<phase>draft extend) end\. elapsed=[\d.]+ s,"
        rf" mem usage=(?P<used>{NUMBER}) GB, avail mem=(?P<free>{NUMBER}) GB"
    ),
    event=CaptureEnd,
    means="What that capture took.",
    seen_in="0.5.16 … 0.5.23",
    samples=(
        Sample(
            "Capture single-CG draft extend end. elapsed=2.47 s, mem usage=0.26 GB, avail "
            "mem=1.35 GB.",
            CaptureEnd(phase="draft extend", used=Gib("0.26"), free=Gib("1.35")),
        ),
    ),
)

CAPTURE_BEGIN_FROZEN = Matcher(
    name="sglang.capture_begin_frozen",
    anchor="Capture Frozen-KV MTP draft cuda graph begin.",
    pattern=r"Capture Frozen-KV MTP (?P<phase>draft) cuda graph begin\.",
    event=CaptureBegin,
    means="A draft capture starts; without figures.",
    seen_in="0.5.12 … 0.5.23",
    samples=(Sample("Capture Frozen-KV MTP draft cuda graph begin.", CaptureBegin(phase="draft")),),
)

CAPTURE_END_FROZEN = Matcher(
    name="sglang.capture_end_frozen",
    anchor="Capture Frozen-KV MTP draft cuda graph end.",
    pattern=r"Capture Frozen-KV MTP (?P<phase>draft) cuda graph end\.",
    event=CaptureEnd,
    means="A draft capture ended; its memory is not printed.",
    seen_in="0.5.12 … 0.5.23",
    samples=(Sample("Capture Frozen-KV MTP draft cuda graph end.", CaptureEnd(phase="draft")),),
)

MATCHERS = (
    CAPTURE_BEGIN_FROZEN,
    CAPTURE_END_FROZEN,
    CAPTURE_BEGIN_OLD,
    CAPTURE_END_OLD,
    CAPTURE_END_AVAIL_FIRST,
    CAPTURE_END_BARE,
    CAPTURE_BEGIN_PIECEWISE,
    CAPTURE_END_PIECEWISE,
    CAPTURE_BEGIN,
    CAPTURE_END,
    CAPTURE_BEGIN_SINGLE,
    CAPTURE_END_SINGLE,
)
