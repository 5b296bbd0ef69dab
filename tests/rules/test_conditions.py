"""A meter looks at the outcomes that its `where` names, by what their events say: the rule is written once more here.

Method: requests, completions and events of both families with any texts and booleans go the way of joins, and each
outcome must have the meters that plain Python gives it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.joins.memory import Memory
from jobs.joins.quantities import quantities
from jobs.joins.recovery import as_carried
from jobs.joins.resolve import resolve
from jobs.settings.meters import MeterConfig
from jobs.settings.stored_meters import conditions_stored, restored, stored
from metering.contracts.includes import COLUMN
from metering.joining import FINAL
from metering.meter_sentences import explanation
from metering.meters import DEFAULT, MAX_CONDITIONS, MAX_VALUES
from metering.vocabulary import BILLABLE, Family

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIMEOUT = timedelta(seconds=60)
Row = dict[str, Any]
KINDS: dict[str, Any] = {**dict.fromkeys(("status", "user_id", "region"), pl.String), "cached": pl.Boolean}
VALUES: dict[str, list[Any]] = {
    "status": ["completed", "cancelled", "error", "ok"],
    "user_id": ["ann", "true"],
    "region": ["eu", "us", "true"],
    "cached": [True, False],
}
COUNTED = {"unit": "request", "count": "outcomes"}
SUMMED = {"unit": "token", "sum": "input_tokens", "expected": True}


def said(family: Family) -> st.SearchStrategy[Row]:
    """What an event says; a request has no status."""
    columns = {name: st.none() | st.sampled_from(values) for name, values in VALUES.items()}
    columns |= {"status": st.none()} if family is Family.REQUEST else {}
    return st.fixed_dictionaries({"family": st.just(family.value), **columns})


PAIRS = st.tuples(said(Family.REQUEST), said(Family.COMPLETION))
OUTCOMES = st.one_of(PAIRS, *(st.tuples(said(Family(family))) for family in BILLABLE))
ASKED = {
    name: st.sampled_from(values) | st.lists(st.sampled_from(values), min_size=1, max_size=5)
    for name, values in VALUES.items()
}
WHERE = st.fixed_dictionaries({}, optional=ASKED).filter(bool)


def looked_at(where: Row, events: tuple[Row, ...]) -> bool:
    """By the rule: a column says what the request does, else what the completion does; what the outcome has is its."""
    begun = next((event for event in events if event["family"] != Family.COMPLETION), {})
    ended = next((event for event in events if event["family"] != Family.REQUEST), {})
    for column, asked in where.items():
        own = {"status": ended.get("status"), "user_id": begun.get("user_id"), "family": ended.get("family")}
        either = begun[column] if begun.get(column) is not None else ended.get(column)
        values = [own.get(column, either)]
        # Whoever ends a request and names none of the statuses that Weir knows has completed it.
        if column == "status" and ended and values[0] not in ("completed", "cancelled", "error"):
            values.append("completed")
        # A boolean is no text, whatever that says.
        wanted = asked if isinstance(asked, list) else [asked]
        if not any(value == each and type(value) is type(each) for value in values for each in wanted):
            return False
    return True


def outcomes_of(universes: list[tuple[Row, ...]], config: JoinsConfig) -> pl.DataFrame:
    """The outcomes of universes (an account each), in their order."""
    rows = [
        {"lsn": 10 * number + place, "account": f"a{number:03}", "request_id": "r", "model": "m", **event}
        for number, events in enumerate(universes)
        for place, event in enumerate(events, start=1)
    ]
    frame = pl.DataFrame(rows, schema_overrides=KINDS, infer_schema_length=None).with_columns(
        pl.lit(NOON).alias("event_time"),
        pl.lit(NOON).alias("received_at"),
        pl.lit(None, pl.Datetime("us", "UTC")).alias("first_received_at"),
        pl.lit(None, pl.String).alias(COLUMN),
        input_tokens=pl.lit(Decimal(7)),
        merit=pl.lit(FINAL, pl.Int8),
        timeout_us=pl.lit(TIMEOUT // timedelta(microseconds=1), pl.Int64),
    )
    involved = Memory.empty(config.carried).involved(as_carried(frame, config.carried), None)
    return resolve(involved, NOON + 2 * TIMEOUT).sort("account")


@given(universes=st.lists(OUTCOMES, min_size=1, max_size=8), where=WHERE)
def test_differential_a_meter_has_the_outcomes_that_plain_python_gives_it(
    universes: list[tuple[Row, ...]], where: Row
) -> None:
    of_quantities = dict([*where.items()][: MAX_CONDITIONS - 1]) | {"family": "quantity"}
    meters = {"all": COUNTED, "some": {**COUNTED, "where": where}, "tokens": {**SUMMED, "where": where}}
    meters |= {"of_quantities": {**COUNTED, "where": of_quantities}}
    config = JoinsConfig.model_validate({"meters": meters})
    outcomes = outcomes_of(universes, config)
    assert len(outcomes) == len(universes)
    found = set(quantities(outcomes, config.declared).select("row", "meter", "quantity").iter_rows())
    expected = set()
    for number, events in enumerate(universes):
        families = {event["family"] for event in events}
        is_quantity, is_reporting = families == {Family.QUANTITY}, families != {Family.REQUEST}
        is_billed = families != {Family.COMPLETION} and not is_quantity
        is_some = looked_at(where, events)
        is_selected = is_quantity and looked_at(of_quantities, events)
        expected |= {(number, "of_quantities", 1)} if is_selected else set()
        expected |= {(number, "all", 1)} if is_billed else set()
        expected |= {(number, "some", 1)} if is_billed and is_some else set()
        expected |= {(number, "tokens", 7)} if is_reporting and is_some else set()
    assert found == expected


def test_an_outcome_that_a_meter_does_not_select_is_not_unmetered() -> None:
    """What is expected and not reported has an entry without a quantity, which an alert counts."""
    where = {"status": ["error", "cancelled"]}
    config = JoinsConfig.model_validate({"meters": {"thoughts": {**SUMMED, "sum": "reasoning_tokens", "where": where}}})
    schema = {"outcome": pl.String(), "status": pl.String(), **config.carried}
    rows = [{"outcome": "matched", "status": status} for status in ("completed", "error", None)]
    found = quantities(pl.DataFrame(rows, schema=schema), config.declared)
    assert found.select("row", "quantity").rows() == [(1, None)]


def test_a_column_is_a_dimension_and_a_condition_at_once() -> None:
    meters = {"some": {**COUNTED, "where": {"region": "eu", "user_id": "ann"}}}
    config = JoinsConfig.model_validate({"meters": meters, "dimensions": ["region", "user_id"]})
    event = {"family": "both", "status": None, "user_id": "ann", "region": "eu", "cached": None}
    outcomes = outcomes_of([(event,), ({**event, "region": "us"},)], config)
    assert outcomes.select("text:region", "text:user_id").rows() == [("eu", "ann"), ("us", "ann")]
    assert quantities(outcomes, config.declared)["row"].to_list() == [0]


def test_rules_without_conditions_are_kept_as_earlier_releases_kept_them() -> None:
    assert all("where" not in meter for meter in stored(DEFAULT).values())
    assert conditions_stored(stored(DEFAULT)) == {}
    assert "where" not in IngestionConfig().deciding


@given(where=WHERE)
def test_stored_conditions_are_the_declared_ones_in_any_order(where: Row) -> None:
    backwards = {
        column: [*reversed(values), *values] if isinstance(values, list) else [values]
        for column, values in reversed(where.items())
    }
    declared, again = (
        MeterConfig.model_validate({**COUNTED, "where": said}).declaration("some") for said in (where, backwards)
    )
    assert declared == again
    assert restored(stored([declared])) == (declared,)


def test_other_conditions_are_other_rules_of_joins_and_of_ingestion() -> None:
    meters = [{"some": {**COUNTED, "where": {"status": status}}} for status in ("completed", "error")]
    for of in (JoinsConfig, IngestionConfig):
        one, other = (of.model_validate({"meters": each}).deciding for each in meters)
        assert one != other


REFUSED: dict[str, tuple[Row, str]] = {
    "an unknown column": (
        {"stat": "completed"},
        "names stat, which is not a text or boolean column of a contract; it can name api_key_id, cached, content_hash",
    ),
    "a number": ({"input_tokens": "1"}, "where names input_tokens, which is not a text or boolean column"),
    "what an outcome has": ({"plan": "pro"}, "it cannot name plan, because every outcome has a column of that name"),
    "a value that no event has": (
        {"status": ["completed", "complete"]},
        "requires status 'complete', which no event has; it can be cancelled, completed, error",
    ),
    "a text for a boolean": ({"cached": "true"}, "requires cached 'true', which no event has; it can be false, true"),
    "a boolean for a text": ({"region": True}, "requires region True, which no event has; it can be any text"),
    "a number as value": ({"region": 1}, f"a text of 1 to 512 bytes, true or false, or a list of 1 to {MAX_VALUES}"),
    "nothing as value": ({"region": None}, "a text of 1 to 512 bytes, true or false"),
    "an empty list": ({"region": []}, "a text of 1 to 512 bytes, true or false"),
    "an empty text": ({"region": ["eu", ""]}, "a text of 1 to 512 bytes, true or false"),
    "too many values": ({"region": ["eu"] * (MAX_VALUES + 1)}, "a text of 1 to 512 bytes, true or false"),
    "no column": ({}, "at least 1 item"),
    "too many columns": ({f"c{number}": "x" for number in range(MAX_CONDITIONS + 1)}, "at most 4 items"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_condition_that_nothing_could_meet_is_refused_at_the_start(name: str) -> None:
    where, sentence = REFUSED[name]
    with pytest.raises(ValidationError, match=sentence):
        IngestionConfig.model_validate({"meters": {"some": {**COUNTED, "where": where}}})


def test_a_column_of_a_custom_contract_can_be_a_condition() -> None:
    contract = {
        "$id": "render.v1",
        "x-weir-family": "both",
        "required": ["data"],
        "properties": {
            "data": {
                "required": ["job", "model"],
                "properties": {
                    "job": {"type": "string", "x-weir-column": "request_id"},
                    "model": {"type": "string", "x-weir-column": "model"},
                    "tier": {"enum": ["batch", "flex", None], "x-weir-column": "tier"},
                    "draft": {"type": ["boolean", "null"], "x-weir-column": "draft"},
                },
            }
        },
    }
    given = {"contracts": [contract], "meters": {"some": {**COUNTED, "where": {"tier": ["batch"], "draft": False}}}}
    assert IngestionConfig.model_validate(given).deciding["where"] == {"some": {"draft": [False], "tier": ["batch"]}}
    given["meters"] = {"some": {**COUNTED, "where": {"tier": "standard"}}}
    with pytest.raises(ValidationError, match="requires tier 'standard', which no event has; it can be batch, flex"):
        IngestionConfig.model_validate(given)


def test_a_sentence_says_which_outcomes_a_meter_looks_at() -> None:
    where = {"status": ["completed", "cancelled"], "cached": False}
    declared = MeterConfig.model_validate({**COUNTED, "where": where}).declaration("requests")
    assert explanation(declared, 0.01) == (
        "requests counts each outcome whose cached is false and status is cancelled or completed as 1 request, priced "
        "per request by plan and model."
    )
