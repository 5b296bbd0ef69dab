"""What the oracles of limits have in common: rows that are taken back, and the thresholds of the limit that holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

Row = dict[str, Any]


def reversal(chance: random.Random, rows: Sequence[Row], lsn: int) -> Row | None:
    """Sometimes: one of `rows` taken back, which none of them takes back yet."""
    if not rows or chance.random() >= 0.2:
        return None
    of = chance.choice(rows)
    if of["sign"] < 0 or any(row["corrects_lsns"] == [of["lsn"]] for row in rows):
        return None
    return {**of, "lsn": lsn, "sign": -1, "cause": "reversed", "corrects_lsns": [of["lsn"]]}


def any_thresholds(chance: random.Random) -> Row:
    """Of a limit of a meter: steps, the limit itself, and sometimes a number at each multiple of which it calls."""
    steps = [f"{chance.randint(1, 9)}.5" for _ in range(chance.randint(0, 2))]
    quantity = chance.choice([None, "0", f"{chance.randint(1, 12)}", f"{chance.randint(1, 9)}.25"])
    every = {"every": chance.choice(["0.5", "3", "7.25"])} if chance.random() < 0.3 else {}
    return {"steps": steps, "quantity": quantity, **every}


def thresholds_of(
    limits: Sequence[Row], account: str, plan: str, total: Fraction, counts: Callable[[Row], bool]
) -> Iterator[str]:
    """Of the limit that holds among those that `counts`: the account's own, else its plan's, else that of everybody.

    Of its versions the last; of its multiples those that `total` has reached.
    """
    for of in ({"account": account}, {"plan": plan}, {"account": "*"}):
        versions = [row for row in limits if of.items() <= row.items() and counts(row)]
        if versions:
            row = max(versions, key=lambda row: datetime.fromisoformat(row["effective_from"]))
            most = row.get("quantity", row.get("amount"))
            yield from [*row["steps"], *([] if most is None else [most])]
            every = Fraction(row.get("every", "1000000"))
            yield from [f"{Decimal(row['every']) * turn}" for turn in range(1, 101) if every * turn <= total]
            return
