"""One price for several models: which events it prices, one ladder over all of them, and what the database takes."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.closed_months import ClosedMonthsTouched
from catalog.file import parse_catalog
from catalog.store import store
from deployment.errors import CannotRun
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import Table
from metering.price_models import PricedModel, PricedModels
from metering.price_tiers import PriceTerms
from tests.database_rows import write
from tests.pipelines.as_billed import Stack, billed
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, HandMade
from tests.pipelines.test_closed_months import JANUARY, TIERED, assert_stored
from tests.pipelines.test_closed_months import billed as closed_months
from tests.pipelines.test_prices_with_conditions import audited, insert
from tests.pipelines.test_public_cases_billed import METERS, TERMS, event, prices
from tests.pipelines.test_tiers_billed import GRADUATED, bill
from tests.rules.test_price_tiers import oracle

__all__ = ["closed_months"]
BOTH = PricedModel.group(["gpt-4o-*", "o3"])


def test_models_of_a_group_share_the_tiers_of_a_month_and_others_do_not(database: str) -> None:
    used = {"gpt-4o-mini": 900, "o3": 600, "o3-mini": 70, "gpt-4o": 7}
    events = [
        event(f"r{number}", model, {"input_tokens": tokens}, timedelta(minutes=number))
        for number, (model, tokens) in enumerate(used.items())
    ]
    of_plan = prices(BOTH.text, input_tokens=GRADUATED) | prices("*", input_tokens="1", requests="0")
    billed(database, Stack(METERS), events, **TERMS, unit_prices=of_plan)
    lines = [
        (line["model"], line["tier"], line["quantity"], line["amount"])
        for line in bill(database, events)
        if line["meter"] == "input_tokens"
    ]
    assert lines == [
        ('["gpt-4o-*","o3"]', "1: up to 1000", 1000, Decimal(2)),
        ('["gpt-4o-*","o3"]', "2: above 1000", 500, Decimal("0.5")),
        ("gpt-4o", None, 7, Decimal(7)),
        ("o3-mini", None, 70, Decimal(70)),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_random_catalog_of_groups_bills_what_an_oracle_in_fractions_says(database: str, seed: int) -> None:
    """The oracle knows which models each group has; neither how a price is found nor how a ladder is read."""
    chance = random.Random(seed)
    models = [f"m{number}" for number in range(12)]
    chance.shuffle(models)
    sizes = [2, 3, 4]
    groups = {
        tuple(models[sum(sizes[:place]) : sum(sizes[: place + 1])]): _terms(chance) for place in range(len(sizes))
    }
    own = {model: Decimal(chance.randint(1, 9)).scaleb(-3) for model in models[sum(sizes) :]}
    of_plan = prices("*", requests="0")
    for members, terms in groups.items():
        of_plan |= prices(PricedModel.group(members).text, input_tokens=PriceTerms.of(terms).text)
    for model, unit_price in own.items():
        of_plan |= prices(model, input_tokens=f"{unit_price}")
    used: dict[str, int] = defaultdict(int)
    events = []
    for number in range(40):
        model, tokens = chance.choice(models), chance.randint(1, 500)
        used[model] += tokens
        events.append(event(f"r{number}", model, {"input_tokens": tokens}, timedelta(minutes=chance.randint(1, 9))))
    billed(database, Stack(METERS), chance.sample(events, len(events)), **TERMS, unit_prices=of_plan)
    expected: dict[str, Fraction] = {
        model: used[model] * Fraction(price) for model, price in own.items() if used[model]
    }
    for members, terms in groups.items():
        total = Fraction(sum(used[model] for model in members))
        if total:
            expected[PricedModel.group(members).text] = oracle(terms, Fraction(0), total, total)
    found: dict[str, Fraction] = defaultdict(Fraction)
    for line in bill(database, events):
        if line["meter"] == "input_tokens":
            found[line["model"]] += Fraction(line["amount"])
    assert found == expected


def _terms(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.3:
        return {"kind": "package", "package_size": str(chance.randint(1, 700)), "package_price": "3"}
    bounds = sorted(chance.sample(range(1, 2_000), 2))
    tiers = [{"up_to": f"{bound}", "unit_price": f"0.00{chance.randint(1, 9)}", "flat_price": "0"} for bound in bounds]
    last = {"unit_price": "0.0005", "flat_price": f"{chance.randint(0, 2)}"}
    return {"kind": chance.choice(["graduated", "volume"]), "tiers": [*tiers, last]}


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("costs", ["0.02", GRADUATED])
def test_a_late_group_rebills_its_models_alone_and_the_audit_finds_nothing_wrong(tmp_path: Path, costs: str) -> None:
    world = HandMade(tmp_path)
    for number, model in enumerate(("gpt-4o-mini", "o3", "o4")):
        at = HOUR + number * MINUTE
        world.event(at, "both", f"i{number}", occurred=at, name=f"r{number}", model=model, output_tokens=100)
    world.joined(DAY)
    world.price(2 * DAY, costs, begins=timedelta(), model=BOTH.text)
    world.joined(3 * DAY)
    audited(world, 4 * DAY)
    # Units with tiers have no unit price in usage, but the version of their price.
    usage = pl.DataFrame(DeltaTable(f"{world.tables}/{Table.USAGE}").to_pyarrow_table()).explode("meters")
    tokens = usage.unnest("meters").filter(pl.col("meter") == "output_tokens")
    found: dict[tuple[Any, ...], Decimal] = defaultdict(Decimal)
    for row in tokens.to_dicts():
        found[row["model"], row["price_version"] is not None, row["unit_price"]] += row["sign"] * row["quantity"]
    unit_price = None if costs == GRADUATED else Decimal(costs)
    assert {key: quantity for key, quantity in found.items() if quantity} == {
        ("gpt-4o-mini", True, unit_price): 100,
        ("o3", True, unit_price): 100,
        ("o4", False, None): 100,
    }


@pytest.fixture
def priced(database: str) -> str:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    Ownership.take("joins", database, {"price_attributes": ["operation"]}).close()
    return database


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=9).filter(
    lambda name: '{"' not in name and not name.startswith('["') and not name.endswith("{")
)


@given(models=st.sets(names, min_size=2, max_size=6))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_database_writes_and_reads_a_group_as_a_file_does(priced: str, models: set[str]) -> None:
    text = PricedModel.group(models).text
    with psycopg.connect(priced) as connection:
        found = connection.execute(
            "SELECT catalog.price_models(%s), catalog.models_of(%s)", [[*models], f'{text}{{"operation":"batch"}}']
        ).fetchone()
        insert(connection, text)
        connection.rollback()
    assert found == (text, list(PricedModel.parse(text).members))
    assert PricedModels.among([text]).candidates(min(models), {})[-1] == text


@pytest.mark.parametrize(
    "model",
    [
        '["a"]',
        '["a","a"]',
        '["b","a"]',
        '["a", "b"]',
        '["a","b"',
        '["a",""]',
        '["a",1]',
        '["a","\\u0062"]',
        '["a","b"]x',
        '["a","b"]{"=":"c"}',
        '["a","["b"]',
        "[" + ",".join(f'"{number:02}"' for number in range(51)) + "]",
    ],
)
def test_a_group_in_another_notation_is_no_price_anywhere(priced: str, model: str) -> None:
    with psycopg.connect(priced) as connection, pytest.raises(psycopg.errors.CheckViolation, match="its model must be"):
        insert(connection, model)
    assert not any(one.aliased is None for one in PricedModels.among([model]).every)


def test_two_groups_of_one_model_at_one_time_are_refused_in_any_order(priced: str) -> None:
    one, other = PricedModel.group(["a", "b*"]).text, PricedModel.group(["b*", "c"]).text
    for first, second in permutations((one, other)):
        with psycopg.connect(priced) as connection:
            insert(connection, first)
            insert(connection, second)
            with pytest.raises(psycopg.errors.CheckViolation, match=r"are both for 'b\*', and neither says more"):
                connection.commit()
    with psycopg.connect(priced) as connection:
        insert(connection, one)
        insert(connection, PricedModel.group(["a", "b*"], {"operation": "batch"}).text)
        insert(connection, PricedModel.group(["b", "c"]).text)
        insert(connection, "a")
        connection.commit()


def test_a_group_may_follow_another_that_has_ended(priced: str) -> None:
    one, other = PricedModel.group(["a", "b"]).text, PricedModel.group(["a", "b", "c"]).text
    with psycopg.connect(priced) as connection:
        insert(connection, one)
        connection.commit()
        connection.execute("UPDATE catalog.prices SET deleted_at = '2027-03-01Z' WHERE model = %s", [one])
        connection.execute("DELETE FROM catalog.prices WHERE model = %s", [one])
        connection.commit()
        begins = "INSERT INTO catalog.prices VALUES ('p', %s, 'requests', 'EUR', %s, 1)"
        connection.execute(begins, [other, datetime(2027, 3, 1, tzinfo=UTC)])
        connection.commit()
        connection.execute(begins, [other, datetime(2027, 2, 28, tzinfo=UTC)])
        with pytest.raises(psycopg.errors.CheckViolation, match="end one before the other begins"):
            connection.commit()


GROUPS = """
plans: [{{plan: p, name: P}}]
prices:
- {{plan: p, models: [o3, gpt-4o-*], meter: requests, kind: graduated, currency: EUR,
   effective_from: 2026-01-01T00:00:00Z, tiers: [{{up_to: 10, unit_price: 2}}, {{unit_price: 1}}]}}
- {{plan: p, {other}, meter: requests, unit_price: 1, currency: EUR, effective_from: 2026-01-01T00:00:00Z}}
"""


def test_a_file_stores_groups_and_one_with_shared_models_stores_nothing(priced: str) -> None:
    with pytest.raises(CannotRun, match="are both for 'o3'"):
        store(priced, parse_catalog(GROUPS.format(other="models: [o3, o4]")))
    changes = store(priced, parse_catalog(GROUPS.format(other="model: o3")))
    assert {change.after["model"] for change in changes[1:]} == {BOTH.text, "o3"}


@pytest.mark.parametrize(("models", "asks"), [(("m1", "x"), True), (("m*", "x"), True), (("m2", "n*"), False)])
def test_a_backdated_group_asks_before_it_bills_ended_months_of_its_models_again(
    closed_months: str, models: tuple[str, ...], asks: bool
) -> None:
    file = TIERED.format(f"'{PricedModel.group(models).text}'", JANUARY.isoformat(), 4)
    if not asks:
        assert_stored(closed_months, file)
        return
    with pytest.raises(ClosedMonthsTouched, match="may change"):
        store(closed_months, parse_catalog(file))
