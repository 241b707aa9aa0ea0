"""State pools of Mamba and linear-attention layers: how many states, and what they take."""

from __future__ import annotations

import attrs

from capacity_core.api import NUMBER, Matcher, Sample
from capacity_core.units import Gib, Slots


@attrs.frozen(kw_only=True)
class StateSlots:
    """How many Mamba / linear-attention states a rank holds."""

    slots: Slots


@attrs.frozen(kw_only=True)
class StatePool:
    """The state pool's parts on one rank; the intermediate ones exist with speculative decoding."""

    conv: Gib
    ssm: Gib
    intermediate_ssm: Gib | None = None
    intermediate_conv: Gib | None = None


@attrs.frozen(kw_only=True)
class StateRings:
    """Ring buffers of a linear-attention state pool on one rank; three decimals."""

    d: Gib
    k: Gib
    g: Gib
    rawv: Gib | None = None
    rawk: Gib | None = None
    beta: Gib | None = None


@attrs.frozen(kw_only=True)
class StateCheckpoints:
    """A further pool of eight-bit states, allocated out of the headroom."""

    slots: Slots
    size: Gib


STATE_SLOTS = Matcher(
    name="sglang.state_slots",
    anchor="Mamba Cache is allocated. max_mamba_cache_size:",
    pattern=r"Mamba Cache is allocated\. max_mamba_cache_size: (?P<slots>\d+)",
    event=StateSlots,
    means="How many Mamba / linear-attention states fit; a running request takes one or more.",
    seen_in="0.5.4 … 0.5.23",
    samples=(
        Sample("Mamba Cache is allocated. max_mamba_cache_size: 360,", StateSlots(slots=360)),
    ),
)

STATE_POOL = Matcher(
    name="sglang.state_pool",
    anchor="conv_state size:",
    pattern=(
        rf"conv_state size: (?P<conv>{NUMBER}) ?GB, ssm_state size: (?P<ssm>{NUMBER}) ?GB"
        rf"(?: intermediate_ssm_state_cache size: (?P<intermediate_ssm>{NUMBER}) ?GB)?"
        rf"(?: intermediate_conv_window_cache size: (?P<intermediate_conv>{NUMBER}) ?GB)?"
    ),
    event=StatePool,
    means="The Mamba / linear-attention state pool of this rank, part by part.",
    seen_in="0.5.2 … 0.5.23",
    samples=(
        Sample(
            "conv_state size: 0.99GB, ssm_state size: 50.77GB ",
            StatePool(conv=Gib("0.99"), ssm=Gib("50.77")),
        ),
        Sample(
            "conv_state size: 0.99GB, ssm_state size: 50.77GB intermediate_ssm_state_cache size: "
            "1.00GB "
            "intermediate_conv_window_cache size: 0.02GB ",
            StatePool(
                conv=Gib("0.99"),
                ssm=Gib("50.77"),
                intermediate_ssm=Gib("1.00"),
                intermediate_conv=Gib("0.02"),
            ),
        ),
    ),
)

STATE_RINGS = Matcher(
    name="sglang.state_rings",
    anchor="ReplaySSM ring buffers allocated",
    pattern=(
        rf"ReplaySSM ring buffers allocated \([^)\n]{{0,80}}\): d=(?P<d>{NUMBER})GB, "
        rf"k=(?P<k>{NUMBER})GB, g=(?P<g>{NUMBER})GB"
        rf"(?: rawv=(?P<rawv>{NUMBER})GB, rawk=(?P<rawk>{NUMBER})GB)?"
        rf"(?:, beta=(?P<beta>{NUMBER})GB)?"
    ),
    event=StateRings,
    means="Ring buffers that belong to the state pool of this rank.",
    seen_in="0.5.15 … 0.5.23",
    samples=(
        Sample(
            "GDN ReplaySSM ring buffers allocated (record_len=8, fold=True): d=1.250GB, k=0.750GB, "
            "g=0.010GB ",
            StateRings(d=Gib("1.250"), k=Gib("0.750"), g=Gib("0.010")),
        ),
        Sample(
            "GDN ReplaySSM ring buffers allocated (L=4): d=0.000GB, k=0.000GB, g=0.010GB "
            "rawv=0.100GB, rawk=0.200GB, beta=0.003GB ",
            StateRings(
                d=Gib("0.000"),
                k=Gib("0.000"),
                g=Gib("0.010"),
                rawv=Gib("0.100"),
                rawk=Gib("0.200"),
                beta=Gib("0.003"),
            ),
        ),
    ),
)

STATE_CHECKPOINTS = Matcher(
    name="sglang.state_checkpoints",
    anchor="int8 mamba checkpoint pool: ",
    pattern=rf"int8 mamba checkpoint pool: (?P<slots>\d+) slots, (?P<size>{NUMBER})GB \(",
    event=StateCheckpoints,
    means="A pool of eight-bit states beside the active one; it comes out of the headroom.",
    seen_in="0.5.15 … 0.5.23",
    samples=(
        Sample(
            "int8 mamba checkpoint pool: 64 slots, 2.25GB (qdata 2.00 + scale 0.20 + conv 0.05); "
            "active mamba pool 32 slots",
            StateCheckpoints(slots=64, size=Gib("2.25")),
        ),
    ),
)

MATCHERS = (
    STATE_CHECKPOINTS,
    STATE_SLOTS,
    STATE_POOL,
    STATE_RINGS,
)
