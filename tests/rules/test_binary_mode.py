"""CloudEvents' binary mode: an event whose attributes are headers is the event that has them in its JSON."""

from __future__ import annotations

import base64
import json
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.formats import DOCUMENT, document_of
from jobs.runtime.kafka.headers import COLUMN, MAX_BYTES, headers_of, text_of
from tests.corpus.contracts import GPU
from tests.corpus.documents import REMOVED, completion, encoded, in_binary_mode, request, request_with
from tests.pipelines.ingestion import records_of

CONFIG = IngestionConfig(contracts=(GPU,))
VALIDATOR = CONFIG.validator()
OF_FORM = ("offset", "value", DOCUMENT, COLUMN)
Headers = list[tuple[str, bytes | None]]
FRAME = b"\0\0\0\0\x07"
EVENTS = [
    request(),
    completion(),
    completion(gpu_seconds=1.5),
    request_with(user_id="Zoë 😀"),
    request(id="größe", subject="a b%20c", traceparent="00-abc-01"),
    request(type="com.example.unknown", data=[1, "two", None]),
    request(type="source.heartbeat.v1", data=REMOVED, subject=REMOVED),
    request(sequence="17", sourceepoch="5"),
    # Of each of these ingestion says the same, too, in both forms.
    request(subject=REMOVED),
    request(specversion="0.3"),
    request(time="yesterday"),
    request(id=""),
    request(data=REMOVED),
    request(data="x"),
    completion(input_tokens=-1),
    request(sequence="-1"),
]


def members(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if value is not REMOVED}


def rows(records: list[tuple[Headers, bytes | None]], *, strictly: bool = False) -> pl.DataFrame:
    table = records_of([value for _, value in records])
    given_headers = pa.array([text_of(headers) for headers, _ in records], pa.string())
    table = table.set_column(table.schema.get_field_index(COLUMN), COLUMN, given_headers)
    return pl.DataFrame((VALIDATOR.validate_strictly if strictly else VALIDATOR.validate)(table))


@pytest.mark.parametrize("strictly", [False, True])
def test_an_event_is_the_same_in_binary_and_in_structured_mode(strictly: bool) -> None:
    events = [members(event) for event in EVENTS]
    structured = rows([([], encoded(event)) for event in events], strictly=strictly)
    for frame in (b"", FRAME):
        binary = [(headers, value and frame + value) for headers, value in map(in_binary_mode, events)]
        assert rows(binary, strictly=strictly).drop(OF_FORM).equals(structured.drop(OF_FORM))
    assert structured["reason"].null_count() == 8
    # As one block, with ordinary records among them.
    mixed = rows([pair for event in events for pair in (([], encoded(event)), in_binary_mode(event))])
    assert mixed[1::2].drop(OF_FORM).equals(mixed[::2].drop(OF_FORM))


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
values = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | texts
data = st.dictionaries(st.sampled_from(["request_id", "model", "input_tokens", "user_id", "x"]), values, max_size=5)
attributes = st.fixed_dictionaries(
    {"id": texts, "source": texts, "type": st.sampled_from(["ai.inference.usage.v1", "litellm_tokens", "other"])},
    optional={"subject": texts, "time": st.sampled_from(["2026-07-01T11:59:59Z", "x"]), "extension": texts},
)


@given(attributes, data, st.integers(0, 2), st.permutations(range(8)))
def test_any_event_has_one_fate_in_all_forms(
    envelope: dict[str, str], content: dict[str, Any], form: int, order: list[int]
) -> None:
    event = {"specversion": "1.0", **envelope, "data": content}
    headers, value = in_binary_mode(event)
    headers = [headers[place] for place in order if place < len(headers)] + headers[len(order) :]
    packed = {**{name: text for name, text in event.items() if name != "data"}}
    packed["data_base64"] = base64.b64encode(json.dumps(content).encode()).decode()
    other = [([], encoded(packed)), ([], FRAME + encoded(event)), (headers, value)][form]
    one, two = rows([([], encoded(event)), (headers, value)]).drop(OF_FORM).rows()
    assert one == two == rows([other]).drop(OF_FORM).row(0)


