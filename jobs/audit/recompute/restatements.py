"""Several reports of a request → the outcome of the best one, regardless of what the stream saw first or billed.

What a key bills is a function of the set of its rows (`metering.ranking`), so audits in between do not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

import polars as pl

from jobs.audit.recompute.expected import IS_CONTRACTED, Pinned
from jobs.joins.memory import CONDITION, KEY, TEXT, quantity_of
from jobs.joins.pairs import FOUND, SIDES, paired
from jobs.joins.resolve import as_outcomes
from jobs.settings.stored_meters import restored
from metering.joining import Side
from metering.meters import columns_of
from metering.ranking import Ranked, Received, ranked
from metering.vocabulary import COMPLETIONS, OF_REQUESTS, Family, Outcome
from metering.windows import MINUTE

MEMBERS = pl.Schema({**dict.fromkeys(KEY, pl.String), "lsn": pl.Int64, "group": pl.UInt32})
"""The rows of each request (`group`, within its key)."""
REPORT = ("identity", "usage_source")
"""What is read of a row of the journal to rank it, beside what joins reads."""


def ranked_keys(carried: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """Rows of the journal → the keys (KEY) whose rows are ranked: the first came when the best report billed.

    A key with a row from before that stays what it was, and so does one that began after it was turned off. A row whose
    contract came later says nothing of it: the key had its first row when it had one that was validated.
    """
    return _several(carried, pinned).filter("is_ranked").select(KEY)


def pairs_in_reach(carried: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """Rows of the journal → the keys (KEY) that are one request and its completion, whether or not they have met."""
    return _several(carried, pinned).filter(~pl.col("is_ranked")).select(KEY)


def _several(carried: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """The keys (KEY) of requests that have several rows, and whether they must be ranked."""
    carried = carried.filter(pl.col("family").is_in(list(OF_REQUESTS)))
    if not any(pinned.ranks(effective.first) for effective in pinned.history):
        return carried.select(KEY, is_ranked=pl.lit(value=True)).clear()
    is_request, is_report = pl.col("family").eq(Family.REQUEST.value), pl.col("family").is_in(list(COMPLETIONS))
    texts = ("model", "user_id", *(name for name in carried.columns if name.startswith((TEXT, CONDITION))))
    of_request, answered = ([pl.col(name).filter(of).first() for name in texts] for of in (is_request, is_report))
    first = pl.coalesce(pl.col("lsn").filter(~pl.col(IS_CONTRACTED)).min(), pl.col("lsn").min())
    is_apart = (pl.col("family") == Family.BOTH.value).any() | (is_request.sum() > 1) | (is_report.sum() > 1)
    reports_more = pl.any_horizontal(
        report.is_not_null() & report.ne_missing(request) for request, report in zip(of_request, answered, strict=True)
    )
    first_us, reach_us = pl.col("first_us"), pl.col("reach_us")
    is_parted = first_us.max() - first_us.min() > reach_us.get(first_us.arg_min())
    # A request and its completion alone are one pair already, or rejoined; but the completion may have its own model.
    # What is backfilled at once may also meet years after its request was over.
    is_ranked = is_apart | (is_request.any() & (reports_more | is_parted))
    first_received_us = pl.coalesce("first_received_at", "received_at").dt.epoch("us")
    timed = carried.with_columns(first_us=first_received_us, reach_us=_by_rules(pinned.reach_us, "lsn", pinned))
    counted = timed.group_by(KEY).agg(is_ranked=is_ranked, first=first, rows=pl.len())
    return counted.filter((pl.col("rows") > 1) & _by_rules(pinned.ranks, "first", pinned)).select(*KEY, "is_ranked")


def _by_rules(of: Callable[[int], int | bool], lsn: str, pinned: Pinned) -> pl.Expr:
    """What the rules say (`of` an lsn) that held for the row of a column `lsn`."""
    earliest, *others = pinned.history
    found = pl.lit(of(earliest.first))
    for effective in others:
        found = pl.when(pl.col(lsn) >= effective.first).then(of(effective.first)).otherwise(found)
    return found


def restate(rows: pl.DataFrame, carried: pl.DataFrame, pinned: Pinned) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of whole keys, decided all of them and each event once → (outcomes (`resolve`), MEMBERS).

    `rows` as joins has them (`timed`), `carried` as the journal does, with REPORT. Each request has one outcome that
    bills, and a superseded one for each other report. Model and dimensions are those of the report that bills where it
    has them, else of the request that it answers.
    """
    numbers = {lsn: number for number, lsn in enumerate(rows["lsn"])}
    found: list[tuple[str, str, int | None, int | None, bool]] = []
    members: list[tuple[str, str, int, int]] = []
    for key, requests in _requests(rows, carried, pinned):
        for group, request in enumerate(requests):
            billed = (request.request, request.completion)
            begun, ended = (None if lsn is None else numbers[lsn] for lsn in billed)
            found.append((*key, begun, ended, False))
            members += [(*key, lsn, group) for lsn in dict.fromkeys(billed) if lsn is not None]
            for row in request.superseded:
                number = numbers[row.lsn]
                sides = (
                    number if row.side is not Side.COMPLETION else None,
                    number if row.side is not Side.REQUEST else None,
                )
                found.append((*key, *sides, True))
                members.append((*key, row.lsn, group))
    pairs = paired(rows, pl.DataFrame(found, schema=FOUND, orient="row"), is_of_report=True)
    return as_outcomes(pairs), pl.DataFrame(members, schema=MEMBERS, orient="row")


