"""What ingestion would say of events that replay dead letters, but for what it compares with others: repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import polars as pl
import psycopg
from pydantic import ValidationError

from cli.judged_lines import records_of
from deployment.asking import asking_database
from deployment.errors import CannotRun
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.event_times import judged_by_reception
from jobs.ingestion.set_aside import set_aside
from metering.words import Job

_CONFIG = "SELECT config FROM jobs WHERE job = %s"


class Judged(NamedTuple):
    """Why an event would be rejected, and what it breaks; None: it would be accepted, or found to repeat another."""

    reason: str | None
    violation: str | None


def ingestion_of(postgres_url: str) -> IngestionConfig:
    """What ingestion was started with last; the default where it never was. Raises CannotRun for another version's."""
    with asking_database(postgres_url), psycopg.connect(postgres_url, connect_timeout=10) as database:
        row = database.execute(_CONFIG, [Job.INGESTION.value]).fetchone()
    try:
        return IngestionConfig.model_validate(row[0] if row and row[0] else {})
    except ValidationError as problem:
        raise CannotRun(
            "Ingestion runs with a configuration that this version of `weir` does not know: use the one that was "
            f"installed with it. ({problem.error_count()} fields)"
        ) from problem


class Offline:
    """Judges by a configuration of ingestion. `now` is when something is received of which nothing else is known."""

    def __init__(self, config: IngestionConfig, now: datetime) -> None:
        self._config, self._judge, self._now = config, config.judge(), now

    def judged(self, events: Sequence[bytes], first_received_at: Sequence[datetime | None]) -> Iterator[Judged]:
        """What each is, if it was first received then."""
        received_at = [at or self._now for at in first_received_at]
        read = pl.DataFrame(self._judge.judge(records_of(events)))
        sized = set_aside(read, {}, self._config.max_record_bytes)
        received = sized.with_columns(pl.Series("received_at", received_at).cast(pl.Datetime("us", "UTC")))
        found = judged_by_reception(received, self._config)
        return (Judged(*row) for row in found.select("reason", "violation").iter_rows())
