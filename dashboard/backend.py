"""The sources that pages query: Postgres, Delta tables, Prometheus, Alertmanager, Kubernetes; always within the scope.

A question is a function whose first argument is a `Backend`. It raises `NotConnected` or `Unavailable`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from psycopg.rows import dict_row

from dashboard.scope import Scope
from dashboard.settings import Settings
from jobs.queries.reading import PLANNED

CONNECT_TIMEOUT_SECONDS = 3
PART_ROWS = 65_536
"""Of a table, in memory at once where a month of it may match."""

_OPENING = f"""
    SELECT {PLANNED}, set_config('weir.accounts', %(accounts)s, true), set_config('TimeZone', 'UTC', true),
           set_config('statement_timeout', %(timeout)s, true), row_security_active('usage_windows') AS is_guarded
"""

HANDLES: dict[str, DeltaTable] = {}
"""Open tables by address: bringing one up to date costs milliseconds, opening it reads its whole log."""
_handles_lock = threading.Lock()


class NotConnected(Exception):
    """The settings name no such source; the sentence says how to connect it."""


class Unavailable(Exception):
    """The source does not answer, or not in time; the sentence says which, without any secret."""


@dataclass(frozen=True)
class Backend:
    """Where answers come from, and whose rows they may be about."""

    settings: Settings
    statement_timeout_seconds: float = 5

    @property
    def scope(self) -> Scope:
        """Whose rows may be seen."""
        return self.settings.scope

    @contextmanager
    def snapshot(self) -> Iterator[psycopg.Cursor[dict[str, Any]]]:
        """A read-only transaction of Postgres that sees one moment, in UTC, the scope's rows only, within a time limit.

        Its role must be one that row-level security holds, unless everything may be seen anyway.
        """
        url = self.settings.postgres_url
        if not url:
            raise NotConnected("WEIR_POSTGRES_URL is not set: start the dashboard with `weir up`, or set it.")
        try:
            with psycopg.connect(
                url,
                connect_timeout=CONNECT_TIMEOUT_SECONDS,
                application_name="weir dashboard",
                row_factory=dict_row,
            ) as connection:
                connection.read_only = True
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                with connection.cursor() as cursor:
                    limits = {"accounts": self.scope.setting, "timeout": f"{self.statement_timeout_seconds}s"}
                    opened = cursor.execute(_OPENING, limits).fetchone()
                    if not self.scope.is_all and not (opened and opened["is_guarded"]):
                        raise Unavailable(
                            f"The database {place(url)} is read as the owner of its tables, to whom row-level "
                            "security does not apply: connect as weir_dashboard, or unset WEIR_ACCOUNTS."
                        )
                    yield cursor
        except psycopg.Error as error:
            raise Unavailable(_sentence(error, url, self.statement_timeout_seconds)) from error

    def table(self, name: str) -> DeltaTable | None:
        """The newest version of a Delta table; None before it was made. Its rows are not yet the scope's only."""
        root = self.settings.tables
        if not root:
            raise NotConnected("WEIR_TABLES is not set: set it to the root of the Delta tables (`weir up` does).")
        uri = f"{root}/{name}"
        try:
            with _handles_lock:
                if uri in HANDLES:
                    HANDLES[uri].update_incremental()
                else:
                    HANDLES[uri] = DeltaTable(uri)
                return HANDLES[uri]
        except (DeltaError, OSError) as error:
            was_known = HANDLES.pop(uri, None) is not None
            if isinstance(error, TableNotFoundError) and not was_known:
                return None
            raise Unavailable(f"The table {name} below {root} cannot be read: {type(error).__name__}.") from error

    def read(self, table: DeltaTable, name: str) -> pl.DataFrame:
        """All of its rows; the caller filters them by the scope."""
        return pl.concat(self.parts(table, name))

    def parts(self, table: DeltaTable, name: str, where: pc.Expression | None = None) -> Iterator[pl.DataFrame]:
        """The rows that match, about PART_ROWS at a time; the caller filters them by the scope.

        Only files that may hold some are opened. There is a part also where nothing matches.
        """
        try:
            dataset = table.to_pyarrow_dataset()
            batches: list[pa.RecordBatch] = []
            for batch in dataset.to_batches(filter=where):
                batches.append(batch)
                if sum(batch.num_rows for batch in batches) >= PART_ROWS:
                    yield pl.DataFrame(pa.Table.from_batches(batches))
                    batches = []
            yield pl.DataFrame(pa.Table.from_batches(batches, dataset.schema))
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise Unavailable(f"The table {name} cannot be read: {type(error).__name__}.") from error


def place(url: str) -> str:
    """Where a database is, without the user and password of its address.

    A password whose @, / or : is not written as %40, %2F or %3A reaches into the other parts: then none is shown.
    """
    try:
        address = urlsplit(url)
        host, port = address.hostname or "localhost", address.port or 5432
    except ValueError:
        return "of WEIR_POSTGRES_URL"
    is_whole = "@" not in host + address.path + address.query + address.fragment
    return f"{host}:{port}{address.path}" if is_whole else "of WEIR_POSTGRES_URL"


def _sentence(error: psycopg.Error, url: str, limit_seconds: float) -> str:
    if isinstance(error, psycopg.errors.QueryCanceled):
        return f"The database {place(url)} took longer than {limit_seconds} s: choose a shorter time."
    if isinstance(error, psycopg.OperationalError):
        return f"The database {place(url)} does not answer."
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return (
            f"The database {place(url)} has the schema of another version of Weir: migrate it "
            "(`python -m jobs migrate`), or run the dashboard of its version."
        )
    return f"The database {place(url)} cannot be read: {type(error).__name__}."
