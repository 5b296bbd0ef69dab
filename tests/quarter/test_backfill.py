"""Backfill before = beside = after live: whenever history is sent, the same usage, windows and days stand in the end.

Method: the same records are received live as they were first, and as history before, between and after the traffic of
today, each time on an empty installation of the shipped drivers. What was billed is compared to the last digit.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from jobs.streams import EVENTS_TOPIC, Table
from metering.instants import rfc3339
from metering.vocabulary import EventType, UsageCause
from metering.windows import tumbling
from tests.quarter.stack import PARTITIONS, SETTLED_AFTER, Stack, running_stack
from tests.quarter.truth import BEGIN, DROPPED, GRACE, TIMEOUT, Change
from tests.simulation.declared import HISTORY

ACCOUNTS, METERS = ("acme", "bolt"), ("requests", "input_tokens", "output_tokens", DROPPED)
TODAY = BEGIN + timedelta(days=100)
LIVE_FOR, TURN = timedelta(hours=3), timedelta(minutes=80)
SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Event:
    """What somebody sends, when it was received first, and with what it must stay together (a request)."""

    account: str
    value: bytes
    first: datetime
    of: str


@dataclass(frozen=True)
class Sent:
    """An event on its way: `mark` says when it was received first."""

    at: datetime
    event: Event
    mark: datetime | None = None


def asked(chance: random.Random, name: str, source: str, at: datetime) -> Iterator[Event]:
    """The events of one request: both at once, a request with its completion, or one that nobody completed."""
    account, kind = chance.choice(ACCOUNTS), chance.choice(["usage", "pair", "pair", "alone"])
    tokens = {meter: chance.choice([None, 0, 7, chance.randrange(10**6)]) for meter in METERS[1:]}
    request = {"request_id": name, "user_id": "u", "model": "m", "region": chance.choice(["eu", "us"])}
    ended = {"request_id": name, "status": "completed", **tokens}
    # On time, late, or after the grace of its window.
    delay = chance.choice([SECOND, 90 * SECOND, tumbling(at).end + GRACE - at, GRACE + 3 * timedelta(minutes=1)])
    kinds: dict[str, list[tuple[EventType, dict[str, Any], timedelta]]] = {
        "usage": [(EventType.USAGE, {**request, **ended}, delay)],
        "pair": [(EventType.REQUEST, request, delay), (EventType.COMPLETION, ended, delay + TIMEOUT / 2)],
        "alone": [(EventType.REQUEST, request, delay)],
    }
    parts = kinds[kind]
    chance.shuffle(parts)
    for number, (type_, data, late) in enumerate(parts):
        told = {"specversion": "1.0", "type": type_.value, "source": source, "id": f"{name}-{number}"}
        said = {**told, "subject": account, "time": rfc3339(at), "data": data}
        yield Event(account, json.dumps(said).encode(), at + late, name)


def drawn(seed: int) -> tuple[list[Event], list[Event]]:
    """History, and the traffic of today."""
    chance = random.Random(seed)
    history, live = list[Event](), list[Event]()
    for number in range(25):
        history += asked(chance, f"h{number}", HISTORY, BEGIN + chance.randrange(7_200) * SECOND)
        live += asked(chance, f"l{number}", HISTORY, TODAY + chance.randrange(7_200) * SECOND)
    return history, live


def as_received(events: list[Event]) -> list[Sent]:
    return [Sent(event.first, event) for event in events]


def as_history(chance: random.Random, events: list[Event], begin: datetime, end: datetime) -> list[Sent]:
    """Each request's events together, twice now and then, in any order of requests, between two instants."""
    places = {event.of: begin + chance.random() * (end - begin) for event in events}
    once = [Sent(places[event.of], event, event.first) for event in events]
    twice = [Sent(end + timedelta(hours=chance.choice([0, 2])), s.event, s.mark) for s in chance.sample(once, 5)]
    return [*once, *twice]


def orders(seed: int) -> dict[str, list[Sent]]:
    """By name the ways in which the same reaches an installation."""
    history, live = drawn(seed)
    chance, today = random.Random(f"{seed} order"), as_received(live)
    end = TODAY + LIVE_FOR
    copies = [Sent(end + SECOND, event, event.first) for event in chance.sample(live, 5)]
    return {
        "as it was": [*as_received(history), *today],
        "before": [*as_history(chance, history, TODAY - timedelta(hours=5), TODAY), *today],
        "beside": [*as_history(chance, history, TODAY, end), *today, *copies],
        "after": [*today, *as_history(chance, history, end, end + timedelta(hours=1)), *copies],
    }


