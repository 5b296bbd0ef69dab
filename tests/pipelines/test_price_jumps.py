"""Prices 100 times above or below another: a file with one is refused until somebody agrees."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from catalog.file import CatalogFile, parse_catalog
from catalog.price_jumps import PricesJump
from catalog.store import store
from cli.main import app
from metering.price_models import PricedModel
from tests.pipelines.test_database_gauges import shown

MICRO = Decimal("0.0000025")
"""A token of a usual model."""
PLANS = [{"plan": "p", "name": "P"}, {"plan": "q", "name": "Q"}]


def price(unit_price: str | Decimal, model: str = "m", month: int = 1, **other: Any) -> dict[str, Any]:
    row = {"plan": "p", "model": model, "meter": "input_tokens", "currency": "USD", "unit_price": f"{unit_price}"}
    return row | {"effective_from": f"2026-{month:02}-01T00:00:00Z"} | other


def catalog(*prices: dict[str, Any]) -> CatalogFile:
    return parse_catalog(json.dumps({"plans": PLANS, "prices": prices}))


def jumps(database: str, *prices: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What the file is refused for, as (model, what it is compared with, that price); nothing where it is stored."""
    before = stored(database)
    try:
        store(database, catalog(*prices))
    except PricesJump as refused:
        assert stored(database) == before, "nothing of a file that is refused is stored"
        return [(jump.model, jump.compared_with, f"{jump.other_price.normalize():f}") for jump in refused.jumps]
    return []


