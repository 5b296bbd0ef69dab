"""The state of joins between batches: requests and completions that a later row can still meet.

It is derived from the journal and usage at start, and bounded by the timeouts behind the frontier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from jobs.settings.dimensions import of_events
from jobs.settings.outcome_columns import OUTCOME_TEXTS
from jobs.streams import QUANTITY
from metering.contracts.includes import COLUMN
from metering.vocabulary import Outcome

KEY = ("account", "request_id")
Schema = dict[str, pl.DataType | type[pl.DataType]]
REPORTED = pl.Decimal(QUANTITY.precision, QUANTITY.scale)
INCLUDED = f"reported:{COLUMN}"
"""The name, within joins, of the journal's column of conventions (which quantities are part of others)."""
CARRIED: Schema = {
    "lsn": pl.Int64,
    "family": pl.String,
    "account": pl.String,
    "request_id": pl.String,
    "user_id": pl.String,
    "model": pl.String,
    "status": pl.String,
    "event_time": pl.Datetime("us", "UTC"),
    "received_at": pl.Datetime("us", "UTC"),
    "first_received_at": pl.Datetime("us", "UTC"),
    "timeout_us": pl.Int64,
    "merit": pl.Int8,
    "remembered": pl.Boolean,
    "decided_side": pl.String,
}
"""Rows of the journal with how long they wait, what their report is worth (`ranking.merit`), whether an earlier batch
held them, and `decided_side`: null while a row waits, else the side on which it won its key. Of a decided row only KEY,
lsn, received_at and timeout_us are kept. The columns that a configuration names follow (`carried`)."""


def carried(reported: Iterable[str], dimensions: Iterable[str], conditions: Iterable[str] = ()) -> Schema:
    """CARRIED and what a configuration adds: columns whose quantities are added up, dimensions that events have, and
    columns of conditions (`where` of a meter).

    INCLUDED comes with them: a text that only what reports quantities has.

    Those have names that no column of the journal and none of joins' own can have.
    """
    return {
        **CARRIED,
        **{text_of(name): pl.String() for name in of_events(dimensions)},
        INCLUDED: pl.String(),
        **{quantity_of(name): REPORTED for name in reported},
        **{condition_of(name): pl.String() for name in conditions if name not in OUTCOME_TEXTS},
    }


def quantity_of(column: str) -> str:
    """What a column of the journal whose quantities are added up is called on its way through joins."""
    return f"quantity:{column}"


def text_of(column: str) -> str:
    """The same of a dimension."""
    return f"{TEXT}{column}"


TEXT = "text:"
CONDITION = "where:"
"""How names of dimensions (`text_of`) and of columns of conditions (`condition_of`) begin."""


def condition_of(column: str) -> str:
    """The same of a column of conditions: a text, or a boolean as text. What every outcome has keeps its name."""
    return column if column in OUTCOME_TEXTS else f"{CONDITION}{column}"


def column_of(name: str) -> str:
    """The column of the journal that is called so; its own name of any other."""
    return name.rpartition(":")[2]


DECIDED = ("key_hash", "lsn", *KEY, "received_at", "timeout_us", "decided_side")
MAX_PARTS = 64
"""Decided rows are kept per batch; this many batches are merged, and expired rows dropped."""


