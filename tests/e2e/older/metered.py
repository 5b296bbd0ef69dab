"""What a stack has metered, in a form that its next version still has."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import psycopg
from deltalake import DeltaTable

from jobs.streams import Table

MINUTE = timedelta(minutes=1)
Key = tuple[str, str | None, str, str | None, int | None, datetime]
"""Account, model, meter, currency, price version, and start of the window."""
Total = tuple[Decimal, Decimal]
"""Quantity and amount."""
NOTHING: Total = (Decimal(0), Decimal(0))
_KEY = "account, model, meter, currency, price_version, window_start"


@dataclass(frozen=True)
class Metered:
    """Totals per window, what came after grace, sessions, and both tables; the rows of each list by their key."""

    closed_until: datetime
    """What ended by then is closed: billing was that far."""
    windows: dict[Key, Total]
    stragglers: dict[tuple[Any, ...], tuple[Any, ...]]
    sessions: dict[int, tuple[Any, ...]]
    journal: pl.DataFrame
    usage: pl.DataFrame

    def corrections(self, since: Metered) -> dict[Key, Total]:
        """What stragglers that `since` does not have changed, by window."""
        sums: dict[Key, Total] = defaultdict(lambda: NOTHING)
        for straggler in self.stragglers.keys() - since.stragglers.keys():
            decision, quantity, amount, *key = self.stragglers[straggler]
            if decision == "correct":
                sums[tuple(key)] = added(sums[tuple(key)], (quantity, amount))
        return sums


def added(one: Total, other: Total) -> Total:
    """The sum of both."""
    return one[0] + other[0], one[1] + other[1]


def metered(database: str, tables: str) -> Metered:
    """Read it, from a stack that runs or is stopped."""
    with psycopg.connect(database) as connection:

        def rows(sql: str) -> list[tuple[Any, ...]]:
            return connection.execute(sql).fetchall()

        ((closed_until,),) = rows(
            """SELECT frontier - make_interval(secs => (config ->> 'grace_seconds')::float8)
               FROM positions JOIN jobs USING (job) WHERE job = 'billing' AND input = 'usage'"""
        )
        windows = rows(f"SELECT quantity::numeric, coalesce(amount, 0), {_KEY} FROM usage_windows")
        stragglers = rows(
            f"SELECT usage_lsn, meter, decision, quantity::numeric, coalesce(amount, 0), {_KEY} FROM stragglers"
        )
        sessions = rows(
            """SELECT session_id, account, user_id, session_start, session_end, events, version, retracted_at
               FROM sessions"""
        )
    return Metered(
        closed_until,
        {tuple(key): (quantity, amount) for quantity, amount, *key in windows},
        {(lsn, meter): tuple(straggler) for lsn, meter, *straggler in stragglers},
        {session: tuple(held) for session, *held in sessions},
        _table(tables, Table.JOURNAL),
        _table(tables, Table.USAGE),
    )


def _table(tables: str, name: Table) -> pl.DataFrame:
    return pl.DataFrame(DeltaTable(f"{tables}/{name}").to_pyarrow_table()).sort("lsn")
