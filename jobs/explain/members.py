"""The members of bill lines whose meter bills a day or month as a whole, each with a row of usage that added it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import polars as pl

from jobs.explain.arithmetic import Row
from jobs.explain.documents import Document
from jobs.explain.records import Tables
from jobs.usage_members import ENTRY, MEMBERS, members, written_members
from metering.period_meters import Period

MAX_LOOKS = 10
"""So often `limit` rows of usage are looked through for those of a line."""
OF_SET = ("first_day", "model", "meter", "currency", "price_version")


@dataclass(frozen=True)
class LineMembers:
    """The document's `members`, the rows of usage that they name, and how many members there are."""

    listed: list[Document]
    lsns: frozenset[int]
    there_are: int

    @property
    def is_cut(self) -> bool:
        """Whether there are more than are listed."""
        return self.there_are > len(self.listed)


def members_of_line(tables: Tables, account: str, rows: Sequence[Row]) -> LineMembers:
    """The members in `rows` (`Stored.members`), each with the first row of usage that added it and was not taken back.

    `usage_lsn`, `request_id` and `event_time` are null where that is beyond the first MAX_LOOKS x `limit` rows.
    """
    added = _added(tables, account, rows) if rows else pl.DataFrame(schema=_ADDED)
    by_member: dict[tuple[Any, ...], Row] = {}
    for entry in added.sort("lsn").iter_rows(named=True):
        by_member.setdefault(_key(entry), entry)
    listed: list[Document] = []
    for row in rows:
        first: Row = by_member.get(_key(row), {"lsn": None, "request_id": None, "event_time": None})
        shown = {name: row[name] for name in (*OF_SET, "period", "value", "is_billed", "members", "member_rows")}
        member = row["member"] if row["value"] is None else None
        of_usage = {"usage_lsn": first["lsn"], "request_id": first["request_id"], "event_time": first["event_time"]}
        listed.append({**shown, "member": member, **of_usage})
    lsns = frozenset(row["usage_lsn"] for row in listed if row["usage_lsn"] is not None)
    return LineMembers(listed, lsns, sum({_set(row): row["members"] for row in rows}.values()))


def _set(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in OF_SET)


_COLUMNS = ("lsn", "account", "model", "request_id", "event_time", MEMBERS)
_NAMED = {name: ENTRY[name] for name in ("member", "value")}
_ADDED = pl.Schema(
    {
        "lsn": pl.Int64(),
        **dict.fromkeys(("model", "request_id"), pl.String()),
        "event_time": ENTRY["starts_at"],
        **ENTRY,
    }
)


def _key(row: Row) -> tuple[Any, ...]:
    """Of a member in the database or in usage: its set, and the text, or the number and for `latest` its time."""
    if row["value"] is None:
        return (*_set(row), row["member"], None)
    return (*_set(row), row["value"], row["event_time" if "lsn" in row else "occurred_at"] if _is_latest(row) else None)


def _is_latest(row: Row) -> bool:
    return bool(row["aggregation"] == "latest")


def _added(tables: Tables, account: str, rows: Sequence[Row]) -> pl.DataFrame:
    """The entries of the first rows of usage that name any of these members, and were not taken back."""
    # Usage of before the account was known keeps its day of UTC, which may begin before the account's.
    first = min(row["starts_at"] for row in rows) - timedelta(days=1)
    longest = max(timedelta(days=33 if Period(row["period"]) is Period.MONTH else 3) for row in rows)
    last = max(row["starts_at"] for row in rows) + longest
    files = tables.usage.between("event_time", first, last)
    within = (pl.col("account") == account) & (pl.col("event_time") >= first) & (pl.col("event_time") < last)
    named = pl.DataFrame([(row["member"], row["value"]) for row in rows], _NAMED, orient="row")
    names = within & pl.col(MEMBERS).str.contains_any(written_members(named).unique().to_list())
    found = files.rows(names, ("lsn", "sign"))
    taken_back = files.rows(names & (pl.col("sign") < 0), ("corrects_lsns",))["corrects_lsns"].explode().drop_nulls()
    stands = found.filter((pl.col("sign") > 0) & ~pl.col("lsn").is_in(taken_back.implode()))["lsn"].sort()
    read = tables.usage.by_lsn(stands.head(MAX_LOOKS * tables.limit), _COLUMNS)
    return members(read).select(_ADDED.names())
