"""What a set of members comes to, beside a few lines of Python; and what a meter of a period may say."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jobs.billing.config import BillingConfig
from jobs.ingestion.limits_of_meters import limited, refuse_unknown_members
from jobs.settings.meters import MeterConfig, refuse_unfit
from jobs.settings.stored_meters import restored, stored
from metering.contracts.schema import contracts_of
from metering.contracts.shipped import shipped
from metering.meter_sentences import explanation
from metering.meters import columns_of, conditions_of, totals_of
from metering.months import MonthZone, ZoneChange, billing_month, month_zones, period_bounds
from metering.period_meters import Aggregation, Member, Members, Period, counted, quantity_of

USERS: dict[str, Any] = {"unit": "user", "unique": "user_id", "period": "month"}
SEATS: dict[str, Any] = {"unit": "seat", "max": "seats", "period": "day"}
IDLE: dict[str, Any] = {"unit": "seat", "min": "seats", "period": "day"}
STORED: dict[str, Any] = {"unit": "gigabyte", "latest": "gigabytes", "period": "month"}
START = datetime(2026, 11, 1, tzinfo=UTC)

MEMBERS = {
    Aggregation.UNIQUE: st.builds(Member, text=st.sampled_from("abcde")),
    Aggregation.MIN: st.builds(Member, quantity=st.decimals(0, 9, places=1)),
    Aggregation.MAX: st.builds(Member, quantity=st.decimals(0, 9, places=1)),
    Aggregation.LATEST: st.builds(
        Member,
        quantity=st.decimals(0, 9, places=1),
        occurred_at=st.integers(0, 5).map(lambda minutes: START + timedelta(minutes=minutes)),
    ),
}


@st.composite
def histories(draw: st.DrawFn) -> tuple[Aggregation, list[tuple[Member, int]]]:
    """Rows of usage that put members, each of which may be taken back later."""
    aggregation = draw(st.sampled_from(Aggregation))
    rows: list[tuple[Member, int]] = []
    standing: list[Member] = []
    members = MEMBERS[aggregation]
    for _ in range(draw(st.integers(0, 25))):
        takes_back = draw(st.booleans())
        if standing and takes_back:
            rows.append((standing.pop(draw(st.integers(0, len(standing) - 1))), -1))
        else:
            standing.append(draw(members))
            rows.append((standing[-1], 1))
    return aggregation, rows


def what_stands(aggregation: Aggregation, rows: list[tuple[Member, int]]) -> Decimal:
    """The same in other words: put in a list, taken out of it."""
    standing: list[Member] = []
    for member, sign in rows:
        if sign > 0:
            standing.append(member)
        else:
            standing.remove(member)
    if aggregation is Aggregation.UNIQUE:
        return Decimal(len({member.text for member in standing}))
    if aggregation is Aggregation.MIN:
        return min((member.quantity for member in standing), default=Decimal(0))
    if aggregation is Aggregation.MAX:
        return max((member.quantity for member in standing), default=Decimal(0))
    latest = max((member.occurred_at for member in standing), default=None)
    return max((member.quantity for member in standing if member.occurred_at == latest), default=Decimal(0))


@given(histories(), st.randoms())
def test_a_set_comes_to_the_same_in_any_order(
    history: tuple[Aggregation, list[tuple[Member, int]]], random: Any
) -> None:
    aggregation, rows = history
    must = what_stands(aggregation, rows)
    assert quantity_of(aggregation, counted(rows)) == must
    random.shuffle(rows)
    assert quantity_of(aggregation, counted(rows)) == must


@given(histories(), st.data())
def test_counting_a_set_row_by_row_equals_counting_it_whole(
    history: tuple[Aggregation, list[tuple[Member, int]]], data: st.DataObject
) -> None:
    aggregation, rows = history
    cut = data.draw(st.integers(0, len(rows)))
    before, touched = Counter(counted(rows[:cut])), {member for member, _ in rows[cut:]}
    stands = [member for member, count in before.items() if count > 0 and member not in touched]
    others: int | Member | None = len(stands)
    if aggregation is not Aggregation.UNIQUE:
        others = max(stands, key=aggregation.order, default=None)
    members = Members(aggregation, {member: before[member] for member in touched}, others)
    assert members.quantity == what_stands(aggregation, rows[:cut])
    for place in range(cut, len(rows)):
        members.add(*rows[place])
        assert members.quantity == what_stands(aggregation, rows[: place + 1])


ZONES = st.sampled_from(["UTC", "Asia/Tokyo", "America/Los_Angeles", "Pacific/Apia", "Asia/Kathmandu", "Europe/Berlin"])
CHANGES = st.lists(st.tuples(st.integers(1, 120), ZONES), max_size=3)


@given(ZONES, CHANGES, st.dates(date(2026, 1, 1), date(2026, 6, 28)))
def test_each_instant_is_in_the_period_of_its_day(zone: str, later: list[tuple[int, str]], day: date) -> None:
    """Months are those of `billing_month`, and the days of a month are cut out of it without a hole."""
    begins = sorted(dict(later).items())
    changes = [ZoneChange(None, zone), *(ZoneChange(START - timedelta(days=365 - n), z) for n, z in begins)]
    zones = month_zones(changes)
    month = Period.MONTH.first_day(day)
    of_month = next(each for each in reversed(zones) if each.first_day is None or each.first_day <= month)
    start, end = period_bounds(month, Period.MONTH, of_month)
    found = billing_month(changes, month)
    assert (start, end) == (found.start, found.end)
    days = [month + timedelta(days=n) for n in range((Period.MONTH.following(month) - month).days)]
    bounds = [period_bounds(each, Period.DAY, of_month) for each in days]
    assert bounds[0][0] == start
    assert bounds[-1][1] == end
    assert [ends for _, ends in bounds[:-1]] == [begins for begins, _ in bounds[1:]]


def test_the_days_of_the_general_calendar_are_those_of_utc() -> None:
    general = MonthZone(datetime.min.replace(tzinfo=UTC), "UTC", None)
    first = date(2026, 2, 28)
    assert period_bounds(first, Period.DAY, general) == (
        datetime(2026, 2, 28, tzinfo=UTC),
        datetime(2026, 3, 1, tzinfo=UTC),
    )


@pytest.mark.parametrize("document", [USERS, IDLE, SEATS, STORED])
def test_the_stored_declaration_is_the_declared_one(document: dict[str, Any]) -> None:
    meter = MeterConfig.model_validate(document).declaration("m")
    assert restored(json.loads(json.dumps(stored([meter])))) == (meter,)
    assert meter.meaning[2:] == (next(name for name in Aggregation if name in document), document["period"])


def test_the_least_of_long_numbers_is_the_least() -> None:
    """Python's unary minus rounds a number to 28 digits, and then both were equal."""
    least = Decimal("12345678901234567890123456789.1")
    members = [Member(quantity=least + Decimal("0.1")), Member(quantity=least)]
    assert quantity_of(Aggregation.MIN, dict.fromkeys(members, 1)) == least


