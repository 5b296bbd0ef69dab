"""`examples/receive_webhooks.py` applies each event once and in order, killed again and again, and no forged one."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from deployment.stack import POSTGRES_VARIABLE
from laptop.ports import reuse_port
from tests.pages import ROOT
from tests.waiting import wait_until
from tests.webhooks.sending import add_endpoint, hold, next_due_at, rows
from webhooks.__main__ import ALLOW_PRIVATE_VARIABLE
from webhooks.signing import Signature, new_secret, signed_headers

ACCOUNTS = ["acme", "globex", "initech"]


@contextmanager
def running(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *command], env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def example(port: int, file: Path) -> list[str]:
    return [str(ROOT / "examples" / "receive_webhooks.py"), str(port), str(file)]


def done(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with closing(sqlite3.connect(file, timeout=30)) as database:
        try:
            return [json.loads(data) for (data,) in database.execute("SELECT data FROM done ORDER BY place")]
        except sqlite3.OperationalError:
            return []  # it has just begun


@pytest.mark.timeout(180)
def test_the_example_applies_each_event_once_and_in_order_under_kills(database: str, tmp_path: Path) -> None:
    port, file = reuse_port(tmp_path / "port"), tmp_path / "done.sqlite"
    endpoint = add_endpoint(database, f"http://127.0.0.1:{port}/")
    accounts = [ACCOUNTS[lsn % 3] for lsn in range(90)]
    hold(database, accounts)
    of_sender = {POSTGRES_VARIABLE: database, ALLOW_PRIVATE_VARIABLE: "true"}
    with running("-m", "webhooks", **of_sender):
        for reached in (20, 45, 70, 90):
            with running(*example(port, file), WEBHOOK_SECRET=endpoint.verifies_with):
                wait_until(lambda wanted=reached: applies(database, file, wanted), f"{reached} events", 60)  # type: ignore[misc]
        with running(*example(port, file), WEBHOOK_SECRET=endpoint.verifies_with):
            wait_until(lambda: applies(database, file, 90) and next_due_at(database) is None, "all are answered", 60)
    applied = [(event["account"], int(event["straggler"].partition("/")[0])) for event in done(file)]
    assert len(applied) == len(set(applied)) == 90
    for account in ACCOUNTS:
        lsns = [lsn for of, lsn in applied if of == account]
        assert lsns == sorted(lsns)


def applies(database: str, file: Path, wanted: int) -> bool:
    """Whether so many events are applied; what waits because the example was away is due at once."""
    rows(database, "UPDATE webhook_deliveries SET next_attempt_at = now() WHERE state = 'waiting' RETURNING 1")
    return len(done(file)) >= wanted


@pytest.mark.parametrize("forged", ["body", "secret", "old"])
def test_the_example_applies_no_forged_event(tmp_path: Path, forged: str) -> None:
    port, file, secret = reuse_port(tmp_path / "port"), tmp_path / "done.sqlite", new_secret(Signature.V1)
    body, now = b'{"type": "t", "data": {}}', int(time.time())

    def post(signed: bytes, at: int, by: str) -> int:
        url = f"http://127.0.0.1:{port}/"
        return httpx.post(url, content=body, headers=signed_headers("evt_1", at, signed, [by])).status_code

    def answers() -> bool:
        try:
            return bool(post(body + b" ", now, secret))
        except httpx.TransportError:
            return False

    with running(*example(port, file), WEBHOOK_SECRET=secret):
        wait_until(answers, "the example answers")
        other = new_secret(Signature.V1) if forged == "secret" else secret
        assert post(body + b" " if forged == "body" else body, now - (301 if forged == "old" else 0), other) == 401
        assert done(file) == []
        assert post(body, now, secret) == 204
        assert len(done(file)) == 1


def test_the_example_refuses_a_timestamp_that_is_no_number(tmp_path: Path) -> None:
    port, secret = reuse_port(tmp_path / "port"), new_secret(Signature.V1)

    def status(timestamp: bytes) -> int | None:
        headers = signed_headers("evt_1", int(time.time()), b"{}", [secret])
        given = [(name.encode(), value.encode()) for name, value in headers.items() if name != "webhook-timestamp"]
        try:
            url = f"http://127.0.0.1:{port}/"
            return httpx.post(url, content=b"{}", headers=[*given, (b"webhook-timestamp", timestamp)]).status_code
        except httpx.TransportError:
            return None

    with running(*example(port, tmp_path / "done.sqlite"), WEBHOOK_SECRET=secret):
        wait_until(lambda: status(b"soon") == 401, "the example answers")
        for timestamp in ("²".encode("latin-1"), b"9" * 5_000, b"-1"):
            assert status(timestamp) == 401
