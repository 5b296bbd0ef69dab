"""Views, patterns, watch hits and limits over generated traffic equal a brute force over the generator's truth.

Traffic as bytes, late and doubled, goes through the validator and the identity index of ingestion, and the sinks of
joins, billing and analytics, each cut and restarted anywhere.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from catalog.file import parse_catalog
from catalog.store import store_file
from jobs.analytics.config import AnalyticsConfig
from jobs.analytics.pipeline import JOB as ANALYTICS
from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB as BILLING
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.identity_index import IdentityIndex
from jobs.ingestion.identity_journal import JournalIdentities
from jobs.ingestion.journal_rows import with_dispositions, with_documents
from jobs.ingestion.repeats import candidates, entries
from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB as JOINS
from jobs.joins.sink import UsageSink
from jobs.rebuild.analytics import begin_again
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.pieces import pieces_of_lsns
from jobs.runtime.delta.table import open_table
from jobs.runtime.job import Context, PostgresJob
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.meters_table import declare
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import PostgresSink
from jobs.streams import CatalogTopic, Table
from metering.vocabulary import Disposition
from tests.incidents.brute_force import DECLARED, KEEP_DAYS, WATCHES
from tests.incidents.found import refuse_differences
from tests.pipelines.ingestion import validated
from tests.pipelines.test_watch_hits import add
from tests.streaming.journals import START, WRITTEN, Journal, change, environment
from traffic.generate import Traffic, catalog_of, generate
from traffic.placement import Placement, Policy
from traffic.scenarios.incidents import limit_rows
from traffic.script import Record
from traffic.truth import truth_of

RECORDS = 1_000
BEGINS = START + timedelta(days=20, hours=9, minutes=13)
HOURS_LATER = timedelta(hours=3)
CONFIGS: dict[str, Any] = {
    "ingestion": IngestionConfig().settled((), is_new=True),
    "joins": JoinsConfig(completion_timeout_seconds=120).settled((), is_new=True),
    "billing": BillingConfig(grace_seconds=300),
    "analytics": AnalyticsConfig.model_validate({**DECLARED, "keep_days": KEEP_DAYS}),
}
OF_POSTGRES: Mapping[str, PostgresJob[Any]] = {"billing": BILLING, "analytics": ANALYTICS}


def traffic_of(seed: int) -> Traffic:
    placement = Placement(Policy.of({name: config.model_dump(mode="json") for name, config in CONFIGS.items()}))
    begins_ms = int(BEGINS.timestamp() * 1_000)
    catalog = catalog_of(seed, begins_ms - 42_345, placement.policy.priced)
    return generate(
        seed=seed, start_ms=begins_ms, records=RECORDS, placement=placement, catalog=catalog, has_incidents=True
    )


class Applications:
    """Ingestion from records on, joins, billing and analytics; a restart is another driver of the same tables."""

    def __init__(self, spark: SparkSession, database: str, tables: Path, chance: random.Random) -> None:
        self.spark, self.database, self.tables, self.chance = spark, database, tables, chance
        declared = [field for field in CONFIGS["ingestion"].validator().fields if field.name not in WRITTEN.names]
        self.journal = Journal(tables, declared=declared)
        self.killed = 0
        self._drivers: dict[str, Any] = {}
        self._restart_ingestion()

    def tell(self, traffic: Traffic) -> dict[str, int]:
        """The catalog, its limits, and watches; the id of each watch."""
        accounts = [row for file in traffic.catalog.files() for row in file["accounts"]]
        self.journal.commit([change(CatalogTopic.ACCOUNTS, 0, **row) for row in accounts])
        with psycopg.connect(self.database) as connection:
            declare(connection, CONFIGS["billing"].declared)
        plans = traffic.catalog.files()[0]["plans"]
        file = {"plans": plans, "accounts": accounts[: len(traffic.catalog.accounts)]}
        store_file(self.database, parse_catalog(json.dumps({**file, "limits": limit_rows(traffic.catalog)})))
        return {condition: add(self.database, condition) for condition in WATCHES}

    def accept(self, records: Sequence[Record]) -> None:
        """Ingest records in one commit, each received when it was sent."""
        if self.chance.random() < 0.2:
            self._restart_ingestion()
        config, first = CONFIGS["ingestion"], self.journal.next_lsn
        received = [(record.value, _instant(record.send_at_ms)) for record in records]
        rows = validated(received, config).with_columns(
            lsn=pl.int_range(first, first + pl.len()), replays_lsn=pl.lit(None, pl.Int64)
        )
        asking = candidates(rows.filter(pl.col("family").is_not_null()), config.horizons, config.clocks.device)
        repeats = self._identities.find_repeats(asking)
        disposed = with_documents(with_dispositions(rows.join(repeats, on="lsn", how="left", maintain_order="left")))
        # The place in the log is the journal's own here.
        self.journal.commit(disposed.drop("topic", "partition", "offset").to_dicts())
        self._identities.add(entries(disposed.filter(pl.col("disposition") == Disposition.ACCEPTED.value)))

    def _restart_ingestion(self) -> None:
        config = CONFIGS["ingestion"]
        identities = JournalIdentities(self.journal._writer)
        self._identities = IdentityIndex(identities, config.horizons, config.identity_memory_bytes)
        self._identities.restore(self.journal.next_lsn, self.journal.frontier)

    def go(self, job: str, *, to_the_end: bool = False) -> None:
        """Let a driver process a batch of any size, or all that there is; now and then it is killed in the middle."""
        reads = Table.JOURNAL if job == "joins" else Table.USAGE
        columns = JOINS.columns(CONFIGS[job]) if job == "joins" else OF_POSTGRES[job].columns(CONFIGS[job])
        while (table := open_table(str(self.tables), reads)) is not None:
            driver = self._driver(job)
            end = table.transaction_version("lsn") or 1
            if (first := driver.position()) < end:
                until = min(end, first + self.chance.randint(1, 400))
                # A driver that comes back reads some rows once more.
                again = max(1, first - self.chance.choice([0, 0, 30]))
                batch = pieces_of_lsns(table, columns, again, until).read()
                if job in OF_POSTGRES and self.chance.random() < 0.2:
                    self._kill(driver, batch)
                    del self._drivers[job]
                    continue
                driver.process(batch)
            driver.advance()
            if self.chance.random() < 0.2:
                del self._drivers[job]
            if not to_the_end or driver.position() == end:
                return

    def _driver(self, job: str) -> Any:
        if job not in self._drivers:
            config, where = CONFIGS[job], environment(self.database, self.tables)
            ownership = Ownership.take(job, self.database, config.model_dump(mode="json"))
            context = Context(config, where, self.spark, ownership, MachineClock(), Denials())
            self._drivers[job] = (
                UsageSink(JOINS, context) if job == "joins" else PostgresSink(OF_POSTGRES[job], context)
            )
        return self._drivers[job]

    def _kill(self, driver: Any, batch: pa.Table) -> None:
        """End a driver when its transaction is about to commit."""

        class Killed(Exception):
            pass

        def killed(*_: Any) -> None:
            raise Killed

        driver._move = killed
        with pytest.raises(Killed):
            driver.process(batch)
        self.killed += 1

    def end(self) -> None:
        """Let hours pass, and all of them come to the end."""
        later = self.journal.frontier + HOURS_LATER  # type: ignore[operator]
        self.journal.commit([{"type": "source.heartbeat.v1", "received_at": later, "event_time": later}])
        for job in ("joins", "billing", "analytics"):
            self.go(job, to_the_end=True)


def _instant(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC)


def versions(database: str) -> list[tuple[Any, ...]]:
    """Each change of each match."""
    with psycopg.connect(database) as connection:
        return connection.execute("SELECT * FROM pattern_matches ORDER BY pattern_id, match_id, version").fetchall()


@pytest.fixture
def applications(spark: SparkSession, database: str, tmp_path: Path, seed: int) -> Applications:
    return Applications(spark, database, tmp_path, random.Random(f"{seed} cuts"))


@pytest.mark.few_in_ci(1)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_oracle_any_cut_restart_kill_and_replay_finds_what_the_brute_force_finds_in_the_truth(
    applications: Applications, seed: int
) -> None:
    traffic, chance = traffic_of(seed), applications.chance
    truth = truth_of(traffic)
    watches = applications.tell(traffic)
    waiting = list(traffic.records)
    while waiting:
        count = chance.randint(1, 400)
        applications.accept(waiting[:count])
        waiting = waiting[count:]
        for job in ("joins", "billing", "analytics"):
            if chance.random() < 0.7:
                applications.go(job)
    applications.end()
    assert applications.killed
    refuse_differences(applications.database, truth, watches)
    # From row 1 again: nobody is told of another match.
    before = versions(applications.database)
    begin_again(str(applications.tables), applications.database)
    applications._drivers.pop("analytics", None)
    applications.go("analytics", to_the_end=True)
    refuse_differences(applications.database, truth, watches)
    assert versions(applications.database) == before
