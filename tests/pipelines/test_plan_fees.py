"""What plans cost beside usage: in the catalog, on the bill, on invoices and their corrections."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from catalog.closed_months import ClosedMonthsTouched
from catalog.file import CatalogFile, parse_catalog
from catalog.store import store
from cli.reading import read_only
from dashboard.backend import Backend
from dashboard.queries.bill_values import read_values
from dashboard.queries.bills import read_bills, read_line_windows
from dashboard.settings import Settings
from deployment.errors import CannotRun
from jobs.audit.bills.invoices import check_invoices
from jobs.close import issue
from jobs.close.config import CloseConfig
from jobs.close.earlier_months import earlier_months
from jobs.explain.database import Stored
from jobs.explain.fees import beside_usage
from jobs.explain.line import LineSelection
from jobs.queries import bills
from jobs.queries.bills import PAGE_KEY, read_month, read_totals
from jobs.queries.contracts import ContractQuery, contract_rows
from jobs.queries.forecasts import forecast_rows
from jobs.queries.pages import Page, paged
from jobs.queries.plan_fees import PlanMonths, read_plan_months
from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.api_reader import API_READER
from metering.invoices import Rounding
from metering.plan_terms import PLAN_MODEL, PlanTerms
from metering.price_models import PricedModel
from tests.database_rows import write
from tests.pipelines.billing import Price
from tests.pipelines.closing import DECEMBER, JANUARY, NOVEMBER, OCTOBER, Books
from tests.pipelines.plan_world import (
    BEGINS,
    DEARER,
    LATER,
    MONTHS,
    PRICES,
    ZONES,
    World,
    account,
    books_with_plans,
    costs,
    rung,
)
from tests.rules.test_plan_terms import WRONG, plan_documents

LINES = "SELECT original_period, kind, tier, charge_class, quantity, amount FROM invoice_lines ORDER BY invoice, line"


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    yield from books_with_plans(database)


def bill(books: Books, month: date = OCTOBER, page: Page | None = None) -> list[tuple[Any, ...]]:
    """(account, kind, plan or tier, quantity, amount) of the lines."""
    with psycopg.connect(books.database, row_factory=dict_row) as reader:
        lines = read_month(reader, month, page=page).lines
    return [(line["account"], line["kind"], line["tier"], line["quantity"], line["amount"]) for line in lines]


def totals(books: Books, *accounts: str) -> list[Decimal | None]:
    with psycopg.connect(books.database, row_factory=dict_row) as reader:
        return [row["amount"] for row in read_totals(reader, OCTOBER, accounts)]


def file_of(**terms: Any) -> CatalogFile:
    row = {"plan": "p", "currency": "EUR", "effective_from": "2026-10-01T00:00:00Z", **terms}
    return parse_catalog(json.dumps({"plans": [{"plan": "p", "name": "P"}], "plan_terms": [row]}))


def test_a_file_with_terms_of_a_plan_is_stored_once_and_captured(database: str) -> None:
    terms = {"flat_fee": "50", "minimum_amount": "100", "maximum_amount": "500"}
    changes = store(database, file_of(**terms))
    (row,) = (change for change in changes if "unit_price" in change.after)
    assert (row.op, row.after["model"], row.after["unit_price"]) == ("c", PLAN_MODEL, None)
    assert row.after["terms"] == PlanTerms.of({"kind": "plan", **terms}).text
    assert {change.op for change in store(database, file_of(**terms))} == {"r"}
    store(database, parse_catalog("accounts: [{account: a, name: A, plan: p, currency: EUR}]"))
    with psycopg.connect(database, row_factory=dict_row) as reader:
        at = datetime(2100, 1, 1, tzinfo=UTC)
        assert [row["terms"] for row in contract_rows(reader, ContractQuery(at))] == [
            "50 a month, at least 100, at most 500"
        ]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=plan_documents())
def test_sql_takes_the_terms_that_a_file_takes(database: str, document: dict[str, Any]) -> None:
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT catalog.plan_terms_problem(%s)", [Jsonb(document)]).fetchone() == (None,)


def test_sql_refuses_the_terms_that_a_file_refuses(database: str) -> None:
    with psycopg.connect(database) as connection:
        for document in WRONG:
            found = connection.execute("SELECT catalog.plan_terms_problem(%s)", [Jsonb(document)]).fetchone()
            assert found is not None
            assert found[0], document


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"model": "m", "terms": {"kind": "plan", "flat_fee": "1"}}, "its model must be"),
        ({"terms": {"kind": "volume", "tiers": [{"unit_price": "1"}]}}, "whose kind is plan"),
        ({"terms": None, "unit_price": 1}, "must be in terms"),
    ],
)
def test_the_row_of_a_plan_has_its_model_and_its_terms(books: Books, row: dict[str, Any], sentence: str) -> None:
    given_row = {"plan": "pro", "model": PLAN_MODEL, "meter": "requests", "currency": "EUR", "effective_from": BEGINS}
    terms = None if row["terms"] is None else Jsonb(row["terms"])
    with pytest.raises(psycopg.errors.CheckViolation, match=sentence):
        write(books.database, "catalog.prices", {**given_row, **row, "terms": terms})


def test_a_flat_fee_is_on_the_bill_of_a_month_without_usage(books: Books) -> None:
    account(books)
    costs(books, flat_fee="31")
    assert bill(books) == [], "no month has begun by billing's frontier"
    books.reach(BEGINS)
    assert bill(books) == [("a", "flat", "basic", 31, 31)]
    assert totals(books, "a") == [31]
    assert bill(books, NOVEMBER) == []
    assert bill(books, date(2026, 9, 1)) == [], "the account's row begins in October"


def test_fees_are_prorated_by_the_accounts_days_under_each_plan(books: Books) -> None:
    account(books, zone="Europe/Berlin")
    account(books, "pro", datetime(2026, 10, 10, 22, tzinfo=UTC), zone="Europe/Berlin")
    costs(books, flat_fee="31")
    costs(books, "pro", flat_fee="62")
    books.reach(BEGINS)
    assert bill(books) == [("a", "flat", "basic", 10, 10), ("a", "flat", "pro", 21, 42)]


def test_terms_change_within_a_month_and_end(books: Books) -> None:
    account(books)
    costs(books, flat_fee="31")
    costs(books, since=datetime(2026, 10, 11, tzinfo=UTC), flat_fee="62")
    books.reach(BEGINS)
    assert bill(books) == [("a", "flat", "basic", 31, 52)]
    with books.connection.transaction():
        ends = datetime(2026, 10, 21, tzinfo=UTC)
        books.connection.execute("UPDATE catalog.prices SET deleted_at = %s WHERE effective_from > %s", [ends, BEGINS])
        books.connection.execute("DELETE FROM catalog.prices WHERE effective_from > %s", [BEGINS])
    assert bill(books) == [("a", "flat", "basic", 31, 30)]


def test_a_month_costs_the_minimum_of_its_plan_also_without_usage(books: Books) -> None:
    account(books)
    costs(books, flat_fee="5", minimum_amount="20")
    books.end(OCTOBER)
    assert bill(books) == [("a", "flat", "basic", 31, 5), ("a", "minimum", "basic", 31, 15)]
    books.use(1_000, price=PRICES["basic"], account="a")
    assert bill(books)[1:] == [("a", "flat", "basic", 31, 5), ("a", "minimum", "basic", 31, 5)]
    books.use(1_000, price=PRICES["basic"], account="a")
    assert bill(books)[1:] == [("a", "flat", "basic", 31, 5)]
    assert totals(books, "a") == [25]


def test_a_month_costs_at_most_the_maximum_of_its_plan_and_another_plan_has_its_own(books: Books) -> None:
    account(books)
    account(books, "pro", datetime(2026, 10, 11, tzinfo=UTC))
    costs(books, maximum_amount="31")
    costs(books, "pro", maximum_amount="31")
    books.end(OCTOBER)
    books.use(1_500, price=PRICES["basic"], account="a", at=datetime(2026, 10, 2, tzinfo=UTC))
    books.use(1_500, price=PRICES["pro"], account="a", at=datetime(2026, 10, 12, tzinfo=UTC))
    # 15 of at most 10, and 3 of at most 21.
    assert [line for line in bill(books) if line[1] != "unit"] == [("a", "maximum", "basic", 10, -5)]
    assert totals(books, "a") == [13]


def test_a_plan_that_has_no_maximum_on_one_of_its_days_has_none_in_the_month(books: Books) -> None:
    account(books)
    costs(books, since=BEGINS + timedelta(days=1), maximum_amount="1")
    books.end(OCTOBER)
    books.use(1_500, price=PRICES["basic"], account="a")
    assert totals(books, "a") == [15]


def test_what_a_plan_includes_is_shared_by_quantity_and_prorated_by_days(books: Books) -> None:
    account(books)
    account(books, "pro", datetime(2026, 10, 11, tzinfo=UTC))
    costs(books, included={"input_tokens": "3100", "requests": "1"})
    books.end(OCTOBER)
    for quantity, price in ((1_000, PRICES["basic"]), (3_000, DEARER["basic"]), (500, PRICES["pro"])):
        books.use(quantity, price=price, account="a", model="m")
    # 1,000 of 10 days: 250 of 1,000 and 750 of 3,000.
    assert bill(books) == [
        ("a", "unit", "included", 250, 0),
        ("a", "unit", None, 750, Decimal("7.5")),
        ("a", "unit", None, 500, 1),
        ("a", "unit", "included", 750, 0),
        ("a", "unit", None, 2250, Decimal("67.725")),
    ]
    assert totals(books, "a") == [Decimal("76.225")]


def test_the_last_millionths_of_what_is_included_go_by_the_largest_remainder(books: Books) -> None:
    account(books)
    costs(books, included={"input_tokens": "0.000002"})
    books.end(OCTOBER)
    for model in ("x", "y", "z"):
        books.use(Decimal("0.000001"), price=PRICES["basic"], account="a", model=model)
    assert [line[2:4] for line in bill(books)] == [
        ("included", Decimal("0.000001")),
        ("included", Decimal("0.000001")),
        (None, Decimal("0.000001")),
    ]


def test_of_equal_remainders_the_first_model_by_its_bytes_has_the_last_millionth(books: Books) -> None:
    """Else a bill would differ in a database of another collation, such as one that a backup is restored into."""
    account(books)
    costs(books, included={"input_tokens": "0.000001"})
    books.end(OCTOBER)
    for model in ("a", "B"):
        books.use(Decimal("0.000001"), price=PRICES["basic"], account="a", model=model)
    assert [line[2:4] for line in bill(books)] == [("included", Decimal("0.000001")), (None, Decimal("0.000001"))]
    # This server may know no collation but that of bytes: its plan says by which one it sorts.
    parameters: dict[str, Any] = {"month": OCTOBER, "accounts": None, **{name: [] for name in bills._INCLUDED}}
    with psycopg.connect(books.database) as database:
        plan = database.execute(f"EXPLAIN (VERBOSE, COSTS OFF) {bills._LINES}", parameters).fetchall()
    (of_remainders,) = (line for (line,) in plan if "Sort Key" in line and " DESC, " in line)
    assert re.search(r'\bmodel\S* COLLATE "C"', of_remainders)


def test_a_plan_includes_no_more_than_what_negative_values_leave(books: Books) -> None:
    account(books)
    costs(books, included={"input_tokens": "80"})
    books.end(OCTOBER)
    for model, quantity in (("x", 60), ("y", 40), ("z", -50)):
        books.use(quantity, price=PRICES["basic"], account="a", model=model)
    # Of 50 that are left 30 and 20 are included.
    assert [line[2:] for line in bill(books)] == [
        ("included", 30, 0),
        (None, 30, Decimal("0.3")),
        ("included", 20, 0),
        (None, 20, Decimal("0.2")),
        (None, -50, Decimal("-0.5")),
    ]
    books.use(-70, price=PRICES["basic"], account="a", model="z")
    assert [line[2:] for line in bill(books)] == [
        (None, 60, Decimal("0.6")),
        (None, 40, Decimal("0.4")),
        (None, -120, Decimal("-1.2")),
    ]


def test_a_month_that_a_release_before_closed_with_negative_values_is_corrected_and_stops_no_close(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    account(books)
    costs(books, included={"input_tokens": "80"}, minimum_amount="1")
    books.end(OCTOBER)
    for model, quantity in (("x", 60), ("y", 40), ("z", -50)):
        books.use(quantity, price=PRICES["basic"], account="a", model=model)
    now = "least(given.quantity, greatest(sum(summed.quantity) OVER of_plan, 0))"
    with monkeypatch.context() as before:
        assert bills._ORDERED.count(now) == 1
        before.setattr(bills, "paged", lambda statement, *page: paged(statement.replace(now, "given.quantity"), *page))
        assert [row["outcome"] for row in books.close(OCTOBER, at=LATER)] == ["issued"]
    (lines, _) = check_invoices(books.database)
    assert lines.holds, lines.says
    books.end(NOVEMBER)
    assert [row["outcome"] for row in books.close(NOVEMBER, at=LATER)] == ["issued"]
    assert books.rows("SELECT FROM invoice_lines WHERE charge_class = 'Correction'")
    (lines, _) = check_invoices(books.database)
    assert lines.holds, lines.says


def test_a_close_looks_for_fees_of_an_account_in_no_month_before_it_began(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs(books, flat_fee="5")
    account(books)
    account(books, name="b", since=datetime(2026, 12, 5, tzinfo=UTC))
    books.end(OCTOBER)
    assert [row["account"] for row in books.close(OCTOBER, at=LATER)] == ["a"]
    books.end(DECEMBER)
    asked: list[tuple[date, Any]] = []

    def noted(database: Any, month: date, periods_of: Any, accounts: Any) -> PlanMonths:
        asked.append((month, accounts))
        return read_plan_months(database, month, periods_of, accounts)

    monkeypatch.setattr("jobs.close.earlier_months.read_plan_months", noted)
    with psycopg.connect(books.database, row_factory=dict_row) as reader:
        assert earlier_months(reader, ["a", "b"], JANUARY) == {"b": [DECEMBER]}
    assert asked == [(DECEMBER, ["b"])]


def use_tiers(books: Books, up_to: str) -> None:
    """150 units, 75 of each of two models: up to `up_to` of their sum cost 1 each, the rest 2."""
    account(books)
    with books.connection.transaction():
        rungs = [{"up_to": up_to, "unit_price": "1"}, {"unit_price": "2"}]
        tiers = json.dumps({"kind": "graduated", "tiers": rungs})
        books.connection.execute(
            "INSERT INTO price_ladders VALUES (20, 'basic', 'm*', 'input_tokens', 'EUR', %s, NULL, %s)", [BEGINS, tiers]
        )
    books.end(OCTOBER)
    day = {"account": "a", "day": date(2026, 10, 5), "meter": "input_tokens", "currency": "EUR", "price_version": 20}
    at = {"first_window": BEGINS, "last_window_end": BEGINS + timedelta(minutes=1)}
    write(books.database, "usage_days", *({**day, **at, "model": model, "quantity": 75} for model in ("m1", "m2")))


def test_what_is_not_included_begins_at_the_first_tier_and_all_may_be_included(books: Books) -> None:
    use_tiers(books, up_to="100")
    assert totals(books, "a") == [200]
    costs(books, included={"input_tokens": "30"})
    assert bill(books) == [
        ("a", "graduated", "included", 30, 0),
        ("a", "graduated", "1: up to 100", 100, 100),
        ("a", "graduated", "2: above 100", 20, 40),
    ]
    costs(books, included={"input_tokens": "150"}, minimum_amount="5")
    assert bill(books) == [("a", "graduated", "included", 150, 0), ("a", "minimum", "basic", 31, 5)]


def test_amounts_by_a_dimension_say_that_the_plan_includes_units_which_no_value_has(books: Books) -> None:
    account(books)
    books.use(1_500, price=PRICES["basic"], account="a")
    books.end(OCTOBER)
    backend = Backend(Settings(postgres_url=books.database))
    found = read_values(backend, "a", OCTOBER, "team")
    assert [value.amount for value in found.values] == [15]
    assert found.has_included is False
    costs(books, included={"input_tokens": "1000"})
    found = read_values(backend, "a", OCTOBER, "team")
    assert [value.amount for value in found.values] == [15]
    assert found.has_included is True
    assert totals(books, "a") == [5]


@pytest.mark.parametrize(("included", "next_unit_price"), [("150.5", 0), ("150", 1), ("50", 1), ("49.5", 2)])
def test_another_unit_adds_nothing_while_the_plan_includes_more(
    books: Books, included: str, next_unit_price: int
) -> None:
    use_tiers(books, up_to="100.5")
    costs(books, included={"input_tokens": included})
    with psycopg.connect(books.database, row_factory=dict_row) as reader:
        lines = read_month(reader, OCTOBER).lines
    assert {line["next_unit_price"] for line in lines} == {next_unit_price}


def test_totals_of_no_account_have_no_fees_of_others(books: Books) -> None:
    account(books)
    costs(books, flat_fee="31")
    books.reach(BEGINS)
    assert totals(books) == []
    with psycopg.connect(books.database, row_factory=dict_row) as reader:
        assert read_month(reader, OCTOBER, ()).lines == []


def test_a_total_has_each_line_that_has_an_amount_while_a_fee_is_not_known(books: Books) -> None:
    account(books)
    costs(books, flat_fee="1", minimum_amount="20")
    books.end(OCTOBER)
    books.use(1_500, price=Price(9, Decimal("0.01")), account="a")
    amounts = [amount for *_, amount in bill(books) if amount is not None]
    assert amounts == [15, 1]
    with psycopg.connect(books.database, row_factory=dict_row) as reader:
        (total,) = read_totals(reader, OCTOBER, ["a"])
    assert (total["amount"], total["unpriced_lines"]) == (16, 1)


def test_usage_that_is_less_than_nothing_is_no_reason_for_a_minimum_that_the_plan_does_not_have(books: Books) -> None:
    account(books)
    costs(books, maximum_amount="20", included={"requests": "1"})
    books.end(OCTOBER)
    books.use(-1_500, price=PRICES["basic"], account="a")
    assert [line for line in bill(books) if line[1] != "unit"] == []
    assert totals(books, "a") == [-15]


def test_what_a_reader_of_an_account_may_see_of_prices_is_found_without_reading_its_days(books: Books) -> None:
    account(books)
    costs(books, minimum_amount="20")
    books.end(OCTOBER)
    books.use(1_500, price=PRICES["basic"], account="a")
    with reading(books, '["a"]') as reader:
        plan = reader.execute("EXPLAIN SELECT FROM price_ladders").fetchall()
    assert "usage_days" not in str(plan)
    assert "usage_months" in str(plan)


def test_a_forecast_charges_no_units_that_the_plan_includes_and_says_nothing_of_the_rest_of_the_month(
    books: Books,
) -> None:
    account(books)
    costs(books, flat_fee="31", included={"input_tokens": "1000"})
    middle = datetime(2026, 10, 16, tzinfo=UTC)
    books.use(3_000, price=PRICES["basic"], account="a", frontier=middle)
    with psycopg.connect(books.database, row_factory=dict_row) as reader:
        (row,) = forecast_rows(reader, OCTOBER, ["a"], middle)
        assert (row["so_far"], row["forecast"]) == (20, None)
    books.end(OCTOBER)
    with psycopg.connect(books.database, row_factory=dict_row) as reader:
        (row,) = forecast_rows(reader, OCTOBER, ["a"], middle)
    assert (row["so_far"], row["forecast"]) == (20, 20)


def test_a_line_of_included_units_has_the_minutes_of_its_own_model(books: Books) -> None:
    account(books)
    costs(books, included={"input_tokens": "1000"})
    books.end(OCTOBER)
    with books.connection.transaction():
        books.connection.execute("UPDATE price_ladders SET model = 'm*'")
    for model, quantity in (("m1", 900), ("m2", 1_100)):
        books.use(quantity, price=PRICES["basic"], account="a", model=model)
    backend = Backend(Settings(postgres_url=books.database))
    lines = [line for line in read_bills(backend, OCTOBER).lines if line.tier == "included"]
    found = {line.model: [window.quantity for window in read_line_windows(backend, line)] for line in lines}
    assert found == {"m1": [900], "m2": [1_100]}


def test_pages_have_all_fees_of_an_account_once(books: Books) -> None:
    costs(books, flat_fee="1", minimum_amount="9")
    for name in ("a", "b", "c"):
        account(books, name=name)
    books.end(OCTOBER)
    books.use(10, price=PRICES["basic"], account="b")
    found = list[Any]()
    after: tuple[Any, ...] = ()
    with psycopg.connect(books.database, row_factory=dict_row) as reader:
        while rows := read_month(reader, OCTOBER, page=Page(1, after)).lines:
            found += [(row["account"], row["kind"], row["tier"], row["quantity"], row["amount"]) for row in rows]
            after = tuple(rows[-1][name] for name in PAGE_KEY)
    assert found == bill(books)
    assert len(found) == 7


def test_who_may_read_some_accounts_sees_the_fees_of_a_plan_that_they_no_longer_have(books: Books) -> None:
    account(books)
    account(books, "pro", datetime(2026, 11, 1, tzinfo=UTC))
    costs(books, flat_fee="31", minimum_amount="40")
    books.end(OCTOBER)
    books.use(100, price=PRICES["basic"], account="a")
    whole = bill(books)
    assert [amount for *_, amount in whole] == [1, 31, 8]
    assert seen_by(books, '["a"]') == whole
    assert seen_by(books, '["b"]') == []


def test_usage_by_tiers_of_a_plan_that_was_replaced_in_place_has_its_amount_for_who_reads_the_account(
    books: Books,
) -> None:
    """Until an audit prices it again, no row of the account's history names the plan by which it was priced."""
    for plan in ("pro", "basic", "pro"):
        account(books, plan)
    with books.connection.transaction():
        tiers = '{"kind":"volume","tiers":[{"unit_price":"2"}]}'
        books.connection.execute(
            "INSERT INTO price_ladders VALUES (20, 'basic', 'm', 'input_tokens', 'EUR', %s, NULL, %s)", [BEGINS, tiers]
        )
    day = {"account": "a", "day": date(2026, 10, 5), "meter": "input_tokens", "currency": "EUR", "price_version": 20}
    at = {"first_window": BEGINS, "last_window_end": BEGINS + timedelta(minutes=1)}
    write(books.database, "usage_days", {**day, **at, "model": "m", "quantity": 75})
    plans = books.rows("SELECT DISTINCT plan FROM catalog.account_history")
    assert plans == [{"plan": "pro"}]
    assert seen_by(books, '["a"]') == bill(books) == [("a", "volume", "1: above 0", 75, 150)]
    with psycopg.connect(books.database) as owner:
        assert owner.execute("SELECT count(*) FROM price_ladders").fetchone() == (5,)
    assert ladders_seen_by(books, '["b"]') == 0


