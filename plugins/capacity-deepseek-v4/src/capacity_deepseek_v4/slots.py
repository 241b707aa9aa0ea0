"""What one stored slot takes, and what a page of slots takes after padding.

A slot is one stored latent (512 elements) of one layer. It is not a model token: a layer of ratio
r stores one slot for r tokens, and some layers store none and read another's. A page holds the
slots of 256 model tokens. From slots to the model's total: references/kv-layouts.md#deepseek-v4.
"""

from __future__ import annotations

import attrs

PAGE_TOKENS = 256
"""Model tokens of a page, but 128 on NPUs (SGLang 0.5.23 srt/arg_groups/model_overrides)."""


@attrs.frozen(kw_only=True)
class SlotLayout:
    """One way to store a latent: bytes of payload and of scales, and what a page is padded to.

    A page holds the payloads of its slots, then their scales, and is padded to a multiple of
    `page_align` bytes. Source: SGLang 0.5.23 sglang/kernels/ops/attention/dsv4/kv_layout.py.
    """

    name: str
    payload_bytes: int
    scale_bytes: int
    page_align: int
    used: str

    @property
    def slot_bytes(self) -> int:
        """Payload and scales of one slot, without padding."""
        return self.payload_bytes + self.scale_bytes


V4 = SlotLayout(
    name="v4",
    payload_bytes=576,  # 448 fp8 + 64 bf16
    scale_bytes=8,  # 7 of one byte each for 64 elements, 1 of padding
    page_align=576,
    used="SGLang's default layout, on every device and also for V4.1",
)
V41_FP8 = SlotLayout(
    name="v41",
    payload_bytes=512,  # 512 fp8, the rotary part too
    scale_bytes=16,  # one byte for 32 elements
    page_align=512,
    used="only on SM100-class devices (or gfx950) and where it was chosen; no log line names it",
)
V41_FP4 = SlotLayout(
    name="v41_fp4",
    payload_bytes=256,  # 512 fp4
    scale_bytes=32,  # one byte for 16 elements
    page_align=256,
    used="only beside v41 on SM100-class devices, by default for compressed caches of ratio 1 "
    "and 2, never for the sliding window; no log line names it",
)

# Scales stand behind each payload: a page is whole slots, and nothing is padded (0.5.23).
V41_FP8_INTERLEAVED = attrs.evolve(V41_FP8, name="v41_new", page_align=528)
V41_FP4_INTERLEAVED = attrs.evolve(V41_FP4, name="v41_fp4_new", page_align=288)


@attrs.frozen(kw_only=True)
class Choice:
    """Which slots a server stores: in the sliding window, in compressed caches of ratio 4 and 128,
    and in those of ratio 1 and 2."""

    window: SlotLayout
    high: SlotLayout
    low: SlotLayout

    def of(self, ratio: int) -> SlotLayout:
        """The slot of a compressed cache."""
        return self.low if ratio in (1, 2) else self.high


CHOICES = {
    "v4": Choice(window=V4, high=V4, low=V4),
    "v41": Choice(window=V41_FP8, high=V41_FP8, low=V41_FP4),
    "v41_fp8": Choice(window=V41_FP8, high=V41_FP8, low=V41_FP8),
    "v41_fp4": Choice(window=V41_FP8, high=V41_FP4, low=V41_FP4),
    "v41_new": Choice(
        window=V41_FP8_INTERLEAVED, high=V41_FP8_INTERLEAVED, low=V41_FP4_INTERLEAVED
    ),
}
"""By the name that `--layout` takes. `v41` stores what SGLang stores by itself once it is asked for
(`SGLANG_DSV4_KV_LAYOUT`), the two after it what `SGLANG_DSV4_COMPRESSED_KV_LAYOUT` forces."""

MXFP4 = "+mxfp4"
"""What a name ends in where vLLM's index keys are mxfp4 (`indexer_kv_dtype`), by default fp8."""


def slots_per_page(ratio: int, page_tokens: int = PAGE_TOKENS) -> int:
    """Slots that a layer of compression ratio 1, 2, 4 or 128 stores for one page.

    Raises ValueError for a ratio that does not divide the page.
    """
    if ratio < 1 or page_tokens % ratio:
        raise ValueError(f"ratio {ratio} does not divide a page of {page_tokens} tokens")
    return page_tokens // ratio


def page_bytes(layout: SlotLayout, slots: int) -> int:
    """Bytes of one layer's page of `slots` slots, padding included.

    Raises ValueError when `slots` is less than 1.
    """
    if slots < 1:
        raise ValueError(f"a page has at least one slot, not {slots}")
    return padded(slots * layout.slot_bytes, layout.page_align)


def padded(size: int, align: int) -> int:
    """The next multiple of `align` bytes."""
    return -(-size // align) * align
