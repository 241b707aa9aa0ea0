"""From ledgers to answers: breakdown, devices, concurrency, devices' names, findings, advice."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity_core.accounting.advice import advise
from capacity_core.accounting.breakdown import rank_row
from capacity_core.accounting.concurrency import concurrency
from capacity_core.accounting.devices import ORDER, by_rank
from capacity_core.accounting.findings import contradictions
from capacity_core.accounting.gpus import candidates, gpu_row, resolved
from capacity_core.api.admission import Request
from capacity_core.api.device_readers import DeviceReading
from capacity_core.api.gpu_specs import GpuSpec
from capacity_core.api.ledger import (
    Category,
    Checkpoint,
    Deployment,
    KvFacts,
    Ledger,
    Levers,
    Parallel,
    RankFacts,
    RankId,
    Role,
    Stage,
    Status,
    TokenUse,
    WorkerFacts,
)
from capacity_core.api.report import Concurrency
from capacity_core.errors import UsageError
from capacity_core.units import (
    BYTES_PER_TOKEN,
    COUNT,
    GIB,
    MIB,
    RATIO,
    REQUESTS,
    TOKENS,
    Mib,
    Unit,
)
from capacity_core.values import Known, Origin, Unknown, Value, known, text


def printed(amount: str | int, unit: Unit = GIB) -> Known:
    return known(Decimal(amount), unit, Origin.PRINTED, evidence=("log0:1",))


def rank(tp: int = 0, *, before: str = "78.50", ready: str = "10.00", **memory: Value) -> RankFacts:
    sizes = {Category(name): value for name, value in memory.items()}
    return RankFacts(
        id=RankId(tp=tp),
        label=f"TP{tp}",
        memory=sizes,
        timeline=tuple(
            Checkpoint(stage=stage, role=Role.TARGET, free=printed(free))
            for stage, free in ((Stage.BEFORE_WEIGHTS, before), (Stage.READY, ready))
        ),
    )


def reading(used: int, free: int, line: int = 1) -> DeviceReading:
    nothing = Unknown(why="not asked for", unit=MIB)
    return DeviceReading(
        index=line - 1,
        name=None,
        used=known(used, MIB, Origin.MEASURED, evidence=(f"smi0:{line}",)),
        free=known(free, MIB, Origin.MEASURED, evidence=(f"smi0:{line}",)),
        total=nothing,
        reserved=nothing,
        line=line,
    )


FULL = {
    "weights": printed("15.50"),
    "kv_pool": printed("50.00"),
    "cuda_graph": printed("1.20"),
}


def amount(value: Value) -> float:
    assert isinstance(value, Known)
    return float(value.number)


def test_categories_and_other_add_up_to_used() -> None:
    row = rank_row(rank(**FULL), reading(70000, 11080))
    memory = {name: cell.value for name, cell in row.memory.items()}
    assert amount(memory["framework"]) == pytest.approx(81080 / 1024 - 78.5)
    parts = ("framework", "weights", "kv_pool", "cuda_graph", "other")
    assert sum(amount(memory[name]) for name in parts) == pytest.approx(70000 / 1024)
    assert row.share_of == "used"


@pytest.mark.parametrize("absent", ["weights", "kv_pool", "cuda_graph"])
def test_a_category_that_is_not_said_leaves_the_rest_unknown(absent: str) -> None:
    said = {name: value for name, value in FULL.items() if name != absent}
    row = rank_row(rank(**said), reading(70000, 11080))
    for name in (absent, "other", "unattributed"):
        assert isinstance(row.memory[name].value, Unknown), name


def test_an_unknown_state_pool_counts_as_nothing_and_a_known_one_counts() -> None:
    without = rank_row(rank(**FULL), None).memory["unattributed"].value
    counted = rank_row(rank(**FULL, state_pool=printed("1.50")), None).memory["unattributed"].value
    assert amount(without) - amount(counted) == pytest.approx(1.5)


def test_without_a_device_reading_used_free_other_and_framework_are_unknown() -> None:
    row = rank_row(rank(**FULL), None)
    for name in ("used", "free", "other", "framework", "total"):
        assert isinstance(row.memory[name].value, Unknown), name
    assert row.share_of == "free[before_weights]"


def test_parts_beyond_used_are_a_finding_and_the_rest_stays_negative() -> None:
    row = rank_row(rank(**FULL), reading(30000, 51080))
    assert amount(row.memory["other"].value) < 0
    ledger = make_ledger(ranks=(rank(**FULL),))
    assert [f.code for f in contradictions(ledger, [row])] == ["parts-exceed-used"]


def test_a_negative_category_is_a_finding() -> None:
    row = rank_row(rank(weights=printed("-10.00")), None)
    assert [f.code for f in contradictions(make_ledger(), [row])] == ["negative-category"]


# --- devices ----------------------------------------------------------


def test_device_rows_are_ranks_in_order_as_an_assumption() -> None:
    ranks = (rank(0), rank(1))
    rows, findings = by_rank(
        [[reading(70000, 11080), reading(60000, 21080, 2)]], ranks, Deployment()
    )
    assert findings == []
    second = rows[ranks[1].id]
    assert amount(second.used) == 60000
    assert isinstance(second.used, Known)
    assert second.used.assuming == (ORDER,)


def test_device_rows_out_of_order_are_ranks_by_their_numbers() -> None:
    ranks = (rank(0), rank(1))
    backwards = [reading(60000, 21080, 2), reading(70000, 11080)]
    rows, _ = by_rank([backwards], ranks, Deployment())
    assert [amount(rows[each.id].used) for each in ranks] == [70000, 60000]


def test_one_shown_rank_of_eight_finds_its_row_by_its_number() -> None:
    deployment = Deployment(parallel=Parallel(tensor=known(8, COUNT, Origin.CONFIGURED)))
    readings = [reading(70000 + n, 11080, n + 1) for n in range(8)]
    rows, findings = by_rank([readings], (rank(5),), deployment)
    assert findings == []
    assert amount(rows[RankId(tp=5)].used) == 70005


def test_rows_that_cannot_be_these_ranks_are_not_used() -> None:
    rows, findings = by_rank([[reading(1, 2), reading(3, 4, 2)]], (rank(0),), Deployment())
    assert (rows, [f.code for f in findings]) == ({}, ["device-rows-unmatched"])
    rows, findings = by_rank([[reading(1000, 40000)]], (rank(before="78.50"),), Deployment())
    assert (rows, [f.code for f in findings]) == ({}, ["device-rows-contradict"])


# --- names of devices -------------------------------------------------

BIG = GpuSpec(
    name="big",
    title="ACME Big 80GB",
    aliases=("big80",),
    printed_names=("ACME Big 80GB HBM",),
    nominal_gb=Decimal(80),
    seen_totals=(Mib(81559), Mib(81081)),
)
SMALL = GpuSpec(name="small-24gb", title="ACME Small", seen_totals=(Mib(23028),))
SPECS = (BIG, SMALL)


@pytest.mark.parametrize(
    "name", ["big", "BIG80", "ACME Big 80GB HBM", "Big 80GB HBM", "ACME_Big_80GB_HBM", "ACME Bi..."]
)
def test_names_resolve_to_candidates(name: str) -> None:
    assert candidates(name, SPECS) == (BIG,)


def test_a_family_word_means_its_members_and_a_near_name_nothing() -> None:
    assert candidates("small", SPECS) == (SMALL,)
    assert candidates("bign", SPECS) == ()
    with pytest.raises(UsageError, match="big80"):
        resolved("big8", SPECS)


def test_the_vendors_label_is_shown_and_never_a_total() -> None:
    row, clash = gpu_row(SPECS, "big", Unknown(why="no name"), Unknown(why="none", unit=GIB))
    assert clash is None
    assert isinstance(row.nominal_gb, Known)
    assert row.nominal_gb.unit is not None
    assert row.nominal_gb.unit.symbol == "GB"
    assert isinstance(row.total, Unknown)


def test_a_name_that_the_measured_total_contradicts_is_said() -> None:
    total = known(23028, MIB, Origin.MEASURED)
    row, clash = gpu_row(SPECS, "big", Unknown(why="no name"), total)
    assert clash is not None
    assert "22.49 GiB" in clash
    assert "ACME Small" in clash
    assert row.candidates == ("ACME Big 80GB",)


def test_a_size_alone_gives_candidates_and_no_name() -> None:
    total = known(23000, MIB, Origin.MEASURED)
    row, _ = gpu_row(SPECS, None, Unknown(why="no name"), total)
    assert row.candidates == ("ACME Small",)
    assert isinstance(row.key, Unknown)


# --- concurrency ------------------------------------------------------


def make_ledger(
    *,
    tokens: tuple[Value, ...] = (),
    limit: Value | None = None,
    page: int | None = None,
    workers: int | None = None,
    use: TokenUse = TokenUse.ANY_LENGTH,
    context: int | None = 32768,
    ranks: tuple[RankFacts, ...] = (),
    **more: object,
) -> Ledger:
    unsaid = Unknown(why="not said", unit=REQUESTS)
    deployment = Deployment(
        page_size=known(page, TOKENS, Origin.CONFIGURED) if page else Unknown(why="-", unit=TOKENS),
        context_length=known(context, TOKENS, Origin.PRINTED)
        if context
        else Unknown(why="-", unit=TOKENS),
        workers=known(workers, COUNT, Origin.CONFIGURED)
        if workers
        else Unknown(why="-", unit=COUNT),
    )
    ledger = Ledger(
        framework="acme",
        title="ACME",
        status=Status.READY,
        reached=Stage.READY,
        deployment=deployment,
        ranks=ranks,
        workers=tuple(
            WorkerFacts(dp=dp, tokens=value, request_limit=limit or unsaid)
            for dp, value in enumerate(tokens)
        ),
        kv=KvFacts(token_use=use, token_use_why="other pools bind", blocks=(1, 8)),
    )
    return attrs.evolve(ledger, **more)


def of_lengths(ledger: Ledger, lengths: Sequence[int]) -> Concurrency:
    """Requests of whole lengths, without a configuration."""
    broken: list[str] = []
    requests = [Request(length) for length in lengths]
    told = concurrency(ledger, requests, None, lambda item, why: broken.append(why), broken.append)
    assert not broken
    return told


def test_a_request_occupies_whole_pages() -> None:
    ledger = make_ledger(tokens=(printed(10_000, TOKENS),), limit=printed(64, REQUESTS), page=256)
    (row,) = of_lengths(ledger, [1000]).rows
    assert amount(row.token_limit) == 10_000 // 1024


def test_pages_of_unprinted_size_leave_two_counts_where_they_decide() -> None:
    """Pages are of 1 or 8 tokens: a request of 1,001 takes 1,001 or 1,008 of them."""
    ledger = make_ledger(tokens=(printed(10_050, TOKENS),), limit=printed(64, REQUESTS))
    even, odd = of_lengths(ledger, [1000, 1001]).rows
    assert amount(even.token_limit) == 10
    assert isinstance(odd.token_limit, Unknown)
    assert odd.token_limit.interval == (10_050 // 1008, 10_050 // 1001)


def test_an_unknown_request_limit_leaves_a_bound_and_no_value() -> None:
    (row,) = of_lengths(make_ledger(tokens=(printed(10_000, TOKENS),)), [1000]).rows
    assert isinstance(row.max_concurrent, Unknown)
    assert row.max_concurrent.at_most == 10
    assert row.bound_by is None


@pytest.mark.parametrize(
    ("use", "at_most"),
    [(TokenUse.LONGEST_ONLY, 10), (TokenUse.UPPER_LIMIT, 10), (TokenUse.UNCLEAR, None)],
)
def test_tokens_that_hold_at_the_longest_length_alone(use: TokenUse, at_most: int | None) -> None:
    ledger = make_ledger(tokens=(printed(10_000, TOKENS),), use=use, context=5000)
    short, longest, beyond = of_lengths(ledger, [1000, 5000, 6000]).rows
    assert isinstance(short.token_limit, Unknown)
    assert short.token_limit.at_most == at_most
    assert isinstance(longest.token_limit, Known if use is TokenUse.LONGEST_ONLY else Unknown)
    assert isinstance(beyond.token_limit, Unknown)
    assert beyond.token_limit.at_most is None


def test_workers_are_added_up_and_the_least_is_shown() -> None:
    tokens = (printed(400_000, TOKENS), printed(320_000, TOKENS))
    ledger = make_ledger(tokens=tokens, limit=printed(64, REQUESTS), workers=2)
    (row,) = of_lengths(ledger, [10_000]).rows
    assert amount(row.max_concurrent) == 32
    assert amount(row.deployment_max_concurrent) == 40 + 32


def test_workers_that_no_line_counts_give_a_lower_bound() -> None:
    ledger = make_ledger(tokens=(printed(40_000, TOKENS),), limit=printed(64, REQUESTS))
    (row,) = of_lengths(ledger, [10_000]).rows
    assert isinstance(row.deployment_max_concurrent, Unknown)
    assert row.deployment_max_concurrent.at_least == 4


@given(
    tokens=st.integers(1, 10**7),
    limit=st.integers(1, 4096),
    page=st.sampled_from([None, 1, 16, 256]),
    lengths=st.lists(st.integers(1, 32768), min_size=2, max_size=6),
)
def test_longer_requests_never_raise_concurrency(
    tokens: int, limit: int, page: int | None, lengths: list[int]
) -> None:
    ledger = make_ledger(
        tokens=(printed(tokens, TOKENS),), limit=printed(limit, REQUESTS), page=page
    )
    rows = of_lengths(ledger, sorted(lengths)).rows
    for end in (0, 1):  # without a page size, of the two counts that it decides between
        found = [row.max_concurrent.interval[end] for row in rows]
        assert found == sorted(found, reverse=True)


@given(tokens=st.integers(1, 10**7), limit=st.integers(1, 4096), workers=st.integers(1, 64))
def test_equal_workers_multiply_the_deployment(tokens: int, limit: int, workers: int) -> None:
    ledger = make_ledger(
        tokens=(printed(tokens, TOKENS),) * workers, limit=printed(limit, REQUESTS), workers=workers
    )
    (row,) = of_lengths(ledger, [4096]).rows
    assert amount(row.deployment_max_concurrent) == workers * amount(row.max_concurrent)


# --- advice -----------------------------------------------------------

LEVERS = Levers(
    fraction_flag="--fraction",
    fraction=known(Decimal("0.80"), RATIO, Origin.CONFIGURED),
    fraction_base=printed("100.00"),
    request_limit_flag="--requests",
    kv_dtype_flag="--kv 8bit",
)


def advice_of(ledger: Ledger) -> list[str]:
    fits = of_lengths(ledger, [4096, 8192])
    return [note.code for note in advise(ledger, fits, None)]


def test_free_memory_suggests_a_higher_fraction_with_its_gain() -> None:
    per_token = known(Decimal(2**20), BYTES_PER_TOKEN, Origin.DERIVED)
    ledger = make_ledger(
        ranks=(rank(ready="10.00"),), levers=LEVERS, kv=KvFacts(bytes_per_token=per_token)
    )
    (note,) = advise(ledger, of_lengths(ledger, [4096]), None)
    # 10 − 3.5 GiB to spare of 100: 0.06, which is 6 GiB, at 1 MiB a token 6,144 tokens.
    assert note.change == "--fraction 0.86"
    assert amount(note.effect) == 6144


@pytest.mark.parametrize(
    "ledger",
    [
        make_ledger(ranks=(rank(ready="3.00"),), levers=LEVERS),
        make_ledger(ranks=(rank(ready="30.00"),), levers=LEVERS, status=Status.FAILED),
        make_ledger(
            ranks=(rank(ready="30.00"),),
            levers=attrs.evolve(LEVERS, fraction=Unknown(why="not said", unit=RATIO)),
        ),
    ],
)
def test_no_advice_without_headroom_on_failure_or_without_the_fraction(ledger: Ledger) -> None:
    assert advice_of(ledger) == []


@pytest.mark.parametrize(
    ("dtype", "advised"), [("torch.bfloat16", True), ("torch.float8_e4m3fn", False), (None, False)]
)
def test_narrower_kv_is_advised_for_16_bit_alone(dtype: str | None, advised: bool) -> None:
    value = text(dtype, Origin.PRINTED) if dtype else Unknown(why="not said")
    deployment = Deployment(kv_cache_dtype_resolved=value)
    ledger = make_ledger(levers=LEVERS, deployment=deployment)
    assert ("kv-in-16-bit" in advice_of(ledger)) is advised


def test_a_binding_request_limit_is_pointed_at() -> None:
    ledger = make_ledger(
        tokens=(printed(100_000, TOKENS),), limit=printed(4, REQUESTS), levers=LEVERS
    )
    (note,) = advise(ledger, of_lengths(ledger, [4096, 8192]), None)
    assert (note.code, note.change) == ("request-limit-binds", "--requests 12")
