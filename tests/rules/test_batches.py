"""A record that is an array of events: each is what it would be alone, and all of them count or none."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.ingestion import batches
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.documents import records_of, verdicts
from jobs.ingestion.elements import rejected_whole, split, with_elements, with_events, with_room
from jobs.ingestion.formats import DOCUMENT, FORM_PROBLEM
from jobs.ingestion.replays import by_event
from jobs.journal.elements import (
    KIND,
    event_place,
    is_event,
    is_event_arrow,
    is_record,
    is_record_arrow,
    place_in_event,
)
from jobs.runtime.kafka.headers import text_of
from metering.instants import EPOCH
from tests.corpus.documents import encoded, packed

TRACE: dict[str, Any] = {
    "$id": "agent.trace",
    "allOf": [{"$ref": "weir:ai.inference.usage.v1"}],
    "x-weir-unnest": "/data/calls",
}
CONFIG = IngestionConfig(contracts=(TRACE,))
VALIDATORS = {"shipped": IngestionConfig().validator(), "with an array": CONFIG.validator()}
OF_RECORD = ["topic", "partition", "offset", "key", "value", DOCUMENT, "record_headers", "element"]
BATCH = (("content-type", b"application/cloudevents-batch+json; charset=UTF-8"),)


def usage(name: str, **data: Any) -> dict[str, Any]:
    said = {"request_id": f"r-{name}", "model": "m", "status": "completed", "input_tokens": 5, **data}
    envelope = {"specversion": "1.0", "type": "ai.inference.usage.v1", "source": "s", "id": name, "subject": "a"}
    return {**envelope, "time": "2026-07-01T12:00:00Z", "data": said}


def trace(name: str, count: int) -> dict[str, Any]:
    calls = [{"input_tokens": number} for number in range(1, count + 1)]
    return {**usage(name, calls=calls), "type": "agent.trace"}


def validated(values: list[bytes], *, name: str = "with an array", strictly: bool = False) -> pl.DataFrame:
    validator = VALIDATORS[name]
    validate = validator.validate_strictly if strictly else validator.validate
    return pl.DataFrame(validate(records_of(values)))


def batch(events: list[Any]) -> bytes:
    return b" [" + b" ,\n".join(encoded(event) for event in events) + b"]\n"


EVENTS = st.lists(
    st.one_of(
        st.builds(usage, st.sampled_from("abc"), model=st.sampled_from(["m", "\u00e9"])),
        st.builds(trace, st.sampled_from("abc"), st.integers(1, 3)),
        st.builds(lambda name: {**usage(name), "type": "unknown"}, st.sampled_from("abc")),
        st.builds(lambda name: packed(usage(name)), st.sampled_from("abc")),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(EVENTS, st.booleans())
def test_the_rows_of_a_batch_are_those_of_its_events_sent_alone(events: list[dict[str, Any]], strictly: bool) -> None:
    together = validated([encoded(usage("x")), batch(events), encoded(usage("y"))], strictly=strictly)
    alone = validated([encoded(usage("x")), *(encoded(event) for event in events), encoded(usage("y"))])
    assert together["offset"].to_list() == [0, *[1] * (len(together) - 2), 2]
    assert together.drop(OF_RECORD).equals(alone.drop(OF_RECORD))
    places = together.select(event=event_place(pl.col("element")), place=place_in_event(pl.col("element")))
    mine = places[1:-1].rows()
    assert mine == sorted(set(mine)), "each row has a number of its own, in order"
    per_event = [sum(1 for event, _ in mine if event == number) for number in range(1, len(events) + 1)]
    assert per_event == [len(event["data"]["calls"]) if "calls" in event.get("data", {}) else 1 for event in events]
    # The whole record is with its first row, and each event with its own.
    assert together["value"].null_count() == len(together) - 3
    stored = together[1:-1].filter(place_in_event(pl.col("element")) == 1)
    assert [json.loads(text)["id"] for text in stored[DOCUMENT]] == [event["id"] for event in events]
    assert [(json.loads(text).get("data") or {}).get("model") for text in stored[DOCUMENT]] == [
        alone_row["model"] if alone_row["type"] != "unknown" else "m"
        for alone_row in alone[1:-1].filter(pl.col("element").fill_null(0) <= 1).to_dicts()
    ]


@pytest.mark.parametrize("name", VALIDATORS)
@pytest.mark.parametrize("headers", [(), BATCH])
@pytest.mark.parametrize("frame", [b"", b"\0\0\0\0\7"])
def test_a_batch_is_one_by_its_array_whatever_its_content_type_and_frame(
    name: str, headers: tuple[tuple[str, bytes | None], ...], frame: bytes
) -> None:
    records = records_of([frame + batch([usage("a"), usage("b")])], [text_of(headers)])
    rows = VALIDATORS[name].validate(records).to_pylist()
    assert [(row["reason"], row["id"], row["element"]) for row in rows] == [(None, "a", 1), (None, "b", 1_001)]


BAD = usage("bad", input_tokens=-1)
CASES: list[tuple[list[Any], str, str | None, str]] = [
    (
        [usage("a"), BAD, {}],
        "invalid_tokens",
        "bad",
        "ai.inference.usage.v1 /data/input_tokens: at least 0; it is -1; in event 2 (/1)",
    ),
    ([usage("a"), 7], "malformed", None, "JSON (RFC 8259): the document is no object; in event 2 (/1)"),
    ([usage("a"), [usage("b")]], "malformed", None, "JSON (RFC 8259): the document is no object; in event 2 (/1)"),
    ([], "malformed", None, "CloudEvents over Kafka: a batch has 1 to 1000 events; it has none"),
    ([usage("a")] * 1_001, "malformed", None, "CloudEvents over Kafka: a batch has 1 to 1000 events; it has more"),
    (
        [trace("a", 600), trace("b", 401)],
        "invalid_data",
        "a",
        "CloudEvents over Kafka: at most 1000 events and elements of events in a record; it has 1001",
    ),
    (
        [usage("a"), {**trace("t", 2), "data": {**usage("t")["data"], "calls": [{}, {"input_tokens": -1}]}}],
        "invalid_tokens",
        "t",
        "agent.trace /data/input_tokens: at least 0; it is -1; in element 2 (/data/calls/1); in event 2 (/1)",
    ),
]


@pytest.mark.parametrize(("events", "reason", "event", "violation"), CASES)
def test_a_batch_with_one_bad_event_is_one_dead_letter_that_names_it_and_has_the_record(
    events: list[Any], reason: str, event: str | None, violation: str
) -> None:
    value = batch(events)
    for strictly in (False, True):
        before, row, behind = validated([encoded(usage("x")), value, encoded(usage("y"))], strictly=strictly).to_dicts()
        assert (before["reason"], behind["reason"]) == (None, None)
        found = row["reason"], row["id"], row["violation"], row["element"]
        assert found == (reason, event, violation, 0)
        assert (row["value"], row["content_digest"]) == (value, None)


@pytest.mark.parametrize("broken", [b"[", b"[{}", b"[{},]", b"[{}] x", b"[\xff]", b"[" * 2_000, b"[NaN]", b"[{}{}]"])
def test_what_is_no_array_is_malformed_as_it_is(broken: bytes) -> None:
    [row] = validated([broken]).to_dicts()
    assert (row["reason"] in {"malformed", "not_utf8"}, row["value"]) == (True, broken)


def test_an_array_of_which_the_api_asks_is_no_event() -> None:
    """The API takes batches apart: an array in an array is none, however large it is."""
    documents = [batch([usage("a")]), batch([usage("b", model="m" * 200)])]
    for largest_bytes in (1_000_000, 300):
        found = verdicts(documents, VALIDATORS["shipped"], largest_bytes)
        assert found["reason"].null_count() == 0
    assert validated(documents)["reason"].null_count() == 2


def test_a_batch_is_a_dead_letter_where_batches_are_turned_off_or_a_contract_has_the_column() -> None:
    own: dict[str, Any] = {
        "$id": "mine",
        "allOf": [{"$ref": "weir:ai.inference.usage.v1"}],
        "properties": {"data": {"properties": {"element": {"type": "string", "x-weir-column": "element"}}}},
    }
    for config in (IngestionConfig(batches=False), IngestionConfig(contracts=(own,))):
        [row] = config.validator().validate(records_of([batch([usage("a")])])).to_pylist()
        assert (row["reason"], row["violation"]) == ("malformed", "JSON (RFC 8259): the document is no object")


def test_the_rows_of_many_small_events_are_made_in_parts() -> None:
    """A record of few bytes may become many rows: a worker makes no more than some of them at once."""
    value = batch([{"id": ""}] * 1_000)
    tables = list(VALIDATORS["shipped"].validated_blocks(records_of([value] * 120)))
    assert len(tables) == 3
    assert sum(len(table) for table in tables) == 120


RECEIVED = pl.Datetime("us", "UTC")
FIELDS = tuple(field.name for field in VALIDATORS["with an array"].fields)


def journaled(values: list[bytes], too_old: set[str]) -> pl.DataFrame:
    """Rows as the driver makes them of records: with their reception, an event whose id is `too_old` rejected, and lsns
    from 1 on."""
    records, further = split(validated(values), FIELDS)
    assert records["offset"].to_list() == list(range(len(values)))
    received = records.with_columns(received_at=pl.lit(EPOCH).cast(RECEIVED))
    is_old = pl.col("reason").is_null() & pl.col("id").is_in(list(too_old))
    late = with_events(received, further).with_columns(
        pl.when(is_old).then(pl.lit("too_old")).otherwise("reason").alias("reason"),
        pl.when(is_old).then(pl.lit("accept window /time: old")).otherwise("violation").alias("violation"),
    )
    whole = rejected_whole(batches.rejected_whole(late), FIELDS)
    return with_elements(with_room(whole.sort("partition", "offset", "element"), 1), further)


@settings(max_examples=60)
@given(st.lists(EVENTS, min_size=1, max_size=4), st.sets(st.sampled_from("abc"), max_size=2))
def test_all_events_of_a_record_are_journaled_or_none_with_lsns_in_a_row(
    several: list[list[dict[str, Any]]], too_old: set[str]
) -> None:
    rows = journaled([batch(events) for events in several], too_old)
    assert rows["lsn"].to_list() == list(range(1, len(rows) + 1))
    for offset, events in enumerate(several):
        mine = rows.filter(offset=offset)
        old = [number for number, event in enumerate(events, 1) if event["id"] in too_old]
        if not old:
            count = sum(len(event.get("data", {}).get("calls", [0])) for event in events)
            assert mine["reason"].null_count() == len(mine) == count
            firsts = mine.filter(place_in_event(pl.col("element")) == 1)
            assert firsts["id"].to_list() == [event["id"] for event in events]
            assert mine["element"].is_sorted()
            continue
        [row] = mine.to_dicts()
        where = f"; in event {old[0]} (/{old[0] - 1})" if len(events) > 1 else ""
        assert (row["reason"], row["violation"]) == ("too_old", f"accept window /time: old{where}")
        assert (row["element"], row["value"], row["input_tokens"]) == (0, batch(events), None)


def test_of_a_dead_letter_each_event_is_replayed_once() -> None:
    rows = pl.DataFrame(
        {"replays_lsn": [7, 7, 7, 8, None], "element": [1, 1_001, 2_001, 0, 0]},
        {"replays_lsn": pl.Int64, "element": KIND},
    )
    named = by_event(rows)["replays_lsn"].to_list()
    assert named == [7, -7_002, -7_003, 8, None]


@given(st.lists(st.one_of(st.none(), st.integers(0, 1_000_000)), max_size=30))
def test_an_event_is_found_alike_by_polars_and_by_arrow(elements: list[int | None]) -> None:
    frame = pl.DataFrame({"element": elements, "at": range(len(elements))}, {"element": KIND, "at": pl.Int64})
    table = frame.to_arrow()
    for of_polars, of_arrow in ((is_event, is_event_arrow), (is_record, is_record_arrow)):
        assert (
            frame.filter(of_polars(frame.schema))["at"].to_list()
            == table.filter(of_arrow(table.schema))["at"].to_pylist()
        )


def test_a_record_is_not_copied_for_each_of_its_events() -> None:
    value = batch([usage(f"e{number}") for number in range(1_000)])
    records = pl.DataFrame(records_of([value, encoded(usage("x"))])).with_columns(
        **{name: pl.lit(None, kind) for name, kind in ((DOCUMENT, pl.Binary), (FORM_PROBLEM, pl.String))}
    )
    events = batches.expanded(records, records["value"])
    assert len(events) == 1_001
    assert events["value"].to_arrow().nbytes < 2 * len(value)


@pytest.mark.parametrize("frame", [b"", b"\0\0\0\0\7"])
def test_a_worker_takes_apart_few_arrays_of_numbers_at_once(frame: bytes) -> None:
    vectors = records_of([frame + b"[" + b",".join([b"0"] * 1_000) + b"]"] * 120)
    parts = list(VALIDATORS["shipped"].validated_blocks(vectors))
    assert [len(part) for part in parts] == [49, 50, 21]
