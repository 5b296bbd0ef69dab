"""What plans cost and include is in FOCUS, to the last digit before the close and to the cent of invoices after it.

Method: random plans, terms and usage of four calendars, also backdated, are exported; the sums are compared with what
the test computes of its own changes in fractions (`tests.pipelines.plan_world`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow.parquet as pq
import pytest

from cli.reading import read_only
from jobs.close.void import void
from jobs.exports.columns import Focus
from jobs.exports.files import CannotExport, destination_of
from jobs.exports.focus import FocusExport, export_focus
from jobs.exports.month import Seller
from jobs.exports.rows_file import FileFormat
from tests.exports import focus_1_4
from tests.exports.focus_rules import broken
from tests.pipelines.billing import Price
from tests.pipelines.closing import NOON, NOVEMBER, OCTOBER, Books
from tests.pipelines.plan_world import (
    BEGINS,
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

Row = Mapping[str, Any]


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    yield from books_with_plans(database)


def exported(books: Books, folder: Path, month: date = OCTOBER) -> list[Row]:
    export = FocusExport(month, Focus.V1_3, FileFormat.PARQUET, Seller("Example Inc.", "Some Cloud"))
    with read_only(books.database) as connection:
        done = export_focus(connection, destination_of(str(folder), {}), export, NOON, lambda _: None)
    rows: list[Row] = pq.read_table(folder / done.file).to_pylist()
    assert broken(rows) == {}
    return rows


def fees(rows: list[Row]) -> list[tuple[Any, ...]]:
    """(category, description, cost, invoice) of all but usage."""
    names = ("ChargeCategory", "ChargeDescription", "BilledCost", "InvoiceId")
    return [tuple(row[name] for name in names) for row in rows if row["ChargeCategory"] != "Usage"]


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("seed", range(12))
def test_months_cost_what_their_plans_come_to_before_the_close_and_what_invoices_say_after_it(
    books: Books, tmp_path: Path, seed: int
) -> None:
    world = World(seed)
    for month in world.quarter(books):
        open_month: defaultdict[str, Fraction] = defaultdict(Fraction)
        for row in exported(books, tmp_path, month):
            assert row["InvoiceId"] is None
            open_month[row["BillingAccountId"]] += Fraction(row["BilledCost"])
        assert open_month == expected(world, [month])
        assert {row["outcome"] for row in books.close(month, at=LATER)} == {"issued"}

    by_month: defaultdict[tuple[str, date], Fraction] = defaultdict(Fraction)
    by_invoice: defaultdict[str, Fraction] = defaultdict(Fraction)
    corrected = set()
    for month in MONTHS:
        for row in exported(books, tmp_path, month):
            name = row["BillingAccountId"]
            first = row["ChargePeriodStart"].astimezone(ZoneInfo(ZONES[name])).date().replace(day=1)
            by_month[name, first] += Fraction(row["BilledCost"])
            by_invoice[row["InvoiceId"]] += Fraction(row["BilledCost"])
            if row["ChargeClass"] == "Correction":
                corrected.add(row["ChargeCategory"])
    assert {key: cost for key, cost in by_month.items() if cost} == {
        (name, month): cost for month in MONTHS for name, cost in expected(world, [month], rounds=True).items()
    }
    issued = books.rows("SELECT invoice, total FROM invoices")
    assert by_invoice == {row["invoice"]: Fraction(row["total"]) for row in issued}
    assert corrected >= {"Usage", "Adjustment"}


def expected(world: World, months: list[date], *, rounds: bool = False) -> dict[str, Fraction]:
    """By account: what the months come to."""
    sums = {
        name: sum((sum(world.month(name, month, rounds=rounds).values(), Fraction()) for month in months), Fraction())
        for name in ZONES
    }
    return {name: cost for name, cost in sums.items() if cost}


def test_an_account_without_usage_has_its_fees_and_two_plans_have_their_own(books: Books, tmp_path: Path) -> None:
    account(books)
    account(books, "pro", datetime(2026, 10, 11, tzinfo=UTC))
    costs(books, flat_fee="31")
    costs(books, "pro", flat_fee="62", minimum_amount="93")
    books.end(OCTOBER)
    rows = exported(books, tmp_path)
    assert fees(rows) == [
        ("Purchase", "flat fee of the plan basic", 10, None),
        ("Purchase", "flat fee of the plan pro", 42, None),
        ("Adjustment", "up to the minimum of the plan pro", 21, None),
    ]
    names = ("ServiceName", "ChargeFrequency", "SkuId", "SkuMeter", "SkuPriceId", "PricingQuantity", "PricingUnit")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("basic", "Recurring", "basic/flat", "flat fee", "basic/flat", 1, "Months"),
        ("pro", "Recurring", "pro/flat", "flat fee", "pro/flat", 1, "Months"),
        ("pro", "One-Time", None, None, None, None, None),
    ]
    assert {(row["ChargePeriodStart"].day, row["ConsumedQuantity"], row["x_Model"]) for row in rows} == {
        (1, None, None)
    }


def test_included_units_are_consumed_on_their_days_and_credited_for_the_month(books: Books, tmp_path: Path) -> None:
    account(books)
    costs(books, included={"input_tokens": "1500"}, maximum_amount="3")
    books.end(OCTOBER)
    for day in (2, 5):
        books.use(1_000, datetime(2026, 10, day, tzinfo=UTC), PRICES["basic"], "a")
    rows = exported(books, tmp_path)
    assert fees(rows) == [
        ("Credit", "input_tokens of sonnet, included in the plan", -15, None),
        ("Adjustment", "above the maximum of the plan basic", -2, None),
    ]
    assert [row["ConsumedQuantity"] for row in rows] == [1_000, 1_000, None, None]
    assert sum(row["BilledCost"] for row in rows) == 3

    books.close(at=LATER)
    assert {row["InvoiceId"] for row in exported(books, tmp_path)} == {"weir-1"}
    assert sum(row["BilledCost"] for row in exported(books, tmp_path)) == 3


@pytest.mark.parametrize(("included", "lines"), [("1500", {"1", "2", "3"}), ("2000", {"1"})])
def test_each_row_has_a_line_of_the_invoice_also_where_the_plan_includes_all_units(
    books: Books, tmp_path: Path, included: str, lines: set[str]
) -> None:
    account(books)
    costs(books, included={"input_tokens": included}, maximum_amount="3")
    books.use(2_000, datetime(2026, 10, 2, tzinfo=UTC), PRICES["basic"], "a")
    books.end(OCTOBER)
    books.close(at=LATER)
    charges, details, _ = focus_1_4.exported(books.database, tmp_path, OCTOBER)
    assert {row["InvoiceId"] for row in charges} == {"weir-1"}
    assert {row["InvoiceDetailId"] for row in charges} <= {row["InvoiceDetailId"] for row in details} == lines


def test_included_units_of_a_price_with_tiers_are_a_row_that_costs_nothing(books: Books, tmp_path: Path) -> None:
    account(books)
    costs(books, included={"input_tokens": "30"})
    tiers = '{"kind":"graduated","tiers":[{"up_to":"100","unit_price":"1"},{"unit_price":"2"}]}'
    with books.connection.transaction():
        books.connection.execute(
            "INSERT INTO price_ladders VALUES (20, 'basic', 'm*', 'input_tokens', 'EUR', %s, NULL, %s)", [BEGINS, tiers]
        )
    without: dict[str, Any] = {"input_tokens_unit_price": None, "input_tokens_amount": None}
    books.use(150, price=Price(20, Decimal()), account="a", model="m1", **without)
    books.end(OCTOBER)
    rows = exported(books, tmp_path)
    names = ("ChargeDescription", "ConsumedQuantity", "ContractedUnitPrice", "BilledCost")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("input_tokens of m*, included", 30, 0, 0),
        ("input_tokens of m*, 1: up to 100", 100, 1, 100),
        ("input_tokens of m*, 2: above 100", 20, 2, 40),
    ]
    books.close(at=LATER)
    assert sum(row["BilledCost"] for row in exported(books, tmp_path)) == 140


def test_terms_that_are_backdated_after_the_close_correct_the_fee_on_the_next_invoice(
    books: Books, tmp_path: Path
) -> None:
    account(books)
    costs(books, flat_fee="31")
    books.end(OCTOBER)
    books.close(at=LATER)
    before = exported(books, tmp_path)
    costs(books, since=BEGINS + timedelta(days=10), flat_fee="62")
    assert exported(books, tmp_path) == before, "the invoice stays as it is"
    books.end(NOVEMBER)
    books.close(NOVEMBER, at=LATER)
    rows = exported(books, tmp_path, NOVEMBER)
    assert fees(rows) == [
        ("Purchase", "flat fee of the plan basic", 62, "weir-2"),
        ("Purchase", "flat fee of the plan basic, line 2 of weir-2", -31, "weir-2"),
        ("Purchase", "flat fee of the plan basic, line 3 of weir-2", 52, "weir-2"),
    ]
    assert [(row["ChargeClass"], row["ChargePeriodStart"].month, row["ContractedUnitPrice"]) for row in rows] == [
        (None, 11, 62),
        ("Correction", 10, None),
        ("Correction", 10, None),
    ]
    assert exported(books, tmp_path) == before


def test_a_voided_invoice_gives_its_fees_back_to_the_month(books: Books, tmp_path: Path) -> None:
    account(books)
    costs(books, flat_fee="0.005")
    books.end(OCTOBER)
    books.close(at=LATER)
    assert [row[2] for row in fees(exported(books, tmp_path))] == [0]
    void(books.database, "weir-1", made_by="anna", reason="wrong address", at=LATER)
    assert [row[2:] for row in fees(exported(books, tmp_path))] == [(Decimal("0.005"), None)]


def test_a_plan_whose_usage_is_of_no_known_plan_is_refused_until_it_is_known_or_invoiced(
    books: Books, tmp_path: Path
) -> None:
    account(books)
    costs(books, flat_fee="1", minimum_amount="20")
    books.end(OCTOBER)
    books.use(1_500, price=Price(9, Decimal("0.01")), account="a")
    with pytest.raises(CannotExport, match="what the plan basic costs a depends on usage whose plan or amount"):
        exported(books, tmp_path)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
    with books.connection.transaction():
        rung(books, Price(9, Decimal("0.01")), "basic")
    assert sum(row["BilledCost"] for row in exported(books, tmp_path)) == 20

    books.close(at=LATER)
    books.use(1_500, price=Price(10, Decimal("0.01")), account="a")
    late = exported(books, tmp_path)
    assert sum(row["BilledCost"] for row in late) == 20, "the invoice has its fees, whatever comes later"


def test_fees_in_a_currency_that_comes_after_the_invoice_are_counted_on_the_later_invoice_alone(
    books: Books, tmp_path: Path
) -> None:
    account(books)
    costs(books, flat_fee="31")
    books.end(OCTOBER)
    books.close(at=LATER)
    with books.connection.transaction():
        books.connection.execute(
            "INSERT INTO catalog.prices (plan, model, meter, currency, effective_from, terms)"
            " SELECT plan, model, meter, 'USD', effective_from, terms FROM catalog.prices"
        )
        books.connection.execute(
            "UPDATE catalog.accounts SET currency = 'USD', effective_from = %s", [BEGINS + timedelta(days=16)]
        )
    october = exported(books, tmp_path)
    books.end(NOVEMBER)
    books.close(NOVEMBER, at=LATER)
    sums: defaultdict[str, Decimal] = defaultdict(Decimal)
    for row in [*october, *exported(books, tmp_path, NOVEMBER)]:
        sums[row["BillingCurrency"]] += row["BilledCost"]
    issued = books.rows("SELECT currency, sum(total) AS total FROM invoices GROUP BY currency")
    assert sums == {row["currency"]: row["total"] for row in issued}
    assert sums == {"EUR": 16, "USD": 46}
