"""Periods of the truth: their members are read from the bytes, and their rules are those of the applications."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from jobs.joins.config import JoinsConfig
from jobs.joins.memory import condition_of, quantity_of
from jobs.joins.quantities import BILLED, is_counted
from metering import period_meters
from metering.months import BEGINNING_OF_TIME, MonthZone, period_bounds
from tests.rules.test_traffic_prices import Rule, stored
from tests.rules.test_traffic_truth import documents, large, run
from traffic.bills import live_bill
from traffic.calendar import day_in, ends_at, first_day, starts_at
from traffic.catalog import HOT_MODELS, ZONES
from traffic.generate import Traffic
from traffic.instants import instant_of, milliseconds
from traffic.meters import DAY, LATEST, MAX, MONTH, UNIQUE, PeriodMeter, members
from traffic.script import TakenBack
from traffic.truth import Truth, truth_of

OF_SECONDS = "com.example.completion"
SUNDRY = {UNIQUE: "user_id", MAX: "seats", LATEST: "stored_gigabytes"}


@lru_cache(maxsize=1)
def sample() -> tuple[Traffic, Truth]:
    traffic = run(7, records=4_000)
    return traffic, truth_of(traffic)


def keyed(lines: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Lines by account, model, meter and first day: several have different prices or currencies."""
    found = defaultdict(list)
    for line in lines:
        found[line["account"], line["model"], line["meter"], line["first_day"]].append(line)
    return found


def said(traffic: Traffic) -> dict[tuple[str, str], dict[str, Any]]:
    """By request what accepted events say of a user, of seats and of what is stored, and when they occurred."""
    found: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for _, document in documents(traffic):
        data, kind = document["data"], document["type"]
        for number, _ in enumerate(data.get("calls", ()), 1):
            found[document["subject"], f"{data['request_id']}/{number}"] |= {"user_id": data.get("user_id")}
        if "request_id" in data and kind != "ai.inference.reversal.v1":
            of_request = found[document["subject"], data["request_id"]]
            of_request |= {name: data[name] for name in ("user_id",) if name in data}
            if kind == OF_SECONDS:
                at = datetime.fromisoformat(document["time"])
                of_request |= {name: (at, data[name]) for name in ("seats", "stored_gigabytes")}
    return found


def members_in(traffic: Traffic, truth: Truth) -> dict[tuple[Any, ...], set[Any]]:
    """By account, model, meter and first day the members that billed outcomes add, from the bytes."""
    events, found = said(traffic), defaultdict(set)
    for outcome in truth["outcomes"]:
        if outcome["outcome"] not in ("matched", "abandoned"):
            continue
        of_request = events.get((outcome["account"], outcome["request_id"]), {})
        day = date.fromisoformat(outcome["day"])
        of = outcome["account"], outcome["model"]
        if of_request.get("user_id") is not None:
            found[*of, "active_users", day.replace(day=1).isoformat()].add(of_request["user_id"])
        for name, first in (("seats", day), ("stored_gigabytes", day.replace(day=1))):
            at, number = of_request.get(name, (None, None))
            if number is not None and outcome["outcome"] == "matched":
                found[*of, name, first.isoformat()].add((at, Decimal(str(number))))
    return found


def quantity_of_set(meter: str, found: set[Any]) -> Decimal:
    match meter:
        case "active_users":
            return Decimal(len(found))
        case "seats":
            return Decimal(max(number for _, number in found))
    return Decimal(max(found)[1])


def test_oracle_a_period_comes_to_what_its_members_in_the_bytes_do() -> None:
    traffic, truth = sample()
    lines, sets = keyed(truth["periods"]), members_in(traffic, truth)
    # Others have several prices, by what their events say or by what was known.
    of_one_price = {of for of in sets if of[0] in traffic.catalog.accounts and of[1] in traffic.catalog.models}
    expected = {of: quantity for of in of_one_price if (quantity := quantity_of_set(of[2], sets[of]))}
    assert {of: [Decimal(line["quantity"]) for line in lines[of]] for of in lines.keys() & of_one_price} == {
        of: [quantity] for of, quantity in expected.items()
    }
    assert len(expected) > 0.7 * len(lines)
    assert {of[2] for of in expected} == {"active_users", "seats", "stored_gigabytes"}
    users = {of: sets[of] for of in sets.keys() - of_one_price if of[2] == "active_users"}
    assert users
    for of, found in users.items():  # Each is counted by one of the prices at least.
        quantities = [Decimal(line["quantity"]) for line in lines[of]]
        assert max(quantities) <= len(found) <= sum(quantities)


