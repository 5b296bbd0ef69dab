"""Access by the limits of the catalog, as OpenMeter's gateways ask for it, over rows of a real Postgres."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from jsonschema import Draft202012Validator

from api import key_store
from api.openapi import document
from catalog.file import parse_catalog
from catalog.store import store_file
from deployment.errors import CannotRun
from metering.api_keys import Scope
from monitoring.metrics import ApiRoute
from tests.api.serving import Answer, Server, serving, start_ingestion
from tests.api.test_events_in import refused
from tests.conftest import fresh_database
from tests.database_rows import progress, write
from tests.waiting import wait_until

ROUTE = ApiRoute.ENTITLEMENT_ACCESS.value
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
AHEAD = datetime(2500, 1, 1, tzinfo=UTC)
ACME, GLOBEX, FREE = "acme", "globex", "free"
METERS = ("requests", "input_tokens", "output_tokens")
ZONES = {ACME: "UTC", GLOBEX: "Pacific/Kiritimati", FREE: "UTC"}
"""Kiritimati is 14 hours ahead of UTC: mostly another day."""
SCHEMA = document()["paths"][ROUTE]["post"]["responses"]["200"]["content"]["application/json"]["schema"]


def limit(
    meter: str, quantity: str | None, since: datetime = LONG_AGO, period: str = "P1M", **of: str
) -> dict[str, Any]:
    return {**of, "meter": meter, "period": period, "quantity": quantity, "effective_from": since.isoformat()}


def used(account: str, meter: str, quantity: int, day: date) -> dict[str, Any]:
    starts = datetime(day.year, day.month, day.day, tzinfo=UTC)
    key = {"account": account, "day": day, "model": "m1", "meter": meter, "currency": "EUR", "dimensions": "{}"}
    return {**key, "quantity": quantity, "first_window": starts, "last_window_end": starts + timedelta(minutes=1)}


def catalog(*limits: dict[str, Any]) -> str:
    accounts = [
        {"account": name, "name": name.title(), "plan": f"plan-{name}", "currency": "EUR", "timezone": zone}
        for name, zone in ZONES.items()
    ]
    plans = [{"plan": f"plan-{name}", "name": name} for name in ZONES]
    return json.dumps({"plans": plans, "accounts": accounts, "limits": list(limits)})


@pytest.fixture(scope="module")
def gateway(bootstrap: str, postgres_url: str) -> Iterator[Server]:
    """An API over accounts without limits and without usage."""
    with fresh_database(postgres_url) as database:
        meters = ({"meter": meter, "unit": meter, "is_declared": True} for meter in METERS)
        with psycopg.connect(database) as session:
            session.execute("DELETE FROM meters")
        write(database, "meters", *meters)
        store_file(database, parse_catalog(catalog()))
        progress(database, "billing", datetime.now(UTC))
        start_ingestion(database)
        with serving(bootstrap, database) as running:
            yield running


@pytest.fixture(scope="module")
def everybody(gateway: Server) -> str:
    return reads(gateway)


@pytest.fixture(autouse=True)
def _without_limits_and_usage(gateway: Server) -> None:
    with psycopg.connect(gateway.database) as session:
        session.execute("DELETE FROM catalog.limits")
        session.execute("DELETE FROM usage_days")
        session.execute("DELETE FROM usage_hours")


def reads(server: Server, *accounts: str) -> str:
    made = key_store.create(server.database, [Scope.READ], "test", accounts=accounts)
    wait_until(lambda: ask(server, made.key, ACME).status != 401, "the key", 60, every_seconds=0.1)
    return made.key


def ask(server: Server, key: str, *customers: str, features: list[str] | None = None, **more: Any) -> Answer:
    body = {
        "customer": {"keys": list(customers)},
        **({} if features is None else {"feature": {"keys": features}}),
        **more,
    }
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    return server.request("POST", ROUTE, json.dumps(body).encode(), headers)


def codes(server: Server, key: str, customer: str, *features: str) -> dict[str, str | None]:
    """Why there is no access, by feature; None where there is."""
    answer = ask(server, key, customer, features=list(features) or None)
    assert answer.status == 200, answer.body
    Draft202012Validator(SCHEMA).validate(answer.json)
    [result] = answer.json["data"]
    for access in result["features"].values():
        assert access["has_access"] is ("reason" not in access)
    return {name: access.get("reason", {}).get("code") for name, access in result["features"].items()}


def declare(server: Server, *limits: dict[str, Any]) -> None:
    store_file(server.database, parse_catalog(json.dumps({"limits": list(limits)})))


def today(account: str) -> date:
    return datetime.now(ZoneInfo(ZONES[account])).date()


def test_a_customer_has_access_until_its_limit_is_used_up(gateway: Server, everybody: str) -> None:
    declare(gateway, limit("input_tokens", "100", plan="plan-acme"))
    month = today(ACME).replace(day=1)
    write(gateway.database, "usage_days", used(ACME, "input_tokens", 10**6, month - timedelta(days=1)))
    write(gateway.database, "usage_days", used(ACME, "input_tokens", 99, month))
    write(gateway.database, "usage_days", used(ACME, "output_tokens", 10**6, month))
    write(gateway.database, "usage_days", used(GLOBEX, "input_tokens", 10**6, month))
    assert codes(gateway, everybody, ACME) == dict.fromkeys(METERS)
    with psycopg.connect(gateway.database) as session:
        session.execute("UPDATE usage_days SET quantity = 100 WHERE quantity = 99")
    assert codes(gateway, everybody, ACME) == {**dict.fromkeys(METERS), "input_tokens": "usage_limit_reached"}
    assert codes(gateway, everybody, GLOBEX, "input_tokens") == {"input_tokens": None}


def test_a_limit_of_a_team_denies_who_asks_for_the_team_and_says_where_more_may_be_used(
    gateway: Server, everybody: str
) -> None:
    with psycopg.connect(gateway.database) as session:
        session.execute("UPDATE jobs SET config = config || '{\"dimensions\": [\"team\"]}' WHERE job = 'billing'")
    of_team = {"dimension": {"team": "a/b ?"}}
    declare(
        gateway, {**limit("requests", "5"), "account": ACME, **of_team}, {**limit("requests", "9"), "account": ACME}
    )
    day = today(ACME)
    write(gateway.database, "usage_days", {**used(ACME, "requests", 4, day), "dimensions": '{"team": "a/b ?"}'})
    write(gateway.database, "usage_days", {**used(ACME, "requests", 3, day), "dimensions": None, "is_other": True})
    team = "requests?team=a%2Fb%20%3F"
    asked = ("requests", team, f"{team}/m1", "requests?team=x", "requests/m1")
    assert codes(gateway, everybody, ACME, *asked) == dict.fromkeys(asked)
    answer = ask(gateway, everybody, ACME, features=[*asked]).json["data"][0]["features"]
    assert {name for name, access in answer.items() if "may_be_more" in access} == {team, f"{team}/m1"}
    [more] = answer[team]["may_be_more"]
    assert more == (
        "4 requests of team a/b ? are used in this month, and up to 3 more: usage of combinations beyond the first "
        "10,000 of a day is in no value of a dimension."
    )
    one_more = {**used(ACME, "requests", 1, day), "dimensions": '{"team": "a/b ?", "u": "1"}'}
    write(gateway.database, "usage_days", one_more)
    reached = "usage_limit_reached"
    assert codes(gateway, everybody, ACME, *asked) == {**dict.fromkeys(asked), team: reached, f"{team}/m1": reached}
    denied = ask(gateway, everybody, ACME, features=[team]).json["data"][0]["features"][team]
    assert denied["reason"]["message"] == "5 of 5 requests of team a/b ? are used in this month."


def test_a_dimension_may_have_a_slash_in_its_name_and_a_model_a_question_mark(gateway: Server, everybody: str) -> None:
    """Else a limit that is reached would be looked for by another name, and nobody denied."""
    with psycopg.connect(gateway.database) as session:
        listed = '{"dimensions": ["account.tags.cost/center"]}'
        session.execute("UPDATE jobs SET config = config || %s::jsonb WHERE job = 'billing'", [listed])
    of = {"dimension": {"account.tags.cost/center": "42"}}
    declare(
        gateway,
        {**limit("requests", "4"), "account": ACME, **of},
        {**limit("requests", "4"), "account": ACME, "dimension": {"account.tags.cost/center": "not asked for"}},
        {**limit("requests", "4"), "account": ACME, "model": "a?b=c"},
    )
    tag = json.dumps({"account.tags.cost/center": "42"})
    write(gateway.database, "usage_days", {**used(ACME, "requests", 4, today(ACME)), "dimensions": tag})
    of_tag = "requests?account.tags.cost/center=42"
    asked = (of_tag, f"{of_tag}/m1", "requests?account.tags.cost%2Fcenter=42", "requests/a?b=c", "requests")
    reached = "usage_limit_reached"
    assert codes(gateway, everybody, ACME, *asked) == {**dict.fromkeys(asked[:3], reached), **dict.fromkeys(asked[3:])}
    with psycopg.connect(gateway.database) as session:
        session.execute("UPDATE usage_days SET model = 'a?b=c'")
    assert codes(gateway, everybody, ACME, *asked[3:]) == {"requests/a?b=c": reached, "requests": None}


def test_a_feature_of_a_dimension_that_there_is_not_of_several_or_of_no_value_is_not_found(
    gateway: Server, everybody: str
) -> None:
    """Else whoever misspells the dimension is let through whatever is used."""
    with psycopg.connect(gateway.database) as session:
        session.execute("UPDATE jobs SET config = config || '{\"dimensions\": [\"team\"]}' WHERE job = 'billing'")
    declare(gateway, {**limit("requests", "1"), "account": ACME, "dimension": {"team": "search"}})
    with psycopg.connect(gateway.database) as session:
        session.execute("UPDATE jobs SET config = config || '{\"dimensions\": [\"user_id\"]}' WHERE job = 'billing'")
    wrong = (
        "requests?tema=search",
        "requests?team=search&user_id=u",
        "requests?team",
        "requests?team/m1",
        "requests?=x",
    )
    right = (
        "requests?team=search",
        "requests?team=a%26b=c",
        "requests?user_id=u",
        "requests?user_id=",
        "requests/m?a&b",
    )
    found = codes(gateway, everybody, ACME, *wrong, *right)
    assert found == {**dict.fromkeys(wrong, "feature_not_found"), **dict.fromkeys(right)}
    sentences = ask(gateway, everybody, ACME, features=[*wrong]).json["data"][0]["features"]
    assert [sentences[feature]["reason"]["message"] for feature in wrong[:3]] == [
        "There is no dimension tema.",
        "There is no meter requests?team=search&user_id=u.",
        "There is no meter requests?team.",
    ]


def test_a_limit_of_a_day_counts_the_day_of_the_accounts_own_calendar(gateway: Server, everybody: str) -> None:
    declare(gateway, *(limit("requests", "5", period="P1D", account=name) for name in (ACME, GLOBEX)))
    # Right before midnight the day of the rows may be over when it is asked.
    for name in (ACME, GLOBEX):
        write(gateway.database, "usage_days", used(name, "requests", 4, today(name)))
        write(gateway.database, "usage_days", used(name, "requests", 9, today(name) + timedelta(days=2)))
        write(gateway.database, "usage_days", used(name, "requests", 9, today(name) - timedelta(days=1)))
        assert codes(gateway, everybody, name, "requests") == {"requests": None}
    with psycopg.connect(gateway.database) as session:
        session.execute("UPDATE usage_days SET quantity = 5 WHERE quantity = 4")
    for name in (ACME, GLOBEX):
        assert codes(gateway, everybody, name, "requests") == {"requests": "usage_limit_reached"}


def test_a_limit_of_the_last_hours_counts_those_until_f(gateway: Server, everybody: str) -> None:
    declare(gateway, limit("requests", "5", period="PT2H", account=ACME))
    with psycopg.connect(gateway.database) as session:
        [frontier] = session.execute("SELECT frontier FROM closed_usage").fetchone() or [None]
    assert frontier is not None
    hour = frontier.replace(minute=0, second=0, microsecond=0)
    numbers = {"quantity": 4, "late_quantity": 0, "unmetered_rows": 0, "corrected": False}
    key = {"account": ACME, "model": "m1", "meter": "requests", "currency": "EUR"}
    for hours_before, quantity in ((2, 9), (1, 4)):
        row = {**key, **numbers, "hour": hour - timedelta(hours=hours_before), "quantity": quantity}
        write(gateway.database, "usage_hours", row)
    assert codes(gateway, everybody, ACME, "requests") == {"requests": None}
    write(gateway.database, "usage_hours", {**key, **numbers, "hour": hour, "quantity": 1})
    answer = ask(gateway, everybody, ACME, features=["requests"])
    reason = answer.json["data"][0]["features"]["requests"]["reason"]
    assert reason == {
        "code": "usage_limit_reached",
        "message": "5 of 5 requests are used in the last 2 hours.",
    }


def test_the_limit_of_an_account_replaces_that_of_its_plan_and_the_newest_in_force_applies(
    gateway: Server, everybody: str
) -> None:
    write(gateway.database, "usage_days", used(ACME, "requests", 50, today(ACME)))
    yesterday = datetime.now(UTC) - timedelta(days=1)
    declare(gateway, limit("requests", "10", plan="plan-acme"))
    assert codes(gateway, everybody, ACME, "requests") == {"requests": "usage_limit_reached"}
    declare(gateway, limit("requests", "1000", account=ACME), limit("requests", "1", AHEAD, account=ACME))
    assert codes(gateway, everybody, ACME, "requests") == {"requests": None}
    declare(gateway, limit("requests", "0", yesterday, account=ACME))
    assert codes(gateway, everybody, ACME, "requests") == {"requests": "feature_unavailable"}
    declare(gateway, limit("requests", None, yesterday, account=ACME))
    assert codes(gateway, everybody, ACME, "requests") == {"requests": None}, "the plan's limit is replaced, too"
    declare(gateway, limit("requests", "10", period="P1D", plan="plan-acme"))
    assert codes(gateway, everybody, ACME, "requests") == {"requests": "usage_limit_reached"}, "of another period"


def test_a_limit_of_money_denies_every_feature_once_the_month_has_cost_as_much(gateway: Server, everybody: str) -> None:
    spent = {"account": ACME, "currency": "EUR", "period": "P1M", "amount": "5.00"}
    declare(gateway, {**spent, "effective_from": LONG_AGO.isoformat()})
    cost = {**used(ACME, "requests", 499, today(ACME)), "price_version": 1, "unit_price": "0.01"}
    write(gateway.database, "usage_days", cost)
    assert codes(gateway, everybody, ACME) == dict.fromkeys(METERS)
    with psycopg.connect(gateway.database) as session:
        session.execute("UPDATE usage_days SET quantity = 500")
    assert codes(gateway, everybody, ACME) == dict.fromkeys(METERS, "usage_limit_reached")
    message = ask(gateway, everybody, ACME).json["data"][0]["features"]["requests"]["reason"]["message"]
    assert message == "5 of 5 EUR are spent in this month."


def test_a_limit_of_what_a_meter_costs_denies_that_meter_alone(gateway: Server, everybody: str) -> None:
    spent = {"account": ACME, "currency": "EUR", "period": "P1M", "effective_from": LONG_AGO.isoformat()}
    declare(gateway, {**spent, "meter": "requests", "amount": "5.00"}, {**spent, "amount": "50"})
    for lsn, meter in enumerate(("requests", "input_tokens"), 1):
        cost = {**used(ACME, meter, 600, today(ACME)), "price_version": lsn, "unit_price": "0.01"}
        write(gateway.database, "usage_days", cost)
    denied = {**dict.fromkeys(METERS), "requests": "usage_limit_reached"}
    assert codes(gateway, everybody, ACME) == denied
    message = ask(gateway, everybody, ACME).json["data"][0]["features"]["requests"]["reason"]["message"]
    assert message == "6 of 5 EUR of requests are spent in this month."


def test_a_limit_of_each_account_is_replaced_by_those_of_plans_and_accounts_and_steps_deny_nothing(
    gateway: Server, everybody: str
) -> None:
    for name in ZONES:
        write(gateway.database, "usage_days", used(name, "requests", 10, today(name)))
    steps = {**limit("requests", None, account=FREE), "steps": ["1"]}
    declare(gateway, limit("requests", "10", account="*"), limit("requests", "11", plan="plan-globex"), steps)
    found = {name: codes(gateway, everybody, name, "requests")["requests"] for name in ZONES}
    assert found == {ACME: "usage_limit_reached", GLOBEX: None, FREE: None}
    assert codes(gateway, reads(gateway, ACME), ACME, "requests") == {"requests": "usage_limit_reached"}


def test_a_limit_of_a_model_denies_that_model_and_not_the_meter(gateway: Server, everybody: str) -> None:
    declare(gateway, {**limit("requests", "5", account=ACME), "model": "m1"}, limit("requests", "9", account=ACME))
    write(gateway.database, "usage_days", used(ACME, "requests", 5, today(ACME)))
    write(gateway.database, "usage_days", {**used(ACME, "requests", 3, today(ACME)), "model": "org/m2"})
    features = ("requests", "requests/m1", "requests/org/m2", "input_tokens/m1")
    assert codes(gateway, everybody, ACME, *features) == {
        **dict.fromkeys(features),
        "requests/m1": "usage_limit_reached",
    }
    answer = ask(gateway, everybody, ACME, features=["requests/m1"]).json["data"][0]["features"]["requests/m1"]
    assert answer["reason"]["message"] == "5 of 5 requests of m1 are used in this month."
    write(gateway.database, "usage_days", {**used(ACME, "requests", 1, today(ACME)), "model": "m3"})
    assert codes(gateway, everybody, ACME, *features) == {
        **dict.fromkeys(features[:3], "usage_limit_reached"),
        "input_tokens/m1": None,
    }
    assert codes(gateway, everybody, ACME, "flights/m1") == {"flights/m1": "feature_not_found"}


def test_what_is_not_there_is_said_of_each_customer_and_feature(gateway: Server, everybody: str) -> None:
    answer = ask(gateway, everybody, ACME, "nobody", ACME, features=["requests", "flights"])
    Draft202012Validator(SCHEMA).validate(answer.json)
    [result], [error] = answer.json["data"], answer.json["errors"]
    assert (result["matched"], result["customer"]["key"], result["customer"]["name"]) == ([ACME], ACME, "Acme")
    assert result["features"]["requests"] == {"has_access": True}
    assert result["features"]["flights"]["reason"]["code"] == "feature_not_found"
    assert (error["code"], error["customer"]) == ("customer_not_found", "nobody")
    assert answer.json["meta"] == {"page": {"size": 1, "next": None, "previous": None}}
    refused(ask(gateway, everybody), 400, "customer")
    unnamed = ask(gateway, everybody, ACME, "", features=[""]).json
    features = {name: access["reason"]["code"] for name, access in unnamed["data"][0]["features"].items()}
    assert features == {"": "feature_not_found"}, "no question about all features"
    assert [error["customer"] for error in unnamed["errors"]] == [""]
    for neither in ("yes", "", 0):
        refused(ask(gateway, everybody, ACME, include_credits=neither), 400, "include_credits")


def test_a_gateway_that_asks_for_credits_gets_the_answer_by_limits(gateway: Server, everybody: str) -> None:
    declare(gateway, limit("requests", "0", account=ACME))
    asked = [ask(gateway, everybody, ACME, GLOBEX, include_credits=wanted).json for wanted in (True, False)]
    assert asked[0] == asked[1]
    assert asked[0]["data"][0]["features"]["requests"]["reason"]["code"] == "feature_unavailable"


def test_a_key_learns_nothing_of_accounts_that_it_does_not_name(gateway: Server) -> None:
    declare(gateway, limit("requests", "0", account=GLOBEX), limit("requests", "0", plan="plan-free"))
    key = reads(gateway, ACME)
    answer = ask(gateway, key, ACME, GLOBEX, FREE, features=["requests"])
    assert [result["customer"]["key"] for result in answer.json["data"]] == [ACME]
    assert answer.json["data"][0]["features"]["requests"] == {"has_access": True}
    assert [(error["code"], error["customer"]) for error in answer.json["errors"]] == [
        ("customer_not_found", GLOBEX),
        ("customer_not_found", FREE),
    ]
    assert ask(gateway, "weir_none_none", ACME).status == 401


def test_the_catalog_refuses_limits_of_what_there_is_not(gateway: Server) -> None:
    for wrong, says in (
        (limit("requests", "1", account="nobody"), "limits.0.account is 'nobody'"),
        (limit("requests", "1", plan="nothing"), "limits.0.plan is 'nothing'"),
        (limit("flights", "1", account=ACME), "limits.0.meter is 'flights'"),
    ):
        with pytest.raises(CannotRun, match=says):
            declare(gateway, wrong)
    stored = store_file(gateway.database, parse_catalog(json.dumps({"limits": [limit("requests", "1", account=ACME)]})))
    assert (stored.changes, stored.limits) == ([], {"c": 1, "r": 0})
    stored = store_file(gateway.database, parse_catalog(json.dumps({"limits": [limit("requests", "1", account=ACME)]})))
    assert stored.limits == {"r": 1}
    with psycopg.connect(gateway.database) as session, pytest.raises(psycopg.errors.CheckViolation):
        session.execute(
            "INSERT INTO catalog.limits VALUES ('acme', 'plan-acme', 'requests', 'P1D', now(), 1, 'x', now())"
        )
