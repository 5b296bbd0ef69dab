"""A session of Spark whose tasks run in executors, processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from jobs.runtime.spark import spark_session
from laptop.class_archive import submit_arguments

ROOT = Path(__file__).parents[2]
EXECUTORS = 2
STOP_SECONDS = 30


@contextmanager
def session_with_executors(jars: Path, folder: Path) -> Iterator[SparkSession]:
    """Two executors of one core, with as much memory as the chart gives them and no other setting of retries.

    The session has a Java of its own: that of the other tests in this process is there again afterwards.
    """
    conf = {
        "spark.executor.memory": "512m",
        "spark.authenticate.secret": "of these tests",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Tasks are sent what tests define.
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }
    with pytest.MonkeyPatch.context() as until:
        for name, value in {**submit_arguments(), "SPARK_WORKER_DIR": str(folder / "work")}.items():
            until.setenv(name, value)
        for name in ("_gateway", "_jvm", "_active_spark_context"):
            until.setattr(SparkContext, name, None)
        for name in ("_instantiatedSession", "_activeSession"):
            until.setattr(SparkSession, name, None)
        session = spark_session(
            "weir-executors", jars, master=f"local-cluster[{EXECUTORS},1,512]", memory_mib=1024, conf=conf
        )
        gateway: Any = session.sparkContext._gateway
        try:
            yield session
        finally:
            session.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(STOP_SECONDS)
