"""`weir conflicts`: events with the identity of an accepted event and other content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import TYPE_CHECKING, Any

from cli.dead_letter_rows import shortened_text, text_of
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, Row, print_rows
from cli.reading import AccountOption, FromOption, ToOption, check_range
from metering.contracts.model import pointer

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from deltalake import DeltaTable

COLUMNS = (
    *("received_at", "account", "type", "source", "id", "topic", "partition", "offset", "lsn"),
    *("first_received_at", "first_lsn", "differs", "first_value", "value"),
)
_READ = ("received_at", "account", "type", "source", "id", "topic", "partition", "offset", "lsn", "first_lsn", "value")
BATCH_CONFLICTS = 1_000
MAX_DIFFERENCES = 20


@dataclass(frozen=True)
class ConflictQuery:
    """Which conflicts to list; `start` and `end` select by `received_at`, None is unbounded."""

    start: datetime | None = None
    end: datetime | None = None
    accounts: tuple[str, ...] = ()


def conflict_rows(journal: DeltaTable, query: ConflictQuery) -> Iterator[Row]:
    """Rows with the keys COLUMNS, in the order of record.

    `first_` columns are of the accepted event, which is billed; None where `weir retain` has removed it. `differs`
    lists JSON pointers of the differences.
    """
    import pyarrow as pa

    from cli.journal_table import rows_in_order
    from jobs.journal.elements import is_event_arrow

    where = _where(query) & is_event_arrow(pa.schema(journal.schema().to_arrow()))
    conflicts: Iterator[dict[str, Any]] = rows_in_order(journal, _READ, where)
    while several := list(islice(conflicts, BATCH_CONFLICTS)):
        firsts = _rows_of(journal, {conflict["first_lsn"] for conflict in several})
        for conflict in several:
            first = firsts.get(conflict["first_lsn"], {"received_at": None, "value": None})
            row = {
                **conflict,
                "first_received_at": first["received_at"],
                "differs": differences(first["value"], conflict["value"]),
                "first_value": text_of(first["value"]),
                "value": text_of(conflict["value"]),
            }
            yield {name: row[name] for name in COLUMNS}


def differences(first: bytes | None, second: bytes | None) -> str | None:
    """JSON pointers where two events differ, the first MAX_DIFFERENCES; None where one cannot be read."""
    try:
        found = list(_differences(_document(first or b""), _document(second or b""), ""))
    except (ValueError, RecursionError):
        return None
    more = [f"and {len(found) - MAX_DIFFERENCES} more"] if len(found) > MAX_DIFFERENCES else []
    return ", ".join([*found[:MAX_DIFFERENCES], *more])


def shortened(row: Row) -> Row:
    """The row with values that a person can scan."""
    return {**row, **{name: shortened_text(row[name]) for name in ("first_value", "value")}}


def conflicts(
    *,
    start: FromOption = None,
    end: ToOption = None,
    account: AccountOption = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List conflicts: events with the source and id of an accepted event but different content, next to that event.

    The accepted event is billed, the conflict is not. --from and --to select by the time of receipt of the conflict.
    The table shows the first 200 characters of both values; JSON and CSV hold all of them.
    """
    from cli.journal_table import open_journal
    from deployment.stack import running_deployment

    check_range(start, end)
    journal = open_journal(running_deployment(data_dir).tables)
    query = ConflictQuery(start, end, tuple(account or ()))
    rows = conflict_rows(journal, query) if journal else iter(())
    print_rows(map(shortened, rows) if form is Format.TABLE else rows, COLUMNS, form, limit)


def _where(query: ConflictQuery) -> pc.Expression:
    import pyarrow.compute as pc

    from cli.journal_table import received_between
    from metering.vocabulary import Disposition

    is_one = pc.field("disposition") == Disposition.CONFLICT.value
    found = is_one & received_between(query.start, query.end)
    if query.accounts:
        found &= pc.field("account").isin(list(query.accounts))
    return found


def _rows_of(journal: DeltaTable, lsns: Iterable[int]) -> Mapping[int, Mapping[str, Any]]:
    """The rows (lsn, received_at, value) with these numbers. Files outside their range are not read."""
    import pyarrow.compute as pc

    from cli.journal_table import rows_in_order

    wanted = sorted(lsns)
    number = pc.field("lsn")
    where = (number >= wanted[0]) & (number <= wanted[-1]) & number.isin(wanted)
    rows: Iterator[dict[str, Any]] = rows_in_order(journal, ("lsn", "received_at", "value"), where)
    return {row["lsn"]: row for row in rows}


def _document(value: bytes) -> Any:
    """The document, with each digit of its numbers."""
    return json.loads(value, parse_int=_number, parse_float=_number)


def _number(text: str) -> Decimal | str:
    try:
        return Decimal(text)
    except InvalidOperation:
        # An exponent of more than eighteen digits.
        return text


def _differences(first: Any, second: Any, at: str) -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for name in dict.fromkeys([*first, *second]):
            yield from _differences(first.get(name), second.get(name), f"{at}{pointer((name,))}")
    elif first != second or isinstance(first, bool) is not isinstance(second, bool):
        yield at or "/"
