"""The history of accounts' time zones, whoever edits the catalog."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from alembic import command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.change import compact_json, envelope
from catalog.file import parse_catalog
from catalog.store import store
from jobs.joins.billing_days import BillingDays
from jobs.journal.catalog_changes import parse_change
from jobs.runtime.postgres.schema import migrate, migrator
from jobs.streams import ACCOUNTS, CatalogTopic
from metering.months import ZoneChange, billing_month, zone_changes
from tests.database_rows import write

NAMES = "account, name, plan, currency, timezone, effective_from"


@pytest.fixture
def account(database: str) -> str:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    row = {"account": "acme", "name": "Acme", "plan": "p", "currency": "EUR", "timezone": "Europe/Berlin"}
    write(database, "catalog.accounts", row)
    return "acme"


def set_zone(connection: psycopg.Connection[Any], zone: str, effective_from: datetime | None = None) -> datetime:
    """Now, as the database's transaction has it."""
    with connection.transaction():
        connection.execute("UPDATE catalog.accounts SET timezone = %s, effective_from = %s", [zone, effective_from])
        [now] = connection.execute("SELECT now()").fetchone() or [None]
    assert isinstance(now, datetime)
    return now


def history(connection: psycopg.Connection[Any]) -> list[tuple[datetime | None, str]]:
    with connection.transaction():
        return connection.execute(
            "SELECT nullif(holds_from, '-infinity'), timezone FROM catalog.account_zones ORDER BY holds_from"
        ).fetchall()


@pytest.mark.usefixtures("account")
def test_the_first_zone_holds_from_the_beginning_and_a_change_from_when_it_was_made(
    connection: psycopg.Connection[Any],
) -> None:
    now = set_zone(connection, "Asia/Kolkata")
    set_zone(connection, "Asia/Kolkata")
    assert history(connection) == [(None, "Europe/Berlin"), (now, "Asia/Kolkata")]


@pytest.mark.usefixtures("account")
def test_a_change_of_zone_may_be_planned_but_not_backdated(connection: psycopg.Connection[Any]) -> None:
    now = set_zone(connection, "UTC", datetime.fromisoformat("2026-01-01T00:00Z"))
    planned = now + timedelta(days=40)
    set_zone(connection, "Asia/Tokyo", planned)
    assert history(connection) == [(None, "Europe/Berlin"), (now, "UTC"), (planned, "Asia/Tokyo")]
    set_zone(connection, "UTC", planned)
    assert history(connection)[2] == (planned, "UTC")


@pytest.mark.usefixtures("account")
def test_a_planned_zone_that_is_withdrawn_never_applies(connection: psycopg.Connection[Any]) -> None:
    """As the contract, whose newest version that has begun holds: a bill's borders and its prices go by one row."""
    now = set_zone(connection, "UTC")
    planned = now + timedelta(days=40)
    for effective_from in (None, now - timedelta(days=400)):
        set_zone(connection, "Asia/Tokyo", planned)
        set_zone(connection, "UTC", effective_from)
        assert history(connection) == [(None, "Europe/Berlin"), (now, "UTC")]


