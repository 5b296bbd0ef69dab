"""`weir what-if` compares the bills of whole months, with all that depends on a month.

Method: events of three months are billed live, and replayed with a random catalog. A second stack bills the same events
under that catalog from the start. The replay's bills are those of that stack, to the last digit; and with nothing
assumed they are the live bills.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from jobs.joins.price_ladders import PriceLadders
from jobs.queries.bills import read_month
from jobs.replay.assumptions import Assumptions
from jobs.replay.bills import LINE_KEY, ComparedBills
from jobs.replay.run import Compared, Replay
from jobs.runtime.errors import Refused
from jobs.streams import ACCOUNTS, PRICES, Table
from metering.plan_terms import PLAN_METER, PLAN_MODEL, PlanTerms
from metering.price_tiers import PriceTerms
from tests.conftest import fresh_database
from tests.database_rows import write
from tests.pipelines.hand_made import DAY, HOUR, START, HandMade
from tests.pipelines.test_members_billed import fold

MONTHS = (date(2026, 1, 1), date(2026, 2, 1), date(2026, 3, 1))
ENDS = 90
MODELS = ("m", "gpt-4o-mini", "gpt-4o")
METERS = ("output_tokens", "requests")
Price = tuple[str, str, timedelta, str]
"""Model, meter, since when, and a unit price or terms."""


@dataclass(frozen=True)
class Catalog:
    prices: tuple[Price, ...]
    terms: tuple[tuple[timedelta, str], ...]
    zone: str = "UTC"

    @property
    def table(self) -> pa.Table:
        """As `weir what-if --catalog` reads them."""
        of_plan = {"plan": "pro", "currency": "EUR", "lsn": 0, "deleted": False}
        rows = [
            {**of_plan, "model": model, "meter": meter, "effective_from": START + since, **_costs(costs)}
            for model, meter, since, costs in (*self.prices, *self._of_plan)
        ]
        return pa.Table.from_pylist(rows, schema=PRICES)

    @property
    def _of_plan(self) -> list[Price]:
        return [(PLAN_MODEL, PLAN_METER, since, text) for since, text in self.terms]

    def told(self, world: HandMade) -> None:
        for model, meter, since, costs in (*self.prices, *self._of_plan):
            world.price(timedelta(), costs, begins=since, model=model, meter=meter)

    def stored(self, database: str) -> None:
        write(database, "catalog.plans", {"plan": "pro", "name": "Pro"})
        account = {"account": "a", "name": "A", "plan": "pro", "currency": "EUR", "timezone": self.zone}
        write(database, "catalog.accounts", {**account, "effective_from": START})
        of_plan = {"plan": "pro", "currency": "EUR", "model": PLAN_MODEL, "meter": PLAN_METER}
        for since, text in self.terms:
            terms = Jsonb(PlanTerms.of(_parsed(text)).document)
            write(database, "catalog.prices", {**of_plan, "effective_from": START + since, "terms": terms})


def _parsed(text: str) -> Any:
    import json

    return json.loads(text)


def _costs(costs: str) -> Mapping[str, Any]:
    return {"terms": costs} if costs.startswith("{") else {"unit_price": Decimal(costs)}


def drawn(chance: random.Random, keys: Sequence[tuple[str, str, timedelta]], days: Sequence[timedelta]) -> Catalog:
    """What each of these prices costs, and what the plan does from these days on."""
    prices = tuple((*key, _price(chance)) for key in keys)
    return Catalog(prices, tuple((since, _terms(chance)) for since in days))


def _price(chance: random.Random) -> str:
    def money(most: int) -> str:
        return f"{Decimal(chance.randint(1, most)).scaleb(-6):f}"

    kind = chance.choice(["unit", "graduated", "volume", "package"])
    if kind == "unit":
        return money(10_000)
    if kind == "package":
        document = {"kind": kind, "package_size": chance.randint(3, 700), "package_price": money(10**6)}
    else:
        bound = chance.randint(5, 2_500)
        tiers = [
            {"up_to": bound, "unit_price": money(10_000), "flat_price": money(10**6)},
            {"unit_price": money(9_000)},
        ]
        document = {"kind": kind, "tiers": tiers}
    return PriceTerms.of(document).text


def _terms(chance: random.Random) -> str:
    low, high = sorted(chance.randint(0, 50_000) for _ in range(2))
    every: dict[str, Any] = {
        "flat_fee": f"{Decimal(chance.randint(1, 10**6)).scaleb(-5):f}",
        "minimum_amount": f"{Decimal(low).scaleb(-3):f}",
        "maximum_amount": f"{Decimal(high).scaleb(-3):f}",
        "included": {"output_tokens": f"{Decimal(chance.randint(1, 10**9)).scaleb(-6):f}"},
    }
    names = chance.sample(list(every), chance.randint(1, 4))
    return PlanTerms.of({"kind": "plan", **{name: every[name] for name in names}}).text


def happened(folder: Path, catalog: Catalog, events: Sequence[Mapping[str, Any]]) -> HandMade:
    world = HandMade(folder)
    world.account(timedelta(), timezone=catalog.zone)
    catalog.told(world)
    for number, event in enumerate(events):
        world.event(ENDS * DAY, "both", f"i{number}", name=f"r{number}", **event)
    world.joined((ENDS + 4) * DAY)
    return world


def billed(database: str, world: HandMade, catalog: Catalog) -> None:
    catalog.stored(database)
    PriceLadders(database).store(DeltaTable(f"{world.tables}/{Table.PRICES}").to_pyarrow_table().cast(PRICES))
    fold(database, world)


def bills(database: str, months: Sequence[date] = MONTHS) -> dict[tuple[Any, ...], tuple[Decimal, Decimal | None]]:
    """By LINE_KEY the quantity and the amount."""
    found: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(lambda: [Decimal(), None])
    with psycopg.connect(database, row_factory=dict_row, options="-c timezone=UTC") as reader:
        for month in months:
            for line in read_month(reader, month).lines:
                sums = found[f"{month:%Y-%m}", *(line[name] for name in LINE_KEY[1:])]
                sums[0] += line["quantity"]
                if line["amount"] is not None:
                    sums[1] = line["amount"] + (sums[1] or 0)
    return {key: (quantity, amount) for key, (quantity, amount) in found.items()}


def replay(world: HandMade, database: str, assumed: Assumptions, first: int = 0, last: int = ENDS) -> Compared:
    return Replay(
        world.tables, database, START + first * DAY, START + last * DAY, "what_if", assumed, replaces=True
    ).run()


def events_of(chance: random.Random, count: int = 25) -> list[dict[str, Any]]:
    return [
        {
            "occurred": timedelta(minutes=chance.randint(0, ENDS * 1440 - 1)),
            "model": chance.choice(MODELS),
            "output_tokens": chance.randint(0, 900),
        }
        for _ in range(count)
    ]


def sides(found: ComparedBills) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    names = ("live_quantity", "live_amount", "replayed_quantity", "replayed_amount")
    return {tuple(row[name] for name in LINE_KEY): tuple(row[name] for name in names) for row in found.lines}


@pytest.mark.few_in_ci(4)
@pytest.mark.parametrize("seed", range(24))
def test_with_other_prices_its_bills_are_those_of_a_stack_that_had_them_from_the_start(
    tmp_path: Path, database: str, postgres_url: str, seed: int
) -> None:
    chance = random.Random(seed)
    keys = [
        (model, meter, since)
        for model in ("m", "gpt-4o*")
        for meter in METERS
        for since in (timedelta(), chance.randint(10, 70) * DAY)
    ]
    days = [timedelta(), chance.randint(5, 80) * DAY][: chance.randint(0, 2)]
    live, other = drawn(chance, keys, days), drawn(chance, keys, [*days, 40 * DAY][: chance.randint(len(days), 3)])
    events = events_of(chance)
    world = happened(tmp_path / "live", live, events)
    billed(database, world, live)
    found = replay(world, database, Assumptions(prices=other.table)).bills
    with fresh_database(postgres_url) as fresh:
        billed(fresh, happened(tmp_path / "other", other, events), other)
        must = bills(fresh)
    was = bills(database)
    nothing = (Decimal(), None)
    assert sides(found) == {
        key: (*was.get(key, nothing), *must.get(key, nothing))
        for key in was.keys() | must.keys()
        if was.get(key, nothing) != must.get(key, nothing)
    }
    assert found.left_out == 0
    for total in found.totals:
        month = total["month"]
        of_fresh = sum(amount or 0 for key, (_, amount) in must.items() if key[0] == month)
        of_live = sum(amount or 0 for key, (_, amount) in was.items() if key[0] == month)
        assert (total["live_amount"] or 0, total["replayed_amount"] or 0) == (of_live, of_fresh)
        assert total["difference_amount"] == of_fresh - of_live
    assert {total["month"] for total in found.totals} == {key[0] for key in was.keys() | must.keys()}
    same = replay(world, database, Assumptions()).bills
    assert same.lines == [], "with nothing assumed they are the live bills"
    assert {total["difference_amount"] for total in same.totals} <= {0}


GRADUATED = '{"kind":"graduated","tiers":[{"up_to":"1000","unit_price":"0.002"},{"unit_price":"0.001"}]}'
PLAN = '{"kind":"plan","flat_fee":"31"}'


def of_two_months(folder: Path, database: str, zone: str = "UTC") -> HandMade:
    live = Catalog((("m", "output_tokens", timedelta(), GRADUATED),), ((timedelta(), PLAN),), zone)
    events = [{"occurred": day * DAY + HOUR, "model": "m", "output_tokens": 800} for day in (2, 5, 33)]
    world = happened(folder, live, events)
    billed(database, world, live)
    return world


def test_a_month_that_lies_only_partly_in_the_time_is_left_out_and_counted(tmp_path: Path, database: str) -> None:
    world = of_two_months(tmp_path, database)
    found = replay(world, database, Assumptions(), 1, 59).bills
    assert [(total["month"], total["live_amount"]) for total in found.totals] == [("2026-02", Decimal("32.6"))]
    assert found.left_out == 1
    assert replay(world, database, Assumptions(), 0, 59).bills.left_out == 0


def test_a_month_is_that_of_the_accounts_calendar(tmp_path: Path, database: str) -> None:
    world = of_two_months(tmp_path, database, "Asia/Tokyo")
    assert replay(world, database, Assumptions(), 31, 59).bills.left_out == 2
    tokyo = Replay(
        world.tables, database, START + 31 * DAY - 9 * HOUR, START + 59 * DAY - 9 * HOUR, "tokyo", Assumptions()
    ).run()
    assert ([total["month"] for total in tokyo.bills.totals], tokyo.bills.left_out) == (["2026-02"], 0)


@pytest.mark.parametrize("begins", ["account", "terms"])
def test_fees_of_a_local_day_that_is_in_the_next_month_by_utc_are_compared(
    tmp_path: Path, database: str, begins: str
) -> None:
    """The first evening of a customer in Los Angeles is January there, and February by UTC."""
    world = HandMade(tmp_path)
    evening = 31 * DAY + 3 * HOUR
    since = {"account": timedelta(), "terms": timedelta(), begins: evening}
    world.account(timedelta(), timezone="America/Los_Angeles")
    of_plan = {"plan": "pro", "currency": "EUR"}
    account = {"account": "a", "name": "A", "timezone": "America/Los_Angeles", **of_plan}
    write(database, "catalog.plans", {"plan": "pro", "name": "Pro"})
    write(database, "catalog.accounts", {**account, "effective_from": START + since["account"]})
    place = {**of_plan, "model": PLAN_MODEL, "meter": PLAN_METER, "effective_from": START + since["terms"]}
    write(database, "catalog.prices", {**place, "terms": Jsonb(_parsed(PLAN))})
    world.price(timedelta(), PLAN, begins=since["terms"], model=PLAN_MODEL, meter=PLAN_METER)
    world.event(ENDS * DAY, "both", "i", name="r", occurred=40 * DAY, model="m", output_tokens=1)
    world.joined((ENDS + 4) * DAY)
    fold(database, world)
    was = bills(database)
    assert {key[0] for key, (_, amount) in was.items() if amount} == {"2026-01", "2026-02", "2026-03"}
    found = Replay(
        world.tables, database, START - DAY, START + ENDS * DAY, "what_if", Assumptions(), replaces=True
    ).run()
    assert [(total["month"], total["live_amount"], total["replayed_amount"]) for total in found.bills.totals] == [
        ("2026-01", 1, 1),
        ("2026-02", 31, 31),
    ]


def test_an_assumed_account_has_the_fees_and_tiers_of_its_plan_in_all_of_the_time(
    tmp_path: Path, database: str
) -> None:
    world = of_two_months(tmp_path, database)
    write(database, "catalog.plans", {"plan": "big", "name": "Big"})
    since = datetime(1970, 1, 1, tzinfo=UTC)
    account = {"account": "a", "plan": "big", "currency": "EUR", "timezone": "UTC", "lsn": 0, "deleted": False}
    accounts = pa.Table.from_pylist([{**account, "effective_from": since, "committed_at": since}], schema=ACCOUNTS)
    key = {"plan": "big", "currency": "EUR", "effective_from": START, "lsn": 0, "deleted": False}
    prices = [
        {**key, "model": "m", "meter": "output_tokens", "terms": GRADUATED.replace("0.002", "0.003")},
        {**key, "model": PLAN_MODEL, "meter": PLAN_METER, "terms": PLAN.replace("31", "62")},
    ]
    assumed = Assumptions(accounts=accounts, prices=pa.Table.from_pylist(prices, schema=PRICES))
    january, february = replay(world, database, assumed, 0, 59).bills.totals
    assert (january["live_amount"], january["replayed_amount"]) == (Decimal("33.6"), 62 + 3 + Decimal("0.6"))
    assert (february["live_amount"], february["replayed_amount"]) == (Decimal("32.6"), 62 + Decimal("2.4"))


def test_windows_with_tiers_have_no_amounts_and_are_in_no_total(tmp_path: Path, database: str) -> None:
    live = Catalog((("m", "output_tokens", timedelta(), "0.002"), ("m", "requests", timedelta(), "0.5")), ())
    world = happened(tmp_path, live, [{"occurred": HOUR, "model": "m", "output_tokens": 1_500}])
    billed(database, world, live)
    assumed = Catalog((("m", "output_tokens", timedelta(), GRADUATED),), ())
    found = replay(world, database, Assumptions(prices=assumed.table), 0, 31)
    (window,) = found.windows
    assert (window["meter"], window["live_quantity"], window["replayed_quantity"]) == ("output_tokens", 1_500, 1_500)
    assert [window[f"{side}_amount"] for side in ("live", "replayed", "difference")] == [None, None, None]
    (total,) = found.totals
    assert (total["live_amount"], total["replayed_amount"]) == (Decimal("0.5"), Decimal("0.5")), "of requests alone"
    (bill,) = found.bills.totals
    assert (bill["live_amount"], bill["replayed_amount"]) == (Decimal("3.5"), Decimal(3))


def test_tiers_of_a_meter_that_bills_whole_periods_are_refused_as_joins_refuses_them(
    tmp_path: Path, database: str
) -> None:
    from tests.pipelines.test_audit_members import world_of

    world = world_of(tmp_path)
    world.event(DAY, "both", "i", occurred=HOUR, name="r", model="m", output_tokens=1)
    world.joined(3 * DAY)
    fold(database, world)
    assumed = Catalog((("m", "users", timedelta(), GRADUATED),), ())
    with pytest.raises(Refused, match="the meter users bills whole periods"):
        replay(world, database, Assumptions(prices=assumed.table), 0, 31)


def test_the_copies_of_a_replay_keep_no_table_of_the_catalog_from_a_later_release(
    tmp_path: Path, database: str
) -> None:
    world = of_two_months(tmp_path, database)
    replay(world, database, Assumptions(), 0, 59)
    with psycopg.connect(database) as connection:
        found = connection.execute(
            "SELECT count(*) FROM information_schema.view_table_usage"
            " WHERE view_schema = 'what_if' AND table_schema <> 'what_if'"
        ).fetchone()
    assert found == (0,)
