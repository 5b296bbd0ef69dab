"""A new installation meters parts of tokens; an upgrade changes no bill, and each contract that was one still is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.runtime.effective_rules import EffectiveRules
from jobs.runtime.errors import Refused
from metering.contracts.details import COLUMNS, has_details, without_details
from metering.contracts.model import Kind
from metering.contracts.schema import contracts_of
from metering.contracts.shipped import shipped
from metering.meters import DEFAULT, DETAILS
from tests.corpus.documents import completion, encoded
from tests.pipelines.ingestion import rows_of

USAGE, V1, V2 = "ai.inference.usage.v1", "ai.inference.completion.v1", "ai.inference.completion.v2"
BEFORE = {"input_tokens": ["cached_tokens", "cache_write_tokens"], "output_tokens": ["reasoning_tokens"]}
METERS = {meter.name for meter in (*DEFAULT, *DETAILS)}
CONFIGS = (IngestionConfig(), JoinsConfig())


def own(name: str, base: str | None = None, **fields: dict[str, Any]) -> dict[str, Any]:
    """A contract with these fields in `data`, on top of a shipped one or by itself."""
    document: dict[str, Any] = {"$id": name}
    if base is not None:
        return {**document, "allOf": [{"$ref": f"weir:{base}"}], "properties": {"data": {"properties": fields}}}
    needed = {each: {"type": "string", "minLength": 1, "x-weir-column": each} for each in ("request_id", "model")}
    data = {"type": "object", "required": [*needed], "properties": {**needed, **fields}}
    return {**document, "x-weir-family": "both", "type": "object", "required": ["data"], "properties": {"data": data}}


def count(column: str, kind: str = "integer") -> dict[str, Any]:
    return {"type": kind, "x-weir-column": column}


def read(documents: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """By type and column of such a part where a contract reads it."""
    return {
        name: {field.column: field.pointer for field in contract.fields if field.column in COLUMNS}
        for name, contract in contracts_of(documents, shipped()).items()
    }


@pytest.mark.parametrize("config", CONFIGS)
def test_a_new_installation_meters_each_part_within_its_whole_and_expects_none(
    config: IngestionConfig | JoinsConfig,
) -> None:
    declared = {meter.name: meter for meter in config.settled((), is_new=True).declared}
    assert declared.keys() == METERS
    assert {declared[part.name] for part in DETAILS} == set(DETAILS)
    assert not any(part.is_expected for part in DETAILS)


@pytest.mark.parametrize("config", CONFIGS)
def test_an_upgraded_installation_keeps_the_meters_that_it_had(config: IngestionConfig | JoinsConfig) -> None:
    settled = config.settled((), is_new=False)
    assert settled.meters.keys() == {meter.name for meter in DEFAULT}
    assert settled.deciding == config.settled((EffectiveRules(1, settled.deciding),), is_new=False).deciding
    told = json.dumps(settled.deciding)
    assert [column for column in COLUMNS - {"reasoning_tokens", "cache_write_tokens"} if column in told] == []


@pytest.mark.parametrize("config", CONFIGS)
def test_meters_that_are_declared_are_all_that_there_are(config: IngestionConfig | JoinsConfig) -> None:
    given = type(config).model_validate({"meters": {"requests": {"unit": "request", "count": "outcomes"}}})
    assert given.settled((), is_new=True).meters.keys() == {"requests"}


def test_without_token_details_the_shipped_contracts_are_unchanged() -> None:
    before = without_details(shipped())
    assert not any(has_details(document) for document in before.values())
    assert {name for name, document in shipped().items() if has_details(document)} == {V1, V2, USAGE}
    for name in (V1, V2, USAGE):
        assert before[name]["x-weir-includes"] == BEFORE
    found = {
        name: {field.column for field in contract.fields} & COLUMNS
        for name, contract in contracts_of([], before).items()
    }
    assert {name: columns for name, columns in found.items() if columns} == {V2: {"reasoning_tokens"}}


def test_a_part_that_was_not_read_before_is_nothing_to_an_upgraded_installation() -> None:
    event = encoded(completion(input_tokens=10, audio_input_tokens=11))
    upgraded = IngestionConfig().settled((), is_new=False)
    [row] = rows_of([event], upgraded.model_copy(update={"shipped_conventions": True}))
    assert row["reason"] is None
    [row] = rows_of([event], IngestionConfig().settled((), is_new=True))
    assert row["reason"] == "inconsistent_quantities"


def test_a_meter_of_a_part_that_no_contract_reads_is_refused_with_the_setting_that_reads_it() -> None:
    config = IngestionConfig.model_validate(
        {"meters": {"images": {"unit": "token", "sum": "image_input_tokens"}}, "contracts": []}
    )
    with pytest.raises(Refused, match=r"sums image_input_tokens, which is given by no contract.*`token_details: true`"):
        config.settled((), is_new=False)
    turned_on = config.model_copy(update={"token_details": True}).settled((), is_new=False)
    assert turned_on.token_details is True
    assert config.settled((EffectiveRules(1, turned_on.deciding),), is_new=False).token_details is True


@pytest.mark.parametrize(
    ("document", "column", "pointer"),
    [
        (own(USAGE, USAGE, reasoning_tokens=count("reasoning_tokens")), "reasoning_tokens", "/data/reasoning_tokens"),
        (own(USAGE, USAGE, thoughts=count("reasoning_tokens")), "reasoning_tokens", "/data/thoughts"),
        (own(USAGE, USAGE, created=count("cache_write_tokens", "number")), "cache_write_tokens", "/data/created"),
    ],
)
def test_a_contract_with_its_own_pointer_for_a_token_column_stays_valid(
    document: dict[str, Any], column: str, pointer: str
) -> None:
    found = read([document])
    assert found[USAGE][column] == pointer
    assert column not in found[V1]
    assert read([])[V1].keys() - found[V1].keys() == {column}
    assert found[V2].get("reasoning_tokens") == "/data/usage/reasoning", "it was read before"


@pytest.mark.parametrize(
    "document",
    [
        own("acme.v1", None, audio_input_tokens=count("audio_input_tokens", "number")),
        own("acme.v1", None, seconds=count("audio_input_tokens", "string")),
        own("acme.v1", None, audio_input_tokens=count("audio", "string")),
        own("acme.v1", None, audio_input_tokens={"type": "object", "properties": {"count": count("audio")}}),
    ],
)
def test_new_columns_of_shipped_contracts_break_no_other_contract(document: dict[str, Any]) -> None:
    IngestionConfig.model_validate({"contracts": [document]})
    found = read([document])
    assert not any("audio_input_tokens" in found[name] for name in (V1, USAGE))
    assert "audio_output_tokens" in found[V1]


def test_a_number_that_may_be_a_text_is_the_part_still() -> None:
    document = own(USAGE, USAGE, reasoning_tokens={"x-weir-number": "text_or_number"})
    fields = {field.column: field for field in contracts_of([document], shipped())[USAGE].fields}
    assert fields["reasoning_tokens"].takes_text
    assert fields["reasoning_tokens"].kind is Kind.INTEGER


def test_contracts_that_yield_are_stored_and_read_back() -> None:
    from jobs.ingestion.stored_contracts import stored_contracts

    config = IngestionConfig.model_validate({"contracts": [own(USAGE, USAGE, thoughts=count("reasoning_tokens"))]})
    settled = config.settled((), is_new=True)
    assert stored_contracts(settled.deciding, {}) == settled.contracts_in_force()
