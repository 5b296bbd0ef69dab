"""Events with several calls: the shipped sink on a real broker and journal, whatever is cut, killed or sent again."""

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
from jobs.streams import Table
from metering.instants import EPOCH, rfc3339
from tests.streaming.topics import Topic, batch, every_row, ingestion, journal, let_commands_reach

TRACE: dict[str, Any] = {
    "$id": "agent.trace",
    "allOf": [{"$ref": "weir:ai.inference.usage.v1"}],
    "x-weir-unnest": "/data/calls",
}
WHOLE = {name: each for name, each in TRACE.items() if name != "x-weir-unnest"}
TRACES = IngestionConfig(contracts=(TRACE,))
CALLS = [{"model": f"m{number}", "input_tokens": number, "output_tokens": 3} for number in range(1, 13)]
MENDS = """#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    event = json.loads(json.loads(line)["value"])
    event["data"]["calls"][2]["input_tokens"] = 3
    print(json.dumps(event))
"""


def trace(topic: Topic, name: str, calls: list[dict[str, Any]] | None = None, **data: Any) -> None:
    envelope = {"specversion": "1.0", "type": "agent.trace", "source": "agent/1", "id": name, "subject": "a"}
    said = {"request_id": f"r-{name}", "status": "completed", "calls": CALLS if calls is None else calls, **data}
    value = json.dumps({**envelope, "time": rfc3339(topic.occurred_at), "data": said}).encode()
    topic.producer.produce(topic.name, value, b"a", partition=0)
    assert topic.producer.flush(30) == 0


def rows(tables: Path, name: str) -> list[tuple[Any, ...]]:
    """(disposition, element, first_lsn) of all rows of an event's id, by lsn."""
    return journal(tables).filter(id=name).select("disposition", "element", "first_lsn").rows()


def accounted(tables: Path, sink: JournalSink) -> None:
    """I1, I2: each lsn once, each offset with all its elements in one commit, and as many records as there were."""
    found = every_row(tables)
    if "element" not in found.columns:
        found = found.with_columns(element=pl.lit(None, pl.Int32))
    assert found["lsn"].to_list() == list(range(1, len(found) + 1))
    for _, record in found.group_by("topic", "partition", "offset"):
        elements = record.sort("lsn")["element"].fill_null(0).to_list()
        assert elements in ([0], list(range(1, len(record) + 1)))
        assert record["logged_at"].n_unique() == record["disposition"].n_unique() == 1
        assert record["lsn"].max() - record["lsn"].min() == len(record) - 1  # type: ignore[operator]
    assert sink.status()["residual"] == 0
    table = DeltaTable(f"{tables}/{Table.JOURNAL}")
    counted = sum(count_rows(table).values())
    assert counted == found.select("topic", "partition", "offset").n_unique()


def test_a_trace_of_twelve_calls_is_twelve_rows_and_counts_as_one_record(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker)
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    trace(topic, "before")
    without = IngestionConfig(batches=False)
    with ingestion(spark, broker, database, tmp_path, topic.name, batches=False) as sink:
        sink.process(batch(spark, topic, config=without))
        assert "element" not in journal(tmp_path).columns, "a release before can still read and write this table"
    topic.append("h1")
    trace(topic, "t")
    topic.append("h2")
    with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(TRACE,)) as sink:
        progress = sink.process(batch(spark, topic, config=TRACES))
        accounted(tmp_path, sink)
        assert sink.batch_bytes_per_record() > sink.record_bytes() + 1_000, "eleven rows, beside three records"
        assert sink.record_bytes() < 1_000, "what the topic keeps of a record is what was sent"
    assert rows(tmp_path, "t") == [("accepted", element, None) for element in range(1, 13)]
    assert rows(tmp_path, "before") == [("accepted", None, None)]
    found = journal(tmp_path).filter(id="t")
    assert found["request_id"].to_list() == [f"r-t/{element}" for element in range(1, 13)]
    assert found["input_tokens"].to_list() == list(range(1, 13))
    assert found["identity"].n_unique() == 12
    assert progress.records == journal(tmp_path)["offset"].n_unique() - 1 + 1, "the heartbeat of this start, and three"
    summary = json.loads(CliRunner().invoke(app, ["journal", "--summary", "--format", "json"]).stdout)
    mine = [row for row in summary if row["topic"] == topic.name]
    assert [(row["accepted"], row["residual"]) for row in mine] == [(6, 0)]