def seen_by(books: Books, accounts: str) -> list[tuple[Any, ...]]:
    """The bill for a role that may read these accounts."""
    names = ("account", "kind", "tier", "quantity", "amount")
    with reading(books, accounts) as reader:
        return [tuple(line[name] for name in names) for line in read_month(reader, OCTOBER).lines]


def ladders_seen_by(books: Books, accounts: str) -> int:
    with reading(books, accounts) as reader:
        return len(reader.execute("SELECT FROM price_ladders").fetchall())


@contextmanager
def reading(books: Books, accounts: str) -> Iterator[psycopg.Cursor[dict[str, Any]]]:
    """As the API reads for a key of these accounts."""
    with psycopg.connect(in_schema(books.database)) as session, session.cursor(row_factory=dict_row) as reader:
        reader.execute(f"SET LOCAL ROLE {API_READER}")
        reader.execute("SELECT set_config('weir.accounts', %s, true)", [accounts])
        yield reader


def test_a_backdated_fee_names_the_ended_months_and_asks(books: Books) -> None:
    long_ago = datetime(2025, 10, 1, tzinfo=UTC)
    account(books, since=long_ago)
    books.reach(datetime(2026, 1, 5, tzinfo=UTC))
    row = {"plan": "basic", "currency": "EUR", "effective_from": "2025-11-01T00:00:00Z", "flat_fee": "5"}
    fee = parse_catalog(json.dumps({"plan_terms": [row]}))
    with pytest.raises(ClosedMonthsTouched, match=r"a 2025-11 \(the fees of plans may change\)"):
        store(books.database, fee)
    store(books.database, fee, backdates=True)
    store(books.database, fee)
    moved = '{account: a, name: A, plan: pro, currency: EUR, effective_from: "2025-12-01T00:00:00Z"}'
    with pytest.raises(
        ClosedMonthsTouched, match=r"2 ended months again, .*: a 2025-12 \(the fees of plans may change\); a 2026-01 "
    ):
        store(books.database, parse_catalog(f"accounts: [{moved}]"))


