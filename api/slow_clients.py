"""Connections whose client is slow: one that sends no request head in time, or does not read, is ended.

Where there are more than MAX_CONNECTIONS, those end first that have waited longest for a request: refused instead, a
client would find the server full for as long as somebody opens connections and sends nothing.
"""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from monitoring.metrics import ApiRoute

MAX_CONNECTIONS = 2_000
BATCH_CONNECTIONS = 50
"""How many of those that wait end together, beyond as many as are too many: finding the oldest takes a while."""
OPEN_FILES = MAX_CONNECTIONS + 2_000
"""Also those of Kafka, Postgres and tables, and connections that are ending."""
REQUEST_WITHIN_SECONDS = 10.0
"""Of a new connection, until its first request line and headers are there."""
READ_WITHIN_SECONDS = 30.0
"""How long a client may take nothing of what is ready for it; then its connection ends, with what was left."""


def allow_connections() -> None:
    """Let this process have OPEN_FILES, as far as it may: by default Linux allows 1,024.

    With fewer than connections, nobody could connect while others wait, and none of these would be ended for it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class HeadTimeoutProtocol(H11Protocol):
    """Ends a connection on which no whole request head came in time, or whose client does not read.

    Uvicorn itself would wait for ever; also a connection that is closed waits until its client has read the rest.
    """

    _idle_since = 0.0
    _head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        if len(self.connections) > MAX_CONNECTIONS:
            self._make_room()
        self._head = self.loop.call_later(REQUEST_WITHIN_SECONDS, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Bytes have come; those of a request's body have their own limit (`events.BODY_WITHIN_SECONDS`)."""
        if self._head is None and not self._is_answering:
            self._head = self.loop.call_later(REQUEST_WITHIN_SECONDS, self._give_up)
        super().data_received(data)
        if self._head is not None and self._is_answering:
            self._head.cancel()
            self._head = None

    def on_response_complete(self) -> None:
        """An answer was given, and the next request is waited for."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        for timer in (self._head, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More is ready for the client than it takes."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """It has taken most of that."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def shutdown(self) -> None:
        """The server stops: a stream, which would never end, ends, and its client goes on at another server."""
        super().shutdown()
        if self._is_answering and self.cycle.scope["path"] == ApiRoute.WINDOW_STREAM:
            self.transport.close()

    def _make_room(self) -> None:
        """End connections that wait for a request, the oldest first; this one, if all others are being answered."""
        open_ones = [connection for connection in self.connections if not connection.transport.is_closing()]
        if (too_many := len(open_ones) - MAX_CONNECTIONS) <= 0:
            return
        waiting = [
            connection
            for connection in open_ones
            if isinstance(connection, HeadTimeoutProtocol) and connection is not self and not connection._is_answering
        ]
        waiting.sort(key=lambda connection: connection._idle_since)
        for connection in waiting[: too_many + BATCH_CONNECTIONS] or [self]:
            connection.transport.close()

    def _expect_reading(self) -> None:
        size_bytes = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(READ_WITHIN_SECONDS, self._end_unread, size_bytes)

    def _end_unread(self, before_bytes: int) -> None:
        if self.transport.get_write_buffer_size() >= before_bytes:
            self.transport.abort()
        else:
            self._expect_reading()

    def _give_up(self) -> None:
        self._head = None
        if not self.transport.is_closing():
            self.transport.close()
