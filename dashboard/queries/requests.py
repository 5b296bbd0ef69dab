"""Single requests: those behind a window or a bill's line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow.compute as pc

from dashboard.backend import Backend
from dashboard.exact import Quantity, plain, total
from dashboard.queries.bills import Line
from jobs.usage_entries import metered
from metering.vocabulary import UsageCause

MAX_ROWS = 500
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Request:
    """One usage row. `quantities` has the meters that it names (None: expected, but not reported); `amount` sums those
    that have a price (None: none has).
    """

    lsn: int
    request_id: str
    account: str
    model: str | None
    user_id: str | None
    outcome: str
    status: str | None
    event_time: datetime
    received_at: datetime
    late_seconds: float
    quantities: Mapping[str, Quantity | None]
    amount: Decimal | None
    currency: str | None
    sign: int


def read_window_requests(
    backend: Backend, start: datetime, account: str | None, model: str | None
) -> tuple[Request, ...]:
    """The usage rows of the minute that begins at `start`, of an account or model (None: any); the latest first."""
    where = (pc.field("event_time") >= start) & (pc.field("event_time") < start + MINUTE)
    if account is not None:
        where &= pc.field("account") == account
    if model is not None:
        where &= pc.field("model") == model
    return _requests(backend, where)


def read_line_requests(backend: Backend, line: Line, start: datetime, end: datetime) -> tuple[Request, ...]:
    """The usage rows behind a line in the windows from `start` to `end`, the latest received first."""
    where = (pc.field("event_time") >= start) & (pc.field("event_time") < end) & (pc.field("account") == line.account)
    if not line.is_tiered:
        where &= pc.field("model").is_null() if line.model is None else pc.field("model") == line.model
    return _requests(backend, where, line)


def _requests(backend: Backend, where: pc.Expression, line: Line | None = None) -> tuple[Request, ...]:
    table = backend.table("usage")
    if table is None:
        return ()
    where &= pc.field("cause") != UsageCause.DECIDED.value
    latest: list[pl.DataFrame] = []
    for part in backend.parts(table, "usage", where):
        mine = part.filter(backend.scope.holds())
        rows = mine if line is None else _of_line(mine, line)
        latest = [pl.concat([*latest, rows]).sort("received_at", "lsn", descending=True).head(MAX_ROWS)]
    return tuple(_with_meters(latest[0]))


def _of_line(rows: pl.DataFrame, line: Line) -> pl.DataFrame:
    """The rows that have a quantity of the line's meter at its price."""
    numbered = rows.filter(pl.col("currency").eq_missing(line.currency)).with_row_index("row")
    found = metered(numbered.lazy()).filter(
        pl.col("meter") == line.meter,
        pl.col("price_version").eq_missing(line.price_version),
        pl.col("quantity") != 0,
    )
    return numbered.join(found.select("row").collect(), on="row", how="semi").drop("row")


def _with_meters(rows: pl.DataFrame) -> Iterator[Request]:
    entries = metered(rows.with_row_index("row").lazy()).collect()
    by_row = entries.select("row", "meter", "quantity", "amount").rows_by_key("row", named=True)
    for number, row in enumerate(rows.iter_rows(named=True)):
        yield _request(row, by_row.get(number, []))


def _request(row: dict[str, Any], entries: Sequence[Mapping[str, Any]]) -> Request:
    amounts = [entry["amount"] for entry in entries if entry["amount"] is not None]
    window_end = row["event_time"].replace(second=0, microsecond=0) + MINUTE
    named = {name: row[name] for name in Request.__dataclass_fields__ if name in row}
    return Request(
        **named,
        quantities={
            entry["meter"]: None if entry["quantity"] is None else plain(entry["quantity"]) for entry in entries
        },
        amount=total(amounts) if amounts else None,
        late_seconds=(row["received_at"] - window_end).total_seconds(),
    )
