"""`weir audit --unpriced` takes what a price may still come for."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from jobs.audit.recompute.unpriced_usage import unpriced_from
from jobs.billing.config import BillingConfig
from jobs.streams import ACCOUNTS, PRICES, Table
from metering.meters import Meter
from metering.vocabulary import LatePolicy, Outcome
from metering.windows import MINUTE
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
def test_an_audit_of_the_unpriced_begins_two_days_before_the_earliest_that_a_price_came_for(
    database: str, connection: psycopg.Connection[Any], tmp_path: Path, rows: list[Row], since: datetime | None
) -> None:
    if rows:
        bill(connection, rows, DROP)
        connection.commit()
    assert unpriced_from(database, str(tmp_path)) is None
    known(tmp_path)
    assert unpriced_from(database, str(tmp_path)) == since


def known(tables: Path, begins: datetime = NOON - 9 * DAY, **price: Any) -> None:
    """What joins has: the account acme, and one price."""
    at = {"lsn": 1, "effective_from": begins, "deleted": False}
    account = {"account": "acme", "plan": "pro", "currency": "EUR", "timezone": "UTC", "committed_at": NOON, **at}
    key = {"plan": "pro", "model": "sonnet", "meter": "requests", "currency": "EUR"}
    said = {**key, "unit_price": Decimal("0.1"), **at, **price}
    for table, row, schema in ((Table.ACCOUNTS, account, ACCOUNTS), (Table.PRICES, said, PRICES)):
        write_deltalake(str(tables / table), pa.Table.from_pylist([row], schema=schema), mode="overwrite")


@pytest.mark.parametrize(
    "forever",
    [{"model": None}, {"account": "nobody"}, {"model": "opus"}],
    ids=["orphaned", "of an unknown account", "of a model without a price"],
)
def test_usage_that_stays_unpriced_does_not_force_full_scans(
    database: str, connection: psycopg.Connection[Any], tmp_path: Path, forever: Row
) -> None:
    bill(connection, [unpriced(1, NOON - 300 * DAY) | forever, unpriced(2)], DROP)
    connection.commit()
    known(tmp_path, NOON - 400 * DAY)
    assert unpriced_from(database, str(tmp_path)) == MIDNIGHT - 2 * DAY


@pytest.mark.parametrize(
    ("begins", "since"),
    [(NOON + MINUTE, None), (NOON + MINUTE / 2, MIDNIGHT - 2 * DAY), (NOON - 3 * DAY, MIDNIGHT - 5 * DAY)],
    ids=["after all", "within the last minute", "between"],
)
def test_usage_waits_for_nothing_before_its_price_begins(
    database: str, connection: psycopg.Connection[Any], tmp_path: Path, begins: datetime, since: datetime | None
) -> None:
    bill(connection, [unpriced(1, NOON - 7 * DAY), unpriced(2)], DROP)
    connection.commit()
    known(tmp_path, begins)
    assert unpriced_from(database, str(tmp_path)) == since


def test_a_withdrawn_price_does_not_count_as_a_price_that_came(
    database: str, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    bill(connection, [unpriced(1)], DROP)
    connection.commit()
    known(tmp_path, deleted=True, unit_price=None)
    assert unpriced_from(database, str(tmp_path)) is None