def test_a_plan_of_the_terms_must_exist(database: str) -> None:
    row = {"plan": "none", "currency": "EUR", "effective_from": "2026-10-01T00:00:00Z", "flat_fee": "5"}
    with pytest.raises(CannotRun, match=r"plan_terms\.0\.plan is 'none'"):
        store(database, parse_catalog(json.dumps({"plan_terms": [row]})))


def invoiced(books: Books) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in books.rows(LINES)]


def checks(books: Books) -> list[bool]:
    return [check.holds for check in check_invoices(books.database)]


def test_fees_are_lines_of_their_own_kinds_on_an_invoice_also_without_usage(books: Books) -> None:
    account(books)
    account(books, name="b")
    costs(books, flat_fee="10.005", minimum_amount="20")
    books.end(OCTOBER)
    books.use(1_500, price=PRICES["basic"], account="b")
    assert {(row["account"], row["outcome"], row["total"]) for row in books.close(at=LATER)} == {
        ("a", "issued", Decimal("20.00")),
        ("b", "issued", Decimal("25.00")),
    }
    assert invoiced(books) == [
        (OCTOBER, "flat", "basic", None, 31, Decimal("10.00")),
        (OCTOBER, "minimum", "basic", None, 31, Decimal("10.00")),
        (OCTOBER, "flat", "basic", None, 31, Decimal("10.00")),
        (OCTOBER, "usage", None, None, 1500, Decimal("15.00")),
    ]
    assert books.faults() == []
    assert checks(books) == [True, True]


