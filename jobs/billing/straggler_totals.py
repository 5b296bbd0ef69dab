"""All stragglers by meter, decision and currency, added up as they come.

They are only ever appended, in lsn order: the table is read once, in steps, and from then on only what is new.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from typing import Any

import psycopg

from metering.words import Decision
from monitoring import metrics
from monitoring.instruments import GaugeMetric

STEP_ROWS = 200_000
"""Read at once, so that a statement ends within its limit of time."""

_NEXT = """
    SELECT max(usage_lsn) FROM (
        SELECT usage_lsn FROM stragglers WHERE usage_lsn > %(seen)s ORDER BY usage_lsn LIMIT %(step)s
    ) AS step
"""
# The rows of one lsn are of one transaction, so none comes later than the others.
_ADD = """
    SELECT meter, decision, currency, count(*) FILTER (WHERE cause = 'stream'), coalesce(sum(amount), 0)
    FROM stragglers WHERE usage_lsn > %(seen)s AND usage_lsn <= %(last)s GROUP BY 1, 2, 3
"""
# The money of a currency starts at 0 before its first straggler, so that the first one is seen as a rise.
_CURRENCIES = "SELECT DISTINCT currency FROM catalog.accounts"
_METERS = "SELECT meter FROM meters WHERE is_declared"


class StragglerTotals:
    """Rows and money of all stragglers, as of the last `read`."""

    def __init__(self, step_rows: int = STEP_ROWS) -> None:
        self._step_rows = step_rows
        self._seen_lsn = 0
        self._rows: Counter[tuple[str, str]] = Counter()
        self._amounts: defaultdict[tuple[str, str, str], Decimal] = defaultdict(Decimal)

    def read(self, cursor: psycopg.Cursor[Any]) -> Iterator[tuple[GaugeMetric, tuple[str, ...], float]]:
        """The samples of both gauges. After a statement that fails, the next read goes on where it was."""
        while self._step(cursor):
            pass
        # Of a meter that is declared no more, what there is goes on to be told.
        meters = {name for (name,) in cursor.execute(_METERS).fetchall()} | {meter for meter, _ in self._rows}
        for (currency,) in cursor.execute(_CURRENCIES).fetchall():
            for meter, decision in product(meters, Decision):
                self._amounts[meter, decision, currency] += 0
        for meter, decision in product(sorted(meters), Decision):
            yield metrics.STRAGGLER_ROWS, (meter, decision), self._rows[meter, decision]
        for priced, amount in self._amounts.items():
            yield metrics.STRAGGLER_AMOUNT, priced, float(amount)

    def _step(self, cursor: psycopg.Cursor[Any]) -> bool:
        """Add the next rows; False when there are none."""
        found = cursor.execute(_NEXT, {"seen": self._seen_lsn, "step": self._step_rows}).fetchone()
        last = found[0] if found else None
        if last is None:
            return False
        added = cursor.execute(_ADD, {"seen": self._seen_lsn, "last": last}).fetchall()
        for meter, decision, currency, rows, amount in added:
            self._rows[meter, decision] += rows
            if currency is not None:
                self._amounts[meter, decision, currency] += amount
        self._seen_lsn = last
        return True
