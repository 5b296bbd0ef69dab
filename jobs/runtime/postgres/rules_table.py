"""The rules of a Postgres job's rows: table `rules`, written in the transaction of the rows that they decide."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from jobs.runtime.effective_rules import (
    NOTHING_CLOSED,
    EffectiveRules,
    History,
    Rules,
    closed_under,
    effective_at,
    effective_from,
)
from jobs.runtime.job import PostgresJob
from metering.meters import OfMeter

_HISTORY = """
SELECT first_position, rules, since, closed_before, meter_closed_before
FROM rules WHERE job = %s ORDER BY first_position
"""
# Two changes before the first row that either decides: only the later one ever held.
_KEEP = """
INSERT INTO rules (job, first_position, rules, closed_before, meter_closed_before) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (job, first_position) DO UPDATE SET
    rules = excluded.rules, closed_before = excluded.closed_before,
    meter_closed_before = excluded.meter_closed_before, since = clock_timestamp()
"""


def stored_history(connection: psycopg.Connection[Any], job: str) -> History:
    """The rules that made a job's rows, for recomputing them."""
    return tuple(
        EffectiveRules(
            first, rules, since, OfMeter(closed, {meter: datetime.fromisoformat(at) for meter, at in own.items()})
        )
        for first, rules, since, closed, own in connection.execute(_HISTORY, [job]).fetchall()
    )


class RulesTable:
    """The newest rules of one Postgres job, as one driver knows them: a successor has moved the position, too."""

    def __init__(
        self, connection: psycopg.Connection[Any], job: PostgresJob[Any], configured: Rules, decided_before: int = 1
    ) -> None:
        """`configured`: the rules of this driver's configuration; without any, nothing is ever kept.

        A batch that begins below `decided_before` was decided already, by what is stored: the database was restored.
        """
        self._job = job
        self._history = stored_history(connection, job.name)
        self._last = next(reversed(self._history), None)
        self._present = configured if self._last is None else job.following(self._last.rules, configured)
        self._decided_before = decided_before if self._history else 1

    def in_force(self, first: int, frontier: datetime | None) -> EffectiveRules:
        """What decides a batch that begins at `first`, when all that was received before `frontier` is folded."""
        if first < self._decided_before:
            return effective_at(self._history, first)
        if self._last is not None and self._last.rules == self._present:
            return self._last
        return EffectiveRules(first, self._present, closed_before=self._closed_before(frontier))

    def borders(self, first: int) -> Sequence[int]:
        """Where other rules decide, within a batch that begins at `first`: only in what was decided already."""
        return [held.first for held in self._history if held.first > first] if first < self._decided_before else []

    def following(self, held: EffectiveRules, first: int, position: int) -> Sequence[EffectiveRules]:
        """What decides the rows from `position` on, as far as it is known, after a batch from `first` on.

        `held`: what decides the batch. It decides all that follows, except in what was decided already.
        """
        return (held,) if first >= self._decided_before else effective_from(self._history, position)

    def _closed_before(self, frontier: datetime | None) -> OfMeter[datetime | None]:
        """What readers may have seen closed: until other rules are kept they go by the last (view `closed_meters`)."""
        if self._last is None or self._job.closes_after is None:
            return NOTHING_CLOSED
        return closed_under(self._last, self._job.closes_after(self._last.rules), frontier)

    def keep(self, cursor: psycopg.Cursor[Any], held: EffectiveRules) -> None:
        """Write the rules `in_force`, if they are new, in the transaction that they decide: a batch, or a move of F."""
        if held.rules and held is not self._last and held not in self._history:
            closed = held.closed_before
            own = {meter: at.isoformat() for meter, at in closed.own.items() if at is not None}
            cursor.execute(_KEEP, [self._job.name, held.first, Jsonb(held.rules), closed.every, Jsonb(own)])

    def written(self, held: EffectiveRules) -> None:
        """That transaction is committed."""
        if held.rules and held not in self._history:
            self._last = held
