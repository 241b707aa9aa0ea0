"""What the log shows that KV costs against what the configuration says: which figures are compared,
how far apart they may lie, and what is said of a difference."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from capacity_core.accounting.findings import disagreement
from capacity_core.api.kv_layouts import Keeps
from capacity_core.api.ledger import (
    Deployment,
    Finding,
    KvFacts,
    Ledger,
    Parallel,
    Severity,
    Stage,
    Status,
)
from capacity_core.api.report import LayoutRow, TermRow
from capacity_core.units import BYTES_PER_REQUEST, BYTES_PER_TOKEN, COUNT, TOKENS, Unit
from capacity_core.values import Known, Origin, Unknown, Value, known, text

TOKEN, WINDOW, STATE, DIVISOR = 60_000, 20_000, 7_000_000, 76_000
"""What the layout of these tests says: B/token, B/token inside the window, B/request, B/token."""

ASSUMED = text("bf16", Origin.ASSUMED).assume("the KV cache's auto type is the model's own, bf16")
ASKED = text("bf16", Origin.CONFIGURED)
UNKNOWN_TYPE = Unknown(why="auto, and nothing says which type that is here")


def shown(number: int | str, unit: Unit = BYTES_PER_TOKEN, error: int = 0) -> Known:
    """A figure that the log gives, with what rounding allows."""
    return Known(
        amount=Decimal(number),
        unit=unit,
        error=Decimal(error),
        origin=Origin.DERIVED,
        how="size / tokens",
        evidence=("log0:7",),
    )


def theory(number: int, unit: Unit = BYTES_PER_TOKEN, field: str = "num_hidden_layers") -> Known:
    return known(number, unit, Origin.THEORETICAL, evidence=(f"config0:{field}",))


def layout(*kinds: Keeps, **figures: Value) -> LayoutRow:
    """A layout with one cache of each of these kinds; `figures` replace what it says."""
    values: dict[str, Value] = {
        "dtype": ASKED,
        "bytes_per_token": theory(TOKEN),
        "window_bytes_per_token": theory(WINDOW),
        "window_tokens": known(512, TOKENS, Origin.THEORETICAL),
        "fixed_bytes_per_request": theory(STATE, BYTES_PER_REQUEST),
        "replication": known(1, COUNT, Origin.THEORETICAL),
        "pool_bytes_per_token": theory(DIVISOR),
        **figures,
    }
    return LayoutRow(
        name="some-layout",
        family="GQA",
        source="engine/cache.py",
        formula="layers * bytes",
        terms=tuple(
            TermRow(
                name=keeps.value,
                layers=4,
                keeps=keeps,
                bytes_per_token=theory(TOKEN),
                window_tokens=None,
                fixed_bytes_per_request=None,
                formula=None,
                source=None,
            )
            for keeps in kinds or (Keeps.ALL,)
        ),
        **values,
    )


ONE_STAGE = known(1, COUNT, Origin.CONFIGURED)


def ledger(pipeline: Value = ONE_STAGE, **kv: Any) -> Ledger:
    """A log that says this of its KV cache, and nothing else."""
    return Ledger(
        framework="acme",
        title="ACME",
        status=Status.READY,
        reached=Stage.READY,
        deployment=Deployment(parallel=Parallel(pipeline=pipeline)),
        kv=KvFacts(**kv),
    )


def found(log: Ledger, row: LayoutRow | None) -> list[Finding]:
    return list(disagreement(log, row))


def cause(number: int | str, row: LayoutRow) -> str:
    """What is said of a token that costs so much in the log."""
    (finding,) = found(ledger(bytes_per_token=shown(number)), row)
    return finding.message.split("): ", 1)[1]


# --- which figures are compared -------------------------------------------


def test_without_a_configuration_nothing_disagrees() -> None:
    assert found(ledger(bytes_per_token=shown(3 * TOKEN)), None) == []


def test_a_difference_is_a_warning_with_both_figures_and_their_evidence() -> None:
    (finding,) = found(ledger(bytes_per_token=shown(180_000)), layout())
    assert (finding.code, finding.severity) == ("layout-disagrees", Severity.WARNING)
    assert finding.message.startswith(
        "a token costs 180,000 B in the log (size / tokens) and 60,000 B by the configuration "
        "(some-layout, bf16): "
    )
    assert finding.evidence == ("log0:7", "config0:num_hidden_layers")


# What the log shows, by the field of KvFacts that it is in, and what it is compared with.
SUBJECTS: dict[str, tuple[str, Keeps | None, int, Unit]] = {
    "a token costs": ("bytes_per_token", None, TOKEN, BYTES_PER_TOKEN),
    "a token costs (of several pools)": ("kinds", Keeps.ALL, TOKEN, BYTES_PER_TOKEN),
    "a token of a window costs": ("kinds", Keeps.WINDOW, WINDOW, BYTES_PER_TOKEN),
    "a request's state takes": ("kinds", Keeps.STATE, STATE, BYTES_PER_REQUEST),
    "the engine divides its budget by": (
        "bytes_per_full_token",
        None,
        DIVISOR,
        BYTES_PER_TOKEN,
    ),
}


def says(subject: str, times: int) -> Ledger:
    """A log that shows one figure, so many times what the layout says of it."""
    field, kind, expected, unit = SUBJECTS[subject]
    figure = shown(expected * times, unit)
    kv: dict[str, object] = {field: figure if kind is None else {kind: figure}}
    return ledger(ONE_STAGE, **kv)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_each_figure_is_compared_with_its_own(subject: str) -> None:
    _, _, expected, _ = SUBJECTS[subject]
    whole = layout(Keeps.ALL, Keeps.WINDOW, Keeps.STATE)
    assert found(says(subject, 1), whole) == []
    (finding,) = found(says(subject, 3), whole)
    name = subject.partition(" (")[0]
    assert finding.message.startswith(f"{name} {expected * 3:,} B in the log")
    assert f" and {expected:,} B by the configuration" in finding.message


def test_all_figures_are_compared_at_once() -> None:
    log = ledger(
        bytes_per_token=shown(TOKEN * 3),
        bytes_per_full_token=shown(DIVISOR * 3),
        kinds={
            Keeps.WINDOW: shown(WINDOW * 3),
            Keeps.STATE: shown(STATE * 3, BYTES_PER_REQUEST),
        },
    )
    assert len(found(log, layout(Keeps.ALL, Keeps.WINDOW, Keeps.STATE))) == 4


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_the_configuration_does_not_say_disagrees_with_nothing(subject: str) -> None:
    nothing = Unknown(why="the KV dtype is not known")
    row = layout(
        bytes_per_token=nothing,
        window_bytes_per_token=nothing,
        fixed_bytes_per_request=nothing,
        pool_bytes_per_token=nothing,
    )
    assert found(says(subject, 3), row) == []


def test_what_the_log_does_not_say_disagrees_with_nothing() -> None:
    bounded = Unknown(why="pools of several kinds", unit=BYTES_PER_TOKEN, at_most=Decimal(1))
    assert found(ledger(), layout()) == []
    assert found(ledger(bytes_per_token=bounded, kinds={Keeps.WINDOW: bounded}), layout()) == []


def test_the_engines_divisor_is_not_compared_with_what_a_token_costs() -> None:
    """Where the layout has none of its own, the engine's may hold a window's share, too."""
    none = Unknown(why="the engine divides by the sum of the terms", unit=BYTES_PER_TOKEN)
    log = ledger(bytes_per_full_token=shown(TOKEN * 3))
    assert found(log, layout(pool_bytes_per_token=none)) == []


def test_what_is_printed_of_a_token_stands_before_the_kinds_of_its_pools() -> None:
    log = ledger(
        bytes_per_token=shown(TOKEN),
        if_plain=shown(TOKEN * 3),
        kinds={Keeps.ALL: shown(TOKEN * 3)},
    )
    assert found(log, layout()) == []


# --- a figure that holds for plain models alone ---------------------------

TWO_STAGES = known(2, COUNT, Origin.CONFIGURED)
NO_STAGES = Unknown(why="no line says it", unit=COUNT)


@pytest.mark.parametrize(
    ("kinds", "pipeline", "compared"),
    [
        ((Keeps.ALL,), ONE_STAGE, True),
        ((Keeps.ALL, Keeps.ALL), ONE_STAGE, True),
        ((Keeps.ALL, Keeps.WINDOW), ONE_STAGE, False),
        ((Keeps.ALL, Keeps.CHUNK), ONE_STAGE, False),
        ((Keeps.ALL, Keeps.STATE), ONE_STAGE, False),
        ((Keeps.ALL, Keeps.ENCODER), ONE_STAGE, False),
        ((Keeps.ALL,), TWO_STAGES, False),
        ((Keeps.ALL,), NO_STAGES, False),
    ],
    ids=[
        "plain",
        "plain, two terms",
        "windows",
        "chunks",
        "states",
        "an encoder",
        "two stages",
        "stages that no line says",
    ],
)
def test_size_over_tokens_is_a_tokens_cost_in_plain_models_of_one_stage_alone(
    kinds: tuple[Keeps, ...], pipeline: Value, compared: bool
) -> None:
    """A window's pages are in the size as well, and other stages have other layers."""
    log = ledger(pipeline, if_plain=shown(TOKEN * 3))
    assert bool(found(log, layout(*kinds))) is compared


