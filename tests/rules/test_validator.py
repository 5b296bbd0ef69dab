"""Every document of the corpus gets its reason, in one batch and by itself; and what a row then says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pytest

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.config_groups import Clocks
from jobs.ingestion.formats import DOCUMENT
from jobs.streams import JOURNAL
from metering.contracts.details import COLUMNS
from metering.vocabulary import Reason
from tests.corpus import BAD_DOCUMENTS, GOOD_DOCUMENTS, RECEIVED_AT
from tests.corpus.documents import REMOVED, completion, encoded, request, request_with
from tests.pipelines.ingestion import records_of, rows_of

DRIVERS_COLUMNS = {"lsn", "log_date", "logged_at", "frontier", "disposition", "first_lsn"}
DRIVERS_COLUMNS |= {"received_at", "event_time", "clock_offset_ms", "rules", "replays_lsn"}
FOR_THE_DRIVER = {"stamped_at": pa.timestamp("us", "UTC"), "is_broker_stamp": pa.bool_()}
FOR_THE_DRIVER |= {"occurred_us": pa.int64(), "device_sent_us": pa.int64()}
MICROSECOND = timedelta(microseconds=1)
TIMES = {"occurred_at", "sent_at", "event_time"}

DIGESTS = [-3307142616934162761, -6875866235748594797, 627573807290991426, -6875866235748594797]

Rows = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def bad() -> Rows:
    rows = rows_of([document.value for document in BAD_DOCUMENTS])
    return {document.name: row for document, row in zip(BAD_DOCUMENTS, rows, strict=True)}


@pytest.fixture(scope="module")
def good() -> Rows:
    rows = rows_of([document.value for document in GOOD_DOCUMENTS])
    return {document.name: row for document, row in zip(GOOD_DOCUMENTS, rows, strict=True)}


def test_the_corpus_is_large_and_names_each_document_once() -> None:
    names = Counter(document.name for document in [*BAD_DOCUMENTS, *GOOD_DOCUMENTS])
    assert max(names.values()) == 1
    assert len(BAD_DOCUMENTS) >= 70
    not_validated = {
        Reason.INVALID_CATALOG_CHANGE,
        Reason.UNSTAMPED,
        Reason.TOO_LARGE,
        Reason.UNREADABLE,
        Reason.SKIPPED,
    }
    # test_event_times has them: they are of no document.
    not_validated |= {Reason.INVALID_RECEPTION}
    # test_reversals has them: only a configuration that knows reversals refuses some.
    not_validated |= {Reason.UNLISTED_REVERSAL}
    # test_event_topic_settings has them: a document alone is in no topic.
    not_validated |= {Reason.WRONG_TOPIC}
    assert {document.reason for document in BAD_DOCUMENTS} == set(Reason) - not_validated


@pytest.mark.parametrize("document", BAD_DOCUMENTS, ids=lambda document: document.name)
def test_a_bad_document_is_rejected_for_its_reason(bad: Rows, document: Any) -> None:
    assert bad[document.name]["reason"] == document.reason


@pytest.mark.parametrize("document", GOOD_DOCUMENTS, ids=lambda document: document.name)
def test_an_odd_but_valid_document_is_accepted(good: Rows, document: Any) -> None:
    row = good[document.name]
    assert row["reason"] is None
    assert len(row["identity"]) == 16
    assert row["content_digest"] is not None
    assert row["event_time"] is not None


def test_a_row_keeps_the_record_as_it_was_received(bad: Rows, good: Rows) -> None:
    values = {document.name: document.value for document in [*BAD_DOCUMENTS, *GOOD_DOCUMENTS]}
    assert {name: row["value"] for name, row in {**bad, **good}.items()} == values
    assert {row["received_at"] for row in bad.values()} == {RECEIVED_AT}


def test_fields_read_from_a_bad_document_can_be_stored(bad: Rows) -> None:
    for name, row in bad.items():
        assert all(row[time] is None or 1970 <= row[time].year < 3000 for time in TIMES), name
        texts = [text for text in row.values() if isinstance(text, str)]
        assert all(len(text.encode()) <= 512 and "\0" not in text for text in texts), name


def test_readable_fields_of_a_rejected_document_are_stored(bad: Rows) -> None:
    row = bad["negative_tokens"]
    assert (row["source"], row["id"], row["account"], row["request_id"]) == ("gateway/1", "event-1", "acme", "req-1")
    assert (row["input_tokens"], row["output_tokens"], row["status"]) == (-1, 40, "completed")
    assert row["content_digest"] is None
    assert bad["year_9999"]["occurred_at"] is None
    assert bad["empty_id"]["identity"] is None
    assert bad["duplicate_key"]["source"] is None


def test_the_columns_are_the_journals_without_the_drivers() -> None:
    arrow = IngestionConfig().validator().validate(records_of([])).schema
    expected = {field.name: field.type for field in JOURNAL if field.name not in DRIVERS_COLUMNS} | FOR_THE_DRIVER
    # Added as a contract's column is, so that the release before reads the journal.
    expected |= {"quantity_includes": pa.string(), "record_headers": pa.string(), **dict.fromkeys(COLUMNS, pa.int64())}
    expected |= {DOCUMENT: pa.binary(), "element": pa.int32()}
    assert set(arrow.names) == set(expected)
    assert {field.name: field.type for field in arrow} == expected


def test_a_completion_fills_its_columns(good: Rows) -> None:
    row = good["completion"]
    wanted = {"request_id": "req-1", **completion()["data"]}
    assert {name: row[name] for name in wanted} == wanted
    assert row["user_id"] is row["model"] is None


def test_null_tokens_are_not_zero(good: Rows) -> None:
    assert good["null_tokens"]["input_tokens"] is None
    assert good["completion"]["cached_tokens"] == 0


def test_a_field_that_the_type_does_not_have_is_not_typed(good: Rows) -> None:
    row = good["a_completion_field_in_a_request_is_unknown"]
    assert row["status"] is row["input_tokens"] is None
    assert good["unknown_type"]["request_id"] is None


def test_texts_are_read_exactly(good: Rows) -> None:
    assert good["escaped_text"]["user_id"] == 'a"b\\c/d\b\f\n\r\t'
    assert good["surrogate_pair"]["user_id"] == "😀"
    assert good["backslash_u0000_is_text"]["user_id"] == "C:\\u0000"
    assert good["escaped_keys"]["model"] == "small-2"
    assert good["numeric_text"]["id"] == "17"
    texts = good["text_like_json"]
    assert [texts[name] for name in ("user_id", "api_key_id", "region", "route")] == ["null", "true", "[1]", '{"a":1}']


def test_times_are_read_to_the_microsecond_in_utc(good: Rows) -> None:
    assert good["time_with_offset"]["occurred_at"] == datetime(2026, 7, 1, 11, 59, 59, tzinfo=UTC)
    assert good["time_in_nanoseconds"]["occurred_at"].microsecond == 123_456
    assert good["senttime"]["sent_at"] == datetime(2026, 7, 1, 11, 59, 59, 900_000, tzinfo=UTC)


def test_sequences_are_numbers_and_epochs_are_texts(good: Rows) -> None:
    assert (good["sequence"]["sequence"], good["sequence"]["source_epoch"]) == (0, "boot-1")
    assert (good["sequence_as_text"]["sequence"], good["sequence_as_text"]["source_epoch"]) == (123, "7")


def test_a_heartbeat_needs_no_subject(good: Rows) -> None:
    row = good["heartbeat_without_subject"]
    assert (row["type"], row["account"], row["request_id"]) == ("source.heartbeat.v1", None, None)


def _digests(events: Iterable[bytes]) -> list[int]:
    rows = rows_of(list(events))
    assert [row["reason"] for row in rows] == [None] * len(rows)
    return [row["content_digest"] for row in rows]


def _reversed(value: Any) -> Any:
    return {key: _reversed(value[key]) for key in reversed(value)} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    "event",
    [request(), completion(), request_with(note={"b": [1, {"d": 2, "c": 3}], "a": None}), request(type="x.y", data=[])],
    ids=["request", "completion", "unknown_fields", "unknown_type"],
)
def test_content_ignores_the_order_of_keys_white_space_and_senttime(event: dict[str, Any]) -> None:
    sent_again = {**event, "senttime": "2026-07-01T11:59:59.999Z", "recordedtime": "later", "sequence": 4}
    same = [event, _reversed(event), sent_again]
    digests = _digests([*map(encoded, same), json.dumps(event, indent=3).encode()])
    assert len(set(digests)) == 1


def test_a_digest_that_is_stored_is_that_of_the_same_event_for_ever() -> None:
    """Whatever fields and meters are known later: else each repeat of an event from before would be a conflict."""
    events = [request(), completion(), completion(input_tokens=None), completion(tokens_of_a_later_version=7)]
    assert _digests(map(encoded, events)) == DIGESTS


@pytest.mark.parametrize(
    ("source", "id_", "hashed"),
    [
        ("gateway/eu-1", "01J9-1", b"12:gateway/eu-101J9-1"),
        ("Zürich", "é", b"7:Z\xc3\xbcrich\xc3\xa9"),
        ("a", "bc", b"1:abc"),
        ("ab", "c", b"2:abc"),
    ],
)
def test_an_identity_that_is_stored_is_that_of_the_same_source_and_id_for_ever(
    source: str, id_: str, hashed: bytes
) -> None:
    (row,) = rows_of([encoded({**request(), "source": source, "id": id_})])
    assert row["identity"] == sha256(hashed).digest()[:16]


def test_any_other_content_is_another() -> None:
    others = [
        request(),
        request(type="ai.inference.request.v2"),
        request(subject="other"),
        request(time="2026-07-01T11:59:59.251Z"),
        *[request_with(**{name: "other"}) for name in request()["data"]],
        request_with(content_hash="0"),
        request_with(region=None),
        completion(),
        completion(input_tokens=None),
        completion(input_tokens=None, output_tokens=120),
        completion(input_tokens=40, output_tokens=120),
        completion(latency_ms=812.25),
        completion(cached=True),
        completion(cached=None),
        request_with(user_id="small-2", model="user-1"),
        request(type="x.y", data={}),
    ]
    digests = _digests(map(encoded, others))
    assert len(set(digests)) == len(others)


def test_what_is_not_read_makes_no_other_content() -> None:
    """Nor does nothing in another form: null, an empty text, a member that is left out."""
    same = [
        request(),
        request_with(note="n"),
        request_with(note=["n"]),
        request_with(input_tokens=1),
        request_with(input_tokens="1"),
        request(traceparent="00-1"),
    ]
    assert len(set(_digests(map(encoded, same)))) == 1
    absent = [request_with(region=None), request_with(region=""), request_with(region=REMOVED)]
    assert len(set(_digests(map(encoded, absent)))) == 1
    unknown = [request(type="x.y", data=each) for each in (None, {}, {"a": 1}, "text")]
    assert len(set(_digests(map(encoded, unknown)))) == 1


def test_an_identity_is_a_source_and_an_id() -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("1", "2:3"), ("1:2", "3"), ("a", "bc")]
    rows = rows_of([encoded(request(source=source, id=name, subject=name)) for source, name in pairs])
    identities = [row["identity"] for row in rows]
    assert identities[0] == identities[4]
    assert len(set(identities)) == 4


def test_the_accept_window_includes_both_its_ends() -> None:
    occurred = datetime(2026, 7, 1, 11, 59, 59, 250_000, tzinfo=UTC)
    last, first = occurred + timedelta(days=35), occurred - timedelta(minutes=5)
    received = [last, last + MICROSECOND, first, first - MICROSECOND]
    rows = rows_of([(encoded(request()), received_at) for received_at in received])
    assert [row["reason"] for row in rows] == [None, Reason.TOO_OLD, None, Reason.FUTURE]


def test_a_devices_clock_is_corrected_beyond_the_tolerance_and_no_others() -> None:
    config = IngestionConfig(clocks=Clocks(device=("device/*",), tolerance_seconds=2))
    occurred, sent = datetime(2026, 7, 1, 8, tzinfo=UTC), datetime(2026, 7, 1, 9, tzinfo=UTC)
    times = {"time": "2026-07-01T08:00:00Z", "senttime": "2026-07-01T09:00:00Z"}
    device = encoded(request(source="device/7", **times))
    silent = encoded(request(source="device/7", time=times["time"]))
    gateway = encoded(request(source="my/device/7", **times))
    taken = encoded(request(source="device/7", timesource="receipt", **times))
    two = timedelta(seconds=2)
    cases: list[tuple[bytes, datetime, datetime, int | None]] = [
        (device, sent + timedelta(hours=3), occurred + timedelta(hours=3), 10_800_000),
        (device, sent - timedelta(hours=3), occurred - timedelta(hours=3), -10_800_000),
        (device, sent + two, occurred, 2_000),
        (device, sent + two + MICROSECOND, occurred + two + MICROSECOND, 2_000),
        (device, sent - two, occurred, -2_000),
        (device, sent - two - MICROSECOND, occurred - two - MICROSECOND, -2_001),
        (silent, sent, occurred, None),
        (gateway, sent + timedelta(hours=3), occurred, None),
        (taken, sent + timedelta(hours=3), occurred, None),
    ]
    rows = rows_of([(value, received_at) for value, received_at, _, _ in cases], config)
    assert [row["reason"] for row in rows] == [None] * len(cases)
    assert [(row["event_time"], row["clock_offset_ms"]) for row in rows] == [case[2:] for case in cases]
    assert {row["occurred_at"] for row in rows} == {occurred}


def test_a_device_that_is_years_wrong_is_believed_after_correction() -> None:
    config = IngestionConfig(clocks=Clocks(device=("device/*",)))
    wrong = {"time": "1970-01-01T00:00:10Z", "senttime": "1970-01-01T00:00:11Z"}
    absurd = {"time": "0001-01-01T00:00:00Z", "senttime": "9999-12-31T23:59:59Z"}
    rows = rows_of([encoded(request(source="device/7", **times)) for times in (wrong, absurd)], config)
    assert rows[0]["reason"] is None
    assert rows[0]["event_time"] == RECEIVED_AT - timedelta(seconds=1)
    assert rows[1]["reason"] == Reason.TOO_OLD
    assert rows[1]["event_time"] is None
