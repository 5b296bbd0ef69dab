"""Sources: any order and any repetition of batches leave the same rows, which an oracle of plain sets also gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs.ingestion.device_clocks import uncorrected_events
from jobs.ingestion.sources import fold_sources, seen_sources

START = datetime(2026, 11, 1, tzinfo=UTC)
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "disposition": pl.String,
    "source": pl.String,
    "source_epoch": pl.String,
    "type": pl.String,
    "account": pl.String,
    "received_at": pl.Datetime("us", "UTC"),
    "event_time": pl.Datetime("us", "UTC"),
    "clock_offset_ms": pl.Int64,
}


@dataclass(frozen=True)
class Event:
    """What the fold looks at."""

    second: int
    source: str = "gateway/1"
    source_epoch: str | None = None
    account: str | None = "a"
    disposition: str = "accepted"
    type: str = "ai.inference.request.v1"

    @property
    def row(self) -> dict[str, Any]:
        received_at = START + timedelta(seconds=self.second)
        names = ("disposition", "source", "source_epoch", "type", "account")
        times = {"received_at": received_at, "event_time": received_at - timedelta(seconds=self.second % 7)}
        return {**{name: getattr(self, name) for name in names}, **times, "clock_offset_ms": None}


def rows(events: Iterable[Event]) -> pl.DataFrame:
    return pl.DataFrame([event.row for event in events], schema=SCHEMA)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as opened:
        yield opened


def fold(connection: psycopg.Connection[Any], *batches: Iterable[Event]) -> None:
    for batch in batches:
        seen = seen_sources(rows(batch))
        with connection.transaction(), connection.cursor() as cursor:
            fold_sources(cursor, seen)


def stored(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute(
        """SELECT source, source_epoch, account, first_seen_at, last_seen_at, last_event_time
           FROM sources ORDER BY source COLLATE "C", source_epoch COLLATE "C" """
    ).fetchall()


def expected(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        if event.disposition == "accepted":
            groups.setdefault((event.source, event.source_epoch or ""), []).append(event)
    return [
        (
            *key,
            max(((e.second, e.account) for e in group if e.account is not None), default=(0, None))[1],
            START + timedelta(seconds=min(e.second for e in group)),
            START + timedelta(seconds=max(e.second for e in group)),
            max(e.row["event_time"] for e in group),
        )
        for key, group in sorted(groups.items())
    ]


EVENTS = st.builds(
    Event,
    second=st.integers(0, 40),
    source=st.sampled_from(["gateway/1", "gateway/2", "Gateway/1", "ä"]),
    source_epoch=st.sampled_from([None, "", "1", "2"]),
    account=st.sampled_from([None, "a", "B", "ß"]),
    disposition=st.sampled_from(["accepted", "accepted", "accepted", "duplicate", "rejected"]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(EVENTS, max_size=12), max_size=6), data=st.data())
def test_counts_of_sources_ignore_order_and_repetition_of_batches(
    connection: psycopg.Connection[Any], batches: list[list[Event]], data: st.DataObject
) -> None:
    connection.execute("TRUNCATE sources")
    repeated = data.draw(st.permutations([*batches, *data.draw(st.lists(st.sampled_from(batches)))] if batches else []))

    fold(connection, *repeated)

    assert stored(connection) == expected(event for batch in batches for event in batch)


def test_weirs_own_heartbeats_are_not_a_source() -> None:
    beats = [Event(1, source, type="source.heartbeat.v1", account=None) for source in ("weir", "gateway/9")]
    heard = seen_sources(rows(beats))
    assert heard["source"].to_list() == ["gateway/9"]


def test_a_batch_without_events_of_sources_gives_nothing_to_fold() -> None:
    assert seen_sources(rows([])).is_empty()
    assert seen_sources(rows([Event(1, disposition="rejected")])).is_empty()


def test_only_devices_without_senttime_are_uncorrected() -> None:
    events = rows([Event(1, source="device/1"), Event(2, source="device/1"), Event(3, source="gateway/1")])
    corrected = events.with_columns(
        clock_offset_ms=pl.when(pl.col("received_at") > START + timedelta(seconds=1)).then(0)
    )
    assert uncorrected_events(events, ["device/*"]) == 2
    assert uncorrected_events(corrected, ["device/*"]) == 1
    assert uncorrected_events(events, []) == 0
