"""What holds for every formula over values. The truth is computed with exact fractions."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from capacity_core.errors import UnitError
from capacity_core.units import (
    BYTES,
    BYTES_PER_TOKEN,
    COUNT,
    GIB,
    MIB,
    RATIO,
    REQUESTS,
    SECONDS,
    TOKENS,
    TOKENS_PER_REQUEST,
    VENDOR_GB,
    Unit,
)
from capacity_core.values import Known, Origin, Unknown, Value, agree, known, least, text, total

# A quotient that does not end is kept to 28 digits: the only slack that any check below has.
SLACK = Fraction(1, 10**20)

UNITS = (BYTES, MIB, GIB, TOKENS, REQUESTS, COUNT, RATIO, SECONDS, BYTES_PER_TOKEN, VENDOR_GB)
MEMORY = (BYTES, MIB, GIB)

truths = st.fractions(0, 2000, max_denominator=10**6)


def printed(truth: Fraction, decimals: int = 2, **more: object) -> Known:
    """What an engine prints of a true amount of GiB: rounded, cited, named."""
    exact = Decimal(truth.numerator) / Decimal(truth.denominator)
    shown = exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_EVEN)
    value = known(shown, GIB, Origin.PRINTED, **more)  # type: ignore[arg-type]  # keywords of known
    # Rounded from 28 digits: a true half may go either way, which the half-width allows.
    assert holds(value, truth)
    return value


def holds(value: Value, truth: Fraction | int) -> bool:
    """Whether a value's interval contains the truth."""
    low, high = value.interval
    slack = SLACK * max(Fraction(1), abs(Fraction(truth)))
    return (low is None or Fraction(low) <= truth + slack) and (
        high is None or truth - slack <= Fraction(high)
    )


def exact(number: int | Decimal, unit: Unit, name: str | None = None) -> Known:
    return known(Decimal(number), unit, Origin.CONFIGURED, name=name)


@st.composite
def readings(draw: st.DrawFn) -> tuple[Value, Fraction]:
    """A quantity in GiB of which the log says the rounded amount, bounds, or nothing; and the
    truth."""
    truth = draw(truths)
    kind = draw(st.sampled_from(["printed", "printed", "bounded", "unknown"]))
    if kind == "printed":
        return printed(truth, draw(st.integers(2, 4)), evidence=("log0:1",)), truth
    if kind == "unknown":
        return Unknown(why="not said", unit=draw(st.sampled_from([GIB, None]))), truth
    low = draw(st.none() | st.integers(0, math.floor(truth)))
    high = draw(st.none() | st.integers(math.ceil(truth), 4000))
    bounds = [None if bound is None else Decimal(bound) for bound in (low, high)]
    return Unknown(why="only bounds", unit=GIB, at_least=bounds[0], at_most=bounds[1]), truth


# --- intervals --------------------------------------------------------


@given(a=truths, b=truths, c=truths, decimals=st.integers(2, 5))
def test_sums_and_differences_hold_the_truth(
    a: Fraction, b: Fraction, c: Fraction, decimals: int
) -> None:
    x, y, z = (printed(truth, decimals) for truth in (a, b, c))
    assert holds(x + y, a + b)
    assert holds(x - y, a - b)
    assert holds(x - y + z, a - b + c)
    assert holds(x - (y + z), a - b - c)
    assert holds(total([x, y, z]), a + b + c)
    assert holds(least([x, y, z]), min(a, b, c))


@given(a=truths, ratio=st.fractions(0, 3, max_denominator=1000), times=st.integers(0, 64))
def test_products_hold_the_truth(a: Fraction, ratio: Fraction, times: int) -> None:
    factor = Known(
        amount=round(Decimal(ratio.numerator) / ratio.denominator, 2),
        unit=RATIO,
        error=Decimal("0.005"),
        origin=Origin.PRINTED,
    )
    assert holds(printed(a) * times, a * times)
    assert holds(printed(a) * factor, a * ratio)
    assert holds(factor * printed(a), a * ratio)