def test_an_earlier_release_does_not_misread_a_meter_of_a_period() -> None:
    assert "sums" not in stored([MeterConfig.model_validate(USERS).declaration("m")])["m"]


def test_the_columns_that_it_reads_are_carried() -> None:
    meters = [MeterConfig.model_validate(each).declaration(each["unit"]) for each in (USERS, IDLE, SEATS, STORED)]
    assert columns_of(meters) == ("seats", "gigabytes")
    assert conditions_of(meters) == ("user_id",)
    assert totals_of(meters) == {}, "quantities of several periods have no total"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({**USERS, "period": None}, "a meter with `unique` needs a `period`: day or month"),
        ({**USERS, "period": "week"}, "'day' or 'month'"),
        ({**USERS, "count": "outcomes"}, "a meter has one of `count: outcomes`"),
        ({**SEATS, "sum": "seats"}, "a meter has one of `count: outcomes`"),
        ({**SEATS, "min": "seats"}, "a meter has one of `count: outcomes`"),
        ({**IDLE, "late_policy": "hold"}, "late_policy is hold, but a meter with `min` needs `correct`"),
        ({"unit": "u", "min": "lsn", "period": "day"}, "an outcome has a lsn of its own"),
        ({**SEATS, "unique": "seats"}, "a meter has one of `count: outcomes`"),
        ({"unit": "u", "sum": "seats", "period": "day"}, "`period` belongs to a meter with `unique`, `min`, `max` or"),
        ({**SEATS, "within": "other"}, "a meter with `max` cannot have `within`: a period is billed as a whole"),
        (
            {**USERS, "once_per": {"column": "content_hash", "within": "PT1H"}},
            "a meter with `unique` cannot have `once_per`",
        ),
        ({**STORED, "hold": {}}, "a meter with `latest` cannot have `hold`"),
        ({**STORED, "late_policy": "drop"}, "late_policy is drop, but a meter with `latest` needs `correct`"),
        ({**USERS, "expected": True}, "of a meter that sums"),
        ({**USERS, "max_per_event": "1"}, "of a meter that sums"),
        ({"unit": "u", "max": "lsn", "period": "day"}, "an outcome has a lsn of its own"),
        ({"unit": "u", "unique": "family", "period": "day"}, "an outcome has a family of its own"),
    ],
)
def test_a_meter_that_is_declared_wrongly_is_refused_with_what_to_do(document: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(says)):
        MeterConfig.model_validate(document)


