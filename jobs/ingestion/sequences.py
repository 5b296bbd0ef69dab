"""Sequence numbers of sources: which arrived, and when there are too many holes for a sequence.

Time runs in whole minutes of `received_at`. A minute is complete when the frontier has passed it: then every number
that was received in it is known, in whichever batches. A hole counts from the next minute in which the source
was seen after a higher number came: until then the missing number may still be on its way. So the state of a source
follows from its events and the frontier alone.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import polars as pl

from jobs.ingestion.limits import LIMITS, Limits
from metering.instants import EPOCH

MAX_NUMBERS = 500_000
"""Numbers added at once, to bound memory after the frontier was stuck."""
LAST_SEQUENCE = 10**18 - 1
"""The largest number that is accepted in an event; what was accepted by an older version is not counted."""

MINUTE = timedelta(minutes=1)
KEY = ["source", "source_epoch"]
RUNS: dict[str, pl.DataType | type[pl.DataType]] = {
    "source": pl.String,
    "source_epoch": pl.String,
    "minute": pl.Int64,
    "first": pl.Int64,
    "last": pl.Int64,
}
"""Numbers from first to last of one source and source epoch, received in one minute (since 1970)."""


def minute_of(instant: datetime) -> int:
    """The minute, since 1970, that an instant is in."""
    return (instant - EPOCH) // MINUTE


def instant_of_minute(minute: int) -> datetime:
    """When a minute begins."""
    return EPOCH + minute * MINUTE


def runs_of(events: pl.DataFrame) -> pl.DataFrame:
    """The numbers of accepted events (KEY, received_at, sequence) as RUNS."""
    numbered = events.filter(pl.col("sequence").is_between(0, LAST_SEQUENCE)).select(
        *KEY, (pl.col("received_at").dt.epoch("s") // 60).alias("minute"), number="sequence"
    )
    # Sorting within the groups costs a tenth of sorting the batch.
    return _runs(numbered, pl.col("number").unique().sort())


def _runs(numbered: pl.DataFrame, numbers: pl.Expr) -> pl.DataFrame:
    """RUNS of (KEY, minute, number); `numbers` gives a group's, sorted and each once."""
    step = numbers.diff()
    first = numbers.filter(step.fill_null(2) > 1)
    last = numbers.filter(step.shift(-1).fill_null(2) > 1)
    runs = numbered.group_by(*KEY, "minute").agg(first.alias("first"), last.alias("last"))
    return runs.explode("first", "last").select(pl.col(name).cast(kind) for name, kind in RUNS.items())


def extended(known: pl.DataFrame, runs: pl.DataFrame, until: int, limits: Limits = LIMITS) -> pl.DataFrame:
    """The numbers of some minutes (`runs`), all before `until`, added to what is `known` of their sources.

    Known: RUNS whose `minute` is the last one that was added before. Result, a row per KEY of `runs`: `sequences` (a
    multirange, as text, of the new numbers) and `unsequenced`: too many holes at the end of a minute before `until`.
    """
    new = _unknown(known, runs)
    pieces = pl.concat([known, new]).sort(*KEY, "first")
    highest = pieces.group_by(*KEY, "minute").agg(pl.max("last")).sort(*KEY, "minute")
    before = highest.with_columns(highest_before=pl.col("last").cum_max().shift().over(KEY)).drop("last")
    heard = runs.select(*KEY, "minute", heard_at="minute").unique().sort("minute")
    heard_next = before.sort("minute").join_asof(
        heard, on="minute", by=KEY, strategy="forward", allow_exact_matches=False, check_sortedness=False
    )
    # What closes a hole counts at once; what is higher than all before opens one, and counts when more is heard.
    closes = (pl.col("last") <= pl.col("highest_before")).fill_null(False)
    counts_at = pl.when(closes).then("minute").otherwise(pl.col("heard_at").fill_null(until))
    placed = pieces.join(heard_next, on=[*KEY, "minute"], how="left", maintain_order="left").with_columns(
        counts_at=counts_at
    )
    too_many = pl.concat(
        [
            _more_than(limits.ranges, placed, "counts_at", until),
            _more_than(limits.pending_ranges, placed, "minute", until),
        ]
    ).unique()
    texts = new.group_by(KEY).agg(pl.format("[{},{}]", "first", "last").str.join(",").alias("ranges"))
    return (
        runs.select(KEY)
        .unique()
        .join(texts, on=KEY, how="left")
        .join(too_many.with_columns(unsequenced=True), on=KEY, how="left")
        .select(
            *KEY,
            pl.concat_str(pl.lit("{"), pl.col("ranges").fill_null(""), pl.lit("}")).alias("sequences"),
            pl.col("unsequenced").fill_null(False),
        )
        .sort(KEY)
    )


