"""Quantities with provenance: a value is known, with unit, error, origin and evidence, or unknown
with its reason.

Formulas over values read like the accounting they do, and carry their own explanation:

    weights = printed | (free_before - free_after).named("weights[target]")

A result is known only when every operand is; otherwise it is unknown and says why, with the bounds
that the known operands still allow. A bound is never a value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from enum import Enum
from fractions import Fraction
from typing import TypeAlias

import attrs

from capacity_core.errors import UnitError
from capacity_core.units import REQUESTS, Unit, product, rounding_error, same_kind


class Origin(str, Enum):
    """Where a known value comes from."""

    PRINTED = "printed"  # it stands in a line as it is
    DERIVED = "derived"  # a formula over others
    MEASURED = "measured"  # a device tool
    CONFIGURED = "configured"  # the server's arguments
    THEORETICAL = "theoretical"  # a KV layout, from the model's configuration
    CATALOGUE = "catalogue"  # a table of devices
    ASSUMED = "assumed"


# Bytes as GiB have thirty decimals: enough digits that no conversion rounds.
_EXACT = Context(prec=80)

Interval: TypeAlias = "tuple[Decimal | None, Decimal | None]"


@attrs.frozen(kw_only=True)
class Known:
    """An amount (or a text or flag) that the inputs say.

    `error` is the half-width, in `unit`, of what rounding allows. `name` is what an outer formula
    calls it;
    `how` is the formula over its operands' names, or the name of the matcher that read it.
    """

    amount: Decimal | str | bool
    unit: Unit | None = None
    error: Decimal = Decimal(0)
    origin: Origin
    name: str | None = None
    how: str | None = None
    operands: tuple[Value, ...] = ()
    evidence: tuple[str, ...] = ()
    assuming: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        if isinstance(self.amount, Decimal) != (self.unit is not None):
            raise UnitError(
                f"a number has a unit and a text has none: {self.amount!r} in {self.unit}"
            )

    @property
    def number(self) -> Decimal:
        """The amount of a value that has a unit."""
        if not isinstance(self.amount, Decimal):
            raise UnitError(f"{self.amount!r} is no number")
        return self.amount

    @property
    def label(self) -> str:
        """What a formula shows for this value."""
        if self.name is not None:
            return self.name
        if self.operands and self.how:
            return f"({self.how})" if " " in self.how else self.how
        return f"{self.amount} {self.unit}" if self.unit else str(self.amount)

    @property
    def interval(self) -> Interval:
        return self.number - self.error, self.number + self.error

    def named(self, name: str) -> Known:
        return attrs.evolve(self, name=name)

    def to(self, unit: Unit) -> Known:
        """The same quantity in another unit of its kind."""
        if self.unit == unit:
            return self
        if self.unit is None or not same_kind(self.unit, unit):
            raise UnitError(f"cannot express {self.unit} in {unit}")
        return attrs.evolve(
            self,
            amount=_rescaled(self.number, self.unit, unit),
            error=_rescaled(self.error, self.unit, unit),
            unit=unit,
        )

    def assume(self, *why: str) -> Known:
        """The same value, resting on further assumptions."""
        return attrs.evolve(self, assuming=_union((self.assuming, why)))

    def cite(self, *evidence: str) -> Known:
        """The same value, with further lines that it rests on."""
        return attrs.evolve(self, evidence=_union((self.evidence, evidence)))

    def floor(self) -> Known:
        """The whole part, whose error covers every whole number that the rounding allows."""
        low, middle, high = (
            (self.number + step).to_integral_value(ROUND_FLOOR)
            for step in (-self.error, Decimal(0), self.error)
        )
        inner = self.name or self.how
        how = f"floor({inner})" if inner else None
        return attrs.evolve(
            self, amount=middle, error=max(high - middle, middle - low), how=how, name=None
        )

    def __add__(self, other: Value) -> Value:
        return _sum(self, other, "+")

    def __sub__(self, other: Value) -> Value:
        return _sum(self, other, "-")

    def __mul__(self, other: Value | int | Decimal) -> Value:
        return _scaled(self, other, "*")

    def __truediv__(self, other: Value | int | Decimal) -> Value:
        return _scaled(self, other, "/")

    def __or__(self, other: Value) -> Value:
        return self


@attrs.frozen(kw_only=True)
class Unknown:
    """What the inputs do not say: why, and within which bounds if any is known."""

    why: str
    unit: Unit | None = None
    at_most: Decimal | None = None
    at_least: Decimal | None = None
    evidence: tuple[str, ...] = ()
    name: str | None = None

    @property
    def label(self) -> str:
        return self.name or "unknown"

    @property
    def interval(self) -> Interval:
        return self.at_least, self.at_most

    def named(self, name: str) -> Unknown:
        return attrs.evolve(self, name=name)

    def to(self, unit: Unit) -> Unknown:
        if self.unit is None:
            return attrs.evolve(self, unit=unit)
        if not same_kind(self.unit, unit):
            raise UnitError(f"cannot express {self.unit} in {unit}")
        bounds = [
            None if bound is None else _rescaled(bound, self.unit, unit)
            for bound in (self.at_most, self.at_least)
        ]
        return attrs.evolve(self, unit=unit, at_most=bounds[0], at_least=bounds[1])

    def assume(self, *why: str) -> Unknown:
        return self

    def cite(self, *evidence: str) -> Unknown:
        return attrs.evolve(self, evidence=_union((self.evidence, evidence)))

    def floor(self) -> Unknown:
        whole = [
            None if bound is None else bound.to_integral_value(ROUND_FLOOR)
            for bound in (self.at_most, self.at_least)
        ]
        return attrs.evolve(self, at_most=whole[0], at_least=whole[1])

    def __add__(self, other: Value) -> Value:
        return _sum(self, other, "+")

    def __sub__(self, other: Value) -> Value:
        return _sum(self, other, "-")

    def __mul__(self, other: Value | int | Decimal) -> Value:
        return _scaled(self, other, "*")

    def __truediv__(self, other: Value | int | Decimal) -> Value:
        return _scaled(self, other, "/")

    def __or__(self, other: Value) -> Value:
        if isinstance(other, Known):
            return other
        if self.unit is not None and other.unit is not None:
            other = other.to(self.unit)
        low = _tightest(max, self.at_least, other.at_least)
        high = _tightest(min, self.at_most, other.at_most)
        return Unknown(
            why=_whys((self, other)),
            unit=self.unit or other.unit,
            at_most=high,
            at_least=low,
            evidence=_union((self.evidence, other.evidence)),
            name=self.name or other.name,
        )


Value: TypeAlias = Known | Unknown


def known(
    amount: Decimal | int | Fraction,
    unit: Unit,
    origin: Origin,
    *,
    how: str | None = None,
    name: str | None = None,
    evidence: tuple[str, ...] = (),
) -> Known:
    """A number as it was given; printed or measured, it has the rounding error of its form."""
    number = _decimal(amount)
    shown = origin in (Origin.PRINTED, Origin.MEASURED)
    error = rounding_error(number, unit) if shown else Decimal(0)
    return Known(
        amount=number, unit=unit, error=error, origin=origin, how=how, name=name, evidence=evidence
    )


def _decimal(amount: Decimal | int | Fraction) -> Decimal:
    if isinstance(amount, Fraction):
        return Decimal(amount.numerator) / Decimal(amount.denominator)
    return Decimal(amount)


def text(
    amount: str | bool, origin: Origin, *, how: str | None = None, evidence: tuple[str, ...] = ()
) -> Known:
    """A text or a flag that an input says."""
    return Known(amount=amount, origin=origin, how=how, evidence=evidence)


def total(values: Iterable[Value], name: str | None = None) -> Value:
    """The sum of all; counts of which some are unknown are at least the sum of the known ones."""
    terms = tuple(values)
    if not terms:
        raise ValueError("the total of nothing has no unit")
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    if isinstance(result, Unknown) and result.unit is not None and result.unit.counts:
        floor = sum(
            (low for low, _ in (term.interval for term in terms) if low is not None), Decimal(0)
        )
        known_terms = [term for term in terms if term.interval[0] is not None]
        result = attrs.evolve(result, at_least=floor if known_terms else None)
    elif len(terms) > 1 and isinstance(result, Known):
        result = attrs.evolve(result, how=" + ".join(term.label for term in terms), operands=terms)
    return result.named(name) if name else result


def least(values: Iterable[Value], name: str | None = None) -> Value:
    """The smallest of all; when some are unknown it is at most the smallest of the known ones."""
    terms = tuple(values)
    if not terms:
        raise ValueError("the least of nothing has no unit")
    unit = _common_unit(terms)
    terms = tuple(term.to(unit) if unit else term for term in terms)
    certain = [term for term in terms if isinstance(term, Known)]
    unsure = [
        term for term in terms if isinstance(term, Unknown) and not _never_below(term, certain)
    ]
    low = min((term.number for term in certain), default=None)
    if unsure:
        highs = [high for _, high in (term.interval for term in terms) if high is not None]
        lows = [low for low, _ in (term.interval for term in terms)]
        result: Value = Unknown(
            why=_whys(unsure),
            unit=unit,
            at_most=min(highs, default=None),
            at_least=None if None in lows else min(low for low in lows if low is not None),
            evidence=_union(term.evidence for term in terms),
        )
    elif len(certain) == 1:
        result = certain[0]
    else:
        smallest = next(term for term in certain if term.number == low)
        labels = tuple(dict.fromkeys(term.label for term in certain))
        result = Known(
            amount=smallest.number,
            unit=unit,
            error=max(term.error for term in certain),
            origin=_origin(certain),
            how=f"least of {len(certain)}: {labels[0]}"
            if len(labels) == 1
            else f"least({', '.join(labels)})",
            operands=terms,
            # The line that decides is cited; the others are in the operands.
            evidence=smallest.evidence,
            assuming=_union(term.assuming for term in certain),
        )
    return result.named(name) if name else result


def _never_below(term: Unknown, certain: Sequence[Known]) -> bool:
    """Whether a known term is at most as large whatever the unknown one is."""
    return term.at_least is not None and any(k.number + k.error <= term.at_least for k in certain)


def agree(a: Value, b: Value) -> bool | None:
    """Whether two ways to one quantity differ by no more than their errors; None if unknown."""
    if isinstance(a, Unknown) or isinstance(b, Unknown):
        return None
    if a.unit is not None and b.unit is not None:
        b = b.to(a.unit)
        return abs(a.number - b.number) <= a.error + b.error
    return a.amount == b.amount


def _sum(a: Value, b: Value, sign: str) -> Value:
    unit = _common_unit((a, b))
    if unit is None:
        if isinstance(a, Known) or isinstance(b, Known):
            raise UnitError(f"cannot compute {a.unit} {sign} {b.unit}")
        return Unknown(why=_whys((a, b)), evidence=_union((a.evidence, b.evidence)))
    a, b = a.to(unit), b.to(unit)
    how = f"{_flat(a)} {sign} {_flat(b) if sign == '+' else b.label}"
    if isinstance(a, Known) and isinstance(b, Known):
        combine = operator.add if sign == "+" else operator.sub
        pair = (a, b)
        return _derived(combine(a.number, b.number), unit, a.error + b.error, how, pair)
    (a_low, a_high), (b_low, b_high) = a.interval, b.interval
    if sign == "-":
        b_low, b_high = (None if x is None else -x for x in (b_high, b_low))
    return _unknown((a, b), unit, _plus(a_low, b_low), _plus(a_high, b_high))


def _scaled(a: Value, other: Value | int | Decimal, sign: str) -> Value:
    factor = other if isinstance(other, Known | Unknown) else _plain(other)
    if a.unit is None or factor.unit is None:
        unitless = next(value for value in (a, factor) if value.unit is None)
        if isinstance(unitless, Known):
            raise UnitError(f"cannot compute {a.unit} {sign} {factor.unit}")
        return Unknown(why=_whys((a, factor)), evidence=_union((a.evidence, factor.evidence)))
    unit, scale = product(a.unit, factor.unit, 1 if sign == "*" else -1)
    operands = (a, factor)
    how = f"{a.label} {sign} {factor.label}"
    if isinstance(a, Known) and isinstance(factor, Known):
        if sign == "*":
            amount = a.number * factor.number * scale
            error = (
                abs(a.number) * factor.error + abs(factor.number) * a.error + a.error * factor.error
            )
            return _derived(amount, unit, error * abs(scale), how, (a, factor))
        spread = abs(factor.number) - factor.error
        if factor.number == 0 or spread <= 0:
            return _unknown(operands, unit, None, None, f"{factor.label} is zero within its error")
        amount = a.number / factor.number
        error = (a.error + abs(amount) * factor.error) / spread
        return _derived(amount * scale, unit, error * abs(scale), how, (a, factor))
    low, high = (
        _quotient_bounds(a, factor, scale) if sign == "/" else _product_bounds(a, factor, scale)
    )
    return _unknown(operands, unit, low, high)


def _product_bounds(a: Value, b: Value, scale: Decimal) -> Interval:
    """Bounds of a product of quantities that are not negative."""
    (a_low, a_high), (b_low, b_high) = a.interval, b.interval
    if any(low is not None and low < 0 for low in (a_low, b_low)):
        return None, None
    low = None if a_low is None or b_low is None else a_low * b_low * scale
    high = None if a_high is None or b_high is None else a_high * b_high * scale
    return low, high


def _quotient_bounds(a: Value, b: Value, scale: Decimal) -> Interval:
    """Bounds of a quotient of a dividend that is not negative and a divisor above zero."""
    (a_low, a_high), (b_low, b_high) = a.interval, b.interval
    if b_low is None or b_low <= 0 or (a_low is not None and a_low < 0):
        return None, None
    high = None if a_high is None else a_high / b_low * scale
    low = None if a_low is None or b_high is None else a_low / b_high * scale
    return low, high


def _plain(number: int | Decimal) -> Known:
    from capacity_core.units import RATIO

    return Known(amount=Decimal(number), unit=RATIO, origin=Origin.DERIVED, name=str(number))


def _rescaled(amount: Decimal, unit: Unit, into: Unit) -> Decimal:
    return _EXACT.divide(_EXACT.multiply(amount, Decimal(unit.scale)), Decimal(into.scale))


def _flat(value: Value) -> str:
    """A sum inside a sum needs no parentheses."""
    if isinstance(value, Known) and value.name is None and value.operands and value.how:
        return value.how
    return value.label


def _derived(
    amount: Decimal, unit: Unit, error: Decimal, how: str, operands: tuple[Known, Known]
) -> Known:
    return Known(
        amount=amount,
        unit=unit,
        error=error,
        origin=_origin(operands),
        how=how,
        operands=operands,
        evidence=_union(operand.evidence for operand in operands),
        assuming=_union(operand.assuming for operand in operands),
    )


def _origin(operands: Iterable[Known]) -> Origin:
    origins = {operand.origin for operand in operands if operand.unit is not None}
    return Origin.THEORETICAL if origins == {Origin.THEORETICAL} else Origin.DERIVED


def _unknown(
    operands: tuple[Value, ...],
    unit: Unit,
    low: Decimal | None,
    high: Decimal | None,
    why: str = "",
) -> Unknown:
    whole = unit.counts or unit is REQUESTS
    return Unknown(
        why=why or _whys(operands),
        unit=unit,
        at_least=max(low, Decimal(0)) if low is not None and whole else low,
        at_most=high,
        evidence=_union(operand.evidence for operand in operands),
    )


def _whys(operands: Iterable[Value]) -> str:
    whys = (operand.why for operand in operands if isinstance(operand, Unknown))
    parts = dict.fromkeys(part for why in whys for part in why.split("; "))
    return "; ".join(parts)


def _union(groups: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for group in groups for item in group))


def _common_unit(operands: Iterable[Value]) -> Unit | None:
    return next((operand.unit for operand in operands if operand.unit is not None), None)


def _plus(a: Decimal | None, b: Decimal | None) -> Decimal | None:
    return None if a is None or b is None else a + b


def _tightest(
    pick: Callable[[Decimal, Decimal], Decimal], a: Decimal | None, b: Decimal | None
) -> Decimal | None:
    if a is None or b is None:
        return a if b is None else b
    return pick(a, b)