def test_where_size_over_tokens_does_not_hold_the_pool_of_all_tokens_is_compared() -> None:
    log = ledger(if_plain=shown(TOKEN), kinds={Keeps.ALL: shown(TOKEN * 3)})
    (finding,) = found(log, layout(Keeps.ALL, Keeps.WINDOW))
    assert finding.message.startswith("a token costs 180,000 B")
    assert found(log, layout(Keeps.ALL)) == []


# --- how far apart --------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "error", "disagrees"),
    [
        (60_000, 0, False),
        (60_300, 0, False),  # half a percent of 60,000 is 300
        (60_301, 0, True),
        (59_700, 0, False),
        (59_699, 0, True),
        (60_800, 500, False),  # and what rounding allows
        (60_801, 500, True),
        (59_200, 500, False),
        (59_199, 500, True),
    ],
)
def test_figures_may_differ_by_their_rounding_and_half_a_percent(
    number: int, error: int, disagrees: bool
) -> None:
    log = ledger(bytes_per_token=shown(number, error=error))
    assert bool(found(log, layout())) is disagrees


def test_the_rounding_of_both_counts() -> None:
    rough = Known(
        amount=Decimal(TOKEN), unit=BYTES_PER_TOKEN, error=Decimal(100), origin=Origin.THEORETICAL
    )
    row = layout(bytes_per_token=rough)
    assert found(ledger(bytes_per_token=shown(60_450, error=50)), row) == []
    assert found(ledger(bytes_per_token=shown(60_451, error=50)), row)


