"""A change of the catalog that is skipped, or that the parser failed on, is told of in its own topic and no other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest

from jobs.ingestion import catalog, isolated_by_topic
from jobs.ingestion.catalog import CatalogReader
from jobs.ingestion.isolated_by_topic import IsolatedByTopic
from jobs.runtime.kafka.quarantine.isolated_records import Isolated, Place
from jobs.runtime.kafka.topic import Topic
from jobs.streams import CatalogTopic
from metering.vocabulary import Isolation

ACCOUNTS, PLANS = CatalogTopic.ACCOUNTS.value, CatalogTopic.PLANS.value
PLAN = b'{"op":"c","after":{"plan":"p"},"ts_ms":1}'


class Records:
    """`IsolatedRecords` of one topic, in memory."""

    all: dict[str, Records]

    def __init__(self, _ownership: object, topic: Topic) -> None:
        self.found: dict[Place, Isolation] = {}
        self.done: set[Place] = set()
        self.all[topic.name] = self

    def settle(self, positions: dict[int, int], skipped_in: Callable[[Collection[Place]], Collection[Place]]) -> None:
        self.done |= set(skipped_in([(0, positions[0] - 1)]))

    def pending(self) -> Isolated:
        return {place: reason for place, reason in self.found.items() if place not in self.done}

    def add(self, sizes: dict[Place, int], reason: Isolation, _detail: str) -> None:
        self.found |= dict.fromkeys(sizes, reason)

    def journalled(self, places: Collection[Place]) -> None:
        self.done |= set(places)


def message(topic: str, offset: int, value: bytes) -> Any:
    fields = {"topic": topic, "partition": 0, "offset": offset, "key": None, "value": value, "timestamp": (0, 0)}
    return SimpleNamespace(**{name: (lambda field=field: field) for name, field in fields.items()})


def test_each_topic_has_its_own_skips_and_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    change_verdict = catalog.change_verdict
    Records.all = {}
    monkeypatch.setattr(isolated_by_topic, "IsolatedRecords", Records)
    monkeypatch.setattr(
        isolated_by_topic, "skipped_in", lambda _journal, topic, places: places if topic.name == PLANS else []
    )
    monkeypatch.setattr(catalog, "TopicsReader", lambda *_: None)

    def failing(topic: str, key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
        return ("unreadable", "Weir: poison") if value == b"poison" else change_verdict(topic, key, value)

    monkeypatch.setattr(catalog, "change_verdict", failing)
    ledgers: list[Any] = [
        SimpleNamespace(
            topic=Topic(topic.value, "id", (0,)),
            next_offsets=lambda: {0: 5},
            positions=lambda: {0: 5},
            received=lambda rows: rows.with_columns(received_at="stamped_at"),
        )
        for topic in CatalogTopic
    ]
    isolated = IsolatedByTopic(cast("Any", None), ledgers, cast("Any", None))
    assert {name: records.done for name, records in Records.all.items() if records.done} == {PLANS: {(0, 4)}}
    Records.all[PLANS].found[0, 6] = Isolation.SKIPPED
    changes = [
        message(PLANS, 5, PLAN),
        message(PLANS, 6, PLAN),
        message(ACCOUNTS, 6, b"poison"),
        message(ACCOUNTS, 7, b""),
    ]

    reader = CatalogReader({}, cast("Any", None), ledgers)
    rows = reader.rows(changes, isolated.pending([ACCOUNTS, PLANS]))
    assert rows.select("topic", "offset", "disposition", "reason").rows() == [
        (ACCOUNTS, 6, "rejected", "unreadable"),
        (ACCOUNTS, 7, "rejected", "invalid_catalog_change"),
        (PLANS, 5, "accepted", None),
        (PLANS, 6, "rejected", "skipped"),
    ]
    assert rows.filter(pl.col("reason") == "skipped")["violation"].to_list() == [None]
    isolated.add(rows, rows, {})
    assert Records.all[ACCOUNTS].pending() == {(0, 6): Isolation.UNREADABLE}
    isolated.journalled(rows)
    assert [records.pending() for records in Records.all.values()] == [{}] * len(CatalogTopic)
    assert Records.all[ACCOUNTS].done == {(0, 6)}
