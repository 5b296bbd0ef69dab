"""Questions over HTTP: what a key's accounts have, in pages, and nothing of others, whatever a route forgets."""

from __future__ import annotations

import json
import random
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from jsonschema import Draft202012Validator
from psycopg.types.json import Jsonb
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from api import key_store, meter_query_request, read_routes
from api.events import authorized
from api.openapi import document
from api.read_request import ReadRequest
from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.api_reader import API_READER
from jobs.runtime.postgres.relations import ASKED, ASKED_OF_CATALOG
from jobs.streams import USAGE, Table
from metering.api_keys import Scope
from metering.instants import rfc3339
from metering.plan_terms import PLAN_MODEL
from metering.price_tiers import PriceTerms
from monitoring.metrics import ApiRoute
from tests.api.serving import Answer, Server, serving, start_ingestion
from tests.api.test_events_in import refused
from tests.api.view_panes import FRONTIER, fill_views
from tests.conftest import fresh_database
from tests.dashboard.watched import crossed, hits, match, pattern, watch
from tests.database_rows import MINUTE, progress, window, write, write_windows
from tests.streaming.measured import NOON
from tests.waiting import wait_until

T0 = datetime(2026, 11, 1, 10, tzinfo=UTC)
ACCOUNTS = ("acme", "globex")
LATE = {"late_seconds": 900, "decision": "correct", "quantity": 2, "unit_price": 1, "price_version": 1}
CHANGE = {"old_quantity": 1, "new_quantity": 3, "old_amount": 1, "new_amount": 3, "cause": "stream"}
FORGETFUL = "/v1/forgetful/{relation}"
"""A route that forgets to filter by anything."""


async def forgetful(asked: ReadRequest) -> Response:
    relation = asked.request.path_params["relation"]
    # As Postgres writes a row: an instant may be infinite, which Python's cannot.
    statement = f"SELECT to_jsonb(whole_row) AS found FROM {relation} AS whole_row"
    rows, _ = await asked.of(lambda database: database.execute(statement).fetchall())
    return JSONResponse([row["found"] for row in rows])


def straggler(lsn: int, account: str) -> dict[str, Any]:
    instants = {"window_start": T0, "event_time": T0, "received_at": T0 + timedelta(hours=1), "recorded_at": T0}
    key = {"usage_lsn": lsn, "account": account, "model": "m1", "meter": "requests", "currency": "EUR"}
    return {**key, **instants, **LATE, "request_id": f"r-{account}", "cause": "stream"}


def correction(lsn: int, account: str) -> dict[str, Any]:
    key = {"usage_lsn": lsn, "account": account, "model": "m1", "meter": "requests", "currency": "EUR"}
    return {**key, **CHANGE, "usage_lsns": [lsn], "window_start": T0}


DAY = timedelta(days=1)
WHOLE_PERIODS = (("users", 0, 5), ("seats", 0, 7), ("seats", 1, 5))
"""Meter, number of its first day, and its quantity."""


def whole_period(meter: str, first: int, quantity: int) -> dict[str, Any]:
    """A row of days of acme, as billing has it for a meter of a period: in the minute in which that begins."""
    starts = T0.replace(hour=0, minute=0) + first * DAY
    key = {"account": "acme", "day": starts.date(), "model": "m1", "meter": meter, "currency": "EUR"}
    of_period = {"first_window": starts, "last_window_end": starts + MINUTE, "dimensions": "{}"}
    return {**key, **of_period, "quantity": quantity, "unit_price": 1, "price_version": 1, "usage_rows": quantity}


def invoice(database: str, number: int, account: str) -> None:
    """An invoice of an account with one line."""
    month, at = {"period": date(2026, 10, 1), "period_start": T0 - 31 * DAY, "period_end": T0}, T0 + DAY
    money = {"currency": "EUR", "minor_unit": 2, "rounding": "half-even", "total": "1.50", "residual": "0.0015"}
    named = {"invoice": f"weir-{number}", "account": account}
    of_usage = {"usage_position": 7, "frontier": T0, "audit_id": 1, "timezone": "UTC", "lines": 1}
    write(
        database,
        "invoices",
        {**named, **month, **money, **of_usage, "issuer": "weir", "number": number, "kind": "invoice"},
    )
    line = {"line": 1, "kind": "usage", "original_period": month["period"], "model": "m1", "meter": "requests"}
    line |= {"quantity": "1001.000", "exact_amount": "1.5015", "amount": "1.50", "residual": "0.0015"}
    write(database, "invoice_lines", {**named, **line, "hash": "a" * 64})
    for sequence, state in enumerate(("Open", "Issued"), 1):
        event = {"sequence": sequence, "state": state, "at": at, "made_by": "ann", "reason": None, "document": "b" * 64}
        write(database, "invoice_events", {**named, **event, "previous": "0" * 64, "hash": str(sequence) * 64})


def fill(database: str) -> None:
    """Two accounts with as much of everything."""
    write(database, "catalog.plans", *({"plan": f"plan-{name}", "name": name} for name in ACCOUNTS))
    for lsn, name in enumerate(ACCOUNTS, 1):
        write(
            database,
            "catalog.accounts",
            {"account": name, "name": name, "plan": f"plan-{name}", "currency": "EUR", "timezone": "UTC"},
        )
        price = {"plan": f"plan-{name}", "model": "m1", "meter": "requests", "currency": "EUR", "unit_price": 2}
        since = {"effective_from": T0 - timedelta(days=30)}
        write(database, "catalog.prices", {**price, **since})
        for of in ({"account": name}, {"plan": f"plan-{name}"}):
            write(database, "catalog.limits", {**of, "meter": "requests", "period": "P1M", "quantity": 9, **since})
        write(database, "stragglers", straggler(lsn, name))
        write(database, "corrections", correction(lsn, name))
        decided = {"usage_lsn": lsn, "meter": "requests", "account": name, "request_id": f"r-{name}"}
        invoice(database, lsn, name)
        write(database, "catalog.decisions", {**decided, "decision": "approve", "reason": "x", "decided_by": "ann"})
    write_windows(
        database,
        *(
            window(T0 + number * MINUTE, number + 1, account=name, model=model, unit_price=Decimal("0.000001"), **late)
            for name in ACCOUNTS
            for model in ("m1", "m2", None)
            for number, late in ((0, {"late_quantity": 1}), (1, {}), (2, {}))
        ),
    )
    progress(database, "billing", T0 + timedelta(minutes=7))
    fill_views(database)
    fill_watched_by_name(database)


def fill_watched_by_name(database: str) -> None:
    """A threshold of each account, a watch and a pattern named `accounts` of both, and a watch of each."""
    every, matched = watch(database, "accounts"), pattern(database, "accounts")
    hits(database, T0, every, ["r-acme"], "acme")
    hits(database, T0 + timedelta(hours=1), every, ["r-globex"], "globex")
    for name in ACCOUNTS:
        crossed(database, T0, name, Decimal("7.50"))
        crossed(database, T0, name, Decimal("7.50"), 2, used=Decimal("7.25"))
        hits(database, T0, watch(database, f"of-{name}", name), [f"r-{name}-{number}" for number in (1, 2, 3)], name)
        for version in (1, 2, 3):
            match(database, matched, T0, f"match_{name}", {"account": name, "api_key_id": None}, version)
    match(database, pattern(database, "by_model", "model"), T0, "match_of_all", {"model": "m"})


