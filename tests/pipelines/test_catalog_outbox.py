"""What `weir catalog apply` changes is told as it was committed, in its order, however often its teller dies."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from catalog.outbox import pending, told
from typer.testing import CliRunner

from catalog.change import Change, compact_json, envelope
from catalog.file import CatalogFile, parse_catalog
from catalog.store import alone, store
from cli.main import app
from deployment.errors import CannotRun
from deployment.job_states import Unpublished, read_unpublished
from metering.instants import rfc3339
from metering.words import Job


def file(plan: str = "team", unit_price: str = "0.1", **account: Any) -> CatalogFile:
    price = {"plan": plan, "model": "m", "meter": "requests", "currency": "EUR", "unit_price": unit_price}
    return parse_catalog(
        json.dumps(
            {
                "plans": [{"plan": plan, "name": "Plan"}],
                "accounts": [
                    {"account": "a", "name": "A", "plan": plan, "currency": "EUR", "timezone": "UTC"} | account
                ],
                "prices": [price | {"effective_from": "2026-01-01T00:00:00Z"}],
            }
        )
    )


def records(changes: list[Change]) -> list[tuple[str, str, str]]:
    """As they go to Kafka, byte for byte."""
    return [(c.topic.value, compact_json(c.key), compact_json(envelope(c))) for c in changes]


def untold(database: str) -> list[Change]:
    return [change for _, change in pending(database)]


def tell_all(database: str) -> None:
    told(database, [number for number, _ in pending(database)])


def test_a_crash_before_publishing_changes_no_instant(database: str) -> None:
    stored = store(database, file())
    left = records(untold(database))

    # The teller died. Whoever comes next finds the same records, also if it applies the same file.
    assert left == records(stored)
    store(database, file())
    assert records(untold(database)) == left


def test_what_joins_lost_is_told_again_with_the_instants_of_the_first_time(database: str) -> None:
    store(database, file())
    tell_all(database)
    store(database, file("pro"))
    first = records(untold(database))
    tell_all(database)

    store(database, file("pro"), is_known=lambda _: False)

    assert records(untold(database)) == first


def test_what_joins_has_is_not_told_again(database: str) -> None:
    store(database, file())
    tell_all(database)
    assert [change.op for change in store(database, file())] == ["r", "r", "r"]
    assert untold(database) == []


def accounts_told(database: str, catalog: CatalogFile) -> list[tuple[str, Any, Any]]:
    """What storing the catalog did to its account, as it is told from now on: nothing where it was so already."""
    store(database, catalog)
    told_now = [change for change in untold(database) if change.topic == "catalog.accounts"]
    tell_all(database)
    return [(change.op, change.after["plan"], change.after["effective_from"]) for change in told_now]


def test_what_was_announced_holds_from_now_on_once_a_file_says_it_without_an_instant(database: str) -> None:
    """Else the plan before would be billed until then, though the file says that it is over."""
    to_come = rfc3339(datetime.now(UTC).replace(microsecond=0) + timedelta(days=200))
    accounts_told(database, file())
    assert accounts_told(database, file("pro", effective_from=to_come)) == [("u", "pro", to_come)]

    assert accounts_told(database, file("pro")) == [("u", "pro", None)]
    assert accounts_told(database, file("pro")) == []


def test_what_has_begun_is_so_already_for_a_file_without_an_instant(database: str) -> None:
    begun = rfc3339(datetime.now(UTC).replace(microsecond=0) - timedelta(days=1))
    assert accounts_told(database, file(effective_from=begun)) == [("c", "team", begun)]
    assert accounts_told(database, file()) == []


def test_what_was_changed_by_others_and_joins_lacks_begins_when_it_is_first_told(database: str) -> None:
    store(database, file())
    tell_all(database)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE catalog.accounts SET name = 'by hand'")
    before = datetime.now(UTC)

    store(database, file(name="by hand"), is_known=lambda change: change.topic != "catalog.accounts")

    [change] = untold(database)
    assert change.after["name"] == "by hand"
    assert change.committed_at >= before


def test_an_account_is_told_after_the_prices_of_its_plan(database: str) -> None:
    store(database, file())
    assert [change.topic for change in untold(database)] == ["catalog.plans", "catalog.prices", "catalog.accounts"]


def test_the_outbox_keeps_of_what_was_told_only_the_last_of_each_row(database: str) -> None:
    for unit_price in ("0.1", "0.2", "0.3"):
        store(database, file(unit_price=unit_price))
        tell_all(database)
    with psycopg.connect(database) as connection:
        rows = connection.execute(
            "SELECT topic, after::json ->> 'unit_price' FROM catalog_outbox ORDER BY 1"
        ).fetchall()
    assert rows == [("catalog.accounts", None), ("catalog.plans", None), ("catalog.prices", "0.300000000000")]


def test_a_refused_file_tells_nothing(database: str) -> None:
    bad = file()
    with psycopg.connect(database) as connection:
        connection.execute("ALTER TABLE catalog.accounts ADD CHECK (account <> 'a')")
    with pytest.raises(CannotRun):
        store(database, bad)
    assert untold(database) == []


def test_who_waits_for_anothers_catalog_says_so_and_for_how_long_at_most(database: str) -> None:
    said: list[str] = []
    with alone(database, 60.0, said.append):
        assert said == []
        with (
            pytest.raises(CannotRun, match=r"was at work on this database for 1\.2 s: nothing was changed"),
            alone(database, 1.2, said.append),
        ):
            pass
    assert said == ["Waiting, 1.2 s at most, for another `weir catalog` command that is at work here."]
    with alone(database, 60.0, said.append):
        assert len(said) == 1


def test_the_status_shows_what_is_not_told(database: str) -> None:
    assert read_unpublished(database)[Job.INGESTION] == Unpublished(0, None)
    before = datetime.now(UTC)
    store(database, file())
    found = read_unpublished(database)[Job.INGESTION]
    assert found.changes == len(untold(database)) > 0
    assert found.since is not None
    assert abs(found.since - before) < timedelta(minutes=1)
    deployed = {"WEIR_POSTGRES_URL": database, "WEIR_KAFKA_BOOTSTRAP": "none:9092", "WEIR_TABLES": "/nowhere"}
    shown = json.loads(CliRunner().invoke(app, ["status", "--format", "json"], env=deployed).stdout)
    assert shown[0]["job"] == "ingestion"
    assert shown[0]["unpublished_changes"] == found.changes
    assert shown[0]["unpublished_since"] is not None
    tell_all(database)
    assert read_unpublished(database)[Job.INGESTION] == Unpublished(0, None)
