"""A driver's metrics port answers whatever strangers do with its connections, and its threads are bounded."""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from monitoring.liveness import PATH, Loop, answering
from monitoring.metrics_server import MAX_CONNECTIONS, MAX_REQUEST_BYTES, MAX_SCRAPES, MetricsServer
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SILENT = 1_000
LIMIT_SECONDS = 60
SERVED = """
import sys
from monitoring.exposed import init_labels
from monitoring.instruments import serve
init_labels("billing", meters=["requests"], version="1")
print(serve(0), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def driver() -> Iterator[tuple[int, int]]:
    """A process that serves metrics as a driver does: its id, and the port."""
    command = [sys.executable, "-c", SERVED]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.kill()


def status(process: int, name: str) -> int:
    """A number from Linux' account of a process: `Threads`, or `VmRSS` in KiB."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@contextmanager
def connections(port: int, count: int, text: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that send `text`, and then nothing."""
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)))
            with suppress(OSError):  # it may be closed already
                opened[-1].sendall(text)
        yield opened


def get(port: int, path: str = PATH, **headers: str) -> bytes:
    with urlopen(Request(f"http://127.0.0.1:{port}{path}", headers=headers), timeout=LIMIT_SECONDS) as answer:
        content: bytes = answer.read()
        return content


@pytest.mark.parametrize("text", [b"", b"GET /metrics HTTP/1.1\r\nAccept: "], ids=["silent", "half a request"])
def test_silent_connections_take_a_bounded_number_of_threads_and_metrics_and_liveness_answer(
    driver: tuple[int, int], text: bytes
) -> None:
    process, port = driver
    assert get(port, "/metrics")
    threads, memory = status(process, "Threads"), status(process, "VmRSS")
    with connections(port, SILENT, text):
        for _ in range(3):
            assert get(port) == b"live\n"
            assert b"weir_build_info" in get(port, "/metrics")
        assert status(process, "Threads") <= threads + MAX_CONNECTIONS
        assert status(process, "VmRSS") <= memory + 16 * 1024


Serve = Callable[..., MetricsServer]


@pytest.fixture
def serving() -> Iterator[Serve]:
    """Starts servers of an application, whose clients have so many seconds."""
    with ExitStack() as stack:

        def serve(application: Any, timeout_seconds: float = 60, token: str = "", **limits: int) -> MetricsServer:
            answer = answering(Loop(), application)
            server = stack.enter_context(
                MetricsServer("127.0.0.1", 0, answer, timeout_seconds=timeout_seconds, token=token, **limits)
            )
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return server

        yield serve


def page(content: bytes) -> Any:
    """An application with one answer."""

    def answer(_: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        return [content]

    return answer


def is_closed_meanwhile(connection: socket.socket, pause_seconds: float, text: bytes) -> bool:
    """Whether the server closes a connection on which a byte is sent after each pause, before all of it is sent."""
    connection.settimeout(pause_seconds)
    for byte in range(len(text)):
        try:
            connection.sendall(text[byte : byte + 1])
            if connection.recv(1) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize("text", [b"", b"GET /live HTTP/1.1\r\n" + b"X" * 2_000], ids=["silent", "a byte now and then"])
def test_a_request_that_does_not_come_in_time_ends_its_connection(serving: Serve, text: bytes) -> None:
    server = serving(page(b"m"), timeout_seconds=0.5)
    with connections(server.port, 1) as (connection,):
        if text:
            assert is_closed_meanwhile(connection, 0.05, text)
        else:
            assert connection.recv(1) == b""


def test_a_request_without_end_is_not_read_to_its_end(serving: Serve) -> None:
    server = serving(page(b"m"))
    with connections(server.port, 1, b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_REQUEST_BYTES) as (connection,):
        # Long before the server gives a client up that only takes its time.
        connection.settimeout(10)
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_hanging_scrapes_leave_liveness_alone_and_further_scrapes_are_refused(serving: Serve) -> None:
    hanging, end = threading.Semaphore(0), threading.Event()

    def hang(_: dict[str, Any], start: Any) -> Iterable[bytes]:
        hanging.release()
        end.wait(300)
        start("200 OK", [])
        return [b"m"]

    server = serving(hang)
    with connections(server.port, MAX_SCRAPES, b"GET /metrics HTTP/1.1\r\n\r\n") as scrapes:
        try:
            assert all(hanging.acquire(timeout=60) for _ in range(MAX_SCRAPES))
            with pytest.raises(HTTPError, match="503"):
                get(server.port, "/metrics")
            with connections(server.port, 2 * MAX_CONNECTIONS):
                assert get(server.port) == b"live\n"
        finally:
            end.set()
        for connection in scrapes:
            assert connection.makefile("rb").read().endswith(b"\r\n\r\nm")
    assert get(server.port, "/metrics") == b"m"


def test_clients_that_do_not_read_their_answers_give_way(serving: Serve) -> None:
    more_than_a_socket_takes = b"m" * 20_000_000
    server = serving(page(more_than_a_socket_takes), max_connections=8, max_scrapes=4)
    with connections(server.port, 24, b"GET /metrics HTTP/1.1\r\n\r\n"):
        assert get(server.port) == b"live\n"
        wait_until(lambda: server.scrapes.acquire(blocking=False), "the end of a scrape", LIMIT_SECONDS)
        server.scrapes.release()
        assert get(server.port, "/metrics") == more_than_a_socket_takes


def test_the_metrics_server_respects_the_accept_headers(serving: Serve, driver: tuple[int, int]) -> None:
    _, port = driver
    assert b"weir_build_info" in gzip.decompress(get(port, "/metrics", **{"Accept-Encoding": "gzip"}))
    assert get(port, "/metrics", Accept="application/openmetrics-text; version=1.0.0").endswith(b"# EOF\n")
    only = get(port, "/metrics?name[]=weir_build_info")
    assert b"weir_build_info" in only
    assert b"weir_batch" not in only


def test_a_refused_thread_does_not_reduce_the_limit(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serving(page(b"m"), max_connections=2)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with connections(server.port, 4, b"GET /live HTTP/1.1\r\n\r\n") as refused:
        for connection in refused:
            connection.settimeout(LIMIT_SECONDS)
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    monkeypatch.setattr(threading.Thread, "start", start)
    assert get(server.port) == b"live\n"


@pytest.mark.parametrize(
    "sent", [{}, {"Authorization": "Bearer another"}, {"Authorization": "secret"}, {"Authorization": "Bearer sécret"}]
)
def test_with_a_token_only_who_brings_it_reads_metrics_and_liveness_answers_everybody(
    serving: Serve, sent: dict[str, str]
) -> None:
    server = serving(page(b"m"), token="secret")
    with pytest.raises(HTTPError, match="401"):
        get(server.port, "/metrics", **sent)
    assert get(server.port, **sent) == b"live\n"
    assert get(server.port, "/metrics", Authorization="Bearer secret") == b"m"


@pytest.mark.parametrize("stored", ["secret", "secret\n", "sécret"])
def test_a_token_is_what_a_header_can_bring_of_a_secret(serving: Serve, stored: str) -> None:
    """A Secret made from a file ends with a line feed, which no header has; Prometheus sends UTF-8."""
    server = serving(page(b"m"), token=stored)
    brought = f"Bearer {stored.strip()}".encode().decode("latin-1")
    assert get(server.port, "/metrics", Authorization=brought) == b"m"


def test_a_token_that_is_blank_lets_nobody_read(serving: Serve) -> None:
    server = serving(page(b"m"), token="\n")
    for sent in ({}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "}):
        with pytest.raises(HTTPError, match="401"):
            get(server.port, "/metrics", **sent)
