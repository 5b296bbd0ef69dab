"""Charges in FOCUS add up to the invoices to the cent, whatever came after them, also with tiers and packages.

Method: months are closed between random usage; the sums of the files are compared with the stored invoices and bills.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cli.reading import read_only
from jobs.close.config import CloseConfig
from jobs.close.void import void
from jobs.exports.columns import Focus
from jobs.exports.files import destination_of
from jobs.exports.focus import FocusExport, export_focus
from jobs.exports.invoiced import ROUNDING, SINCE
from jobs.exports.month import Seller
from jobs.exports.rows_file import FileFormat
from jobs.queries.bills import read_month
from metering.plan_terms import PLAN_MODEL
from metering.price_tiers import PriceTerms
from tests.database_rows import write
from tests.exports import focus_1_4
from tests.exports.focus_rules import broken, wrong_columns
from tests.pipelines.billing import Price
from tests.pipelines.closing import NOON, NOVEMBER, OCTOBER, Books, books_of

MONTHS = (OCTOBER, NOVEMBER, date(2026, 12, 1))
BEGINS = datetime(2026, 1, 1, tzinfo=UTC)
ACCOUNTS = {"acme": ("EUR", "UTC"), "bolt": ("JPY", "Asia/Tokyo"), "core": ("EUR", "America/Lima")}
PRICES = [Price(number, Decimal(text)) for number, text in enumerate(["0.000003141593", "0.0125", "0.777777777777"], 1)]
TIERED: dict[str, Any] = {"input_tokens_unit_price": None, "input_tokens_amount": None}
TERMS = {
    11: {
        "kind": "graduated",
        "tiers": [{"up_to": "5000", "unit_price": "0.001111", "flat_price": "3"}, {"unit_price": "0.0007"}],
    },
    12: {"kind": "volume", "tiers": [{"up_to": "9000", "unit_price": "0.0013"}, {"unit_price": "0.0011"}]},
    13: {"kind": "package", "package_size": "1000", "package_price": "0.335"},
    14: {"kind": "package", "package_size": "1000", "package_price": "0"},
}
CONFIG = CloseConfig(write_off_below={"EUR": Decimal("0.30")})
EXPORT = FocusExport(OCTOBER, Focus.V1_3, FileFormat.PARQUET, Seller("Example Inc.", "Some Cloud"))
Row = Mapping[str, Any]


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with localcontext(prec=1_000):
        yield


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    for book in books_of(database):
        for version, terms in TERMS.items():
            rung = {"price_version": version, "plan": "pro", "model": f"m{version}*", "meter": "input_tokens"}
            priced = {"currency": "EUR", "effective_from": OCTOBER, "terms": PriceTerms.of(terms).text}
            write(database, "price_ladders", {**rung, **priced, "unit_price": None})
        yield book


def exported(books: Books, folder: Path, month: date = OCTOBER) -> list[Row]:
    export = FocusExport(month, EXPORT.focus, EXPORT.form, EXPORT.seller)
    with read_only(books.database) as connection:
        done = export_focus(connection, destination_of(str(folder), {}), export, NOON, lambda _: None)
    rows: list[Row] = pq.read_table(folder / done.file).to_pylist()
    return rows


def use(books: Books, chance: random.Random, month: date, quantity: int) -> None:
    """Usage of a random account at a random price."""
    account = chance.choice(list(ACCOUNTS))
    currency, zone = ACCOUNTS[account]
    at = datetime(month.year, month.month, 2, 12, tzinfo=UTC) + timedelta(days=chance.randrange(26))
    version = chance.choice(list(TERMS)) if currency == "EUR" and chance.random() < 0.5 else None
    price = chance.choice(PRICES) if version is None else Price(version, Decimal())
    if version is None:
        price = Price(price.version + 100 * (1 if currency == "EUR" else 100), price.unit_price)
    other = {} if version is None else TIERED
    model = chance.choice(["opus", "sonnet"]) if version is None else f"m{version}-{chance.choice('ab')}"
    books.use(quantity, at, price, account, currency=currency, timezone=zone, model=model, **other)


def costs(rows: Sequence[Row], name: str) -> Mapping[str, Decimal]:
    """The sums of BilledCost by a column, of rows that have it."""
    sums: defaultdict[str, Decimal] = defaultdict(Decimal)
    for row in rows:
        if row[name] is not None:
            sums[row[name]] += row["BilledCost"]
    return sums


def bills(books: Books, month: date) -> Mapping[str, Decimal]:
    """What accounts owe for a month, exact."""
    sums: defaultdict[str, Decimal] = defaultdict(Decimal)
    with read_only(books.database) as connection:
        for line in read_month(connection, month).lines:
            sums[line["account"]] += line["amount"]
    return sums


def cost_a_plan(books: Books, chance: random.Random) -> None:
    """The plan of all accounts has a flat fee, limits and included units, in both currencies."""
    for currency, size in (("EUR", 1), ("JPY", 100)):
        amounts = [f"{Decimal(chance.randint(1, 9_999)).scaleb(-2) * size:f}" for _ in range(3)]
        terms = {"kind": "plan", "flat_fee": amounts[0], "included": {"input_tokens": str(chance.randint(1, 5_000))}}
        limit = chance.choice([{"minimum_amount": "300"}, {"maximum_amount": amounts[1]}, {"minimum_amount": "10"}])
        row = {"plan": "pro", "model": PLAN_MODEL, "meter": "requests", "currency": currency}
        write(books.database, "catalog.prices", {**row, "effective_from": BEGINS, "terms": json.dumps(terms | limit)})
        for price in PRICES:
            rung = {"plan": "pro", "model": "m", "meter": "input_tokens", "currency": currency, "terms": None}
            priced = {"price_version": price.version + 100 * size, "unit_price": price.unit_price}
            write(books.database, "price_ladders", {**rung, **priced, "effective_from": BEGINS})


@pytest.mark.few_in_ci(4)
@pytest.mark.parametrize("has_fees", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_the_costs_of_each_invoice_are_its_total_and_those_of_a_month_its_bill(
    books: Books, tmp_path: Path, seed: int, has_fees: bool
) -> None:
    chance = random.Random(seed)
    for account, (currency, zone) in ACCOUNTS.items():
        books.open(account, currency, zone)
    if has_fees:
        with books.connection.transaction():
            books.connection.execute("UPDATE catalog.account_history SET effective_from = %s", [BEGINS])
        cost_a_plan(books, chance)
    for number, month in enumerate(MONTHS):
        for _ in range(12):
            use(books, chance, month, chance.randint(1, 4_000))
        if number:
            for _ in range(chance.randint(0, 3)):
                use(books, chance, chance.choice(MONTHS[:number]), chance.randint(1, 4_000))
        books.end(month)
        books.close(month, config=CONFIG)
    if seed % 2:
        last = books.rows("SELECT invoice FROM invoices ORDER BY number DESC LIMIT 1")[0]["invoice"]
        void(books.database, last, made_by="test", reason="test", at=NOON + timedelta(days=99))
    use(books, chance, NOVEMBER, 999)

    sums: defaultdict[str, Decimal] = defaultdict(Decimal)
    for month in MONTHS:
        rows = exported(books, tmp_path, month)
        assert wrong_columns(list(rows[0]), "1.3") == set()
        assert broken(rows) == {}
        for invoice, cost in costs(rows, "InvoiceId").items():
            sums[invoice] += cost
        of_lines = focus_1_4.exported(books.database, tmp_path / "1.4", month)
        assert costs(of_lines.charges, "InvoiceId") == costs(rows, "InvoiceId")
        assert sum(row["BilledCost"] for row in of_lines.charges) == sum(row["BilledCost"] for row in rows)
        if not has_fees:
            used = [row for row in rows if row["ChargeClass"] is None and row["ChargeCategory"] != "Adjustment"]
            assert costs(used, "BillingAccountId") == bills(books, month)
    issued = books.rows(
        "SELECT invoice, total FROM invoices WHERE NOT EXISTS ("
        " SELECT FROM invoice_events AS v WHERE v.invoice = invoices.invoice AND v.state = 'Voided')"
    )
    assert sums == {row["invoice"]: row["total"] for row in issued}


def test_a_month_that_is_not_closed_costs_what_the_bill_says_with_fees_and_included_units(
    books: Books, tmp_path: Path
) -> None:
    chance = random.Random(5)
    for account, (currency, zone) in ACCOUNTS.items():
        books.open(account, currency, zone)
    with books.connection.transaction():
        books.connection.execute("UPDATE catalog.account_history SET effective_from = %s", [BEGINS])
    cost_a_plan(books, chance)
    for _ in range(20):
        use(books, chance, OCTOBER, chance.randint(1, 4_000))
    books.end(OCTOBER)
    rows = exported(books, tmp_path)
    assert broken(rows) == {}
    assert costs(rows, "BillingAccountId") == bills(books, OCTOBER)
    assert {row["ChargeCategory"] for row in rows} == {"Usage", "Purchase", "Credit", "Adjustment"}
    assert {row["InvoiceId"] for row in rows} == {None}
    assert sum(row["ConsumedQuantity"] or 0 for row in rows) == sum(
        row["quantity"] for row in books.rows("SELECT quantity FROM usage_days WHERE meter = 'input_tokens'")
    )


def test_what_came_after_the_invoice_is_taken_out_of_it_and_is_a_correction_of_the_next(
    books: Books, tmp_path: Path
) -> None:
    books.open()
    books.use(1_001)
    books.end(OCTOBER)
    books.close()
    books.use(2_000, NOON + timedelta(hours=1))
    books.use(10, NOON + timedelta(hours=1), Price(8, Decimal("0.5")))
    books.end(NOVEMBER)
    books.close(NOVEMBER)

    rows = exported(books, tmp_path)
    assert {row["InvoiceId"] for row in rows} == {"weir-1"}
    assert {row["InvoiceIssuerName"] for row in rows} == {"weir"}
    assert {row["ProviderName"] for row in rows} == {"Example Inc."}
    extra = [row for row in rows if row["ChargeCategory"] == "Adjustment"]
    assert sorted((row["BilledCost"], row["ChargeDescription"].partition(": ")[2]) for row in extra) == [
        *((Decimal("-5.0"), SINCE), (Decimal("-3.0"), SINCE), (Decimal("-0.0015"), ROUNDING))
    ]
    later = exported(books, tmp_path, NOVEMBER)
    assert [(row["BilledCost"], row["ConsumedQuantity"], row["ChargeDescription"]) for row in later] == [
        (Decimal("-1.50"), -1001, "input_tokens of sonnet, for line 1 of weir-1"),
        (Decimal("4.50"), 3001, "input_tokens of sonnet, for line 1 of weir-1"),
        (Decimal("5.00"), 10, "input_tokens of sonnet, after the invoice"),
    ]
    assert {row["ChargeClass"] for row in later} == {"Correction"}
    assert {(row["ChargePeriodStart"].month, row["BillingPeriodStart"].month) for row in later} == {(10, 11)}


def test_tiers_and_packages_are_rows_of_the_month_also_before_it_is_closed(books: Books, tmp_path: Path) -> None:
    books.open()
    for version in TERMS:
        books.use(6_500, NOON, Price(version, Decimal()), model=f"m{version}-a", **TIERED)
        books.use(500, NOON + timedelta(days=1), Price(version, Decimal()), model=f"m{version}-b", **TIERED)
    rows = exported(books, tmp_path)
    assert broken(rows) == {}
    names = ("x_Model", "ChargeCategory", "PricingQuantity", "PricingUnit", "ContractedUnitPrice", "BilledCost")
    found = [(*(row[name] for name in names), json.loads(row["SkuPriceDetails"])["x_Tier"]) for row in rows]
    assert found == [
        ("m11*", "Usage", 5_000, "Tokens", Decimal("0.001111"), Decimal("5.555"), "1: up to 5000"),
        ("m11*", "Purchase", 1, "Months", 3, 3, "1: up to 5000"),
        ("m11*", "Usage", 2_000, "Tokens", Decimal("0.0007"), Decimal("1.4"), "2: above 5000"),
        ("m12*", "Usage", 7_000, "Tokens", Decimal("0.0013"), Decimal("9.1"), "1: up to 9000"),
        ("m13*", "Usage", 7, "Packages", Decimal("0.335"), Decimal("2.345"), "packages of 1000"),
        ("m14*", "Usage", 0, "Packages", 0, 0, "packages of 1000"),
    ]
    assert {row["InvoiceId"] for row in rows} == {None}
    assert [row["ConsumedQuantity"] for row in rows] == [5_000, None, 2_000, 7_000, 7_000, 7_000]
    assert {(row["ChargePeriodStart"].day, row["ChargePeriodEnd"].day) for row in rows} == {(1, 1)}

    books.end(OCTOBER)
    books.close()
    closed = exported(books, tmp_path)
    assert {row["InvoiceId"] for row in closed} == {"weir-1"}
    (invoice,) = books.rows("SELECT total FROM invoices")
    assert sum(row["BilledCost"] for row in closed) == invoice["total"]


def test_a_voided_invoice_is_on_no_row(books: Books, tmp_path: Path) -> None:
    books.open()
    books.use(1_001)
    books.end(OCTOBER)
    books.close()
    void(books.database, "weir-1", made_by="anna", reason="wrong address", at=NOON + timedelta(days=40))
    (row,) = exported(books, tmp_path)
    assert (row["InvoiceId"], row["InvoiceIssuerName"], row["BilledCost"]) == (None, "Example Inc.", Decimal("1.5015"))
    books.close(reissues=True, reason="right address")
    assert {row["InvoiceId"] for row in exported(books, tmp_path)} == {"weir-2"}


@pytest.mark.parametrize("is_voided", [False, True])
def test_a_currency_that_comes_after_the_invoice_is_counted_on_the_later_invoice_alone(
    books: Books, tmp_path: Path, *, is_voided: bool
) -> None:
    books.open()
    books.use(1_001)
    books.end(OCTOBER)
    books.close()
    books.use(200, NOON, Price(8, Decimal("0.0333")), currency="USD")
    books.use(100, NOON, Price(11, Decimal()), model="m11-a", currency="USD", **TIERED)
    if is_voided:
        void(books.database, "weir-1", made_by="anna", reason="wrong address", at=NOON + timedelta(days=40))
    before = exported(books, tmp_path)
    assert costs(before, "BillingCurrency")["USD"] == 0
    if is_voided:
        books.close(reissues=True, reason="right address")
    books.end(NOVEMBER)
    books.close(NOVEMBER)
    later = exported(books, tmp_path, NOVEMBER)
    assert (broken(before), broken(later)) == ({}, {})
    assert costs([*exported(books, tmp_path), *later], "BillingCurrency") == {
        row["currency"]: row["total"]
        for row in books.rows(
            "SELECT currency, sum(total) AS total FROM invoices WHERE NOT EXISTS ("
            " SELECT FROM invoice_events AS v WHERE v.invoice = invoices.invoice AND v.state = 'Voided')"
            " GROUP BY currency"
        )
    }
