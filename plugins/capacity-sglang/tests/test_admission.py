"""How many requests SGLang's pools take: the full pool, the window's, and slots of states.

Rules and the figures of one request's share of a window's pool are those of 0.5.23
(srt/managers/schedule_policy.py, srt/mem_cache/common.py:76, kv_cache_configurator.py:3062); the
latter were had by simulating that code's eviction by hand for the cases named.
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
from capacity_core.api.ledger import Deployment, Ledger, Pool, Role, Status, WorkerFacts
from capacity_core.api.metrics import MetricSample
from capacity_core.api.report import LayoutRow, TermRow
from capacity_core.units import BYTES_PER_TOKEN, GIB, SLOTS, TOKENS, Unit
from capacity_core.values import Known, Origin, Unknown, Value, known
from capacity_sglang.admission import SglangAdmission
from capacity_sglang.metrics import with_metrics

UNSAID = Unknown(why="not printed", unit=TOKENS)
NO_SLOTS = Unknown(why="not printed", unit=SLOTS)


def said(amount: int, unit: Unit = TOKENS, line: int = 1) -> Known:
    return known(Decimal(amount), unit, Origin.PRINTED, how="a line", evidence=(f"log0:{line}",))


def admission(**more: Any) -> SglangAdmission:
    """A hybrid's pools of 100,000 and 20,000 tokens in pages of 1, with what a test says."""
    hybrid: dict[str, Any] = {
        "page": said(1),
        "window_tokens": said(20_000, line=2),
        "alone": False,
        "unified": False,
        "chunk": said(2048),
        "cached": True,
        "ahead": True,
        "slots_each": NO_SLOTS,
        "reserved": None,
        "since": (0, 5, 23),
    }
    return SglangAdmission(**(hybrid | more))


def worker(tokens: int | None = 100_000, slots: int | None = None) -> WorkerFacts:
    return WorkerFacts(
        dp=0,
        tokens=UNSAID if tokens is None else said(tokens),
        state_slots=None if slots is None else said(slots, SLOTS, line=3),
    )


def layout(window: int | None = 1024) -> LayoutRow:
    """A model with full layers and such a window; only the window counts here."""
    nothing = Unknown(why="not needed here", unit=BYTES_PER_TOKEN)
    size = None if window is None else known(window, TOKENS, Origin.THEORETICAL, how="config")
    term = TermRow(
        name="window",
        layers=5,
        keeps=Keeps.WINDOW,
        bytes_per_token=nothing,
        window_tokens=size,
        fixed_bytes_per_request=None,
        formula=None,
        source=None,
    )
    return LayoutRow(
        name="made-up",
        family=None,
        source=None,
        formula=None,
        dtype=Unknown(why="not needed here"),
        terms=(term,),
        bytes_per_token=nothing,
        window_bytes_per_token=nothing,
        window_tokens=UNSAID if size is None else size,
        fixed_bytes_per_request=nothing,
        replication=nothing,
        pool_bytes_per_token=nothing,
    )


def span(value: Value | None) -> tuple[int, int]:
    """Both bounds, equal where the count is known."""
    assert value is not None
    low, high = value.interval
    assert low is not None
    assert high is not None
    return int(low), int(high)


def tokens_of(fit: Fit | None) -> Value:
    assert fit is not None
    assert fit.tokens is not None
    return fit.tokens


def by_pools(request: Request, window: int | None = 1024, **more: Any) -> tuple[int, int]:
    full = more.pop("full", 100_000)
    return span(tokens_of(admission(**more).fit(worker(full), request, layout(window))))


# --- both pools -----------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "page", "cached", "held"),
    [(128, 256, True, 1024), (128, 256, False, 512), (1024, 1, True, 2178), (1024, 1, False, 1154)],
)
@pytest.mark.parametrize("pool", [9_984, 40_960, 100_096])
def test_the_windows_pool_limits_where_it_is_small(
    window: int, page: int, cached: bool, held: int, pool: int
) -> None:
    """8,000 + 1,200: a request holds so many tokens of the window's pool, beside two chunks of
    2,048 and a page that prefill meanwhile: (pool - 4,096 - page) // held."""
    low, high = by_pools(
        Request(9200, 8000),
        window,
        page=said(page),
        cached=cached,
        window_tokens=said(pool),
        full=10_000_128,
    )
    assert low <= (pool - 2 * 2048 - page) // held <= high
    assert high <= pool // window
    assert low > 0 or pool < 10_000


