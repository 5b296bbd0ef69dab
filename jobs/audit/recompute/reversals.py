"""Reversals → their effect: everything that a request bills, or part of what one meter bills of it.

What remains of a key is a function of the set of its rows and reversals, so neither their order nor an audit in between
changes it. Nothing undoes a reversal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby

import polars as pl

from jobs.audit.recompute.expected import OUTCOME, PARTS, Pinned
from jobs.joins.credits import CREDIT, CREDITS, KIND
from jobs.joins.memory import KEY, REPORTED, Schema
from jobs.joins.recovery import is_paired
from jobs.journal.families import is_reversal
from metering.contracts.reversals import METER, QUANTITY
from metering.vocabulary import Family, Outcome

REVERSAL: dict[str, pl.DataType] = {METER: pl.String(), QUANTITY: REPORTED}
"""What is read of a reversal in the journal, beside what is read of all rows."""
_GROUPS: Schema = {**dict.fromkeys(KEY, pl.String), "group": pl.UInt32}
_MEMBERS: Schema = {**_GROUPS, "lsn": pl.Int64}
_CREDITS: Schema = {**_GROUPS, "meter": pl.String, "credit": CREDIT}


def is_examined() -> pl.Expr:
    """Whether a row of the journal affects what a request bills: as a part of it, or by taking it back."""
    return is_paired() | is_reversal()


def without_reversals(journal: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of the journal (`examination.journal_read`, `family`) → (those of outcomes, reversals: each event once)."""
    of_reversals = pl.col("family").eq_missing(Family.REVERSAL.value)
    first = journal.filter(of_reversals).sort("lsn").unique([*KEY, "identity"], keep="first", maintain_order=True)
    at_us = pl.coalesce("first_received_at", "received_at").dt.epoch("us").alias("us")
    return journal.filter(~of_reversals), first.select(*KEY, "lsn", at_us, METER, QUANTITY)


@dataclass(frozen=True)
class TakenBack:
    """What reversals take back of some keys."""

    members: pl.DataFrame
    """(KEY, group, lsn) of the rows of each request."""
    whole: pl.DataFrame
    """(KEY, group) of the requests that are taken back with all that they bill, now or ever."""
    credits: pl.DataFrame
    """(KEY, group, meter, credit) of credits; a null credit is all that the meter bills."""

    def left(self, outcomes: pl.DataFrame) -> pl.DataFrame:
        """Outcomes (`resolve`) → those that are not taken back, with CREDITS where a part is."""
        if self.members.is_empty():
            return outcomes.with_columns(pl.lit(None, KIND).alias(CREDITS))
        placed = self.placed(outcomes).join(self.whole, on=[*KEY, "group"], how="anti", nulls_equal=True)
        # One outcome of a request has the credits: where the best report bills, there is only one.
        is_billed = pl.col("outcome") != Outcome.SUPERSEDED.value
        worth = [pl.col("outcome") == Outcome.MATCHED.value, pl.col("completion_lsn").is_not_null(), *PARTS]
        last = placed.filter(is_billed).sort(worth, nulls_last=False).unique([*KEY, "group"], keep="last")
        meters = pl.struct("meter", "credit")
        lists = self.credits.sort(*KEY, "group", "meter").group_by(*KEY, "group").agg(meters.alias(CREDITS))
        given = last.join(lists, on=[*KEY, "group"], how="inner").select(*OUTCOME, pl.col(CREDITS).cast(KIND))
        return placed.drop("group").join(given, on=OUTCOME, how="left", nulls_equal=True, maintain_order="left")

    def placed(self, outcomes: pl.DataFrame) -> pl.DataFrame:
        """Outcomes (OUTCOME) with the `group` of each; null where its key has no reversal."""
        row = pl.coalesce("completion_lsn", "request_lsn")
        found = outcomes.with_columns(_lsn=row).join(
            self.members, left_on=[*KEY, "_lsn"], right_on=[*KEY, "lsn"], how="left", maintain_order="left"
        )
        return found.drop("_lsn")

    def marked(self, both: pl.DataFrame) -> pl.DataFrame:
        """`differences.beside` with what reversals explain.

        `is_reversed`: its request is taken back as a whole. `is_credited`: a part of something of its key is.
        `has_reversal`: its key has one, in reach of it or not.
        """
        keys = self.members.select(KEY).unique()
        marks = {
            "is_reversed": (self.whole, [*KEY, "_group"], [*KEY, "group"]),
            "is_credited": (self.credits.select(KEY).unique(), list(KEY), list(KEY)),
            "has_reversal": (keys, list(KEY), list(KEY)),
        }
        marked = self.placed(both.rename({"group": "_ranked"})).rename({"group": "_group"})
        for name, (found, left, right) in marks.items():
            named = found.with_columns(pl.lit(value=True).alias(name))
            marked = marked.join(named, left_on=left, right_on=right, how="left", maintain_order="left")
            marked = marked.with_columns(pl.col(name).fill_null(value=False))
        return marked.drop("_group").rename({"_ranked": "group"})


