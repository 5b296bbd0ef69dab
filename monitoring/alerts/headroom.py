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
        "{{ $value | humanizePercentage }} of the retention of events is left until Kafka deletes unread records."
        " Raise retention.ms, and let ingestion catch up.",
        timedelta(minutes=5),
    ),
    Alert(
        "UnreadRecordsExpire",
        Severity.PAGE,
        f"min(weir_retention_headroom_ratio) < {HEADROOM_PAGE}",
        "Kafka is about to delete records that were not read yet",
        "{{ $value | humanizePercentage }} of the retention of events is left until Kafka deletes unread records."
        " They would be on no bill: raise retention.ms now.",
        timedelta(minutes=2),
    ),
    Alert(
        "TablesFillDisk",
        Severity.TICKET,
        f"min(weir_tables_free_ratio) < {FREE_TICKET}",
        "The disk of the tables fills up",
        "{{ $value | humanizePercentage }} of the tables' file system is free. Run `weir compact`, or "
        "make the disk larger.",
        timedelta(minutes=15),
    ),
    Alert(
        "TablesDiskFull",
        Severity.PAGE,
        f"min(weir_tables_free_ratio) < {FREE_PAGE}",
        "The disk of the tables is nearly full",
        "{{ $value | humanizePercentage }} of the tables' file system is free. When it is full, metering stops."
        " Make the disk larger.",
        timedelta(minutes=2),
    ),
)
