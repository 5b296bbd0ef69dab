"""Stored outcomes → final matches → `pattern_matches`: what is new, what changed, and what is retracted.

Which matches are final depends on the outcomes and on `final_until` alone. A late outcome has the matches of its key
decided again from `within` before it on; the result is compared with what stands.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from jobs.analytics.patterns.conditions import variables
from jobs.analytics.patterns.declared import Declared
from metering.instants import EPOCH
from metering.patterns import expressions
from metering.patterns.matcher import matches
from metering.patterns.pattern import AfterMatch, Pattern

_MICROSECOND = timedelta(microseconds=1)
# After `weir rebuild analytics` a match may stand that is not found again.
_STARTS = """(
    SELECT pattern_id, keys_digest, event_time AS starts_at FROM pattern_outcomes WHERE may_start
    UNION ALL
    SELECT pattern_id, keys_digest, started_at FROM pattern_matches
) AS starts"""
_FIRST = f"SELECT min(starts_at) FROM {_STARTS} WHERE pattern_id = %s AND starts_at > %s"
_DUE = f"""
SELECT DISTINCT keys_digest FROM {_STARTS}
WHERE pattern_id = %(pattern_id)s AND starts_at > %(after)s AND starts_at <= %(until)s
"""
_OUTCOMES = """
SELECT keys_digest, keys, account, micros, lsn, outcome::text, {variables}
FROM (
    SELECT keys_digest, keys, account, event_time, lsn, outcome,
           (extract(epoch FROM event_time) * 1000000)::bigint AS micros,
           CASE WHEN event_time - lag(event_time) OVER key <= %(within)s THEN lag(outcome) OVER key END AS before,
           CASE WHEN event_time - lag(event_time) OVER key <= %(within)s
                THEN event_time - lag(event_time) OVER key END AS gap
    FROM unnest(%(keys)s::bytea[], %(after)s::timestamptz[]) AS wanted (keys_digest, after)
    JOIN pattern_outcomes USING (keys_digest)
    WHERE pattern_id = %(pattern_id)s AND event_time > wanted.after - %(back)s::interval
      AND event_time <= %(final_until)s
    WINDOW key AS (PARTITION BY keys_digest ORDER BY event_time, lsn)
) AS seen ORDER BY keys_digest, event_time, lsn
"""
_STANDING = """
SELECT keys_digest, match_id, keys, account, first_lsn, last_lsn,
       (extract(epoch FROM started_at) * 1000000)::bigint, (extract(epoch FROM ended_at) * 1000000)::bigint,
       outcomes, measures
FROM (
    SELECT DISTINCT ON (match_id) pattern_matches.*
    FROM unnest(%(keys)s::bytea[], %(after)s::timestamptz[]) AS wanted (keys_digest, after)
    JOIN pattern_matches USING (keys_digest)
    WHERE pattern_id = %(pattern_id)s AND started_at > wanted.after - %(within)s::interval
      AND started_at <= %(final_until)s - %(within)s::interval
    ORDER BY match_id, version DESC
) AS last WHERE NOT is_retracted
"""
_APPEND = """
INSERT INTO pattern_matches (
    pattern_id, match_id, version, is_retracted, account, keys, first_lsn, last_lsn, started_at, ended_at, outcomes,
    measures, frontier
)
SELECT %(pattern_id)s, match_id, 1 + coalesce((
           SELECT max(version) FROM pattern_matches AS before
           WHERE before.pattern_id = %(pattern_id)s AND before.match_id = changed.match_id
       ), 0),
       is_retracted, account, keys, first_lsn, last_lsn, timestamptz 'epoch' + started * interval '1 microsecond',
       timestamptz 'epoch' + ended * interval '1 microsecond', outcomes, measures, %(frontier)s
