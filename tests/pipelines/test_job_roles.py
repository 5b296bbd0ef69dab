"""A role of the database for each application: it writes its own tables and rows, and no other's.

That it may do all that its application does is seen by every other test: drivers that tests start have these roles
(tests/conftest.py).
"""

from __future__ import annotations

import runpy
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from catalog.file import CatalogFile
from catalog.store import store
from jobs.analytics.pipeline import JOB as ANALYTICS
from jobs.billing.pipeline import JOB as BILLING
from jobs.ingestion.pipeline import JOB as INGESTION
from jobs.joins.pipeline import JOB as JOINS
from jobs.joins.price_ladders import PriceLadders
from jobs.retention.analytics import retain_analytics
from jobs.retention.days import Retention
from jobs.retention.rows import retain_rows
from jobs.retention.webhooks import retain_webhooks
from jobs.runtime import run
from jobs.runtime.clock import MachineClock
from jobs.runtime.errors import Fenced
from jobs.runtime.job import AnyJob
from jobs.runtime.postgres.exits import record_exit
from jobs.runtime.postgres.gauges import DatabaseGauges
from jobs.runtime.postgres.job_roles import BY_JOB, ROLES, privileges
from jobs.runtime.postgres.meters_table import declare
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.relations import CATALOG, OWN, SECRET
from jobs.runtime.postgres.schema import migrate
from jobs.runtime.postgres.totals import exits_of
from jobs.sessionization.pipeline import JOB as SESSIONIZATION
from jobs.tables_read import refuse_tables_not_read
from metering.meters import DEFAULT, Declaration
from metering.vocabulary import End
from monitoring import metrics
from tests.job_roles import url_of
from tests.streaming.journals import environment

APPLICATIONS: tuple[AnyJob, ...] = (INGESTION, JOINS, SESSIONIZATION, BILLING, ANALYTICS)
TESTED = runpy.run_path(str(Path(__file__).parents[2] / "charts/weir/files/bill_one_event.py"))["CATALOG"]
VERSION = {
    "lsn": 7,
    "plan": "p",
    "model": "m",
    "meter": "requests",
    "currency": "EUR",
    "unit_price": None,
    "effective_from": datetime(2026, 11, 1, tzinfo=UTC),
    "deleted": False,
    "terms": '{"tiers": [{"up_to": "1000", "unit_price": "2"}, {"unit_price": "1"}]}',
}
WORDS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
PRIVILEGES = """
SELECT relname, word FROM pg_class, unnest(%(words)s::text[]) AS word
WHERE relnamespace = %(schema)s::regnamespace AND relname = ANY (%(relations)s) AND relkind IN ('r', 'p', 'v')
  AND has_table_privilege(%(role)s, pg_class.oid, word)
"""
GUARDED = """
SELECT relname FROM pg_class AS relation
WHERE relnamespace = ANY (ARRAY['weir', 'catalog']::regnamespace[]) AND relkind IN ('r', 'p') AND relrowsecurity
  AND NOT EXISTS (
      SELECT FROM pg_policies AS policy
      WHERE (policy.schemaname::regnamespace, policy.tablename) = (relation.relnamespace, relation.relname)
        AND (%(role)s = ANY (policy.roles) OR policy.policyname = 'reads_everything' AND policy.roles = '{public}')
        AND policy.cmd IN ('ALL', 'SELECT') AND policy.qual = 'true'
  )
"""
POLICIES = "SELECT schemaname, tablename, policyname, oid FROM pg_policies JOIN pg_policy ON polname = policyname AND"
POLICIES = f"{POLICIES} polrelid = (schemaname || '.' || tablename)::regclass ORDER BY 1, 2, 3"


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_the_privileges_of_the_table_of_grants_and_no_others(database: str, role: str) -> None:
    with psycopg.connect(database) as owner:
        for schema, relations in (("weir", OWN), ("catalog", CATALOG)):
            given = {"words": list(WORDS), "schema": schema, "relations": list(relations), "role": role}
            found = owner.execute(PRIVILEGES, given).fetchall()
            there = _relations(owner, schema, relations)
            tables = [name for name, kind in there.items() if kind != "v"]
            named = {name: name if schema == "weir" else f"{schema}.{name}" for name in there}
            assert {*ROLES[role].writes, *ROLES[role].appends} & set(named.values()) <= {named[name] for name in tables}
            assert set(found) == {(name, word) for name in there for word in privileges(role, named[name])}


