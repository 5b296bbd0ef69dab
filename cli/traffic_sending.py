"""Sends the records of a run, each at its instant."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from deployment.errors import CannotRun
from deployment.sender import Sender
from traffic.instants import milliseconds
from traffic.script import Record


def send(
    records: Sequence[Record],
    slack_ms: int,
    kafka: Mapping[str, str | int | float | bool],
    topic: str,
    tell: Callable[[str], None],
) -> dict[tuple[str, int], int]:
    """Send records and wait until the broker has acknowledged all; the next offset per topic and partition.

    Raises CannotRun when the broker refused a record, or has one so late that the truth may not hold any more.
    """
    sender = Sender(kafka)
    reported_at = 0.0
    for number, record in enumerate(records, start=1):
        while (early_ms := record.send_at_ms - _now_ms()) > 0:
            sender.wait(min(early_ms, 200) / 1000)
        sender.send(topic, record.key, record.value, number=number, planned_ms=record.send_at_ms)
        if time.monotonic() - reported_at >= 0.5:
            reported_at = time.monotonic()
            tell(f"{number} of {len(records)} sent, {sender.acknowledged} acknowledged")
    sender.flush()
    if sender.refused:
        first = sender.refused[0]
        raise CannotRun(f"The broker refused {len(sender.refused)} records, the first because {first.reason}.")
    if sender.longest_delay_ms > slack_ms:
        raise CannotRun(
            f"A record reached the broker {sender.longest_delay_ms / 1000:.0f} s after its time, so the expected "
            "result is not certain; try again with a lower --rate."
        )
    return sender.next_offsets


def _now_ms() -> int:
    return milliseconds(datetime.now(UTC))  # noqa: TID251 -- each record is sent at its instant
