"""The objective of freshness, and how fast its budget is spent."""

from __future__ import annotations

from datetime import timedelta

from metering.reports import IDLE_BEAT_SECONDS
from monitoring.rule_file import Alert, Part, Recording, Severity

FRESH_SECONDS = 60
"""The objective: what was received is billed within this, for 99 % of the time."""
BUDGET = 0.01
BILLS = (Part.INGESTION, Part.JOINS, Part.BILLING)
"""Without one of these nothing is billed, and no alert is due."""


def burning(times: float, long: str, short: str) -> str:
    """The budget is spent `times` times too fast, over the long window and still over the short one.

    Time before the first evaluation counts as fresh: a stack that starts with yesterday's frontier has not been late
    today. From then on `weir:freshness:stale` always has a value.
    """
    limit = f"{times * BUDGET:g}"
    stale = "(max(weir:freshness:stale) or vector(0))"
    return f"avg_over_time({stale}[{long}:]) > {limit} and avg_over_time({stale}[{short}:]) > {limit}"


FRESHNESS = (
    Recording(
        "weir:freshness:seconds",
        "time() - max by (job) (last_over_time(weir_frontier_timestamp_seconds[1d]))",
        "Age of the frontier per job, growing on while the job is down.",
    ),
    Recording(
        "weir:freshness:allowed",
        # A minute longer, because the first event ends idleness before a frontier has come up to it.
        f"{FRESH_SECONDS} + {IDLE_BEAT_SECONDS:g} * (max(max_over_time(weir_idle[1m])) or vector(0))",
        "How old the frontier of billing may be: older by a heartbeat while nothing is open, if ingestion says so.",
    ),
    Recording(
        "weir:freshness:stale",
        # Without a frontier it is unknown how late bills are: a partition got no record yet, or no driver was there for
        # a day. That is no health.
        '(max(weir:freshness:seconds{job="billing"}) > bool max(weir:freshness:allowed)) or vector(1)',
        "1 while bills are older than the objective allows, or their age is unknown.",
        BILLS,
    ),
    Alert(
        "FreshnessBurnFast",
        Severity.PAGE,
        burning(14.4, "1h", "5m"),
        "Bills are late",
        f"For {{{{ $value | humanizePercentage }}}} of the last hour, bills were more than {FRESH_SECONDS} s behind,"
        " or how far is unknown. `weir status` shows which application is behind.",
        timedelta(minutes=2),
        BILLS,
    ),
    Alert(
        "FreshnessBurnSlow",
        Severity.TICKET,
        burning(6, "6h", "30m"),
        "Bills are late repeatedly",
        f"For {{{{ $value | humanizePercentage }}}} of the last six hours, bills were more than {FRESH_SECONDS} s "
        "behind, or how far is unknown. Look for a fixed hour, more traffic, or restarts.",
        timedelta(minutes=15),
        BILLS,
    ),
)
