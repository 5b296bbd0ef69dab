"""Dimensions and meters of a period are kept by the days of accounts, so their windows are those of each calendar."""

from __future__ import annotations

from collections.abc import Iterable

from api.meter_query_request import MeterQueryRequest
from api.parameters import bad_request
from jobs.billing_progress import Row
from jobs.queries.periods import Window, is_window
from jobs.queries.reading import Database
from jobs.queries.usage import UsageQuery, cuts_a_window


def refuse_other_windows(
    database: Database, query_request: MeterQueryRequest, query: UsageQuery, found: Iterable[Row]
) -> None:
    """Raises Problem (400) where what is kept by the days of accounts cannot answer what was asked for.

    Windows of a zone that is not theirs, or a total from or to an instant within one of their days or months.
    """
    zone = query_request.zone
    if query_request.window_size is None:
        for name, edge in (("from", query_request.start), ("to", query_request.end)):
            if edge is not None and cuts_a_window(database, query, edge):
                size = "month" if query.window is Window.MONTH else "day"
                detail = f"It is within a {size} that has usage, and this is kept by the {size}s of each account."
                raise bad_request(query_request.name(name), detail)
    elif zone and not all(is_window(query.window, row["window_start"], row["window_end"], zone) for row in found):
        advice = "leave it out, or name the accounts of this time zone as `subject`"
        detail = f"This is kept by the days of each account's own calendar: {advice}."
        raise bad_request(query_request.name("windowTimeZone"), detail)
