"""Which prices are for an event, and in which order they are asked: the rule is written once more here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from catalog.file import CatalogFileError, parse_catalog
from cli.price_options import model_key
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.settings.price_attributes import MAX_ATTRIBUTES
from metering.price_attributes import PriceAttribute
from metering.price_models import MAX_CONDITIONS, PricedModel, PricedModels, model_words

MODELS = ("gpt-4o", "gpt-4o-mini", "gpt-4o-2024-08-06", "o3", "é")
BASES = (*MODELS, "gpt-4o*", "gpt-4o-*", "gpt-4o-2024-*", "*")
VALUES: dict[str, list[str]] = {"operation": ["batch", "chat"], "region": ["eu", "us"], "cached": ["true", "false"]}

conditions = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in VALUES.items()})
priced = st.builds(PricedModel.of, st.sampled_from(BASES), conditions) | st.builds(
    PricedModel.group, st.sets(st.sampled_from(BASES), min_size=2, max_size=4), conditions
)
attributes = st.fixed_dictionaries(
    {
        "operation": st.none() | st.sampled_from(VALUES["operation"]),
        "region": st.none() | st.sampled_from(["eu", "us"]),
    },
    optional={"cached": st.sampled_from(VALUES["cached"])},
)


@given(every=st.lists(priced, max_size=12), model=st.sampled_from(MODELS), said=attributes)
def test_oracle_the_model_itself_then_the_longest_prefix_and_within_it_one_name_then_most_conditions(
    every: list[PricedModel], model: str, said: dict[str, str | None]
) -> None:
    def length(name: str) -> int:
        if name == model:
            return 1_000
        return len(name) if name.endswith("*") and model.startswith(name[:-1]) else -1

    def place(one: PricedModel) -> tuple[int, bool, int, str] | None:
        names = json.loads(one.model) if one.model.startswith("[") else [one.model]
        longest = max(map(length, names))
        if longest < 0 or any(said.get(column) != value for column, value in one.conditions):
            return None
        return -longest, len(names) > 1, -len(one.conditions), one.text

    fit = sorted((found, one.text) for one in {*every, PricedModel(model)} if (found := place(one)) is not None)
    assert PricedModels.among(one.text for one in every).candidates(model, said) == [text for _, text in fit]


@given(every=st.lists(priced, max_size=12), model=st.sampled_from(MODELS), said=attributes)
def test_the_price_of_an_event_is_among_the_candidates_of_its_model(
    every: list[PricedModel], model: str, said: dict[str, str | None]
) -> None:
    known = PricedModels.among(one.text for one in every)
    assert {*known.candidates(model, said)} <= {*known.of_model(model)}
    assert len(known.of_model(model)) == len({*known.of_model(model)})


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=9)
plain = names.filter(lambda name: '{"' not in name and not name.startswith('["'))
member = plain.filter(lambda name: not name.endswith("{"))


@given(models=st.sets(member, min_size=2, max_size=5), said=st.dictionaries(names, names, max_size=MAX_CONDITIONS))
def test_a_group_has_one_canonical_text_and_prices_each_of_its_models(models: set[str], said: dict[str, str]) -> None:
    one = PricedModel.group(models, said)
    assert PricedModel.parse(one.text) == one == PricedModel.group(sorted(models, reverse=True), said)
    assert {*one.members} == models
    assert all(one.text in PricedModels.among([one.text]).candidates(name, said) for name in models)


@given(model=plain, said=st.dictionaries(names, names, max_size=MAX_CONDITIONS))
def test_a_price_has_one_canonical_text(model: str, said: dict[str, str]) -> None:
    one = PricedModel.of(model, said)
    assert PricedModel.parse(one.text) == one
    assert PricedModel.of(model, dict(reversed(said.items()))).text == one.text


@pytest.mark.parametrize(
    "text",
    [
        'm{"a": "b"}',
        'm{"b":"c","a":"b"}',
        'm{"a":1}',
        'm{"a":"b"',
        'm{"a":"b"}x',
        '{"a":"b"}',
        'm{"a":"b","c":"d","e":"f","g":"h","i":"j"}',
        'm{"a":"b","a":"b"}',
    ],
)
def test_conditions_in_another_notation_are_no_price(text: str) -> None:
    with pytest.raises(ValueError, match="conditions"):
        PricedModel.parse(text)
    assert not PricedModels.among([text])


def test_a_model_named_in_price_syntax_is_not_priced_by_its_conditions() -> None:
    """Who sends events may choose what `model` says: not which conditions hold, and not which group it is in."""
    group = PricedModel.group(["gpt-4o", "o3"])
    assert PricedModels.among([group.text, "*"]).candidates(group.text, {}) == ["*"]
    assert PricedModels.among([group.text]).of_model(group.text) == []
    batch = PricedModel.of("gpt-4o", {"operation": "batch"})
    known = PricedModels.among([batch.text, "gpt-4o", "*"])
    assert known.candidates(batch.text, {"operation": "chat"}) == ["*"]
    assert PricedModels.among([batch.text]).candidates(batch.text, {"operation": "batch"}) == []


CATALOG: dict[str, Any] = {
    "plans": [{"plan": "pro", "name": "Pro"}],
    "prices": [
        {
            "plan": "pro",
            "model": "gpt-4o",
            "conditions": {"operation": "batch", "cached": True},
            "meter": "input_tokens",
            "unit_price": "1",
            "currency": "USD",
            "effective_from": "2026-01-01T00:00:00Z",
        }
    ],
}


def with_price(**says: Any) -> str:
    (price,) = CATALOG["prices"]
    return json.dumps({**CATALOG, "prices": [{**price, **says}]})


def test_a_file_lists_the_conditions_of_a_price_in_any_order() -> None:
    (row,) = parse_catalog(json.dumps(CATALOG)).prices
    assert row.model == 'gpt-4o{"cached":"true","operation":"batch"}'
    assert "conditions" not in row.model_dump()
    (plain,) = parse_catalog(with_price(conditions=None)).prices
    assert plain.model == "gpt-4o"


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        ({"conditions": {}}, "must be 1 to 4 columns of events"),
        ({"conditions": {f"c{number}": "x" for number in range(5)}}, "must be 1 to 4 columns of events"),
        ({"conditions": ["batch"]}, "must be 1 to 4 columns of events"),
        ({"conditions": {"Operation": "batch"}}, "'Operation' must be the name of a column"),
        ({"conditions": {"operation": ""}}, "must be text that is not empty"),
        ({"conditions": {"operation": "x" * 600}}, "must be at most 512 bytes long"),
        ({"conditions": {"operation": "x" * 500}}, "must be at most 512 bytes long"),
        ({"model": 'gpt-4o{"operation":"batch"}'}, "must not contain conditions if"),
        ({"model": 'gpt-4o{"b":', "conditions": None}, "are no JSON object"),
    ],
)
def test_unusable_conditions_are_refused_with_a_sentence(says: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CatalogFileError, match=sentence):
        parse_catalog(with_price(**says))


def with_models(models: Any, **says: Any) -> str:
    (price,) = CATALOG["prices"]
    rest = {name: value for name, value in price.items() if name not in {"model", "conditions"}}
    return json.dumps({**CATALOG, "prices": [{**rest, "models": models, **says}]})


@given(
    models=st.sets(
        st.one_of(
            st.sampled_from(["gpt-4o-*", "o3", "null", "1.5", "a b", "x, y", "é", "*"]),
            st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1),
        ),
        min_size=2,
        max_size=4,
    ),
    given_conditions=st.dictionaries(st.sampled_from(["region", "operation"]), st.sampled_from(["eu", "1.5", "true"])),
)
def test_a_list_is_shown_as_a_file_has_it_and_commands_take_it_so(
    models: set[str], given_conditions: dict[str, str]
) -> None:
    try:
        text = PricedModel.group(models, given_conditions).text
        PricedModel.parse(text)
    except ValueError:
        assume(False)
    assert model_key(text) == text
    if not any("]" in name for name in models):
        assert model_key(model_words(text)) == text


def test_what_is_no_list_is_shown_as_it_is() -> None:
    for model in ("gpt-4o", 'gpt-4o{"operation":"batch"}', "[x", '["a"', "unknown"):
        assert model_words(model) == model_key(model) == model
    assert model_words('["gpt-4o-*","o3"]{"operation":"batch"}') == "[gpt-4o-*, o3] {operation: batch}"


def test_a_file_lists_the_models_of_a_price_in_any_order() -> None:
    (row,) = parse_catalog(with_models(["o3", "gpt-4o-*"])).prices
    assert row.model == '["gpt-4o-*","o3"]'
    assert "models" not in row.model_dump()
    (row,) = parse_catalog(with_models(["o3", "gpt-4o-*"], conditions={"operation": "batch"})).prices
    assert row.model == '["gpt-4o-*","o3"]{"operation":"batch"}'
    (row,) = parse_catalog(with_models(["o3"])).prices
    assert row.model == "o3"


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        ({"models": []}, "models must be a list of names and prefixes"),
        ({"models": "o3"}, "models must be a list of names and prefixes"),
        ({"models": ["o3", "o3"]}, "must be 2 to 50 models, each once"),
        ({"models": [f"m{number}" for number in range(51)]}, "must be 2 to 50 models, each once"),
        ({"models": ["o3", ""]}, "must be text that is not empty"),
        ({"models": ["o3", '["a","b"]']}, "must be the name of one model, or a prefix"),
        ({"models": ["o3", "a{"]}, "must be the name of one model, or a prefix"),
        ({"models": ["o3", 'a{"b":"c"}']}, "must be the name of one model, or a prefix"),
        ({"models": [f"{number:0200}" for number in range(3)]}, "must be at most 512 bytes long"),
        ({"models": ["o3", "o4"], "model": "o3"}, "must have model or models, not both"),
    ],
)
def test_models_that_are_no_group_are_refused_with_a_sentence(says: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CatalogFileError, match=sentence):
        parse_catalog(with_models(**says))


def test_a_condition_on_a_column_that_is_no_price_attribute_is_named() -> None:
    catalog = parse_catalog(json.dumps(CATALOG))
    assert catalog.unknown_attributes([PriceAttribute("operation"), PriceAttribute("cached")]) == []
    (line,) = catalog.unknown_attributes([PriceAttribute("operation")])
    assert line.startswith(
        "prices.0.conditions names cached: must be one of price_attributes in the configuration (ope"
    )


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (
            ["operatio"],
            "names operatio, which is not a text or boolean column of a contract; it can name api_key_id, cached",
        ),
        (["input_tokens"], "names input_tokens, which is not a text or boolean column"),
        (["model"], "model is no attribute"),
        (["region", "region"], "region occurs twice"),
        (["plan"], "an outcome has a plan of its own"),
        ([f"c{number}" for number in range(MAX_ATTRIBUTES + 1)], "at most 8 items"),
    ],
)
def test_a_price_attribute_that_no_event_could_have_is_refused_at_the_start(names: list[str], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        IngestionConfig.model_validate({"price_attributes": names})


def test_what_is_not_declared_is_not_kept() -> None:
    """Rules without attributes read as those of the release before."""
    assert "price_attributes" not in JoinsConfig().deciding
    assert JoinsConfig(price_attributes=("region",)).deciding["price_attributes"] == ["region"]


@pytest.mark.parametrize("written", ["true", "True", "TRUE"])
def test_a_boolean_of_a_yaml_file_is_one_however_it_is_written(written: str) -> None:
    terms = "meter: requests, unit_price: 1, currency: EUR, effective_from: 2026-01-01T00:00:00Z"
    price = f"{{plan: p, model: m, conditions: {{cached: {written}}}, {terms}}}"
    (row,) = parse_catalog(f"prices:\n  - {price}\n").prices
    assert row.model == 'm{"cached":"true"}'


@pytest.mark.parametrize("value", ["null", " eu", "eu ", None, ["eu"], {"a": "b"}])
def test_a_condition_that_no_event_can_meet_is_refused(value: Any) -> None:
    with pytest.raises(CatalogFileError):
        parse_catalog(with_price(conditions={"region": value}))
