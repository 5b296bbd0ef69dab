"""`GET /v1/views/{name}`: what `weir view` shows, to those whose outcomes it is made of."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from jsonschema import Draft202012Validator
from psycopg.types.json import Jsonb
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from typer.testing import CliRunner

from api import views
from api.openapi import document
from api.parameters import Parameters, cursor_of
from api.problems import Problem
from api.read_request import ReadRequest
from api.reader import AccountReader
from cli.main import app
from jobs.queries.views import PANE_BYTES
from jobs.runtime.postgres.address import in_schema
from jobs.settings.views import MAX_KEYS
from metering.api_keys import ApiKey, Scope
from metering.instants import rfc3339
from metering.limits import MAX_NAME_BYTES
from tests.api.serving import Server, serving, start_ingestion
from tests.api.test_asking import get, pages, reads
from tests.api.test_events_in import refused
from tests.api.view_panes import CONFIG, FRONTIER, MINUTE, fill_views
from tests.conftest import fresh_database
from tests.streaming.measured import NOON

RANGE = {"from_": rfc3339(NOON), "to": rfc3339(NOON + 20 * MINUTE)}
HEALTH, ACCOUNTS = "/v1/views/health", "/v1/views/accounts"
EVERY_MINUTE = {**RANGE, "window": "PT1M"}
[VERSION] = (view.version for view in CONFIG.declared_views if view.name == "health")


@pytest.fixture(scope="module")
def reading(bootstrap: str, postgres_url: str) -> Iterator[Server]:
    """An API over these."""
    with fresh_database(postgres_url) as database:
        fill_views(database)
        start_ingestion(database)
        with serving(bootstrap, database) as running:
            yield running


@pytest.fixture(scope="module")
def acme(reading: Server) -> str:
    return reads(reading, "acme")


@pytest.fixture(scope="module")
def everybody(reading: Server) -> str:
    return reads(reading)


@pytest.mark.parametrize(
    "given", [{"window": "PT5M"}, {"window": "PT6M", "hop": "PT3M"}, {"session": "PT3M"}, {}], ids=str
)
@pytest.mark.parametrize("name", ["health", "accounts"])
def test_differential_the_route_and_the_command_show_the_same_rows_in_the_same_order(
    reading: Server, everybody: str, monkeypatch: pytest.MonkeyPatch, name: str, given: dict[str, str]
) -> None:
    monkeypatch.setattr("deployment.stack.running_deployment", lambda _: SimpleNamespace(postgres_url=reading.database))
    words = [word for option, value in given.items() for word in (f"--{option}", value)]
    words += ["--from", RANGE["from_"], "--to", RANGE["to"], "--format", "json"]
    expected = json.loads(CliRunner().invoke(app, ["view", name, *words]).stdout)
    assert expected
    for limit in (1, 1000):
        assert pages(reading, f"/v1/views/{name}", everybody, **RANGE, **given, limit=limit) == expected


def test_the_sliding_window_ends_at_the_frontier_and_is_in_pages_too(reading: Server, everybody: str) -> None:
    answer = get(reading, HEALTH, everybody, sliding="true")
    assert answer.headers["weir-frontier"] == answer.json["frontier"] == rfc3339(FRONTIER)
    window = {"window_start": rfc3339(NOON + 2 * MINUTE), "window_end": rfc3339(NOON + 5 * MINUTE)}
    measured: dict[str, Any] = {"requests": 2, "ms": None, "busiest": []}
    assert answer.json["data"] == [{**window, "model": model, **measured} for model in ("m", None)]
    assert pages(reading, HEALTH, everybody, sliding="true", limit=1) == answer.json["data"]


def test_without_a_range_it_is_the_last_hour_and_all_pages_are_of_the_same(reading: Server, everybody: str) -> None:
    answer = get(reading, HEALTH, everybody).json
    assert (answer["data"], answer["next"], answer["since"]) == ([], None, None)


def test_a_key_that_names_accounts_sees_its_own_rows_of_views_by_account_and_no_other_view(
    reading: Server, acme: str, everybody: str
) -> None:
    def accounts(key: str, **given: Any) -> list[str | None]:
        return [row["account"] for row in get(reading, ACCOUNTS, key, **EVERY_MINUTE, **given).json["data"]]

    assert accounts(acme) == ["acme"] * 4
    assert accounts(everybody) == ["acme", "acme", "globex", "globex", None, None] * 2
    assert accounts(everybody, account="globex") == ["globex"] * 4
    assert accounts(reads(reading, "nobody")) == []
    refused(get(reading, ACCOUNTS, acme, account="globex"), 403, "globex")
    refused(get(reading, HEALTH, acme), 403, "by account")
    refused(get(reading, HEALTH, everybody, account="acme"), 400, "not by account")


def test_an_answer_is_as_the_document_describes_it_and_is_not_repeated(reading: Server, everybody: str) -> None:
    schema = document()["paths"]["/v1/views/{name}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    answer = get(reading, HEALTH, everybody, **EVERY_MINUTE, limit=2)
    Draft202012Validator(schema).validate(answer.json)
    again = get(reading, HEALTH, everybody, etag=answer.headers["etag"], **EVERY_MINUTE, limit=2)
    assert (again.status, again.body) == (304, b"")


def test_csv_has_a_column_for_each_percentile_and_links_to_the_next_page(reading: Server, everybody: str) -> None:
    def fetched(path: str) -> Any:
        return reading.request("GET", path, None, {"Authorization": f"Bearer {everybody}", "Accept": "text/csv"})

    first = fetched(f"{HEALTH}?from={RANGE['from_']}&to={RANGE['to']}&window=PT1M&limit=4")
    rows = list(csv.DictReader(io.StringIO(first.body.decode())))
    assert [*rows[0]] == [
        *("window_start", "window_end", "model", "requests", "ms_p50", "ms_p90", "ms_p95", "ms_p99", "busiest"),
    ]
    link, relation = first.headers["link"].split("; ")
    assert relation == 'rel="next"'
    last = fetched(link.strip("<>").removeprefix(f"http://127.0.0.1:{reading.port}"))
    rows += csv.DictReader(io.StringIO(last.body.decode()))
    whole = get(reading, HEALTH, everybody, **EVERY_MINUTE).json["data"]
    assert [(row["window_start"], row["model"]) for row in rows] == [
        (row["window_start"], row["model"] or "") for row in whole
    ]
    assert "link" not in last.headers


def test_what_would_merge_more_than_a_reader_may_ask_for_is_refused_and_the_most_is_answered(reading: Server) -> None:
    """Six panes, each in two windows."""
    with psycopg.connect(in_schema(reading.database)) as session:
        stored = "SELECT sum(pg_column_size(measures)) FROM analytics_panes WHERE account IS NULL"
        health = f"{stored} AND view_id = (SELECT view_id FROM analytics_views WHERE view = 'health')"
        [weight] = session.execute(health).fetchone() or [0]
    once = 6 * PANE_BYTES + weight
    every_minute = {"from": RANGE["from_"], "to": RANGE["to"], "window": "PT1M"}
    hopping = {**every_minute, "window": "PT2M", "hop": "PT1M"}
    reader = AccountReader(reading.database)

    def asked(most: int, given: dict[str, str]) -> Response:
        path = {"name": "health"}
        scope = {
            "type": "http",
            "method": "GET",
            "headers": [],
            "path_params": path,
            "query_string": urlencode(given).encode(),
        }
        everything = ApiKey("1", b"", frozenset({Scope.READ}))
        return asyncio.run(views.view(ReadRequest(Request(scope), everything, reader), most))

    try:
        for least, given in ((2 * once, hopping), (once, every_minute)):
            assert asked(least, given).status_code == 200
            with pytest.raises(Problem, match=r"less time, or for a longer hop") as refusal:
                asked(least - 1, given)
            assert refusal.value.status == 400
    finally:
        reader.close()


def test_pages_are_of_one_definition_of_a_view(reading: Server, everybody: str) -> None:
    first = get(reading, HEALTH, everybody, **EVERY_MINUTE, limit=1).json["next"]
    with psycopg.connect(in_schema(reading.database), autocommit=True) as session:
        [[before]] = session.execute("SELECT definition FROM analytics_views WHERE view = 'health'").fetchall()
        declare = "UPDATE analytics_views SET definition = %s WHERE view = 'health'"
        session.execute(declare, [Jsonb({**before, "by": ["region"]})])
        try:
            refused(get(reading, HEALTH, everybody, **EVERY_MINUTE, cursor=first), 400, "cursor", "first page")
        finally:
            session.execute(declare, [Jsonb(before)])
    assert get(reading, HEALTH, everybody, **EVERY_MINUTE, cursor=first).status == 200


@pytest.mark.parametrize("character", ["m", "é", "\N{ROBOT FACE}", '"', "\x01"])
def test_the_cursor_of_the_longest_keys_is_read_as_it_was_written(character: str) -> None:
    longest = character * (MAX_NAME_BYTES // len(character.encode()))
    key = [VERSION, *[rfc3339(NOON)] * 3, *[longest] * MAX_KEYS]
    given = Parameters.of(QueryParams({"cursor": cursor_of(key)}), ("cursor",))
    assert given.cursor(len(key)) == tuple(key)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"window": "PT90S"}, ["window", "whole minutes"]),
        ({"window": "5m"}, ["window", "PT1H"]),
        ({"window": "PT1M", "hop": "PT5M"}, ["hop must be at most window"]),
        ({"session": "PT5M", "window": "PT1M"}, ["leave out window"]),
        ({"sliding": "true", **RANGE}, ["leave out hop, from and to"]),
        ({"sliding": "yes"}, ["sliding", "true, false"]),
        ({"from_": "2020-01-01T00:00:00Z", "to": rfc3339(NOON), "window": "PT1M"}, ["longer hop"]),
        ({"cursor": "W10="}, ["cursor"]),
        ({"cursor": cursor_of([VERSION, *[None] * 4])}, ["cursor", "instant"]),
        ({"windows": "PT1M"}, ["no such parameter"]),
    ],
)
def test_a_mistake_is_refused_with_what_to_do(
    reading: Server, everybody: str, given: dict[str, Any], words: list[str]
) -> None:
    refused(get(reading, HEALTH, everybody, **given), 400, *words)


def test_a_view_that_is_not_measured_is_not_found(reading: Server, acme: str, everybody: str) -> None:
    for key in (acme, everybody):
        refused(get(reading, "/v1/views/nope", key), 404, "nope", "views")
