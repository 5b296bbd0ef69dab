"""The order of `events.ordered`: a function of the journal (lsn, event time, F of each row) and of the waits. Pure.

A generation is a run of rows with one F. Its watermark is that F minus the wait, and never lower than the one before.
An event with a time before the watermark that held before its generation is late: it comes in its own generation, by
lsn. Every other event comes in the first generation whose watermark is beyond its time, by time and lsn. Late events of
a generation come before the others, and generations follow each other. So no cut of the journal changes the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

NEVER_US = -(1 << 62)
"""The watermark while F is unknown, and the place of a late event among the times of its generation."""
FOREVER_US = 1 << 62
EVENTS = {"lsn": pl.Int64, "event_us": pl.Int64}
RUNS = {"lsn": pl.Int64, "frontier_us": pl.Int64}
KEYED = {
    **EVENTS,
    "is_late": pl.Boolean,
    "generation": pl.Int64,
    "order_us": pl.Int64,
}
UPCOMING = {"lsn": pl.Int64, "place_us": pl.Int64, "is_late": pl.Boolean}
KEY = ("generation", "order_us", "lsn")
SECOND_US = 1_000_000

Cursor = tuple[int, int, int]
"""The KEY of an event: the first lsn of the generation in which it comes, its time or NEVER_US, and its lsn."""


@dataclass(frozen=True)
class Wait:
    """How long an event is waited for, in generations that begin at this lsn or later."""

    first_lsn: int
    seconds: int


@dataclass(frozen=True)
class Generations:
    """Whole generations that follow each other: the first lsn and the watermark of each, and where the next begins."""

    first_lsns: pl.Series
    watermarks: pl.Series
    before_us: int
    """The watermark before the first."""
    next_lsn: int

    @cached_property
    def befores(self) -> NDArray[np.int64]:
        """The watermark before each, and after the last."""
        return np.concatenate([np.array([self.before_us], np.int64), self.watermarks.to_numpy()])

    @property
    def first_lsn(self) -> int:
        """Of the first generation."""
        return int(self.first_lsns[0])

    @property
    def watermark_us(self) -> int:
        """The watermark after the last."""
        return int(self.watermarks[-1])


def generations(runs: pl.DataFrame, next_lsn: int, before_us: int, waits: Sequence[Wait]) -> Generations | None:
    """The whole generations from `next_lsn` on; None where there is none yet.

    `runs` (RUNS, by lsn) says where F changes; one may begin before `next_lsn`. The last may go on, so it is not whole.
    """
    clipped = runs.with_columns(pl.max_horizontal("lsn", pl.lit(next_lsn, pl.Int64)))
    found = clipped.unique("lsn", keep="last", maintain_order=True).sort("lsn")
    changes = pl.col("frontier_us").ne_missing(pl.col("frontier_us").shift())
    found = found.filter(changes | (pl.int_range(pl.len()) == 0))
    if len(found) < 2:
        return None
    wait_us = pl.lit(waits[0].seconds * SECOND_US, pl.Int64)
    for wait in waits[1:]:
        wait_us = pl.when(pl.col("lsn") >= wait.first_lsn).then(wait.seconds * SECOND_US).otherwise(wait_us)
    reached = (pl.col("frontier_us") - wait_us).fill_null(NEVER_US).cum_max()
    whole = found.with_columns(pl.max_horizontal(reached, pl.lit(before_us, pl.Int64)).alias("watermark")).head(-1)
    return Generations(whole["lsn"], whole["watermark"], before_us, int(found["lsn"][-1]))


def keyed(events: pl.DataFrame, whole: Generations, after: Cursor | None) -> pl.DataFrame:
    """Of EVENTS those that come in these generations, after a cursor: with `is_late` and KEY, in no order.

    Of rows before the first generation those come that waited for it.
    """
    # By NumPy: for the few events of a step each expression of Polars takes longer than all of these.
    lsn, event_us = events["lsn"].to_numpy(), events["event_us"].to_numpy()
    own = np.searchsorted(whole.first_lsns.to_numpy(), lsn, side="right") - 1
    passed = np.searchsorted(whole.watermarks.to_numpy(), event_us, side="right")
    is_late = (own >= 0) & (event_us < whole.befores[np.maximum(own, 0)])
    has_waited = (own >= 0) | (event_us >= whole.before_us)
    comes = (lsn < whole.next_lsn) & has_waited & (is_late | (passed < len(whole.watermarks)))
    lsn, event_us, is_late = lsn[comes], event_us[comes], is_late[comes]
    found = pl.DataFrame(
        {
            "lsn": lsn,
            "event_us": event_us,
            "is_late": is_late,
            "generation": whole.first_lsns.to_numpy()[np.where(is_late, own[comes], passed[comes])],
            "order_us": np.where(is_late, NEVER_US, event_us),
        },
        KEYED,
    )
    return found if after is None else found.filter(comes_after(after))


def comes_after(cursor: Cursor) -> pl.Expr:
    """Whether an event (`keyed`) comes after the one at the cursor."""
    generation, order_us, lsn = cursor
    of_same = pl.col("generation") == generation
    at_same = of_same & (pl.col("order_us") == order_us)
    return (
        (pl.col("generation") > generation)
        | (of_same & (pl.col("order_us") > order_us))
        | (at_same & (pl.col("lsn") > lsn))
    )


def upcoming(events: pl.DataFrame, whole: Generations, after: Cursor | None) -> pl.DataFrame:
    """Of EVENTS those that come after a cursor: `lsn`, `place_us` and `is_late`, by where each comes.

    An event in time comes at its time, a late one at the watermark before its generation, ahead of others there. Those
    of no whole generation yet come after the whole ones, where later ones may make them late.
    """
    planned = keyed(events, whole, after)
    number = np.searchsorted(whole.first_lsns.to_numpy(), planned["generation"].to_numpy())
    is_late = planned["is_late"].to_numpy()
    place_us = np.where(is_late, whole.befores[number], planned["event_us"].to_numpy())
    lsn, event_us = events["lsn"].to_numpy(), events["event_us"].to_numpy()
    is_later = (lsn >= whole.next_lsn) | (event_us >= whole.watermark_us)
    lsn = np.concatenate([planned["lsn"].to_numpy(), lsn[is_later]])
    place_us = np.concatenate([place_us, np.maximum(event_us[is_later], whole.watermark_us)])
    is_late = np.concatenate([is_late, np.zeros(is_later.sum(), np.bool_)])
    order = np.lexsort((lsn, ~is_late, place_us))
    return pl.DataFrame({"lsn": lsn[order], "place_us": place_us[order], "is_late": is_late[order]}, UPCOMING)


def left(events: pl.DataFrame, whole: Generations) -> pl.DataFrame:
    """Of EVENTS those that wait for a later generation than these."""
    return events.filter(pl.col("lsn") < whole.next_lsn, pl.col("event_us") >= whole.watermark_us)


def waiting(events: pl.DataFrame, whole: Generations) -> int | None:
    """The lowest lsn of EVENTS that wait for a later generation than these; None where none does."""
    lowest = left(events, whole)["lsn"].min()
    return None if lowest is None else int(lowest)  # type: ignore[arg-type]  # of whole numbers
