"""What a configuration leaves open is settled at a driver's start, and the database says how."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from cli.redrive.offline import ingestion_of
from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB as BILLING
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.pipeline import JOB as INGESTION
from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB as JOINS
from jobs.runtime import run
from jobs.runtime.clock import MachineClock
from jobs.runtime.config import JobConfig
from jobs.runtime.delta.table import LSN, DeltaWriter
from jobs.runtime.job import AnyJob
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.pipeline import JOB as SESSIONIZATION
from jobs.streams import USAGE, Table
from metering.meters import DEFAULT, DETAILS
from tests.streaming.journals import Journal, environment, heartbeat

APPLICATIONS: tuple[tuple[AnyJob, JobConfig], ...] = (
    (INGESTION, IngestionConfig()),
    (JOINS, JoinsConfig()),
    (SESSIONIZATION, SessionizationConfig()),
    (BILLING, BillingConfig()),
)


def begun(tables: Path) -> None:
    """What an earlier release has left of journal and usage."""
    Journal(tables).commit([heartbeat(1), heartbeat(2)])
    DeltaWriter(str(tables), Table.USAGE, "joins", 1).append(lambda lsn: (USAGE.empty_table(), {LSN: lsn + 1}))


@pytest.mark.parametrize("is_upgraded", [True, False])
def test_commands_that_validate_use_the_conventions_of_ingestion(
    database: str, tmp_path: Path, *, is_upgraded: bool
) -> None:
    """`weir backfill` and `weir dead-letters redrive` validate by what the database says of ingestion."""
    if is_upgraded:
        Journal(tmp_path).commit([heartbeat(1), heartbeat(2)])
    ownership, config = run._own(INGESTION, IngestionConfig(), environment(database, tmp_path), MachineClock())
    ownership.close()
    assert isinstance(config, IngestionConfig)
    assert (config.shipped_conventions, ingestion_of(database).shipped_conventions) == (not is_upgraded,) * 2


@pytest.mark.parametrize("is_upgraded", [True, False])
@pytest.mark.parametrize(("job", "config"), [(INGESTION, IngestionConfig()), (JOINS, JoinsConfig())])
def test_only_a_new_installation_leaves_out_requests_that_failed_where_no_meters_are_declared(
    database: str, tmp_path: Path, job: AnyJob, config: JobConfig, *, is_upgraded: bool
) -> None:
    if is_upgraded:
        begun(tmp_path)
    for _ in range(2):
        ownership, settled = run._own(job, config, environment(database, tmp_path), MachineClock())
        ownership.close()
        where = None if is_upgraded else {"status": ["completed", "cancelled"]}
        assert settled.meters["requests"].where == where
        if isinstance(settled, JoinsConfig):
            assert settled.best_report_bills is not is_upgraded


@pytest.mark.parametrize("is_upgraded", [True, False])
@pytest.mark.parametrize("order", ["0123", "3210", "1302", "2031"])
def test_the_default_meters_do_not_depend_on_the_order_of_starts(
    database: str, tmp_path: Path, order: str, *, is_upgraded: bool
) -> None:
    if is_upgraded:
        begun(tmp_path)
    for number in order:
        job, config = APPLICATIONS[int(number)]
        ownership, _ = run._own(job, config, environment(database, tmp_path), MachineClock())
        ownership.close()
    expected = {meter.name for meter in (DEFAULT if is_upgraded else (*DEFAULT, *DETAILS))}
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT meter FROM meters WHERE is_declared").fetchall()
    assert {meter for (meter,) in found} == expected


def test_joins_expects_no_parts_of_tokens_that_an_earlier_journal_never_gets(database: str, tmp_path: Path) -> None:
    """An earlier release had no usage yet."""
    Journal(tmp_path).commit([heartbeat(1), heartbeat(2)])
    ownership, settled = run._own(JOINS, JoinsConfig(), environment(database, tmp_path), MachineClock())
    ownership.close()
    assert settled.meters.keys() == {meter.name for meter in DEFAULT}
    assert settled.meters["requests"].where is not None, "it is new in all else"