@pytest.fixture(scope="module")
def reading(bootstrap: str, postgres_url: str) -> Iterator[Server]:
    """An API over the rows of two accounts."""
    asked = read_routes.READ_QUERIES
    query_routes = read_routes.query_routes

    def with_forgetful(services: Any) -> list[Route]:
        async def respond(request: Request) -> Response:
            return await forgetful(ReadRequest(request, authorized(request, services, Scope.READ), services.reader))

        return [*query_routes(services), Route(FORGETFUL, respond)]

    with fresh_database(postgres_url) as database, pytest.MonkeyPatch.context() as patch:
        patch.setattr("api.app.query_routes", with_forgetful)
        fill(database)
        start_ingestion(database)
        with serving(bootstrap, database) as running:
            assert asked
            yield running


def get(server: Server, path: str, key: str, *, etag: str | None = None, **given: Any) -> Answer:
    """GET; values of lists are repeated, and `from_` is `from`."""
    query = urlencode({name.rstrip("_"): value for name, value in given.items()}, doseq=True)
    headers = {"Authorization": f"Bearer {key}", **({"If-None-Match": etag} if etag else {})}
    return server.request("GET", f"{path}?{query}", None, headers)


def reads(server: Server, *accounts: str, scopes: tuple[Scope, ...] = (Scope.READ,)) -> str:
    """A new key, once the server knows it."""
    made = key_store.create(server.database, scopes, "test", accounts=accounts)
    wait_until(lambda: get(server, "/v1/usage", made.key).status != 401, "the key", 60, every_seconds=0.1)
    return made.key


@pytest.fixture(scope="module")
def acme(reading: Server) -> str:
    return reads(reading, "acme")


@pytest.fixture(scope="module")
def everybody(reading: Server) -> str:
    return reads(reading)


@pytest.fixture(scope="module")
def nobody(reading: Server) -> str:
    """A key of an account that has nothing."""
    return reads(reading, "nobody")


LISTS = ("/v1/usage", "/v1/invoices", "/v1/corrections", "/v1/stragglers", "/v1/thresholds")


@pytest.mark.parametrize("path", LISTS)
def test_a_key_sees_its_own_accounts_and_no_other(
    reading: Server, acme: str, everybody: str, nobody: str, path: str
) -> None:
    assert {row["account"] for row in get(reading, path, acme).json["data"]} == {"acme"}
    assert {row["account"] for row in get(reading, path, everybody).json["data"]} == set(ACCOUNTS)
    assert {row["account"] for row in get(reading, path, everybody, account="globex").json["data"]} == {"globex"}
    refused(get(reading, path, acme, account="globex"), 403, "globex")
    refused(get(reading, path, acme, account=["acme", "globex"]), 403, "globex")
    assert get(reading, path, nobody).json["data"] == []


@pytest.mark.parametrize("relation", [*ASKED, *(f"catalog.{name}" for name in ASKED_OF_CATALOG)])
def test_a_route_that_forgets_every_filter_shows_nothing_of_others(
    reading: Server, acme: str, everybody: str, nobody: str, relation: str
) -> None:
    path = FORGETFUL.format(relation=relation)
    assert "globex" not in get(reading, path, acme).body.decode()
    if relation in ("usage_windows", "usage_days", "stragglers", "corrections", "analytics_panes") or "." in relation:
        ours = get(reading, path, nobody)
        # A note about everybody names nobody, and each has to see it: their rows would seem right.
        unnamed = {"account": "", "plan": ""} if relation == "catalog.effective_prices_due" else None
        assert ours.status == 200
        assert [row for row in ours.json if unnamed is None or row != {**row, **unnamed}] == []
    if relation in (
        *("usage_windows", "usage_days", "stragglers", "corrections", "analytics_panes"),
        *("catalog.prices", "catalog.limits"),
    ):
        assert "acme" in get(reading, path, acme).body.decode()
        assert "globex" in get(reading, path, everybody).body.decode()


def test_the_reader_has_no_keys_no_configuration_and_nothing_to_write(reading: Server) -> None:
    with psycopg.connect(in_schema(reading.database)) as session:
        session.execute(f"SET ROLE {API_READER}")
        for statement in (
            *("SELECT 1 FROM api_keys", "SELECT 1 FROM jobs", "SELECT 1 FROM sessions", "SELECT 1 FROM sources"),
            *("DELETE FROM usage_windows", "UPDATE positions SET next_position = 0", "CREATE TABLE mine (n int)"),
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), session.transaction():
                session.execute(statement)


def test_a_question_needs_a_key_with_the_scope(reading: Server) -> None:
    refused(reading.request("GET", "/v1/usage", None, {}), 401, "weir keys create")
    refused(get(reading, "/v1/usage", reads(reading, scopes=(Scope.INGEST,))), 403, "read")


def test_usage_has_quantity_amount_state_and_late_rows(reading: Server, acme: str) -> None:
    answer = get(reading, "/v1/usage", acme, model="m1")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["frontier"] == answer.headers["weir-frontier"] == "2026-11-01T10:07:00Z"
    first = answer.json["data"][0]
    assert first == {
        "window_start": "2026-11-01T10:00:00Z",
        "window_end": "2026-11-01T10:01:00Z",
        "account": "acme",
        "model": "m1",
        "meter": "requests",
        "currency": "EUR",
        "quantity": "1",
        "billed_quantity": "1",
        "free_quantity": "0",
        "tiered_quantity": "0",
        "amount": "0.000001",
        "unpriced_quantity": "0",
        "unmetered_requests": 0,
        "late_quantity": "1",
        "corrected": False,
        "state": "closed",
    }
    assert [row["state"] for row in answer.json["data"]] == ["closed", "closed", "closing"]


@pytest.mark.parametrize(
    ("given", "sums"),
    [
        ({"window": "PT1H", "group_by": "account"}, ["18", "18"]),
        ({"window": "P1D", "group_by": "model", "account": "acme"}, ["6", "6", "6"]),
        ({"window": "P1M", "group_by": "", "timezone": "Europe/Berlin"}, ["36"]),
        ({"window": "PT1H", "group_by": "meter", "model": ["m1", "m2"]}, ["24"]),
        ({"from_": "2026-11-01T10:01:00Z", "to": "2026-11-01T12:02:00+02:00", "group_by": "meter"}, ["12"]),
    ],
)
def test_usage_by_other_windows_and_keys(
    reading: Server, everybody: str, given: dict[str, Any], sums: list[str]
) -> None:
    assert [row["quantity"] for row in get(reading, "/v1/usage", everybody, **given).json["data"]] == sums


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"window": "P1D"},
        {"window": "PT1H", "group_by": "model"},
        {"window": "P1M", "timezone": "Asia/Kolkata", "group_by": "account,model"},
    ],
)
@pytest.mark.parametrize("limit", [1, 4, 100])
def test_pages_together_are_the_whole_list(reading: Server, everybody: str, given: dict[str, str], limit: int) -> None:
    whole = get(reading, "/v1/usage", everybody, **given, limit=1000).json
    assert whole["next"] is None
    assert pages(reading, "/v1/usage", everybody, limit=limit, **given) == whole["data"]


