"""What signed rows of usage change in money, to the last digit: as fractions added up row by row say it."""

from __future__ import annotations

from collections import Counter, defaultdict
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jobs.audit.recompute.corrections import CORRECTIONS
from jobs.audit.recompute.money import added, money_by_cause, rows_by_cause
from jobs.joins.config import JoinsConfig

QUANTITIES = st.decimals(0, 99_999_999_999, places=6)
UNIT_PRICES = st.none() | st.decimals(0, 99_999_999, places=12)
ENTRIES = st.lists(
    st.fixed_dictionaries({"meter": st.sampled_from("ab"), "quantity": QUANTITIES, "unit_price": UNIT_PRICES}),
    max_size=3,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "sign": st.sampled_from([1, -1]),
            "cause": st.sampled_from(["repriced", "rejoined"]),
            "currency": st.sampled_from(["EUR", "USD"]),
            "outcome": st.just("matched"),
            "meters": ENTRIES,
        }
    ),
    max_size=8,
)


def as_table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in CORRECTIONS.names} for row in rows], schema=CORRECTIONS
    )


def as_fractions(rows: list[dict[str, Any]]) -> dict[tuple[str, str], Fraction]:
    changed: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for row in rows:
        for entry in row["meters"]:
            if entry["unit_price"] is not None:
                amount = Fraction(entry["quantity"]) * Fraction(entry["unit_price"])
                changed[row["cause"], row["currency"]] += row["sign"] * amount
    return dict(changed)


@given(ROWS)
def test_the_sum_equals_adding_rows_one_by_one(rows: list[dict[str, Any]]) -> None:
    found = {key: Fraction(amount) for key, amount in money_by_cause(as_table(rows)).items()}
    assert found == as_fractions(rows)
    assert rows_by_cause(as_table(rows)) == Counter(row["cause"] for row in rows)


@given(ROWS, ROWS)
def test_two_commits_change_what_both_rows_do(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    both = added(money_by_cause(as_table(one)), money_by_cause(as_table(other)))
    assert {key: Fraction(amount) for key, amount in both.items()} == as_fractions([*one, *other])


def test_units_that_another_meter_bills_change_no_money_where_the_account_has_no_currency() -> None:
    contained = {"meter": "cached_tokens", "quantity": Decimal(7), "unit_price": Decimal(0)}
    row = {"sign": 1, "cause": "rejoined", "currency": None, "outcome": "matched", "meters": [contained]}
    assert money_by_cause(as_table([row])) == {}


def test_rows_of_an_earlier_release_have_their_price_beside_the_meter() -> None:
    earlier = {
        "sign": -1,
        "cause": "repriced",
        "currency": "EUR",
        "outcome": "abandoned",
        "meters": None,
        "requests": 3,
    }
    row = {**earlier, "requests_unit_price": Decimal("0.000000000007")}
    assert money_by_cause(as_table([row])) == {("repriced", "EUR"): Decimal("-0.000000000021")}


@pytest.mark.parametrize("seconds", [0, 1, 366 * 86_400])
def test_a_completion_may_be_rejoined_for_a_year(seconds: int) -> None:
    assert JoinsConfig(rejoin_seconds=seconds).rejoin_within.total_seconds() == seconds


@pytest.mark.parametrize("seconds", [-1, 366 * 86_400 + 1])
def test_no_other_time_is_taken(seconds: int) -> None:
    with pytest.raises(ValidationError, match="rejoin_seconds"):
        JoinsConfig(rejoin_seconds=seconds)


def test_the_reach_of_rejoining_is_not_a_rule_of_the_stream() -> None:
    assert JoinsConfig().rejoin_within.days == 35
    assert JoinsConfig(rejoin_seconds=0).deciding == JoinsConfig().deciding
