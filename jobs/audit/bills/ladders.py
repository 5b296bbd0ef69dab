"""I6: what bills price tiers and packages by (`price_ladders`) is what the versions of prices say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa

from jobs.audit.compare.columns import Wrong
from jobs.joins.price_ladders import COLUMNS, ladders

_ROWS = f"SELECT {', '.join(COLUMNS)} FROM price_ladders ORDER BY price_version"
_BILLED = "SELECT DISTINCT price_version FROM usage_days WHERE unit_price IS NULL AND price_version > 0 ORDER BY 1"
Rung = Sequence[str | datetime | Decimal | None]
"""A row of `price_ladders` without its version: the other COLUMNS."""


@dataclass(frozen=True)
class StoredLadders:
    """By version what the database has, and the versions by which usage is billed."""

    rungs: Mapping[int, Rung] = field(default_factory=dict)
    billed: Sequence[int] = ()


def stored_ladders(connection: psycopg.Connection[Any]) -> StoredLadders:
    """What the database has, within the caller's transaction."""
    rungs = {version: tuple(rest) for version, *rest in connection.execute(_ROWS).fetchall()}
    return StoredLadders(rungs, [version for (version,) in connection.execute(_BILLED).fetchall()])


def wrong_ladders(stored: StoredLadders, prices: pa.Table) -> Wrong:
    """Versions of prices (streams.PRICES) that the database has otherwise, or lacks while usage is billed by them.

    It may have versions that `prices`, which was read before, lacks.
    """
    must = {version: tuple(rest) for version, *rest in ladders(prices).iter_rows()}
    found = [
        f"price version {version} is {_named(rung)} in price_ladders instead of {_named(must[version])}"
        for version, rung in stored.rungs.items()
        if version in must and rung != must[version]
    ]
    found += [
        f"usage is billed by price version {version}, which has no unit price and is not in price_ladders"
        for version in stored.billed
        if version not in stored.rungs
    ]
    return Wrong(len(stored.rungs), len(found), found[0] if found else "")


def _named(rung: Rung) -> str:
    return " ".join(str(value) for value in rung if value is not None)