def pages(server: Server, path: str, key: str, **given: Any) -> list[Any]:
    found: list[Any] = []
    answer = get(server, path, key, **given).json
    while True:
        found += answer["data"]
        if answer["next"] is None:
            return found
        answer = get(server, path, key, **given, cursor=answer["next"]).json


def test_stragglers_come_in_pages_and_corrections_by_number(reading: Server, everybody: str) -> None:
    assert len(pages(reading, "/v1/stragglers", everybody, limit=1)) == 2
    first = get(reading, "/v1/corrections", everybody, limit=1).json
    second = get(reading, "/v1/corrections", everybody, limit=1, since=first["next"]).json
    assert [first["data"][0]["account"], second["data"][0]["account"]] == list(ACCOUNTS)
    assert first["data"][0]["new_amount"] == "3"
    last = get(reading, "/v1/corrections", everybody, since=second["next"]).json
    assert (last["data"], last["next"]) == ([], second["next"])


@pytest.mark.parametrize("path", LISTS)
def test_an_answer_that_the_client_has_is_not_repeated(reading: Server, acme: str, everybody: str, path: str) -> None:
    answer = get(reading, path, acme)
    again = get(reading, path, acme, etag=f'"x", {answer.headers["etag"]}')
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", answer.headers["etag"])
    assert again.headers["weir-frontier"] == answer.headers["weir-frontier"]
    assert get(reading, path, everybody, etag=answer.headers["etag"]).status == 200


@pytest.mark.parametrize(
    ("path", "given", "words"),
    [
        ("/v1/usage", {"windows": "P1D"}, ["windows", "no such parameter", "group_by"]),
        ("/v1/usage", {"window": "P1W"}, ["window", "PT1H"]),
        ("/v1/usage", {"from_": "2026-11-01T10:00:00"}, ["from", "offset"]),
        ("/v1/usage", {"from_": "2026-11-02T00:00:00Z", "to": "2026-11-01T00:00:00Z"}, ["to", "before"]),
        ("/v1/usage", {"limit": "0"}, ["limit", "1 to 1000"]),
        ("/v1/usage", {"limit": "1001"}, ["limit"]),
        ("/v1/usage", {"cursor": "e30="}, ["cursor", "next"]),
        ("/v1/usage", {"cursor": "%%%"}, ["cursor"]),
        ("/v1/usage", {"group_by": "team", "window": "P1D"}, ["team", "account, model, meter"]),
        ("/v1/usage", {"group_by": "team"}, ["team", "P1M"]),
        ("/v1/usage", {"timezone": "Berlin"}, ["timezone", "Europe/Berlin"]),
        ("/v1/usage", {"account": [f"a{number}" for number in range(101)]}, ["account", "100"]),
        ("/v1/corrections", {"since": "-1"}, ["since"]),
        ("/v1/corrections", {"cause": "fate"}, ["cause", "stream"]),
        ("/v1/stragglers", {"decision": "maybe"}, ["decision", "approve"]),
        ("/v1/usage", {"roll_up": "1"}, ["roll_up", "true"]),
    ],
)
def test_an_invalid_query_is_refused_with_advice(
    reading: Server, everybody: str, path: str, given: dict[str, Any], words: list[str]
) -> None:
    refused(get(reading, path, everybody, **given), 400, *words)


@pytest.mark.parametrize("values", [["x", "acme", "m", "r", "EUR"], [None] * 5, [True, 1, 2, 3, 4]])
def test_a_forged_cursor_is_a_client_error(reading: Server, everybody: str, values: list[Any]) -> None:
    from api.parameters import cursor_of

    assert get(reading, "/v1/usage", everybody, cursor=cursor_of(values)).status in (200, 400)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("/v1/usage", ["2026-11-01T10:00:00Z", 1, 2, 3, 4]),
        ("/v1/stragglers", [1, 2, 3, 4]),
        ("/v1/stragglers", ["2026-11-01T10:00:00Z", "\ud800", "1", "m"]),
        ("/v1/stragglers", ["2026-11-01T10:00:00Z", "\0", "1", "m"]),
        ("/v1/stragglers", ["2026-11-01T10:00:00Z", "acme", "one", "m"]),
    ],
)
def test_a_cursor_of_values_that_no_row_has_is_refused(
    reading: Server, everybody: str, path: str, values: list[Any]
) -> None:
    cursor = urlsafe_b64encode(json.dumps(values).encode()).decode()
    assert get(reading, path, everybody, cursor=cursor).status == 400


def test_the_api_reports_an_unavailable_database_and_recovers(bootstrap: str, database: str, postgres_url: str) -> None:
    start_ingestion(database)
    with serving(bootstrap, database) as server:
        key = reads(server)
        name = database.rsplit("/", 1)[1].partition("?")[0]
        with psycopg.connect(postgres_url, autocommit=True) as administrator:
            administrator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            administrator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            try:
                refused(answer := get(server, "/v1/usage", key), 503, "again later")
                assert int(answer.headers["retry-after"]) > 0
            finally:
                administrator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        assert get(server, "/v1/usage", key).status == 200
        # Also on sessions that ended meanwhile.
        with psycopg.connect(postgres_url, autocommit=True) as administrator:
            administrator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        assert get(server, "/v1/usage", key).status == 200


def test_models_are_ranked_by_the_usage_of_the_keys_accounts(reading: Server, acme: str, everybody: str) -> None:
    span = {"from": rfc3339(T0), "to": rfc3339(T0 + 10 * MINUTE)}
    for key, accounts in ((everybody, 2), (acme, 1)):
        answer = get(reading, "/v1/models", key, by="amount", **span).json
        names = ("rank", "model", "requests", "amount", "requests_change", "peak_requests", "peak_minute")
        busiest = rfc3339(T0 + 2 * MINUTE)
        assert [tuple(row[name] for name in names) for row in answer["data"]] == [
            (rank, model, str(6 * accounts), f"{Decimal(6 * accounts).scaleb(-6):f}", None, str(3 * accounts), busiest)
            for rank, model in ((1, None), (2, "m1"), (3, "m2"))
        ]
        # Without a span it ends with the frontier, and is of seven days.
        assert get(reading, "/v1/models", key, by="amount").json["data"] == answer["data"]
    one = get(reading, "/v1/models", everybody, by="amount", account="acme", **span).json
    assert one["data"] == get(reading, "/v1/models", acme, by="amount", **span).json["data"]
    refused(get(reading, "/v1/models", acme, account="globex"), 403, "globex")
    refused(get(reading, "/v1/models", acme, from_="2026-11-01T10:00:30Z"), 400, "whole minutes")
    refused(get(reading, "/v1/models", acme, from_="2026-01-01T00:00:00Z"), 400, "92 days")


