"""Every alert, declared once. Symptoms page, causes open tickets; each has its heading in `runbook.md`.

Gauges from the database live longer than the process that shows them, so their rise is taken over all instances
(`risen`), and never with `increase`, which would not see one that happened between two processes.
"""

from __future__ import annotations

from datetime import timedelta

from monitoring.metrics import JOBS, MOST_NEW_SOURCES
from monitoring.rule_file import Alert, Recording, Severity

FRESH_SECONDS = 60
"""The objective: what was received is billed within this, for 99 % of the time."""
BUDGET = 0.01
LATE_SECONDS = 30
STALLED_SECONDS = 120
CATCH_UP_SECONDS = 600
WAITING_SECONDS = 60
"""Mean wait of a request for its completion: far above any model's answer, well below the timeout."""
MANY_WAITING = 100
RESTARTS = 3
LATE_SHARE = 0.05
UNPAIRED_SHARE = 0.05
FEWEST_EVENTS = 20
HEADROOM_TICKET, HEADROOM_PAGE = 0.5, 0.2
"""Of the topic's retention: of a week, three and a half days to act, then one and a half."""
FREE_TICKET, FREE_PAGE = 0.2, 0.05
DROPPED_MONEY = 1
"""In units of its currency, within an hour."""


def risen(series: str, labels: str, window: str) -> str:
    """By how much a gauge is above its lowest value in `window`, whichever process showed it."""
    return f"max by ({labels}) ({series}) - min by ({labels}) (min_over_time({series}[{window}]))"


def absent_jobs() -> str:
    """One series per job that has not looked at its lag, under the job's label."""
    return " or ".join(f'absent(weir_last_report_timestamp_seconds{{job="{job}"}})' for job in JOBS)


def burning(times: float, long: str, short: str) -> str:
    """The budget is being spent so many times too fast, over the long window and still over the short one.

    Time before the first sample counts as fresh: a stack that starts with yesterday's frontier has not been late today.
    """
    limit = f"{times * BUDGET:g}"
    stale = "(max(weir:freshness:stale) or vector(0))"
    return f"avg_over_time({stale}[{long}:]) > {limit} and avg_over_time({stale}[{short}:]) > {limit}"


FRESHNESS = (
    Recording(
        "weir:freshness:seconds",
        "time() - max by (job) (last_over_time(weir_frontier_timestamp_seconds[1d]))",
        "Age of the frontier per job, growing on while the job is down.",
    ),
    Recording(
        "weir:freshness:stale",
        f'weir:freshness:seconds{{job="billing"}} > bool {FRESH_SECONDS}',
        "1 while bills are older than the objective allows.",
    ),
    Alert(
        "FreshnessBurnFast",
        Severity.PAGE,
        burning(14.4, "1h", "5m"),
        "Bills are late",
        f"For {{{{ $value | humanizePercentage }}}} of the last hour, bills were more than {FRESH_SECONDS} s behind.",
        timedelta(minutes=2),
    ),
    Alert(
        "FreshnessBurnSlow",
        Severity.TICKET,
        burning(6, "6h", "30m"),
        "Bills are late again and again",
        f"For {{{{ $value | humanizePercentage }}}} of six hours, bills were more than {FRESH_SECONDS} s behind.",
        timedelta(minutes=15),
    ),
)

