"""Aliases: several names have one price, each from some time on, live, by the audit, by a replay, in the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from deltalake import DeltaTable

from catalog.closed_months import ClosedMonthsTouched
from catalog.deletion import delete_row
from catalog.file import parse_catalog
from catalog.store import store
from jobs.replay.assumptions import Assumptions
from jobs.streams import CatalogTopic, Table
from metering.price_models import PricedModel
from tests.pipelines.hand_made import DAY, HOUR, START, HandMade
from tests.pipelines.test_closed_months import LAST_MONTH, MONTH, account, assert_stored, billed, price
from tests.pipelines.test_prices_of_bands import replay
from tests.pipelines.test_prices_with_conditions import audited

__all__ = ["billed"]
Billed = dict[tuple[Any, ...], Decimal]
NOW = timedelta()


def answer(
    world: HandMade, occurred: timedelta, model: str = "latest", at: timedelta | None = None, **says: Any
) -> None:
    name = f"{model}/{occurred}"
    world.event(at or occurred, "both", name, occurred=occurred, name=name, model=model, output_tokens=100, **says)


def test_an_alias_has_the_prices_of_its_model_at_the_time_of_the_event(tmp_path: Path) -> None:
    """It moves on to the next model, and ends; the model that was reported stays on the bill."""
    world = HandMade(tmp_path)
    world.price(NOW, "0.01", begins=NOW, model="may")
    world.price(NOW, "0.02", begins=NOW, model="august")
    world.alias(NOW, "latest", "may", begins=2 * HOUR)
    world.alias(NOW, "latest", "august", begins=4 * HOUR)
    for hour in (1, 2, 3, 4, 5):
        answer(world, hour * HOUR)
    world.joined(6 * HOUR)
    world.alias(6 * HOUR, "latest", "august", begins=4 * HOUR, ends=7 * HOUR)
    for hour in (8, 9):
        answer(world, hour * HOUR)
    world.joined(DAY)
    audited(world, 2 * DAY)
    # When the newer one ends, the one before it does not hold once more, as of prices.
    assert world.billed() == {(0, "latest", None): 300, (0, "latest", "0.01"): 200, (0, "latest", "0.02"): 200}
    assert replay(world, Assumptions()) == {None: 300, "0.01": 200, "0.02": 200}


@pytest.mark.parametrize("own", ["latest", "late*"])
def test_a_price_of_the_name_or_its_prefix_wins_over_an_alias(tmp_path: Path, own: str) -> None:
    world = HandMade(tmp_path)
    world.price(NOW, "0.01", begins=NOW, model="may")
    world.alias(NOW, "latest", "may", begins=NOW)
    world.price(NOW, "0.05", begins=2 * HOUR, model=own)
    answer(world, HOUR)
    answer(world, 3 * HOUR)
    world.joined(DAY)
    audited(world, 2 * DAY)
    assert world.billed() == {(0, "latest", "0.01"): 100, (0, "latest", "0.05"): 100}


def test_aliases_are_not_followed_twice(tmp_path: Path) -> None:
    """By how it begins, too, and by what the event says."""
    world = HandMade(tmp_path, price_attributes=["operation"])
    world.price(NOW, "0.01", begins=NOW, model="gpt-4o-*")
    world.price(NOW, "0.005", begins=NOW, model=PricedModel.of("gpt-4o-*", {"operation": "batch"}).text)
    world.alias(NOW, "latest", "gpt-4o-2024", begins=NOW)
    world.alias(NOW, "newest", "latest", begins=NOW)
    answer(world, HOUR)
    answer(world, 2 * HOUR, operation="batch")
    answer(world, HOUR, "newest")
    world.joined(DAY)
    audited(world, 2 * DAY)
    assert world.billed() == {
        (0, "latest", "0.01"): 100,
        (0, "latest", "0.005"): 100,
        (0, "newest", None): 100,
    }


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("order", list(permutations(("event", "alias", "price"))))
def test_the_audit_bills_the_same_in_any_order_of_event_alias_and_price(tmp_path: Path, order: tuple[str, ...]) -> None:
    world = HandMade(tmp_path)
    for day, comes in enumerate(order):
        at = day * DAY + 2 * HOUR
        if comes == "event":
            answer(world, HOUR, at=at)
        elif comes == "alias":
            world.alias(at, "latest", "may", begins=NOW)
        else:
            world.price(at, "0.01", begins=NOW, model="may")
        world.joined(at + HOUR)
    audited(world, 4 * DAY)
    assert list(world.billed().values()) == [100]
    assert [unit_price for _, _, unit_price in world.billed()] == ["0.01"]
    usage = pl.DataFrame(DeltaTable(f"{world.tables}/{Table.USAGE}").to_pyarrow_table())
    prices = pl.DataFrame(DeltaTable(f"{world.tables}/{Table.PRICES}").to_pyarrow_table())
    entries = usage.filter(sign=1).sort("lsn").explode("meters").unnest("meters").filter(meter="output_tokens")
    last = entries.row(-1, named=True)
    # By it `weir explain` says which name it was priced by.
    assert prices.filter(lsn=last["price_version"])["model"].to_list() == ["may"]


def test_a_late_alias_reprices_only_events_since_its_beginning(tmp_path: Path) -> None:
    world = HandMade(tmp_path)
    world.price(NOW, "0.01", begins=NOW, model="may")
    world.price(NOW, "0.02", begins=NOW, model="august")
    world.alias(NOW, "latest", "may", begins=NOW)
    answer(world, HOUR)
    answer(world, 3 * HOUR)
    world.joined(DAY)
    assert world.billed() == {(0, "latest", "0.01"): 200}
    world.alias(DAY, "latest", "august", begins=2 * HOUR)
    world.joined(DAY + HOUR)
    audited(world, 2 * DAY)
    assert world.billed() == {(0, "latest", "0.01"): 100, (0, "latest", "0.02"): 100}
    world.alias(3 * DAY, "latest", "august", begins=2 * HOUR, ends=2 * HOUR)
    world.joined(3 * DAY + HOUR)
    audited(world, 4 * DAY)
    assert world.billed() == {(0, "latest", "0.01"): 200}, "one that never began moves nothing"


def aliases(begins: datetime, model: str = "m0", alias: str = "m1") -> str:
    return f"aliases: [{{plan: pro, alias: {alias}, model: {model}, effective_from: '{begins.isoformat()}'}}]\n"


def test_an_alias_of_a_file_is_stored_as_a_row_of_prices_that_bills_nothing(billed: str) -> None:
    """It is none that jumps, and none of those that an account pays."""
    [made] = store(billed, parse_catalog(aliases(MONTH, alias="m9")))
    assert (made.op, made.after["model"], made.after["unit_price"]) == ("c", 'm9{"=":"m0"}', "0.000000000000")
    assert [change.op for change in store(billed, parse_catalog(aliases(MONTH, alias="m9")))] == ["r"]
    with psycopg.connect(billed) as connection:
        assert connection.execute("SELECT count(*) FROM catalog.price_jumps").fetchone() == (0,)
        contracts = connection.execute("SELECT model FROM catalog.effective_prices").fetchall()
    assert contracts
    assert {model for (model,) in contracts} == {"m1"}


def test_an_alias_that_may_rebill_ended_months_needs_confirmation(billed: str) -> None:
    may_change = rf"a {LAST_MONTH:%Y-%m} \(0.05 EUR may change\)"
    with pytest.raises(ClosedMonthsTouched, match=may_change):
        store(billed, parse_catalog(aliases(LAST_MONTH)))
    assert_stored(billed, aliases(MONTH))
    store(billed, parse_catalog(aliases(LAST_MONTH)), backdates=True)
    of_target = price("0.02", since=LAST_MONTH).replace("model: m1", "model: m0")
    with pytest.raises(ClosedMonthsTouched, match=may_change):
        store(billed, parse_catalog(of_target))
    assert_stored(billed, of_target.replace(LAST_MONTH.isoformat(), MONTH.isoformat()))
    key = {"plan": "pro", "model": 'm1{"=":"m0"}', "meter": "requests", "currency": "XXX", "effective_from": LAST_MONTH}
    with pytest.raises(ClosedMonthsTouched, match=may_change):
        delete_row(billed, CatalogTopic.PRICES, key, LAST_MONTH, "ann")
    gone = delete_row(billed, CatalogTopic.PRICES, key, None, "ann")
    assert gone.change.after["changed_by"] == "ann"


def test_a_plan_with_other_aliases_that_may_rebill_ended_months_needs_confirmation(billed: str) -> None:
    store(billed, parse_catalog(price("0.01", "gold")), confirms=True)
    assert_stored(billed, account("gold"))
    assert_stored(billed, account("pro"))
    assert_stored(billed, aliases(LAST_MONTH, alias="m1").replace("plan: pro", "plan: gold"))
    with pytest.raises(ClosedMonthsTouched, match=rf"a {LAST_MONTH:%Y-%m} \(0.05 EUR may change\)"):
        store(billed, parse_catalog(account("gold", LAST_MONTH)))


@pytest.mark.parametrize(
    ("model", "meter", "currency", "unit_price"),
    [
        ("catalog.model_alias('m*', 'n')", "requests", "XXX", 0),
        ("catalog.model_alias('m', 'n*')", "requests", "XXX", 0),
        ("catalog.model_alias('m', 'm')", "requests", "XXX", 0),
        ("catalog.model_alias('m', '')", "requests", "XXX", 0),
        ("catalog.model_alias('m', 'n')", "input_tokens", "XXX", 0),
        ("catalog.model_alias('m', 'n')", "requests", "EUR", 0),
        ("catalog.model_alias('m', 'n')", "requests", "XXX", 1),
        ('catalog.price_model(\'m\', \'{"=": "n", "region": "eu"}\')', "requests", "XXX", 0),
    ],
)
def test_sql_that_stores_an_unusable_alias_is_refused_with_a_sentence(
    billed: str, model: str, meter: str, currency: str, unit_price: int
) -> None:
    from jobs.runtime.postgres.ownership import Ownership

    Ownership.take("joins", billed, {"price_attributes": ["region"]}).close()
    insert = f"INSERT INTO catalog.prices VALUES ('pro', {model}, %s, %s, %s, %s)"
    begins = datetime(2026, 1, 1, tzinfo=UTC)
    with psycopg.connect(billed) as connection, pytest.raises(psycopg.errors.CheckViolation, match="the alias '"):
        connection.execute(insert.encode(), [meter, currency, begins, unit_price])


def test_sql_and_a_file_store_the_same_alias(billed: str) -> None:
    assert START.tzinfo is UTC
    alias = "'pro', catalog.model_alias('é\"m', 'n'), 'requests', 'XXX'"
    insert = f"INSERT INTO catalog.prices VALUES ({alias}, %s, 0) RETURNING model".encode()
    with psycopg.connect(billed) as connection:
        found = connection.execute(insert, [START]).fetchone()
        assert found == (PricedModel.alias('é"m', "n").text,)
        assert connection.execute("SELECT catalog.aliased_model(%s)", [found[0]]).fetchone() == ("n",)