def _requests(
    rows: pl.DataFrame, carried: pl.DataFrame, pinned: Pinned
) -> Iterator[tuple[tuple[str, str], list[Ranked]]]:
    """By key what its requests come to."""
    first_received = pl.coalesce("first_received_at", "received_at")
    listed = rows.join(carried.select("lsn", *REPORT), on="lsn", how="left").select(
        *KEY,
        "lsn",
        "family",
        *[
            at.dt.epoch("us").alias(name)
            for name, at in (("received_us", first_received), ("us", pl.col("event_time")))
        ],
        *("identity", "status", "usage_source"),
        _has_quantities(pinned).alias("has_quantities"),
    )
    for key, of_key in groupby(listed.sort(*KEY, "lsn").iter_rows(), key=lambda row: row[:2]):
        received = [
            Received(lsn, SIDES[kind], received_us, occurred_us, identity or b"", *reported)
            for _, _, lsn, kind, received_us, occurred_us, identity, *reported in of_key
        ]
        yield key, list(ranked(received, pinned.reach_us))


def _has_quantities(pinned: Pinned) -> pl.Expr:
    """Whether a row reports any quantity that the meters add up that were declared when it came."""
    has_one = pl.lit(value=False)
    for effective in pinned.history:
        columns = columns_of(restored(effective.rules.get("meters")))
        reported = pl.any_horizontal(False, *(pl.col(quantity_of(column)).is_not_null() for column in columns))
        has_one = pl.when(pl.col("lsn") >= effective.first).then(reported).otherwise(has_one)
    return has_one


def with_groups(both: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Outcomes (`causes.with_pairs`) with the `group` of each outcome of a key that is ranked, null of any other.

    `is_replaced`: another row replaces what its request billed. `is_put_again`: it bills already, came after
    its window had ended, and another report of its request that was billed goes. Billing may have dropped it, or let it
    wait: added again it replaces both. `is_pair` is left where nothing else is removed.
    """
    row, of_group = pl.coalesce("completion_lsn", "request_lsn"), [*KEY, "group"]
    placed = both.with_columns(lsn=row).join(members, on=[*KEY, "lsn"], how="left").drop("lsn")
    is_billed, was_billed = (pl.col(name).ne_missing(Outcome.SUPERSEDED.value) for name in ("outcome", "outcome_found"))
    turns = pl.col("is_same") & (is_billed != was_billed)
    begins, ends = pl.col("comes") | (turns & is_billed), pl.col("goes") | (turns & was_billed)
    is_ranked, is_one = pl.col("group").is_not_null(), pl.col("is_pair") | ~ends
    replaces_two = is_one.all().over(of_group) & ends.any().over(of_group)
    is_late = pl.col("received_at") >= pl.col("event_time").dt.truncate("1m") + MINUTE
    stays = pl.col("is_same") & is_billed & was_billed
    return placed.with_columns(
        is_put_again=is_ranked & stays & is_late & ends.any().over(of_group),
        is_pair=pl.col("is_pair") & (~is_ranked | replaces_two),
    ).with_columns(is_replaced=is_ranked & (begins | pl.col("is_put_again")).any().over(of_group))
