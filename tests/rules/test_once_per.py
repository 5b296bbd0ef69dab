"""What `once_per` of a meter may say, and how it is kept: refused with a sentence that says what to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.audit.recompute.expected import Pinned
from jobs.billing.config import BillingConfig
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.runtime.effective_rules import EffectiveRules
from jobs.settings.meters import MeterConfig
from jobs.settings.stored_meters import restored, stored
from jobs.streams import ACCOUNTS, PRICES
from metering.meter_sentences import explanation
from metering.meters import DEFAULT
from metering.once_per import MAX_WITHIN_SECONDS, OncePer, duration_of, seconds_of

COUNTED: dict[str, Any] = {"unit": "request", "count": "outcomes"}


def once(column: str = "content_hash", within: str = "PT1H") -> dict[str, Any]:
    return {**COUNTED, "once_per": {"column": column, "within": within}}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("PT1S", 1), ("PT90S", 90), ("PT30M", 1_800), ("PT1H30M", 5_400), ("PT24H", 86_400), ("P1D", 86_400)],
)
def test_a_length_is_a_duration_from_a_second_to_a_day(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["PT0S", "P0D", "P1DT1S", "PT86401S", "P2D"])
def test_a_length_beyond_the_limits_is_refused_with_the_limits(text: str) -> None:
    with pytest.raises(ValueError, match=r"it can be from PT1S to P1D"):
        seconds_of(text)


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "1h", "PT1.5H", "P1M", "P1W", "pt1h", "PT1H ", "-PT1H", "3600"]
)
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no duration such as PT1H"):
        seconds_of(text)


@given(st.integers(1, MAX_WITHIN_SECONDS))
def test_a_length_is_written_as_it_is_read(seconds: int) -> None:
    assert seconds_of(duration_of(seconds)) == seconds


@given(st.integers(1, MAX_WITHIN_SECONDS))
def test_the_declared_content_is_stored(seconds: int) -> None:
    meter = MeterConfig.model_validate(once(within=f"PT{seconds}S")).declaration("requests")
    assert meter.once_per == OncePer("content_hash", seconds)
    assert restored(stored([meter])) == (meter,)


def test_only_declared_contents_are_stored() -> None:
    assert all("once_per" not in meter for meter in stored(DEFAULT).values())
    assert "once_per" not in IngestionConfig().deciding
    assert IngestionConfig.model_validate({"meters": {"requests": once()}}).deciding["once_per"] == {
        "requests": {"column": "content_hash", "within": "PT1H"}
    }


REFUSED = {
    "a boolean": ("cached", "once_per names cached, which is not a text column"),
    "a number": ("input_tokens", "once_per names input_tokens, which is not a text column"),
    "nobody's": ("prompt_hash", "once_per names prompt_hash, which is not a text column.*content_hash"),
    "what every outcome has": ("outcome", "it cannot be outcome, because every outcome has a column of that name"),
    "the family": ("family", "it cannot be family"),
}


@pytest.mark.parametrize(("column", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_content_that_no_event_carries_is_refused(column: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        IngestionConfig.model_validate({"meters": {"requests": once(column)}})


def test_a_text_column_of_an_own_contract_can_be_the_content() -> None:
    contract = {
        "$id": "ai.inference.usage.v1",
        "allOf": [{"$ref": "weir:ai.inference.usage.v1"}],
        "properties": {
            "data": {"properties": {"prompt_hash": {"type": ["string", "null"], "x-weir-column": "prompt_hash"}}}
        },
    }
    given = {"contracts": [contract], "meters": {"requests": once("prompt_hash")}}
    assert IngestionConfig.model_validate(given).declared[0].once_per == OncePer("prompt_hash", 3_600)


@pytest.mark.parametrize("policy", ["drop", "hold"])
def test_stragglers_of_a_meter_that_counts_a_content_once_are_never_dropped_or_held(policy: str) -> None:
    sentence = f"late_policy is {policy}, but a meter with `once_per` needs `correct`"
    for declared in (
        {"meters": {"requests": {**once(), "late_policy": policy}}},
        {"meters": {"requests": once()}, "late_policy": {"requests": policy}},
    ):
        with pytest.raises(ValueError, match=sentence):
            BillingConfig.model_validate(declared)
    BillingConfig.model_validate({"meters": {"requests": {**once(), "late_policy": "correct"}}})


def test_weir_meters_tells_that_the_stream_counts_every_outcome() -> None:
    meter = MeterConfig.model_validate(once()).declaration("requests")
    sentence = explanation(meter, 0.1)
    assert (
        "of an account's outcomes with one content_hash only the first in each PT1H counts: the stream counts each, "
        "and an audit of everything takes the others back" in sentence
    )
    assert "content_hash" not in explanation(meter, 0.1, is_declared=False)


def test_it_costs_joins_no_memory() -> None:
    """Only the audit reads contents."""
    of_each, of_once = (JoinsConfig.model_validate({"meters": {"requests": meter}}) for meter in (COUNTED, once()))
    assert of_once.carried == of_each.carried
    rules = (EffectiveRules(1, of_once.deciding),)
    pinned = Pinned(1, None, rules, (), ACCOUNTS.empty_table(), PRICES.empty_table())
    assert "where:content_hash" in pinned.schema.keys() - of_once.carried.keys()
