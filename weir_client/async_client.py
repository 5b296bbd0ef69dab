"""The client for asyncio: a task sends what `send` has put on disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx

from weir_client import requests
from weir_client.client import CLOSE_WITHIN_SECONDS, FLUSH_LOOKS_EVERY_SECONDS, LOOK_EVERY_SECONDS
from weir_client.courier import Courier, Delivery, is_waiting, not_flushed
from weir_client.dead_file import DeadFile
from weir_client.encoding import encoded
from weir_client.errors import NotFlushed, OutboxError
from weir_client.outbox import DEFAULT_MAX_BYTES, Outbox

log = logging.getLogger("weir_client")


class AsyncClient:
    """As `Client`, for one event loop. The disk is written in a thread, so nothing blocks the loop."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        outbox: str | Path,
        delivery: Delivery = Delivery.AT_LEAST_ONCE,
        max_outbox_bytes: int = DEFAULT_MAX_BYTES,
        verify: bool | str = True,
    ) -> None:
        self._address = requests.address(url)
        self._headers = requests.headers(key)
        self._verify = verify
        self._outbox = Outbox(Path(outbox), max_outbox_bytes)
        self._courier = Courier(self._outbox, DeadFile(Path(f"{outbox}.dead.jsonl")), delivery)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def send(self, event: Mapping[str, Any]) -> None:
        """As `Client.send`."""
        await self.send_all([event])

    async def send_all(self, events: Iterable[Mapping[str, Any]]) -> None:
        """As `Client.send_all`."""
        if self._is_closed:
            raise OutboxError(f"The client of {self._outbox.path} is closed.")
        bodies = encoded(events)
        if bodies:
            await asyncio.to_thread(self._outbox.append, bodies)
            self._start()

    async def flush(self, timeout_seconds: float = 30.0) -> None:
        """As `Client.flush`."""
        self._start()
        last = await asyncio.to_thread(self._outbox.last)
        until = time.monotonic() + timeout_seconds
        while await asyncio.to_thread(is_waiting, self._outbox, self._courier, last):
            if time.monotonic() >= until:
                raise await asyncio.to_thread(not_flushed, self._outbox, self._courier)
            await asyncio.sleep(FLUSH_LOOKS_EVERY_SECONDS)

    async def close(self, timeout_seconds: float = CLOSE_WITHIN_SECONDS) -> None:
        """As `Client.close`."""
        if self._is_closed:
            return
        try:
            await self.flush(timeout_seconds)
        except NotFlushed as error:
            log.warning("%s They are sent by the next client of this outbox.", error)
        finally:
            self._is_closed = True
            if self._task is not None:
                self._task.cancel()
                with suppress(asyncio.CancelledError):
                    await self._task
            await asyncio.to_thread(self._outbox.close)

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _start(self) -> None:
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_sending(), name="weir-client")

    async def _keep_sending(self) -> None:
        async with httpx.AsyncClient(headers=self._headers, timeout=requests.TIMEOUT, verify=self._verify) as http:
            # Not for ever: before Python 3.12 `wait_for` may lose the cancellation by `close`.
            while not self._is_closed:
                try:
                    delay = await self._send_next(http)
                except Exception as error:  # noqa: BLE001  # a task that ended would send nothing more
                    delay = self._courier.broken(error)
                if delay is None:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), LOOK_EVERY_SECONDS)
                    self._wake.clear()
                elif delay:
                    await asyncio.sleep(delay)

    async def _send_next(self, http: httpx.AsyncClient) -> float | None:
        """Seconds until the next request; None: there is nothing to send."""
        courier = self._courier
        batch = await asyncio.to_thread(courier.next_batch)
        if batch is None:
            return None
        try:
            answer = await http.post(self._address, content=batch.content)
        except httpx.HTTPError as error:
            is_unwritten = isinstance(error, requests.UNSENT)
            return courier.failed(batch, requests.reason(error), is_unwritten=is_unwritten)
        return await asyncio.to_thread(courier.answered, batch, requests.meaning_of(answer, len(batch.numbers)))