def test_users_of_models_are_counted_in_the_tables(bootstrap: str, database: str, tmp_path: Path) -> None:
    fill(database)
    start_ingestion(database)
    key = {"lsn": 1, "log_date": T0.date(), "account": "acme", "model": "m1", "currency": "EUR", "sign": 1}
    row = {**key, **dict.fromkeys(("logged_at", "event_time", "received_at"), T0), "cause": "stream", "user_id": "anna"}
    rows = [row, {**row, "lsn": 2, "user_id": "ben"}]
    table = pa.Table.from_pylist(rows, pa.schema([USAGE.field(name) for name in row]))
    write_deltalake(tmp_path / Table.USAGE, table, partition_by=["log_date"])
    span = {"from": rfc3339(T0), "to": rfc3339(T0 + 10 * MINUTE)}
    with serving(bootstrap, database, tables=str(tmp_path)) as server:
        asks = reads(server, "acme")
        for by in ("requests", "users"):
            data = get(server, "/v1/models", asks, by=by, **span).json["data"]
            assert {row["model"]: row["users"] for row in data} == {None: 0, "m1": 2, "m2": 0}


def test_a_forecast_is_of_the_keys_accounts_in_pages(reading: Server, acme: str, everybody: str) -> None:
    found = pages(reading, "/v1/forecast", everybody, month="2026-11", limit=1)
    assert [(row["account"], row["so_far"], row["forecast"]) for row in found] == [
        (account, "0.000018", None) for account in ACCOUNTS
    ]
    assert get(reading, "/v1/forecast", everybody, month="2026-11").json["data"] == found
    assert get(reading, "/v1/forecast", acme, month="2026-11").json["data"] == found[:1]
    assert get(reading, "/v1/forecast", everybody, month="2026-09").json["data"] == []
    refused(get(reading, "/v1/forecast", acme, month="2026-11", account="globex"), 403, "globex")
    refused(get(reading, "/v1/forecast", acme), 400, "month", "2026-10")


def test_bills_are_lines_with_their_totals_in_the_calendar_of_the_account(reading: Server, acme: str) -> None:
    answer = get(reading, "/v1/bills", acme, month="2026-11").json
    assert [(row["model"], row["quantity"], row["amount"], row["state"]) for row in answer["data"]] == [
        ("m1", "6", "0.000006", "open"),
        ("m2", "6", "0.000006", "open"),
        (None, "6", "0.000006", "open"),
    ]
    assert answer["totals"] == [
        {
            "account": "acme",
            "name": "acme",
            "parent": None,
            "timezone": "UTC",
            "period_start": "2026-11-01T00:00:00Z",
            "period_end": "2026-12-01T00:00:00Z",
            "currency": "EUR",
            "amount": "0.000018",
            "unpriced_lines": 0,
            "state": "open",
        }
    ]
    assert get(reading, "/v1/bills", acme, month="2026-10").json["data"] == []
    refused(get(reading, "/v1/bills", acme), 400, "month", "2026-10")
    refused(get(reading, "/v1/bills", acme, month="2026-11", account="globex"), 403, "globex")


def test_what_plans_cost_beside_usage_is_listed_and_in_the_totals(reading: Server, acme: str, everybody: str) -> None:
    first = datetime(2026, 11, 1, tzinfo=UTC)
    row = {"model": PLAN_MODEL, "meter": "requests", "currency": "EUR", "effective_from": first}
    terms = Jsonb({"kind": "plan", "flat_fee": "15"})
    with psycopg.connect(reading.database, autocommit=True) as database:
        before = database.execute("SELECT account, effective_from FROM catalog.account_history").fetchall()
        database.execute("UPDATE catalog.account_history SET effective_from = %s", [first])
        write(
            reading.database, "catalog.prices", *({**row, "plan": f"plan-{name}", "terms": terms} for name in ACCOUNTS)
        )
        try:
            answer = get(reading, "/v1/bills", acme, month="2026-11").json
            named = {"account": "acme", "plan": "plan-acme", "currency": "EUR"}
            assert answer["fees"] == [{**named, "fee": "flat", "days": 30, "amount": "15", "state": "open"}]
            assert [total["amount"] for total in answer["totals"]] == ["15.000018"]
            assert len(answer["data"]) == 3
            whole = get(reading, "/v1/bills", everybody, month="2026-11").json
            pages_of_fees: list[Any] = []
            cursor: dict[str, str] | None = {}
            while cursor is not None:
                page = get(reading, "/v1/bills", everybody, month="2026-11", limit=1, **cursor).json
                pages_of_fees += page["fees"]
                cursor = {"cursor": page["next"]} if page["next"] else None
            assert pages_of_fees == whole["fees"]
            assert [fee["account"] for fee in whole["fees"]] == list(ACCOUNTS)
        finally:
            with database.transaction():
                database.execute("UPDATE catalog.prices SET deleted_at = effective_from WHERE model = %s", [PLAN_MODEL])
                database.execute("DELETE FROM catalog.prices WHERE model = %s", [PLAN_MODEL])
            for account, begins in before:
                database.execute(
                    "UPDATE catalog.account_history SET effective_from = %s WHERE account = %s", [begins, account]
                )
    assert get(reading, "/v1/bills", acme, month="2026-11").json["fees"] == []


def test_a_total_is_of_the_whole_month_on_every_page(reading: Server, everybody: str) -> None:
    whole = get(reading, "/v1/bills", everybody, month="2026-11").json
    first = get(reading, "/v1/bills", everybody, month="2026-11", limit=2).json
    assert first["totals"] == whole["totals"][:1]
    assert pages(reading, "/v1/bills", everybody, month="2026-11", limit=2) == whole["data"]
    assert [total["account"] for total in whole["totals"]] == list(ACCOUNTS)


def test_prices_are_those_of_the_accounts_of_the_key(reading: Server, acme: str, everybody: str) -> None:
    (row,) = get(reading, "/v1/prices", acme).json["data"]
    assert (row["account"], row["meter"], row["unit_price"], row["currency"]) == ("acme", "requests", "2", "EUR")
    assert get(reading, "/v1/prices", acme, at="2026-01-01T00:00:00Z").json["data"] == []
    assert [row["account"] for row in pages(reading, "/v1/prices", everybody, limit=1)] == list(ACCOUNTS)
    refused(get(reading, "/v1/prices", acme, account="globex"), 403, "globex")


QUERY = "/api/v1/meters/requests/query"


def test_openmeters_clients_list_meters_and_ask_for_a_total(reading: Server, acme: str) -> None:
    listed = get(reading, "/api/v1/meters", acme).json
    assert {"slug": "requests", "aggregation": "COUNT"}.items() <= next(
        m for m in listed if m["id"] == "requests"
    ).items()
    assert get(reading, QUERY, acme).json == {
        "data": [
            {
                "value": 18,
                "windowStart": "2026-11-01T10:00:00Z",
                "windowEnd": "2026-11-01T10:03:00Z",
                "subject": None,
                "groupBy": {},
            }
        ]
    }


