"""Keys of the journal decided by the stream's rules: what each came to, and which may be decided differently now."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from jobs.audit.recompute.expected import (
    IS_CONTRACTED,
    IS_SENT_AGAIN,
    OUTCOME,
    PARTS,
    Pinned,
    decided,
    with_timeouts,
)
from jobs.audit.recompute.late_versions import priced_later
from jobs.audit.recompute.rejoins import may_rejoin
from jobs.audit.recompute.restatements import ranked_keys
from jobs.joins.memory import KEY
from metering.vocabulary import UsageCause


@dataclass(frozen=True)
class Standing:
    """Usage of whole keys (`differences.net`): what the stream made of them, and what is in effect now."""

    stream: pl.DataFrame
    now: pl.DataFrame
    first: pl.DataFrame
    """(OUTCOME, usage_lsn) of the first row of each outcome."""

    def of(self, keys: pl.DataFrame) -> Standing:
        """What is of these keys (KEY)."""
        return Standing(*(rows.join(keys, on=KEY, how="semi") for rows in (self.stream, self.now, self.first)))

    def without(self, keys: pl.DataFrame) -> Standing:
        """What is of all other keys."""
        return Standing(*(rows.join(keys, on=KEY, how="anti") for rows in (self.stream, self.now, self.first)))


def suspects(carried: pl.DataFrame, expected: pl.DataFrame, standing: Standing, pinned: Pinned) -> pl.DataFrame:
    """The keys (KEY) of which more may be known now than when the stream decided.

    `carried`: rows of the journal (Pinned.schema, identity); `expected`: what the stream must have made of them.
    """
    changed = standing.now.filter(pl.col("cause") != UsageCause.STREAM.value)
    negated = standing.stream.join(standing.now, on=OUTCOME, how="anti", nulls_equal=True)
    contracted = carried.filter(IS_CONTRACTED)
    again = (repeats(carried), contracted, ranked_keys(carried, pinned), may_rejoin(expected))
    found = (*again, changed, negated, priced_later(expected, pinned))
    return pl.concat([rows.select(KEY) for rows in found]).unique()


def repeats(carried: pl.DataFrame) -> pl.DataFrame:
    """Rows (lsn, family, KEY, identity, IS_CONTRACTED, IS_SENT_AGAIN) of the journal → those whose event was accepted
    before.

    That is the same identity of the same family, and the same request: a request and its completion repeat each other
    never. Events validated on arrival win over those validated later, also as other requests
    (IS_SENT_AGAIN).
    """
    known = carried.filter(pl.col("identity").is_not_null()).sort(IS_CONTRACTED, "lsn")
    is_first = pl.col("lsn") == pl.col("lsn").first().over(*KEY, "identity", "family")
    return known.filter(~is_first | pl.col(IS_SENT_AGAIN))


def decided_rows(carried: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """Rows of keys → those of which, if there were no others, none would wait."""
    while True:
        first = carried.join(repeats(carried), on="lsn", how="anti")
        _, waiting = _waiting(first, pinned)
        if waiting.is_empty():
            return carried
        carried = carried.join(waiting, on="lsn", how="anti")


def _waiting(first: pl.DataFrame, pinned: Pinned) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of keys, each event once → (their outcomes, the rows that wait)."""
    once = decided(first, pinned)
    named = pl.concat([once[part] for part in PARTS]).drop_nulls().implode()
    return once, first.filter(~pl.col("lsn").is_in(named))


@dataclass(frozen=True)
class Decided:
    """The rows of keys without pending ones, their outcomes by the stream's rules, and the effective usage."""

    carried: pl.DataFrame
    """The rows as the journal has them."""
    rows: pl.DataFrame
    """Each event once, as joins has them (`expected.with_timeouts`)."""
    expected: pl.DataFrame
    """What the stream must have made of them."""
    every: pl.DataFrame
    """The outcomes of all rows, also of those whose contract came later."""
    once: pl.DataFrame
    """The outcomes of `rows`."""
    standing: Standing
    waiting: pl.DataFrame
    """The other keys (KEY). A pending row may still find a partner: the next audit knows."""


def decide(carried: pl.DataFrame, expected: pl.DataFrame, standing: Standing, pinned: Pinned) -> Decided:
    """The journal's rows of some keys, and what the stream must have made of them → what they are decided to."""
    every = decided(carried, pinned) if carried[IS_CONTRACTED].any() else expected
    first = carried.join(repeats(carried), on="lsn", how="anti")
    once, waiting = _waiting(first, pinned)
    waiting, rows = waiting.select(KEY).unique(), with_timeouts(first, pinned)
    if len(waiting):
        done, made = (frame.join(waiting, on=KEY, how="anti") for frame in (carried, expected))
        return replace(decide(done, made, standing.without(waiting), pinned), waiting=waiting)
    return Decided(carried, rows, expected, every, once, standing, waiting)
