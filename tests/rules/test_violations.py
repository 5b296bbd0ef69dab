"""What a rejected event's sender is told: the place, what is allowed, and the value, whatever that is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.json_places import MAX_POINTER_CHARACTERS, constant_place
from jobs.ingestion.violations import MAX_SHOWN_CHARACTERS
from jobs.journal.catalog_problems import change_problem
from jobs.streams import CatalogTopic
from metering.framing import frame_problem
from tests.corpus.contracts import completions_with
from tests.corpus.documents import REMOVED, completion, encoded, request
from tests.pipelines.ingestion import records_of

OWN = completions_with(
    gpu_seconds={"type": "number", "minimum": 0, "x-weir-column": "gpu_seconds"},
    score={"type": "number", "format": "double", "x-weir-column": "score"},
)
VALIDATOR = IngestionConfig(contracts=(OWN,)).validator()
TOKENS = "ai.inference.completion.v1 /data/input_tokens: "
GPU = "ai.inference.completion.v1 /data/gpu_seconds: "
SIX = "type is number below 10^11 with six decimals"
FINER = ", with more decimals: round it, or send a smaller unit, such as millionths"
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=8,
)
PLACES = ("id", "source", "type", "subject", "time", "senttime", "sequence", "sourceepoch", "specversion", "data")


def said_of(event: bytes, *, strictly: bool = False) -> tuple[str | None, str | None]:
    """The reason and the violation of a record."""
    validated = (VALIDATOR.validate_strictly if strictly else VALIDATOR.validate)(records_of([event]))
    return validated["reason"][0].as_py(), validated["violation"][0].as_py()


def written(tokens: str, field: str = "input_tokens") -> bytes:
    """A completion with a field written just so."""
    return encoded(completion(**{field: "@"})).replace(b'"@"', tokens.encode())


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        ("-12", "at least 0; it is -12"),
        ("10000000001", "at most 10000000000; it is 10000000001"),
        ('"812"', 'type is integer; it is the string "812", to be written as 812'),
        ("812.0", "type is integer; it is 812.0, to be written as 812"),
        ("1e3", "type is integer; it is 1e3, to be written as 1000"),
        ("1.5", "type is integer; it is 1.5"),
        ("1e999999999999999999999", "type is integer; it is 1e999999999999999999999"),
        ("true", "type is integer; it is true"),
        ("[7, [8]]", "type is integer; it is the array [7, …]"),
        ('{"a": 7, "b": {}}', 'type is integer; it is the object {"a": 7, "b": …}'),
        ("{}", "type is integer; it is the object {}"),
    ],
)
def test_an_invalid_number_of_tokens_is_reported_with_the_value_found(tokens: str, says: str) -> None:
    assert said_of(written(tokens)) == ("invalid_tokens", TOKENS + says)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("-0.5", "at least 0; it is -0.500000"),
        ('"1.5"', 'type is number below 10^11 with six decimals; it is the string "1.5", to be written as 1.5'),
        ('"1.95e-05"', f'{SIX}; it is the string "1.95e-05"{FINER}'),
        ('"1e11"', 'type is number below 10^11 with six decimals; it is the string "1e11"'),
        (f'"1e{9 * 10**18}"', f'type is number below 10^11 with six decimals; it is the string "1e{9 * 10**18}"'),
        ("1e11", "type is number below 10^11 with six decimals; it is 1e11"),
        ("0.0000001", f"{SIX}; it is 0.0000001{FINER}"),
        ("2.73e-06", f"{SIX}; it is 2.73e-06{FINER}"),
        ("0.00014150000000000002", f"{SIX}; it is 0.00014150000000000002{FINER}"),
    ],
)
def test_an_invalid_decimal_is_reported_with_the_value_found(value: str, says: str) -> None:
    assert said_of(written(value, "gpu_seconds")) == ("invalid_data", GPU + says)


@pytest.mark.parametrize(
    ("field", "value"), [("gpu_seconds", "0." + "3" * 80), ("input_tokens", "1." + "0" * 80 + "5")]
)
def test_a_cut_value_gets_no_suggestion(field: str, value: str) -> None:
    _, told = said_of(written(f'"{value}"', field))
    assert told is not None
    assert told.endswith(f'the string "{value[: MAX_SHOWN_CHARACTERS - 1]}…')


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_an_invalid_json_constant_is_reported_with_its_field(constant: str) -> None:
    assert said_of(written(constant)) == (
        "malformed",
        f"JSON (RFC 8259): {constant} is no JSON, at /data/input_tokens",
    )


@given(st.lists(ANY_TEXT | st.integers(0, 3), max_size=6), st.sampled_from(["NaN", "-Infinity"]))
def test_an_invalid_constant_is_reported_with_its_position(path: list[str | int], constant: str) -> None:
    value: Any = "@NaN"
    for step in reversed(path):
        value = {"NaN": [1, "]}"], step: value} if isinstance(step, str) else [[{"a": "NaN"}]] * step + [value]
    text = json.dumps(value).replace('"@NaN"', constant)
    names = [json.dumps(step)[1:-1] if isinstance(step, str) else str(step) for step in path]
    place = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)
    found = constant_place(text)
    assert found == place if len(place) <= MAX_POINTER_CHARACTERS else place.endswith(found.removeprefix("…"))


@pytest.mark.parametrize(
    ("event", "reason", "says"),
    [
        (request(subject=["u-1"]), "invalid_subject", '/subject: type is string; it is the array ["u-1"]'),
        (request(subject=17), "invalid_subject", '/subject: type is string; it is 17, to be written as "17"'),
        (request(id=None), "invalid_id", "/id: required"),
        (request(id=REMOVED), "invalid_id", "/id: required"),
        (request(time=REMOVED), "invalid_time", "/time: required"),
        (request(time=None), "invalid_time", "/time: required"),
        (request(subject=REMOVED), "missing_subject", "/subject: required"),
        (request(specversion=REMOVED), "invalid_specversion", "/specversion: required"),
        (request(specversion="0.3"), "invalid_specversion", '/specversion: 1.0; it is "0.3"'),
        (request(specversion=1), "invalid_specversion", '/specversion: type is string; it is 1, to be written as "1"'),
        (request(sequence=-1), "invalid_sequence", "/sequence: a whole number from 0 to 999999999999999999; it is -1"),
        (request(sequence="x"), "invalid_sequence", f'/sequence: a whole number from 0 to {10**18 - 1}; it is "x"'),
        (request(source=""), "invalid_source", '/source: 1 to 512 bytes without control characters; it is ""'),
        (request(type="a\nb"), "invalid_type", '/type: 1 to 512 bytes without control characters; it is "a\\nb"'),
    ],
)  # fmt: skip
def test_a_missing_or_wrong_attribute_is_reported(event: dict[str, Any], reason: str, says: str) -> None:
    assert said_of(encoded(event)) == (reason, f"CloudEvents 1.0 {says}")


@pytest.mark.parametrize(
    "time",
    [
        "2026-11-25T18:00:00.370582GMT",
        "2026-11-25T10:00:00.545218America/Los_Angeles",
        "2026-11-25 18:00:00Z",
        "2026-11-25T18:00:00.123456",
        1_764_093_600,
    ],
)
def test_an_invalid_time_is_reported_with_a_valid_example(time: str | int) -> None:
    assert said_of(encoded(request(time=time))) == (
        "invalid_time",
        f"CloudEvents 1.0 /time: RFC 3339, with an offset, such as 2026-11-25T18:00:00Z; it is {json.dumps(time)}",
    )


@given(st.sampled_from(PLACES), ANY_JSON)
def test_the_violation_of_any_value_can_be_stored_and_shown_by_both_readers(name: str, value: Any) -> None:
    event = encoded({**completion(), name: value})
    reason, violation = said_of(event)
    assert (reason, violation) == said_of(event, strictly=True)
    assert (reason is None) == (violation is None)
    if violation is not None:
        assert violation.isprintable()
        assert len(violation) <= 3 * MAX_SHOWN_CHARACTERS + 120


@given(
    st.integers(0, 2**32 - 1), st.binary(max_size=50).filter(lambda value: not value.lstrip().startswith((b"{", b"[")))
)
def test_a_non_json_record_with_a_schema_registry_frame_is_recognized(schema: int, document: bytes) -> None:
    framed = b"\0" + schema.to_bytes(4, "big") + document
    reason, violation = said_of(framed)
    assert reason in ("malformed", "not_utf8", "nul_character")
    assert violation is not None
    assert f"the frame of a schema registry (a 0 byte and the schema id {schema}); send plain JSON" in violation
    assert said_of(framed, strictly=True) == (reason, violation)
    problem = change_problem(CatalogTopic.PLANS, None, framed)
    assert problem is not None
    assert f"schema id {schema}" in problem


@given(st.none() | st.binary().filter(lambda value: not value.startswith(b"\0")))
def test_a_record_without_a_frame_is_not_reported_as_framed(value: bytes | None) -> None:
    assert frame_problem(value) is None
