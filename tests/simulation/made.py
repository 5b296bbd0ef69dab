"""What the applications have made by the end of a history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
from deltalake import DeltaTable
from psycopg.rows import dict_row

from jobs.runtime.effective_rules import History, read_history
from jobs.runtime.postgres.rules_table import stored_history
from jobs.streams import Table
from metering.vocabulary import UsageCause
from tests.simulation.world import World

Row = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """What the applications have made: rows of the tables in the order of lsn, and of the database."""

    journal: list[Row]
    journal_state: DeltaTable
    usage: list[Row]
    timeouts: History
    graces: History
    gaps: list[tuple[int, timedelta]]
    billed_until: datetime | None
    """F as billing has it."""
    windows: list[Row]
    stragglers: list[Row]
    corrections: list[Row]
    sessions: list[Row]
    meters: dict[str, Row]
    sets: dict[Any, Decimal]
    """Quantities of periods, by account, first day, meter, model, currency and price version."""
    removed: frozenset[int]
    """Rows of the journal that retention has taken by now."""
    unsent: list[Row]
    is_rebuilt: bool
    """Whether billing's tables were ever made again."""

    @property
    def outcomes(self) -> list[Row]:
        """Usage that is no decision."""
        return [row for row in self.usage if row["cause"] != UsageCause.DECIDED]


_SETS = """
SELECT account, day, meter, model, currency, price_version, quantity
FROM usage_days JOIN meters USING (meter) WHERE period IS NOT NULL
"""


def found_in(world: World) -> Found:
    """All that is there, and what retention took."""
    journal, usage = (DeltaTable(str(world.tables / table)) for table in (Table.JOURNAL, Table.USAGE))
    with psycopg.connect(world.database) as connection:
        cursor = connection.cursor(row_factory=dict_row)
        windows, stragglers, corrections, sessions, unsent = (
            cursor.execute(f"SELECT * FROM {table}").fetchall()
            for table in ("usage_windows", "stragglers", "corrections", "sessions", "unsent_windows")
        )
        meters = {row["meter"]: row for row in cursor.execute("SELECT * FROM meters").fetchall()}
        sets = {tuple(key): quantity for *key, quantity in connection.execute(_SETS).fetchall()}
        gaps = connection.execute("SELECT first_position, gap FROM session_gaps ORDER BY 1").fetchall()
        graces = stored_history(connection, "billing")
        reached = connection.execute("SELECT frontier FROM positions WHERE job = 'billing'").fetchone()
    rows, outcomes = (
        [*world.removed[table].values(), *found.to_pyarrow_table().to_pylist()]
        for table, found in ((Table.JOURNAL, journal), (Table.USAGE, usage))
    )
    for each in (rows, outcomes):
        each.sort(key=lambda row: row["lsn"])
    timeouts = read_history(usage)[0]
    return Found(
        journal=rows,
        journal_state=journal,
        usage=outcomes,
        timeouts=timeouts,
        graces=graces,
        gaps=gaps,
        billed_until=reached[0] if reached else None,
        windows=windows,
        stragglers=stragglers,
        corrections=corrections,
        sessions=sessions,
        meters=meters,
        sets=sets,
        removed=frozenset(world.removed[Table.JOURNAL]),
        unsent=unsent,
        is_rebuilt=(world.tables / "_rebuilt").exists(),
    )


def differ_by_key(what: str, found: dict[Any, Row], wanted: dict[Any, Row]) -> Iterator[str]:
    """A sentence for each key under which not the same stands."""
    for key in found.keys() | wanted.keys():
        if found.get(key) != wanted.get(key):
            yield f"{what} {key}: {found.get(key)} instead of {wanted.get(key)}"
