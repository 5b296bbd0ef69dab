"""What a reversal takes back of a request: whatever was received first, and whenever an audit looked.

Each history is audited once at its end and after every step, its events in any order. What stands is said by a few
lines of Python that know nothing of rows, groups or batches; another audit appends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from jobs.audit.recompute.basis import Scope, pin
from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB as BILLING
from jobs.billing.sums import COLUMNS, sums
from jobs.joins.config import JoinsConfig
from jobs.replay.usage import Tables, replayed
from jobs.runtime.delta.table import open_table
from jobs.runtime.effective_rules import EffectiveRules
from jobs.streams import Table
from metering.vocabulary import LatePolicy
from tests.pipelines.folding import fold_table
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.pipelines.test_audit_restated import DEFAULT, Event, audited, completion, happened, request, stands, usage
from tests.pipelines.test_audit_whenever import by_spark

Row = dict[str, Any]
TOKENS = "output_tokens"


def reversal(number: int = 0, meter: str | None = None, quantity: str | None = None) -> Event:
    """A reversal of all, or of a meter all or so much; the number makes its identity."""
    units = None if quantity is None else Decimal(quantity)
    said = {"reversal_reason": f"dispute {number}", "reversal_meter": meter, "reversal_quantity": units}
    return "reversal", number * MINUTE, said


RANK = {"completed": 2, "cancelled": 1, "error": 0}


def billed(events: Sequence[Event]) -> dict[str, Decimal]:
    """By meter what one request must bill by all that was ever received of it."""
    reports = [said for kind, _, said in events if kind in ("both", "completion")]
    asked = [said for kind, _, said in events if kind in ("both", "request")]
    taken = [said for kind, _, said in events if kind == "reversal"]
    if any(said["reversal_meter"] is None for said in taken) or not reports + asked:
        return {}
    best = max(
        (said for kind, at, said in events if kind in ("both", "completion")),
        key=lambda said: (RANK[said["status"]], said["output_tokens"] is not None, said["at"]),
        default=None,
    )
    bills = {"requests": Decimal(1) if asked else None, TOKENS: None if best is None else best["output_tokens"]}
    left: dict[str, Decimal] = {}
    for meter, quantity in bills.items():
        taken_off = [said["reversal_quantity"] for said in taken if said["reversal_meter"] == meter]
        if quantity is not None and None not in taken_off:
            left[meter] = max(Decimal(0), Decimal(quantity) - sum(taken_off, Decimal(0)))
    return {meter: quantity for meter, quantity in left.items() if quantity}


def by_meter(world: HandMade) -> dict[str, Decimal]:
    """What stands, by meter."""
    found: dict[str, Decimal] = {}
    for (*_, meter), quantity in stands(world).items():
        found[meter] = found.get(meter, Decimal(0)) + quantity
    return found


def at(event: Event) -> Event:
    """The same with its time among what it says, for the oracle."""
    kind, occurred, said = event
    return kind, occurred, {**said, "at": occurred}


HISTORIES: dict[str, list[Event]] = {
    "a report": [usage(MINUTE, "completed", 100), reversal()],
    "an error, and its retry": [usage(MINUTE, "error", 7), usage(2 * MINUTE, "completed", 100), reversal()],
    "a request and its completion": [request(timedelta()), completion(MINUTE, "completed", 100), reversal()],
    "a request that nobody answered": [request(timedelta()), reversal()],
    "a completion that nobody asked for": [completion(MINUTE, "completed", 9), reversal()],
    "two reversals": [usage(MINUTE, "completed", 100), reversal(1), reversal(2)],
    "a part": [usage(MINUTE, "completed", 100), reversal(1, TOKENS, "30.5")],
    "two parts": [usage(MINUTE, "completed", 100), reversal(1, TOKENS, "30"), reversal(2, TOKENS, "50")],
    "more than it bills": [usage(MINUTE, "completed", 100), reversal(1, TOKENS, "70"), reversal(2, TOKENS, "50")],
    "a part of a retry": [usage(MINUTE, "error", 7), usage(2 * MINUTE, "completed", 100), reversal(1, TOKENS, "8")],
    "a part of a pair": [request(timedelta()), completion(MINUTE, "completed", 100), reversal(1, TOKENS, "8")],
    "a meter": [usage(MINUTE, "completed", 100), reversal(1, TOKENS)],
    "a meter and a part of it": [usage(MINUTE, "completed", 100), reversal(1, TOKENS), reversal(2, TOKENS, "5")],
    "the request, not its tokens": [usage(MINUTE, "completed", 100), reversal(1, "requests", "1")],
    "a part, and all": [usage(MINUTE, "completed", 100), reversal(1, TOKENS, "30"), reversal(2)],
    "a meter that it has not": [usage(MINUTE, "completed", 100), reversal(1, "input_tokens", "30")],
}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize(
    ("apart", "is_audited_each_time"),
    [(HOUR, True), (MINUTE, False)],
    ids=["beyond the timeout", "within it"],
)
@pytest.mark.parametrize("events", HISTORIES.values(), ids=HISTORIES)
def test_a_reversal_takes_back_its_request_in_any_order_of_receipt(
    events: list[Event], tmp_path: Path, apart: timedelta, *, is_audited_each_time: bool
) -> None:
    orders = list(permutations(events))
    for number, received in enumerate([orders[0], orders[-1]]):
        world = HandMade(tmp_path / str(number), best_report_bills=True)
        happened(world, received, is_audited_each_time=is_audited_each_time, apart=apart)
        assert by_meter(world) == billed([at(event) for event in events]), received
        assert audited(world, 3 * DAY) == 0


REPORTS = st.builds(
    usage,
    st.integers(1, 9).map(lambda minute: minute * MINUTE),
    st.sampled_from(sorted(RANK)),
    st.one_of(st.none(), st.integers(1, 100)),
)
REVERSALS = st.builds(
    reversal,
    st.integers(1, 9),
    st.sampled_from([None, TOKENS, TOKENS, "requests"]),
    st.none() | st.integers(1, 60).map(str),
).filter(lambda event: event[2]["reversal_meter"] or event[2]["reversal_quantity"] is None)


@pytest.mark.long
@settings(max_examples=5, deadline=None)
@given(
    st.lists(REPORTS | REVERSALS, min_size=1, max_size=6, unique_by=lambda event: (event[0], event[1])),
    st.sampled_from([HOUR, 20 * MINUTE, MINUTE]),
    st.booleans(),
)
def test_any_reversals_of_any_reports_bill_as_the_rule(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], apart: timedelta, is_audited_each_time: bool
) -> None:
    world = HandMade(tmp_path_factory.mktemp("world"), best_report_bills=True)
    happened(world, events, is_audited_each_time=is_audited_each_time, apart=apart)
    assert by_meter(world) == billed([at(event) for event in events])
    assert audited(world, 3 * DAY) == 0


def test_a_reversal_is_a_row_with_its_own_cause(tmp_path: Path) -> None:
    part, whole = HISTORIES["a part"], HISTORIES["a report"]
    for name, events, signs in (("part", part, [-1, 1]), ("whole", whole, [-1])):
        world = happened(HandMade(tmp_path / name, best_report_bills=True), events)
        rows = DeltaTable(f"{world.tables}/usage").to_pyarrow_table().sort_by("lsn").to_pylist()
        assert [(row["sign"], row["cause"]) for row in rows] == [(1, "stream"), *((sign, "reversed") for sign in signs)]
        assert all(row["corrects_lsns"] == [rows[0]["lsn"]] for row in rows[1:])


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("best_report_bills", [False, True], ids=["first report", "best report"])
@pytest.mark.parametrize("is_reversal_first", [False, True], ids=["after", "before"])
@pytest.mark.parametrize(("minutes", "is_taken_back"), [(119, True), (121, False)])
def test_a_reversal_reaches_as_far_as_reports_of_one_request_in_either_direction(
    tmp_path: Path, minutes: int, *, is_taken_back: bool, is_reversal_first: bool, best_report_bills: bool
) -> None:
    present = JoinsConfig(rejoin_seconds=7_200, best_report_bills=best_report_bills)
    world = HandMade(tmp_path, rejoin_seconds=7_200, best_report_bills=best_report_bills)
    world.price(timedelta(), "0.01", begins=timedelta())
    came, reversed_at = DAY, DAY + (-minutes if is_reversal_first else minutes) * MINUTE
    for moment in sorted((came, reversed_at)):
        if moment == came:
            world.event(came, "both", "e", occurred=HOUR, model="m", status="completed", output_tokens=100)
        else:
            world.reversal(reversed_at)
        world.joined(moment + HOUR / 2)
    world.joined(2 * DAY)
    audited(world, 2 * DAY, present)
    assert by_meter(world) == ({} if is_taken_back else {"requests": 1, TOKENS: 100})
    assert audited(world, 3 * DAY, present) == 0


@pytest.mark.long
def test_a_reversal_ignores_a_reused_id_out_of_reach(tmp_path: Path) -> None:
    """And a credit is of one of them: the one before it, else the one after it."""
    taken_back = {
        "between, of both": (3, None, set()),
        "after the first, out of reach of the second": (1, None, {900}),
        "after the second": (7, None, {100}),
        "a credit between": (3, Decimal(40), {60, 900}),
        "a credit before both": (0, Decimal(40), {60, 900}),
        "a credit after both": (7, Decimal(40), {100, 860}),
    }
    for number, (hours, quantity, left) in enumerate(taken_back.values()):
        world = HandMade(tmp_path / str(number), best_report_bills=True, rejoin_seconds=10_900)
        present = JoinsConfig(best_report_bills=True, rejoin_seconds=10_900)
        world.price(timedelta(), "0.01", begins=timedelta())
        received = {1.5: 100, 5: 900}
        for hour in sorted([*received, hours]):
            if hour in received:
                said: Row = {"model": "m", "status": "completed", "output_tokens": received[hour]}
                world.event(hour * HOUR, "both", f"{hour}", occurred=hour * HOUR, **said)
            else:
                world.reversal(hour * HOUR, meter=None if quantity is None else TOKENS, quantity=quantity)
            world.joined(hour * HOUR + HOUR / 2)
        world.joined(DAY)
        audited(world, DAY, present)
        tokens = {quantity for (*_, meter), quantity in stands(world).items() if meter == TOKENS}
        assert tokens == left, (hours, quantity)
        assert audited(world, 2 * DAY, present) == 0


@pytest.mark.long
def test_where_the_first_report_bills_a_reversal_takes_back_all_in_reach(tmp_path: Path) -> None:
    """It is billed twice there: the timeout was over."""
    events = [usage(MINUTE, "completed", 7), usage(3 * MINUTE, "completed", 100)]
    assert by_meter(happened(HandMade(tmp_path / "not"), events)) == {"requests": 2, TOKENS: 107}
    world = happened(HandMade(tmp_path / "reversed"), [*events, reversal()], is_audited_each_time=True)
    assert by_meter(world) == {}
    assert audited(world, 3 * DAY) == 0


def test_a_reversal_that_was_accepted_twice_counts_once(tmp_path: Path) -> None:
    world = HandMade(tmp_path, best_report_bills=True)
    world.event(HOUR, "both", "e", occurred=HOUR, model="m", status="completed", output_tokens=100)
    for hours, identity in ((2, "one"), (3, "one"), (4, "another")):
        world.reversal(hours * HOUR, identity, meter=TOKENS, quantity=Decimal(10))
    world.joined(DAY)
    audited(world, DAY)
    assert by_meter(world) == {"requests": 1, TOKENS: 80}


def test_a_redriven_reversal_reaches_from_its_first_receipt(tmp_path: Path) -> None:
    """It was rejected, since nobody had listed its source, and comes back much later."""
    world = HandMade(tmp_path, best_report_bills=True, rejoin_seconds=7_200)
    world.event(HOUR, "both", "e", occurred=HOUR, model="m", status="completed", output_tokens=100)
    world.reversal(DAY, first=2 * HOUR)
    world.joined(2 * DAY)
    audited(world, 2 * DAY, JoinsConfig(best_report_bills=True, rejoin_seconds=7_200))
    assert by_meter(world) == {}


def test_of_another_request_nothing_is_taken_back(tmp_path: Path) -> None:
    world = HandMade(tmp_path, best_report_bills=True)
    world.event(HOUR, "both", "e", occurred=HOUR, name="r1", model="m", status="completed", output_tokens=100)
    world.reversal(2 * HOUR, name="r2")
    world.joined(DAY)
    assert audited(world, DAY) == 0
    assert by_meter(world) == {"requests": 1, TOKENS: 100}


def test_a_late_price_applies_to_the_quantity_after_reversals(tmp_path: Path) -> None:
    world = HandMade(tmp_path, best_report_bills=True)
    world.event(HOUR, "both", "e", occurred=HOUR, model="m", status="completed", output_tokens=100)
    world.reversal(2 * HOUR, meter=TOKENS, quantity=Decimal(40))
    world.joined(DAY)
    audited(world, DAY)
    world.price(DAY + HOUR, "0.02", begins=timedelta())
    world.event(DAY + HOUR, "request", "x", occurred=DAY, name="other", model="other")
    world.joined(2 * DAY)
    audited(world, 2 * DAY)
    assert world.billed() == {(0, "m", "0.02"): 60}
    assert audited(world, 3 * DAY) == 0


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("days", [1, 2, 3])
def test_nothing_is_billed_again_once_retention_has_removed_the_reversal(tmp_path: Path, days: int) -> None:
    """It came before its request, and the log dates until then are removed."""
    present = JoinsConfig(best_report_bills=True, rejoin_seconds=2 * DAY // timedelta(seconds=1))
    world = HandMade(tmp_path, best_report_bills=True, rejoin_seconds=present.rejoin_seconds)
    world.reversal(HOUR)
    world.event(DAY + HOUR, "both", "e", occurred=DAY, model="m", status="completed", output_tokens=100)
    world.event(9 * DAY, "both", "x", occurred=9 * DAY, name="x", model="m", status="completed", output_tokens=1)
    world.joined(10 * DAY)
    audited(world, 10 * DAY, present)
    assert by_meter(world) == {"requests": 1, TOKENS: 1}
    world.removed(days * DAY)
    assert audited(world, 11 * DAY, present) == 0


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("quantity", [None, "40"], ids=["all", "a part"])
@pytest.mark.parametrize("is_audited_each_time", [False, True], ids=["once", "each time"])
@pytest.mark.parametrize("policy", LatePolicy)
def test_no_late_policy_restores_reversed_usage(
    connection: psycopg.Connection[Any],
    tmp_path: Path,
    policy: LatePolicy,
    quantity: str | None,
    *,
    is_audited_each_time: bool,
) -> None:
    """An estimate comes on time, its reversal, and hours later the provider's count, which bills."""
    config = BillingConfig(late_policy=dict.fromkeys(("requests", TOKENS), policy))
    world, folded = HandMade(tmp_path, best_report_bills=True), 0
    world.price(timedelta(), "0.01", begins=timedelta())
    meter = None if quantity is None else TOKENS
    for hours, source, tokens in ((1, "estimated", 50), (3, None, None), (6, "provider", 101)):
        if source is None:
            world.reversal(hours * HOUR, meter=meter, quantity=None if quantity is None else Decimal(quantity))
        else:
            said: Row = {"status": "completed", "output_tokens": tokens, "usage_source": source, "model": "m"}
            world.event(hours * HOUR, "both", f"{tokens}", occurred=HOUR + hours * MINUTE, **said)
        world.joined(hours * HOUR + HOUR)
        if is_audited_each_time or hours == 6:
            audited(world, hours * HOUR + HOUR)
        rows = DeltaTable(f"{world.tables}/usage").to_pyarrow_table(columns=list(COLUMNS)).sort_by("lsn")
        came = rows.filter(pc.greater(rows["lsn"], folded))
        fold_table(connection, BILLING, sums(came, EffectiveRules(1, config.deciding)), config)
        folded = rows["lsn"][-1].as_py() if len(rows) else folded
    summed = "SELECT meter, sum(quantity) FROM usage_windows GROUP BY 1 HAVING sum(quantity) <> 0"
    found = dict(connection.execute(summed).fetchall())
    # With `drop` and `hold` the estimate itself was on time in its window; the better report takes its place.
    assert found == ({} if quantity is None else {"requests": 1, TOKENS: 61})
    waits = "SELECT meter, sum(quantity) FROM stragglers WHERE decision = 'hold' GROUP BY 1 HAVING sum(quantity) <> 0"
    assert pl.DataFrame(connection.execute(waits).fetchall()).is_empty()