def test_a_meter_of_a_period_is_answered_in_whole_periods(bootstrap: str, database: str) -> None:
    of_month = {"meter": "users", "unit": "user", "sums": "user_id", "aggregation": "unique", "period": "month"}
    of_day = {"meter": "seats", "unit": "seat", "sums": "seats", "aggregation": "max", "period": "day"}
    least = {"meter": "idle", "unit": "seat", "sums": "seats", "aggregation": "min", "period": "day"}
    write(database, "meters", *({**meter, "is_declared": True} for meter in (of_month, of_day, least)))
    write(database, "usage_days", *(whole_period(*of) for of in WHOLE_PERIODS))
    progress(database, "billing", T0 + timedelta(days=2))
    start_ingestion(database)
    with serving(bootstrap, database) as server:
        key = reads(server, "acme")
        for meter, given, expected in (
            ("users", {}, [5]),
            ("users", {"windowSize": "MONTH"}, [5]),
            ("seats", {}, [12]),
            ("seats", {"windowSize": "DAY"}, [7, 5]),
            ("seats", {"windowSize": "MONTH"}, [12]),
            ("seats", {"from_": "2026-11-02T00:00:00Z"}, [5]),
        ):
            data = get(server, f"/api/v1/meters/{meter}/query", key, **given).json["data"]
            assert [row["value"] for row in data] == expected, (meter, given)
        for meter, size in (("users", "DAY"), ("users", "HOUR"), ("seats", "MINUTE")):
            refused(get(server, f"/api/v1/meters/{meter}/query", key, windowSize=size), 400, "as a whole")
        listed = {row["slug"]: row for row in get(server, "/api/v1/meters", key).json}
        members = ("aggregation", "windowSize", "valueProperty")
        shown = {name: tuple(listed[name][member] for member in members) for name in ("users", "seats", "idle")}
        assert shown == {
            "users": ("UNIQUE_COUNT", "MONTH", "$.user_id"),
            "seats": ("MAX", "DAY", "$.seats"),
            "idle": ("MIN", "DAY", "$.seats"),
        }


OF_USERS = {"meter": "users", "unit": "user", "sums": "user_id", "aggregation": "unique", "period": "month"}
USERS, REQUESTS = "/api/v1/meters/users/query", "/api/v1/meters/requests/query"


@pytest.fixture(scope="module")
def in_two_zones(postgres_url: str, bootstrap: str) -> Iterator[tuple[Server, str]]:
    """An API, and a key of it: acme's days are UTC's, and those of havel are Berlin's."""
    with fresh_database(postgres_url) as database:
        write(database, "catalog.plans", {"plan": "p", "name": "p"})
        of_berlin = {"account": "havel", "name": "havel", "plan": "p", "currency": "EUR", "timezone": "Europe/Berlin"}
        write(database, "catalog.accounts", of_berlin)
        write(database, "meters", {**OF_USERS, "is_declared": True})
        months = whole_period("users", 0, 5), {**whole_period("users", 0, 3), "account": "havel"}
        days = [{**whole_period("requests", first, 2), "dimensions": '{"team": "search"}'} for first in (0, 1)]
        write(database, "usage_days", *months, *days, *({**day, "account": "havel"} for day in days))
        progress(database, "billing", T0 + timedelta(days=2))
        with psycopg.connect(database, autocommit=True) as session:
            session.execute("UPDATE jobs SET config = config || '{\"dimensions\": [\"team\"]}' WHERE job = 'billing'")
        start_ingestion(database)
        with serving(bootstrap, database) as server:
            yield server, reads(server)


@pytest.mark.parametrize(
    ("path", "given", "values"),
    [
        (USERS, {}, [("", 8)]),
        (USERS, {"groupBy": "subject"}, [("acme", 5), ("havel", 3)]),
        (USERS, {"windowSize": "MONTH", "subject": "havel"}, [("2026-10-31T23:00:00Z", 3)]),
        (
            USERS,
            {"windowSize": "MONTH", "subject": "havel", "windowTimeZone": "Europe/Berlin"},
            [("2026-10-31T23:00:00Z", 3)],
        ),
        (USERS, {"subject": "acme", "from_": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z"}, [("acme", 5)]),
        (REQUESTS, {"groupBy": "team"}, [("", 8)]),
        (REQUESTS, {"filterGroupBy[team]": "search", "subject": "acme", "to": "2026-11-02T00:00:00Z"}, [("acme", 2)]),
        (REQUESTS, {"groupBy": "team", "subject": "havel", "from_": "2026-11-01T23:00:00Z"}, [("havel", 2)]),
        (
            REQUESTS,
            {"groupBy": "team", "windowSize": "DAY", "windowTimeZone": "UTC", "subject": "acme"},
            [("2026-11-01T00:00:00Z", 2), ("2026-11-02T00:00:00Z", 2)],
        ),
    ],
)
def test_what_is_kept_by_the_days_of_accounts_is_answered_in_their_own_calendars(
    in_two_zones: tuple[Server, str], path: str, given: dict[str, str], values: list[tuple[str, int]]
) -> None:
    server, key = in_two_zones
    answer = get(server, path, key, **given)
    assert answer.status == 200, answer.body
    named = "windowStart" if "windowSize" in given else "subject"
    assert sorted((row[named] or "", row["value"]) for row in answer.json["data"]) == values


@pytest.mark.parametrize(
    ("path", "given", "word"),
    [
        (USERS, {"windowSize": "MONTH", "windowTimeZone": "UTC"}, "windowTimeZone"),
        (USERS, {"windowSize": "MONTH", "windowTimeZone": "UTC", "subject": "havel"}, "windowTimeZone"),
        (USERS, {"from_": "2026-11-02T00:00:00Z"}, "from"),
        (USERS, {"to": "2026-11-02T00:00:00Z", "subject": "acme"}, "to"),
        (USERS, {"from_": "2026-11-01T00:00:00Z"}, "from"),
        (REQUESTS, {"groupBy": "team", "windowSize": "DAY", "windowTimeZone": "America/New_York"}, "windowTimeZone"),
        (REQUESTS, {"groupBy": "team", "from_": "2026-11-01T10:30:00Z"}, "from"),
        (REQUESTS, {"filterGroupBy[team]": "search", "to": "2026-11-01T10:30:00Z"}, "to"),
    ],
)
def test_what_they_cannot_answer_is_refused_rather_than_answered_for_other_days(
    in_two_zones: tuple[Server, str], path: str, given: dict[str, str], word: str
) -> None:
    server, key = in_two_zones
    answer = get(server, path, key, **given)
    assert (answer.status, [each["field"] for each in answer.json["invalid_parameters"]]) == (400, [word]), answer.body
    in_v3 = {"from_": "from", "windowTimeZone": "time_zone", "windowSize": "granularity", "to": "to"}
    body: dict[str, Any] = {in_v3[name]: value for name, value in given.items() if name in in_v3}
    body |= {"granularity": {"DAY": "P1D", "MONTH": "P1M"}[given["windowSize"]]} if "windowSize" in given else {}
    dimensions = {"team": {"eq": "search"}} if path == REQUESTS else {}
    dimensions |= {"subject": {"eq": given["subject"]}} if "subject" in given else {}
    body["filters"] = {"dimensions": dimensions}
    slug = path.split("/")[4]
    asked = server.post(f"/api/v3/openmeter/meters/{slug}/query", json.dumps(body).encode(), key)
    assert [each["field"] for each in asked.json["invalid_parameters"]] == [in_v3.get(word, word)], asked.body


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"windowSize": "MINUTE"}, [(3, None, {}), (6, None, {}), (9, None, {})]),
        ({"windowSize": "HOUR", "subject": "acme"}, [(18, "acme", {})]),
        ({"windowSize": "DAY", "groupBy": ["model"], "windowTimeZone": "Europe/Berlin"}, [(6, None, {"model": "m1"})]),
        ({"windowSize": "MONTH", "groupBy": ["model", "subject"]}, [(6, "acme", {"model": "m1"})]),
        ({"filterGroupBy": {"model": ["m2"]}}, [(6, None, {})]),
        ({"advancedMeterGroupByFilters": {"model": {"$in": ["m1", "m2"]}}}, [(12, None, {})]),
        ({"from": "2026-11-01T10:01:00Z", "to": "2026-11-01T10:02:00Z"}, [(6, None, {})]),
    ],
)
def test_a_meter_query_is_the_same_in_a_query_string_and_a_body(
    reading: Server, acme: str, given: dict[str, Any], values: list[tuple[Any, ...]]
) -> None:
    query = {
        name: value for name, value in given.items() if name not in ("filterGroupBy", "advancedMeterGroupByFilters")
    }
    for name, wanted in given.get("filterGroupBy", {}).items():
        query[f"filterGroupBy[{name}]"] = wanted
    if advanced := given.get("advancedMeterGroupByFilters"):
        query["advancedMeterGroupByFilters"] = json.dumps(advanced)
    asked = get(reading, QUERY, acme, **{"from_" if name == "from" else name: value for name, value in query.items()})
    posted = reading.post(QUERY, json.dumps(given).encode(), acme)
    assert asked.status == posted.status == 200, (asked.body, posted.body)
    assert asked.json == posted.json
    found = [(row["value"], row["subject"], row["groupBy"]) for row in asked.json["data"]]
    assert found[: len(values)] == values


