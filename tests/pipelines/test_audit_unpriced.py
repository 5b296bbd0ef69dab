"""`weir audit --unpriced` takes what a price may still come for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from jobs.audit.unpriced import unpriced_from
from jobs.billing.config import BillingConfig
from metering.meters import Meter
from metering.windows import MINUTE
from metering.words import LatePolicy, Outcome
from tests.pipelines.billing import NOON, bill, usage_row

DAY = timedelta(days=1)
MIDNIGHT = NOON.replace(hour=0)
DROP = BillingConfig(late_policy=dict.fromkeys(Meter, LatePolicy.DROP))
Row = dict[str, Any]


def back(lsn: int, corrected: int, *at: Any) -> Row:
    """What takes the row `corrected` back, which had no price."""
    of_it: Row = {"request_id": f"request-{corrected}", "sign": -1, "cause": "repriced", "corrects_lsns": [corrected]}
    return usage_row(lsn, *at, price=None, outcome=Outcome.ABANDONED, **of_it)


def unpriced(lsn: int, *at: Any) -> Row:
    return usage_row(lsn, *at, price=None, outcome=Outcome.ABANDONED)


@pytest.mark.parametrize(
    ("rows", "since"),
    [
        ([], None),
        ([usage_row(1)], None),
        ([usage_row(1), unpriced(2, NOON + DAY)], MIDNIGHT - DAY),
        ([unpriced(1, MIDNIGHT - MINUTE), unpriced(2, NOON + DAY)], MIDNIGHT - 3 * DAY),
        ([unpriced(1), back(2, 1)], None),
        ([unpriced(1), back(2, 1), unpriced(3, NOON + DAY)], MIDNIGHT - DAY),
        ([unpriced(1, NOON, DAY)], MIDNIGHT - 2 * DAY),
        ([unpriced(1, NOON, DAY), back(2, 1, NOON, DAY)], None),
    ],
    ids=["nothing", "priced", "one", "earliest", "priced_later", "the_other", "dropped", "dropped_and_priced_later"],
)
def test_an_audit_of_the_unpriced_begins_two_days_before_the_earliest_that_has_no_price(
    database: str, connection: psycopg.Connection[Any], rows: list[Row], since: datetime | None
) -> None:
    if rows:
        bill(connection, rows, DROP)
        connection.commit()
    assert unpriced_from(database) == since
