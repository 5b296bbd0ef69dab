"""How much retention and disk is left."""

from __future__ import annotations

from datetime import timedelta

from monitoring.rule_file import Alert, Severity

HEADROOM_TICKET, HEADROOM_PAGE = 0.5, 0.2
"""Of the topic's retention: of a week, three and a half days to act, then one and a half."""
FREE_TICKET, FREE_PAGE = 0.2, 0.05

HEADROOM = (
    Alert(
        "UnreadRecordsAge",
        Severity.TICKET,
        f"min(weir_retention_headroom_ratio) < {HEADROOM_TICKET}",
        "Kafka will delete records that were not read yet",
        "{{ $value | humanizePercentage }} of the retention of events is left before records go unread.",
        timedelta(minutes=5),
    ),
    Alert(
        "UnreadRecordsExpire",
        Severity.PAGE,
        f"min(weir_retention_headroom_ratio) < {HEADROOM_PAGE}",
        "Kafka is about to delete records that were not read yet",
        "{{ $value | humanizePercentage }} of the retention of events is left before records go unread, and unbilled.",
        timedelta(minutes=2),
    ),
    Alert(
        "TablesFillDisk",
        Severity.TICKET,
        f"min(weir_tables_free_ratio) < {FREE_TICKET}",
        "The disk of the tables fills up",
        "{{ $value | humanizePercentage }} of the tables' file system is free.",
        timedelta(minutes=15),
    ),
    Alert(
        "TablesDiskFull",
        Severity.PAGE,
        f"min(weir_tables_free_ratio) < {FREE_PAGE}",
        "The disk of the tables is nearly full",
        "{{ $value | humanizePercentage }} of the tables' file system is free; without any, metering stops.",
        timedelta(minutes=2),
    ),
)
