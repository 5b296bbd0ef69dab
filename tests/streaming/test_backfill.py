"""Events of the past: the shipped command and the shipped sink, on a real broker and a real journal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from cli.backfilling.records import PastEvent
from cli.backfilling.sending import Sending
from cli.main import app
from jobs.ingestion.config_groups import Backfill
from jobs.runtime.kafka.marks import FIRST_RECEIVED
from metering.instants import rfc3339
from metering.vocabulary import EventType
from monitoring import metrics
from tests.streaming.topics import Topic, batch, ingestion, journal, let_commands_reach

YEARS = Backfill(sources=("history/*",), accept_past_seconds=1_000 * 86_400)
LONG_AGO = datetime.now(UTC).replace(microsecond=0) - timedelta(days=700)
PAST, LIVE = "history/eu-1", "gateway/eu-1"


def usage(name: str, at: datetime, source: str = PAST, **more: Any) -> dict[str, Any]:
    envelope = {"specversion": "1.0", "type": EventType.USAGE.value, "source": source, "id": name, "subject": "a"}
    data = {"request_id": f"r-{name}", "model": "m", "status": "completed", "input_tokens": 5}
    return {**envelope, "time": rfc3339(at), "data": data, **more}


def written(file: Path, *events: dict[str, Any]) -> str:
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    return str(file)


def backfill(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["backfill", "--format", "json", *arguments])


def interrupting(after: int) -> Callable[[Sending, PastEvent, Collection[str | None]], None]:
    """`Sending.send` until somebody presses Ctrl-C."""
    send, sent = Sending.send, list[PastEvent]()

    def until(self: Sending, event: PastEvent, types: Collection[str | None]) -> None:
        if len(sent) == after:
            raise KeyboardInterrupt
        sent.append(event)
        send(self, event, types)

    return until


def said(result: Result) -> dict[int, tuple[str, str | None]]:
    return {row["line"]: (row["fate"], row["detail"]) for row in json.loads(result.stdout)}


def test_history_counts_once_however_often_it_is_sent(
    spark: SparkSession, database: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker, partitions=2)
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    yesterday = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    events = [
        usage("late", LONG_AGO, receivedtime=rfc3339(LONG_AGO + timedelta(hours=3))),
        usage("old", LONG_AGO),
        usage("new", yesterday),
    ]
    lines = written(tmp_path / "past.jsonl", *events)
    parquet = str(tmp_path / "past.parquet")
    values = [json.dumps(event) for event in events]
    pq.write_table(pa.table({"value": values, "received_at": [LONG_AGO, LONG_AGO, yesterday]}), parquet)

    def read() -> None:
        with ingestion(spark, broker, database, tmp_path, topic.name, backfill=YEARS) as sink:
            sink.process(batch(spark, topic))

    read()
    with monkeypatch.context() as somebody:
        somebody.setattr("cli.backfilling.sending.Sending.send", interrupting(after=1))
        stopped = backfill(lines)
    assert (stopped.exit_code, f"Interrupted after line 2 of {lines}" in stopped.stderr) == (1, True)
    for file in (lines, lines, parquet):
        assert backfill("--dry-run", file).exit_code == 0
        begun = time.monotonic()
        done = backfill("--per-second", "1", file)
        assert (done.exit_code, json.loads(done.stdout), done.stderr.strip()) == (0, [], "3 sent")
        assert time.monotonic() - begun >= 2
        # Whoever reads begins anew: what it remembers is derived from the journal.
        read()
    # And live, where it is not too old for that.
    topic.producer.produce(topic.name, values[2], b"a")
    topic.producer.produce(topic.name, values[0], b"a")
    assert topic.producer.flush(30) == 0
    read()
    rows = journal(tmp_path)
    assert dict(rows.group_by("disposition").len().iter_rows()) == {"accepted": 3, "duplicate": 8, "rejected": 1}
    accepted = rows.filter(disposition="accepted").sort("event_time", "id")
    assert accepted.select("id", "first_received_at", "event_time").rows() == [
        ("late", LONG_AGO + timedelta(hours=3), LONG_AGO),
        ("old", LONG_AGO, LONG_AGO),
        ("new", yesterday, yesterday),
    ]
    assert rows.filter(reason="too_old")["id"].to_list() == ["late"]


def test_marks_of_unlisted_sources_are_ignored_and_the_command_sends_nothing(
    spark: SparkSession, database: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic.make(broker)
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    now = datetime.now(UTC).replace(microsecond=0)
    with ingestion(spark, broker, database, tmp_path, topic.name):
        refused = backfill(written(tmp_path / "past.jsonl", usage("a", LONG_AGO)))
        assert (refused.exit_code, "jobs.ingestion.backfill.sources" in str(refused.exception)) == (1, True)
    with ingestion(spark, broker, database, tmp_path, topic.name, backfill=YEARS) as sink:
        file = written(
            tmp_path / "past.jsonl",
            usage("good", LONG_AGO),
            usage("old", LONG_AGO, LIVE),
            usage("young", now, LIVE),
            usage("ahead", now, receivedtime=rfc3339(now + timedelta(hours=1))),
            usage("before", LONG_AGO - timedelta(days=40), receivedtime=rfc3339(LONG_AGO)),
        )
        for _ in range(2):
            done = backfill(file)
            assert done.exit_code == 1
            told = said(done)
            assert told[2] == told[3] == ("unlisted_source", f"{LIVE} is none of jobs.ingestion.backfill.sources")
            assert (told[4][0], told[5][0]) == ("would_be_rejected", "would_be_rejected")
            assert (told[4][1] or "").startswith("invalid_reception: weir-first-received: at most 300 s after")
            assert (told[5][1] or "").startswith("too_old: ")
            assert done.stderr.strip() == "1 sent, 2 would be rejected, 2 unlisted source"
        # Somebody sends them all the same.
        for name, mark in (("old", LONG_AGO), ("young", LONG_AGO), ("wrong", None)):
            headers: list[tuple[str, str | bytes | None]] = [(FIRST_RECEIVED, rfc3339(mark) if mark else "soon")]
            source, at = (PAST if name == "wrong" else LIVE), (LONG_AGO if name == "old" else now)
            topic.producer.produce(topic.name, json.dumps(usage(name, at, source)), b"a", headers=headers)
        assert topic.producer.flush(30) == 0
        counts = sink.process(batch(spark, topic)).counts
    rows = {row["id"]: row for row in journal(tmp_path).unique("id", keep="first", maintain_order=True).to_dicts()}
    assert {name: row["reason"] for name, row in rows.items()} == {
        "good": None,
        "old": "too_old",
        "young": None,
        "wrong": "invalid_reception",
    }
    assert [rows[name]["first_received_at"] for name in ("old", "young", "wrong")] == [None] * 3
    assert rows["young"]["reception_mark"] == rfc3339(LONG_AGO)
    assert rows["old"]["violation"].endswith("as backfill.sources does not list its source")
    assert {mark: counts[metrics.RECEPTION_MARKS, mark] for mark in ("trusted", "ignored")} == {
        "trusted": 2,
        "ignored": 2,
    }


@pytest.mark.long
def test_backfilled_events_do_not_count_as_reports_of_their_source(
    spark: SparkSession, database: str, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody was heard, so nobody falls silent, and no number is missing."""
    import psycopg

    topic = Topic.make(broker)
    let_commands_reach(monkeypatch, broker, database, tmp_path)
    source = f"history/{topic.name}"
    with ingestion(spark, broker, database, tmp_path, topic.name, backfill=YEARS) as sink:
        file = written(tmp_path / "past.jsonl", *[usage(f"{n}", LONG_AGO, source, sequence=n) for n in (1, 9)])
        assert backfill(file).exit_code == 0
        done = sink.process(batch(spark, topic))
    assert (done.records, done.counts[metrics.UNLISTED,]) == (3, 0)
    assert journal(tmp_path).filter(pl.col("disposition") == "accepted").height == 2
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT * FROM sources WHERE source = %s", [source]).fetchall() == []
