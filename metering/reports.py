"""What an application reports about itself in its row of `jobs`: the words, how often, and when it is stale."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

REPORT_SECONDS = 5.0
STALE_AFTER_SECONDS = 30.0
"""Six reports that did not come are no chance: the application is frozen or gone, and its last report is old."""

IDLE_BEAT_SECONDS = 60.0
"""How often heartbeats come while nothing is open: by as much older are then all frontiers."""

CATALOG_BEHIND_SECONDS = 60
"""Age of a change of the catalog that Kafka should have had within seconds: from then on its capture is late."""
ORDERED_BEHIND_SECONDS = 300
"""How far behind the frontier and its wait `events.ordered` may be before the alert and `weir status` say so."""


class Phase(StrEnum):
    """What an application is doing: the column `state` of its row."""

    STARTING = "starting"
    CATCHING_UP = "catching_up"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stopped"
    """It was asked to stop. The only phase that never becomes stale."""


WORKING = (Phase.RUNNING, Phase.CATCHING_UP)
"""Past its checks, and at work; its lag shows how far behind it is."""
STALE = "stale"
"""Instead of a word that is too old."""

OFF_AFTER = timedelta(days=1)
"""An application that not every installation has is off after so long without a report: one that was killed, or refused
to start, before it was switched off has not reported that it stopped."""


def is_stale(phase: str, age_seconds: float) -> bool:
    """Whether a report of `phase` is too old to be believed."""
    return phase != Phase.STOPPED and age_seconds > STALE_AFTER_SECONDS


def is_off(phase: str, age_seconds: float) -> bool:
    """Whether an application that not every installation has is switched off, by its last report."""
    return phase == Phase.STOPPED or age_seconds > OFF_AFTER.total_seconds()
