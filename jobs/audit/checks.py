"""journal, usage and what Postgres holds → the checks of docs/design.md, section 8, each with how much it examined."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import functions as F

from jobs.audit.check import Check, said
from jobs.audit.differences import Kind
from jobs.audit.kept import Kept
from jobs.audit.minutes import KEY, MINUTES, MINUTES_READ, minute_sums, unequal_minutes
from jobs.audit.outcomes import Outcomes
from jobs.audit.pinned import Asked
from jobs.audit.recomputed import OUTCOME, Pinned
from jobs.audit.stored import Sessions, Stored
from jobs.audit.versions import Versions, arrow, spark_schema
from jobs.joins.past import CLOCK_SKEW
from jobs.sessionization.pipeline import CONCERNS
from jobs.streams import Table


def numbers(held: Mapping[Table, Kept], made: Stored, doubled: Collection[Table]) -> Check:
    """I1: each lsn of journal and usage is there, and nobody has read further than they reach.

    `doubled`: tables that have as many rows as they must, and not those.
    """
    broken = []
    for table, one in held.items():
        if one.missing:
            broken.append(f"{table}: {one.missing} rows are missing between {one.first} and {one.next}")
        elif table in doubled:
            broken.append(f"{table}: of the rows between {one.first} and {one.next} some are lost and others doubled")
    read = {Table.JOURNAL: made.sessions.position, Table.USAGE: made.billed.position}
    broken += [
        f"{table} ends before lsn {one.next}, but was read up to {read[table] - 1}: rows are gone"
        for table, one in held.items()
        if one.next < read[table]
    ]
    sound = "each lsn of journal and usage is there once, but for the days that `weir retain` has removed"
    many = max(sum(abs(one.missing) for one in held.values()), len(broken))
    return Check("I1", sum(one.rows for one in held.values()), many, (broken or [sound])[0])


def gone(made: Stored) -> Iterator[Check]:
    """Where there is no usage, or no journal: nothing was made of them yet, or they are gone."""
    read = max(made.billed.position, made.sessions.position) - 1
    says = f"journal or usage is gone, and {read} rows of it were read" if read else "there is no usage yet"
    for name in ("I1", "I4", "I5", "I6", "I8", "I10"):
        yield Check(name, 0, read if name == "I1" else 0, says)


def streamed(found: Outcomes, pinned: Pinned, told: Sequence[str]) -> Iterator[Check]:
    """I4 and I10: what the stream made of the journal; `told`: which versions are not those that the journal tells."""
    left_out = "" if pinned.since is None else f"; not what has a row from before {pinned.since}"
    if pinned.known_from > 1:
        left_out += f"; nor what an older release decided by rules that it did not keep, before lsn {pinned.known_from}"
    is_otherwise = pl.col("kind") == Kind.OTHERWISE
    for name, number, part, sound in (
        (
            "I4",
            found.rows,
            found.wrong.filter(~is_otherwise),
            "each request and completion is in an outcome or waits",
        ),
        ("I10", found.outcomes, found.wrong.filter(is_otherwise), "each outcome says what the journal makes of it"),
    ):
        broken = part.unique(OUTCOME, keep="first", maintain_order=True)
        says = [sentence(row) for row in broken.head(1).iter_rows(named=True)] + [*(told if name == "I10" else ())]
        many = len(broken) + (len(told) if name == "I10" else 0)
        yield Check(name, number, many, (says[0] if says else sound) + left_out)


def sessions(versions: Versions, made: Sessions) -> Check:
    """I5: the requests of each user are in sessions that do not overlap."""
    requests = versions.of_journal(("account", "user_id"), f"lsn < {made.position} AND {CONCERNS}")
    counted = pl.DataFrame(requests.groupBy("account", "user_id").count().toArrow())
    both = counted.join(made.events, on=["account", "user_id"], how="full", coalesce=True).fill_null(0)
    unequal = [
        f"{row['user_id']} of {row['account']} has {row['count']} requests, and {row['events']} in sessions"
        for row in both.filter(pl.col("count") != pl.col("events")).sort("account", "user_id").iter_rows(named=True)
    ]
    sound = "each request with a user is in one session of theirs, and none overlaps another"
    return said("I5", int(counted["count"].sum()), [*unequal, *made.overlapping], sound)


def windows(versions: Versions, made: Stored, kept_since: date | None, asked: Asked) -> Check:
    """I6: signed usage is what windows and stragglers have, and days add up to the minutes."""
    occurred = [f"event_time >= TIMESTAMP '{asked.since.isoformat()}'"] if asked.since else []
    occurred += [f"event_time < TIMESTAMP '{asked.until.isoformat()}'"] if asked.until else []
    rows = versions.of_usage(MINUTES_READ, " AND ".join([f"lsn < {made.billed.position}", *occurred]))

    def reduce(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from minute_sums(pl.DataFrame(batch)).to_arrow().cast(arrow(MINUTES)).to_batches()

    summed = (
        rows.mapInArrow(reduce, spark_schema(MINUTES))
        .groupBy(*KEY)
        .agg(F.max("unit_price").alias("unit_price"), F.sum("quantity").cast("decimal(38,6)").alias("quantity"))
    )
    parts, left_out = [pl.DataFrame(summed.toArrow()), made.billed.windows, made.billed.dropped], ""
    begins = [asked.since] if asked.since else []
    if kept_since is not None:
        # Nothing of a minute is logged before it, but for the clocks.
        begins.append(datetime.combine(kept_since, time(), UTC) + CLOCK_SKEW)
        left_out = f"; not before {begins[-1]}, of which usage was removed"
    for begin in begins:
        parts = [part.filter(pl.col("window_start") >= begin) for part in parts]
    if asked.until:
        parts = [part.filter(pl.col("window_start") < asked.until) for part in parts]
    days = made.days.broken if asked.is_everything else []
    sound = "signed usage is windows and stragglers that are in none, per meter and price"
    sound += ", and days add up to the minutes" if asked.is_everything else ""
    found = said("I6", len(parts[0]), [*unequal_minutes(*parts), *days], sound)
    return Check(found.check, found.examined, found.found, found.says + left_out)


def standing(found: Outcomes, made: Stored, corrected: Mapping[str, int]) -> Check:
    """I8: what was found later is put right (rows, by cause), and each change of a closed window is a row."""
    faults = found.faults.unique(OUTCOME, keep="first", maintain_order=True)
    broken = [*(sentence(row) for row in faults.head(1).iter_rows(named=True)), *made.corrections.broken]
    put = sum(corrected.values())
    expected = max(found.changes, put)
    causes = corrected or found.causes
    told = ", ".join(f"{many} rows of cause {cause}" for cause, many in sorted(causes.items()))
    told += "" if corrected or not told else " would put right what was found later"
    says = (broken[0] if broken else told) or "what was found later is put right, and each correction is explained"
    wrong = len(faults) + len(made.corrections.broken)
    return Check("I8", found.outcomes + made.corrections.examined, wrong + expected, says, expected, put)


def sentence(row: dict[str, Any]) -> str:
    """One of DIFFERENCES in words."""
    place = f"request {row['request_id']} of {row['account']} (lsn {row['request_lsn']}, {row['completion_lsn']})"
    match row["kind"]:
        case Kind.LOST | Kind.PHANTOM:
            return f"{place} is {row['kind']}"
        case Kind.COUNTED:
            return f"{place} is there {row['found']} times, last in usage {row['usage_lsn']}"
        case Kind.REVERSAL:
            return f"{place}: usage {row['usage_lsn']} takes back, or replaces, something else than what it names"
    return f"{place}: {row['column']} is {row['found']} instead of {row['expected']}, in usage {row['usage_lsn']}"
