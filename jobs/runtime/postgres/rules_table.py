"""The rules that made a Postgres job's rows: table `rules`, written in the transaction of what they decide."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from jobs.runtime.rules_in_force import Held, History, Rules
from metering.lateness import still_closed

_HISTORY = "SELECT first_position, rules, since, closed_before FROM rules WHERE job = %s ORDER BY first_position"
# Two changes before the first row that either decides: only the later one ever held.
_KEEP = """
INSERT INTO rules (job, first_position, rules, closed_before) VALUES (%s, %s, %s, %s)
ON CONFLICT (job, first_position) DO UPDATE SET
    rules = excluded.rules, closed_before = excluded.closed_before, since = clock_timestamp()
"""


def stored_history(connection: psycopg.Connection[Any], job: str) -> History:
    """The rules that made a job's rows, for whoever recomputes them."""
    return tuple(Held(*row) for row in connection.execute(_HISTORY, [job]).fetchall())


class RulesTable:
    """The newest rules of one Postgres job. One driver's: whoever comes later has moved the position, too."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        job: str,
        present: Rules,
        closes_after: Callable[[Rules], timedelta] | None,
    ) -> None:
        """`present`: the rules of this driver's configuration; without any, nothing is ever kept.

        `closes_after`: how long after its end a result is closed under some rules.
        """
        self._job = job
        self._present = present
        self._closes_after = closes_after
        self._last = next(reversed(stored_history(connection, job)), None)

    def in_force(self, first: int, frontier: datetime | None) -> Held:
        """What decides a batch that begins at `first`, when all that was received before `frontier` is folded."""
        if self._last is not None and self._last.rules == self._present:
            return self._last
        return Held(first, self._present, closed_before=self._closed_before(frontier))

    def _closed_before(self, frontier: datetime | None) -> datetime | None:
        """What readers may have seen closed: until other rules are kept they go by the last (view `closed_usage`)."""
        if self._last is None or self._closes_after is None:
            return None
        return still_closed(frontier, self._closes_after(self._last.rules), self._last.closed_before)

    def keep(self, cursor: psycopg.Cursor[Any], held: Held) -> None:
        """Write what is `in_force`, if it is new, in the transaction of what it decides: a batch, or what is closed."""
        if held.rules and held is not self._last:
            cursor.execute(_KEEP, [self._job, held.first, Jsonb(held.rules), held.closed_before])

    def kept(self, held: Held) -> None:
        """That transaction is committed."""
        if held.rules:
            self._last = held
