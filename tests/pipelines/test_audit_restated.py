"""The best report of a request bills, whatever was received first: what an audit makes of several.

Each history is audited once at its end and after every step, its events in any order: all bill the same, and another
audit appends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
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

from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB as BILLING
from jobs.billing.sums import COLUMNS, sums
from jobs.joins.config import JoinsConfig
from jobs.runtime.effective_rules import EffectiveRules
from metering.price_models import PricedModel
from metering.vocabulary import LatePolicy
from tests.pipelines.folding import fold_table
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.simulation.audits import audit

SECOND = timedelta(seconds=1)
Row = dict[str, Any]
Event = tuple[str, timedelta, Row]
DEFAULT = JoinsConfig()


def usage(at: timedelta, status: str, tokens: int | None = None, **said: Any) -> Event:
    """A report that is a request and its completion in one."""
    return "both", at, {"status": status, "output_tokens": tokens, "model": "m", **said}


def request(at: timedelta, model: str = "m") -> Event:
    return "request", at, {"model": model}


def completion(at: timedelta, status: str, tokens: int | None = None, **said: Any) -> Event:
    return "completion", at, {"status": status, "output_tokens": tokens, **said}


def happened(
    world: HandMade,
    events: Sequence[Event],
    *,
    is_audited_each_time: bool = False,
    apart: timedelta = HOUR,
    present: JoinsConfig = DEFAULT,
) -> HandMade:
    """All of them are received, so long after one another; each occurred when it says."""
    for model, price in (("m", "0.01"), ("big", "0.2")):
        world.price(timedelta(), price, begins=timedelta(), model=model)
    for number, (kind, at, said) in enumerate(events, 1):
        received = DAY + number * apart
        world.event(received, kind, f"{kind} {at} {sorted(said.items())}", occurred=at, **said)
        world.joined(received + apart / 2)
        if is_audited_each_time:
            audited(world, received + apart / 2, present)
    world.joined(2 * DAY)
    audited(world, 2 * DAY, present)
    return world


def audited(world: HandMade, at: timedelta, present: JoinsConfig = DEFAULT) -> int:
    """How many rows an audit appends; it finds no fault."""
    said = audit(world.tables, START + at, present=present)
    if said is None:
        return 0  # Nothing is decided yet.
    assert [fault for fault in said.faults if isinstance(fault, dict)] == []
    return said.appended


def stands(world: HandMade) -> dict[tuple[Any, ...], Decimal]:
    """What is billed, by model, minute and meter."""
    rows = pl.DataFrame(DeltaTable(f"{world.tables}/usage").to_pyarrow_table()).explode("meters").unnest("meters")
    minutes = (pl.col("event_time") - START).dt.total_minutes().alias("minute")
    counted = rows.group_by("model", minutes, "meter").agg(net=(pl.col("sign") * pl.col("quantity")).sum())
    return {tuple(key): net for *key, net in counted.filter(pl.col("net") != 0).iter_rows()}


ERROR, DONE = usage(MINUTE, "error"), usage(3 * MINUTE, "completed", 100)
HISTORIES: dict[str, tuple[list[Event], tuple[str, int, int | None]]] = {
    "errors and then an answer": ([ERROR, usage(2 * MINUTE, "error"), DONE], ("m", 3, 100)),
    "an error that occurred after the answer": ([usage(9 * MINUTE, "error", 7), DONE], ("m", 3, 100)),
    "a partial count and then the provider's": (
        [
            usage(MINUTE, "completed", 1, usage_source="partial"),
            usage(MINUTE, "completed", 500, usage_source="provider"),
        ],
        ("m", 1, 500),
    ),
    "a call that was logged twice": (
        [usage(MINUTE, "completed", 121), usage(2 * MINUTE, "completed", 121)],
        ("m", 2, 121),
    ),
    "a report without a count": ([usage(MINUTE, "completed", 5), usage(2 * MINUTE, "completed")], ("m", 1, 5)),
    "cancelled, and an error": ([usage(MINUTE, "cancelled", 3), usage(2 * MINUTE, "error", 9)], ("m", 1, 3)),
    "one request, two completions": (
        [request(timedelta()), completion(MINUTE, "error"), completion(2 * MINUTE, "completed", 100)],
        ("m", 2, 100),
    ),
    "a router's request, and the model that answered": (
        [request(timedelta(), "big"), usage(MINUTE, "completed", 10)],
        ("m", 1, 10),
    ),
    "two attempts that nobody answered": ([request(MINUTE), request(2 * MINUTE)], ("m", 2, None)),
}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("apart", [HOUR, MINUTE], ids=["beyond the timeout", "within it"])
@pytest.mark.parametrize("is_audited_each_time", [False, True], ids=["once", "each time"])
@pytest.mark.parametrize(("events", "billed"), HISTORIES.values(), ids=HISTORIES)
def test_the_best_report_bills_in_any_order_of_receipt(
    events: list[Event],
    billed: tuple[str, int, int | None],
    tmp_path: Path,
    apart: timedelta,
    *,
    is_audited_each_time: bool,
) -> None:
    model, minute, tokens = billed
    must = {(model, minute, "requests"): 1} | ({} if tokens is None else {(model, minute, "output_tokens"): tokens})
    orders = list(permutations(events))
    for number, received in enumerate([orders[0], orders[len(orders) // 2], orders[-1]]):
        world = HandMade(tmp_path / str(number), best_report_bills=True)
        happened(world, received, is_audited_each_time=is_audited_each_time, apart=apart)
        assert stands(world) == must, received
        assert audited(world, 3 * DAY) == 0


def test_a_better_report_names_the_report_that_it_replaces(tmp_path: Path) -> None:
    """So it inherits what was decided of that: a straggler that was dropped stays so."""
    events = [usage(MINUTE, "completed", 7), usage(3 * MINUTE, "completed", 100)]
    world = happened(HandMade(tmp_path, best_report_bills=True), events, apart=MINUTE)
    rows = DeltaTable(f"{world.tables}/usage").to_pyarrow_table().to_pylist()
    billed = {row["lsn"] for row in rows if row["cause"] == "stream" and row["outcome"] == "matched"}
    assert len(billed) == 1
    (best,) = [row for row in rows if row["cause"] == "restated" and row["outcome"] == "matched" and row["sign"] > 0]
    assert billed <= set(best["corrects_lsns"])


def test_earlier_usage_is_not_rebilled_by_the_best_report(tmp_path: Path) -> None:
    world = happened(HandMade(tmp_path), [ERROR, DONE], is_audited_each_time=True)
    assert stands(world) == {("m", 1, "requests"): 1, ("m", 3, "requests"): 1, ("m", 3, "output_tokens"): 100}


def test_the_audit_does_not_change_pairs_of_the_stream(tmp_path: Path) -> None:
    """A call that fails and succeeds on retry, and a partial count before the provider's."""
    partial = [usage(minute * MINUTE, "completed", minute, usage_source="partial") for minute in (1, 2)]
    for number, lesser in enumerate(([ERROR, usage(2 * MINUTE, "error")], partial)):
        world = HandMade(tmp_path / str(number), best_report_bills=True)
        happened(world, [*lesser, DONE], apart=MINUTE)
        assert stands(world) == {("m", 3, "requests"): 1, ("m", 3, "output_tokens"): 100}
        rows = DeltaTable(f"{world.tables}/usage").to_pyarrow_table().to_pylist()
        assert {row["cause"] for row in rows} == {"stream"}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("rejoin_seconds", [0, 60])
