"""The rows of a batch → what they are together: nearly every key by comparing columns, a contested one by the rule."""

from __future__ import annotations

from itertools import groupby

import polars as pl

from jobs.joins.memory import CARRIED, KEY, column_of, condition_of, text_of
from metering.joining import Row, Side, Winner, fold_all
from metering.words import COMPLETIONS, REQUESTS, Family, Outcome

SIDES = {Family.REQUEST.value: Side.REQUEST, Family.COMPLETION.value: Side.COMPLETION, Family.BOTH.value: Side.BOTH}
FOUND = {
    **dict.fromkeys(KEY, pl.String),
    **dict.fromkeys(("request", "completion"), pl.UInt32),
    "superseded": pl.Boolean,
}
"""What was found: a key, and the numbers of the rows on each side, null where one is missing."""


def split(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of `memory.CARRIED` → (pairs, contested): `paired` rows of the keys that nobody contests, and other rows.

    A key is uncontested when it has one row, or one request and one completion, none decided before: these are a pair
    within the timeout, and else two rows that wait alone. An event of both families is both sides of its pair.
    """
    number, family = pl.int_range(pl.len(), dtype=pl.UInt32), pl.col("family")
    begins, ends = family.is_in(list(REQUESTS)), family.is_in(list(COMPLETIONS))
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
    is_apart = is_couple & (pl.col("apart_us") > _within_us(rows, uncontested))
    apart = uncontested.filter(is_apart)
    no_row = pl.lit(None, pl.UInt32)
    found = [uncontested.filter(~is_apart), apart.with_columns(completion=no_row), apart.with_columns(request=no_row)]
    return paired(rows, pl.concat([part.select(*FOUND) for part in found])), contested


def folded(contested: pl.DataFrame) -> pl.DataFrame:
    """Rows of contested keys → `paired` rows, by `rules.fold`; what was decided before is not told again.

    Row by row: contested keys are few, and one of a whole batch costs no more than as many of a few rows.
    """
    ordered = contested.sort(*KEY, "lsn")
    columns = ("family", "lsn", "remembered", "decided_side", "timeout_us")
    received_us = ordered["received_at"].dt.epoch("us")
    listed = zip(ordered.select(KEY).iter_rows(), received_us, ordered.select(columns).iter_rows(), strict=True)
    numbers = {lsn: number for number, lsn in enumerate(ordered["lsn"])}
    found: list[tuple[str, str, int | None, int | None, bool]] = []
    for key, of_key in groupby(listed, key=lambda row: row[0]):
        memory, rows = [], []
        for _, received, (of_row, lsn, is_remembered, decided_side, timeout_us) in of_key:
            # What was decided before has no family any more: it is known by the side on which it won.
            side = SIDES.get(of_row, Side.BOTH)
            if not is_remembered:
                rows.append(Row(lsn, side, received, timeout_us))
            elif decided_side is None:
                memory.append(Winner(lsn, side, received, timeout_us))
            else:
                won = [Side.REQUEST, Side.COMPLETION] if decided_side == Side.BOTH else [Side(decided_side)]
                memory += [Winner(lsn, each, received, timeout_us, partner=0) for each in won]
        winners, decisions = fold_all(memory, rows)
        told = [(d.request_lsn, d.completion_lsn, d.fate is Outcome.SUPERSEDED) for d in decisions]
        waiting = [winner for winner in winners if winner.partner is None]
        told += [(w.lsn, None, False) if w.side is Side.REQUEST else (None, w.lsn, False) for w in waiting]
        found += [(*key, q and numbers[q], c and numbers[c], superseded) for q, c, superseded in told]
    return paired(ordered, pl.DataFrame(found, schema=FOUND, orient="row"))


def paired(rows: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """What was found (FOUND) with the values of its rows.

    Columns: account, request_id, request_lsn, completion_lsn, request_us and completion_us (when they were received),
    first_us (when the last of them was received first; null where none is a dead letter that came back), event_time
    (the completion's, else the request's), user_id and model of the request, status and quantities of the completion,
    dimensions and conditions (the request's, else the completion's), timeout_us (how long the row waits that is there,
    or within which both meet) and superseded; null on a side that is missing.
    """
    request, completion = found["request"], found["completion"]
    received_us, event_time = rows["received_at"].dt.epoch("us"), rows["event_time"]
    first_us = rows.select(pl.coalesce("first_received_at", "received_at").dt.epoch("us")).to_series()
    came_back = rows["first_received_at"].is_not_null()
    any_came_back = pl.any_horizontal([pl.lit(came_back.gather(side)) for side in (request, completion)])
    last_us = pl.max_horizontal([pl.lit(first_us.gather(side)) for side in (request, completion)])
    return found.select(
        *KEY,
        rows["lsn"].gather(request).alias("request_lsn"),
        rows["lsn"].gather(completion).alias("completion_lsn"),
        received_us.gather(request).alias("request_us"),
        received_us.gather(completion).alias("completion_us"),
        pl.when(any_came_back).then(last_us).alias("first_us"),
        pl.coalesce(event_time.gather(completion), event_time.gather(request)).alias("event_time"),
        *[rows[name].gather(request) for name in ("user_id", "model")],
        rows["status"].gather(completion),
        *[_named(rows[name], request, completion) for name in rows.columns if name not in CARRIED],
        _within_us(rows, found).alias("timeout_us"),
        "superseded",
    )


def _named(values: pl.Series, request: pl.Series, completion: pl.Series) -> pl.Expr:
    """What a configuration names: a quantity is what the completion reports, any other column what either says."""
    reported = pl.lit(values.gather(completion))
    column = column_of(values.name)
    if values.name in (text_of(column), condition_of(column)):
        return pl.coalesce(pl.lit(values.gather(request)), reported).alias(values.name)
    return reported.alias(values.name)


def _within_us(rows: pl.DataFrame, found: pl.DataFrame) -> pl.Expr:
    """How long the row waits that is there; of both, within what they meet.

    That is the request's; where it came after its completion, the completion must still have waited.
    """
    (request_lsn, request_us), (completion_lsn, completion_us) = (
        (rows["lsn"].gather(found[side]), rows["timeout_us"].gather(found[side])) for side in ("request", "completion")
    )
    is_request_first = pl.lit(request_lsn) <= pl.lit(completion_lsn)
    return pl.when(is_request_first).then(request_us).otherwise(pl.min_horizontal(request_us, completion_us))
