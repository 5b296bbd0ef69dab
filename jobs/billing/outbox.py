"""The outbox: changes that are not in Kafka yet, written in the transaction that makes them.

For windows it holds which minutes and accounts have changed since which version, so a window that changes ten times is
sent once, in its latest state. Corrections are their own outbox: they are numbered, and `publications` has the last
number that was sent. Only billing appends to either, so numbers follow the order of commits, and what was sent is
always a prefix.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from metering.vocabulary import Published

STEP_ROWS = 500
"""Corrections, or minutes of an account, in one transaction of Kafka."""
LOOSE_ROWS = 20_000
"""How many `unsent_windows` may wait before duplicates among them are merged."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A prefix of what is not sent yet: rows to publish, in order, and the number that they reach."""

    rows: list[Row]
    up_to: int
    is_full: bool
    """Whether there may be more."""


_NOTE = """
INSERT INTO unsent_windows (window_start, account, version)
SELECT DISTINCT window_start, account, %s::bigint FROM staged
"""

_ALL_WINDOWS = """
INSERT INTO unsent_windows (window_start, account, version)
SELECT window_start, account, 0 FROM usage_windows GROUP BY 1, 2 ORDER BY 1, 2
"""

_ENDS = """
SELECT max(number) AS up_to, count(*) AS rows
FROM (SELECT number FROM unsent_windows ORDER BY number LIMIT %(step)s) AS step
"""

# Each pair is looked up by the windows' key, although the planner has no statistics of this mostly empty table.
_WINDOWS = """
SELECT changed.*
FROM (
    SELECT window_start, account, min(version) AS since FROM unsent_windows WHERE number <= %(up_to)s GROUP BY 1, 2
) AS unsent, LATERAL (
    SELECT version, window_start, window_end, account, model, meter, currency, price_version, quantity::text,
           trim_scale(unit_price)::text AS unit_price, trim_scale(amount)::text AS amount, late_quantity::text,
           late_rows, unmetered_rows, corrected, updated_at
    FROM usage_windows AS stored
    WHERE (stored.window_start, stored.account) = (unsent.window_start, unsent.account) AND version >= since
    OFFSET 0
) AS changed
"""

_CORRECTIONS = """
SELECT window_start, account, model, meter, currency, cause, old_quantity::text, new_quantity::text,
       trim_scale(old_amount)::text AS old_amount, trim_scale(new_amount)::text AS new_amount, decision, corrected_at,
       dimensions, usage_lsns, number, period
FROM corrections
WHERE number > (SELECT sent_number FROM publications WHERE topic = 'corrections')
ORDER BY number LIMIT %(step)s
"""

_WINDOWS_SENT = "DELETE FROM unsent_windows WHERE number <= %(up_to)s"
_CORRECTIONS_SENT = """
UPDATE publications SET sent_number = %(up_to)s WHERE topic = 'corrections' AND sent_number < %(up_to)s
"""
# The last row of each pair stays, with the content of the first: a publisher that removes a prefix which it has sent,
# however late, removes nothing unsent.
_COALESCE = """
WITH pairs AS (
    SELECT window_start, account, max(number) AS number, min(version) AS version, min(changed_at) AS changed_at
    FROM unsent_windows GROUP BY 1, 2 HAVING count(*) > 1
), kept AS (
    UPDATE unsent_windows SET version = pairs.version, changed_at = pairs.changed_at
    FROM pairs WHERE unsent_windows.number = pairs.number
)
DELETE FROM unsent_windows AS earlier USING pairs
WHERE (earlier.window_start, earlier.account) = (pairs.window_start, pairs.account) AND earlier.number < pairs.number
"""


def announce(cursor: psycopg.Cursor[Any], topics: Collection[Published]) -> None:
    """Say what is published from now on, before the first batch: all that there is of a topic that was not before."""
    for topic in Published:
        if topic not in topics:
            cursor.execute("DELETE FROM publications WHERE topic = %s", [topic])
            if topic is Published.WINDOWS:
                cursor.execute("DELETE FROM unsent_windows")
            continue
        is_new = cursor.execute("INSERT INTO publications (topic) VALUES (%s) ON CONFLICT DO NOTHING", [topic]).rowcount
        if is_new and topic is Published.WINDOWS:
            cursor.execute(_ALL_WINDOWS)


def note(cursor: psycopg.Cursor[Any], version: int) -> None:
    """Write down which windows `staged` has changed; they have this version, or a higher one."""
    cursor.execute(_NOTE, [version])


class Outbox:
    """What is not sent, as a publisher reads it and takes it away."""

    def __init__(self, step_rows: int = STEP_ROWS, loose_rows: int = LOOSE_ROWS) -> None:
        self._step_rows = step_rows
        self._loose_rows = loose_rows
        self._coalesced_to = self._kept_rows = 0

    def next(self, connection: psycopg.Connection[Any], topic: Published) -> Step | None:
        """What to send next; None when all is sent. Windows are as they are now."""
        with connection.cursor(row_factory=dict_row) as cursor:
            if topic is Published.CORRECTIONS:
                rows = cursor.execute(_CORRECTIONS, {"step": self._step_rows}).fetchall()
                return Step(rows, rows[-1]["number"], len(rows) == self._step_rows) if rows else None
            ends = cursor.execute(_ENDS, {"step": self._step_rows}).fetchone()
            if ends is None or ends["up_to"] is None:
                return None
            rows = cursor.execute(_WINDOWS, {"up_to": ends["up_to"]}).fetchall()
            return Step(rows, ends["up_to"], ends["rows"] == self._step_rows)

    def sent(self, connection: psycopg.Connection[Any], topic: Published, up_to: int) -> None:
        """Kafka has all up to this number: nothing is kept of it."""
        connection.execute(_WINDOWS_SENT if topic is Published.WINDOWS else _CORRECTIONS_SENT, {"up_to": up_to})

    def coalesce(self, connection: psycopg.Connection[Any]) -> None:
        """Merge unsent rows, to at most two for each minute and account.

        Looks at the whole of it only when so much has come since it last did.
        """
        last = connection.execute("SELECT coalesce(max(number), 0) FROM unsent_windows").fetchone()
        assert last is not None
        if last[0] - self._coalesced_to < max(self._loose_rows, self._kept_rows):
            return
        connection.execute(_COALESCE)
        unsent = connection.execute("SELECT count(*) FROM unsent_windows").fetchone()
        assert unsent is not None
        self._coalesced_to, self._kept_rows = last[0], unsent[0]
