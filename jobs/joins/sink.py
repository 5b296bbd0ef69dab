"""The sink of joins: state, decisions and prices on the driver, and the commit of their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from jobs.joins.billing_days import BillingDays
from jobs.joins.catalog import Catalog
from jobs.joins.catalog_versions import Versions
from jobs.joins.config import JoinsConfig
from jobs.joins.decide import Known, decide
from jobs.joins.decisions import decisions, with_decisions
from jobs.joins.members import members
from jobs.joins.memory import Memory
from jobs.joins.price_ladders import PriceLadders, refuse_period_tiers
from jobs.joins.pricing import price
from jobs.joins.recovery import RecoverySource
from jobs.joins.unlisted_attributes import refuse_unlisted
from jobs.joins.unpropagated_deletions import UnpropagatedDeletions
from jobs.joins.versions_in_use import VersionsInUse
from jobs.runtime.batch import LsnRange
from jobs.runtime.batch_limits import BATCH_VALUES
from jobs.runtime.delta.position import FINGERPRINT, Position, position_after, recall_position, transactions_of
from jobs.runtime.delta.table import FRONTIER, LSN, DeltaWriter, instant_of, microseconds_of, open_table
from jobs.runtime.delta.upstream import Upstream, no_table
from jobs.runtime.effective_rules import TRANSACTION as RULES
from jobs.runtime.effective_rules import EffectiveRules, RulesHistory, rules_text
from jobs.runtime.errors import NotYet
from jobs.runtime.job import Context, Counts, Progress, TableJob
from jobs.runtime.new_rows import driver_new_rows, in_parts, new_rows
from jobs.streams import INSTANT, USAGE, CatalogTopic, Table
from jobs.usage_members import MEMBERS
from metering.meters import columns_of
from metering.vocabulary import Cause, Disposition
from monitoring import metrics
from monitoring.instruments import CounterMetric, GaugeMetric


class UsageSink:
    """Matches, prices, and appends usage with the journal position that it was made from."""

    def __init__(self, job: TableJob[JoinsConfig], context: Context[JoinsConfig]) -> None:
        self._job = job
        self._config = context.config
        self._clock = context.clock
        tables, epoch, driver = context.environment.tables, context.ownership.epoch, context.ownership.driver
        self._usage = DeltaWriter(tables, job.writes, job.name, epoch, driver)
        self._journal = Upstream(tables, job.reads)
        self._catalog = Catalog(tables, epoch, driver, context.config.of_accounts)
        self._at = recall_position(self._usage, job.reads)
        self._rules = RulesHistory(self._usage, context.config.deciding)
        self._known = self._remember(tables)
        self._deletions = UnpropagatedDeletions(context.environment.postgres_url, context.clock)
        self._ladders = PriceLadders(context.environment.postgres_url)

    def _remember(self, tables: str) -> Known:
        """What a later row can meet, and what decides it."""
        past = None
        if self._at.next_lsn > 1:
            if (journal := open_table(tables, self._job.reads)) is None:
                raise no_table(self._job.name, self._job.reads, self._at.next_lsn, f"{tables}/{self._job.reads}")
            frontier = instant_of(self._usage.recall(FRONTIER))
            rows, outcomes = (pl.scan_pyarrow_dataset(t.to_pyarrow_dataset()) for t in (journal, self._usage.table))
            waiting_from = self._usage.recall("waiting.lsn") or None
            past = RecoverySource(rows, outcomes, self._at.next_lsn, frontier, waiting_from, self._config.carried)
        first = 1 if self._usage.next_lsn == 1 else self._at.next_lsn
        return Known.derived(
            past, self._rules.history, EffectiveRules(first, self._config.deciding), self._config.carried
        )

    def verify(self, upstream: Upstream) -> None:
        """Check that usage and the catalog are of this journal, and of each other; older positions adopt it, once."""
        self._catalog.refuse_other_than(self._usage)
        self._refuse_unlisted()
        self._ladders.store(self._catalog.stored[Table.PRICES])
        verified = upstream.verified(self._job.name, self._at)
        self._catalog.verify(upstream)
        if verified != self._at and verified.next_lsn > 1:
            adopted = {**transactions_of(Table.JOURNAL, verified), **self._catalog.state()}
            self._usage.append(lambda next_lsn: (USAGE.empty_table(), {**adopted, LSN: next_lsn}))
        self._at = verified

    @property
    def rows_at_once(self) -> int:
        """Most rows of the journal that are decided and priced at once."""
        return self._config.rows_at_once

    @property
    def driver_rows(self) -> None:
        """All rows come to the driver, where those are that wait."""

    task_rows = 0

    def process(self, batch: DataFrame | pa.Table) -> Progress:
        """Decide what the new rows and the passing of time decide, and append it, a part of the rows at a time.

        All outcomes decided by the passing of time are one commit; `waiting_memory_mib` bounds them.
        """
        new, rows = self._new(batch)
        counts: Counter[tuple[CounterMetric, *tuple[str, ...]]] = Counter()
        for part in in_parts(new, self._config.max_batch_rows, columns_of(self._config.declared), BATCH_VALUES):
            counts.update(self._take(part))
        return Progress(rows.records, counts)

    def _take(self, new: pa.Table) -> Counts:
        _, rows = driver_new_rows(new, self._at.next_lsn, self._job.name, FINGERPRINT[self._job.reads])
        journal, after = pl.DataFrame(new), position_after(self._job.reads, self._at, rows.next, rows.last)
        self._journal.refresh()
        ends_table = rows.next >= self._journal.next_lsn
        outcomes, known = decide(self._known, journal, self._config.deciding, self._limit_bytes, ends_table=ends_table)
        self._refuse_to_grow(known.memory, unread=self._journal.next_lsn - rows.next)
        accepted = pl.col("disposition") == Disposition.ACCEPTED
        changes = journal.filter(accepted & pl.col("topic").str.starts_with("catalog."))
        self._catalog.take(changes, after)
        if CatalogTopic.PRICES in changes["topic"]:
            self._refuse_unlisted()
            # Before usage names a version: then bills find what it costs.
            self._ladders.store(self._catalog.stored[Table.PRICES])
        decided = decisions(changes, self._known.frontier)
        self._commit(with_decisions(self._priced(outcomes), decided), known, after)
        return _counts(outcomes)

    def _new(self, batch: DataFrame | pa.Table) -> tuple[pa.Table, LsnRange]:
        position, job, fingerprint = self._at.next_lsn, self._job.name, FINGERPRINT[self._job.reads]
        if isinstance(batch, pa.Table):
            # They are complete: `build` would only drop unneeded columns.
            return driver_new_rows(batch, position, job, fingerprint)
        return new_rows(
            batch, position, job, lambda rows: self._job.build(rows, self._config), fingerprint, keeps_rows=True
        )

    @property
    def _limit_bytes(self) -> int:
        return self._config.waiting_memory_mib << 20

    def _refuse_unlisted(self) -> None:
        config, late = self._config, timedelta(seconds=self._config.rejoin_seconds)
        prices = self._catalog.stored[Table.PRICES]
        now = self._clock.now()
        refuse_unlisted(prices, config.attributes, now, late)
        refuse_period_tiers(prices, config.declared, now, late)

    def _refuse_to_grow(self, memory: Memory, unread: int) -> None:
        """Wait while what must be remembered would not fit: before anything is changed, and never for what shrinks.

        Only F frees it. F may have moved already, but in rows behind these, which must be remembered until then.
        """
        needed = memory.size_bytes()
        if needed > self._limit_bytes and needed > self._known.memory.size_bytes():
            # As if all unread rows had to be remembered: this much is certainly enough.
            enough = needed + max(0, unread) * needed // memory.records()
            raise NotYet(
                Cause.MEMORY,
                f"joins.waiting_memory_mib is {self._config.waiting_memory_mib}, too little for what joins must "
                f"remember while the frontier is stuck: the next rows need {(needed >> 20) + 1}, all {unread} that "
                f"follow at most {(enough >> 20) + 1}. Set it to that: on a laptop in the file of `weir up --config "
                "FILE`; on a cluster jobs.joins.config.waiting_memory_mib, and raise "
                "jobs.joins.driver.memoryOverhead by as much. And find the partition of `events` that is offline or "
                "gets no heartbeat",
            )

    def _priced(self, outcomes: pl.DataFrame) -> pa.Table:
        """In the order of the journal, each with its day."""
        ordered = outcomes.sort(pl.max_horizontal("request_lsn", "completion_lsn"))
        return priced(ordered, self._config, *self._catalog.versions(), self._catalog.days)

    def _commit(self, usage: pa.Table, known: Known, after: Position) -> None:
        now = self._clock.now()
        transactions = {**transactions_of(Table.JOURNAL, after), **known.memory.waiting()}
        transactions |= {
            name: value for name, value in self._catalog.state().items() if self._usage.known.get(name) != value
        }
        if known.frontier is not None:
            transactions[FRONTIER] = microseconds_of(known.frontier)
        # Rules that changed hold from the next batch on: what decides is kept before it decides.
        rules = self._rules.document_of(known.history, now) if len(usage) else {}

        def numbered(first_lsn: int) -> tuple[pa.Table, dict[str, int]]:
            rules_at = {RULES: first_lsn} if rules else {}
            rows = usage_rows(usage, first_lsn, now, rules_text(rules), known.frontier)
            return rows, {**transactions, **rules_at, LSN: first_lsn + len(rows)}

        self._usage.append(numbered)
        if rules:
            self._rules.written_of(known.history, now)
        self._known, self._at = known, after

    def position(self) -> int:
        """The next lsn of the journal."""
        return self._at.next_lsn

    def advance(self) -> None:
        """The journal's heartbeats move the frontier, but they do not show deletions that capture has missed."""
        self._deletions.look_if_due(self._catalog.stored, self._known.frontier)

    def frontier(self) -> datetime | None:
        """F of the journal prefix that usage was made from."""
        return self._known.frontier

    def status(self) -> dict[str, Any]:
        """How many requests and completions wait, what all that is remembered takes, and deletions that were not
        captured.
        """
        waiting = self._known.memory.waiting()
        return {
            "waiting": waiting["waiting"],
            "oldest_waiting_lsn": waiting["waiting.lsn"] or None,
            "waiting_bytes": self._known.memory.size_bytes(),
            "waiting_limit_bytes": self._limit_bytes,
            "unpropagated_deletions": self._deletions.rows,
        }

    def gauges(self) -> Mapping[GaugeMetric, float]:
        """What waits, what all that is remembered takes and may take, how long a request waits; deletions that were not
        captured.
        """
        return {
            metrics.WAITING: self._known.memory.waiting()["waiting"],
            metrics.WAITING_MEMORY: self._known.memory.size_bytes(),
            metrics.WAITING_MEMORY_LIMIT: self._limit_bytes,
            metrics.TIMEOUT: self._config.completion_timeout_seconds,
            metrics.UNPROPAGATED_DELETIONS: self._deletions.rows,
            metrics.EARLIER_UNPROPAGATED_DELETIONS: self._deletions.rows,
        }

    def close(self) -> None:
        """Nothing to give back."""


