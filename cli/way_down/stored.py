"""What the database says of usage: its windows, what came late, what corrected, and the lines of months."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from cli.reading import Database
from cli.way_down.arithmetic import Cell, Row, WindowKey

STRAGGLER = (
    *("usage_lsn", "meter", "account", "model", "window_start", "event_time", "received_at", "late_seconds"),
    *("decision", "quantity", "unit_price", "amount", "currency", "price_version", "request_id"),
    *("hold_until", "decided_at", "decided_by", "reason", "decided_lsn"),
)
CORRECTION = (
    *("usage_lsn", "meter", "usage_lsns", "window_start", "account", "model", "currency", "cause", "decision"),
    *("old_quantity", "new_quantity", "old_amount", "new_amount", "corrected_at", "dimensions"),
)

_BILLED_TO = "SELECT next_position FROM positions WHERE job = 'billing' AND input = 'usage'"
_NOW = "SELECT now() AS now"
_DECISIONS = "SELECT usage_lsn, meter, decision FROM stragglers WHERE usage_lsn = ANY (%(lsns)s)"
_ASKED = "unnest(%(starts)s::timestamptz[], %(accounts)s::text[]) AS asked (window_start, account)"
_WINDOWS = f"""
    SELECT window_start, window_end, account, model, meter, currency, price_version, unit_price, quantity, amount,
           late_quantity, corrected
    FROM usage_windows JOIN {_ASKED} USING (window_start, account)
    ORDER BY window_start, account, model, meter, currency, price_version
"""
_STRAGGLERS = f"""
    SELECT {", ".join(STRAGGLER)} FROM stragglers JOIN {_ASKED} USING (window_start, account)
    WHERE %(lsns)s::bigint[] IS NULL OR usage_lsn = ANY (%(lsns)s)
    ORDER BY usage_lsn, meter
"""
_CORRECTIONS = f"""
    SELECT {", ".join(CORRECTION)} FROM corrections JOIN {_ASKED} USING (window_start, account)
    WHERE %(lsns)s::bigint[] IS NULL OR usage_lsns && %(lsns)s::bigint[]
    ORDER BY usage_lsn, meter
"""
_STRAGGLER = "SELECT usage_lsn, decided_lsn FROM stragglers WHERE usage_lsn = %s"
_CORRECTION = "SELECT usage_lsns FROM corrections WHERE usage_lsn = %s"
_SESSION = """
    SELECT session_id, account, user_id, session_start, session_end, events, version, retracted_at
    FROM sessions WHERE session_id = %s
"""
# One price version has one unit price: a line's amount is its quantity times that, multiplied once.
_LINES = """
    SELECT account, %(month)s AS month, model, meter, currency, price_version, max(unit_price) AS unit_price,
           sum(quantity) AS quantity, sum(quantity) * max(unit_price) AS amount
    FROM usage_days
    WHERE account = %(account)s AND day >= %(month)s AND day < %(following)s AND meter = ANY (%(meters)s)
    GROUP BY account, model, meter, currency, price_version
    ORDER BY model, meter, currency, price_version
"""


@dataclass(frozen=True)
class Stored:
    """One snapshot of the database, asked about windows. `window_start` and account name some."""

    database: Database

    def billed_to(self) -> int | None:
        """Billing has read usage below this lsn; None before it ever ran."""
        row = self.database.execute(_BILLED_TO).fetchone()
        return row["next_position"] if row else None

    def now(self) -> datetime:
        """The database's clock."""
        row = self.database.execute(_NOW).fetchone()
        assert row is not None
        now: datetime = row["now"]
        return now

    def decisions(self, lsns: Iterable[int]) -> dict[tuple[int, str], str]:
        """What was decided of stragglers, by (usage_lsn, meter)."""
        rows = self.database.execute(_DECISIONS, {"lsns": list(lsns)}).fetchall()
        return {(row["usage_lsn"], row["meter"]): row["decision"] for row in rows}

    def windows(self, asked: Collection[tuple[datetime, str]]) -> dict[Cell, Row]:
        """Rows of `usage_windows` in their order: all of the minutes that are asked for."""
        rows = self.database.execute(_WINDOWS, _parameters(asked, None)).fetchall()
        return {(WindowKey(*(row[name] for name in WindowKey._fields)), row["price_version"]): row for row in rows}

    def stragglers(self, asked: Collection[tuple[datetime, str]], lsns: Iterable[int] | None = None) -> list[Row]:
        """Rows (STRAGGLER) of these minutes, of these rows of usage or all (None)."""
        return list(self.database.execute(_STRAGGLERS, _parameters(asked, lsns)).fetchall())

    def corrections(self, asked: Collection[tuple[datetime, str]], lsns: Iterable[int] | None = None) -> list[Row]:
        """Rows (CORRECTION) of these minutes, by any of these rows of usage or all (None)."""
        return list(self.database.execute(_CORRECTIONS, _parameters(asked, lsns)).fetchall())

    def straggler(self, lsn: int) -> set[int]:
        """This row of usage and those that say what was decided of it; none where it is no straggler."""
        rows = self.database.execute(_STRAGGLER, [lsn]).fetchall()
        return {said for row in rows for said in row.values() if said is not None}

    def corrected_by(self, lsn: int) -> list[int]:
        """The rows of usage that are one correction with this one, the lowest of them; none where there is none."""
        rows = self.database.execute(_CORRECTION, [lsn]).fetchall()
        return sorted({one for row in rows for one in row["usage_lsns"]})

    def session(self, number: int) -> Row | None:
        """A session by its number."""
        return self.database.execute(_SESSION, [number]).fetchone()

    def lines(self, account: str, month: date, meters: Collection[str]) -> list[Row]:
        """The lines of some meters of an account's month, one for each model, meter, currency and price version."""
        following = (month + timedelta(days=31)).replace(day=1)
        asked = {"account": account, "month": month, "following": following, "meters": list(meters)}
        return list(self.database.execute(_LINES, asked).fetchall())


def _parameters(asked: Collection[tuple[datetime, str]], lsns: Iterable[int] | None) -> Mapping[str, Any]:
    places = sorted(set(asked))
    return {
        "starts": [start for start, _ in places],
        "accounts": [account for _, account in places],
        "lsns": None if lsns is None else list(lsns),
    }
