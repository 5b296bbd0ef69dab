"""`weir dead-letters`: the records that ingestion rejected, as they were received."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, Row, print_rows
from cli.reading import FromOption, ToOption, check_range

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from deltalake import DeltaTable

COLUMNS = ("topic", "partition", "offset", "received_at", "source", "id", "type", "reason", "violation", "value")
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class DeadLetterQuery:
    """Which dead letters to list; `start` and `end` select by `received_at`, None is unbounded."""

    start: datetime | None = None
    end: datetime | None = None
    reasons: tuple[str, ...] = ()


def dead_letter_rows(journal: DeltaTable, query: DeadLetterQuery) -> Iterator[Row]:
    r"""Rows with the keys `COLUMNS`, in the order of record.

    `violation` says which rule of which contract is broken, and where; None of a row that an older version has written.
    `value` is the record as text. A record that is UTF-8 reads as it was sent; in any other, each byte that is not
    UTF-8 reads as `\xNN` (the journal keeps the bytes). None: the record had no value.
    """
    from cli.journal_table import rows_in_order

    for row in rows_in_order(journal, COLUMNS, _where(query)):
        value = row["value"]
        text = value.decode("utf-8", errors="backslashreplace") if isinstance(value, bytes) else None
        yield {**row, "value": text}  # type: ignore[dict-item]  # Arrow's values are those of `Row`


def shortened(row: Row) -> Row:
    """The row with a value that a person can scan, saying how much of it is not shown."""
    value = row["value"]
    if not isinstance(value, str) or len(value) <= _SHOWN_CHARACTERS:
        return row
    return {**row, "value": f"{value[:_SHOWN_CHARACTERS]}… ({len(value) - _SHOWN_CHARACTERS} more characters)"}


def _where(query: DeadLetterQuery) -> pc.Expression:
    import pyarrow as pa
    import pyarrow.compute as pc

    from jobs.streams import INSTANT
    from metering.words import Disposition

    where = pc.field("disposition") == Disposition.REJECTED.value
    if query.start is not None:
        where &= pc.field("received_at") >= pa.scalar(query.start, INSTANT)
    if query.end is not None:
        where &= pc.field("received_at") < pa.scalar(query.end, INSTANT)
    if query.reasons:
        where &= pc.field("reason").isin(list(query.reasons))
    return where


def dead_letters(
    *,
    start: FromOption = None,
    end: ToOption = None,
    reason: Annotated[list[str] | None, typer.Option("--reason", help="Only this reason; may be repeated.")] = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    r"""List dead letters: records that were rejected, with the reason, the broken rule, and the value as received.

    --from and --to select by the time of receipt. Bytes that are not UTF-8 are printed as \xNN. The table shows the
    first 200 characters of a value; JSON and CSV hold all of it.
    """
    from cli.journal_table import open_journal
    from deployment.stack import running_deployment

    check_range(start, end)
    journal = open_journal(running_deployment(data_dir).tables)
    query = DeadLetterQuery(start, end, tuple(reason or ()))
    rows: Iterator[Row] = dead_letter_rows(journal, query) if journal else iter(())
    print_rows(map(shortened, rows) if form is Format.TABLE else rows, COLUMNS, form, limit)
