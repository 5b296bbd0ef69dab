"""What audits found, and audits that are overdue."""

from __future__ import annotations

from datetime import timedelta

from monitoring.metrics.audit import Audited
from monitoring.rule_file import Alert, Part, Severity

ANYTHING_HOURS, EVERYTHING_HOURS = 26, 50
"""The chart audits the last day every hour and everything every night: a whole day, or two nights, were left out.
Where nothing is on a schedule, as on a laptop, nothing is overdue."""


def overdue(audited: Audited, hours: int, part: Part) -> Alert:
    """The ticket for one extent of audits: each may be left out of the schedule."""
    return Alert(
        "AuditOverdue",
        Severity.TICKET,
        f'time() - max by (audited) (weir_audit_proved_timestamp_seconds{{audited="{audited}"}}) > {hours * 3_600}',
        "No audit has proved {{ $labels.audited }}",
        "The last audit that proved {{ $labels.audited }} began {{ $value | humanizeDuration }} ago, or there was none"
        " since then. Run `weir audit`.",
        timedelta(0),
        (part,),
        {"audited": audited.value},
    )


AUDITS = (
    Alert(
        "AuditFound",
        Severity.PAGE,
        "max by (check) (weir_audit_found) > 0",
        "The audit found differences without a known cause: {{ $labels.check }}",
        "{{ $value }} differences between the bills and what follows from the journal have no known cause."
        " Issue no invoice, and delete nothing.",
    ),
    overdue(Audited.ANYTHING, ANYTHING_HOURS, Part.AUDIT),
    overdue(Audited.EVERYTHING, EVERYTHING_HOURS, Part.FULL_AUDIT),
)
