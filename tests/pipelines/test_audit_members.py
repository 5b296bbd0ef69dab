"""Meters of a period bill what the set of all usage comes to, whatever was received first and whenever an audit looked.

What must stand is said by a few lines of Python over the set of events, which know nothing of rows, joins or batches.
Each history is audited once at its end and after every step; another audit appends nothing, and a replay bills the
same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.audit.recompute.basis import Scope, pin
from jobs.joins.config import JoinsConfig
from jobs.replay.assumptions import Assumptions
from jobs.replay.usage import Tables, replayed
from jobs.runtime.delta.table import open_table
from jobs.streams import Table
from jobs.usage_members import members
from metering.period_meters import Aggregation, Member, quantity_of
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.simulation.audits import audit

Row = dict[str, Any]
Bill = dict[tuple[str, date, str, str | None], Decimal]
"""By meter, first day of the period, model and unit price how much is billed."""
METERS: dict[str, Row] = {
    "users": {"unit": "user", "unique": "user_id", "period": "month"},
    "least": {"unit": "token", "min": "output_tokens", "period": "day"},
    "peak": {"unit": "token", "max": "output_tokens", "period": "day"},
    "last": {"unit": "token", "latest": "input_tokens", "period": "month", "where": {"status": ["completed"]}},
    "requests": {"unit": "request", "count": "outcomes"},
}
RULES: Row = {"best_report_bills": True, "meters": METERS}
RANK = {"completed": 2, "cancelled": 1, "error": 0}


@dataclass(frozen=True)
class Report:
    """A report of a request that is request and completion in one."""

    request: str
    at: timedelta
    user: str = "u"
    tokens: int | None = 10
    stored: int | None = None
    status: str = "completed"
    model: str = "m"

    @property
    def identity(self) -> bytes:
        return sha256(f"{self}".encode()).digest()[:16]

    def received(self, world: HandMade, at: timedelta) -> None:
        said = {"status": self.status, "output_tokens": self.tokens, "input_tokens": self.stored, "model": self.model}
        world.event(at, "both", f"{self}", occurred=self.at, name=self.request, user_id=self.user, **said)


@dataclass(frozen=True)
class Reversal:
    """What takes back all of a request, or of a meter all or so much."""

    request: str
    meter: str | None = None
    quantity: int | None = None

    def received(self, world: HandMade, at: timedelta) -> None:
        units = None if self.quantity is None else Decimal(self.quantity)
        world.reversal(at, f"{self}", name=self.request, meter=self.meter, quantity=units)


Event = Report | Reversal


def billed(events: Sequence[Event], price: str | None = "0.01") -> Bill:
    """What must stand, where each meter has one price."""
    best: dict[str, Report] = {}
    for event in events:
        if isinstance(event, Report):
            best[event.request] = max(best.get(event.request, event), event, key=_worth)
    taken = {(event.request, event.meter) for event in events if isinstance(event, Reversal) and event.quantity is None}
    users, leasts, peaks, lasts = defaultdict(set), defaultdict(list), defaultdict(list), defaultdict(list)
    for name, event in best.items():
        if (name, None) in taken:
            continue
        day = (START + event.at).date()
        if (name, "users") not in taken:
            users[day.replace(day=1), event.model].add(event.user)
        if event.tokens is not None and (name, "least") not in taken:
            leasts[day, event.model].append(event.tokens)
        if event.tokens is not None and (name, "peak") not in taken:
            peaks[day, event.model].append(event.tokens)
        if event.stored is not None and event.status == "completed" and (name, "last") not in taken:
            lasts[day.replace(day=1), event.model].append((event.at, event.stored))
    found = {("users", *of, price): Decimal(len(names)) for of, names in users.items()}
    found |= {("least", *of, price): Decimal(min(numbers)) for of, numbers in leasts.items()}
    found |= {("peak", *of, price): Decimal(max(numbers)) for of, numbers in peaks.items()}
    found |= {("last", *of, price): Decimal(max(numbers)[1]) for of, numbers in lasts.items()}
    return {key: quantity for key, quantity in found.items() if quantity}


def _worth(event: Report) -> tuple[Any, ...]:
    has_quantities = event.tokens is not None or event.stored is not None
    return RANK[event.status], has_quantities, event.at, event.identity


def present(**rules: Any) -> JoinsConfig:
    return JoinsConfig.model_validate({**RULES, **rules})


def world_of(folder: Path) -> HandMade:
    world = HandMade(folder, **RULES)
    for meter in METERS:
        for model in ("m", "n"):
            world.price(timedelta(), "0.01", begins=timedelta(), meter=meter, model=model)
    return world


def audited(world: HandMade, at: timedelta) -> int:
    """How many rows an audit appends; it finds no fault."""
    said = audit(world.tables, START + at, present=present())
    if said is None:
        return 0  # Nothing is decided yet.
    assert [fault for fault in said.faults if isinstance(fault, dict)] == []
    return said.appended


def happened(
    world: HandMade, events: Sequence[Event], *, is_audited_each_time: bool = False, apart: timedelta = HOUR
) -> HandMade:
    """All of them are received, so long after one another."""
    for number, event in enumerate(events, 1):
        at = 40 * DAY + number * apart
        event.received(world, at)
        world.joined(at + apart / 2)
        if is_audited_each_time:
            audited(world, at + apart / 2)
    world.joined(45 * DAY)
    audited(world, 45 * DAY)
    return world


def stands(world: HandMade) -> Bill:
    """What usage bills."""
    return bill_of(pl.DataFrame(DeltaTable(f"{world.tables}/usage").to_pyarrow_table()))


def bill_of(usage: pl.DataFrame) -> Bill:
    sets: defaultdict[Any, defaultdict[Member, int]] = defaultdict(lambda: defaultdict(int))
    for row in members(usage).iter_rows(named=True):
        unit = None if row["unit_price"] is None else f"{row['unit_price'].normalize():f}"
        key = row["meter"], row["first_day"], row["model"], unit
        at = row["event_time"] if row["aggregation"] == "latest" else datetime(1, 1, 1, tzinfo=UTC)
        member = Member(row["member"] or "", row["value"] or Decimal(0), at)
        sets[row["aggregation"], key][member] += row["sign"]
    found = {key: quantity_of(Aggregation(kind), counts) for (kind, key), counts in sets.items()}
    return {key: quantity for key, quantity in found.items() if quantity}


def replays(world: HandMade) -> Bill:
    """What a replay of all bills."""
    usage, journal = open_table(world.tables, Table.USAGE), open_table(world.tables, Table.JOURNAL)
    assert usage is not None
    assert journal is not None
    live = pin(usage, [], world.tables, present())
    rules = Assumptions().pinned(live)
    made = replayed(Tables(journal, usage, START.date()), live, rules, rows_at_once=3)
    return bill_of(pl.concat([pl.DataFrame(rows) for rows in made]))


FIRST, NEXT, THIRD = (
    Report(name, 35 * DAY + at * MINUTE, user) for name, at, user in (("a", 5, "x"), ("b", 9, "x"), ("c", 20, "y"))
)
HISTORIES: dict[str, list[Event]] = {
    "one": [FIRST],
    "three of two users": [FIRST, NEXT, THIRD],
    "the only one of a user is reversed": [FIRST, THIRD, Reversal("c")],
    "one of two of a user is reversed": [FIRST, NEXT, Reversal("a")],
    "a meter is taken back": [FIRST, NEXT, THIRD, Reversal("c", "users")],
    "a credit of a quantity takes nothing off a set": [FIRST, Reversal("a", "users", 1)],
    "a better report is of another user": [
        Report("a", FIRST.at, "x", 90, status="cancelled"),
        Report("a", FIRST.at, "y", 5, 7),
    ],
    "the latest is not the last received": [
        Report("a", 35 * DAY, stored=5),
        Report("b", 36 * DAY, stored=3),
        Report("c", 34 * DAY, stored=9),
    ],
    "the latest is reversed": [Report("a", 35 * DAY, stored=5), Report("b", 36 * DAY, stored=3), Reversal("b")],
    "two at one instant": [Report("a", 35 * DAY, stored=5), Report("b", 35 * DAY, stored=3)],
    "the greatest is reversed": [Report("a", 35 * DAY, tokens=5), Report("b", 35 * DAY, tokens=3), Reversal("a")],
    "the least is reversed": [Report("a", 35 * DAY, tokens=5), Report("b", 35 * DAY, tokens=3), Reversal("b")],
    "two models, two months, two days": [
        Report("a", 20 * DAY),
        Report("b", 35 * DAY),
        Report("c", 36 * DAY, tokens=4),
        Report("d", 36 * DAY, model="n"),
    ],
    "accepted twice": [FIRST, NEXT, FIRST],
}


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("events", HISTORIES.values(), ids=HISTORIES)
@pytest.mark.parametrize(
    ("apart", "is_audited_each_time"),
    [(HOUR, True), (MINUTE, False)],
    ids=["beyond the timeout", "within it"],
)
def test_a_set_is_billed_in_any_order_of_receipt(
    events: list[Event], tmp_path: Path, apart: timedelta, *, is_audited_each_time: bool
) -> None:
    received = events[::-1] if is_audited_each_time else events
    world = happened(world_of(tmp_path), received, is_audited_each_time=is_audited_each_time, apart=apart)
    assert stands(world) == billed(events)
    assert audited(world, 46 * DAY) == 0
    assert replays(world) == billed(events)


FEBRUARY = (START + 31 * DAY).date()


def test_a_period_is_priced_by_the_version_at_its_start(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.price(timedelta(), "0.02", begins=40 * DAY, meter="users")
    events = [Report("a", 35 * DAY, "x"), Report("b", 45 * DAY, "y"), Report("c", 60 * DAY, "z")]
    for event in events:
        event.received(world, 61 * DAY)
    world.joined(62 * DAY)
    users = {key[1:]: quantity for key, quantity in stands(world).items() if key[0] == "users"}
    assert users == {(FEBRUARY, "m", "0.01"): 2, (date(2026, 3, 1), "m", "0.02"): 1}
    assert audited(world, 62 * DAY) == 0


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("is_late", [False, True], ids=["price in time", "price comes last"])
def test_a_month_in_which_the_account_became_known_has_one_price(tmp_path: Path, zone: str, *, is_late: bool) -> None:
    """Its price changes between the midnights of UTC and of the account; earlier usage had the month of UTC."""
    world = world_of(tmp_path)
    world.accounts.clear()
    of_utc, of_zone = 31 * DAY, 31 * DAY + (5 if zone == "America/New_York" else -9) * HOUR
    border = (of_utc + of_zone) / 2

    def changes(at: timedelta) -> None:
        world.price(at, "0.03", begins=border, meter="users")

    if not is_late:
        changes(timedelta())
    Report("a", 31 * DAY + HOUR, "x").received(world, 32 * DAY)
    world.joined(33 * DAY)
    world.account(40 * DAY, timezone=zone)
    Report("b", 45 * DAY, "y").received(world, 46 * DAY)
    world.joined(47 * DAY)
    audited(world, 48 * DAY)
    if is_late:
        changes(49 * DAY)
        world.joined(50 * DAY)
        audited(world, 50 * DAY)
    price = "0.03" if border <= of_zone else "0.01"
    users = {key: quantity for key, quantity in stands(world).items() if key[0] == "users"}
    assert users == {("users", FEBRUARY, "m", price): 2}
    assert audited(world, 51 * DAY) == 0
    assert replays(world) == stands(world)


def test_a_period_is_priced_by_the_plan_at_its_start(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.account(38 * DAY, plan="another")
    for event in (Report("a", 35 * DAY, "x"), Report("b", 45 * DAY, "y"), Report("c", 60 * DAY, "z")):
        event.received(world, 61 * DAY)
    world.joined(62 * DAY)
    users = {key[1:]: quantity for key, quantity in stands(world).items() if key[0] == "users"}
    assert users == {(FEBRUARY, "m", "0.01"): 2, (date(2026, 3, 1), "m", None): 1}
    assert audited(world, 62 * DAY) == 0


def test_a_price_that_comes_late_moves_all_members_of_the_period(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.account(38 * DAY, plan="another")
    for event in (Report("a", 35 * DAY, "x"), Report("b", 45 * DAY, "y")):
        event.received(world, 46 * DAY)
    world.joined(47 * DAY)
    world.price(48 * DAY, "0.03", begins=31 * DAY, meter="users")
    world.joined(49 * DAY)
    assert audited(world, 49 * DAY) == 4
    users = {key[1:]: quantity for key, quantity in stands(world).items() if key[0] == "users"}
    assert users == {(FEBRUARY, "m", "0.03"): 2}
    usage = pl.DataFrame(DeltaTable(f"{world.tables}/usage").to_pyarrow_table())
    assert set(usage["cause"]) == {"stream", "repriced"}
    assert audited(world, 50 * DAY) == 0
    assert replays(world) == stands(world)


def test_a_user_counts_at_two_prices_of_a_period_until_an_audit(tmp_path: Path) -> None:
    """The price of February changes on the tenth, for all of it."""
    world = world_of(tmp_path)
    Report("a", 35 * DAY, "x").received(world, 36 * DAY)
    world.joined(37 * DAY)
    world.price(41 * DAY, "0.03", begins=31 * DAY, meter="users")
    Report("b", 42 * DAY, "x").received(world, 42 * DAY)
    world.joined(43 * DAY)
    key = ("users", FEBRUARY, "m")
    assert {stood: quantity for stood, quantity in stands(world).items() if stood[0] == "users"} == {
        (*key, "0.01"): 1,
        (*key, "0.03"): 1,
    }
    audited(world, 43 * DAY)
    assert {stood: quantity for stood, quantity in stands(world).items() if stood[0] == "users"} == {(*key, "0.03"): 1}
    assert audited(world, 44 * DAY) == 0


def test_a_late_price_leaves_a_period_alone_of_which_days_were_removed(tmp_path: Path) -> None:
    """`weir retain` has removed the first days of February; its last ones are near to March, which is open."""
    world = world_of(tmp_path)
    for event in (Report("a", 35 * DAY, "x"), Report("f", 46 * DAY, "z", model="n"), Report("b", 57 * DAY, "x")):
        event.received(world, event.at + HOUR)
        world.joined(event.at + 2 * HOUR)
    world.removed(45 * DAY)
    for meter in ("users", "requests"):
        world.price(100 * DAY, "0.03", begins=31 * DAY, meter=meter)
    world.joined(101 * DAY)
    assert audited(world, 101 * DAY) == 2, "the request has the late price"
    users = {key: quantity for key, quantity in stands(world).items() if key[0] == "users" and key[2] == "m"}
    assert users == {("users", FEBRUARY, "m", "0.01"): 1}
    assert audited(world, 102 * DAY) == 0


@pytest.mark.parametrize("scope", [Scope(since=START + 40 * DAY), Scope(until=START + 40 * DAY)], ids=["from", "to"])
def test_an_audit_of_a_part_of_a_period_leaves_its_price_alone(tmp_path: Path, scope: Scope) -> None:
    world = world_of(tmp_path)
    for event in (Report("a", 35 * DAY, "x"), Report("b", 45 * DAY, "x")):
        event.received(world, event.at + HOUR)
    world.joined(46 * DAY)
    world.price(47 * DAY, "0.03", begins=31 * DAY, meter="users")
    world.joined(48 * DAY)
    said = audit(world.tables, START + 48 * DAY, present=present(), scope=scope)
    assert said is not None
    assert said.appended == 0
    assert [fault for fault in said.faults if isinstance(fault, dict)] == []
    assert audited(world, 49 * DAY) == 4
    users = {key: quantity for key, quantity in stands(world).items() if key[0] == "users"}
    assert users == {("users", FEBRUARY, "m", "0.03"): 1}


def test_a_period_is_of_the_calendar_that_names_the_day(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.account(timedelta(), timezone="Asia/Tokyo")
    for event in (Report("a", 31 * DAY - 10 * HOUR, "x"), Report("b", 31 * DAY - 9 * HOUR, "x")):
        event.received(world, 32 * DAY)
    world.joined(33 * DAY)
    usage = members(pl.DataFrame(DeltaTable(f"{world.tables}/usage").to_pyarrow_table())).filter(meter="users")
    bounds = [(starts - START, ends - START) for starts, ends in usage.select("starts_at", "ends_at").iter_rows()]
    assert sorted(bounds) == [(timedelta(), 31 * DAY - 9 * HOUR), (31 * DAY - 9 * HOUR, 59 * DAY - 9 * HOUR)]
    assert sorted(usage["first_day"]) == [date(2026, 1, 1), FEBRUARY]


def test_where_no_such_meter_is_declared_the_column_is_null(tmp_path: Path) -> None:
    meters = {"requests": METERS["requests"]}
    world = HandMade(tmp_path, meters=meters)
    FIRST.received(world, 40 * DAY)
    world.joined(41 * DAY)
    usage = pl.DataFrame(DeltaTable(f"{world.tables}/usage").to_pyarrow_table())
    assert usage["members"].null_count() == len(usage) == 1


REPORTS = st.builds(
    Report,
    st.sampled_from("abcde"),
    st.integers(28, 39).map(lambda days: days * DAY + HOUR),
    st.sampled_from("xyz"),
    st.sampled_from([None, 0, 7, 30]),
    st.sampled_from([None, 0, 7, 30]),
    st.sampled_from(["completed", "completed", "cancelled", "error"]),
    st.sampled_from(["m", "m", "n"]),
)
REVERSALS = st.builds(Reversal, st.sampled_from("abcde"), st.sampled_from([None, "users", "peak", "last"]))


@pytest.mark.long
@settings(max_examples=4, deadline=None)
@given(
    st.lists(REPORTS | REVERSALS, min_size=2, max_size=9, unique_by=str),
    st.sampled_from([HOUR, 20 * MINUTE, MINUTE]),
    st.booleans(),
)
def test_any_history_bills_as_the_rule(
    tmp_path_factory: pytest.TempPathFactory, events: list[Event], apart: timedelta, is_audited_each_time: bool
) -> None:
    world = world_of(tmp_path_factory.mktemp("world"))
    happened(world, events, is_audited_each_time=is_audited_each_time, apart=apart)
    assert stands(world) == billed(events)
    assert audited(world, 46 * DAY) == 0
    assert replays(world) == billed(events)
