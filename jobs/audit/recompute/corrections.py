"""Usage as stored, and usage as expected by what is known now → the signed rows that turn the first into the second.

Only differences with a known cause are corrected. Any other difference is a fault: it is reported, and the rows of its
key stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property

import polars as pl
import pyarrow as pa

from jobs.audit.compare.differences import COMPARED, as_differences, beside, differs
from jobs.audit.recompute import once_per
from jobs.audit.recompute.expected import (
    CONTENTS,
    IS_CONTRACTED,
    IS_SENT_AGAIN,
    OUTCOME,
    PARTS,
    Pinned,
    decided,
    expected_usage,
    with_timeouts,
)
from jobs.audit.recompute.late_versions import priced_later
from jobs.audit.recompute.member_prices import with_kept_prices
from jobs.audit.recompute.rejoins import Pair, may_rejoin, rejoin_outcomes
from jobs.audit.recompute.restatements import pairs_in_reach, ranked_keys, restate, with_groups
from jobs.audit.recompute.reversals import TakenBack, taken_back
from jobs.joins.memory import CONDITION, KEY, TEXT
from jobs.streams import USAGE
from metering.vocabulary import Outcome, UsageCause

CORRECTIONS = pa.schema(
    [field for field in USAGE if field.name not in ("lsn", "log_date", "logged_at", "rules", "frontier")]
)
"""Rows of usage without an lsn."""
_AS_DECIDED = [name for name in COMPARED if name not in ("plan", "currency", "day")]
"""What a later price changes nothing of."""


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


def corrections(
    carried: pl.DataFrame,
    expected: pl.DataFrame,
    standing: Standing,
    pinned: Pinned,
    reversals: pl.DataFrame,
    *,
    uncounted: pl.DataFrame | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The journal's rows of some keys, what the stream must have made of them, and usage → (DIFFERENCES, CORRECTIONS).

    `reversals` (`reversals.without_reversals`) take back what these or other keys bill; `uncounted`
    (`once_per.MARKED`): what does not count because another outcome of its content does (None: nothing is decided). The
    differences are those without a known cause; a key with one of them has no corrections.
    """
    found = _decide(carried, expected, standing, pinned)
    now = _recomputed(found, pinned, reversals)
    must, explained = _counted_now(found, now.left, pinned, uncounted)
    standing = found.standing
    moving = _with_pairs(_moving(beside(standing.now, must)), found.expected)
    both = _with_own_days(with_groups(moving, now.members), standing.now)
    known = {
        "is_contracted": _changed_outcomes(found.expected, found.every),
        "is_repeated": _changed_outcomes(found.every, found.once),
        "is_joined": _changed_outcomes(found.once, now.joined),
        "is_by_another": _from_another_part(found.once, now.best),
        "is_content": explained,
    }
    with_causes = _with_causes(both, known, now.taken)
    faults = with_causes.filter(pl.col("is_fault"))
    sound = with_causes.filter(pl.col("cause").is_not_null()).join(faults, on=KEY, how="anti")
    negated = _negated(sound.filter(pl.col("is_found")), standing.now)
    put = _replacements(sound.filter(pl.col("is_expected")), must, negated)
    return as_differences(faults), pl.concat([negated, put], how="diagonal").sort(*KEY, "sign", *PARTS)


