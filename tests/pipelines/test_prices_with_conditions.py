"""Prices with conditions and of models that begin alike: events → bill, corrected when they come late, by SQL, too."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.file import parse_catalog
from catalog.store import store
from deployment.errors import CannotRun
from jobs.runtime.postgres.ownership import Ownership
from metering.price_models import PricedModel
from tests.database_rows import write
from tests.pipelines.as_billed import Stack, billed, by_meter, listed
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.pipelines.test_public_cases_billed import METERS, OF_THE_MONTH, TERMS, event, prices
from tests.simulation.audits import audit

ATTRIBUTES = ("operation", "region")
BATCH, EU = {"operation": "batch"}, {"region": "eu"}


def of(model: str, **conditions: str) -> str:
    return PricedModel.of(model, conditions).text


def test_a_batch_operation_costs_half_and_an_unspecified_one_the_full_price(database: str) -> None:
    """As of providers that price what may take a day apart from what is answered at once."""
    stack = Stack(METERS, price_attributes=("operation",))
    used = {"input_tokens": 800, "output_tokens": 50}
    events = [
        event("r1", "large", {**used, **BATCH}),
        event("r2", "large", {**used, "operation": "chat"}),
        event("r3", "large", used),
    ]
    whole = prices("large", input_tokens="0.000004", output_tokens="0.00002", requests="0")
    half = prices(of("large", **BATCH), input_tokens="0.000002", output_tokens="0.00001")
    billed(database, stack, events, **TERMS, unit_prices=whole | half)
    assert by_meter(listed(database, OF_THE_MONTH)) == {
        "requests": (3, 0, 0),
        "input_tokens": (2_400, Decimal("0.008"), 0),
        "output_tokens": (150, Decimal("0.0025"), 0),
    }


def test_a_part_is_billed_by_its_own_price_only_where_that_is_for_the_event(database: str) -> None:
    """Cached tokens have a price of their own in batches alone: elsewhere they cost what the input does."""
    stack = Stack(METERS, price_attributes=("operation",))
    used = {"input_tokens": 1_000, "cached_tokens": 600}
    events = [event("r1", "large", {**used, **BATCH}), event("r2", "large", used)]
    whole = prices("large", input_tokens="0.01", requests="0")
    cached = prices(of("large", **BATCH), cached_tokens="0.001")
    billed(database, stack, events, **TERMS, unit_prices=whole | cached)
    found = by_meter(listed(database, OF_THE_MONTH))
    assert found["input_tokens"] == (2_000, 14, 0)
    assert found["cached_tokens"] == (1_200, Decimal("0.6"), 0)


def test_a_dated_model_name_has_the_price_of_its_prefix_unless_it_has_its_own(database: str) -> None:
    names = ("gpt-4o-2024-05-13", "gpt-4o-2024-08-06", "gpt-4o-mini", "gpt-4")
    events = [event(f"r{number}", name, {"input_tokens": 1}) for number, name in enumerate(names)]
    of_plan = prices("gpt-4o-2024-*", input_tokens="2", requests="0") | prices("gpt-4o-2024-05-13", input_tokens="5")
    billed(database, Stack(METERS), events, **TERMS, unit_prices=of_plan | prices("gpt-4o*", requests="0"))
    rows = [row for row in listed(database, OF_THE_MONTH) if row["meter"] == "input_tokens"]
    found = {row["model"]: (row["amount"], row["unpriced_quantity"]) for row in rows}
    assert found == {names[0]: (5, 0), names[1]: (2, 0), names[2]: (0, 1), names[3]: (0, 1)}


def happened(folder: Path, order: tuple[int, ...] = (0, 1, 2), **config: Any) -> HandMade:
    """Three answers, of which one is a batch and one is of the EU."""
    world = HandMade(folder, **config)
    world.price(timedelta(), "0.04", begins=timedelta())
    said: tuple[Mapping[str, str], ...] = (BATCH, EU, {})
    for number in order:
        at = HOUR + number * MINUTE
        world.event(
            at, "both", f"i{number}", occurred=at, name=f"r{number}", model="m", output_tokens=100, **said[number]
        )
    world.joined(DAY)
    return world


def audited(world: HandMade, at: timedelta) -> None:
    for _ in range(2):
        said = audit(world.tables, START + at)
        assert said is not None
        assert [fault for fault in said.faults if isinstance(fault, dict)] == []
    assert said is not None
    assert said.appended == 0


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_late_price_with_conditions_rebills_only_matching_usage(tmp_path: Path, order: tuple[int, ...]) -> None:
    world = happened(tmp_path, order, price_attributes=ATTRIBUTES)
    assert world.billed() == {(0, "m", "0.04"): 300}
    world.price(2 * DAY, "0.02", begins=timedelta(), model=of("m", **BATCH))
    world.price(2 * DAY, "0.03", begins=timedelta(), model=of("*", **EU))
    world.joined(3 * DAY)
    audited(world, 4 * DAY)
    assert world.billed() == {(0, "m", "0.04"): 200, (0, "m", "0.02"): 100}, "a prefix is asked after the model itself"
    world.deleted(5 * DAY, begins=timedelta(), ends=timedelta(), model="m")
    world.joined(6 * DAY)
    audited(world, 7 * DAY)
    # It ended before it began, as whoever corrects a wrong price says: the prefix is for what is left of the EU.
    assert world.billed() == {(0, "m", None): 100, (0, "m", "0.03"): 100, (0, "m", "0.02"): 100}


def test_earlier_decisions_ignore_a_new_price_attribute(tmp_path: Path) -> None:
    world = happened(tmp_path)
    world.price(2 * DAY, "0.02", begins=timedelta(), model=of("m", **BATCH))
    world.joined(3 * DAY)
    audited(world, 4 * DAY)
    assert world.billed() == {(0, "m", "0.04"): 300}


PRICE = {"plan": "p", "meter": "requests", "currency": "EUR", "effective_from": datetime(2026, 1, 1, tzinfo=UTC)}


@pytest.fixture
def priced(database: str) -> str:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    Ownership.take("joins", database, {"price_attributes": [*ATTRIBUTES, "tier"]}).close()
    return database


def insert(connection: psycopg.Connection[Any], model: str, unit_price: str = "1", begins: int = 1) -> None:
    connection.execute(
        "INSERT INTO catalog.prices VALUES ('p', %s, 'requests', 'EUR', %s, %s)",
        [model, datetime(2026, begins, 1, tzinfo=UTC), unit_price],
    )


@given(
    model=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=9).filter(
        lambda t: '{"' not in t
    ),
    said=st.dictionaries(
        st.sampled_from([*ATTRIBUTES, "tier"]), st.text(st.characters(exclude_categories=["Cs", "Cc"])), min_size=1
    ),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_database_writes_conditions_as_a_file_does(priced: str, model: str, said: dict[str, str]) -> None:
    with psycopg.connect(priced) as connection:
        found = connection.execute(
            "SELECT catalog.price_model(%s, jsonb_object(%s::text[], %s::text[]))", [model, [*said], [*said.values()]]
        ).fetchone()
    assert found == (PricedModel.of(model, said).text,)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ('m{"operation": "batch"}', "its model must be a model with 1 to 4 conditions"),
        ('m{"operation":1}', "its model must be a model with 1 to 4 conditions"),
        ('m{"operation":"batch"', "its model must be a model with 1 to 4 conditions"),
        ('{"operation":"batch"}', "its model must be a model with 1 to 4 conditions"),
        (
            'm{"operatio":"batch"}',
            "has a condition on 'operatio', which price_attributes in the configuration does not",
        ),
    ],
)
def test_sql_that_writes_unusable_conditions_is_refused_with_a_sentence(priced: str, model: str, why: str) -> None:
    with psycopg.connect(priced) as connection, pytest.raises(psycopg.errors.CheckViolation, match=why):
        insert(connection, model)


@pytest.mark.parametrize("conditions", ['{"operation": null}', '{"operation": ["batch"]}', "{}", None])
def test_sql_that_leaves_a_condition_out_gives_no_price_without_it(priced: str, conditions: str | None) -> None:
    with psycopg.connect(priced) as connection, pytest.raises(psycopg.errors.IntegrityError):
        connection.execute(
            "INSERT INTO catalog.prices VALUES ('p', catalog.price_model('m', %s), 'requests', 'EUR', now(), 1)",
            [conditions],
        )


def test_ambiguous_prices_stored_by_two_concurrent_transactions_are_refused(priced: str) -> None:
    with psycopg.connect(priced) as first, psycopg.connect(priced) as second:
        insert(first, of("m", **BATCH))
        insert(second, of("m", **EU))
        with ThreadPoolExecutor(2) as both:
            ended = [both.submit(connection.commit) for connection in (first, second)]
        assert [type(each.exception()) for each in ended if each.exception()] == [psycopg.errors.CheckViolation]


def test_two_overlapping_prices_need_a_price_for_their_overlap(priced: str) -> None:
    one, other, both = of("m", **BATCH), of("m", **EU), of("m", **BATCH, **EU)
    missing = 'a price is missing for both, of \'m{"operation":"batch","region":"eu"}\''
    for order in permutations((one, other, both)):
        with psycopg.connect(priced) as connection:
            for model in order:
                insert(connection, model)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            connection.rollback()
    with psycopg.connect(priced) as connection:
        insert(connection, one)
        insert(connection, other)
        with pytest.raises(psycopg.errors.CheckViolation, match=missing):
            connection.commit()
        insert(connection, one)
        insert(connection, other)
        insert(connection, both, begins=2)
        with pytest.raises(psycopg.errors.CheckViolation, match=missing):
            connection.commit()
        for model in (one, other, both):
            insert(connection, model)
        connection.commit()
        connection.execute("DELETE FROM catalog.prices WHERE model = %s", [both])
        with pytest.raises(psycopg.errors.CheckViolation, match=missing):
            connection.commit()


def test_disjoint_or_nested_conditions_need_no_further_price(priced: str) -> None:
    with psycopg.connect(priced) as connection:
        for model in ("m", of("m", **BATCH), of("m", operation="chat"), of("m", operation="batch", region="eu"), "m*"):
            insert(connection, model)
        insert(connection, of("n", **EU))
        connection.commit()


CATALOG = """
plans: [{{plan: p, name: P}}]
prices:
- {{plan: p, model: m, conditions: {{operation: batch}}, meter: requests, unit_price: 1, currency: EUR,
   effective_from: 2026-01-01T00:00:00Z}}
