"""Dead letters that come back: the shipped command and the shipped sink, on a real broker and a real journal."""

from __future__ import annotations

import json
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from cli.main import app
from jobs.runtime.kafka.marks import REPLAYS as HEADER
from metering.instants import rfc3339
from metering.vocabulary import EventType
from tests.streaming.topics import Topic, batch, ingestion, journal, let_commands_reach

SHORT_PAST_S = 60
MENDS = """#!/usr/bin/env python3
import json, sys, uuid
for line in sys.stdin:
    event = json.loads(json.loads(line)["value"])
    event["data"]["model"] = "m"
    {also}
    print(json.dumps(event))
"""


def usage(name: str, ago_s: float = 0, **data: Any) -> bytes:
    """A usage event, which lacks its model."""
    envelope = {"specversion": "1.0", "type": EventType.USAGE.value, "source": "gateway", "id": name, "subject": "a"}
    data = {"request_id": f"r-{name}", "status": "completed", "input_tokens": 5, **data}
    at = datetime.now(UTC) - timedelta(seconds=ago_s)
    return json.dumps({**envelope, "time": rfc3339(at), "data": data}).encode()


def send(topic: Topic, value: bytes, mark: str | None = None, partition: int = 0) -> None:
    headers: list[tuple[str, str | bytes | None]] = [] if mark is None else [(HEADER, mark.encode())]
    topic.producer.produce(topic.name, value, b"a", partition=partition, headers=headers)
    assert topic.producer.flush(30) == 0


def mending(folder: Path, also: str = "pass") -> str:
    """A program that gives each event its model."""
    file = folder / "mend.py"
    file.write_text(MENDS.replace("{also}", also))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def replay(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["dead-letters", "redrive", "--reason", "invalid_model", *arguments])


def came(folder: Path) -> list[tuple[Any, ...]]:
    """What the journal says of each record, in the order of lsn."""
    return journal(folder).select("id", "disposition", "reason").rows()


def test_a_corrected_dead_letter_is_accepted_as_of_its_first_receipt(
    spark: SparkSession, database: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker, partitions=2)
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    with ingestion(spark, broker, database, tmp_path, topic.name, accept_past_seconds=SHORT_PAST_S) as sink:
        send(topic, usage("old", SHORT_PAST_S - 3))
        sent_at = time.monotonic()
        sink.process(batch(spark, topic))
        listed = replay("--dry-run", "--format", "json", "--edit", mending(tmp_path))
        assert (listed.exit_code, json.loads(listed.stdout)[0]["fate"]) == (0, "would_be_accepted")
        time.sleep(max(0.0, sent_at + 4 - time.monotonic()))
        # By now it would be too old, had it not been received before.
        send(topic, usage("old", SHORT_PAST_S + 1, model="m"))
        done = replay("--edit", mending(tmp_path))
        assert (done.exit_code, done.stderr.strip()) == (0, "1 sent")
        sink.process(batch(spark, topic))
        lateness = sink.process(batch(spark, topic))
    assert lateness.records == 0
    first, forgotten, back = journal(tmp_path).sort("lsn").to_dicts()
    assert (first["reason"], forgotten["reason"], back["disposition"]) == ("invalid_model", "too_old", "accepted")
    assert (back["replays_lsn"], back["first_received_at"]) == (first["lsn"], first["received_at"])
    assert back["received_at"] >= first["received_at"] + timedelta(seconds=4)
    assert back["event_time"] == first["event_time"]
    assert (back["replay_mark"], back["key"]) == (f"{topic.name}/0/{first['offset']}", b"a")
    rows = json.loads(CliRunner().invoke(app, ["dead-letters", "--format", "json"]).stdout)
    assert [row["replayed_as"] for row in rows if row["topic"] == topic.name] == [back["lsn"], None]
    summary = json.loads(CliRunner().invoke(app, ["journal", "--summary", "--format", "json"]).stdout)
    assert sum(row["redriven"] for row in summary) == 1
    assert {row["residual"] for row in summary} == {0}


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("also", ["pass", "event['id'] = str(uuid.uuid4())"])
@pytest.mark.parametrize("together", [True, False])
def test_redriving_twice_under_kills_changes_nothing(
    spark: SparkSession,
    database: str,
    broker: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    together: bool,
    also: str,
) -> None:
    topic = Topic.make(broker)
    let_commands_reach(monkeypatch, broker, database, tmp_path)

    def read() -> None:
        with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
            sink.process(batch(spark, topic))

    for name in ("a", "b"):
        send(topic, usage(name))
    read()
    edit = mending(tmp_path, also)
    # The second is sent before anybody has read the first.
    for _ in range(2):
        assert replay("--edit", edit).exit_code == 0
    if not together:
        # A driver reads the first run only, and ends right after its commit.
        with monkeypatch.context() as dying, ingestion(spark, broker, database, tmp_path, topic.name) as sink:
            dying.setattr("jobs.ingestion.sink.JournalSink._learn", _killed)
            of_first_run = batch(spark, topic).where(f"offset < {sink.positions()[topic.name][0] + 2}")
            with pytest.raises(RuntimeError, match="killed"):
                sink.process(of_first_run)
    read()
    dispositions = [row[1] for row in came(tmp_path)]
    assert sorted(dispositions) == [*["accepted"] * 2, *["duplicate"] * 2, *["rejected"] * 2]
    done = replay("--edit", edit, "--format", "json")
    assert (done.exit_code, done.stderr.strip()) == (0, "2 replayed")
    assert [row["fate"] for row in json.loads(done.stdout)] == ["replayed", "replayed"]
    rows = journal(tmp_path)
    dead, again = rows.filter(disposition="rejected"), rows.filter(pl.col("replays_lsn").is_not_null())
    accepted, duplicates = (again.filter(disposition=kind) for kind in ("accepted", "duplicate"))
    assert accepted["replays_lsn"].sort().to_list() == dead["lsn"].sort().to_list()
    # Each duplicate names the row that came back for the same dead letter.
    named = duplicates.join(accepted, left_on="first_lsn", right_on="lsn")
    assert (named["replays_lsn"] == named["replays_lsn_right"]).all()
    assert len(named) == 2


