"""The units of every figure, and the types of printed quantities. GB, GiB and MiB are told apart
here alone.

A printed quantity is a plain number whose *type* says its unit: `Gib("61.50")` is a `Decimal`, a
`Tokens` field holds an `int`. Decimals keep the digits as printed, from which their rounding error
follows.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import attrs

from capacity_core.errors import UnitError


@attrs.frozen
class Unit:
    """What a number counts.

    `powers` are the exponents over (memory, tokens, requests, slots, seconds, vendor label);
    `scale` is how many of the dimension's base unit one of this unit is (bytes for memory).
    """

    symbol: str
    powers: tuple[int, int, int, int, int, int]
    scale: int = 1

    def __str__(self) -> str:
        return self.symbol

    @property
    def counts(self) -> bool:
        """Whether amounts of this unit are whole and never negative (tokens, requests, slots)."""
        return self in (TOKENS, REQUESTS, SLOTS, COUNT)


BYTES = Unit("B", (1, 0, 0, 0, 0, 0))
KIB = Unit("KiB", (1, 0, 0, 0, 0, 0), 1 << 10)
MIB = Unit("MiB", (1, 0, 0, 0, 0, 0), 1 << 20)
GIB = Unit("GiB", (1, 0, 0, 0, 0, 0), 1 << 30)
TOKENS = Unit("tokens", (0, 1, 0, 0, 0, 0))
REQUESTS = Unit("requests", (0, 0, 1, 0, 0, 0))
SLOTS = Unit("slots", (0, 0, 0, 1, 0, 0))
SECONDS = Unit("s", (0, 0, 0, 0, 1, 0))
RATIO = Unit("ratio", (0, 0, 0, 0, 0, 0))
COUNT = Unit("count", (0, 0, 0, 0, 0, 0))
"""Things that are counted and enter no formula: ranks, nodes, layers, workers."""

BYTES_PER_TOKEN = Unit("B/token", (1, -1, 0, 0, 0, 0))
BYTES_PER_REQUEST = Unit("B/request", (1, 0, -1, 0, 0, 0))
BYTES_PER_SLOT = Unit("B/slot", (1, 0, 0, -1, 0, 0))
TOKENS_PER_REQUEST = Unit("tokens/request", (0, 1, -1, 0, 0, 0))
TOKENS_PER_SECOND = Unit("tokens/s", (0, 1, 0, 0, -1, 0))
GB = Unit("GB (10^9 B)", (1, 0, 0, 0, 0, 0), 10**9)
"""Decimal gigabytes, in which engines print host memory."""

VENDOR_GB = Unit("GB", (0, 0, 0, 0, 0, 1))
"""A capacity as a vendor states it: a label on a product. It converts to nothing."""

_BY_POWERS: dict[tuple[int, ...], Unit] = {
    unit.powers: unit
    for unit in (
        BYTES,
        TOKENS,
        REQUESTS,
        SLOTS,
        SECONDS,
        RATIO,
        BYTES_PER_TOKEN,
        BYTES_PER_REQUEST,
        BYTES_PER_SLOT,
        TOKENS_PER_REQUEST,
        TOKENS_PER_SECOND,
    )
}


def same_kind(a: Unit, b: Unit) -> bool:
    """Whether amounts of `a` and `b` can be added after conversion."""
    return a == b or (a.powers == b.powers and any(a.powers))


def product(a: Unit, b: Unit, sign: int = 1) -> tuple[Unit, Decimal]:
    """The unit of `a·b` (`a/b` with sign -1) and the factor that the product of the amounts takes.

    A pure ratio leaves the other unit as it is (GiB · ratio stays GiB).
    """
    if b in (RATIO, COUNT):
        return a, Decimal(1)
    if a in (RATIO, COUNT) and sign == 1:
        return b, Decimal(1)
    powers = tuple(x + sign * y for x, y in zip(a.powers, b.powers, strict=True))
    unit = _BY_POWERS.get(powers)
    if unit is None:
        raise UnitError(f"no unit for {a} {'·' if sign == 1 else '/'} {b}")
    return unit, Decimal(a.scale) * Decimal(b.scale) ** sign


class Gib(Decimal):
    """A printed amount of 2^30 bytes, whatever the log calls it ("GB" or "GiB")."""


class Mib(Decimal):
    """A printed amount of 2^20 bytes."""


class Kib(Decimal):
    """A printed amount of 2^10 bytes."""


class Gb(Decimal):
    """A printed amount of 10^9 bytes: host memory."""


class Exact(Decimal):
    """A printed number that no rounding touched, such as the repr of an argument."""


Bytes = Annotated[int, BYTES]
BytesPerToken = Annotated[Decimal, BYTES_PER_TOKEN]
Tokens = Annotated[int, TOKENS]
Requests = Annotated[int, REQUESTS]
Slots = Annotated[int, SLOTS]
Seconds = Annotated[Decimal, SECONDS]
Ratio = Annotated[Decimal, RATIO]
ExactRatio = Annotated[Exact, RATIO]
TokensPerSecond = Annotated[Decimal, TOKENS_PER_SECOND]
Count = Annotated[int, COUNT]


def rounding_error(amount: Decimal, unit: Unit) -> Decimal:
    """Half-width of what rounding allows for an amount as printed.

    Half of the last shown digit. Engines strip trailing zeros of GiB figures (`139.8` is 139.80),
    so these count as having at least two decimals. Counts, bytes and `Exact` numbers have none.
    """
    if unit.counts or unit is BYTES or isinstance(amount, Exact):
        return Decimal(0)
    exponent = amount.as_tuple().exponent
    decimals = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    if unit is GIB:
        decimals = max(2, decimals)
    return Decimal(5).scaleb(-decimals - 1)