@dataclass(frozen=True)
class Memory:
    """Winners of their keys that rows at or after the frontier can meet: those that wait, and those that are decided.

    Nearly all are decided, and a batch meets few of them: they are searched by a hash of the key, and not copied.
    """

    rows: pl.DataFrame
    """Those that wait (`carried`)."""
    decided: tuple[pl.DataFrame, ...] = ()
    """Parts with the columns DECIDED."""
    compact_bytes: int = 0
    """Its size when expired rows were last dropped."""

    @classmethod
    def empty(cls, schema: Schema) -> Memory:
        """Before the first row; `schema` is `carried`."""
        return cls(pl.DataFrame(schema=schema))

    @property
    def schema(self) -> Schema:
        """What is remembered of a row that waits (`carried`)."""
        return dict(self.rows.schema)

    def involved(self, batch: pl.DataFrame, frontier: datetime | None) -> pl.DataFrame:
        """The batch's rows and all remembered rows that they, or the passing of time, can decide (`carried`).

        `batch` has that without `remembered` and `decided_side`.
        """
        due = self.rows.filter(_is_over(frontier) | ~pl.col("remembered"))
        keys = pl.concat([batch.select(KEY), due.select(KEY)]).unique()
        waiting = self.rows.join(keys, on=KEY, how="semi")
        new = batch.with_columns(pl.lit(None, pl.String).alias("decided_side"), remembered=False).select(
            *self.rows.columns
        )
        return pl.concat([waiting, self._decided_of(keys), new])

    def _decided_of(self, keys: pl.DataFrame) -> pl.DataFrame:
        if not self.decided or keys.is_empty():
            return self.rows.clear()
        hashed = keys.select(key_hash())
        likely = pl.concat([part.join(hashed, on="key_hash", how="semi") for part in self.decided])
        met = likely.join(keys, on=KEY, how="semi").drop("key_hash").with_columns(remembered=True)
        return pl.concat([self.rows.clear(), met], how="diagonal")

    def after(self, involved: pl.DataFrame, outcomes: pl.DataFrame, frontier: datetime | None) -> Memory:
        """The memory that knows what became of the involved rows.

        `outcomes` has outcome, request_lsn, completion_lsn and, of a match, `timeout_us`: within which its rows met.
        """
        named = decided_sides(outcomes)
        undecided = involved.filter(pl.col("decided_side").is_null()).join(named, on="lsn", how="left")
        won = undecided.filter(pl.col("side").ne_missing("none") & pl.col("side").is_not_null()).with_columns(
            decided_side="side", timeout_us="timeout_us_right", key_hash=key_hash()
        )
        untouched = self.rows.join(involved, on="lsn", how="anti")
        waits = undecided.filter(pl.col("side").is_null()).with_columns(remembered=True)
        waiting = pl.concat([untouched, waits.select(*self.rows.columns)])
        return Memory(waiting, _without_over([*self.decided, won.select(DECIDED)], frontier), self.compact_bytes)

    def reset(self) -> Memory:
        """The same, where the rows that wait are decided with the next batch as if they were rows of it."""
        return replace(self, rows=self.rows.with_columns(remembered=False))

    def within(self, limit_bytes: int, frontier: datetime | None) -> Memory:
        """The same without what is over, when there may be too little room for it: it may still be too large.

        Above half of the limit that is done when it has grown by a quarter since, so that it costs each row little.
        """
        size = self.size_bytes()
        if size <= max(limit_bytes // 2, self.compact_bytes * 5 // 4) and size <= limit_bytes:
            return self
        kept = self.without_over(frontier)
        return replace(kept, compact_bytes=kept.size_bytes())

    def without_over(self, frontier: datetime | None) -> Memory:
        """The same without decided rows that no row can meet any more."""
        return Memory(self.rows.rechunk(), _compacted(self.decided, frontier))

    def waiting(self) -> Mapping[str, int]:
        """How many rows wait, and the lowest lsn among them (0 when none does): what a commit keeps of them."""
        lsn = self.rows["lsn"]
        return {"waiting": len(lsn), "waiting.lsn": int(lsn.min() or 0)}  # type: ignore[arg-type]

    def records(self) -> int:
        """How many rows are remembered."""
        return sum(len(part) for part in (self.rows, *self.decided))

    def size_bytes(self) -> int:
        """About how much memory this takes."""
        return int(sum(part.estimated_size() for part in (self.rows, *self.decided)))


def key_hash() -> pl.Expr:
    """The same for a key in this process, perhaps not on another machine."""
    return (pl.col("account").hash(1) ^ pl.col("request_id").hash(2)).alias("key_hash")


def _is_over(frontier: datetime | None) -> pl.Expr:
    if frontier is None:
        return pl.lit(False)
    return pl.col("received_at") + pl.duration(microseconds="timeout_us") < frontier


def _without_over(parts: list[pl.DataFrame], frontier: datetime | None) -> tuple[pl.DataFrame, ...]:
    """A part that is kept longer than it must changes nothing: what is over is near to no row that can come."""
    parts = [part for part in parts if len(part)]
    return _compacted(parts, frontier) if len(parts) > MAX_PARTS else tuple(parts)


def _compacted(parts: Sequence[pl.DataFrame], frontier: datetime | None) -> tuple[pl.DataFrame, ...]:
    return (pl.concat(parts).filter(_is_over(frontier).not_()).rechunk(),) if parts else ()


def decided_sides(outcomes: pl.DataFrame) -> pl.DataFrame:
    """(lsn, timeout_us, side) of every row that an outcome names: the side on which it won, or `none`: it is over."""
    matched = pl.col("outcome") == Outcome.MATCHED
    with_itself = matched & (pl.col("request_lsn") == pl.col("completion_lsn"))

    def named(which: pl.Expr, lsn: pl.Expr | str, side: str) -> pl.DataFrame:
        lsn = pl.col(lsn) if isinstance(lsn, str) else lsn
        return outcomes.filter(which).select(lsn.alias("lsn"), "timeout_us", pl.lit(side).alias("side"))

    return pl.concat(
        [
            named(with_itself, "request_lsn", "both"),
            named(matched & ~with_itself, "request_lsn", "request"),
            named(matched & ~with_itself, "completion_lsn", "completion"),
            named(matched.not_(), pl.coalesce("request_lsn", "completion_lsn"), "none"),
        ]
    )
