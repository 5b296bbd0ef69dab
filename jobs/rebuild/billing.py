"""usage → all that billing stores, rebuilt by the rules that applied, with F as usage recorded it then.

What is billed does not depend on how usage is cut, so most of it is folded in large pieces. What a closed window was
before a correction may depend on it. So a commit with a row of its own (a straggler, a correcting row, a
decision) is folded separately, as by a driver that follows each commit at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa

from jobs.audit.bills.roll_ups import KEY, ROLL_UPS, RollUp
from jobs.billing.config import BillingConfig
from jobs.billing.dimensions import follow_limits
from jobs.billing.fold import fold
from jobs.billing.pipeline import JOB
from jobs.billing.sums import COLUMNS, sums
from jobs.rebuild.plan import Part, Piece, Plan
from jobs.runtime.config import JobConfig
from jobs.runtime.delta.position import with_fingerprint
from jobs.runtime.effective_rules import EffectiveRules
from jobs.runtime.postgres.rules_table import stored_history
from jobs.streams import Table
from metering.vocabulary import Published

# One transaction removes none of the row versions that it leaves, so hours and months that every piece writes again
# would cost more with each. They are summed once, at the end. A rebuild that fails leaves the triggers as they were.
_TRIGGERS = ("roll_up_inserted", "roll_up_updated", "roll_up_deleted", "roll_up_truncated")
_NOT_YET = tuple(
    f"ALTER TABLE {roll_up.source} {', '.join(f'DISABLE TRIGGER {name}' for name in _TRIGGERS)}" for roll_up in ROLL_UPS
)
_ROLL_UP = """
INSERT INTO {table} ({period}, {key}, {columns})
SELECT {place}, {key}, {sums} FROM {source} GROUP BY {place}, {key} ORDER BY {place}, {key}
"""
_FROM_NOW_ON = f"ALTER TABLE {{source}} {', '.join(f'ENABLE TRIGGER {name}' for name in _TRIGGERS)}"
# Who was called about a correction or a held straggler is not called again when its row is made again.
_CALLING = ("corrections", "stragglers")
_NO_CALLS = tuple(f"ALTER TABLE {table} DISABLE TRIGGER webhook_of_inserted" for table in _CALLING)
# Subscribers know versions that were lost with the database: each window now gets a higher one, and is sent again.
_VERSIONS = "UPDATE usage_windows SET version = %(floor)s"
_UNSENT = """
INSERT INTO unsent_windows (window_start, account, version)
SELECT window_start, account, %(position)s FROM usage_windows GROUP BY 1, 2 ORDER BY 1, 2
"""
# Totals of months are summed at the end: what they have crossed is decided once, with the next fold of billing.
_DECIDE_AGAIN = "INSERT INTO thresholds_due DEFAULT VALUES"
_KEEP_TIMES = (
    "CREATE TEMP TABLE kept_corrections ON COMMIT DROP AS SELECT usage_lsn, meter, corrected_at FROM corrections"
)
_TIMES = """
UPDATE corrections SET corrected_at = kept.corrected_at FROM kept_corrections AS kept
WHERE (kept.usage_lsn, kept.meter) = (corrections.usage_lsn, corrections.meter)
"""


def _parts(cursor: psycopg.Cursor[Any], config: BillingConfig) -> Sequence[Part]:
    """Corrections and windows are published at the end, all at once."""
    history = stored_history(cursor.connection, JOB.name) or (EffectiveRules(1, config.deciding),)
    quiet = config.model_copy(update={"publish": ()})
    return [Part(effective.first, quiet, effective) for effective in history]


def _pieces(usage: pa.Table, part: Part, *, ends_table: bool) -> Iterator[Piece]:
    """Rows of usage by lsn → parts that are folded at once: commits with a row of its own, and the rows between."""
    alone = sums(usage, part.effective)["usage_lsn"].drop_null()
    rows = pl.DataFrame({"lsn": usage["lsn"], "logged_at": usage["logged_at"]})
    commit = pl.col("logged_at").ne_missing(pl.col("logged_at").shift()).cum_sum()
    numbered = rows.with_columns(commit=commit, is_alone=pl.col("lsn").is_in(pl.Series(alone).implode()))
    apart = pl.when(pl.col("is_alone").any().over("commit")).then("commit").otherwise(0)
    frontiers = _held(usage, ends_table=ends_table)
    begin = 0
    for length in numbered.select(apart.rle().struct.field("len"))["len"] if len(numbered) else ():
        piece = usage.slice(begin, length)
        begin += length
        yield Piece(sums(piece, part.effective), piece["lsn"][-1].as_py() + 1, frontiers[begin - 1])


def _held(usage: pa.Table, *, ends_table: bool) -> Sequence[datetime | None]:
    """F of each row; None where its commit may continue behind these rows, with decisions that F must not overtake."""
    if "frontier" not in usage.column_names:
        return [None] * len(usage)
    is_whole = pl.lit(ends_table) | (pl.col("logged_at") != pl.col("logged_at").last())
    rows = pl.DataFrame({name: usage[name] for name in ("frontier", "logged_at")})
    found: list[datetime | None] = rows.select(pl.when(is_whole).then("frontier"))["frontier"].to_list()
    return found


def _ending(cursor: psycopg.Cursor[Any], config: JobConfig, position: int, floor: int) -> None:
    assert isinstance(config, BillingConfig)
    cursor.execute(_TIMES)
    for table in _CALLING:
        cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER webhook_of_inserted")
    cursor.execute(_VERSIONS, {"floor": floor})
    for roll_up in ROLL_UPS:
        _roll_up(cursor, roll_up)
    follow_limits(cursor)
    cursor.execute(_DECIDE_AGAIN)
    if Published.WINDOWS in config.publish:
        cursor.execute(_UNSENT, {"position": position})


def _roll_up(cursor: psycopg.Cursor[Any], roll_up: RollUp) -> None:
    sums = (
        f"trim_scale({of}({name}))" if name.endswith("quantity") else f"{of}({name})"
        for name, of in roll_up.columns.items()
    )
    words = {name: getattr(roll_up, name) for name in ("table", "source", "period", "place")}
    lists = {"key": KEY, "columns": roll_up.columns, "sums": sums}
    statement = _ROLL_UP.format(**words, **{name: ", ".join(values) for name, values in lists.items()})
    cursor.execute(statement)
    cursor.execute(_FROM_NOW_ON.format(source=roll_up.source))


PLAN = Plan(
    job=replace(JOB, fold=fold),
    emptied=(
        # Without values to sum, the triggers of days do nothing until the end.
        *("limited_dimensions", "usage_dimensions"),
        *("usage_windows", "usage_days", "usage_day_dimensions", "stragglers", "corrections", "unsent_windows"),
        *("taken_back_on_time", "usage_members", "late_members", "usage_hours", "usage_months"),
    ),
    columns=with_fingerprint(Table.USAGE, COLUMNS),
    parts=_parts,
    pieces=_pieces,
    keeping=(_KEEP_TIMES, *_NOT_YET, *_NO_CALLS),
    ending=_ending,
    counted={
        name: f"SELECT count(*) FROM {name}" for name in ("usage_windows", "usage_days", "stragglers", "corrections")
    },
)