def test_a_meter_query_returns_csv_if_accepted(reading: Server, acme: str) -> None:
    headers = {"Authorization": f"Bearer {acme}", "Accept": "text/csv"}
    answer = reading.request("GET", f"{QUERY}?windowSize=HOUR&groupBy=model&subject=acme", None, headers)
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.body.decode().splitlines()[:2] == [
        "window_start,window_end,subject,model,value",
        "2026-11-01T10:00:00Z,2026-11-01T11:00:00Z,acme,m1,6",
    ]
    both = {**headers, "Accept": "application/json, text/csv, application/problem+json"}
    assert reading.request("GET", QUERY, None, both).headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"subject": "globex"}, 403, ["globex"]),
        ({"windowSize": "WEEK"}, 400, ["windowSize", "MINUTE"]),
        ({"groupBy": "team"}, 400, ["team"]),
        ({"windowSize": "HOUR", "groupBy": "team"}, 400, ["team", "windowSize"]),
        ({"from_": "2026-11-01T10:00:30Z"}, 400, ["whole minutes"]),
        ({"filterGroupBy[subject]": "globex"}, 400, ["subject"]),
        ({"subject": ""}, 400, ["subject", "value"]),
        ({"subject": ["acme", ""]}, 400, ["subject", "value"]),
        ({"filterGroupBy[model]": ""}, 400, ["filterGroupBy[model]", "value"]),
        ({"advancedMeterGroupByFilters": '{"model": {"$in": []}}'}, 400, ["model", "value"]),
        (
            {"filterGroupBy[model]": "m1", "advancedMeterGroupByFilters": '{"model": {"$eq": "m2"}}'},
            400,
            ["model", "once"],
        ),
        ({"filterGroupBy": "{'model': 'm1'}"}, 400, ["filterGroupBy[model]", "advancedMeterGroupByFilters"]),
        ({"advancedMeterGroupByFilters": '{"model": {"$like": "m"}}'}, 400, ["$in"]),
        ({"unknown": "1"}, 400, ["unknown"]),
    ],
)
def test_an_invalid_meter_query_is_refused(
    reading: Server, acme: str, given: dict[str, Any], status: int, words: list[str]
) -> None:
    refused(get(reading, QUERY, acme, **given), status, *words)
    refused(get(reading, QUERY.replace("requests", "nothing"), acme), 404, "nothing", "/api/v1/meters")
    refused(reading.post(QUERY, b"[]", acme), 400, "JSON object")
    refused(reading.post(f"{QUERY}?from=2026-12-01T00:00:00Z", b"{}", acme), 400, "from")


def test_an_invoice_has_its_lines_and_states_and_is_hidden_from_other_accounts(
    reading: Server, acme: str, everybody: str
) -> None:
    listed = get(reading, "/v1/invoices", everybody, period="2026-10").json["data"]
    assert [(row["invoice"], row["account"], row["total"], row["hash"]) for row in listed] == [
        ("weir-1", "acme", "1.5", "2" * 64),
        ("weir-2", "globex", "1.5", "2" * 64),
    ]
    assert pages(reading, "/v1/invoices", everybody, limit=1) == listed
    assert get(reading, "/v1/invoices", everybody, period="2026-11").json["data"] == []
    refused(get(reading, "/v1/invoices", everybody, period="2026-13"), 400, "period")
    shown = get(reading, "/v1/invoices/weir-1", acme).json["data"]
    assert [(line["quantity"], line["amount"], line["original_period"]) for line in shown["lines"]] == [
        ("1001", "1.5", "2026-10")
    ]
    assert [event.keys() for event in shown["events"]] == [{"state", "at", "hash"}] * 2
    staff = get(reading, "/v1/invoices/weir-1", everybody).json["data"]
    assert {event["made_by"] for event in staff["events"]} == {"ann"}
    for key in (acme, everybody):
        schema = DOCUMENT["paths"]["/v1/invoices/{id}"]["get"]["responses"]["200"]["content"]["application/json"][
            "schema"
        ]
        Draft202012Validator(schema).validate(get(reading, "/v1/invoices/weir-1", key).json)
    refused(get(reading, "/v1/invoices/weir-2", acme), 404, "weir-2")
    refused(get(reading, "/v1/invoices/weir-9", everybody), 404, "weir-9")


def test_thresholds_show_the_last_version_of_each(reading: Server, everybody: str) -> None:
    rows = pages(reading, "/v1/thresholds", everybody, limit=1)
    assert [(row["account"], row["threshold"], row["version"], row["is_crossed"], row["used"]) for row in rows] == [
        (name, "7.5", 2, False, "7.25") for name in ACCOUNTS
    ]


