"""`weir compact`: merge the small files that commits leave behind; on a cluster a job does it every night."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import psycopg
import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows

if TYPE_CHECKING:
    from deployment.stack import Deployment
    from jobs.runtime.delta.compaction import Compaction

COLUMNS = ("table", "files_before", "files_after", "files_deleted")


def compact(
    *,
    keep_days: Annotated[
        int, typer.Option(min=1, max=7, help="Days for which replaced files are kept; more than any reader ever lags.")
    ] = 7,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Merge the small files of days that are over, and delete files that were replaced long ago.

    The applications may run meanwhile. Exit status 3 for a table that a newer version of Weir writes, and for one that
    is not the one its readers have read (rolled back or recreated). Then nothing is merged or deleted in any table.

    `files_before` and `files_after` are those that a reader opens.
    """
    from deployment.stack import running_deployment
    from jobs.runtime.delta.table import open_table
    from jobs.streams import Table

    stack = running_deployment(data_dir)
    today, keep = datetime.now(UTC).date(), timedelta(days=keep_days)  # noqa: TID251 -- the top of the command
    done = compacted(stack, today, keep)
    if all(open_table(stack.tables, table) is None for table in Table):
        typer.echo(
            f"There are no tables below {stack.tables}: the applications have not made them, or they are elsewhere.",
            err=True,
        )
        done = iter(())
    print_rows((asdict(compaction) for compaction in done), COLUMNS, form)


def compacted(stack: Deployment, before: date, keep: timedelta) -> Iterator[Compaction]:
    """Compact, and say what was done, table by table.

    Raises `CannotRun` for a database that does not answer, and `Refused` for tables that are not the ones that were
    read: before anything is changed.
    """
    from deployment.asking import asking_database
    from jobs.runtime.delta.compaction import compact as compact_table
    from jobs.runtime.postgres.session import CONNECT_TIMEOUT_SECONDS
    from jobs.streams import Table
    from jobs.tables_read import refuse_tables_not_read

    with (
        asking_database(stack.postgres_url),
        psycopg.connect(stack.postgres_url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS) as connection,
    ):
        refuse_tables_not_read(stack.tables, connection)
    for table in Table:
        if (done := compact_table(stack.tables, table, before=before, keep=keep)) is not None:
            yield done
