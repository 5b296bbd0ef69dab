"""Events in the outbox, and a sender that a test drives by a clock of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from tests.clocks import HandClock
from webhooks.delivering import Delivering, Post
from webhooks.endpoints import add
from webhooks.event_types import EventType
from webhooks.mail import Mailer
from webhooks.outbox import MAX_EVENTS, Outbox
from webhooks.posting import Poster
from webhooks.sender import LOOK_SECONDS, Sender

ALL = list(EventType)
STRAGGLER = """
INSERT INTO stragglers (usage_lsn, meter, account, request_id, window_start, event_time, received_at, late_seconds,
    decision, quantity, hold_expires, settled)
VALUES (%(lsn)s, 'requests', %(account)s, 'r', %(at)s, %(at)s, %(at)s, 1, 'hold', 2, 'drop', 0)
"""


def add_endpoint(database: str, url: str, events: Sequence[EventType] = ALL, **given: Any) -> Any:
    return add(database, url, events, "ada", **given)


def hold(database: str, accounts: Iterable[str], first_lsn: int = 1) -> None:
    """A held straggler of each account, one after the other, each in a transaction of its own."""
    with psycopg.connect(database, autocommit=True) as connection:
        for lsn, account in enumerate(accounts, start=first_lsn):
            connection.execute(STRAGGLER, {"lsn": lsn, "account": account, "at": datetime(2026, 11, 1, tzinfo=UTC)})


def rows(database: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(statement, values).fetchall()


def states(database: str) -> dict[str, int]:
    return dict(rows(database, "SELECT state, count(*)::int FROM webhook_deliveries GROUP BY 1"))


def queue(database: str, max_events: int = MAX_EVENTS) -> None:
    """Make the deliveries of all events, as the sender does."""

    async def make() -> None:
        made = await Outbox.connect(database)
        while await made.queue(max_events):
            pass
        await made.close()

    asyncio.run(make())


async def send_all(
    database: str,
    clock: HandClock,
    post: Post | None = None,
    *,
    seed: int = 1,
    poster: Poster | None = None,
    mailer: Mailer | None = None,
) -> None:
    """Send until nothing waits that could be sent; while nothing is due, time passes to when something is."""
    outbox, poster = await Outbox.connect(database), poster or Poster(allows_private=True)
    assert await outbox.take_lease()
    deliver = Delivering(post or poster.post, poster.post_to_slack, (mailer or Mailer(None)).send)
    sender = Sender(outbox, deliver, clock, random.Random(seed).random)
    try:
        while True:
            if await sender.step():
                clock.go(LOOK_SECONDS / 1_000)
            elif (due_at := await asyncio.to_thread(next_due_at, database)) is None:
                return
            else:
                clock.go(max(LOOK_SECONDS, (due_at - clock.now()) / timedelta(seconds=1)))
    finally:
        await sender.stop()
        await poster.close()
        await outbox.close()


def next_due_at(database: str) -> datetime | None:
    # Of each lane its oldest delivery, as the others wait for that; and what has no deliveries yet.
    found = rows(
        database,
        "SELECT least(min(greatest(next_attempt_at, paused_until)), ("
        "    SELECT min(made_at) FROM webhook_events WHERE number > (SELECT queued_to FROM webhook_position)"
        ")) FROM ("
        "    SELECT DISTINCT ON (endpoint, account) * FROM webhook_deliveries WHERE state = 'waiting'"
        "    ORDER BY endpoint, account, number"
        ") AS heads JOIN webhook_endpoints USING (endpoint) WHERE disabled_at IS NULL",
    )
    due_at: datetime | None = found[0][0]
    return due_at


def now_clock() -> HandClock:
    """It begins a minute from now: rows that the database has stamped are due."""
    return HandClock(datetime.now(UTC) + timedelta(minutes=1))


def run(of: Callable[[], Awaitable[None]]) -> None:
    async def awaited() -> None:
        await of()

    asyncio.run(awaited())