def test_usage_and_plans_that_come_after_the_close_correct_the_fees_by_pairs_of_lines(books: Books) -> None:
    account(books)
    costs(books, flat_fee="31", minimum_amount="62")
    books.end(OCTOBER)
    books.close(at=LATER)
    books.use(1_000, price=PRICES["basic"], account="a")
    account(books, "pro", datetime(2026, 10, 21, tzinfo=UTC))
    books.end(NOVEMBER)
    assert checks(books) == [True, True], "what has changed since is not wrong"
    books.close(NOVEMBER, at=LATER)
    assert invoiced(books)[2:] == [
        (OCTOBER, "flat", "basic", "Correction", -31, -31),
        (OCTOBER, "flat", "basic", "Correction", 20, 20),
        (OCTOBER, "minimum", "basic", "Correction", -31, -31),
        (OCTOBER, "minimum", "basic", "Correction", 20, 10),
        (OCTOBER, "usage", None, "Correction", 1000, 10),
    ]
    assert books.faults() == []
    assert checks(books) == [True, True]


def test_a_fee_that_the_catalog_does_not_come_to_is_named_by_the_audit(books: Books) -> None:
    account(books)
    costs(books, flat_fee="31")
    books.end(OCTOBER)
    books.close(at=LATER)
    change_unnoticed(books, LESS)
    of_usage, of_hashes = check_invoices(books.database)
    assert (of_usage.holds, of_hashes.holds) == (False, True)
    assert "flat of a, basic, in 2026-10: line 1 of weir-1 is not what its price makes" in of_usage.says


