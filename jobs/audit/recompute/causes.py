"""Differences between stored and expected usage: the cause of each; one without a cause is a fault."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from jobs.audit.compare.differences import COMPARED, differs
from jobs.audit.recompute.expected import (
    OUTCOME,
    PARTS,
)
from jobs.audit.recompute.reversals import TakenBack
from jobs.joins.memory import CONDITION, KEY, TEXT
from metering.vocabulary import Outcome, UsageCause

_AS_DECIDED = [name for name in COMPARED if name not in ("plan", "currency", "day")]
"""What a later price changes nothing of."""


def from_another_part(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """The outcomes (OUTCOME) of the same parts whose model, dimensions or conditions are those of another part."""
    names = ("model", "user_id", *(name for name in after.columns if name.startswith((TEXT, CONDITION))))
    both = before.join(after, on=[*OUTCOME, "outcome"], how="inner", suffix="_after", nulls_equal=True)
    return both.filter(pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_after")) for name in names)).select(
        OUTCOME
    )


def changed_outcomes(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """The outcomes (OUTCOME) that are in one of them alone, or became something else."""
    earlier, other = (rows.select(*OUTCOME, "outcome") for rows in (before, after))
    alone = [
        a.join(b, on=[*OUTCOME, "outcome"], how="anti", nulls_equal=True)
        for a, b in ((earlier, other), (other, earlier))
    ]
    return pl.concat(alone).select(OUTCOME).unique()


def moving_outcomes(both: pl.DataFrame) -> pl.DataFrame:
    """`differences.beside` with what `goes` and `comes`. Superseded outcomes bill nothing, so they do neither."""
    is_superseded = pl.col("outcome").eq_missing(Outcome.SUPERSEDED.value)
    was_superseded = pl.col("outcome_found").eq_missing(Outcome.SUPERSEDED.value)
    return both.with_columns(
        is_same=pl.col("is_found") & pl.col("is_expected"),
        goes=pl.col("is_found") & ~pl.col("is_expected") & ~was_superseded,
        comes=pl.col("is_expected") & ~pl.col("is_found") & ~is_superseded,
    )


def with_pairs(moving: pl.DataFrame, expected: pl.DataFrame) -> pl.DataFrame:
    """The same with `is_pair` where a pair is added, or a part removed for it: parts that the stream billed.

    A part that only a repeat has superseded was not billed, and is not removed.
    """
    pairs = moving.filter(pl.col("comes") & pl.all_horizontal(pl.col(PARTS).is_not_null())).select(*KEY, *PARTS)
    goes = _alone(moving.filter(pl.col("goes")))
    billed = expected.filter(pl.col("outcome") != Outcome.SUPERSEDED.value)
    gone = _alone(billed).join(goes, on=[*KEY, "lsn"], how="anti")
    for part in PARTS:
        pairs = pairs.join(gone, left_on=[*KEY, part], right_on=[*KEY, "lsn"], how="anti")
    parts = pl.concat([pairs.select(*KEY, lsn=part) for part in PARTS])
    is_pair = pl.concat(
        [
            pairs.select(*KEY, *PARTS),
            parts.select(*KEY, request_lsn="lsn", completion_lsn=pl.lit(None, pl.Int64)),
            parts.select(*KEY, request_lsn=pl.lit(None, pl.Int64), completion_lsn="lsn"),
        ]
    ).unique()
    named = is_pair.with_columns(is_pair=pl.lit(value=True))
    return moving.join(named, on=OUTCOME, how="left", nulls_equal=True).with_columns(
        pl.col("is_pair").fill_null(value=False)
    )


def with_own_days(both: pl.DataFrame, now: pl.DataFrame) -> pl.DataFrame:
    """The same with `cause_found` and `has_own_day` (`differences.standing`) of effective usage.

    Of the stream I10 compares the day.
    """
    own = pl.col("has_own_day") if "has_own_day" in now.columns else pl.lit(value=False)
    stands = both.join(now.select("usage_lsn", cause_found="cause", has_own_day=own), on="usage_lsn", how="left")
    return stands.with_columns(pl.col("has_own_day").fill_null(value=False))


def _alone(outcomes: pl.DataFrame) -> pl.DataFrame:
    """(KEY, lsn) of rows that no longer wait for a partner."""
    is_alone = pl.any_horizontal(pl.col(PARTS).is_null())
    return outcomes.filter(is_alone).select(*KEY, lsn=pl.coalesce(PARTS))


def with_causes(both: pl.DataFrame, known: Mapping[str, pl.DataFrame], taken: TakenBack) -> pl.DataFrame:
    """The same with the `cause` of each change, and whether it `is_fault`: a change without a cause.

    Only outcomes that are otherwise with what is contracted, without what is repeated, or when parts are joined
    (`known`: OUTCOME of each) may come, go or become something else; and those of a key of which the best report bills.
    An outcome of the same parts never changes, except for its price, what is `taken` back, and
    what counts of a content (`is_content`); any other difference was never right. Only what the stream decided by
    another part (`is_by_another`) is restated once.
    """
    both = taken.marked(both)
    for name, outcomes in known.items():
        named = outcomes.with_columns(pl.lit(value=True).alias(name))
        both = both.join(named, on=OUTCOME, how="left", nulls_equal=True).with_columns(
            pl.col(name).fill_null(value=False)
        )
    is_on_another_day = pl.col("has_own_day") & differs("day") & (pl.col("outcome") != Outcome.SUPERSEDED.value)
    is_otherwise = pl.col("is_same") & (
        pl.any_horizontal(*(differs(name) for name in (*_AS_DECIDED, "counted"))) | is_on_another_day
    )
    is_by_another = pl.col("is_by_another") & pl.col("cause_found").eq_missing(UsageCause.STREAM.value)
    stays = ~differs("outcome") & ~is_by_another
    is_counted_less = pl.col("is_same") & differs("counted") & pl.col("is_credited") & ~differs("outcome")
    is_decided_otherwise = pl.col("is_same") & pl.any_horizontal(*(differs(name) for name in _AS_DECIDED))
    is_of_content = pl.col("is_same") & differs("counted") & pl.col("is_content")
    is_explained = (is_counted_less | is_of_content) & ~is_decided_otherwise & ~is_on_another_day
    is_untrue = is_otherwise & stays & ~is_explained & (pl.col("outcome") != Outcome.SUPERSEDED.value)
    is_ranked = pl.col("group").is_not_null()
    is_restated = pl.col("is_replaced") | (is_otherwise & is_by_another)
    restated_as = (
        pl.when(is_restated).then(pl.lit(UsageCause.RESTATED.value)).otherwise(pl.lit(UsageCause.DUPLICATE.value))
    )
    is_priced_otherwise = pl.col("is_same") & (differs("priced") | differs("currency"))
    changes = pl.col("goes") | pl.col("comes") | (is_otherwise & ~is_untrue) | pl.col("is_put_again")
    cause = (
        pl.when(pl.col("is_put_again"))
        .then(pl.lit(UsageCause.RESTATED.value))
        .when((changes & pl.col("is_reversed")) | (is_counted_less & ~is_untrue))
        .then(pl.lit(UsageCause.REVERSED.value))
        .when(is_of_content & is_explained)
        .then(pl.lit(UsageCause.ONCE_PER.value))
        .when(changes & pl.col("is_joined") & pl.col("is_pair"))
        .then(pl.lit(UsageCause.REJOINED.value))
        .when(changes & pl.col("is_joined") & is_ranked)
        .then(restated_as)
        .when(changes & pl.col("is_repeated"))
        .then(pl.lit(UsageCause.DUPLICATE.value))
        .when(changes & pl.col("is_contracted"))
        .then(pl.lit(UsageCause.SCHEMA_ADDED.value))
        .when(changes & is_ranked)
        .then(restated_as)
        .when(is_priced_otherwise & ~is_otherwise)
        .then(pl.lit(UsageCause.REPRICED.value))
        .when(changes & pl.col("has_reversal"))
        .then(pl.lit(UsageCause.REVERSED.value))
    )
    is_counted_otherwise = pl.col("count") != 1
    return both.with_columns(cause=cause).with_columns(
        is_fault=is_untrue
        | ((changes | is_priced_otherwise) & pl.col("cause").is_null())
        | is_counted_otherwise.fill_null(value=False)
    )