def reversed_of_the_day(world: HandMade) -> None:
    """The reversal and what it takes back come within the period that is audited."""
    report(world, 10 * DAY + HOUR, 100)
    world.reversal(10 * DAY + 2 * HOUR, meter=TOKENS, quantity=Decimal(30))


def reversed_days_later(world: HandMade) -> None:
    """Of the request the audit of a day sees no row, or those of its usage alone."""
    report(world, HOUR, 100)
    world.joined(DAY)
    world.reversal(10 * DAY + HOUR)


def reversed_days_before(world: HandMade) -> None:
    """And of what has been taken back already it sees no reversal."""
    world.reversal(HOUR)
    world.joined(DAY)
    report(world, 10 * DAY + HOUR, 100)


def credited_twice(world: HandMade) -> None:
    """One credit comes before the period, and one within it."""
    world.reversal(HOUR, meter=TOKENS, quantity=Decimal(30))
    world.joined(DAY)
    report(world, 10 * DAY + HOUR, 100)
    world.reversal(10 * DAY + 2 * HOUR, meter=TOKENS, quantity=Decimal(20))


def report(world: HandMade, at: timedelta, tokens: int) -> None:
    world.event(at, "both", f"{at}", occurred=at, model="m", status="completed", output_tokens=tokens)


@pytest.mark.long
@pytest.mark.parametrize("history", [reversed_of_the_day, reversed_days_later, reversed_days_before, credited_twice])
def test_daily_audits_reverse_the_same_usage_as_one_of_everything(
    history: Callable[[HandMade], None], spark: SparkSession, tmp_path: Path
) -> None:
    at = 10 * DAY + 3 * HOUR
    worlds = [HandMade(tmp_path / name, best_report_bills=True) for name in ("hourly", "nightly")]
    for world in worlds:
        world.price(timedelta(), "0.01", begins=timedelta())
        history(world)
        world.joined(at)
    by_spark(spark, worlds[0], at, Scope(since=START + at - DAY))
    audited(worlds[1], 11 * DAY)
    by_spark(spark, worlds[0], 11 * DAY, Scope())
    assert by_meter(worlds[0]) == by_meter(worlds[1])
    for world in worlds:
        assert by_spark(spark, world, at, Scope(since=START + at - DAY)).changes == 0
        assert audited(world, 12 * DAY) == 0


def test_a_what_if_replay_applies_the_same_reversals_as_the_audit(tmp_path: Path) -> None:
    for name, said in {"all": {}, "a part": {"meter": TOKENS, "quantity": Decimal(30)}}.items():
        world = HandMade(tmp_path / name, best_report_bills=True)
        world.price(timedelta(), "0.01", begins=timedelta())
        report(world, HOUR, 100)
        world.reversal(2 * HOUR, **said)  # type: ignore[arg-type]  # a meter and a quantity
        world.joined(DAY)
        audited(world, DAY)
        usage_table, journal = open_table(world.tables, Table.USAGE), open_table(world.tables, Table.JOURNAL)
        assert usage_table is not None
        assert journal is not None
        live = pin(usage_table, [], world.tables, DEFAULT)
        made = [pl.DataFrame(part) for part in replayed(Tables(journal, usage_table, START.date()), live, live)]
        entries = pl.concat(made).explode("meters").unnest("meters").filter(meter=TOKENS)
        left = entries.select((pl.col("sign") * pl.col("quantity")).sum()).item()
        assert left == by_meter(world).get(TOKENS, 0)
