"""`pattern_matches`: the matches that stand, and each change of one as a row with the next version."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl
import psycopg
from psycopg.types.json import Jsonb

from jobs.analytics.patterns.declared import Declared
from metering.patterns.burst import AnyPattern

Key = tuple[str | None, ...]
"""The values of `partition_by`, in its order."""
BATCH_ROWS = 10_000
"""Rows in one statement: a JSON value of Postgres has at most 256 MB."""
VERSIONS = 1_000_000
"""How many versions a match can have under one driver: those of the next one begin above them."""
_STANDING = """
SELECT match_id, keys, account, first_lsn, last_lsn,
       (extract(epoch FROM started_at) * 1000000)::bigint, (extract(epoch FROM ended_at) * 1000000)::bigint,
       outcomes, measures
FROM (
    SELECT DISTINCT ON (match_id) * FROM pattern_matches
    WHERE pattern_id = %(pattern_id)s AND started_at > %(after)s AND started_at <= %(until)s
    ORDER BY match_id, version DESC
) AS last WHERE NOT is_retracted ORDER BY started_at, first_lsn
"""
# After `weir rebuild analytics` a match may stand that is not found again.
_FIRST = "SELECT min(started_at) FROM pattern_matches WHERE pattern_id = %s AND started_at > %s AND started_at <= %s"
_APPEND = """
INSERT INTO pattern_matches (
    pattern_id, match_id, version, is_retracted, account, keys, first_lsn, last_lsn, started_at, ended_at, outcomes,
    measures, frontier
)
SELECT %(pattern_id)s, match_id, 1 + greatest((driver.epoch - 1) * %(versions)s, (
           SELECT max(version) FROM pattern_matches AS before
           WHERE before.pattern_id = %(pattern_id)s AND before.match_id = changed.match_id
       )),
       is_retracted, account, keys, first_lsn, last_lsn, timestamptz 'epoch' + started * interval '1 microsecond',
       timestamptz 'epoch' + ended * interval '1 microsecond', outcomes, measures, %(frontier)s
FROM jsonb_to_recordset(%(changed)s) AS changed (
    match_id text, is_retracted boolean, account text, keys jsonb, first_lsn bigint, last_lsn bigint, started bigint,
    ended bigint, outcomes integer, measures jsonb
)
CROSS JOIN (SELECT coalesce(max(epoch), 1) AS epoch FROM jobs WHERE job = 'analytics') AS driver
"""


@dataclass(frozen=True)
class Found:
    """A match as it is stored; instants in microseconds since the epoch."""

    match_id: str
    keys: Mapping[str, str | None]
    account: str | None
    first_lsn: int
    last_lsn: int
    started: int
    ended: int
    outcomes: int
    measures: Mapping[str, Any]

    @property
    def end(self) -> tuple[int, int]:
        """Where its last outcome stands in the order of its key."""
        return self.ended, self.last_lsn

    def change(self, *, is_retracted: bool) -> dict[str, Any]:
        """The row of `pattern_matches` that says so."""
        return {**vars(self), "is_retracted": is_retracted}


Standing = Mapping[Key, Sequence[Found]]


def standing_of(
    cursor: psycopg.Cursor[Any], declared: Declared[AnyPattern], after: datetime, until: datetime
) -> Standing:
    """By key, the matches of a pattern that stand and begin after an instant and up to another, in that order."""
    found = defaultdict[Key, list[Found]](list)
    values = {"pattern_id": declared.pattern_id, "after": after, "until": until}
    for row in cursor.execute(_STANDING, values).fetchall():
        match = Found(*row)
        found[tuple(match.keys[name] for name in declared.pattern.partition_by)].append(match)
    return found


def first_standing(
    cursor: psycopg.Cursor[Any], declared: Declared[AnyPattern], after: datetime, until: datetime
) -> datetime | None:
    """When the first match of a pattern began after an instant and up to another; it may be retracted since."""
    row = cursor.execute(_FIRST, [declared.pattern_id, after, until]).fetchone()
    return None if row is None else row[0]


def keys_of(pattern: AnyPattern, keys: Iterable[Key]) -> pl.DataFrame:
    """Keys as a frame with the columns `partition_by`."""
    return pl.DataFrame([[*key] for key in keys], dict.fromkeys(pattern.partition_by, pl.String), orient="row")


def changes(before: Sequence[Found], now: Sequence[Found]) -> list[dict[str, Any]]:
    """The rows that make what stands of what is found: retractions, then what is new or has changed."""
    stood, stands = ({match.match_id: match for match in of} for of in (before, now))
    gone = [match.change(is_retracted=True) for name, match in stood.items() if name not in stands]
    return gone + [match.change(is_retracted=False) for name, match in stands.items() if match != stood.get(name)]


def append(
    cursor: psycopg.Cursor[Any],
    declared: Declared[AnyPattern],
    rows: Sequence[Mapping[str, Any]],
    frontier: datetime | None,
) -> None:
    """Add these rows, each with the next version of its match."""
    of = {"pattern_id": declared.pattern_id, "frontier": frontier, "versions": VERSIONS}
    for first in range(0, len(rows), BATCH_ROWS):
        cursor.execute(_APPEND, {**of, "changed": Jsonb(rows[first : first + BATCH_ROWS])})
