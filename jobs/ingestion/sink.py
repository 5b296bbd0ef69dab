"""The sink of ingestion: lsns, repeats and the frontier of validated records on the driver, and their commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import structlog
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame

from jobs.ingestion import batches
from jobs.ingestion.accepted_losses import read_losses, rules_entry, settle_losses
from jobs.ingestion.adaptive_heartbeat import AdaptiveHeartbeat
from jobs.ingestion.bookkeeping import Bookkeeping, Sums, sums_of
from jobs.ingestion.broker_clock import Look, followed, look, settle, wait_for_frontier
from jobs.ingestion.catalog import CatalogReader
from jobs.ingestion.conditions import Conditions
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.declared_columns import declared_columns, warn_of_left_out
from jobs.ingestion.device_clocks import uncorrected_events
from jobs.ingestion.earlier_rules import comparable_since, looked_for
from jobs.ingestion.earlier_topics import TRANSACTION as ELSEWHERE
from jobs.ingestion.earlier_topics import records_of_others
from jobs.ingestion.effective_prices import EffectivePrices
from jobs.ingestion.elements import (
    ELEMENTS,
    TRANSACTION,
    Elements,
    none_of,
    rejected_whole,
    split,
    with_elements,
    with_events,
    with_room,
)
from jobs.ingestion.erasures import Erasures, publish_keys
from jobs.ingestion.event_times import validated_by_reception
from jobs.ingestion.event_topics import EventTopic, EventTopics, slowest
from jobs.ingestion.handover import FILES, Left, collected
from jobs.ingestion.identity_index import NONE_REPLAYED, IdentityIndex
from jobs.ingestion.identity_journal import JournalIdentities
from jobs.ingestion.isolated_by_topic import IsolatedByTopic
from jobs.ingestion.journal_rows import Commit, with_dispositions, with_documents
from jobs.ingestion.large_batch import RANGE_ROWS, Decided, Written, written_in_tasks
from jobs.ingestion.lateness import lateness_of
from jobs.ingestion.ledger import OffsetLedger
from jobs.ingestion.mark_counts import mark_counts
from jobs.ingestion.quarantine import quarantine
from jobs.ingestion.record_order import by_reception
from jobs.ingestion.repeats import candidates, compared, entries, incomparable
from jobs.ingestion.replays import by_event, counted, places, rejected, repeating
from jobs.ingestion.summaries import BYTES, FILE, OF_FORMS, measures, needed_whole
from jobs.ingestion.topic_removals import (
    Removal,
    read_removals,
    removals_entry,
    removed_since,
    settle_removals,
    topics_listed,
)
from jobs.ingestion.unnesting import ELEMENT_BYTES
from jobs.journal.elements import has_elements, is_record
from jobs.journal.erasing import TRANSACTION as ERASURES
from jobs.runtime.delta.new_files import Exchanged, cleaned_up
from jobs.runtime.delta.table import FRONTIER, LSN, DeltaWriter, microseconds_of, numbered, open_to_change
from jobs.runtime.effective_rules import TRANSACTION as RULES
from jobs.runtime.effective_rules import RulesHistory, rules_text
from jobs.runtime.job import Context, Counts, Progress, TopicJob
from jobs.runtime.kafka import headers
from jobs.runtime.kafka.heartbeat import IDLE, Heartbeat
from jobs.runtime.kafka.protocol.absent_offsets import AbsentOffsets
from jobs.runtime.kafka.quarantine.isolated_records import Isolated
from jobs.runtime.kafka.quarantine.raw_scan import RawScan, average_record_bytes
from jobs.runtime.kafka.records import PLACE
from jobs.runtime.kafka.topic import Positions, describe_topic, list_partitions
from jobs.runtime.kafka.topic_risks import report_topic_risks, settings_of
from jobs.runtime.new_rows import new_records
from jobs.runtime.spark import driver_rows
from jobs.streams import CatalogTopic
from metering.contracts.unnest import COLUMN
from metering.vocabulary import Disposition, Family
from monitoring import metrics
from monitoring.instruments import GaugeMetric

log = structlog.get_logger()

MAX_READ_AGAIN = 10_000
"""Rows of the journal whose values are read at once."""


@dataclass(frozen=True)
class Taking:
    """The new records of a batch, one row each, and the further rows of those that are several.

    `left`: where tasks find them to write them; then those with a FILE are summaries. None: all are whole.
    """

    new: pl.DataFrame
    elements: Elements
    left: Left | None = None

    @property
    def has_own(self) -> bool:
        """Whether there are whole records, whose rows the driver makes."""
        return self.left is None or "value" in self.new.columns


class JournalSink:
    """Numbers records, marks repeats, and appends them to the journal with the offsets they came from."""

    range_rows = RANGE_ROWS
    """Rows of a file that tasks write, at most."""
    _removed: Sequence[Removal] = ()
    """Topics that end with the next commit."""
    _may_have_removed = False

    def __init__(self, job: TopicJob[IngestionConfig], context: Context[IngestionConfig]) -> None:
        config, where = context.config, context.environment
        kafka = where.kafka.librdkafka()
        self._admin = admin = AdminClient(kafka)
        self._config = config
        self._clock = context.clock
        owner = context.ownership
        self._spark = context.spark
        self.driver_rows = driver_rows(config.driver_rows, context.spark, config.max_records_per_batch)
        """Up to how many records of a batch are all the driver's work; None: any number."""
        # Without a broker every attempt ends here, before it leaves a commit in the journal.
        events, topics = [
            [describe_topic(admin, name, context.denials, context.clock) for name in names]
            for names in (config.topics, CatalogTopic)
        ]
        self._validator = config.validator()
        self._fields = tuple(field.name for field in self._validator.fields)
        declared = declared_columns([*self._validator.fields, headers.FIELD], open_to_change(where.tables, job.writes))
        self._writer = DeltaWriter(where.tables, job.writes, job.name, owner.epoch, owner.driver, declared=declared)
        accepted = {topic.name: read_losses(owner.connection, topic.topic_id) for topic in events}
        self._may_have_lost = any(accepted.values())
        self._events = EventTopics(
            [
                EventTopic(
                    OffsetLedger(self._writer, admin, topic, decides_frontier=True, accepted=accepted[topic.name]),
                    AbsentOffsets(where.kafka, admin, topic.name),
                )
                for topic in events
            ]
        )
        catalog = [OffsetLedger(self._writer, admin, topic) for topic in topics]
        self._catalog = CatalogReader(kafka, admin, catalog)
        self._ledgers = [*self._events.ledgers, *catalog]
        self._writer.recall(TRANSACTION)
        self._elsewhere = self._writer.recall(ELSEWHERE) or 0
        self._residual = self._unaccounted_at_start()
        self._ownership = owner
        self._erasures = Erasures(where.erasure_keys, CatalogTopic)
        publish_keys(owner, where.erasure_keys)
        self._writer.recall(ERASURES)
        self._wait_for_clocks()
        self._rules = RulesHistory(self._writer, config.deciding)
        pending = read_removals(owner.connection)
        self._removed = removed_since(topics_listed(self._rules.history), config.topics, pending)
        self._may_have_removed = bool(pending)
        self._looked_for = looked_for(config, self._rules.history)
        self._identities = JournalIdentities(self._writer)
        self._index = IdentityIndex(self._identities, config.horizons, config.identity_memory_bytes)
        self._index.restore(self._writer.next_lsn, self._events.frontier())
        self._effective_prices = EffectivePrices(owner, context.clock)
        self._bookkeeping = Bookkeeping(owner, self._writer, self._events.frontier(), conditions=Conditions.of(config))
        warn_of_left_out(config.contracts_in_force())
        settings = [settings_of(admin, topic) for topic in config.topics]
        report_topic_risks(settings, accept_seconds=config.accept_past_seconds, largest_bytes=config.max_record_bytes)
        self._isolated = IsolatedByTopic(owner, self._ledgers, self._writer.table)
        self._record_bytes = self._batch_bytes_per_record = max(
            average_record_bytes(
                RawScan(where.kafka, admin, ledger.topic),
                ledger.positions(),
                config.max_record_bytes,
                self._validator.element_bytes,
            )
            for ledger in self._events.ledgers
        )
        interval = timedelta(seconds=config.heartbeat_interval_seconds)
        # A source is known to be silent only at the frontier.
        idle = min(IDLE, timedelta(seconds=config.source_silent_after_seconds))
        self._heartbeat = Heartbeat(kafka, config.topics, owner.epoch, interval, context.clock, idle=idle)
        self._pace = AdaptiveHeartbeat(self._heartbeat, owner)
        self._heartbeat.start()

    def _wait_for_clocks(self) -> None:
        """Go on from no time that is yet to come."""
        seen, limit = self._look(), self._config.max_clock_ahead
        wait_for_frontier(self._events.frontier(), seen.now, limit)
        self._events.forget_receptions(after=seen.now + limit)

    def _look(self) -> Look:
        seen = look(self._ownership.connection, self._events.topics)
        self._erasures.follow(seen.newest_erasure, self._ownership.connection)
        return seen

    def process(self, batch: DataFrame | pa.Table) -> Progress:
        """Append the new records of a batch (`build`'s columns), and the catalog changes that came before them.

        Of more than `driver_rows` the driver reads summaries, and tasks write them (`large_batch`).
        """
        self._follow_topics()
        changes, offsets_after = self._catalog.read_to_end()
        given = batch if isinstance(batch, pa.Table) else batch.toArrow()
        left = Left(given, self._beside()) if self.driver_rows is not None and given.schema.equals(FILES) else None
        with cleaned_up(left.remove) if left is not None else nullcontext():
            return self._process(given, left, changes, offsets_after)

    def _process(
        self, given: pa.Table, left: Left | None, changes: Sequence[Message], offsets_after: Positions
    ) -> Progress:
        taking = self._read(given, left)
        new, elements = taking.new, taking.elements
        if new.is_empty() and not changes:
            return Progress(0, {})
        isolated = self._isolated.pending([*self._config.topics, *filter(None, (change.topic() for change in changes))])
        if taking.left is not None:
            taking = self._with_whole(given, taking.new, taking.left, isolated)
            new, elements = taking.new, taking.elements
        stamped = quarantine(new, isolated, self._config.max_record_bytes) if taking.has_own else new
        seen = self._look()
        self._events.wait_for_stamps(stamped, seen, self._config.max_clock_ahead)
        records = self._events.received(stamped, seen.restamps)
        proved = self._events.proved(records)
        first_lsn = self._writer.next_lsn
        catalog = numbered(self._catalog.rows(changes, isolated), first_lsn)
        events = self._with_replays(with_events(records, elements), first_lsn + len(catalog))
        firsts = _first_rows(events)
        taken = self._events.take(firsts, proved)
        frontier = self._events.frontier()
        disposed = self._disposed(events)
        decided = _decided(disposed, taking)
        events_of_batch = pl.concat([catalog, disposed], how="diagonal_relaxed")
        row_count = len(catalog) + len(decided.records) + len(decided.own)
        transactions = {
            **taken,
            **self._catalog.taken(offsets_after, catalog),
            LSN: first_lsn + row_count,
            **self._erasures.transactions(self._writer.known.get(ERASURES)),
            **({ELSEWHERE: self._elsewhere} if self._elsewhere != (self._writer.known.get(ELSEWHERE) or 0) else {}),
        }
        if further := row_count - len(catalog) - len(firsts):
            transactions[TRANSACTION] = (self._writer.known.get(TRANSACTION) or 0) + further
        if frontier is not None:
            transactions[FRONTIER] = microseconds_of(frontier)
        now = self._clock.now()
        in_force = self._rules.document(first_lsn, now)
        if in_force:
            transactions[RULES] = first_lsn
        ended = {**rules_entry(self._events.lost_in_last_take), **removals_entry(self._removed)}
        in_rules = {**in_force, **followed(records, seen.restamps), **ended}
        self._isolated.add(new, stamped, isolated)
        self._isolated.add(catalog, catalog, {})
        commit = Commit(first_lsn, frontier, now, rules_text(in_rules), self._writer.schema)
        sums = self._append(taking.left, catalog, decided, commit, transactions)
        if in_force:
            self._rules.written(first_lsn, now)
        self._settle(seen)
        for rows_of_topics in (stamped, catalog):
            self._isolated.journalled(rows_of_topics)
        self._learn(events_of_batch, frontier)
        bookkept = self._bookkeeping.add(sums, self._writer.next_lsn, frontier)
        self._measure(new if taking.left is not None else new.select(measures()), elements)
        self._residual = self._unaccounted()
        self._pace.take(events_of_batch)
        counts = _counts(events_of_batch, self._events.absent_in_last_take, self._config.clocks.device)
        late = lateness_of(events_of_batch)
        return Progress(len(catalog) + len(firsts), {**counts, **bookkept, **self._index.counts()}, late)

    def _beside(self) -> Exchanged:
        return Exchanged(self._writer.folder, self._ownership.epoch)

    def _read(self, given: pa.Table, left: Left | None) -> Taking:
        """The new records of a batch: by their summaries where tasks can write them."""
        if left is None or self.driver_rows is None or left.rows <= self.driver_rows or not left.has_summaries:
            return self._whole(given, left)
        new = new_records(left.summaries(), self._events.positions())
        return self._whole(given, left) if new.is_empty() else Taking(new, none_of(new), left)

    def _whole(self, given: pa.Table, left: Left | None) -> Taking:
        validated = collected(given, self._validator.schema, None if left is None else left.beside)
        return Taking(*split(new_records(pl.DataFrame(validated), self._events.positions()), self._fields))

    def _with_whole(
        self, given: pa.Table, summaries: pl.DataFrame, left: Left, isolated: Mapping[str, Isolated]
    ) -> Taking:
        """Summaries, and whole records where summaries do not decide; all whole where that is most of the batch."""
        is_needed = needed_whole(summaries, isolated, self._config.max_record_bytes)
        if 2 * is_needed.sum() > len(summaries):
            return self._whole(given, left)
        if not is_needed.any():
            return Taking(summaries, none_of(summaries), left)
        others = summaries.filter(~is_needed)
        read = left.records(summaries.filter(is_needed))
        whole = pl.concat([others.clear().drop(ELEMENTS), read.with_columns(measures())], how="diagonal_relaxed")
        firsts, elements = split(whole, self._fields)
        return Taking(pl.concat([others, firsts], how="diagonal_relaxed"), elements, left)

    def _append(
        self,
        left: Left | None,
        catalog: pl.DataFrame,
        decided: Decided,
        commit: Commit,
        transactions: Mapping[str, int],
    ) -> Sums:
        """Commit the changes of the catalog and the events."""
        if left is None:
            rows = pl.concat([catalog, decided.own], how="diagonal_relaxed")
            self._writer.commit(commit.made(self._erasures.erase(commit.with_rules(rows))), transactions)
            return sums_of(rows)
        of_all = Written(commit, catalog.to_arrow(), self._writer.stored, self._writer.statistics, self.range_rows)
        files, sums = written_in_tasks(self._spark, left, decided, self._config, of_all, self._erasures)
        self._writer.commit_files(files, transactions)
        return sums

    def _settle(self, seen: Look) -> None:
        """Runs only after the journal's commit, and again after a crash in between."""
        if any(seen.restamps.values()):
            with self._ownership.transaction() as cursor:
                for ledger in self._events.ledgers:
                    settle(cursor, ledger.topic.topic_id, seen.restamps[ledger.topic.name], ledger.positions())
        if self._may_have_lost:
            with self._ownership.transaction() as cursor:
                for ledger in self._events.ledgers:
                    settle_losses(cursor, ledger.topic.topic_id, ledger.positions())
            self._may_have_lost = False
        if self._may_have_removed:
            with self._ownership.transaction() as cursor:
                settle_removals(cursor, self._config.topics)
            self._removed, self._may_have_removed = (), False

    def advance(self) -> None:
        """A change of the catalog is read with the next batch: while the heartbeat is idle, one is made to come.

        And the table of effective prices follows the catalog and the clock.
        """
        if self._heartbeat.is_idle and self._catalog.has_news():
            self._heartbeat.wake()
        self._effective_prices.fold_if_due()

    def _follow_topics(self) -> None:
        """Take up partitions that were added; the end offsets of the batch are fixed by now."""
        topics = list_partitions(self._admin, [ledger.topic.name for ledger in self._ledgers])
        for ledger, topic in zip(self._ledgers, topics, strict=True):
            added = ledger.follow(self._admin, topic)
            if added and ledger not in self._events.ledgers:
                self._catalog.add(topic.name, added)

    def _with_replays(self, events: pl.DataFrame, first_lsn: int) -> pl.DataFrame:
        """Received events with their lsn and result, by themselves and by the dead letter that they replay."""
        numbered = self._numbered(events, first_lsn)
        marked = numbered.filter(pl.col("replay_mark").is_not_null())
        if marked.is_empty():
            return numbered.with_columns(replays_lsn=pl.lit(None, pl.Int64))
        # A dead letter of the same batch counts as one that was committed before: how the input is cut decides nothing.
        known = pl.concat([self._identities.rejected(places(marked)), rejected(numbered)])
        found = counted(marked, known)
        if ignored := len(marked) - len(found):
            log.warning("marks that name no dead letter of an event are ignored", records=ignored)
        again = numbered.select(*PLACE, "lsn").join(found, on="lsn", how="inner").drop("lsn").unique(list(PLACE))
        of_first = events.drop("first_received_at").join(again, on=list(PLACE), how="left")
        # What a mark makes of a record may be several rows, or one: then those behind it have other numbers.
        known_by = _first_rows(numbered).select(*PLACE, replays_lsn="lsn")
        renumbered = self._numbered(of_first, first_lsn)
        now = known_by.join(_first_rows(renumbered).select(*PLACE, "lsn"), on=list(PLACE))
        return renumbered.with_columns(pl.col("replays_lsn").replace(now["replays_lsn"], now["lsn"]))

    def _numbered(self, events: pl.DataFrame, first_lsn: int) -> pl.DataFrame:
        """Validated to the end, in the order of a batch, which is that of `received_at`.

        When something was received first moves nothing.
        """
        validated = validated_by_reception(events, self._config)
        if not has_elements(validated.schema):
            return with_room(by_reception(validated, [*PLACE]), first_lsn)
        whole = rejected_whole(batches.rejected_whole(validated), self._fields)
        return with_room(whole.sort("received_at", *PLACE, COLUMN), first_lsn)

    def _disposed(self, events: pl.DataFrame) -> pl.DataFrame:
        """Every event's disposition; a repeat names the lsn of its first."""
        events = events.with_columns(pl.col("lsn").cast(pl.Int64))
        valid = events.filter(pl.col("reason").is_null())
        replayed = valid["replays_lsn"].drop_nulls()
        before = self._identities.accepted_replays(replayed) if len(replayed) else NONE_REPLAYED
        repeats = self._index.find_repeats(candidates(by_event(repeating(valid)), *self._looked_for), before)
        repeats = self._read_again(repeats, valid)
        return with_dispositions(events.join(repeats, on="lsn", how="left", maintain_order="left"))

    def _read_again(self, repeats: pl.DataFrame, valid: pl.DataFrame) -> pl.DataFrame:
        """Compare the contents themselves where the digest of a first is of another version, or of another contract."""
        since = comparable_since(self._config.deciding, self._rules.history, self._writer.next_lsn)
        firsts = incomparable(repeats, since)
        digests = [
            self._digests(firsts.slice(start, MAX_READ_AGAIN)) for start in range(0, len(firsts), MAX_READ_AGAIN)
        ]
        return compared(repeats, valid, pl.concat(digests)) if digests else repeats

    def _digests(self, lsns: pl.Series) -> pl.DataFrame:
        """What the contents of these rows are to the contracts of today: first_lsn, first_digest."""
        firsts = self._identities.values(lsns)
        return firsts.select(pl.col("lsn").alias("first_lsn"), first_digest=self._validator.digests(firsts["value"]))

    def _measure(self, records: pl.DataFrame, elements: Elements) -> None:
        """`records`: BYTES and OF_FORMS."""
        if len(records):
            of_elements = max(ELEMENT_BYTES * len(elements), elements.estimated_bytes())
            self._record_bytes = max(1, int(records.select(pl.col(BYTES).mean()).item()))
            of_forms = int(records.select(pl.col(OF_FORMS).sum()).item())
            self._batch_bytes_per_record = self._record_bytes + (of_elements + of_forms) // len(records)

    def _learn(self, rows: pl.DataFrame, frontier: datetime | None) -> None:
        has_contract = pl.col("identity").is_not_null() & pl.col("family").is_not_null()
        accepted = rows.lazy().filter((pl.col("disposition") == Disposition.ACCEPTED) & has_contract)
        self._index.add(entries(accepted))
        self._index.forget(frontier)

    def _unaccounted(self) -> int:
        """Records that were read less rows of the journal; as of a commit, because only then both have moved.

        Of an event that is several rows the first counts.
        """
        return sum(ledger.records() for ledger in self._ledgers) + self._elsewhere - self._journalled()

    def _journalled(self) -> int:
        """Records that the journal has, or had until they were removed."""
        return self._writer.next_lsn - 1 - (self._writer.known.get(TRANSACTION) or 0)

    def _unaccounted_at_start(self) -> int:
        """The same; where it is not 0, after the journal was asked whose records it has.

        An earlier configuration may have named another topic. What is found then is kept with the next commit.
        """
        if self._unaccounted():
            topics = [ledger.topic for ledger in self._ledgers]
            self._elsewhere = records_of_others(self._writer.table, self._journalled(), topics)
        return self._unaccounted()

    def positions(self) -> Mapping[str, Mapping[int, int]]:
        """The next offset by topic of events and partition."""
        return self._events.positions()

    def frontiers(self) -> Mapping[str, datetime | None]:
        """F of each topic of events, of which the smallest is F of the journal."""
        return self._events.frontiers()

    def record_bytes(self) -> int:
        """Mean size of the records read last."""
        return self._record_bytes

    def batch_bytes_per_record(self) -> int:
        """The same with the further elements of their events."""
        return self._batch_bytes_per_record

    def frontier(self) -> datetime | None:
        """F of the journal."""
        return self._events.frontier()

    def status(self) -> dict[str, Any]:
        """What the identity index holds, records that no row of the journal stands for, events no listed source, and
        which of several topics holds F back.
        """
        counts = {"residual": self._residual, "unlisted_source_events": self._bookkeeping.unlisted}
        return {**self._index.status(), **counts, **slowest(self._events.frontiers())}

    def gauges(self) -> Mapping[GaugeMetric, float]:
        """What the identity index holds, records that no row of the journal stands for, and whether nothing is open."""
        return {
            **self._index.gauges(),
            metrics.RESIDUAL: self._residual,
            metrics.IDLE: float(self._heartbeat.is_idle),
        }

    def close(self) -> None:
        """Stop the heartbeat and leave the broker; who does not beat does not rest."""
        metrics.IDLE.set(0.0)
        self._heartbeat.close()
        self._catalog.close()


