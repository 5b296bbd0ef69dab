"""Whether each application runs, gets on, and reads its database."""

from __future__ import annotations

from datetime import timedelta

from metering.vocabulary import Job
from monitoring.alerts.rises import risen
from monitoring.rule_file import Alert, Part, Severity

STALLED_SECONDS = 120
CATCH_UP_SECONDS = 600
RESTARTS = 3


def down(job: Job) -> Alert:
    """The page for one job: each is a rule of its own, as each may be disabled."""
    return Alert(
        "ApplicationDown",
        Severity.PAGE,
        f'absent(weir_last_report_timestamp_seconds{{job="{job}"}})',
        "{{ $labels.job }} does not run",
        "No driver of {{ $labels.job }} answers, or each one exits while it starts. The end of its log shows why.",
        timedelta(minutes=2),
        (Part(job),),
        {"job": job.value},
    )


APPLICATIONS = (
    *map(down, Job),
    Alert(
        "ApplicationStalled",
        Severity.PAGE,
        f"(time() - max by (job) (weir_last_progress_timestamp_seconds) > {STALLED_SECONDS}"
        " and on (job) max by (job) (weir_lag_records) > 0"
        " unless on (job) max by (job) (weir_waiting) == 1)"
        f" or time() - max by (job) (weir_last_report_timestamp_seconds) > {STALLED_SECONDS}",
        "{{ $labels.job }} makes no progress",
        "{{ $labels.job }} runs and has input, but has finished nothing for {{ $value | humanizeDuration }}."
        " Does it wait for a lock in Postgres? If not, end its driver.",
        timedelta(minutes=1),
    ),
    Alert(
        "ApplicationRestarting",
        Severity.TICKET,
        f"{risen('weir_restarts', 'job', '15m')} >= {RESTARTS}",
        "{{ $labels.job }} keeps restarting",
        "{{ $labels.job }} was started {{ $value }} times within 15 minutes. `weir status` shows why its driver ended.",
    ),
    Alert(
        "LagGrowing",
        Severity.TICKET,
        f"max by (job) (weir_catch_up_seconds) > {CATCH_UP_SECONDS}",
        "{{ $labels.job }} falls behind",
        "At its speed of the last minutes {{ $labels.job }} needs {{ $value | humanizeDuration }} to catch up."
        " Give it more cores, or find what slows it.",
        timedelta(minutes=10),
    ),
    Alert(
        "WritesRefused",
        Severity.PAGE,
        f"""{risen('weir_driver_exits{how="refused"}', "job, how", "15m")} > 0""",
        "{{ $labels.job }} refuses to go on",
        "{{ $labels.job }} stopped, because continuing could lose or double money. A person must act: `weir status` "
        "says how.",
    ),
    Alert(
        "WritesFenced",
        Severity.TICKET,
        f"""{risen('weir_driver_exits{how="fenced"}', "job, how", "15m")} > 0""",
        "Two drivers of {{ $labels.job }} ran at once",
        "A driver of {{ $labels.job }} ended, because another had taken over; Weir refused its writes."
        " If this happens again, stop the second driver.",
    ),
    Alert(
        "DatabaseUnreadable",
        Severity.TICKET,
        'max by (job) (weir_database_readable) == 0 unless on (job) max by (job) (weir_waiting{cause="database"}) == 1',
        "{{ $labels.job }} cannot read its gauges",
        "Postgres does not answer {{ $labels.job }} in time, so alerts that read the database are silent, also those"
        " that fired before. Find what overloads it.",
        timedelta(minutes=5),
    ),
)
