"""A version runs on the schema of the next one where that only adds, and nowhere else.

The next release is this one with a migration more (`tests/next_release.py`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from psycopg.conninfo import make_conninfo

from jobs.runtime.errors import Refused
from jobs.runtime.postgres import migrations as of_migrations
from jobs.runtime.postgres.downgrade import Use, downgrade
from jobs.runtime.postgres.migrator import alembic_config, migrator
from jobs.runtime.postgres.older_releases import CHANGED, UNDECLARED, refusal
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.reader_role import ROLE
from jobs.runtime.postgres.schema import migrate, schema_is_current
from jobs.runtime.postgres.schema_check import refuse_other_schema
from tests.database_rows import write
from tests.expansions import Schema, missed, schema_of
from tests.job_roles import url_of
from tests.next_release import AHEAD, EVERYTHING_GROWS, FIRST, SECOND, migrate_ahead, migrations

pytestmark = pytest.mark.skipif(AHEAD, reason="the schema of this run is a later one already")
FILES = sorted((Path(of_migrations.__path__[0]) / "versions").glob("*.py"))
NEWEST = FILES[-1].name[:4]
ENDPOINT = {"endpoint": "mail", "kind": "mail", "url": "mailto:a@example.com", "events": ["weir.x"], "changed_by": "me"}
ADDS, CHANGES = "ALTER TABLE sources ADD COLUMN later text", "ALTER TABLE sources RENAME COLUMN source TO origin"


def applied(url: str) -> str:
    with psycopg.connect(url) as connection:
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchall()[0]
    return str(revision)


def test_drivers_of_this_version_start_on_the_next_ones_schema_where_that_only_adds(database: str) -> None:
    migrate_ahead(database)
    assert not schema_is_current(database)
    for url in (database, url_of(database, "weir_billing"), url_of(database, "weir_retain")):
        refuse_other_schema(url)
    owned = Ownership.take("billing", database, {})
    with owned.transaction() as cursor:
        found = cursor.execute("SELECT job, number_of_later FROM jobs").fetchall()
    assert found == [("billing", 7)]
    owned.close()


def test_its_migration_leaves_that_schema_as_it_is_and_still_gives_the_dashboards_role_its_password(
    database: str,
) -> None:
    migrate_ahead(database)
    with psycopg.connect(database, autocommit=True) as connection:
        # What only the next version knows to grant.
        connection.execute("CREATE TABLE weir.later (a int); GRANT INSERT ON weir.sources TO weir_joins")
        before = schema_of(connection)
        migrate(database, "given")
        assert schema_of(connection) == before
        assert connection.execute("SELECT has_table_privilege('weir_joins', 'weir.sources', 'INSERT')").fetchone() == (
            True,
        )
    assert applied(database) == FIRST
    psycopg.connect(make_conninfo(database, user=ROLE, password="given")).close()


def test_a_migration_that_does_not_say_that_it_only_adds_refuses_older_versions_and_their_migrations(
    database: str,
) -> None:
    with migrations((CHANGES, False)) as later:
        migrate(database, migrations=later)
    sentence = rf"brought the database to the schema {FIRST}, .*{CHANGED}.*: install that version again, or .*"
    for refused in (refuse_other_schema, migrate):
        with pytest.raises(Refused, match=sentence + rf"`python -m jobs migrate --down-to {NEWEST}`"):
            refused(database)
    assert applied(database) == FIRST


@pytest.mark.parametrize(
    ("first", "second", "runs"),
    [(True, True, True), (True, False, False), (False, True, False)],
    ids=["both add", "the second changes", "the first changes"],
)
def test_two_versions_ahead_each_must_only_add(database: str, first: bool, second: bool, runs: bool) -> None:
    with migrations((ADDS, first), ("CREATE TABLE later (a int)", second)) as later:
        migrate(database, migrations=later)
        refuse_other_schema(database, migrations=later)
    with psycopg.connect(database) as connection:
        assert (refusal(connection, "weir", NEWEST) is None) is runs
        assert (refusal(connection, "weir", FIRST) is None) is second
        assert refusal(connection, "weir", SECOND) is None
        assert refusal(connection, "weir", "0001") == CHANGED


def test_what_an_older_version_would_bill_wrongly_refuses_it_while_it_is_stored(database: str) -> None:
    later = Use(
        FIRST, "EXISTS (SELECT FROM webhook_endpoints WHERE kind = 'mail')", "there are endpoints of mail, 50 %"
    )
    earlier = Use(NEWEST, "true", "it was there before")
    migrate_ahead(database, uses=(later, earlier))
    # A role that sees no webhooks is told as well.
    of_billing = url_of(database, "weir_billing")
    refuse_other_schema(of_billing)
    write(database, "webhook_endpoints", ENDPOINT)
    sentence = re.escape("cannot run (there are endpoints of mail, 50 %): install that version")
    with pytest.raises(Refused, match=sentence):
        refuse_other_schema(of_billing)
    with pytest.raises(Refused, match=sentence):
        migrate(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DELETE FROM webhook_endpoints")
    refuse_other_schema(of_billing)


def test_after_a_downgrade_only_the_version_of_that_schema_runs_until_it_has_migrated(database: str) -> None:
    downgrade(database, FILES[-2].name[:4])
    with psycopg.connect(database) as connection:
        assert refusal(connection, "weir", FILES[-3].name[:4]) == UNDECLARED
    with pytest.raises(Refused, match="run `python -m jobs migrate`"):
        refuse_other_schema(database)
    migrate(database)
    refuse_other_schema(database)


BREAKS = {
    "ALTER TABLE sources DROP COLUMN unsequenced": "sources.unsequenced is gone",
    "ALTER TABLE sources RENAME COLUMN unsequenced TO holes": "sources.unsequenced is gone",
    "ALTER TABLE positions ALTER COLUMN next_position TYPE numeric": "positions.next_position is gone, or is no bigint",
    "ALTER TABLE webhook_endpoints ALTER COLUMN note SET NOT NULL": "webhook_endpoints.note must have a value",
    "ALTER TABLE jobs ALTER COLUMN progress DROP DEFAULT": "jobs.progress has no value by itself any more",
    "ALTER TABLE exits ADD COLUMN later text NOT NULL": "exits.later must have a value, and has none by itself",
    "ALTER TABLE threshold_changes DROP CONSTRAINT threshold_changes_pkey": "threshold_changes has no unique {",
    "CREATE UNIQUE INDEX later ON exits (ended_at)": "exits has a unique {ended_at}",
    "ALTER TABLE exits ADD CONSTRAINT later CHECK (job <> '')": "exits has later: CHECK ((job <> ''::text))",
    "ALTER TABLE exits RENAME TO ends": "exits is gone",
    "ALTER TABLE meters ENABLE ROW LEVEL SECURITY": "meters has row-level security",
    "DROP TRIGGER roll_up_dimensions_inserted ON usage_days": "usage_days has no trigger roll_up_dimensions_inserted",
    "DROP FUNCTION pool_parts(date, text[])": "pool_parts(date,text[]) is gone",
}
ADDITIONS = (
    EVERYTHING_GROWS,
    "CREATE TABLE later (a int PRIMARY KEY CHECK (a > 0)); CREATE VIEW later_view AS SELECT * FROM exits",
    "ALTER TABLE exits ADD COLUMN later int NOT NULL DEFAULT 0 CHECK (later >= 0); CREATE INDEX later ON exits (later)",
    "ALTER TABLE sources ALTER COLUMN unsequenced DROP NOT NULL",
    "DROP INDEX catalog.effective_prices_due_by_instant",
)


@pytest.mark.parametrize("statement", BREAKS)
def test_a_change_that_an_older_version_would_miss_is_named(
    connection: psycopg.Connection[Any], statement: str
) -> None:
    before = schema_of(connection)
    connection.execute(statement.encode())
    found = list(missed(before, schema_of(connection)))
    assert [sentence for sentence in found if sentence.startswith(BREAKS[statement])], found


@pytest.mark.parametrize("statement", ADDITIONS, ids=range(len(ADDITIONS)))
def test_an_addition_is_none(connection: psycopg.Connection[Any], statement: str) -> None:
    before = schema_of(connection)
    connection.execute(statement.encode())
    assert schema_of(connection) != before or "DROP INDEX" in statement
    assert list(missed(before, schema_of(connection))) == []


def without_the_newest(url: str, before: str) -> tuple[Schema, Schema]:
    """What there is at a schema before, and what was there until now."""
    with psycopg.connect(url) as connection:
        later = schema_of(connection)
    with migrator(url) as config:
        command.downgrade(config, before)
    with psycopg.connect(url) as connection:
        return schema_of(connection), later


def test_migrations_before_are_told_apart(database: str) -> None:
    """0141 adds a column and moves an index. 0134 changes primary keys: writers of the version before name them."""
    without_the_newest(database, "0141")
    assert list(missed(*without_the_newest(database, "0137"))) == []
    without_the_newest(database, "0134")
    found = list(missed(*without_the_newest(database, "0132")))
    assert [sentence for sentence in found if sentence.startswith("threshold_changes has no unique {")]


def test_each_migration_that_says_so_only_adds(database: str) -> None:
    for script in ScriptDirectory.from_config(alembic_config()).walk_revisions():
        if not getattr(script.module, "is_expansion", False):
            break
        assert isinstance(script.down_revision, str)
        named = [frozenset(getattr(script.module, name, ())) for name in ("widened_checks", "guarded_tables")]
        assert list(missed(*without_the_newest(database, script.down_revision), *named)) == [], script.revision


def test_every_migration_from_now_on_says_whether_it_only_adds() -> None:
    scripts = ScriptDirectory.from_config(alembic_config()).walk_revisions()
    silent = [script.revision for script in scripts if not hasattr(script.module, "is_expansion")]
    assert [revision for revision in silent if revision > "0160"] == []
