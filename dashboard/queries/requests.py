"""Single requests: what a window or a bill's line is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow.compute as pc

from dashboard.backend import Backend
from dashboard.exact import total
from dashboard.queries.bills import Line
from metering.meters import Meter

MOST_ROWS = 500
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Request:
    """One usage row. Quantities are as reported (None: not reported); `amount` sums the meters
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
    quantities: Mapping[Meter, int | None]
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
    version = pc.field(f"{line.meter}_price_version")
    where = (pc.field("event_time") >= start) & (pc.field("event_time") < end) & (pc.field("account") == line.account)
    where &= version.is_null() if line.price_version is None else version == line.price_version
    where &= pc.field("model").is_null() if line.model is None else pc.field("model") == line.model
    return _requests(backend, where & (pc.field(line.meter) != 0))


def _requests(backend: Backend, where: pc.Expression) -> tuple[Request, ...]:
    table = backend.table("usage")
    if table is None:
        return ()
    rows = backend.read(table, "usage", where).filter(backend.scope.holds())
    latest = rows.sort("received_at", "lsn", descending=True).head(MOST_ROWS)
    return tuple(_request(row) for row in latest.iter_rows(named=True))


def _request(row: dict[str, Any]) -> Request:
    # A table that joins has not yet given the column of a new meter has no quantity of it.
    amounts = [amount for meter in Meter if (amount := row.get(f"{meter}_amount")) is not None]
    window_end = row["event_time"].replace(second=0, microsecond=0) + MINUTE
    named = {name: row[name] for name in Request.__dataclass_fields__ if name in row}
    return Request(
        **named,
        quantities={meter: row.get(meter) for meter in Meter},
        amount=total(amounts) if amounts else None,
        late_seconds=(row["received_at"] - window_end).total_seconds(),
    )