def taken_back(reversals: pl.DataFrame, rows: pl.DataFrame, ranked: pl.DataFrame, pinned: Pinned) -> TakenBack:
    """Reversals (`without_reversals`) and the rows of whole keys → what is taken back of these.

    `rows` (KEY, lsn, received_at, first_received_at); `ranked` (`restatements.MEMBERS`): the requests of the keys of
    which the best report bills. Of any other key the rows first received within reach of its first row are one request.
    """
    concerned = reversals.join(rows, on=KEY, how="semi")
    if concerned.is_empty():
        return TakenBack(*(pl.DataFrame(schema=kinds) for kinds in (_MEMBERS, _GROUPS, _CREDITS)))
    at_us = pl.coalesce("first_received_at", "received_at").dt.epoch("us").alias("us")
    timed = rows.join(concerned, on=KEY, how="semi").select(*KEY, "lsn", at_us)
    timed = timed.join(ranked, on=[*KEY, "lsn"], how="left").sort(*KEY, "us", "lsn")
    listed = concerned.sort(*KEY, "us", "lsn").iter_rows()
    of_key = {key: [row[3:] for row in found] for key, found in groupby(listed, key=lambda row: row[:2])}
    members: list[tuple[str, str, int, int]] = []
    whole: list[tuple[str, str, int]] = []
    parts_taken: list[tuple[str, str, int, str, Decimal | None]] = []
    for key, found in groupby(timed.iter_rows(), key=lambda row: row[:2]):
        requests = list(_requests([row[2:] for row in found], pinned.reach_us))
        members += [(*key, number, lsn) for number, (_, lsns) in enumerate(requests) for lsn in lsns]
        begins = [(us, pinned.reach_us(lsns[0])) for us, lsns in requests]
        taken, parts = _of_key(of_key[key], begins)
        whole += [(*key, number) for number in sorted(taken)]
        parts_taken += [(*key, number, meter, credit) for (number, meter), credit in sorted(parts.items())]
    return TakenBack(
        pl.DataFrame(members, schema=_MEMBERS, orient="row"),
        pl.DataFrame(whole, schema=_GROUPS, orient="row"),
        pl.DataFrame(parts_taken, schema=_CREDITS, orient="row"),
    )


def _requests(
    rows: Sequence[tuple[int, int, int | None]], reach_us: Callable[[int], int]
) -> Iterator[tuple[int, list[int]]]:
    """Rows of a key (lsn, first reception, group or null) by first reception → of each request the first, and lsns."""
    if rows[0][2] is not None:
        by_group: dict[int | None, list[tuple[int, int]]] = {}
        for lsn, us, group in rows:
            by_group.setdefault(group, []).append((us, lsn))
        yield from ((found[0][0], [lsn for _, lsn in found]) for found in by_group.values())
        return
    begun, lsns = rows[0][1], [rows[0][0]]
    for lsn, us, _ in rows[1:]:
        if us - begun > reach_us(lsns[0]):
            yield begun, lsns
            begun, lsns = us, []
        lsns.append(lsn)
    yield begun, lsns


def _of_key(
    reversals: Sequence[tuple[int, str | None, Decimal | None]], begins: Sequence[tuple[int, int]]
) -> tuple[set[int], dict[tuple[int, str], Decimal | None]]:
    """Reversals (first reception, meter, quantity) and requests (first reception, reach) of a key, both in order.

    Returns the numbers of the requests that are taken back, and by (number, meter) the credits, which add up. Without a
    meter a reversal takes back each request in reach. A credit is of one: the latest in reach that began before it,
    else the earliest after it.
    """
    whole: set[int] = set()
    parts: dict[tuple[int, str], Decimal | None] = {}
    for at_us, meter, quantity in reversals:
        reached = [number for number, (us, reach_us) in enumerate(begins) if abs(at_us - us) <= reach_us]
        if meter is None:
            whole.update(reached)
            continue
        before = [number for number in reached if begins[number][0] <= at_us]
        for number in before[-1:] or reached[:1]:
            so_far = parts.get((number, meter), Decimal(0))
            parts[number, meter] = None if quantity is None or so_far is None else so_far + quantity
    return whole, parts
