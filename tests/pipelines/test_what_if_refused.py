"""`weir what-if --catalog` refuses, with a sentence, what it cannot replay or the catalog would not take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from catalog.file import parse_catalog
from catalog.store import store
from cli.what_if import LIMITS_WITHOUT_EFFECT, _versions
from deployment.errors import CannotRun, FileRefused
from jobs.runtime.postgres.ownership import Ownership
from jobs.stack import load_stack_config
from metering.plan_terms import parse_terms
from metering.price_models import PricedModel
from tests.database_rows import write

PLAN = "plans: [{plan: p, name: P}]\n"
RULES = "price_attributes: [operation, region]"
BATCH, EU, BOTH = {"operation": "batch"}, {"region": "eu"}, {"operation": "batch", "region": "eu"}
LISTS = [["a", "o3"], ["b", "o3"], ["a", "b*"], ["b*", "c"]]


@pytest.fixture
def priced(database: str) -> str:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    Ownership.take("joins", database, {"price_attributes": ["operation", "region"]}).close()
    return database


def priced_by(*lists: Sequence[str], since: str = "2026-01-01T00:00:00Z", meter: str = "requests") -> str:
    return catalog_of(*({"models": models, "meter": meter, "effective_from": since} for models in lists))


def on(*every: Mapping[str, str], since: str = "2026-01-01T00:00:00Z", **of: Any) -> str:
    """Prices of one model, or what `of` names, each with its conditions."""
    return catalog_of(*({"model": "m", "conditions": one, "effective_from": since, **of} for one in every))


def catalog_of(*prices: Mapping[str, Any]) -> str:
    common = {"plan": "p", "meter": "requests", "unit_price": 1, "currency": "EUR"}
    return PLAN + f"prices: {json.dumps([{**common, **price} for price in prices])}\n"


def refusal(database: str, folder: Path, content: str) -> str | None:
    """What `weir what-if` says of a catalog file; None: it takes it."""
    file, rules = folder / "catalog.yaml", folder / "weir.yaml"
    file.write_text(content)
    rules.write_text(RULES)
    try:
        _versions(file, load_stack_config(rules).jobs, database)
    except FileRefused as error:
        return str(error).removeprefix(f"{file}: ")
    return None


@pytest.mark.parametrize(("one", "other"), [(LISTS[0], LISTS[1]), (LISTS[3], LISTS[2]), (LISTS[1], LISTS[2])])
@pytest.mark.parametrize("is_live", [True, False])
def test_lists_of_models_that_share_a_name_are_refused_as_the_catalog_refuses_them(
    priced: str, tmp_path: Path, one: list[str], other: list[str], *, is_live: bool
) -> None:
    if is_live:
        store(priced, parse_catalog(priced_by(one)))
    file = priced_by(other) if is_live else priced_by(one, other)
    found, stored = refusal(priced, tmp_path, file), refused_by_catalog(priced, file)
    assert (found is None) is (stored is None)
    # Which of two is named first is the order in which they are stored.
    if found is not None and stored is not None:
        assert set(found.split()) <= set(stored.split())


def refused_by_catalog(database: str, content: str) -> str | None:
    try:
        store(database, parse_catalog(content))
    except CannotRun as error:
        return str(error)
    return None


def test_lists_that_do_not_meet_in_time_or_meter_are_taken(priced: str, tmp_path: Path) -> None:
    store(priced, parse_catalog(priced_by(["a", "o3"])))
    assert refusal(priced, tmp_path, priced_by(["a", "o3"], since="2026-03-01T00:00:00Z")) is None
    assert refusal(priced, tmp_path, priced_by(["b", "o3"], meter="output_tokens")) is None
    with psycopg.connect(priced) as connection:
        text = PricedModel.group(["a", "o3"]).text
        ends = datetime.fromisoformat("2026-02-01T00:00:00Z")
        connection.execute("UPDATE catalog.prices SET deleted_at = %s WHERE model = %s", [ends, text])
        connection.execute("DELETE FROM catalog.prices WHERE model = %s", [text])
    assert refusal(priced, tmp_path, priced_by(["b", "o3"], since="2026-02-01T00:00:00Z")) is None
    assert "are both for 'o3'" in str(refusal(priced, tmp_path, priced_by(["b", "o3"], since="2026-01-31T00:00:00Z")))


@pytest.mark.parametrize(
    ("live", "file"),
    [
        (None, on(BATCH, EU)),
        (None, on(BATCH, EU, BOTH)),
        (on(BATCH), on(EU)),
        (on(BATCH), on(EU, BOTH)),
        (on(BATCH), on(EU, meter="output_tokens")),
        (on(BATCH), on(EU, model="n")),
        (on(BATCH), on(EU, model="m*")),
        (on(BATCH), on(BOTH)),
        (on(BATCH), on({"operation": "chat", "region": "eu"})),
        (on(BATCH, EU, BOTH), on(BATCH, since="2025-01-01T00:00:00Z")),
        (on(BATCH, EU, BOTH), on(EU, since="2025-01-01T00:00:00Z")),
        (on(BATCH, EU, BOTH, since="2026-02-01T00:00:00Z"), on(BATCH, EU)),
    ],
)
def test_prices_that_can_both_hold_are_refused_as_the_catalog_refuses_them(
    priced: str, tmp_path: Path, live: str | None, file: str
) -> None:
    if live is not None:
        store(priced, parse_catalog(live))
    found, stored = refusal(priced, tmp_path, file), refused_by_catalog(priced, file)
    assert (found is None) is (stored is None)
    if found is not None and stored is not None:
        assert found in stored


def test_a_price_that_takes_the_place_of_an_ended_one_holds_beside_what_followed_it(
    priced: str, tmp_path: Path
) -> None:
    store(priced, parse_catalog(on(BATCH)))
    with psycopg.connect(priced) as connection:
        ends = datetime.fromisoformat("2026-02-01T00:00:00Z")
        connection.execute("UPDATE catalog.prices SET deleted_at = %s", [ends])
        connection.execute("DELETE FROM catalog.prices")
    store(priced, parse_catalog(on(EU, since="2026-02-01T00:00:00Z")))
    assert "can both hold" in str(refusal(priced, tmp_path, on(BATCH)))
    assert refusal(priced, tmp_path, on({"operation": "chat", "region": "eu"})) is None


def test_tiers_and_what_a_plan_costs_are_replayed_as_the_catalog_has_them(priced: str, tmp_path: Path) -> None:
    since = {"plan": "p", "currency": "EUR", "effective_from": "2026-01-01T00:00:00Z"}
    tiers = [{"up_to": 1000, "unit_price": 2, "flat_price": 5}, {"unit_price": 1}]
    price = {**since, "model": "m", "meter": "requests", "kind": "graduated", "tiers": tiers}
    terms = {**since, "flat_fee": 5, "included": {"requests": 10}}
    content = f"{PLAN}prices: {json.dumps([price])}\nplan_terms: {json.dumps([terms])}\n"
    (tmp_path / "catalog.yaml").write_text(content)
    _, assumed = _versions(tmp_path / "catalog.yaml", None, priced)
    found = {(row["model"], row["unit_price"]): parse_terms(row["terms"]) for row in assumed["prices"].to_pylist()}
    store(priced, parse_catalog(content))
    with psycopg.connect(priced) as connection:
        stored = connection.execute("SELECT model, unit_price, terms::text FROM catalog.prices").fetchall()
    assert found == {(model, unit_price): parse_terms(text) for model, unit_price, text in stored}
    assert len(found) == 2


@pytest.mark.parametrize("part", ["accounts", "prices", "plan_terms"])
def test_a_plan_that_nobody_has_is_refused(priced: str, tmp_path: Path, part: str) -> None:
    """Such a price or fee would change nothing, and an account would be billed without a price."""
    of_plan = {"plan": "prro", "currency": "EUR"}
    since = {**of_plan, "effective_from": "2026-01-01T00:00:00Z"}
    row = {
        "accounts": {**of_plan, "account": "a", "name": "A"},
        "prices": {**since, "model": "m", "meter": "requests", "unit_price": 1},
        "plan_terms": {**since, "flat_fee": 5},
    }[part]
    content = f"{part}: {json.dumps([row])}\n"
    expected = f"{part}.0.plan is 'prro': must be a plan of the file or of the catalog"
    assert refusal(priced, tmp_path, content) == expected
    plan = json.dumps([{"plan": "prro", "name": "Pro"}])
    assert refusal(priced, tmp_path, f"plans: {plan}\n{content}") is None


LIMIT = "limits: [{plan: p, meter: requests, period: P1M, quantity: 5, effective_from: '2026-01-01T00:00:00Z'}]\n"


@pytest.mark.parametrize(("content", "lines"), [(PLAN + LIMIT, 1), (PLAN, 0)], ids=["limits", "none"])
def test_limits_of_the_file_are_said_to_change_no_amount(
    priced: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, lines: int
) -> None:
    assert refusal(priced, tmp_path, content) is None
    printed = capsys.readouterr()
    assert printed.err.count(f"{tmp_path / 'catalog.yaml'}: {LIMITS_WITHOUT_EFFECT}\n") == lines
    assert printed.err.count("\n") == lines
    assert printed.out == "", "standard output has the comparison alone"
