"""Batches of events in one record: the shipped sink on a real broker, whatever is cut, killed or redriven."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from cli.conflicts import ConflictQuery, conflict_rows
from cli.main import app
from jobs.audit.compare.conservation import count_rows
from jobs.audit.compare.offsets import gaps_of
from jobs.audit.compare.partition_balance import PartitionRange
from jobs.explain.files import Files
from jobs.explain.records import Period, Tables
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.sink import JournalSink
from jobs.runtime.kafka.headers import headers_of
from jobs.streams import Table
from metering.instants import EPOCH
from tests.streaming.test_replays import usage
from tests.streaming.topics import Topic, batch, every_row, ingestion, journal, let_commands_reach

TRACE: dict[str, Any] = {
    "$id": "agent.trace",
    "allOf": [{"$ref": "weir:ai.inference.usage.v1"}],
    "x-weir-unnest": "/data/calls",
}
TRACES = IngestionConfig(contracts=(TRACE,))
pytestmark = pytest.mark.long
HEADERS: list[tuple[str, bytes | None]] = [
    ("content-type", b"application/cloudevents-batch+json"),
    ("traceparent", b"00-\xff"),
]
MENDS = """#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    events = json.loads(json.loads(line)["value"])
    events[1]["data"]["input_tokens"] = 3
    print(json.dumps(events))