@pytest.mark.parametrize(
    ("headers", "value", "problem"),
    [
        ([("ce_id", b"\xff")], b"{}", '"ce_id" is not UTF-8'),
        ([("content-type", b"\xff")], b"{}", '"content-type" is not UTF-8'),
        ([("ce_id", b"1"), ("ce_id", b"1")], b"{}", '"ce_id" occurs twice'),
        ([("ce_specversion", b"1.0")], b"{}", '"ce_specversion" occurs twice'),
        ([("content-type", b"application/json"), ("Content-Type", b"text/plain")], b"{}", "occurs twice"),
        ([("content-type", b"application/json"), ("ce_datacontenttype", b"text/plain")], b"{}", "says otherwise"),
        ([("ce_data", b"{}")], None, '"ce_data" names no attribute'),
        ([("ce_data_base64", b"e30=")], None, '"ce_data_base64" names no attribute'),
        ([("ce_\0", b"1")], None, "names no attribute"),
        ([("ce_x", b"1" * MAX_BYTES)], b"{}", "at most 65536 bytes of headers"),
        ([("trace", b"1" * MAX_BYTES)], b"{}", "at most 65536 bytes of headers"),
        ([], b"{", "data is no JSON"),
        ([], b'1,"id":"another"', "data is no JSON"),
        ([], b'{"a":1}{"b":2}', "data is no JSON"),
        ([], b"\xff", "data is no JSON"),
        ([("content-type", b"application/json")], FRAME + b"\x02avro", "data is no JSON"),
    ],
)
def test_unusable_headers_are_a_dead_letter_with_a_reason(headers: Headers, value: bytes | None, problem: str) -> None:
    own: Headers = [("ce_specversion", b"1.0"), *headers]
    for strictly in (False, True):
        found = rows([(own, value), ([], encoded(request()))], strictly=strictly).to_dicts()
        assert [row["reason"] for row in found] == ["malformed", None]
        assert found[0]["violation"].startswith("CloudEvents over Kafka: ")
        assert problem in found[0]["violation"]
        assert "\0" not in found[0]["violation"]
        assert (found[0]["value"], found[0][DOCUMENT], found[0]["id"]) == (value, None, None)


def test_data_that_is_no_json_by_its_content_type_is_rejected_where_a_contract_needs_json() -> None:
    headers, value = in_binary_mode({**members(request()), "datacontenttype": "text/plain"})
    blob, _ = in_binary_mode({**members(request(type="com.example.blob")), "datacontenttype": "image/png"})
    found = rows([(headers, value), (blob, b"\xff\0")]).to_dicts()
    assert [row["reason"] for row in found] == ["invalid_data", None]
    assert json.loads(found[1][DOCUMENT])["data_base64"] == "/wA="


def test_a_content_type_of_cloudevents_means_that_the_value_is_the_event() -> None:
    event = encoded(request())
    other, _ = in_binary_mode(members(completion(id="another")))
    for kind in (b"application/cloudevents+json", b"Application/CloudEvents+JSON; charset=UTF-8"):
        found = rows([([("Content-Type", kind), *other[1:]], event)])
        assert (found["id"][0], found[DOCUMENT][0]) == (request()["id"], None)
    # So was a structured event with headers before binary mode was read.
    assert rows([(other[1:], event)]).drop(OF_FORM).equals(rows([([], event)]).drop(OF_FORM))


def test_headers_that_no_form_needs_change_nothing_and_are_kept() -> None:
    event = encoded(request())
    several: list[Headers] = [[("traceparent", b"00-1")], [("ce_type", b"x")], [("\ufffd", b"\xff"), ("x", None)]]
    for headers in several:
        found = rows([(headers, event), ([], event)])
        assert found.drop(OF_FORM).rows()[0] == found.drop(OF_FORM).rows()[1]
        assert headers_of(found[COLUMN][0]) == tuple(headers)
    huge = rows([([("trace", b"1" * MAX_BYTES)], event)])
    assert (huge["reason"][0], huge[COLUMN][0]) == (None, None)


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.binary())))
def test_headers_survive_their_text(headers: Headers) -> None:
    assert headers_of(text_of(headers)) == tuple(headers)


def test_control_characters_in_names_are_written_as_java_writes_them() -> None:
    written = r'[{"key":"a\u001F\u0000\n\u000B\f\\u00ab","value":"/wA="},{"key":"n"}]'
    headers: Headers = [("a\x1f\0\n\x0b\f\\u00ab", b"\xff\0"), ("n", None)]
    assert text_of(headers) == written
    assert headers_of(written) == tuple(headers)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ce_specversion", "ce_id", "ce_type", "content-type", "ce_", "ce_data", "x"]),
            st.none() | st.binary(max_size=9) | st.sampled_from([b"1.0", b"application/json", b"application/*+json"]),
        )
    ),
    st.none() | st.binary(max_size=12) | st.sampled_from([b"{}", b"null", FRAME + b"{}", b'{"specversion":1}']),
)
def test_whatever_the_headers_are_nothing_is_raised(headers: Headers, value: bytes | None) -> None:
    assert rows([(headers, value)])["reason"][0] != "unreadable"
    assert value is None or isinstance(document_of(value, tuple(headers)), bytes | None)