def test_billing_refuses_to_drop_late_members() -> None:
    with pytest.raises(ValidationError, match="late_policy is drop, but a meter with `unique` needs"):
        BillingConfig.model_validate({"meters": {"users": USERS}, "late_policy": {"users": "drop"}})


def test_nothing_is_within_a_meter_of_a_period() -> None:
    meters = {"a": MeterConfig.model_validate(SEATS), "b": MeterConfig(unit="seat", sum="others", within="a")}
    with pytest.raises(ValueError, match=re.escape("b.within is 'a', which bills whole periods")):
        refuse_unfit(meters)


QUANTITIES: dict[str, Any] = {
    "$id": "com.example.seats",
    "x-weir-family": "quantity",
    "type": "object",
    "properties": {
        "data": {
            "type": "object",
            "properties": {
                "model": {"type": "string", "x-weir-column": "model"},
                "seats": {"type": "integer", "minimum": -5, "x-weir-column": "seats"},
            },
        }
    },
}


def test_its_column_is_one_of_a_contract() -> None:
    contracts = contracts_of((QUANTITIES,), shipped())
    assert limited(contracts, {"m": MeterConfig.model_validate(SEATS)})["com.example.seats"].fields
    with pytest.raises(ValueError, match="sums gigabytes, which is given by no contract"):
        limited(contracts, {"m": MeterConfig.model_validate(STORED)})
    for document in (USERS, {**USERS, "unique": "seats"}, {**USERS, "unique": "model"}):
        refuse_unknown_members([MeterConfig.model_validate(document).declaration("m")], contracts)
    with pytest.raises(
        ValueError, match="counts the different values of team, which no contract of an outcome has as text or"
    ):
        refuse_unknown_members([MeterConfig.model_validate({**USERS, "unique": "team"}).declaration("m")], contracts)


@pytest.mark.parametrize(
    ("document", "begins"),
    [
        (USERS, "m counts the different values of user_id of each outcome in each month and model, priced per user"),
        (IDLE, "m bills the least seats of each outcome in each day and model, priced per seat by plan and model"),
        (SEATS, "m bills the greatest seats of each outcome in each day and model, priced per seat by plan and model"),
        (STORED, "m bills the gigabytes of the latest of each outcome in each month and model, priced per gigabyte"),
    ],
)
def test_it_is_explained_in_a_sentence(document: dict[str, Any], begins: str) -> None:
    sentence = explanation(MeterConfig.model_validate(document).declaration("m"), 0.1)
    assert sentence.startswith(begins)
    assert "is billed at the price of its start" in sentence
    assert re.fullmatch(r"[^.\n]+\.", sentence)
