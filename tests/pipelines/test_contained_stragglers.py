"""Promise: a straggler of which another meter bills a part says of the rest what usage says, priced or not."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row

from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB
from jobs.billing.sums import COLUMNS, sums
from jobs.runtime.effective_rules import EffectiveRules
from jobs.runtime.job import Counts
from jobs.streams import USAGE
from metering.pricing import BILLED_AS_PART, BILLED_IN_WHOLE
from monitoring import metrics
from tests.pipelines.as_billed import Stack, billed, listed
from tests.pipelines.billing import NOON, usage_row
from tests.pipelines.folding import fold_table
from tests.pipelines.test_public_cases_billed import METERS, OF_THE_MONTH, TERMS, event, prices

LATE = timedelta(hours=3)
READ = pa.schema([field for field in USAGE if field.name in COLUMNS])
USED = {"input_tokens": 1_500, "cached_tokens": 1_024, "output_tokens": 200}


def straggler(database: str, meter: str) -> dict[str, Any]:
    with psycopg.connect(database, row_factory=dict_row) as connection:
        found = connection.execute(
            "SELECT quantity, contained_quantity, unit_price, price_version, amount FROM stragglers WHERE meter = %s",
            [meter],
        ).fetchone()
    assert found is not None
    return found


def test_a_straggler_with_an_unpriced_rest_waits_for_a_price(database: str) -> None:
    of_plan = prices("large", cached_tokens="0.001", requests="0")
    billed(database, Stack(METERS), [event("r1", "large", USED, LATE)], **TERMS, unit_prices=of_plan)
    unpriced = {"unit_price": None, "price_version": None, "amount": None}
    assert straggler(database, "input_tokens") == {"quantity": 1_500, "contained_quantity": 1_024, **unpriced}
    rows: dict[Any, Any] = {row["meter"]: row for row in listed(database, OF_THE_MONTH)}
    assert (rows["input_tokens"]["quantity"], rows["input_tokens"]["unpriced_quantity"]) == (1_500, 476)


def test_a_straggler_whose_rest_has_a_price_costs_the_rest(database: str) -> None:
    of_plan = prices("large", input_tokens="0.003", cached_tokens="0.001", requests="0")
    billed(database, Stack(METERS), [event("r1", "large", USED, LATE)], **TERMS, unit_prices=of_plan)
    found = straggler(database, "input_tokens")
    assert (found["quantity"], found["contained_quantity"]) == (1_500, 1_024)
    assert found["amount"] == 476 * found["unit_price"] > 0


def entry(quantity: int, version: int | None, unit_price: int | None) -> dict[str, Any]:
    amount = None if unit_price is None else Decimal(quantity * unit_price)
    price = None if unit_price is None else Decimal(unit_price)
    of_meter = {"meter": "input_tokens", "quantity": Decimal(quantity)}
    return {**of_meter, "price_version": version, "unit_price": price, "amount": amount}


def folded(database: str, config: BillingConfig, entries: list[dict[str, Any]]) -> Counts:
    row = usage_row(1, delay=LATE, quantities={}, meters=entries)
    staged = sums(pa.Table.from_pylist([row], schema=READ), EffectiveRules(1, config.deciding))
    with psycopg.connect(database) as connection:
        return fold_table(connection, JOB, staged, config, next_position=2)


@pytest.mark.parametrize(
    ("entries", "unpriced"),
    [
        ([entry(476, None, None), entry(1_024, BILLED_AS_PART, 0)], 1),
        ([entry(476, 7, 3), entry(1_024, BILLED_AS_PART, 0)], 0),
        ([entry(1_024, BILLED_AS_PART, 0)], 0),
        ([entry(1_024, BILLED_IN_WHOLE, 0)], 0),
        ([entry(1_500, None, None)], 1),
    ],
)
def test_a_straggler_counts_units_once_when_another_meter_bills_part_of_them(
    database: str, entries: list[dict[str, Any]], unpriced: int
) -> None:
    counts = folded(database, BillingConfig(), entries)
    assert counts[metrics.STRAGGLERS, "input_tokens", "correct"] == 1
    assert counts[metrics.UNPRICED, "input_tokens"] == unpriced


@pytest.mark.parametrize("version", [None, 7])
def test_a_straggler_that_has_waited_is_billed_as_it_came(database: str, version: int | None) -> None:
    config = BillingConfig.model_validate(
        {"late_policy": {"input_tokens": "hold"}, "hold": {"seconds": 60, "expires": "correct"}}
    )
    rest = entry(476, version, None if version is None else 3)
    folded(database, config, [rest, entry(1_024, BILLED_AS_PART, 0)])
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM usage_windows").fetchone() == (0,)
        nothing = sums(READ.empty_table(), EffectiveRules(1, config.deciding))
        fold_table(connection, JOB, nothing, config, frontier=NOON + 2 * LATE, next_position=2)
        found = connection.execute("SELECT price_version, quantity FROM usage_windows").fetchall()
    assert dict(found) == {version: 476, BILLED_AS_PART: 1_024}
