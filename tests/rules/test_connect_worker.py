"""A worker's connector is configured, left alone while it runs, and started again when it failed, with its reason."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from laptop.connect_worker import Worker, reasons

TRACE = """org.apache.kafka.connect.errors.ConnectException: Could not connect
\tat io.debezium.Task.start(Task.java:7)
Caused by: org.postgresql.util.PSQLException: ERROR: logical decoding requires "wal_level" >= "logical"
\tat org.postgresql.core.Query.run(Query.java:9)
"""


class Connect:
    """The REST interface of a worker, as far as it is asked."""

    def __init__(self) -> None:
        self.config: dict[str, str] | None = None
        self.task = "RUNNING"
        self.asked: list[str] = []

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.asked.append(f"{method} {path}")
        match method, path.removeprefix("/connectors/c"):
            case "PUT", "/config":
                self.config = body
                return 201, {"name": "c"}
            case "GET", "/config":
                return (404, None) if self.config is None else (200, {**self.config, "name": "c"})
            case "GET", "/status":
                return 200, {"connector": {"state": "RUNNING"}, "tasks": [{"state": self.task, "trace": TRACE}]}
            case "POST", restart if restart.startswith("/restart?"):
                self.task = "RUNNING"
                return 202, None
        return 404, None


@pytest.fixture
def connect() -> Iterator[tuple[Connect, str]]:
    known = Connect()

    class Handler(BaseHTTPRequestHandler):
        def do_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, said = known.answer(self.command, self.path, json.loads(body) if body else None)
            content = b"" if said is None else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_any  # noqa: N815 -- as http.server calls them

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- as http.server calls it
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield known, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_it_is_configured_once_and_again_when_its_configuration_changes(connect: tuple[Connect, str]) -> None:
    known, url = connect
    for config in ({"a": "1"}, {"a": "1"}, {"a": "2"}):
        assert Worker(url, "c", config).keep() is None
        assert known.config == config
    assert [asked for asked in known.asked if asked.startswith("PUT")] == ["PUT /connectors/c/config"] * 2


def test_a_failed_connector_is_restarted_with_its_reason_reported(connect: tuple[Connect, str]) -> None:
    known, url = connect
    worker = Worker(url, "c", {"a": "1"})
    worker.keep()
    known.task = "FAILED"
    assert worker.keep() == reasons(TRACE)
    assert known.task == "RUNNING"
    assert worker.keep() is None
    assert sum(asked.startswith("POST") for asked in known.asked) == 1


def test_a_stack_trace_is_shortened_to_its_reasons() -> None:
    assert reasons(TRACE) == (
        "the connector failed: org.apache.kafka.connect.errors.ConnectException: Could not connect, because "
        'org.postgresql.util.PSQLException: ERROR: logical decoding requires "wal_level" >= "logical"'
    )


def test_a_worker_that_does_not_answer_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="refused"):
        Worker("http://127.0.0.1:9", "c", {}).keep()
