"""Kills executors within a stage: once the first task of it has done its part, and before Spark hears of that.

Nothing that is shipped can do this. What a driver sends to its tasks is wrapped: by a test's own patches, or on a
cluster by what Python imports when it starts a driver (`tests/cluster/sitecustomize.py`), where there are no tests.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import jobs.ingestion.large_batch
import jobs.joins.sink
import jobs.runtime.postgres.sink
from jobs.runtime.kafka.source import TopicSource
from jobs.runtime.postgres.sink import PostgresSink
from jobs.runtime.summaries import answers_of_tasks, summarized

STAGES = {
    "ingestion": ("validated", "WriteRange"),
    "sessionization": ("read", "merged"),
    "joins": ("ReadPart", "DecidePart", "WriteRange"),
    "billing": ("added",),
}
"""What tasks do in a batch of each application, stage by stage."""
START_SECONDS = 120
Targets = frozenset[str]
"""Ids of executors."""
SetAttribute = Callable[[Any, str, Any], None]


def own_executor() -> tuple[int, str] | None:
    """The process and the id of the executor that a task runs in; None outside of one."""
    process = os.getpid()
    while process > 1:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        if b"--executor-id" in words:
            return process, words[words.index(b"--executor-id") + 1].decode()
        # What follows the name, which may hold anything: state, parent, …
        process = int(Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[1])
    return None


def kill_one_of(targets: Targets) -> None:
    """Kill the executor that this runs in, if it is one of these."""
    found = own_executor()
    if found is not None and found[1] in targets:
        os.kill(found[0], signal.SIGKILL)
        # The process of Python ends when the one above it sees that Java has gone.
        signal.pause()


@dataclass(frozen=True)
class Killing:
    """What a task calls, with all that it leaves behind; then its executor is killed, in the first of the tasks."""

    called: Callable[..., Any]
    targets: Targets

    def __call__(self, *given: Any) -> Any:
        answer = self.called(*given)
        context = TaskContext.get()
        if context is not None and (context.partitionId(), context.attemptNumber()) == (0, 0):
            kill_one_of(self.targets)
        return answer


@dataclass(frozen=True)
class Passing:
    """Hands on what comes to it within a task, and kills its executor once something has come.

    A query, or a stage whose input was lost, has a first task again and again: so one executor is named.
    """

    target: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            kill_one_of(frozenset((self.target,)))
            yield batch


def passed(rows: DataFrame, targets: Targets) -> DataFrame:
    """The same rows."""
    return rows.mapInArrow(Passing(min(targets)), rows.schema)


def running_executors(spark: SparkSession) -> Targets:
    """Ids of those that are registered."""
    found = spark.sparkContext._jsc.sc().getExecutorIds()
    return frozenset(str(found.apply(number)) for number in range(found.size()))


class Kills:
    """In which stages an executor was killed, and is to be: once in each.

    Any of the `executors` that run when a stage begins may be the one. A stage waits until all of them run again.
    """

    def __init__(self, executors: int = 2) -> None:
        self._executors = executors
        self._targets: dict[str, Targets] = {}

    @property
    def stages(self) -> set[str]:
        """Those that have begun."""
        return set(self._targets)

    def all_running(self, spark: SparkSession) -> Targets:
        """The executors, once there are as many as there should be; after a while those that there are."""
        limit = time.monotonic() + START_SECONDS
        while len(found := running_executors(spark)) < self._executors and time.monotonic() < limit:
            time.sleep(0.1)
        return found

    def targets(self, spark: SparkSession, stage: str) -> Targets:
        """Of which the first is to be killed in this stage; none once one of them was, or while some are missing."""
        running = self.all_running(spark)
        if len(running) < self._executors or self._targets.get(stage, running) - running:
            return frozenset()
        self._targets[stage] = running
        print(f"stage {stage}: one of its executors will be killed, of {sorted(running)}", flush=True)
        return running

    def install(self, set_attribute: SetAttribute) -> None:
        """Wrap what each application sends to its tasks, by `setattr` or a patch that takes the same."""
        for module in (jobs.joins.sink, jobs.ingestion.large_batch):
            set_attribute(module, "answers_of_tasks", self._answering)
        set_attribute(jobs.runtime.postgres.sink, "summarized", self._summing)
        set_attribute(PostgresSink, "_by_spark", self._reducing(PostgresSink._by_spark))
        set_attribute(TopicSource, "stream", self._validating(TopicSource.stream))

    def validating(self, records: DataFrame) -> DataFrame:
        """What ingestion's query makes of records."""
        targets = self.targets(records.sparkSession, "validated")
        return passed(records, targets) if targets else records

    def _validating(self, stream: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
        return lambda source, spark: self.validating(stream(source, spark))

    def _answering(self, spark: SparkSession, count: int, names: Iterable[str], make: Callable[..., Any]) -> Any:
        targets = self.targets(spark, type(make).__name__)
        return answers_of_tasks(spark, count, names, Killing(make, targets) if targets else make)

    def _summing(self, spark: SparkSession, found: Any, part: Any, added: Any, of_last_row: Iterable[str] = ()) -> Any:
        targets = self.targets(spark, "added")
        return summarized(spark, found, part, Killing(added, targets) if targets else added, of_last_row)

    def _reducing(self, by_spark: Callable[..., Any]) -> Callable[..., Any]:
        """Of Spark's own operators, with a shuffle between both stages. A batch has a kill in one of them."""

        def reduced(sink: Any, build: Callable[[DataFrame, Any], DataFrame], batch: Any, position: int) -> Any:
            def built(rows: DataFrame, config: Any) -> DataFrame:
                if targets := self.targets(rows.sparkSession, "read"):
                    return build(passed(rows, targets), config)
                targets = self.targets(rows.sparkSession, "merged")
                return passed(build(rows, config), targets) if targets else build(rows, config)

            return by_spark(sink, built, batch, position)

        return reduced
