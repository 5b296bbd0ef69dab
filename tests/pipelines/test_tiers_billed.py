"""Usage under tiers and packages, from events to the month's bill, by the functions that the applications call."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg.rows import dict_row

from jobs.queries.bills import read_month
from jobs.queries.usage import UsageQuery
from metering.price_tiers import PriceTerms
from tests.pipelines.as_billed import Stack, billed, listed
from tests.pipelines.hand_made import DAY, HOUR, HandMade
from tests.pipelines.test_prices_with_conditions import audited
from tests.pipelines.test_public_cases_billed import METERS, TERMS, event, prices

GRADUATED = PriceTerms.of(
    {"kind": "graduated", "tiers": [{"up_to": 1000, "unit_price": "0.002"}, {"unit_price": "0.001"}]}
).text


def bill(database: str, events: list[Any]) -> list[dict[str, Any]]:
    month = events[0][1].date().replace(day=1)
    with psycopg.connect(database, row_factory=dict_row) as connection:
        return [dict(line) for line in read_month(connection, month).lines]


def test_all_models_of_a_prefix_share_the_tiers_of_a_month_and_nothing_is_unpriced(database: str) -> None:
    events = [
        event("r1", "gpt-4o-mini", {"input_tokens": 900, "output_tokens": 5}),
        event("r2", "gpt-4o-2024-05-13", {"input_tokens": 600, "output_tokens": 5}, timedelta(minutes=3)),
    ]
    of_plan = prices("gpt-4o*", input_tokens=GRADUATED, requests="0.01", output_tokens="0.5")
    billed(database, Stack(METERS), events, **TERMS, unit_prices=of_plan)
    lines = [(line["model"], line["tier"], line["quantity"], line["amount"]) for line in bill(database, events)]
    assert lines[:2] == [
        ("gpt-4o*", "1: up to 1000", 1000, Decimal(2)),
        ("gpt-4o*", "2: above 1000", 500, Decimal("0.5")),
    ]
    names = ("model", "quantity", "billed_quantity", "tiered_quantity", "amount", "unpriced_quantity")
    used = (row for row in listed(database, UsageQuery()) if row["meter"] == "input_tokens")
    minutes = [tuple(row[name] for name in names) for row in used]
    assert sorted(minutes) == [("gpt-4o-2024-05-13", 600, 600, 600, 0, 0), ("gpt-4o-mini", 900, 900, 900, 0, 0)]
    with psycopg.connect(database) as connection:
        stored = connection.execute(
            "SELECT DISTINCT price_version IS NULL, unit_price, amount FROM usage_windows WHERE meter = 'input_tokens'"
        ).fetchall()
    assert stored == [(False, None, None)]


@pytest.mark.parametrize("first", [0, 1])
def test_a_tier_takes_the_billed_quantity_whatever_the_order_of_events(database: str, first: int) -> None:
    """Of 1,500 input tokens 700 were cached, and have a price of their own: the tier has the other 800."""
    events = [
        event("r1", "m", {"input_tokens": 1500, "cached_tokens": 700}),
        event("r2", "m", {"input_tokens": 400}, timedelta(minutes=9)),
    ]
    ordered = [events[first], events[1 - first]]
    of_plan = prices("m", input_tokens=GRADUATED, cached_tokens="0.25", requests="0")
    billed(database, Stack(METERS), ordered, **TERMS, unit_prices=of_plan)
    lines = [
        (line["tier"], line["quantity"], line["amount"])
        for line in bill(database, events)
        if line["kind"] == "graduated"
    ]
    assert lines == [("1: up to 1000", 1000, Decimal(2)), ("2: above 1000", 200, Decimal("0.2"))]


@pytest.mark.parametrize("costs", [None, "0.04", GRADUATED])
def test_an_audit_finds_nothing_wrong_with_tiers_and_rebills_what_gets_them_late(
    tmp_path: Path, costs: str | None
) -> None:
    world = HandMade(tmp_path)
    if costs is not None:
        world.price(timedelta(), costs, begins=timedelta())
    world.event(HOUR, "both", "i1", occurred=HOUR, name="r1", model="m", output_tokens=700)
    world.joined(DAY)
    audited(world, DAY + HOUR)
    later = PriceTerms.of({"kind": "package", "package_size": 500, "package_price": 3}).text
    world.price(2 * DAY, later, begins=timedelta())
    world.joined(3 * DAY)
    audited(world, 4 * DAY)
    rows = usage_of(world.tables)
    standing = [meter for row in rows if row["lsn"] == rows[-1]["lsn"] for meter in row["meters"]]
    (found,) = (meter for meter in standing if meter["meter"] == "output_tokens")
    assert len(rows) == 3, "the first row, its negation, and the row at the new price"
    assert found["price_version"] is not None
    assert (found["unit_price"], found["amount"]) == (None, None)


def usage_of(tables: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(f"{tables}/usage").to_pyarrow_table().sort_by("lsn").to_pylist()
    return rows
