"""An abandoned request and an orphaned completion of one key → one pair.

They were received too far apart for the stream to match them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby

import polars as pl

from jobs.audit.recompute.expected import PARTS
from jobs.joins.memory import KEY
from jobs.joins.pairs import FOUND, paired
from metering.joining import Side
from metering.rejoining import Decided, rejoin
from metering.vocabulary import Outcome

_OUTCOMES = (Outcome.ABANDONED.value, Outcome.ORPHANED.value, Outcome.MATCHED.value)
Pair = tuple[int, int]
"""The lsn of a request and that of its completion."""


def may_rejoin(outcomes: pl.DataFrame) -> pl.DataFrame:
    """Outcomes (KEY, outcome) → the keys (KEY) that have both an abandoned request and an orphaned completion."""
    alone = [
        outcomes.filter(outcome=outcome).select(KEY) for outcome in (Outcome.ABANDONED.value, Outcome.ORPHANED.value)
    ]
    return alone[0].join(alone[1], on=KEY, how="semi").unique()


def rejoin_outcomes(
    outcomes: pl.DataFrame,
    rows: pl.DataFrame,
    within_us: int,
    standing: Iterable[Pair],
    late: Collection[int] = (),
    *,
    identities: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Outcomes (`resolve`) of `rows` → the same, with pairs in place of abandoned and orphaned rows.

    Pairs that are `standing` in usage stay, regardless of later facts. The rest is joined by
    `metering.rejoining.rejoin`, by when its rows were first received: that of a redriven or backfilled record is the
    time at which it would have met its partner. `late`: lsns of rows whose contract came after them. `identities`: of
    rows (lsn, identity), to order those of one instant.
    """
    concerned = outcomes.join(may_rejoin(outcomes), on=KEY, how="semi")
    if concerned.is_empty():
        return outcomes
    rows_by_lsn = {
        lsn: (outcome, (account, request_id), any(part in late for part in parts))
        for account, request_id, outcome, *parts in concerned.select(*KEY, "outcome", *PARTS).iter_rows()
        for lsn in dict.fromkeys(part for part in parts if part is not None)
        if outcome in _OUTCOMES
    }
    waited = (Outcome.ABANDONED.value, Outcome.ORPHANED.value)
    stays = [pair for pair in standing if tuple(rows_by_lsn[lsn][0] for lsn in pair if lsn in rows_by_lsn) == waited]
    found = [(rows_by_lsn[request][1], (request, completion)) for request, completion in stays]
    remaining = rows_by_lsn.keys() - {lsn for pair in stays for lsn in pair}
    decided = sorted((rows_by_lsn[lsn][1], lsn, rows_by_lsn[lsn][0], rows_by_lsn[lsn][2]) for lsn in remaining)
    moments = _moments(rows, identities, remaining)
    found += [
        (key, pair)
        for key, of_key in groupby(decided, key=lambda row: row[0])
        for pair in rejoin([_decided(row[1:], moments[row[1]]) for row in of_key], within_us)
    ]
    numbers = {lsn: number for number, lsn in enumerate(rows["lsn"])}
    listed = [(*key, numbers[request], numbers[completion], False) for key, (request, completion) in found]
    pairs = paired(rows, pl.DataFrame(listed, schema=FOUND, orient="row"))
    last_us, instant = pl.max_horizontal("request_us", "completion_us"), pl.Datetime("us", "UTC")
    made = pairs.with_columns(
        pl.lit(Outcome.MATCHED.value).alias("outcome"),
        received_at=last_us.cast(instant),
        first_received_at=pl.col("first_us").cast(instant),
    )
    consumed = [lsn for _, pair in found for lsn in pair]
    is_rejoined = (pl.col("outcome") != Outcome.SUPERSEDED.value) & pl.coalesce(*PARTS).is_in(consumed)
    return pl.concat([outcomes.filter(~is_rejoined), made.select(outcomes.columns)])


Moments = tuple[int, int, int, bytes]
"""When a row was first received, received, and occurred, in microseconds; and its identity."""


def _moments(rows: pl.DataFrame, identities: pl.DataFrame | None, lsns: Collection[int]) -> dict[int, Moments]:
    """By lsn the moments of rows."""
    known = pl.DataFrame(schema={"lsn": pl.Int64, "identity": pl.Binary}) if identities is None else identities
    wanted = rows.filter(pl.col("lsn").is_in(list(lsns))).join(known, on="lsn", how="left")
    read = wanted.select(
        "lsn",
        pl.coalesce("first_received_at", "received_at").dt.epoch("us").alias("first_received"),
        pl.col("received_at").dt.epoch("us"),
        pl.col("event_time").dt.epoch("us").fill_null(0),
        pl.col("identity").fill_null(b""),
    )
    return {lsn: (first, received, occurred, identity) for lsn, first, received, occurred, identity in read.iter_rows()}


def _decided(row: tuple[int, str, bool], moments: Moments) -> Decided:
    """A row (lsn, outcome, whether its contract came later) as the rule wants it. Of a match only its time counts."""
    lsn, outcome, is_late = row
    side = Side.COMPLETION if outcome == Outcome.ORPHANED else Side.REQUEST
    first_received_us, received_us, occurred_us, identity = moments
    is_alone = outcome != Outcome.MATCHED
    return Decided(lsn, side, first_received_us, is_alone, is_late, received_us, occurred_us, identity)
