"""Send usage from a program of your own to Kafka: one event for each call of a model, when it has ended.

python examples/send_usage.py KAFKA ACCOUNT        sends the usage of one call, and prints its id for `weir explain`
"""

import json
import sys
import uuid
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

SETTINGS = {
    "acks": "all",  # an event is sent when all replicas have it
    "enable.idempotence": True,  # and then once, in the order of `send`
    "partitioner": "murmur2_random",  # one key reaches one partition from every client
}


def usage_event(account: str, request_id: str, occurred_at: datetime, usage: dict[str, Any]) -> bytes:
    """The event of a call. The same call makes the same bytes, so it is billed once, however often it is sent."""
    event = {
        "specversion": "1.0",
        "type": "ai.inference.usage.v1",
        "source": "my-gateway",
        "id": request_id,
        "subject": account,
        "time": occurred_at.isoformat(),
        "data": {"request_id": request_id, "status": "completed", **usage},
    }
    return json.dumps(event).encode()


def on_delivery(error: KafkaError | None, _: Message) -> None:
    """Called for each event by `poll` and `flush`. One that no broker has is yours to keep, and to send again."""
    if error is not None:
        raise KafkaException(error)


if __name__ == "__main__":
    producer = Producer({"bootstrap.servers": sys.argv[1], **SETTINGS})
    account, request_id = sys.argv[2], str(uuid.uuid4())
    usage = {"model": "small-1", "input_tokens": 812, "output_tokens": 164}
    event = usage_event(account, request_id, datetime.now(UTC), usage)  # noqa: TID251 -- the top of the program
    producer.produce("events", event, key=account, on_delivery=on_delivery)
    producer.flush()
    print(request_id)
