"""How many requests a pool of blocks takes, held against the engine's own scheduler.

The truth of the table was made by running vLLM 0.33.0's `v1/core/sched/scheduler.py` with its
`KVCacheManager` on a CPU without a model (886 rows, of which these are some of every family): equal
requests, distinct prompts, context length 16,384. Other figures are arithmetic that stands in the
test, or public logs that are named there.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity_core.api.admission import Fit, Request
from capacity_core.api.kv_layouts import Keeps
from capacity_core.api.ledger import Deployment, Ledger, Reported, Status, WorkerFacts
from capacity_core.api.metrics import MetricSample
from capacity_core.api.report import LayoutRow, TermRow
from capacity_core.units import (
    BYTES_PER_REQUEST,
    BYTES_PER_TOKEN,
    COUNT,
    GIB,
    RATIO,
    TOKENS,
)
from capacity_core.values import Known, Origin, Unknown, Value, known
from capacity_vllm.admission import FormerAdmission, VllmAdmission
from capacity_vllm.candidates import Printed
from capacity_vllm.groups import Group, Plan
from capacity_vllm.metrics import with_metrics

CONTEXT = 16_384

# groups (count, kind, block or block/window) | mode of states | scheduling | num_gpu_blocks |
# max_num_batched_tokens | prompt + output | fit | most that no load preempts, - where none did
ENGINE = """
1 win 16/4096                | -     | sync  |  250 | 2048 |  128 + 128  |  15 |  15
1 win 16/4096                | -     | async |  128 | 8192 |   60 + 500  |   3 |   3
1 win 16/4096                | -     | async |  512 | 8192 | 2900 + 100  |   2 |   -
1 win 16/512                 | -     | sync  |  128 | 8192 | 4000 + 300  |   0 |   0
1 win 16/512                 | -     | sync  | 1000 | 2048 | 1500 + 64   |  28 |   -
1 win 16/512                 | -     | async |  250 | 8192 |  900 + 100  |   6 |   -
1 win 32/1024                | -     | sync  |  128 | 2048 |  513 + 300  |   4 |   4
1 win 32/1024                | -     | sync  |  512 | 2048 | 1500 + 64   |  15 |   -
1 win 32/1024                | -     | async |  250 | 2048 | 2900 + 100  |   5 |   -
1 full 128 + 3 state 128     | none  | sync  |  250 | 2048 |  200 + 57   |  49 |   -
1 full 128 + 3 state 128     | none  | async |  250 | 8192 | 1000 + 500  |  16 |  16
1 full 16 + 1 state 16       | none  | sync  |  250 | 8192 |  900 + 30   |   4 |   -
1 full 16 + 1 state 16       | none  | async |   60 | 2048 |  513 + 300  |   1 |   -
1 full 16 + 1 state 16       | none  | async | 3000 | 8192 | 8000 + 1000 |   5 |   -
1 full 32 + 7 state 32       | none  | sync  | 2000 | 2048 | 2900 + 100  |  19 |  19
1 full 32 + 7 state 32       | none  | async |  128 | 8192 | 2900 + 100  |   1 |   -
1 full 784 + 3 state 784     | none  | sync  |   60 | 8192 | 8000 + 100  |   4 |   -
1 full 784 + 3 state 784     | none  | async |  128 | 2048 | 1500 + 64   |  25 |   -
1 full 128 + 2 win 128/512   | -     | sync  | 2000 | 2048 | 1500 + 64   |  86 |   -
1 full 16 + 1 win 16/128     | -     | sync  | 1000 | 2048 |  900 + 100  |  13 |  13
1 full 16 + 1 win 16/4096    | -     | async |   60 | 8192 |  200 + 200  |   1 |   1
1 full 16 + 1 win 16/512     | -     | sync  |  250 | 2048 |  200 + 57   |   7 |   7
1 full 16 + 3 win 16/1024    | -     | sync  |  512 | 2048 |  900 + 100  |   2 |   -
1 full 32 + 5 win 32/1024    | -     | sync  |   60 | 8192 |  200 + 57   |   1 |   -
1 full 32 + 5 win 32/1024    | -     | async |  512 | 2048 |  200 + 57   |  10 |  10
1 full 32 + 5 win 32/256     | -     | sync  | 1000 | 2048 |  200 + 200  |  17 |  17
1 full 784 + 1 win 784/1024  | -     | sync  |   60 | 2048 |  200 + 57   |  29 |   -
1 full 128 + 1 state 128     | align | sync  |  250 | 2048 | 4000 + 300  |   7 |   -
1 full 128 + 3 state 128     | align | sync  |   60 | 2048 | 2900 + 100  |   2 |   -
1 full 128 + 3 state 128     | align | async |  250 | 8192 |  128 + 128  |  31 |  31
1 full 16 + 1 state 16       | align | async |   60 | 8192 |  200 + 200  |   2 |   2
1 full 32 + 3 state 32       | align | sync  |  128 | 2048 |   60 + 500  |   5 |   5
1 full 32 + 3 state 32       | align | sync  | 1000 | 2048 | 1000 + 500  |  19 |  19
1 full 32 + 3 state 32       | align | async |  250 | 8192 | 1000 + 500  |   4 |   4
1 full 32 + 3 win 32/512     | -     | sync  |  841 | 4096 | 1149 + 61   |   8 |   8
1 full 64 + 2 win 64/128     | -     | async |  770 | 4096 | 2232 + 96   |  16 |  16
1 win 32/128                 | -     | sync  |  661 | 2048 |  222 + 56   | 130 | 130
1 full 32 + 5 win 32/512     | -     | async | 1542 | 8192 | 4096 + 512  |   1 |   1
1 full 32 + 5 win 32/512     | -     | async | 1542 | 8192 | 2048 + 512  |   3 |   3
1 full 32 + 5 win 32/512     | -     | async | 1542 | 8192 | 1024 + 512  |   7 |   7
1 full 16 + 1 win 16/128     | -     | async | 1026 | 8192 | 4096 + 512  |   1 |   1
1 full 16 + 1 win 16/128     | -     | async | 1026 | 8192 | 2048 + 512  |   3 |   3
1 full 32 + 5 state 32       | align | async |  706 | 4096 |  187 + 1    |  43 |  43
1 full 32 + 2 state 32       | align | async |  158 | 2048 |  252 + 2    |  12 |  12
1 full 64 + 1 state 64       | align | async |  157 | 4096 |  212 + 27   |  25 |  25
1 full 528 + 5 state 528     | align | async |  184 | 8192 | 1179 + 6    |  13 |  13
1 full 784 + 1 state 784     | align | async |  128 | 2048 | 4000 + 300  |  17 |  17
1 full 784 + 3 state 784     | align | async |   60 | 8192 | 1000 + 500  |   7 |   7
1 full 128 + 2 chunk 128/512 | -     | sync  | 1000 | 2048 |  900 + 30   |  61 |   -
1 full 128 + 2 chunk 128/512 | -     | async |  250 | 2048 | 3000 + 1000 |   6 |   6
1 full 16 + 1 chunk 16/8192  | -     | sync  |  512 | 2048 |  900 + 30   |   4 |   -
1 full 16 + 1 chunk 16/8192  | -     | async |  250 | 2048 | 1000 + 500  |   1 |   -
1 full 16 + 1 chunk 16/8192  | -     | async | 3000 | 2048 | 8000 + 1000 |   4 |   -
1 full 16 + 3 chunk 16/1024  | -     | async |  250 | 8192 |  200 + 57   |   3 |   3
1 full 16 + 3 chunk 16/1024  | -     | async | 3000 | 2048 | 8000 + 100  |   3 |   -
1 full 32 + 3 chunk 32/2048  | -     | sync  | 2000 | 8192 |  900 + 100  |  15 |  15
1 full 32 + 3 chunk 32/2048  | -     | async | 1000 | 2048 | 2900 + 100  |   4 |   -
1 full 128 + 3 state 128     | ckpt  | sync  |  128 | 8192 | 8000 + 1000 |   1 |   -
1 full 128 + 3 state 128     | ckpt  | async |   60 | 8192 | 1500 + 64   |   3 |   -
1 full 128 + 3 state 128     | ckpt  | async |  512 | 2048 |  900 + 30   |  46 |   -
1 full 32 + 3 state 32       | ckpt  | sync  |  128 | 8192 |  900 + 100  |   3 |   -
1 full 32 + 3 state 32       | ckpt  | sync  | 2000 | 8192 |  900 + 100  |  56 |  56
1 full 32 + 3 state 32       | ckpt  | async |  512 | 8192 |   40 + 20   | 101 |   -
1 full 32 + 3 state 32       | ckpt  | async | 3000 | 8192 | 8000 + 100  |  11 |   -
1 full 784 + 3 state 784     | ckpt  | sync  |  250 | 2048 |  900 + 30   |  49 |   -
1 full 784 + 3 state 784     | ckpt  | async |  128 | 8192 | 1000 + 500  |  24 |   -
1 full 128                   | -     | sync  |  128 | 8192 |  900 + 30   |  15 |   -
1 full 128                   | -     | async |   60 | 8192 |   40 + 20   |  59 |   -
1 full 128                   | -     | async |  512 | 8192 | 8000 + 100  |   7 |   7
1 full 16                    | -     | sync  |  512 | 8192 | 3000 + 1000 |   2 |   -
1 full 16                    | -     | async |  512 | 8192 | 4000 + 300  |   1 |   1
1 full 32                    | -     | sync  |  250 | 8192 |   60 + 500  |  13 |  13
1 full 32                    | -     | sync  | 2000 | 2048 | 2900 + 100  |  21 |   -
1 full 32                    | -     | async |  250 | 2048 | 1500 + 64   |   5 |   -
1 full 784                   | -     | sync  |  250 | 8192 | 8000 + 100  |  22 |   -
"""
# fit: the most that all run at once and end without a preemption.

KINDS = {"full": Keeps.ALL, "win": Keeps.WINDOW, "chunk": Keeps.CHUNK, "state": Keeps.STATE}
STATES = {"-": 1, "none": 1, "align": 2, "ckpt": 3}


@attrs.frozen
class Ran:
    """One row of the table: the plan, the load, and what the engine did."""

    plan: Plan
    usable: int
    prompt: int
    output: int
    fit: int
    without_preemption: int | None


def groups(text: str) -> tuple[Group, ...]:
    """`1 full 16 + 3 win 16/1024`"""
    found = []
    for part in text.split(" + "):
        count, kind, sizes = part.split()
        block, _, window = sizes.partition("/")
        found.append(
            Group(
                keeps=KINDS[kind],
                count=int(count),
                block=int(block),
                window=int(window) if window else None,
            )
        )
    return tuple(found)


def ran(line: str) -> Ran:
    said, mode, scheduling, blocks, batched, load, fit, safe = (
        cell.strip() for cell in line.split("|")
    )
    lag = int(scheduling == "async")
    prompt, output = (int(part) for part in load.split("+"))
    return Ran(
        plan=Plan(
            groups=groups(said),
            states=STATES[mode],
            in_flight=int(batched) * (1 + lag),
            step=int(batched),
            lag=lag,
        ),
        usable=int(blocks) - 1,
        prompt=prompt,
        output=output,
        fit=int(fit),
        without_preemption=None if safe == "-" else int(safe),
    )


ROWS = pytest.mark.parametrize(
    "row",
    [pytest.param(ran(line), id=" ".join(line.split())) for line in ENGINE.strip().splitlines()],
)


def bounds(row: Ran) -> tuple[int, int]:
    """The least and the most that fit, as the plan has them."""
    return row.plan.fit(row.usable, row.prompt, row.output, CONTEXT)


@ROWS
def test_no_load_that_is_said_to_fit_preempts_in_the_engine(row: Ran) -> None:
    low, _ = bounds(row)
    assert row.without_preemption is None or low <= row.without_preemption


@ROWS
def test_what_the_engine_ran_at_once_lies_within_what_is_said(row: Ran) -> None:
    low, high = bounds(row)
    assert low <= row.fit <= high


@pytest.mark.parametrize("kind", ["full", "state"])
def test_without_windows_and_aligned_states_the_plan_leaves_nothing_open(kind: str) -> None:
    """1 full + 3 of the kind, one block each of it: nothing depends on when requests cross."""
    plan = Plan(groups=groups(f"1 full 128 + 3 {kind} 128"))
    least, most = plan.holds(1000, 500, CONTEXT)
    assert least == most


# --- made-up workers ------------------------------------------------------


def said(amount: str | int, unit: Any) -> Known:
    return known(Decimal(amount), unit, Origin.PRINTED, how="a line", evidence=("log0:1",))


UNSAID = Unknown(why="not printed", unit=TOKENS)
SIZES = (16, 32, 64, 128, 256)
"""What a back-end may choose where no line prints the block."""


def admission(**more: Any) -> VllmAdmission:
    """A plain model of a release that prints blocks times their size, with what a test says."""
    plain: dict[str, Any] = {
        "length": CONTEXT,
        "block": UNSAID,
        "possible": SIZES,
        "plain": True,
        "batched": UNSAID,
        "async_known": False,
        "derived": False,
    }
    parallel = more.pop("context_parallel", False)
    return VllmAdmission(printed=Printed(**(plain | more)), context_parallel=parallel)


def worker(tokens: int | None = None, concurrency: str | None = None, length: int = 0) -> Any:
    return WorkerFacts(
        dp=0,
        tokens=UNSAID if tokens is None else said(tokens, TOKENS),
        reported=None
        if concurrency is None
        else Reported(request_tokens=length, value=said(concurrency, RATIO)),
    )


def of_blocks(number: int, block: int, **more: Any) -> VllmAdmission:
    """Blocks and their size as a metrics page says them."""
    return admission(blocks={0: said(number, COUNT)}, block=said(block, TOKENS), **more)


def theory(amount: int, unit: Any) -> Known:
    return known(amount, unit, Origin.THEORETICAL, how="made up")


def term(keeps: Keeps, layers: int, window: int | None = None) -> TermRow:
    state = keeps is Keeps.STATE
    return TermRow(
        name=keeps.value,
        layers=layers,
        keeps=keeps,
        bytes_per_token=theory(0 if state else 4096 * layers, BYTES_PER_TOKEN),
        window_tokens=None if window is None else theory(window, TOKENS),
        fixed_bytes_per_request=theory(4096 * layers, BYTES_PER_REQUEST) if state else None,
        formula=None,
        source=None,
    )


def layout(*terms: TermRow) -> LayoutRow:
    """A model with these kinds of layers; only they decide groups."""
    unused = Unknown(why="not needed here", unit=BYTES_PER_TOKEN)
    return LayoutRow(
        name="made-up",
        family=None,
        source=None,
        formula=None,
        dtype=Unknown(why="not needed here"),
        terms=terms,
        bytes_per_token=theory(4096, BYTES_PER_TOKEN),
        window_bytes_per_token=unused,
        window_tokens=unused,
        fixed_bytes_per_request=unused,
        replication=unused,
        pool_bytes_per_token=unused,
    )


def tokens_of(fit: Fit | None) -> Value:
    assert fit is not None
    assert fit.tokens is not None
    return fit.tokens


def count(fit: Fit | None) -> int:
    value = tokens_of(fit)
    assert isinstance(value, Known), value
    return int(value.number)


def span(value: Value | None) -> tuple[int, int]:
    """Both bounds of a count, equal where it is known."""
    assert value is not None
    low, high = value.interval
    assert low is not None
    assert high is not None
    return int(low), int(high)


# --- one kind of layer ----------------------------------------------------


@pytest.mark.parametrize("block", [16, 32, 128])
@pytest.mark.parametrize(
    ("prompt", "output"), [(200, 57), (130, 10), (60, 500), (1, 1), (16, 1), (16, 2), (4000, 96)]
)
def test_a_plain_model_runs_its_usable_blocks_over_those_of_a_request(
    block: int, prompt: int, output: int
) -> None:
    """The rule of the real engine (shared/live/README.md): one block is never given away, and the
    last output token takes no slot."""
    blocks = 4096 // block * 8
    fit = of_blocks(blocks, block).fit(worker(), Request(prompt + output, prompt), None)
    assert count(fit) == (blocks - 1) // -(-(prompt + output - 1) // block)


def test_the_last_output_token_takes_no_slot() -> None:
    """257 tokens ran seven at once in 15 blocks of 128: two blocks each, not three."""
    assert count(of_blocks(16, 128).fit(worker(), Request(257, 200), None)) == 15 // 2


def test_the_null_block_costs_a_request_where_the_pool_is_whole_requests() -> None:
    """16 blocks hold 2.00 requests of eight blocks by the engine's words, and one by its deeds."""
    printed = worker(16 * 128, "2.00", 1024)
    fit = admission(length=1024, block=said(128, TOKENS)).fit(printed, Request(1024), None)
    assert count(fit) == 15 // 8