def stored(database: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT model, effective_from, unit_price FROM catalog.prices ORDER BY 1, 2")
        return found.fetchall()


def marks(database: str) -> list[tuple[Any, ...]]:
    """The prices that jump, and who has confirmed each."""
    with psycopg.connect(database) as connection:
        return connection.execute(
            "SELECT model, unit_price, confirmed_by FROM catalog.price_jumps ORDER BY 1"
        ).fetchall()


def sql(database: str, *statements: str) -> None:
    with psycopg.connect(database) as connection:
        for statement in statements:
            connection.execute(statement.encode())


CONFIGURED = """
INSERT INTO jobs (job, epoch, owner_pid, owner_started_at, started_at, state, config)
VALUES ('joins', 1, 1, now(), now(), 'running', '{"price_attributes": ["operation"]}')
"""


@pytest.fixture
def three(database: str) -> str:
    """Three prices of a token."""
    assert jumps(database, price("0.000001", "a"), price(MICRO, "b"), price("0.00001", "c")) == []
    return database


@pytest.mark.parametrize(
    ("unit_price", "is_refused"),
    [
        ("0.00025", True),
        ("0.000249999999", False),
        ("0.000000025", True),
        ("0.000000025001", False),
        ("2.5", True),
        ("0", False),
    ],
)
def test_a_first_price_is_compared_with_the_median_of_its_meter_and_currency(
    three: str, unit_price: str, is_refused: bool
) -> None:
    assert jumps(three, price(unit_price)) == ([("m", "median", "0.0000025")] if is_refused else [])


@pytest.mark.parametrize(
    ("unit_price", "is_refused"),
    [("0.00005", True), ("0.000049999999", False), ("0.000000005", True), ("0.000000005001", False), ("0", True)],
)
@pytest.mark.parametrize("month", [1, 3])
def test_a_price_is_compared_with_the_one_that_it_replaces_and_the_one_before_it(
    database: str, unit_price: str, is_refused: bool, month: int
) -> None:
    store(database, catalog(price("0.0000005")))
    compared = "replaced" if month == 1 else "before"
    expected = [("m", compared, "0.0000005")] if is_refused else []
    assert jumps(database, price(unit_price, month=month)) == expected


@pytest.mark.parametrize(
    "other",
    [{"plan": "q"}, {"model": "n"}, {"meter": "output_tokens"}, {"currency": "EUR"}, {"month": 2}],
    ids=str,
)
def test_a_price_is_compared_with_nothing_else(database: str, other: dict[str, Any]) -> None:
    """Of another plan, model, meter or currency, or of later: two prices make no median."""
    store(database, catalog(price(MICRO, **other), price(MICRO, **{**other, "month": 3})))
    assert jumps(database, price("2.5")) == []


def test_the_median_leaves_zeros_out_and_needs_three_prices(database: str) -> None:
    assert jumps(database, price(MICRO, "a"), price("0", "b"), price("0", "c"), price(MICRO, "d")) == []
    assert jumps(database, price("2.5")) == []
    assert jumps(database, price(MICRO, "e")) == []
    assert jumps(database, price("2.5", "n")) == [("n", "median", "0.0000025")]


@pytest.mark.parametrize("month", [1, 3], ids=["began before", "begins later"])
def test_a_first_price_with_conditions_is_compared_with_that_of_its_model_without_them(
    database: str, month: int
) -> None:
    """One price of a token is no median: nothing else stands beside it."""
    sql(database, CONFIGURED)
    store(database, catalog(price(MICRO, month=month), price("7", "other", plan="q", currency="EUR")))
    batch: dict[str, Any] = {"month": 2, "conditions": {"operation": "batch"}}
    stored_as = PricedModel.of("m", {"operation": "batch"}).text
    assert jumps(database, price("1.25", **batch)) == [(stored_as, "unconditional", "0.0000025")]
    for fair in ("0.00000125", "0", "0.0002"):
        assert jumps(database, price(fair, **batch)) == []
        sql(database, f"DELETE FROM catalog.prices WHERE model = '{stored_as}'")


def test_conditions_of_another_plan_meter_or_model_are_compared_with_nothing(database: str) -> None:
    sql(database, CONFIGURED)
    store(database, catalog(price(MICRO)))
    others: list[dict[str, Any]] = [{"plan": "q"}, {"currency": "EUR"}, {"meter": "output_tokens"}, {"model": "m3"}]
    for other in others:
        assert jumps(database, price("1.25", conditions={"operation": "batch"}, **other)) == []


def test_a_price_after_a_free_month_is_compared_with_that_before_it(database: str) -> None:
    store(database, catalog(price(MICRO), price("0", month=2)), confirms=True)
    assert jumps(database, price("2.5", month=3)) == [("m", "before", "0.0000025")]
    assert jumps(database, price("0.000003", month=3)) == []


def test_wrong_prices_of_one_file_do_not_form_their_own_median(three: str) -> None:
    wrong = [price("2.5", f"n{number}") for number in range(20)]
    assert jumps(three, *wrong) == [(f"n{number}", "median", "0.0000025") for number in sorted(range(20), key=str)]


def test_a_first_file_is_compared_with_itself(database: str) -> None:
    rows = [price(MICRO, f"m{number}") for number in range(3)]
    assert jumps(database, *rows, price("2.5", "n")) == [("n", "median", "0.0000025")]


def test_a_confirmed_price_is_stored_with_the_name_and_needs_no_second_confirmation(three: str) -> None:
    store(three, catalog(price("2.5"), price(MICRO, "n")), "ann@finance", confirms=True)
    assert marks(three) == [("m", Decimal("2.5"), "ann@finance")]
    assert jumps(three, price("2.5"), price(MICRO, "n")) == []
    assert jumps(three, price("2.6")) == []
    assert jumps(three, price("0.026")) == [("m", "replaced", "2.6")]
    assert jumps(three, price("2.7", month=2)) == []
    assert jumps(three, price("2.7", month=3)) == []
    assert {by for _, _, by in marks(three)} == {"ann@finance"}, "far from the median, as somebody has confirmed"


def test_an_unchanged_row_of_a_file_needs_no_confirmation(three: str) -> None:
    sql(three, "UPDATE catalog.prices SET unit_price = 2.5 WHERE model = 'c'")
    assert jumps(three, price("2.5", "c")) == []
    assert marks(three) == [("c", Decimal("2.5"), None)]


_ROWS = st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.integers(0, 7))
"""Model, month and power of ten."""


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(_ROWS, max_size=12), st.lists(_ROWS, max_size=4))
def test_oracle_a_file_is_refused_for_the_prices_that_the_rule_names(
    database: str, standing: list[tuple[str, int, int]], changes: list[tuple[str, int, int]]
) -> None:
    """Powers of ten, so that 100 times is met exactly; 0 is free."""

    def rows(drawn: Iterable[tuple[str, int, int]]) -> dict[tuple[str, int], Decimal]:
        return {(model, month): Decimal(power and 10**power) / 10**9 for model, month, power in drawn}

    before, after = rows(standing), rows(changes)
    sql(database, "DELETE FROM catalog.prices")
    store(database, catalog(*(price(f"{cost:f}", *key) for key, cost in before.items())), confirms=True)
    # As after an upgrade: nobody was asked.
    sql(database, "DELETE FROM catalog.price_jumps")
    changed = {key: cost for key, cost in after.items() if before.get(key) != cost}
    updated = {key: cost for key, cost in changed.items() if key in before}
    inserted = {key: cost for key, cost in changed.items() if key not in before}
    of_updates = _jumps(before, changed, updated, {})
    of_inserts = _jumps(before, changed, inserted, of_updates)
    found = jumps(database, *(price(f"{cost:f}", *key) for key, cost in after.items()))
    assert found == [jump for _, jump in sorted({**of_updates, **of_inserts}.items())]