@given(a=truths, b=st.fractions(Fraction(1, 10), 500, max_denominator=1000), n=st.integers(1, 64))
def test_quotients_hold_the_truth(a: Fraction, b: Fraction, n: int) -> None:
    assert holds(printed(a) / n, a / n)
    assert holds(printed(a) / printed(b), a / b)


@given(a=truths, tiny=st.fractions(0, Fraction(5, 1000)))
def test_a_divisor_that_may_be_zero_gives_no_value(a: Fraction, tiny: Fraction) -> None:
    quotient = printed(a) / printed(tiny).named("tiny")
    assume(printed(tiny).number <= Decimal("0.005"))
    assert isinstance(quotient, Unknown)
    assert "tiny is zero" in quotient.why


@given(pairs=st.lists(readings(), min_size=1, max_size=4), n=st.integers(1, 16))
def test_what_rests_on_unknowns_keeps_true_bounds(
    pairs: list[tuple[Value, Fraction]], n: int
) -> None:
    values, facts = zip(*pairs, strict=True)
    a, b = (pairs[0], pairs[-1])
    for result, truth in (
        (a[0] + b[0], a[1] + b[1]),
        (a[0] - b[0], a[1] - b[1]),
        (a[0] * n, a[1] * n),
        (a[0] / n, a[1] / n),
        (total(values), sum(facts, Fraction(0))),
        (least(values), min(facts)),
    ):
        assert holds(result, truth)
        assert isinstance(result, Known) or any(isinstance(value, Unknown) for value in values)


@given(a=readings(), b=readings())
def test_bounds_of_products_and_quotients_are_true(
    a: tuple[Value, Fraction], b: tuple[Value, Fraction]
) -> None:
    assume(b[1] > 0 and a[0].unit and b[0].unit)
    assert holds(a[0] / b[0], a[1] / b[1])