def change_unnoticed(books: Books, statement: str) -> None:
    """As a fault of the computation would leave it: nobody has changed the catalog."""
    with books.connection.transaction():
        books.connection.execute("SET LOCAL session_replication_role = replica")
        books.connection.execute(statement)


LESS = "UPDATE catalog.prices SET terms = jsonb_set(terms, '{flat_fee}', '\"30\"')"


def test_the_fees_of_an_account_that_was_deleted_are_compared_too(books: Books) -> None:
    account(books)
    costs(books, flat_fee="31")
    books.end(OCTOBER)
    with books.connection.transaction():
        books.connection.execute("UPDATE catalog.accounts SET deleted_at = '2026-10-21' WHERE account = 'a'")
        books.connection.execute("DELETE FROM catalog.accounts")
    books.close(at=LATER)
    assert checks(books) == [True, True]
    change_unnoticed(books, LESS)
    assert checks(books) == [False, True]


def test_a_deletion_after_the_close_is_no_fault_and_the_next_close_corrects_it(books: Books) -> None:
    account(books)
    costs(books, flat_fee="31")
    books.end(OCTOBER)
    books.close(at=LATER)
    with books.connection.transaction():
        books.connection.execute("UPDATE catalog.accounts SET deleted_at = '2026-10-21' WHERE account = 'a'")
        books.connection.execute("DELETE FROM catalog.accounts")
    assert checks(books) == [True, True]
    books.end(NOVEMBER)
    books.close(NOVEMBER, at=LATER)
    assert [amount for *_, amount in invoiced(books)] == [31, -31, 20]
    change_unnoticed(books, LESS)
    assert checks(books) == [False, True]


