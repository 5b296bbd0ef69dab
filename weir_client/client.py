"""The client for programs that block: a thread sends what `send` has put on disk."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from weir_client import requests
from weir_client.courier import Courier, Delivery, is_waiting, not_flushed
from weir_client.dead_file import DeadFile
from weir_client.encoding import encoded
from weir_client.errors import NotFlushed, OutboxError
from weir_client.outbox import DEFAULT_MAX_BYTES, Outbox

log = logging.getLogger("weir_client")

LOOK_EVERY_SECONDS = 1.0
"""For what other processes have put into the outbox, and whether the one that sends is gone."""
FLUSH_LOOKS_EVERY_SECONDS = 0.02
CLOSE_WITHIN_SECONDS = 5.0


class Client:
    """Sends events to the API at `url` with an API key of the scope `ingest`.

    `outbox` is a file on a local disk; several processes may share it. Rejected events are in `<outbox>.dead.jsonl`.
    Raises OutboxError where the file cannot be used.
    """

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
        self._dead = DeadFile(Path(f"{outbox}.dead.jsonl"))
        self._delivery = delivery
        self._is_closed = False
        self._process = 0
        self._start()

    def send(self, event: Mapping[str, Any]) -> None:
        """Put a CloudEvent on disk, from where it is sent. Raises OutboxError, and ValueError for what is no event.

        It needs `source`, `type` and `subject` (the account); `id` and `time` are made where they are left out.
        """
        self.send_all([event])

    def send_all(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Put many on disk at once, all or none: much cheaper than one by one."""
        if self._is_closed:
            raise OutboxError(f"The client of {self._outbox.path} is closed.")
        bodies = encoded(events)
        if bodies:
            self._outbox.append(bodies)
            self._start()
            self._wake.set()

    def flush(self, timeout_seconds: float = 30.0) -> None:
        """Wait until all that is in the outbox now has been taken or rejected. Raises NotFlushed and OutboxError."""
        self._start()
        self._wake.set()
        last = self._outbox.last()
        until = time.monotonic() + timeout_seconds
        while is_waiting(self._outbox, self._courier, last):
            if time.monotonic() >= until:
                raise not_flushed(self._outbox, self._courier)
            time.sleep(FLUSH_LOOKS_EVERY_SECONDS)

    def close(self, timeout_seconds: float = CLOSE_WITHIN_SECONDS) -> None:
        """Send for at most so long, and end. What is left is sent by the next client of this outbox."""
        if self._is_closed:
            return
        try:
            self.flush(timeout_seconds)
        except NotFlushed as error:
            log.warning("%s They are sent by the next client of this outbox.", error)
        finally:
            self._is_closed = True
            self._stop.set()
            self._wake.set()
            self._thread.join(timeout_seconds)
            self._outbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        """The thread that sends; another one after `fork`, which copies none."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._wake, self._stop = threading.Event(), threading.Event()
            self._courier = Courier(self._outbox, self._dead, self._delivery)
            self._thread = threading.Thread(target=self._keep_sending, name="weir-client", daemon=True)
            self._thread.start()

    def _keep_sending(self) -> None:
        courier = self._courier
        with httpx.Client(headers=self._headers, timeout=requests.TIMEOUT, verify=self._verify) as http:
            while not self._stop.is_set():
                try:
                    delay = self._send_next(http, courier)
                except Exception as error:  # noqa: BLE001  # a thread that ended would send nothing more
                    delay = courier.broken(error)
                if delay is None:
                    self._wake.wait(LOOK_EVERY_SECONDS)
                    self._wake.clear()
                elif delay:
                    self._stop.wait(delay)

    def _send_next(self, http: httpx.Client, courier: Courier) -> float | None:
        """Seconds until the next request; None: there is nothing to send."""
        batch = courier.next_batch()
        if batch is None:
            return None
        try:
            answer = http.post(self._address, content=batch.content)
        except httpx.HTTPError as error:
            return courier.failed(batch, requests.reason(error), is_unwritten=isinstance(error, requests.UNSENT))
        return courier.answered(batch, requests.meaning_of(answer, len(batch.numbers)))
