"""The producer goes on after an error from which librdkafka's own does not recover."""

from __future__ import annotations

import asyncio
import ctypes
from http import HTTPStatus
from pathlib import Path

import confluent_kafka
import pytest

from api.problems import Problem
from api.producer import AcknowledgedProducer, Record
from laptop.ports import LOOPBACK, free_ports
from monitoring.instruments import REGISTRY

OUT_OF_ORDER = 45
EVENTS = [Record(b"acme", b"{}")]


def fail_for_good(producer: AcknowledgedProducer) -> None:
    """What a broker's OUT_OF_ORDER_SEQUENCE_NUMBER does to an idempotent producer: librdkafka has a call for tests."""
    (library,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka-*.so*")
    call = ctypes.CDLL(str(library)).rd_kafka_test_fatal_error
    call.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    # The handle stands behind the head of the Python object.
    handle = ctypes.c_void_p.from_address(id(producer._producer) + object.__basicsize__).value
    assert call(handle, OUT_OF_ORDER, b"a test") == 0


async def sent(producer: AcknowledgedProducer) -> bool:
    """Whether events were acknowledged; what is not answered at all fails the test."""
    try:
        async with asyncio.timeout(60):
            return bool(await producer.send("events", EVENTS))
    except Problem:
        return False


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_producer_that_failed_for_good_is_replaced_and_every_request_is_answered() -> None:
    producer = AcknowledgedProducer({"bootstrap.servers": "none", "test.mock.num.brokers": 1}, {})

    async def sends() -> None:
        assert await sent(producer)
        for _ in range(2):
            waiting = [asyncio.create_task(sent(producer)) for _ in range(20)]
            await asyncio.sleep(0)
            fail_for_good(producer)
            await asyncio.gather(*waiting)
            async with asyncio.timeout(60):
                while not await sent(producer):
                    await asyncio.sleep(0.1)
        assert producer.pending_bytes == 0

    try:
        asyncio.run(sends())
    finally:
        producer.close()


@pytest.mark.long
def test_more_small_events_than_the_queue_takes_are_too_many() -> None:
    producer = AcknowledgedProducer({"bootstrap.servers": "127.0.0.1:1"}, {})

    async def sends() -> set[HTTPStatus]:
        waiting = [producer.send("events", EVENTS * 1_000) for _ in range(102)]
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        return {answer.status for answer in answers if isinstance(answer, Problem)}

    try:
        assert asyncio.run(sends()) == {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS}
        assert producer.pending_bytes == 0
    finally:
        producer.close()


@pytest.mark.long
def test_records_are_counted_as_long_as_no_broker_has_acknowledged_them() -> None:
    (port,) = free_ports(1)
    producer = AcknowledgedProducer({"bootstrap.servers": f"{LOOPBACK}:{port}"}, {})

    def pending() -> float | None:
        return REGISTRY.get_sample_value("weir_api_pending_records")

    async def sends() -> None:
        waiting = [asyncio.create_task(producer.send("events", EVENTS * 3)) for _ in range(2)]
        await asyncio.sleep(0)
        assert pending() == 6
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(answer, Problem) for answer in answers)
        assert pending() == 0

    try:
        asyncio.run(sends())
    finally:
        producer.close()