# --- what is said of it ---------------------------------------------------


@pytest.mark.parametrize("times", [Decimal(8), 1 / Decimal(8), Decimal("7.9"), Decimal("8.1")])
def test_as_many_times_as_there_are_copies_is_said_of_them(times: Decimal) -> None:
    copied = layout(replication=known(8, COUNT, Origin.THEORETICAL))
    assert "the 8 copies of a head" in cause(str(TOKEN * times), copied)


@pytest.mark.parametrize(
    ("replication", "times"),
    [
        (known(8, COUNT, Origin.THEORETICAL), "7.5"),
        (known(8, COUNT, Origin.THEORETICAL), "3"),
        (known(1, COUNT, Origin.THEORETICAL), "1.01"),  # a head that only one rank holds
        (Unknown(why="2 or 8, by kind of layer", unit=COUNT), "8"),
    ],
    ids=["not so many", "fewer", "no copies", "several numbers of copies"],
)
def test_otherwise_copies_are_not_blamed(replication: Value, times: str) -> None:
    said = cause(str(TOKEN * Decimal(times)), layout(replication=replication))
    assert "copies" not in said


def test_layers_that_all_keep_every_token_are_named() -> None:
    """Four layers of attention and four of states: the log shows twice what the four cost."""
    row = layout(Keeps.ALL, Keeps.STATE, dtype=ASKED)
    assert cause(TOKEN * 2, row) == "as if all 8 layers kept every token, not 4 of them"
    assert "all 8 layers" not in cause(TOKEN * 3, row)


