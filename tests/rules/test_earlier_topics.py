"""A topic of another name is read from now on: what the journal has of the one before is no loss, and hides none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.sink import JournalSink
from jobs.retention.tables import _remove
from jobs.runtime.kafka.topic import Topic
from jobs.streams import Table
from tests.rules.test_batches import CONFIG, batch, trace, usage
from tests.rules.test_batches_journaled import EVENTS, NOW, records, sink_on

ORDERS, THIRD = Topic("orders", "another", (0,)), Topic("third", "third", (0,))


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start on a topic, let `values` come, and give the sink and the residual that it shows before and after."""

    def started(topic: Topic, *values: bytes) -> tuple[JournalSink, list[int]]:
        config = IngestionConfig(**{**CONFIG.model_dump(exclude_unset=True), "topic": topic.name})
        sink = sink_on(tmp_path, monkeypatch, config, topic)
        shown = [sink._unaccounted_at_start()]
        for value in values:
            given = records([(value, None)], sink._events.positions()[topic.name].get(0, 0))
            validated = pl.DataFrame(sink._validator.validate(given)).with_columns(topic=pl.lit(topic.name))
            sink.process(validated.to_arrow().cast(sink._validator.validate(given).schema))
            shown.append(sink._unaccounted())
        return sink, shown

    return started


def event(name: str) -> bytes:
    return json.dumps(usage(name)).encode()


def test_rows_of_a_topic_that_is_read_no_more_leave_no_residual(start: Any) -> None:
    _, first = start(EVENTS, event("a"), batch([usage("b"), trace("t", 3)]), b"{")
    _, second = start(ORDERS, event("c"), event("a"))
    _, third = start(ORDERS, event("d"))
    _, back = start(EVENTS, event("e"))
    assert {*first, *second, *third, *back} == {0}


def test_the_journal_is_asked_once_for_a_change_of_topic(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start(EVENTS, event("a"))
    start(ORDERS, event("b"))
    monkeypatch.setattr("jobs.ingestion.sink.records_of_others", lambda *_: pytest.fail("asked again"))
    start(ORDERS, event("c"))


def test_a_record_that_was_lost_before_or_after_a_change_of_topic_is_shown(start: Any, tmp_path: Path) -> None:
    start(EVENTS, event("a"), event("b"))
    sink, _ = start(ORDERS, event("c"))
    at = ORDERS.position(0)
    passed = CommitProperties(app_transactions=[Transaction(at, sink._writer.known[at] + 1)])
    DeltaTable(f"{tmp_path}/{Table.JOURNAL}").alter.set_table_properties(
        {"delta.appendOnly": "false"}, commit_properties=passed
    )

    assert [start(ORDERS, event("d"))[1], start(ORDERS)[1]] == [[1, 1], [1]]
    assert start(THIRD)[1] == [0], "of a topic that is not read, `weir audit` tells"
    assert start(ORDERS)[1] == [1]


def test_what_retention_removed_of_either_topic_is_no_loss(start: Any, tmp_path: Path) -> None:
    start(EVENTS, event("a"), event("b"))
    start(ORDERS, event("c"))
    assert _remove(DeltaTable(f"{tmp_path}/{Table.JOURNAL}"), NOW.date(), 3) > 0

    assert start(THIRD, event("d"))[1] == [0, 0]
    assert start(ORDERS, event("e"))[1] == [0, 0]