@pytest.mark.usefixtures("account")
def test_the_migration_drops_withdrawn_zones_and_keeps_planned_ones(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    with migrator(database) as config:
        command.downgrade(config, "0018")
    planned = set_zone(connection, "UTC") + timedelta(days=40)
    set_zone(connection, "Asia/Tokyo", planned + timedelta(days=1))
    set_zone(connection, "Asia/Kolkata", planned)
    assert history(connection)[2:] == [(planned, "Asia/Kolkata"), (planned + timedelta(days=1), "Asia/Tokyo")]
    migrate(database)
    assert history(connection)[2:] == [(planned, "Asia/Kolkata")]


def pass_days(connection: psycopg.Connection[Any], days: int) -> None:
    """As if the clock had gone on: what is written down lies that much further back."""
    with connection.transaction():
        connection.execute("ALTER TABLE catalog.accounts DISABLE TRIGGER keep_account_zone")
        for column in ("accounts SET effective_from", "account_zones SET holds_from"):
            name = column.split()[-1]
            connection.execute(f"UPDATE catalog.{column} = {name} - make_interval(days => %s)", [days])
        connection.execute("ALTER TABLE catalog.accounts ENABLE TRIGGER keep_account_zone")


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("revision", ["0018", "0019"])
@pytest.mark.parametrize("taken_back_with", [None, datetime.fromisoformat("2026-01-01T00:00Z")])
def test_withdrawn_zones_that_had_begun_end_at_the_migration(
    database: str, connection: psycopg.Connection[Any], taken_back_with: datetime | None, revision: str
) -> None:
    """It named days until now, which stay; from now on the row does, as it does for prices."""
    with migrator(database) as config:
        command.downgrade(config, "0018")
    planned = set_zone(connection, "Asia/Tokyo") + timedelta(days=40)
    set_zone(connection, "Asia/Kolkata", planned)
    set_zone(connection, "Asia/Tokyo", taken_back_with)
    pass_days(connection, 41)
    before = history(connection)
    assert before[2:] == [(planned - timedelta(days=41), "Asia/Kolkata")]
    with migrator(database) as config:
        command.upgrade(config, revision)
    assert history(connection) == before

    [earliest] = connection.execute("SELECT clock_timestamp()").fetchone() or [None]
    connection.commit()
    migrate(database)
    [began] = history(connection)[3:]
    assert history(connection)[:3] == before
    assert began[1] == "Asia/Tokyo"
    assert isinstance(earliest, datetime)
    assert began[0] is not None
    assert began[0] >= earliest
    set_zone(connection, "Asia/Tokyo", taken_back_with)
    with migrator(database) as config:
        command.downgrade(config, "0019")
    migrate(database)
    assert history(connection) == [*before, began]


@pytest.mark.usefixtures("account")
def test_the_migration_keeps_effective_and_planned_zones(database: str, connection: psycopg.Connection[Any]) -> None:
    with migrator(database) as config:
        command.downgrade(config, "0019")
    planned = set_zone(connection, "UTC") + timedelta(days=40)
    set_zone(connection, "Asia/Tokyo", planned)
    before = history(connection)
    migrate(database)
    assert history(connection) == before
    with migrator(database) as config:
        command.downgrade(config, "0019")
    assert history(connection) == before
    pass_days(connection, 41)
    before = history(connection)
    migrate(database)
    assert history(connection) == before


@pytest.mark.usefixtures("account")
def test_an_account_that_is_deleted_and_made_again_keeps_its_history(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction():
        connection.execute("CREATE TEMP TABLE kept AS SELECT * FROM catalog.accounts")
        connection.execute("DELETE FROM catalog.accounts")
    assert history(connection) == [(None, "Europe/Berlin")]
    with connection.transaction():
        connection.execute(f"INSERT INTO catalog.accounts ({NAMES}) SELECT {NAMES} FROM kept")
    assert history(connection) == [(None, "Europe/Berlin")]


ZONES = ("Europe/Berlin", "Asia/Tokyo", "UTC")
edits = st.lists(
    st.one_of(
        st.just(("delete", None, None)),
        st.tuples(st.just("name"), st.none(), st.none()),
        st.tuples(
            st.sampled_from(["put", "put", "put back"]),
            st.sampled_from(ZONES),
            st.none() | st.sampled_from([-400, -1, 1, 1, 40, 80]),
        ),
    ),
    max_size=8,
)
"""(what is done to the account, its zone, and how many days from now its `effective_from` is; None: it has none)."""
PUT = """
    INSERT INTO catalog.accounts (account, name, plan, currency, timezone, effective_from)
    VALUES ('acme', '', 'p', 'EUR', %(zone)s, %(at)s)
    ON CONFLICT (account) DO UPDATE SET timezone = excluded.timezone, effective_from = excluded.effective_from
"""
EDIT = {"delete": "DELETE FROM catalog.accounts", "name": "UPDATE catalog.accounts SET name = name || '.'"}


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(done=edits)
def test_differential_the_trigger_keeps_the_history_that_the_versions_of_an_account_make(
    connection: psycopg.Connection[Any], done: list[tuple[str, str | None, int | None]]
) -> None:
    """Each version as joins has it: zone, and the later of `effective_from` and when it was changed."""
    connection.execute("DELETE FROM catalog.accounts")
    connection.execute("DELETE FROM catalog.account_zones")
    connection.execute("INSERT INTO catalog.plans VALUES ('p', '') ON CONFLICT DO NOTHING")
    connection.commit()
    versions: list[tuple[datetime, str]] = []
    start = datetime.now(UTC)
    for what, zone, days in done:
        at = None if days is None else start + timedelta(days=days)
        with connection.transaction():
            if what == "put back":
                connection.execute(EDIT["delete"])
            connection.execute(EDIT.get(what, PUT).encode(), {"zone": zone, "at": at})
            row = connection.execute("SELECT effective_from, changed_at, timezone FROM catalog.accounts").fetchone()
        if row is not None:
            versions.append((max(row[0] or row[1], row[1]), row[2]))
    assert tuple(ZoneChange(*change) for change in history(connection)) == zone_changes(versions)


@pytest.mark.usefixtures("account")
def test_editing_accounts_needs_no_right_on_their_history(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction(force_rollback=True):
        connection.execute("CREATE ROLE weir_editor")
        connection.execute("GRANT USAGE ON SCHEMA catalog TO weir_editor")
        connection.execute("GRANT SELECT, UPDATE ON catalog.accounts TO weir_editor")
        connection.execute("CREATE POLICY edits ON catalog.accounts TO weir_editor USING (true)")
        connection.execute("SET LOCAL ROLE weir_editor")
        assert connection.execute("UPDATE catalog.accounts SET timezone = 'UTC'").rowcount == 1
        connection.execute("RESET ROLE")
        assert connection.execute("SELECT count(*) FROM catalog.account_zones").fetchone() == (2,)


def test_a_zone_whose_file_dates_it_back_moves_no_border_of_a_month_that_has_begun(database: str) -> None:
    """`weir catalog apply` of a file whose account has had one `effective_from` for long, with another zone."""
    file = "plans: [{{plan: p, name: P}}]\naccounts: [{{account: acme, name: A, plan: p, currency: EUR, timezone: {}, "
    file += 'effective_from: "2026-01-01T00:00:00Z"}}]'
    rows = [
        parse_change(change.topic, compact_json(envelope(change)).encode(), lsn)
        for lsn, zone in ((1, "Europe/Berlin"), (2, "America/New_York"))
        for change in store(database, parse_catalog(file.format(zone)))
        if change.topic is CatalogTopic.ACCOUNTS
    ]
    accounts = pa.Table.from_pylist(rows, schema=ACCOUNTS)
    with psycopg.connect(database) as connection:
        zones = history(connection)
    first = datetime.now(UTC).date().replace(day=1)
    month = billing_month([ZoneChange(*zone) for zone in zones], first)
    instants = [month.start, month.end - timedelta(microseconds=1), month.end]
    outcomes = pl.DataFrame(
        {"account": ["acme"] * 3, "event_time": instants, "request_lsn": [9] * 3, "completion_lsn": [9] * 3}
    )
    named = BillingDays(accounts).days(outcomes.with_columns(pl.col("event_time").cast(pl.Datetime("us", "UTC"))))
    assert [day.replace(day=1) for day in named] == [first, first, (first + timedelta(days=31)).replace(day=1)]