- {{plan: p, model: m, conditions: {{{other}}}, meter: requests, unit_price: 1, currency: EUR,
   effective_from: 2026-01-01T00:00:00Z}}
"""


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ("region: eu", "The database refused the catalog: the prices of .* can both hold"),
        (
            "operatio: chat",
            r"prices.1.conditions names operatio: must be one of price_attributes .* \(operation, region",
        ),
    ],
)
def test_a_file_with_ambiguous_prices_stores_nothing(priced: str, other: str, why: str) -> None:
    with pytest.raises(CannotRun, match=why):
        store(priced, parse_catalog(CATALOG.format(other=other)))
    changes = store(priced, parse_catalog(CATALOG.format(other="operation: chat")))
    assert [change.op for change in changes] == ["r", "c", "c"]
    assert {change.after["model"] for change in changes[1:]} == {of("m", **BATCH), of("m", operation="chat")}


def test_an_ending_price_needs_a_price_for_its_overlap_until_its_end(priced: str) -> None:
    one, other, both = of("m", **BATCH), of("m", **EU), of("m", **BATCH, **EU)
    later = datetime(2099, 1, 1, tzinfo=UTC)
    with psycopg.connect(priced) as connection:
        insert(connection, one)
        connection.commit()
        connection.execute("UPDATE catalog.prices SET deleted_at = %s WHERE model = %s", [later, one])
        connection.execute("DELETE FROM catalog.prices WHERE model = %s", [one])
        connection.commit()
        insert(connection, other)
        with pytest.raises(psycopg.errors.CheckViolation, match="a price is missing for both"):
            connection.commit()
        insert(connection, other)
        insert(connection, both)
        connection.commit()
        connection.execute("DELETE FROM catalog.prices WHERE model = %s", [both])
        with pytest.raises(psycopg.errors.CheckViolation, match="until the first of them ends"):
            connection.commit()


def test_a_price_of_both_cannot_become_another_one(priced: str) -> None:
    """Before it has begun it may be given another model."""
    one, other, both = of("m", **BATCH), of("m", **EU), of("m", **BATCH, **EU)
    with psycopg.connect(priced) as connection:
        for model in (one, other, both):
            connection.execute(
                "INSERT INTO catalog.prices VALUES ('p', %s, 'requests', 'EUR', %s, 1)",
                [model, datetime(2099, 1, 1, tzinfo=UTC)],
            )
        connection.commit()
        for model in ("m", of("n", **BATCH)):
            connection.execute("UPDATE catalog.prices SET model = %s WHERE model = %s", [model, both])
            with pytest.raises(psycopg.errors.CheckViolation, match="a price is missing for both"):
                connection.commit()
