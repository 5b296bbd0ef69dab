"""joins does not start where a column is taken out of `price_attributes` that prices still depend on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from jobs.joins.unlisted_attributes import refuse_unlisted
from jobs.runtime.errors import Refused
from jobs.streams import PRICES
from metering.price_attributes import PriceAttribute
from metering.price_models import PricedModel

NOW = datetime(2027, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
LATE = 5 * DAY
BATCH = PricedModel.of("m", {"operation": "batch"}).text


def prices(*rows: dict[str, Any]) -> pa.Table:
    usual = {"plan": "pro", "model": BATCH, "meter": "output_tokens", "currency": "EUR"}
    begun = {"effective_from": NOW - 10 * DAY, "unit_price": Decimal(1), "deleted": False}
    return pa.Table.from_pylist([{**usual, **begun, "lsn": lsn, **row} for lsn, row in enumerate(rows)], schema=PRICES)


@pytest.mark.parametrize(
    "rows",
    [
        [{}],
        [{"effective_from": NOW + DAY}],
        [{}, {"deleted": True, "ends_at": NOW + DAY}],
        [{}, {"deleted": True, "ends_at": NOW - LATE + DAY}],
        [{}, {"effective_from": NOW, "deleted": True, "ends_at": NOW}],
        [{}, {"deleted": True, "ends_at": NOW - LATE}, {}],
    ],
    ids=["holds", "will hold", "ends later", "ended lately", "the one after it never began", "was entered again"],
)
def test_a_column_that_prices_depend_on_is_not_taken_out_of_the_configuration(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(Refused, match=r"does not list operation, but prices depend on it: output_tokens of m\{.*pro"):
        refuse_unlisted(prices(*rows), [PriceAttribute("region")], NOW, LATE)
    refuse_unlisted(prices(*rows), [PriceAttribute("operation")], NOW, LATE)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"model": "m"}],
        [{"model": 'm{"operation"'}],
        [{}, {"deleted": True, "ends_at": NOW - LATE}],
        [{"effective_from": NOW - 20 * DAY}, {}, {"deleted": True, "ends_at": NOW - LATE}],
        [{"effective_from": NOW + DAY}, {"effective_from": NOW + DAY, "deleted": True, "ends_at": NOW}],
    ],
    ids=["no price", "no condition", "nothing to read", "has ended", "the last one has ended", "never begins"],
)
def test_what_no_price_depends_on_any_more_may_go(rows: list[dict[str, Any]]) -> None:
    refuse_unlisted(prices(*rows), [], NOW, LATE)


def test_of_many_prices_some_are_named() -> None:
    many = [{"plan": f"plan {number}"} for number in range(7)]
    with pytest.raises(Refused, match=r"on plan plan 2 and 4 more\. Without it"):
        refuse_unlisted(prices(*many), [], NOW, LATE)


def test_a_band_that_prices_depend_on_keeps_its_name() -> None:
    of_band = {"model": PricedModel.of("m", {"context": "long"}).text}
    kept = PriceAttribute.banded("context", ["input_tokens"], {"short": Decimal(1), "long": None})
    renamed = PriceAttribute.banded("context", ["input_tokens"], {"short": Decimal(1), "longer": None})
    refuse_unlisted(prices(of_band), [kept], NOW, LATE)
    with pytest.raises(Refused, match="does not list long as a band of context, but prices depend on it"):
        refuse_unlisted(prices(of_band), [renamed], NOW, LATE)
