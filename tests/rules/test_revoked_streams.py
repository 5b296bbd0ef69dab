"""A stream ends within five seconds of the revocation of its key: counted by a clock that only the waits move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from unittest.mock import Mock as Double

import pytest

from api.database_poll import DatabasePoll
from api.window_changes import Progress
from api.window_stream import Stream
from metering.api_keys import ApiKey, Scope
from tests.clocks import HandClock

REVOKED_AFTER = [10.0 + quarter / 4 for quarter in range(16)]
KEY = ApiKey("k", b"", frozenset({Scope.PORTAL}))
OF_A_PORTAL = replace(KEY, id="t", accounts=frozenset({"a"}), made_by="k")


class Ended(Exception):
    """The poll has been asked for long enough."""


def reads_of(poll: DatabasePoll, clock: HandClock, until: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the poll reads."""
    reads: list[float] = []

    async def read() -> None:
        reads.append(clock.monotonic())

    async def sleep(seconds: float) -> None:
        clock.go(seconds)
        if clock.monotonic() > until:
            raise Ended

    # Not `asyncio.sleep` itself: servers of other tests may run in threads of this process.
    monkeypatch.setattr(poll, "read", read)
    with pytest.raises(Ended):
        asyncio.run(poll.keep_reading(sleep))
    return reads


def ended_at(
    poll: DatabasePoll, clock: HandClock, key: ApiKey, keys_at: Callable[[float], Mapping[str, ApiKey]]
) -> float:
    """When a stream without changes has ended."""

    async def wait(seconds: float) -> None:
        clock.go(seconds)
        poll._keys, poll._read_at = keys_at(clock.monotonic()), clock.monotonic()
        assert clock.monotonic() < 100, "it does not end"

    feed = Double(topic_id="t", restarts=0, starts={}, wait=wait, read=lambda place, _: ([], place))
    streams = Double(feed=feed, clock=clock, database=poll, heartbeat_seconds=15.0)
    stream = Stream(streams, Double(key=key), frozenset({"a"}), Progress("t", {}), 0)

    async def follow() -> None:
        async for _ in stream.chunks(is_reset=False):
            pass

    asyncio.run(follow())
    return clock.monotonic()


@pytest.mark.parametrize("key", [KEY, OF_A_PORTAL], ids=["key", "portal token"])
def test_a_stream_ends_within_five_seconds_of_a_revocation(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    polled = HandClock()
    reads = reads_of(DatabasePoll("", polled, lambda _: None), polled, 60, monkeypatch)
    for revoked_at in REVOKED_AFTER:
        clock = HandClock()
        poll = DatabasePoll("", clock, lambda _: None)
        poll._keys, poll._read_at = {"k": KEY}, 0.0

        def keys_at(now: float, revoked_at: float = revoked_at) -> Mapping[str, ApiKey]:
            return {"k": KEY} if max(at for at in reads if at <= now) < revoked_at else {}

        assert 0 <= ended_at(poll, clock, key, keys_at) - revoked_at < 5
