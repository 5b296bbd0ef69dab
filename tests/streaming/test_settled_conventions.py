"""What ingestion's configuration leaves open is settled at its start, and the database says how."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.dead_letter_replay.offline import ingestion_of
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.pipeline import JOB
from jobs.runtime import run
from jobs.runtime.clock import MachineClock
from tests.streaming.journals import Journal, environment, heartbeat


@pytest.mark.parametrize("is_upgraded", [True, False])
def test_who_judges_beside_ingestion_uses_the_conventions_that_ingestion_uses(
    database: str, tmp_path: Path, *, is_upgraded: bool
) -> None:
    """`weir backfill` and `weir dead-letters replay` judge by what the database says of ingestion."""
    if is_upgraded:
        Journal(tmp_path).commit([heartbeat(1), heartbeat(2)])
    ownership, config = run._own(JOB, IngestionConfig(), environment(database, tmp_path), MachineClock())
    ownership.close()
    assert isinstance(config, IngestionConfig)
    assert (config.shipped_conventions, ingestion_of(database).shipped_conventions) == (not is_upgraded,) * 2