FROM jsonb_to_recordset(%(changed)s) AS changed (
    match_id text, is_retracted boolean, account text, keys jsonb, first_lsn bigint, last_lsn bigint, started bigint,
    ended bigint, outcomes integer, measures jsonb
)
"""
_FINAL = "UPDATE analytics_patterns SET final_until = %s WHERE pattern_id = %s"


@dataclass(frozen=True)
class Seen:
    """An outcome of a key; when it occurred in microseconds since the epoch, and what it can stand for, as bits."""

    micros: int
    lsn: int
    outcome: str
    variables: int


@dataclass(frozen=True)
class Found:
    """A match as it is stored."""

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


@dataclass(frozen=True)
class ReadBatch:
    """How much is read at a time, so that memory stays bounded: keys, event time or `within`, and rows."""

    keys: int = 500
    time: timedelta = timedelta(hours=1)
    rows: int = 10_000


READ_BATCH = ReadBatch()


@dataclass
class OfKey:
    """What is read of a key of which all is decided that begins after an instant."""

    after: datetime
    keys: Mapping[str, str | None] = field(default_factory=dict)
    account: str | None = None
    seen: list[Seen] = field(default_factory=list)
    standing: list[Found] = field(default_factory=list)
    """The matches that stand, also some that begin before the instant."""


def decide(
    cursor: psycopg.Cursor[Any],
    declared: Declared,
    changed: Mapping[bytes, datetime],
    frontier: datetime | None,
    read_batch: ReadBatch = READ_BATCH,
) -> Declared:
    """Decide all matches that are final now, and again those that late outcomes may have changed.

    `changed`: by key, the first event time at or before `final_until` at which an outcome came, went or changed.
    Returns the pattern with its new `final_until`.
    """
    within = declared.pattern.within
    again = {key: first - within - _MICROSECOND for key, first in changed.items()}
    for until in _steps(cursor, declared, frontier, read_batch.time):
        after = declared.final_until - within
        of_step = {"pattern_id": declared.pattern_id, "after": after, "until": until - within}
        due = {key: after for (key,) in cursor.execute(_DUE, of_step).fetchall()}
        declared = replace(declared, final_until=until)
        _decide_keys(
            cursor, declared, {**due, **{key: min(at, after) for key, at in again.items()}}, frontier, read_batch
        )
        again = {}
    if again:
        _decide_keys(cursor, declared, again, frontier, read_batch)
    cursor.execute(_FINAL, [declared.final_until, declared.pattern_id])
    return declared


def _steps(
    cursor: psycopg.Cursor[Any], declared: Declared, frontier: datetime | None, step: timedelta
) -> Iterator[datetime]:
    """Up to when matches are decided, one after the other."""
    within, at, last = declared.pattern.within, declared.final_until, declared.decides(frontier)
    while at < last:
        row = cursor.execute(_FIRST, [declared.pattern_id, at - within]).fetchone()
        first = None if row is None else row[0]
        at = last if first is None else min(last, max(at, first + within) + max(step, within))
        yield at


def _decide_keys(
    cursor: psycopg.Cursor[Any],
    declared: Declared,
    keys: Mapping[bytes, datetime],
    frontier: datetime | None,
    read_batch: ReadBatch,
) -> None:
    """Decide what begins after an instant in each of these keys, as far as it is final."""
    pattern = declared.pattern
    looks_back = any(map(expressions.looks_back, pattern.conditions.values()))
    statement = sql.SQL(_OUTCOMES).format(variables=variables(pattern))
    for at in range(0, len(keys), read_batch.keys):
        some = dict(list(keys.items())[at : at + read_batch.keys])
        values = {
            "pattern_id": declared.pattern_id,
            "keys": list(some),
            "after": list(some.values()),
            "within": pattern.within,
            "back": pattern.within if looks_back else timedelta(),
            "final_until": declared.final_until,
        }
        found = {key: OfKey(after) for key, after in some.items()}
        for key, *match in cursor.execute(_STANDING, values).fetchall():
            found[key].standing.append(Found(*match))
        changes: list[dict[str, Any]] = []
        # Key by key, and read in parts: the database ends a session that is idle within its transaction for long.
        with cursor.connection.cursor("outcomes_of_keys") as reading:
            reading.itersize = read_batch.rows
            for key, rows in groupby(reading.execute(statement, values), key=itemgetter(0)):
                of = found.pop(key)
                for _, of.keys, of.account, *outcome in rows:
                    of.seen.append(Seen(*outcome))
                changes += _changes(of, pattern, declared.final_until)
        changes += [change for of in found.values() for change in _changes(of, pattern, declared.final_until)]
        if changes:
            of_pattern = {"pattern_id": declared.pattern_id, "changed": Jsonb(changes), "frontier": frontier}
            cursor.execute(_APPEND, of_pattern)


def _changes(of: OfKey, pattern: Pattern, final_until: datetime) -> list[dict[str, Any]]:
    """The rows that make what stands of what is found: retractions, then what is new or has changed."""
    before = {match.match_id: match for match in of.standing if match.started > _micros(of.after)}
    now = {match.match_id: match for match in _found(of, pattern, final_until)}
    gone = [match.change(is_retracted=True) for name, match in before.items() if name not in now]
    return gone + [match.change(is_retracted=False) for name, match in now.items() if match != before.get(name)]


def _found(of: OfKey, pattern: Pattern, final_until: datetime) -> Iterator[Found]:
    """The final matches of a key that begin after an instant."""
    times, within = [outcome.micros for outcome in of.seen], pattern.within // _MICROSECOND
    start, stop = bisect_right(times, _micros(of.after)), bisect_right(times, _micros(final_until) - within)
    skips_to_next_row = pattern.after_match is AfterMatch.NEXT_ROW
    if not skips_to_next_row:
        # The last match that begins earlier may reach beyond: the next one begins behind it.
        behind = max((match.end for match in of.standing if match.started <= _micros(of.after)), default=(0, 0))
        start = bisect_right(of.seen, behind, lo=start, key=lambda outcome: (outcome.micros, outcome.lsn))
    bits, starts = [outcome.variables for outcome in of.seen], range(start, stop)
    for match in matches(pattern.program, bits, times, within, starts, skips_to_next_row=skips_to_next_row):
        seen = of.seen[match.first : match.end]
        rows = [json.loads(outcome.outcome) for outcome in seen]
        names = [pattern.variables[number] for number in match.variables]
        yield Found(
            pattern.match_id(seen[0].lsn, seen[-1].lsn),
            of.keys,
            of.account,
            seen[0].lsn,
            seen[-1].lsn,
            seen[0].micros,
            seen[-1].micros,
            len(seen),
            {measure.name: measure.value(rows, names) for measure in pattern.measures},
        )


def _micros(instant: datetime) -> int:
    return (instant - EPOCH) // _MICROSECOND
