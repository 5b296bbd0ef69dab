"""A receiver of webhooks on this machine that does what receivers do: it fails, delays, dies, redirects, asks for time.

It is one event loop's server. What it applies is decided before it answers, as in a system that commits and then dies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

REASONS = {
    200: "OK",
    204: "No Content",
    302: "Found",
    404: "Not Found",
    410: "Gone",
    429: "Too Many Requests",
    500: "Error",
    502: "Bad Gateway",
}


@dataclass(frozen=True)
class Call:
    """A POST as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["data"]
        return found


@dataclass(frozen=True)
class Answer:
    """`status` None: the connection ends without one. `takes`: whether the event is applied before that."""

    status: int | None = 204
    takes: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    body: str = ""


class Receiver:
    """`answers` decides on each call; `taken` are the calls that were applied, repeats among them.

    `connections` counts those that came, with a call or without.
    """

    def __init__(self, answers: Callable[[Call], Answer] = lambda _: Answer()) -> None:
        self.answers = answers
        self.calls: list[Call] = []
        self.taken: list[Call] = []
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Receiver]:
        """Listen until the block ends."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the sender was killed
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        call = Call(first.split(" ")[1], headers, await reader.readexactly(int(headers["content-length"])))
        self.calls.append(call)
        answer = self.answers(call)
        if answer.takes:
            self.taken.append(call)
        await asyncio.sleep(answer.delay_seconds)
        if answer.status is None:
            return
        more = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        begin = f"HTTP/1.1 {answer.status} {REASONS[answer.status]}\r\ncontent-length: {len(answer.body)}\r\n"
        writer.write(f"{begin}{more}\r\n{answer.body}".encode())
        await writer.drain()
