"""Totals of all stragglers by meter, decision and currency, added up incrementally.

Rows are only appended, in lsn order, and waiting stragglers are decided one after the other. So the table is read once,
in steps, and from then on only its new rows in either order. The few that wait now are read each time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import product
from typing import Any

import psycopg

from metering.vocabulary import Decision
from monitoring import metrics
from monitoring.instruments import GaugeMetric

STEP_ROWS = 200_000
"""Read at once, so that a statement ends within its limit of time."""

_NEXT = """
    SELECT max({place}) FROM (
        SELECT {place} FROM stragglers WHERE {place} > %(seen)s ORDER BY {place} LIMIT %(step)s
    ) AS step
"""
_SUMS = "SELECT meter, decision, currency, count(*) FILTER (WHERE cause = 'stream'), coalesce(sum(amount), 0)"
# The rows of one lsn are of one transaction, so none comes later than the others.
_ADD = f"""
    {_SUMS} FROM stragglers
    WHERE usage_lsn > %(seen)s AND usage_lsn <= %(last)s AND settled IS NULL GROUP BY 1, 2, 3
"""
_ADD_SETTLED = f"{_SUMS} FROM stragglers WHERE settled > %(seen)s AND settled <= %(last)s GROUP BY 1, 2, 3"
_ADD_OF = {"usage_lsn": _ADD, "settled": _ADD_SETTLED}
_WAITING = f"{_SUMS} FROM stragglers WHERE decision = 'hold' GROUP BY 1, 2, 3"
_DEADLINES = """
    SELECT meter, extract(epoch FROM min(hold_until) - (SELECT frontier FROM closed_usage))
    FROM stragglers WHERE decision = 'hold' AND hold_until IS NOT NULL GROUP BY 1
"""
# The money of a currency starts at 0 before its first straggler, so that the first one is seen as a rise.
_CURRENCIES = "SELECT DISTINCT currency FROM catalog.accounts"
_METERS = "SELECT meter FROM meters WHERE is_declared"


class StragglerTotals:
    """Rows and money of all stragglers, as of the last `read`, and how long the waiting ones wait at most."""

    def __init__(self, step_rows: int = STEP_ROWS) -> None:
        self._step_rows = step_rows
        self._seen = dict.fromkeys(_ADD_OF, 0)
        self._rows: Counter[tuple[str, str]] = Counter()
        self._amounts: defaultdict[tuple[str, str, str], Decimal] = defaultdict(Decimal)

    def read(self, cursor: psycopg.Cursor[Any]) -> Iterator[tuple[GaugeMetric, tuple[str, ...], float]]:
        """The samples of the gauges. After a statement that fails, the next read continues where it was."""
        for place in _ADD_OF:
            while self._step(cursor, place):
                pass
        self._forget_waiting()
        self._add(cursor.execute(_WAITING).fetchall())
        # Totals of meters that are no longer declared are still reported.
        meters = {name for (name,) in cursor.execute(_METERS).fetchall()} | {meter for meter, _ in self._rows}
        for (currency,) in cursor.execute(_CURRENCIES).fetchall():
            for meter, decision in product(meters, Decision):
                self._amounts[meter, decision, currency] += 0
        for meter, decision in product(sorted(meters), Decision):
            yield metrics.STRAGGLER_ROWS, (meter, decision), self._rows[meter, decision]
        for priced, amount in self._amounts.items():
            yield metrics.STRAGGLER_AMOUNT, priced, float(amount)
        for meter, seconds in cursor.execute(_DEADLINES).fetchall():
            if seconds is not None:
                yield metrics.STRAGGLER_DEADLINE, (meter,), float(seconds)

    def _step(self, cursor: psycopg.Cursor[Any], place: str) -> bool:
        """Add the next rows in the order of a column; False when there are none."""
        seen = self._seen[place]
        found = cursor.execute(_NEXT.format(place=place), {"seen": seen, "step": self._step_rows}).fetchone()
        last = found[0] if found else None
        if last is None:
            return False
        self._add(cursor.execute(_ADD_OF[place], {"seen": seen, "last": last}).fetchall())
        self._seen[place] = last
        return True

    def _add(self, sums: Iterable[tuple[Any, ...]]) -> None:
        for meter, decision, currency, rows, amount in sums:
            self._rows[meter, decision] += rows
            if currency is not None:
                self._amounts[meter, decision, currency] += amount

    def _forget_waiting(self) -> None:
        for meter, decision in [key for key in self._rows if key[1] == Decision.HOLD]:
            self._rows[meter, decision] = 0
        for priced in [key for key in self._amounts if key[1] == Decision.HOLD]:
            self._amounts[priced] = Decimal(0)
