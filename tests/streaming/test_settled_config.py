"""What a configuration leaves open is settled at a driver's start, and the database says how."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.dead_letter_replay.offline import ingestion_of
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.pipeline import JOB as INGESTION
from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB as JOINS
from jobs.runtime import run
from jobs.runtime.clock import MachineClock
from jobs.runtime.config import JobConfig
from jobs.runtime.delta.table import LSN, DeltaWriter
from jobs.runtime.job import AnyJob
from jobs.streams import USAGE, Table
from tests.streaming.journals import Journal, environment, heartbeat


@pytest.mark.parametrize("is_upgraded", [True, False])
def test_who_judges_beside_ingestion_uses_the_conventions_that_ingestion_uses(
    database: str, tmp_path: Path, *, is_upgraded: bool
) -> None:
    """`weir backfill` and `weir dead-letters replay` judge by what the database says of ingestion."""
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
        Journal(tmp_path).commit([heartbeat(1), heartbeat(2)])
        DeltaWriter(str(tmp_path), Table.USAGE, "joins", 1).append(lambda lsn: (USAGE.empty_table(), {LSN: lsn + 1}))
    for _ in range(2):
        ownership, settled = run._own(job, config, environment(database, tmp_path), MachineClock())
        ownership.close()
        where = None if is_upgraded else {"status": ["completed", "cancelled"]}
        assert settled.meters["requests"].where == where
        if isinstance(settled, JoinsConfig):
            assert settled.best_report_bills is not is_upgraded
