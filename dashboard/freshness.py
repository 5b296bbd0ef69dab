"""How old the data is, and what to call it: never had data, idle, stale, or live. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from dashboard.queries.applications import Application
from dashboard.queries.feed import Feed
from dashboard.wording import moment, span
from metering.reports import IDLE_BEAT_SECONDS, STALE, Phase, is_stale

IDLE_AFTER = timedelta(seconds=2 * IDLE_BEAT_SECONDS)
"""Batches come every few seconds while anything is open, and with every heartbeat while nothing is."""

QUIET_AFTER = timedelta(minutes=5)
"""A panel whose newest data is older shows no traffic."""


class Health(StrEnum):
    """What an application is doing, as far as can be known. The value is the word on the page."""

    NEVER_RAN = "never ran"
    STARTING = "starting"
    CATCHING_UP = "catching up"
    WAITING = "waiting"
    RUNNING = "running"
    IDLE = "idle"
    STALE = STALE
    STOPPED = "stopped"


class State(StrEnum):
    """What a panel's data is worth. The value is the word on the page."""

    LIVE = "live"
    IDLE = "idle"
    STALE = "stale"
    NEVER_HAD_DATA = "no data yet"
    BACKEND_DOWN = "backend down"
    NOT_CONNECTED = "not connected"


@dataclass(frozen=True)
class Freshness:
    """A panel's state, and the sentence that says how old its data is."""

    state: State
    sentence: str


_STATES: dict[str, Health] = {
    Phase.STARTING: Health.STARTING,
    Phase.CATCHING_UP: Health.CATCHING_UP,
    Phase.WAITING: Health.WAITING,
    Phase.STOPPED: Health.STOPPED,
}


def health(application: Application | None, now: datetime) -> Health:
    """The state of `application` at `now`; None is one that never ran."""
    if application is None:
        return Health.NEVER_RAN
    if is_stale(application.state, (now - application.reported_at).total_seconds()):
        return Health.STALE
    if application.state in _STATES:
        return _STATES[application.state]
    last_batch_at = application.last_batch_at
    is_waiting = not application.records_behind and (last_batch_at is None or now - last_batch_at > IDLE_AFTER)
    return Health.IDLE if is_waiting else Health.RUNNING


def freshness(feed: Feed, newest: datetime | None, what: str) -> Freshness:
    """How fresh the `what` (such as `usage`) is that `feed` brings; `newest` is of the newest of it, None without any.

    Stale wins over idle: a dead application looks idle too.
    """
    if feed.reported_at is None:
        sentence = f"{feed.job} has not run on this database yet."
        return Freshness(State.NEVER_HAD_DATA if newest is None else State.STALE, sentence)
    since = span(feed.read_at - feed.reported_at)
    if feed.state == Phase.STOPPED:
        return Freshness(State.STALE, f"{feed.job} was stopped {since} ago: these are its last values.")
    if is_stale(feed.state or "", (feed.read_at - feed.reported_at).total_seconds()):
        return Freshness(State.STALE, f"{feed.job} has not reported for {since}: these are its last values.")
    if newest is None:
        return Freshness(State.NEVER_HAD_DATA, f"No {what} yet; {feed.job} is running and waiting for data.")
    if feed.read_at - newest > QUIET_AFTER:
        return Freshness(State.IDLE, f"No new {what} for {span(feed.read_at - newest)}; {_as_of(feed)}")
    words = _as_of(feed)
    return Freshness(State.LIVE, f"{words[:1].upper()}{words[1:]}")


def _as_of(feed: Feed) -> str:
    if feed.frontier is None:
        return f"reported by {feed.job} {span(feed.read_at - (feed.reported_at or feed.read_at))} ago."
    age = span(feed.read_at - feed.frontier)
    return f"up to date with all that was received before {moment(feed.frontier)}, {age} ago."
