"""What windows showed when they closed, and whether corrections explain all that became of them since."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from typing import Any

import psycopg

from tests.quarter.computed import EXACT, MINUTE

Window = tuple[Any, ...]
"""Start, account, model, meter, currency: all price versions together."""
Sum = tuple[Decimal, Decimal]

KEYS = "window_start, account, model, meter, currency"
_CLOSED = f"""
SELECT {KEYS}, sum(quantity), coalesce(sum(amount), 0) FROM usage_windows
WHERE window_end > %(before)s AND window_end <= %(until)s GROUP BY {KEYS}
"""
_NOW = f"""
SELECT {KEYS}, sum(quantity), coalesce(sum(amount), 0) FROM usage_windows WHERE window_end <= %s GROUP BY {KEYS}
"""
_CORRECTIONS = f"""
SELECT {KEYS}, number, new_quantity - old_quantity, coalesce(new_amount, 0) - coalesce(old_amount, 0) FROM corrections
"""
_UNTIL = "SELECT (SELECT closed_until FROM closed_usage), (SELECT coalesce(max(number), 0) FROM corrections)"


class Shown:
    """Looks after each turn, and keeps what each window showed when it was first seen closed."""

    def __init__(self, database: str) -> None:
        self._connection = psycopg.connect(database, autocommit=True)
        self._windows: dict[Window, Sum] = {}
        self._looks: list[tuple[datetime, int]] = []
        """Until when windows were closed, and the newest correction that there was then."""

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def look(self) -> None:
        """Keep what has closed since the last look."""
        until, number = self._connection.execute(_UNTIL).fetchone() or (None, 0)
        before = self._looks[-1][0] if self._looks else datetime.min.replace(tzinfo=UTC)
        if until is None or until == before:
            return
        closed = self._connection.execute(_CLOSED, {"before": before, "until": until}).fetchall()
        self._windows |= {tuple(key): (quantity, amount) for *key, quantity, amount in closed}
        self._looks.append((until, number))

    def unexplained(self) -> Iterator[str]:
        """A sentence for each window that is not what it showed and what corrections made of it since."""
        for key, (wanted, found) in self._ends().items():
            if wanted != found:
                yield f"the window {key} showed, with its corrections since, {wanted}, and is {found}"

    def closed(self) -> int:
        """How many windows were seen closed, or are closed now."""
        return len(self._ends())

    def moved(self) -> int:
        """How many are not what they showed when they closed."""
        nothing = (Decimal(0), Decimal(0))
        return sum(self._windows.get(key, nothing) != found for key, (_, found) in self._ends().items())

    def _ends(self) -> dict[Window, tuple[Sum, Sum]]:
        nothing = Decimal(0)
        wanted: defaultdict[Window, Sum] = defaultdict(lambda: (nothing, nothing), self._windows)
        untils = [until for until, _ in self._looks]
        with localcontext(EXACT):
            for *key, number, quantity, amount in self._connection.execute(_CORRECTIONS).fetchall():
                look = bisect_left(untils, key[0] + MINUTE)
                if look < len(untils) and number > self._looks[look][1]:
                    before = wanted[tuple(key)]
                    wanted[tuple(key)] = before[0] + quantity, before[1] + amount
        found = {
            tuple(key): (quantity, amount)
            for *key, quantity, amount in self._connection.execute(_NOW, [untils[-1]]).fetchall()
        }
        zero = (nothing, nothing)
        return {key: (wanted.get(key, zero), found.get(key, zero)) for key in wanted.keys() | found.keys()}