@given(pool=st.integers(0, 10**12), size=st.integers(1, 10**6), error=st.integers(0, 10**9))
def test_the_error_of_a_floor_covers_every_allowed_whole_number(
    pool: int, size: int, error: int
) -> None:
    memory = Known(amount=Decimal(pool), unit=BYTES, error=Decimal(error), origin=Origin.PRINTED)
    per_token = exact(size, BYTES_PER_TOKEN)
    tokens = (memory / per_token).floor()
    assert isinstance(tokens, Known)
    assert tokens.unit is TOKENS
    assert tokens.number == tokens.number.to_integral_value()
    assert tokens.number == pool // size
    for allowed in (pool - error, pool, pool + error):
        assert holds(tokens, allowed // size)


@given(
    amount=st.decimals(-1000, 1000, places=3),
    error=st.decimals(0, 5, places=3),
    part=st.fractions(-1, 1, max_denominator=50),
)
def test_a_floor_covers_whatever_lies_within_the_error(
    amount: Decimal, error: Decimal, part: Fraction
) -> None:
    value = Known(amount=amount, unit=RATIO, error=error, origin=Origin.MEASURED)
    truth = Fraction(amount) + part * Fraction(error)
    assert value.floor().number == math.floor(amount)
    assert holds(value.floor(), math.floor(truth))


@given(bound=st.decimals(0, 1000, places=2), truth=st.fractions(0, 1000))
def test_a_floor_of_bounds_still_bounds(bound: Decimal, truth: Fraction) -> None:
    above, below = (
        Unknown(why="", unit=TOKENS, at_most=bound).floor(),
        Unknown(why="", unit=TOKENS, at_least=bound).floor(),
    )
    assert truth > Fraction(bound) or holds(above, math.floor(truth))
    assert truth < Fraction(bound) or holds(below, math.floor(truth))


@given(a=truths, b=truths)
def test_a_difference_undone_is_the_amount_with_all_errors(a: Fraction, b: Fraction) -> None:
    x, y = printed(a), printed(b)
    again = x - y + y
    assert isinstance(again, Known)
    assert again.number == x.number
    assert again.error == x.error + y.error + y.error  # shared readings are not cancelled
    assert agree(again, x)


@given(a=truths, b=truths)
def test_two_readings_of_one_truth_agree(a: Fraction, b: Fraction) -> None:
    assert agree(printed(a, 2), printed(a, 4))
    assert agree(printed(a, 4).to(MIB), printed(a, 2))
    assert agree(printed(a), printed(b)) or a != b
    far = printed(a) + exact(1, GIB)
    assert agree(printed(a), far) is False
    assert agree(printed(a), Unknown(why="not said", unit=GIB)) is None


# --- unknowns ---------------------------------------------------------

OPERATIONS: dict[str, Callable[[Value, Value], Value]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "quotient": lambda a, b: a / b,
    "total": lambda a, b: total([a, b]),
    "least": lambda a, b: least([a, b]),
}
each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


@each_operation
@given(amount=st.integers(1, 99), first=st.booleans(), unit=st.sampled_from([GIB, None]))
def test_an_unknown_operand_makes_the_result_unknown(
    operation: Callable[[Value, Value], Value], amount: int, first: bool, unit: Unit | None
) -> None:
    """Also one whose unit nobody could tell."""
    said = exact(amount, GIB).cite("log0:1")
    unsaid = Unknown(why="the log does not say", unit=unit, evidence=("log0:2",))
    result = operation(unsaid, said) if first else operation(said, unsaid)
    assert isinstance(result, Unknown)
    assert result.why == "the log does not say"
    assert set(result.evidence) == {"log0:1", "log0:2"}


@each_operation
def test_whys_are_collected_once(operation: Callable[[Value, Value], Value]) -> None:
    a, b = Unknown(why="a is cut; no smi", unit=GIB), Unknown(why="no smi; b is cut", unit=GIB)
    assert operation(a, b) == Unknown(why="a is cut; no smi; b is cut", unit=operation(a, b).unit)


@pytest.mark.parametrize("first", [True, False])
def test_a_product_with_an_unknown_of_no_unit_is_unknown(first: bool) -> None:
    said, unsaid = exact(5, GIB), Unknown(why="no layout")
    product = unsaid * said if first else said * unsaid
    assert isinstance(product, Unknown)
    assert product.why == "no layout"


@given(bound=st.integers(0, 99))
def test_a_bound_is_never_a_value(bound: int) -> None:
    """Not even bounds that meet."""
    met = Unknown(
        why="only bounds", unit=GIB, at_least=Decimal(bound), at_most=Decimal(bound), name="pool"
    )
    one = exact(1, GIB)
    for result in (met + one, met - one, met * 2, met / 2, met.to(MIB), met.floor(), met | met):
        assert isinstance(result, Unknown)
    more = exact(bound + 1, GIB)
    for many in (total([met, one]), least([met, more]), met.named("x"), met.cite("log0:1")):
        assert isinstance(many, Unknown)


@given(known=st.integers(0, 99), floor=st.integers(0, 99))
def test_an_unknown_that_cannot_be_less_decides_no_least(known: int, floor: int) -> None:
    unsure = Unknown(why="cut", unit=TOKENS, at_least=Decimal(floor))
    result = least([unsure, exact(known, TOKENS)])
    assert isinstance(result, Known) == (known <= floor)
    assert result.interval[1] == known


@given(a=truths, b=truths)
def test_the_first_known_wins(a: Fraction, b: Fraction) -> None:
    x, y = printed(a), printed(b)
    unsaid = Unknown(why="not said", unit=GIB, at_most=Decimal(1))
    assert (x | y) is x
    assert (x | unsaid) is x
    assert (unsaid | x) is x
    assert (unsaid | unsaid | y | x) is y


@given(limits=st.lists(st.none() | st.integers(0, 99), min_size=2, max_size=2))
def test_alternatives_that_are_all_unknown_keep_the_tightest_bounds(
    limits: list[int | None],
) -> None:
    a, b = (
        Unknown(
            why=f"way {number}",
            unit=GIB,
            at_most=None if limit is None else Decimal(limit) + 100,
            at_least=None if limit is None else Decimal(limit),
        )
        for number, limit in enumerate(limits)
    )
    both = a | b
    said = [limit for limit in limits if limit is not None]
    assert isinstance(both, Unknown)
    assert both.why == "way 0; way 1"
    assert both.at_most == (min(said) + 100 if said else None)
    assert both.at_least == (max(said) if said else None)


@given(limit=st.integers(1, 99), factor=st.sampled_from([Decimal("0.5"), Decimal(2)]))
def test_bounds_of_alternatives_in_other_units_are_converted(limit: int, factor: Decimal) -> None:
    gib = Unknown(why="a", unit=GIB, at_most=Decimal(limit), at_least=Decimal(limit) / 4)
    mib = Unknown(why="b", unit=MIB, at_most=limit * factor * 1024, at_least=limit * factor * 256)
    for both in (gib | mib, mib | gib):
        at_most, at_least = limit * min(Decimal(1), factor), limit * max(Decimal(1), factor) / 4
        assert isinstance(both, Unknown)
        assert both.to(GIB).interval == (at_least, at_most)


# --- totals and leasts ------------------------------------------------


@given(counts=st.lists(st.none() | st.integers(0, 10**6), min_size=2, max_size=6))
def test_a_total_of_counts_is_at_least_what_is_known(counts: list[int | None]) -> None:
    terms = [
        Unknown(why="cut", unit=TOKENS) if count is None else exact(count, TOKENS)
        for count in counts
    ]
    said = [count for count in counts if count is not None]
    result = total(terms)
    if len(said) == len(counts):
        assert isinstance(result, Known)
        assert result.number == sum(said)
    else:
        assert isinstance(result, Unknown)
        assert result.at_least == (sum(said) if said else None)
        assert result.at_most is None


@given(counts=st.lists(st.none() | st.integers(0, 10**6), min_size=2, max_size=6))
def test_a_least_is_at_most_what_is_known(counts: list[int | None]) -> None:
    terms = [
        Unknown(why="cut", unit=TOKENS) if count is None else exact(count, TOKENS)
        for count in counts
    ]
    said = [count for count in counts if count is not None]
    result = least(terms)
    if len(said) == len(counts):
        assert isinstance(result, Known)
        assert result.number == min(said)
    else:
        assert isinstance(result, Unknown)
        assert result.at_most == (min(said) if said else None)
        assert result.at_least is None


@given(frees=st.lists(truths, min_size=1, max_size=5), signed=st.booleans())
def test_an_unknown_memory_in_a_total_gives_no_lower_bound(
    frees: list[Fraction], signed: bool
) -> None:
    """Memory may be negative (a difference of readings), so the known part bounds nothing."""
    result = total([*map(printed, frees), Unknown(why="cut", unit=GIB)])
    assert isinstance(result, Unknown)
    assert result.interval == (None, None)


@pytest.mark.parametrize("of_nothing", [total, least])
def test_nothing_has_no_total_and_no_least(of_nothing: Callable[[list[Value]], Value]) -> None:
    with pytest.raises(ValueError, match="nothing"):
        of_nothing([])


# --- units ------------------------------------------------------------


@given(size=st.integers(0, 1 << 50), there=st.sampled_from(MEMORY))
@example(size=85_899_345_921, there=GIB)
def test_bytes_survive_any_unit(size: int, there: Unit) -> None:
    """2^-30 has 21 digits: a conversion that keeps fewer than needed is off by a byte after
    floor."""
    again = exact(size, BYTES).to(there).to(BYTES)
    assert again.number == size
    assert again.floor().number == size


@given(
    amount=st.decimals(0, 10**6, places=2),
    pair=st.sampled_from([(GIB, MIB, 1 << 10), (GIB, BYTES, 1 << 30), (MIB, BYTES, 1 << 20)]),
)
def test_conversions_are_exact_and_take_the_error_along(
    amount: Decimal, pair: tuple[Unit, Unit, int]
) -> None:
    large, small, factor = pair
    value = known(amount, large, Origin.PRINTED)
    assert Fraction(value.to(small).number) == Fraction(amount) * factor
    assert Fraction(value.to(small).error) == Fraction(value.error) * factor
    assert value.to(small).to(large).number == amount
    bounds = Unknown(why="", unit=large, at_most=amount, at_least=amount).to(small)
    assert [Fraction(bound or 0) for bound in bounds.interval] == [Fraction(amount) * factor] * 2


@given(a=st.sampled_from(UNITS), b=st.sampled_from(UNITS))
def test_quantities_of_two_kinds_do_not_add(a: Unit, b: Unit) -> None:
    assume(a is not b and not {a, b} <= set(MEMORY))
    x, y = exact(1, a), exact(1, b)
    unsaid = Unknown(why="not said", unit=b)
    for mistake in (
        lambda: x + y,
        lambda: x - y,
        lambda: x.to(b),
        lambda: total([x, y]),
        lambda: least([x, y]),
        lambda: agree(x, y),
        lambda: x + unsaid,
        lambda: unsaid - x,
        lambda: least([x, unsaid]),
    ):
        with pytest.raises(UnitError):
            mistake()


@pytest.mark.parametrize(
    ("a", "sign", "b", "unit"),
    [
        (BYTES, "/", BYTES_PER_TOKEN, TOKENS),
        (GIB, "/", BYTES_PER_TOKEN, TOKENS),
        (BYTES, "/", TOKENS, BYTES_PER_TOKEN),
        (MIB, "/", GIB, RATIO),
        (TOKENS, "/", TOKENS_PER_REQUEST, REQUESTS),
        (BYTES_PER_TOKEN, "*", TOKENS, BYTES),
        (GIB, "*", RATIO, GIB),
        (RATIO, "*", GIB, GIB),
        (GIB, "/", COUNT, GIB),
    ],
)
def test_units_of_products_and_quotients(a: Unit, sign: str, b: Unit, unit: Unit) -> None:
    x, y = exact(6, a), exact(3, b)
    result = x * y if sign == "*" else x / y
    assert isinstance(result, Known)
    assert result.unit is unit
    # In the base unit of each kind the numbers multiply as numbers.
    left, right = 6 * a.scale, Fraction(3 * b.scale) if sign == "*" else Fraction(1, 3 * b.scale)
    assert Fraction(result.number) * unit.scale == left * right


@pytest.mark.parametrize(("a", "b"), [(GIB, GIB), (TOKENS, BYTES), (SECONDS, TOKENS)])
def test_products_without_a_meaning_are_refused(a: Unit, b: Unit) -> None:
    with pytest.raises(UnitError):
        exact(1, a) * exact(1, b)


def test_a_text_has_no_arithmetic() -> None:
    word, number = text("bfloat16", Origin.PRINTED), exact(1, GIB)
    for mistake in (
        lambda: word + number,
        lambda: number - word,
        lambda: word * 2,
        lambda: number / word,
        lambda: word.number,
        lambda: word.to(GIB),
    ):
        with pytest.raises(UnitError):
            mistake()
    with pytest.raises(UnitError):
        Known(amount="8", unit=GIB, origin=Origin.PRINTED)
    with pytest.raises(UnitError):
        Known(amount=Decimal(8), origin=Origin.PRINTED)


# --- provenance -------------------------------------------------------

Formula = tuple[Value, Fraction, frozenset[str]]
"""A value, its truth, and the names of what it was computed from."""


def leaves(*origins: Origin) -> st.SearchStrategy[Formula]:
    def leaf(number: int, origin: Origin) -> Formula:
        name = f"x{number}"
        value = Known(
            amount=Decimal(number),
            unit=RATIO,
            origin=origin,
            name=name,
            evidence=(f"log0:{number}",),
            assuming=(f"{name} holds",),
        )
        return value, Fraction(number), frozenset({name})

    return st.builds(leaf, st.integers(1, 9), st.sampled_from(origins))


def combine(kind: str, a: Formula, b: Formula) -> Formula:
    results: dict[str, Callable[[], tuple[Value, Fraction]]] = {
        "+": lambda: (a[0] + b[0], a[1] + b[1]),
        "-": lambda: (a[0] - b[0], a[1] - b[1]),
        "*": lambda: (a[0] * b[0], a[1] * b[1]),
        "total": lambda: (total([a[0], b[0], a[0]]), a[1] + b[1] + a[1]),
    }
    value, truth = results[kind]()
    return value, truth, a[2] | b[2]


def formulas(*origins: Origin) -> st.SearchStrategy[Formula]:
    tree = st.recursive(
        leaves(*origins),
        lambda inner: st.builds(combine, st.sampled_from(["+", "-", "*", "total"]), inner, inner),
        max_leaves=6,
    )
    return tree.filter(lambda formula: isinstance(formula[0], Known) and formula[0].name is None)


def evaluated(how: str, names: frozenset[str]) -> Fraction:
    """A formula as printed, computed as Python would."""
    scope = {name: Fraction(name[1:]) for name in names}
    return Fraction(eval(how, {"floor": math.floor, "least": min}, scope))  # noqa: S307  # ours


SAID = (Origin.PRINTED, Origin.MEASURED, Origin.CONFIGURED)


@given(formula=formulas(*SAID))
def test_a_formula_as_printed_computes_its_value(formula: Formula) -> None:
    """Every operand is there by name, and parentheses stand where they matter."""
    value, truth, names = formula
    assert isinstance(value, Known)
    assert value.how is not None
    assert all(name in value.how for name in names)
    assert evaluated(value.how, names) == truth == Fraction(value.number)


@given(formula=formulas(*SAID, Origin.THEORETICAL))
def test_a_formula_over_theory_names_its_operands_too(formula: Formula) -> None:
    value, truth, names = formula
    assert isinstance(value, Known)
    assert value.how is not None
    assert all(name in value.how for name in names)
    assert evaluated(value.how, names) == truth


@given(formula=formulas(*SAID))
def test_evidence_and_assumptions_are_the_union(formula: Formula) -> None:
    value, _, names = formula
    assert isinstance(value, Known)
    numbers = {name[1:] for name in names}
    assert sorted(value.evidence) == sorted(f"log0:{number}" for number in numbers)
    assert sorted(value.assuming) == sorted(f"{name} holds" for name in names)


@given(formula=formulas(*SAID), other=leaves(*SAID))
def test_a_named_intermediate_stands_by_its_name_alone(formula: Formula, other: Formula) -> None:
    weights = formula[0].named("weights")
    for result in (weights + other[0], weights - other[0], weights * other[0]):
        assert isinstance(result, Known)
        assert result.how is not None
        assert result.how.split(" ", 1)[0] == "weights"
        assert "(" not in result.how


@given(numbers=st.lists(st.integers(1, 9), min_size=2, max_size=5, unique=True))
def test_a_least_names_all_and_cites_the_line_that_decides(numbers: list[int]) -> None:
    terms = [exact(number, GIB, f"free[{number}]").cite(f"log0:{number}") for number in numbers]
    result = least(terms)
    assert isinstance(result, Known)
    assert result.how is not None
    assert all(f"free[{number}]" in result.how for number in numbers)
    assert result.evidence == (f"log0:{min(numbers)}",)
    assert len(result.operands) == len(numbers)


def test_a_floor_names_what_it_was_taken_of() -> None:
    pool, size = exact(100, BYTES, "pool"), exact(7, BYTES_PER_TOKEN, "per_token")
    tokens = (pool / size).floor()
    assert isinstance(tokens, Known)
    assert tokens.how == "floor(pool / per_token)"
    named = (pool / size).named("capacity").floor()
    assert isinstance(named, Known)
    assert named.how in ("floor(pool / per_token)", "floor(capacity)")
    leaf = known(Decimal("7.5"), RATIO, Origin.PRINTED, how="acme.ratio", name="ratio").floor()
    assert leaf.how == "floor(ratio)"
