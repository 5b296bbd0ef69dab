"""F over several topics, against a fold of one record after the other: the same however batches are cut, and drivers
end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.ingestion.broker_clock import Look, followed
from jobs.ingestion.event_topics import EventTopic, EventTopics
from jobs.ingestion.ledger import OffsetLedger
from jobs.ingestion.received import INSTANT, Restamp
from jobs.runtime.delta.table import FRONTIER, instant_of, microseconds_of
from jobs.runtime.errors import NotYet
from jobs.runtime.kafka.records import PLACE
from jobs.runtime.kafka.topic import Topic
from metering.instants import EPOCH

START = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS, GATEWAY = Topic("events", "id of events", (0, 1)), Topic("gateway", "id of gateway", (0,))
PARTITIONS = [(topic.name, partition) for topic in (EVENTS, GATEWAY) for partition in topic.partitions]
SCHEMA: dict[str, Any] = {**PLACE, "stamped_at": INSTANT, "is_broker_stamp": pl.Boolean}
Record = tuple[str, int, int, datetime, bool]


class Journal:
    """The transactions of a journal, and drivers that begin where they end."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def recall(self, name: str) -> int | None:
        return self.known.get(name)

    @contextmanager
    def kafka(self) -> Iterator[None]:
        """Every partition holds all from its first record on."""
        earliest = patch("jobs.ingestion.ledger.offsets", lambda _admin, topic, _at: dict.fromkeys(topic.partitions, 0))
        with earliest, patch("jobs.ingestion.ledger.refuse_lost_records", lambda *_: None):
            yield

    def driver(self, *topics: Topic) -> EventTopics:
        absent: Any = SimpleNamespace(prove=_sizes)
        with self.kafka():
            ledgers = [OffsetLedger(self, None, topic, decides_frontier=True) for topic in topics]  # type: ignore[arg-type]
        return EventTopics([EventTopic(ledger, absent) for ledger in ledgers])

    def take(self, driver: EventTopics, records: Sequence[Record], restamps: dict[str, Any] | None = None) -> Any:
        """Let records come, in no order; gives (topic, partition, offset, received_at)."""
        received = driver.received(pl.DataFrame(list(records)[::-1], schema=SCHEMA, orient="row"), restamps or {})
        transactions = driver.take(received, driver.proved(received))
        if (frontier := driver.frontier()) is not None:
            transactions[FRONTIER] = microseconds_of(frontier)
        self.known |= transactions
        return received.select(*PLACE, "received_at").rows()


