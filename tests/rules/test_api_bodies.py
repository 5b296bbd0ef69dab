"""Bodies of requests: events are found as they were written, and any other body is a problem that says what."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from api.bodies import events_in
from api.elements import Element, array, lines, single, single_or_array
from api.events import with_time
from api.problems import Problem
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import subject_in, subject_of, validated

NOW = datetime(2026, 11, 27, 12, 0, 0, 5, tzinfo=UTC)
VALIDATOR = IngestionConfig().validator()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
spaces = st.text(" \t\r\n", max_size=3).map(str.encode)


@given(st.lists(st.tuples(values, st.sampled_from([None, 1])), max_size=5), spaces, spaces)
def test_elements_of_an_array_are_found_byte_for_byte(
    given_values: list[tuple[Any, int | None]], before: bytes, after: bytes
) -> None:
    written = [json.dumps(value, indent=indent, ensure_ascii=False).encode() for value, indent in given_values]
    written = [text for text in written if b"\\ud" not in text and _is_utf8(text)]
    body = before + b"[" + before + (before + b"," + after).join(written) + after + b"]" + after
    assert [element.document for element in array(body)] == written


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.lists(values, max_size=5))
def test_lines_are_found_byte_for_byte(given_values: list[Any]) -> None:
    written = [json.dumps(value).encode() for value in given_values]
    assert [element.document for element in lines(b"\r\n\n".join(written))] == written


@settings(max_examples=40)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | values.map(lambda v: json.dumps(v).encode()))
def test_any_body_is_events_or_a_problem_with_its_reason(body: bytes) -> None:
    for content_type in ("application/json", "application/cloudevents-batch+json", "application/x-ndjson", "a/b"):
        for headers in ({}, {"ce-specversion": "1.0", "ce-id": "1"}):
            found, problem = _events_or_problem({"content-type": content_type, **headers}, body)
            if problem is not None:
                assert (problem.status < 500, bool(problem.detail)) == (True, True)
            else:
                assert len(validated([with_time(each, NOW) for each in found], VALIDATOR, 1 << 20)) == len(found) > 0


def _events_or_problem(headers: dict[str, str], body: bytes) -> tuple[list[Element], Problem | None]:
    try:
        return events_in(headers, body), None
    except Problem as problem:
        return [], problem


@given(st.dictionaries(st.text(), values, max_size=3), spaces)
def test_a_filled_in_time_adds_two_attributes_and_changes_nothing_else(event: dict[str, Any], space: bytes) -> None:
    event = {name: value for name, value in event.items() if name not in ("time", "timesource")}
    document = space + b"{" + space + json.dumps(event).encode()[1:]
    filled = with_time(single(document), NOW)
    added = {"time": "2026-11-27T12:00:00.000005Z", "timesource": "receipt"}
    assert json.loads(filled) == {**event, **added}
    behind = document.index(b"{") + 1
    assert (filled[:behind], filled.endswith(document[behind:])) == (document[:behind], True)


@given(
    st.dictionaries(st.text(), values, max_size=3),
    st.sampled_from([("time",), ("timesource",), ("time", "timesource")]),
    st.sampled_from([None, 1]),
    st.randoms(use_true_random=False),
)
def test_a_time_of_null_is_filled_in_as_one_that_is_missing(
    event: dict[str, Any], nulls: tuple[str, ...], indent: int | None, random: Random
) -> None:
    members = [*((name, value) for name, value in event.items() if name not in nulls), *dict.fromkeys(nulls).items()]
    random.shuffle(members)
    event = {name: value for name, value in members if name not in ("time", "timesource") or value is None}
    filled = with_time(single(json.dumps(event, indent=indent).encode()), NOW)
    assert json.loads(filled) == {**event, "time": "2026-11-27T12:00:00.000005Z", "timesource": "receipt"}
    assert sorted(json.loads(filled, object_pairs_hook=lambda pairs: [name for name, _ in pairs])) == sorted(
        {**event, "time": 0, "timesource": 0}
    )


def test_a_repeated_null_time_stays_invalid() -> None:
    event = b'{"specversion":"1.0","type":"t","source":"s","id":"1","subject":"a","time":null,"t\\u0069me":null}'
    assert validated([with_time(single(event), NOW)], VALIDATOR, 1 << 20)["reason"].to_list() == ["malformed"]


def test_an_event_with_a_time_or_another_source_of_it_stays_as_it_is() -> None:
    for text in ('{"time":"x"}', '{"time":0}', '{"timesource":"gps"}', "[]", "1", "{", "", '{"a":1}{"b":2}'):
        assert with_time(single(text.encode()), NOW) == text.encode()


def digests(*events: dict[str, Any]) -> list[int]:
    return validated([json.dumps(each).encode() for each in events], VALIDATOR, 1 << 20)["content_digest"].to_list()


def test_a_filled_in_time_is_not_part_of_the_content_and_a_given_one_is() -> None:
    event = {"specversion": "1.0", "type": "t", "source": "s", "id": "1", "subject": "a"}
    early, late = {"time": "2026-11-27T12:00:00Z"}, {"time": "2026-11-27T12:00:01Z"}
    receipt = {"timesource": "receipt"}
    first, second, own, other = digests(
        {**event, **early, **receipt}, {**event, **late, **receipt}, {**event, **early}, {**event, **late}
    )
    assert None not in (first, own, other)
    assert first == second
    assert len({first, own, other}) == 3
    clock = digests({**event, **early, "timesource": "gps"}, {**event, **early, "timesource": 1})
    assert clock == [own, own]


def test_a_body_that_is_blank_holds_no_event_and_a_broken_document_is_one() -> None:
    assert single_or_array(b" \n") == []
    assert [each.document for each in single_or_array(b"{")] == [b"{"]


def binary(**attributes: str) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "ce-specversion": "1.0",
        **{f"ce-{n}": v for n, v in attributes.items()},
    }


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.booleans())
def test_an_attribute_in_a_header_is_the_text_that_was_encoded(text: str, is_quoted: bool) -> None:
    written = quote(text, safe="' !*")
    headers = binary(subject=f'"{written}"' if is_quoted else written)
    (event,) = events_in(headers, b"{}")
    assert event.parsed["subject"] == text


@pytest.mark.parametrize("written", ["%FF", "%C3", "Zo\xeb", "Zo\xc3\xab"])
def test_an_unreadable_attribute_is_refused_rather_than_guessed(written: str) -> None:
    with pytest.raises(Problem) as refused:
        events_in(binary(subject=written), b"{}")
    assert (refused.value.status, "ce-subject" in refused.value.detail) == (400, True)


def test_a_quoted_attribute_is_unquoted() -> None:
    for written, meant in (('"a b"', "a b"), (r'"a\"b"', 'a"b'), ('a"b', 'a"b'), ('"', '"'), ('"a"b"', '"a"b"')):
        (event,) = events_in(binary(subject=written), b"{}")
        assert event.parsed["subject"] == meant


@pytest.mark.parametrize("content_type", ["application/cloudevents+avro", "application/cloudevents-batch+xml"])
def test_an_event_in_another_format_of_cloudevents_is_no_data_of_one_in_binary_mode(content_type: str) -> None:
    with pytest.raises(Problem) as refused:
        events_in({**binary(id="1"), "content-type": content_type}, b"\x00")
    assert refused.value.status == 415


def test_a_repeated_attribute_is_refused() -> None:
    sent = [(name.encode(), value.encode()) for name, value in binary(subject="a").items()]
    with pytest.raises(Problem) as refused:
        events_in(Headers(raw=[*sent, (b"ce-subject", b"b")]), b"{}")
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"[{}" + b",{}" * 1_300_000 + b"]"),
        ("application/cloudevents-batch+json", b"[[" + b",[[]]" * 700_000),
        ("application/x-ndjson", b"{}\n" * 1_300_000),
        ("application/json", b"[" + b" " * 4_000_000 + b"]"),
    ],
)
def test_a_body_of_a_million_documents_delays_no_other_request(content_type: str, body: bytes) -> None:
    started = time.thread_time()
    with pytest.raises(Problem):
        events_in({"content-type": content_type}, body)
    assert time.thread_time() - started < 1


def test_the_kafka_key_is_the_subject() -> None:
    document = b'{"subject":"acme","pad":' + b"9" * 5_000 + b"}"
    assert subject_of(document) == b"acme"


@given(
    st.binary(max_size=40)
    | st.dictionaries(st.sampled_from(["subject", "time", "a"]), values).map(lambda event: json.dumps(event).encode())
)
@example(b'{"subject":"acme"}')
@example(b'{"subject":"acme","subject":""}')
@example(b'{"subject":"\\ud800"}')
def test_a_posted_event_has_the_kafka_key_that_any_other_sender_gives_it(document: bytes) -> None:
    event = single(document)
    assert subject_in(event.parsed) == subject_of(with_time(event, NOW))
