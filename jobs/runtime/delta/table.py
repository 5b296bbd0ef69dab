"""One driver's handle on a Delta table: it commits Arrow tables with its epoch and positions, or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import obstore
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    PostCommitHookProperties,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from obstore.exceptions import AlreadyExistsError

from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.followed import FollowedTable
from jobs.runtime.delta.growth import (
    COMPATIBLE_FROM,
    SCHEMA_VERSION,
    missing_columns,
    refuse_newer,
    stored_version,
    with_stored_columns,
)
from jobs.runtime.delta.known_commit import KnownCommit, Log
from jobs.runtime.delta.new_files import LOG_DATE, Folder, NewFile
from jobs.runtime.delta.object_store import PATIENCE, Patience, storage_options, store_of
from jobs.runtime.delta.own_commit import may_commit, put_commit
from jobs.runtime.delta.parquet import of_few_rows
from jobs.runtime.errors import Fenced, Outrun, Refused
from jobs.streams import GROWING, SCHEMA_VERSIONS, SCHEMAS, Table, compatible_from

log = structlog.get_logger()

LSN = "lsn"
LOGGED_AT = "logged_at"
FRONTIER = "frontier"
REMOVED = "removed"
"""The transaction that counts the rows that `weir retain` has removed from a table."""
STATISTICS = {
    *("lsn", "log_date", "partition", "offset", "replays_lsn"),
    *("received_at", "logged_at", "occurred_at", "event_time", "effective_from"),
}
LOG_SETTINGS = {"delta.logRetentionDuration": "interval 3 hours", "delta.enableExpiredLogCleanup": "true"}
"""How long the log says how a table came to be. A reader that is further behind begins with what the table holds."""
AFTER_COMMIT = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""A commit does not look through the log for what has expired: `LogCleanup` does, beside it."""
ONE_FILE_BYTES = 1 << 40
"""What delta-rs writes in one commit is one file, however large: rows of a commit stay in the order of lsn, and a batch
has few files. (Tasks of a large batch write several, `append_files`; Delta shows a reader all of a commit or none.)
"""
CLOCK = MachineClock()
"""For what the log says of a commit's time, by which nothing is decided."""
MAX_PUTS = 100
"""Of one commit. S3 also denies a version while another's put of it is under way, and the log does not show it yet."""
KNOWN_SECONDS = 600.0
"""How long after its last look a driver trusts that no later commit is gone from the log again: that takes three hours.
"""


def open_table(tables: str, table: Table, patience: Patience = PATIENCE) -> DeltaTable | None:
    """The table as it is now; None if it does not exist yet."""
    try:
        return DeltaTable(f"{tables}/{table}", storage_options=storage_options(tables, patience))
    except TableNotFoundError:
        return None


def open_to_change(tables: str, table: Table) -> DeltaTable | None:
    """As `open_table`, to change the table or decide by it. Raises Refused for a newer version's table."""
    found = open_table(tables, table)
    if found is not None:
        refuse_newer(found, SCHEMA_VERSIONS[table])
    return found


def committed_epoch(tables: str, table: Table, job: str) -> int:
    """The newest epoch of `job` in the table; 0 for none.

    Raises Refused for a table that a newer version writes: its driver would be fenced, and none could replace it.
    """
    found = open_to_change(tables, table)
    return 0 if found is None else found.transaction_version(f"{job}.epoch") or 0


def instant_of(transaction_version: int | None) -> datetime | None:
    """A frontier as a transaction stores it, in microseconds since 1970."""
    return None if not transaction_version else datetime.fromtimestamp(transaction_version / 1_000_000, UTC)


def microseconds_of(instant: datetime) -> int:
    """Microseconds since 1970, exactly."""
    elapsed = instant - datetime(1970, 1, 1, tzinfo=UTC)
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds


def numbered(rows: pl.DataFrame, first_lsn: int) -> pl.DataFrame:
    """Rows with their `lsn`, from `first_lsn` on in their order. (A row index of Polars ends at 2^32.)"""
    return rows.select((pl.int_range(pl.len(), dtype=pl.Int64) + first_lsn).alias("lsn"), pl.all())


def removed_rows(topic: str, partition: int) -> str:
    """The transaction of the journal that counts the rows of a partition that were removed from it, one a record."""
    return f"removed:{topic}:{partition}"


