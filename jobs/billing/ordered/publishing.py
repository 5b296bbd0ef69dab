"""Accepted events → `events.ordered`, beside the fold: at least once, always in the one order of `order`.

Kafka fences a driver from the moment its successor begins, and a publisher reads how far the topic is only after it has
begun. What Kafka has and the database does not know is sent again with the same sequence numbers. A publisher that
cannot go on reports why and tries again, while billing continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import polars as pl

from jobs.billing.config import BillingConfig
from jobs.billing.ordered.journal import JournalParts
from jobs.billing.ordered.order import KEY, Generations
from jobs.billing.ordered.state import Progress, announce_ordered, begun, erasures, move, read_progress
from jobs.billing.publishing import PublishingThread
from jobs.billing.sending import Sending
from jobs.runtime.delta.position import Position
from jobs.runtime.delta.table import REMOVED
from jobs.runtime.delta.upstream import Upstream, identified
from jobs.runtime.errors import Fenced
from jobs.runtime.job import Context
from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.kafka.transactions import Record
from jobs.streams import Table
from metering.vocabulary import ORDERED_EVENTS
from monitoring import metrics

NAME = "weir-ordered"
"""Of its transactions in Kafka."""
STEP_EVENTS = 5_000
STEP_BYTES = 8 << 20
"""Of events in one transaction of Kafka; a larger event is one by itself."""
HEADERS = {
    "weir-sequence": "sequence",
    "weir-lsn": "lsn",
    "weir-event-time": "event_time",
    "weir-late": "is_late",
    "weir-topic": "topic",
    "weir-partition": "partition",
    "weir-offset": "offset",
}
"""By name: the column that it has."""
CONTENT_TYPE = ("content-type", b"application/cloudevents+json; charset=UTF-8")


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
        self._path = f"{tables}/{Table.JOURNAL}"
        self._upstream = Upstream(tables, Table.JOURNAL)
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
            if not self._has_more and not self._upstream.goes_on():
                return False
            self._progress, self._has_more = self._step(topic, progress)
        except Exception:
            self._start_again()
            self._progress = None
            raise
        metrics.ORDERED_WAITING.set(float(self._upstream.next_lsn - self._progress.waiting_from))
        return self._has_more

    def blocked(self, _topic: str) -> None:
        """What waits stays in the journal."""

    def _begin(self) -> Progress:
        """The stored progress, of this journal; from here on events are waited for as long as is configured."""
        self._upstream.refresh()
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
        self._upstream.refresh()
        table = self._upstream.table
        if table is None:
            return progress, False
        if (removed := table.transaction_version(REMOVED)) != self._removed:
            self._upstream.refuse_removed(ORDERED_EVENTS, progress.waiting_from)
            self._removed = removed
        self._parts.look(table, progress.waiting_from)
        whole = self._parts.whole(progress.position.next_lsn, progress.watermark_us, progress.waits)
        if whole is None:
            return progress, False
        found = self._parts.first(whole, progress.waiting_from, progress.cursor, self._step_events + 1)
        rows, contents = self._within_limits(found.head(self._step_events))
        is_cut = len(rows) < len(found)
        after = _cut_after(progress, rows) if is_cut else self._whole_after(progress, whole, len(rows))
        sent = None if contents is None else _with_contents(rows, contents, progress.sequence)
        with self._session().transaction():
            # Nobody is reported as forgotten between this look and the commit in Kafka.
            self._session().execute("LOCK TABLE erasures IN SHARE MODE")
            if erasures(self._session()) != erased:
                # What was read may have the name.
                return progress, True
            if read_progress(self._session()) != progress:
                raise Fenced(f"{topic} was moved by another publisher")
            if sent is not None and len(sent):
                self._sender(topic).send(topic, _records(sent), self._refuse_lost_lock)
            move(self._session(), progress, after, self._epoch)
        if sent is not None:
            for is_late, count in sent.group_by("is_late").len().iter_rows():
                metrics.ORDERED_EVENTS_SENT.inc(count, is_late=str(is_late).lower())
        return after, is_cut or self._parts.has_more_after(whole)

    def _refuse_lost_lock(self) -> None:
        """Raises psycopg.Error where the lock is lost, as after a freeze of TIMEOUTS: people were forgotten since then.

        It holds for as long again from now on, and Kafka aborts a transaction earlier than that.
        """
        self._session().execute("SELECT")

    def _within_limits(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """The first of the rows that have at most so many bytes together, at least one; and their content, or more.

        None without rows. What is too large for one step is read twice, so that only its sizes are held meanwhile.
        """
        if rows.is_empty():
            return rows, None
        sizes, contents = self._parts.within(rows["lsn"], self._step_bytes)
        if contents is not None:
            return rows, contents
        sized = rows.join(sizes, on="lsn", how="left", maintain_order="left")
        fitting = (sized["size"].fill_null(0).cum_sum() <= self._step_bytes).sum()
        rows = rows.head(max(1, int(fitting)))
        return rows, self._parts.contents(rows["lsn"])

    def _whole_after(self, progress: Progress, whole: Generations, count: int) -> Progress:
        """The progress once these generations are sent, of which `count` events were left."""
        after = replace(
            progress,
            position=self._place(Position(whole.next_lsn, progress.position.table)),
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


def _with_contents(rows: pl.DataFrame, contents: pl.DataFrame, sequence: int) -> pl.DataFrame:
    """The rows that have an event; one that was erased, or is part of another row's event, has none.

    `sequence` is that of the last event before: each row has a number, also those without a record.
    """
    event_time = pl.from_epoch("event_us", "us").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").alias("event_time")
    numbered = rows.with_columns((pl.int_range(pl.len(), dtype=pl.Int64) + sequence + 1).alias("sequence"), event_time)
    return numbered.join(contents, on="lsn", how="inner", maintain_order="left").filter(pl.col("value").is_not_null())


def _records(events: pl.DataFrame) -> list[Record]:
    """A record for each event, with its HEADERS."""
    texts = events.select(pl.col(name).cast(pl.String).cast(pl.Binary) for name in HEADERS.values()).iter_rows()
    headers = [(CONTENT_TYPE, *zip(HEADERS, row, strict=True)) for row in texts]
    keys = events.select(pl.coalesce("account", "source").cast(pl.Binary)).to_series()
    return list(zip(keys, events["value"], headers, strict=True))
