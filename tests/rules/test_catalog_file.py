"""The catalog file: every digit is kept, and what is wrong is said with the field, the value, and what is allowed."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.change import Change, envelope
from catalog.file import MAX_POOLED, CatalogFileError, load_catalog_file, parse_catalog
from jobs.streams import CatalogTopic

PLAN = {"plan": "team", "name": "Team"}
ACCOUNT = {"account": "a1", "name": "One", "plan": "team", "currency": "EUR", "timezone": "Europe/Berlin"}
PRICE = {
    "plan": "team",
    "model": "m",
    "meter": "input_tokens",
    "unit_price": "0.0000025",
    "currency": "EUR",
    "effective_from": "2026-01-01T00:00:00Z",
}
LIMIT = {
    "account": "a1",
    "meter": "input_tokens",
    "period": "P1M",
    "quantity": "1000000",
    "effective_from": "2026-01-01T00:00:00Z",
}
prices = st.decimals(min_value=0, max_value=Decimal("99999999.999999999999"), places=12, allow_nan=False)


def file_with(**changes: Any) -> str:
    """A good catalog but for one field, named `list__field`."""
    rows = {"plans": dict(PLAN), "accounts": dict(ACCOUNT), "prices": dict(PRICE)}
    for name, value in changes.items():
        table, field = name.split("__")
        rows[table][field] = value
    return json.dumps({table: [row] for table, row in rows.items()})


@given(prices)
def test_a_price_keeps_every_digit_in_json_and_in_yaml(price: Decimal) -> None:
    as_number = file_with().replace('"0.0000025"', f"{price:f}")
    as_yaml = f"prices:\n- {{plan: team, model: m, meter: requests, unit_price: {price:f}, currency: EUR, "
    as_yaml += "effective_from: 2026-01-01T00:00:00Z}\n"
    for content in (as_number, as_yaml, file_with(prices__unit_price=f"{price:f}")):
        assert parse_catalog(content).prices[0].unit_price == price


def test_a_price_in_scientific_notation_is_the_same_number() -> None:
    assert parse_catalog(file_with(prices__unit_price="2.5e-6")).prices[0].unit_price == Decimal("0.0000025")


@pytest.mark.parametrize(
    ("unit_price", "per", "of_one"),
    [
        ("2.50", 1000000, "0.0000025"),
        ("2.5", "1000000", "0.0000025"),
        ("1", 4, "0.25"),
        ("99999999999999.999999", 1000000, "99999999.999999999999"),
        ("0", 7, "0"),
        ("3", 3, "1"),
        ("12", 1, "12"),
        ("1e30", 10**30, "1"),
    ],
)
def test_a_price_of_a_number_of_units_is_that_of_one_to_the_last_digit(
    unit_price: str, per: int | str, of_one: str
) -> None:
    [price] = parse_catalog(file_with(prices__unit_price=unit_price, prices__per=per)).prices
    assert price.unit_price == Decimal(of_one)
    assert "per" not in price.model_dump()


@given(prices, st.integers(1, 10**20))
def test_each_price_of_one_unit_can_be_written_of_any_number_of_them(price: Decimal, per: int) -> None:
    written = Fraction(price) * per
    digits = f"{written.numerator * 10**12 // written.denominator}e-12"
    assert parse_catalog(file_with(prices__unit_price=digits, prices__per=per)).prices[0].unit_price == price


@given(st.decimals(0, 10**6, places=15), st.integers(1, 10**9))
def test_a_price_that_is_refused_for_its_decimals_names_the_nearest_two_that_are_taken(
    written: Decimal, per: int
) -> None:
    def of_one(unit_price: str) -> Decimal:
        price = parse_catalog(file_with(prices__unit_price=unit_price, prices__per=per)).prices[0]
        assert price.unit_price is not None
        return price.unit_price

    exact = Fraction(written) / per
    try:
        assert Fraction(of_one(f"{written:f}")) == exact
    except CatalogFileError as refusal:
        below, above = map(of_one, str(refusal).rsplit("write ", 1)[1].split(" or "))
        assert above - below == Decimal("0.000000000001")
        assert Fraction(below) < exact < Fraction(above)


def test_a_yaml_file_is_read_with_its_instants_in_utc(tmp_path: Path) -> None:
    file = tmp_path / "catalog.yaml"
    file.write_text(
        "plans:\n- {plan: 007, name: Seven}\n"
        "accounts:\n- {account: no, name: 1e3, plan: '007', currency: EUR, timezone: Asia/Kolkata}\n"
        "prices:\n- plan: 007\n  model: m\n  meter: requests\n  unit_price: 0.1\n  currency: EUR\n"
        "  effective_from: 2026-01-01T02:00:00+02:00\n"
    )
    catalog = load_catalog_file(file)
    assert catalog.plans[0].plan == "007"
    assert (catalog.accounts[0].account, catalog.accounts[0].name) == ("no", "1e3")
    assert catalog.accounts[0].effective_from is None
    assert catalog.prices[0].effective_from == datetime(2026, 1, 1, tzinfo=UTC)
    assert catalog.unknown_plans(set()) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prices__unit_price": "0.1234567890123"}, "prices.0.unit_price is '0.1234567890123': must have at most 12"),
        ({"prices__unit_price": "0.0000000000375"}, "12 decimals: write 0.000000000037 or 0.000000000038"),
        ({"prices__unit_price": "99999999.9999999999999"}, "12 decimals: write 99999999.999999999999"),
        (
            {"prices__unit_price": "1", "prices__per": 3},
            "prices.0.unit_price is '1': must have at most 12 decimals a unit: write 0.999999999999 or 1.000000000002",
        ),
        ({"prices__unit_price": "1e14", "prices__per": 1000000}, "must be less than 100000000 a unit"),
        ({"prices__per": 0}, "prices.0.per is '0': must be a positive whole number, such as 1000000"),
        ({"prices__per": "-5"}, "prices.0.per is '-5': must be a positive whole number"),
        ({"prices__per": 1.5}, "prices.0.per is '1.5': must be a positive whole number"),
        ({"prices__per": "1M"}, "prices.0.per is '1M': must be a positive whole number"),
        ({"prices__per": None}, "prices.0.per is null: must be a positive whole number"),
        ({"prices__per": True}, "prices.0.per is true: must be a positive whole number"),
        ({"prices__unit_price": "-1"}, "prices.0.unit_price is '-1': must not be negative"),
        ({"prices__unit_price": "NaN"}, "prices.0.unit_price is 'NaN': must be a decimal number"),
        ({"prices__unit_price": "Infinity"}, "prices.0.unit_price is 'Infinity': must be a decimal number"),
        ({"prices__unit_price": "1_000"}, "prices.0.unit_price is '1_000': must be a decimal number"),
        ({"prices__unit_price": "١"}, "prices.0.unit_price is '١': must be a decimal number"),
        ({"prices__unit_price": "100000000"}, "prices.0.unit_price is '100000000': must be less than 100000000"),
        ({"prices__unit_price": None}, "prices.0.unit_price is null: must be a decimal number"),
        ({"prices__meter": " "}, "prices.0.meter is ' ': must be text that is not empty"),
        ({"prices__currency": "euro"}, "prices.0.currency is 'euro': must be three capital letters"),
        ({"prices__effective_from": "2026-01-01"}, "prices.0.effective_from is '2026-01-01': must be a date and time"),
        ({"prices__effective_from": "2026-01-01T00:00:00"}, "must be a date and time with its offset"),
        ({"prices__effective_from": "2026-02-30T00:00:00Z"}, "must be a day and time that exist"),
        ({"prices__model": ""}, "prices.0.model is '': must be text that is not empty"),
        ({"prices__model": "a\u0000b"}, "must not hold control characters"),
        ({"prices__model": "x" * 513}, "must be at most 512 bytes long"),
        ({"prices__discount": "1"}, "prices.0.discount is not a known field"),
        ({"accounts__timezone": "Mars/Olympus"}, "accounts.0.timezone is 'Mars/Olympus': must be a time zone"),
        ({"accounts__timezone": "../etc/passwd"}, "accounts.0.timezone is '../etc/passwd': must be a time zone"),
        ({"accounts__account": 7}, None),
        ({"plans__plan": True}, "plans.0.plan is true: must be text that is not empty"),
    ],
)
def test_a_wrong_value_is_refused_with_the_field_and_what_is_allowed(
    changes: dict[str, Any], sentence: str | None
) -> None:
    if sentence is None:
        # A number is read as the text that stands there, so an account may be called 7.
        assert parse_catalog(file_with(**changes)).accounts[0].account == "7"
        return
    with pytest.raises(CatalogFileError) as refusal:
        parse_catalog(file_with(**changes))
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty"),
        ("{", "is not JSON"),
        ("plans: [", "is not YAML"),
        ("- plan: a", "must be an object with fields"),
        ('{"plans": {}}', "plans: must be a list"),
        (
            '{"plan": []}',
            "plan is not a known field: a catalog holds plans, accounts, prices, aliases, plan_terms, limits or pools",
        ),
        ('{"plans": [{"plan": "a"}]}', "plans.0.name is missing"),
        ('{"plans": [{"plan": "a", "plan": "b", "name": "n"}]}', "has plan twice in one object"),
        ("plans: []\nplans: []\n", "has plans twice in one object"),
        ("plans: [{plan: a, name: x}, {plan: a, name: y}]", "plans has a 2 times"),
    ],
)
def test_a_file_that_is_no_catalog_is_refused_with_a_sentence(content: str, sentence: str) -> None:
    with pytest.raises(CatalogFileError) as refusal:
        parse_catalog(content)
    assert sentence in str(refusal.value)


def test_one_instant_in_two_spellings_is_one_price_twice() -> None:
    other = {**PRICE, "effective_from": "2026-01-01T01:00:00+01:00", "unit_price": "1"}
    with pytest.raises(CatalogFileError, match=r"prices has team, m, input_tokens, EUR, .* 2 times"):
        parse_catalog(json.dumps({"prices": [PRICE, other]}))


def test_an_account_or_price_of_an_unknown_plan_is_named() -> None:
    catalog = parse_catalog(json.dumps({"accounts": [ACCOUNT], "prices": [PRICE]}))
    assert catalog.unknown_plans({"team"}) == []
    assert [line.split(":")[0] for line in catalog.unknown_plans(set())] == [
        "accounts.0.plan is 'team'",
        "prices.0.plan is 'team'",
    ]


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CatalogFileError, match="cannot be read"):
        load_catalog_file(tmp_path / "none.yaml")


def test_a_change_is_published_in_the_envelope_of_debezium() -> None:
    after = {
        "account": "a1",
        "name": "One",
        "plan": "team",
        "currency": "EUR",
        "timezone": "UTC",
        "effective_from": None,
    }
    change = Change(CatalogTopic.ACCOUNTS, {"account": "a1"}, after, "u", datetime(2026, 1, 1, 0, 0, 0, 5_999, UTC))
    value = envelope(change)
    assert (value["before"], value["after"], value["op"]) == (None, after, "u")
    assert value["source"]["ts_ms"] == value["ts_ms"] == 1_767_225_600_005


def test_a_price_of_a_meter_that_is_not_declared_is_named_with_those_that_are() -> None:
    catalog = parse_catalog(
        "prices:\n- {plan: p, model: m, meter: images, unit_price: 1, currency: EUR, "
        "effective_from: 2026-01-01T00:00:00Z}"
    )
    assert catalog.undeclared_meters({"images", "requests"}) == []
    [problem] = catalog.undeclared_meters({"requests", "gpu_seconds"})
    assert problem.startswith("prices.0.meter is 'images': must be one of gpu_seconds, requests;")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"account": ""}, "must be of an account or of a plan"),
        ({"plan": "team"}, "must be of an account or of a plan"),
        ({"period": "P1W"}, "limits.0.period is 'P1W': must be one of P1D, P1M"),
        (
            {"period": "PT1H"},
            "must be one of P1D, P1M, of the account's calendar, or the last whole hours, PT2H to PT168H",
        ),
        ({"period": "PT169H"}, "or the last whole hours, PT2H to PT168H"),
        ({"period": "PT024H"}, "or the last whole hours, PT2H to PT168H"),
        ({"period": "PT90M"}, "or the last whole hours, PT2H to PT168H"),
        ({"period": "PT24H", "meter": "", "currency": "EUR"}, "of a currency must have period P1M"),
        ({"dimensions": {"team": "search"}}, "limits.0.dimensions is not a known field"),
        ({"quantity": "-1"}, "limits.0.quantity is '-1': must be a quantity such as 1000000, or null for no limit"),
        ({"quantity": "1e6"}, "must be a quantity"),
        ({"effective_from": "2026-01-01"}, "must be a date and time with its offset"),
    ],
)
def test_a_limit_that_means_nothing_is_refused_with_what_it_must_be(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(CatalogFileError, match=re.escape(says)):
        parse_catalog(json.dumps({"limits": [{**LIMIT, **wrong}]}))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"dimension": "team"},
            "limits.0.dimension is 'team': must be one dimension with one value, such as {team: sea",
        ),
        ({"dimension": {"team": "a", "user_id": "b"}}, "must be one dimension with one value"),
        ({"dimension": {"Team": "a"}}, "must name a dimension, such as team or account.tags.team"),
        ({"dimension": {"meter": "a"}}, "meter cannot be a dimension"),
        ({"dimension": {"team": ""}}, "team must be text that is not empty"),
        ({"dimension": {"team": ["a"]}}, "team must be text that is not empty"),
        ({"dimension": {"team": None}}, "must be one dimension with one value, such as {team: search}"),
        ({"dimension": {"team": "~"}}, "must be one dimension with one value"),
        ({"dimension": {}}, "must be one dimension with one value"),
        ({"dimension": {"team": "x" * 513}}, "team must be at most 512 bytes long"),
        ({"dimension": {"team": "a"}, "period": "PT24H"}, "must have period P1D or P1M: hours have no dimensions"),
        (
            {"dimension": {"team": "a"}, "meter": "", "currency": "EUR", "period": "P1M"},
            "of a currency must be of all usage: tiers are of a month, and not of a dimension",
        ),
    ],
)
def test_a_limit_of_a_dimension_that_means_nothing_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(CatalogFileError, match=re.escape(says)):
        parse_catalog(json.dumps({"limits": [{**LIMIT, **wrong}]}))


def test_a_limit_may_be_of_one_value_of_a_dimension_that_the_stack_knows() -> None:
    teams = [{**LIMIT, "dimension": {"team": value}} for value in ("search", "ads")]
    catalog = parse_catalog(json.dumps({"limits": [LIMIT, *teams]}))
    stored = [(row.stored["dimension"], row.stored["dimension_value"]) for row in catalog.limits]
    assert stored == [("", ""), ("team", "search"), ("team", "ads")]
    assert catalog.unknown_dimensions({"team"}) == catalog.limits_of_dimensions_of_whole_periods({"users"}) == []
    assert [line.partition(":")[0] for line in catalog.unknown_dimensions({"user_id"})] == [
        "limits.1.dimension names team",
        "limits.2.dimension names team",
    ]
    [problem, _] = catalog.limits_of_dimensions_of_whole_periods({"input_tokens"})
    assert problem.startswith("limits.1.dimension is of input_tokens: must be left out, as input_tokens bills a day")
    with pytest.raises(CatalogFileError, match=r"limits has a1, input_tokens, P1M, .* of team ads 2 times"):
        parse_catalog(json.dumps({"limits": [LIMIT, teams[1], teams[1]]}))


@pytest.mark.parametrize("period", ["PT2H", "PT24H", "PT168H"])
def test_a_limit_may_be_of_the_last_hours_but_not_of_a_meter_that_bills_whole_days_or_months(period: str) -> None:
    catalog = parse_catalog(json.dumps({"limits": [{**LIMIT, "period": period}]}))
    assert catalog.limits[0].period == period
    assert catalog.rolling_limits_of_whole_periods({"users"}) == []
    [problem] = catalog.rolling_limits_of_whole_periods({"input_tokens"})
    assert problem == (
        f"limits.0.period is '{period}': must be one of P1D, P1M, as input_tokens bills a day or month as a whole, "
        "and has no hours"
    )
    assert parse_catalog(json.dumps({"limits": [LIMIT]})).rolling_limits_of_whole_periods({"input_tokens"}) == []


def test_a_limit_without_a_quantity_is_none_and_one_that_occurs_twice_is_refused() -> None:
    [limit] = parse_catalog(json.dumps({"limits": [{**LIMIT, "quantity": None}]})).limits
    assert (limit.account, limit.plan, limit.quantity) == ("a1", "", None)
    with pytest.raises(CatalogFileError, match=r"limits has a1, input_tokens, P1M, .* 2 times"):
        parse_catalog(json.dumps({"limits": [LIMIT, {**LIMIT, "quantity": "5"}]}))


def test_steps_are_stored_as_numbers_and_a_share_is_of_the_limit() -> None:
    given = {**LIMIT, "quantity": "1000.5", "steps": ["80%", "50", "50.0", "12.5%"]}
    of_each = {"account": "*", "currency": "EUR", "amount": "0.10", "period": "P1M", "steps": ["50%"]}
    one, two = parse_catalog(
        json.dumps({"limits": [given, {**of_each, "effective_from": LIMIT["effective_from"]}]})
    ).limits
    assert [Decimal(step) for step in one.stored["steps"]] == [50, Decimal("125.0625"), Decimal("800.4")]
    assert (two.stored["account"], two.stored["plan"], two.stored["steps"]) == ("", "", ["0.0500"])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"currency": "EUR"}, "must have amount, not quantity: it is of EUR"),
        ({"currency": "EUR", "period": "P1D"}, "must have period P1M"),
        ({"meter": None}, "must be of a meter or of a currency"),
        (
            {"amount": "1"},
            "must have quantity, not amount: it is of input_tokens; a limit of money also has a currency",
        ),
        ({"meter": None, "currency": "EUR", "period": "P1D"}, "must have period P1M"),
        ({"meter": None, "currency": "EUR"}, "must have amount, not quantity: it is of EUR"),
        ({"meter": None, "currency": "euro"}, "must be three capital letters"),
        ({"steps": ["0"]}, "must be above 0"),
        ({"steps": ["-1"]}, "must be a number such as 800000, or a share of the limit such as 80%"),
        ({"quantity": None, "steps": ["50%"]}, "without a limit there are no shares of it"),
        ({"steps": ["1"] * 21}, "at most 20"),
        ({"model": "gpt-4o-*"}, "must be the exact name of one model"),
        ({"model": '["gpt-4o","o3"]'}, "must be the exact name of one model"),
        ({"model": 'gpt-4o{"operation":"batch"}'}, "must be the exact name of one model"),
        ({"meter": None, "currency": "EUR", "model": "gpt-4o"}, "of a currency must be of all models"),
        ({"every": "0"}, "must be above 0"),
        ({"every": "-5"}, "must be a number such as 800000, or a share of the limit such as 80%"),
        ({"quantity": None, "every": "50%"}, "without a limit there are no shares of it"),
        ({"quantity": "0", "every": "50%"}, "must have a number as every"),
    ],
)
def test_a_limit_of_money_or_with_steps_that_means_nothing_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(CatalogFileError, match=re.escape(says)):
        parse_catalog(json.dumps({"limits": [{**LIMIT, **wrong}]}))


def test_a_limit_without_quantity_and_steps_is_refused_as_null_would_end_it() -> None:
    given = {name: value for name, value in LIMIT.items() if name != "quantity"}
    with pytest.raises(CatalogFileError, match=re.escape("must have quantity (null ends a limit), steps or every")):
        parse_catalog(json.dumps({"limits": [given]}))
    for more in ({"steps": ["5"]}, {"every": "5"}):
        assert parse_catalog(json.dumps({"limits": [{**given, **more}]})).limits[0].maximum is None


def test_a_limit_may_recur_by_a_share_of_it_and_each_model_has_its_own() -> None:
    of_model = {**LIMIT, "quantity": "1000", "model": "gpt-4o", "every": "12.5%"}
    one, two = parse_catalog(json.dumps({"limits": [LIMIT, of_model]})).limits
    assert (one.stored["model"], one.stored["every"]) == ("", None)
    assert two.stored["model"] == "gpt-4o"
    assert Decimal(two.stored["every"]) == 125
    with pytest.raises(CatalogFileError, match=r"limits has a1, input_tokens, P1M, .* of gpt-4o 2 times"):
        parse_catalog(json.dumps({"limits": [of_model, of_model]}))


def test_an_account_may_have_the_name_of_a_plan_and_both_a_limit() -> None:
    of_plan = {name: value for name, value in LIMIT.items() if name != "account"} | {"plan": LIMIT["account"]}
    assert len(parse_catalog(json.dumps({"limits": [LIMIT, of_plan]})).limits) == 2
    with pytest.raises(CatalogFileError, match=r"limits has a1, input_tokens, P1M, .* of a plan 2 times"):
        parse_catalog(json.dumps({"limits": [of_plan, {**of_plan, "quantity": "5"}]}))


POOL = {"parent": "acme", "accounts": ["acme", "dev"], "first_month": "2026-10"}


def test_a_pool_is_a_row_for_each_of_its_accounts() -> None:
    first, last = parse_catalog(
        json.dumps({"pools": [POOL, {**POOL, "first_month": "2027-01", "end_month": "2027-03"}]})
    ).pools
    assert first.rows == [
        {"account": "acme", "parent": "acme", "first_month": "2026-10-01", "end_month": None},
        {"account": "dev", "parent": "acme", "first_month": "2026-10-01", "end_month": None},
    ]
    assert {(row["first_month"], row["end_month"]) for row in last.rows} == {("2027-01-01", "2027-03-01")}
    known = parse_catalog(json.dumps({"pools": [POOL]})).unknown_parents({"acme"})
    assert known == ["pools.0.accounts is 'dev': must be an account of the file or of the catalog"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"first_month": "2026-13"}, "pools.0.first_month.*must be a month such as 2026-10"),
        ({"first_month": "2026-10-01"}, "pools.0.first_month.*must be a month such as 2026-10"),
        ({"first_month": None}, "pools.0.*must have first_month"),
        ({"end_month": "2026-09"}, "pools.0.*end_month that is not before its first_month"),
        ({"accounts": []}, "pools.0.accounts"),
        ({"accounts": [f"a{number}" for number in range(MAX_POOLED + 1)]}, "pools.0.accounts"),
        ({"accounts": ["dev", "dev"]}, "pools has dev, 2026-10-01 2 times; it must occur once"),
        ({"account": "dev"}, "pools.0.account"),
    ],
)
def test_what_is_no_pool_is_refused_with_what_it_must_be(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CatalogFileError, match=sentence):
        parse_catalog(json.dumps({"pools": [{**POOL, **change}]}))
