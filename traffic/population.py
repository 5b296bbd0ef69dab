"""Who calls: thousands of users over tens of accounts and models, Zipf-like, in sessions with think time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count
from random import Random

from traffic.catalog import Catalog
from traffic.events import Call
from traffic.meters import drawn
from traffic.placement import MAX_CALL_MS, Placement

GATEWAYS = ("gateway-eu", "gateway-us", "gateway-ap", "edge")
"""Those that speak what every stack knows."""
BACKLOG_MS = 150_000
USERS = 12_000


@dataclass(frozen=True)
class Timeline:
    """Event time while the traffic is sent.

    The sources begin with a backlog and catch up with the clock: event times from `start - backlog` to `start +
    duration` are sent in order between `start` and `start + duration`. So the traffic covers several minutes of event
    time in less than one.
    """

    start_ms: int
    duration_ms: int
    backlog_ms: int

    @classmethod
    def within(cls, start_ms: int, duration_ms: int, placement: Placement) -> Timeline:
        """With the longest backlog that leaves every prompt event room."""
        room_ms = placement.included().most_ms - MAX_CALL_MS - 2 * 20_000
        return cls(start_ms, duration_ms, max(0, min(BACKLOG_MS, room_ms)))

    @property
    def first_ms(self) -> int:
        """The earliest event time."""
        return self.start_ms - self.backlog_ms

    @property
    def last_ms(self) -> int:
        """The latest instant of event time and of sending."""
        return self.start_ms + self.duration_ms

    def sent_at(self, event_ms: int) -> int:
        """When an event of this time is sent; never before it happened."""
        share = (event_ms - self.first_ms) * self.duration_ms // (self.backlog_ms + self.duration_ms)
        return max(self.start_ms + share, event_ms, self.start_ms)


class Population:
    """Draws calls without end."""

    def __init__(self, rng: Random, catalog: Catalog, timeline: Timeline, gateways: tuple[str, ...]) -> None:
        self._rng = rng
        self._tag = catalog.tag
        self._timeline = timeline
        self._gateways = gateways
        self._accounts = list(catalog.accounts)
        self._account_weights = _zipf(len(self._accounts))
        self._models = list(catalog.models)
        rng.shuffle(self._models)
        self._model_weights = _zipf(len(self._models))
        self._user_weights = _zipf(USERS // len(self._accounts), 0.8)
        self._users = range(len(self._user_weights))
        self._numbers = count(1)

    def calls(self) -> Iterator[Call]:
        """Calls in sessions: of one user, one after the other, with think time between."""
        rng = self._rng
        while True:
            account = rng.choices(self._accounts, cum_weights=self._account_weights)[0]
            number = rng.choices(self._users, cum_weights=self._user_weights)[0]
            # Some keys belong to machines and name no user.
            user = None if rng.random() < 0.02 else f"user-{account}-{number:04d}"
            source = f"{rng.choice(self._gateways)}/{self._tag}"
            at_ms = rng.randint(self._timeline.first_ms, self._timeline.last_ms)
            while at_ms < self._timeline.last_ms and rng.random() > 0.15:
                call = self._call(account, user, source, at_ms)
                yield call
                at_ms = call.ended_ms + int(rng.lognormvariate(8.5, 1.0))

    def _call(self, account: str, user: str | None, source: str, at_ms: int) -> Call:
        rng = self._rng
        latency_ms = min(int(rng.lognormvariate(7.0, 0.9)) + 1, MAX_CALL_MS)
        return Call(
            account=account,
            user=user,
            model=rng.choices(self._models, cum_weights=self._model_weights)[0],
            source=source,
            request_id=f"r{next(self._numbers)}-{self._tag}",
            started_ms=at_ms,
            ended_ms=at_ms + latency_ms,
            status=rng.choices(("completed", "cancelled", "error"), cum_weights=(94, 97, 100))[0],
            operation=rng.choice(("chat", "chat", "text_completion", "embeddings")),
            used=drawn(rng),
        )


def _zipf(size: int, exponent: float = 1.1) -> list[float]:
    """Cumulative weights of ranks 1 to `size`."""
    return list(accumulate(1 / rank**exponent for rank in range(1, size + 1)))
