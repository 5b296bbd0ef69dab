"""What audits found, and audits that nobody makes."""

from __future__ import annotations

from monitoring.rule_file import Alert, Severity

ANYTHING_HOURS, EVERYTHING_HOURS = 26, 50
"""The chart audits the last day every hour and everything every night: a whole day, or two nights, were left out.
A laptop has no schedule: an evening of work is not overdue there."""

AUDITS = (
    Alert(
        "AuditFound",
        Severity.PAGE,
        "max by (check) (weir_audit_found) > 0",
        "The audit found what has no known cause: {{ $labels.check }}",
        "{{ $value }} differences between what was billed and what the journal makes have no known cause."
        " Issue no invoice, and delete nothing.",
    ),
    Alert(
        "AuditOverdue",
        Severity.TICKET,
        " or ".join(
            f'time() - max by (audited) (weir_audit_proved_timestamp_seconds{{audited="{audited}"}}) > {hours * 3_600}'
            for audited, hours in (("anything", ANYTHING_HOURS), ("everything", EVERYTHING_HOURS))
        ),
        "No audit has proved {{ $labels.audited }}",
        "The last audit that proved {{ $labels.audited }} began {{ $value | humanizeDuration }} ago, or there was none"
        " since then. Run `weir audit`.",
    ),
)
