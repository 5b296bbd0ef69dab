"""The end of the table that a job reads, and whether it is still the table of the job's position."""

from __future__ import annotations

import threading
from datetime import datetime

import structlog
from deltalake import DeltaTable

from jobs.runtime.delta.followed import FollowedTable
from jobs.runtime.delta.known_commit import MAX_COMMITS, KnownCommit, Log
from jobs.runtime.delta.position import FINGERPRINT, Position, row_hash, table_hash
from jobs.runtime.delta.rows_by_lsn import count_from, rows_at
from jobs.runtime.delta.table import FRONTIER, LSN, REMOVED, instant_of, open_table
from jobs.runtime.errors import START_OVER, Refused
from jobs.streams import Table
from metering.vocabulary import ALWAYS

log = structlog.get_logger()


def no_table(job: str, table: Table, next_lsn: int, path: str) -> Refused:
    """For a job that has read a table which is not there: waiting for a new one would read that as the old one."""
    return Refused(
        f"{job} has read {table} up to lsn {next_lsn - 1}, but there is no table at {path}; restore it, or name the "
        "folder or bucket where it is"
    )


class Upstream:
    """The input table's last commit, as of the last `refresh`.

    Commits are read one by one from the log, and the table only where that does not say all. delta-rs reads the list of
    live files with each: 7 microseconds a file, for what is a number and an instant.
    """

    def __init__(self, tables: str, table: Table) -> None:
        self._tables = tables
        self._name = table
        self._path = f"{tables}/{table}"
        self._followed: FollowedTable | None = None
        self._held: KnownCommit | None = None
        # The batch's thread and the reporting one look at the same handle; each would decide with half of the other's.
        self._looking = threading.Lock()
        self._transactions: dict[str, int | None] = dict.fromkeys((LSN, FRONTIER))
        self.columns: tuple[str, ...] = ()
        """The table's columns; it may get more while it is read."""
        self.next_lsn = 1
        self.frontier: datetime | None = None
        self.reached: tuple[int, int] | None = None
        """A version and the lsn after it, consistent also under concurrent looks; None without a table."""

    @property
    def version(self) -> int | None:
        """The table's version; None before it exists."""
        return None if self.reached is None else self.reached[0]

    @property
    def table(self) -> DeltaTable | None:
        """The table as of the last look, or a later one; None before it exists."""
        with self._looking:
            if self._followed is None:
                return None
            if self._held is not None and self._followed.table.version() < (self.version or 0):
                self._open(self._followed, self._held)
            return self._followed.table

    def reaches(self, version: int) -> bool:
        """Whether the table's log still has the commits after `version`."""
        return self._held is not None and self._held.has(version)

    def goes_on(self) -> bool:
        """Whether a commit follows the last that was seen: a look that costs a hundredth of a `refresh`.

        Where that one is gone from the log, so may be those that followed. It does not see that a log was rolled back;
        who reports how far behind a job is looks at that.
        """
        return self.reached is None or self.reaches(self.reached[0] + 1) or not self.reaches(self.reached[0])

    def refresh(self) -> None:
        """Look again. Raises Refused when the table is no longer the one that was looked at before."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        if self._followed is None or self._held is None:
            if (found := open_table(self._tables, self._name)) is not None:
                held = KnownCommit(self._path)
                self._take(found, held)
                self._followed, self._held = FollowedTable(found), held
            return
        table_id = _id_of(self._followed.table)
        self._refuse_another_log(table_id, self._held)
        if not self._follow(table_id, self._held):
            self._open(self._followed, self._held)

    def _open(self, followed: FollowedTable, held: KnownCommit) -> None:
        """Read the newest version. Raises Refused where the log was replaced before that."""
        table_id = _id_of(followed.table)
        table = followed.refresh(self.version or 0)
        self._refuse_another_log(table_id, held)
        self._take(table, held)

    def _take(self, table: DeltaTable, held: KnownCommit) -> None:
        """What this version of the table says."""
        self.columns = tuple(field.name for field in table.schema().fields)
        self._transactions = {name: table.transaction_version(name) for name in self._transactions}
        self._reach(held, int(table.version()))

    def _reach(self, held: KnownCommit, version: int) -> None:
        held.hold_version(version)
        self.next_lsn = self._transactions[LSN] or 1
        self.frontier = instant_of(self._transactions[FRONTIER])
        self.reached = version, self.next_lsn

    def _follow(self, table_id: str, held: KnownCommit) -> bool:
        """Take the commits since. False where the table has to be read: of other columns, or of too many commits.

        Raises Refused where the log was replaced meanwhile.
        """
        version, found = self.version or 0, dict(self._transactions)
        for _ in range(MAX_COMMITS):
            if (actions := held.commit(version + 1)) is None:
                # Commits that are gone from the log are in a checkpoint, which the table has.
                is_there = held.has(version)
                if is_there and version > (self.version or 0):
                    self._refuse_another_log(table_id, held)
                    self._transactions = found
                    self._reach(held, version)
                return is_there
            if any("metaData" in action or "protocol" in action for action in actions):
                return False
            version += 1
            moved = [action["txn"] for action in actions if "txn" in action]
            found |= {txn["appId"]: txn["version"] for txn in moved if txn["appId"] in found}
        return False

    def _refuse_another_log(self, table_id: str, held: KnownCommit) -> None:
        state = held.log()
        if state is Log.SAME:
            return
        now = open_table(self._tables, self._name)
        # A commit may be cleaned away while it is the newest that is known here; a log that ends before it was cut off.
        cleaned = state is Log.GONE and now is not None and now.version() >= (self.version or 0)
        if now is None or not cleaned or _id_of(now) != table_id:
            raise Refused(
                f"{self._path} was deleted, recreated or rolled back while it was read; put it back as it was, and "
                "start again: a start says whether it is the table that was read"
            )

    def verified(self, job: str, stored: Position) -> Position:
        """`stored`, the position of `job` in this table, with the identity of both; `refresh` comes before it.

        A position of a version that knew no identity adopts the table. Raises Refused for a position of another table,
        of a later state of this one, or of a state that was rolled back.
        """
        if (table := self.table) is None:
            return stored
        verified = identified(table, self._name, self._path, job, stored)
        if stored.table is None and stored.next_lsn > 1:
            log.warning("an older version's position adopts its table", job=job, lsn=stored.next_lsn, path=self._path)
        return verified

    def refuse_removed(self, job: str, position: int) -> None:
        """Raises Refused where `weir retain` has removed rows that `job` has yet to read, before it reads any."""
        if (table := self.table) is None or table.transaction_version(REMOVED) == 0:
            return
        if removed := max(0, self.next_lsn - position - count_from(table, position)):
            raise Refused(
                f"{job} has yet to read {self._name} from lsn {position} on, but `weir retain` has removed {removed} "
                f"rows from there on; restore the {self._name} that has them"
                + ("" if job in ALWAYS else f", or run without {job}")
            )


def _id_of(table: DeltaTable) -> str:
    """Who follows a log keeps it: the handle's own may be another one once it was refreshed."""
    return str(table.metadata().id)


