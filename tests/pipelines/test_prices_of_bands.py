"""Prices that depend on how much an event reports: the whole request is billed at the price of its band."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from catalog.file import parse_catalog
from catalog.store import store
from deployment.errors import CannotRun
from jobs.audit.recompute.basis import Scope, pin
from jobs.joins.config import JoinsConfig
from jobs.replay.assumptions import Assumptions
from jobs.replay.usage import Tables, replayed
from jobs.runtime.delta.table import open_table
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import Table
from metering.price_models import PricedModel
from tests.database_rows import write
from tests.pipelines.as_billed import Stack, billed, by_meter, listed
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.pipelines.test_prices_with_conditions import audited
from tests.pipelines.test_public_cases_billed import METERS, OF_THE_MONTH, TERMS, event, prices

LONG = {"context": "long"}


def context(bound: str = "200000", *of: str) -> dict[str, Any]:
    return {"context": {"of": list(of or ("input_tokens",)), "bands": {"short": bound, "long": None}}}


def of(model: str, **conditions: str) -> str:
    return PricedModel.of(model, conditions).text


def test_all_of_a_request_above_the_bound_costs_the_higher_price_and_one_at_the_bound_does_not(database: str) -> None:
    """Also what leaves the whole: the band goes by what was reported, and its parts are billed by it, too."""
    stack = Stack(METERS, price_attributes=(context(),))
    events = [
        event("r1", "large", {"input_tokens": 200_000, "output_tokens": 10}),
        event("r2", "large", {"input_tokens": 200_001, "cached_tokens": 150_000, "output_tokens": 10}),
        event("r3", "large", {"output_tokens": 10}),
    ]
    base = prices("large", input_tokens="0.01", cached_tokens="0.001", output_tokens="0.1", requests="0")
    high = prices(of("large", **LONG), input_tokens="0.02", cached_tokens="0.002", output_tokens="0.2")
    billed(database, stack, events, **TERMS, unit_prices=base | high)
    found = by_meter(listed(database, OF_THE_MONTH))
    assert found["input_tokens"] == (400_001, Decimal(2000) + Decimal(50001) * Decimal("0.02"), 0)
    assert found["cached_tokens"] == (150_000, Decimal(300), 0)
    assert found["output_tokens"] == (30, Decimal(1) + Decimal(2) + Decimal(1), 0)


def test_bands_use_input_plus_cache_where_a_provider_counts_them_apart(database: str) -> None:
    both = context("200000", "input_tokens", "cached_tokens")
    stack = Stack(METERS, price_attributes=(both,), conventions=({"source": "gateway/*", "includes": {}},))
    events = [
        event("r1", "large", {"input_tokens": 1_000, "cached_tokens": 199_000}),
        event("r2", "large", {"input_tokens": 1_000, "cached_tokens": 199_001}),
        event("r3", "large", {"output_tokens": 10}),
    ]
    base = prices("large", cached_tokens="0.001", output_tokens="0.1", requests="0", input_tokens="0")
    high = prices(of("large", **LONG), cached_tokens="0.002", output_tokens="0.2")
    billed(database, stack, events, **TERMS, unit_prices=base | high)
    found = by_meter(listed(database, OF_THE_MONTH))
    assert found["cached_tokens"] == (398_001, Decimal(199) + Decimal("398.002"), 0)
    assert found["output_tokens"] == (10, 1, 0), "what reports no input is in no band"


def test_one_list_of_columns_is_right_for_sources_of_both_conventions(database: str) -> None:
    both = context("200000", "input_tokens", "cached_tokens")
    stack = Stack(METERS, price_attributes=(both,), conventions=({"source": "anthropic/*", "includes": {}},))
    said = {"input_tokens": 150_000, "cached_tokens": 120_000}
    (first, received_at), (second, _) = (event(name, "large", said) for name in ("r1", "r2"))
    events = [(first, received_at), (second.replace(b"gateway/1", b"anthropic/1"), received_at)]
    base = prices("large", cached_tokens="0.001", input_tokens="0.01", requests="0")
    high = prices(of("large", **LONG), cached_tokens="0.002", input_tokens="0.02")
    billed(database, stack, events, **TERMS, unit_prices=base | high)
    found = by_meter(listed(database, OF_THE_MONTH))
    assert found["input_tokens"] == (300_000, Decimal(300) + Decimal(3000), 0)
    assert found["cached_tokens"] == (240_000, Decimal(120) + Decimal(240), 0)


OUTPUT = {"output_tokens": {"unit": "token", "sum": "output_tokens"}}


def long_and_short(folder: Path, bound: str = "1000") -> HandMade:
    """Two answers, of 1,000 and 1,001 input tokens, which no meter adds up."""
    world = HandMade(folder, price_attributes=[context(bound)], meters=OUTPUT)
    world.price(timedelta(), "0.04", begins=timedelta())
    return world


def answer(world: HandMade, at: timedelta, name: str, input_tokens: int | None, **says: Any) -> None:
    said = {"model": "m", "output_tokens": 100, "input_tokens": input_tokens, **says}
    world.event(at, "both", name, occurred=at, name=name.partition("/")[0], **said)


def test_a_late_price_of_a_band_rebills_its_usage_and_nothing_else(tmp_path: Path) -> None:
    world = long_and_short(tmp_path)
    for minute, reported in enumerate((1_000, 1_001, None)):
        answer(world, HOUR + minute * MINUTE, f"r{minute}", reported)
    world.joined(DAY)
    assert world.billed() == {(0, "m", "0.04"): 300}
    world.price(2 * DAY, "0.08", begins=timedelta(), model=of("m", **LONG))
    world.joined(3 * DAY)
    audited(world, 4 * DAY)
    assert world.billed() == {(0, "m", "0.04"): 200, (0, "m", "0.08"): 100}


def test_earlier_usage_keeps_its_band_when_a_bound_changes(tmp_path: Path) -> None:
    world = long_and_short(tmp_path)
    answer(world, HOUR, "r0", 500)
    world.joined(DAY)
    world.configure(price_attributes=[context("100")], meters=OUTPUT)
    answer(world, DAY + HOUR, "r1", 500)
    world.joined(2 * DAY)
    world.price(2 * DAY + HOUR, "0.08", begins=timedelta(), model=of("m", **LONG))
    world.joined(3 * DAY)
    audited(world, 4 * DAY)
    assert world.billed() == {(0, "m", "0.04"): 100, (1, "m", "0.08"): 100}


@pytest.mark.parametrize("comes_first", ["partial", "whole"])
def test_the_band_is_that_of_the_report_that_bills(tmp_path: Path, comes_first: str) -> None:
    """A stream that was cut off had counted fewer tokens than the provider did."""
    world = HandMade(tmp_path, price_attributes=[context("1000")], meters=OUTPUT, best_report_bills=True)
    world.price(timedelta(), "0.04", begins=timedelta())
    world.price(timedelta(), "0.08", begins=timedelta(), model=of("m", **LONG))
    reports: dict[str, Callable[[timedelta], None]] = {
        "partial": lambda at: answer(world, at, "r/1", 900, status="cancelled", usage_source="partial"),
        "whole": lambda at: answer(world, at, "r/2", 1_100, status="completed", usage_source="provider"),
    }
    reports.pop(comes_first)(HOUR)
    world.joined(2 * HOUR)
    for report in reports.values():
        report(3 * HOUR)
    world.joined(DAY)
    audited(world, 2 * DAY)
    assert world.billed() == {(0, "m", "0.08"): 100}


def replay(world: HandMade, assumed: Assumptions) -> dict[str | None, Decimal]:
    """Output tokens by unit price, as a replay would bill them."""
    usage, journal = open_table(world.tables, Table.USAGE), open_table(world.tables, Table.JOURNAL)
    assert usage is not None
    assert journal is not None
    live = pin(usage, [], world.tables, JoinsConfig(), Scope())
    tables = Tables(journal, usage, START.date())
    found: defaultdict[str | None, Decimal] = defaultdict(Decimal)
    for part in replayed(tables, live, assumed.pinned(live)):
        for row in part.to_pylist():
            for entry in (one for one in row["meters"] if one["meter"] == "output_tokens"):
                unit_price = entry["unit_price"]
                price = None if unit_price is None else f"{unit_price.normalize():f}"
                found[price] += row["sign"] * entry["quantity"]
    return {price: quantity for price, quantity in found.items() if quantity}


def test_a_what_if_replay_uses_live_bands_unless_others_are_assumed(tmp_path: Path) -> None:
    world = long_and_short(tmp_path)
    for minute, reported in enumerate((1_000, 1_001, 500)):
        answer(world, HOUR + minute * MINUTE, f"r{minute}", reported)
    world.joined(DAY)
    world.price(2 * DAY, "0.08", begins=timedelta(), model=of("m", **LONG))
    world.joined(3 * DAY)
    audited(world, 4 * DAY)
    assert replay(world, Assumptions()) == {"0.04": 200, "0.08": 100}
    others = JoinsConfig.model_validate({"price_attributes": [context("999")], "meters": OUTPUT})
    assert replay(world, Assumptions(joins=others)) == {"0.04": 100, "0.08": 200}


@pytest.fixture
def priced(database: str) -> str:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    config = JoinsConfig.model_validate({"price_attributes": ["region", context()]}).model_dump(mode="json")
    Ownership.take("joins", database, config).close()
    return database


def insert(connection: psycopg.Connection[Any], model: str) -> None:
    connection.execute(
        "INSERT INTO catalog.prices VALUES ('p', %s, 'requests', 'EUR', %s, 1)",
        [model, datetime(2026, 1, 1, tzinfo=UTC)],
    )


def test_sql_accepts_conditions_on_declared_bands_only(priced: str) -> None:
    with psycopg.connect(priced) as connection:
        for model in (of("m", **LONG), of("m", context="short"), of("n", context="long", region="eu")):
            insert(connection, model)
        connection.commit()
        with pytest.raises(
            psycopg.errors.CheckViolation, match=r"for the band 'lng' of 'context', .* one of short, long"
        ):
            insert(connection, of("m", context="lng"))
        connection.rollback()
        with pytest.raises(psycopg.errors.CheckViolation, match="has a condition on 'of', which price_attributes"):
            insert(connection, of("m", of="input_tokens"))


@pytest.mark.parametrize(("band", "is_one"), [("long", True), ("lng", False)])
def test_a_file_with_a_price_of_a_band_is_stored_if_there_is_that_band(priced: str, band: str, *, is_one: bool) -> None:
    says = f"plan: p, model: m, conditions: {{context: {band}}}, meter: requests, unit_price: 1, currency: EUR"
    catalog = parse_catalog(f"prices:\n  - {{{says}, effective_from: 2026-01-01T00:00:00Z}}\n")
    if is_one:
        assert [change.after["model"] for change in store(priced, catalog)] == [of("m", context=band)]
        return
    with pytest.raises(CannotRun, match=r"context is lng: must be one of its bands \(short, long\)"):
        store(priced, catalog)