def test_the_full_pool_limits_where_it_is_small() -> None:
    """20,002 // 5,000 = 4, and a window's pool of a million takes hundreds; the fourth of 20,000 is
    not let in beside three: 5,000 + 1 must be less than the 5,000 that are left."""
    huge = said(1_000_000)
    assert by_pools(Request(5000, 4000), full=20_002, window_tokens=huge) == (4, 4)
    assert by_pools(Request(5000, 4000), full=20_000, window_tokens=huge) == (3, 4)


def test_the_lesser_of_both_pools_is_the_bound() -> None:
    """100,000 // 5,000 = 20 by the full pool; 20,000 // 1,024 = 19 windows at most."""
    low, high = by_pools(Request(5000, 4000))
    assert high == min(100_000 // 5000, 20_000 // 1024) == 19
    assert low < high


def test_a_request_shorter_than_its_window_holds_itself_alone() -> None:
    """100 tokens, the last of which may take no slot: 20,000 // 99 = 202 at most, less what is
    prefilled at the time."""
    low, high = by_pools(Request(100, 60))
    assert high == 20_000 // 99
    assert 0 < low <= high


def test_tokens_are_taken_in_whole_pages() -> None:
    """5,001 tokens are 79 pages of 64 = 5,056: 100,000 // 5,056 = 19, not 100,000 // 5,001."""
    assert (-(-5001 // 64) * 64, 50_560 // 5056, 50_560 // 5001) == (5056, 10, 10)
    huge = said(1_000_000_000)
    assert by_pools(Request(5001, 4000), page=said(64), full=50_559, window_tokens=huge) == (9, 9)
    assert by_pools(Request(5001, 4000), page=said(64), full=50_560, window_tokens=huge) == (9, 10)
    assert by_pools(Request(5001, 4000), page=said(64), full=50_625, window_tokens=huge) == (10, 10)


def test_a_pool_too_small_for_what_prefills_may_take_none() -> None:
    """3,000 tokens, of which two chunks of 2,048 may be in flight: at least none, at most two."""
    assert by_pools(Request(5000, 4000), window_tokens=said(3000)) == (0, 3000 // 1024)


def test_scheduling_a_step_ahead_prefills_two_chunks_at_once() -> None:
    ahead = by_pools(Request(9200, 8000), window_tokens=said(60_000), ahead=True, full=10_000_000)
    alone = by_pools(Request(9200, 8000), window_tokens=said(60_000), ahead=False, full=10_000_000)
    unsaid = by_pools(Request(9200, 8000), window_tokens=said(60_000), ahead=None, full=10_000_000)
    assert ahead[0] <= alone[0]
    assert unsaid[0] == ahead[0]  # the worse of the two while it is not said


def test_bounds_cite_both_pools_and_say_what_leaves_them_open() -> None:
    value = tokens_of(admission().fit(worker(), Request(5000, 4000), layout()))
    assert isinstance(value, Unknown)
    assert value.why
    assert {"log0:1", "log0:2"} <= set(value.evidence)


# --- what is not known stays unknown --------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {"page": UNSAID},
        {"window_tokens": UNSAID},
        {"unified": True},
    ],
    ids=lambda more: next(iter(more)),
)
def test_without_one_of_the_sizes_nothing_is_added_to_the_tokens(more: dict[str, Any]) -> None:
    assert admission(**more).fit(worker(), Request(5000, 4000), layout()) is None


def test_a_draft_leaves_the_most_of_both_pools() -> None:
    value = tokens_of(admission(reserved=said(8)).fit(worker(), Request(5000, 4000), layout()))
    assert isinstance(value, Unknown)
    assert (value.at_least, value.at_most) == (None, 20_000 // 1024)
    assert "draft" in value.why


@pytest.mark.parametrize(
    ("page", "pool", "reserved", "low", "high"),
    [
        (128, 802_688, 8, 169, 174),  # 37 pages of 128 with 4,607 + 8, 36 without
        (128, 527_360, 4, 111, 114),
        (1, 100_000, 8, 100_000 // 4616, 100_000 // 4607),
        (1, 100_000, None, 21, 21),
    ],
)
def test_a_drafts_tokens_are_reserved_at_the_end_of_a_request(
    page: int, pool: int, reserved: int | None, low: int, high: int
) -> None:
    """4,096 + 512 of a plain model: SGLang 0.5.23 srt/speculative/allocation_sizing.py:82 allocates
    up to ceil(tokens + twice a step's)."""
    run = admission(
        page=said(page),
        window_tokens=UNSAID,
        alone=True,
        reserved=None if reserved is None else said(reserved),
    )
    assert span(tokens_of(run.fit(worker(pool), Request(4608, 4096), None))) == (low, high)


def test_unprinted_tokens_of_a_draft_leave_a_bound() -> None:
    run = admission(window_tokens=UNSAID, alone=True, reserved=UNSAID)
    value = tokens_of(run.fit(worker(100_000), Request(4608, 4096), None))
    assert isinstance(value, Unknown)
    assert (value.at_least, value.at_most) == (None, 100_000 // 4607)


def test_the_windows_pool_is_what_was_allocated_where_no_split_is_printed() -> None:
    """In cap mode no line prints the split."""
    size = known(1, GIB, Origin.PRINTED, how="a line")
    pool = Pool(role=Role.TARGET, label="swa", tokens=said(20_000, line=7), size=size)
    sized = attrs.evolve(worker(), pools=(pool,))
    run = admission(window_tokens=UNSAID)
    value = tokens_of(run.fit(sized, Request(5000, 4000), layout()))
    assert value.interval[1] == 20_000 // 1024
    assert "log0:7" in value.evidence


def test_without_a_configuration_or_its_window_nothing_is_added() -> None:
    assert admission().fit(worker(), Request(5000, 4000), None) is None
    assert admission().fit(worker(), Request(5000, 4000), layout(None)) is None


def test_a_pool_that_is_not_printed_gives_no_count() -> None:
    assert admission().fit(worker(None), Request(5000, 4000), layout()) is None


def test_an_unsaid_split_never_promises_more_than_a_said_one() -> None:
    unsaid = by_pools(Request(9200))
    for prompt in (1, 1000, 8000, 9199):
        split = by_pools(Request(9200, prompt))
        assert unsaid[0] <= split[0] <= split[1] <= unsaid[1]


# --- states ---------------------------------------------------------------


@pytest.mark.parametrize(("each", "fits"), [(1, 361), (3, 120), (4, 90), (5, 72)])
def test_states_are_slots_over_those_of_a_request(each: int, fits: int) -> None:
    """361 slots: 361, 120, 90 and 72 requests."""
    plain = admission(window_tokens=UNSAID, slots_each=said(each, SLOTS, line=4))
    fit = plain.fit(worker(slots=361), Request(5000), None)
    assert fit is not None
    assert fit.tokens is None
    assert span(fit.state) == (fits, fits)
    assert fit.state is not None
    assert {"log0:3", "log0:4"} <= set(fit.state.evidence)


def test_slots_of_an_unprinted_strategy_are_a_bound() -> None:
    """A request takes one slot or more."""
    fit = admission(window_tokens=UNSAID).fit(worker(slots=361), Request(5000), None)
    assert fit is not None
    assert isinstance(fit.state, Unknown)
    assert fit.state.why
    assert fit.state.at_least is None
    assert fit.state.at_most == 361


def test_what_the_number_of_slots_assumes_is_kept() -> None:
    each = said(5, SLOTS).assume("a variable is not set")
    fit = admission(window_tokens=UNSAID, slots_each=each).fit(
        worker(slots=361), Request(5000), None
    )
    assert fit is not None
    assert isinstance(fit.state, Known)
    assert fit.state.assuming == ("a variable is not set",)


def test_a_model_without_states_has_no_limit_by_them() -> None:
    fit = admission(slots_each=said(3, SLOTS)).fit(worker(), Request(5000, 4000), layout())
    assert fit is not None
    assert fit.state is None


# --- a metrics page -------------------------------------------------------


def gauge(name: str, value: float, rank: str = "0") -> MetricSample:
    return MetricSample(
        id=f"metrics0:sglang:{name}", name=f"sglang:{name}", labels={"tp_rank": rank}, value=value
    )


def ledger(**more: Any) -> Ledger:
    fields: dict[str, Any] = {
        "framework": "sglang",
        "title": "SGLang",
        "status": Status.READY,
        "reached": None,
        "deployment": Deployment(),
        "workers": (worker(None),),
        "admission": admission(page=Deployment().page_size, window_tokens=UNSAID, alone=True),
    }
    return Ledger(**(fields | more))


def test_gauges_supply_pages_and_both_pools() -> None:
    told = with_metrics(
        ledger(),
        [
            gauge("page_size", 1),
            gauge("max_total_num_tokens", 100_000),
            gauge("max_total_num_tokens_swa", 20_000),
        ],
    )
    assert told.admission is not None
    fit = told.admission.fit(told.workers[0], Request(5000, 4000), layout())
    value = tokens_of(fit)
    assert span(value)[1] == 20_000 // 1024
    assert "metrics0:sglang:max_total_num_tokens_swa" in value.evidence


def test_a_log_comes_before_a_metrics_page() -> None:
    told = with_metrics(ledger(workers=(worker(90_000),)), [gauge("max_total_num_tokens", 100_000)])
    assert span(told.workers[0].tokens) == (90_000, 90_000)


def test_a_page_against_the_log_is_named_and_not_used() -> None:
    told = with_metrics(ledger(workers=(worker(90_000),)), [gauge("max_total_num_tokens", 100_000)])
    (finding,) = told.findings
    assert finding.code == "metrics-disagree"
    assert "100,000" in finding.message
    assert "90,000" in finding.message


def test_each_scheduler_has_gauges_of_its_own() -> None:
    first, second = worker(None), attrs.evolve(worker(None), dp=1)
    samples = [
        MetricSample(
            id=f"metrics0:{rank}",
            name="sglang:max_total_num_tokens",
            labels={"dp_rank": str(rank)},
            value=float(tokens),
        )
        for rank, tokens in enumerate((100_000, 99_000))
    ]
    told = with_metrics(ledger(workers=(first, second)), samples)
    assert [span(w.tokens)[0] for w in told.workers] == [100_000, 99_000]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.0, -5.0, 1e300])
def test_a_gauge_that_is_no_count_says_nothing(value: float) -> None:
    assert with_metrics(ledger(), [gauge("max_total_num_tokens", value)]) == ledger()


def test_the_least_of_several_ranks_counts() -> None:
    samples = [gauge("max_total_num_tokens", 100_000), gauge("max_total_num_tokens", 99_000, "1")]
    assert span(with_metrics(ledger(), samples).workers[0].tokens) == (99_000, 99_000)


def test_a_page_of_another_framework_changes_nothing() -> None:
    other = MetricSample(id="metrics0:vllm:x", name="vllm:x", labels={}, value=1.0)
    assert with_metrics(ledger(), [other]) == ledger()


# --- properties -----------------------------------------------------------


@st.composite
def runs(draw: st.DrawFn) -> SglangAdmission:
    return admission(
        page=said(draw(st.sampled_from([1, 16, 64, 256]))),
        window_tokens=said(draw(st.integers(1, 60_000))),
        chunk=draw(st.sampled_from([UNSAID, said(512), said(8192)])),
        cached=draw(st.sampled_from([True, False, None])),
        ahead=draw(st.sampled_from([True, False, None])),
    )


@given(runs(), st.integers(1, 8000), st.integers(1, 4000), st.integers(1, 4000))
def test_more_output_never_fits_more_and_the_least_is_below_the_most(
    run: SglangAdmission, prompt: int, output: int, more: int
) -> None:
    few = span(tokens_of(run.fit(worker(), Request(prompt + output, prompt), layout())))
    many = span(tokens_of(run.fit(worker(), Request(prompt + output + more, prompt), layout())))
    assert 0 <= few[0] <= few[1]
    assert all(less <= greater for less, greater in zip(many, few, strict=True))


@given(runs(), st.integers(1, 8000), st.integers(1, 4000), st.integers(1, 50_000))
def test_a_larger_windows_pool_never_fits_fewer(
    run: SglangAdmission, prompt: int, output: int, more: int
) -> None:
    assert isinstance(run.window_tokens, Known)
    larger = attrs.evolve(run, window_tokens=said(int(run.window_tokens.number) + more))
    request = Request(prompt + output, prompt)
    few = span(tokens_of(run.fit(worker(), request, layout())))
    many = span(tokens_of(larger.fit(worker(), request, layout())))
    assert all(less <= greater for less, greater in zip(few, many, strict=True))


# --- releases and roles ---------------------------------------------------


@pytest.mark.parametrize(
    ("since", "held"),
    [
        # 4,096 + 512 in pages of 1, a window of 128, chunks of 8,192, the radix cache on. The whole
        # prompt is one chunk and stays locked (0.5.15 mem_cache/swa_radix_cache.py:670).
        ((0, 5, 15), 4096 + 128 + 128 + 2),
        ((0, 5, 12), 4096 + 128 + 128 + 1 + 2),
        ((0, 5, 5), 4096 + 512),  # nothing that is generated leaves (0.5.5 mem_cache/common.py:428)
        ((0, 5, 16), 2 * 128 + 128 + 128 + 2),
    ],
)
def test_what_the_radix_cache_locks_depends_on_the_release(
    since: tuple[int, ...], held: int
) -> None:
    pool = 480_000
    low, high = by_pools(
        Request(4608, 4096),
        128,
        since=since,
        window_tokens=said(pool),
        full=100_000_000,
        chunk=said(8192),
    )
    spare = min(2 * 8192 + 1, 2 * 4608)
    assert low == (pool - spare) // held
    assert low <= pool // held <= high == pool // 128


def test_without_a_range_of_releases_the_oldest_rules_bound() -> None:
    old, unsaid = (
        by_pools(Request(4608, 4096), 128, since=since, full=10_000_000)
        for since in ((0, 5, 5), ())
    )
    assert old == unsaid


def alone(**more: Any) -> SglangAdmission:
    """One pool that grows with the tokens."""
    return admission(window_tokens=UNSAID, **({"alone": True} | more))


def count(request: Request, pool: int, **more: Any) -> tuple[int, int]:
    return span(tokens_of(alone(**more).fit(worker(pool), request, None)))


def test_a_window_pool_of_no_tokens_is_none() -> None:
    """0.5.23 with encoder-swa-bounded-replay prints swa=0: buffers of requests keep the windows."""
    fit = admission(window_tokens=said(0)).fit(worker(100_000), Request(4608, 4096), layout())
    assert span(tokens_of(fit)) == (21, 21)


def test_a_server_that_prefills_generates_one_token() -> None:
    """300,000 // 513 = 584 and 408 tokens are left: no 585th, and the last is admitted beside a
    page (0.5.23 disaggregation/prefill.py:482)."""
    assert count(Request(4608, 512), 300_000, role="prefill") == (584, 585)
    assert (300_000 // 513, 300_000 // 512) == (584, 585)


@pytest.mark.parametrize(("output", "most"), [(16, 198), (512, 198), (4096, 58)])
def test_a_server_that_decodes_keeps_tokens_free(output: int, most: int) -> None:
    """1,000 + 512 kept free for each (0.5.12 disaggregation/decode.py:853, 1045):
    300,000 // 1,512 = 198."""
    request = Request(1000 + output, 1000)
    low, high = count(request, 300_000, role="decode", kept_free=said(512))
    assert high == most == 300_000 // (1000 + max(output, 512))
    # All but the last one have generated their output and keep 512 more free.
    last = max(1000 + 512, 1000 + output)
    assert low == min(most, 1 + (300_000 - last) // (1000 + output - 1 + 512))


@pytest.mark.parametrize(("pool", "low", "high"), [(102_400, 99, 100), (102_913, 100, 100)])
def test_the_last_request_is_admitted_beside_a_page(pool: int, low: int, high: int) -> None:
    """1,000 + 24 in pages of 256: 100 are 102,400; the last asks for 1,024 + 256 to be less than
    what is left (0.5.12 managers/schedule_policy.py:851)."""
    assert (pool - 99 * 1024 > 1024 + 256) == (low == 100)
    assert count(Request(1024, 1000), pool, page=said(256)) == (low, high)


def test_ranks_of_decode_context_parallel_share_tokens_in_pages_of_all() -> None:
    """8 ranks of 400,000 tokens and pages of 1: 3,200,000 // 4,608 = 694."""
    shared = {"shards": 8, "pool_shards": (8, 8)}
    assert count(Request(4608, 4096), 400_000, **shared) == (694, 694)
    assert span(tokens_of(alone(**shared).fit(worker(400_000), Request(4096), None))) == (781, 781)
    assert count(Request(4608, 4096), 400_000, shards=8, pool_shards=(1, 8)) == (86, 694)


def test_states_that_the_printed_limit_counts_leave_it_as_it_is() -> None:
    """From 0.5.4 the request limit is no more than slots allow (model_runner.py:1659)."""
    counted = alone(limit_has_states=True).fit(worker(100_000, slots=360), Request(4096), None)
    assert counted is None or counted.state is None
    fit = alone().fit(worker(100_000, slots=360), Request(4096), None)
    assert fit is not None
    assert isinstance(fit.state, Unknown)