def identified(found: DeltaTable, name: Table, path: str, job: str, stored: Position) -> Position:
    """`stored`, the position of `job` in the table at `path`, with the identity of both.

    Raises Refused for a position of another table, of a later state of this one, or of a state that was rolled back.
    """
    folded = f"{job} has read {name} up to lsn {stored.next_lsn - 1}"
    table, next_lsn = table_hash(found), found.transaction_version(LSN) or 1
    if stored.table not in (None, table):
        raise Refused(
            f"{folded}, but of another table than {path}: that was recreated, or belongs to another database; put "
            f"back the {name} that was read, {START_OVER}"
        )
    if stored.next_lsn > next_lsn:
        raise Refused(
            f"{folded}, but {path} ends before lsn {next_lsn}: it is older than what was made of it; restore the "
            f"newer {name}, {START_OVER}"
        )
    row = _row_before(found, name, stored.next_lsn)
    if row is None:
        # Retention took it. A table that was rolled back and has grown since has a row there, and another one.
        row = stored.row
    if stored.row not in (None, row):
        raise Refused(
            f"{folded}, but {path} has another row there: it was rolled back and has grown since; restore the "
            f"{name} that was read, {START_OVER}"
        )
    return Position(stored.next_lsn, table, row)


def _row_before(table: DeltaTable, name: Table, next_lsn: int) -> int | None:
    """The fingerprint of the row before a position, read from the only file that can hold it."""
    if next_lsn == 1:
        return None
    found = rows_at(table, next_lsn - 1, FINGERPRINT[name])
    rows = [row for part, _ in found for row in part.iter_rows(named=True)]
    return row_hash(name, next_lsn - 1, rows[0]) if len(rows) == 1 else None
