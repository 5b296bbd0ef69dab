"""Events get their deliveries in one order, whatever the order in which the transactions that wrote them commit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.webhooks.receiver import Receiver
from tests.webhooks.sending import STRAGGLER, add_endpoint, now_clock, queue, rows, run, send_all
from webhooks.outbox import Outbox

URL = "https://example.com/hook"
AT = datetime(2026, 11, 1, tzinfo=UTC)


def hold(session: psycopg.Connection[Any], lsn: int, account: str = "acme") -> None:
    session.execute(STRAGGLER, {"lsn": lsn, "account": account, "at": AT})


def queued(database: str) -> list[int]:
    """The events that have deliveries."""
    return [number for (number,) in rows(database, "SELECT number FROM webhook_deliveries ORDER BY number")]


@pytest.fixture
def sessions(database: str) -> Iterator[list[psycopg.Connection[Any]]]:
    with ExitStack() as held:
        yield [held.enter_context(psycopg.connect(database)) for _ in range(4)]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_an_event_waits_until_a_lower_number_is_committed_or_rolled_back(
    database: str, sessions: list[psycopg.Connection[Any]], ends: str
) -> None:
    receiver = Receiver()
    first, second, *_ = sessions

    async def deliver() -> None:
        async with receiver.serving():
            add_endpoint(database, receiver.url)
            hold(first, 1)
            hold(second, 2)
            second.commit()
            sent = await Outbox.connect(database)
            assert not await sent.queue()
            assert queued(database) == [], "its order is not known yet"
            getattr(first, ends)()
            await sent.close()
            await send_all(database, now_clock())

    run(deliver)
    lsns = [call.data["straggler"] for call in receiver.calls]
    assert lsns == (["1/requests", "2/requests"] if ends == "commit" else ["2/requests"])


def test_what_begins_after_an_event_does_not_hold_it_nor_does_who_writes_something_else(
    database: str, sessions: list[psycopg.Connection[Any]]
) -> None:
    add_endpoint(database, URL)
    first, second, third, other = sessions
    other.execute("UPDATE webhook_endpoints SET note = 'moves'")
    hold(first, 1)
    hold(second, 2)

    async def make() -> None:
        sent = await Outbox.connect(database)
        second.commit()
        await sent.queue()
        assert queued(database) == []
        hold(third, 3)
        first.commit()
        await sent.queue()
        await sent.close()

    asyncio.run(make())
    assert queued(database) == [1, 2]


@pytest.mark.parametrize("seed", range(6))
def test_no_event_is_ever_queued_behind_a_higher_one_and_none_is_left_out(
    database: str, sessions: list[psycopg.Connection[Any]], seed: int
) -> None:
    chance = random.Random(seed)
    add_endpoint(database, URL)
    lsn, kept = 0, 0
    order: list[int] = []
    written = dict.fromkeys(range(len(sessions)), 0)

    async def interleave() -> None:
        nonlocal lsn, kept
        sent = await Outbox.connect(database)
        for _ in range(150):
            which, step = chance.randrange(len(sessions)), chance.random()
            if step < 0.45:
                lsn += 1
                hold(sessions[which], lsn)
                written[which] += 1
            elif step < 0.75:
                if chance.random() < 0.8:
                    sessions[which].commit()
                    kept += written[which]
                else:
                    sessions[which].rollback()
                written[which] = 0
            else:
                await sent.queue(chance.choice([1, 3, 1_000]))
                order.extend(number for number in queued(database) if number not in order)
        await sent.close()

    asyncio.run(interleave())
    for session in sessions:
        session.commit()
    kept += sum(written.values())
    assert order == sorted(order)
    assert order, "some were queued while others were open"
    queue(database)
    assert len(queued(database)) == kept
    assert rows(database, "SELECT count(*)::int FROM webhook_events") == [(kept,)]


def test_however_many_endpoints_there_are_who_writes_an_event_writes_one_row(database: str) -> None:
    endpoints = [add_endpoint(database, URL).endpoint for _ in range(16)]
    with psycopg.connect(database) as session:
        hold(session, 1)
    assert rows(database, "SELECT count(*)::int, max(cardinality(endpoints)) FROM webhook_events") == [(1, 16)]
    assert queued(database) == []
    queue(database)
    assert {endpoint for (endpoint,) in rows(database, "SELECT endpoint FROM webhook_deliveries")} == set(endpoints)


def test_a_number_that_is_missing_ends_no_page(database: str) -> None:
    add_endpoint(database, URL)
    with psycopg.connect(database) as session:
        for lsn in range(1, 7):
            hold(session, lsn)
    with psycopg.connect(database) as removing:
        removing.execute("DELETE FROM webhook_events WHERE number = 2")
        removing.commit()
    queue(database, max_events=2)
    assert queued(database) == [1, 3, 4, 5, 6]
