"""Rows of the journal and of usage by subject: a request, an event, a window, a session."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import polars as pl

from jobs.explain.files import Files, is_among
from jobs.journal.elements import has_elements, place_in_event
from jobs.journal.families import family
from jobs.usage_entries import METERED_COLUMNS
from jobs.usage_members import MEMBERS
from metering.contracts.unnest import COLUMN
from metering.vocabulary import REQUESTS, Disposition, UsageCause
from metering.windows import Window

RECORD = (
    *("topic", "partition", "offset", "lsn", "received_at", "first_received_at", "disposition", "reason", "violation"),
    *("first_lsn", "source", "id", "type", "account", "request_id", "event_time", COLUMN, "value"),
)
"""The columns of a journal row in a document. The value is the whole event's, also for an element."""
USAGE = (
    *("lsn", "account", "request_id", "user_id", "model", "status", "outcome", "request_lsn", "completion_lsn"),
    *("event_time", "received_at", "plan", "currency", "sign", "cause", "corrects_lsns", "day", "dimensions"),
    MEMBERS,
)
"""The columns of a usage row in a document, besides its meters."""
RECORDS_OF_A_ROW = 4
"""A request and its completion, and a repeat of each."""
DEFAULT_PERIOD = timedelta(days=35)
"""How long identities are remembered by default, and how old an event may be."""
USAGE_READ = (*USAGE, *METERED_COLUMNS)


@dataclass(frozen=True)
class Period:
    """What was received in `[start, end)`; None: without an end."""

    start: datetime
    end: datetime | None = None

    def files(self, files: Files) -> Files:
        """Those that may hold some of it."""
        return files.between("received_at", self.start, self.end)

    def holds(self) -> pl.Expr:
        """Whether a row with `received_at` is in it."""
        is_within = pl.col("received_at") >= self.start
        return is_within if self.end is None else is_within & (pl.col("received_at") < self.end)


@dataclass(frozen=True)
class Found:
    """Rows of usage (USAGE_READ) and of the journal (RECORD), each in the order of lsn; and how many there are."""

    usage: pl.DataFrame
    records: pl.DataFrame
    usage_found: int
    records_found: int


