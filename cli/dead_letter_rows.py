"""Dead letters as rows: the records that ingestion rejected, each with what replays it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cli.output import Row

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from deltalake import DeltaTable

COLUMNS = (
    *("topic", "partition", "offset", "received_at", "source", "id", "type", "reason", "violation", "replay_mark"),
    *("replayed_as", "value"),
)
EARLIER_NAME = "came_back_as"
"""What `replayed_as` was called: in JSON and CSV for one release more."""
_READ = ("lsn", "replays_lsn", *(name for name in COLUMNS if name != "replayed_as"))
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
    `replay_mark` is that of a dead letter which was sent again and rejected again. `replayed_as` is the lsn of the
    accepted row that replays it; None while there is none. `value` is the record as text. A record that is UTF-8 reads
    as it was sent; in any other, each byte that is not UTF-8 reads as `\xNN` (the journal keeps the bytes). None: the
    record had no value.
    """
    from cli.journal_table import rows_in_order

    accepted = replayed_as(journal)
    rows: Iterator[dict[str, Any]] = rows_in_order(journal, _READ, where(query))
    for row in rows:
        texts = {"replayed_as": accepted.get(origin_of(row)), "value": text_of(row["value"])}
        yield {name: texts[name] if name in texts else row[name] for name in COLUMNS}


def origin_of(row: Any) -> int:
    """The lsn of the dead letter that a rejected row (lsn, replays_lsn) is, or that it was sent again for."""
    found: int = row["lsn"] if row["replays_lsn"] is None else row["replays_lsn"]
    return found


def replayed_as(journal: DeltaTable) -> dict[int, int]:
    """The lsns of dead letters that were accepted when they were sent again, each with that of the accepted row."""
    from cli import journal_table

    rows: Iterator[dict[str, Any]] = journal_table.redriven(journal)
    return {row["replays_lsn"]: row["lsn"] for row in rows}


def text_of(value: object) -> str | None:
    r"""A record's key or value as text, bytes that are not UTF-8 as `\xNN`; None of none."""
    return value.decode("utf-8", errors="backslashreplace") if isinstance(value, bytes) else None


def with_earlier_name(row: Row) -> Row:
    """The row with `EARLIER_NAME`, too."""
    return {**row, EARLIER_NAME: row["replayed_as"]}


def shortened(row: Row) -> Row:
    """The row with a value that a person can scan, saying how much of it is not shown."""
    return {**row, "value": shortened_text(row["value"])}


def shortened_text(value: object) -> str | None:
    """A value as a person can scan it, saying how much of it is not shown; None of none."""
    if not isinstance(value, str):
        return None
    more = len(value) - _SHOWN_CHARACTERS
    return value if more <= 0 else f"{value[:_SHOWN_CHARACTERS]}… ({more} more characters)"


def where(query: DeadLetterQuery) -> pc.Expression:
    """Which rows of the journal these are."""
    import pyarrow.compute as pc

    from cli.journal_table import received_between
    from metering.vocabulary import Disposition

    is_one = pc.field("disposition") == Disposition.REJECTED.value
    found = is_one & received_between(query.start, query.end)
    if query.reasons:
        found &= pc.field("reason").isin(list(query.reasons))
    return found