def each_counted(
    carried: pl.DataFrame, expected: pl.DataFrame, standing: Standing, pinned: Pinned, reversals: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The same rows → their expected usage (`expected_usage`) if each outcome of a content counted; and of keys of
    which a row waits, their effective usage regardless of what counts: usage with CONTENTS, where `is_known` says them.
    """
    found = _decide(carried, expected, standing, pinned)
    counted = _must_stand(found, pinned, reversals)
    rows, made = (frame.join(found.waiting, on=KEY, how="semi") for frame in (carried, expected))
    stands = standing.of(found.waiting)
    done = _must_stand(_decide(_decided_rows(rows, pinned), made, stands, pinned), pinned, reversals)
    known = pl.concat([made, done], how="vertical_relaxed").select(*OUTCOME, CONTENTS)
    known = known.unique(OUTCOME, keep="first", maintain_order=True).with_columns(is_known=pl.lit(value=True))
    billed = stands.now.filter(pl.col("outcome") != Outcome.SUPERSEDED.value)
    return counted, billed.join(known, on=OUTCOME, how="left", nulls_equal=True)


def _must_stand(found: _Decided, pinned: Pinned, reversals: pl.DataFrame) -> pl.DataFrame:
    return _expected_now(_recomputed(found, pinned, reversals).left, found.carried, found.standing, pinned)


def _decided_rows(carried: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
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
class _Decided:
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


@dataclass(frozen=True)
class _Recomputed:
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


def _decide(carried: pl.DataFrame, expected: pl.DataFrame, standing: Standing, pinned: Pinned) -> _Decided:
    """The journal's rows of some keys, and what the stream must have made of them → what they are decided to."""
    every = decided(carried, pinned) if carried[IS_CONTRACTED].any() else expected
    first = carried.join(repeats(carried), on="lsn", how="anti")
    once, waiting = _waiting(first, pinned)
    waiting, rows = waiting.select(KEY).unique(), with_timeouts(first, pinned)
    if len(waiting):
        done, made = (frame.join(waiting, on=KEY, how="anti") for frame in (carried, expected))
        return replace(_decide(done, made, standing.without(waiting), pinned), waiting=waiting)
    return _Decided(carried, rows, expected, every, once, standing, waiting)


def _recomputed(found: _Decided, pinned: Pinned, reversals: pl.DataFrame) -> _Recomputed:
    pairs = found.standing.now.filter(pl.all_horizontal(pl.col(PARTS).is_not_null())).select(PARTS).rows()
    ranked = ranked_keys(found.carried, pinned)
    pairs_made = _rejoined(found.once.join(ranked, on=KEY, how="anti"), found.rows, found.carried, pairs, pinned)
    best, members = restate(found.rows.join(ranked, on=KEY, how="semi"), found.carried, pinned)
    joined = pl.concat([pairs_made, best.select(pairs_made.columns)])
    return _Recomputed(best, members, joined, taken_back(reversals, found.rows, members, pinned))


def _counted_now(
    found: _Decided, left: pl.DataFrame, pinned: Pinned, uncounted: pl.DataFrame | None
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
    return pl.concat([rejoin_outcomes(part, rows, reach_us, standing, late) for part, reach_us in found])


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


def _from_another_part(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """The outcomes (OUTCOME) of the same parts whose model, dimensions or conditions are those of another part."""
    names = ("model", "user_id", *(name for name in after.columns if name.startswith((TEXT, CONDITION))))
    both = before.join(after, on=[*OUTCOME, "outcome"], how="inner", suffix="_after", nulls_equal=True)
    return both.filter(pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_after")) for name in names)).select(
        OUTCOME
    )


def _changed_outcomes(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """The outcomes (OUTCOME) that are in one of them alone, or became something else."""
    earlier, other = (rows.select(*OUTCOME, "outcome") for rows in (before, after))
    alone = [
        a.join(b, on=[*OUTCOME, "outcome"], how="anti", nulls_equal=True)
        for a, b in ((earlier, other), (other, earlier))
    ]
    return pl.concat(alone).select(OUTCOME).unique()


def _moving(both: pl.DataFrame) -> pl.DataFrame:
    """`differences.beside` with what `goes` and `comes`. Superseded outcomes bill nothing, so they do neither."""
    is_superseded = pl.col("outcome").eq_missing(Outcome.SUPERSEDED.value)
    was_superseded = pl.col("outcome_found").eq_missing(Outcome.SUPERSEDED.value)
    return both.with_columns(
        is_same=pl.col("is_found") & pl.col("is_expected"),
        goes=pl.col("is_found") & ~pl.col("is_expected") & ~was_superseded,
        comes=pl.col("is_expected") & ~pl.col("is_found") & ~is_superseded,
    )


def _with_pairs(moving: pl.DataFrame, expected: pl.DataFrame) -> pl.DataFrame:
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


def _with_own_days(both: pl.DataFrame, now: pl.DataFrame) -> pl.DataFrame:
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


def _with_causes(both: pl.DataFrame, known: Mapping[str, pl.DataFrame], taken: TakenBack) -> pl.DataFrame:
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
        .then(pl.lit(UsageCause.CONTRACTED.value))
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


def _negated(sound: pl.DataFrame, now: pl.DataFrame) -> pl.DataFrame:
    """Rows that are removed or replaced → rows that negate them."""
    rows = now.drop("cause").join(sound.select("usage_lsn", "cause", "group"), on="usage_lsn", how="inner")
    return rows.with_columns(sign=pl.lit(-1, pl.Int32), corrects_lsns=pl.concat_list("usage_lsn"))


def _replacements(sound: pl.DataFrame, must: pl.DataFrame, negated: pl.DataFrame) -> pl.DataFrame:
    """Rows that are added, or replace others → rows that name those that they replace.

    They copy the day of what occurred when they did: of the completion, and of a request without one. Of a pair that is
    taken apart the request was on the day of the completion, and is on its own from now on. A report that bills from
    now on also names all that its request billed before.
    """
    comes = sound.select(*OUTCOME, "cause", "group")
    rows = must.join(comes, on=OUTCOME, how="inner", nulls_equal=True).with_row_index("row")
    occurred = pl.coalesce("completion_lsn", "request_lsn")
    parts = [rows.select("row", *KEY, lsn=part, occurred=pl.col(part) == occurred) for part in PARTS]
    gone = [negated.select(*KEY, "usage_lsn", "day", lsn=part, had_day=pl.col(part) == occurred) for part in PARTS]
    shared = (
        pl.concat(parts)
        .join(pl.concat(gone).unique(), on=[*KEY, "lsn"], how="inner")
        .select("row", *KEY, "usage_lsn", "day", occurred=pl.col("occurred") & pl.col("had_day"))
    )
    billing = rows.filter(pl.col("outcome") != Outcome.SUPERSEDED.value).select(
        "row", *KEY, "group", occurred=pl.lit(value=False)
    )
    before = negated.filter(pl.col("cause") == UsageCause.RESTATED.value)
    of_request = billing.join(before.select(*KEY, "group", "usage_lsn", "day"), on=[*KEY, "group"], how="inner")
    replaced = (
        pl.concat([shared, of_request.select(shared.columns)])
        .sort("row", "usage_lsn")
        .group_by("row", maintain_order=True)
        .agg(
            corrects_lsns=pl.col("usage_lsn").unique().sort(),
            day_before=pl.col("day").filter(pl.col("occurred")).last(),
        )
    )
    return (
        rows.join(replaced, on="row", how="left")
        .with_columns(pl.coalesce("day_before", "day").alias("day"), sign=pl.lit(1, pl.Int32))
        .drop("row", "day_before", "group")
    )


def as_rows(made: pl.DataFrame) -> pa.Table:
    """What `corrections` gave, as CORRECTIONS; columns that only earlier releases filled are null in others."""
    table = made.drop("usage_lsn", "count", "group", strict=False).to_arrow()
    have = set(table.column_names)
    columns = [
        table[field.name].cast(field.type) if field.name in have else pa.nulls(len(table), field.type)
        for field in CORRECTIONS
    ]
    return pa.table(columns, schema=CORRECTIONS)