Prices = dict[tuple[str, int], Decimal]
Jumps = dict[tuple[str, int], tuple[str, str, str]]


def _jumps(before: Prices, changed: Prices, stored: Prices, unconfirmed: Jumps) -> Jumps:
    """What the rule says of some of the prices that a transaction writes, and what stood before it."""
    sound = {key: cost for key, cost in (before | changed).items() if cost and key not in unconfirmed}
    stood = sorted(cost for key, cost in sound.items() if key not in changed)
    counted = stood if len(stood) >= 3 else sorted(sound.values()) if len(sound) > 3 else []
    found: Jumps = {}
    for (model, month), cost in stored.items():
        earlier = [sound[model, other] for other in range(1, month) if (model, other) in sound]
        compared = {
            "replaced": before.get((model, month)),
            "before": earlier[-1] if earlier else None,
            "median": counted[(len(counted) - 1) // 2] if counted else None,
        }
        for kind, other in compared.items():
            if other and (cost >= other * 100 or (cost * 100 <= other and (cost or kind != "median"))):
                found[model, month] = (model, kind, f"{other.normalize():f}")
                break
    return found


def test_apply_refuses_a_price_jump_unless_confirmed(
    three: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "catalog.json"
    file.write_text(json.dumps({"prices": [price("2.5")]}))
    for name, value in {"KAFKA_BOOTSTRAP": "x:1", "POSTGRES_URL": three, "TABLES": str(tmp_path)}.items():
        monkeypatch.setenv(f"WEIR_{name}", value)
    before = stored(three)
    apply = ["catalog", "apply", str(file), "--no-wait", "--by", "ann"]
    refused = CliRunner().invoke(app, apply)
    assert refused.exit_code == 1
    said = "2.5 per token: one request of 1,200 tokens costs 3,000 USD; did you mean per: 1000000?"
    assert said in str(refused.exception)
    assert stored(three) == before
    done = CliRunner().invoke(app, [*apply, "--yes"])
    assert (done.exit_code, done.stdout) == (0, "1 created, 0 changed, 0 as they were; joins will have them.\n")
    assert marks(three) == [("m", Decimal("2.5"), "ann")]


WRONG = "UPDATE catalog.prices SET unit_price = 2.5 WHERE model = 'c'"


def waiting(database: str) -> float | None:
    """What the alert PriceJump goes by."""
    with shown("ingestion", database) as gauges:
        return gauges.value("weir_price_jumps")


@pytest.mark.parametrize(
    "ends",
    [
        "UPDATE catalog.prices SET unit_price = 0.00001 WHERE model = 'c'",
        "UPDATE catalog.prices SET per = 1000000 WHERE model = 'c'",
        "DELETE FROM catalog.prices WHERE model = 'c'",
        "UPDATE catalog.price_jumps SET confirmed_by = 'ann', confirmed_at = now()",
    ],
)
def test_a_price_jump_by_sql_is_taken_and_reported_until_it_is_corrected_or_confirmed(three: str, ends: str) -> None:
    assert waiting(three) == 0
    sql(three, WRONG)
    assert stored(three)[-1][2] == Decimal("2.5")
    assert waiting(three) == 1
    sql(three, "UPDATE catalog.prices SET plan = plan")
    assert waiting(three) == 1
    sql(three, ends)
    assert waiting(three) == 0


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO catalog.prices SELECT plan, 'n', meter, currency, now(), 2.5 FROM catalog.prices LIMIT 1",
        (
            "INSERT INTO catalog.prices SELECT plan, model, meter, currency, effective_from, 2.5 FROM catalog.prices"
            " WHERE model = 'a' ON CONFLICT (plan, model, meter, currency, effective_from) DO UPDATE"
            " SET unit_price = excluded.unit_price"
        ),
        "UPDATE catalog.prices SET model = 'n', unit_price = 2.5 WHERE model = 'a'",
    ],
)
def test_a_price_is_compared_whatever_statement_stores_it(three: str, statement: str) -> None:
    assert jumps(three, price(MICRO, "d")) == []
    sql(three, statement)
    assert waiting(three) == 1