@pytest.mark.parametrize("role", ROLES)
def test_row_level_security_hides_no_row_from_a_role_that_meters(database: str, role: str) -> None:
    with psycopg.connect(database) as owner:
        hidden = {name for (name,) in owner.execute(GUARDED, {"role": role}).fetchall()}
    assert hidden <= set(SECRET) - set(ROLES[role].reads)


def _relations(owner: psycopg.Connection[Any], schema: str, relations: tuple[str, ...]) -> dict[str, str]:
    """Their kinds, without sequences."""
    rows = owner.execute(
        "SELECT relname, relkind FROM pg_class WHERE relnamespace = %s::regnamespace AND relname = ANY (%s)"
        " AND relkind IN ('r', 'p', 'v')",
        [schema, list(relations)],
    ).fetchall()
    return dict(rows)


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("weir_sessionization", "INSERT INTO invoices (invoice) VALUES ('1')"),
        ("weir_sessionization", "UPDATE usage_windows SET quantity = 0"),
        ("weir_billing", "DELETE FROM invoice_lines"),
        ("weir_billing", "UPDATE catalog.prices SET unit_price = 0"),
        ("weir_ingestion", "INSERT INTO corrections DEFAULT VALUES"),
        ("weir_joins", "DELETE FROM price_ladders"),
        ("weir_retain", "DELETE FROM usage_windows"),
        ("weir_compact", "DELETE FROM batches"),
        ("weir_test", "SELECT * FROM api_keys"),
        ("weir_analytics", "SELECT * FROM webhook_secrets"),
        ("weir_ingestion", "CREATE TABLE weir.mine (a int)"),
    ],
)
def test_a_role_is_refused_what_other_applications_write(database: str, role: str, statement: str) -> None:
    with (
        psycopg.connect(url_of(database, role)) as session,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        session.execute(statement)


def test_a_role_moves_no_position_and_ends_no_epoch_of_another_application(database: str) -> None:
    billing = Ownership.take("billing", database, {})
    with billing.transaction() as cursor:
        cursor.execute(
            "INSERT INTO positions (job, input, next_position, frontier) VALUES ('billing', 'usage', 7, now())"
        )
    with psycopg.connect(url_of(database, "weir_sessionization"), autocommit=True) as session:
        assert session.execute("SELECT next_position FROM positions").fetchall() == [(7,)]
        for table in ("positions", "jobs"):
            assert session.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table))).rowcount == 0
        assert session.execute("UPDATE positions SET next_position = 1").rowcount == 0
        assert session.execute("UPDATE jobs SET epoch = epoch + 1").rowcount == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("INSERT INTO rules (job, first_position, rules) VALUES ('billing', 1, '{}')")
    with psycopg.connect(url_of(database, "weir_billing"), autocommit=True) as session:
        assert session.execute("UPDATE positions SET next_position = 8").rowcount == 1
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(
            "INSERT INTO erasures (erasure, account, person, key_id, reason, asked_by)"
            " VALUES (1, 'acme', sha256('p'), 'k', 'asked', 'ada')"
        )
    with psycopg.connect(url_of(database, "weir_billing")) as session:
        # It may lock the list of who was forgotten, so that it publishes nobody, and change none of it.
        session.execute("LOCK TABLE erasures IN SHARE MODE")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("UPDATE erasures SET reason = 'q'")
    with psycopg.connect(url_of(database, "weir_retain"), autocommit=True) as session:
        # It waits for a driver that stops, and changes nothing of its row.
        assert session.execute("SELECT job FROM jobs WHERE job = 'billing' FOR UPDATE").fetchone() == ("billing",)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("UPDATE jobs SET config = '{}'")
    billing.close()