def _sizes(gaps: Sequence[Any]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for gap in gaps:
        sizes[gap.partition] = sizes.get(gap.partition, 0) + gap.end - gap.first
    return sizes


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records of both topics in the order of their append, at equal places; clocks step back, and producers stamp."""
    offsets, log = dict.fromkeys(PARTITIONS, 0), []
    for _ in range(draw(st.integers(0, 25))):
        place = draw(st.sampled_from(PARTITIONS))
        log.append((*place, offsets[place], at(draw(st.integers(0, 30))), draw(st.booleans())))
        offsets[place] += draw(st.integers(1, 2))
    return log


@settings(max_examples=60, deadline=None)
@given(logs(), st.sets(st.integers(0, 25)), st.sets(st.integers(0, 25)))
def test_oracle_any_cuts_and_restarts_give_the_receptions_and_frontiers_of_a_fold(
    log: list[Record], cuts: set[int], restarts: set[int]
) -> None:
    journal = Journal()
    driver, found, latest, oracle = journal.driver(EVENTS, GATEWAY), [], dict[tuple[str, int], datetime](), {}
    frontier: datetime | None = None
    for first, end in pairwise(sorted({0, len(log), *(cut for cut in cuts | restarts if cut < len(log))})):
        if first in restarts:
            driver = journal.driver(EVENTS, GATEWAY)
            assert driver.frontier() == frontier
        found += journal.take(driver, log[first:end])
        for topic, partition, offset, stamp, is_broker_stamp in log[first:end]:
            place = topic, partition
            if is_broker_stamp:
                latest[place] = max(stamp, latest.get(place, stamp))
            oracle[topic, partition, offset] = latest.get(place, EPOCH)
        if latest.keys() == set(PARTITIONS):
            frontier = min(latest.values())
        assert driver.frontier() == frontier == instant_of(journal.recall(FRONTIER))
    assert {row[:3]: row[3] for row in found} == oracle
    for ledger in driver.ledgers:
        assert ledger.records() == sum(name == ledger.topic.name for name, *_ in log)


def test_a_topic_that_is_added_holds_f_until_it_is_heard_of_and_brings_nothing_from_before() -> None:
    journal = Journal()
    one = Topic("events", "id of events", (0,))
    journal.take(journal.driver(one), [("events", 0, 0, at(10), True)])
    both = journal.driver(one, GATEWAY)

    journal.take(both, [("events", 0, 1, at(20), True)])
    assert both.frontier() == at(10)
    # A driver that ends here knows no more than F; what an old record becomes must not depend on that.
    waited = [("gateway", 0, 0, at(3), True), ("gateway", 0, 1, at(12), True)]
    another = journal.driver(one, GATEWAY).received(_frame(waited), {})
    assert another["received_at"].to_list() == [at(10), at(12)]
    assert [row[3] for row in journal.take(both, waited)] == [at(10), at(12)]
    assert both.frontier() == at(12)


def test_a_partition_that_is_added_is_held_to_the_f_of_all_topics() -> None:
    """A topic's own receptions may be ahead of F: a driver that starts anew knows only F."""
    journal, one = Journal(), Topic("events", "id of events", (0,))
    driver = journal.driver(one, GATEWAY)
    journal.take(driver, [("events", 0, 0, at(20), True), ("gateway", 0, 0, at(10), True)])
    with journal.kafka():
        driver.ledgers[0].follow(None, EVENTS)  # type: ignore[arg-type]

    added = _frame([("events", 1, 0, at(12), True)])
    for reading in (driver, journal.driver(EVENTS, GATEWAY)):
        assert reading.received(added, {})["received_at"].to_list() == [at(12)]


def test_a_partition_that_is_added_before_all_topics_are_heard_of_is_held_to_nothing() -> None:
    """There is no F yet, so a driver that starts anew knows none."""
    journal, one = Journal(), Topic("events", "id of events", (0,))
    driver = journal.driver(one, GATEWAY)
    journal.take(driver, [("events", 0, 0, at(20), True)])
    assert driver.frontier() is None
    with journal.kafka():
        driver.ledgers[0].follow(None, EVENTS)  # type: ignore[arg-type]

    added = _frame([("events", 1, 0, at(12), True)])
    for reading in (driver, journal.driver(EVENTS, GATEWAY)):
        assert reading.received(added, {})["received_at"].to_list() == [at(12)]


def test_without_a_topic_f_goes_on_with_the_others() -> None:
    journal = Journal()
    one = Topic("events", "id of events", (0,))
    journal.take(journal.driver(one, GATEWAY), [("events", 0, 0, at(50), True), ("gateway", 0, 0, at(10), True)])
    alone = journal.driver(one)
    assert alone.frontier() == at(10)
    journal.take(alone, [])
    assert alone.frontier() == at(50)


def test_a_wrong_stamp_is_restamped_in_its_own_topic_and_told_with_it() -> None:
    journal, records = Journal(), [("events", 0, 0, at(9), True), ("gateway", 0, 0, at(9), True)]
    driver = journal.driver(EVENTS, GATEWAY)
    restamps = {"events": (), "gateway": (Restamp(0, 0, 0),)}

    with pytest.raises(NotYet, match=r"restamp 0 0 0 --topic events$"):
        driver.wait_for_stamps(_frame(records), Look(START, restamps), timedelta(seconds=1))
    driver.wait_for_stamps(_frame(records[1:]), Look(START, restamps), timedelta(seconds=1))

    rows = journal.take(driver, records, restamps)
    assert {row[0]: row[3] for row in rows} == {"events": at(9), "gateway": EPOCH}
    told = {"topic": "gateway", "partition": 0, "from": 0, "to": 0}
    assert followed(_frame(records), restamps) == {"restamped": [told]}
    alone = {"gateway": restamps["gateway"]}
    assert followed(_frame(records), alone) == {"restamped": [{"partition": 0, "from": 0, "to": 0}]}


def _frame(records: Sequence[Record]) -> pl.DataFrame:
    return pl.DataFrame(records, schema=SCHEMA, orient="row")


def test_a_topic_that_was_removed_and_is_read_again_brings_nothing_from_before_f() -> None:
    journal = Journal()
    one, other = Topic("events", "id of events", (0,)), Topic("gateway", "id of gateway", (0,))
    both = journal.driver(one, other)
    journal.take(both, [("events", 0, 0, at(1), True), ("gateway", 0, 0, at(2), True)])
    journal.take(journal.driver(one), [("events", 0, 1, at(20), True)])
    assert instant_of(journal.recall(FRONTIER)) == at(20)

    again = journal.driver(one, other)
    assert again.positions() == {"events": {0: 2}, "gateway": {0: 1}}
    journal.take(again, [("events", 0, 2, at(30), True)])
    assert again.frontier() == at(20), "it is held until the topic is heard of"
    [row] = journal.take(again, [("gateway", 0, 1, at(9), True)])
    assert row[3] == at(20), "received before F, which has closed what was before it"
    assert again.frontier() == at(20)
    # A driver that starts within it decides the same.
    journal.take(journal.driver(one, other), [("gateway", 0, 2, at(40), True)])
    assert instant_of(journal.recall(FRONTIER)) == at(30)
