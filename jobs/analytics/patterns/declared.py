"""Which patterns are declared, since when each looks at all outcomes, and up to when its matches are decided."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import psycopg

from jobs.analytics.unread_minutes import UNREAD_SINCE
from metering.instants import EPOCH
from metering.patterns.burst import AnyPattern, Burst
from metering.windows import MINUTE

_KNOWN = "SELECT pattern, version FROM analytics_patterns WHERE is_declared"
# Outcomes go with the last one: up to when there were any is noted, for what is declared later.
_WITHDRAW = """
UPDATE analytics_patterns SET is_declared = false, final_until = greatest(final_until, (
    SELECT max(minute) + interval '1 minute' FROM pattern_outcomes
))
WHERE is_declared AND pattern = %(pattern)s AND version = %(version)s
"""
_REMOVE = "DELETE FROM pattern_outcomes"
_DECLARE = f"""
INSERT INTO analytics_patterns (pattern, version, definition, first_position, since)
SELECT %(pattern)s, %(version)s, %(definition)s::jsonb, first.position,
       CASE WHEN first.position > 1 OR EXISTS (SELECT FROM pattern_outcomes)
            THEN greatest(%(frontier)s, {UNREAD_SINCE}) END
FROM (SELECT coalesce(
    (SELECT next_position FROM positions WHERE job = 'analytics' AND input = 'usage'), 1) AS position) AS first
"""
# One that was declared again has its matches under another number.
_BEGIN_AGAIN = (
    """
    UPDATE pattern_matches AS m SET pattern_id = now.pattern_id
    FROM analytics_patterns AS before JOIN analytics_patterns AS now USING (pattern, version)
    WHERE m.pattern_id = before.pattern_id AND NOT before.is_declared AND now.is_declared
    """,
    """
    DELETE FROM pattern_matches AS m USING analytics_patterns AS p WHERE m.pattern_id = p.pattern_id AND NOT is_declared
    """,
    "DELETE FROM pattern_outcomes",
    "DELETE FROM analytics_patterns WHERE NOT is_declared",
    "UPDATE analytics_patterns SET first_position = 1, since = NULL, final_until = DEFAULT",
)
_STORED = """
SELECT pattern, pattern_id, since, final_until FROM analytics_patterns WHERE is_declared FOR UPDATE
"""

_FINAL = "UPDATE analytics_patterns SET final_until = %s WHERE pattern_id = %s"

Of_co = TypeVar("Of_co", bound=AnyPattern, covariant=True)


@dataclass(frozen=True)
class Declared(Generic[Of_co]):
    """A pattern as it is stored: `since` None is from the first outcome on; what began before `final_until` minus
    `within` is decided.
    """

    pattern_id: int
    pattern: Of_co
    since: datetime | None
    final_until: datetime

    def decides(self, frontier: datetime | None) -> datetime:
        """Up to when matches are final once all that was received before the frontier is known, at least until now.

        In steps of a minute, or of a quarter of `within` where that is longer: so outcomes are not read with each
        batch, and when a match is final does not depend on batches.
        """
        if frontier is None:
            return self.final_until
        until = frontier - self.pattern.grace
        return max(self.final_until, until - (until - EPOCH) % self._step)

    @property
    def _step(self) -> timedelta:
        return self.pattern.window if isinstance(self.pattern, Burst) else step_of(self.pattern.within)

    @property
    def settled_until(self) -> datetime:
        """Up to when it has looked at outcomes, or will not: `final_until`, at first `since`."""
        return self.final_until if self.since is None else max(self.final_until, self.since)

    @property
    def reads_back(self) -> timedelta:
        """How long before a late outcome others are read to revise a match.

        `within` before it a match may begin that it changes, and as long before that another one that ends behind it,
        or the outcome before. Of a burst its window, and what that is compared with.
        """
        of = self.pattern
        return of.window + of.over if isinstance(of, Burst) else 2 * of.within


def revises_from(declared: Sequence[Declared[AnyPattern]], revised: timedelta) -> datetime:
    """The first minute of which outcomes that come or go still change matches: of all patterns, so that each sees the
    same.
    """
    settled = min(declaration.settled_until for declaration in declared)
    return settled - revised - (settled - revised - EPOCH) % MINUTE if settled > EPOCH + revised else EPOCH


def reads_from(declared: Sequence[Declared[AnyPattern]], revised: timedelta) -> datetime:
    """The first event time of outcomes and matches that are read to revise a match."""
    return revises_from(declared, revised) - max(declaration.reads_back for declaration in declared)


def decided(cursor: psycopg.Cursor[Any], declared: Declared[Of_co], until: datetime) -> Declared[Of_co]:
    """Note up to when its matches are final, and return it so."""
    if until > declared.final_until:
        cursor.execute(_FINAL, [until, declared.pattern_id])
    return replace(declared, final_until=until)


def step_of(within: timedelta) -> timedelta:
    """How far apart the instants are up to which matches are decided."""
    return max(MINUTE, within // 4)


def begin_again(cursor: psycopg.Cursor[Any]) -> None:
    """Have the declared patterns look at all outcomes again; those that are not declared any more lose their matches.

    The matches that stand are compared with what is found: so versions go on, and nobody is called about what is the
    same.
    """
    for statement in _BEGIN_AGAIN:
        cursor.execute(statement)


def declare(
    cursor: psycopg.Cursor[Any], patterns: Sequence[AnyPattern], frontier: datetime | None
) -> Sequence[Declared[AnyPattern]]:
    """Note which patterns are declared now; those that are not any more keep their matches.

    One that was not declared before looks at outcomes from its `since` on, the first minute of which none has passed.
    """
    declared = {(pattern.name, pattern.version): pattern for pattern in patterns}
    known = set(cursor.execute(_KNOWN).fetchall())
    for name, version in sorted(known - declared.keys()):
        cursor.execute(_WITHDRAW, {"pattern": name, "version": version})
    for key in sorted(declared.keys() - known):
        of = {"pattern": key[0], "version": key[1], "definition": json.dumps(declared[key].definition)}
        cursor.execute(_DECLARE, {**of, "frontier": frontier})
    if not patterns:
        if known:
            cursor.execute(_REMOVE)
        return ()
    by_name: Mapping[str, AnyPattern] = {pattern.name: pattern for pattern in patterns}
    return [
        Declared(pattern_id, by_name[name], since, final_until)
        for name, pattern_id, since, final_until in cursor.execute(_STORED).fetchall()
    ]
