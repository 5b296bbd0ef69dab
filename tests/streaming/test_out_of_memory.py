"""A driver whose Java runs out of memory ends, so that its supervisor starts it again."""

from __future__ import annotations

import subprocess
import sys

from laptop.jars import connector_jars

PROGRAM = """
import sys
from contextlib import suppress
from pathlib import Path
from jobs.runtime.spark import spark_session

spark = spark_session("greedy", Path(sys.argv[1]), memory_mib=512)
java = spark.sparkContext._gateway.proc
with suppress(Exception):
    spark._jvm.java.nio.ByteBuffer.allocate(1_000_000_000)
print("Java ended with", java.wait(20))
"""


def test_java_ends_when_it_runs_out_of_memory() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(connector_jars())], capture_output=True, text=True, timeout=120, check=False
    )
    assert "Java ended with 3" in ran.stdout, ran.stderr
