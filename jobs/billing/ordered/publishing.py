"""Accepted events → `events.ordered`, beside the fold: at least once, always in the one order of `order`.

Kafka fences a driver from the moment its successor begins, and a publisher reads how far the topic is only after it has
begun. What Kafka has and the database does not know is sent again with the same sequence numbers. A publisher that
cannot go on reports why and tries again, while billing continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress

import polars as pl
from deltalake import DeltaTable

from jobs.billing.config import BillingConfig
from jobs.billing.ordered.contents import VALUE, Content
from jobs.billing.ordered.journal import JournalParts
from jobs.billing.ordered.order import KEY, Generations
from jobs.billing.ordered.state import Progress, announce_ordered, begun, erasures, move, read_progress
from jobs.billing.publishing import PublishingThread
from jobs.billing.sending import Sending
from jobs.runtime.delta.live_files import LiveFiles
from jobs.runtime.delta.position import Position, table_hash
from jobs.runtime.delta.table import LSN, REMOVED
from jobs.runtime.delta.upstream import Upstream, identified
from jobs.runtime.errors import Fenced
from jobs.runtime.job import Context
from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.kafka.transactions import Headers, Record
from jobs.streams import Table
from metering.vocabulary import ORDERED_EVENTS
from monitoring import metrics

NAME = "weir-ordered"
"""Of its transactions in Kafka."""
STEP_EVENTS = 5_000
STEP_BYTES = 8 << 20
"""Of events in one transaction of Kafka; a larger event is one by itself."""
CONTENT_TYPE = ("content-type", b"application/cloudevents+json; charset=UTF-8")
IS_LATE = {is_late: ("weir-late", text) for is_late, text in ((True, b"true"), (False, b"false"))}


@contextmanager
def publishing_ordered(context: Context[BillingConfig], *, step_bytes: int = STEP_BYTES) -> Iterator[None]:
    """Publish accepted events again for as long as the block runs, if the configuration wants it."""
    wanted = context.config.ordered_events
    with context.ownership.transaction() as cursor:
        announce_ordered(cursor, is_wanted=wanted is not None)
    if wanted is None:
        yield
        return
    publisher = OrderedPublisher(
        context.environment.postgres_url,
        context.environment.kafka.librdkafka(),
        context.environment.tables,
        context.ownership.epoch,
        wait_seconds=wanted.wait_seconds,
        step_bytes=step_bytes,
    )
    thread = PublishingThread(publisher, context.config.publish_every_seconds)
    try:
        yield
    finally:
        thread.close()


class OrderedPublisher(Sending):
    """Sends accepted events in their order, as the driver of this epoch."""

    topics: tuple[str, ...] = (ORDERED_EVENTS,)

    def __init__(
        self,
        postgres_url: str,
        kafka: KafkaSettings,
        tables: str,
        epoch: int,
        *,
        wait_seconds: int,
        step_events: int = STEP_EVENTS,
        step_bytes: int = STEP_BYTES,
    ) -> None:
        super().__init__(postgres_url, kafka, NAME, epoch)
        self._tables = tables
        self._path = f"{tables}/{Table.JOURNAL}"
        self._upstream = Upstream(tables, Table.JOURNAL)
        self._live = LiveFiles(self._path, (LSN, REMOVED))
        self._parts = JournalParts()
        self._wait_seconds = wait_seconds
        self._step_events = step_events
        self._step_bytes = step_bytes
        self._progress: Progress | None = None
        self._has_more = True
        self._removed: int | None = None
        """How many rows `weir retain` had removed when it was last looked whether any of them was wanted."""

    def publish(self, topic: str = ORDERED_EVENTS) -> bool:
        """Send a step. Whether there is more at once.

        Raises KafkaException, NotYet or psycopg.Error when it cannot now, Refused where the journal is another one or
        lacks rows, Fenced when this driver was followed.
        """
        try:
            # Begin before reading: from now on no earlier publisher can send anything.
            self._sender(topic)
            progress = self._progress or self._begin()
            if not self._has_more and not self._live.goes_on():
                return False
            self._progress, self._has_more = self._step(topic, progress)
        except Exception:
            self._start_again()
            self._progress = None
            raise
        metrics.ORDERED_WAITING.set(float((self._live.transactions[LSN] or 1) - self._progress.waiting_from))
        return self._has_more

    def blocked(self, _topic: str) -> None:
        """What waits stays in the journal."""

    def _begin(self) -> Progress:
        """The stored progress, of this journal; from here on events are waited for as long as is configured."""
        self._open()
        self._parts.release()
        stored = read_progress(self._session())
        now = self._upstream.next_lsn
        if stored is None:
            progress = begun(self._place(Position(now)), self._upstream.frontier, self._wait_seconds)
        else:
            progress = replace(stored, position=self._upstream.verified(ORDERED_EVENTS, stored.position))
            progress = progress.waiting(self._wait_seconds, now).without_past_waits()
        if progress != stored:
            move(self._session(), stored, progress, self._epoch)
        self._has_more = True
        return progress

    def _step(self, topic: str, progress: Progress) -> tuple[Progress, bool]:
        erased = erasures(self._session())
        table = self._look(progress)
        if table is None:
            return progress, False
        if (removed := self._live.transactions[REMOVED]) != self._removed:
            self._open()
            self._upstream.refuse_removed(ORDERED_EVENTS, progress.waiting_from)
            self._removed = removed
        self._parts.look(table, progress.waiting_from, self._live.files)
        whole = self._parts.whole(progress.position.next_lsn, progress.watermark_us, progress.waits)
        if whole is None:
            return progress, False
        found = self._parts.first(whole, progress.waiting_from, progress.cursor, self._step_events + 1)
        rows = found.head(self._step_events)
        contents = self._parts.contents(rows, whole, progress.cursor, self._step_bytes)
        rows = rows.head(len(contents))
        is_cut = len(rows) < len(found)
        after = _cut_after(progress, rows) if is_cut else self._whole_after(progress, table, whole, len(rows))
        is_published = _is_published(contents)
        with self._session().transaction():
            # Nobody is reported as forgotten between this look and the commit in Kafka.
            self._session().execute("LOCK TABLE erasures IN SHARE MODE")
            if erasures(self._session()) != erased:
                # What was read may have the name.
                return progress, True
            if read_progress(self._session()) != progress:
                raise Fenced(f"{topic} was moved by another publisher")
            if any(is_published):
                records = _records(rows, contents, progress.sequence)
                self._sender(topic).send(topic, records, self._refuse_lost_lock)
            move(self._session(), progress, after, self._epoch)
        self._parts.sent(rows["lsn"].to_list())
        _count(rows, is_published)
        return after, is_cut or self._parts.has_more_after(whole)

    def _look(self, progress: Progress) -> DeltaTable | None:
        """The journal, with the files of its newest commit; None before it exists. Raises Refused for another one."""
        if not self._live.follow() and self._open() is not None:
            self._upstream.verified(ORDERED_EVENTS, progress.position)
        return self._upstream.table

    def _open(self) -> DeltaTable | None:
        if not self._live.is_same_log():
            # What is held may be of a journal that was rolled back: from the position on its rows are others now.
            self._parts = JournalParts()
        # A handle that has not followed for long would read each commit since, of which some may be gone.
        self._upstream = Upstream(self._tables, Table.JOURNAL)
        self._upstream.refresh()
        if self._upstream.table is not None:
            self._live.read(self._upstream.table)
        return self._upstream.table

    def _refuse_lost_lock(self) -> None:
        """Raises psycopg.Error where the lock is lost, as after a freeze of TIMEOUTS: people were forgotten since then.

        It holds for as long again from now on, and Kafka aborts a transaction earlier than that.
        """
        self._session().execute("SELECT")

    def _whole_after(self, progress: Progress, table: DeltaTable, whole: Generations, count: int) -> Progress:
        """The progress once these generations are sent, of which `count` events were left."""
        after = replace(
            progress,
            position=Position(whole.next_lsn, table_hash(table), self._parts.row_before(whole.next_lsn)),
            watermark_us=whole.watermark_us,
            waiting_from=self._parts.waiting_from(whole, progress.waiting_from),
            sequence=progress.sequence + count,
            cursor=None,
        )
        return after.without_past_waits()

    def _place(self, position: Position) -> Position:
        """The position with the identity of the journal and the row before it."""
        table = self._upstream.table
        if table is None:
            return position
        return identified(table, Table.JOURNAL, self._path, ORDERED_EVENTS, position)


def _cut_after(progress: Progress, rows: pl.DataFrame) -> Progress:
    """The progress once these rows are sent, where others of their generations follow."""
    generation, order_us, lsn = rows.select(KEY).row(-1)
    return replace(progress, cursor=(generation, order_us, lsn), sequence=progress.sequence + len(rows))


def _is_published(contents: Sequence[Content | None]) -> list[bool]:
    """Which have an event; one that was erased, or is part of another row's event, has none."""
    return [content is not None and content[VALUE] is not None for content in contents]


