"""Aliases: whose prices a name has, in which order they are asked, and how a file says it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.file import CatalogFileError, parse_catalog
from metering.price_models import ALIAS_CURRENCY, ALIAS_METER, PricedModel, PricedModels
from tests.rules.test_price_models import MODELS, attributes, priced

aliases = st.lists(st.tuples(st.sampled_from(MODELS), st.sampled_from(MODELS)).filter(lambda pair: pair[0] != pair[1]))


@given(every=st.lists(priced, max_size=9), named=aliases, model=st.sampled_from(MODELS), said=attributes)
def test_oracle_the_prices_of_the_aliased_model_come_after_all_of_the_name_itself(
    every: list[PricedModel], named: list[tuple[str, str]], model: str, said: dict[str, str | None]
) -> None:
    plain = PricedModels.among(one.text for one in every)
    known = PricedModels.among([*(one.text for one in every), *(PricedModel.alias(*pair).text for pair in named)])
    assert known.candidates(model, said) == plain.candidates(model, said)
    for other in {target for name, target in named if name == model}:
        own, of_other = plain.candidates(model, said), plain.candidates(other, said)
        found = known.candidates(model, said, other)
        assert found == [*own, *(text for text in of_other if text not in own)]
        assert {*found} <= {*known.of_model(model)}
    assert len(known.of_model(model)) == len({*known.of_model(model)})


@given(named=aliases, model=st.sampled_from(MODELS))
def test_an_alias_is_followed_once(named: list[tuple[str, str]], model: str) -> None:
    known = PricedModels.among(PricedModel.alias(*pair).text for pair in named)
    models = {text for text in known.of_model(model) if "{" not in text}
    assert models == {model, *(target for name, target in named if name == model)}


def test_a_model_named_in_alias_syntax_is_not_priced_as_an_alias() -> None:
    alias = PricedModel.alias("gpt-4o-latest", "gpt-4o")
    known = PricedModels.among([alias.text])
    assert known.candidates(alias.text, {}) == []
    assert alias.text not in known.aliases
    assert not alias.holds({"=": None})


ALIAS = {"plan": "pro", "alias": "latest", "model": "gpt-4o", "effective_from": "2026-01-01T00:00:00Z"}


def test_a_file_declares_an_alias_by_name_and_model() -> None:
    catalog = parse_catalog(json.dumps({"aliases": [ALIAS]}))
    [row] = catalog.rows("prices")
    assert row.model_dump(mode="json") == {
        "plan": "pro",
        "model": 'latest{"=":"gpt-4o"}',
        "meter": ALIAS_METER,
        "currency": ALIAS_CURRENCY,
        "unit_price": "0E-12",
        "effective_from": "2026-01-01T00:00:00Z",
    }
    assert catalog.unknown_attributes([]) == []
    assert catalog.undeclared_meters(set()) == []
    assert catalog.unknown_plans(set()) == ["aliases.0.plan is 'pro': must be a plan of the file or of the catalog"]


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        ({"alias": "latest*"}, "must be the name of one model, without conditions"),
        ({"model": "gpt-4o-*"}, "must be the name of one model, without conditions"),
        ({"model": 'gpt-4o{"a":"b"}'}, "must be the name of one model, without conditions"),
        ({"model": "latest"}, "must be an alias of another model"),
        ({"alias": "x" * 300, "model": "y" * 300}, "must be at most 512 bytes long"),
        ({"effective_from": None}, "must be a date and time with its offset"),
        ({"meter": "requests"}, "is not a known field"),
    ],
)
def test_an_alias_that_could_not_be_followed_is_refused(says: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CatalogFileError, match=sentence):
        parse_catalog(json.dumps({"aliases": [{**ALIAS, **says}]}))


def test_a_name_has_one_alias_that_begins_at_an_instant() -> None:
    with pytest.raises(CatalogFileError, match=r"aliases has pro, latest, .* 2 times; it must occur once"):
        parse_catalog(json.dumps({"aliases": [ALIAS, {**ALIAS, "model": "gpt-4"}]}))