def test_watches_and_hits_are_shown_to_readers_of_their_account_and_in_pages(
    reading: Server, acme: str, everybody: str
) -> None:
    listed = pages(reading, "/v1/watches", everybody, limit=1)
    assert [(row["name"], row["hits"]) for row in listed] == [("accounts", 2), ("of-acme", 3), ("of-globex", 3)]
    assert [row["name"] for row in get(reading, "/v1/watches", acme).json["data"]] == ["of-acme"]
    hits_of_both = pages(reading, "/v1/watches/accounts/hits", everybody, limit=1)
    assert [row["request_id"] for row in hits_of_both] == ["r-acme", "r-globex"]
    of_globex = get(reading, "/v1/watches/accounts/hits", everybody, account="globex").json["data"]
    assert [row["request_id"] for row in of_globex] == ["r-globex"]
    answer = get(reading, "/v1/watches/of-acme/hits", acme, limit=2)
    assert [row["request_id"] for row in answer.json["data"]] == ["r-acme-1", "r-acme-2"]
    assert answer.headers["weir-frontier"] == rfc3339(FRONTIER)
    assert get(reading, "/v1/watches/of-acme/hits", acme, etag=answer.headers["etag"], limit=2).status == 304
    for name in ("accounts", "of-globex", "nope"):
        refused(get(reading, f"/v1/watches/{name}/hits", acme), 404, name, "/v1/watches")


def test_watches_are_off_where_analytics_does_not_run_them_also_to_a_key_of_some_accounts(
    reading: Server, acme: str, everybody: str
) -> None:
    def states(key: str) -> list[str]:
        return [row["state"] for row in get(reading, "/v1/watches", key).json["data"]]

    assert (states(everybody), states(acme)) == (["off"] * 3, ["off"])
    current = "SELECT config -> 'watches', updated_at FROM jobs WHERE job = 'analytics'"
    change = "UPDATE jobs SET config = jsonb_set(config, '{watches}', %s), updated_at = %s WHERE job = 'analytics'"
    with psycopg.connect(reading.database, autocommit=True) as connection:
        found = connection.execute(current).fetchone()
        assert found is not None
        before = Jsonb(found[0]), found[1]
        connection.execute(change, [Jsonb(True), datetime.now(UTC)])
        try:
            wait_until(lambda: states(acme) == ["running"], "the state", 60, every_seconds=0.1)
        finally:
            connection.execute(change, before)


def test_matches_are_those_that_hold_or_each_version_and_of_other_accounts_hidden(
    reading: Server, acme: str, everybody: str
) -> None:
    path = "/v1/patterns/accounts/matches"
    of_both = pages(reading, path, everybody, limit=1)
    assert [(row["match"], row["version"]) for row in of_both] == [("match_acme", 3), ("match_globex", 3)]
    every = pages(reading, path, acme, all_versions="true", limit=1)
    assert [(row["version"], row["is_retracted"]) for row in every] == [(1, False), (2, True), (3, False)]
    assert {row["keys"]["account"] for row in every} == {"acme"}
    refused(get(reading, path, acme, account="globex"), 403, "globex")
    refused(get(reading, "/v1/patterns/by_model/matches", acme), 403, "by account")
    refused(get(reading, "/v1/patterns/by_model/matches", everybody, account="acme"), 400, "not by account")
    assert [row["match"] for row in get(reading, "/v1/patterns/by_model/matches", everybody).json["data"]] == [
        "match_of_all"
    ]
    refused(get(reading, "/v1/patterns/nope/matches", everybody), 404, "nope", "patterns")


DOCUMENT: dict[str, Any] = document()
GIVEN: dict[str, dict[str, Any]] = {
    "/v1/usage": {"window": "P1D"},
    "/v1/bills": {"month": "2026-11"},
    "/v1/forecast": {"month": "2026-11"},
    "/v1/views/{name}": {"from": rfc3339(NOON), "to": rfc3339(NOON + 20 * MINUTE)},
    QUERY.replace("requests", "{slug}"): {"windowSize": "DAY", "groupBy": "model"},
}
STREAM = ApiRoute.WINDOW_STREAM.value
ENDPOINTS = ApiRoute.WEBHOOK_ENDPOINTS.value
"""These need another scope: test_webhook_endpoints compares each of their answers with the document."""
GETS = [
    path
    for path, methods in DOCUMENT["paths"].items()
    if "get" in methods and path != STREAM and not path.startswith(ENDPOINTS)
]
WRONG = [
    "",
    "0",
    "-1",
    "null",
    "2026-11",
    "2026-11-01T10:00:00Z",
    "acme",
    "globex",
    "'; DROP",
    "[]",
    "{}",
    "\0",
    "ä" * 99,
]


def test_the_document_is_served_and_has_every_route(reading: Server, acme: str) -> None:
    answer = get(reading, "/openapi.json", acme)
    assert answer.json == json.loads(json.dumps(DOCUMENT))
    assert get(reading, "/openapi.json", reads(reading, scopes=(Scope.INGEST,))).status == 200
    refused(reading.request("GET", "/openapi.json", None, {}), 401, "weir keys create")
    assert set(DOCUMENT["paths"]) == {route.value for route in ApiRoute if route is not ApiRoute.OTHER}


@pytest.mark.parametrize("path", [path for path in GETS if "{id}" not in path])
def test_answers_are_as_the_document_says(reading: Server, everybody: str, path: str) -> None:
    answer = get(reading, path.format(slug="requests", name="accounts"), everybody, **GIVEN.get(path, {}))
    assert answer.status == 200, answer.body
    schema = DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    Draft202012Validator(schema).validate(answer.json)
    assert answer.json if isinstance(answer.json, list) else answer.json["data"]
    problem = get(reading, path.format(slug="requests", name="accounts"), everybody, nothing="1")
    Draft202012Validator(DOCUMENT["components"]["schemas"]["Problem"]).validate(problem.json)
    assert problem.status == 400


@pytest.mark.parametrize("path", GETS)
def test_no_value_of_a_parameter_is_an_error_of_the_server_and_none_shows_others(
    reading: Server, acme: str, path: str
) -> None:
    names = [each["name"] for each in DOCUMENT["paths"][path]["get"]["parameters"] if each["in"] == "query"]
    chance = random.Random(path)
    for _ in range(40):
        given = {name: chance.choice(WRONG) for name in chance.sample(names, min(len(names), chance.randint(1, 3)))}
        answer = get(reading, path.format(slug="requests", id="r-globex", source="gw", name="accounts"), acme, **given)
        assert answer.status in (200, 400, 403, 404, 501), (given, answer.body)
        assert answer.status != 200 or b"globex" not in answer.body


@pytest.mark.parametrize("member", meter_query_request.MEMBERS)
def test_no_body_of_a_query_is_a_server_error(reading: Server, acme: str, member: str) -> None:
    for value in (
        *WRONG,
        None,
        1,
        1.5,
        True,
        [],
        [1],
        ["\0"],
        "\ud800",
        {"\ud800": "a"},
        {},
        {"model": 1},
        {"\0": "a"},
        {"model": {"$in": [1]}},
    ):
        answer = reading.post(QUERY, json.dumps({member: value}).encode(), acme)
        assert answer.status in (200, 400, 403), (member, ascii(value), answer.body)


