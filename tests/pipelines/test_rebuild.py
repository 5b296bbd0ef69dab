"""`weir rebuild` against what stood before: histories of the simulator with audits, changed rules and stragglers that
waited, whose database is lost and made again of Delta alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any, cast

import psycopg
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from psycopg.types.json import Jsonb
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from cli.main import app
from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB as BILLING
from jobs.rebuild.run import PLANS, Rebuild
from jobs.runtime import run
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.table import REMOVED
from jobs.runtime.errors import Fenced, NotYet, Refused
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.rules_backup import RulesBackup, read_backup, write_backup
from jobs.runtime.postgres.rules_table import RulesTable
from jobs.runtime.postgres.sink import PostgresSink
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.gaps import take_gap
from jobs.sessionization.pipeline import JOB as SESSIONIZATION
from jobs.streams import Table
from metering.vocabulary import Job, LatePolicy
from tests.pipelines.billing import bill
from tests.simulation.left import left_by
from tests.simulation.world import World
from tests.streaming.journals import environment
from webhooks.endpoints import add, disable
from webhooks.event_types import EventType

COMPARED = {
    "usage_windows": ("version", "next_position", "updated_at"),
    "usage_days": ("updated_at", "next_position"),
    "usage_day_dimensions": (),
    "usage_hours": (),
    "usage_months": ("next_position",),
    "stragglers": ("recorded_at", "settled"),
    "corrections": ("number", "corrected_at"),
    "rules": (),
    "session_gaps": (),
    "sessions": ("session_id", "version", "updated_at"),
}
"""What stands there, without when and in which order it was written."""
LOST = (*COMPARED, "positions", "batches", "jobs", "unsent_windows", "publications")
GIVEN = {
    Job.BILLING: BillingConfig(grace_seconds=0, late_policy={"output_tokens": LatePolicy.DROP}),
    Job.SESSIONIZATION: SessionizationConfig(session_gap_seconds=1),
}
"""Of whoever knows better than anybody who decided."""
KEY = "window_start, account, model, meter, currency, price_version"
Row = dict[str, Any]


# Rules that changed, gaps that changed, corrections and stragglers; and some that waited and were decided.
@pytest.fixture(scope="module", params=[pytest.param(102, marks=pytest.mark.long), 103])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with left_by(request.param, tmp_path_factory.mktemp("left"), is_audited=True) as left:
        yield left


def rows(database: str, query: str) -> list[Row]:
    with psycopg.connect(database) as connection:
        return [row for (row,) in connection.execute(f"SELECT to_jsonb(found) FROM ({query}) AS found").fetchall()]


def stored(database: str) -> dict[str, list[str]]:
    """All that stands there, in no order."""
    where = {"sessions": "WHERE retracted_at IS NULL"}
    return {
        table: sorted(
            str(sorted((name, str(value)) for name, value in row.items() if name not in left_out))
            for row in rows(database, f"SELECT * FROM {table} {where.get(table, '')}")
        )
        for table, left_out in COMPARED.items()
    }


def lose(database: str) -> None:
    with psycopg.connect(database) as connection:
        for table in LOST:
            connection.execute(f"DELETE FROM {table}")


def rebuild(world: World, **more: Any) -> None:
    for job in PLANS:
        Rebuild(job, str(world.tables), world.database, **more).run()


def versions(database: str) -> dict[str, int]:
    found = rows(database, f"SELECT ({KEY})::text AS key, version FROM usage_windows")
    return {row["key"]: row["version"] for row in found}


def test_a_rebuild_reproduces_the_database_to_the_last_digit(world: World) -> None:
    before = stored(world.database)
    assert all(before[table] for table in COMPARED if table != "usage_day_dimensions")
    rebuild(world)
    assert stored(world.database) == before
    lose(world.database)
    rebuild(world)
    assert stored(world.database) == before
    rebuild(world)
    assert stored(world.database) == before, "twice is once"


def test_a_rebuild_calls_nobody_about_rows_that_it_makes_again_and_later_rows_do(world: World) -> None:
    endpoint = add(world.database, "https://example.com/", list(EventType), "ada").endpoint
    try:
        Rebuild(Job.BILLING, str(world.tables), world.database).run()
        assert rows(world.database, "SELECT usage_lsn FROM corrections")
        assert rows(world.database, "SELECT * FROM webhook_events") == []
        enabled = "SELECT tgenabled AS state FROM pg_trigger WHERE tgname = 'webhook_of_inserted'"
        assert [row["state"] for row in rows(world.database, enabled)] == ["O"] * 8
        with psycopg.connect(world.database) as connection:
            connection.execute("CREATE TEMP TABLE later ON COMMIT DROP AS SELECT * FROM corrections LIMIT 1")
            connection.execute("DELETE FROM corrections WHERE number = (SELECT number FROM later)")
            connection.execute("INSERT INTO corrections OVERRIDING SYSTEM VALUE SELECT * FROM later")
            called = connection.execute("SELECT count(*) FROM webhook_events").fetchone()
            connection.rollback()
        assert called == (1,)
    finally:
        disable(world.database, endpoint, "ada", "the test is over")


def test_a_rebuild_crosses_no_threshold_again_and_the_next_fold_decides_all(world: World) -> None:
    limit = "INSERT INTO catalog.limits (meter, period, effective_from, quantity, steps)"
    found = "SELECT * FROM threshold_changes ORDER BY account, first_day, threshold, version"
    with psycopg.connect(world.database) as connection:
        connection.execute(f"{limit} VALUES ('requests', 'P1M', '2000-01-01Z', 2, '{{1}}')".encode())
        connection.commit()
        bill(connection, [])
        before = rows(world.database, found)
        assert before
        Rebuild(Job.BILLING, str(world.tables), world.database).run()
        assert rows(world.database, found) == before
        assert rows(world.database, "SELECT account, plan FROM thresholds_due") == [{"account": "", "plan": ""}]
        bill(connection, [])
        assert rows(world.database, found) == before
        connection.execute("DELETE FROM threshold_changes")
        connection.execute("DELETE FROM catalog.limits")
        connection.commit()


def test_after_a_lost_database_thresholds_are_crossed_again_with_versions_above_all_earlier_ones(world: World) -> None:
    limit = "INSERT INTO catalog.limits (meter, period, effective_from, quantity, steps)"
    found = "SELECT account, first_day, threshold, version FROM threshold_changes ORDER BY 1, 2, 3"
    with psycopg.connect(world.database) as connection:
        connection.execute(f"{limit} VALUES ('requests', 'P1M', '2000-01-01Z', 2, '{{1}}')".encode())
        connection.commit()
        bill(connection, [])
        before = rows(world.database, found)
        assert before
        lose(world.database)
        connection.execute("DELETE FROM threshold_changes")
        connection.commit()
        rebuild(world)
        bill(connection, [])
        after = rows(world.database, found)
        assert [{**row, "version": 0} for row in after] == [{**row, "version": 0} for row in before]
        assert min(row["version"] for row in after) > max(row["version"] for row in before)
        connection.execute("DELETE FROM threshold_changes")
        connection.execute("DELETE FROM catalog.limits")
        connection.commit()


def test_a_rebuild_writes_each_hour_and_month_once(world: World) -> None:
    """However many pieces it folds: in one transaction each version of a row slows down the next."""
    tables = "relname IN ('usage_hours', 'usage_months') ORDER BY relname"
    counts = f"SELECT relname, n_tup_ins AS added, n_tup_upd AS changed FROM pg_stat_user_tables WHERE {tables}"
    before = rows(world.database, counts)
    Rebuild(Job.BILLING, str(world.tables), world.database).run()
    for earlier, later in zip(before, rows(world.database, counts), strict=True):
        stored_rows = rows(world.database, f"SELECT count(*) AS number FROM {later['relname']}")[0]["number"]
        found = {name: later[name] - earlier[name] for name in ("added", "changed")}
        assert found == {"added": stored_rows, "changed": 0}, later["relname"]
    is_off = "SELECT tgname FROM pg_trigger WHERE tgname LIKE 'roll\\_up%' AND tgenabled <> 'O'"
    assert rows(world.database, is_off) == [], "from now on they are kept by the batch"


def test_a_subscriber_gets_every_window_with_a_higher_version_than_before(world: World) -> None:
    for is_lost in (False, True, True):
        before = versions(world.database)
        if is_lost:
            lose(world.database)
        rebuild(world)
        after = versions(world.database)
        assert after.keys() == before.keys()
        assert min(after.values()) > max(before.values())
        unsent = rows(world.database, "SELECT window_start, account FROM unsent_windows")
        told = rows(world.database, "SELECT DISTINCT window_start, account FROM usage_windows")
        assert sorted(map(str, unsent)) == sorted(map(str, told))


def test_corrections_are_published_again_and_keep_when_they_were_made_and_their_place(world: World) -> None:
    query = "SELECT usage_lsn, meter, corrected_at, number FROM corrections ORDER BY number"
    before = rows(world.database, query)
    rebuild(world)
    after = rows(world.database, query)
    assert [{**row, "number": None} for row in after] == [{**row, "number": None} for row in before]
    assert after[0]["number"] > before[-1]["number"], "behind all that was sent, so that it is sent"


def test_a_rebuild_keeps_correct_sessions_and_retractions(world: World) -> None:
    query = "SELECT session_id, version, retracted_at, account, session_start FROM sessions ORDER BY session_id"
    before = rows(world.database, query)
    rebuild(world)
    assert rows(world.database, query) == before
    with psycopg.connect(world.database) as connection:
        connection.execute("UPDATE sessions SET events = events + 1 WHERE session_id = %s", [before[-1]["session_id"]])
    rebuild(world)
    others = [row for row in rows(world.database, query) if row["session_id"] <= before[-1]["session_id"]]
    assert others == [row for row in before if row != before[-1] or row["retracted_at"]]


def test_killed_in_its_middle_it_has_changed_nothing(world: World) -> None:
    before, kept = stored(world.database), versions(world.database)

    def die(_: str) -> None:
        raise KeyboardInterrupt

    for job in PLANS:
        with pytest.raises(KeyboardInterrupt):
            Rebuild(job, str(world.tables), world.database, tell=die).run()
    assert (stored(world.database), versions(world.database)) == (before, kept)
    rebuild(world)
    assert stored(world.database) == before


def test_a_rebuild_fences_the_running_driver_and_holds_up_the_next(world: World) -> None:
    running = Ownership.take("billing", world.database, {})
    seen = []

    def try_to_begin(_: str) -> None:
        with pytest.raises(NotYet, match="are made again"):
            Ownership.take("billing", world.database, {})
        with pytest.raises(NotYet, match="are made again"):
            running.resume()
        seen.append("waited")

    Rebuild(Job.BILLING, str(world.tables), world.database, tell=try_to_begin).run()
    assert seen
    with pytest.raises(Fenced):
        running.resume()
    Ownership.take("billing", world.database, {}).close()


@pytest.mark.parametrize("job", [BILLING, SESSIONIZATION], ids=["billing", "sessionization"])
def test_an_application_refuses_an_empty_database_when_tables_have_its_output(world: World, job: Any) -> None:
    lose(world.database)
    ownership = Ownership.take(job.name, world.database, {})
    config: Any = world.configured(job.name)
    where, spark = environment(world.database, world.tables), cast("SparkSession", None)
    with pytest.raises(Refused, match=f"make the tables again by those rules with `weir rebuild {job.name}`"):
        PostgresSink(job, Context(config, where, spark, ownership, MachineClock(), Denials()))
    ownership.close()
    rebuild(world)
    ownership = Ownership.take(job.name, world.database, {})
    sink = PostgresSink(job, Context(config, where, spark, ownership, MachineClock(), Denials()))
    assert sink.position() > 1
    ownership.close()


def test_on_a_backup_that_was_restored_a_driver_is_newer_than_all_that_wrote_beside_the_tables(
    world: World, tmp_path: Path
) -> None:
    write_backup(str(tmp_path), BILLING.name, RulesBackup(1_000_000, {}, [{"rules": "of then"}]))
    ownership, _ = run._own(BILLING, BillingConfig(), environment(world.database, tmp_path), MachineClock())
    write_backup(str(tmp_path), BILLING.name, RulesBackup(ownership.epoch, {}, [{"rules": "of now"}]))
    ownership.close()
    kept = read_backup(str(tmp_path), BILLING.name)
    assert kept is not None
    assert kept.history == [{"rules": "of now"}]


def test_rebuild_asks_for_confirmation_and_reports_the_result(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"KAFKA_BOOTSTRAP": "x:1", "POSTGRES_URL": world.database, "TABLES": str(world.tables)}.items():
        monkeypatch.setenv(f"WEIR_{name}", value)
    kept = versions(world.database)
    refused = CliRunner().invoke(app, ["rebuild", "billing"], input="n\n")
    assert refused.exit_code == 1
    assert "All rows of limited_dimensions, usage_dimensions, usage_windows, usage_days" in refused.output
    assert versions(world.database) == kept
    done = CliRunner().invoke(app, ["rebuild", "billing", "--yes", "--format", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0] == {"table": "usage_windows", "rows": len(kept)}


def test_without_known_rules_a_configuration_is_required(world: World, tmp_path: Path) -> None:
    lose(world.database)
    kept = world.tables / "_decided"
    away = kept.rename(tmp_path / "away")
    with pytest.raises(Refused, match="give one with --config FILE"):
        rebuild(world)
    away.rename(kept)
    rebuild(world)


@pytest.mark.parametrize("job", PLANS)
def test_a_rebuild_keeps_decisions_of_a_given_configuration(world: World, tmp_path: Path, job: Job) -> None:
    lose(world.database)
    kept = world.tables / "_decided"
    away = kept.rename(tmp_path / "away")
    plan, config = PLANS[job], GIVEN[job]
    Rebuild(job, str(world.tables), world.database, config).run()
    once = stored(world.database)
    assert once[plan.job.history]
    with psycopg.connect(world.database) as connection:
        # As the next driver's first batch does, which was started with another.
        position = connection.execute("SELECT next_position FROM positions WHERE job = %s", [job]).fetchone()
        assert position is not None
        present = plan.job.config()
        if job is Job.BILLING:
            rules = RulesTable(connection, plan.job, present.deciding)
            rules.keep(connection.cursor(), rules.in_force(position[0], None))
        else:
            take_gap(connection.cursor(), present.session_gap, None)
        dumped = Jsonb(present.model_dump(mode="json"))
        connection.execute("UPDATE jobs SET config = %s WHERE job = %s", [dumped, job])
    Rebuild(job, str(world.tables), world.database).run()
    again = stored(world.database)
    assert {name: again[name] for name in plan.counted} == {name: once[name] for name in plan.counted}
    rmtree(kept)
    away.rename(kept)
    lose(world.database)
    rebuild(world)


def test_a_table_with_removed_days_is_not_rebuilt(world: World) -> None:
    usage = DeltaTable(str(world.tables / Table.USAGE))
    before = stored(world.database)
    (first,) = usage.to_pyarrow_table(columns=["lsn", "log_date"]).sort_by("lsn").slice(0, 1).to_pylist()
    gone = len(usage.to_pyarrow_table(filters=[("log_date", "=", first["log_date"])]))
    usage.delete(
        f"log_date = '{first['log_date']}'",
        commit_properties=CommitProperties(app_transactions=[Transaction(REMOVED, gone)]),
    )
    try:
        with pytest.raises(Refused, match="restore the database from a backup instead"):
            Rebuild(Job.BILLING, str(world.tables), world.database).run()
    finally:
        usage.restore(usage.version() - 1)
    assert stored(world.database) == before
