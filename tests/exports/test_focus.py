"""`weir export focus` on a real Postgres: the rules of FOCUS by id, and the exact sums of the bills.

Method: random usage of accounts with parents, zones, dimensions and no price; the rules import nothing of Weir.
"""

from __future__ import annotations

import csv
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.types.json import Jsonb
from typer.testing import CliRunner

from cli.main import app
from cli.reading import read_only
from jobs.exports.columns import Focus
from jobs.exports.files import CannotExport, destination_of
from jobs.exports.focus import Exported, FocusExport, export_focus
from jobs.exports.month import Seller
from jobs.exports.rows_file import FileFormat
from jobs.queries.bills import read_month
from tests.database_rows import progress, write
from tests.exports.focus_rules import broken, read_csv_row, wrong_columns

MONTH = date(2026, 10, 1)
NOW = datetime(2026, 11, 2, 12, 34, 56, tzinfo=UTC)
SEATS = {
    "meter": "seats",
    "unit": "seat",
    "sums": "user_id",
    "aggregation": "unique",
    "period": "month",
    "is_declared": True,
}
ZONES = {"acme": "Europe/Berlin", "acme-eu": "Europe/Berlin", "acme-in": "Asia/Kolkata", "solo": "America/New_York"}
PARENTS = {"acme-eu": "acme", "acme-in": "acme-eu"}
DIMENSIONS = [None, {"region": "eu-1"}, {"region": "us-2", "user_id": 'anna, "a"', "api_key_id": "=1+1"}]
EXPORT = FocusExport(MONTH, Focus.V1_3, FileFormat.PARQUET, Seller("Example Inc.", "Some Cloud"))


def _catalog(database: str) -> None:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    write(database, "meters", SEATS)
    for account, zone in ZONES.items():
        row = {"account": account, "name": account.title(), "plan": "p", "currency": "EUR", "timezone": zone}
        tags = {"tags": Jsonb({"team": "Zürich", "weird key": ""} if account == "acme-eu" else {})}
        write(database, "catalog.accounts", row | tags | {"parent": PARENTS.get(account)})


