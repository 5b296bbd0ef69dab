"""A process that crashes with secrets in its hands: its log names the error, and no secret. Real processes.

The dashboard has no place here: Streamlit catches what its pages raise (tests/dashboard/test_event.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from laptop.class_archive import submit_arguments
from metering.vocabulary import ALWAYS

CANARIES = {name: f"canary-of-{name}" for name in ("postgres", "kafka", "store")}
PLANTED = """
import runpy, sys
import confluent_kafka, psycopg

def fail(conninfo="", *arguments, **named):
    in_a_local_variable = (conninfo, arguments, named)
    raise RuntimeError("planted")

psycopg.connect = psycopg.Connection.connect = fail
confluent_kafka.Producer = fail
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
DRIVERS = [("jobs", job.value) for job in ALWAYS]
COMMANDS = [
    *(("jobs", "migrate"), ("jobs", "rebuild", "billing", "--yes")),
    *(("api",), ("cli.main", "usage"), ("cli.main", "keys", "list"), ("cli.main", "verify")),
]


def crashed(tmp_path: Path, jars: Path, *program: str) -> str:
    """What a program prints whose first connection to a server raises an error that nobody expects."""
    given = {
        "WEIR_POSTGRES_URL": f"postgresql://weir:{CANARIES['postgres']}@127.0.0.1:1/weir",
        "WEIR_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "WEIR_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "WEIR_KAFKA_USERNAME": "weir",
        "WEIR_KAFKA_PASSWORD": CANARIES["kafka"],
        "AWS_SECRET_ACCESS_KEY": CANARIES["store"],
        "WEIR_TABLES": str(tmp_path / "tables"),
        "WEIR_CHECKPOINTS": str(tmp_path / "checkpoints"),
        "WEIR_JARS": str(jars),
        "TMPDIR": str(tmp_path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", PLANTED, *program],
        env={**os.environ, **given, **submit_arguments()},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    printed = ended.stdout + ended.stderr
    assert ended.returncode != 0, printed[-2_000:]
    assert "planted" in printed, printed[-2_000:]
    return printed


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("program", DRIVERS, ids=" ".join)
def test_a_driver_that_crashes_logs_no_secret(tmp_path: Path, jars: Path, program: tuple[str, ...]) -> None:
    printed = crashed(tmp_path, jars, *program)
    assert [name for name, canary in CANARIES.items() if canary in printed] == []


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("program", COMMANDS, ids=" ".join)
def test_any_other_process_that_crashes_logs_no_secret(tmp_path: Path, jars: Path, program: tuple[str, ...]) -> None:
    printed = crashed(tmp_path, jars, *program)
    assert [name for name, canary in CANARIES.items() if canary in printed] == []
