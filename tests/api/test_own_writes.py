"""An answer after a position has what was posted up to it, or says 409: each step of the way is looked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from deployment.positions import describe
from metering.api_keys import Scope
from tests.api.serving import Server, serving, start_ingestion
from tests.api.test_asking import get, reads
from tests.api.test_events_in import OWN, encoded, event, refused
from tests.conftest import fresh_database
from tests.database_rows import progress


def commit(tables: Path, table: str, **numbers: int) -> None:
    """A commit that carries these numbers, as an application's does."""
    transactions = [Transaction(name, number) for name, number in numbers.items()]
    properties = CommitProperties(app_transactions=transactions)
    rows = pa.table({"lsn": pa.array([1], pa.int64())})
    write_deltalake(str(tables / table), rows, mode="append", commit_properties=properties)


def billed_to(database: str, position: int) -> None:
    with psycopg.connect(database) as session:
        session.execute("UPDATE positions SET next_position = %s WHERE job = 'billing'", [position])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def reading(bootstrap: str, postgres_url: str, tables: Path) -> Iterator[Server]:
    with fresh_database(postgres_url) as database:
        start_ingestion(database)
        progress(database, "billing", None)
        with serving(bootstrap, database, tables=str(tables)) as running:
            yield running


@pytest.fixture(scope="module")
def key(reading: Server) -> str:
    return reads(reading, scopes=(Scope.READ, Scope.INGEST))


def kafka_position(server: Server, position: str) -> dict[str, int]:
    """The journal's transactions once it has the records of a position."""
    (topic,) = describe(server.bootstrap, ["events"])
    return {topic.position(int(part.split("/")[1])): int(part.split("/")[2]) + 1 for part in position.split(",")}


def test_a_wait_for_a_position_ends_when_the_events_are_billed(reading: Server, key: str, tables: Path) -> None:
    position = reading.post(OWN, encoded([event(), event(), event()]), key).json["position"]

    def asked(wait: int = 0) -> int:
        return get(reading, "/v1/usage", key, after=position, wait=wait).status

    refused(answer := get(reading, "/v1/usage", key, after=position, wait=0), 409, "not_yet", position)
    assert (answer.json["code"], answer.headers["retry-after"]) == ("not_yet", "1")
    wanted = kafka_position(reading, position)
    short = {name: offset - 1 for name, offset in wanted.items()}
    commit(tables, "journal", **short, lsn=7)
    time.sleep(0.3)
    assert asked() == 409
    commit(tables, "journal", **wanted, lsn=10)
    commit(tables, "usage", journal=9, lsn=4)
    time.sleep(0.3)
    assert asked() == 409
    commit(tables, "usage", journal=10, lsn=6)
    billed_to(reading.database, 5)
    time.sleep(0.3)
    assert asked() == 409
    later = threading.Timer(1, billed_to, [reading.database, 6])
    later.start()
    assert asked(wait=20) == 200
    later.join()
    assert asked() == 200
    assert get(reading, "/v1/bills", key, after=position, wait=0, month="2026-11").status == 200


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("position", ["events", "events/1", "other/0/1", "events/0/1;events/1/1", "events/0/-1"])
def test_a_position_that_nobody_gave_is_refused(reading: Server, key: str, position: str) -> None:
    refused(get(reading, "/v1/usage", key, after=position), 400, "after", "events/3/81234")


def test_waiting_is_limited(reading: Server, key: str) -> None:
    refused(get(reading, "/v1/usage", key, after="events/0/1", wait=31), 400, "wait", "30")


@contextmanager
def without_tables(bootstrap: str, database: str) -> Iterator[Server]:
    start_ingestion(database)
    with serving(bootstrap, database) as running:
        yield running


def test_an_api_without_table_access_names_the_missing_setting(bootstrap: str, database: str) -> None:
    with without_tables(bootstrap, database) as server:
        key = reads(server)
        given: dict[str, Any] = {"after": "events/0/1"}
        refused(get(server, "/v1/usage", key, **given), 501, "WEIR_TABLES")
        refused(get(server, "/v1/requests/r-1", key), 501, "WEIR_TABLES")
        refused(get(server, "/v1/events/gw/e-1", key), 501, "WEIR_TABLES")


def test_an_unknown_request_is_not_found(reading: Server, key: str) -> None:
    refused(get(reading, "/v1/requests/a%2Fb", key), 404, "a/b", "days")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gw/e%2F1", ["'e/1'", "'gw'", "days"]),
        ("https:%2F%2Fgw%2Fa/e%201", ["'e 1'", "'https://gw/a'"]),
        ("%2Fgw/e", ["'e'", "'/gw'"]),
        ("/gw/e", ["'/gw'"]),
        ("gw", ["SOURCE/ID"]),
        ("gw/%ff", ["SOURCE/ID"]),
        ("gw/", ["SOURCE/ID"]),
    ],
)
def test_an_event_is_named_by_its_source_and_id(reading: Server, key: str, path: str, words: list[str]) -> None:
    refused(get(reading, f"/v1/events/{path}", key), 404, *words)