def _killed(*_: object) -> None:
    raise RuntimeError("killed")


def test_a_replay_mark_on_a_record_that_is_not_a_dead_letter_is_ignored(
    spark: SparkSession, database: str, broker: str, tmp_path: Path
) -> None:
    topic = Topic.make(broker, partitions=2)
    with ingestion(spark, broker, database, tmp_path, topic.name, accept_past_seconds=SHORT_PAST_S) as sink:
        send(topic, usage("dead"))
        send(topic, usage("good", model="m"))
        sink.process(batch(spark, topic))
        rows = journal(tmp_path).sort("offset")
        dead, good = rows["offset"].to_list()
        send(topic, usage("again"), f"{topic.name}/0/{dead}")
        sink.process(batch(spark, topic))
        again = journal(tmp_path).filter(id="again").row(0, named=True)
        marks = {
            "accepted": f"{topic.name}/0/{good}",
            "nothing": f"{topic.name}/0/10000",
            "elsewhere": f"{topic.name}/1/{dead}",
            "another topic": f"events/0/{dead}",
            "no mark": f"{topic.name}/0",
            "a replay": f"{topic.name}/0/{again['offset']}",
        }
        for name, mark in marks.items():
            send(topic, usage(name, SHORT_PAST_S + 1, model="m"), mark)
        send(topic, usage("itself", SHORT_PAST_S + 1, model="m"), f"{topic.name}/0/{again['offset'] + len(marks) + 1}")
        sink.process(batch(spark, topic))
    assert (again["disposition"], again["replays_lsn"]) == ("rejected", rows["lsn"][0])
    forged = journal(tmp_path).filter(pl.col("id").is_in([*marks, "itself"]))
    assert set(forged["reason"]) == {"too_old"}
    assert len(forged) == len(marks) + 1
    assert forged["replays_lsn"].is_null().all()
    assert forged["first_received_at"].is_null().all()
    # The journal keeps what they said.
    said = dict(forged.select("id", "replay_mark").iter_rows())
    assert {name: said[name] for name in marks} == {**marks, "no mark": None}


def test_a_replay_mark_may_name_a_dead_letter_of_its_own_batch(
    spark: SparkSession, database: str, broker: str, tmp_path: Path
) -> None:
    """How the input is cut decides nothing: here both are read at once."""
    topic = Topic.make(broker)
    with ingestion(spark, broker, database, tmp_path, topic.name) as sink:
        offset = topic._end()
        send(topic, usage("dead"))
        send(topic, usage("first", model="m"), f"{topic.name}/0/{offset}")
        send(topic, usage("second", model="m"), f"{topic.name}/0/{offset}")
        sink.process(batch(spark, topic))
    rows = journal(tmp_path).sort("lsn")
    assert rows["disposition"].to_list() == ["rejected", "accepted", "duplicate"]
    assert rows["first_received_at"].to_list() == [None, *[rows["received_at"][0]] * 2]