def _days(chance: random.Random, count: int) -> Iterator[dict[str, Any]]:
    seen = set()
    for _ in range(count):
        account, meter = chance.choice([*ZONES, "nobody"]), chance.choice(["requests", "input_tokens", "seats"])
        version = None if account == "nobody" else chance.choice([None, -1, 0, 7, 8, 9])
        price = {None: None, -1: 0, 0: 0, 7: Decimal("0.000003141593"), 8: 0, 9: Decimal("12345678.000000000001")}[
            version
        ]
        day = date(2026, 9, 29) + timedelta(days=chance.randrange(35))
        dimensions = chance.choice(DIMENSIONS)
        model = chance.choice(["small-1", 'odd, "x"', None])
        key = (account, day, model, meter, version, str(dimensions))
        if key in seen:
            continue
        seen.add(key)
        first = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        yield {
            "account": account,
            "day": day,
            "model": model,
            "meter": meter,
            "price_version": version,
            "currency": None if account == "nobody" else "EUR",
            "dimensions": None if dimensions is None else Jsonb(dimensions),
            "is_other": False,
            "quantity": chance.choice([-3, 1, Decimal("0.000001"), 10**9, Decimal("99999999999.999999")]),
            "unit_price": price,
            "first_window": first,
            "last_window_end": first + timedelta(minutes=1),
            "corrected": chance.random() < 0.3,
        }


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Decimals of the test keep all digits, too."""
    with localcontext(prec=1_000):
        yield


@pytest.fixture
def billed(database: str) -> str:
    """A database with usage around a month."""
    _catalog(database)
    write(database, "usage_days", *_days(random.Random(7), 600))
    progress(database, "billing", NOW)
    return database


def exported(database: str, folder: Path, export: FocusExport = EXPORT) -> tuple[list[dict[str, Any]], Exported]:
    with read_only(database) as connection:
        done = export_focus(connection, destination_of(str(folder), {}), export, NOW, lambda _: None)
    path = folder / done.file
    if export.form is FileFormat.PARQUET:
        return pq.read_table(path).to_pylist(), done
    with path.open(newline="", encoding="utf-8") as file:
        return [read_csv_row(row) for row in csv.DictReader(file)], done


@pytest.mark.parametrize("focus", Focus)
@pytest.mark.parametrize("form", FileFormat)
def test_a_month_keeps_to_the_rules_of_focus(billed: str, tmp_path: Path, focus: Focus, form: FileFormat) -> None:
    rows, done = exported(billed, tmp_path, replace(EXPORT, focus=focus, form=form))
    assert len(rows) == done.totals.rows > 300
    assert {row["ChargeCategory"] for row in rows} == {"Usage"}
    assert wrong_columns(list(rows[0]), focus) == set()
    assert broken(rows) == {}


def test_the_rules_find_what_breaks_them(billed: str, tmp_path: Path) -> None:
    rows, _ = exported(billed, tmp_path)
    row = next(row for row in rows if row["BilledCost"] and row["SubAccountId"] and row["RegionId"])
    for wrong, rule in (
        ({"BilledCost": None}, "BilledCost-C-003-M"),
        ({"ContractedCost": row["ContractedCost"] + Decimal("0.000000000000000001")}, "ContractedCost-C-009-C"),
        ({"ListUnitPrice": None}, "ListUnitPrice-C-005-C"),
        ({"ChargeClass": "correction"}, "ChargeClass-C-005-C"),
        ({"SubAccountName": None}, "SubAccountName-C-004-C"),
        ({"RegionName": None}, "RegionName-C-004-C"),
        ({"SkuId": "other"}, "SkuPriceId-C-008-M"),
        ({"PricingUnit": "token"}, "UnitFormat-A-001-M"),
        ({"Tags": '{"a": {"b": 1}}'}, "KeyValueFormat-A-001-M"),
        ({"ChargePeriodEnd": row["ChargePeriodStart"]}, "ChargePeriodEnd-C-004-M"),
    ):
        assert rule in broken([*rows, row | wrong]), rule
    assert wrong_columns(["x_Model", *rows[0]], "1.3") == {"the order"}


def test_the_costs_are_those_of_the_bills_to_the_last_digit(billed: str, tmp_path: Path) -> None:
    sums: defaultdict[Any, list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 2)
    rows, done = exported(billed, tmp_path)
    for row in rows:
        version = json.loads(row["SkuPriceDetails"] or "{}").get("x_PriceVersion")
        account = row["SubAccountId"] or row["BillingAccountId"]
        key = (account, row["x_Model"], row["SkuMeter"], None if version is None else int(version))
        quantity, cost = sums[key]
        sums[key] = [quantity + row["PricingQuantity"], cost + row["BilledCost"]]
    with read_only(billed) as connection:
        lines = read_month(connection, MONTH).lines
    expected = {
        (line["account"], line["model"], line["meter"], line["price_version"]): [line["quantity"], line["amount"] or 0]
        for line in lines
        if line["price_version"] not in (0, -1)
    }
    assert {key: found for key, found in sums.items() if found[0]} == expected
    assert done.totals.costs["EUR"] == sum((row["BilledCost"] for row in rows), Decimal(0))
    assert done.totals.unpriced_rows == sum(row["x_Unpriced"] for row in rows) > 0


def test_parquet_and_csv_say_the_same(billed: str, tmp_path: Path) -> None:
    parquet, _ = exported(billed, tmp_path / "one")
    text, _ = exported(billed, tmp_path / "two", replace(EXPORT, form=FileFormat.CSV))
    for row in parquet:
        for name, value in row.items():
            row[name] = str(value).lower() if isinstance(value, bool) else str(value) if type(value) is date else value
    assert text == [{name: value if value != "" else None for name, value in row.items()} for row in parquet]


def test_usage_is_on_the_bill_of_the_topmost_account_and_on_its_own_day(billed: str, tmp_path: Path) -> None:
    rows, _ = exported(billed, tmp_path)
    heads = {(row["SubAccountId"], row["BillingAccountId"]) for row in rows}
    assert heads == {(None, "acme"), ("acme-eu", "acme"), ("acme-in", "acme"), (None, "solo"), (None, "nobody")}
    indian = next(row for row in rows if row["SubAccountId"] == "acme-in" and row["SkuMeter"] == "requests")
    assert indian["ChargePeriodStart"] + timedelta(hours=5, minutes=30) == datetime.combine(
        indian["x_LocalDate"], datetime.min.time(), UTC
    )
    assert indian["BillingPeriodStart"] == datetime(2026, 9, 30, 22, tzinfo=UTC)  # acme's, in Berlin
    seats = next(row for row in rows if row["SkuMeter"] == "seats" and row["BillingAccountId"] == "solo")
    assert (seats["ChargePeriodStart"], seats["ChargePeriodEnd"]) == (
        datetime(2026, 10, 1, 4, tzinfo=UTC),
        datetime(2026, 11, 1, 4, tzinfo=UTC),
    )
    tagged = next(row for row in rows if row["SubAccountId"] == "acme-eu" and row["x_CredentialId"])
    assert json.loads(tagged["Tags"]) == {
        "team": "Zürich",
        "weird key": "",
        "weir/region": "us-2",
        "weir/user_id": 'anna, "a"',
        "weir/api_key_id": "=1+1",
    }


def test_a_second_run_replaces_the_files_of_the_month_and_no_others(billed: str, tmp_path: Path) -> None:
    exported(billed, tmp_path, replace(EXPORT, month=date(2026, 9, 1)))
    _, first = exported(billed, tmp_path, replace(EXPORT, form=FileFormat.CSV))
    (tmp_path / first.file).with_name("part-0.parquet").touch()  # of another tool
    with psycopg.connect(billed) as connection:
        connection.execute("DELETE FROM usage_days WHERE account <> 'solo' AND day >= '2026-10-01'")
    rows, second = exported(billed, tmp_path)
    assert {row["BillingAccountId"] for row in rows} == {"solo"}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        second.file,
        "cost_and_usage/billing_period=2026-09/cost_and_usage.parquet",
        "metadata/cost_and_usage/billing_period=2026-09.json",
        "metadata/cost_and_usage/billing_period=2026-10.json",
    }


def test_an_export_that_fails_leaves_the_file_of_the_run_before(billed: str, tmp_path: Path) -> None:
    _, done = exported(billed, tmp_path)
    before = (tmp_path / done.file).read_bytes()
    with psycopg.connect(billed) as connection:
        connection.execute("UPDATE usage_days SET quantity = 1e25 WHERE price_version = 9 AND account = 'solo'")
    with pytest.raises(CannotExport, match="takes no value of more digits"):
        exported(billed, tmp_path)
    assert (tmp_path / done.file).read_bytes() == before
    rows, _ = exported(billed, tmp_path, replace(EXPORT, form=FileFormat.CSV))
    assert max(row["BilledCost"] for row in rows) == Decimal(10) ** 25 * Decimal("12345678.000000000001")


def test_the_metadata_describes_the_file(billed: str, tmp_path: Path) -> None:
    rows, done = exported(billed, tmp_path)
    found = json.loads((tmp_path / "metadata/cost_and_usage/billing_period=2026-10.json").read_text())
    assert found["x_File"] == done.file
    assert (found["x_Rows"], found["x_UnpricedRows"]) == (len(rows), done.totals.unpriced_rows)
    schema = found["Schema"]
    assert (schema["FocusVersion"], schema["CreationDate"]) == ("1.3", "2026-11-02T12:34:56Z")
    assert [column["ColumnName"] for column in schema["ColumnDefinition"]] == list(rows[0])
    assert {column["DataType"] for column in schema["ColumnDefinition"]} == {
        *("STRING", "DECIMAL", "DATETIME", "JSON", "BOOLEAN", "DATE")
    }
    # Its windows close at the end of their grace, which is after the month's.
    assert found["Recency"]["DatasetInstanceComplete"] is done.is_complete is True


def test_the_command_says_what_is_in_the_file(billed: str, tmp_path: Path) -> None:
    environment = {"WEIR_TABLES": str(tmp_path), "WEIR_KAFKA_BOOTSTRAP": "none:9092", "WEIR_POSTGRES_URL": billed}
    command = ["export", "focus", "--period", "2026-10", "--to", str(tmp_path / "out")]
    refused = CliRunner().invoke(app, command, env=environment)
    assert refused.exit_code == 2
    assert "--issuer" in refused.stderr
    done = CliRunner().invoke(app, [*command, "--issuer", "Example", "--format", "csv"], env=environment)
    assert done.exit_code == 0, done.stderr
    assert f"rows are in {tmp_path}/out/cost_and_usage/billing_period=2026-10/cost_and_usage.csv" in done.stdout
    assert "have no price (x_Unpriced)" in done.stderr
    nowhere = CliRunner().invoke(app, [*command[:-1], "nowhere://x", "--issuer", "Example"], env=environment)
    assert nowhere.exit_code == 1
    assert "name a folder, or an address such as s3://bucket/prefix" in str(nowhere.exception)


def test_usage_whose_tiers_are_not_known_is_refused_and_never_exported_at_nothing(billed: str, tmp_path: Path) -> None:
    exported(billed, tmp_path)
    before = sorted(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    with psycopg.connect(billed, autocommit=True) as connection:
        connection.execute("UPDATE usage_days SET unit_price = NULL WHERE price_version = 9 AND account = 'solo'")
    with pytest.raises(CannotExport, match="tiers or packages for solo"):
        exported(billed, tmp_path)
    assert sorted(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()) == before
    exported(billed, tmp_path, replace(EXPORT, accounts=("acme",)))


def test_a_month_is_not_complete_before_it_ends_for_accounts_in_no_catalog(database: str, tmp_path: Path) -> None:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    row = {"account": "east", "name": "East", "plan": "p", "currency": "EUR", "timezone": "Asia/Kolkata"}
    write(database, "catalog.accounts", row)
    progress(database, "billing", datetime(2026, 11, 1, tzinfo=UTC))
    # The windows of before midnight wait for their grace.
    assert not exported(database, tmp_path)[1].is_complete
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE positions SET frontier = %s", [NOW])
    assert exported(database, tmp_path)[1].is_complete