def priced(
    outcomes: pl.DataFrame,
    config: JoinsConfig,
    accounts: Versions | VersionsInUse,
    prices: Versions | VersionsInUse,
    days: BillingDays,
) -> pa.Table:
    """Outcomes (`resolve`) with their price, their day, and the members that they add (MEMBERS)."""
    declared, attributes = config.declared, config.attributes
    costs = price(outcomes, declared, accounts, prices, named=config.dimensions, attributes=attributes)
    dated = costs.append_column("day", days.days(outcomes).to_arrow())
    if not any(meter.of_period for meter in declared):
        return dated
    of_periods = members(outcomes, declared, days, accounts, prices, attributes=attributes)
    return dated.append_column(MEMBERS, of_periods.to_arrow())


def usage_rows(
    priced: pa.Table, first_lsn: int, logged_at: datetime, rules: str | None, frontier: datetime | None = None
) -> pa.Table:
    """Priced outcomes as rows of `usage`; the first one keeps `rules`. What only earlier releases filled is null."""
    count = len(priced)
    lsn = pl.int_range(first_lsn, first_lsn + count, eager=True).to_arrow()
    made = {
        "lsn": lsn,
        "log_date": pa.repeat(pa.scalar(logged_at.date(), pa.date32()), count),
        "logged_at": pa.repeat(pa.scalar(logged_at, INSTANT), count),
        "frontier": pa.repeat(pa.scalar(frontier, INSTANT), count),
        "rules": pc.if_else(pc.equal(lsn, first_lsn), pa.scalar(rules, pa.string()), pa.scalar(None, pa.string())),
    }
    made_columns = {name: priced[name] for name in priced.column_names} | made
    columns = [
        made_columns[field.name].cast(field.type) if field.name in made_columns else pa.nulls(count, field.type)
        for field in USAGE
    ]
    return pa.table(columns, schema=USAGE)


def _counts(outcomes: pl.DataFrame) -> Counts:
    return {(metrics.OUTCOMES, outcome): count for outcome, count in outcomes.group_by("outcome").len().iter_rows()}
