"""I6: windows and stragglers, compared with what billing must have made of usage."""

from __future__ import annotations

from decimal import Decimal

import polars as pl

from jobs.audit.bills.decisions import ENTRY
from jobs.audit.bills.expected import ALONE, NOT_PLACED, WINDOW_KEY, WINDOWS, added_windows
from jobs.audit.compare.columns import Compared, Wrong
from metering.vocabulary import Decision
from metering.windows import MINUTE

STORED_WINDOWS = pl.Schema({**WINDOWS, "is_minute": pl.Boolean()})
"""WINDOWS as the database has them; `is_minute`: it ends a minute after its start."""
STORED_STRAGGLERS = pl.Schema({**ALONE, "late_us": pl.Int64(), "waits": pl.Boolean(), "is_earlier": pl.Boolean()})
"""`stragglers`; `late_us` is `late_seconds` in microseconds, `waits` what `settled` says, and `is_earlier`: a release
that did not keep what it was made of (`_MADE_OF`) wrote it."""
_MADE_OF = ("corrects_lsns", "day", "dimensions")
# A window of nothing bills nothing: an earlier release may have left one.
_WINDOWS = Compared(
    "the window {window_start}, {meter} of {account}, {model}, at price version {price_version} ({currency})",
    WINDOW_KEY,
    (*(name for name in WINDOWS if name not in WINDOW_KEY), "is_minute"),
    absent={
        "quantity": Decimal(0),
        "late_quantity": Decimal(0),
        "late_rows": 0,
        "unmetered_rows": 0,
        "corrected": False,
        "is_minute": True,
    },
)
_STRAGGLERS = Compared(
    "the straggler {meter} of usage {usage_lsn} ({account}, in the window {window_start})",
    ENTRY,
    tuple(name for name in STORED_STRAGGLERS if name not in (*ENTRY, "is_earlier")),
    absent={},
)


def unequal_windows(made: pl.DataFrame, stored: pl.DataFrame, correcting: pl.DataFrame) -> Wrong:
    """WINDOWS of usage, STORED_WINDOWS, and what corrections have changed (WINDOW_KEY).

    Whether a correcting row met a closed window is known only from its correction.
    """
    marked = correcting.unique().with_columns(is_corrected=True)
    must = added_windows(made).join(marked, on=WINDOW_KEY, how="left", nulls_equal=True)
    must = must.with_columns(pl.col("corrected") | pl.col("is_corrected").fill_null(False), is_minute=True)
    return _WINDOWS.unequal(stored, must)


def unequal_stragglers(alone: pl.DataFrame, stored: pl.DataFrame) -> Wrong:
    """MADE_ALONE of usage, and STORED_STRAGGLERS."""
    late = (pl.col("received_at") - pl.col("window_start") - MINUTE).dt.total_microseconds()
    must = alone.filter(pl.col("decision").is_not_null()).with_columns(
        late_us=pl.max_horizontal(late, 0), waits=pl.col("decision") == Decision.HOLD.value
    )
    known = stored.select(*ENTRY, "is_earlier", stored_day="day")
    is_unknown = pl.col("is_earlier").fill_null(value=False)
    day = pl.when(pl.col("day") == NOT_PLACED).then("stored_day").otherwise("day")
    must = must.join(known, on=ENTRY, how="left").with_columns(day.alias("day"))
    must = must.with_columns(pl.when(~is_unknown).then(name).alias(name) for name in _MADE_OF)
    return _STRAGGLERS.unequal(stored, must)