def test_a_bill_has_a_line_for_each_tier_and_a_page_has_all_of_a_price(bootstrap: str, database: str) -> None:
    write(database, "catalog.plans", *({"plan": plan, "name": plan} for plan in ("p", "q")))
    account = {"currency": "EUR", "timezone": "UTC", "effective_from": T0 - timedelta(days=90)}
    for name, plan in (("mine", "p"), ("other", "q")):
        write(database, "catalog.accounts", {**account, "account": name, "name": name, "plan": plan})
    terms = PriceTerms.of({"kind": "graduated", "tiers": [{"up_to": 5, "unit_price": 2}, {"unit_price": 1}]}).text
    rung = {"model": "m*", "meter": "requests", "currency": "EUR", "effective_from": T0, "terms": terms}
    write(
        database, "price_ladders", *({**rung, "price_version": lsn, "plan": plan} for lsn, plan in ((1, "p"), (2, "q")))
    )
    used = {"unit_price": None, "price_version": 1, "account": "mine"}
    priced = window(T0, 1, account="mine", model="x", price_version=7, unit_price=3)
    others = window(T0, 3, account="other", unit_price=None, price_version=2)
    write_windows(database, window(T0, 4, **used), window(T0 + MINUTE, 4, **used, model="m2"), priced, others)
    progress(database, "billing", T0 + timedelta(minutes=7))
    start_ingestion(database)
    with serving(bootstrap, database) as server:
        key, names = (
            reads(server, "mine"),
            ("model", "kind", "tier", "unit_price", "quantity", "amount", "next_unit_price"),
        )
        found = get(server, "/v1/bills", key, month="2026-11").json
        lines = [tuple(row[name] for name in names) for row in found["data"]]
        assert lines == [
            ("m*", "graduated", "1: up to 5", "2", "5", "10", "1"),
            ("m*", "graduated", "2: above 5", "1", "3", "3", "1"),
            ("x", "unit", None, "3", "1", "3", None),
        ]
        assert [(total["amount"], total["unpriced_lines"]) for total in found["totals"]] == [("16", 0)]
        first = get(server, "/v1/bills", key, month="2026-11", limit=1).json
        assert (first["data"], first["totals"]) == (found["data"][:2], found["totals"])
        assert pages(server, "/v1/bills", key, month="2026-11", limit=1) == found["data"]
        minute = get(server, "/v1/usage", key, model="m1").json["data"][0]
        shown = tuple(minute[name] for name in ("billed_quantity", "tiered_quantity", "amount", "unpriced_quantity"))
        assert shown == ("4", "4", "0", "0")


def test_an_account_above_that_the_key_does_not_name_is_not_named(bootstrap: str, database: str) -> None:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    account = {"plan": "p", "currency": "EUR", "timezone": "UTC", "effective_from": T0 - timedelta(days=90)}
    write(database, "catalog.accounts", {**account, "account": "above", "name": "Above"})
    write(database, "catalog.accounts", {**account, "account": "below", "name": "Below", "parent": "above"})
    write_windows(database, window(T0, account="below"))
    start_ingestion(database)
    with serving(bootstrap, database) as server:
        mine = get(server, "/v1/bills", reads(server, "below"), month="2026-11")
        assert [total["parent"] for total in mine.json["totals"]] == [None]
        assert b"bove" not in mine.body
        both = get(server, "/v1/bills", reads(server, "below", "above"), month="2026-11")
        assert [total["parent"] for total in both.json["totals"]] == ["above"]
        summed = get(server, "/v1/usage", reads(server), window="P1M", roll_up="true", account="above")
        assert [(row["account"], row["quantity"]) for row in summed.json["data"]] == [("above", "1")]
        for window_of in ("P1M", "PT1M"):
            own = get(server, "/v1/usage", reads(server, "below"), window=window_of, roll_up="true")
            assert [row["account"] for row in own.json["data"]] == ["below"]
            assert b"bove" not in own.body
        hidden = get(server, "/v1/usage", reads(server, "above"), window="P1M", roll_up="true", account="above")
        assert hidden.json["data"] == []


V3 = "/api/v3/openmeter/meters/requests/query"


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ({}, {"value": "18", "dimensions": {}}),
        ({"granularity": "PT1M"}, {"value": "3", "dimensions": {}}),
        (
            {"granularity": "P1D", "group_by_dimensions": ["model", "subject"], "time_zone": "Europe/Berlin"},
            {"value": "6", "dimensions": {"model": "m1", "subject": "acme"}},
        ),
        (
            {"filters": {"dimensions": {"model": {"in": ["m1", "m2"]}, "subject": {"eq": "acme"}}}},
            {"value": "12", "dimensions": {"subject": "acme"}},
        ),
    ],
)
def test_v3_of_openmeters_question_has_texts_and_dimensions(
    reading: Server, acme: str, given: dict[str, Any], first: dict[str, Any]
) -> None:
    answer = reading.post(V3, json.dumps(given).encode(), acme)
    assert answer.status == 200, answer.body
    assert first.items() <= answer.json["data"][0].items()
    (schema,) = DOCUMENT["paths"][V3.replace("requests", "{slug}")]["post"]["responses"]["200"]["content"].values()
    Draft202012Validator(schema["schema"]).validate(answer.json)
    file = reading.post(V3, json.dumps(given).encode(), acme, Accept="text/csv").body.decode().splitlines()
    columns = sorted(first["dimensions"], key=lambda name: name != "subject")
    assert file[0] == ",".join(["from", "to", *columns, "value"])
    assert len(file) == 1 + len(answer.json["data"])


@pytest.mark.parametrize(
    ("given", "status", "word"),
    [
        ({"granularity": "DAY"}, 400, "granularity"),
        ({"granularity": 1}, 400, "granularity"),
        ({"time_zone": "Berlin"}, 400, "time_zone"),
        ({"group_by_dimensions": ["team"]}, 400, "group_by_dimensions"),
        ({"granularity": "PT1H", "group_by_dimensions": ["team"]}, 400, "granularity"),
        ({"filters": {"dimensions": {"model": {"contains": "m"}}}}, 400, "filters.dimensions.model"),
        ({"filters": {"dimensions": {"model": {"eq": 1}}}}, 400, "filters.dimensions"),
        ({"filters": {"customers": {}}}, 400, "customers"),
        ({"filters": []}, 400, "filters"),
        ({"windowSize": "DAY"}, 400, "windowSize"),
        ({"filters": {"dimensions": {"subject": {"eq": "globex"}}}}, 403, "globex"),
        ({"filters": {"dimensions": {"subject": {"in": []}}}}, 400, "filters.dimensions.subject"),
        ({"filters": {"dimensions": {"subject": {"in": [""]}}}}, 400, "filters.dimensions.subject"),
        ({"filters": {"dimensions": {"subject": {"eq": None}}}}, 400, "filters.dimensions.subject"),
    ],
)
def test_an_invalid_v3_query_is_refused_by_its_own_names(
    reading: Server, acme: str, given: dict[str, Any], status: int, word: str
) -> None:
    refused(reading.post(V3, json.dumps(given).encode(), acme), status, word)
