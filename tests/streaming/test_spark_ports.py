"""Who does not know a driver's secret gets no answer from Spark, whatever address its session was given.

A real driver, submitted as in a pod, and a stranger: another Java that speaks Spark's protocol. The pod's address is
another one of the loopback network, which every Linux has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.java_gateway import launch_gateway

from jobs.runtime.spark import ENCRYPTION, LOOPBACK
from laptop.class_archive import SUBMIT_VARIABLE, submit_arguments
from laptop.ports import free_ports

POD = "127.0.0.2"
SECRET = "0123456789abcdef0123456789abcdef"
CLEAR = "in the clear"
DRIVER = f"""
import json, sys
from pathlib import Path
import psutil
from jobs.runtime.spark import has_executors, spark_session

spark = spark_session("weir-victim", Path(sys.argv[1]), master=None)

def numbered(frames):
    yield from frames

def shuffled():
    rows = spark.range(1000, numPartitions=2).selectExpr("id", "'{CLEAR}' AS text")
    return rows.mapInArrow(numbered, "id long, text string").groupBy("text", "id").count().count()

def listening():
    me = psutil.Process()
    return sorted({{
        connection.laddr.ip.removeprefix("::ffff:")
        for process in (me, *me.children(recursive=True)) for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }})

for _ in sys.stdin:
    port = int(spark.sparkContext.getConf().get("spark.driver.port"))
    found = {{"rows": shuffled(), "port": port, "addresses": listening(), "has_executors": has_executors(spark)}}
    print(json.dumps(found), flush=True)
"""


class Driver:
    """A driver's session in another process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def work(self) -> dict[str, Any]:
        """Let it work: how many `rows` came out, its RPC `port`, the `addresses` it listens on, and whether it
        `has_executors`.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def driver(jars: Path, scratch: Path, **settings: str) -> Iterator[Driver]:
    """A session as spark-submit leaves it in a pod, whose address is POD."""
    (port,) = free_ports(1)
    given = {
        "spark.submit.deployMode": "client",
        "spark.driver.bindAddress": POD,
        "spark.driver.host": POD,
        "spark.driver.port": str(port),
        "spark.driver.memory": "512m",
        **settings,
    }
    submitted = " ".join(f"--conf {key}={value}" for key, value in given.items())
    environment = {
        **os.environ,
        SUBMIT_VARIABLE: f"{submitted} {submit_arguments()[SUBMIT_VARIABLE]}",
        "SPARK_LOCAL_DIRS": str(scratch / "local"),
        "SPARK_WORKER_DIR": str(scratch / "work"),
        "SPARK_LOCAL_IP": LOOPBACK,
    }
    command = [sys.executable, "-c", DRIVER, str(jars)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            yield Driver(process)
        finally:
            process.communicate()


@pytest.fixture(scope="module")
def stranger() -> Iterator[JavaGateway]:
    """A Java that belongs to nobody's session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SUBMIT_VARIABLE, f"--conf spark.driver.memory=256m {submit_arguments()[SUBMIT_VARIABLE]}")
        gateway = launch_gateway()  # type: ignore[no-untyped-call]  # pyspark leaves it untyped
    yield gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def memory_status(gateway: JavaGateway, address: str, port: int, **settings: str) -> str:
    """What the driver's block manager answers to whoever asks. Raises Py4JJavaError."""
    jvm = gateway.jvm

    def module(name: str) -> Any:
        loaded = jvm.java.lang.Class.forName(name, True, jvm.Thread.currentThread().getContextClassLoader())
        return loaded.getField("MODULE$").get(None)

    conf = jvm.org.apache.spark.SparkConf(False).set("spark.rpc.askTimeout", "20s").set("spark.rpc.io.maxRetries", "0")
    for key, value in settings.items():
        conf.set(key, value)
    secret_file = module("org.apache.spark.internal.config.package$").AUTH_SECRET_FILE()
    manager = jvm.org.apache.spark.SecurityManager(conf, jvm.scala.Option.empty(), secret_file)
    environment = jvm.org.apache.spark.rpc.RpcEnv.create("stranger", LOOPBACK, 0, conf, manager, True)
    try:
        where = jvm.org.apache.spark.rpc.RpcAddress(address, port)
        master = environment.setupEndpointRef(where, "BlockManagerMaster")
        message = module("org.apache.spark.storage.BlockManagerMessages$GetMemoryStatus$")
        return str(master.askSync(message, jvm.scala.reflect.ClassTag.Any()))
    finally:
        environment.shutdown()


