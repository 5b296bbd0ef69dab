"""Which report of a request bills: a rule of sets, beside the same in other words."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering.joining import FINAL, Side
from metering.ranking import Criterion, Ranked, Received, deciding_criterion, merit, ranked
from metering.vocabulary import Status, UsageSource
from tests.simulation.oracle_of_reports import Reported, billed

REACH = st.sampled_from([0, 1, 3, 10, 100])
ROWS = st.lists(
    st.builds(
        Received,
        lsn=st.just(0),
        side=st.sampled_from(Side),
        first_received_us=st.integers(0, 20),
        occurred_us=st.integers(0, 3),
        identity=st.just(b""),
        status=st.sampled_from([None, *Status]),
        usage_source=st.sampled_from([None, *UsageSource]),
        has_quantities=st.booleans(),
    ),
    max_size=12,
).map(
    lambda rows: [
        Received(lsn, row.side, row.first_received_us, row.occurred_us, bytes([lsn * 37 % 101]), *said(row))
        for lsn, row in enumerate(rows, 1)
    ]
)


def said(row: Received) -> tuple[str | None, str | None, bool]:
    return row.status, row.usage_source, row.has_quantities


def requests(rows: list[Received], reach: int) -> list[Ranked]:
    return list(ranked(rows, lambda _: reach))


@settings(max_examples=400)
@given(ROWS, REACH)
def test_oracle_the_billed_report_is_that_of_a_full_scan(rows: list[Received], reach: int) -> None:
    told = [
        Reported(row.lsn, row.side.value, row.first_received_us, row.occurred_us, row.identity, *said(row))
        for row in rows
    ]
    assert [(one.request, one.completion) for one in requests(rows, reach)] == list(billed(told, reach))


@given(ROWS, REACH, st.randoms())
def test_the_billed_report_does_not_depend_on_the_order_of_rows(
    rows: list[Received], reach: int, chance: random.Random
) -> None:
    assert requests(chance.sample(rows, len(rows)), reach) == requests(rows, reach)


@given(ROWS, REACH)
def test_each_row_is_in_one_request_and_bills_or_is_superseded(rows: list[Received], reach: int) -> None:
    found = requests(rows, reach)
    named = [lsn for one in found for lsn in {one.request, one.completion, *(row.lsn for row in one.superseded)}]
    assert sorted(lsn for lsn in named if lsn is not None) == [row.lsn for row in rows]


@pytest.mark.parametrize("status", [None, "completed"])
@pytest.mark.parametrize("source", [None, "provider"])
def test_a_completed_report_with_provider_counts_ranks_first(status: str | None, source: str | None) -> None:
    assert merit(status, source) == FINAL


def test_reports_rank_by_status_and_then_by_source() -> None:
    in_order = [
        (status, source) for status in ("error", "cancelled", None) for source in ("partial", "estimated", None)
    ]
    assert sorted(in_order, key=lambda said: merit(*said)) == in_order
    assert len({merit(*said) for said in in_order}) == len(in_order)


@pytest.mark.parametrize(("asked_again_us", "answered"), [(4, 3), (6, 1)], ids=["before", "after"])
def test_what_is_received_at_one_instant_as_the_report_came_before_it_if_it_occurred_before(
    asked_again_us: int, answered: int
) -> None:
    rows = [
        Received(1, Side.REQUEST, 0, 3, b"a"),
        Received(2, Side.COMPLETION, 9, 5, b"b"),
        Received(3, Side.REQUEST, 9, asked_again_us, b"c"),
    ]
    assert [(one.request, one.completion) for one in requests(rows, 100)] == [(answered, 2)]


REPORTS = ROWS.map(lambda rows: [row for row in rows if row.side is not Side.REQUEST])


def values(row: Received) -> dict[Criterion, object]:
    """What each criterion looks at, in the rule's own words: the higher value is the better one."""
    statuses = ["error", "cancelled", "completed"]
    sources = ["partial", "estimated", "provider"]
    return {
        Criterion.STATUS: statuses.index(row.status or "completed"),
        Criterion.USAGE_SOURCE: sources.index(row.usage_source or "provider"),
        Criterion.QUANTITIES: row.has_quantities,
        Criterion.TIME: row.occurred_us,
        Criterion.IDENTITY: row.identity,
        Criterion.SIDE: row.side.value,
    }


@settings(max_examples=400)
@given(REPORTS, st.integers(100, 1000))
def test_the_deciding_criterion_is_the_first_that_differs_and_names_the_report_that_bills(
    rows: list[Received], reach: int
) -> None:
    by_lsn = {row.lsn: row for row in rows}
    for request in requests(rows, reach):
        assert request.completion is not None
        best = by_lsn[request.completion]
        for beaten in request.superseded:
            criterion = deciding_criterion(best, beaten)
            assert criterion is not None, "identities of two events differ"
            mine, theirs = values(best), values(beaten)
            before = list(Criterion)[: list(Criterion).index(criterion)]
            assert [mine[name] for name in before] == [theirs[name] for name in before]
            assert mine[criterion] > theirs[criterion]  # type: ignore[operator]
            assert deciding_criterion(beaten, best) == criterion


def test_a_report_and_itself_differ_by_nothing() -> None:
    report = Received(1, Side.COMPLETION, 0, 0, b"a")
    assert deciding_criterion(report, report) is None
