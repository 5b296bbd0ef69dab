"""A program that knows only an older schema takes nothing from a newer one, and changes nothing of what that wrote."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cli.retain import removed
from deployment.stack import Deployment
from jobs.ingestion.pipeline import JOB as INGESTION
from jobs.joins.pipeline import JOB as JOINS
from jobs.retention.days import Retention
from jobs.runtime import run
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.compaction import compact
from jobs.runtime.delta.growth import COMPATIBLE_FROM, SCHEMA_VERSION
from jobs.runtime.delta.table import DeltaWriter, committing
from jobs.runtime.environment import Environment
from jobs.runtime.errors import Refused
from jobs.runtime.job import TableJob, TopicJob
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import SCHEMA_VERSIONS, Table
from tests.database_rows import write

WRITTEN = [(job, table) for job in (INGESTION, JOINS) for table in job.tables]
LATER = date(9999, 1, 1)
OLD_EXIT = {"job": "joins", "how": "crashed", "reason": "", "ended_at": datetime(2020, 1, 1, tzinfo=UTC)}


def written_by_a_newer_version(tables: Path, table: Table, job: str, epoch: int = 1) -> int:
    """A table as a newer version leaves it; its version in Delta's log."""
    made = DeltaWriter(str(tables), table, job, epoch).table
    newer = committing(dict.fromkeys((SCHEMA_VERSION, COMPATIBLE_FROM), SCHEMA_VERSIONS[table] + 1))
    write_deltalake(made, pa.schema(made.schema().to_arrow()).empty_table(), mode="append", commit_properties=newer)
    return version_of(tables, table)


def version_of(tables: Path, table: Table) -> int:
    return int(DeltaTable(f"{tables}/{table}").version())


def test_every_table_has_one_job_that_writes_it() -> None:
    assert sorted(table for _, table in WRITTEN) == sorted(Table)


@pytest.mark.parametrize(("job", "table"), WRITTEN)
def test_an_older_version_does_not_fence_the_newer_driver(
    database: str, tmp_path: Path, job: TopicJob[Any] | TableJob[Any], table: Table
) -> None:
    newer = Ownership.take(job.name, database, {})
    written_by_a_newer_version(tmp_path, table, job.name, newer.epoch)
    where = cast("Environment", SimpleNamespace(postgres_url=database, tables=str(tmp_path)))
    with pytest.raises(Refused, match="install that version again"):
        run._own(job, job.config(), where, MachineClock())
    with newer.transaction() as cursor:
        assert cursor.execute("SELECT epoch FROM jobs WHERE job = %s", [job.name]).fetchone() == (newer.epoch,)


@pytest.mark.parametrize("table", list(Table))
def test_an_older_compaction_leaves_it_as_it_is(tmp_path: Path, table: Table) -> None:
    version = written_by_a_newer_version(tmp_path, table, "job")
    with pytest.raises(Refused, match="install that version again"):
        compact(str(tmp_path), table, before=LATER, keep=timedelta(0))
    assert version_of(tmp_path, table) == version


@pytest.mark.parametrize("table", [Table.JOURNAL, Table.USAGE])
def test_an_older_retention_removes_nothing_of_a_newer_version(database: str, tmp_path: Path, table: Table) -> None:
    version = written_by_a_newer_version(tmp_path, table, "job")
    write(database, "exits", OLD_EXIT)
    stack = Deployment(postgres_url=database, tables=str(tmp_path))
    with pytest.raises(Refused, match="install that version again"):
        list(removed(stack, Retention(journal_days=36, usage_days=36), LATER))
    assert version_of(tmp_path, table) == version
    assert exits(database) == 1


def test_an_older_retention_removes_nothing_from_a_database_of_a_newer_version(database: str, tmp_path: Path) -> None:
    write(database, "exits", OLD_EXIT)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'of a newer version'")
    with pytest.raises(Refused, match="install that version"):
        list(removed(Deployment(postgres_url=database, tables=str(tmp_path)), Retention(), LATER))
    assert exits(database) == 1


@pytest.mark.parametrize("days", [{}, {"journal_days": 36, "usage_days": 36}], ids=["rows", "rows and days"])
def test_retention_removes_nothing_where_joins_has_another_version(
    database: str, tmp_path: Path, days: dict[str, int]
) -> None:
    write(database, "exits", OLD_EXIT)
    Ownership.take("joins", database, {"completion_timeout_seconds": 600, "of_another_version": True}).close()
    sentence = (
        r"joins was started last with a configuration .*\(of_another_version is not a known field\): "
        r"use the version that joins runs"
    )
    with pytest.raises(Refused, match=sentence):
        list(removed(Deployment(postgres_url=database, tables=str(tmp_path)), Retention(**days), LATER))
    assert exits(database) == 1


def exits(database: str) -> int:
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT count(*) FROM exits").fetchone()
    return found[0] if found else 0
