"""Prices that depend on a column of the account: a tag such as its tier, as the account was when the event occurred."""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations
from pathlib import Path

import psycopg
import pytest

from catalog.closed_months import ClosedMonthsTouched
from catalog.deletion import delete_row
from catalog.file import parse_catalog
from catalog.store import store
from jobs.joins.config import JoinsConfig
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import CatalogTopic
from metering.price_models import PricedModel
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.pipelines.test_closed_months import LAST_MONTH, MONTH, account, assert_stored, billed
from tests.pipelines.test_prices_with_conditions import audited

__all__ = ["billed"]
TIER = "account.tags.tier"
GOLD = PricedModel.of("m", {TIER: "gold"}).text


def world(folder: Path, **config: object) -> HandMade:
    """One price for all, and a lower one for accounts of the tier gold."""
    made = HandMade(folder, price_attributes=[TIER], **config)
    made.price(timedelta(), "0.04", begins=timedelta())
    made.price(timedelta(), "0.02", begins=timedelta(), model=GOLD)
    return made


def answer(made: HandMade, at: timedelta, occurred: timedelta) -> None:
    made.event(at, "both", f"{occurred}", occurred=occurred, name=f"{occurred}", model="m", output_tokens=100)


def test_the_tag_that_the_account_had_when_the_event_occurred_decides(tmp_path: Path) -> None:
    made = world(tmp_path)
    answer(made, HOUR, HOUR)
    made.account(2 * HOUR, tags='{"tier":"gold"}')
    answer(made, 3 * HOUR, HOUR + MINUTE)
    answer(made, 3 * HOUR, 3 * HOUR)
    made.account(4 * HOUR, tags='{"tier":"silver"}')
    answer(made, 5 * HOUR, 5 * HOUR)
    made.joined(DAY)
    assert made.billed() == {(0, "m", "0.04"): 300, (0, "m", "0.02"): 100}
    audited(made, 2 * DAY)
    assert made.billed() == {(0, "m", "0.04"): 300, (0, "m", "0.02"): 100}


@pytest.mark.few_in_ci(4)
@pytest.mark.parametrize("order", list(permutations(("event", "tag", "price"))))
@pytest.mark.parametrize("dimensions", [(), (TIER,)], ids=["no dimension", "a dimension, too"])
def test_the_audit_bills_the_same_in_any_order_of_event_tag_and_price(
    tmp_path: Path, order: tuple[str, ...], dimensions: tuple[str, ...]
) -> None:
    made = HandMade(tmp_path, price_attributes=[TIER], dimensions=dimensions)
    made.price(timedelta(), "0.04", begins=timedelta())
    for day, comes in enumerate(order):
        at = day * DAY + 2 * HOUR
        if comes == "event":
            answer(made, at, HOUR)
        elif comes == "tag":
            made.account(at, tags='{"tier":"gold"}')
            made.accounts[-1]["effective_from"] = START + MINUTE
        else:
            made.price(at, "0.02", begins=timedelta(), model=GOLD)
        made.joined(at + HOUR)
    audited(made, 4 * DAY)
    assert list(made.billed().values()) == [100]
    assert [unit_price for _, _, unit_price in made.billed()] == ["0.02"]


def test_what_was_decided_before_the_column_was_listed_is_not_priced_by_it(tmp_path: Path) -> None:
    made = HandMade(tmp_path)
    made.account(timedelta(), tags='{"tier":"gold"}')
    made.price(timedelta(), "0.04", begins=timedelta())
    answer(made, HOUR, HOUR)
    made.joined(2 * HOUR)
    made.configure(price_attributes=[TIER])
    made.price(3 * HOUR, "0.02", begins=timedelta(), model=GOLD)
    answer(made, 4 * HOUR, 4 * HOUR)
    made.joined(DAY)
    audited(made, 2 * DAY)
    assert made.billed() == {(0, "m", "0.04"): 100, (0, "m", "0.02"): 100}


OF_GOLD = f"""
prices:
  - {{plan: pro, model: m1, conditions: {{{TIER}: gold}}, meter: requests, unit_price: "0.02", currency: EUR,
     effective_from: %s}}
"""


@pytest.fixture
def listed(billed: str) -> str:
    config = JoinsConfig.model_validate({"price_attributes": [TIER]}).model_dump(mode="json")
    Ownership.take("joins", billed, config).close()
    return billed


def test_a_backdated_tag_that_may_rebill_ended_months_needs_confirmation(listed: str) -> None:
    assert_stored(listed, account(tags="{team: x}"))
    store(listed, parse_catalog(OF_GOLD % f"{LAST_MONTH:%FT%TZ}"), backdates=True, confirms=True)
    with pytest.raises(ClosedMonthsTouched, match=rf"a {LAST_MONTH:%Y-%m} \(0.05 EUR may change\)"):
        store(listed, parse_catalog(account(tags="{tier: gold}", since=LAST_MONTH)))
    assert_stored(listed, account(tags="{tier: gold}", since=MONTH))


def test_such_a_price_needs_confirmation_even_if_it_has_ended_since(listed: str) -> None:
    """What occurred before its end is still billed by it."""
    assert_stored(listed, account(tags="{team: x}"))
    store(listed, parse_catalog(OF_GOLD % f"{LAST_MONTH:%FT%TZ}"), backdates=True, confirms=True)
    key = {"plan": "pro", "model": PricedModel.of("m1", {TIER: "gold"}).text, "meter": "requests", "currency": "EUR"}
    delete_row(listed, CatalogTopic.PRICES, key | {"effective_from": LAST_MONTH}, None, "ann")
    with pytest.raises(ClosedMonthsTouched, match=rf"a {LAST_MONTH:%Y-%m} \(0.05 EUR may change\)"):
        store(listed, parse_catalog(account(tags="{tier: gold}", since=LAST_MONTH)))


def test_the_database_takes_such_conditions_where_the_column_is_listed(listed: str) -> None:
    insert = "INSERT INTO catalog.prices VALUES ('pro', catalog.price_model('m9', %s), 'requests', 'EUR', now(), 1)"
    with psycopg.connect(listed) as connection:
        connection.execute(insert, [f'{{"{TIER}": "gold"}}'])
        with pytest.raises(psycopg.errors.CheckViolation, match=r"'account\.tags\.team', which price_attributes"):
            connection.execute(insert, ['{"account.tags.team": "gold"}'])
