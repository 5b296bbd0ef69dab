"""The one Spark session of a process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
ON_LOOPBACK = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
"""Where a driver without executors listens: nothing outside the machine connects to it."""
ENCRYPTION = {
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    # Otherwise a client with the secret may connect unencrypted.
    "spark.network.crypto.saslFallback": "false",
    "spark.io.encryption.enabled": "true",
}
"""Encrypted connections between driver and executors, and encrypted files that they spill and shuffle."""
KEEPS_PAGES = {"spark.executorEnv._RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:10000"}
"""For the allocator of Polars in workers of executors: freed pages go back to the system after ten seconds, not one.
Until then the next rows have them, instead of new ones that the system must clear first. Workers beside a driver share
its pod, and do without.
"""
SHUFFLE_PARTITIONS = 2
DRIVER_ROWS = 50_000
"""Up to how many rows of a batch a driver with executors takes itself, where a configuration does not say it."""
CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"
JAVA_OPTIONS = " ".join(
    [
        "-XX:+UseSerialGC",
        # Spark reads, copies and writes JSON by calling itself for each level, of which it takes 1,000. Before Java has
        # compiled that, a mebibyte, the default, holds hardly as many; and a stack that is full ends the whole process.
        "-Xss8m",
        # Else only the thread that wanted memory ends, and the driver waits for it for ever instead of starting again.
        "-XX:+ExitOnOutOfMemoryError",
        # Java would interpret a method above 8,000 bytes for ever, and Spark writes a wide stage as one: validating
        # events took 82 CPU-s per million, with such methods compiled 51.
        "-XX:-DontCompileHugeMethods",
        # A driver plans a small batch every few seconds, and half of what it used in its first minutes went into
        # optimizing code that seldom runs. At ten times the usual counts: 30 % less, and per-row code still gets there.
        "-XX:Tier4InvocationThreshold=50000",
        "-XX:Tier4MinInvocationThreshold=6000",
        "-XX:Tier4CompileThreshold=150000",
        "-XX:Tier4BackEdgeThreshold=400000",
        "-Duser.timezone=UTC",
    ]
)

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"


def spark_session(
    name: str,
    jars: Path,
    *,
    master: str | None = "local[1]",
    memory_mib: int = 512,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with Kafka and Delta, in UTC, ANSI mode on, two shuffle partitions and no web page.

    `jars` is the folder with the pinned connector jars (`make setup` fills it). Java's options in `conf` are added.
    Without `master`, spark-submit has decided master, memory and addresses, and left them where Java finds them.

    A client must know the session's secret, which Spark makes for each. Without executors the driver listens on
    the loopback address; with executors, connections and scratch files are encrypted.
    """
    # Otherwise a worker is the first Python on the path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # An archive of classes holds for one spelling of the class path.
    class_path = ":".join(sorted(str(jar) for jar in jars.resolve().glob("*.jar")))
    settings = {
        "spark.driver.extraClassPath": class_path,
        "spark.executor.extraClassPath": class_path,
        DRIVER_OPTIONS: JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.authenticate": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.debug.maxToStringFields": "200",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # What the driver hands to Spark stays Arrow above this size. Below 48 MB Spark would make rows of it, held by
        # the plan: with 100,000 records a batch joins took 20-35 CPU-s per million, or ran out of memory; now 8.
        "spark.sql.execution.arrow.localRelationThreshold": "1m",
        # A Python worker validates one partition; more threads would only take the processor from the next worker.
        "spark.executorEnv.POLARS_MAX_THREADS": "1",
        "spark.sql.streaming.pollingDelay": "250ms",
        # The usual one starts twenty programs for every batch (chmod, readlink): a tenth of what a near-empty one took.
        "spark.sql.streaming.checkpointFileManagerClass": f"{CHECKPOINTING}.FileSystemBasedCheckpointFileManager",
        "spark.sql.streaming.stopTimeout": "15s",
    }
    settings |= conf or {}
    if settings[DRIVER_OPTIONS] != JAVA_OPTIONS:
        settings[DRIVER_OPTIONS] = f"{JAVA_OPTIONS} {settings[DRIVER_OPTIONS]}"
    if master is not None:
        settings |= {"spark.master": master, "spark.driver.memory": f"{memory_mib}m"}
    settings |= ON_LOOPBACK if is_local(master or _submitted_master(settings)) else {**ENCRYPTION, **KEEPS_PAGES}
    builder = SparkSession.Builder().appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def is_local(master: str) -> bool:
    """Whether the driver runs everything itself."""
    return master == "local" or master.startswith("local[")


def has_executors(spark: SparkSession) -> bool:
    """Whether tasks run beside the driver."""
    return not is_local(_master(spark.sparkContext.getConf()))


def driver_rows(configured: int | None, spark: SparkSession, fitting: int) -> int | None:
    """Up to how many rows of a batch the driver takes itself, at most those `fitting` into it; None: all."""
    if configured is None and not has_executors(spark):
        return None
    return min(DRIVER_ROWS if configured is None else configured, fitting)


def _submitted_master(settings: Mapping[str, str]) -> str:
    """The master that spark-submit has decided."""
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))
    return _master(SparkConf())


def _master(settings: SparkConf) -> str:
    """In a pod `spark.master` is the cluster, with executors and without."""
    return settings.get("spark.kubernetes.driver.master") or settings.get("spark.master", "") or ""


def java_runs(spark: SparkSession) -> bool:
    """Whether the Java process behind the session is alive; without it every call to Spark fails."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return process is None or process.poll() is None