@dataclass(frozen=True)
class Tables:
    """The tables that an explanation reads. `whose`: which rows with `account` may be shown; None: all.

    Of an id `limit` rows of usage are read, and of anything RECORDS_OF_A_ROW times as many records.
    """

    journal: Files
    usage: Files
    whose: pl.Expr | None
    limit: int

    def of_id(self, text: str, period: Period) -> Found:
        """What concerns a request, or else an event, of this id.

        Of a request: all usage of it, the records that name it or that its usage names, and their repeats. Of anything
        else (an event, or a request that is in no usage): its records, their repeats, and the usage that names them.
        Both are looked for in the period; what they name, wherever it is. Where there is more usage than the limit, the
        records are those of the rows read.
        """
        if lsns := self._usage_of(text, period):
            is_whole = len(lsns) <= self.limit
            named = self._with_repeats(self._records_of("request_id", text, period)["lsn"]) if is_whole else ()
            return replace(self._found(lsns[: self.limit], named), usage_found=len(lsns))
        # One column at a time: a comparison with one value is not made text by text. An event's id is no other's
        # request id, so all records are looked through again only where it is its own.
        events = self._records_of("id", text, period)
        if events.is_empty() or text in events["request_id"]:
            events = pl.concat([events, self._records_of("request_id", text, period)])
        return self._of_records(events)

    def of_event(self, source: str, id_: str, period: Period) -> Found:
        """The records of an event that were received in the period, their repeats, and the usage that names them."""
        return self._of_records(self._records_where((pl.col("id") == id_) & (pl.col("source") == source), period))

    def _of_records(self, events: pl.DataFrame) -> Found:
        """Of records (lsn): these, their repeats, and the usage that names them."""
        lsns = self._mine_of(self._with_repeats(events["lsn"]))
        records = self.journal.by_lsn(lsns[: self._max_records], ("lsn", "received_at"))
        naming = sorted(self._with_parted(self._usage_naming(records)))
        found = self._found(naming[: self.limit], lsns if len(naming) <= self.limit else records["lsn"])
        usage, records_found = max(found.usage_found, len(naming)), max(found.records_found, len(lsns))
        return replace(found, usage_found=usage, records_found=records_found) if len(naming) > self.limit else found

    def of_usage(self, lsns: Iterable[int]) -> Found:
        """Rows of usage with these lsns, the records that they name, and their repeats."""
        return self._found(lsns, ())

    def of_usage_only(self, lsns: Iterable[int]) -> pl.DataFrame:
        """Rows of usage (USAGE_READ) with these lsns, without any record."""
        return self._mine(self.usage.by_lsn(lsns, USAGE_READ))

    def of_correction(self, lsns: Iterable[int]) -> Found:
        """As `of_usage`, with the rows of usage that these correct."""
        rows = self.usage.by_lsn(lsns, ("lsn", "corrects_lsns"))
        return self.of_usage({*rows["lsn"], *rows["corrects_lsns"].explode().drop_nulls()})

    def usage_of_window(self, account: str, window: Window) -> pl.DataFrame:
        """All usage (USAGE_READ) of an account in a window, in the order of lsn."""
        occurred_at = pl.col("event_time")
        where = (occurred_at >= window.start) & (occurred_at < window.end) & (pl.col("account") == account)
        return self.usage.between("event_time", window.start, window.end).rows(where, USAGE_READ).sort("lsn")

    def of_session(self, account: str, user: str, first: datetime, last: datetime) -> tuple[Found, int]:
        """The first requests of a user that occurred from `first` to `last` with what concerns them, and how many."""
        where = pl.col("event_time").is_between(first, last) & (pl.col("account") == account)
        where &= (pl.col("user_id") == user) & (pl.col("disposition") == Disposition.ACCEPTED)
        candidates = self.journal.between("event_time", first, last)
        rows = candidates.rows(where & family().is_in(list(REQUESTS)), ("lsn", "received_at"))
        listed = rows.sort("lsn").head(self.limit)
        return self._found(self._usage_naming(listed), self._with_repeats(listed["lsn"])), len(rows)

    def _found(self, usage: Iterable[int], records: Iterable[int]) -> Found:
        """Rows of usage with the records that they name and their repeats, and further `records`."""
        rows = self.of_usage_only(usage)
        named = {*rows["request_lsn"].drop_nulls(), *rows["completion_lsn"].drop_nulls()}
        lsns = self._mine_of({*self._with_repeats(named), *records})
        visible = self._mine(self._records(lsns[: self._max_records]))
        return Found(rows, visible, len(rows), len(visible) if len(lsns) <= self._max_records else len(lsns))

    def _records(self, lsns: Iterable[int]) -> pl.DataFrame:
        """Records (RECORD) with these lsns. Of an event with elements the first has what was received."""
        journal = self.journal.with_columns([COLUMN])
        if not has_elements(journal.schema):
            named = [name for name in RECORD if name != COLUMN]
            return self.journal.by_lsn(lsns, named).with_columns(pl.lit(0, pl.Int32).alias(COLUMN)).select(RECORD)
        found = journal.by_lsn(lsns, RECORD).with_columns(pl.col(COLUMN).fill_null(0))
        place = place_in_event(pl.col(COLUMN))
        first = (pl.col("lsn") - place.cast(pl.Int64) + 1).alias("first")
        further = found.filter(place > 1).select("lsn", first)
        whole = journal.by_lsn(further["first"], ("lsn", "value")).rename({"lsn": "first", "value": "whole"})
        values = further.join(whole, on="first", how="left").drop("first")
        rows = found.join(values, on="lsn", how="left", maintain_order="left")
        return rows.with_columns(value=pl.coalesce("value", "whole")).select(RECORD)

    def _usage_of(self, request_id: str, period: Period) -> list[int]:
        """The lsns of usage of a request. Only the needed column is read of all rows."""
        is_wanted = pl.col("request_id") == request_id
        found = period.files(self.usage).rows(is_wanted, ("lsn", "account", "received_at"))
        return self._mine(found).filter(period.holds())["lsn"].sort().to_list()

    def _usage_naming(self, records: pl.DataFrame) -> set[int]:
        """The lsns of usage that is of any of these records. No outcome is a fact before its parts were received."""
        since = records["received_at"].min()
        if not isinstance(since, datetime):
            return set()
        files = self.usage.between("received_at", since, None)
        parts = (files.rows(is_among(side, records["lsn"]), ("lsn",)) for side in ("request_lsn", "completion_lsn"))
        return {lsn for part in parts for lsn in part["lsn"]}

    def _with_parted(self, lsns: set[int]) -> set[int]:
        """The lsns of usage, and those of the other part of a pair that was billed before it was joined."""
        rows = self.usage.by_lsn(lsns, ("lsn", "cause", "request_lsn", "completion_lsn"))
        pairs = rows.filter(pl.col("cause").is_in([UsageCause.REJOINED.value, UsageCause.RESTATED.value]))
        parts = {*pairs["request_lsn"].drop_nulls(), *pairs["completion_lsn"].drop_nulls()}
        return lsns | self._usage_naming(self.journal.by_lsn(parts, ("lsn", "received_at"))) if parts else lsns

    def _records_of(self, column: str, text: str, period: Period) -> pl.DataFrame:
        """Records of the period with this text (lsn, account, request_id, received_at)."""
        return self._records_where(pl.col(column) == text, period)

    def _records_where(self, where: pl.Expr, period: Period) -> pl.DataFrame:
        """Records of the period that match (lsn, account, request_id, received_at)."""
        columns = ("lsn", "account", "request_id", "received_at")
        return self._mine(period.files(self.journal).rows(where, columns)).filter(period.holds())

    def _with_repeats(self, lsns: Iterable[int]) -> set[int]:
        """The lsns of records, of the records they repeat, and of other repeats of those.

        A repeat names the lsn of its first, which comes before; each of its elements the lsn of the first's first
        element. An element repeats that with its number, and an event that was taken whole.
        """
        journal, columns = self._journal_of_parts
        parts = _parts(journal.by_lsn(lsns, columns))
        if parts.is_empty():
            return set()
        own = pl.col("event") + pl.max_horizontal(pl.col(COLUMN), 1) - 1
        firsts = journal.by_lsn({*parts["event"], *parts.select(own).to_series()}, columns)
        is_repeat = is_among("first_lsn", parts["event"].unique().sort())
        repeats = journal.between("lsn", parts["event"].min(), None).rows(is_repeat, columns)  # type: ignore[arg-type]
        found = _parts(pl.concat([firsts, repeats])).join(parts.select("event", of=COLUMN), on="event", how="inner")
        is_part = (pl.col(COLUMN) == pl.col("of")) | (pl.col(COLUMN) == 0) | (pl.col("of") == 0)
        return {*parts["lsn"], *found.filter(is_part)["lsn"]}

    @property
    def _journal_of_parts(self) -> tuple[Files, tuple[str, ...]]:
        """The journal, and the columns of it that `_parts` takes."""
        journal = self.journal.with_columns([COLUMN])
        return (
            (journal, ("lsn", "first_lsn", COLUMN))
            if has_elements(journal.schema)
            else (self.journal, ("lsn", "first_lsn"))
        )

    @property
    def _max_records(self) -> int:
        return RECORDS_OF_A_ROW * self.limit

    def _mine_of(self, lsns: Iterable[int]) -> list[int]:
        """The records that may be shown, in order."""
        if self.whose is None:
            return sorted(lsns)
        return self._mine(self.journal.by_lsn(lsns, ("lsn", "account")))["lsn"].to_list()

    def _mine(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows if self.whose is None else rows.filter(self.whose)


def _parts(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of the journal (lsn, first_lsn, and `element` where it has that) → lsn, `event` and `element`.

    `event`: the lsn of the first row of the event, or of the one which that repeats; `element`: its place in the
    event, 0 of a whole one.
    """
    element = (place_in_event(pl.col(COLUMN)) if COLUMN in rows.columns else pl.lit(0, pl.Int32)).alias(COLUMN)
    own = pl.col("lsn") - pl.max_horizontal(element, 1).cast(pl.Int64) + 1
    return rows.select("lsn", pl.coalesce("first_lsn", own).alias("event"), element)
