"""Events in each form on a real broker: one identity, one bill, and dead letters that come back as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from cli.main import app
from jobs.runtime.kafka.headers import headers_of
from jobs.runtime.kafka.marks import REPLAYS
from tests.corpus.documents import encoded, in_binary_mode, packed
from tests.streaming.test_replays import usage
from tests.streaming.topics import Topic, batch, ingestion, journal, let_commands_reach

FRAME = b"\0\0\0\0\x07"
TRACE = ("traceparent", b"00-\xff")
Headers = list[tuple[str, bytes | None]]


def event(name: str, ago_s: float = 0, **data: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(usage(name, ago_s, **data))
    return found


def send(topic: Topic, value: bytes | None, headers: Headers | None = None) -> None:
    given: list[tuple[str, str | bytes | None]] = [*(headers or [])]
    topic.producer.produce(topic.name, value, b"a", partition=0, headers=given)
    assert topic.producer.flush(30) == 0


def redrive(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["dead-letters", "redrive", *arguments])


def last(topic: Topic) -> tuple[bytes | None, bytes | None, Headers]:
    """Key, value and headers of the newest record."""
    consumer = Consumer({"bootstrap.servers": topic.bootstrap, "group.id": "test", "enable.auto.commit": False})
    try:
        end = consumer.get_watermark_offsets(TopicPartition(topic.name, 0))[1]
        consumer.assign([TopicPartition(topic.name, 0, end - 1)])
        [message] = consumer.consume(1, timeout=30)
        return message.key(), message.value(), [*(message.headers() or [])]
    finally:
        consumer.close()


def test_a_repeat_in_any_form_is_a_duplicate_of_its_first_in_any_form(
    spark: SparkSession, database: str, broker: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        forms: list[list[tuple[bytes, Headers]]] = []
        for name in ("e0", "e1", "e2", "e3"):
            plain = event(name, model="m")
            headers, value = in_binary_mode(plain)
            assert value is not None
            of_event: list[tuple[bytes, Headers]] = [
                (encoded(plain), []),
                (value, [TRACE, *headers]),
                (FRAME + encoded(plain), []),
                (encoded(packed(plain)), [TRACE]),
                (FRAME + value, headers),
            ]
            start = len(forms)
            forms.append(of_event[start:] + of_event[:start])
            _, other = in_binary_mode(event(name, model="m", output_tokens=9))
            forms[-1].append((other or b"", headers))
        for cut in range(6):
            for of_event in forms:
                send(topic, *of_event[cut])
            if cut in (1, 5):
                sink.process(batch(spark, topic))
    rows = journal(tmp_path)
    assert rows["disposition"].to_list() == ["accepted"] * 4 + ["duplicate"] * 16 + ["conflict"] * 4
    assert set(rows["input_tokens"]) == {5}
    # What is kept is the event as JSON, in each form.
    assert {json.dumps(json.loads(value)["data"], sort_keys=True) for value in rows["value"][:20]} == {
        json.dumps(event(name, model="m")["data"], sort_keys=True) for name in ("e0", "e1", "e2", "e3")
    }
    assert rows["record_headers"].null_count() == len(rows)


def test_a_dead_letter_in_binary_mode_is_sent_again_as_it_was(
    spark: SparkSession, database: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker)
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    headers, value = in_binary_mode(event("old", 100, model="m"))
    with ingestion(spark, broker, database, tmp_path, topic.name, accept_past_seconds=60) as sink:
        send(topic, value, [TRACE, *headers])
        send(topic, b"{}", [("ce_specversion", b"1.0"), ("ce_id", b"\xff")])
        sink.process(batch(spark, topic, config=None))
        assert sink.batch_bytes_per_record() > sink.record_bytes() + 200, "headers reach the driver, too"
    dead, broken = journal(tmp_path).to_dicts()
    assert (dead["reason"], dead["value"], broken["reason"]) == ("too_old", value, "malformed")
    assert headers_of(dead["record_headers"]) == (TRACE, *headers)
    assert broken["violation"] == 'CloudEvents over Kafka: the header "ce_id" is not UTF-8'
    # A later configuration takes it.
    with ingestion(spark, broker, database, tmp_path, topic.name, accept_past_seconds=3_600) as sink:
        done = redrive("--reason", "too_old")
        assert (done.exit_code, done.stderr.strip()) == (0, "1 sent")
        assert redrive("--reason", "malformed").exit_code == 1
        mark = f"{topic.name}/0/{dead['offset']}".encode()
        assert last(topic) == (b"a", value, [TRACE, *headers, (REPLAYS, mark)])
        sink.process(batch(spark, topic))
    back = journal(tmp_path).to_dicts()[-1]
    assert (back["disposition"], back["replays_lsn"]) == ("accepted", dead["lsn"])


def test_an_edited_dead_letter_is_sent_without_the_headers_that_it_had(
    spark: SparkSession, database: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker)
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    script = tmp_path / "mend.py"
    script.write_text("""#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    letter = json.loads(line)
    event = {name[3:]: value for name, value in letter["headers"] if name.startswith("ce_")}
    print(json.dumps({**event, "data": {**json.loads(letter["value"]), "model": "m"}}))
""")
    script.chmod(0o755)
    headers, value = in_binary_mode(event("bare"))
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        send(topic, value, headers)
        sink.process(batch(spark, topic))
        assert redrive("--reason", "invalid_model").exit_code == 1
        done = redrive("--reason", "invalid_model", "--edit", str(script))
        assert (done.exit_code, done.stderr.strip()) == (0, "1 sent")
        assert [name for name, _ in last(topic)[2]] == [REPLAYS]
        sink.process(batch(spark, topic))
    assert journal(tmp_path)["disposition"].to_list() == ["rejected", "accepted"]