"""


def event(name: str, ago_s: float = 0, **data: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(usage(name, ago_s, **{"model": "m", **data}))
    return found


def trace(name: str, count: int) -> dict[str, Any]:
    calls = [{"input_tokens": number} for number in range(1, count + 1)]
    return {**event(name, calls=calls), "type": "agent.trace"}


def send(topic: Topic, *events: dict[str, Any], alone: bool = False) -> None:
    value = json.dumps(events[0] if alone else events).encode()
    headers: list[tuple[str, str | bytes | None]] = [] if alone else [*HEADERS]
    topic.producer.produce(topic.name, value, b"a", partition=0, headers=headers)
    assert topic.producer.flush(30) == 0


def accounted(tables: Path, sink: JournalSink) -> None:
    """I1, I2: each lsn once, each record whole in one commit, and as many records as there were."""
    found = every_row(tables)
    assert found["lsn"].to_list() == list(range(1, len(found) + 1))
    for _, record in found.group_by("topic", "partition", "offset"):
        elements = record.sort("lsn")["element"].fill_null(0).to_list()
        assert elements[0] in (0, 1)
        assert elements == sorted(set(elements))
        assert record["logged_at"].n_unique() == 1
        assert record["lsn"].max() - record["lsn"].min() == len(record) - 1  # type: ignore[operator]
    assert sink.status()["residual"] == 0
    counted = sum(count_rows(DeltaTable(f"{tables}/{Table.JOURNAL}")).values())
    assert counted == found.select("topic", "partition", "offset").n_unique()


def rows(tables: Path, *names: str) -> list[tuple[Any, ...]]:
    found = journal(tables).filter(pl.col("id").is_in(names)).sort("lsn")
    return found.select("id", "disposition", "element").rows()


def test_each_event_of_a_batch_is_a_row_with_its_own_fate(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker)
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    first, second, third = (event(name) for name in ("b1", "b2", "b3"))
    calls = trace("t", 3)
    with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(TRACE,)) as sink:
        send(topic, first, alone=True)
        send(topic, first, calls, second, {**second, "subject": "other"})
        progress = sink.process(batch(spark, topic, config=TRACES))
        accounted(tmp_path, sink)
        assert sink.batch_bytes_per_record() > sink.record_bytes() + 500
    assert progress.records == every_row(tmp_path)["offset"].n_unique()
    assert rows(tmp_path, "b1") == [("b1", "accepted", 0), ("b1", "duplicate", 1)]
    assert rows(tmp_path, "t") == [("t", "accepted", 1_000 + number) for number in (1, 2, 3)]
    assert rows(tmp_path, "b2") == [("b2", "accepted", 2_001), ("b2", "conflict", 3_001)]
    # Another driver learns from the table what was in batches.
    with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(TRACE,)) as sink:
        send(topic, third, second)
        send(topic, second, alone=True)
        send(topic, calls, alone=True)
        sink.process(batch(spark, topic, config=TRACES))
        accounted(tmp_path, sink)
    assert rows(tmp_path, "b3") == [("b3", "accepted", 1)]
    assert rows(tmp_path, "b2")[2:] == [("b2", "duplicate", 1_001), ("b2", "duplicate", 0)]
    assert rows(tmp_path, "t")[3:] == [("t", "duplicate", number) for number in (1, 2, 3)]
    found = journal(tmp_path)
    stored = found.filter(pl.col("value").is_not_null()).select("id", "value").rows()
    assert all(json.loads(value)["id"] == name for name, value in stored), "each event is kept, and no array"
    assert found["record_headers"].null_count() == len(found)
    assert found.filter(id="t")["request_id"].to_list() == [f"r-t/{number}" for number in (1, 2, 3)] * 2
    listed = list(conflict_rows(DeltaTable(f"{tmp_path}/{Table.JOURNAL}"), ConflictQuery()))
    assert [(row["id"], row["differs"]) for row in listed] == [("b2", "/subject")]
    summary = json.loads(CliRunner().invoke(app, ["journal", "--summary", "--format", "json"]).stdout)
    assert {row["residual"] for row in summary} == {0}
    files = Files.of(DeltaTable(f"{tmp_path}/{Table.JOURNAL}"), Table.JOURNAL)
    explained = Tables(files, Files.none(Table.USAGE), None, 100)
    of_call = explained.of_id("r-t/3", Period(EPOCH)).records
    assert [json.loads(value)["id"] for value in of_call["value"]] == ["t", "t"]
    assert of_call["element"].to_list() == [1_003, 3]
    assert explained.of_id("b2", Period(EPOCH)).records["disposition"].to_list() == [
        *("accepted", "conflict", "duplicate", "duplicate")
    ]


def test_a_driver_that_dies_anywhere_leaves_all_of_a_batch_or_none(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker)
    for name in ("a", "b"):
        send(topic, event(f"{name}1"), event(f"{name}2"))
        topic.transaction(f"x-{name}", commit=True)
    for dies_at in ("jobs.runtime.delta.table.DeltaWriter._put", "jobs.ingestion.sink.JournalSink._learn"):
        with ingestion(spark, broker, database, tmp_path, topic.name) as sink, monkeypatch.context() as dying:
            dying.setattr(dies_at, _killed)
            with pytest.raises(RuntimeError, match="killed"):
                sink.process(batch(spark, topic))
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        sink.process(batch(spark, topic))
        sink.process(batch(spark, topic))
        accounted(tmp_path, sink)
        end = sink.positions()[topic.name][0]
    names = [f"{name}{number}" for name in "ab" for number in (1, 2)]
    assert rows(tmp_path, *names) == [(name, "accepted", 1_000 * (int(name[1]) - 1) + 1) for name in names]
    place = (topic.name, 0)
    [*gaps] = gaps_of(DeltaTable(f"{tmp_path}/{Table.JOURNAL}"), {place: PartitionRange(0, end, 2)}, None)[place]
    held = set(every_row(tmp_path).filter(topic=topic.name)["offset"])
    assert {offset for gap in gaps for offset in range(gap.first, gap.end)} == set(range(max(held) + 1)) - held


def _killed(*_: object) -> None:
    raise RuntimeError("killed")


def test_a_batch_with_an_old_event_is_a_dead_letter_and_comes_back_whole(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker)
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    events = [event("c1"), event("c2", 100), event("c3")]
    with ingestion(spark, broker, database, tmp_path, topic.name, accept_past_seconds=60) as sink:
        send(topic, *events)
        send(topic, events[0], alone=True)
        sink.process(batch(spark, topic, config=None))
        accounted(tmp_path, sink)
        [dead] = journal(tmp_path).filter(disposition="rejected").to_dicts()
        assert (dead["reason"], dead["id"], dead["element"]) == ("too_old", "c2", 0)
        assert dead["violation"].endswith("; in event 2 (/1)")
        assert (json.loads(dead["value"]), dead["input_tokens"]) == (events, None)
        assert headers_of(dead["record_headers"]) == tuple(HEADERS)
    with ingestion(spark, broker, database, tmp_path, topic.name, accept_past_seconds=3_600) as sink:
        for _ in range(2):
            done = CliRunner().invoke(app, ["dead-letters", "redrive", "--reason", "too_old"])
            assert (done.exit_code, done.stderr.strip()) == (0, "1 sent")
        sink.process(batch(spark, topic))
        accounted(tmp_path, sink)
    back = journal(tmp_path).filter(pl.col("replays_lsn") == dead["lsn"]).sort("lsn")
    kinds = back.select("id", "disposition").rows()
    assert kinds == [
        *[("c1", "duplicate"), ("c2", "accepted"), ("c3", "accepted")],
        *[("c1", "duplicate"), ("c2", "duplicate"), ("c3", "duplicate")],
    ]
    assert set(back["first_received_at"]) == {dead["received_at"]}


def test_a_batch_with_a_bad_event_is_edited_and_each_event_is_accepted_once(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker)
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    edit = tmp_path / "mend.py"
    edit.write_text(MENDS)
    edit.chmod(edit.stat().st_mode | stat.S_IXUSR)
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        send(topic, event("d1"), event("d2", input_tokens=-1), event("d3"))
        sink.process(batch(spark, topic))
        command = ["dead-letters", "redrive", "--reason", "invalid_tokens", "--edit", str(edit)]
        listed = CliRunner().invoke(app, [*command, "--dry-run", "--format", "json"])
        assert json.loads(listed.stdout)[0]["fate"] == "would_be_accepted", listed.output
        # Twice: before anybody has read the first, and by another driver.
        for _ in range(2):
            assert CliRunner().invoke(app, command).exit_code == 0
        sink.process(batch(spark, topic))
        accounted(tmp_path, sink)
    found = journal(tmp_path)
    [dead] = found.filter(disposition="rejected")["lsn"].to_list()
    back = found.filter(pl.col("replays_lsn") == dead).sort("lsn")
    assert back.select("id", "disposition").rows() == [
        *((name, "accepted") for name in ("d1", "d2", "d3")),
        *((name, "duplicate") for name in ("d1", "d2", "d3")),
    ]
    assert back.filter(disposition="accepted")["input_tokens"].to_list() == [5, 3, 5]