def test_one_user_of_several_calls_is_one_and_numbers_of_one_instant_differ() -> None:
    traffic, truth = sample()
    calls = sum(len(live_bill(traffic, outcome).members) for outcome in traffic.outcomes if outcome.outcome in BILLED)
    assert calls > 1.2 * sum(len(found) for found in members_in(traffic, truth).values())
    latest = [found for of, found in members_in(traffic, truth).items() if of[2] == "stored_gigabytes"]
    instants = [[at for at, _ in found] for found in latest]
    assert any(len(each) > len(set(each)) and each.count(max(each)) > 1 for each in instants)


def test_what_an_amount_is_and_that_the_price_of_the_start_holds_for_the_whole_period() -> None:
    traffic, truth = sample()
    priced = [line for line in truth["periods"] if line["price_from"]]
    for line in truth["periods"]:
        assert Decimal(line["amount"]) == Decimal(line["quantity"]) * Decimal(line["unit_price"] or 0)
    zones = {name: account.timezone for name, account in traffic.late.after.accounts.items()}
    for line in priced:
        if line["account"] in traffic.catalog.accounts:
            first = date.fromisoformat(line["first_day"])
            begins = datetime(first.year, first.month, first.day, tzinfo=ZoneInfo(zones[line["account"]]))
            assert datetime.fromisoformat(line["price_from"]) <= begins
    now = [line for line in priced if line["model"] in HOT_MODELS and line["account"] in traffic.catalog.accounts]
    assert now
    # By the minute most are at the price that began just before the traffic did.
    assert all(line["price_from"] == "2020-01-01T00:00:00.000Z" for line in now)
    assert {line["unit_price"] is None for line in truth["periods"]} == {True, False}
    assert {line["currency"] for line in truth["periods"]} == {"USD", "EUR", None}


def test_differential_the_price_of_a_period_is_that_of_the_rule() -> None:
    traffic, _ = sample()
    rules = [Rule(stored(traffic.late, is_after=is_after)) for is_after in (False, True)]
    compared = 0
    for outcome in traffic.outcomes:
        catalog = traffic.late.after if outcome.knows_late else traffic.late.before
        for member in live_bill(traffic, outcome).members:
            start_ms = starts_at(member.zone, member.first_day)
            if outcome.account not in catalog.accounts:
                continue
            contract = catalog.accounts[outcome.account].contract_at(start_ms)
            key: Any = contract.plan, outcome.model, member.meter.name, contract.currency
            operation = outcome.texts["operation"]
            tokens = outcome.reported.get("input_tokens")
            band = {} if tokens is None else {"context": "short" if tokens <= 400 else "long"}
            theirs = rules[outcome.knows_late].price(key, start_ms, {"operation": operation, **band})
            ours = member.price and (member.price.unit_price, instant_of(member.price.effective_from_ms))
            assert ours == (theirs and (theirs.value, theirs.effective_from))
            assert member.currency == contract.currency
            compared += 1
    assert compared > 1_000


def test_what_is_taken_back_is_in_no_period_and_a_credit_of_a_quantity_takes_nothing_out() -> None:
    traffic, _ = sample()
    traffic = replace(traffic, taken_back=(), outcomes=[o for o in traffic.outcomes if o.knows_late])
    truth = truth_of(traffic)
    assert truth["audited"]["periods"] == truth["periods"]
    outcome = next(
        outcome
        for outcome in traffic.outcomes
        if {member.meter.name for member in live_bill(traffic, outcome).members} == {"active_users"}
        and sum(outcome.account == o.account and outcome.model == o.model for o in traffic.outcomes) == 1
    )

    def standing(*taken: tuple[str | None, Decimal | None]) -> list[Any]:
        reversals = [TakenBack(outcome.account, outcome.request_id, *each) for each in taken]
        found: list[Any] = truth_of(replace(traffic, taken_back=reversals))["audited"]["periods"]
        return found

    def is_its(line: dict[str, Any]) -> bool:
        return bool((line["account"], line["model"]) == (outcome.account, outcome.model))

    assert standing(("active_users", Decimal(1))) == truth["periods"]
    for taken in ((None, None), ("active_users", None)):
        assert standing(taken) == [line for line in truth["periods"] if not is_its(line)] != truth["periods"]