def test_a_pair_within_its_timeout_stays_one_request(rejoin_seconds: int, tmp_path: Path) -> None:
    asked = [request(timedelta()), completion(MINUTE, "error"), completion(3 * MINUTE, "completed", 100)]
    for number, events in enumerate(([ERROR, DONE], asked)):
        world = HandMade(tmp_path / str(number), best_report_bills=True, rejoin_seconds=rejoin_seconds)
        happened(world, events, apart=2 * MINUTE)
        assert stands(world) == {("m", 3, "requests"): 1, ("m", 3, "output_tokens"): 100}


def test_an_id_reused_each_week_is_billed_each_week(
    tmp_path: Path,
) -> None:
    """The second request comes a moment before a week is over, and its answer a moment after."""
    week = 7 * DAY
    for number, seconds in enumerate((-3, 1)):
        world = HandMade(tmp_path / str(number), best_report_bills=True, rejoin_seconds=week // timedelta(seconds=1))
        world.price(timedelta(), "0.01", begins=timedelta())
        for name, begun, tokens in (("first", HOUR, 100), ("second", HOUR + week + timedelta(seconds=seconds), 900)):
            answered = begun + timedelta(seconds=8)
            world.event(begun, "request", f"{name}/q", occurred=begun, model="m")
            world.event(
                answered, "completion", f"{name}/c", occurred=answered, status="completed", output_tokens=tokens
            )
            world.joined(begun + HOUR)
        audited(world, week + DAY)
        assert sum(stands(world).values()) == 1_000 + 2, seconds


def first_received(event: Event, at: timedelta) -> Event:
    """The same as history, with the mark that says when it was received first."""
    kind, occurred, said = event
    return kind, occurred, {**said, "first_received_at": START + at}


LONG_AGO = -800 * DAY


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("is_audited_each_time", [False, True], ids=["once", "each time"])
@pytest.mark.parametrize("apart", [DAY / 10, MINUTE], ids=["they did not meet", "they met"])
@pytest.mark.parametrize("is_answer_first", [False, True])
def test_records_first_received_years_apart_are_two_requests(
    tmp_path: Path, apart: timedelta, *, is_answer_first: bool, is_audited_each_time: bool
) -> None:
    events = [first_received(request(MINUTE), MINUTE), first_received(completion(LONG_AGO, "completed", 9), LONG_AGO)]
    world = HandMade(tmp_path, best_report_bills=True)
    happened(world, events[::-1] if is_answer_first else events, is_audited_each_time=is_audited_each_time, apart=apart)
    assert stands(world) == {("m", 1, "requests"): 1, (None, LONG_AGO // MINUTE, "output_tokens"): 9}
    assert audited(world, 3 * DAY) == 0


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("apart", [DAY / 10, MINUTE], ids=["they did not meet", "they met"])
@pytest.mark.parametrize(("minutes", "is_one"), [(9, True), (11, False)])
def test_the_reach_of_rejoining_is_at_least_the_timeout(
    tmp_path: Path, apart: timedelta, minutes: int, *, is_one: bool
) -> None:
    events = [request(timedelta()), completion(minutes * MINUTE, "completed", 9)]
    present = JoinsConfig(best_report_bills=True, rejoin_seconds=60, completion_timeout_seconds=600)
    world = HandMade(tmp_path, **present.model_dump(include={*present.model_fields_set}))
    happened(world, [first_received(event, event[1]) for event in events], apart=apart, present=present)
    model, asked = ("m", minutes) if is_one else (None, 0)
    assert stands(world) == {("m", asked, "requests"): 1, (model, minutes, "output_tokens"): 9}


def test_a_pair_is_joined_by_the_rules_of_its_time(tmp_path: Path) -> None:
    """Somebody changes `rejoin_seconds` before the audit looks at it."""
    events = [request(timedelta()), completion(DAY, "completed", 9)]
    world = HandMade(tmp_path, best_report_bills=True, rejoin_seconds=2 * DAY // timedelta(seconds=1))
    for kind, at, said in events:
        world.event(at + HOUR, kind, kind, occurred=at, **said)
        world.joined(at + 2 * HOUR)
    world.joined(3 * DAY)
    audited(world, 3 * DAY, JoinsConfig(best_report_bills=True, rejoin_seconds=0))
    assert stands(world) == {("m", 24 * 60, "requests"): 1, ("m", 24 * 60, "output_tokens"): 9}


def test_when_turned_off_the_first_report_bills_in_any_period(tmp_path: Path) -> None:
    """A request that began before goes on as it did."""
    world = HandMade(tmp_path, best_report_bills=True)
    world.price(timedelta(), "0.01", begins=timedelta())
    lesser, better = ({"status": "completed", "usage_source": source} for source in ("estimated", "provider"))
    for name, begins in (("before", HOUR), ("after", DAY)):
        if name == "after":
            world.configure(best_report_bills=False)
        world.event(begins, "both", f"{name}/1", occurred=begins, name=name, model="m", output_tokens=40, **lesser)
        world.joined(begins + HOUR)
    for name, came in (("before", DAY + 2 * HOUR), ("after", DAY + 3 * HOUR)):
        world.event(came, "both", f"{name}/2", occurred=DAY, name=name, model="m", output_tokens=100, **better)
        world.joined(came + HOUR)
    audited(world, 2 * DAY, JoinsConfig(best_report_bills=False))
    assert stands(world) == {("m", 24 * 60, "requests"): 3, ("m", 24 * 60, "output_tokens"): 100 + 40 + 100}
    assert audited(world, 2 * DAY, JoinsConfig(best_report_bills=False)) == 0


EU_ALONE = {
    "requests": {"unit": "request", "count": "outcomes"},
    "output_tokens": {"unit": "token", "sum": "output_tokens", "where": {"region": ["eu"]}},
}


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("dimensions", [(), ("region",)], ids=["no dimension", "a dimension"])
@pytest.mark.parametrize("failed", [False, True], ids=["at once", "after an error"])
@pytest.mark.parametrize(
    "of_prices", [{"meters": EU_ALONE}, {"price_attributes": ("region",)}], ids=["where", "a price attribute"]
)
def test_a_condition_applies_to_the_report_that_bills(
    tmp_path: Path, of_prices: dict[str, Any], dimensions: tuple[str, ...], *, failed: bool
) -> None:
    """Somebody asks in one region and is answered in another; a column that is a dimension, too, says the same."""
    world = HandMade(tmp_path, best_report_bills=True, dimensions=dimensions, **of_prices)
    world.price(timedelta(), "0.04", begins=timedelta())
    world.price(timedelta(), "0.02", begins=timedelta(), model=PricedModel.of("m", {"region": "eu"}).text)
    world.event(HOUR, "request", "q", occurred=HOUR, model="m", region="us")
    if failed:
        world.event(HOUR + MINUTE, "completion", "e", occurred=HOUR, status="error", region="eu")
    answer: Row = {"status": "completed", "output_tokens": 100, "region": "eu"}
    world.event(HOUR + 2 * MINUTE, "completion", "a", occurred=HOUR, **answer)
    world.joined(DAY)
    audited(world, 2 * DAY)
    assert audited(world, 3 * DAY) == 0
    price = "0.02" if "price_attributes" in of_prices else "0.04"
    assert world.billed() == {(0, "m", price): 100}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("is_audited_each_time", [False, True], ids=["once", "each time"])
@pytest.mark.parametrize("policy", LatePolicy)
@pytest.mark.parametrize("between", [100, 0, None])
def test_a_late_report_never_removes_a_timely_one_from_the_bill(
    connection: psycopg.Connection[Any],
    tmp_path: Path,
    policy: LatePolicy,
    between: int | None,
    *,
    is_audited_each_time: bool,
) -> None:
    """The gateway estimates at once. The provider's counts come hours later, and billing drops or holds them."""
    config = BillingConfig(late_policy=dict.fromkeys(("requests", "output_tokens"), policy))
    world, folded = HandMade(tmp_path, best_report_bills=True), 0
    world.price(timedelta(), "0.01", begins=timedelta())
    counts = [("estimated", 40, timedelta()), ("provider", between, 3 * HOUR), ("provider", 101, 7 * HOUR)]
    for source, tokens, delay in counts:
        said: Row = {"status": "completed", "output_tokens": tokens, "usage_source": source, "model": "m"}
        world.event(HOUR + delay, "both", f"{tokens}", occurred=HOUR + (tokens or 50) * SECOND, **said)
        world.joined(HOUR + delay + HOUR)
        if is_audited_each_time or tokens == 101:
            audited(world, HOUR + delay + HOUR)
        usage = DeltaTable(f"{world.tables}/usage").to_pyarrow_table(columns=list(COLUMNS)).sort_by("lsn")
        came = usage.filter(pc.greater(usage["lsn"], folded))
        fold_table(connection, BILLING, sums(came, EffectiveRules(1, config.deciding)), config)
        folded = usage["lsn"][-1].as_py()
    summed = "SELECT meter, sum(quantity) FROM usage_windows GROUP BY 1 HAVING sum(quantity) <> 0"
    billed = dict(connection.execute(summed).fetchall())
    assert billed == {"requests": 1, "output_tokens": 101}
