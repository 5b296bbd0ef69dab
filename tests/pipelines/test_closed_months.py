"""A change of the catalog that bills ended months again says so and asks; any other is made without a question."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from psycopg.rows import dict_row

from catalog.closed_months import PRICE_AT, ClosedMonthsTouched
from catalog.deletion import delete_row
from catalog.file import parse_catalog
from catalog.store import store, stored
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import CatalogTopic
from tests.database_rows import MINUTE, window, write, write_windows
from tests.pipelines.test_contracts_view import ACCOUNTS, METERS, MODELS, MOMENTS, Edit, apply, edits

NOW = datetime.now(UTC)
RUN = timedelta(days=2)
"""Longer than any test run: the database's clock may pass the end of a month while these months stay as they are."""
MONTH = (NOW + RUN).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
"""A month that does not end during the run: in the last days of a month the next one."""
LAST_MONTH = (NOW.replace(day=1, hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)).replace(day=1)
"""The last month that had ended before it."""
BEFORE_LAST = (LAST_MONTH - timedelta(days=1)).replace(day=1)
JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
PRICE = {"plan": "pro", "model": "m1", "meter": "requests", "currency": "EUR", "effective_from": JANUARY}
PLANS = "plans: [{plan: pro, name: Pro}, {plan: gold, name: Gold}]\n"
_PRICE = '{{plan: {}, model: m1, meter: requests, unit_price: "{}", currency: {}, effective_from: "{}"}}'


def price(unit_price: str, plan: str = "pro", since: datetime = JANUARY, currency: str = "EUR") -> str:
    return f"prices:\n  - {_PRICE.format(plan, unit_price, currency, since.isoformat())}\n"


def account(plan: str = "pro", since: datetime | None = JANUARY, **more: str) -> str:
    begins = "" if since is None else f', effective_from: "{since.isoformat()}"'
    said = "".join(f", {name}: {value}" for name, value in {"currency": "EUR", **more}.items())
    return f"accounts: [{{account: a, name: A, plan: {plan}{said}{begins}}}]\n"


@pytest.fixture
def billed(database: str) -> str:
    """An account with 3, 5 and 7 requests at 0.01 EUR: two months ago, last month, and this month; gold costs 0.10."""
    store(database, parse_catalog(PLANS + account() + price("0.01")))
    store(database, parse_catalog(price("0.10", "gold")))
    row = {"account": "a", "unit_price": Decimal("0.01"), "price_version": 1}
    days = [BEFORE_LAST + timedelta(days=9), LAST_MONTH + timedelta(days=9), MONTH]
    write_windows(database, *(window(day, quantity, **row) for day, quantity in zip(days, (3, 5, 7), strict=True)))
    return database


