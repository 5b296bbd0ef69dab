"""How long after its first reception a request may change: by a better report or a reversal."""

from __future__ import annotations

from datetime import timedelta

from deltalake import DeltaTable

from jobs.joins.config import JoinsConfig
from jobs.runtime.effective_rules import History
from jobs.settings.stored_meters import restored
from metering.contracts.reversals import REASON
from metering.ranking import reach_seconds

_UNTIL_AUDITED = timedelta(days=2)
"""A time-out is at most a day, and every day everything is audited."""
_CONTENT_MARGIN = timedelta(days=3)
"""Clocks differ by a day at most, a time-out is at most a day, and an event may occur a day after it was received."""


def correction_horizon(history: History, present: JoinsConfig, journal: DeltaTable | None) -> timedelta:
    """After this time only a price changes what a request bills; nothing that was received longer before it ever did.

    It is the longest reach of all rules of joins (`history`, at least one; `present`: of its last start), plus the time
    until an audit has seen the latest rows. Zero where the best report never billed and the journal has no reversals.
    """
    ranks = any(effective.rules.get("best_report_bills") for effective in history)
    if not ranks and (journal is None or all(field.name != REASON for field in journal.schema().fields)):
        return timedelta()
    reach = max(reach_seconds(effective.rules, present.rejoin_seconds) for effective in history)
    return timedelta(seconds=reach) + _UNTIL_AUDITED


def content_margin(history: History) -> timedelta:
    """How much more is kept so that which outcome of a content counts is known of all that occurred in the days behind
    it: zero where no meter ever counted each content once.
    """
    meters = [meter for effective in history for meter in restored(effective.rules.get("meters"))]
    return _CONTENT_MARGIN if any(meter.once_per is not None for meter in meters) else timedelta()
