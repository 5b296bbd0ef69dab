"""Silent sources and spikes of dead letters: found in any cut of a real journal, and called about once each.

Method: a brute-force search over all events says which sources are silent at the frontier of each minute.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from jobs.ingestion.bookkeeping import BY_DEFAULT
from jobs.ingestion.limits import Limits
from metering.vocabulary import EventType
from tests.pipelines.test_database_gauges import shown
from tests.streaming.journals import Journal, at, event, heartbeat
from tests.streaming.test_bookkeeping import Follower, numbered, rows_of
from tests.webhooks.sending import add_endpoint, rows

MINUTES = timedelta(minutes=1)
QUICK = replace(
    BY_DEFAULT, silent_after=3 * MINUTES, once_retired_after=8 * MINUTES, retired_after=20 * MINUTES, spike_records=10
)
URL = "https://example.com/hook"
SILENT = "SELECT source, last_seen_at FROM silent_sources ORDER BY 1"
LATER = "UPDATE dead_letter_minutes SET minute = minute - interval '10 minutes' RETURNING 1"


def called(database: str) -> list[tuple[str, dict[str, Any]]]:
    found = rows(database, "SELECT type, body FROM webhook_events ORDER BY number")
    return [(kind.removeprefix("weir."), json.loads(body)["data"]) for kind, body in found]


def rejected(second: float, number: int, reason: str = "invalid_json") -> dict[str, Any]:
    return numbered(second, "gateway", number) | {"disposition": "rejected", "reason": reason}


def silent_at(frontier: datetime, events: list[tuple[str, datetime]]) -> list[tuple[str, datetime]]:
    """By all that was ever seen."""
    seen: dict[str, list[datetime]] = defaultdict(list)
    for source, received_at in events:
        seen[source].append(received_at)
    return sorted(
        (source, max(times))
        for source, times in seen.items()
        if frontier - QUICK.retired_after <= max(times) < frontier - QUICK.silent_after
        and (max(times) >= frontier - QUICK.once_retired_after or max(times) - min(times) > MINUTES)
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_oracle_the_silent_sources_are_those_of_all_events_in_any_cut_and_after_any_crash(
    database: str, tmp_path: Path, seed: int
) -> None:
    add_endpoint(database, URL)
    chance = Random(seed)
    follower = Follower(database, Journal(tmp_path), conditions=QUICK)
    seen: list[tuple[str, datetime]] = []
    for minute in range(1, 60):
        sources = [name for name in "abcd" if chance.random() < {"a": 0.9, "b": 0.3, "c": 0.2, "d": 0.08}[name]]
        batch = [numbered(60 * minute - 30, source, minute) for source in sources]
        seen += [(source, at(60 * minute - 30)) for source in sources]
        batch.append(heartbeat(60 * minute))
        if chance.random() < 0.2:
            follower.commit(batch)
            follower.start()
        else:
            follower.take(batch)
        assert rows_of(database, SILENT) == silent_at(at(60 * minute), seen)
    changes: dict[str, list[str]] = defaultdict(list)
    for kind, data in called(database):
        changes[data["source"]].append(kind)
    for kinds in changes.values():
        # One that is retired goes without a call, so two silences may follow each other; nobody is heard twice.
        assert kinds[0] == "source.silent"
        assert "heard/heard" not in "/".join(kinds).replace("source.", "")
    assert "source.heard" in {kind for kinds in changes.values() for kind in kinds}
    assert len(rows(database, "SELECT FROM webhook_events")) == len({json.dumps(call) for call in called(database)})


def test_a_source_that_was_heard_and_is_silent_again_when_ingestion_catches_up_has_both_calls(
    database: str, tmp_path: Path
) -> None:
    add_endpoint(database, URL)
    follower = Follower(database, Journal(tmp_path), conditions=QUICK)
    follower.take([numbered(1, "a", 1), numbered(70, "a", 2), heartbeat(300)])
    follower.take([numbered(400, "a", 3), heartbeat(900)])
    follower.take([heartbeat(960)])
    first, second = {"last_seen_at": at(70).isoformat()}, {"last_seen_at": at(400).isoformat()}
    assert called(database) == [
        ("source.silent", {"source": "a", "account": "a", **first}),
        ("source.heard", {"source": "a", "account": "a", "silent_since": first["last_seen_at"], **second}),
        ("source.silent", {"source": "a", "account": "a", **second}),
    ]


def test_a_source_that_is_retired_or_that_another_configuration_does_not_call_silent_is_not_heard(
    database: str, tmp_path: Path
) -> None:
    add_endpoint(database, URL)
    follower = Follower(database, Journal(tmp_path), conditions=QUICK)
    follower.take([numbered(1, "a", 1), numbered(70, "a", 2), heartbeat(300)])
    follower.start(replace(QUICK, silent_after=10 * MINUTES, once_retired_after=15 * MINUTES))
    follower.take([heartbeat(360)])
    assert rows_of(database, SILENT) == []
    follower.take([heartbeat(780)])
    assert rows_of(database, SILENT) == [("a", at(70))]
    follower.take([heartbeat(2_000)])
    assert rows_of(database, SILENT) == []
    assert [kind for kind, _ in called(database)] == ["source.silent"], "the same silence, once"


def test_of_many_sources_that_an_outage_silences_those_that_send_after_it_call_nobody(
    database: str, tmp_path: Path
) -> None:
    add_endpoint(database, URL)
    names = [f"s{number:02}" for number in range(12)]
    follower = Follower(database, Journal(tmp_path), Limits(new_silences=3), QUICK)
    follower.take([numbered(second, name, second) for second in (1, 70) for name in names])
    follower.take([heartbeat(300)])
    assert rows_of(database, SILENT) == [(name, at(70)) for name in names[:3]]
    follower.take([numbered(301, name, 301) for name in names[:8]] + [heartbeat(360)])
    assert rows_of(database, SILENT) == [(name, at(70)) for name in names[8:11]]
    follower.start()
    follower.take([heartbeat(420)])
    assert rows_of(database, SILENT) == [(name, at(70)) for name in names[8:]], "each has its turn"
    calls = [f"{kind} {data['source']}" for kind, data in called(database)]
    assert calls == [
        *(f"source.silent {name}" for name in names[:3]),
        *(f"source.heard {name}" for name in names[:3]),
        *(f"source.silent {name}" for name in names[8:]),
    ]


def test_the_gauge_of_silent_sources_counts_those_that_are_listed(database: str, tmp_path: Path) -> None:
    follower = Follower(database, Journal(tmp_path), conditions=QUICK)
    follower.take([numbered(1, "a", 1), numbered(70, "a", 2), numbered(70, "once", 1), heartbeat(300)])
    config = {
        "source_silent_after_seconds": 180,
        "source_retired_after_seconds": 1_200,
        "source_seen_once_retired_after_seconds": 480,
    }
    for second, silent in ((300, 2), (600, 1)):
        follower.take([heartbeat(second)])
        reached = Jsonb({"frontier": at(second).isoformat()})
        rows(database, "UPDATE jobs SET config = %s, progress = %s RETURNING 1", Jsonb(config), reached)
        with shown("ingestion", database) as gauges:
            assert gauges.value("weir_sources", state="silent") == silent
        assert len(rows_of(database, SILENT)) == silent


def test_many_dead_letters_of_one_reason_are_a_spike_until_they_are_fewer_than_half(
    database: str, tmp_path: Path
) -> None:
    add_endpoint(database, URL)
    follower = Follower(database, Journal(tmp_path), conditions=QUICK)
    follower.take([rejected(1, n) for n in range(9)] + [rejected(1, n, "too_large") for n in range(9)])
    assert called(database) == []
    follower.take([rejected(2, 9), event(EventType.USAGE, "good", 2)])
    follower.take([rejected(3, n) for n in range(20)])
    ((kind, spike),) = called(database)
    assert (kind, spike["reason"], spike["records"]) == ("dead_letter.spike", "invalid_json", 10)
    assert rows(database, LATER)
    follower.take([*(rejected(70, n) for n in range(5)), heartbeat(70)])
    assert len(called(database)) == 1, "half of it lasts"
    assert rows(database, LATER)
    follower.take([*(rejected(130, n) for n in range(4)), heartbeat(130)])
    assert called(database)[1:] == [("dead_letter.spike_ended", {key: spike[key] for key in ("reason", "began_at")})]
    follower.take([rejected(131, n) for n in range(6)])
    assert [kind for kind, _ in called(database)][2:] == ["dead_letter.spike"], "another one"


def test_a_spike_ends_when_the_next_minute_comes_without_a_dead_letter(database: str, tmp_path: Path) -> None:
    add_endpoint(database, URL)
    follower = Follower(database, Journal(tmp_path), conditions=QUICK)
    follower.take([*(rejected(1, n) for n in range(10)), heartbeat(1)])
    assert rows(database, LATER)
    follower.start()
    follower.take([heartbeat(61)])
    assert [kind for kind, _ in called(database)] == ["dead_letter.spike", "dead_letter.spike_ended"]
    assert rows(database, "SELECT FROM dead_letter_minutes") == []


def test_a_spike_that_a_clock_ahead_has_counted_ends_once_the_clock_is_right(database: str, tmp_path: Path) -> None:
    add_endpoint(database, URL)
    follower = Follower(database, Journal(tmp_path), conditions=QUICK)
    follower.take([*(rejected(1, n) for n in range(10)), heartbeat(1)])
    assert rows(database, "UPDATE dead_letter_minutes SET minute = minute + interval '1 day' RETURNING 1")
    follower.take([rejected(61, 10), heartbeat(61)])
    assert [kind for kind, _ in called(database)] == ["dead_letter.spike", "dead_letter.spike_ended"]


def test_dead_letters_of_a_commit_that_a_crash_left_out_count_once(database: str, tmp_path: Path) -> None:
    follower = Follower(database, Journal(tmp_path), conditions=QUICK)
    follower.commit([rejected(1, n) for n in range(7)])
    follower.start()
    follower.start()
    follower.take([rejected(2, n) for n in range(2)])
    assert rows(database, "SELECT reason, sum(records)::int FROM dead_letter_minutes GROUP BY 1") == [
        ("invalid_json", 9)
    ]
