"""The proxy in front of a server, since a fault that does not happen finds nothing."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from laptop.ports import LOOPBACK, free_port
from tests.faults.proxy import Proxy

INSTEAD = b"HTTP/1.1 503 Service Unavailable\r\n\r\n"


class Echo(socketserver.BaseRequestHandler):
    """Answers a request with itself, and keeps what it was asked."""

    asked: list[bytes]

    def handle(self) -> None:
        while request := self.request.recv(1024):
            self.asked.append(request)
            self.request.sendall(request)


@pytest.fixture
def asked() -> list[bytes]:
    return []


@pytest.fixture
def server(asked: list[bytes]) -> Iterator[int]:
    handler = type("Asked", (Echo,), {"asked": asked})
    with socketserver.ThreadingTCPServer((LOOPBACK, 0), handler) as running:
        running.daemon_threads = True
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_address[1]
        running.shutdown()


@pytest.fixture
def proxy(server: int) -> Proxy:
    return Proxy(free_port(), server, lambda chunk: chunk.startswith(b"PUT"), INSTEAD)


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection((LOOPBACK, proxy.port), timeout=5)


def ask(client: socket.socket, request: bytes) -> bytes:
    """What is answered; nothing where the connection ends."""
    try:
        client.sendall(request)
        return client.recv(1024)
    except ConnectionError:
        return b""


def test_each_question_is_answered(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert ask(client, b"GET 1") == b"GET 1"
        assert ask(client, b"PUT 2") == b"PUT 2"


def test_a_cut_ends_old_and_new_connections_until_it_is_mended(proxy: Proxy) -> None:
    with connect(proxy) as client:
        assert ask(client, b"GET 1") == b"GET 1"
        mend = proxy.cut()
        assert ask(client, b"GET 2") == b""
    with connect(proxy) as client:
        assert ask(client, b"GET 3") == b""
    mend()
    with connect(proxy) as client:
        assert ask(client, b"GET 4") == b"GET 4"


def test_an_answer_is_delayed(proxy: Proxy) -> None:
    with connect(proxy) as client:
        proxy.delay(0.3)
        began = time.monotonic()
        assert ask(client, b"GET 1") == b"GET 1"
        assert time.monotonic() - began >= 0.3


def test_in_a_black_hole_connections_stall_until_they_are_dropped(proxy: Proxy, asked: list[bytes]) -> None:
    with connect(proxy) as client:
        assert ask(client, b"GET 1") == b"GET 1"
        mend = proxy.hold()
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            ask(client, b"GET 2")
        assert asked == [b"GET 1"]
        mend()
        client.settimeout(5)
        assert ask(client, b"GET 3") == b""


def test_a_lost_answer_is_of_something_that_was_done(proxy: Proxy, asked: list[bytes]) -> None:
    proxy.lose_answers()
    with connect(proxy) as client:
        assert ask(client, b"GET 1") == b"GET 1", "only what is told apart is lost"
        assert ask(client, b"PUT 2") == INSTEAD
        assert asked == [b"GET 1", b"PUT 2"]
        assert proxy.swallowed == 1


def test_the_end_of_one_fault_does_not_end_the_next(proxy: Proxy) -> None:
    mend = proxy.cut()
    proxy.lose_answers()
    mend()
    with connect(proxy) as client:
        assert ask(client, b"PUT 1") == INSTEAD