def _unknown(known: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """RUNS of the numbers that are not known, each in the first minute in which it came."""
    apart, mixed = _parted(known, runs)
    return pl.concat([_joined(apart), _unknown_numbers(known, mixed)])


def _parted(known: pl.DataFrame, runs: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """`runs` of sources in which no number is there twice, in `runs` or `known`; and all others.

    That is what sources send, and then no number has to be looked at.
    """
    pieces = pl.concat([known, runs]).sort(*KEY, "first")
    highest_before = pl.col("last").cum_max().shift().over(KEY)
    repeating = pieces.filter((pl.col("first") <= highest_before).fill_null(False)).select(KEY).unique()
    if repeating.is_empty():
        return runs, runs.clear()
    return runs.join(repeating, on=KEY, how="anti"), runs.join(repeating, on=KEY, how="semi")


def _joined(runs: pl.DataFrame) -> pl.DataFrame:
    """RUNS that have no number twice, with those of a minute that follow each other as one."""
    ordered = runs.sort(*KEY, "minute", "first")
    of_minute = [*KEY, "minute"]
    begins = (pl.col("first") != pl.col("last").shift() + 1).fill_null(True) | ~_is_like_before(of_minute)
    return (
        ordered.with_columns(begins.cum_sum().alias("run"))
        .group_by("run", maintain_order=True)
        .agg(*[pl.first(name) for name in of_minute], pl.min("first"), pl.max("last"))
        .select(*RUNS)
    )


def _is_like_before(columns: list[str]) -> pl.Expr:
    """Whether a row has the values of the row before it."""
    return pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift()) for name in columns)


def _unknown_numbers(known: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """The same of any runs, number by number."""
    numbers = (
        runs.select(*KEY, "minute", number=pl.int_ranges("first", pl.col("last") + 1))
        .explode("number")
        .group_by(*KEY, "number")
        .agg(pl.min("minute"))
        .sort("number")
    )
    ranges = known.select(*KEY, "first", known_last="last").sort("first")
    found = numbers.join_asof(ranges, left_on="number", right_on="first", by=KEY, check_sortedness=False)
    unknown = found.filter((pl.col("number") <= pl.col("known_last")).fill_null(False).not_())
    return _runs(unknown, pl.col("number").sort())


def _more_than(most: int, pieces: pl.DataFrame, at: str, until: int) -> pl.DataFrame:
    """The KEYs that at the end of some minute before `until` had more ranges than `most`; a piece is there from `at`.

    A piece adds a range; where it meets the piece above it, from the later of the two on, one less.
    """
    above = pieces.with_columns(next_first=pl.col("first").shift(-1).over(KEY), next_at=pl.col(at).shift(-1).over(KEY))
    joined = above.filter(pl.col("next_first") == pl.col("last") + 1)
    changes = pl.concat(
        [
            above.select(*KEY, minute=pl.col(at), ranges=pl.lit(1, pl.Int64)),
            joined.select(*KEY, minute=pl.max_horizontal(at, "next_at"), ranges=pl.lit(-1, pl.Int64)),
        ]
    ).filter(pl.col("minute") < until)
    counted = changes.group_by(*KEY, "minute").agg(pl.sum("ranges")).sort(*KEY, "minute")
    return (
        counted.with_columns(pl.col("ranges").cum_sum().over(KEY)).filter(pl.col("ranges") > most).select(KEY).unique()
    )