def test_copies_stand_before_another_type() -> None:
    """Twice as much, with two copies and a type that was assumed."""
    row = layout(replication=known(2, COUNT, Origin.THEORETICAL), dtype=ASSUMED)
    assert "the 2 copies of a head" in cause(TOKEN * 2, row)


@pytest.mark.parametrize("dtype", [ASSUMED, UNKNOWN_TYPE], ids=["assumed", "unknown"])
@pytest.mark.parametrize(
    ("number", "times"),
    [
        (TOKEN * 2, "2.00 times as much"),
        (TOKEN // 2, "0.50 times as much"),
        (TOKEN * 4, "4.00 times as much"),
        (TOKEN // 4, "0.25 times as much"),
        (121_800, "2.03 times as much"),
    ],
)
def test_twice_or_four_times_is_another_type_where_none_was_said(
    dtype: Value, number: int, times: str
) -> None:
    said = cause(number, layout(dtype=dtype))
    assert said.startswith(times)
    assert "another KV type than was assumed" in said


@pytest.mark.parametrize("number", [TOKEN * 2, TOKEN // 2, TOKEN * 4])
def test_a_type_that_was_asked_for_is_not_doubted(number: int) -> None:
    said = cause(number, layout(dtype=ASKED))
    assert "KV type" not in said
    assert "another layout" in said


@pytest.mark.parametrize("number", [TOKEN * 3, 123_600, TOKEN // 3])
def test_no_other_factor_is_another_type(number: int) -> None:
    """Three times, and 2.06: element sizes are 1, 2 and 4 bytes."""
    said = cause(number, layout(dtype=ASSUMED))
    assert "KV type" not in said
    assert "another layout" in said


@pytest.mark.parametrize("dtype", [ASKED, ASSUMED], ids=["asked", "assumed"])
@pytest.mark.parametrize("number", [60_400, 63_750, 68_990])
def test_a_little_more_is_scales_or_padding(number: int, dtype: Value) -> None:
    """By less than 15 percent: mxfp8 keeps a byte beside 32, 4-bit types one beside 8."""
    said = cause(number, layout(dtype=dtype))
    assert "scales" in said
    assert "padding" in said


@pytest.mark.parametrize("number", [69_000, 57_000, 51_000])
def test_more_than_that_and_less_is_not(number: int) -> None:
    said = cause(number, layout())
    assert "scales" not in said
    assert "another layout" in said


def test_a_cost_of_nothing_is_of_another_model() -> None:
    """No division by it: the log has it and the configuration has not, or the other way round."""
    nothing = known(0, BYTES_PER_TOKEN, Origin.THEORETICAL)
    assert "of another model" in cause(TOKEN, layout(bytes_per_token=nothing))
    assert "of another model" in cause(0, layout())
    assert found(ledger(bytes_per_token=shown(0)), layout(bytes_per_token=nothing)) == []


def test_a_type_that_is_not_known_is_said_to_be_so() -> None:
    (finding,) = found(ledger(bytes_per_token=shown(TOKEN * 3)), layout(dtype=UNKNOWN_TYPE))
    assert "(some-layout, KV type unknown)" in finding.message