def run(stack: Stack, sent: list[Sent], chance: random.Random) -> None:
    """All of it, turn by turn; now and then all drivers begin anew. Then nothing waits any more."""
    waiting, until = sorted(sent, key=lambda one: one.at), min(one.at for one in sent)
    while waiting:
        until = max(until + TURN, waiting[0].at)
        while waiting and waiting[0].at < until:
            one = waiting.pop(0)
            first = None if one.mark is None else rfc3339(one.mark).encode()
            partition = ACCOUNTS.index(one.event.account) % PARTITIONS
            stack.kafka.append(EVENTS_TOPIC, partition, one.event.value, one.at, b"k", first=first)
        stack.turn(until)
        if chance.random() < 0.3:
            stack.start_anew()
    stack.turn(max(until, TODAY + LIVE_FOR) + SETTLED_AFTER)


def tell_catalog(stack: Stack) -> None:
    """Prices that hold since before there was any history."""
    of_old = BEGIN - timedelta(days=1_000)
    for number, meter in enumerate(METERS, start=1):
        price = {"plan": "p", "model": "m", "meter": meter, "currency": "EUR", "unit_price": f"0.00000000{number}7"}
        stack.tell(Change(BEGIN, "price", {**price, "effective_from": of_old}))
    for account, zone in zip(ACCOUNTS, ("Europe/Berlin", "America/New_York"), strict=True):
        row = {"account": account, "plan": "p", "currency": "EUR", "timezone": zone}
        stack.tell(Change(BEGIN, "account", {**row, "effective_from": of_old}))


SUMS = {
    "windows": """
        SELECT window_start, account, model, meter, currency, unit_price, sum(quantity), sum(amount), sum(late_quantity)
        FROM usage_windows GROUP BY 1, 2, 3, 4, 5, 6 HAVING sum(quantity) <> 0 ORDER BY 1, 2, 3, 4""",
    "days": """
        SELECT account, day, model, meter, currency, dimensions::text, sum(quantity), sum(amount)
        FROM usage_days GROUP BY 1, 2, 3, 4, 5, 6 HAVING sum(quantity) <> 0 ORDER BY 1, 2, 3, 4, 6""",
    "dropped": """
        SELECT account, request_id, meter, quantity, amount FROM stragglers WHERE decision = 'drop' ORDER BY 1, 2, 3""",
    "sessions": """
        SELECT account, user_id, session_start, session_end, events FROM sessions WHERE retracted_at IS NULL
        ORDER BY 1, 2, 3""",
}
CORRECTED = "SELECT account, window_start, meter, cause FROM corrections ORDER BY 1, 2, 3, 4"


def billed(stack: Stack) -> dict[str, list[Any]]:
    """What stands in the end."""
    usage = DeltaTable(f"{stack.tables}/{Table.USAGE}").to_pyarrow_table().to_pylist()
    assert {row["cause"] for row in usage} == {UsageCause.STREAM}
    of_row = ("account", "request_id", "outcome", "event_time", "day", "dimensions")
    of_meter = ("meter", "quantity", "unit_price", "amount")
    outcomes: list[tuple[Any, ...]] = [
        (*(row[name] for name in of_row), [tuple(said[name] for name in of_meter) for said in row["meters"]])
        for row in usage
    ]
    outcomes.sort(key=lambda one: one[:3])
    with psycopg.connect(stack.database) as connection:
        made = {name: connection.execute(query).fetchall() for name, query in SUMS.items()}
        return {
            **made,
            "outcomes": sorted(outcomes, key=lambda one: one[:3]),
            "corrections": connection.execute(CORRECTED).fetchall(),
        }


def ended(folder: Path, name: str, sent: list[Sent], seed: int, history_until: datetime | None) -> dict[str, list[Any]]:
    with running_stack(folder, seed) as stack:
        stack.settings["billing"] |= {"history_until": history_until}
        tell_catalog(stack)
        run(stack, sent, random.Random(f"{seed} {name}"))
        # Whoever recomputes all of it finds the same, and nothing to correct.
        assert stack.audited(appends=False).appended == 0, name
        return billed(stack)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "is_new"), [(1, True), (2, False)], ids=["new", "old"])
def test_backfill_at_any_time_bills_as_live_to_the_last_digit(tmp_path: Path, seed: int, *, is_new: bool) -> None:
    until = TODAY if is_new else None
    made = {
        name: ended(tmp_path / name.replace(" ", "-"), name, sent, seed, until) for name, sent in orders(seed).items()
    }
    reference = made.pop("as it was")
    assert all(reference.values())
    for name, found in made.items():
        corrections = found.pop("corrections")
        if is_new:
            # What was billed elsewhere arrives as it did then, and is a correction only where it was one.
            assert corrections == reference["corrections"], name
            assert found == {what: reference[what] for what in found}, name
            continue
        assert len(corrections) > len(reference["corrections"]), name
        for what in ("outcomes", "days", "dropped", "sessions"):
            assert found[what] == reference[what], (name, what)
        # How much of a window was late, those rows say that correct it.
        assert [row[:-1] for row in found["windows"]] == [row[:-1] for row in reference["windows"]], name