def test_a_change_that_began_before_the_close_and_was_committed_after_it_is_no_fault(books: Books) -> None:
    account(books)
    costs(books, flat_fee="31")
    books.end(OCTOBER)
    with psycopg.connect(books.database) as editor:
        editor.execute("UPDATE catalog.prices SET terms = jsonb_set(terms, '{flat_fee}', '\"62\"')")
        books.close(at=datetime.now(UTC))
        editor.commit()
    assert checks(books) == [True, True]
    books.end(NOVEMBER)
    books.close(NOVEMBER, at=datetime.now(UTC))
    assert [amount for *_, amount in invoiced(books) if amount] == [31, 62, -31, 62]
    change_unnoticed(books, LESS)
    assert checks(books) == [False, True]


def test_included_units_that_change_after_the_close_are_no_fault_of_the_invoice(books: Books) -> None:
    account(books)
    costs(books, included={"input_tokens": "100"})
    books.end(OCTOBER)
    books.use(1_000, price=PRICES["basic"], account="a")
    books.close(at=LATER)
    costs(books, included={"input_tokens": "300"})
    assert checks(books) == [True, True]
    books.end(NOVEMBER)
    books.close(NOVEMBER, at=LATER)
    assert sum(amount for *_, amount in invoiced(books)) == 7
    assert checks(books) == [True, True]


