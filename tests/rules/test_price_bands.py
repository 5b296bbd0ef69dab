"""Bands of a quantity that prices depend on: which one a quantity is in, what can be declared, and what is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from catalog.file import parse_catalog
from jobs.ingestion.config import IngestionConfig
from jobs.joins.attribute_values import conventions_of, value_of
from jobs.joins.config import JoinsConfig
from jobs.joins.memory import INCLUDED, REPORTED, quantity_of
from jobs.runtime.effective_rules import EffectiveRules
from jobs.runtime.errors import Refused
from metering.contracts.includes import includes_of, text_of, wholes_of
from metering.meters import LARGEST_QUANTITY
from metering.price_attributes import PriceAttribute, restored
from tests.specifications.pricing import band_of

COLUMNS = ("input_tokens", "cached_tokens", "cache_write_tokens")
CONTEXT: dict[str, Any] = {
    "context": {"of": "input_tokens", "bands": {"up_to_200k": "200000", "above_200k": None}},
}

quantities = st.decimals(0, LARGEST_QUANTITY, places=6) | st.decimals(0, 9, places=6) | st.just(Decimal(200_000))
names = st.sampled_from(["low", "middle", "high", "above", "x"])


@st.composite
def attributes(draw: st.DrawFn) -> PriceAttribute:
    bounds = draw(st.lists(quantities, min_size=1, max_size=4, unique=True))
    bands = dict(zip(draw(st.permutations(["low", "middle", "high", "x"])), bounds, strict=False))
    of = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3, unique=True))
    once = draw(st.booleans())
    return PriceAttribute.banded("context", of, {**bands, "above": None}, each_unit_once=once)


@given(attribute=attributes(), data=st.data())
def test_oracle_a_quantity_is_in_the_lowest_band_that_includes_it(
    attribute: PriceAttribute, data: st.DataObject
) -> None:
    """At the bound, a hair above it, of several columns, of none; a number below 0 is none."""
    bounds = [bound for _, bound in attribute.bands if bound is not None]
    near = st.sampled_from([*bounds, *(min(bound + Decimal("0.000001"), LARGEST_QUANTITY) for bound in bounds)])
    said = st.none() | near | quantities | st.just(Decimal(-1))
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(COLUMNS, said)), min_size=1, max_size=8))
    frame = pl.DataFrame(
        [{quantity_of(name): value for name, value in row.items()} for row in rows],
        schema=dict.fromkeys(map(quantity_of, COLUMNS), REPORTED),
    )

    def band(row: dict[str, Decimal | None]) -> str | None:
        reported = [value for name in attribute.of if (value := row[name]) is not None and value >= 0]
        if not reported:
            return None
        in_order = sorted((bound, name) for name, bound in attribute.bands if bound is not None)
        return next((name for bound, name in in_order if sum(reported) <= bound), "above")

    found = frame.select(value_of(attribute)).to_series().to_list()
    assert found == [band(row) for row in rows]
    single = [row[attribute.of[0]] for row in rows if len(attribute.of) == 1]
    assert [band_of(attribute, value) for value in single if value is None or value >= 0] == [
        name for value, name in zip(single, found, strict=False) if value is None or value >= 0
    ]


AS_OPENAI = text_of(includes_of({"input_tokens": ["cached_tokens", "cache_write_tokens"]}))
AS_ANTHROPIC = text_of(includes_of({"output_tokens": ["reasoning_tokens"]}))
CHAIN = text_of(includes_of({"input_tokens": ["cached_tokens"], "cached_tokens": ["cache_write_tokens"]}))


@given(attribute=attributes(), data=st.data())
def test_oracle_a_column_that_is_part_of_another_is_counted_once_by_the_convention_of_its_event(
    attribute: PriceAttribute, data: st.DataObject
) -> None:
    once = replace(attribute, each_unit_once=True)
    said = st.none() | st.integers(0, 300_000).map(Decimal)
    one = st.fixed_dictionaries(
        {**dict.fromkeys(COLUMNS, said), "of": st.sampled_from([None, AS_OPENAI, AS_ANTHROPIC, CHAIN])}
    )
    rows = data.draw(st.lists(one, min_size=1, max_size=8))
    frame = pl.DataFrame(
        [{**{quantity_of(name): row[name] for name in COLUMNS}, INCLUDED: row["of"]} for row in rows],
        schema={**dict.fromkeys(map(quantity_of, COLUMNS), REPORTED), INCLUDED: pl.String()},
    )

    def quantity(row: dict[str, Any]) -> Decimal | None:
        reported = {name: row[name] for name in attribute.of if row[name] is not None}
        of_others = {name for name in reported if row["of"] and set(wholes_of(row["of"], name)) & reported.keys()}
        return sum((reported[name] for name in reported.keys() - of_others), Decimal(0)) if reported else None

    found = frame.select(value_of(once, conventions_of(frame, [once]))).to_series().to_list()
    assert found == [band_of(attribute, quantity(row)) for row in rows]


def test_one_attribute_of_anthropics_columns_has_an_openai_request_of_150_000_tokens_below_200_000() -> None:
    """As the guide lists the columns. 120,000 of them came from the cache, and were counted twice."""
    given = {"of": [*COLUMNS], "bands": {"up_to_200k": 200_000, "above_200k": None}}
    config = JoinsConfig.model_validate({"price_attributes": [{"context": given}]}).settled((), is_new=True)
    frame = pl.DataFrame(
        {"input_tokens": [150_000] * 2, "cached_tokens": [120_000] * 2, "cache_write_tokens": [0] * 2},
        schema=dict.fromkeys(COLUMNS, REPORTED),
    ).rename(quantity_of)
    frame = frame.with_columns(pl.Series(INCLUDED, [AS_OPENAI, AS_ANTHROPIC]))
    (context,) = config.attributes
    bands = frame.select(value_of(context, conventions_of(frame, config.attributes))).to_series().to_list()
    assert bands == ["up_to_200k", "above_200k"]


def test_an_attribute_that_decided_prices_keeps_its_sum_and_a_new_one_counts_each_unit_once() -> None:
    """Until somebody sets it: what was decided is recomputed by what is stored with it."""
    of = {"of": ["cached_tokens", "input_tokens"], "bands": {"low": "1", "high": None}}

    def settled(listed: list[Any], *rules: Any) -> list[Any]:
        history = tuple(EffectiveRules(1, {"meters": {}, "price_attributes": stored}) for stored in rules)
        config = JoinsConfig.model_validate({"price_attributes": listed})
        found: list[Any] = config.settled(history, is_new=not history).deciding["price_attributes"]
        return found

    once = {**of, "each_unit_once": True}
    assert settled([{"context": of}]) == [{"context": once}]
    assert settled([{"context": of}, {"other": of}], [{"context": of}]) == [{"context": of}, {"other": once}]
    assert settled([{"context": of}], [{"context": once}]) == [{"context": once}]
    assert settled([{"context": once}], [{"context": of}]) == [{"context": once}]
    assert settled([{"context": of}], [{"context": {**of, "of": ["input_tokens"]}}]) == [{"context": once}]
    assert settled([{"context": {**once, "each_unit_once": False}}]) == [{"context": of}]
    assert settled(["region", CONTEXT]) == ["region", {"context": {**CONTEXT["context"], "of": ["input_tokens"]}}]
    assert restored([{"context": once}]) != restored([{"context": of}])


@given(attribute=attributes())
def test_its_stored_form_reads_the_same_by_every_reader(attribute: PriceAttribute) -> None:
    assert restored(json.loads(json.dumps([attribute.stored, "region"]))) == (attribute, PriceAttribute("region"))


@given(order=st.permutations(["low", "middle", "above"]), bound=st.sampled_from(["10", 10, 10.0, "10.0"]))
def test_bands_written_in_any_order_are_the_same_rules(order: list[str], bound: Any) -> None:
    """A chart sorts the keys of what it passes on."""
    bounds = {"low": bound, "middle": "20.5", "above": None}
    said = [{"context": {"of": ["input_tokens"], "bands": {name: bounds[name] for name in order}}}]
    kept = JoinsConfig.model_validate({"price_attributes": said}).deciding["price_attributes"]
    bands = {"low": "10", "middle": "20.5", "above": None}
    assert kept == [{"context": {"of": ["input_tokens"], "bands": bands}}]


def test_the_stored_configuration_of_joins_is_read_back_unchanged() -> None:
    config = JoinsConfig.model_validate({"price_attributes": ["region", CONTEXT]})
    dumped = json.loads(config.model_dump_json())["price_attributes"]
    assert dumped == ["region", CONTEXT]
    assert restored(dumped) == config.attributes
    assert JoinsConfig.model_validate({"price_attributes": dumped}) == config


def banded(**says: Any) -> dict[str, Any]:
    return {"price_attributes": [{"context": {**CONTEXT["context"], **says}}]}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            banded(of="input_token"),
            "context is of input_token, which is not a number that a completion reports; it can be",
        ),
        (banded(of="operation"), "context is of operation, which is not a number"),
        (banded(of=[]), "at least 1 item"),
        (banded(bands={"all": None}), "at least 2 items"),
        (banded(bands={"low": "1", "high": "2"}), "one band, and only one, is above all others"),
        (banded(bands={"low": None, "high": None}), "one band, and only one, is above all others"),
        (banded(bands={"low": "2", "high": "2.0", "above": None}), "two bands go up to the same quantity"),
        (banded(bands={"low": "-1", "above": None}), "greater than or equal to 0"),
        (banded(bands={"low": "1.0000001", "above": None}), "no more than 6 decimal places"),
        (banded(bands={"low": "much", "above": None}), "valid decimal"),
        ({"price_attributes": ["context", CONTEXT]}, "context occurs twice"),
        ({"price_attributes": [{"model": CONTEXT["context"]}]}, "model is no attribute"),
        ({"price_attributes": [{"plan": CONTEXT["context"]}]}, "an outcome has a plan of its own"),
        ({"price_attributes": [{**CONTEXT, "other": CONTEXT["context"]}]}, "at most 1 item"),
    ],
)
def test_bands_that_no_event_could_be_in_are_refused_at_the_start(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        IngestionConfig.model_validate(config)


def test_bands_of_columns_that_are_not_read_are_refused() -> None:
    """joins would wait for a column that the journal never gets."""
    config = IngestionConfig.model_validate(banded(of=["input_tokens", "cache_write_tokens"]))
    assert config.settled((), is_new=True).price_attributes == config.price_attributes
    with pytest.raises(Refused, match=r"context is of cache_write_tokens, .*token_details"):
        config.settled((), is_new=False)


def test_a_price_of_an_unknown_band_is_named() -> None:
    price = "plan: p, model: m, meter: requests, unit_price: 1, currency: EUR, effective_from: 2026-01-01T00:00:00Z"
    catalog = parse_catalog(f"prices:\n  - {{{price}, conditions: {{context: above_200}}}}\n")
    assert catalog.unknown_attributes(restored([CONTEXT])) == [
        "prices.0.conditions: context is above_200: must be one of its bands (up_to_200k, above_200k)"
    ]
