"""How far a client has come stands in each event's id, and what is no such id is taken for none."""

from __future__ import annotations

import asyncio
import time
from unittest.mock import Mock as Double

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition, Uuid
from hypothesis import given
from hypothesis import strategies as st

from api import window_feed
from api.window_changes import Change, Progress, may_see, progress_of
from api.window_feed import WindowFeed
from jobs.runtime.kafka.topic import Topic

PARTITIONS = st.integers(0, 999)
POSITIONS = st.dictionaries(PARTITIONS, st.integers(0, 10**18 - 1), max_size=40)
_HALVES = st.integers(-(2**63), 2**63 - 1)
TOPIC_IDS = st.builds(Uuid, _HALVES, _HALVES).map(str)
"""As Kafka's client writes them: half of them have a `/` or a `+`."""


@given(topic_id=TOPIC_IDS, positions=POSITIONS)
def test_an_id_that_comes_back_is_what_it_was(topic_id: str, positions: dict[int, int]) -> None:
    progress = Progress(topic_id, positions)
    assert progress_of(progress.event_id) == progress


@given(st.text() | st.from_regex(r"[a-z]/[0-9:,]*"))
def test_any_text_is_an_id_or_none(text: str) -> None:
    found = progress_of(text)
    assert found is None or all(position >= 0 for position in found.positions.values())


@given(positions=POSITIONS, offsets=st.lists(st.tuples(PARTITIONS, st.integers(0, 10**18)), max_size=20))
def test_each_change_is_news_once_whatever_comes_again(
    positions: dict[int, int], offsets: list[tuple[int, int]]
) -> None:
    progress = Progress("t", dict(positions))
    for partition, offset in [*offsets, *offsets]:
        change = Change(partition, offset, "a", b"{}")
        is_below = offset < progress.positions.get(partition, 0)
        assert progress.lacks(change) is not is_below
        progress.reach(partition, offset + 1)
        assert not progress.lacks(change)
    assert progress.has_reached(positions)


def test_no_accounts_are_all_and_some_are_those() -> None:
    change = Change(0, 0, "acme", b"{}")
    assert may_see(change, frozenset())
    assert may_see(change, {"acme", "b"})
    assert not may_see(change, {"b"})


def test_an_unexpected_error_does_not_end_the_reading_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []

    def broken(*_: object) -> None:
        looked.append(time.monotonic())
        raise ValueError("a fault of ours")

    async def read() -> None:
        feed = WindowFeed({})
        starting = asyncio.create_task(feed.start())
        try:
            async with asyncio.timeout(30):
                while len(looked) < 2:
                    await asyncio.sleep(0.05)
        finally:
            feed.close()
            starting.cancel()

    monkeypatch.setattr(window_feed, "AdminClient", Double())
    monkeypatch.setattr(window_feed, "list_partitions", broken)
    asyncio.run(read())
    assert len(looked) >= 2, "it looks again"


def test_a_topic_that_does_not_have_the_next_offset_any_more_is_read_from_its_end_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its end was lost with a broker: asked again, it would refuse the same offset for ever."""
    log_ends, assigned = [7, 3, 3], []
    feed = WindowFeed({})

    class Reader:
        """Of a topic that ended at 7 when it was first asked, and ends at 3."""

        def __init__(self, _: object) -> None:
            self.position = 0

        def assign(self, places: list[TopicPartition]) -> None:
            self.position = places[0].offset
            assigned.append(self.position)

        def consume(self, *_: object) -> list[object]:
            time.sleep(0.01)
            if self.position > 3:
                raise KafkaException(KafkaError(KafkaError._AUTO_OFFSET_RESET))
            return []

        def close(self) -> None:
            """Nothing is open."""

    async def read() -> None:
        try:
            await feed.start()
            async with asyncio.timeout(60):
                while feed.restarts == 0 or len(assigned) < 2:
                    await asyncio.sleep(0.01)
        finally:
            feed.close()

    monkeypatch.setattr(window_feed, "AdminClient", Double())
    monkeypatch.setattr(window_feed, "Consumer", Reader)
    monkeypatch.setattr(window_feed, "list_partitions", lambda *_: [Topic("windows", "t", (0,))])
    monkeypatch.setattr(window_feed, "offsets", lambda *_: {0: log_ends.pop(0)})
    asyncio.run(read())
    assert assigned == [7, 3]
    assert (feed.restarts, feed.end.positions, feed.starts) == (1, {0: 3}, {0: 3}), "streams of before end"
    assert asyncio.run(feed.lacks(Progress("t", {0: 5})))