def test_the_catalog_is_one_while_a_close_reads_it(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    account(books)
    costs(books, flat_fee="31")
    books.end(OCTOBER)

    def changed_meanwhile(*read: Any, **more: Any) -> Any:
        with (
            pytest.raises(psycopg.errors.LockNotAvailable),
            psycopg.connect(books.database, options="-c lock_timeout=100ms") as editor,
        ):
            editor.execute("UPDATE catalog.prices SET terms = jsonb_set(terms, '{flat_fee}', '\"62\"')")
        return read_month(*read, **more)

    monkeypatch.setattr(issue, "read_month", changed_meanwhile)
    assert [row["total"] for row in books.close()] == [31]


def uses_halves(books: Books, *quantities: int) -> None:
    """Usage of prices whose lines are rounded each; some to a whole cent less, some to one more."""
    for number, quantity in enumerate(quantities):
        price = Price(20 + number, Decimal("0.005"))
        with books.connection.transaction():
            rung(books, price, "basic")
        books.use(quantity, price=price, account="a")


@pytest.mark.parametrize("quantities", [(201, 201, 201), (203, 203, 203), (2_001, 1), (667, 667, 666), (665, 665, 671)])
@pytest.mark.parametrize("rounding", Rounding)
def test_an_invoice_at_its_minimum_or_maximum_comes_to_that(
    books: Books, quantities: tuple[int, ...], rounding: Rounding
) -> None:
    account(books)
    costs(books, flat_fee="0.005", minimum_amount="10.00", maximum_amount="10.00")
    books.end(OCTOBER)
    uses_halves(books, *quantities)
    config = CloseConfig(rounding=rounding)
    assert [row["total"] for row in books.close(at=LATER, config=config)] == [Decimal("10.00")]
    assert books.faults() == []
    assert checks(books) == [True, True]
    books.use(201, price=Price(20, Decimal("0.005")), account="a")
    books.end(NOVEMBER)
    books.close(NOVEMBER, at=LATER, config=config)
    of_october = books.rows("SELECT sum(amount) AS amount FROM invoice_lines WHERE original_period = %s", OCTOBER)
    assert of_october == [{"amount": Decimal("10.00")}]
    assert books.faults() == []
    assert checks(books) == [True, True]
    disable_lines(books, "amount = amount + 0.01, exact_amount = exact_amount + 0.01 WHERE kind = 'minimum'")
    disable_lines(books, "amount = amount + 0.01, exact_amount = exact_amount + 0.01 WHERE kind = 'maximum'")
    assert checks(books) == [False, False]


def disable_lines(books: Books, change: str) -> None:
    with books.connection.transaction():
        books.connection.execute("ALTER TABLE invoice_lines DISABLE TRIGGER ALL")
        books.connection.execute(f"UPDATE invoice_lines SET {change}")


@pytest.mark.parametrize(
    "terms",
    [
        {"minimum_amount": "10.00"},
        {"minimum_amount": "10.005"},
        {"minimum_amount": "10.3"},
        {"maximum_amount": "1.005"},
        {"flat_fee": "0.005", "minimum_amount": "10.005"},
    ],
)
@pytest.mark.parametrize(
    "config", [CloseConfig(rounding=Rounding.HALF_UP), CloseConfig(minor_units={"EUR": 0})], ids=["half-up", "units"]
)
def test_another_rounding_changes_no_month_that_was_closed_at_its_minimum_or_maximum(
    books: Books, terms: dict[str, Any], config: CloseConfig
) -> None:
    account(books)
    costs(books, **terms)
    books.end(OCTOBER)
    uses_halves(books, 201, 203)
    books.close(at=LATER)
    books.end(NOVEMBER)
    books.close(NOVEMBER, at=LATER, config=config)
    assert books.rows("SELECT FROM invoice_lines WHERE charge_class IS NOT NULL") == []
    assert books.faults() == []
    assert checks(books) == [True, True]


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("seed", range(20))
def test_a_month_stays_at_its_limit_whichever_way_each_close_rounds_what_came_late(books: Books, seed: int) -> None:
    """Of packages, more units can cost the same: the pair of lines is rounded anew, and its amount counts."""
    chance = random.Random(seed)
    account(books)
    limit: dict[str, Any] = {"minimum_amount": "10.005"} if seed % 2 else {"maximum_amount": "0.125"}
    costs(books, flat_fee="0.005", **limit)
    terms = '{"kind":"package","package_size":"10","package_price":"0.005"}'
    with books.connection.transaction():
        for version in range(20, 28):
            books.connection.execute(
                "INSERT INTO price_ladders VALUES (%s, 'basic', %s, 'input_tokens', 'EUR', %s, NULL, %s)",
                [version, f"m{version}", BEGINS, terms],
            )
    without: dict[str, Any] = {"input_tokens_unit_price": None, "input_tokens_amount": None}
    for number, month in enumerate(MONTHS[:3]):
        for version in chance.sample(range(20, 28), 3 if number else 8):
            quantity = chance.choice([1, 2, 10]) if number else chance.randint(30, 99)
            books.use(quantity, price=Price(version, Decimal()), account="a", model=f"m{version}", **without)
        books.end(month)
        books.close(month, at=LATER, config=CloseConfig(rounding=chance.choice(list(Rounding))))
        assert books.faults() == []
        assert checks(books) == [True, True]
    (found,) = books.rows("SELECT sum(amount) AS amount FROM invoice_lines WHERE original_period = %s", OCTOBER)
    first = books.rows("SELECT rounding FROM invoices WHERE period = %s", OCTOBER)[0]["rounding"]
    up = Decimal("0.01") if first == "half-up" else Decimal()
    assert found["amount"] == (Decimal("10.00") + up if seed % 2 else Decimal("0.12") + up)


def test_a_month_is_refused_while_the_plan_of_its_usage_is_not_known(books: Books) -> None:
    account(books)
    costs(books, flat_fee="1", minimum_amount="20")
    books.end(OCTOBER)
    books.use(1_500, price=Price(9, Decimal("0.01")), account="a")
    assert bill(books)[1:] == [("a", "flat", "basic", 31, 1), ("a", "minimum", "basic", 31, None)]
    (row,) = books.close()
    assert row["outcome"] == "refused"
    assert "what the plan basic costs depends on usage whose plan or amount is not known" in row["reason"]
    with books.connection.transaction():
        rung(books, Price(9, Decimal("0.01")), "basic")
    assert [row["total"] for row in books.close()] == [20]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.few_in_ci(2)
def test_bills_and_invoices_with_corrections_are_an_independent_sum_to_the_last_digit(books: Books, seed: int) -> None:
    world = World(seed)
    for month in world.quarter(books):
        assert {row["outcome"] for row in books.close(month, at=LATER)} == {"issued"}
        assert books.faults() == []
        assert checks(books) == [True, True]
    found = {
        (row["account"], row["original_period"], row["kind"], row["tier"]): Fraction(row["amount"])
        for row in books.rows(
            "SELECT account, original_period, kind, tier, sum(amount) AS amount FROM invoice_lines"
            " WHERE kind <> 'usage' GROUP BY 1, 2, 3, 4 HAVING sum(amount) <> 0"
        )
    }
    exact, rounded = (
        {
            (name, month, *key): amount
            for name in ZONES
            for month in MONTHS
            for key, amount in world.fees(name, month, rounds=rounds).items()
        }
        for rounds in (False, True)
    )
    assert found == rounded
    billed = {}
    with psycopg.connect(books.database, row_factory=dict_row) as reader:
        for month in MONTHS:
            for line in read_month(reader, month).lines:
                if line["kind"] in ("flat", "minimum", "maximum"):
                    billed[line["account"], month, line["kind"], line["tier"]] = Fraction(line["amount"])
    assert billed == exact
    corrections = books.rows("SELECT 1 FROM invoice_lines WHERE kind <> 'usage' AND charge_class = 'Correction'")
    assert len(corrections) > 4


def test_another_rounding_changes_no_month_that_came_to_its_minimum_in_a_currency_after_its_invoice(
    books: Books,
) -> None:
    account(books)
    costs(books, flat_fee="31")
    books.end(OCTOBER)
    books.close(at=LATER)
    with books.connection.transaction():
        books.connection.execute(
            "INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, terms)"
            " SELECT plan, model, meter, 'USD', effective_from, %s FROM catalog.prices",
            [Jsonb({"kind": "plan", "minimum_amount": "0.155"})],
        )
        # 13 of 31 days come to 0.065.
        books.connection.execute(
            "UPDATE catalog.accounts SET currency = 'USD', effective_from = %s", [BEGINS + timedelta(days=18)]
        )
    for month, rounding in ((NOVEMBER, Rounding.HALF_EVEN), (MONTHS[2], Rounding.HALF_UP)):
        books.end(month)
        books.close(month, at=LATER, config=CloseConfig(rounding=rounding))
        assert checks(books) == [True, True]
    of_october = books.rows(
        "SELECT period, lines.kind, amount FROM invoice_lines AS lines JOIN invoices USING (invoice)"
        " WHERE currency = 'USD' AND original_period = %s",
        OCTOBER,
    )
    assert of_october == [{"period": NOVEMBER, "kind": "minimum", "amount": Decimal("0.06")}]


def test_a_line_of_a_model_has_the_included_units_of_the_price_of_several_models(books: Books) -> None:
    account(books)
    costs(books, included={"input_tokens": "30"})
    group = PricedModel.group(["m1", "m2"]).text
    tiers = '{"kind":"graduated","tiers":[{"up_to":"100","unit_price":"1"},{"unit_price":"2"}]}'
    with books.connection.transaction():
        for version, model in ((20, group), (21, "n*")):
            books.connection.execute(
                "INSERT INTO price_ladders VALUES (%s, 'basic', %s, 'input_tokens', 'EUR', %s, NULL, %s)",
                [version, model, BEGINS, tiers],
            )
    without: dict[str, Any] = {"input_tokens_unit_price": None, "input_tokens_amount": None}
    for version, model in ((20, "m1"), (20, "m2"), (21, "n1")):
        books.use(50, price=Price(version, Decimal()), account="a", model=model, **without)
    books.end(OCTOBER)
    query = LineSelection("a", OCTOBER, "m1")
    with read_only(books.database) as connection:
        lines = [row for row in Stored(connection).lines("a", OCTOBER) if query.names(row)]
        found = beside_usage(connection, "a", OCTOBER, query.names, {row["price_version"] for row in lines})
    assert found["fees"] == []
    assert [(row["model"], row["quantity"]) for row in found["included"]] == [(group, 20)]
