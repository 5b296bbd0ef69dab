"""Each meter that may be declared is explained in one sentence: by its source, its aggregation and its unit."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.config import IngestionConfig
from jobs.settings.meters import DEFAULT_METERS
from metering.limits import PLAIN_NAME
from metering.meter_sentences import explanation
from metering.meters import REPORTED_COLUMNS, Declaration
from monitoring.alerts.money import MONEY, UNMETERED_SHARE
from tests.corpus.contracts import GPU

NAMES = st.from_regex(PLAIN_NAME, fullmatch=True)
COLUMNS = st.sampled_from([*REPORTED_COLUMNS, "gpu_seconds", "images"])
SUMMED = st.fixed_dictionaries(
    {"unit": NAMES, "sum": COLUMNS},
    optional={
        "expected": st.booleans(),
        "max_per_event": st.sampled_from(["1", "86400"]),
        "late_policy": st.sampled_from(["correct", "drop", "hold"]),
        "grace_seconds": st.integers(0, 1_000),
    },
)
COUNTED = st.fixed_dictionaries({"unit": NAMES, "count": st.just("outcomes")})


@st.composite
def declared(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Meters as a configuration has them, of which some are within another of their unit."""
    meters = draw(st.dictionaries(NAMES, SUMMED | COUNTED, min_size=1, max_size=5))
    for name, part in draw(st.dictionaries(NAMES, COLUMNS, max_size=2)).items():
        whole = draw(st.sampled_from(sorted(meters)))
        if name not in meters and "within" not in meters[whole]:
            meters[name] = {"unit": meters[whole]["unit"], "sum": part, "within": whole}
    return meters


def explained(meter: Declaration) -> str:
    return explanation(meter, UNMETERED_SHARE)


@given(declared())
def test_each_meter_that_is_accepted_has_a_sentence_with_its_source_aggregation_and_unit(
    meters: dict[str, dict[str, Any]],
) -> None:
    accepted = IngestionConfig.model_validate({"contracts": [GPU], "meters": meters}).declared
    assert [meter.name for meter in accepted] == sorted(meters)
    for meter in accepted:
        sentence, said = explained(meter), meters[meter.name]
        assert re.fullmatch(r"[^.\n]+\.", sentence), "one sentence"
        if "sum" in said:
            assert sentence.startswith(f"{meter.name} adds up {said['sum']} of each outcome, ")
        else:
            assert sentence.startswith(f"{meter.name} counts each outcome as 1 {said['unit']}, ")
        assert f", priced per {said['unit']} by plan and model" in sentence
        assert ("UnmeteredUsage" in sentence) is meter.is_expected
        assert (f"; {said.get('within')} counts these units, too, " in sentence) is ("within" in said)
        assert "declared no more" not in sentence


BILLED_ONCE = (
    "where an event's convention has them within input_tokens, the price of cached_tokens bills them, and without one "
    "input_tokens does; where it has them beside, both bill what they report"
)
MISSING = "more than 1 % of requests without it raise UnmeteredUsage"


@pytest.mark.parametrize(
    ("name", "clauses"),
    [
        ("requests", ["requests counts each outcome as 1 request, priced per request by plan and model"]),
        (
            "output_tokens",
            ["output_tokens adds up output_tokens of each outcome, priced per token by plan and model", MISSING],
        ),
        (
            "cached_tokens",
            [
                "cached_tokens adds up cached_tokens of each outcome, priced per token by plan and model",
                "input_tokens counts these units, too, so totals of the unit leave them out",
                BILLED_ONCE,
                MISSING,
            ],
        ),
    ],
)
def test_the_default_meters_have_plain_sentences(name: str, clauses: list[str]) -> None:
    assert explained(DEFAULT_METERS[name].declaration(name)) == "; ".join(clauses) + "."


@pytest.mark.parametrize(
    ("parts", "clause"),
    [
        (["cached_tokens"], "units within it that cached_tokens bills at its own price are left out of what"),
        (["b", "c", "a"], "units within it that a, b and c bill at their own prices are left out of what"),
    ],
)
def test_a_meter_names_the_meters_that_bill_its_parts(parts: list[str], clause: str) -> None:
    meter = DEFAULT_METERS["input_tokens"].declaration("input_tokens")
    said = explanation(meter, UNMETERED_SHARE, parts=parts)
    assert said.split("; ")[1:] == [f"{clause} input_tokens bills", f"{MISSING}."]
    gone = explanation(meter, UNMETERED_SHARE, is_declared=False, parts=parts)
    assert "left out" not in gone


def test_an_optional_quantity_raises_no_alert_when_missing() -> None:
    said = explained(Declaration("gpu_seconds", "second", "gpu_seconds"))
    assert said.endswith("priced per second by plan and model; a request without it adds nothing.")


def test_the_alert_that_a_sentence_names_is_one() -> None:
    assert "UnmeteredUsage" in {alert.name for alert in MONEY}


def test_a_removed_meter_is_explained_by_its_last_definition() -> None:
    said = explanation(Declaration("images", "image", "images", is_expected=True), UNMETERED_SHARE, is_declared=False)
    assert said == "images adds up images of outcomes, priced per image by plan and model; it is declared no more."
