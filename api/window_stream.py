"""`GET /v1/windows/stream`: changes of usage windows as server-sent events, of the accounts of the key.

An event's `id` is how far the client has come; sent back as `Last-Event-ID` the stream goes on there, at any server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog
from confluent_kafka import KafkaException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from api.database_poll import DatabasePoll
from api.parameters import Parameters
from api.problems import CONCURRENT, over_capacity, unavailable
from api.read_request import ReadRequest
from api.window_catch_up import CatchUp
from api.window_changes import Change, Progress, may_see, progress_of
from api.window_feed import WindowFeed
from jobs.billing.messages import TYPES
from jobs.runtime.kafka.access import KafkaSettings
from metering.instants import Clock
from metering.vocabulary import Published
from monitoring.metrics import Refusal

log = structlog.get_logger()

PARAMETERS = ("account",)
LAST_EVENT_ID = "Last-Event-ID"
MAX_STREAMS = 100
"""Of a server."""
MAX_STREAMS_OF_A_KEY = 10
MAX_ADDED_PARTITIONS = 100
"""In an id: those that this server does not know yet."""
RETRY_MILLISECONDS = 2_000
HEARTBEAT_SECONDS = 15.0
CHECK_SECONDS = 1.0
"""How often a stream looks whether its key still holds; the keys themselves are read every two seconds."""
SEND_SECONDS = 20.0
"""How long a client may take to read; then its stream ends, and it may go on where it was."""
READ_CHANGES = 100
"""Taken from the feed at once; then others have their turn."""
CHUNK_BYTES = 32 << 10
"""Sent at once: so much a client must read within SEND_SECONDS."""
RESET = b"event: reset\ndata: {}\n"
"""The client lacks changes that cannot be told: it reads the windows again, and then follows."""
MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass
class WindowStreams:
    """All streams of a server."""

    feed: WindowFeed
    catch_up: CatchUp
    database: DatabasePoll
    clock: Clock
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    _open: Counter[str] = field(default_factory=Counter)
    """Streams by key."""

    @classmethod
    def of(cls, kafka: KafkaSettings, database: DatabasePoll, clock: Clock) -> WindowStreams:
        """Those that read these brokers; nothing is read before there is a client."""
        return cls(WindowFeed(kafka), CatchUp(kafka), database, clock)

    async def stream(self, read_request: ReadRequest) -> Response:
        """The stream. Raises Problem: 429 where the key has too many, 503 where the server has, or without Kafka."""
        request, key = read_request.request, read_request.key
        accounts = Parameters.of(request.query_params, PARAMETERS).accounts(key) or tuple(key.accounts)
        await self.feed.start()
        if request.method == "HEAD":
            return Response(headers=HEADERS, media_type=MEDIA_TYPE)
        progress, is_reset = await self._begin(request)
        self._refuse_too_many(key.id)
        stream = Stream(self, read_request, frozenset(accounts), progress, self.feed.restarts)
        self._open[key.id] += 1
        return EventStream(stream.chunks(is_reset), lambda: self._ended(key.id))

    def close(self) -> None:
        """Read nothing any more."""
        self.feed.close()
        self.catch_up.close()

    async def _begin(self, request: Request) -> tuple[Progress, bool]:
        """Where a client begins, and whether it lacks something that cannot be told."""
        last = request.headers.get(LAST_EVENT_ID)
        found = progress_of(last) if last else None
        if found is not None and found.topic_id == self.feed.topic_id:
            # Another server may have seen partitions first that were added; further ones only make the id longer.
            end = len(self.feed.end.positions) + MAX_ADDED_PARTITIONS
            known = Progress(found.topic_id, {part: at for part, at in found.positions.items() if part < end})
            if not await self.feed.lacks(known):
                return known, False
        return self.feed.end, bool(last)

    def _refuse_too_many(self, key_id: str) -> None:
        if self._open[key_id] >= MAX_STREAMS_OF_A_KEY:
            detail = f"The key {key_id} has {MAX_STREAMS_OF_A_KEY} streams at this server: end one of them."
            raise over_capacity(Refusal.STREAMS, detail, 10, MAX_STREAMS_OF_A_KEY, CONCURRENT)
        if self._open.total() >= MAX_STREAMS:
            raise unavailable("This server has as many streams as it can hold: try again later.", 10)

    def _ended(self, key_id: str) -> None:
        self._open[key_id] -= 1
        self._open += Counter()  # without keys that have none


@dataclass
class Stream:
    """What one client gets."""

    streams: WindowStreams
    read_request: ReadRequest
    accounts: frozenset[str]
    progress: Progress
    restarts: int
    """Of the feed, when it began."""
    _place: int = 0
    """In the feed."""
    _portion: asyncio.Task[tuple[Sequence[Change], Progress]] | None = None
    """What is being read of what the feed has no more."""

    async def chunks(self, is_reset: bool) -> AsyncIterator[bytes]:
        """Until the key does not hold any more, or the topic is another one, or has lost records."""
        feed, clock = self.streams.feed, self.streams.clock
        yield f"retry: {RETRY_MILLISECONDS}\n".encode() + self._position(RESET if is_reset else b"")
        sent_at = clock.monotonic()
        try:
            while self.streams.database.holds(self.read_request.key) and self._is_same(feed):
                events = await self._next()
                if not events and clock.monotonic() - sent_at >= self.streams.heartbeat_seconds:
                    # Also what was not for this client it need not read again.
                    events = [self._position(b": heartbeat\n")]
                for chunk in chunks_of(events):
                    if not self.streams.database.holds(self.read_request.key):
                        return
                    yield chunk
                    sent_at = clock.monotonic()
        finally:
            if self._portion is not None:
                self._portion.cancel()

    def _is_same(self, feed: WindowFeed) -> bool:
        return (feed.topic_id, feed.restarts) == (self.progress.topic_id, self.restarts)

    async def _next(self) -> list[bytes]:
        """Events, within CHECK_SECONDS; empty where there were none."""
        feed = self.streams.feed
        if not self.progress.has_reached(feed.starts):
            return await self._caught_up()
        changes, place = feed.read(self._place, READ_CHANGES)
        if place == self._place:
            await feed.wait(CHECK_SECONDS)
            return []
        self._place = place
        await asyncio.sleep(0)
        return self._events(changes)

    async def _caught_up(self) -> list[bytes]:
        if self._portion is None:
            reading = self.streams.catch_up.portion(self.progress, self.streams.feed.starts, self.accounts)
            self._portion = asyncio.create_task(reading)
        done, _ = await asyncio.wait([self._portion], timeout=CHECK_SECONDS)
        if not done:
            return []
        portion, self._portion = self._portion, None
        try:
            changes, reached = portion.result()
        except KafkaException as error:
            log.warning("earlier changes of windows cannot be read", reason=str(error).partition("\n")[0])
            await asyncio.sleep(CHECK_SECONDS)
            return []
        self._place = 0
        events = self._events(changes)
        self.progress = reached
        return events

    def _events(self, changes: Sequence[Change]) -> list[bytes]:
        """Those of the changes that are news to the client and of its accounts."""
        found = []
        for change in changes:
            if self.progress.lacks(change):
                self.progress.reach(change.partition, change.offset + 1)
                if may_see(change, self.accounts):
                    found.append(self._position(b"event: %b\ndata: %b\n" % (EVENT_TYPE, change.event)))
        return found

    def _position(self, lines: bytes) -> bytes:
        """These lines with the position after them: an event, or (without data) the position alone."""
        return b"%bid: %b\n\n" % (lines, self.progress.event_id.encode())


EVENT_TYPE = TYPES[Published.WINDOWS].encode()


def chunks_of(events: Sequence[bytes]) -> Iterator[bytes]:
    """The events in chunks of CHUNK_BYTES at most; a larger event is one by itself."""
    chunk = bytearray()
    for event in events:
        if chunk and len(chunk) + len(event) > CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
        chunk += event
    if chunk:
        yield bytes(chunk)


class EventStream(StreamingResponse):
    """A response that ends when its client does not read; `ended` is called once, however it ends."""

    def __init__(self, chunks: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(chunks, headers=HEADERS, media_type=MEDIA_TYPE)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()

    async def stream_response(self, send: Send) -> None:
        """Send all chunks, unless the client takes too long for one."""

        async def send_in_time(message: object) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)  # type: ignore[arg-type]

        try:
            await super().stream_response(send_in_time)
        except TimeoutError:
            log.info("a client does not read its stream, which ends")