def test_what_drivers_write_on_other_sessions_is_theirs_too(database: str) -> None:
    stored = pa.table({name: [value] for name, value in VERSION.items()})
    PriceLadders(url_of(database, "weir_joins")).store(stored)
    record_exit(url_of(database, "weir_joins"), "joins", End.CRASHED, "it was a test")
    record_exit(url_of(database, "weir_joins"), "billing", End.CRASHED, "it is not joins'")
    with psycopg.connect(database) as owner:
        assert owner.execute("SELECT price_version FROM price_ladders").fetchall() == [(7,)]
        assert owner.execute("SELECT job FROM exits").fetchall() == [("joins",)]


@pytest.mark.parametrize("job", APPLICATIONS, ids=lambda job: job.name)
def test_a_driver_starts_and_is_measured_with_its_role_on_all_its_sessions(
    database: str, tmp_path: Path, job: AnyJob
) -> None:
    """In a new installation, in which it may be the first to declare a meter."""
    where = environment(url_of(database, f"weir_{job.name}"), tmp_path)
    ownership, _ = run._own(job, job.config(), where, MachineClock())
    declare(ownership.connection, [*DEFAULT, Declaration("gpu_seconds", "second", "gpu_seconds")])
    ownership.close()
    with psycopg.connect(database) as owner:
        assert owner.execute("SELECT is_declared FROM meters WHERE meter = 'gpu_seconds'").fetchall() == [(True,)]
    gauges = DatabaseGauges(job.name, where.postgres_url, (exits_of(job.name), *job.totals(job.name)), MachineClock())
    samples = [sample for family in gauges.collect() for sample in family.samples]
    gauges.close()
    assert [sample.value for sample in samples if sample.name == metrics.DATABASE_READABLE.name] == [1.0]


def test_retention_compaction_and_helms_test_do_their_work_with_their_roles(database: str, tmp_path: Path) -> None:
    today, days = date(2026, 11, 29), Retention()
    with psycopg.connect(url_of(database, "weir_retain"), autocommit=True) as session:
        removed = [*retain_rows(session, days, today), *retain_webhooks(session, days, today)]
        assert {row.table for row in [*removed, *retain_analytics(session, today)]} >= {"sessions", "watch_hits"}
    with psycopg.connect(url_of(database, "weir_compact"), autocommit=True) as session:
        refuse_tables_not_read(str(tmp_path), session)
    for expected in ("c", "r"):
        changes = store(url_of(database, "weir_test"), CatalogFile.model_validate(TESTED), "helm test")
        assert {change.op for change in changes} == {expected}
    with psycopg.connect(database) as owner:
        assert owner.execute("SELECT count(*) FROM activity_log").fetchone() != (0,)


def test_a_login_that_is_a_member_takes_over_and_every_role_is_on_the_page(database: str) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/database-roles.md").read_text(encoding="utf-8")
    assert {role for role in ROLES if f"| `{role}` |" in page} == set(ROLES)
    before = Ownership.take("billing", database, {})
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("CREATE ROLE billing_b LOGIN PASSWORD 'of-a-job' IN ROLE weir_billing")
        try:
            after = Ownership.take("billing", url_of(database, "billing_b"), {})
            with after.transaction() as cursor:
                cursor.execute("UPDATE stragglers SET reason = reason")
            with pytest.raises(Fenced), before.transaction():
                pass
            for owned in (before, after):
                owned.close()
        finally:
            owner.execute("DROP ROLE billing_b")


def test_a_second_migration_makes_no_policy_again_and_so_locks_no_table(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        before = owner.execute(POLICIES).fetchall()
        assert {name for _, _, name, _ in before} >= {"jobs_read", "jobs_write", "of_billing"}
        migrate(database)
        assert owner.execute(POLICIES).fetchall() == before
        # What somebody granted by hand beyond the table is taken back.
        owner.execute("GRANT INSERT ON invoices TO weir_sessionization")
        migrate(database)
        assert owner.execute(
            "SELECT has_table_privilege('weir_sessionization', 'weir.invoices', 'INSERT')"
        ).fetchone() == (False,)


def test_every_relation_of_the_table_of_grants_is_one_of_weirs() -> None:
    known = {*OWN, *(f"catalog.{name}" for name in CATALOG)}
    for may in ROLES.values():
        assert {*may.writes, *may.appends, *may.reads, *may.locks} <= known
        assert not {*may.writes} & {*may.appends}
        assert set(may.reads) <= set(SECRET)
    assert set(BY_JOB) <= known
