"""Promise: what is assumed of prices and rules means what the same means live."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import psycopg
import pytest

from jobs.audit.recompute.expected import Pinned
from jobs.joins.config import JoinsConfig
from jobs.replay.assumptions import Assumptions
from jobs.runtime.effective_rules import EffectiveRules
from jobs.streams import ACCOUNTS
from jobs.streams import PRICES as PRICES_TOLD
from tests.pipelines.as_billed import Stack, billed, by_meter, listed
from tests.pipelines.test_public_cases_billed import METERS, OF_THE_MONTH, TERMS, event, prices

FEWER = {"requests": METERS["requests"]}
USED = {"input_tokens": 1_500, "cached_tokens": 1_024, "output_tokens": 200}
UNIT_PRICES = {"input_tokens": "0.003", "output_tokens": "0.015", "cached_tokens": "0.001", "requests": "0.01"}
AMOUNTS = {
    "input_tokens": Decimal("2.856"),
    "output_tokens": Decimal(6),
    "cached_tokens": Decimal("2.048"),
    "requests": Decimal("0.02"),
}


@pytest.mark.parametrize("ago", [timedelta(seconds=20), timedelta(hours=3)], ids=["in time", "late"])
@pytest.mark.parametrize("last", UNIT_PRICES)
def test_assumed_prices_bill_shared_units_once_in_any_order_of_the_file(
    database: str, last: str, ago: timedelta
) -> None:
    of_plan = prices("large", **{meter: UNIT_PRICES[meter] for meter in sorted(UNIT_PRICES, key=last.__eq__)})
    events = [event(request, "large", USED, ago) for request in ("r1", "r2")]
    billed(database, Stack(METERS), events, **TERMS, unit_prices=of_plan, is_supposed=True)
    rows = by_meter(listed(database, OF_THE_MONTH))
    assert {meter: (amount, unpriced) for meter, (_, amount, unpriced) in rows.items()} == {
        meter: (amount, 0) for meter, amount in AMOUNTS.items()
    }
    with psycopg.connect(database) as connection:
        late = connection.execute("SELECT meter, contained_quantity, amount FROM stragglers ORDER BY 1").fetchall()
    of_each = [(meter, 1_024 * (meter == "input_tokens"), AMOUNTS[meter] / 2) for meter in sorted(UNIT_PRICES)]
    assert late == ([] if ago < timedelta(hours=1) else [each for each in of_each for _ in range(2)])


@pytest.mark.parametrize(
    "live", [JoinsConfig(), JoinsConfig(best_report_bills=True), JoinsConfig.model_validate({"meters": FEWER})]
)
def test_a_what_if_configuration_inherits_live_settings_that_it_omits(live: JoinsConfig) -> None:
    """So `weir what-if --config` with the file of the stack itself changes nothing."""
    settled = live.settled((), is_new=True)
    pinned = Pinned(
        1, None, (EffectiveRules(1, settled.deciding),), (), ACCOUNTS.empty_table(), PRICES_TOLD.empty_table()
    )
    (assumed,) = Assumptions(joins=live).pinned(pinned).history
    assert assumed.rules == settled.deciding