@pytest.mark.long
def test_a_driver_without_executors_listens_on_the_loopback_address_alone_and_answers_no_stranger(
    stranger: JavaGateway, jars: Path, tmp_path: Path
) -> None:
    # What a pod has in the chart's mode `local`: Spark's master is the cluster, and the driver's own is local.
    local = {"spark.kubernetes.driver.master": "local[1]", "spark.kubernetes.submitInDriver": "true"}
    with driver(jars, tmp_path, **{"spark.master": f"k8s://https://{LOOPBACK}:1", **local}) as one:
        found = one.work()
        assert found["addresses"] == [LOOPBACK]
        assert not found["has_executors"]
        for address in (POD, LOOPBACK):
            with pytest.raises(Py4JJavaError):
                memory_status(stranger, address, found["port"])
        assert one.work()["rows"] == 1000


@pytest.mark.long
def test_a_driver_that_starts_with_another_secret_works_with_its_executors_and_the_one_before_opens_nothing(
    stranger: JavaGateway, jars: Path, tmp_path: Path
) -> None:
    """As docs/how-to/rotate-secrets.md says: driver and executors of a job start together, beside those of others."""
    cluster = {"spark.master": "local-cluster[1,1,512]", "spark.executor.memory": "512m"}
    knows = {**ENCRYPTION, "spark.authenticate": "true"}
    secrets = (SECRET, SECRET[::-1])

    def starts(secret: str) -> AbstractContextManager[Driver]:
        return driver(jars, tmp_path, **cluster, **{"spark.authenticate.secret": secret})

    with starts(secrets[0]) as before, starts(secrets[1]) as after:
        for one, own, other in ((before, secrets[0], secrets[1]), (after, secrets[1], secrets[0])):
            found = one.work()
            assert found["rows"] == 1000
            answer = memory_status(stranger, POD, found["port"], **knows, **{"spark.authenticate.secret": own})
            assert "BlockManagerId" in answer
            with pytest.raises(Py4JJavaError):
                memory_status(stranger, POD, found["port"], **knows, **{"spark.authenticate.secret": other})


@pytest.mark.long
def test_a_driver_with_executors_answers_only_with_the_secret_and_encrypts_shuffle_files(
    stranger: JavaGateway, jars: Path, tmp_path: Path
) -> None:
    cluster = {
        "spark.master": "local-cluster[1,1,512]",
        "spark.executor.memory": "512m",
        "spark.shuffle.compress": "false",
    }
    knows = {**ENCRYPTION, "spark.authenticate": "true", "spark.authenticate.secret": SECRET}
    with driver(jars, tmp_path, **cluster, **{"spark.authenticate.secret": SECRET}) as one:
        found = one.work()
        assert found["rows"] == 1000
        assert POD in found["addresses"]
        assert found["has_executors"]
        assert "BlockManagerId" in memory_status(stranger, POD, found["port"], **knows)
        for guess in (
            {},
            {**knows, "spark.authenticate.secret": SECRET[::-1]},
            {**knows, "spark.network.crypto.enabled": "false"},
        ):
            with pytest.raises(Py4JJavaError):
                memory_status(stranger, POD, found["port"], **guess)
        assert one.work()["rows"] == 1000
        written = [file.read_bytes() for file in tmp_path.rglob("shuffle_*.data")]
        assert any(written)
        assert not [content for content in written if CLEAR.encode() in content]