APPLICATIONS = (
    Alert(
        "ApplicationDown",
        Severity.PAGE,
        absent_jobs(),
        "{{ $labels.job }} does not run",
        "No driver of {{ $labels.job }} answers, or none gets through its start.",
        timedelta(minutes=2),
    ),
    Alert(
        "ApplicationStalled",
        Severity.PAGE,
        f"(time() - max by (job) (weir_last_progress_timestamp_seconds) > {STALLED_SECONDS}"
        " and on (job) max by (job) (weir_lag_records) > 0"
        " unless on (job) max by (job) (weir_waiting) == 1)"
        f" or time() - max by (job) (weir_last_report_timestamp_seconds) > {STALLED_SECONDS}",
        "{{ $labels.job }} stands still",
        "{{ $labels.job }} runs and has input, but has finished nothing for {{ $value | humanizeDuration }}.",
        timedelta(minutes=1),
    ),
    Alert(
        "ApplicationRestarting",
        Severity.TICKET,
        f"{risen('weir_restarts', 'job', '15m')} >= {RESTARTS}",
        "{{ $labels.job }} starts again and again",
        "{{ $labels.job }} was started {{ $value }} times within 15 minutes.",
    ),
    Alert(
        "LagGrowing",
        Severity.TICKET,
        f"max by (job) (weir_catch_up_seconds) > {CATCH_UP_SECONDS}",
        "{{ $labels.job }} falls behind",
        "At its speed of the last minutes {{ $labels.job }} needs {{ $value | humanizeDuration }} to catch up.",
        timedelta(minutes=10),
    ),
    Alert(
        "WritesRefused",
        Severity.PAGE,
        f"""{risen('weir_driver_exits{how="refused"}', "job, how", "15m")} > 0""",
        "{{ $labels.job }} refuses to go on",
        "Going on could lose or double money, so {{ $labels.job }} stopped. It will not help itself.",
    ),
    Alert(
        "WritesFenced",
        Severity.TICKET,
        f"""{risen('weir_driver_exits{how="fenced"}', "job, how", "15m")} > 0""",
        "Two drivers of {{ $labels.job }} met",
        "A driver of {{ $labels.job }} found that another had taken over, and ended. No write of it got through.",
    ),
    Alert(
        "DatabaseUnreadable",
        Severity.TICKET,
        'max by (job) (weir_database_readable) == 0 unless on (job) max by (job) (weir_waiting{cause="database"}) == 1',
        "{{ $labels.job }} cannot read its gauges",
        "Postgres does not answer {{ $labels.job }} in time: alerts on money, windows and sources are blind.",
        timedelta(minutes=5),
    ),
)


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

EVENTS = (
    Alert(
        "ConservationBroken",
        Severity.PAGE,
        "max(weir_conservation_residual_records) != 0 or min(weir_conservation_residual_records) != 0",
        "Records and journal rows do not add up",
        "{{ $value }} Kafka records more were read than the journal has rows. It must be 0.",
    ),
    Alert(
        "AbsentOffsetsUnproved",
        Severity.PAGE,
        "max(weir_unproved_offsets) > 0",
        "Offsets may hold records that were lost",
        "{{ $value }} offsets have no row, and it cannot be proved that they hold no record: ingestion waits.",
        timedelta(minutes=1),
    ),
    Alert(
        "RecordsIsolated",
        Severity.PAGE,
        f"""{risen('weir_isolated_records{reason=~"too_large|unreadable"}', "reason", "15m")} > 0""",
        "Records were given up: {{ $labels.reason }}",
        "{{ $value }} Kafka records would have ended ingestion again and again; they are dead letters, and not billed.",
    ),
    Alert(
        "TopicAtRisk",
        Severity.TICKET,
        "max by (setting) (weir_topic_at_risk) > 0",
        "The topic of events is at risk: {{ $labels.setting }}",
        "A setting of the topic lets events be lost before they are read, or be refused after they were taken.",
        timedelta(minutes=5),
    ),
    Alert(
        "LateRateHigh",
        Severity.TICKET,
        f'1 - sum(rate(weir_event_lateness_seconds_bucket{{le="{LATE_SECONDS}.0"}}[15m]))'
        f" / sum(rate(weir_event_lateness_seconds_count[15m])) > {LATE_SHARE}"
        f" and sum(increase(weir_event_lateness_seconds_count[15m])) > {FEWEST_EVENTS}",
        "Many events are late",
        f"{{{{ $value | humanizePercentage }}}} of the events came {LATE_SECONDS} s or more after their minute's end.",
        timedelta(minutes=5),
    ),
    Alert(
        "DeadLetters",
        Severity.TICKET,
        'sum by (reason) (increase(weir_events_total{disposition="rejected",reason!="future"}[10m])) > 0',
        "Records are rejected: {{ $labels.reason }}",
        "About {{ $value | humanize }} records within 10 minutes are no valid events and are not billed.",
    ),
    Alert(
        "FutureTimestamps",
        Severity.TICKET,
        'sum(increase(weir_events_total{disposition="rejected",reason="future"}[10m])) > 0',
        "Events come from the future",
        "About {{ $value | humanize }} events within 10 minutes say that they have yet to occur, and are not billed.",
    ),
    Alert(
        "DuplicateConflicts",
        Severity.TICKET,
        'sum(increase(weir_events_total{disposition="conflict"}[15m])) > 0',
        "One identity has two contents",
        "About {{ $value | humanize }} events within 15 minutes reused source and id of another. The first counts.",
    ),
    Alert(
        "UnknownTypes",
        Severity.TICKET,
        "sum(increase(weir_unknown_type_events_total[15m])) > 0",
        "Events of an unknown type are on no bill",
        "About {{ $value | humanize }} events within 15 minutes have a type that Weir does not know: see `weir types`.",
    ),
    Alert(
        "WaitingRequestsGrowing",
        Severity.TICKET,
        f"sum(weir_join_waiting_records) > {MANY_WAITING} and"
        f" sum(weir_join_waiting_records) / sum(rate(weir_join_outcomes_total[10m])) > {WAITING_SECONDS}"
        # While these two do nothing there are no outcomes to divide by.
        ' unless on () max(max_over_time(weir_waiting{job=~"ingestion|joins"}[10m])) == 1',
        "Requests wait for their completions",
        "{{ $value }} requests and completions wait for their partner, for more than a minute on average.",
        timedelta(minutes=5),
    ),
    Alert(
        "OutcomesUnpaired",
        Severity.TICKET,
        'sum by (outcome) (increase(weir_join_outcomes_total{outcome=~"abandoned|orphaned"}[30m]))'
        f" / on () group_left () sum(increase(weir_join_outcomes_total[30m])) > {UNPAIRED_SHARE}"
        f" and on () sum(increase(weir_join_outcomes_total[30m])) > {FEWEST_EVENTS}",
        "Many requests do not find their other half: {{ $labels.outcome }}",
        "{{ $value | humanizePercentage }} of the outcomes of half an hour are {{ $labels.outcome }}.",
        timedelta(minutes=10),
    ),
)

