"""What billing and sessionization store, compared with what they must: executors recompute it, bucket by bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs.audit.bills.chains import CORRECTIONS, Chain, explain_corrections, unexplained_change
from jobs.audit.bills.correction_rows import decisions, outside_corrections
from jobs.audit.bills.days import STORED_DAYS, unequal_days
from jobs.audit.bills.decisions import DECIDED, ENTRY, Decisions
from jobs.audit.bills.expected import DAYS, MADE_ALONE, WINDOW_KEY, WINDOWS, added_days, bills
from jobs.audit.bills.members import (
    CORRECTING_MEMBERS,
    LATE_MEMBERS,
    MADE_MEMBERS,
    MEMBERS,
    STORED_CORRECTIONS,
    added_members,
    days_of_sets,
    unequal_members,
    whole_periods,
    with_first_days,
    wrong_corrections,
)
from jobs.audit.bills.windows import STORED_STRAGGLERS, STORED_WINDOWS, unequal_stragglers, unequal_windows
from jobs.audit.compare.columns import Wrong
from jobs.audit.compare.sessions import MINI, SESSIONS, mini_sessions, of_user, unequal_sessions
from jobs.audit.recompute.basis import Scope
from jobs.audit.tables import database as held
from jobs.audit.tables.database import Billed, Sessions
from jobs.audit.tables.spill import SHIPPED, as_batches, gather, shipped
from jobs.audit.tables.versions import Versions, spark_schema
from jobs.billing.sums import COLUMNS
from jobs.joins.recovery import CLOCK_SKEW
from jobs.runtime.delta.pieces import made_in_tasks, pieces
from jobs.sessionization.pipeline import CONCERNS
from metering.windows import MINUTE

Parts = Mapping[str, pl.DataFrame]
_ALONE = "alone"
_CORRECTING = "correcting_members"
_AROUND = timedelta(days=3)
"""A day in a zone is nowhere longer ago than that, and a month may begin with what came before its first midnight."""


@dataclass(frozen=True)
class Span:
    """Windows from `begin` on and before `until` are whole; None: there is no such border."""

    begin: datetime | None = None
    until: datetime | None = None
    kept_from: datetime | None = None
    why: str = ""
    """Why there is nothing to compare from before `kept_from`."""

    @property
    def is_everything(self) -> bool:
        """Whether all that there ever was can be compared."""
        return self.begin is None and self.until is None

    @property
    def occurred(self) -> pc.Expression:
        """What all usage of these windows fulfils."""
        at, always = pc.field("event_time"), pc.scalar(True)
        begin = always if self.begin is None else at >= self.begin
        return begin & (always if self.until is None else at < self.until + MINUTE)

    @property
    def left_out(self) -> str:
        """What is not compared, in words that follow others."""
        return "" if self.kept_from is None else f"; not before {self.kept_from:%Y-%m-%dT%H:%MZ}, {self.why}"

    def windows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those of windows that are whole."""
        return _between(rows, pl.col("window_start"), self.begin, self.until)

    @property
    def whole_days(self) -> tuple[date | None, date | None]:
        """The first and the end of the days that are whole in every zone."""
        begin = None if self.begin is None else (self.begin + _AROUND).date()
        return begin, None if self.until is None else (self.until - _AROUND).date()

    def days(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those of days that are whole."""
        return _between(rows, pl.col("day"), *self.whole_days)


def span_of(scope: Scope, kept_since: date | None, usage: DeltaTable, billed: Billed) -> Span:
    """The requested period, without what cannot be recomputed.

    usage has every row of the log date `kept_since` and later ones. For usage from before the first rules that billing
    has stored (an early release stored none) it is unknown which rows were stragglers.
    """
    borders = []
    if kept_since is not None:
        # Nothing of a minute is logged before it, but for the clocks.
        borders.append((datetime.combine(kept_since, time(), UTC) + CLOCK_SKEW, "of which usage was removed"))
    if (first := billed.rules[0].first) > 1 and (last := _latest_event(usage, first)) is not None:
        reason = "of which usage was billed by unknown rules"
        borders.append((last.replace(second=0, microsecond=0) + MINUTE, reason))
    kept_from, why = max(borders, default=(None, ""))
    begin = max((at for at in (scope.since, kept_from) if at is not None), default=None)
    return Span(begin, scope.until, kept_from, why)


def _latest_event(usage: DeltaTable, before_lsn: int) -> datetime | None:
    found = usage.to_pyarrow_dataset().to_batches(columns=["event_time"], filter=pc.field("lsn") < before_lsn)
    times = (pc.max(batch["event_time"]).as_py() for batch in found if len(batch))
    return max((at for at in times if at is not None), default=None)


@dataclass(frozen=True)
class Proof:
    """What is not as it must be of windows, stragglers and days (I6), and of corrections (I8)."""

    sums: Wrong
    corrections: Wrong


def prove_bills(versions: Versions, billed: Billed, span: Span) -> Proof:
    """Recompute what billing has made of usage below its position, and compare it with what is stored."""
    decided = decisions(versions.usage, billed)
    files = pieces(versions.usage, COLUMNS, versions.since, billed.position)
    concerns = (pc.field("lsn") < billed.position) & span.occurred

    def make(usage: pa.Table) -> list[pa.RecordBatch]:
        return as_batches(by_bucket(usage.filter(concerns), billed, decided))

    made = made_in_tasks(versions.spark, files, make, spark_schema(SHIPPED))
    return compare_bills(gather(made, billed.buckets), billed, decided, versions.usage, span)


def by_bucket(usage: pa.Table, billed: Billed, decided: Decisions) -> pl.DataFrame:
    """Some rows of usage → what billing must have made of them, as SHIPPED."""
    made = bills(usage, billed.rules, decided)
    return shipped(
        {
            held.WINDOWS: (made.windows, billed.of_window()),
            _ALONE: (made.alone, billed.of_window()),
            held.DAYS: (made.days, billed.of_account()),
            held.MEMBERS: (made.members, billed.of_account()),
            _CORRECTING: (made.correcting, billed.of_account()),
        }
    )


def compare_bills(
    made: Iterable[tuple[int, Parts]], billed: Billed, decided: Decisions, usage: DeltaTable, span: Span
) -> Proof:
    """The recomputed bills (`by_bucket`), compared with the stored ones.

    Raises nothing for a difference: differences are counted, and the first is reported.
    """
    sums, corrections = Wrong(), Wrong()
    chains: list[Chain] = []
    for bucket, parts in _every(made, billed.buckets):
        wrong, broken = _of_bucket(parts, billed, bucket, span)
        sums, corrections = sums + wrong.sums, corrections + wrong.corrections
        chains += broken
    if chains:
        of_each = zip(chains, outside_corrections(usage, billed, decided, chains), strict=True)
        sentences = [
            sentence
            for chain, entries in of_each
            if entries is not None and (sentence := unexplained_change(chain, entries))
        ]
        corrections += Wrong(0, len(sentences), next(iter(sentences), ""))
    return Proof(sums, corrections)


def _of_bucket(parts: Parts, billed: Billed, bucket: int, span: Span) -> tuple[Proof, list[Chain]]:
    """With the corrections that only usage row by row explains."""
    made = {name: parts.get(name, pl.DataFrame(schema=kinds)) for name, kinds in _MADE.items()}
    windows, stragglers, corrections_found = (
        span.windows(billed.rows.rows(name, bucket, kinds))
        for name, kinds in (
            (held.WINDOWS, STORED_WINDOWS),
            (held.STRAGGLERS, STORED_STRAGGLERS),
            (held.CORRECTED, CORRECTIONS),
        )
    )
    every_day = billed.rows.rows(held.DAYS, bucket, STORED_DAYS)
    is_of_set = pl.col("meter").is_in(list(billed.periods))
    days = span.days(every_day.filter(~is_of_set))
    alone = span.windows(made[_ALONE])
    corrections = explain_corrections(corrections_found, alone, windows)
    named = pl.DataFrame(corrections.named, schema={name: DECIDED[name] for name in ENTRY}, orient="row")
    sums = unequal_windows(span.windows(made[held.WINDOWS]), windows, _corrected(alone, named))
    sums += unequal_stragglers(alone, stragglers)
    sums += unequal_days(span.days(added_days(made[held.DAYS])), days, is_everything=span.is_everything)
    of_sets = _of_sets(made, billed, bucket, span, every_day.filter(is_of_set))
    return Proof(sums + of_sets.sums, corrections.wrong + of_sets.corrections), corrections.chains


def _of_sets(parts: Parts, billed: Billed, bucket: int, span: Span, days: pl.DataFrame) -> Proof:
    """Proof of the whole periods of a bucket."""

    def whole(rows: pl.DataFrame) -> pl.DataFrame:
        return whole_periods(rows, billed.periods, *span.whole_days)

    made = whole(added_members(parts[held.MEMBERS]))
    stored = whole(billed.rows.rows(held.MEMBERS, bucket, MEMBERS))
    of_days = added_days(days_of_sets(made).select(DAYS.names()).cast(DAYS))
    sums = unequal_members(made, stored) + unequal_days(of_days, whole(days), is_everything=span.is_everything)
    corrected = billed.rows.rows(held.OF_PERIODS, bucket, STORED_CORRECTIONS)
    waiting = billed.rows.rows(held.LATE_MEMBERS, bucket, LATE_MEMBERS)
    correcting = parts[_CORRECTING]
    if not span.is_everything:
        corrected = whole(with_first_days(corrected, correcting, last=True)).drop("day")
        corrected = whole(with_first_days(corrected, correcting, last=False)).drop("day")
        correcting, waiting = whole(correcting), whole(waiting)
    return Proof(sums, wrong_corrections(corrected, made, correcting, waiting))


def _corrected(alone: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    """MADE_ALONE, and the entries that corrections name → the windows that they have changed (WINDOW_KEY)."""
    corrected = alone.join(named, on=ENTRY, how="semi")
    contained = corrected.drop_nulls("contained_version").with_columns(price_version="contained_version")
    return pl.concat(part.select(WINDOW_KEY) for part in (corrected, contained))


_MADE = {
    held.WINDOWS: WINDOWS,
    _ALONE: MADE_ALONE,
    held.DAYS: DAYS,
    held.MEMBERS: MADE_MEMBERS,
    _CORRECTING: CORRECTING_MEMBERS,
}


def prove_sessions(versions: Versions, made: Sessions) -> Wrong:
    """Cut the requests of the journal below sessionization's position into sessions again, and compare them."""
    files = pieces(versions.journal, OF_REQUESTS, before=made.position)
    if not made.gaps_reached:
        return Wrong()
    cut = made_in_tasks(
        versions.spark, files, lambda rows: as_batches(sessions_by_bucket(rows, made)), spark_schema(SHIPPED)
    )
    return compared_sessions(gather(cut, made.buckets), made)


def sessions_by_bucket(journal: pa.Table, made: Sessions) -> pl.DataFrame:
    """Some rows of the journal (OF_REQUESTS, as far as it has them) → what they alone know of sessions, as SHIPPED."""
    rows = pl.DataFrame(journal).filter(pl.col("lsn") < made.position)
    if "family" not in rows.columns:
        rows = rows.with_columns(pl.lit(None, pl.String).alias("family"))
    minis = mini_sessions(rows.filter(pl.sql_expr(CONCERNS)), made.gaps_reached)
    return shipped({_MINI: (minis, of_user(made.buckets))})


def compared_sessions(cut: Iterable[tuple[int, Parts]], made: Sessions) -> Wrong:
    """What is cut (`sessions_by_bucket`) beside what is stored."""
    found = Wrong()
    for bucket, parts in _every(cut, made.buckets):
        minis = parts.get(_MINI, pl.DataFrame(schema=MINI))
        found += unequal_sessions(minis, made.rows.rows(held.LIVE, bucket, SESSIONS), made.gaps_reached)
    return found


_MINI = "mini"
OF_REQUESTS = ("lsn", "type", "family", "disposition", "account", "user_id", "event_time")


def _every(made: Iterable[tuple[int, Parts]], buckets: int) -> Iterator[tuple[int, Parts]]:
    """Each bucket once, also those without rows."""
    left = set(range(buckets))
    for bucket, parts in made:
        left.remove(bucket)
        yield bucket, parts
    yield from ((bucket, {}) for bucket in sorted(left))


def _between(rows: pl.DataFrame, at: pl.Expr, begin: Any, until: Any) -> pl.DataFrame:
    conditions = [at >= begin] if begin is not None else []
    conditions += [at < until] if until is not None else []
    return rows.filter(*conditions) if conditions else rows