def _first_rows(events: pl.DataFrame) -> pl.DataFrame:
    return events.filter(is_record(events.schema))


def _decided(events: pl.DataFrame, taking: Taking) -> Decided:
    """Disposed events: those that tasks write, and the driver's own rows with their documents and elements."""

    def own(rows: pl.DataFrame) -> pl.DataFrame:
        return with_elements(with_documents(rows), taking.elements)

    if taking.left is None:
        return Decided(events.clear(), own(events))
    if not taking.has_own:
        return Decided(events, events.clear())
    is_own = pl.col(FILE).is_null()
    return Decided(events.filter(~is_own), own(events.filter(is_own)))


def _counts(rows: pl.DataFrame, absent: int, devices: Sequence[str]) -> Counts:
    by_disposition = rows.group_by("disposition", pl.col("reason").fill_null("")).len()
    is_accepted = pl.col("disposition") == Disposition.ACCEPTED.value
    is_reversal = is_accepted & pl.col("family").eq_missing(Family.REVERSAL.value)
    offset = pl.col("clock_offset_ms").is_not_null() & (pl.col("event_time") != pl.col("occurred_at"))
    return {
        **{(metrics.EVENTS, kind, reason): count for kind, reason, count in by_disposition.iter_rows()},
        (metrics.ABSENT,): absent,
        **mark_counts(rows),
        (metrics.REVERSALS,): rows.select(is_reversal.sum()).item() or 0,
        (metrics.CLOCK_CORRECTED,): rows.select(offset.sum()).item(),
        (metrics.UNCORRECTED,): uncorrected_events(rows, devices) if devices else 0,
    }