def rows(database: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        accounts = connection.execute("SELECT account, plan, currency, timezone FROM catalog.accounts").fetchall()
        return accounts + connection.execute("SELECT plan, effective_from, unit_price FROM catalog.prices").fetchall()


def assert_stored(database: str, file: str) -> None:
    """Nobody is asked, and the database has every row of the file."""
    made = store(database, parse_catalog(file))
    assert made
    found = {(change.topic, *change.key.values()): change.after for change in stored(database, made)}
    assert found == {(change.topic, *change.key.values()): change.after for change in made}


def months(touched: ClosedMonthsTouched) -> list[tuple[datetime, dict[str, Decimal], dict[str, Decimal]]]:
    return [
        (datetime(one.month.year, one.month.month, 1, tzinfo=UTC), dict(one.billed), dict(one.becomes))
        for one in touched.months
    ]


def eur(amount: str) -> dict[str, Decimal]:
    return {"EUR": Decimal(amount)}


BOTH = [(BEFORE_LAST, eur("0.03"), eur("0.30")), (LAST_MONTH, eur("0.05"), eur("0.50"))]


TIERED = """
prices:
  - plan: pro
    model: {}
    meter: requests
    currency: EUR
    effective_from: "{}"
    kind: volume
    tiers: [{{up_to: {}, unit_price: "0.01"}}, {{unit_price: "0.02"}}]
"""


def test_tiers_for_ended_months_are_asked_about_without_an_amount(billed: str) -> None:
    before = rows(billed)
    with pytest.raises(ClosedMonthsTouched, match=r"0\.05 EUR may change"):
        store(billed, parse_catalog(TIERED.format("m1", JANUARY.isoformat(), 4)))
    assert rows(billed) == before


@pytest.mark.parametrize("file", [price("0.03"), account("gold"), TIERED.format("m1", JANUARY.isoformat(), 9)])
def test_a_change_of_what_tiers_have_billed_is_asked_about(billed: str, file: str) -> None:
    store(billed, parse_catalog(TIERED.format("m1", JANUARY.isoformat(), 4)), backdates=True)
    with psycopg.connect(billed) as connection:
        connection.execute("UPDATE usage_days SET unit_price = NULL, price_version = 2")
    before = rows(billed)
    with pytest.raises(ClosedMonthsTouched, match="what tiers or packages price may change"):
        store(billed, parse_catalog(file))
    assert rows(billed) == before


def test_a_price_of_unpriced_usage_that_raises_a_total_of_volume_tiers_is_asked_about(billed: str) -> None:
    """The tiers ended before the usage that gets a price: with it on their ladder another tier prices all units."""
    store(billed, parse_catalog(TIERED.format("m1", JANUARY.isoformat(), 4)), backdates=True)
    key = {**PRICE, "effective_from": JANUARY}
    since = LAST_MONTH + timedelta(days=20)
    delete_row(billed, CatalogTopic.PRICES, key, since, "ann", backdates=True)
    with psycopg.connect(billed) as connection:
        connection.execute("UPDATE usage_days SET unit_price = NULL, price_version = 2")
    begins = since + timedelta(days=1)
    unpriced = {"account": "a", "day": begins.date(), "model": "m1", "meter": "requests", "currency": "EUR"}
    write(billed, "usage_days", {**unpriced, "quantity": 6, "first_window": begins, "last_window_end": begins + MINUTE})
    with pytest.raises(ClosedMonthsTouched, match="what tiers or packages price may change") as refused:
        store(billed, parse_catalog(price("0.01", since=since)))
    assert months(refused.value) == [(LAST_MONTH, {}, {})]


def test_the_last_hours_of_a_month_behind_utc_raise_a_total_of_volume_tiers(billed: str) -> None:
    """Where a month of Los Angeles ends is another one in UTC already."""
    with psycopg.connect(billed) as connection:
        connection.execute("UPDATE catalog.account_zones SET timezone = 'America/Los_Angeles'")
        connection.execute("UPDATE usage_days SET unit_price = NULL, price_version = 2")
    begins = LAST_MONTH + timedelta(hours=3)
    last_day = {"account": "a", "day": (begins - timedelta(days=1)).date(), "model": "m1", "meter": "requests"}
    of_day = {"currency": "EUR", "quantity": 6, "first_window": begins, "last_window_end": begins + MINUTE}
    write(billed, "usage_days", {**last_day, **of_day})
    with pytest.raises(ClosedMonthsTouched, match="what tiers or packages price may change") as refused:
        store(billed, parse_catalog(price("0.01", since=LAST_MONTH + timedelta(hours=1))))
    assert months(refused.value) == [(BEFORE_LAST, {}, {}), (LAST_MONTH, {}, {})]


def test_tiers_that_begin_now_or_price_another_meter_are_not_asked_about(billed: str) -> None:
    store(billed, parse_catalog(TIERED.format("m1", NOW.isoformat(), 4)))
    store(billed, parse_catalog(TIERED.format("m9", JANUARY.isoformat(), 4)))


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        pytest.param(account("gold"), BOTH, id="the plan, and effective_from as it was"),
        pytest.param(account("gold", LAST_MONTH), BOTH[1:], id="the plan from last month on"),
        pytest.param(price("0.10"), BOTH, id="a price of the past"),
        pytest.param(price("0.10", since=LAST_MONTH), BOTH[1:], id="a price that begins in the past, in between"),
        pytest.param(
            price("0.10", since=LAST_MONTH + timedelta(days=9, seconds=30)),
            BOTH[1:],
            id="a price that begins within a minute that has usage",
        ),
        pytest.param(
            account(currency="USD"),
            [(BEFORE_LAST, eur("0.03"), {}), (LAST_MONTH, eur("0.05"), {})],
            id="a currency without prices",
        ),
    ],
)
def test_changes_of_ended_months_are_listed_and_nothing_is_stored(billed: str, file: str, expected: list[Any]) -> None:
    before = rows(billed)
    with pytest.raises(ClosedMonthsTouched, match="--backdate") as refused:
        store(billed, parse_catalog(file))
    assert months(refused.value) == expected
    assert f"a {LAST_MONTH:%Y-%m} (0.05 EUR becomes" in str(refused.value)
    assert rows(billed) == before
    store(billed, parse_catalog(file), backdates=True)
    assert rows(billed) != before
    # The audit has not been there yet: what was agreed to is not asked again.
    store(billed, parse_catalog(file))


