"""Watches that are added, listed and removed, with their trail; and mistakes that store nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from jobs.analytics.watches.store import (
    Unaccepted,
    UnknownWatch,
    add_watch,
    columns_in_force,
    hit_rows,
    is_run,
    remove_watch,
    watch_rows,
)
from jobs.queries.activity import ActivityQuery, activity_rows
from jobs.queries.reading import Database
from metering.reports import OFF_AFTER, Phase
from metering.watches.tokens import Mistake
from tests.database_rows import progress


@pytest.fixture
def connection(database: str) -> Iterator[Database]:
    with psycopg.connect(database, row_factory=dict_row) as connection:
        yield connection


def add(connection: Database, name: str, condition: str = "cached", most: int = 10) -> None:
    add_watch(connection, name, condition, "ada", most)
    connection.commit()


def test_who_added_and_removed_a_watch_is_in_the_activity_log_and_what_analytics_notes_is_not(
    connection: Database,
) -> None:
    add(connection, "large", 'account = "acme" and output_tokens > 5 and account.tags.team = "x"')
    [row] = watch_rows(connection)
    assert (row["name"], row["account"], row["added_by"]) == ("large", "acme", "ada")
    connection.execute("UPDATE watches SET first_position = 1, calls_from = 1")
    connection.commit()
    remove_watch(connection, "large", "bob")
    connection.commit()
    assert list(watch_rows(connection)) == []
    add(connection, "large")
    done = [
        (entry["made_by"], entry["action"])
        for entry in activity_rows(connection, ActivityQuery(None, None, None, "weir.watches"))
    ]
    assert done == [("ada", "insert"), ("bob", "update"), ("ada", "insert")]


def test_a_mistake_a_name_in_use_and_one_watch_too_many_store_nothing(connection: Database) -> None:
    add(connection, "one", most=1)
    for name, condition, refused in [
        ("two", "modle = 'x'", Mistake),
        ("one", "cached", Unaccepted),
        ("two", "cached", Unaccepted),
    ]:
        with pytest.raises(refused):
            add(connection, name, condition, most=1)
        connection.rollback()
    with pytest.raises(UnknownWatch):
        remove_watch(connection, "two", "ada")
    with pytest.raises(UnknownWatch):
        list(hit_rows(connection, "two"))
    assert [row["name"] for row in watch_rows(connection)] == ["one"]


def test_without_the_switch_nothing_runs_and_shipped_columns_can_be_named(connection: Database) -> None:
    assert not is_run(connection)
    columns = columns_in_force(connection)
    assert columns.keys() >= {"account", "model", "output_tokens", "latency_ms", "region", "cached", "account.plan"}


def states(connection: Database) -> list[str]:
    return [row["state"] for row in watch_rows(connection)]


def test_a_watch_is_listed_as_off_where_analytics_was_started_without_watches_has_stopped_or_is_silent_for_a_day(
    connection: Database, database: str
) -> None:
    add(connection, "new")
    add(connection, "old")
    connection.execute("UPDATE watches SET first_position = 1 WHERE name = 'old'")
    connection.commit()
    assert states(connection) == ["off", "off"]
    progress(database, "analytics", None)
    assert states(connection) == ["off", "off"]
    connection.execute("UPDATE jobs SET config = %s", [Jsonb({"watches": True})])
    assert states(connection) == ["waiting", "running"]
    connection.execute("UPDATE jobs SET state = %s", [Phase.STOPPED])
    assert states(connection) == ["off", "off"]
    minute = timedelta(minutes=1)
    for silent, found in ((OFF_AFTER + minute, ["off", "off"]), (OFF_AFTER - minute, ["waiting", "running"])):
        connection.execute("UPDATE jobs SET state = 'running', updated_at = %s", [datetime.now(UTC) - silent])
        assert states(connection) == found
