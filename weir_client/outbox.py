"""Events on disk, in one SQLite file, until they are sent. Several processes may share it; one of them sends at a time.

What `append` has returned from survives a kill of the process and a loss of power.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from weir_client.errors import OutboxDamaged, OutboxError, OutboxFull

FORMAT = 1
"""In `user_version`; 0 is a new file."""
DEFAULT_MAX_BYTES = 1 << 30
LOCKED_FOR_SECONDS = 30.0
"""How long another process may hold the file: for one transaction, so for milliseconds."""

_CREATE = "CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB NOT NULL)"
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Outbox:
    """A queue of encoded events, for any thread, and for a process after `fork`. All methods raise OutboxError."""

    def __init__(self, path: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._files: sqlite3.Connection | None = None
        self._sender: sqlite3.Connection | None = None
        self._of_parents: list[sqlite3.Connection | None] = []
        with self._database():
            pass

    def append(self, bodies: Sequence[bytes]) -> None:
        """Keep events, all or none."""
        with self._transaction() as database:
            database.executemany("INSERT INTO events (body) VALUES (?)", [(body,) for body in bodies])

    def last(self) -> int:
        """The number of the event that was appended last, in it or not; 0: there was never one."""
        with self._database() as database:
            (last,) = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone() or (0,)
        return int(last)

    def oldest(self, max_events: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """Numbers and bodies, the oldest first: as many as the limits allow, and one at least if there is any."""
        found: list[tuple[int, bytes]] = []
        size_bytes = 0
        with self._database() as database:
            for number, body in database.execute(
                "SELECT number, body FROM events ORDER BY number LIMIT ?", [max_events]
            ):
                size_bytes += len(body) + 1
                if found and size_bytes > max_bytes:
                    break
                found.append((number, body))
        return found

    def remove(self, numbers: Sequence[int]) -> None:
        """Forget events."""
        with self._transaction() as database:
            database.executemany("DELETE FROM events WHERE number = ?", [(number,) for number in numbers])

    def first(self) -> int | None:
        """The number of the oldest event; None where it is empty."""
        with self._database() as database:
            (number,) = database.execute("SELECT min(number) FROM events").fetchone()
        return None if number is None else int(number)

    def __len__(self) -> int:
        """How many events it holds."""
        with self._database() as database:
            (count,) = database.execute("SELECT count(*) FROM events").fetchone()
        return int(count)

    def become_sender(self) -> bool:
        """Whether this is the one that may send: until `close`, or until the process ends, however it does."""
        self._renew_after_fork()
        with self._lock, self._explained():
            if self._sender is not None:
                return True
            sender = sqlite3.connect(f"{self.path}.sender", timeout=0, isolation_level=None, check_same_thread=False)
            try:
                sender.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                sender.close()
                if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                    return False
                raise
            self._sender = sender
            return True

    def close(self) -> None:
        """Close the files; what is in them stays, and the next call opens them again."""
        self._renew_after_fork()
        with self._lock, self._explained():
            for connection in (self._sender, self._files):
                if connection is not None:
                    connection.close()
            self._sender = self._files = None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._database() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        self._renew_after_fork()
        with self._lock, self._explained():
            if self._files is None:
                self._files = self._opened()
            yield self._files

    def _renew_after_fork(self) -> None:
        """A parent's connections must not be used, nor closed, which would give up its locks; its lock may be held."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.RLock()
            self._of_parents += [self._files, self._sender]
            self._files = self._sender = None

    def _opened(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=LOCKED_FOR_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            (found,) = database.execute("PRAGMA user_version").fetchone()
            if found > FORMAT:
                raise OutboxError(f"The outbox {self.path} is of a later release: its format is {found}, not {FORMAT}.")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            (page_bytes,) = database.execute("PRAGMA page_size").fetchone()
            database.execute(f"PRAGMA max_page_count = {max(1, self._max_bytes // page_bytes)}")
            database.execute(_CREATE)
            database.execute(f"PRAGMA user_version = {FORMAT}")
        except BaseException:
            database.close()
            raise
        return database

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """SQLite's errors as sentences."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise OutboxFull(
                    f"The outbox {self.path} is full: it has reached {self._max_bytes} bytes, or the disk has no room."
                    " Nothing of this call was kept; see why the API takes no events."
                ) from error
            if code in _DAMAGED:
                raise OutboxDamaged(
                    f"The outbox {self.path} is damaged, or not an outbox ({error}). Move it away, and start with a new"
                    f" one; `sqlite3 {self.path} .recover` reads what is left of its events."
                ) from error
            raise OutboxError(f"The outbox {self.path} cannot be used: {error}.") from error
