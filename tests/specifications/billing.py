"""Specification: what billing decides about one usage row and meter, which its columns and its fold must do as well."""

from __future__ import annotations

from datetime import datetime, timedelta

from metering.vocabulary import Decision, Outcome
from metering.windows import Window
from tests.specifications.lateness import Arrival, arrival


def decide(
    received_at: datetime, window: Window, grace: timedelta, policy: Decision, closed_before: datetime | None = None
) -> Decision | None:
    """The decision about a row of `window`; None for one that is no straggler and is simply included."""
    return policy if arrival(received_at, window, grace, closed_before) is Arrival.STRAGGLER else None


def is_metered(quantity: int | None) -> bool:
    """True when there is something to count: zero changes nothing, so it makes neither a window nor a straggler."""
    return quantity is not None and quantity != 0


def is_unmetered(outcome: str, quantity: int | None) -> bool:
    """True when a completion came but did not report this meter: null is not 0, so it is counted and not billed."""
    return outcome == Outcome.MATCHED and quantity is None
