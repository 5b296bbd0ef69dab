"""Reading lists: options that select rows, and a read-only snapshot of the stack's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import psycopg
import typer
from psycopg.rows import dict_row

from deployment.errors import CannotRun
from jobs.audit.period import check_range as check_range  # noqa: PLC0414  # every command finds it here
from jobs.audit.period import instant as instant  # noqa: PLC0414  # and it
from jobs.queries.reading import PLANNED, Database

STATEMENT_TIMEOUT_SECONDS = 120


def zone(name: str | ZoneInfo) -> ZoneInfo:
    """A time zone by its IANA name. Raises `typer.BadParameter` for an unknown one."""
    try:
        return ZoneInfo(str(name))  # Typer passes the default, a zone, through here too
    except (KeyError, ValueError, OSError):
        raise typer.BadParameter(f"{name!r} is no time zone such as UTC or Europe/Berlin.") from None


FromOption = Annotated[
    datetime | None, typer.Option("--from", parser=instant, metavar="INSTANT", help="From here on (RFC 3339).")
]
ToOption = Annotated[
    datetime | None, typer.Option("--to", parser=instant, metavar="INSTANT", help="Up to here, exclusive (RFC 3339).")
]
AccountOption = Annotated[list[str] | None, typer.Option("--account", help="Only this account; may be repeated.")]


@contextmanager
def read_only(postgres_url: str) -> Iterator[Database]:
    """A connection that sees one snapshot, cannot write, and gives up on a statement that takes too long.

    Raises `CannotRun` for a database that does not answer, or not in time.
    """
    from deployment.asking import asking_database

    with asking_database(postgres_url):
        try:
            with psycopg.connect(postgres_url, row_factory=dict_row, connect_timeout=10) as database:
                database.read_only = True
                # Windows and the frontier that closes them are written together, so they are read together.
                database.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                database.execute(f"SELECT {PLANNED}, set_config('TimeZone', 'UTC', true)")
                database.execute("SELECT set_config('statement_timeout', %s, true)", [f"{STATEMENT_TIMEOUT_SECONDS}s"])
                yield database
        except psycopg.errors.QueryCanceled:
            raise CannotRun(
                f"The database took longer than {STATEMENT_TIMEOUT_SECONDS} s: select less with --from, --to or "
                "--account."
            ) from None
