"""joins' two sizes: what tasks of Spark decide, price and write is, to the byte, what the driver alone writes."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from jobs.joins.config import JoinsConfig
from jobs.joins.pipeline import JOB
from jobs.joins.sink import UsageSink
from jobs.runtime.delta.pieces import pieces_of_lsns
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.ownership import Ownership
from jobs.streams import Table
from tests.clocks import HandClock
from tests.simulation.frames import Tasks
from tests.streaming.journals import Journal, environment
from tests.streaming.test_usage_sink import SHARED, TIMEOUTS, universes
from datetime import UTC, datetime

NOW = datetime(2027, 2, 3, 4, tzinfo=UTC)


class Here:
    """What joins uses of Spark, in this process: each task gets and gives what Arrow carries."""

    sparkContext = SimpleNamespace(defaultParallelism=3, getConf=lambda: {"spark.master": "local[2]"})  # noqa: N815

    def range(self, first: int, end: int, _step: int, tasks: int) -> Tasks:
        return Tasks([list(range(first, end))[number::tasks] for number in range(tasks)])


def driver(spark: Any, database: str, journal: Journal, driver_rows: int | None, config: JoinsConfig) -> UsageSink:
    where = environment(database, Path(journal.tables))
    config = config.model_copy(update={"driver_rows": driver_rows})
    return UsageSink(JOB, Context(config, where, spark, Ownership.take(JOB.name, database, {}), HandClock(NOW), Denials()))


def take(sink: UsageSink, journal: Journal, first: int, end: int) -> Any:
    """A batch as its source gives it: files where it is large."""
    found = pieces_of_lsns(DeltaTable(f"{journal.tables}/{Table.JOURNAL}"), JOB.columns(JOB.config()), first, end)
    is_large = sink.driver_rows is not None and end - first > sink.driver_rows
    return sink.process(found if is_large else found.read())


def stored(journal: Journal) -> pa.Table:
    return DeltaTable(f"{journal.tables}/{Table.USAGE}").to_pyarrow_table().sort_by("lsn")


def waits(sink: UsageSink) -> list[Any]:
    memory = sink._memory if hasattr(sink._memory, "rows") else sink._memory.gathered()
    return [memory.rows.sort("lsn").rows(), sink._memory.waiting(), sink.frontier(), sink.position()]


@settings(max_examples=30, derandomize=True, phases=[Phase.generate], suppress_health_check=SHARED)
@given(commits=universes(), chance=st.randoms(use_true_random=False))
def test_tasks_write_the_usage_of_the_driver_to_the_byte_and_leave_the_same_waiting(
    database: str, tmp_path_factory: pytest.TempPathFactory, commits: Any, chance: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("universe")
    journals = [Journal(folder / name) for name in ("driver", "tasks", "both")]
    sinks = [driver(Here(), database, journal, rows, TIMEOUTS) for journal, rows in zip(journals, (None, 1, 9), strict=True)]
    cuts = []
    for rows in commits:
        for journal in journals:
            journal.commit(rows)
        if chance.random() < 0.6:
            cuts.append(chance.choice([journals[0].next_lsn, chance.randint(1, journals[0].next_lsn)]))
    for end in [*sorted(cuts), journals[0].next_lsn]:
        known = []
        for sink, journal in zip(sinks, journals, strict=True):
            if sink.position() < end:
                take(sink, journal, sink.position(), end)
            known.append(waits(sink))
        assert known[1] == known[0]
        assert known[2] == known[0]
    expected = stored(journals[0])
    assert len(expected) > 5
    for journal in journals[1:]:
        assert stored(journal).equals(expected)
