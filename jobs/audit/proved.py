"""What billing and sessionization hold beside what they must: executors make it anew, the driver compares by bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from jobs.audit import stored as held
from jobs.audit.again import corrects, outside
from jobs.audit.bills import ALONE, DAYS, WINDOW_KEY, WINDOWS, added_days, bills
from jobs.audit.calendar import STORED_DAYS, unequal_days
from jobs.audit.chains import CORRECTIONS, Chain, explained, unexplained
from jobs.audit.decisions import DECIDED, ENTRY, inherited
from jobs.audit.minutes import STORED_STRAGGLERS, STORED_WINDOWS, unequal_stragglers, unequal_windows
from jobs.audit.pinned import Asked
from jobs.audit.sessions import MINI, SESSIONS, mini_sessions, of_user, unequal_sessions
from jobs.audit.spilled import SHIPPED, gathered, shipped
from jobs.audit.stored import Billed, Sessions
from jobs.audit.unequal import Wrong
from jobs.audit.versions import Versions, arrow, spark_schema
from jobs.billing.sums import AT_ONCE, COLUMNS
from jobs.joins.past import CLOCK_SKEW
from jobs.sessionization.pipeline import CONCERNS
from metering.windows import MINUTE

Parts = Mapping[str, pl.DataFrame]
_ALONE = "alone"
_AROUND = timedelta(days=3)
"""A day in a zone is nowhere longer ago than that, and a month may begin with what came before its first midnight."""


@dataclass(frozen=True)
class Span:
    """Windows from `begin` on and before `until` are whole; None: there is no such border."""

    begin: datetime | None = None
    until: datetime | None = None

    @property
    def is_everything(self) -> bool:
        """Whether all that there ever was can be compared."""
        return self.begin is None and self.until is None

    @property
    def occurred(self) -> list[str]:
        """Conditions that all usage of these windows fulfils."""
        begin = [f"event_time >= TIMESTAMP '{self.begin.isoformat()}'"] if self.begin else []
        return begin + ([f"event_time < TIMESTAMP '{(self.until + MINUTE).isoformat()}'"] if self.until else [])

    @classmethod
    def of(cls, asked: Asked, kept_since: date | None) -> Span:
        """Of the period that is asked for; usage has every row of the log date `kept_since` and later ones."""
        begins = [] if asked.since is None else [asked.since]
        if kept_since is not None:
            # Nothing of a minute is logged before it, but for the clocks.
            begins.append(datetime.combine(kept_since, time(), UTC) + CLOCK_SKEW)
        return cls(max(begins, default=None), asked.until)

    def windows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those of windows that are whole."""
        return _between(rows, pl.col("window_start"), self.begin, self.until)

    def days(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those of days that are whole, whatever zone named them."""
        begin = None if self.begin is None else (self.begin + _AROUND).date()
        until = None if self.until is None else (self.until - _AROUND).date()
        return _between(rows, pl.col("day"), begin, until)


@dataclass(frozen=True)
class Proof:
    """What is not as it must be of windows, stragglers and days (I6), and of corrections (I8)."""

    sums: Wrong
    corrections: Wrong


def proved(versions: Versions, billed: Billed, span: Span) -> Proof:
    """Recompute what billing has made of usage below its position, and compare it with what is stored."""
    decided = inherited(corrects(versions.usage, billed), held.decided(billed))
    rows = versions.of_usage(COLUMNS, " AND ".join([f"lsn < {billed.position}", *span.occurred]))

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for usage in _tables(batches):
            yield from _batches(by_bucket(usage, billed, decided))

    made = gathered(rows.mapInArrow(make, spark_schema(SHIPPED)), billed.buckets)
    return compared(made, billed, decided, versions.usage, span)


def by_bucket(usage: pa.Table, billed: Billed, decided: pl.DataFrame) -> pl.DataFrame:
    """Some rows of usage → what billing must have made of them, as SHIPPED."""
    made = bills(usage, billed.rules, decided)
    return shipped(
        {
            held.WINDOWS: (made.windows, billed.of_window()),
            _ALONE: (made.alone, billed.of_window()),
            held.DAYS: (made.days, billed.of_account()),
        }
    )


def compared(
    made: Iterable[tuple[int, Parts]], billed: Billed, decided: pl.DataFrame, usage: DeltaTable, span: Span
) -> Proof:
    """What is made (`by_bucket`) beside what is stored.

    Raises nothing for what differs: it is counted, and the first of it told.
    """
    sums, corrections = Wrong(), Wrong()
    chains: list[Chain] = []
    for bucket, parts in _every(made, billed.buckets):
        one, broken = _of_bucket(parts, billed, bucket, span)
        sums, corrections = sums + one.sums, corrections + one.corrections
        chains += broken
    if chains:
        of_each = zip(chains, outside(usage, billed, decided, chains), strict=True)
        sentences = [said for said in (unexplained(chain, entries) for chain, entries in of_each) if said]
        corrections += Wrong(0, len(sentences), next(iter(sentences), ""))
    return Proof(sums, corrections)


def _of_bucket(parts: Parts, billed: Billed, bucket: int, span: Span) -> tuple[Proof, list[Chain]]:
    """With the corrections that only usage row by row explains."""
    made = {name: parts.get(name, pl.DataFrame(schema=kinds)) for name, kinds in _MADE.items()}
    windows, stragglers, told = (
        span.windows(billed.rows.rows(name, bucket, kinds))
        for name, kinds in (
            (held.WINDOWS, STORED_WINDOWS),
            (held.STRAGGLERS, STORED_STRAGGLERS),
            (held.CORRECTED, CORRECTIONS),
        )
    )
    days = span.days(billed.rows.rows(held.DAYS, bucket, STORED_DAYS))
    alone = span.windows(made[_ALONE])
    corrections = explained(told, alone, windows)
    named = pl.DataFrame(corrections.named, schema={name: DECIDED[name] for name in ENTRY}, orient="row")
    corrected = alone.join(named, on=ENTRY, how="semi").select(WINDOW_KEY)
    sums = unequal_windows(span.windows(made[held.WINDOWS]), windows, corrected)
    sums += unequal_stragglers(alone, stragglers)
    sums += unequal_days(span.days(added_days(made[held.DAYS])), days, is_everything=span.is_everything)
    return Proof(sums, corrections.wrong), corrections.chains


_MADE = {held.WINDOWS: WINDOWS, _ALONE: ALONE, held.DAYS: DAYS}


def proved_sessions(versions: Versions, made: Sessions) -> Wrong:
    """Cut the requests of the journal below sessionization's position into sessions again, and compare them."""
    gaps = [(first, gap) for first, gap in made.gaps if first < made.position]
    names = ("lsn", "account", "user_id", "event_time")
    rows = versions.of_journal(names, f"lsn < {made.position} AND {CONCERNS}")

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for requests in _tables(batches):
            minis = mini_sessions(pl.DataFrame(requests), gaps)
            yield from _batches(shipped({_MINI: (minis, of_user(made.buckets))}))

    found = Wrong()
    if not gaps:
        return found
    for bucket, parts in _every(gathered(rows.mapInArrow(make, spark_schema(SHIPPED)), made.buckets), made.buckets):
        minis = parts.get(_MINI, pl.DataFrame(schema=MINI))
        found += unequal_sessions(minis, made.rows.rows(held.LIVE, bucket, SESSIONS), [gap for _, gap in gaps])
    return found


_MINI = "mini"


def _every(made: Iterable[tuple[int, Parts]], buckets: int) -> Iterator[tuple[int, Parts]]:
    """Each bucket once, also those of which nothing was made."""
    left = set(range(buckets))
    for bucket, parts in made:
        left.remove(bucket)
        yield bucket, parts
    yield from ((bucket, {}) for bucket in sorted(left))


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches of Spark together: billing's sums are of so many rows at once."""
    together: list[pa.RecordBatch] = []
    for batch in batches:
        together.append(batch)
        if sum(map(len, together)) >= AT_ONCE:
            yield pa.Table.from_batches(together)
            together = []
    if together:
        yield pa.Table.from_batches(together)


def _batches(rows: pl.DataFrame) -> list[pa.RecordBatch]:
    """SHIPPED, as Spark wants it."""
    return list(rows.to_arrow().cast(arrow(SHIPPED)).to_batches())


def _between(rows: pl.DataFrame, at: pl.Expr, begin: Any, until: Any) -> pl.DataFrame:
    conditions = [at >= begin] if begin is not None else []
    conditions += [at < until] if until is not None else []
    return rows.filter(*conditions) if conditions else rows
