"""How much retention and disk is left, and how much of the database's disk its log takes."""

from __future__ import annotations

from datetime import timedelta

from monitoring.rule_file import Alert, Part, Recording, Severity

HEADROOM_TICKET, HEADROOM_PAGE = 0.5, 0.2
"""Of the topic's retention: of a week, three and a half days to act, then one and a half."""
FREE_TICKET, FREE_PAGE = 0.2, 0.05
SLOT_BYTES = 1_073_741_824
"""Capture reads on within seconds, and then retains some segments of 16 MiB. Postgres by itself keeps as much
(max_wal_size)."""
SLOT_SHARE = 0.8
"""Of max_slot_wal_keep_size."""
DATABASE_GIB = "RELEASE_DATABASE_GIB"
"""Size of the database's disk, which the chart puts here: Postgres does not know it."""
DATABASE_SHARE = f"max(weir_database_used_bytes) / ({DATABASE_GIB} * 1073741824)"


def carried_on(name: str, reported: str, help_text: str) -> Recording:
    """What ingestion reported last, for as long as Prometheus runs: records expire also when reports stop.

    While it reports, a topic that it reports no more has ended: what was carried last is carried on, and no more of the
    day before, unless Prometheus itself was away.
    """
    of_day = f"max by (topic) (last_over_time({name}[1d])) unless on () max({name})"
    last = f"(max by (topic) ({name}) or ({of_day})) unless on () max({reported})"
    return Recording(name, f"{reported} or ({last})", help_text, (Part.INGESTION,))


def below(share: float) -> str:
    """Of a topic less than this share of its retention is left: by what is carried on, or as ingestion sees it."""
    carried, seen = (
        f"min by (topic) ({name})" for name in ("weir:retention:headroom", "weir_retention_headroom_ratio")
    )
    return f"{carried} < {share} or {seen} < {share}"


HEADROOM = (
    carried_on(
        "weir:read_until:timestamp",
        "max by (topic) (weir_read_until_timestamp_seconds)",
        "Since when records of a topic of events may be unread; does not change while ingestion is down.",
    ),
    carried_on(
        "weir:retention:seconds",
        "min by (topic) (weir_retention_seconds)",
        "How long Kafka keeps a record of a topic of events.",
    ),
    Recording(
        "weir:retention:headroom",
        "clamp(1 - (time() - max by (topic) (weir:read_until:timestamp))"
        " / min by (topic) (weir:retention:seconds), 0, 1)",
        "The share of the retention that is left by its age until Kafka deletes a record that may be unread.",
        (Part.INGESTION,),
    ),
    Alert(
        "UnreadRecordsAge",
        Severity.TICKET,
        below(HEADROOM_TICKET),
        "Kafka will delete records of {{ $labels.topic }} that were not read yet",
        "{{ $value | humanizePercentage }} of the retention of {{ $labels.topic }} is left until Kafka"
        " deletes unread records."
        " Raise retention.ms, and let ingestion catch up.",
        timedelta(minutes=5),
        (Part.INGESTION,),
    ),
    Alert(
        "UnreadRecordsExpire",
        Severity.PAGE,
        below(HEADROOM_PAGE),
        "Kafka is about to delete records of {{ $labels.topic }} that were not read yet",
        "{{ $value | humanizePercentage }} of the retention of {{ $labels.topic }} is left until Kafka"
        " deletes unread records."
        " They would be on no bill: raise retention.ms now.",
        timedelta(minutes=2),
        (Part.INGESTION,),
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
    Alert(
        "SlotRetainsLog",
        Severity.TICKET,
        f"max by (slot) (weir_slot_retained_bytes) > {SLOT_BYTES}",
        "A replication slot fills the disk of Postgres: {{ $labels.slot }}",
        "The slot {{ $labels.slot }} retains {{ $value | humanize1024 }}B of Postgres' log, because nothing reads it."
        " Start its reader, or drop the slot, before the disk is full.",
        timedelta(minutes=15),
    ),
    Alert(
        "SlotNearlyLost",
        Severity.TICKET,
        "max by (slot) (weir_slot_retained_bytes) / (max by (slot) (weir_slot_retained_bytes)"
        f" + min by (slot) (weir_slot_safe_bytes)) > {SLOT_SHARE}",
        "A replication slot will soon be lost: {{ $labels.slot }}",
        "The slot {{ $labels.slot }} retains {{ $value | humanizePercentage }} of the log that Postgres keeps for a"
        " slot (max_slot_wal_keep_size); at 100 % Postgres invalidates it. Start its reader.",
        timedelta(minutes=2),
    ),
    Alert(
        "DatabaseFillsDisk",
        Severity.TICKET,
        f"{DATABASE_SHARE} > {1 - FREE_TICKET:g}",
        "The disk of Postgres fills up",
        "Weir's database and the log that slots retain take {{ $value | humanizePercentage }} of the disk of"
        " Postgres. Make it larger.",
        timedelta(minutes=15),
        (Part.DATABASE_DISK,),
    ),
    Alert(
        "DatabaseDiskFull",
        Severity.PAGE,
        f"{DATABASE_SHARE} > {1 - FREE_PAGE:g}",
        "The disk of Postgres is nearly full",
        "Weir's database and the log that slots retain take {{ $value | humanizePercentage }} of the disk of"
        " Postgres. When it is full, all of Weir waits. Make it larger.",
        timedelta(minutes=2),
        (Part.DATABASE_DISK,),
    ),
)
