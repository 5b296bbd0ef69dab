"""How old is what we see, and what may be said of it: never had data, idle, stale, or live. No I/O."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from dashboard.queries import Application, LiveWindows

STALE_AFTER = timedelta(seconds=30)
"""An application reports every 5 s; six missed reports are not chance."""

IDLE_AFTER = timedelta(seconds=60)
"""Batches come every few seconds while there is anything to do."""


class Health(StrEnum):
    """What an application is doing, as far as can be known. The value is the word on the page."""

    NEVER_RAN = "never ran"
    STARTING = "starting"
    CATCHING_UP = "catching up"
    RUNNING = "running"
    IDLE = "idle"
    STALE = "stale"
    STOPPED = "stopped"


class Filling(StrEnum):
    """What the live windows show."""

    NEVER_HAD_DATA = "no usage yet"
    IDLE = "idle"
    STALE = "stale"
    LIVE = "live"


_STATES = {"starting": Health.STARTING, "catching_up": Health.CATCHING_UP, "stopped": Health.STOPPED}


def health(application: Application | None, now: datetime) -> Health:
    """What `application` is doing at `now`; None is one that never ran."""
    if application is None:
        return Health.NEVER_RAN
    if application.state != "stopped" and now - application.reported_at > STALE_AFTER:
        return Health.STALE
    if application.state in _STATES:
        return _STATES[application.state]
    last_batch_at = application.last_batch_at
    is_waiting = not application.records_behind and (last_batch_at is None or now - last_batch_at > IDLE_AFTER)
    return Health.IDLE if is_waiting else Health.RUNNING


def filling(live: LiveWindows) -> Filling:
    """Whether the windows read at `live.read_at` are filling; stale wins over idle, for a dead job looks idle too."""
    if live.last_window_start is None:
        return Filling.NEVER_HAD_DATA
    if live.billing_reported_at is None or live.read_at - live.billing_reported_at > STALE_AFTER:
        return Filling.STALE
    return Filling.LIVE if live.windows else Filling.IDLE


def span(duration: timedelta) -> str:
    """A duration in the largest unit that says it, such as `45 s`, `3 min` or `2 h`; below zero counts as none."""
    seconds = max(0, round(duration.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