def _records(rows: pl.DataFrame, contents: Sequence[Content | None], sequence: int) -> Iterator[Record]:
    """A record for each of the rows that has an event.

    `sequence` is that of the last event before: each row has a number, also those without a record.
    """
    event_time = pl.from_epoch("event_us", "us").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
    number = pl.int_range(pl.len(), dtype=pl.Int64) + sequence + 1
    texts = rows.select(
        sequence=number.cast(pl.String).cast(pl.Binary),
        lsn=pl.col("lsn").cast(pl.String).cast(pl.Binary),
        event_time=event_time.cast(pl.Binary),
        is_late="is_late",
    )
    for content, (of_sequence, lsn, at, is_late) in zip(contents, texts.iter_rows(), strict=True):
        if content is None:
            continue
        *_, key, value, came_from, offset = content
        if value is not None:
            headers: Headers = [
                CONTENT_TYPE,
                ("weir-sequence", of_sequence),
                ("weir-lsn", lsn),
                ("weir-event-time", at),
                IS_LATE[is_late],
                *came_from,
                ("weir-offset", offset),
            ]
            yield key, value, headers


def _count(rows: pl.DataFrame, is_published: Sequence[bool]) -> None:
    """Count what was published of the rows."""
    for is_late, count in Counter(compress(rows["is_late"].to_list(), is_published)).items():
        metrics.ORDERED_EVENTS_SENT.inc(count, is_late=str(is_late).lower())
