"""The HTTP server of a driver's metrics and liveness. Anybody may connect, so everything that it uses is bounded.

With a token only who has it reads metrics; liveness answers everybody.

A thread serves one connection. When all threads are taken, the oldest connection is closed for the newest: a client
that sends its request at once is answered, however many others are silent.
"""

from __future__ import annotations

import hmac
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import unquote

from monitoring.liveness import PATH

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

MAX_CONNECTIONS = 128
"""Threads of the server. A probe and two Prometheus servers need three."""
MIN_SECONDS = 0.1
"""How long a connection has at least before it is closed for another: time to read a request that is there already."""
MAX_SCRAPES = 8
"""Scrapes at the same time; further ones get 503. Closing its connection does not end a scrape, so without this limit
scrapes could take all threads, and liveness would not answer."""
TIMEOUT_SECONDS = 5.0
"""How long a client may take to send its request, and as long again to read the answer."""
MAX_REQUEST_BYTES = 8_192
"""Request line and headers; those of Prometheus are about 400 bytes."""
BACKLOG = 1_024
"""Connections that the kernel holds until they have a thread: under a flood the last of them waits for 0.8 s."""


class MetricsServer(ThreadingMixIn, TCPServer):
    """Serves a WSGI application from at most `max_connections` daemon threads. Raises OSError if the port is taken."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = BACKLOG

    def __init__(
        self,
        address: str,
        port: int,
        application: Application,
        *,
        max_connections: int = MAX_CONNECTIONS,
        max_scrapes: int = MAX_SCRAPES,
        timeout_seconds: float = TIMEOUT_SECONDS,
        token: str = "",
    ) -> None:
        """`token`: what a scrape must bring (`Authorization: Bearer …`); empty: nothing."""
        self.application = application
        # A Secret made from a file ends with a line feed, which a header cannot bring.
        self._authorization = f"Bearer {token.strip()}".encode() if token else b""
        self.client_timeout_seconds = timeout_seconds
        self.scrapes = threading.BoundedSemaphore(max_scrapes)
        self._free_threads = threading.BoundedSemaphore(max_connections)
        self._replaceable: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self.address_family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        super().__init__((address, port), _Request)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    def lets_read(self, authorization: str) -> bool:
        """Whether a scrape with this header is answered."""
        given = authorization.strip().encode("latin-1", errors="replace")
        return not self._authorization or hmac.compare_digest(given, self._authorization)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, if need be that of the oldest connection."""
        has_thread = self._free_threads.acquire(blocking=False)
        while not has_thread:
            self._close_oldest()
            has_thread = self._free_threads.acquire(timeout=MIN_SECONDS)
        self.set_replaceable(request, is_replaceable=True)
        try:
            super().process_request(request, client_address)
        except BaseException:
            # The system has no thread: nobody will give this one back.
            self._free_threads.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection, in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_threads.release()

    def shutdown_request(self, request: Any) -> None:
        """Close a connection; from here on nobody else may."""
        self.set_replaceable(request, is_replaceable=False)
        super().shutdown_request(request)

    def set_replaceable(self, request: socket.socket, *, is_replaceable: bool) -> None:
        """Whether a connection may be closed for another one: not during its scrape, which that would not end."""
        with self._lock:
            if is_replaceable:
                self._replaceable[request] = time.monotonic()
            else:
                self._replaceable.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what failed here; a client that goes away is no error, and strangers must not fill the log."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def _close_oldest(self) -> None:
        with self._lock:
            oldest, since = next(iter(self._replaceable.items()), (None, 0.0))
        if oldest is None:
            return
        time.sleep(max(0.0, since + MIN_SECONDS - time.monotonic()))
        with self._lock:
            if self._replaceable.pop(oldest, None) is not None:
                with suppress(OSError):
                    # Its thread wakes up, and closes it.
                    oldest.shutdown(socket.SHUT_RDWR)


class _Request(BaseHTTPRequestHandler):
    """Answers the one request of a connection."""

    server: MetricsServer

    def setup(self) -> None:
        super().setup()
        self.rfile = BytesIO(self._head())

    def do_GET(self) -> None:
        """Answer with what the application says; with 503 if too many scrapes run."""
        if self._path() == PATH:
            self._send(*self._answer())
        elif not self.server.lets_read(self.headers.get("Authorization", "")):
            refused = [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")]
            self._send("401 Unauthorized", refused, b"metrics need the token\n")
        elif self.server.scrapes.acquire(blocking=False):
            self.server.set_replaceable(self.connection, is_replaceable=False)
            try:
                answer = self._answer()
            finally:
                self.server.scrapes.release()
            self.server.set_replaceable(self.connection, is_replaceable=True)
            self._send(*answer)
        else:
            self._send("503 Service Unavailable", [("Content-Type", "text/plain")], b"too many scrapes at once\n")

    def log_message(self, *_: Any) -> None:
        """Nothing: strangers must not be able to fill the log."""

    def _head(self) -> bytes:
        """Request line and headers; empty if they do not come in time or are too long."""
        deadline, head = time.monotonic() + self.server.client_timeout_seconds, b""
        while b"\r\n\r\n" not in head:
            if (left := deadline - time.monotonic()) <= 0 or len(head) >= MAX_REQUEST_BYTES:
                return b""
            self.connection.settimeout(left)
            try:
                received = self.connection.recv(MAX_REQUEST_BYTES - len(head))
            except OSError:
                return b""
            if not received:
                return b""
            head += received
        self.connection.settimeout(self.server.client_timeout_seconds)
        return head

    def _path(self) -> str:
        return unquote(self.path.partition("?")[0])

    def _answer(self) -> tuple[str, list[tuple[str, str]], bytes]:
        environment = {
            "REQUEST_METHOD": self.command,
            "PATH_INFO": self._path(),
            "QUERY_STRING": self.path.partition("?")[2],
            "HTTP_ACCEPT": self.headers.get("Accept"),
            "HTTP_ACCEPT_ENCODING": self.headers.get("Accept-Encoding"),
        }
        started: list[tuple[str, list[tuple[str, str]]]] = []
        body = b"".join(self.server.application(environment, lambda *status: started.append(status)))
        return *started[0], body

    def _send(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        code, _, phrase = status.partition(" ")
        self.send_response_only(int(code), phrase)
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