def test_an_account_that_is_told_late_pays_for_its_periods_after_an_audit() -> None:
    _, truth = large()
    of_late = [
        [line for line in lines if line["account"].startswith("acct-late-")]
        for lines in (truth["periods"], truth["audited"]["periods"])
    ]
    live, standing = of_late
    assert {line["currency"] for line in live} == {None, "USD"}
    assert {line["currency"] for line in standing} == {"USD"}
    assert {of[2] for of in keyed(standing)} > {"active_users"}
    assert sum(Decimal(line["amount"]) for line in live) < sum(Decimal(line["amount"]) for line in standing)


def test_in_which_order_outcomes_come_changes_no_period() -> None:
    traffic, truth = sample()
    other = list(traffic.outcomes)
    Random(3).shuffle(other)
    shuffled = truth_of(replace(traffic, outcomes=other))
    for lines, others in (
        (truth["periods"], shuffled["periods"]),
        (truth["audited"]["periods"], shuffled["audited"]["periods"]),
    ):
        key = [sorted(each, key=lambda line: json.dumps(line, sort_keys=True)) for each in (lines, others)]
        assert key[0] == key[1]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("period", [DAY, MONTH])
def test_differential_days_and_months_begin_and_end_as_those_of_the_applications(zone: str, period: str) -> None:
    kind = period_meters.Period(period)
    for day in (date(2026, 1, 1), date(2026, 3, 29), date(2026, 4, 5), date(2026, 10, 25), date(2028, 2, 29)):
        for at_ms in (starts_at(zone, day), starts_at(zone, day) - 1):
            first = first_day(period, day_in(zone, at_ms))
            assert first == kind.first_day(day_in(zone, at_ms))
            bounds = period_bounds(first, kind, MonthZone(BEGINNING_OF_TIME, zone, None))
            ours = starts_at(zone, first), ends_at(zone, period, first)
            assert ours == tuple(map(milliseconds, bounds))
            assert ours[0] <= at_ms < ours[1]


CASES = [
    ("matched", {"user_id": "u", "status": "completed"}, {"seats": 0, "stored_gigabytes": Decimal("0.001")}),
    ("matched", {"status": "error"}, {"seats": None}),
    ("matched", {"user_id": "u"}, {"seats": 7}),
    ("abandoned", {"user_id": "u"}, {}),
    ("orphaned", {"status": "completed"}, {"seats": 7, "stored_gigabytes": Decimal(1)}),
    ("superseded", {"user_id": "u"}, {}),
]


@pytest.mark.parametrize("where", [{}, {"status": ["completed"]}, {"status": "error"}])
@pytest.mark.parametrize(("outcome", "texts", "reported"), CASES)
def test_differential_the_members_of_an_outcome_are_those_of_the_applications(
    outcome: str, texts: dict[str, str], reported: dict[str, Any], where: dict[str, Any]
) -> None:
    documents = {
        aggregation: {"unit": "u", aggregation: column, "period": DAY, **({"where": where} if where else {})}
        for aggregation, column in SUNDRY.items()
    }
    config = JoinsConfig.model_validate({"meters": documents})
    row = {"outcome": outcome, "status": texts.get("status")}
    row |= {condition_of(name): text for name, text in texts.items()}
    row |= {quantity_of(name): number for name, number in reported.items()}
    rows = pl.DataFrame([row], schema={"outcome": pl.String(), **config.carried})
    theirs: dict[Any, str] = {}
    for meter in config.declared:
        assert meter.of_period is not None
        column = meter.of_period.column
        name = quantity_of(column) if meter.of_period.is_of_numbers else condition_of(column)
        is_member = pl.col("outcome").is_in(list(BILLED)) & is_counted(meter) & pl.col(name).is_not_null()
        theirs |= dict.fromkeys(rows.filter(is_member)[name].to_list(), meter.name)
    meters = [PeriodMeter.of(name, document) for name, document in documents.items()]
    found = members(meters, outcome, reported, texts)
    assert {value: name for name, value in found.items()} == theirs
