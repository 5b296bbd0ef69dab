"""Generated traffic at a low and steady rate, for as long as faults come, and the truth about it.

A record that no broker takes is sent until one does, once: idempotence gives each its place in the log, however often
librdkafka had to ask. One that reached the broker later than the generator's slack has an uncertain fate, so the run is
refused. A broker's clock may have been ahead at an earlier record: the running maximum keeps that for a while.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from catalog.file import CatalogFile
from cli.catalog import apply_catalog
from cli.traffic import policy_of
from jobs.streams import EVENTS_TOPIC
from tests.faults.stage import Stage
from traffic.generate import Traffic, catalog_of, generate
from traffic.placement import Placement
from traffic.truth import Truth, truth_of, write

SLACK_SECONDS = 180
MAX_AHEAD_SECONDS = 45
"""Of the broker's clock. With what a record may be late by itself it stays within the slack."""
LATEST_MS = (SLACK_SECONDS - MAX_AHEAD_SECONDS) * 1000
PREPARING_SECONDS = 60
PATIENCE_SECONDS = 900.0


def producing(stage: Stage) -> dict[str, str | int | float | bool]:
    """A producer that gives each record its place in the log once, however long the broker is away."""
    return {
        "bootstrap.servers": stage.deployment.kafka_bootstrap,
        "enable.idempotence": True,
        "delivery.timeout.ms": int(PATIENCE_SECONDS * 1000),
        # Else it gives up after 30 s what waits for a topic that it has never seen.
        "topic.metadata.propagation.max.ms": int(PATIENCE_SECONDS * 1000),
        "socket.connection.setup.timeout.ms": 5_000,
        "reconnect.backoff.max.ms": 1_000,
        "partitioner": "murmur2_random",
        # The broker's limit is on a whole batch: what has waited for a broker must not be refused for its size.
        "batch.size": 128 << 10,
        "log_level": 0,
    }


class NotSent(Exception):
    """The traffic could not be sent as it was drawn, so nobody knows what must come of it."""


class Sending:
    """Sends a run of traffic in a thread. `truth` holds once `finish` has returned."""

    def __init__(self, stage: Stage, *, seed: int, seconds: float, rate: float, folder: Path) -> None:
        placement = Placement(policy_of(stage.deployment), slack_seconds=SLACK_SECONDS)
        policy = placement.policy
        catalog = catalog_of(seed, _now_ms(), policy.priced, knows_attributes=policy.knows_attributes)
        for file in catalog.files():
            apply_catalog(stage.deployment, CatalogFile.model_validate(file), 120, lambda _: None, confirms=True)
        start_ms = _now_ms() + PREPARING_SECONDS * 1000
        records = int(seconds * rate)
        self._run: Traffic = generate(
            seed=seed, start_ms=start_ms, records=records, placement=placement, catalog=catalog, rate=rate
        )
        self.truth: Truth = truth_of(self._run)
        write(self.truth, folder / "truth.json")
        self.records = len(self._run.records)
        self.acknowledged = 0
        self.longest_delay_ms = 0
        self._refused: list[str] = []
        self._producer = Producer({**producing(stage), "linger.ms": 20})
        self._thread = threading.Thread(target=self._send, name="traffic", daemon=True)

    def start(self) -> float:
        """Begin, and wait until the first record is due; gives that instant (monotonic seconds)."""
        self._thread.start()
        time.sleep(max(0.0, (self._run.start_ms - _now_ms()) / 1000))
        return time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether all of it is acknowledged or given up."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Wait until everything is acknowledged. Raises `NotSent`."""
        self._thread.join()
        if self._refused or self.acknowledged != self.records:
            raise NotSent(f"{self.records - self.acknowledged} records were not taken: {self._refused[:1]}")
        if self.longest_delay_ms > LATEST_MS:
            raise NotSent(f"a record was received {self.longest_delay_ms / 1000:.0f} s after its time")

    def _send(self) -> None:
        for record in self._run.records:
            while (early_ms := record.send_at_ms - _now_ms()) > 0:
                self._producer.poll(min(early_ms, 200) / 1000)
            self._producer.produce(
                EVENTS_TOPIC, record.value, record.key, on_delivery=partial(self._delivered, record.send_at_ms)
            )
        self._producer.flush(PATIENCE_SECONDS)

    def _delivered(self, planned_ms: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._refused.append(str(error))
            return
        self.acknowledged += 1
        self.longest_delay_ms = max(self.longest_delay_ms, message.timestamp()[1] - planned_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
