"""Promise: which quantities are part of others says the source, else the contract, and each row keeps what was said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from jobs.ingestion.config import IngestionConfig
from jobs.runtime.effective_rules import EffectiveRules
from metering.contracts.schema import contracts_of
from metering.contracts.shipped import shipped
from tests.corpus.documents import completion, encoded
from tests.pipelines.ingestion import rows_of

TYPE = "ai.inference.completion.v1"
OPENAI = {
    "input_tokens": ["audio_input_tokens", "cache_write_tokens", "cached_tokens", "image_input_tokens"],
    "output_tokens": ["audio_output_tokens", "image_output_tokens", "reasoning_tokens"],
}
WRITES = {
    "$id": TYPE,
    "allOf": [{"$ref": f"weir:{TYPE}"}],
    "properties": {
        "data": {"properties": {"cache_write_tokens": {"type": "integer", "x-weir-column": "cache_write_tokens"}}}
    },
}


def validated(config: dict[str, Any], source: str = "openai/1", **tokens: int | None) -> tuple[str | None, Any]:
    """(Why an event is rejected, the convention that its row keeps)."""
    [row] = rows_of([encoded({**completion(**tokens), "source": source})], IngestionConfig.model_validate(config))
    kept = row["quantity_includes"]
    return row["reason"], None if kept is None else json.loads(kept)


def test_a_row_that_reports_a_part_keeps_the_convention_of_its_contract() -> None:
    assert validated({}, input_tokens=10, cached_tokens=10) == (None, OPENAI)


@pytest.mark.parametrize("cached", [0, None])
def test_a_row_without_a_part_needs_none(cached: int | None) -> None:
    assert validated({}, input_tokens=10, cached_tokens=cached) == (None, None)


def test_parts_above_their_whole_are_a_dead_letter() -> None:
    assert validated({}, input_tokens=9, cached_tokens=10)[0] == "inconsistent_quantities"
    assert validated({}, input_tokens=None, cached_tokens=10) == (None, OPENAI)


def test_all_direct_parts_are_added_up() -> None:
    config = {"contracts": [WRITES]}
    assert validated(config, input_tokens=10, cached_tokens=6, cache_write_tokens=4)[0] is None
    assert validated(config, input_tokens=10, cached_tokens=6, cache_write_tokens=5)[0] == "inconsistent_quantities"


def test_a_part_below_0_makes_no_room_for_others() -> None:
    config = {"contracts": [WRITES]}
    assert validated(config, input_tokens=10, cached_tokens=12, cache_write_tokens=-5)[0] == "inconsistent_quantities"


def test_a_replacing_contract_inherits_the_convention_unless_it_has_its_own() -> None:
    own = {key: said for key, said in shipped()[TYPE].items() if key != "x-weir-includes"}
    for document, includes in ((own, OPENAI), (WRITES, OPENAI), ({**WRITES, "x-weir-includes": {}}, {})):
        contract = contracts_of([document], shipped())[TYPE]
        assert {whole: sorted(parts) for whole, parts in contract.includes} == includes


def test_the_first_convention_of_a_source_comes_before_the_contracts() -> None:
    beside = {"source": "anthropic/*", "includes": {}}
    of_type = {"source": "anthropic/eu", "type": TYPE, "includes": {"output_tokens": ["cached_tokens"]}}
    config = {"conventions": [of_type, beside]}
    said = {"input_tokens": 100, "cached_tokens": 90, "output_tokens": 95}
    assert validated(config, "anthropic/eu", **said) == (None, {"output_tokens": ["cached_tokens"]})
    assert validated(config, "anthropic/us", **said) == (None, None)
    assert validated(config, "openai/1", **said) == (None, OPENAI)
    assert validated(config, "anthropic/us", input_tokens=1, cached_tokens=90, output_tokens=2)[0] is None


def test_a_convention_of_an_unknown_column_is_refused_with_the_columns_it_can_name() -> None:
    convention = {"source": "*", "includes": {"input_tokens": ["cachd_tokens"]}}
    with pytest.raises(ValidationError, match="names cachd_tokens, which no contract gives as a number; it can name"):
        IngestionConfig.model_validate({"conventions": [convention]})


def test_an_upgraded_installation_has_no_conventions_until_declared() -> None:
    config = IngestionConfig()
    new, upgraded = (
        config.settled((), is_new=True),
        config.settled((EffectiveRules(1, {"contracts": {}}),), is_new=False),
    )
    assert (new.shipped_conventions, upgraded.shipped_conventions) == (True, False)
    assert config.settled((), is_new=False).shipped_conventions is False
    for settled in (new, upgraded):
        again = config.settled((EffectiveRules(1, settled.deciding),), is_new=False)
        assert again.deciding == settled.deciding
    # The release before reads the rules that are kept of what was upgraded.
    assert "x-weir-includes" not in json.dumps(upgraded.deciding)
    turned_on = IngestionConfig(shipped_conventions=True)
    as_before = turned_on.model_copy(update={"token_details": False})
    assert turned_on.settled((EffectiveRules(1, upgraded.deciding),), is_new=False) == as_before
    assert config.settled((EffectiveRules(1, turned_on.deciding),), is_new=False).shipped_conventions is True
    assert validated({"shipped_conventions": False}, input_tokens=9, cached_tokens=10) == (None, None)
