"""What applications wait for, one page for each cause."""

from __future__ import annotations

from datetime import timedelta

from monitoring.rule_file import Alert, Severity

MEMORY_SHARE = 0.8
"""Of the memory that joins may take."""


def waiting_for(cause: str, name: str, what: str) -> Alert:
    """One page for all applications that wait for the same."""
    return Alert(
        f"WaitingFor{name}",
        Severity.PAGE,
        f'sum(max by (job) (weir_waiting{{cause="{cause}"}})) > 0',
        f"Applications wait for {what}",
        f"{{{{ $value }}}} applications have waited for {what} for five minutes. Fix that, and they continue by "
        "themselves.",
        timedelta(minutes=5),
    )


WAITING = (
    waiting_for("kafka", "Kafka", "Kafka"),
    waiting_for("database", "Database", "Postgres"),
    waiting_for("store", "Store", "the store of the tables"),
    waiting_for("broker_clock", "BrokerClock", "the broker's clock to be right"),
    Alert(
        "WaitingForMemory",
        Severity.PAGE,
        'max by (job) (weir_waiting{cause="memory"}) > 0',
        "{{ $labels.job }} waits for memory: raise waiting_memory_mib",
        "For five minutes {{ $labels.job }} has lacked memory for its pending rows. Nothing is billed until somebody"
        " raises waiting_memory_mib.",
        timedelta(minutes=5),
    ),
    Alert(
        "JoinsMemoryHigh",
        Severity.TICKET,
        f"max(weir_join_memory_bytes) / max(weir_join_memory_limit_bytes) > {MEMORY_SHARE}",
        "joins will soon be out of memory for pending rows",
        "joins uses {{ $value | humanizePercentage }} of waiting_memory_mib; at 100 % it waits, and nothing is billed."
        " See that every partition of events gets heartbeats.",
        timedelta(minutes=5),
    ),
)
