"""What decided keys come to by everything that is known now: their effective outcomes, and the usage to expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

import polars as pl

from jobs.audit.recompute import once_per
from jobs.audit.recompute.decisions import Decided, Standing, decide, decided_rows
from jobs.audit.recompute.expected import (
    CONTENTS,
    IS_CONTRACTED,
    OUTCOME,
    PARTS,
    Pinned,
    expected_usage,
)
from jobs.audit.recompute.member_prices import with_kept_prices
from jobs.audit.recompute.rejoins import Pair, rejoin_outcomes
from jobs.audit.recompute.restatements import pairs_in_reach, ranked_keys, restate
from jobs.audit.recompute.reversals import TakenBack, taken_back
from jobs.joins.memory import KEY
from metering.vocabulary import Outcome


def each_counted(
    carried: pl.DataFrame, expected: pl.DataFrame, standing: Standing, pinned: Pinned, reversals: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The same rows → their expected usage (`expected_usage`) if each outcome of a content counted; and of keys of
    which a row waits, their effective usage regardless of what counts: usage with CONTENTS, where `is_known` says them.
    """
    found = decide(carried, expected, standing, pinned)
    counted = _must_stand(found, pinned, reversals)
    rows, made = (frame.join(found.waiting, on=KEY, how="semi") for frame in (carried, expected))
    stands = standing.of(found.waiting)
    done = _must_stand(decide(decided_rows(rows, pinned), made, stands, pinned), pinned, reversals)
    known = pl.concat([made, done], how="vertical_relaxed").select(*OUTCOME, CONTENTS)
    known = known.unique(OUTCOME, keep="first", maintain_order=True).with_columns(is_known=pl.lit(value=True))
    billed = stands.now.filter(pl.col("outcome") != Outcome.SUPERSEDED.value)
    return counted, billed.join(known, on=OUTCOME, how="left", nulls_equal=True)


def _must_stand(found: Decided, pinned: Pinned, reversals: pl.DataFrame) -> pl.DataFrame:
    return _expected_now(recomputed(found, pinned, reversals).left, found.carried, found.standing, pinned)


@dataclass(frozen=True)
class Recomputed:
    """What they come to by all that is known."""

    best: pl.DataFrame
    """Of the keys that are ranked, the outcomes of the best reports."""
    members: pl.DataFrame
    """`restatements.MEMBERS` of these."""
    joined: pl.DataFrame
    """Effective usage without reversed usage."""
    taken: TakenBack

    @cached_property
    def left(self) -> pl.DataFrame:
        """Effective usage."""
        return self.taken.left(self.joined)


def recomputed(found: Decided, pinned: Pinned, reversals: pl.DataFrame) -> Recomputed:
    """Decided keys → what they come to by all that is known; `reversals` as `corrections` takes them."""
    pairs = found.standing.now.filter(pl.all_horizontal(pl.col(PARTS).is_not_null())).select(PARTS).rows()
    ranked = ranked_keys(found.carried, pinned)
    pairs_made = _rejoined(found.once.join(ranked, on=KEY, how="anti"), found.rows, found.carried, pairs, pinned)
    best, members = restate(found.rows.join(ranked, on=KEY, how="semi"), found.carried, pinned)
    joined = pl.concat([pairs_made, best.select(pairs_made.columns)])
    return Recomputed(best, members, joined, taken_back(reversals, found.rows, members, pinned))


def counted_now(
    found: Decided, left: pl.DataFrame, pinned: Pinned, uncounted: pl.DataFrame | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Effective outcomes → their expected usage, and those (OUTCOME) of which only that may have changed which of a
    content counts.
    """
    must = _expected_now(left, found.carried, found.standing, pinned)
    if not pinned.contents:
        return must, must.select(OUTCOME).clear()
    less = once_per.uncounted(must, found.standing.now, uncounted)
    explained = once_per.explained(must, found.standing.now)
    if less.is_empty():
        return must, explained
    counted = left.join(less, on=OUTCOME, how="left", nulls_equal=True, maintain_order="left")
    return _expected_now(counted, found.carried, found.standing, pinned), explained


def _rejoined(
    outcomes: pl.DataFrame, rows: pl.DataFrame, carried: pl.DataFrame, standing: Sequence[Pair], pinned: Pinned
) -> pl.DataFrame:
    """Outcomes of keys that are not ranked → the same with pairs of abandoned and orphaned rows.

    Where the best report bills they belong together by the rules that held for them, as if they had met.
    """
    late = set(carried.filter(IS_CONTRACTED)["lsn"])
    in_reach = pairs_in_reach(carried, pinned)
    longest_us = max(pinned.reach_us(effective.first) for effective in pinned.history)
    by_rank, earlier = (outcomes.join(in_reach, on=KEY, how=how) for how in ("semi", "anti"))
    within_us = pinned.rejoin_within // timedelta(microseconds=1)
    found = ((by_rank, longest_us), (earlier, within_us))
    identities = carried.select("lsn", "identity")
    return pl.concat(
        [rejoin_outcomes(part, rows, reach_us, standing, late, identities=identities) for part, reach_us in found]
    )


def _expected_now(outcomes: pl.DataFrame, carried: pl.DataFrame, standing: Standing, pinned: Pinned) -> pl.DataFrame:
    """The expected outcomes (`expected_usage`), by everything known at the position."""
    late = carried.filter(IS_CONTRACTED)["lsn"].to_list()
    is_contracted = pl.any_horizontal(pl.col(part).is_in(late).fill_null(value=False) for part in PARTS)
    outcomes = outcomes.with_columns(is_contracted.alias(IS_CONTRACTED))
    contracted = outcomes.filter(IS_CONTRACTED).select(OUTCOME)
    put = standing.first.join(contracted, on=OUTCOME, how="semi", nulls_equal=True)
    found = pl.concat([standing.stream.select(*OUTCOME, "usage_lsn"), put.select(*OUTCOME, "usage_lsn")])
    must = expected_usage(outcomes, found, pinned, seen_from=pinned.position)
    return with_kept_prices(must, standing.now, pinned)
