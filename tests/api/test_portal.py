"""A customer reads its own usage and bills with a portal token, for a while, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from api import key_store
from api.openapi import document
from api.window_stream import HEARTBEAT_SECONDS
from jobs.queries.portal_invalidations import MAX_LIVE
from metering.api_keys import Scope
from metering.instants import rfc3339
from tests.api.following import PATH as STREAM
from tests.api.following import following
from tests.api.serving import Answer, Server, serving, start_ingestion
from tests.api.test_asking import QUERY, fill, get
from tests.api.test_events_in import OWN, encoded, event, refused
from tests.conftest import fresh_database
from tests.waiting import wait_until

TOKENS = "/api/v1/portal/tokens"
PORTAL_QUERY = QUERY.replace("/meters/", "/portal/meters/")
BILLS = {"month": "2026-11"}
IN_PATHS = {"slug": "requests", "source": "gw", "id": "r-acme", "name": "health", "endpoint": "ops", "number": 1}
"""Of each parameter of a path a value that the API takes."""


@pytest.fixture(scope="module")
def reading(bootstrap: str, postgres_url: str) -> Iterator[Server]:
    with fresh_database(postgres_url) as database:
        fill(database)
        start_ingestion(database)
        with serving(bootstrap, database) as running:
            yield running


def maker(server: Server, *accounts: str) -> key_store.NewKey:
    """A key that makes tokens, once the server knows it."""
    made = key_store.create(server.database, (Scope.PORTAL,), "test", accounts=accounts)
    wait_until(lambda: made_with(server, made.key, "acme").status != 401, "the key", 60, every_seconds=0.1)
    return made


def made_with(server: Server, key: str, subject: Any, **members: Any) -> Answer:
    return server.post(TOKENS, json.dumps({"subject": subject, **members}).encode(), key)


def token(server: Server, key: str, **members: Any) -> str:
    answer = made_with(server, key, "acme", **members)
    assert answer.status == 200, answer.body
    text: str = answer.json["token"]
    return text


@pytest.fixture(scope="module")
def backend(reading: Server) -> str:
    return maker(reading, "acme", "nobody").key


def test_a_token_reads_usage_and_bills_of_its_account(reading: Server, backend: str) -> None:
    answer = made_with(reading, backend, "acme")
    assert answer.headers["cache-control"] == "no-store"
    assert (answer.json["subject"], answer.json["expired"]) == ("acme", False)
    theirs = answer.json["token"]
    assert {row["account"] for row in get(reading, "/v1/usage", theirs).json["data"]} == {"acme"}
    assert {row["account"] for row in get(reading, "/v1/bills", theirs, **BILLS).json["totals"]} == {"acme"}
    assert [row["value"] for row in get(reading, PORTAL_QUERY, theirs).json["data"]] == [18]
    refused(get(reading, "/v1/usage", theirs, account="globex"), 403, "globex")
    with following(reading, theirs) as follower:
        assert follower.answer.status == 200


def test_a_token_does_nothing_else(reading: Server, backend: str) -> None:
    theirs = token(reading, backend)
    allowed = {"/v1/usage", "/v1/bills", STREAM, PORTAL_QUERY.replace("requests", "{slug}")}
    others = {(path, method) for path, methods in document()["paths"].items() for method in methods}
    for path, method in sorted(others):
        if path in allowed:
            continue
        target = path.format(**IN_PATHS)
        headers = {"Authorization": f"Bearer {theirs}", "Content-Type": "application/json"}
        answer = reading.request(method.upper(), target, b"{}" if method in {"post", "patch"} else None, headers)
        assert answer.status == 403, (path, method, answer.body)
    assert reading.post(OWN, encoded([event(subject="acme")]), theirs).status == 403


def test_a_token_of_some_meters_reads_these_alone(reading: Server, backend: str) -> None:
    theirs = token(reading, backend, allowedMeterSlugs=["requests"])
    assert [row["value"] for row in get(reading, PORTAL_QUERY, theirs).json["data"]] == [18]
    refused(get(reading, PORTAL_QUERY.replace("requests", "input_tokens"), theirs), 403, "input_tokens")
    refused(get(reading, "/v1/usage", theirs), 403, "meters")
    refused(get(reading, "/v1/bills", theirs, **BILLS), 403, "meters")


def test_a_token_ends_in_its_time(reading: Server, backend: str) -> None:
    # A token ends with a whole second.
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=6)
    theirs = token(reading, backend, expiresAt=rfc3339(soon))

    def has_ended() -> bool:
        asked_at, status, answered_at = datetime.now(UTC), get(reading, "/v1/usage", theirs).status, datetime.now(UTC)
        if status == 401:
            assert answered_at >= soon, "it ended too early"
            return True
        assert (status, asked_at < soon) == (200, True), "it did not end in its time"
        return False

    wait_until(has_ended, "its end", every_seconds=0.1)


def test_tokens_and_their_streams_end_with_their_key(reading: Server) -> None:
    made = maker(reading, "acme")
    theirs = token(reading, made.key)
    with following(reading, theirs) as follower:
        key_store.revoke(reading.database, made.id, "test")
        assert follower.ended.wait(HEARTBEAT_SECONDS - 1), "a stream looks more often than it gives a sign of life"
    assert get(reading, "/v1/usage", theirs).status == 401


def invalidated(server: Server, key: str, **members: Any) -> Answer:
    return server.post(f"{TOKENS}/invalidate", json.dumps(members).encode(), key)


def ends(server: Server, theirs: str) -> None:
    wait_until(lambda: get(server, "/v1/usage", theirs).status == 401, "the token's end", 60, every_seconds=0.1)


def test_all_tokens_of_an_account_end_and_one_that_is_made_afterwards_holds(reading: Server) -> None:
    first, second = maker(reading, "acme"), maker(reading)
    theirs, of_another_key = token(reading, first.key), token(reading, second.key)
    of_another_account = made_with(reading, second.key, "globex").json["token"]
    with following(reading, theirs) as follower:
        answer = invalidated(reading, first.key, subject="acme")
        assert (answer.status, answer.body) == (204, b"")
        later = token(reading, second.key)
        assert follower.ended.wait(HEARTBEAT_SECONDS - 1), "a stream looks more often than it gives a sign of life"
    ends(reading, theirs)
    ends(reading, of_another_key)
    assert invalidated(reading, first.key, subject="acme").status == 204
    ends(reading, later)
    assert get(reading, "/v1/usage", token(reading, first.key)).status == 200
    assert get(reading, "/v1/usage", of_another_account).status == 200


def test_one_token_ends_by_its_id_and_only_with_a_key_of_its_account(reading: Server, backend: str) -> None:
    made = [made_with(reading, backend, "acme", allowedMeterSlugs=["requests", f"m{number}"]).json for number in (1, 2)]
    others = maker(reading, "globex", "acme-2").key
    assert invalidated(reading, others, id=made[0]["id"]).status == 204
    assert invalidated(reading, backend, id=made[1]["id"]).status == 204
    wait_until(lambda: get(reading, PORTAL_QUERY, made[1]["token"]).status == 401, "the end", 60, every_seconds=0.1)
    assert get(reading, PORTAL_QUERY, made[0]["token"]).status == 200


def test_a_key_that_invalidated_as_many_as_it_may_keeps_no_other_key_from_it(reading: Server) -> None:
    first, second = maker(reading, "acme"), maker(reading)
    theirs = token(reading, second.key)
    with psycopg.connect(reading.database) as connection:
        connection.execute(
            "INSERT INTO portal_invalidations (token_id, of_accounts, key_id) "
            "SELECT 'none-' || number, '[\"acme\"]', %s FROM generate_series(1, %s) AS number",
            [first.id, MAX_LIVE],
        )
    refused(invalidated(reading, first.key, subject="acme"), 409, first.id)
    assert invalidated(reading, second.key, subject="acme").status == 204
    ends(reading, theirs)


def test_what_cannot_be_invalidated_is_refused(reading: Server, backend: str) -> None:
    refused(invalidated(reading, backend, subject="globex"), 403, "globex")
    refused(invalidated(reading, token(reading, backend), subject="acme"), 403, "token")
    for several in ({}, {"id": "x", "subject": "acme"}, {"id": None}):
        refused(invalidated(reading, backend, **several), 400, "one of them")
    for members in ({"id": ""}, {"subject": 1}, {"ids": "x"}):
        refused(invalidated(reading, backend, **members), 400, next(iter(members)))


def test_a_token_is_made_for_accounts_of_a_key_with_the_scope_alone(reading: Server, backend: str) -> None:
    refused(made_with(reading, backend, "globex"), 403, "globex")
    refused(made_with(reading, token(reading, backend), "acme"), 403, "token")
    reader = key_store.create(reading.database, (Scope.READ,), "test")
    wait_until(lambda: get(reading, "/v1/usage", reader.key).status == 200, "the key", 60, every_seconds=0.1)
    refused(made_with(reading, reader.key, "acme"), 403, "portal")
    refused(get(reading, "/v1/usage", backend), 403, "read")
    assert get(reading, "/v1/usage", f"{token(reading, backend)[:-1]}x").status == 401


@pytest.mark.parametrize(
    ("members", "word"),
    [
        ({"subject": ""}, "subject"),
        ({"subject": 1}, "subject"),
        ({"subject": None}, "subject"),
        ({"subject": "a\0"}, "subject"),
        ({"expiresAt": "2020-01-01T00:00:00Z"}, "expiresAt"),
        ({"expiresAt": "2090-01-01T00:00:00Z"}, "expiresAt"),
        ({"expiresAt": 7}, "expiresAt"),
        ({"allowedMeterSlugs": []}, "allowedMeterSlugs"),
        ({"allowedMeterSlugs": "requests"}, "allowedMeterSlugs"),
        ({"allowedMeterSlugs": [1]}, "allowedMeterSlugs"),
        ({"subjects": "acme"}, "subjects"),
        # Longer than what is taken as a token.
        ({"allowedMeterSlugs": [f"{number:0200}" for number in range(50)]}, "allowedMeterSlugs"),
        ({"allowedMeterSlugs": ["\ud800"]}, "allowedMeterSlugs"),
    ],
)
def test_what_no_token_can_be_made_of_is_refused(
    reading: Server, backend: str, members: dict[str, Any], word: str
) -> None:
    refused(made_with(reading, backend, **{"subject": "acme", **members}), 400, word)
