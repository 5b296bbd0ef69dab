"""Sources that are silent, too many, have gaps, or whose clock or identities cannot be checked."""

from __future__ import annotations

from datetime import timedelta

from monitoring.alerts.rises import counted
from monitoring.metrics import MAX_NEW_SOURCES
from monitoring.rule_file import Alert, Severity

SOURCES = (
    Alert(
        "SourceSilent",
        Severity.TICKET,
        'max(weir_sources{state="silent"}) > 0',
        "Sources are silent",
        "{{ $value }} sources that used to send have sent nothing for too long. The page Sources names them: ask "
        "their owner.",
        timedelta(minutes=1),
    ),
    Alert(
        "SourceFlood",
        Severity.TICKET,
        counted("weir_unlisted_source_events_total", 15),
        "Too many new sources",
        f"More than {MAX_NEW_SOURCES:,} new sources came within an hour: about {{{{ $value | humanize }}}} events"
        " within 15 minutes are of sources that are not listed. They are billed.",
    ),
    Alert(
        "SequenceGap",
        Severity.TICKET,
        "max(min_over_time(weir_missing_sequence_numbers[2m]))"
        " - min(min_over_time(weir_missing_sequence_numbers[1h])) > 0",
        "Events are missing",
        "Within the last hour {{ $value }} sequence numbers went missing: later ones have arrived."
        " The page Sources lists them.",
    ),
    Alert(
        "UncorrectedClocks",
        Severity.TICKET,
        counted("weir_uncorrected_clock_events_total", 15),
        "Devices do not say when they send",
        "About {{ $value | humanize }} events of devices within 15 minutes have no senttime, so Weir believes their "
        "clock. Let the devices send senttime.",
    ),
    Alert(
        "IdentitiesEvicted",
        Severity.TICKET,
        "max(weir_identity_segments_evicted) > 0",
        "The identities of an hour do not fit into memory",
        "{{ $value }} million rows of the exact horizon have no room in memory; their repeats are looked up in the"
        " journal, which is slower. Raise identity_memory_mib.",
        timedelta(minutes=15),
    ),
)
