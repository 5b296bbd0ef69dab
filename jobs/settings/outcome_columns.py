"""Columns that every outcome has by itself: a meter, a dimension or a price attribute cannot take their names."""

from __future__ import annotations

from jobs.streams import EARLIER_METERED, USAGE
from metering.meters import FAMILY

OF_OUTCOMES = frozenset(USAGE.names) - {field.name for field in EARLIER_METERED} | {
    *(
        "row",
        "request_us",
        "completion_us",
        "superseded",
        "timeout_us",
        "until_us",
        "merit",
        "is_lesser",
        "family",
        "remembered",
        "decided_side",
    )
}
"""What outcomes say of their own, also on their way into usage: people would take a meter of such a column for it."""
OUTCOME_TEXTS = ("status", "model", "user_id", FAMILY)
"""Texts of events that every outcome has, too: a condition on one of them is about what the outcome says."""
