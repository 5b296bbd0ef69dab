"""Joins' metrics: outcomes, and rows that wait for one."""

from __future__ import annotations

from metering.vocabulary import Job, Outcome
from monitoring.instruments import CounterMetric, GaugeMetric

JOINS = (Job.JOINS,)

OUTCOMES = CounterMetric(
    "weir_join_outcomes_total",
    "outcomes",
    "Usage rows, by what became of the request.",
    {"outcome": tuple(Outcome)},
    JOINS,
)
WAITING = GaugeMetric(
    "weir_join_waiting_records", "records", "Requests and completions that wait for their partner.", programs=JOINS
)
WAITING_MEMORY = GaugeMetric(
    "weir_join_memory_bytes",
    "bytes",
    "Memory for requests and completions that a later row may still be matched with.",
    programs=JOINS,
)
WAITING_MEMORY_LIMIT = GaugeMetric(
    "weir_join_memory_limit_bytes",
    "bytes",
    "Limit of weir_join_memory_bytes (waiting_memory_mib): beyond it joins waits.",
    programs=JOINS,
)
UNPROPAGATED_DELETIONS = GaugeMetric(
    "weir_unpropagated_deletions",
    "rows",
    "Accounts and prices that joins has and the database has not, whose deletion was not captured and never will be.",
    programs=JOINS,
)
EARLIER_UNPROPAGATED_DELETIONS = GaugeMetric(
    "weir_untold_deletions",
    "rows",
    "The earlier name of weir_unpropagated_deletions, until the next release.",
    programs=JOINS,
)
TIMEOUT = GaugeMetric(
    "weir_join_timeout_seconds",
    "seconds",
    "How long a request waits for its completion, if its model has no timeout of its own.",
    programs=JOINS,
)
