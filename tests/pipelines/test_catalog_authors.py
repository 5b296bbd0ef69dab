"""Who changed a row of the catalog, and when: the database says it of `weir catalog apply` and of SQL alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
import typer
from alembic import command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from catalog.change import envelope
from catalog.file import parse_catalog
from catalog.store import TABLES, store
from cli.author import author, who
from jobs.journal.catalog_changes import parse_change
from jobs.runtime.postgres.schema import migrate, migrator
from metering.limits import MAX_NAME_BYTES
from tests.database_rows import write

BEFORE = "0028"
KEY = {"plan": "p", "model": "m", "meter": "requests", "currency": "EUR"}
CATALOG = {
    "plans": [{"plan": "p", "name": "P"}],
    "accounts": [{"account": "acme", "name": "Acme", "plan": "p", "currency": "EUR", "timezone": "UTC"}],
    "prices": [{**KEY, "unit_price": "0.1", "effective_from": "2026-01-01T00:00:00Z"}],
}
NOBODY = (None, None)


def file(unit_price: str = "0.1") -> Any:
    (price,) = CATALOG["prices"]
    return parse_catalog(json.dumps({**CATALOG, "prices": [{**price, "unit_price": unit_price}]}))


def authors(database: str) -> dict[str, tuple[str | None, datetime | None]]:
    """By table: who changed its only row, and when."""
    with psycopg.connect(database) as connection:
        return {
            table.name: connection.execute(f"SELECT changed_by, changed_at FROM catalog.{table.name}").fetchone()
            or NOBODY
            for table in TABLES
        }


def by(database: str) -> dict[str, str | None]:
    return {name: found for name, (found, _) in authors(database).items()}


def edit(database: str, statement: str, *, changed_by: str | None = None) -> None:
    """By SQL, as people do."""
    with psycopg.connect(database) as connection:
        if changed_by is not None:
            connection.execute("SELECT set_config('weir.changed_by', %s, true)", [changed_by])
        connection.execute(statement)


@contextmanager
def editor(database: str) -> Iterator[tuple[str, str]]:
    """Another role that edits the catalog, and its address."""
    name = f"editor_{uuid4().hex[:8]}"
    with psycopg.connect(database, autocommit=True) as connection:
        role = sql.Identifier(name)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN BYPASSRLS PASSWORD 'edits'").format(role))
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA catalog TO {}").format(role))
        connection.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA catalog TO {}").format(role))
        place = urlsplit(database)
        try:
            yield name, place._replace(netloc=f"{name}:edits@{place.hostname}:{place.port}").geturl()
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


def test_an_edit_by_sql_is_its_roles(database: str) -> None:
    store(database, file(), changed_by="ann@finance")
    before = authors(database)
    started = datetime.now(UTC)
    with editor(database) as (name, url):
        edit(url, "UPDATE catalog.prices SET unit_price = 0.2")
        edit(url, "INSERT INTO catalog.plans (plan, name) VALUES ('q', 'Q')")
        assert by(database)["prices"] == name
        with psycopg.connect(database) as connection:
            assert connection.execute("SELECT changed_by FROM catalog.plans WHERE plan = 'q'").fetchone() == (name,)
    _, at = authors(database)["prices"]
    assert at is not None
    assert started <= at <= datetime.now(UTC)
    assert authors(database)["accounts"] == before["accounts"]


def test_a_role_that_was_set_does_not_hide_who_logged_in(database: str) -> None:
    store(database, file(), changed_by="ann@finance")
    with psycopg.connect(database) as connection:
        (name,) = connection.execute("SELECT session_user").fetchone() or ("",)
    with editor(database) as (other, _):
        edit(database, f"SET LOCAL ROLE {other}; UPDATE catalog.prices SET unit_price = 0.2")
    assert by(database)["prices"] == name


def test_a_session_may_set_the_author_of_its_edits(database: str) -> None:
    store(database, file())
    edit(database, "UPDATE catalog.accounts SET name = 'A'", changed_by=" ann@finance ")
    assert by(database)["accounts"] == "ann@finance"
    edit(database, "UPDATE catalog.accounts SET name = 'B'", changed_by=" ")
    with psycopg.connect(database) as connection:
        assert (by(database)["accounts"],) == connection.execute("SELECT session_user").fetchone()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE catalog.prices SET unit_price = 0.2, changed_by = 'mallory', changed_at = '2001-01-01'",
        (
            "DELETE FROM catalog.prices; INSERT INTO catalog.prices VALUES "
            "('p', 'm', 'requests', 'EUR', '2026-01-01Z', 0.2, 'mallory', '2001-01-01')"
        ),
        (
            "INSERT INTO catalog.prices VALUES ('p', 'm', 'requests', 'EUR', '2026-01-01Z', 0.2) "
            "ON CONFLICT (plan, model, meter, currency, effective_from) DO UPDATE SET "
            "unit_price = excluded.unit_price, changed_by = 'mallory', changed_at = '2001-01-01'"
        ),
    ],
)
def test_the_name_and_instant_of_an_edit_cannot_be_forged(database: str, statement: str) -> None:
    store(database, file(), changed_by="ann@finance")
    started = datetime.now(UTC)
    edit(database, statement, changed_by="bob@finance")
    found, at = authors(database)["prices"]
    assert found == "bob@finance"
    assert at is not None
    assert at >= started


def test_an_update_of_nothing_keeps_who_changed_it(database: str) -> None:
    store(database, file(), changed_by="ann@finance")
    before = authors(database)
    edit(database, "UPDATE catalog.prices SET unit_price = 0.1, changed_by = NULL, changed_at = NULL", changed_by="bob")
    edit(database, "UPDATE catalog.accounts SET effective_from = NULL, changed_by = 'mallory'", changed_by="bob")
    edit(database, "UPDATE catalog.plans SET name = name", changed_by="bob")
    assert authors(database) == before


def test_an_author_that_cannot_be_stored_is_refused(database: str) -> None:
    store(database, file(), changed_by="ß" * (MAX_NAME_BYTES // 2))
    before = authors(database)
    with pytest.raises(psycopg.errors.RaiseException, match=r"weir\.changed_by has 513 bytes"):
        edit(database, "UPDATE catalog.prices SET unit_price = 0.2", changed_by="ß" * (MAX_NAME_BYTES // 2) + "s")
    assert authors(database) == before


def test_an_unchanged_row_keeps_its_author(database: str) -> None:
    store(database, file(), changed_by="ann@finance")
    first = authors(database)
    assert {name for name, _ in first.values()} == {"ann@finance"}

    assert {change.op for change in store(database, file(), changed_by="bob@finance")} == {"r"}
    assert authors(database) == first

    _, price, _ = store(database, file("0.2"), changed_by="bob@finance")
    assert by(database) == {"plans": "ann@finance", "accounts": "ann@finance", "prices": "bob@finance"}
    said = parse_change(price.topic, json.dumps(envelope(price)).encode(), 1)
    assert said is not None
    assert (said["changed_by"], said["changed_at"]) == authors(database)["prices"]


def test_edits_without_an_author_are_attributed_to_the_login(database: str) -> None:
    store(database, file())
    with psycopg.connect(database) as connection:
        assert [(name,) for name in by(database).values()] == connection.execute("SELECT session_user").fetchall() * 3


def of_before(database: str) -> None:
    """The catalog as the release before stores it: its statements name the columns that it knows."""
    write(database, "catalog.plans", CATALOG["plans"][0])
    write(database, "catalog.prices", CATALOG["prices"][0])
    write(database, "catalog.accounts", CATALOG["accounts"][0])


def test_the_previous_release_still_works_and_its_edits_are_attributed_to_its_role(database: str) -> None:
    of_before(database)
    with psycopg.connect(database) as connection:
        owner = connection.execute("SELECT session_user").fetchone()
        assert [(name,) for name in by(database).values()] == [owner] * 3
        found = connection.execute(
            "INSERT INTO catalog.prices AS t (plan, model, meter, currency, effective_from, unit_price) "
            "VALUES ('p', 'm', 'requests', 'EUR', '2026-01-01Z', 7) "
            "ON CONFLICT (plan, model, meter, currency, effective_from) DO UPDATE SET unit_price = excluded.unit_price "
            "RETURNING plan, CASE WHEN xmax = 0 THEN 'c' ELSE 'u' END AS op"
        ).fetchall()
    assert found == [("p", "u")]


def test_a_downgrade_and_upgrade_leave_the_catalog_unchanged_without_an_author(database: str) -> None:
    """An account without `effective_from` begins sometime: when it was told, or else now (test_catalog_store)."""
    of_before(database)
    with migrator(database) as config:
        command.downgrade(config, BEFORE)
    started = datetime.now(UTC)
    migrate(database)
    found = authors(database)
    _, since = found["accounts"]
    assert found == {"plans": NOBODY, "prices": NOBODY, "accounts": (None, since)}
    assert since is not None
    assert started <= since <= datetime.now(UTC)
    assert {change.op for change in store(database, file(), changed_by="bob")} == {"r"}
    assert authors(database) == found


def test_changes_of_a_transaction_have_one_time(database: str) -> None:
    store(database, file())
    edit(database, "UPDATE catalog.accounts SET timezone = 'Asia/Tokyo'; UPDATE catalog.prices SET unit_price = 0.2")
    with psycopg.connect(database) as connection:
        [at] = connection.execute("SELECT max(holds_from) FROM catalog.account_zones").fetchone() or [None]
    found = authors(database)
    assert [found[name][1] for name in ("accounts", "prices")] == [at, at]


EDITS = st.lists(
    st.tuples(st.sampled_from(["0.1", "0.2"]), st.sampled_from([None, "ann", "bob"]), st.booleans()), max_size=6
)
"""A unit price, who says it, and whether by SQL."""


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS)
def test_oracle_the_author_of_a_price_is_who_changed_it_last(database: str, edits: list[Any]) -> None:
    edit(database, "DELETE FROM catalog.accounts; DELETE FROM catalog.prices; DELETE FROM catalog.plans")
    with psycopg.connect(database) as connection:
        (owner,) = connection.execute("SELECT session_user").fetchone() or ("",)
    store(database, file("0.1"), changed_by="first")
    price, expected = "0.1", "first"
    for unit_price, name, is_sql in edits:
        if is_sql:
            edit(database, f"UPDATE catalog.prices SET unit_price = {unit_price}", changed_by=name)
        else:
            store(database, file(unit_price), changed_by=name)
        if unit_price != price:
            price, expected = unit_price, name or owner
        assert by(database)["prices"] == expected


def test_by_default_it_is_the_user_who_runs_the_command() -> None:
    assert author(None) == who()
    assert author(" ann@finance ") == "ann@finance"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(" ", "empty"), ("a" * (MAX_NAME_BYTES + 1), "512 bytes"), ("a\0b", "control"), ("\ud800", "control")],
)
def test_an_author_that_cannot_be_stored_is_a_usage_error(wrong: str, said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said):
        author(wrong)
