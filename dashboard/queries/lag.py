"""Each application's lag over the last half hour, from Prometheus."""

from __future__ import annotations

from datetime import datetime, timedelta

from dashboard.backend import Backend
from dashboard.queries.prometheus import query_range
from monitoring.metrics import LAG_RECORDS
from monitoring.rule_file import held_to, matchers

SPAN = timedelta(minutes=30)
STEP = timedelta(seconds=30)


def read_lag(backend: Backend, now: datetime) -> dict[str, tuple[float, ...]]:
    """Records behind, oldest first, by job."""
    stack = backend.settings.stack
    lag = held_to(LAG_RECORDS.name, matchers(stack)) if stack else LAG_RECORDS.name
    series = query_range(backend, lag, now - SPAN, now, STEP)
    return {labels["job"]: tuple(value for _, value in samples) for labels, samples in series if "job" in labels}
