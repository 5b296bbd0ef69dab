"""The rules that made a Postgres job's rows: table `rules`, written in the transaction of what they decided."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from jobs.runtime.rules_in_force import Held, History, Rules, extended

_HISTORY = "SELECT first_position, rules, since FROM rules WHERE job = %s ORDER BY first_position"
_KEEP = "INSERT INTO rules (job, first_position, rules) VALUES (%s, %s, %s)"


def stored_history(connection: psycopg.Connection[Any], job: str) -> History:
    """The rules that made a job's rows, for whoever recomputes them."""
    return tuple(Held(*row) for row in connection.execute(_HISTORY, [job]).fetchall())


class RulesTable:
    """The history of one Postgres job's rules. One driver's: whoever comes later has moved the position, too."""

    def __init__(self, connection: psycopg.Connection[Any], job: str, present: Rules) -> None:
        """`present`: the rules of this driver's configuration; without any, nothing is ever kept."""
        self._job = job
        self._present = present
        self._history = stored_history(connection, job)

    def keep(self, cursor: psycopg.Cursor[Any], first: int) -> History:
        """Write, in the transaction of the batch that begins at `first`, what is new about the rules that decide it.

        Gives the history as it is when that transaction is committed.
        """
        history = extended(self._history, first, self._present) if self._present else self._history
        if history != self._history:
            cursor.execute(_KEEP, [self._job, first, Jsonb(self._present)])
        return history

    def kept(self, history: History) -> None:
        """That transaction is committed."""
        self._history = history
