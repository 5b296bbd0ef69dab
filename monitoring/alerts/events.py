"""Events that are lost, given up, rejected, late, of no known type, or without their other half."""

from __future__ import annotations

from datetime import timedelta

from monitoring.alerts.rises import counted, risen
from monitoring.rule_file import Alert, Severity

LATE_SECONDS = 30
LATE_SHARE = 0.05
UNPAIRED_SHARE = 0.05
SUPERSEDED_SHARE = 0.02
AUDITED_SECONDS = 2 * 3_600
"""The chart audits the last day every hour."""
TAKEN_BACK_SECONDS = 26 * 3_600
"""And everything every night."""
MIN_EVENTS = 20
MANY_WAITING = 100
WAITING_SHARE = 0.5
"""Of the timeout: as long a mean wait has no model whose timeout is well chosen."""

EVENTS = (
    Alert(
        "ConservationBroken",
        Severity.PAGE,
        "max(weir_conservation_residual_records) != 0 or min(weir_conservation_residual_records) != 0",
        "Records and journal rows do not add up",
        "{{ $value }} Kafka records were read that have no row in the journal (below 0: rows without a record)."
        " Issue no invoice, and delete nothing.",
    ),
    Alert(
        "AbsentOffsetsUnproved",
        Severity.PAGE,
        "max(weir_unproved_offsets) > 0",
        "Offsets may hold records that were lost",
        "{{ $value }} offsets have no row, and ingestion cannot prove that they hold no record. It waits:"
        " bring the broker back.",
        timedelta(minutes=1),
    ),
    Alert(
        "RecordsIsolated",
        Severity.PAGE,
        f"""{risen('weir_isolated_records{reason=~"too_large|unreadable"}', "reason", "15m")} > 0""",
        "Records were isolated: {{ $labels.reason }}",
        "{{ $value }} Kafka records would have ended ingestion at each start. They are dead letters now, and are not"
        " billed: see the table isolated_records.",
    ),
    Alert(
        "TopicAtRisk",
        Severity.TICKET,
        "max by (topic, setting) (weir_topic_at_risk) > 0",
        "The topic {{ $labels.topic }} is at risk: {{ $labels.setting }}",
        "With this setting Kafka may lose events before they are read, or take events that ingestion rejects."
        " `weir topics` says what to run.",
        timedelta(minutes=5),
    ),
    Alert(
        "HeartbeatsFailing",
        Severity.TICKET,
        "sum by (topic) (increase(weir_failed_heartbeats_total[5m])) > 0"
        # Then every application waits, and the alert on that fires.
        ' unless on () max(max_over_time(weir_waiting{cause="kafka"}[10m])) == 1',
        "Heartbeats are not accepted in {{ $labels.topic }}",
        "For ten minutes heartbeats of ingestion to the topic {{ $labels.topic }} failed. Where a partition gets no "
        "other record, the frontier stops, and with it all bills. The log of ingestion shows why.",
        timedelta(minutes=10),
    ),
    Alert(
        "LateRateHigh",
        Severity.TICKET,
        f'1 - sum(rate(weir_event_lateness_seconds_bucket{{le="{LATE_SECONDS}.0"}}[15m]))'
        f" / sum(rate(weir_event_lateness_seconds_count[15m])) > {LATE_SHARE}"
        f" and sum(increase(weir_event_lateness_seconds_count[15m])) > {MIN_EVENTS}",
        "Many events are late",
        f"{{{{ $value | humanizePercentage }}}} of the events came {LATE_SECONDS} s or more after the end of their "
        "minute. The page Sources shows who is behind.",
        timedelta(minutes=5),
    ),
    Alert(
        "DeadLetters",
        Severity.TICKET,
        counted(
            'weir_events_total{disposition="rejected",reason!~"future|invalid_catalog_change"}', 10, labels="reason"
        ),
        "Records are rejected: {{ $labels.reason }}",
        "About {{ $value | humanize }} records within 10 minutes are not valid events, and are not billed."
        " `weir dead-letters` lists them.",
    ),
    Alert(
        "FutureTimestamps",
        Severity.TICKET,
        counted('weir_events_total{disposition="rejected",reason="future"}', 10),
        "Events come from the future",
        "About {{ $value | humanize }} events within 10 minutes have a time in the future, and are not billed."
        " Correct the clock or the unit of their source.",
    ),
    Alert(
        "DuplicateConflicts",
        Severity.TICKET,
        counted('weir_events_total{disposition="conflict"}', 15),
        "Different events have the same identity",
        "About {{ $value | humanize }} events within 15 minutes have the source and id of an earlier, different event."
        " Only the first is billed.",
    ),
    Alert(
        "UnknownTypes",
        Severity.TICKET,
        counted("weir_unknown_type_events_total", 15),
        "Events of an unknown type are on no bill",
        "About {{ $value | humanize }} events within 15 minutes have a type that Weir does not know: see `weir types`.",
    ),
    Alert(
        "WaitingRequestsGrowing",
        Severity.TICKET,
        f"sum(weir_join_waiting_records) > {MANY_WAITING} and"
        " sum(weir_join_waiting_records) / sum(rate(weir_join_outcomes_total[10m]))"
        f" > {WAITING_SHARE} * max(weir_join_timeout_seconds)"
        # While these two do nothing there are no outcomes to divide by.
        ' unless on () max(max_over_time(weir_waiting{job=~"ingestion|joins"}[10m])) == 1',
        "Requests wait for their completions",
        "{{ $value }} requests and completions wait for their partner, on average for more than half of the timeout."
        " Ask the gateway that sends completions.",
        timedelta(minutes=5),
    ),
    Alert(
        "OutcomesUnpaired",
        Severity.TICKET,
        'sum by (outcome) (increase(weir_join_outcomes_total{outcome=~"abandoned|orphaned"}[30m]))'
        f" / on () group_left () sum(increase(weir_join_outcomes_total[30m])) > {UNPAIRED_SHARE}"
        f" and on () sum(increase(weir_join_outcomes_total[30m])) > {MIN_EVENTS}",
        "Many requests or completions have no partner: {{ $labels.outcome }}",
        "Within half an hour {{ $value | humanizePercentage }} of the outcomes were {{ $labels.outcome }}."
        " The page Joins shows which models.",
        timedelta(minutes=10),
    ),
    Alert(
        "ReportsSuperseded",
        Severity.TICKET,
        'sum(increase(weir_join_outcomes_total{outcome="superseded"}[30m]))'
        f" / sum(increase(weir_join_outcomes_total[30m])) > {SUPERSEDED_SHARE}"
        f' and sum(increase(weir_join_outcomes_total{{outcome="superseded"}}[30m])) > {MIN_EVENTS}'
        # What came since is looked at by the next one.
        ' and on () time() - max(weir_audit_proved_timestamp_seconds{audited="anything"})'
        f" >= {AUDITED_SECONDS}",
        "Reports came after their request was decided, and no audit looked at them",
        "Within half an hour {{ $value | humanizePercentage }} of the outcomes were superseded: their reports are on no"
        " bill. Run `weir audit`.",
        timedelta(minutes=10),
    ),
    Alert(
        "ReversalsWait",
        Severity.TICKET,
        f"({counted('weir_reversals_total', TAKEN_BACK_SECONDS // 60)})"
        # Where billing does not run its last audit is unknown: another alert reports that billing is down.
        ' and on () time() - max(weir_audit_proved_timestamp_seconds{audited="everything"})'
        f" >= {TAKEN_BACK_SECONDS}",
        "Reversals arrived, and no audit of everything has applied them",
        "{{ $value | humanize }} reversals of the last day wait for an audit: until then the reversed usage is on the"
        " bill. Run `weir audit`.",
        timedelta(minutes=10),
    ),
)
