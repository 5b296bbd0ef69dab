"""A consumer acknowledges corrections by number; who has not is listed, and its oldest one has an age."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from jsonschema import Draft202012Validator
from psycopg.rows import dict_row

from api import key_store
from api.acknowledgements import MAX_CONSUMERS
from api.openapi import document
from jobs.queries.correction_consumers import COLUMNS, correction_consumers, remove_consumer
from jobs.runtime.clock import MachineClock
from jobs.runtime.postgres.gauges import DatabaseGauges
from metering.api_keys import Scope
from metering.vocabulary import Job
from monitoring.metrics import ApiRoute
from tests.api.serving import Answer, Server, serving, start_ingestion
from tests.api.test_events_in import refused
from tests.conftest import fresh_database
from tests.database_rows import progress, totals_of
from tests.waiting import wait_until

ROUTE = ApiRoute.CORRECTIONS_ACK.value
SCHEMA = document()["paths"][ROUTE]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
AT = datetime(2026, 11, 1, tzinfo=UTC)
CORRECTION = """
INSERT INTO corrections (usage_lsn, meter, usage_lsns, window_start, account, model, currency, cause, old_quantity,
    new_quantity, old_amount, new_amount, corrected_at)
VALUES (%(lsn)s, 'requests', ARRAY[%(lsn)s], %(at)s, %(account)s, 'm', 'EUR', 'rejoined', 3, 2, 3, 2,
    now() - interval '1 hour')