@pytest.mark.parametrize("model", ["m*", 'm1{"region":"eu"}', '*{"region":"eu"}'])
def test_a_price_for_several_models_or_with_conditions_that_may_rebill_ended_months_needs_confirmation(
    billed: str, model: str
) -> None:
    """Whether it is for what was used only the audit sees, which reads the events."""
    Ownership.take("joins", billed, {"price_attributes": ["region"]}).close()

    def file(model: str, since: datetime) -> str:
        return price("0.02", since=since).replace("model: m1", f"model: '{model}'")

    with pytest.raises(ClosedMonthsTouched, match=rf"a {LAST_MONTH:%Y-%m} \(0.05 EUR may change\)") as refused:
        store(billed, parse_catalog(file(model, LAST_MONTH)))
    assert [month for month, *_ in months(refused.value)] == [LAST_MONTH]
    assert_stored(billed, file(model, MONTH))
    assert_stored(billed, file(model.replace("m1", "m2").replace("m*", "n*"), MONTH))
    store(billed, parse_catalog(file(model, LAST_MONTH)), backdates=True)


@pytest.mark.parametrize(
    ("model", "says"), [("m*", "may change"), ('m1{"region":"eu"}', "may change"), ("m1", "becomes 10 EUR")]
)
def test_a_price_that_begins_within_a_month_that_is_billed_as_a_whole_asks_for_confirmation(
    billed: str, model: str, says: str
) -> None:
    """What a month's members come to is on its first day, whenever they came."""
    Ownership.take("joins", billed, {"price_attributes": ["region"]}).close()
    whole = {"account": "a", "day": LAST_MONTH.date(), "model": "m1", "meter": "seats", "currency": "EUR"}
    came = {"first_window": LAST_MONTH, "last_window_end": LAST_MONTH + timedelta(days=20)}
    meter = {"meter": "seats", "unit": "seats", "is_declared": True, "aggregation": "max", "period": "month"}
    write(billed, "meters", meter)
    write(billed, "usage_days", {**whole, **came, "quantity": 2, "unit_price": 3, "price_version": 7})
    seats = price("5", since=LAST_MONTH + timedelta(days=14)).replace("requests", "seats")
    with pytest.raises(ClosedMonthsTouched, match=rf"a {LAST_MONTH:%Y-%m} \(6 EUR {says}\)"):
        store(billed, parse_catalog(seats.replace("model: m1", f"model: '{model}'")))


@pytest.mark.parametrize("model", ["m*", 'm1{"region":"eu"}', '*{"region":"eu"}'])
def test_changing_terms_of_ended_months_asks_for_confirmation(billed: str, model: str) -> None:
    Ownership.take("joins", billed, {"price_attributes": ["region"]}).close()
    special = price("0.02", plan="gold").replace("model: m1", f"model: '{model}'")
    # What gold costs by its plain price is what was billed: no bill would change but by the other one.
    store(billed, parse_catalog(price("0.01", "gold")), confirms=True)
    store(billed, parse_catalog(special), confirms=True)
    before = rows(billed)
    for file in (account("gold", LAST_MONTH), account(currency="USD", since=LAST_MONTH)):
        with pytest.raises(ClosedMonthsTouched, match=rf"a {LAST_MONTH:%Y-%m} \(0.05 EUR may change\)"):
            store(billed, parse_catalog(file))
    with pytest.raises(ClosedMonthsTouched, match=r"0\.05 EUR may change"):
        delete_row(billed, CatalogTopic.ACCOUNTS, {"account": "a"}, LAST_MONTH, "ann")
    assert rows(billed) == before
    during = LAST_MONTH + timedelta(days=9, seconds=30)
    for file in (account(), account(tags="{team: x}"), account(tags="{team: y}", since=during), account("gold", MONTH)):
        assert_stored(billed, file)


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(account(), id="as it is"),
        pytest.param(account("gold", MONTH), id="the plan from this month on"),
        pytest.param(account("gold", None), id="the plan from now on"),
        pytest.param(price("0.10", since=MONTH), id="a price from this month on"),
        pytest.param(price("0.10", "gold", LAST_MONTH), id="a price of a plan that nobody has"),
        pytest.param(price("0.10", currency="USD"), id="a price in another currency"),
        pytest.param(account(timezone="Asia/Tokyo"), id="a time zone, which never holds from the past"),
        pytest.param(account(tags="{team: x}"), id="tags"),
        pytest.param(PLANS + account("gold") + price("0.01", "gold"), id="another plan of the same price"),
    ],
)
def test_a_change_that_leaves_ended_months_as_they_are_billed_is_made(billed: str, file: str) -> None:
    with psycopg.connect(billed) as connection:
        connection.execute("DELETE FROM catalog.prices WHERE plan = 'gold'")
    store(billed, parse_catalog(price("0.01", "gold")))
    assert_stored(billed, file)