def test_a_trace_that_is_sent_again_is_a_repeat_as_a_whole(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    first, *_, last = CALLS
    again = {
        "the same": CALLS,
        "in another order": CALLS[::-1],
        "with more": [*CALLS, first],
        "with fewer": CALLS[:-1],
        "another last": [*CALLS[:-1], {**last, "output_tokens": 4}],
    }
    trace(topic, "t")
    with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(TRACE,)) as sink:
        sink.process(batch(spark, topic, config=TRACES))
    for calls in again.values():
        trace(topic, "t", calls)
    # Another driver, which learns from the table; and one that repeats within a batch.
    with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(TRACE,)) as sink:
        sink.process(batch(spark, topic, config=TRACES))
        trace(topic, "u")
        trace(topic, "u", CALLS[::-1])
        trace(topic, "u")
        sink.process(batch(spark, topic, config=TRACES))
        accounted(tmp_path, sink)
    lsn = journal(tmp_path).filter(id="t")["lsn"][0]
    expected = [("accepted", element, None) for element in range(1, 13)]
    for name, calls in again.items():
        kind = "duplicate" if name == "the same" else "conflict"
        expected += [(kind, element, lsn) for element in range(1, len(calls) + 1)]
    assert rows(tmp_path, "t") == expected
    listed = list(conflict_rows(DeltaTable(f"{tmp_path}/{Table.JOURNAL}"), ConflictQuery()))
    assert [row["id"] for row in listed] == [*"tttt", "u"], "one line for each event, not for each of its elements"
    assert all(str(row["differs"]).startswith("/data/calls") for row in listed)
    kinds = journal(tmp_path).filter(id="u").group_by("offset", maintain_order=True).agg(pl.first("disposition"))
    assert kinds["disposition"].to_list() == ["accepted", "conflict", "duplicate"]


@pytest.mark.long
def test_an_event_accepted_whole_is_not_accepted_again_as_elements(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    """A contract that begins to unnest bills no event again; nor does one that ceases to."""
    topic = Topic.make(broker)
    for number, contract in enumerate([WHOLE, TRACE, WHOLE, TRACE]):
        config = IngestionConfig(contracts=(contract,))
        for name in ("t", f"new-{number}"):
            trace(topic, name, model="around")
        with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(contract,)) as sink:
            sink.process(batch(spark, topic, config=config))
            accounted(tmp_path, sink)
    found = journal(tmp_path).filter(id="t").group_by("offset", maintain_order=True)
    kinds = found.agg(pl.first("disposition"), pl.len())
    assert kinds["disposition"].to_list() == ["accepted", "duplicate", "duplicate", "duplicate"]
    assert kinds["len"].to_list() == [1, 12, 1, 12]
    assert set(journal(tmp_path).filter(pl.col("id").str.starts_with("new-"))["disposition"]) == {"accepted"}


def test_a_driver_that_dies_anywhere_leaves_all_elements_or_none(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker)
    for name in ("a", "b"):
        trace(topic, name)
    for place in ("jobs.runtime.delta.table.DeltaWriter._put", "jobs.ingestion.sink.JournalSink._learn"):
        with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(TRACE,)) as sink:
            records = batch(spark, topic, config=TRACES).where(
                f"offset < {sum(sink.positions()[topic.name].values()) + 2}"
            )
            with monkeypatch.context() as dying:
                dying.setattr(place, _killed)
                with pytest.raises(RuntimeError, match="killed"):
                    sink.process(records)
    with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(TRACE,)) as sink:
        sink.process(batch(spark, topic, config=TRACES))
        sink.process(batch(spark, topic, config=TRACES))
        accounted(tmp_path, sink)
    for name in ("a", "b"):
        assert rows(tmp_path, name) == [("accepted", element, None) for element in range(1, 13)]


def _killed(*_: object) -> None:
    raise RuntimeError("killed")


def test_a_trace_with_one_bad_call_is_a_dead_letter_and_is_redriven_whole(
    spark: SparkSession, broker: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker)
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    broken = [*CALLS[:2], {**CALLS[2], "input_tokens": -3}, *CALLS[3:]]
    trace(topic, "t", broken)
    trace(topic, "good")
    edit = tmp_path / "mend.py"
    edit.write_text(MENDS)
    edit.chmod(edit.stat().st_mode | stat.S_IXUSR)
    with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(TRACE,)) as sink:
        sink.process(batch(spark, topic, config=TRACES))
        [dead] = journal(tmp_path).filter(id="t").to_dicts()
        assert (dead["disposition"], dead["reason"], dead["element"]) == ("rejected", "invalid_tokens", 0)
        assert dead["violation"].endswith("at least 0; it is -3; in element 3 (/data/calls/2)")
        assert json.loads(dead["value"])["data"]["calls"] == broken
        command = ["dead-letters", "redrive", "--reason", "invalid_tokens", "--edit", str(edit)]
        listed = CliRunner().invoke(app, [*command, "--dry-run", "--format", "json"])
        assert json.loads(listed.stdout)[0]["fate"] == "would_be_accepted", listed.output
        # Twice, before anybody has read the first.
        for _ in range(2):
            assert CliRunner().invoke(app, command).exit_code == 0
        sink.process(batch(spark, topic, config=TRACES))
        accounted(tmp_path, sink)
        done = CliRunner().invoke(app, command)
        assert done.stderr.strip() == "1 replayed"
    back = journal(tmp_path).filter(pl.col("replays_lsn") == dead["lsn"])
    kinds = back.group_by("offset", maintain_order=True).agg(pl.first("disposition"), pl.len())
    assert kinds.select("disposition", "len").rows() == [("accepted", 12), ("duplicate", 12)]
    assert set(back["first_received_at"]) == {dead["received_at"]}
    summary = json.loads(CliRunner().invoke(app, ["journal", "--summary", "--format", "json"]).stdout)
    assert sum(row["redriven"] for row in summary) == 1
    assert {row["residual"] for row in summary} == {0}