def test_a_wrong_price_by_sql_is_not_a_reference_for_the_next(three: str) -> None:
    sql(three, *(WRONG.replace("'c'", f"'{model}'") for model in "abc"))
    assert waiting(three) == 3
    sql(three, "INSERT INTO catalog.prices VALUES ('p', 'c', 'input_tokens', 'USD', '2026-05-01Z', 2.5)")
    assert jumps(three, price(MICRO, "c"), price(MICRO, "b"), price(MICRO, "a")) == []
    assert waiting(three) == 0


def test_a_session_may_confirm_beforehand_what_it_stores(three: str) -> None:
    sql(three, "SET LOCAL weir.changed_by = 'ann'", "SET LOCAL weir.confirms_prices = 'yes'", WRONG)
    assert marks(three) == [("c", Decimal("2.5"), "ann")]
    assert waiting(three) == 0


def test_prices_are_not_compared_while_a_column_has_another_name(three: str) -> None:
    rename = "ALTER TABLE catalog.prices RENAME COLUMN {} TO {}"
    sql(three, rename.format("unit_price", "price"))
    sql(three, "UPDATE catalog.prices SET price = 3")
    sql(three, rename.format("price", "unit_price"))
    assert waiting(three) == 0


def test_unconfirmed_prices_are_listed_and_confirmed_by_name(three: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"KAFKA_BOOTSTRAP": "x:1", "POSTGRES_URL": three, "TABLES": "/nowhere"}.items():
        monkeypatch.setenv(f"WEIR_{name}", value)
    sql(three, "SET LOCAL weir.changed_by = 'bob'", WRONG)

    def listed(*words: str) -> list[dict[str, Any]]:
        shown = CliRunner().invoke(app, ["catalog", "jumps", "--format", "json", *words])
        assert shown.exit_code == 0, shown.output
        found: list[dict[str, Any]] = json.loads(shown.stdout)
        return found

    [row] = listed()
    assert (row["compared_with"], row["changed_by"], row["confirmed_by"]) == ("replaced", "bob", None)
    assert row["usual_request"] == "2.5 per token: one request of 1,200 tokens costs 3,000 USD"
    key = ("--plan", "p", "--model", "c", "--meter", "input_tokens", "--currency", "USD", "--effective-from")
    confirm = ["catalog", "confirm-price", *key, "2026-01-01T00:00:00Z", "--by"]
    for by in ("ann", "zoe"):
        done = CliRunner().invoke(app, [*confirm, by])
        assert done.exit_code == 0, done.output
        assert done.stdout.startswith("Confirmed by ann at "), "the first who does so stays"
    assert listed() == []
    assert [row["confirmed_by"] for row in listed("--all")] == ["ann"]
    other = CliRunner().invoke(app, [*confirm[:-2], "2026-02-01T00:00:00Z"])
    assert other.exit_code == 1
    assert str(other.exception).startswith("No such price is 100 times above or below another")
