"""The heartbeat, which moves frontiers without traffic: fast while something waits for them, else once a minute."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from jobs.runtime.kafka.access import KafkaSettings
from jobs.runtime.kafka.topic import TIMEOUT_SECONDS
from jobs.streams import HEARTBEAT_SOURCE
from metering.instants import Clock, rfc3339
from metering.reports import IDLE_BEAT_SECONDS
from metering.vocabulary import EventType
from monitoring import metrics

CLOSE_SECONDS = 1.0
IDLE = timedelta(seconds=IDLE_BEAT_SECONDS)

log = structlog.get_logger()


class Heartbeat:
    """Appends a `source.heartbeat.v1` of source `weir` to every partition of some topics, at every interval; `idle`
    while nothing is open.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        topics: Sequence[str],
        epoch: int,
        interval: timedelta,
        clock: Clock,
        *,
        idle: timedelta = IDLE,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._kafka = kafka
        self._topics = tuple(topics)
        for topic in self._topics:
            metrics.HEARTBEATS_FAILED.start(topic=topic)
        self._epoch = epoch
        self._interval = interval
        self._idle = max(interval, idle)
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._producer, self._is_dead = self._new_producer(), False
        self.is_idle = False
        """Whether it beats slowly."""
        self._is_stopped = False
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def _new_producer(self) -> Producer:
        return Producer({**self._kafka, "linger.ms": 0, "enable.idempotence": True})

    def start(self) -> None:
        """Beat once and then at every interval until closed."""
        self._thread.start()

    def rest(self) -> None:
        """Nothing waits for the frontier: beat slowly from the next beat on."""
        self.is_idle = True

    def wake(self) -> None:
        """Something may wait for the frontier: beat quickly, and at once where it rested."""
        if self.is_idle:
            self.is_idle = False
            self._woken.set()

    def _run(self) -> None:
        while True:
            self._woken.clear()
            if self._is_stopped:
                return
            self._beat()
            self._woken.wait((self._idle if self.is_idle else self._interval).total_seconds())

    def _beat(self) -> None:
        for topic in self._topics:
            self._beat_in(topic)

    def _beat_in(self, name: str) -> None:
        try:
            if self._is_dead:
                # An idempotent producer whose sequence the broker has lost fails for ever, and reports it once.
                log.warning("the producer of heartbeats failed for good and is replaced")
                self._producer, self._is_dead = self._new_producer(), False
            # Asked by the producer itself, so that it knows of an added partition when it produces to it.
            metadata = self._producer.list_topics(name, timeout=self._timeout_seconds)
            topic = metadata.topics[name]
            if topic.error is not None:
                raise KafkaException(topic.error)
            for partition in topic.partitions:
                value = heartbeat(self._epoch, partition, self._clock.now(), "" if name == self._topics[0] else name)
                self._producer.produce(name, value, b"weir", partition, on_delivery=self._delivered)
            self._producer.poll(0)
        except (KafkaException, BufferError) as error:
            reason = error.args[0] if error.args else None
            self._is_dead = self._is_dead or is_fatal(reason)
            metrics.HEARTBEATS_FAILED.inc(topic=name)
            log.warning("heartbeats could not be sent", topic=name, error=str(error))

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        """Told by the producer, when it is next polled, of each beat."""
        if error is not None:
            self._is_dead = self._is_dead or is_fatal(error)
            metrics.HEARTBEATS_FAILED.inc(topic=str(message.topic()))
            place = {"topic": message.topic(), "partition": message.partition()}
            log.warning("a broker did not accept a heartbeat", **place, error=str(error))

    def close(self) -> None:
        """Stop beating."""
        self._is_stopped = True
        self._woken.set()
        # Without a broker both would take long, and a beat that is missing is made up for by the next.
        self._thread.join(CLOSE_SECONDS)
        try:
            self._producer.flush(CLOSE_SECONDS)
        except KafkaException as error:
            log.info("the last heartbeats were not sent", error=str(error))


def is_fatal(error: object) -> bool:
    """Whether a producer that has met this will never send again."""
    return isinstance(error, KafkaError) and (error.fatal() or error.code() == KafkaError._FATAL)


def heartbeat(epoch: int, partition: int, now: datetime, topic: str = "") -> bytes:
    """The CloudEvent that one beat appends to one partition. `topic`: in its id, for all topics but the first."""
    beat_at = rfc3339(now)
    where = f"{topic}.{partition}" if topic else str(partition)
    return json.dumps(
        {
            "specversion": "1.0",
            "type": EventType.HEARTBEAT,
            "source": HEARTBEAT_SOURCE,
            "id": f"{epoch}.{where}.{beat_at}",
            "time": beat_at,
            "data": {},
        }
    ).encode()
