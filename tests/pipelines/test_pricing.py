"""Method: random catalogs with many versions, one per universe, priced in one frame; Spark and the rule must agree."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.joins.catalog_versions import catalog_frames
from jobs.joins.pricing import PRICED, price
from jobs.joins.resolve import resolve
from jobs.streams import ACCOUNTS, PRICES, USAGE
from metering.joining import Side
from metering.meters import Meter
from metering.pricing import Version, account_as_of, price_as_of
from tests.rules.test_joins_resolve import frame, record, row_of

START = datetime(2026, 1, 1, tzinfo=UTC)
Contract = tuple[str, str]
PriceKey = tuple[str, str, Meter]


def day(number: int) -> datetime:
    return START + timedelta(days=number)


OUTCOMES = pa.schema(
    [
        *[USAGE.field(name) for name in ("account", "request_id", "request_lsn", "completion_lsn")],
        pa.field("outcome", pa.string()),  # null in the batch frame: the row still waits
        *[USAGE.field(name) for name in ("user_id", "model", "status", "event_time", "received_at")],
        *[USAGE.field(meter) for meter in Meter],
    ]
)


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
        **dict.fromkeys([meter.value for meter in Meter]),
        "requests": 1,
        "input_tokens": 10**12,
        "output_tokens": 7,
    } | fields


def account_change(account: str, lsn: int, at: datetime, contract: Contract | None) -> dict[str, Any]:
    plan, currency = contract or (None, None)
    return {"lsn": lsn, "account": account, "plan": plan, "currency": currency, "effective_from": at} | {
        "deleted": contract is None
    }


def price_change(plan: str, lsn: int, at: datetime, unit_price: str | None, **key: str) -> dict[str, Any]:
    identity = {"plan": plan, "model": "m", "meter": "requests", "currency": "USD", **key}
    unit = None if unit_price is None else Decimal(unit_price)
    return {**identity, "lsn": lsn, "effective_from": at, "unit_price": unit, "deleted": unit is None}


def priced(
    spark: SparkSession, outcomes: list[dict[str, Any]], accounts: list[dict[str, Any]], prices: list[dict[str, Any]]
) -> pa.Table:
    frames = catalog_frames(
        spark, pa.Table.from_pylist(accounts, schema=ACCOUNTS), pa.Table.from_pylist(prices, schema=PRICES)
    )
    return price(spark.createDataFrame(pa.Table.from_pylist(outcomes, schema=OUTCOMES)), *frames).toArrow()


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
            versions = [] if plan is None or currency is None else self.prices.get((plan, currency, meter), [])
            found = price_as_of(versions, row["event_time"], lsn) if row[meter] is not None else None
            unit = found.value if found else None
            columns[f"{meter}_price_version"] = found.lsn if found else None
            columns[f"{meter}_unit_price"] = unit
            columns[f"{meter}_amount"] = None if unit is None else row[meter] * unit
        return columns


def universe(random: Random, name: str) -> Universe:
    """Few days and many changes: the same `effective_from` again, deletions, backdated and later changes."""
    plans, currencies = [f"{name}-basic", f"{name}-pro"], ["USD", "EUR"]
    lsns = iter(range(10, 1000))

    def version(value: Any) -> Version[Any]:
        return Version(next(lsns), day(random.randint(0, 4)), None if random.random() < 0.2 else value)

    contracts: list[Version[Contract]] = []
    prices: dict[PriceKey, list[Version[Decimal]]] = {}
    for _ in range(random.choice([1, 4, 20])):
        if random.random() < 0.4:
            contracts.append(version((random.choice(plans), random.choice(currencies))))
        else:
            key = random.choice(plans), random.choice(currencies), random.choice([*Meter][:2])
            prices.setdefault(key, []).append(version(Decimal(random.randint(0, 10**6)) / 10**12))
    return Universe(contracts, prices)


@pytest.mark.parametrize("seed", range(3))
def test_differential_spark_and_the_rule_price_alike(spark: SparkSession, seed: int) -> None:
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
        for number, tokens in enumerate([5, None, 10**12, 0])
    ]
    rows = {(row["account"], row["request_id"]): row for row in priced(spark, outcomes, accounts, prices).to_pylist()}
    assert len(rows) == len(outcomes)
    for given in outcomes:
        expected = universes[given["account"]].expected(given)
        actual = rows[given["account"], given["request_id"]]
        assert {name: actual[name] for name in expected} == expected


def test_an_amount_is_exact_to_the_last_of_twelve_decimals(spark: SparkSession) -> None:
    table = priced(
        spark,
        [outcome()],
        [account_change("a", 1, START, ("p", "USD"))],
        [price_change("p", 2, START, "99999999.999999999999", meter="input_tokens")],
    )
    assert table["input_tokens_amount"].to_pylist() == [Decimal("99999999999999999999.000000000000")]


def test_the_columns_are_those_of_usage(spark: SparkSession) -> None:
    table = priced(spark, [outcome()], [], [])
    assert table.column_names == list(PRICED)
    assert [table.schema.field(name).type for name in PRICED] == [USAGE.field(name).type for name in PRICED]
    assert table.select(["sign", "cause", "corrects_lsns"]).to_pylist() == [
        {"sign": 1, "cause": "stream", "corrects_lsns": None}
    ]


@pytest.mark.parametrize(
    "unpriced",
    [
        {"outcome": "superseded"},
        {"outcome": None},
        {"outcome": "orphaned", "model": None},
        {"model": "another"},
        {"account": "nobody"},
        {"event_time": START - timedelta(microseconds=1)},
        {"request_lsn": 2, "completion_lsn": None, "outcome": "abandoned"},
    ],
)
def test_what_has_no_price_has_no_amount(spark: SparkSession, unpriced: dict[str, Any]) -> None:
    accounts = [account_change("a", 1, START, ("p", "USD"))]
    prices = [price_change("p", 2, START, "0.5", meter=meter.value) for meter in Meter]
    table = priced(spark, [outcome(), outcome(**unpriced)], accounts, prices)
    priced_row, row = sorted(table.to_pylist(), key=lambda row: row["requests_amount"] is None)
    assert priced_row["requests_amount"] == Decimal("0.5")
    assert {row[f"{meter}_{column}"] for meter in Meter for column in ("price_version", "unit_price", "amount")} == {
        None
    }


def test_two_currencies_of_a_plan_are_kept_apart(spark: SparkSession) -> None:
    accounts = [account_change("a", 1, START, ("p", "USD")), account_change("b", 2, START, ("p", "EUR"))]
    prices = [price_change("p", 3, START, "1"), price_change("p", 4, START, "2", currency="EUR")]
    table = priced(spark, [outcome("a"), outcome("b")], accounts, prices).to_pylist()
    assert {row["currency"]: row["requests_amount"] for row in table} == {"USD": Decimal(1), "EUR": Decimal(2)}


def test_resolve_and_price_fit_together_without_python_in_the_plan(spark: SparkSession) -> None:
    rows = [record(row_of(50, Side.REQUEST, 0)), record(row_of(51, Side.COMPLETION, 0))]
    accounts = [account_change("a", 1, START, ("p", "USD"))]
    catalog = catalog_frames(
        spark,
        pa.Table.from_pylist(accounts, schema=ACCOUNTS),
        pa.Table.from_pylist([price_change("p", 2, START, "0.25", model="model-50")], schema=PRICES),
    )
    outcomes = spark.createDataFrame(resolve(frame(rows), None).drop("timeout_us").to_arrow())
    result = price(outcomes, *catalog)
    assert result.toArrow()["requests_price_version"].to_pylist() == [2]
    plan = str(result._jdf.queryExecution().executedPlan().toString())
    assert "Python" not in plan
    assert "Exchange hashpartitioning" not in plan, "uncontested keys are not shuffled"
