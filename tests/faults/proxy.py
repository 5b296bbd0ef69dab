"""A TCP proxy that misbehaves when it is told to, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from enum import Enum, auto

from laptop.ports import LOOPBACK

CHUNK_BYTES = 1 << 16
Mend = Callable[[], None]


class Mode(Enum):
    """What becomes of what passes through."""

    PASS = auto()
    REFUSE = auto()
    DELAY = auto()
    HOLD = auto()
    SWALLOW = auto()


class Proxy:
    """Passes `port` on to `upstream` on the loopback address.

    `asks` tells the requests whose answer `lose_answers` swallows; the client gets `instead`, and then an end.
    """

    def __init__(self, port: int, upstream: int, asks: Callable[[bytes], bool], instead: bytes = b"") -> None:
        self.port, self._upstream = port, upstream
        self._asks, self._instead = asks, instead
        self._mode, self._delay_seconds = Mode.PASS, 0.0
        self._open: set[asyncio.StreamWriter] = set()
        self._swallowed = self._times_told = 0
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._released.set()
        ready = threading.Event()
        threading.Thread(target=self._run, args=[ready], name=f"proxy of {upstream}", daemon=True).start()
        if not ready.wait(10):
            raise RuntimeError(f"the proxy of port {upstream} does not listen")

    @property
    def swallowed(self) -> int:
        """How many answers were lost so far."""
        return self._swallowed

    def cut(self) -> Mend:
        """End every connection, and each new one."""
        return self._become(Mode.REFUSE)

    def delay(self, seconds: float) -> Mend:
        """Let each answer come so much later."""
        self._delay_seconds = seconds
        return self._become(Mode.DELAY)

    def hold(self) -> Mend:
        """Let nothing through and end nothing. When it is over all is reset: whoever was in between has forgotten."""
        return self._become(Mode.HOLD)

    def lose_answers(self) -> Mend:
        """Pass requests on, and end the connection instead of answering."""
        return self._become(Mode.SWALLOW)

    def _become(self, mode: Mode) -> Mend:
        """The way back does nothing where something else has been told meanwhile."""
        done = threading.Event()
        self._times_told += 1
        told = self._times_told

        def change() -> None:
            resets = mode is Mode.REFUSE or self._mode is Mode.HOLD
            self._mode = mode
            for writer in list(self._open) if resets else ():
                writer.transport.abort()
            if mode is Mode.HOLD:
                self._released.clear()
            else:
                self._released.set()
            done.set()

        def mend() -> None:
            if self._times_told == told:
                self._become(Mode.PASS)

        self._loop.call_soon_threadsafe(change)
        done.wait(10)
        return mend

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._serve, LOOPBACK, self.port))
        self._loop.call_soon(ready.set)
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._open.add(writer)
        try:
            await self._released.wait()
            if self._mode is Mode.REFUSE:
                return
            up_reader, up_writer = await asyncio.open_connection(LOOPBACK, self._upstream)
            ends.append(up_writer)
            self._open.add(up_writer)
            connection = _Connection()
            await asyncio.gather(
                self._pump(reader, up_writer, connection, is_request=True),
                self._pump(up_reader, writer, connection, is_request=False),
            )
        except OSError:
            pass  # one end has gone, so the other goes
        finally:
            for end in ends:
                self._open.discard(end)
                end.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, connection: _Connection, *, is_request: bool
    ) -> None:
        while chunk := await source.read(CHUNK_BYTES):
            await self._released.wait()
            if is_request:
                connection.asked = self._asks(chunk) or connection.asked
            elif self._mode is Mode.SWALLOW and connection.asked:
                self._swallowed += 1
                sink.write(self._instead)
                await sink.drain()
                raise ConnectionResetError("the answer is lost")
            else:
                connection.asked = False
                if self._mode is Mode.DELAY:
                    await asyncio.sleep(self._delay_seconds)
            sink.write(chunk)
            await sink.drain()
        await self._released.wait()
        if sink.can_write_eof():
            sink.write_eof()


class _Connection:
    """Whether the request that was sent last is one whose answer may be lost."""

    asked = False