def test_more_prompts_are_let_in_than_run_to_their_end() -> None:
    """60 + 500 on 15 blocks of 128: a prompt asks for one block, a request ends with five."""
    fit = of_blocks(16, 128).fit(worker(), Request(560, 60), None)
    assert count(fit) == 15 // 5
    assert fit is not None
    assert span(fit.admitted) == (15, 15)


def test_a_length_without_a_split_says_nothing_of_what_is_let_in() -> None:
    fit = of_blocks(16, 128).fit(worker(), Request(560), None)
    assert fit is not None
    assert fit.admitted is None


def test_unprinted_block_sizes_that_agree_give_a_value() -> None:
    """2,048 tokens are 128, 64, 32, 16 or 8 blocks; a request of 1,024 takes half of them, and one
    block is nobody's: one request in each case."""
    fit = admission(length=1024).fit(worker(2048, "2.00", 1024), Request(1024, 1000), None)
    assert {(2048 // b - 1) // (1024 // b) for b in SIZES} == {1}
    assert count(fit) == 1


def test_unprinted_block_sizes_that_disagree_give_bounds_and_a_reason() -> None:
    printed = worker(2048, "2.00", 1024)
    value = tokens_of(admission(length=1024).fit(printed, Request(140, 130), None))
    fits = {(2048 // b - 1) // -(-139 // b) for b in SIZES}
    assert isinstance(value, Unknown)
    assert value.why
    assert span(value) == (min(fits), max(fits)) == (7, 14)


def test_a_size_that_does_not_give_the_printed_tokens_is_left_out() -> None:
    """2,112 = 33 · 64 is no whole number of blocks of 128 or 256; 2,112 / 1,024 = 2.06."""
    printed = worker(2112, "2.06", 1024)
    value = tokens_of(admission(length=1024).fit(printed, Request(140, 130), None))
    fits = {(2112 // b - 1) // -(-139 // b) for b in (16, 32, 64)}
    assert span(value) == (min(fits), max(fits))


# --- several groups -------------------------------------------------------


def test_the_first_public_pair_is_106_requests_where_tokens_divided_say_35() -> None:
    """vllm#40691, 0.19.0: 290,864 tokens, 33.04x of 32,768, block 784, one group of attention and
    three of states: ceil(32,768 / 784) + 3 = 45 blocks, of 1,484 to 1,487 only 1,487 / 45 = 33.04.
    """
    hybrid = layout(term(Keeps.ALL, 10), term(Keeps.STATE, 30))
    run = admission(length=32_768, block=said(784, TOKENS), plain=False, has_states=True)
    printed = worker(290_864, "33.04", 32_768)
    fit = run.fit(printed, Request(8192, 8000), hybrid)

    assert round(Decimal(1487) / (-(-32_768 // 784) + 3), 2) == Decimal("33.04")
    assert 1487 // 4 * 784 == 290_864
    assert count(fit) == 1486 // (-(-8191 // 784) + 3) == 106
    assert 290_864 // 8192 == 35
    assert count(run.fit(printed, Request(32_768), hybrid)) == 1486 // 45 == 33


@pytest.mark.parametrize(
    ("tokens", "concurrency", "length", "blocks"),
    [(260_006, "31.74", 8192, 730), (1_077_542, "4.11", 262_144, 744)],
)
def test_the_second_public_pair_is_one_pool_at_two_lengths(
    tokens: int, concurrency: str, length: int, blocks: int
) -> None:
    """A comment of vllm#54458: block 1,600, and 17 blocks beside those of the full group. From 0.21
    on the printed tokens are concurrency · length."""
    hybrid = layout(term(Keeps.ALL, 1), term(Keeps.STATE, 17))
    run = admission(
        length=length, block=said(1600, TOKENS), plain=False, has_states=True, derived=True
    )
    printed = worker(tokens, concurrency, length)

    assert int(blocks / (-(-length // 1600) + 17) * length) == tokens
    longest = run.fit(printed, Request(length), hybrid)
    assert count(longest) == (blocks - 1) // (-(-length // 1600) + 17)
    short = tokens_of(run.fit(printed, Request(8192, 8000), hybrid))
    assert count(run.fit(printed, Request(8192, 8000), hybrid)) == (blocks - 1) // (6 + 17)
    assert isinstance(short, Known)
    assert f"{blocks - 1} // {6 + 17}" in str(short.how)


def test_the_second_pairs_tokens_divided_are_wrong_at_the_longer_length() -> None:
    """1,077,542 // 8,192 = 131, where 743 // 23 = 32 run."""
    hybrid = layout(term(Keeps.ALL, 1), term(Keeps.STATE, 17))
    run = admission(
        length=262_144, block=said(1600, TOKENS), plain=False, has_states=True, derived=True
    )
    fit = run.fit(worker(1_077_542, "4.11", 262_144), Request(8192, 8000), hybrid)
    assert (count(fit), 1_077_542 // 8192) == (32, 131)


WINDOWS = layout(term(Keeps.ALL, 2), term(Keeps.WINDOW, 10, 256))


def test_a_window_costs_a_whole_chunk_while_its_prompt_is_read() -> None:
    """The real gemma3_kv8m: 511 usable blocks of 32, one full group and five of a window of 256,
    2,048 tokens in flight. 2,900 + 100 asks for 91 + 5 · min(91, 73) = 456 blocks when let in, and
    holds 94 + 5 · 9 = 139 later: one runs, although 511 // 139 is 3."""
    run = of_blocks(512, 32, length=4096, plain=False, batched=said(2048, TOKENS))
    fit = run.fit(worker(), Request(3000, 2900), WINDOWS)

    asked = 91 + 5 * min(91, -(-(255 + 2048) // 32) + 1)
    filled = -(-2901 // 32) + 5 * (-(-255 // 32) + 1)
    assert (asked, filled, 511 // 139) == (456, 136, 3)
    assert count(fit) == min(511 // 139, 1 + (511 - asked) // filled) == 1
    assert fit is not None
    assert span(fit.admitted) == (1, 1)


def test_a_short_request_pays_its_own_length_in_a_window() -> None:
    """900 + 100 ran five at once there: 29 + 5 · 29 asked for, 32 + 5 · 9 = 77 held."""
    run = of_blocks(512, 32, length=4096, plain=False, batched=said(2048, TOKENS))
    asked, filled, end = 6 * 29, 29 + 5 * 9, -(-999 // 32) + 5 * 9
    fits = min(511 // end, 1 + (511 - asked) // filled)
    assert count(run.fit(worker(), Request(1000, 900), WINDOWS)) == fits == 5


@pytest.mark.parametrize("batched", [512, 1024, 2048, 8192])
def test_more_tokens_in_flight_never_fit_more(batched: int) -> None:
    def fits(size: int) -> tuple[int, int]:
        run = of_blocks(512, 32, length=4096, plain=False, batched=said(size, TOKENS))
        return span(tokens_of(run.fit(worker(), Request(3000, 2900), WINDOWS)))

    assert all(more <= less for more, less in zip(fits(batched), fits(batched // 2), strict=True))


def test_aligned_states_hold_a_second_block_for_a_step_and_leave_bounds() -> None:
    """63 blocks of 128, one full group and three of states: 5 held, 3 more while crossing."""
    hybrid = layout(term(Keeps.ALL, 2), term(Keeps.STATE, 6))
    run = of_blocks(64, 128, length=2048, plain=False, has_states=True, mode="align")
    low, high = span(tokens_of(run.fit(worker(), Request(256, 200), hybrid)))
    assert (low, high) == (63 // (2 + 3 * 2), 63 // (2 + 3))


def test_states_that_never_cross_a_block_are_known() -> None:
    """40 + 20 ran fifteen at once in the real qwen3next_gdn_kv4m: 63 // (1 + 3)."""
    hybrid = layout(term(Keeps.ALL, 2), term(Keeps.STATE, 6))
    run = of_blocks(64, 128, length=2048, plain=False, has_states=True, mode="align")
    assert count(run.fit(worker(), Request(60, 40), hybrid)) == 63 // 4 == 15


@pytest.mark.parametrize("change", [{"length": None}, {"context_parallel": True}])
def test_what_the_groups_do_not_tell_is_left_to_the_tokens(change: dict[str, Any]) -> None:
    assert of_blocks(64, 128, **change).fit(worker(), Request(256, 200), None) is None


def test_groups_that_nobody_tells_are_left_to_the_tokens() -> None:
    """A hybrid without a configuration: a window or states, and how many groups is not said."""
    run = of_blocks(64, 128, plain=False)
    assert run.fit(worker(), Request(256, 200), None) is None


# --- speculative decoding -------------------------------------------------


def test_a_draft_may_reserve_its_tokens_at_the_end_of_a_request() -> None:
    """200 + 57 on blocks of 16: 256 tokens are 16 blocks, and 17 with three proposed ones, as many
    ahead and a step that runs ahead (0.33.0 vllm/v1/core/sched/scheduler.py
    `num_lookahead_tokens`; the scheduler itself was seen to hold them)."""
    run = of_blocks(1000, 16, drafts=said(3, TOKENS))
    value = tokens_of(run.fit(worker(), Request(257, 200), None))
    assert span(value) == (999 // 17, 999 // 16)


def test_a_draft_that_crosses_no_block_leaves_the_count_known() -> None:
    run = of_blocks(1000, 16, drafts=said(3, TOKENS))
    assert 15 * 16 < 245 < 245 + 3 * 3 + 1 <= 16 * 16
    assert count(run.fit(worker(), Request(246, 200), None)) == 999 // 16


def test_a_plain_length_counts_what_drafts_reserve_and_says_so() -> None:
    run = of_blocks(1000, 16, drafts=said(3, TOKENS))
    value = tokens_of(run.fit(worker(), Request(257), None))
    assert isinstance(value, Known)
    assert value.number == 999 // 16
    assert any("drafts" in why for why in value.assuming)


def test_unprinted_tokens_of_a_draft_leave_the_most() -> None:
    run = of_blocks(1000, 16, drafts=UNSAID)
    value = tokens_of(run.fit(worker(), Request(257, 200), None))
    assert isinstance(value, Unknown)
    assert (value.at_least, value.at_most) == (None, 999 // 16)


@pytest.mark.parametrize(("mode", "least"), [("none", 4), ("align", 3), (None, 3)])
def test_a_hybrid_with_a_draft_runs_at_least_what_the_engine_reckons(
    mode: str | None, least: int
) -> None:
    """4.54x: four longest requests, hence four shorter ones; aligned states may hold three blocks
    for a step where two were reckoned."""
    run = admission(
        block=said(800, TOKENS),
        plain=False,
        has_states=True,
        mode=mode,
        drafts=said(3, TOKENS),
        derived=True,
    )
    printed = worker(int(4.54 * CONTEXT), "4.54", CONTEXT)
    value = tokens_of(run.fit(printed, Request(4608, 4096), None))
    assert isinstance(value, Unknown)
    assert (value.at_least, value.at_most) == (least, None)
    assert "speculative" in value.why


# --- the budget -----------------------------------------------------------


def windowed_pool(blocks: int, cap: int, gib: str) -> tuple[VllmAdmission, WorkerFacts]:
    """Five full layers and 25 of a window of 1,024, in one group of five and five of five; a layer
    keeps 4,096 B of a token, so a block of 16 is 5 * 16 * 4,096 B. The tokens are derived, and what
    is in flight is not printed."""
    reckoned = CONTEXT // 16 + 5 * cap
    run = admission(block=said(16, TOKENS), plain=False, derived=True)
    concurrency = known(Decimal(f"{blocks / reckoned:.2f}"), RATIO, Origin.PRINTED)
    size = known(Decimal(gib), GIB, Origin.PRINTED)
    return run, WorkerFacts(
        dp=0,
        tokens=said(int(blocks / reckoned * CONTEXT), TOKENS),
        reported=Reported(request_tokens=CONTEXT, value=concurrency),
        size=size,
    )


def test_the_printed_budget_tells_the_blocks_of_a_windows_model() -> None:
    """30,000 blocks of 327,680 B are 9.16 GiB. A request of 16,384 holds 1,024 full blocks and
    ceil(1,024 / 16) + 1 = 65 in each group of windows, once its prompt is read; the last one asks
    for 221 in each when it is admitted. How many prompts a step reads is not printed: two or three
    at once may want the blocks that the others grow into."""
    model = layout(term(Keeps.ALL, 5), term(Keeps.WINDOW, 25, 1024))
    run, printed = windowed_pool(30_000, cap=221, gib="9.16")
    low, high = span(tokens_of(run.fit(printed, Request(CONTEXT, CONTEXT - 100), model)))
    beside, end = 1018 + 5 * 65, 1024 + 5 * 65
    assert high == min(29_999 // end, 1 + (29_999 - 1018 - 5 * 221) // beside) == 21
    assert 29_999 // (1018 + 5 * 221) <= low <= high


def test_a_configuration_whose_blocks_no_budget_makes_is_not_used() -> None:
    """A model with layers of a tenth would have made ten times the blocks."""
    model = layout(term(Keeps.ALL, 5), term(Keeps.WINDOW, 25, 1024))
    run, printed = windowed_pool(30_000, cap=221, gib="0.92")
    fit = run.fit(printed, Request(CONTEXT, CONTEXT - 100), model)
    assert fit is not None
    assert fit.layout_unused is not None
    value = tokens_of(fit)
    assert isinstance(value, Unknown)
    assert (value.at_least, value.at_most) == (30_000 // (1024 + 5 * 221), None)


# --- a metrics page -------------------------------------------------------


def page(blocks: str = "512", block: str = "32", engine: str = "0", **labels: str) -> MetricSample:
    return MetricSample(
        id="metrics0:vllm:cache_config_info",
        name="vllm:cache_config_info",
        labels={"num_gpu_blocks": blocks, "block_size": block, "engine": engine, **labels},
        value=1.0,
    )


def ledger() -> Ledger:
    return Ledger(
        framework="vllm",
        title="vLLM",
        status=Status.READY,
        reached=None,
        deployment=Deployment(),
        workers=(worker(),),
        admission=admission(),
    )


def fit_of(told: Ledger, request: Request) -> Fit | None:
    assert told.admission is not None
    return told.admission.fit(told.workers[0], request, None)


def test_a_metrics_page_supplies_blocks_and_their_size() -> None:
    assert fit_of(ledger(), Request(560, 60)) is None
    told = with_metrics(ledger(), [page()])
    value = tokens_of(fit_of(told, Request(560, 60)))

    assert isinstance(value, Known)
    assert value.number == 511 // -(-559 // 32)
    assert "metrics0:vllm:cache_config_info" in value.evidence
    assert span(told.deployment.page_size) == (32, 32)


def test_the_block_of_attention_counts_where_a_hybrid_raised_it() -> None:
    told = with_metrics(ledger(), [page(block="16", effective_attention_block_size="128")])
    assert count(fit_of(told, Request(560, 60))) == 511 // -(-559 // 128)


def test_each_engine_has_blocks_of_its_own() -> None:
    two = attrs.evolve(ledger(), workers=(worker(), attrs.evolve(worker(), dp=1)))
    told = with_metrics(two, [page("512"), page("400", engine="1")])
    assert told.admission is not None
    fits = [count(told.admission.fit(w, Request(560, 60), None)) for w in told.workers]
    assert fits == [511 // -(-559 // 32), 399 // -(-559 // 32)]


@pytest.mark.parametrize("derived", [True, False, None])
@pytest.mark.parametrize(("blocks", "fits"), [("512", True), ("511", False), ("101", False)])
def test_blocks_that_cannot_give_the_printed_figures_are_named_and_not_used(
    blocks: str, fits: bool, derived: bool | None
) -> None:
    """512 blocks of 32 tokens print 16,384 tokens and 4.00x at 4,096, in both meanings."""
    run = admission(derived=derived, block=said(32, TOKENS), length=4096)
    logged = attrs.evolve(ledger(), workers=(worker(16_384, "4.00", 4096),), admission=run)
    told = with_metrics(logged, [page(blocks)])
    assert [f.code for f in told.findings] == ([] if fits else ["metrics-disagree"])
    assert count(fit_of(told, Request(560, 60))) == 511 // -(-559 // 32)


@pytest.mark.parametrize("blocks", ["0", "-3", "1e400", "\N{SUPERSCRIPT TWO}", "9" * 35, "NaN"])
def test_a_label_that_is_no_count_says_nothing(blocks: str) -> None:
    assert with_metrics(ledger(), [page(blocks, block=blocks)]) == ledger()


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_a_sample_that_is_not_one_is_no_info(value: float) -> None:
    assert with_metrics(ledger(), [attrs.evolve(page(), value=value)]) == ledger()


@pytest.mark.parametrize("blocks", ["None", "", "many"])
def test_blocks_that_a_page_does_not_say_stay_unknown(blocks: str) -> None:
    assert fit_of(with_metrics(ledger(), [page(blocks)]), Request(560, 60)) is None


def test_a_page_of_another_framework_changes_nothing() -> None:
    other = MetricSample(
        id="metrics0:sglang:page_size", name="sglang:page_size", labels={}, value=1
    )
    assert with_metrics(ledger(), [other]) == ledger()


# --- properties -----------------------------------------------------------

KINDS_OF_GROUPS = st.sampled_from(
    [
        "1 full 16",
        "2 full 64",
        "1 win 32/1024",
        "1 full 16 + 3 win 16/1024",
        "1 full 128 + 2 win 128/512",
        "1 full 32 + 3 chunk 32/2048",
        "1 full 784 + 3 state 784",
        "1 full 32 + 2 state 32 + 1 win 32/256",
    ]
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    lag = draw(st.integers(0, 1))
    batched = draw(st.sampled_from([64, 2048, 8192]))
    return Plan(
        groups=groups(draw(KINDS_OF_GROUPS)),
        states=draw(st.integers(1, 3)),
        in_flight=batched * (1 + lag),
        step=batched,
        lag=lag,
    )


TOKENS_OF = st.integers(1, 9000)


def fits(plan: Plan, usable: int, prompt: int, output: int) -> tuple[int, int]:
    return plan.fit(usable, prompt, output, CONTEXT)


@given(plans(), st.integers(0, 5000), TOKENS_OF, st.integers(1, 5000))
def test_the_least_is_never_above_the_most(
    plan: Plan, usable: int, prompt: int, output: int
) -> None:
    low, high = fits(plan, usable, prompt, output)
    assert 0 <= low <= high


@given(plans(), st.integers(0, 5000), TOKENS_OF, st.integers(1, 5000), st.integers(1, 2000))
def test_more_tokens_never_fit_more(
    plan: Plan, usable: int, prompt: int, output: int, more: int
) -> None:
    """What fits at most; so a known count never grows with the tokens, either. What surely fits
    beside prompts may: longer prompts are read by fewer at once."""
    low, high = fits(plan, usable, prompt, output)
    for less, greater in (
        fits(plan, usable, prompt + more, output),
        fits(plan, usable, prompt, output + more),
    ):
        assert greater <= high
        assert less <= (high if plan.windowed else low)


@given(plans(), st.integers(0, 5000), TOKENS_OF, st.integers(1, 5000), st.integers(1, 2000))
def test_more_blocks_never_fit_fewer(
    plan: Plan, usable: int, prompt: int, output: int, more: int
) -> None:
    few, many = fits(plan, usable, prompt, output), fits(plan, usable + more, prompt, output)
    assert all(less <= greater for less, greater in zip(few, many, strict=True))


@given(
    st.integers(2, 4000),
    st.sampled_from([16, 32, 128]),
    st.integers(1, 4000),
    st.integers(1, 4000),
)
def test_a_length_without_a_split_covers_every_split(
    blocks: int, block: int, prompt: int, output: int
) -> None:
    run = of_blocks(blocks, block, plain=False, batched=said(2048, TOKENS))
    low, high = span(tokens_of(run.fit(worker(), Request(prompt + output), WINDOWS)))
    split_low, split_high = span(
        tokens_of(run.fit(worker(), Request(prompt + output, prompt), WINDOWS))
    )
    assert low <= split_low <= split_high <= high


# --- what prompts hold beside those that generate -------------------------


@pytest.mark.parametrize("prompt", [510, 511, 512, 638, 639, 640])
@pytest.mark.parametrize("lag", [0, 1])
def test_prompts_that_hold_chunks_while_others_grow_lower_what_surely_fits(
    prompt: int, lag: int
) -> None:
    """One group of full attention and five of a window of one block, 63 usable blocks of 128, 2,048
    tokens a step. Counted by hand: m requests hold 6 blocks and one of full attention for each 128
    tokens, k prompts beside them ceil(prompt / 128) in each of six groups; if those fit and the m
    want their next six blocks beyond what is left, one of them is preempted."""
    full = Group(keeps=Keeps.ALL, count=1, block=128)
    windows = Group(keeps=Keeps.WINDOW, count=5, block=128, window=128)
    plan = Plan(groups=(full, windows), step=2048, in_flight=2048 * (1 + lag), lag=lag)
    low, high = plan.fit(63, prompt, 10, 4096)
    whole = -(-prompt // 128)
    steady = -(-127 // 128)  # the fewest blocks of a window of 128
    for prompts in range(1, 2048 // prompt + 1):
        for others in range(1, 64):
            begins = others * (whole + 5 * steady) + prompts * 6 * whole <= 63
            grows = others * (-(-(prompt + 9) // 128) + 5 * 2) + prompts * 6 * whole > 63
            if begins and grows:
                assert low < prompts + others or low == 0
    assert 0 <= low <= high


def test_a_length_without_a_split_is_safe_for_the_worst_one() -> None:
    plan = Plan(
        groups=(
            Group(keeps=Keeps.ALL, count=1, block=16),
            Group(keeps=Keeps.WINDOW, count=1, block=16, window=64),
        ),
        step=2048,
        in_flight=2048,
    )
    # 299 tokens are 19 blocks in each group while the prompt is read.
    assert plan.surely(100, 300, 4096) == 100 // (19 + 19)


# --- engines before V1, states alone, ranks that share tokens -------------


@pytest.mark.parametrize(
    ("blocks", "prompt", "output", "fits"),
    [
        (16, 200, 56, 7),  # 15 // 2; eight were preempted (0.9.2's own scheduler)
        (16, 200, 57, 7),  # the last token takes no slot
        (16, 200, 58, 5),
        (1000, 100, 28, 990),  # ten of a thousand blocks stay free before a prompt is admitted
    ],
)
def test_the_scheduler_before_v1_keeps_a_block_free(
    blocks: int, prompt: int, output: int, fits: int
) -> None:
    run = FormerAdmission(block=128)
    pool = attrs.evolve(worker(), tokens=said(blocks * 128, TOKENS))
    assert count(run.fit(pool, Request(prompt + output, prompt), None)) == fits


def test_ranks_of_decode_context_parallel_share_a_block() -> None:
    """200 + 58 on two ranks and blocks of 16: 257 tokens are 9 blocks of 32."""
    run = of_blocks(301, 16, shards=2)
    assert count(run.fit(worker(), Request(258, 200), None)) == 300 // 9


def test_states_of_a_whole_length_lie_in_groups_of_their_own() -> None:
    """Sizes (32, 2048, 2048, 2048), mode none: ceil(256 / 32) blocks and three states."""
    run = of_blocks(
        128,
        32,
        length=2048,
        plain=False,
        has_states=True,
        mode="none",
        sizes=(32, 2048, 2048, 2048),
    )
    assert count(run.fit(worker(), Request(257, 200), None)) == 127 // (8 + 3)


def test_blocks_concurrency_and_tokens_in_flight_tell_a_window() -> None:
    """512 blocks of 32 in six groups print 1.04x and 4,253 tokens for 4,096. The 493 blocks that
    this reserves are 128 of one full group and 73 of each other: a window of 226 to 257 beside
    2,048 tokens. 900 + 100 hold 32 blocks and 8 or 9 in each of five, after 29 in each: five at
    once, as a real engine was seen to run with a window of 256 (shared/live/README.md)."""
    known_m = of_blocks(
        512,
        32,
        length=4096,
        plain=False,
        derived=True,
        sizes=(32,) * 6,
        batched=said(2048, TOKENS),
        async_known=False,
    )
    printed = attrs.evolve(
        worker(),
        tokens=said(4253, TOKENS),
        reported=Reported(request_tokens=4096, value=known(Decimal("1.04"), RATIO, Origin.PRINTED)),
    )
    fit = span(tokens_of(known_m.fit(printed, Request(1000, 900), None)))
    least, most = (min(511 // (32 + 5 * h), 1 + (511 - 6 * 29) // (29 + 5 * h)) for h in (9, 8))
    assert fit == (least, most) == (5, 5)
    unsaid = attrs.evolve(known_m, printed=attrs.evolve(known_m.printed, batched=UNSAID))
    low, high = span(tokens_of(unsaid.fit(printed, Request(1000, 900), None)))
    assert low < 5 < high


def test_blocks_given_ahead_leave_bounds_up_to_0_8_4() -> None:
    """200 + 57 on blocks of 16: 256 tokens are 16 blocks, and four more for 64 tokens ahead; 5 of
    16 + 4 ran in 101 blocks of 0.8.3, not 6 (its own cache manager)."""
    low, high = span(
        tokens_of(of_blocks(101, 16, preallocates=True).fit(worker(), Request(257, 200), None))
    )
    assert (low, high) == (100 // 20, 100 // 16) == (5, 6)


def test_states_alone_take_a_block_of_the_whole_length() -> None:
    """0.20 prints 64 blocks of a state as 64 * 2,048 tokens and 64.00x; 63 are usable."""
    run = admission(length=2048, plain=True, derived=False, possible=(16, 32), sizes=(), mode=None)
    printed = attrs.evolve(
        worker(),
        tokens=said(64 * 2048, TOKENS),
        reported=Reported(
            request_tokens=2048, value=known(Decimal("64.00"), RATIO, Origin.PRINTED)
        ),
    )
    low, _ = span(tokens_of(run.fit(printed, Request(256, 200), layout(term(Keeps.STATE, 8)))))
    assert low <= 63
