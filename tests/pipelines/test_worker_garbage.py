"""PySpark collects garbage after each task of a worker that it uses again: of the task, not of all modules."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from jobs.runtime import worker_garbage
from jobs.runtime.delta.pieces import in_tasks
from jobs.runtime.summaries import answers_of_tasks
from jobs.runtime.worker_garbage import exempt_imports

TASKS = 6
"""More than there are workers."""
LOADED = 50_000
"""Objects of the modules that any task needs, by far fewer than there are."""


def looked(_number: int) -> Mapping[str, pa.Table]:
    """What a task finds of its worker: who it is, how much is exempt, and how much is not."""
    row = {"worker": os.getpid(), "exempt": gc.get_freeze_count(), "collected": len(gc.get_objects())}
    return {"worker": pa.Table.from_pylist([row])}


def answers(spark: SparkSession) -> dict[str, int]:
    (answer,) = answers_of_tasks(spark, 1, ["worker"], looked)
    found: dict[str, int] = answer["worker"].to_pylist()[0]
    return found


def test_a_worker_that_is_used_again_passes_over_what_it_has_imported(spark: SparkSession) -> None:
    for found in of_used_workers([answers(spark) for _ in range(TASKS)]):
        assert found["exempt"] > LOADED
        assert found["collected"] < LOADED


def test_tasks_that_read_files_do_so_too(spark: SparkSession) -> None:
    def rows(parts: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        assert not [*parts], "a worker is used again only if its task has read all"
        yield from looked(0)["worker"].to_batches()

    none = SimpleNamespace(tasks=[[]], of_task=lambda _number, _at_once: iter(()))
    kinds = "worker long, exempt long, collected long"
    tasks = [in_tasks(spark, none, rows, kinds, tasks=1) for _ in range(TASKS)]  # type: ignore[arg-type]
    for found in of_used_workers([task.toArrow().to_pylist()[0] for task in tasks]):
        assert found["exempt"] > LOADED


def of_used_workers(found: list[dict[str, int]]) -> list[dict[str, int]]:
    """What tasks found whose worker had another one of these before. (Spark takes its workers in turn.)"""
    again = [one for number, one in enumerate(found) if one["worker"] in {other["worker"] for other in found[:number]}]
    assert again, "Spark uses its workers again"
    return again


def test_a_driver_collects_all_of_its_garbage() -> None:
    before = gc.get_freeze_count()
    exempt_imports()
    assert gc.get_freeze_count() == before


def test_a_worker_that_has_fewer_modules_than_before_exempts_no_objects_of_its_later_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TaskContext, "get", object)
    monkeypatch.setattr(worker_garbage, "_exempt_modules", len(sys.modules) + 1)
    before = gc.get_freeze_count()
    try:
        exempt_imports()
        assert gc.get_freeze_count() == before
    finally:
        gc.unfreeze()