def test_a_record_that_becomes_several_rows_shifts_later_row_numbers(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    """A dead letter and what replays it in one batch, behind a trace: the mark names the lsn that its row gets."""
    topic = Topic.make(broker)
    with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(TRACE,)) as sink:
        place = topic._end()
        trace(topic, "first")
        trace(topic, "dead", [])
        value = journal_value(topic, "dead")
        mark: list[tuple[str, str | bytes | None]] = [("weir-replays", f"{topic.name}/0/{place + 1}".encode())]
        topic.producer.produce(topic.name, value, b"a", partition=0, headers=mark)
        assert topic.producer.flush(30) == 0
        sink.process(batch(spark, topic, config=TRACES))
        accounted(tmp_path, sink)
    found = journal(tmp_path)
    dead = found.filter(id="dead", disposition="rejected")["lsn"].item()
    assert found.filter(pl.col("replays_lsn").is_not_null())["replays_lsn"].to_list() == [dead] * 12


def journal_value(topic: Topic, name: str) -> bytes:
    envelope = {"specversion": "1.0", "type": "agent.trace", "source": "agent/1", "id": name, "subject": "a"}
    data = {"request_id": f"r-{name}", "status": "completed", "calls": CALLS}
    return json.dumps({**envelope, "time": rfc3339(topic.occurred_at), "data": data}).encode()


def test_a_record_whose_key_makes_it_too_large_is_one_dead_letter(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    config = IngestionConfig(contracts=(TRACE,), max_record_bytes=2_048)
    value = journal_value(topic, "t")
    assert len(value) < 2_048
    topic.producer.produce(topic.name, value, b"a" * 1_500, partition=0)
    assert topic.producer.flush(30) == 0
    limited = {"contracts": (TRACE,), "max_record_bytes": 2_048}
    with ingestion(spark, broker, database, tmp_path, topic.name, **limited) as sink:
        sink.process(batch(spark, topic, config=config))
        accounted(tmp_path, sink)
    [row] = every_row(tmp_path).filter(reason="too_large").to_dicts()
    assert (row["disposition"], row["element"], row["value"]) == ("rejected", 0, None)


def test_an_element_is_explained_with_the_event_as_it_was_received(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    trace(topic, "t")
    with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(TRACE,)) as sink:
        sink.process(batch(spark, topic, config=TRACES))
    files = Files.of(DeltaTable(f"{tmp_path}/{Table.JOURNAL}"), Table.JOURNAL)
    tables = Tables(files, Files.none(Table.USAGE), None, 100)
    [third] = tables.of_id("r-t/3", Period(EPOCH)).records.to_dicts()
    assert (third["element"], json.loads(third["value"])["data"]["calls"]) == (3, CALLS)
    all_of_it = tables.of_id("t", Period(EPOCH)).records
    assert all_of_it["element"].to_list() == list(range(1, 13))
    assert all_of_it["value"].n_unique() == 1


def test_no_gap_is_seen_between_the_elements_of_an_event(
    spark: SparkSession, broker: str, database: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker)
    for name in ("a", "b"):
        trace(topic, name)
        topic.transaction(f"x-{name}", commit=True)
    with ingestion(spark, broker, database, tmp_path, topic.name, contracts=(TRACE,)) as sink:
        sink.process(batch(spark, topic, config=TRACES))
        accounted(tmp_path, sink)
        end = sink.positions()[topic.name][0]
    table = DeltaTable(f"{tmp_path}/{Table.JOURNAL}")
    place = (topic.name, 0)
    [*gaps] = gaps_of(table, {place: PartitionRange(0, end, 2)}, None)[place]
    held = set(every_row(tmp_path).filter(topic=topic.name)["offset"])
    assert {offset for gap in gaps for offset in range(gap.first, gap.end)} == set(range(max(held) + 1)) - held
