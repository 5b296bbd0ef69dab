"""`sslmode` holds for every connection: where encryption is demanded, a server without it is not talked to.

The embedded server has no TLS, so each connection that did not obey would succeed here. With a front that has it,
`verify-full` is seen with a right and with wrong certificates.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from deployment.job_states import read_jobs
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.schema import migrate, schema_is_current
from tests.streaming.certificates import authority_and_server
from tests.streaming.tls_front import tls_front

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


@pytest.mark.parametrize("name", CONNECTIONS)
def test_verify_full_reaches_the_server_of_the_authority_and_no_other(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    other, elsewhere = tmp_path / "other", tmp_path / "elsewhere"
    other.mkdir()
    elsewhere.mkdir()
    authority, server = authority_and_server(tmp_path, "127.0.0.1")
    _, impostor = authority_and_server(other, "127.0.0.1")
    its_authority, of_another_host = authority_and_server(elsewhere, "10.0.0.1")
    url = urlsplit(database)
    assert url.port is not None

    def connect(certificate: Path, root: Path, mode: str = "verify-full") -> None:
        monkeypatch.setenv("PGSSLMODE", mode)
        monkeypatch.setenv("PGSSLROOTCERT", str(root))
        with tls_front(url.port or 0, certificate) as port:
            CONNECTIONS[name](url._replace(netloc=f"{url.netloc.rpartition(':')[0]}:{port}").geturl())

    connect(server, authority)
    with pytest.raises(
        (psycopg.OperationalError, OperationalError), match=r"certificate verify failed|signature failure"
    ):
        connect(impostor, authority)
    with pytest.raises((psycopg.OperationalError, OperationalError), match="does not match host name"):
        connect(of_another_host, its_authority)
    connect(of_another_host, its_authority, "verify-ca")
