"""Repeats that come after the hour, compared with a real table: found, named, and found again by the next driver."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.identity_index import IdentityIndex
from jobs.ingestion.identity_journal import JournalIdentities
from jobs.ingestion.journal_rows import journal_rows
from jobs.ingestion.repeats import candidates, entries
from jobs.runtime.delta.compaction import compact
from jobs.runtime.delta.table import LSN, DeltaWriter
from jobs.streams import JOURNAL, Table
from metering.vocabulary import Disposition
from monitoring import metrics

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
CONFIG = IngestionConfig.model_validate({"clocks": {"device": ["device/*"]}})


def event(name: str, occurred_at: datetime, *, source: str = "gateway", content: int = 0) -> dict[str, Any]:
    identity = f"{source}:{name}".encode().ljust(16)[:16]
    return {
        "identity": identity,
        "content_digest": content,
        "source": source,
        "family": "both",
        "occurred_at": occurred_at,
    }


@dataclass
class Driver:
    """The part of a driver that compares identities, on a real table."""

    tables: str
    epoch: int = 1

    def __post_init__(self) -> None:
        self.writer = DeltaWriter(self.tables, Table.JOURNAL, "ingestion", self.epoch)
        self.index = IdentityIndex(
            JournalIdentities(self.writer), CONFIG.horizons, CONFIG.identity_memory_bytes, segment_lsns=8
        )

    def started(self, frontier: datetime) -> Driver:
        self.index.restore(self.writer.next_lsn, frontier)
        return self

    def next(self, frontier: datetime) -> Driver:
        return Driver(self.tables, self.epoch + 1).started(frontier)

    def take(self, received_at: datetime, *events: dict[str, Any]) -> list[tuple[int, bool]]:
        """Commit events that are received now; of each repeat: the lsn of its first, and whether it is the same."""
        first_lsn = self.writer.next_lsn
        rows = pl.DataFrame([{**one, "received_at": received_at} for one in events]).with_columns(
            pl.int_range(first_lsn, first_lsn + pl.len()).alias("lsn"),
            topic=pl.lit("events"),
            partition=pl.lit(0),
            offset=pl.lit(0),
            first_received_at=pl.lit(None, pl.Datetime("us", "UTC")),
            replays_lsn=pl.lit(None, pl.Int64),
        )
        repeats = self.index.find_repeats(candidates(rows, CONFIG.horizons, CONFIG.clocks.device))
        validated = rows.join(repeats, on="lsn", how="left", maintain_order="left").with_columns(
            pl.when(pl.col("same").is_null())
            .then(pl.lit(Disposition.ACCEPTED.value))
            .otherwise(pl.lit(Disposition.DUPLICATE.value))
            .alias("disposition")
        )
        self.writer.commit(
            journal_rows(validated, self.writer.schema, received_at, received_at), {LSN: first_lsn + len(rows)}
        )
        self.index.add(entries(validated.filter(pl.col("disposition") == Disposition.ACCEPTED)))
        self.index.forget(received_at)
        return [(first, same) for _, first, same in repeats.iter_rows()]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """One that has committed an event of a gateway (lsn 1) and one of a device (lsn 2), and much else for an hour."""
    driver = Driver(str(tmp_path)).started(START)
    driver.take(START, event("first", START), event("first", START - 900 * DAY, source="device/1"))
    for minute in range(1, 61):
        now = START + timedelta(minutes=minute)
        driver.take(now, event(f"a{minute}", now), event(f"b{minute}", now))
    return driver


REPEATED = [(1, True), (1, False), (2, True)]


def again() -> list[dict[str, Any]]:
    return [
        event("first", START),
        event("first", START, content=1),
        event("first", START - 900 * DAY, source="device/1"),
    ]


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("later", [timedelta(minutes=61), 20 * DAY, 35 * DAY])
def test_a_repeat_after_the_hour_names_its_first_also_after_a_restart(driver: Driver, later: timedelta) -> None:
    assert driver.take(START + later, *again()) == REPEATED
    assert driver.next(START + later).take(START + later, *again()) == REPEATED


def test_a_repeat_is_found_after_the_table_was_compacted(driver: Driver) -> None:
    compact(driver.tables, Table.JOURNAL, before=(START + DAY).date(), keep=timedelta(hours=0))
    assert driver.next(START + 20 * DAY).take(START + 20 * DAY, *again()) == REPEATED


def test_a_repeat_after_the_whole_horizon_is_a_new_event(driver: Driver) -> None:
    late = START + 35 * DAY + timedelta(seconds=1)
    assert driver.take(late, *again()[1:]) == []


def test_looking_for_a_repeat_reads_only_the_identities_of_its_days(driver: Driver) -> None:
    later = driver.next(START + 2 * DAY)
    now = START + 2 * DAY
    later.take(now, event("new", now, source="device/2"))
    assert later.index.counts()[metrics.IDENTITY_READS,] == 0
    later.take(now, *again())
    assert later.index.counts()[metrics.IDENTITY_READS,] > 0


def test_an_upgraded_table_gets_the_days_of_its_events(tmp_path: Path) -> None:
    older = {"delta.dataSkippingStatsColumns": "lsn,log_date,received_at"}
    DeltaTable.create(f"{tmp_path}/{Table.JOURNAL}", JOURNAL, partition_by=["log_date"], configuration=older)
    driver = Driver(str(tmp_path)).started(START)
    driver.take(START, event("first", START))
    assert [span.days for span in JournalIdentities(driver.writer).spans()] == [(20_454, 20_454)]
