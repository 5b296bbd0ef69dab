"""Random usage with all that billing tells apart: late, held, decided, corrected, restated, redriven, and members."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa

from jobs.billing.config import BillingConfig
from jobs.billing.sums import COLUMNS
from jobs.runtime.effective_rules import EffectiveRules, History
from jobs.settings.meters import DEFAULT_METERS
from jobs.streams import USAGE
from jobs.usage_members import ENTRY
from jobs.usage_members import written as members_written
from metering.instants import rfc3339
from metering.meters import OfMeter
from metering.windows import MINUTE
from tests.pipelines.billing import NOON, written
from tests.pipelines.test_holding import HOLD_SECONDS, Waiting
from tests.pipelines.test_member_corrections import KINDS, METERS, PRICES

POLICIES = {"requests": "hold", "output_tokens": "hold", "cached_tokens": "drop"}
PERIODS = ((date(2026, 2, 1), NOON - MINUTE), (date(2026, 3, 1), NOON + 2 * MINUTE))
"""First day and end: the first closes before the last rows of usage are received, and before much of history is."""

OF_HISTORY = (date(2026, 1, 1), NOON)
"""Of a period that nothing corrects."""


def config_of(grace: timedelta, **more: Any) -> BillingConfig:
    """Meters of minutes and of months, with late policies of all kinds, while history is loaded."""
    return BillingConfig.model_validate(
        {
            "meters": {
                **{name: meter.model_dump(exclude_none=True) for name, meter in DEFAULT_METERS.items()},
                **METERS,
            },
            "grace_seconds": grace.total_seconds(),
            "late_policy": POLICIES,
            "hold": {"seconds": HOLD_SECONDS, "above_amount": "0.2"},
            "history_until": rfc3339(NOON + MINUTE),
            **more,
        }
    )


CONFIG = config_of(timedelta(minutes=15))


@dataclass(frozen=True)
class Universe:
    """Usage in the order of lsn, and F and the number of the commit of each row."""

    usage: pa.Table
    frontiers: list[datetime | None]
    commits: list[int]

    @property
    def history(self) -> History:
        """Rules that change within it."""
        shorter = config_of(timedelta(minutes=5)).deciding
        closed: OfMeter[datetime | None] = OfMeter(NOON, {"requests": NOON + MINUTE})
        third = len(self.usage) // 3
        return (
            EffectiveRules(1, CONFIG.deciding),
            EffectiveRules(third, shorter),
            EffectiveRules(2 * third, CONFIG.deciding, closed_before=closed),
        )


def universe(seed: int) -> Universe:
    """The one of a seed: about 300 rows."""
    chance, waiting = Random(f"{seed} universe"), Waiting(seed)
    rows = [_redriven(row, chance) for row in written(waiting.rows)]
    schema = pa.schema([field.with_nullable(True) for field in USAGE if field.name in COLUMNS])
    members = _members(rows, chance)
    last = len(rows) - 1
    # F of the row's commit; what comes last is received after everything has closed.
    frontiers = [*waiting.frontiers[:last], NOON + timedelta(hours=1)]
    usage = pa.Table.from_pylist(
        [
            {**row, "frontier": frontier, "members": members.get(place)}
            for place, (row, frontier) in enumerate(zip(rows, frontiers, strict=True))
        ],
        schema=schema,
    )
    commits, number = [], 0
    for _ in rows:
        number += chance.random() < 0.3
        commits.append(number)
    return Universe(usage, frontiers, commits)


def _redriven(row: dict[str, Any], chance: Random) -> dict[str, Any]:
    """Some of what came from the stream was received before: a dead letter, or a record of the past."""
    if row["cause"] != "stream" or chance.random() < 0.7:
        return row
    return {**row, "first_received_at": row["received_at"] - timedelta(seconds=chance.randint(0, 900))}


def _members(rows: list[dict[str, Any]], chance: Random) -> dict[int, str]:
    """By place of a row the column `members`; rows that correct take back or add a member, too."""
    entries = []
    for place, row in enumerate(rows):
        if row["cause"] == "decided" or chance.random() < 0.4:
            continue
        first = row.get("first_received_at")
        is_history = first is not None and first < NOON + timedelta(minutes=15)
        first_day, ends_at = OF_HISTORY if is_history and chance.random() < 0.5 else chance.choice(PERIODS)
        for meter in sorted(METERS):
            price = chance.choice([7, 8, None])
            entries.append(
                {
                    "row": place,
                    "meter": meter,
                    "aggregation": KINDS[meter].value,
                    "period": "month",
                    "first_day": first_day,
                    "starts_at": NOON - timedelta(days=20),
                    "ends_at": ends_at,
                    "member": chance.choice("xyz") if meter == "users" else None,
                    "value": None if meter == "users" else Decimal(chance.randrange(4)),
                    "currency": None if price is None else "EUR",
                    "price_version": price,
                    "unit_price": None if price is None else PRICES[price],
                }
            )
    return dict(members_written(pl.DataFrame(entries, schema={"row": pl.Int64(), **ENTRY})).iter_rows())


def canonical(staged: pa.Table) -> list[str]:
    """Rows of STAGED in one order, with every digit."""
    return sorted(repr(sorted(row.items(), key=lambda item: item[0])) for row in staged.to_pylist())
