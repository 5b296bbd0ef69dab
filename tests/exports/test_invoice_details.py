"""FOCUS 1.4: each line of an invoice is a row of Invoice Detail, and Billing Period says which months are closed.

That the rows of Cost and Usage add up to each line is checked with random quarters (`test_invoiced_focus`,
`tests/pipelines/test_money_of_plans.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from jobs.close.config import CloseConfig
from jobs.close.void import void
from tests.exports.focus_1_4 import exported
from tests.exports.focus_rules import DETAIL_COLUMNS, broken_details, wrong_columns
from tests.pipelines.billing import Price
from tests.pipelines.closing import NOON, NOVEMBER, OCTOBER, Books, books_of

LATER = NOON + timedelta(days=40)


@pytest.fixture
def books(database: str) -> Iterator[Books]:
    """acme in Berlin and bolt in Tokyo; only acme is closed."""
    for made in books_of(database):
        made.open("acme", timezone="Europe/Berlin")
        made.open("bolt", "JPY", "Asia/Tokyo")
        made.use(1_001, account="acme")
        made.use(100_000, account="bolt", currency="JPY")
        made.end(OCTOBER)
        made.close(OCTOBER, ["acme"])
        yield made


def test_a_line_says_what_it_is_of_and_what_it_corrects(books: Books, tmp_path: Path) -> None:
    books.use(2_000, NOON + timedelta(hours=1))
    books.use(10, NOON + timedelta(hours=1), Price(8, Decimal("0.5")))
    books.end(NOVEMBER)
    books.close(NOVEMBER, ["acme"], config=CloseConfig(write_off_below={"EUR": Decimal(100)}))
    october, november = (exported(books.database, tmp_path, month) for month in (OCTOBER, NOVEMBER))
    names = list(october.details[0])
    assert {name for name in names if not name.startswith("x_")} == DETAIL_COLUMNS
    assert names == sorted(names)
    assert wrong_columns(list(october.charges[0]), "1.4") == set()
    told = ("InvoiceId", "InvoiceDetailId", "BilledCost", "ChargeCategory", "ReferenceInvoiceId", "x_ChargeClass")
    assert [tuple(row[name] for name in told) for row in october.details + november.details] == [
        ("weir-1", "1", Decimal("1.50"), "Usage", "weir-1", None),
        ("weir-2", "1", Decimal("-1.50"), "Usage", "weir-1", "Correction"),
        ("weir-2", "2", Decimal("4.50"), "Usage", "weir-1", "Correction"),
        ("weir-2", "3", Decimal("5.00"), "Usage", "weir-2", "Correction"),
        ("weir-2", "4", Decimal("-8.00"), "Adjustment", "weir-2", "Correction"),
    ]
    assert [row["InvoiceDetailDescription"] for row in november.details] == [
        "input_tokens of sonnet, 2026-10: line 1 of weir-1",
        "input_tokens of sonnet, 2026-10: line 1 of weir-1",
        "input_tokens of sonnet, 2026-10: later",
        "write off, 2026-10: later",
    ]
    assert json.loads(november.details[0]["InvoiceDetailGrain"]) == {
        "x_BillingMonth": "2026-10",
        "ServiceName": "sonnet",
        "SkuId": "sonnet/input_tokens",
        "SkuMeter": "input_tokens",
        "x_PriceVersion": "7",
    }
    assert {row["PaymentTerms"] for row in november.details} == {"Net 30"}
    # What came after the invoice is on none in the file of its month.
    assert {(row["InvoiceId"], row["InvoiceDetailId"]) for row in october.charges if row["x_LocalDate"]} == {
        *((None, None), ("weir-1", "1"))
    }


def test_of_a_voided_invoice_nothing_is_owed_and_its_lines_stay(books: Books, tmp_path: Path) -> None:
    void(books.database, "weir-1", made_by="anna", reason="wrong address", at=LATER)
    (line,) = exported(books.database, tmp_path, OCTOBER).details
    assert (line["InvoiceIssueStatus"], line["BilledCost"], line["x_VoidedCost"]) == ("Voided", 0, Decimal("1.50"))
    assert line["InvoiceDetailLastUpdated"] == LATER > line["InvoiceIssueDate"]
    books.close(OCTOBER, ["acme"], reissues=True, reason="right address")
    found = exported(books.database, tmp_path, OCTOBER).details
    assert [(row["InvoiceId"], row["BilledCost"], row["x_ReplacesInvoiceId"]) for row in found] == [
        *(("weir-1", 0, None), ("weir-2", Decimal("1.50"), "weir-1"))
    ]


def statuses(books: Books, folder: Path) -> dict[tuple[datetime, str], str]:
    """By start and issuer."""
    rows = exported(books.database, folder, OCTOBER).periods
    return {(row["BillingPeriodStart"], row["InvoiceIssuerName"]): row["BillingPeriodStatus"] for row in rows}


def test_a_billing_period_is_closed_when_all_that_have_anything_to_bill_have_their_invoice(
    books: Books, tmp_path: Path
) -> None:
    berlin, tokyo = datetime(2026, 9, 30, 22, tzinfo=UTC), datetime(2026, 9, 30, 15, tzinfo=UTC)
    assert statuses(books, tmp_path) == {
        (tokyo, "Example Inc."): "Open",
        **dict.fromkeys([(berlin, "Example Inc."), (berlin, "weir")], "Closed"),
    }
    books.close(OCTOBER)
    assert set(statuses(books, tmp_path).values()) == {"Closed"}
    void(books.database, "weir-2", made_by="anna", reason="wrong address", at=LATER)
    found = statuses(books, tmp_path)
    assert {status for (start, _), status in found.items() if start == tokyo} == {"Open"}
    assert {status for (start, _), status in found.items() if start == berlin} == {"Closed"}


def test_a_billing_period_is_of_each_issuer_also_where_another_one_has_issued_again(
    books: Books, tmp_path: Path
) -> None:
    books.use(3_000, account="bolt", currency="USD")
    books.close(OCTOBER, ["bolt"])
    issued = {row["currency"]: row["invoice"] for row in books.rows("SELECT * FROM invoices WHERE account = 'bolt'")}
    void(books.database, issued["USD"], made_by="anna", reason="sold by another company", at=LATER)
    aster = CloseConfig(issuer="aster")
    books.close(OCTOBER, ["bolt"], reissues=True, reason="sold by another company", config=aster)
    tokyo = datetime(2026, 9, 30, 15, tzinfo=UTC)
    issuers = ["Example Inc.", "aster", "weir"]
    assert {issuer: status for (start, issuer), status in statuses(books, tmp_path).items() if start == tokyo} == (
        dict.fromkeys(issuers, "Closed")
    )
    void(books.database, "aster-1", made_by="anna", reason="wrong address", at=LATER)
    assert {issuer: status for (start, issuer), status in statuses(books, tmp_path).items() if start == tokyo} == (
        dict.fromkeys(issuers, "Open")
    )


def test_a_billing_period_that_is_not_over_is_open(books: Books, tmp_path: Path) -> None:
    books.reach(datetime(2026, 10, 20, tzinfo=UTC))
    assert set(statuses(books, tmp_path).values()) == {"Open"}


def test_the_rules_of_invoice_detail_find_what_breaks_them(books: Books, tmp_path: Path) -> None:
    charges, (line,), _ = exported(books.database, tmp_path, OCTOBER)
    mine = [row for row in charges if row["InvoiceId"] is not None]
    wrong = {"BilledCost": Decimal("1.51")}, {"PaymentTerms": None}, {"InvoiceIssueStatus": "Paid"}
    assert all(broken_details([{**line, **change}], mine) for change in wrong)
    assert broken_details([], mine)
    assert broken_details([line], [{**row, "InvoiceDetailId": None} for row in mine])


def test_the_command_asks_for_payment_terms_and_names_all_files(books: Books, tmp_path: Path) -> None:
    environment = {
        "WEIR_TABLES": str(tmp_path),
        "WEIR_KAFKA_BOOTSTRAP": "none:9092",
        "WEIR_POSTGRES_URL": books.database,
    }
    command = ["export", "focus", "--period", "2026-10", "--to", str(tmp_path / "out"), "--focus", "1.4"]
    command += ["--issuer", "Example", "--format", "csv"]
    refused = CliRunner().invoke(app, command, env=environment)
    assert refused.exit_code == 2
    assert "--payment-terms" in refused.stderr
    done = CliRunner().invoke(app, [*command, "--payment-terms", "Net 30"], env=environment)
    assert done.exit_code == 0, done.stderr
    for name in ("cost_and_usage", "invoice_detail", "billing_period"):
        file = f"{name}/billing_period=2026-10/{name}.csv"
        assert f"{tmp_path}/out/{file} " in f"{done.stdout} ".replace("\n", " ")
        document = json.loads((tmp_path / f"out/metadata/{name}/billing_period=2026-10.json").read_text())
        assert document["Schema"]["FocusVersion"] == "1.4"
        assert document["DatasetInstance"]["FocusDatasetId"] == name.title().replace("_", "")
        header = (tmp_path / "out" / file).read_text().splitlines()[0]
        assert header.split(",") == [column["ColumnName"] for column in document["Schema"]["ColumnDefinition"]]
