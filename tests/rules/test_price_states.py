"""What the dashboard says of a price is what it is billed by: the state of each version against the as-of rule."""

from __future__ import annotations

from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings

from dashboard.queries.prices import with_states
from jobs.streams import PRICES
from metering.pricing import Version
from tests.rules.test_pricing_rules import day, histories_of_prices, history
from tests.specifications.pricing import price_as_of

KEY = {"plan": "p", "model": "m", "meter": "requests", "currency": "USD"}


def states(versions: list[Version[int]], number: int) -> dict[int, str]:
    """By lsn the state of each price on that day."""
    rows = [
        {**KEY, "lsn": v.lsn, "effective_from": v.effective_from, "ends_at": v.ends_at, "deleted": v.value is None}
        | {"unit_price": v.value and Decimal(v.value)}
        for v in versions
    ]
    told = with_states(pl.DataFrame(pa.Table.from_pylist(rows, schema=PRICES)), day(number))
    return dict(told.select("lsn", "state").iter_rows())


@settings(deadline=None, max_examples=40)
@given(histories_of_prices)
def test_property_the_effective_price_is_the_one_that_bills_usage_of_now(versions: list[Version[int]]) -> None:
    for number in range(5):
        told = states(versions, number)
        rule = price_as_of(versions, day(number), 999)
        assert [lsn for lsn, state in told.items() if state == "in force"] == ([] if rule is None else [rule.lsn])


@pytest.mark.parametrize(
    ("number", "expected"), [(1, ("in force", "next")), (3, ("in force", "next")), (4, ("ended", "next"))]
)
def test_a_price_that_was_deleted_has_ended_from_its_moment_on(number: int, expected: tuple[str, str]) -> None:
    versions = history((0, 1), (0, None, 4), (9, 2))
    assert tuple(states(versions, number).values()) == expected


def test_a_price_that_was_deleted_before_it_began_is_withdrawn() -> None:
    assert states(history((0, 1), (2, 2), (2, None, 1)), 3) == {10: "in force", 20: "withdrawn"}