RETURNING number
"""


@pytest.fixture(scope="module")
def server(bootstrap: str, postgres_url: str) -> Iterator[Server]:
    with fresh_database(postgres_url) as database:
        progress(database, "billing", datetime.now(UTC))
        start_ingestion(database)
        with serving(bootstrap, database) as running:
            yield running


@pytest.fixture(autouse=True)
def numbers(server: Server) -> list[int]:
    """Of three corrections: of acme, globex and acme; nobody has acknowledged any."""
    with psycopg.connect(server.database) as session:
        session.execute("DELETE FROM corrections")
        session.execute("DELETE FROM correction_consumers")
        rows = [
            session.execute(CORRECTION, {"lsn": lsn, "at": AT, "account": account}).fetchone()
            for lsn, account in enumerate(("acme", "globex", "acme"), start=1)
        ]
    return [row[0] for row in rows if row]


@pytest.fixture(scope="module")
def acme(server: Server) -> str:
    return reads(server, "acme")


@pytest.fixture(scope="module")
def everybody(server: Server) -> str:
    return reads(server)


def reads(server: Server, *accounts: str) -> str:
    made = key_store.create(server.database, [Scope.READ], "test", accounts=accounts)
    wait_until(lambda: acknowledge(server, made.key).status != 401, "the key", 60, every_seconds=0.1)
    return made.key


def acknowledge(server: Server, key: str, **body: Any) -> Answer:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    return server.request("POST", ROUTE, json.dumps(body).encode(), headers)


def stored(server: Server) -> dict[tuple[str, str], tuple[int, int]]:
    """By consumer and accounts: up to which number, and how many wait."""
    with psycopg.connect(server.database, row_factory=dict_row) as session:
        rows = list(correction_consumers(session))
    assert all(tuple(row) == COLUMNS for row in rows)
    return {(row["consumer"], row["accounts"]): (row["number"], row["waiting"]) for row in rows}


def unacknowledged_seconds(server: Server) -> float:
    gauges = DatabaseGauges(Job.BILLING, server.database, totals_of(Job.BILLING), MachineClock())
    found = [family for family in gauges.collect() if family.name == "weir_corrections_unacknowledged_seconds"]
    gauges.close()
    return float(found[0].samples[0].value)


def test_a_consumer_whose_key_names_many_accounts_acknowledges(server: Server, numbers: list[int]) -> None:
    """The list of their names is longer than an entry of an index may be."""
    of_many = reads(server, "acme", *(f"{number:064x}" for number in range(99)))
    assert acknowledge(server, of_many, consumer="portal", number=numbers[0]).status == 200
    assert acknowledge(server, of_many, consumer="portal", number=numbers[-1]).json["number"] == numbers[-1]
    assert [number for (consumer, _), (number, _) in stored(server).items() if consumer == "portal"] == [numbers[-1]]


def test_a_consumer_acknowledges_up_to_a_number_and_no_lower_one_takes_that_back(
    server: Server, everybody: str, numbers: list[int]
) -> None:
    first, _, last = numbers
    answer = acknowledge(server, everybody, consumer="erp", number=first)
    Draft202012Validator(SCHEMA).validate(answer.json)
    assert answer.json == {"consumer": "erp", "number": first, "waiting": 2}
    assert acknowledge(server, everybody, consumer="erp", number=last).json["waiting"] == 0
    assert acknowledge(server, everybody, consumer="erp", number=first).json["number"] == last
    assert stored(server) == {("erp", "*"): (last, 0)}


def test_who_has_not_acknowledged_is_listed_and_the_oldest_correction_has_an_age(
    server: Server, everybody: str, acme: str, numbers: list[int]
) -> None:
    assert unacknowledged_seconds(server) == 0, "nobody is waited for who never acknowledged"
    acknowledge(server, everybody, consumer="erp", number=numbers[2])
    assert unacknowledged_seconds(server) == 0
    acknowledge(server, acme, consumer="crm", number=numbers[0])
    assert 3_600 <= unacknowledged_seconds(server) < 3_900
    assert stored(server) == {("crm", '["acme"]'): (numbers[0], 1), ("erp", "*"): (numbers[2], 0)}
    with psycopg.connect(server.database, row_factory=dict_row) as session:
        assert (remove_consumer(session, "crm"), remove_consumer(session, "crm")) == (1, 0)
    assert unacknowledged_seconds(server) == 0


def test_a_consumer_of_some_accounts_waits_for_theirs_alone_and_touches_no_other_of_its_name(
    server: Server, everybody: str, acme: str, numbers: list[int]
) -> None:
    acknowledge(server, everybody, consumer="erp", number=numbers[0])
    assert acknowledge(server, acme, consumer="erp", number=0).json == {"consumer": "erp", "number": 0, "waiting": 2}
    assert acknowledge(server, acme, consumer="erp", number=numbers[2]).json["waiting"] == 0
    assert stored(server) == {("erp", "*"): (numbers[0], 2), ("erp", '["acme"]'): (numbers[2], 0)}


def test_a_number_that_no_correction_of_the_accounts_has_reached_is_refused(
    server: Server, everybody: str, acme: str, numbers: list[int]
) -> None:
    refused(acknowledge(server, everybody, consumer="erp", number=numbers[2] + 1), 400, "No correction has this number")
    refused(acknowledge(server, reads(server, "nobody"), consumer="erp", number=numbers[0]), 400, "No correction")
    assert stored(server) == {}


@pytest.mark.parametrize(
    "body",
    [{}, {"consumer": "erp"}, {"consumer": "", "number": 0}, {"consumer": "x" * 201, "number": 0}]
    + [{"consumer": "erp", "number": number} for number in (-1, True, "1", 1.5, 10**18)]
    + [
        {"consumer": "a\0b", "number": 0},
        {"consumer": "\ud800", "number": 0},
        {"consumer": "erp", "number": 0, "x": 1},
    ],
)
def test_what_is_no_acknowledgement_is_refused(server: Server, everybody: str, body: dict[str, Any]) -> None:
    assert acknowledge(server, everybody, **body).status == 400
    assert stored(server) == {}


def test_consumers_of_the_same_accounts_are_not_without_number(server: Server, acme: str, everybody: str) -> None:
    with psycopg.connect(server.database) as session:
        session.execute(
            "INSERT INTO correction_consumers (consumer, of_accounts, number, key_id)"
            " SELECT 'c' || n, '[\"acme\"]', 0, 'k' FROM generate_series(1, %s) AS n",
            [MAX_CONSUMERS],
        )
    refused(acknowledge(server, acme, consumer="another", number=0), 409, "weir consumers remove")
    assert acknowledge(server, acme, consumer="c1", number=0).status == 200
    assert acknowledge(server, everybody, consumer="another", number=0).status == 200


def test_a_consumer_goes_on_where_two_that_came_at_the_same_time_are_one_more_than_there_may_be(
    server: Server, acme: str
) -> None:
    with psycopg.connect(server.database) as session:
        session.execute(
            "INSERT INTO correction_consumers (consumer, of_accounts, number, key_id)"
            " SELECT 'c' || n, '[\"acme\"]', 0, 'k' FROM generate_series(0, %s) AS n",
            [MAX_CONSUMERS],
        )
    assert acknowledge(server, acme, consumer="c1", number=0).status == 200
    refused(acknowledge(server, acme, consumer="another", number=0), 409, "weir consumers remove")
