"""Whose events may take back what a request bills, and what an installation knows of them that others began."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from jobs.audit.recompute.reversals import _of_key
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.config_groups import Reversal
from jobs.ingestion.declared_columns import warn_of_left_out
from jobs.joins.credits import CREDITS, KIND, credited
from jobs.runtime.effective_rules import EffectiveRules
from metering.contracts.reversals import METER, QUANTITY, REASON
from metering.pricing import BILLED_AS_PART, BILLED_IN_WHOLE
from tests.corpus.documents import REMOVED, encoded, request
from tests.pipelines.ingestion import rows_of

TYPE = "ai.inference.reversal.v1"
LISTED = IngestionConfig(reversal=Reversal(sources=("billing-*",)))


def reversal(source: str = "billing-desk", **data: Any) -> bytes:
    """A reversal event; members of its data set, or (REMOVED) taken away."""
    said = {"request_id": "r", "reason": "a dispute", **data}
    told = {name: value for name, value in said.items() if value is not REMOVED}
    return encoded(request(type=TYPE, source=source, data=told))


def test_a_reversal_of_a_listed_source_is_accepted() -> None:
    whole, part = rows_of([reversal(), reversal(meter="output_tokens", quantity=30.5)], LISTED)
    assert [(row["reason"], row["family"], row["request_id"]) for row in (whole, part)] == [(None, "reversal", "r")] * 2
    assert (whole[REASON], whole[METER], whole[QUANTITY]) == ("a dispute", None, None)
    assert (part[METER], str(part[QUANTITY])) == ("output_tokens", "30.500000")


@pytest.mark.parametrize("sources", [[], ["billing"], ["gateway", "x*"]])
def test_a_reversal_of_an_unlisted_source_is_a_dead_letter_with_advice(sources: list[str]) -> None:
    [row] = rows_of([reversal()], IngestionConfig(reversal=Reversal(sources=tuple(sources))))
    assert row["reason"] == "unlisted_reversal"
    assert row["violation"] == f"{TYPE} /source: a source that reversal.sources of ingestion lists"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"reason": REMOVED}, "invalid_data"),
        ({"reason": ""}, "invalid_data"),
        ({"request_id": REMOVED}, "invalid_request_id"),
        ({"quantity": 3}, "invalid_data"),
        ({"quantity": 3, "meter": ""}, "invalid_data"),
        ({"quantity": -1, "meter": "output_tokens"}, "invalid_data"),
        ({"quantity": "3", "meter": "output_tokens"}, "invalid_data"),
    ],
)
def test_what_cannot_be_taken_back_is_a_dead_letter(data: dict[str, Any], reason: str) -> None:
    [row] = rows_of([reversal(**data)], LISTED)
    assert row["reason"] == reason


def test_reversals_are_off_in_an_upgraded_installation_until_a_source_is_listed() -> None:
    new, upgraded = IngestionConfig().settled((), is_new=True), IngestionConfig().settled((), is_new=False)
    assert TYPE in new.contracts_in_force()
    assert TYPE not in upgraded.contracts_in_force()
    [row] = rows_of([reversal()], upgraded)
    assert (row["reason"], row["family"]) == (None, None)
    listed = LISTED.settled((EffectiveRules(1, upgraded.deciding),), is_new=False)
    assert TYPE in listed.contracts_in_force()
    unlisted = IngestionConfig().settled((EffectiveRules(1, listed.deciding),), is_new=False)
    assert unlisted.reversal.sources == ()
    assert (
        upgraded.deciding == IngestionConfig().settled((EffectiveRules(1, upgraded.deciding),), is_new=False).deciding
    )
    assert "reversal" not in upgraded.deciding
    warn_of_left_out(upgraded.contracts_in_force())


COUNTS = {
    "$id": "x",
    "allOf": [{"$ref": "weir:ai.inference.usage.v1"}],
    "properties": {"data": {"properties": {"quantity": {"type": "integer", "x-weir-column": "calls"}}}},
}


def test_a_contract_with_another_type_for_a_field_of_reversals_wins_while_no_source_is_listed() -> None:
    for is_new in (True, False):
        settled = IngestionConfig(contracts=(COUNTS,)).settled((), is_new=is_new)
        assert TYPE not in settled.contracts_in_force()
    with pytest.raises(ValidationError, match="/data/quantity is decimal in contract"):
        IngestionConfig(contracts=(COUNTS,), reversal=Reversal(sources=("billing",)))


def test_a_credit_is_limited_to_what_its_meter_bills() -> None:
    kinds: Any = {"row": pl.UInt32, "meter": pl.String, "quantity": pl.Decimal(17, 6), "version_lsn": pl.Int64}
    entries = [
        (0, "cached_tokens", "400", 7),
        (0, "input_tokens", "600", 5),
        (0, "input_tokens", "400", BILLED_AS_PART),
        (0, "output_tokens", None, None),
        (1, "input_tokens", "600", 5),
        (2, "input_tokens", "600", None),
        (2, "cached_tokens", "100", BILLED_IN_WHOLE),
    ]
    listed = pl.DataFrame(entries, schema={**kinds, "quantity": pl.String}, orient="row").cast(kinds)
    credits_of_row = [
        [{"meter": "input_tokens", "credit": "700"}, {"meter": "output_tokens", "credit": "1"}],
        None,
        [{"meter": "input_tokens", "credit": "200.5"}, {"meter": "cached_tokens", "credit": None}],
    ]
    outcomes = pl.DataFrame({CREDITS: credits_of_row}).cast({CREDITS: KIND})
    left = credited(listed, outcomes)["quantity"].cast(pl.String).to_list()
    assert left == ["400.000000", "0.000000", "400.000000", None, "600.000000", "399.500000", "100.000000"]


@pytest.mark.parametrize(
    ("at", "whole", "part"),
    [(-11, set(), None), (-10, {0}, 0), (0, {0}, 0), (9, {0, 1}, 0), (14, {1}, 1), (24, {1}, 1), (25, set(), None)],
)
def test_a_reversal_reaches_both_sides_in_time_and_a_credit_one_request(
    at: int, whole: set[int], part: int | None
) -> None:
    """Of two requests, at 0 and at 14, that reach 10 each."""
    begins = [(0, 10), (14, 10)]
    assert _of_key([(at, None, None)], begins) == (whole, {})
    assert _of_key([(at, "m", None)], begins) == (set(), {} if part is None else {(part, "m"): None})
