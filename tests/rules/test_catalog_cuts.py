"""An account is told after its prices: no cut between two batches takes the account alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobs.ingestion import catalog
from jobs.ingestion.catalog import CatalogReader
from jobs.runtime.kafka.topic import Topic
from jobs.streams import CatalogTopic

ACCOUNTS, PRICES = CatalogTopic.ACCOUNTS.value, CatalogTopic.PRICES.value


@dataclass
class Topics:
    """Topics of one partition, in memory. Between any two looks at one, somebody publishes a price and its account."""

    records: dict[str, list[int]] = field(default_factory=lambda: {topic.value: [] for topic in CatalogTopic})

    def publish(self) -> None:
        number = len(self.records[PRICES])
        self.records[PRICES].append(number)
        self.records[ACCOUNTS].append(number)

    def reader(
        self, _kafka: object, _admin: object, topics: list[Topic], positions: Mapping[tuple[str, int], int]
    ) -> Any:
        at = dict(positions)

        def read_to_end() -> tuple[list[tuple[str, int]], Mapping[tuple[str, int], int]]:
            read = []
            # A broker may answer for one topic after the other, and nobody says in which order.
            for name in sorted((topic.name for topic in topics), reverse=True):
                read += [(name, number) for number in self.records[name][at[name, 0] :]]
                at[name, 0] = len(self.records[name])
                self.publish()
            return read, dict(at)

        return SimpleNamespace(read_to_end=read_to_end)


def test_an_account_is_never_taken_before_the_prices_that_were_published_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = Topics()
    monkeypatch.setattr(catalog, "TopicsReader", topics.reader)
    ledgers: list[Any] = [
        SimpleNamespace(topic=Topic(topic.value, "id", (0,)), next_offsets=lambda: {0: 0}) for topic in CatalogTopic
    ]
    reader = CatalogReader({}, cast("Any", None), ledgers)
    seen: set[Any] = set()
    for _ in range(5):
        changes, _ = reader.read_to_end()
        seen |= {cast("Any", change) for change in changes}
        accounts, prices = ({number for name, number in seen if name == topic} for topic in (ACCOUNTS, PRICES))
        assert accounts <= prices
    assert len(seen) > 5
