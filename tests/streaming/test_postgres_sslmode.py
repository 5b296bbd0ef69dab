"""`sslmode` holds for every connection: where encryption is demanded, a server without it is not talked to.

The embedded server has no TLS, so each connection that did not obey would succeed here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from deployment.job_states import read_jobs
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.schema import migrate, schema_is_current

CONNECTIONS: dict[str, Callable[[str], object]] = {
    "migration": migrate,
    "schema check": schema_is_current,
    "a driver's own": lambda url: Ownership.take("billing", url, {}),
    "a command's": read_jobs,
}


@pytest.mark.parametrize("name", CONNECTIONS)
def test_by_the_environment(database: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("PGSSLMODE", "require")
    with pytest.raises((psycopg.OperationalError, OperationalError), match="does not support SSL"):
        CONNECTIONS[name](database)


@pytest.mark.parametrize("name", CONNECTIONS)
def test_by_the_address(database: str, name: str) -> None:
    with pytest.raises((psycopg.OperationalError, OperationalError), match="does not support SSL"):
        CONNECTIONS[name](f"{database}?sslmode=require")


def test_a_listing_reports_a_refused_sslmode_without_a_traceback(database: str) -> None:
    reach = {"WEIR_KAFKA_BOOTSTRAP": "none:9092", "WEIR_POSTGRES_URL": database, "WEIR_TABLES": "/nowhere"}
    answer = subprocess.run(
        [sys.executable, "-m", "cli.main", "usage"],
        env={**os.environ, **reach, "PGSSLMODE": "require"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert "does not support SSL" in answer.stderr
    assert "Traceback" not in answer.stderr
