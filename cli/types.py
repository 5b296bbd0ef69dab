"""`weir types`: event types without a contract, whose events are kept and not billed."""

from __future__ import annotations

from collections.abc import Iterator

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, Row, print_rows
from cli.reading import read_only
from jobs.queries.reading import Database, select

COLUMNS = ("type", "events", "first_seen_at", "last_seen_at", "last_source")

_STATEMENT = """
    SELECT coalesce(nullif(type, ''), '(further types)') AS type, events, first_seen_at, last_seen_at, last_source
    FROM unknown_types ORDER BY last_seen_at DESC, type
"""


def type_rows(database: Database) -> Iterator[Row]:
    """Rows with the keys COLUMNS, the last seen first."""
    return select(database, _STATEMENT, {})


def types(
    *, limit: LimitOption = None, form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """List the event types that Weir does not know: a typo, or a version that is newer than this Weir.

    Their events are in the journal, but on no bill.
    """
    from deployment.stack import running_deployment

    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(type_rows(database), COLUMNS, form, limit)
