"""Method: usage priced by joins beside a reading of every version one by one, to the microsecond, written down anew.

The oracle knows no rule of `metering.pricing`: it plays versions back, in the order of their lsn, into what the
catalog's rows were when the outcome was decided. What a deleted price leaves is in `test_pricing_rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.joins.catalog_versions import PRICE_KEY, account_versions, price_versions
from jobs.joins.config import JoinsConfig
from jobs.joins.memory import Memory, column_of
from jobs.joins.pricing import price
from jobs.joins.resolve import resolve
from jobs.joins.versions_in_use import VersionsInUse
from jobs.streams import ACCOUNTS, PRICES

CONFIG = JoinsConfig.model_validate({"meters": {"answers": {"unit": "answer", "count": "outcomes"}}})
SCHEMA = resolve(Memory.empty(CONFIG.carried).rows, None).schema
START = datetime(2026, 1, 1, tzinfo=UTC)
LAST_US = 4
ACCOUNTS_KNOWN, PLANS, MODELS, CURRENCIES = ("acme", "bolt"), ("basic", "pro"), ("m1", "m2"), ("EUR", "USD")

names = st.sampled_from
instants = st.integers(0, LAST_US)
accounts = st.tuples(
    st.just("account"), names(ACCOUNTS_KNOWN), names(PLANS), names(CURRENCIES), instants, st.booleans()
)
prices = st.tuples(st.just("price"), names(PLANS), names(MODELS), names(CURRENCIES), instants, st.integers(0, 9))
changes = st.lists(st.one_of(accounts, prices, prices), max_size=24)
"""(kind, …, microsecond from which it holds, whether it is deleted or what one costs); their lsn is 10, 20, …"""


@dataclass(frozen=True)
class Asked:
    """An outcome: decided by `lsn`, of `at_us` microseconds after START."""

    account: str
    model: str
    at_us: int
    lsn: int


someone, at_us, lsns = names([*ACCOUNTS_KNOWN, "nobody"]), st.integers(-1, LAST_US + 1), st.integers(9, 251)
asked = st.builds(Asked, someone, names(MODELS), at_us, lsns)
Change = tuple[Any, ...]
Told = tuple[str | None, str | None, int | None, Decimal | None]


def expected(told: list[Change], one: Asked) -> Told:
    """Plan, currency, version and unit price of an outcome, by reading all that was told before it was decided."""
    contract: dict[int, tuple[str, str] | None] = {}
    catalog: dict[tuple[str, str, str], dict[int, tuple[int, int]]] = {}
    for lsn, change in zip(range(10, 10 * len(told) + 1, 10), told, strict=True):
        if lsn >= one.lsn:
            break
        match change:
            case ("account", one.account, plan, currency, since, deleted):
                # Painted over all that was said of this instant and of later ones; the first over all time.
                begins = since if contract else -10
                painted = range(begins, LAST_US + 2)
                contract.update(dict.fromkeys(painted, None if deleted else (plan, currency)))
            case ("price", plan, model, currency, since, unit):
                catalog.setdefault((plan, model, currency), {})[since] = (lsn, unit)
    found = contract.get(one.at_us)
    if found is None:
        return None, None, None, None
    plan, currency = found
    begun = {at: said for at, said in catalog.get((plan, one.model, currency), {}).items() if at <= one.at_us}
    if not begun:
        return plan, currency, None, None
    lsn, unit = begun[max(begun)]
    return plan, currency, lsn, Decimal(unit)


def tables(told: list[Change], order: Random) -> tuple[pa.Table, pa.Table]:
    """Both tables of versions, their rows in any order."""
    rows: dict[str, list[dict[str, Any]]] = {"account": [], "price": []}
    for lsn, (kind, *said, since, last) in zip(range(10, 10 * len(told) + 1, 10), told, strict=True):
        row = {"lsn": lsn, "effective_from": START + timedelta(microseconds=since)}
        if kind == "account":
            name, plan, currency = said
            row |= {"account": name, "deleted": last}
            row |= {"plan": None, "currency": None} if last else {"plan": plan, "currency": currency}
        else:
            plan, model, currency = said
            row |= {"plan": plan, "model": model, "currency": currency, "meter": "answers"}
            row |= {"unit_price": Decimal(last), "deleted": False}
        rows[kind].append(row)
    for told_of in rows.values():
        order.shuffle(told_of)
    return pa.Table.from_pylist(rows["account"], schema=ACCOUNTS), pa.Table.from_pylist(rows["price"], schema=PRICES)


def outcomes(questions: list[Asked]) -> pl.DataFrame:
    rows = [
        {"account": one.account, "model": one.model, "event_time": START + timedelta(microseconds=one.at_us)}
        | {"request_lsn": one.lsn - 1, "completion_lsn": one.lsn, "outcome": "matched", "request_id": str(number)}
        for number, one in enumerate(questions)
    ]
    return pl.DataFrame([{name: row.get(column_of(name)) for name in SCHEMA} for row in rows], schema=SCHEMA)


def said_of(priced: pa.Table) -> list[Told]:
    found = []
    for row in priced.to_pylist():
        [entry] = row["meters"]
        assert entry["amount"] == entry["unit_price"], "of one answer"
        found.append((row["plan"], row["currency"], entry["price_version"], entry["unit_price"]))
    return found


@settings(max_examples=120)
@given(changes, st.lists(asked, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_oracle_usage_is_priced_as_of_its_time_by_all_versions_before_its_decision(
    told: list[Change], questions: list[Asked], order: Random
) -> None:
    """Backdated, for the same instant, announced, of another plan or currency, a microsecond before or after."""
    account_table, price_table = tables(told, order)
    wanted = [expected(told, one) for one in questions]
    frame, meters = outcomes(questions), CONFIG.declared
    ready = price(frame, meters, account_versions(account_table), price_versions(price_table))
    assert said_of(ready) == wanted
    in_use = (
        VersionsInUse(account_table, ("account",), account_versions),
        VersionsInUse(price_table, PRICE_KEY, price_versions),
    )
    assert said_of(price(frame, meters, *in_use)) == wanted
    one_by_one = [said_of(price(frame.slice(number, 1), meters, *in_use))[0] for number in range(len(frame))]
    assert one_by_one == wanted, "whatever else is asked in the same batch"
