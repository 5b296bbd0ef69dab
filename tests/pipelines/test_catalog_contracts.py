"""`weir catalog contracts`: what it lists, of what, and as of when."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from catalog.deletion import delete_row
from cli.catalog_contracts import right_until
from cli.output import Format, print_rows
from cli.reading import read_only
from jobs.queries.contracts import COLUMNS, ContractQuery, contract_rows
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import CatalogTopic
from metering.price_models import PricedModel
from tests.database_rows import write

BEGAN, BEGINS = datetime(2026, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def catalog(database: str) -> str:
    """Two accounts on two plans; of one price the next is announced, and an account begins when it does."""
    for plan in ("small", "large"):
        write(database, "catalog.plans", {"plan": plan, "name": plan.title()})
        for model, meter in (("m1", "requests"), ("m1", "input_tokens"), ("m2", "requests")):
            key = {"plan": plan, "model": model, "meter": meter, "currency": "EUR"}
            write(database, "catalog.prices", {**key, "effective_from": BEGAN, "unit_price": Decimal("0.00000015")})
    nextly = {"plan": "small", "model": "m1", "meter": "requests", "currency": "EUR", "effective_from": BEGINS}
    write(database, "catalog.prices", {**nextly, "unit_price": 2})
    for account, plan, since in (("acme", "small", BEGAN), ("bolt", "large", BEGAN), ("late", "large", BEGINS)):
        row = {"account": account, "name": account, "plan": plan, "currency": "EUR", "effective_from": since}
        write(database, "catalog.accounts", row)
    return database


def listed(database: str, query: ContractQuery) -> list[dict[str, Any]]:
    out = io.StringIO()
    with read_only(database) as connection:
        print_rows(contract_rows(connection, query), COLUMNS, Format.JSON, out=out)
    return list(json.loads(out.getvalue()))


def keys(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(row["account"], row["model"], row["meter"]) for row in rows]


def test_contracts_are_listed_by_account_model_and_meter_with_every_digit(catalog: str) -> None:
    rows = listed(catalog, ContractQuery())
    meters = [("m1", "input_tokens"), ("m1", "requests"), ("m2", "requests")]
    assert keys(rows) == [(account, *one) for account in ("acme", "bolt") for one in meters]
    changed_at = rows[1].pop("changed_at")
    assert datetime.fromisoformat(changed_at).tzinfo is not None
    assert rows[1] == {
        "account": "acme",
        "plan": "small",
        "plan_name": "Small",
        "currency": "EUR",
        "model": "m1",
        "meter": "requests",
        "unit_price": "0.00000015",
        "effective_from": "2026-01-01T00:00:00Z",
        "in_force_until": "2999-01-01T00:00:00Z",
        "account_from": "2026-01-01T00:00:00Z",
        "terms": None,
    }


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (ContractQuery(accounts=("acme",), model="m1"), [("acme", "m1", "input_tokens"), ("acme", "m1", "requests")]),
        (ContractQuery(plan="large", meter="input_tokens"), [("bolt", "m1", "input_tokens")]),
        (
            ContractQuery(accounts=("acme", "bolt"), model="m2"),
            [("acme", "m2", "requests"), ("bolt", "m2", "requests")],
        ),
        (ContractQuery(accounts=("nobody",)), []),
        (ContractQuery(at=BEGAN - MICROSECOND), []),
        (ContractQuery(at=BEGINS - MICROSECOND, accounts=("late",)), []),
        (ContractQuery(at=BEGINS, accounts=("late",), model="m2"), [("late", "m2", "requests")]),
    ],
)
def test_options_select(catalog: str, query: ContractQuery, found: list[tuple[str, str, str]]) -> None:
    assert keys(listed(catalog, query)) == found


def test_a_model_has_the_prices_of_lists_and_conditions_that_name_it(catalog: str) -> None:
    Ownership.take("joins", catalog, {"price_attributes": ["operation"]}).close()
    both = PricedModel.group(["m3", "m4"]).text
    batch = PricedModel.of("m3", {"operation": "batch"}).text
    for model in (both, batch, "m3*"):
        key = {"plan": "small", "model": model, "meter": "requests", "currency": "EUR", "effective_from": BEGAN}
        write(catalog, "catalog.prices", {**key, "unit_price": Decimal("0.00000015")})
    query = ContractQuery(accounts=("acme",), model="m3")
    assert {row["model"] for row in listed(catalog, query)} == {both, batch}
    out = io.StringIO()
    with read_only(catalog) as connection:
        print_rows(contract_rows(connection, replace(query, model="m4")), COLUMNS, Format.TABLE, out=out)
    assert "[m3, m4]" in out.getvalue()


def test_another_instant_has_the_price_that_begins_with_it(catalog: str) -> None:
    asked = [ContractQuery(at, ("acme",), model="m1", meter="requests") for at in (BEGINS - MICROSECOND, BEGINS)]
    assert [row["unit_price"] for query in asked for row in listed(catalog, query)] == ["0.00000015", "2"]


def test_the_listing_shows_its_instant_and_the_next_change(catalog: str) -> None:
    with read_only(catalog) as connection:
        assert right_until(connection, ContractQuery(BEGAN)) == (
            "In force at 2026-01-01T00:00:00Z by the rows that the catalog has now; "
            "the next price or account begins or ends at 2999-01-01T00:00:00Z."
        )
        assert right_until(connection, ContractQuery(BEGINS)).endswith("; nothing begins or ends after it.")
        assert right_until(connection, ContractQuery()).endswith("begins or ends at 2999-01-01T00:00:00Z.")


def test_a_price_that_is_deleted_as_of_later_is_listed_until_then_and_the_list_is_right_until_then(
    catalog: str,
) -> None:
    ends = datetime(2998, 1, 1, tzinfo=UTC)
    key = {"plan": "small", "model": "m2", "meter": "requests", "currency": "EUR", "effective_from": BEGAN}
    delete_row(catalog, CatalogTopic.PRICES, key, ends, "ann")
    [row] = listed(catalog, ContractQuery(accounts=("acme",), model="m2"))
    assert row["in_force_until"] == "2998-01-01T00:00:00Z"
    assert listed(catalog, ContractQuery(ends, ("acme",), model="m2")) == []
    with read_only(catalog) as connection:
        assert right_until(connection, ContractQuery()).endswith("begins or ends at 2998-01-01T00:00:00Z.")