MONEY = (
    Alert(
        "StragglersDropped",
        Severity.TICKET,
        'sum by (meter) (increase(weir_stragglers_total{decision="drop"}[15m])) > 0',
        "Stragglers are dropped from {{ $labels.meter }}",
        "About {{ $value | humanize }} usage rows within 15 minutes came after grace, and the policy is drop.",
    ),
    Alert(
        "DroppedMoney",
        Severity.PAGE,
        'sum by (currency) (max by (meter, currency) (weir_straggler_amount{decision="drop"}))'
        ' - sum by (currency) (min by (meter, currency) (min_over_time(weir_straggler_amount{decision="drop"}[1h])))'
        f" > {DROPPED_MONEY}",
        "Money is dropped with stragglers",
        "{{ $value | humanize }} {{ $labels.currency }} within an hour will be on no bill.",
    ),
    Alert(
        "UnpricedUsage",
        Severity.TICKET,
        "sum by (meter) (increase(weir_unpriced_usage_rows_total[15m])) > 0",
        "Usage has no price: {{ $labels.meter }}",
        "About {{ $value | humanize }} usage rows within 15 minutes match no price, and have no amount until they do.",
    ),
)

SOURCES = (
    Alert(
        "SourceSilent",
        Severity.TICKET,
        'max(weir_sources{state="silent"}) > 0',
        "Sources are silent",
        "{{ $value }} sources that used to send have sent nothing for too long.",
        timedelta(minutes=1),
    ),
    Alert(
        "SourceFlood",
        Severity.TICKET,
        "sum(increase(weir_unlisted_source_events_total[15m])) > 0",
        "Too many new sources",
        f"More than {MOST_NEW_SOURCES:,} new sources came within an hour: about {{{{ $value | humanize }}}} events"
        " within 15 minutes are of sources that are not listed. They are billed.",
    ),
    Alert(
        "SequenceGap",
        Severity.TICKET,
        "max(min_over_time(weir_missing_sequence_numbers[2m]))"
        " - min(min_over_time(weir_missing_sequence_numbers[1h])) > 0",
        "Events are missing",
        "{{ $value }} sequence numbers more than within the last hour have not arrived, though later ones have.",
    ),
    Alert(
        "UncorrectedClocks",
        Severity.TICKET,
        "sum(increase(weir_uncorrected_clock_events_total[15m])) > 0",
        "Devices do not say when they send",
        "About {{ $value | humanize }} events of devices within 15 minutes have no senttime; their clock is believed.",
    ),
    Alert(
        "IdentitiesEvicted",
        Severity.TICKET,
        "max(weir_identity_segments_evicted) > 0",
        "The identities of an hour do not fit into memory",
        "{{ $value }} million rows of the exact horizon have no room; repeats of them are looked up in the journal.",
        timedelta(minutes=15),
    ),
)

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

GROUPS: dict[str, tuple[Alert | Recording, ...]] = {
    "freshness": FRESHNESS,
    "applications": APPLICATIONS,
    "waiting": WAITING,
    "events": EVENTS,
    "money": MONEY,
    "sources": SOURCES,
    "headroom": HEADROOM,
}
ALERTS = tuple(rule for rules in GROUPS.values() for rule in rules if isinstance(rule, Alert))
RECORDINGS = tuple(rule for rules in GROUPS.values() for rule in rules if isinstance(rule, Recording))
