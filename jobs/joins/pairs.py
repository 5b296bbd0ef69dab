"""The rows of a batch → pairs: almost every key by comparing columns, a contested key by the fold."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby

import polars as pl

from jobs.joins.memory import CARRIED, KEY, column_of, condition_of, text_of
from jobs.runtime.delta.table import microseconds_of
from metering.joining import FINAL, Row, Side, Winner, step, waiting
from metering.vocabulary import REPORTING, REQUESTS, Family, Outcome

SIDES = {
    Family.REQUEST.value: Side.REQUEST,
    Family.COMPLETION.value: Side.COMPLETION,
    Family.BOTH.value: Side.BOTH,
    Family.QUANTITY.value: Side.BOTH,
}
"""A quantity is both sides of its own outcome, and its key is its own: nothing else meets it."""
FOUND = {
    **dict.fromkeys(KEY, pl.String),
    **dict.fromkeys(("request", "completion"), pl.UInt32),
    "superseded": pl.Boolean,
}
"""What was found: a key, and the numbers of the rows on each side, null where one is missing."""


def split(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of `memory.CARRIED` → (pairs, contested): `paired` rows of uncontested keys, and other rows.

    A key is uncontested when it has one row, or one request and one completion, none decided before: these are a pair
    within the timeout, and else two rows that wait alone. An event of both families is both sides of its pair.
    """
    number, family = pl.int_range(pl.len(), dtype=pl.UInt32), pl.col("family")
    begins, ends = family.is_in([*REQUESTS, Family.QUANTITY.value]), family.is_in(list(REPORTING))
    counted = (
        rows.with_columns(pl.when(begins).then(number).alias("begun"), pl.when(ends).then(number).alias("ended"))
        .group_by(KEY)
        .agg(
            pl.len().alias("rows"),
            pl.count("begun").alias("requests"),
            pl.count("ended").alias("completions"),
            pl.min("begun").alias("request"),
            pl.min("ended").alias("completion"),
            (pl.max("received_at") - pl.min("received_at")).dt.total_microseconds().alias("apart_us"),
            pl.count("decided_side").alias("decided"),
            pl.lit(False).alias("superseded"),
        )
    )
    is_couple = (pl.col("rows") == 2) & (pl.col("requests") == 1) & (pl.col("completions") == 1)
    is_uncontested = (pl.col("decided") == 0) & ((pl.col("rows") == 1) | is_couple)
    uncontested = counted.filter(is_uncontested)
    contested = rows.join(counted.filter(~is_uncontested), on=KEY, how="semi")
    is_apart = is_couple & (pl.col("apart_us") > _times_us(rows, uncontested)[0])
    apart = uncontested.filter(is_apart)
    no_row = pl.lit(None, pl.UInt32)
    found = [uncontested.filter(~is_apart), apart.with_columns(completion=no_row), apart.with_columns(request=no_row)]
    return paired(rows, pl.concat([part.select(*FOUND) for part in found])), contested


def folded(contested: pl.DataFrame, frontier: datetime | None) -> pl.DataFrame:
    """Rows of contested keys → `paired` rows of outcomes, by `joining.step`; earlier outcomes are not reported
    again.

    Row by row: contested keys are few, and one of a whole batch costs no more than as many of a few rows.
    """
    ordered = contested.sort(*KEY, "lsn")
    columns = ("family", "lsn", "remembered", "decided_side", "timeout_us", "merit")
    received_us, occurred_us = (ordered[name].dt.epoch("us") for name in ("received_at", "event_time"))
    listed = zip(
        ordered.select(KEY).iter_rows(), received_us, occurred_us, ordered.select(columns).iter_rows(), strict=True
    )
    numbers = {lsn: number for number, lsn in enumerate(ordered["lsn"])}
    frontier_us = None if frontier is None else microseconds_of(frontier)
    found: list[tuple[str, str, int | None, int | None, bool]] = []
    for key, of_key in groupby(listed, key=lambda row: row[0]):
        memory: list[Winner] = []
        before: list[Row] = []
        rows: list[Row] = []
        for _, received, occurred, (of_row, lsn, is_remembered, decided_side, timeout_us, merit) in of_key:
            # What was decided before has no family any more: it is known by the side on which it won.
            side = SIDES.get(of_row, Side.BOTH)
            if decided_side is None:
                (before if is_remembered else rows).append(Row(lsn, side, received, timeout_us, merit, occurred))
            else:
                won = [Side.REQUEST, Side.COMPLETION] if decided_side == Side.BOTH else [Side(decided_side)]
                memory += [Winner(lsn, won_side, received, timeout_us, partner=0) for won_side in won]
        _, decisions = step([*memory, *waiting(before)], rows, frontier_us)
        outcomes = [(d.request_lsn, d.completion_lsn, d.fate is Outcome.SUPERSEDED) for d in decisions]
        found += [(*key, q and numbers[q], c and numbers[c], superseded) for q, c, superseded in outcomes]
    return paired(ordered, pl.DataFrame(found, schema=FOUND, orient="row"))


