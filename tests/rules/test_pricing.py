"""Method: random catalogs with many versions, one per universe, priced in one batch; columns and rule must agree."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from jobs.joins.catalog_versions import account_versions, price_versions
from jobs.joins.config import JoinsConfig
from jobs.joins.memory import Memory, column_of
from jobs.joins.pricing import price
from jobs.joins.resolve import resolve
from jobs.joins.usage_rows import usage_rows
from jobs.streams import ACCOUNTS, PRICES, USAGE
from metering.meters import Meter
from metering.pricing import Version
from tests.metered import flat
from tests.specifications.pricing import account_as_of, price_as_of

ROOT = Path(__file__).parents[2]
START = datetime(2026, 1, 1, tzinfo=UTC)
Contract = tuple[str, str]
PriceKey = tuple[str, str, Meter]


def day(number: int) -> datetime:
    return START + timedelta(days=number)


CONFIG = JoinsConfig()
OUTCOMES = resolve(Memory.empty(CONFIG.carried).rows, None).schema


def outcome(account: str = "a", lsn: int = 100, at: datetime = START, **fields: Any) -> dict[str, Any]:
    return {
        "account": account,
        "request_id": f"r{lsn}",
        "outcome": "matched",
        "request_lsn": lsn - 1,
        "completion_lsn": lsn,
        "user_id": "u",
        "model": "m",
        "status": "completed",
        "event_time": at,
        "received_at": at,
        "input_tokens": Decimal(10**10),
        "output_tokens": Decimal(7),
    } | fields


def account_change(account: str, lsn: int, at: datetime, contract: Contract | None) -> dict[str, Any]:
    plan, currency = contract or (None, None)
    return {"lsn": lsn, "account": account, "plan": plan, "currency": currency, "effective_from": at} | {
        "deleted": contract is None
    }


def price_change(
    plan: str, lsn: int, at: datetime, unit_price: str | None, ends_at: datetime | None = None, **key: str
) -> dict[str, Any]:
    identity = {"plan": plan, "model": "m", "meter": "requests", "currency": "USD", **key}
    unit = None if unit_price is None else Decimal(unit_price)
    return {**identity, "lsn": lsn, "effective_from": at, "unit_price": unit, "deleted": unit is None} | {
        "ends_at": ends_at
    }


def carried(row: dict[str, Any], schema: pl.Schema) -> dict[str, Any]:
    """A row whose quantities are named by their columns, as joins carries it."""
    return {name: row.get(name, row.get(column_of(name))) for name in schema}


def priced(
    outcomes: list[dict[str, Any]],
    accounts: list[dict[str, Any]],
    prices: list[dict[str, Any]],
    config: JoinsConfig = CONFIG,
) -> list[dict[str, Any]]:
    """Flat rows (`tests.metered`), in the order of the outcomes."""
    schema = resolve(Memory.empty(config.carried).rows, None).schema
    rows = price(
        pl.DataFrame([carried(row, schema) for row in outcomes], schema=schema),
        config.declared,
        account_versions(pa.Table.from_pylist(accounts, schema=ACCOUNTS)),
        price_versions(pa.Table.from_pylist(prices, schema=PRICES)),
    )
    return [flat(row, sorted(config.meters)) for row in rows.to_pylist()]


@dataclass
class Universe:
    """The history of one account and of the prices of its plans, whose names are its own."""

    contracts: list[Version[Contract]]
    prices: dict[PriceKey, list[Version[Decimal]]]

    def expected(self, row: dict[str, Any]) -> dict[str, Any]:
        lsn = row["completion_lsn"]
        version = account_as_of(self.contracts, row["event_time"], lsn)
        plan, currency = (version.value if version else None) or (None, None)
        columns: dict[str, Any] = {"plan": plan, "currency": currency}
        for meter in Meter:
            quantity = row.get(meter) if meter is not Meter.REQUESTS else 1
            versions = [] if plan is None or currency is None else self.prices.get((plan, currency, meter), [])
            found = price_as_of(versions, row["event_time"], lsn) if quantity is not None else None
            unit = found.value if found else None
            columns[meter.value] = quantity
            columns[f"{meter}_price_version"] = found.lsn if found else None
            columns[f"{meter}_unit_price"] = unit
            columns[f"{meter}_amount"] = None if unit is None or quantity is None else quantity * unit
        return columns


def universe(random: Random, name: str) -> Universe:
    """Few days and many changes: the same `effective_from` again, deletions, backdated and later changes."""
    plans, currencies = [f"{name}-basic", f"{name}-pro"], ["USD", "EUR"]
    lsns = iter(range(10, 1000))

    def version(value: Any, *, ends: bool = False) -> Version[Any]:
        told = None if random.random() < (0.4 if ends else 0.2) else value
        ends_at = day(random.randint(-1, 5)) if ends and told is None and random.random() < 0.8 else None
        return Version(next(lsns), day(random.randint(0, 4)), told, ends_at)

    contracts: list[Version[Contract]] = []
    prices: dict[PriceKey, list[Version[Decimal]]] = {}
    for _ in range(random.choice([1, 4, 20])):
        if random.random() < 0.4:
            contracts.append(version((random.choice(plans), random.choice(currencies))))
        else:
            key = random.choice(plans), random.choice(currencies), random.choice([*Meter][:2])
            prices.setdefault(key, []).append(version(Decimal(random.randint(0, 10**6)) / 10**12, ends=True))
    return Universe(contracts, prices)


@pytest.mark.parametrize("seed", range(3))
def test_differential_columns_and_the_rule_price_alike(seed: int) -> None:
    random = Random(seed)
    universes = {f"account-{number}": universe(random, f"account-{number}") for number in range(150)}
    accounts = [
        account_change(name, v.lsn, v.effective_from, v.value) for name, u in universes.items() for v in u.contracts
    ]
    prices = [
        price_change(
            plan,
            v.lsn,
            v.effective_from,
            None if v.value is None else str(v.value),
            v.ends_at,
            currency=currency,
            meter=meter.value,
        )
        for one in universes.values()
        for (plan, currency, meter), versions in one.prices.items()
        for v in versions
    ]
    outcomes = [
        outcome(name, random.randint(8, 40), day(random.randint(-1, 5)), request_id=str(number), input_tokens=tokens)
        for name in universes
        for number, tokens in enumerate([Decimal(5), None, Decimal("99999999999.999999"), Decimal(0)])
    ]
    rows = {(row["account"], row["request_id"]): row for row in priced(outcomes, accounts, prices)}
    assert len(rows) == len(outcomes)
    for given in outcomes:
        expected = universes[given["account"]].expected(given)
        actual = rows[given["account"], given["request_id"]]
        assert {name: actual[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("quantity", "unit_price", "amount"),
    [
        ("99999999999.999999", "99999999.999999999999", "9999999999999999899.900000000000000001"),
        ("0.000001", "0.000000000001", "0.000000000000000001"),
        ("10000000000", "99999999.999999999999", "999999999999999999.99"),
    ],
)
def test_an_amount_is_exact_to_the_last_of_eighteen_decimals(quantity: str, unit_price: str, amount: str) -> None:
    """Polars would keep twelve of them, without a word."""
    [row] = priced(
        [outcome(input_tokens=Decimal(quantity))],
        [account_change("a", 1, START, ("p", "USD"))],
        [price_change("p", 2, START, unit_price, meter="input_tokens")],
    )
    assert row["input_tokens_amount"] == Decimal(amount)


def test_what_is_priced_has_the_columns_of_usage() -> None:
    rows = price(
        pl.DataFrame([carried(outcome(), OUTCOMES)], schema=OUTCOMES),
        CONFIG.declared,
        account_versions(ACCOUNTS.empty_table()),
        price_versions(PRICES.empty_table()),
    )
    made = usage_rows(rows.append_column("day", pa.array([START.date()])), 7, START, "rules")
    assert made.schema.equals(USAGE)
    [row] = made.select(["lsn", "logged_at", "rules", "sign", "cause", "corrects_lsns", "requests"]).to_pylist()
    assert row == {
        "lsn": 7,
        "logged_at": START,
        "rules": "rules",
        "sign": 1,
        "cause": "stream",
        "corrects_lsns": None,
        "requests": None,
    }


def test_no_outcome_makes_no_row() -> None:
    assert priced([], [], []) == []


@pytest.mark.parametrize(
    "unpriced",
    [
        {"outcome": "superseded"},
        {"outcome": "orphaned", "model": None},
        {"model": "another"},
        {"account": "nobody"},
        {"event_time": START - timedelta(microseconds=1)},
        {"request_lsn": 2, "completion_lsn": None, "outcome": "abandoned"},
    ],
)
def test_what_has_no_price_has_no_amount(unpriced: dict[str, Any]) -> None:
    accounts = [account_change("a", 1, START, ("p", "USD"))]
    prices = [price_change("p", 2, START, "0.5", meter=meter.value) for meter in Meter]
    priced_row, row = priced([outcome(), outcome(**unpriced)], accounts, prices)
    assert priced_row["requests_amount"] == Decimal("0.5")
    assert {row[f"{meter}_{column}"] for meter in Meter for column in ("price_version", "unit_price", "amount")} == {
        None
    }


def test_two_currencies_of_a_plan_are_kept_apart() -> None:
    accounts = [account_change("a", 1, START, ("p", "USD")), account_change("b", 2, START, ("p", "EUR"))]
    prices = [price_change("p", 3, START, "1"), price_change("p", 4, START, "2", currency="EUR")]
    table = priced([outcome("a"), outcome("b")], accounts, prices)
    assert {row["currency"]: row["requests_amount"] for row in table} == {"USD": Decimal(1), "EUR": Decimal(2)}


def test_a_declared_meter_is_priced_by_its_own_price() -> None:
    meters = {
        "gpu_seconds": {"unit": "second", "sum": "gpu_seconds"},
        "answers": {"unit": "answer", "count": "outcomes"},
    }
    accounts = [account_change("a", 1, START, ("p", "USD"))]
    prices = [
        price_change("p", 2, START, "0.000000000003", meter="gpu_seconds"),
        price_change("p", 3, START, "7", meter="answers"),
    ]
    asked = {name: value for name, value in outcome().items() if not name.endswith("tokens")}
    [row] = priced(
        [{**asked, "gpu_seconds": Decimal("0.000007")}],
        accounts,
        prices,
        JoinsConfig.model_validate({"meters": meters}),
    )
    assert row["gpu_seconds_amount"] == Decimal("0.000000000000000021")
    assert (row["answers"], row["answers_price_version"], row["answers_amount"]) == (1, 3, 7)


def test_polars_multiplies_no_money() -> None:
    """It would keep 12 decimals of a product and say nothing: 0.000001 x 1e-12 is 0 then."""
    tiny = pl.DataFrame({"quantity": [Decimal("0.000001")], "unit_price": [Decimal("0.000000000001")]})
    assert tiny.select(pl.col("quantity") * pl.col("unit_price")).item() == 0, "now it could"
    folders = {path.parent for path in ROOT.glob("*/__init__.py")} - {ROOT / "tests", ROOT / "bench"}
    files = [path for folder in folders for path in folder.rglob("*.py")]
    assert len(files) > 500
    assert {str(path): found for path in files if (found := products_of_columns(path.read_text()))} == {}


def products_of_columns(source: str) -> list[str]:
    """Each product of a Polars column that is money or a quantity, as an operator or a method."""
    found = list[str]()
    for node in ast.walk(ast.parse(source)):
        is_method = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("mul", "dot")
        if is_method or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
            text = ast.unparse(node)
            is_column = "pl." in text or "col(" in text
            found += [text] if is_column and re.search("amount|price|quantity", text) else []
    return found


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ('pl.col("quantity") * pl.col("unit_price")', True),
        ('pl.col("quantity").mul(pl.col("unit_price"))', True),
        ('2 * pl.sum("amount")', True),
        ('pl.col("seconds") * 1000', False),
        ("quantity * unit_price", False),
    ],
)
def test_a_product_of_columns_is_found(source: str, is_found: bool) -> None:
    assert bool(products_of_columns(source)) == is_found
