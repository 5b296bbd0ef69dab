"""Differential: both readers of the validator and an oracle agree on thousands of events, whole and damaged."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
from hypothesis import strategies as st

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import validated, verdicts
from jobs.ingestion.validator import VERDICT
from tests.corpus import BAD_DOCUMENTS, GOOD_DOCUMENTS, RECEIVED_AT
from tests.corpus.documents import REMOVED, completion, encoded, request
from tests.generated import generated
from tests.pipelines.ingestion import rows_of
from tests.pipelines.oracle_events import reason_of
from tests.rules.test_unnest import CONFIG as WITH_ELEMENTS
from tests.rules.test_unnest import call
from tests.rules.test_unnest import event as traced

DOCUMENTS = 500

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**13), 10**13),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.sampled_from(["", "completed", "provider", "1.0", "\x85", "x" * 513, "12", "true", "{}", REMOVED]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text("ab", max_size=2), st.integers(), max_size=2),
)
times = st.sampled_from(
    [
        "2026-07-01T11:59:59Z",
        "2026-07-01t11:59:59.5z",
        "2026-07-01T17:29:59+05:30",
        "2026-07-01T11:59:59",
        "2026-07-01",
        "2026-02-30T00:00:00Z",
        "2026-05-27T12:00:00Z",
        "2026-05-27T11:59:59.999999Z",
        "2026-07-01T12:05:00Z",
        "2026-07-01T12:05:00.000001Z",
        1_782_907_199,
    ]
)


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    whole = draw(st.sampled_from([request(), {**request(), "data": completion()["data"]}, completion()]))
    event_type = draw(st.sampled_from(["request", "completion", "usage", "request", "completion"]))
    event = {**whole, "type": f"ai.inference.{event_type}.v1", "data": {**whole["data"]}}
    if event_type == "usage":
        event["data"] = {**request()["data"], **completion()["data"]}
    for name in draw(st.lists(st.sampled_from([*event["data"], "note"]), max_size=2)):
        event["data"][name] = draw(odd)
    for name in draw(st.lists(st.sampled_from(["id", "source", "subject", "type", "specversion", "data"]), max_size=1)):
        event[name] = draw(odd)
    for name in draw(st.lists(st.sampled_from(["time", "senttime"]), max_size=1)):
        event[name] = draw(times)
    return {name: _without_removed(member) for name, member in event.items() if member is not REMOVED}


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    event = draw(events())
    style = draw(st.sampled_from(["compact", "indented", "unicode", "compact", "damaged"]))
    if style == "indented":
        return json.dumps(event, indent=1).encode()
    if style == "unicode":
        return json.dumps(event, ensure_ascii=False).encode()
    whole = encoded(event)
    if style == "compact":
        return whole
    # Cut out, double or replace a few bytes: often still text, seldom still JSON.
    start = draw(st.integers(0, len(whole) - 1))
    end = min(len(whole), start + draw(st.integers(0, 4)))
    new = draw(st.sampled_from([b"", b"{}", b",", b'"', b"\\u0000", b"\\ud800", b"\xff", b"1", b" ", b"]", b"}"]))
    return whole[:start] + new + whole[end:]


def _without_removed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_removed(member) for name, member in value.items() if member is not REMOVED}
    return value


def test_differential_every_generated_event_gets_the_reason_of_pythons_reader() -> None:
    values = generated(payloads(), DOCUMENTS)
    expected = [reason_of(value, RECEIVED_AT) for value in values]
    rows = rows_of(values)
    wrong = [
        (value, row["reason"], reason)
        for value, row, reason in zip(values, rows, expected, strict=True)
        if row["reason"] != reason
    ]
    assert not wrong, f"{len(wrong)} differ; the first (payload, validator, oracle): {wrong[0]}"
    # The comparison says something only when documents of many fates were generated.
    assert len(set(expected)) >= 12
    assert 50 <= expected.count(None) <= DOCUMENTS - 100


def test_the_oracle_agrees_with_the_corpus_where_it_can() -> None:
    # Limits of depth and digits and years before the first are not Python's, and the oracle does not read sequences.
    others = {
        document.name
        for document in [*BAD_DOCUMENTS, *GOOD_DOCUMENTS]
        if document.value is not None and getattr(document, "reason", None) != "invalid_sequence"
        if reason_of(document.value, RECEIVED_AT) != getattr(document, "reason", None)
    }
    deep = {name for name in others if name.startswith("nested_")}
    assert others - deep <= {"number_of_2000_digits", "year_0000"}


def test_a_verdict_alone_is_that_of_the_whole_validation() -> None:
    """What the API asks for, and what ingestion does with the same events."""
    of_corpus = [document.value for document in (*GOOD_DOCUMENTS, *BAD_DOCUMENTS) if document.value is not None]
    calls = [traced([call(1), call(2)]), traced([call(1), {"model": 5}]), traced([]), traced({}), traced(None)]
    values = [*of_corpus, *generated(payloads(), DOCUMENTS), *calls]
    for config in (IngestionConfig(), WITH_ELEMENTS):
        validator = config.validator()
        for largest_bytes in (config.max_record_bytes, 600):
            whole = validated(values, validator, largest_bytes, single=True).select(VERDICT)
            assert verdicts(values, validator, largest_bytes).equals(whole)
            assert pl.concat([verdicts([value], validator, largest_bytes) for value in values[:100]]).equals(
                whole[:100]
            )
        assert whole["reason"].n_unique() >= 12
    assert whole.filter(pl.col("violation").str.contains("element 2"))["reason"].to_list() == ["invalid_data"]
