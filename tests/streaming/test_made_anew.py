"""What is waited for is tried again by the same process: what was remembered then is gone, however often that is."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB
from jobs.runtime import run
from jobs.runtime.clock import MachineClock
from jobs.runtime.delta.source import TableSource
from jobs.runtime.errors import NotYet
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.report import Reporter
from jobs.runtime.waiting import Waiting, until_done
from metering.vocabulary import Cause
from tests.streaming.journals import Journal, environment, heartbeat

ATTEMPTS = 3


class Sink:
    """Reads on from a journal's end; when it has got what came then, its store is away."""

    rows_at_once = 1_000
    driver_rows = None
    task_rows = 0

    def __init__(self, journal: Journal) -> None:
        self._journal, self._at = journal, journal.next_lsn

    def position(self) -> int:
        return self._at

    def process(self, _batch: Any) -> Any:
        raise NotYet(Cause.STORE, "the store is away")

    def advance(self) -> None:
        if self._journal.next_lsn == self._at:
            self._journal.commit([heartbeat(self._at)])

    def frontier(self) -> None:
        return None

    def verify(self, _upstream: Any) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {}

    def gauges(self) -> dict[Any, float]:
        return {}

    def close(self) -> None:
        pass


@pytest.mark.long
@pytest.mark.parametrize("rests", [True, False], ids=["its batch was the driver's", "its batch was Spark's"])
def test_a_sink_is_freed_before_its_successor_needs_as_much_memory(
    spark: SparkSession, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, rests: bool
) -> None:
    monkeypatch.setattr(TableSource, "_may_idle", lambda _: rests)
    journal, stopping, clock = Journal(tmp_path), threading.Event(), MachineClock()
    journal.commit([heartbeat(1)])
    made, are_there = list[weakref.ref[Sink]](), list[bool]()

    def start(*_: Any) -> Any:
        gc.collect()
        are_there.extend(sink() is not None for sink in made)
        if len(made) == ATTEMPTS:
            stopping.set()
        sink = Sink(journal)
        made.append(weakref.ref(sink))
        return sink

    config, where = JoinsConfig(), environment(database, tmp_path)
    ownership, waiting = Ownership.take(JOB.name, database, {}), Waiting(JOB.name, clock)
    reporter = Reporter(JOB, database, ownership, waiting, clock)
    context = Context(config, where, spark, ownership, clock, Denials())
    folders = run.new_checkpoints(where.checkpoints, ownership.epoch)
    try:
        until_done(
            lambda: run._drive(replace(JOB, start=start), context, reporter, stopping, folders),
            waiting,
            stopping,
            reporter.report_waiting,
        )
    finally:
        waiting.over()
        reporter.close()
        ownership.close()
    assert len(made) == ATTEMPTS + 1
    assert not any(are_there)
