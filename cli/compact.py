"""`weir compact`: merge the small files that commits leave behind; what a cluster does every night."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows

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

    The applications may run meanwhile. Exit status 3 for a table that a newer version of Weir writes.

    `files_before` and `files_after` are those that a reader opens.
    """
    from deployment.stack import running_deployment
    from jobs.runtime.delta.compaction import compact as compact_table
    from jobs.runtime.delta.table import open_table
    from jobs.streams import Table

    tables = running_deployment(data_dir).tables
    today, keep = datetime.now(UTC).date(), timedelta(days=keep_days)  # noqa: TID251 -- the top of the command
    done = (compact_table(tables, table, before=today, keep=keep) for table in Table)
    if all(open_table(tables, table) is None for table in Table):
        typer.echo(
            f"There are no tables below {tables}: the applications have not made them, or they are elsewhere.", err=True
        )
    print_rows((asdict(one) for one in done if one), COLUMNS, form)
