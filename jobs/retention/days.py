"""Which days are kept: as many as are configured, all that is open, and what an audit may need for a correction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import psycopg
from pydantic import BaseModel, ConfigDict, Field

from metering.lateness import MAX_FUTURE

MEMORY_DAYS = 36
"""Accept window and dedupe horizon by default, and a day of clocks. Longer ones hold back by `remembered_days`."""
ZONES = timedelta(days=2)
"""A month begins at most 26 h before UTC's, in any zone and after any change of zone."""
ATTEMPT_DAYS = 7
"""The ten attempts of a delivery take a little more than three days, and a person a while to send dead ones again."""
_INCOMPLETE = timedelta(days=2)
"""What was received so soon after removed rows may lack one of its own: clocks differ by a day at most, and a time-out
is at most a day. The audit leaves it alone."""


class Retention(BaseModel):
    """Days that are kept, per table; None is for ever."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batches_days: int | None = Field(default=14, ge=1)
    exits_days: int | None = Field(default=90, ge=1)
    retired_sources_days: int | None = Field(default=90, ge=MEMORY_DAYS)
    isolated_records_days: int | None = Field(default=400, ge=1)
    retracted_sessions_days: int | None = Field(default=400, ge=1)
    threshold_changes_days: int | None = Field(default=400, ge=1)
    delivered_webhooks_days: int | None = Field(default=30, ge=1)
    undelivered_webhooks_days: int | None = Field(default=90, ge=ATTEMPT_DAYS)
    journal_days: int | None = Field(default=None, ge=MEMORY_DAYS)
    usage_days: int | None = Field(default=None, ge=MEMORY_DAYS)


@dataclass(frozen=True)
class Removed:
    """What went: rows of days before `before` (UTC). Nothing is older where a reader or an open month held it back."""

    table: str
    before: date
    rows: int


_MEMORY = """
SELECT ceil(greatest((config ->> 'dedupe_horizon_seconds')::float8, (config ->> 'accept_past_seconds')::float8) / 86400)
FROM jobs WHERE job = 'ingestion'
"""


def remembered_days(connection: psycopg.Connection[Any]) -> int:
    """Days that ingestion, as it was last started, remembers, and a day of clocks: no younger row may go."""
    row = connection.execute(_MEMORY).fetchone()
    return MEMORY_DAYS if row is None or row[0] is None else max(MEMORY_DAYS, int(row[0]) + 1)


def oldest_open_day(today: date) -> date:
    """The first day on which a row of the open month or the one before may have been received, in any time zone."""
    # West of UTC, or after a change of zone, it is still the month before.
    last_of_previous = (today - ZONES).replace(day=1) - timedelta(days=1)
    return last_of_previous.replace(day=1) - ZONES - MAX_FUTURE


def first_retained(today: date, days: int, horizon: timedelta = timedelta(), margin: timedelta = timedelta()) -> date:
    """The first day that is kept: `days` whole days before today, at least the horizon, and all that is open.

    What was received in these days is corrected by what was received up to the horizon (`correction_horizon`) before,
    and which of their contents count is known by what was received up to the margin (`content_margin`) before that.
    """
    horizon_days, margin_days = (-(-duration // timedelta(days=1)) for duration in (horizon, margin))
    first = min(today - timedelta(days=max(days, horizon_days)), oldest_open_day(today) - _INCOMPLETE)
    return first - timedelta(days=horizon_days + margin_days)
