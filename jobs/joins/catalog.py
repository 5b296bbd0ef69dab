"""Every version of accounts and prices: stored in Delta, and indexed for pricing batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
import structlog

from jobs.joins.billing_days import BillingDays
from jobs.joins.catalog_versions import PRICE_KEY, account_versions, price_versions
from jobs.joins.transient_prices import ended_as_before
from jobs.joins.versions_in_use import VersionsInUse
from jobs.journal.catalog_changes import InvalidChangeError, parse_change
from jobs.runtime.delta.growth import with_stored_columns
from jobs.runtime.delta.position import Position, recall_position, table_hash, transactions_of
from jobs.runtime.delta.table import LSN, DeltaWriter
from jobs.runtime.delta.upstream import Upstream
from jobs.runtime.errors import START_OVER, Refused
from jobs.streams import ACCOUNTS, AUTHOR, PRICES, SCHEMAS, SOURCE, CatalogTopic, Table
from metering.vocabulary import Job

log = structlog.get_logger()

TABLE_OF = {CatalogTopic.ACCOUNTS: Table.ACCOUNTS, CatalogTopic.PRICES: Table.PRICES}
KEY_OF = {Table.ACCOUNTS: ["account"], Table.PRICES: ["plan", "model", "meter", "currency", "effective_from"]}
"""What a change is a version of."""
CIRCUMSTANCES = ("committed_at", *AUTHOR, *SOURCE)
"""Time, author and place of a change: a difference in these alone is no change."""
NO_NEWS = (*CIRCUMSTANCES, "ends_at")
"""A second deletion is not a change, at any time."""


class Catalog:
    """The version tables; a change that a table already has is not added twice."""

    def __init__(self, tables: str, epoch: int, driver: int, dimensions: Sequence[str] = ()) -> None:
        """`dimensions`: what a configuration names, of accounts among others."""
        self._writers = {
            table: DeltaWriter(tables, table, Job.JOINS.value, epoch, driver) for table in TABLE_OF.values()
        }
        self._taken = {table: recall_position(writer, Table.JOURNAL) for table, writer in self._writers.items()}
        held = {table: writer.table.to_pyarrow_table() for table, writer in self._writers.items()}
        self._versions = versions_in_use(held, dimensions)
        self._days: BillingDays | None = None

    def verify(self, upstream: Upstream) -> None:
        """Check that the versions are of this journal; those of an older release adopt it, once. Raises Refused."""
        for table, at in self._taken.items():
            verified = upstream.verified(f"joins for {table}", at)
            if verified != at and verified.next_lsn > 1:
                self._commit(table, SCHEMAS[table].empty_table(), verified)
            self._taken[table] = verified

    def state(self) -> dict[str, int]:
        """The identity of the version tables and their position in the journal, as transactions of priced rows."""
        state: dict[str, int] = {}
        for table, writer in self._writers.items():
            state |= {f"{table}.table": table_hash(writer.table)}
            state |= {f"{table}.journal": self._taken[table].next_lsn}
        return state

    def refuse_other_than(self, usage: DeltaWriter) -> None:
        """Raises Refused when usage was priced from other version tables, or from later states of these."""
        known = {name: usage.recall(name) for name in self.state()}
        for table, writer in self._writers.items():
            before, at = known[f"{table}.table"], known[f"{table}.journal"] or 1
            if before not in (None, table_hash(writer.table)) or at > self._taken[table].next_lsn:
                raise Refused(
                    f"usage was priced with the versions in {table} up to lsn {at - 1} of the journal, but "
                    f"{writer.path} was recreated or rolled back; restore the {table} that priced it, {START_OVER}"
                )

    def take(self, changes: pl.DataFrame, position: Position) -> None:
        """Store the changes among journal rows (lsn, topic, value) that end before `position`."""
        for topic, table in TABLE_OF.items():
            new = changes.filter((pl.col("topic") == topic) & (pl.col("lsn") >= self._taken[table].next_lsn))
            versions = [version(topic, value, lsn) for lsn, value in new.select("lsn", "value").iter_rows()]
            rows = pa.Table.from_pylist([version for version in versions if version is not None], schema=SCHEMAS[table])
            if not rows.num_rows:
                continue
            news = without_repeats(table, self._versions[table].of(rows), rows)
            if news.num_rows:
                self._store(table, news, position)

    def _commit(self, table: Table, rows: pa.Table, position: Position) -> None:
        writer = self._writers[table]
        writer.commit(rows, {**transactions_of(Table.JOURNAL, position), LSN: writer.next_lsn})
        self._taken[table] = position

    def _store(self, table: Table, rows: pa.Table, position: Position) -> None:
        self._writers[table].grow_for(rows)
        self._commit(table, rows, position)
        self._versions[table].add(rows)
        if table is Table.ACCOUNTS:
            self._days = None

    def versions(self) -> tuple[VersionsInUse, VersionsInUse]:
        """Accounts and prices as `price` wants them."""
        return self._versions[Table.ACCOUNTS], self._versions[Table.PRICES]

    @property
    def at(self) -> tuple[tuple[Table, int], ...]:
        """Which versions of the tables hold these."""
        return tuple((table, writer.table.version()) for table, writer in self._writers.items())

    @property
    def stored(self) -> Mapping[Table, pa.Table]:
        """Every version, by table."""
        return {table: versions.every for table, versions in self._versions.items()}

    @property
    def days(self) -> BillingDays:
        """The calendar days of all accounts."""
        if self._days is None:
            self._days = BillingDays(self._versions[Table.ACCOUNTS].every)
        return self._days


def versions_in_use(held: Mapping[Table, pa.Table], dimensions: Sequence[str] = ()) -> dict[Table, VersionsInUse]:
    """What the tables hold, ready for pricing."""
    prices = with_stored_columns(held[Table.PRICES], PRICES).cast(PRICES)
    of_accounts = partial(account_versions, dimensions=dimensions)
    return {
        Table.ACCOUNTS: VersionsInUse(held[Table.ACCOUNTS].cast(ACCOUNTS), ("account",), of_accounts),
        Table.PRICES: VersionsInUse(prices, PRICE_KEY, price_versions),
    }


def version(topic: str, value: bytes | None, lsn: int) -> dict[str, Any] | None:
    """The version in an accepted change (`parse_change`); None where only an older ingestion could have accepted it."""
    try:
        return parse_change(topic, value, lsn)
    except InvalidChangeError as error:
        log.error("a catalog change of an older version is passed over", topic=topic, lsn=lsn, problem=str(error))
        return None


def without_repeats(table: Table, versions: pa.Table, changes: pa.Table) -> pa.Table:
    """The changes that differ from the previous version of their key, by lsn.

    A change that is published again, by a connector that does not know that it was, is no new version: it would split a
    line of a bill in two. So the first publisher is the author of a version. A killed connector publishes again, in
    order, where it is not sure. Such a change is recognised by its place in the database's log and its commit
    time. (Both, because in a restored database the log starts over, and a clock may go back. There the changes of one
    transaction, which have one time, are distinguished by their places.)
    """
    if changes.num_rows == 0:
        return changes
    key, new = KEY_OF[table], pl.DataFrame(changes)
    concerned = pl.DataFrame(versions.select(changes.column_names)).join(new, on=key, how="semi", nulls_equal=True)
    compared = [name for name in new.columns if name not in ("lsn", *NO_NEWS, *key)]
    reached = [pl.col(name).cum_max().forward_fill().shift(1).over(key) for name in SOURCE]
    place, at = SOURCE
    before = pl.col(place).cum_max().shift(1).over([*key, at])
    of_transaction = (pl.col(at) == reached[1]) & (pl.col(place) > before)
    is_later = pl.any_horizontal(
        pl.col(place) > reached[0], pl.col(at) > reached[1], of_transaction.fill_null(value=False)
    )
    # That there is a version before it is a value too: nulls of the first must not pass for a repeat.
    is_repeat = pl.all_horizontal(
        pl.int_range(pl.len()).over(key) > 0, *[pl.col(n).eq_missing(pl.col(n).shift(1).over(key)) for n in compared]
    )
    both = pl.concat([concerned, new.select(concerned.columns)]).sort("lsn")
    later = both.filter(is_later.fill_null(value=True)).with_columns(is_repeat=is_repeat)
    changed = later.filter(~pl.col("is_repeat"))
    news = changes.filter(pa.array(new["lsn"].is_in(changed["lsn"].implode()).to_list()))
    return ended_as_before(news, changed) if table is Table.PRICES else news