def paired(rows: pl.DataFrame, found: pl.DataFrame, *, is_of_report: bool = False) -> pl.DataFrame:
    """What was found (FOUND) with the values of its rows; `is_of_report`: of a pair, texts are the completion's
    where it has them.

    Columns: account, request_id, request_lsn, completion_lsn, request_us and completion_us (when they were received),
    first_us (when the last of them was received first; null where none was redriven), event_time
    (the completion's, else the request's), user_id and model of the request, family (the completion's, else the
    request's), status and quantities of the completion,
    dimensions and conditions (the request's, else the completion's), timeout_us (how long the row waits that is there,
    or within which both meet), until_us (when F passes it the outcome is decided; null: it is at once), is_lesser
    (another report may beat the completion's) and superseded; null on a side that is missing.
    """
    request, completion = found["request"], found["completion"]
    received_us, event_time = rows["received_at"].dt.epoch("us"), rows["event_time"]
    first_us = rows.select(pl.coalesce("first_received_at", "received_at").dt.epoch("us")).to_series()
    came_back = rows["first_received_at"].is_not_null()
    any_came_back = pl.any_horizontal([pl.lit(came_back.gather(side)) for side in (request, completion)])
    last_us = pl.max_horizontal([pl.lit(first_us.gather(side)) for side in (request, completion)])
    own = (completion, request) if is_of_report else (request, completion)
    return found.select(
        *KEY,
        rows["lsn"].gather(request).alias("request_lsn"),
        rows["lsn"].gather(completion).alias("completion_lsn"),
        received_us.gather(request).alias("request_us"),
        received_us.gather(completion).alias("completion_us"),
        pl.when(any_came_back).then(last_us).alias("first_us"),
        pl.coalesce(event_time.gather(completion), event_time.gather(request)).alias("event_time"),
        *[_of_request(rows[name], request, completion if is_of_report else request) for name in ("user_id", "model")],
        pl.coalesce(pl.lit(rows["family"].gather(side)) for side in (completion, request)).alias("family"),
        rows["status"].gather(completion),
        *[_named(rows[name], completion, own) for name in rows.columns if name not in CARRIED],
        *_times_us(rows, found),
        pl.lit(rows["merit"].gather(completion) < FINAL).fill_null(value=False).alias("is_lesser"),
        "superseded",
    )


def _of_request(values: pl.Series, request: pl.Series, preferred: pl.Series) -> pl.Expr:
    """The value of an outcome with a request: the preferred row's if it has one, else the request's."""
    from_request = pl.lit(values.gather(request))
    from_preferred = pl.when(pl.lit(request.is_not_null())).then(pl.lit(values.gather(preferred)))
    return pl.coalesce(from_preferred, from_request).alias(values.name)


def _named(values: pl.Series, completion: pl.Series, either: Sequence[pl.Series]) -> pl.Expr:
    """Configured columns: a quantity is the completion's, any other the first that either side has."""
    column = column_of(values.name)
    if values.name in (text_of(column), condition_of(column)):
        return pl.coalesce(pl.lit(values.gather(side)) for side in either).alias(values.name)
    return pl.lit(values.gather(completion)).alias(values.name)


def _times_us(rows: pl.DataFrame, found: pl.DataFrame) -> tuple[pl.Expr, pl.Expr]:
    """`timeout_us` and `until_us` of `paired`.

    Rows meet within the request's timeout; where it came after its completion, the completion must still have waited.
    A lesser report waits until its request is over, but where it is over before that.
    """
    received_us = rows["received_at"].dt.epoch("us")
    (request_lsn, request_us, own_us), (lsn, report_us, waits_us) = (
        [pl.lit(values.gather(found[side])) for values in (rows["lsn"], received_us, rows["timeout_us"])]
        for side in ("request", "completion")
    )
    within_us = pl.when(request_lsn <= lsn).then(own_us).otherwise(pl.min_horizontal(own_us, waits_us))
    is_lesser = pl.lit(rows["merit"].gather(found["completion"])) < FINAL
    is_near = ((report_us - request_us).abs() <= within_us) & (within_us >= own_us)
    is_alone = request_lsn.is_null() | lsn.is_null()
    until_us = (
        pl.when(is_alone)
        .then(pl.coalesce(request_us, report_us) + within_us)
        .when(is_lesser & is_near)
        .then(request_us + within_us)
    )
    return within_us.alias("timeout_us"), until_us.alias("until_us")
