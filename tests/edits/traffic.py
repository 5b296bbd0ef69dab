"""Usage of the accounts that are edited, at a low and steady rate, and what each request must count."""

from __future__ import annotations

import heapq
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from tests.edits.editor import MODELS

TOPIC = "events"
MAX_PAUSE_SECONDS = 8.0
"""Between a request and its completion, so that the catalog changes between them."""
PATIENCE_MS = 300_000


@dataclass(frozen=True)
class Sent:
    """A request: its account, its model, when it occurred, and how many units of each meter it counts."""

    account: str
    model: str
    event_time: datetime
    quantities: dict[str, int]


class Traffic:
    """Sends as long as its context lasts. `sent`: by request id what was."""

    def __init__(
        self,
        bootstrap: str,
        names: str,
        accounts: Sequence[str],
        random: Random,
        instants: Sequence[datetime],
        *,
        rate: float,
        abandons: bool,
    ) -> None:
        """`abandons`: some requests are never completed."""
        self._names, self._accounts, self._random, self._instants = names, accounts, random, instants
        self._pause_seconds, self._abandons = 1 / rate, abandons
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "delivery.timeout.ms": PATIENCE_MS}
        )
        self._due: list[tuple[float, int, dict[str, Any]]] = []
        self._numbers = count()
        self._stopped = threading.Event()
        self.sent: dict[str, Sent] = {}
        self.refused: list[str] = []

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """For as long as the block lasts; then until all of it is acknowledged."""
        thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_seconds):
            self._one()
            self._complete(time.monotonic())
            self._producer.poll(0)
        while self._due:
            self._complete(time.monotonic())
            time.sleep(0.05)
        if self._producer.flush(PATIENCE_MS / 1000):
            self.refused.append("not acknowledged in time")

    def _one(self) -> None:
        request_id = f"{self._names}-{next(self._numbers)}"
        account, model, at = self._random.choice(self._accounts), self._random.choice(MODELS), self._time()
        request = {"request_id": request_id, "user_id": "u", "model": model, "operation": "chat"}
        tokens = {"input_tokens": self._random.randrange(5_000), "output_tokens": self._random.randrange(5_000)}
        outcome = {"request_id": request_id, "status": "completed", "usage_source": "provider", **tokens}
        counted = {"requests": 1, **tokens}
        match self._random.choices(("usage", "pair", "lone"), (70, 26, 4 if self._abandons else 0))[0]:
            case "usage":
                self._send("ai.inference.usage.v1", account, at, {**request, **outcome})
            case "pair":
                self._send("ai.inference.request.v1", account, at, request)
                due = time.monotonic() + self._random.uniform(0, MAX_PAUSE_SECONDS)
                event = {"kind": "ai.inference.completion.v1", "account": account, "at": at, "data": outcome}
                heapq.heappush(self._due, (due, len(self.sent), event))
            case "lone":
                self._send("ai.inference.request.v1", account, at, request)
                counted = {"requests": 1}
        self.sent[request_id] = Sent(account, model, at, counted)

    def _complete(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            self._send(**heapq.heappop(self._due)[-1])

    def _time(self) -> datetime:
        """About now, or some time ago, or exactly when a price may begin."""
        now = datetime.now(UTC)
        exact = [instant for instant in self._instants if instant < now + timedelta(minutes=4)]
        ago = timedelta(seconds=self._random.choice((0, 60, 7_200, 20 * 86_400)) * self._random.random())
        return self._random.choice(exact) if self._random.random() < 0.2 else now - ago

    def _send(self, kind: str, account: str, at: datetime, data: dict[str, Any]) -> None:
        envelope = {"specversion": "1.0", "type": kind, "source": f"gateway/{self._names}", "subject": account}
        identity = f"{data['request_id']}/{kind}"
        event: dict[str, Any] = {**envelope, "id": identity, "time": at.isoformat(), "data": data}

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self.refused.append(str(error))

        self._producer.produce(TOPIC, json.dumps(event), account, on_delivery=delivered)