def test_pricing_unpriced_usage_needs_no_confirmation(billed: str) -> None:
    row = {"account": "a", "meter": "input_tokens", "currency": None, "unit_price": None, "price_version": None}
    write_windows(billed, window(LAST_MONTH + timedelta(days=3), 9, **row))
    assert_stored(billed, price("0.5").replace("requests", "input_tokens"))


def test_a_month_that_ends_after_utcs_is_read_until_it_ends(database: str) -> None:
    """The first of a month in UTC is still the last day of the one before in Los Angeles."""
    store(database, parse_catalog(PLANS + account(timezone="America/Los_Angeles") + price("0.01")))
    row = {"account": "a", "unit_price": Decimal("0.01"), "price_version": 1}
    write_windows(database, window(LAST_MONTH + timedelta(hours=3), 5, **row))
    with pytest.raises(ClosedMonthsTouched) as refused:
        store(database, parse_catalog(price("0.10", since=LAST_MONTH)))
    assert months(refused.value) == [(BEFORE_LAST, eur("0.05"), eur("0.50"))]
    write_windows(database, window(MONTH + timedelta(hours=3), 7, **row))
    # On the first of a month it has not ended there.
    if MONTH + timedelta(hours=9) > NOW:
        return
    with pytest.raises(ClosedMonthsTouched) as refused:
        store(database, parse_catalog(price("0.10", since=MONTH)))
    assert months(refused.value) == [((MONTH - timedelta(days=1)).replace(day=1), eur("0.07"), eur("0.70"))]


@pytest.mark.parametrize("what", ["account", "price"])
def test_a_backdated_deletion_of_billed_prices_asks_for_confirmation(billed: str, what: str) -> None:
    topic = CatalogTopic.ACCOUNTS if what == "account" else CatalogTopic.PRICES
    key = {"account": "a"} if what == "account" else PRICE
    before = rows(billed)
    with pytest.raises(
        ClosedMonthsTouched, match=r"0.05 EUR becomes no price\)\. Nothing is stored\. .*--backdate"
    ) as no:
        delete_row(billed, topic, key, LAST_MONTH, "ann")
    assert months(no.value) == [(LAST_MONTH, eur("0.05"), {})]
    assert rows(billed) == before
    delete_row(billed, topic, key, MONTH, "ann")
    assert rows(billed) != before


def test_a_deletion_as_of_now_needs_no_confirmation(billed: str) -> None:
    delete_row(billed, CatalogTopic.PRICES, PRICE, LAST_MONTH, "ann", backdates=True)
    delete_row(billed, CatalogTopic.ACCOUNTS, {"account": "a"}, None, "ann")
    assert rows(billed) == [("gold", JANUARY, Decimal("0.10"))]


@pytest.fixture
def catalog(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, row_factory=dict_row) as connection:
        for plan in ("p1", "p2"):
            connection.execute("INSERT INTO catalog.plans VALUES (%s, '')", [plan])
        connection.commit()
        yield connection


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(edits)
def test_differential_the_price_of_an_instant_is_that_of_the_view(
    catalog: psycopg.Connection[Any], changes: list[Edit]
) -> None:
    catalog.rollback()
    for edit in changes:
        apply(catalog, edit)
    used = "SELECT %s::text AS account, %s::text AS model, %s::text AS meter, %s::timestamptz AS at"
    asked = f"SELECT price.currency, price.unit_price FROM ({used}) AS used, LATERAL ({PRICE_AT}) AS price"
    for at in MOMENTS[1::2]:
        listed = catalog.execute("SELECT * FROM catalog.contracts_at(%s)", [at]).fetchall()
        contracts = {(row["account"], row["model"], row["meter"]): row["unit_price"] for row in listed}
        for name in ACCOUNTS:
            # Before an account begins it is in no list, and its usage has the price of its first row.
            begun = catalog.execute(
                "SELECT FROM catalog.account_history WHERE account = %(account)s AND effective_from <= %(at)s"
                " AND holds_until > %(at)s",
                {"account": name, "at": at},
            ).fetchone()
            for model in MODELS if begun is not None else ():
                for meter in METERS:
                    found = catalog.execute(asked.encode(), [name, model, meter, at]).fetchone()
                    assert (found or {}).get("unit_price") == contracts.get((name, model, meter))
    catalog.rollback()
