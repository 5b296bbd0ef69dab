"""The one process that sends: of each account and endpoint the oldest delivery, and the next only after it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta

import psycopg
import structlog

from deployment.errors import CannotRun
from jobs.backoff import Backoff
from jobs.runtime.postgres.unavailable import remedy
from jobs.runtime.unreachable import database_sentence
from metering.instants import Clock
from webhooks.outbox import Due, Lane, Outbox
from webhooks.outcomes import Attempt, outcome

log = structlog.get_logger()

Deliver = Callable[[Due, datetime], Awaitable[Attempt]]
"""One attempt, which begins at an instant (`delivering`)."""

MAX_RUNNING, MAX_OF_RECEIVER = 64, 16
"""Lanes that are sent at the same time: a slow receiver holds at most a part of them."""
LANES_OF_ENDPOINT = 200
"""That are read at once; those beyond have their turn after them."""
MAX_IN_A_ROW = 100
"""Deliveries of a lane, before others have their turn."""
LOOK_SECONDS = 1.0
REST = 9.0
"""Times as long as a look took, before the next: with 80,000 accounts that wait it takes half a second of Postgres."""
MAX_BATCHES = 10
"""Of events for which deliveries are made before each look."""
MAX_REST_SECONDS = 20.0
"""Well below SILENT_SECONDS of the outbox, after which Postgres ends the session."""
LEASE_SECONDS = 5.0
"""How often a process that does not send asks whether it may."""


class Sender:
    """Sends what is due. The clock is read again for each attempt."""

    def __init__(
        self, outbox: Outbox, deliver: Deliver, clock: Clock, chance: Callable[[], float] = random.random
    ) -> None:
        self._outbox = outbox
        self._deliver = deliver
        self._clock = clock
        self._chance = chance
        self._queue: list[Lane] = []
        self._running: dict[asyncio.Task[None], Lane] = {}
        self._looked_at = -LOOK_SECONDS
        self._rest_seconds = 0.0
        self._is_ending = False

    async def step(self) -> bool:
        """Look for what is due, begin it, and wait until a lane ends. False: there was nothing to do.

        Raises `psycopg.Error`; what is under way is cancelled by `stop` then.
        """
        now = self._clock.monotonic()
        since = now - self._looked_at
        if since >= self._rest_seconds and (not self._queue or since >= LOOK_SECONDS):
            for _ in range(MAX_BATCHES):
                if not await self._outbox.queue():
                    break
            now = self._clock.monotonic()
            under_way = set(self._running.values())
            due = await self._outbox.due_lanes(self._clock.now(), LANES_OF_ENDPOINT)
            self._queue = [lane for lane in due if lane not in under_way]
            self._looked_at = self._clock.monotonic()
            self._rest_seconds = min(REST * (self._looked_at - now), MAX_REST_SECONDS)
        self._begin()
        if not self._running:
            return False
        ended, _ = await asyncio.wait(self._running, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            del self._running[task]
            task.result()
        return True

    async def finish(self) -> None:
        """Wait for the attempts that are under way, and begin no other."""
        self._queue.clear()
        self._is_ending = True
        await asyncio.gather(*self._running)
        self._running.clear()

    async def stop(self) -> None:
        """Cancel what is under way: it is sent again later."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()

    def _begin(self) -> None:
        of_receiver = Counter(lane.receiver for lane in self._running.values())
        waiting = []
        for lane in self._queue:
            if len(self._running) < MAX_RUNNING and of_receiver[lane.receiver] < MAX_OF_RECEIVER:
                of_receiver[lane.receiver] += 1
                self._running[asyncio.create_task(self._send_lane(lane))] = lane
            else:
                waiting.append(lane)
        self._queue = waiting

    async def _send_lane(self, lane: Lane) -> None:
        for _ in range(MAX_IN_A_ROW):
            due = None if self._is_ending else await self._outbox.head(lane, self._clock.now())
            if due is None:
                return
            await self._send(due)

    async def _send(self, due: Due) -> None:
        began, started = self._clock.now(), self._clock.monotonic()
        attempt = await self._deliver(due, began)
        duration = timedelta(seconds=self._clock.monotonic() - started)
        became = outcome(attempt, due.attempts + 1, self._clock.now(), self._chance)
        await self._outbox.record(due, attempt, became, began, duration)


async def send_until(stopping: asyncio.Event, postgres_url: str, deliver: Deliver, clock: Clock) -> None:
    """Send until `stopping` is set, whenever this process has the lease. A lost database is waited for.

    Raises CannotRun where the database refuses the login: another start may have another password.
    """
    backoff = Backoff()
    while not stopping.is_set():
        started = clock.monotonic()
        try:
            outbox = await Outbox.connect(postgres_url)
            try:
                await _send_leased(stopping, outbox, deliver, clock)
            finally:
                await outbox.close()
        except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
            if await asyncio.to_thread(remedy, problem) is not None:
                raise CannotRun(database_sentence(problem, postgres_url) or str(problem)) from None
            log.warning("the database is not available", error=str(problem).partition("\n")[0])
        backoff = backoff.after(clock.monotonic() - started)
        await _pause(stopping, backoff.delay_seconds)


async def _send_leased(stopping: asyncio.Event, outbox: Outbox, deliver: Deliver, clock: Clock) -> None:
    while not await outbox.take_lease():
        await _pause(stopping, LEASE_SECONDS)
        if stopping.is_set():
            return
    log.info("this process sends webhooks")
    sender = Sender(outbox, deliver, clock)
    try:
        while not stopping.is_set():
            if not await sender.step():
                await _pause(stopping, LOOK_SECONDS)
        await sender.finish()
    finally:
        await sender.stop()


async def _pause(stopping: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()
