"""What applications wait for, one page for each cause."""

from __future__ import annotations

from datetime import timedelta

from monitoring.rule_file import Alert, Severity


def waiting_for(cause: str, name: str, what: str) -> Alert:
    """One page for all applications that wait for the same."""
    return Alert(
        f"WaitingFor{name}",
        Severity.PAGE,
        f'sum(max by (job) (weir_waiting{{cause="{cause}"}})) > 0',
        f"Applications wait for {what}",
        f"{{{{ $value }}}} applications have waited for {what} for five minutes; they go on by themselves.",
        timedelta(minutes=5),
    )


WAITING = (
    waiting_for("kafka", "Kafka", "Kafka"),
    waiting_for("database", "Database", "Postgres"),
    waiting_for("store", "Store", "the store of the tables"),
    waiting_for("broker_clock", "BrokerClock", "the broker's clock to be right"),
    waiting_for("memory", "Memory", "memory"),
)