class DeltaWriter:
    """Appends to one table for one job and epoch.

    `known` holds the transaction versions as this driver's last commit left them. A commit first looks whether the
    watched ones still stand: the epoch, `lsn`, and what `watch` names. (Each look costs a millisecond, so not all.)
    delta-rs then refuses two concurrent commits, because both carry the transaction `lsn`.
    """

    def __init__(
        self,
        tables: str,
        table: Table,
        job: str,
        epoch: int,
        driver: int = 0,
        *,
        declared: Iterable[pa.Field] = (),
        own_commits: bool = True,
    ) -> None:
        """`driver` is a number that only one process has: with it that process may take its own epoch again.

        `declared`: columns that a configuration adds to those of the table's schema. `own_commits`: this driver
        writes files and commits itself where it can; else delta-rs does.
        """
        self._own_commits = own_commits
        self.path = f"{tables}/{table}"
        self._version, self._oldest_writer = SCHEMA_VERSIONS[table], compatible_from(table)
        self._growing = GROWING.get(table, ())
        of_table = [field for field in SCHEMAS[table] if field.name not in self._growing]
        self._schema = pa.schema([*of_table, *declared])
        self._epoch = f"{job}.epoch"
        self._driver = f"{job}.driver"
        named = [name for name in self._schema.names if name in STATISTICS]
        self.statistics = frozenset(named)
        """Columns of which the log keeps statistics for each file."""
        self._settings = {"delta.dataSkippingStatsColumns": ",".join(named), **LOG_SETTINGS}
        probe_put_if_absent(tables, job, epoch)
        created = DeltaTable.create(
            self.path,
            self._schema,
            mode="ignore",
            storage_options=storage_options(tables),
            partition_by=["log_date"] if "log_date" in self._schema.names else None,
            configuration=self._settings,
        )
        self._followed = FollowedTable(created)
        self._at: int | None = None
        """The version at which all that this driver watches was as it is known; None: that is to be looked at."""
        self._looked = 0.0
        """When that was."""
        self.folder = Folder(self.path, created._storage_options)
        """The table's folder, for files that are written beside those of its log."""
        self._held = KnownCommit(self.path)
        self.known: dict[str, int | None] = {}
        self._watched = [self._epoch, LSN]
        self._grow(self._take(epoch, driver))
        self._stored = pa.schema(self.table.schema().to_arrow())
        self._held.hold(self.table)

    def _take(self, epoch: int, driver: int) -> list[Field]:
        """Commit the epoch; gives the columns that an older version's table lacks. Raises Fenced and Refused."""
        self.table.update_incremental()
        refuse_newer(self.table, self._version)
        committed = self.table.transaction_version(self._epoch) or 0
        is_mine = driver != 0 and self.table.transaction_version(self._driver) == driver
        if committed > epoch or (committed == epoch and not is_mine):
            raise Fenced(f"{self.path} knows {self._epoch} {committed}, this driver has {epoch}")
        next_lsn = self.table.transaction_version(LSN) or 1
        self._stored = pa.schema(self.table.schema().to_arrow())
        taken = {self._epoch: epoch, self._driver: driver, LSN: next_lsn}
        if next_lsn == 1:
            # The table was empty, so nothing was removed: a row that is missing later is a loss.
            taken[REMOVED] = 0
        missing = missing_columns(self.table, self._schema)
        if LOG_DATE in self._schema.names and self.table.metadata().partition_columns != [LOG_DATE]:
            # Files of drivers and tasks say it by their partition alone.
            raise Refused(
                f"{self.path} is not partitioned by {LOG_DATE}: another program made or copied it; put back the table "
                "that Weir wrote"
            )
        if not missing:
            taken |= self._schema_transactions()
        # Also when the epoch is taken again: a commit of mine that is still on its way cannot arrive after this one.
        self._write(self._stored.empty_table(), taken)
        self.known.update({self._epoch: epoch, LSN: next_lsn})
        return missing

    def _grow(self, missing: list[Field]) -> None:
        """Add the columns and settings that an older version's table lacks: commits of their own, fenced as any other.

        A driver killed before or after it leaves a table that the next one can grow or write. Spark's streams end at it
        and are rebuilt by their drivers (`Source.can_go_on`).
        """
        if missing:
            self.table.alter.add_columns(
                missing, commit_properties=committing(self._fence()), post_commithook_properties=AFTER_COMMIT
            )
        if not self._settings.items() <= self.table.metadata().configuration.items():
            self.table.alter.set_table_properties(
                self._settings, commit_properties=committing(self._fence()), post_commithook_properties=AFTER_COMMIT
            )
        if (self.table.transaction_version(SCHEMA_VERSION) or 0) < self._version:
            # Last: a driver that is killed before leaves a table that still has to grow.
            self._stored = pa.schema(self.table.schema().to_arrow())
            self._write(self._stored.empty_table(), {**self._fence(), **self._schema_transactions()})

    def _schema_transactions(self) -> dict[str, int]:
        """What the log says of the schema: nothing new where a newer version has written it, which is read as well."""
        if stored_version(self.table) > self._version:
            return {}
        return {SCHEMA_VERSION: self._version, COMPATIBLE_FROM: self._oldest_writer}

    def grow_for(self, rows: pa.Table) -> None:
        """Add the columns of GROWING that these rows have a value in, before they are committed."""
        needed = [name for name in self._growing if rows[name].null_count < len(rows)]
        if not set(needed) - set(self._stored.names):
            return
        missing = missing_columns(self.table, pa.schema([*self._schema, *map(rows.schema.field, needed)]))
        self._refuse_moved()
        self._at = None
        self._grow(missing)
        self._stored = pa.schema(self.table.schema().to_arrow())
        self._held.hold(self.table)

    def _fence(self) -> dict[str, int]:
        return {name: version for name in (self._epoch, LSN) if (version := self.known[name]) is not None}

    def recall(self, transaction: str) -> int | None:
        """A transaction's version in this driver's snapshot; None before it was ever written."""
        version: int | None = self.table.transaction_version(transaction)
        self.known[transaction] = version
        return version

    def watch(self, transaction: str) -> int | None:
        """As `recall`; from now on the transaction must stay as this driver leaves it."""
        self._watched.append(transaction)
        return self.recall(transaction)

    @property
    def table(self) -> DeltaTable:
        """The snapshot of this driver's last commit, or a later one."""
        if self._at is not None and self._followed.table.version() < self._at:
            self._followed.refresh(self._at)
        return self._followed.table

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows that this driver writes; the table may have more, of another configuration."""
        return self._schema

    @property
    def stored(self) -> pa.Schema:
        """All columns that the table has."""
        return self._stored

    @property
    def next_lsn(self) -> int:
        """The lsn of the next row."""
        next_lsn = self.known[LSN]
        assert next_lsn is not None
        return next_lsn

    def commit(self, rows: pa.Table, transactions: Mapping[str, int]) -> None:
        """Append `rows` (the table's schema, lsn from `next_lsn`) and move `transactions` in one commit.

        Raises Fenced when the table is not as this driver's last commit left it: Outrun, when it only has more rows.
        After any other error the outcome is unknown: the driver must end and derive its memory again.
        """
        stored = with_stored_columns(rows, self._stored)
        is_own = self._may_put and _is_of_one_day(stored)
        self._refuse_other_log(must_look=not is_own)
        if is_own:
            files = [self.folder.write(stored, _logged_at(stored), self.statistics)] if len(stored) else []
            self._put(files, {**self._fence(), **transactions})
        else:
            self._write(stored, {**self._fence(), **transactions})
            self.known.update(transactions)

    def commit_files(self, files: Sequence[NewFile], transactions: Mapping[str, int]) -> None:
        """As `commit`, of rows that others have written into files beside the table's, in order of lsn."""
        self._refuse_other_log(must_look=not self._may_put)
        self._put(files, {**self._fence(), **transactions})

    @property
    def _may_put(self) -> bool:
        """Whether this driver may commit files itself."""
        return self._own_commits and LOG_DATE in self._schema.names and may_commit(self._followed.table)

    def _refuse_other_log(self, *, must_look: bool) -> None:
        """Raise Fenced where the table is not as this driver left it.

        For a commit of its own it looks at one object of the log, since the store refuses a version that is there. A
        commit of delta-rs goes on from the handle's version, so all that is watched is compared in that version first;
        so where nothing is known of the last version, or was looked at for long.
        """
        held = self._held.log()
        is_expired = held is Log.GONE and self._goes_on_after_held()
        if held is not Log.SAME and not is_expired:
            raise Fenced(f"{self.path} was deleted, recreated or rolled back below this driver")
        is_recent = self._at is not None and time.monotonic() - self._looked < KNOWN_SECONDS
        if must_look or self._at is None or not is_recent or is_expired or not self._held.holds(self._at):
            self._look()

    def _goes_on_after_held(self) -> bool:
        """Whether the held commit may have expired: others came after it, and the newest one is never cleaned away.

        The handle may have seen later versions, which no log may lack.
        """
        newest = DeltaTable(self.path, storage_options=storage_options(self.path)).version()
        return self._held.version < newest >= self._followed.table.version()

    def _look(self) -> None:
        """Follow the log to its end. Raises as `_refuse_moved`."""
        found, self._at = self._followed.refresh(self._at or 0), None
        self._refuse_moved()
        self._reached(int(found.version()))

    def _reached(self, version: int) -> None:
        """All that this driver watches is as it is known in this version, which is the newest now."""
        self._held.hold_version(version)
        self._at, self._looked = version, time.monotonic()

    def append(self, made: Callable[[int], tuple[pa.Table, Mapping[str, int]]]) -> None:
        """As `commit`, to a table that another application also appends to: joins and the audit both write usage.

        `made` gives the rows and transactions from the lsn of the next row on; it is called again when another commit
        was faster. A commit that lost against it was not made: otherwise the transactions that this driver watches
        would have moved.
        """
        self._until_alone(lambda next_lsn: self.commit(*made(next_lsn)))

    def append_files(self, made: Callable[[int], tuple[Sequence[NewFile], Mapping[str, int]]]) -> None:
        """As `append`, of files that `made` has others write; what it wrote before is in no commit."""
        self._until_alone(lambda next_lsn: self.commit_files(*made(next_lsn)))

    def _until_alone(self, commit: Callable[[int], None]) -> None:
        while True:
            known = dict(self.known)
            try:
                return commit(self.next_lsn)
            except Outrun:
                log.info("others have appended meanwhile; the rows get other numbers", table=self.path)
            except CommitFailedError:
                if self.known != known:
                    # The commit was made, and what failed is the checkpoint after it.
                    raise
                self.table.update_incremental()
                if self.table.transaction_version(LSN) == self.known[LSN]:
                    raise

    def _refuse_moved(self) -> None:
        moved = [name for name in self._watched if self.table.transaction_version(name) != self.known[name]]
        for name in moved:
            found, known = self.table.transaction_version(name), self.known[name]
            if moved == [LSN] and found is not None and known is not None and found > known:
                self.known[LSN] = found
                raise Outrun(f"{self.path} goes on at lsn {found}, this driver left it at {known}")
            raise Fenced(f"{self.path}: {name} is at {found}, this driver left it at {known}")

    def _put(self, files: Sequence[NewFile], transactions: Mapping[str, int]) -> None:
        """Commit files as the version after the one that is known: if that is there already, its table is looked at.

        Raises CommitFailedError where that goes on and on; nothing is committed then.
        """
        for _ in range(MAX_PUTS):
            if not self._may_put:
                self._add(files, transactions)
                self.known.update(transactions)
                return
            assert self._at is not None, "the table was not looked at"
            if put_commit(self.folder.store, self._at + 1, files, transactions, CLOCK.now()):
                self._reached(self._at + 1)
                # Before the checkpoint, which may fail: an error must not leave this driver with the lsn before.
                self.known.update(transactions)
                if self._followed.is_due(self._at):
                    self._followed.write_checkpoint()
                return
            self._look()
        raise CommitFailedError(
            f"{self.path}: the store said {MAX_PUTS} times that the next version is there already; the newest commit "
            f"in its log is {self._at}"
        )

    def _write(self, rows: pa.Table, transactions: Mapping[str, int]) -> None:
        """Commit rows (`stored`) of any number and log dates by delta-rs, from the handle's version on."""
        handle, self._at = self._followed.table, None
        write_deltalake(
            handle,
            rows,
            mode="append",
            target_file_size=ONE_FILE_BYTES,
            writer_properties=of_few_rows(rows),
            commit_properties=committing(transactions),
            post_commithook_properties=AFTER_COMMIT,
        )
        self._held.hold(handle)

    def _add(self, files: Sequence[NewFile], transactions: Mapping[str, int]) -> None:
        """Commit files by delta-rs, from the handle's version on."""
        handle, self._at = self._followed.table, None
        handle.create_write_transaction(
            [file.action() for file in files],
            mode="append",
            schema=handle.schema(),
            partition_by=handle.metadata().partition_columns,
            commit_properties=committing(transactions),
            post_commithook_properties=AFTER_COMMIT,
        )
        # Unlike `write_deltalake` this leaves the handle at the version before.
        handle.update_incremental()
        self._held.hold(handle)


def _is_of_one_day(rows: pa.Table) -> bool:
    """Whether rows (log_date, logged_at) are one file of one log date, or none."""
    return not len(rows) or bool(pc.all(pc.equal(rows[LOG_DATE], _logged_at(rows).date())).as_py())


def _logged_at(rows: pa.Table) -> datetime:
    """Of the first row."""
    found: datetime = rows[LOGGED_AT][0].as_py()
    return found


def committing(transactions: Mapping[str, int]) -> CommitProperties:
    """The content of a commit besides its rows."""
    return CommitProperties(app_transactions=[Transaction(name, version) for name, version in transactions.items()])


def probe_put_if_absent(tables: str, job: str, epoch: int) -> None:
    """Refuse a store on which two drivers could both create the same commit."""
    store = store_of(tables, os.environ)
    name = f"_probe/{job}.{epoch}"
    obstore.put(store, name, b"", mode="overwrite")
    try:
        obstore.put(store, name, b"", mode="create")
    except AlreadyExistsError:
        obstore.delete(store, name)
        return
    raise Refused(
        f"the store of {tables} let a file be created twice, so it cannot fence drivers; use a store with "
        "conditional put (a local or POSIX file system, S3 since 2024, GCS, Azure)"
    )
