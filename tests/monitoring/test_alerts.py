"""Every alert at its edge, as promtool computes it: silent just before, firing just after; silent while all is well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from metering.vocabulary import Job
from monitoring.alerts import ALERTS
from monitoring.instruments import GaugeMetric
from monitoring.metrics import API, EVENT_ROUTES, METRICS, ApiRoute, Refusal
from monitoring.metrics.audit import Audited
from monitoring.rule_file import Part, held_to, matchers
from tests.monitoring.healthy import MINUTES, OUTCOMES_A_MINUTE, STEADY, healthy
from tests.monitoring.promtool import Firing, Series, check, check_description

SEVERITIES = {alert.name: alert.severity.value for alert in ALERTS}
WAITS_FOR = {
    "kafka": ("ingestion",),
    "database": tuple(Job),
    "store": tuple(Job),
    "broker_clock": ("ingestion",),
    "memory": ("joins",),
}
"""Which jobs can wait for a cause: ingestion alone reads Kafka, and joins alone has memory that must not be evicted."""
HALF_A_MINUTE = 0.5
"""How near to its edge a rule is looked at; Prometheus 2 and 3 differ by one sample in what a range holds."""
READS = set(ApiRoute) - {*EVENT_ROUTES, ApiRoute.OTHER}
FAILED_READS_A_MINUTE = round(7.2 * len(READS))
"""So many on one route are above the share of all reads that may fail 135 s after they began, and not 15 s before."""


@dataclass(frozen=True)
class Case:
    """What makes one alert fire, first at `minute` and until `until_minute`: `changed` series
    beside an hour of healthy ones (None: gone)."""

    alert: str
    changed: Mapping[str, str | None]
    minute: float
    labels: tuple[dict[str, str], ...] = ({},)
    until_minute: float | None = None


def of(metric: str, **labels: str) -> str:
    return metric + "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def rejected(reason: str) -> str:
    return of("weir_events_total", disposition="rejected", reason=reason)


def in_time(bound: str) -> str:
    return of("weir_event_lateness_seconds_bucket", le=bound)


def frontier_of_billing() -> str:
    return of("weir_frontier_timestamp_seconds", job="billing")


def counted(alert: str, counter: str, **labels: str) -> Case:
    """One event, which is told for a quarter of an hour."""
    return Case(alert, {counter: "3+0x10 4+0x60"}, 11, (labels,), until_minute=25)


def shown_by(job: str) -> Series:
    """The healthy series of one driver, or of the API, which go with it."""
    own = {metric.name for metric in METRICS if metric.programs == (job,)}
    return {n: values for n, values in healthy().items() if f'job="{job}"' in n or n.partition("{")[0] in own}


IDLE = "weir_idle{}"
# From minute 20 on every twentieth outcome is superseded: of the half hour before minute 30 that is more than 2 %.
SUPERSEDED = {
    of("weir_join_outcomes_total", outcome="superseded"): "0+50x20 1000+300x60",
    of("weir_join_outcomes_total", outcome="matched"): "0+5950x20 119000+5700x60",
}
CASES = [
    # Billing's frontier stands still from minute 20 on, so it is stale from minute 21 on: 14.4 % of an hour later it
    # burns the budget too fast, 6 % of six hours later also slowly.
    Case("FreshnessBurnFast", {frontier_of_billing(): "-6+60x20 1194+0x60"}, 31.5),
    Case("FreshnessBurnSlow", {frontier_of_billing(): "-6+60x20 1194+0x60"}, 57.5),
    # While nothing is open a frontier may be older by a heartbeat; if ingestion does not say so any more, it may not.
    Case("FreshnessBurnFast", {frontier_of_billing(): "-6+60x20 1194+0x60", IDLE: f"1+0x{MINUTES}"}, 32.5),
    Case("FreshnessBurnFast", {frontier_of_billing(): "-6+60x20 1194+0x60", IDLE: "1+0x20 stale"}, 31.75),
    # Nobody ever knew a frontier: a partition gets no record, because heartbeats are denied.
    Case("FreshnessBurnFast", {frontier_of_billing(): None}, 10.75),
    Case("FreshnessBurnSlow", {frontier_of_billing(): None}, 36.75),
    # A stack that was down over night and needs nine minutes to catch up.
    Case("FreshnessBurnFast", {frontier_of_billing(): "-28800+0x9 594+60x60"}, 10.75, until_minute=14),
    Case(
        "ApplicationDown",
        {
            name: f"{values.split()[0].replace(f'x{MINUTES}', 'x20')} stale"
            for name, values in shown_by("joins").items()
        },
        23,
        ({"job": "joins"},),
    ),
    Case(
        "ApplicationDown",
        dict.fromkeys(healthy()),
        2,
        tuple({"job": job} for job in Job),
    ),
    Case(
        "ApplicationStalled",
        {
            of("weir_last_progress_timestamp_seconds", job="joins"): "-3+60x20 1197+0x60",
            of("weir_lag_records", job="joins"): "0+0x20 10+10x60",
        },
        23.0,
        ({"job": "joins"},),
    ),
    Case(
        "ApplicationStalled",
        {of("weir_last_report_timestamp_seconds", job="joins"): "-2+60x20 1198+0x60"},
        23.0,
        ({"job": "joins"},),
    ),
    Case(
        "ApplicationRestarting",
        {of("weir_restarts", job="joins"): "6+0x10 7 7 7 8 8 9+0x60"},
        16,
        ({"job": "joins"},),
        until_minute=25,
    ),
    Case("LagGrowing", {of("weir_catch_up_seconds", job="joins"): "1+0x10 601+0x60"}, 21, ({"job": "joins"},)),
    Case("LagGrowing", {of("weir_catch_up_seconds", job="billing"): "1+0x10 +Inf+0x60"}, 21, ({"job": "billing"},)),
    Case(
        "WritesRefused",
        {of("weir_driver_exits", job="joins", how="refused"): "2+0x10 3+0x60"},
        11,
        ({"job": "joins", "how": "refused"},),
        until_minute=25,
    ),
    Case(
        "TopicAtRisk",
        {of("weir_topic_at_risk", topic="events", setting="retention"): "0+0x10 1+0x60"},
        16,
        ({"topic": "events", "setting": "retention"},),
    ),
    # The driver that gave a record up shows it from its first sample on.
    Case(
        "RecordsIsolated",
        {
            of("weir_isolated_records", reason="unreadable"): "0+0x10 stale",
            of("weir_isolated_records", reason="unreadable", instance="new"): "_x12 1+0x60",
        },
        12,
        ({"reason": "unreadable"},),
        until_minute=25,
    ),
    # The driver that was fenced is gone; another one, elsewhere, shows the new number.
    Case(
        "WritesFenced",
        {
            of("weir_driver_exits", job="joins", how="fenced"): "2+0x10 stale",
            of("weir_driver_exits", job="joins", how="fenced", instance="new"): "_x12 3+0x60",
        },
        12,
        ({"job": "joins", "how": "fenced"},),
        until_minute=25,
    ),
    Case(
        "DatabaseUnreadable", {of("weir_database_readable", job="billing"): "1+0x10 0+0x60"}, 16, ({"job": "billing"},)
    ),
    *[
        Case(
            f"WaitingFor{name}",
            {of("weir_waiting", job=job, cause=cause): "0+0x10 1+0x9 0+0x60" for job in WAITS_FOR[cause]},
            16,
            until_minute=21,
        )
        for cause, name in {
            "kafka": "Kafka",
            "database": "Database",
            "store": "Store",
            "broker_clock": "BrokerClock",
        }.items()
    ],
    Case(
        "WaitingForMemory",
        {of("weir_waiting", job="joins", cause="memory"): "0+0x10 1+0x9 0+0x60"},
        16,
        ({"job": "joins"},),
        until_minute=21,
    ),
    Case(
        "JoinsMemoryHigh",
        {
            "weir_join_memory_bytes{}": "800+0x10 801+0x19 800+0x60",
            "weir_join_memory_limit_bytes{}": "1000+0x60",
        },
        16,
        until_minute=31,
    ),
    Case("ConservationBroken", {"weir_conservation_residual_records{}": "0+0x10 1+0x60"}, 11),
    Case("ConservationBroken", {"weir_conservation_residual_records{}": "0+0x10 -1+0x60"}, 11),
    Case("AbsentOffsetsUnproved", {"weir_unproved_offsets{}": "0+0x10 3+0x60"}, 12),
    Case(
        "HeartbeatsFailing",
        {of("weir_failed_heartbeats_total", topic="gateway"): "3+0x10 15+12x9 123+0x60"},
        21,
        ({"topic": "gateway"},),
        until_minute=24,
    ),
    # From minute 20 on no event is within half a minute of its window's end: 1 of 15 minutes is more than 5 %.
    Case(
        "LateRateHigh",
        {in_time(bound): "0+2910x20 58200+0x60" for bound in ("0.0", "1.0", "5.0", "15.0")}
        | {in_time("30.0"): "0+3000x20 60000+0x60"},
        26,
    ),
    Case("DeadLetters", {rejected("malformed"): "5+0x10 6+0x60"}, 11, ({"reason": "malformed"},), until_minute=20),
    Case("DeadLetters", {rejected("too_old"): "0+0x30 9+0x60"}, 31, ({"reason": "too_old"},)),
    Case("FutureTimestamps", {rejected("future"): "5+0x10 8+0x60"}, 11, until_minute=20),
    counted("DuplicateConflicts", of("weir_events_total", disposition="conflict", reason="")),
    # From minute 20 on every sixth outcome is abandoned: of the half hour before minute 29 that is more than 5 %.
    Case(
        "OutcomesUnpaired",
        {
            of("weir_join_outcomes_total", outcome="abandoned"): "0+50x20 1000+1000x60",
            of("weir_join_outcomes_total", outcome="matched"): "0+5850x20 117000+4900x60",
        },
        39,
        ({"outcome": "abandoned"},),
    ),
    Case(
        "ReportsSuperseded",
        {**SUPERSEDED, of("weir_audit_proved_timestamp_seconds", audited="anything"): f"-7300+0x{MINUTES}"},
        40,
        ({},),
    ),
    Case(
        "ReversalsWait",
        {
            "weir_reversals_total{}": "3+0x10 4+0x60",
            of("weir_audit_proved_timestamp_seconds", audited="everything"): f"-93000+0x{MINUTES}",
        },
        21,
        ({},),
    ),
    # A hundred outcomes a second, so for more than half of the ten minutes that each may wait.
    Case("WaitingRequestsGrowing", {"weir_join_waiting_records{}": "101+0x10 30001+0x60"}, 16),
    counted("StragglersDropped", of("weir_stragglers_total", meter="requests", decision="drop"), meter="requests"),
    Case(
        "StragglersExpire",
        {of("weir_straggler_deadline_seconds", meter="requests"): "86400+0x10 86399+0x60"},
        11,
        ({"meter": "requests"},),
    ),
    Case(
        "DroppedMoney",
        {of("weir_straggler_amount", meter="requests", decision="drop", currency="EUR"): "5+0x10 6 6.01+0x60"},
        12,
        ({"currency": "EUR"},),
    ),
    # A currency in which nothing was dropped before: its series begin at 0 with the first account.
    Case(
        "DroppedMoney",
        {
            of("weir_straggler_amount", meter="requests", decision="drop", currency="GBP"): "0+0x10 0.6+0x60",
            of("weir_straggler_amount", meter="input_tokens", decision="drop", currency="GBP"): "0+0x11 0.6+0x60",
        },
        12,
        ({"currency": "GBP"},),
    ),
    Case("CatalogChangesRejected", {rejected("invalid_catalog_change"): "5+0x10 6+0x60"}, 11, ({},), until_minute=20),
    Case("PriceJump", {of("weir_price_jumps"): "0+0x10 2+0x9 0+0x60"}, 11, ({},), until_minute=21),
    Case("DeletionsNotPropagated", {of("weir_unpropagated_deletions"): "0+0x10 2+0x60"}, 16, ({},)),
    Case("CatalogNotCaptured", {of("weir_catalog_behind_seconds"): "3+0x10 61+0x60"}, 13, ({},)),
    Case("CatalogNeverCaptured", {of("weir_catalog_behind_seconds"): "+Inf+0x60"}, 2, ({},)),
    Case("CorrectionsUnacknowledged", {"weir_corrections_unacknowledged_seconds{}": "86400+0x10 86401+0x60"}, 11),
    Case("WebhooksWait", {"weir_webhook_waiting_seconds{}": "3600+0x10 3601+0x60"}, 16),
    Case("WebhooksDead", {"weir_webhook_dead_deliveries{}": "0+0x10 1+0x60"}, 11),
    Case("WebhookEndpointGone", {"weir_webhook_gone_endpoints{}": "0+0x10 1+0x60"}, 11),
    Case(
        "PublishingBehind", {of("weir_unsent_seconds", topic="windows"): "3+0x10 601+0x60"}, 12, ({"topic": "windows"},)
    ),
    # A frontier that leaps a day is followed at its next move, which nobody need look at.
    Case(
        "OrderedEventsBehind",
        {of("weir_ordered_events_behind_seconds"): "3+0x4 86400+0x2 3+0x2 301+0x60"},
        16,
    ),
    counted("UnpricedUsage", of("weir_unpriced_usage_rows_total", meter="requests")),
    # Of a meter that was never counted before; of 1,500 rows a minute 15 are 1 %.
    Case("UnmeteredUsage", {of("weir_unmetered_usage_rows_total", meter="output_tokens"): "0+0x20 1500+1500x60"}, 31),
    Case("UnmeteredUsage", {of("weir_unmetered_usage_rows_total", meter="output_tokens"): "0+15x20 316+16x60"}, 31),
    Case(
        "AuditFound",
        {of("weir_audit_found", check="I8"): "0+0x10 2+0x9 0+0x60"},
        11,
        ({"check": "I8"},),
        until_minute=21,
    ),
    # Proved 26 hours less ten minutes before the hour begins, and never again: of everything that is not too long ago.
    Case(
        "AuditOverdue",
        {of("weir_audit_proved_timestamp_seconds", audited=audited): f"-93000+0x{MINUTES}" for audited in Audited},
        10.25,
        ({"audited": "anything"},),
    ),
    Case(
        "AuditOverdue",
        {of("weir_audit_proved_timestamp_seconds", audited="everything"): "-179400+0x30 1800+0x60"},
        10.25,
        ({"audited": "everything"},),
        until_minute=31,
    ),
    Case("SourceSilent", {of("weir_sources", state="silent"): "0+0x10 1+0x9 0+0x60"}, 12, until_minute=21),
    Case("SequenceGap", {"weir_missing_sequence_numbers{}": "12+0x10 14+0x60"}, 12.25),
    Case("SequenceGap", {"weir_missing_sequence_numbers{}": "12+0x10 14+0x9 12+0x60"}, 12.25, until_minute=21),
    *(
        Case(
            alert,
            {of("weir_retention_headroom_ratio", topic=topic): f"1+0x10 {left}+0x60"},
            minute,
            ({"topic": topic},),
        )
        for alert, left, minute in (("UnreadRecordsAge", 0.49, 16), ("UnreadRecordsExpire", 0.19, 13))
        for topic in ("events", "gateway")
    ),
    Case(
        "SlotRetainsLog",
        {of("weir_slot_retained_bytes", slot="forgotten"): "1073741824+0x10 1073741825+0x60"},
        26,
        ({"slot": "forgotten"},),
    ),
    Case(
        "SlotNearlyLost",
        {
            of("weir_slot_retained_bytes", slot="forgotten"): "800+0x60",
            of("weir_slot_safe_bytes", slot="forgotten"): "200+0x10 199+0x60",
        },
        13,
        ({"slot": "forgotten"},),
    ),
    Case("DatabaseFillsDisk", {"weir_database_used_bytes{}": "8589934592+0x10 8589934593+0x60"}, 26),
    Case("DatabaseDiskFull", {"weir_database_used_bytes{}": "10200547328+0x10 10200547329+0x60"}, 13),
    Case("TablesFillDisk", {"weir_tables_free_ratio{}": "0.2+0x10 0.19+0x60"}, 26),
    Case("TablesDiskFull", {"weir_tables_free_ratio{}": "0.05+0x10 0.049+0x60"}, 13),
    # On one of four routes, each with a hundred requests a minute, 18 fail instead of 2: of all that is more than 5 %.
    Case(
        "ApiUnavailable",
        {of("weir_api_requests_total", route=ApiRoute.OWN, status="5xx"): "0+2x20 58+18x60"},
        26.25,
        ({"cause": "errors"},),
    ),
    Case(
        "ApiUnavailable",
        {name: f"{values.replace(f'x{MINUTES}', 'x20')} stale" for name, values in shown_by(API).items()},
        26,
        ({"cause": "down"},),
    ),
    # Kubernetes sends requests to no server, so that none fails, and each of them answers Prometheus.
    Case(
        "ApiUnavailable",
        {"weir_api_ready{}": "1+0x20 0+0x60"}
        | dict.fromkeys((name for name in shown_by(API) if "_total{" in name), f"0+0x{MINUTES}"),
        26,
        ({"cause": "unready"},),
    ),
    Case(
        "ApiRefusesTraffic",
        {of("weir_api_refused_requests_total", reason=Refusal.KAFKA): "0+0x10 5+5x19 100+0x60"},
        21,
        until_minute=31,
    ),
    # On one of the routes that read, each with a hundred requests a minute, so many come as well, and fail.
    Case(
        "ApiReadsFailing",
        {
            of("weir_api_requests_total", route=ApiRoute.USAGE, status="5xx"): (
                f"0+2x20 {FAILED_READS_A_MINUTE + 42}+{FAILED_READS_A_MINUTE + 2}x60"
            )
        },
        32.25,
    ),
    counted("SourceFlood", "weir_unlisted_source_events_total{}"),
    counted("UnknownTypes", "weir_unknown_type_events_total{}"),
    counted("UncorrectedClocks", "weir_uncorrected_clock_events_total{}"),
    Case("IdentitiesEvicted", {"weir_identity_segments_evicted{}": "0+0x9 2+0x60"}, 25),
]


COUNTED: dict[str, tuple[str, float, dict[str, str]]] = {
    "DeadLetters": (rejected("malformed"), 10, {"reason": "malformed"}),
    "FutureTimestamps": (rejected("future"), 10, {}),
    "CatalogChangesRejected": (rejected("invalid_catalog_change"), 10, {}),
    "DuplicateConflicts": (of("weir_events_total", disposition="conflict", reason=""), 15, {}),
    "UnknownTypes": ("weir_unknown_type_events_total{}", 15, {}),
    "StragglersDropped": (of("weir_stragglers_total", meter="requests", decision="drop"), 15, {"meter": "requests"}),
    "UnpricedUsage": (of("weir_unpriced_usage_rows_total", meter="requests"), 15, {}),
    "SourceFlood": ("weir_unlisted_source_events_total{}", 15, {}),
    "UncorrectedClocks": ("weir_uncorrected_clock_events_total{}", 15, {}),
}
"""Counters that fire at their first event, the minutes for which, and the alert's labels."""


@pytest.mark.parametrize("instance", ["old", "new"])
def test_what_a_driver_counts_before_its_first_scrape_fires_too(instance: str, tmp_path: Path) -> None:
    """It reads in its first batch what has waited: as another pod, or in its pod as far as the driver before."""
    series: dict[str, str | None] = {'process_start_time_seconds{instance="old"}': "-9000+0x10 stale"}
    series[f'process_start_time_seconds{{instance="{instance}"}}'] = "-9000+0x10 _ 690+0x60"
    edges = []
    for alert, (counter, minutes, labels) in COUNTED.items():
        before, after = (held_to(counter.replace("{}", ""), f'instance="{name}"') for name in ("old", instance))
        series |= {counter: None, before: "5+0x10 stale", after: "5+0x10 _ 5+0x60"}
        if instance == "new":
            series[after] = "_x12 5+0x60"
        ends = 690 / 60 + minutes
        edges += [
            Firing(alert, 12 - HALF_A_MINUTE, ()),
            Firing(alert, 12, (labels,)),
            Firing(alert, ends - HALF_A_MINUTE, (labels,)),
            Firing(alert, ends + HALF_A_MINUTE, ()),
        ]
    if instance == "new":
        series['process_start_time_seconds{instance="new"}'] = "_x12 690+0x60"
    check(tmp_path, with_changes(series), edges, SEVERITIES)


def with_changes(changed: Mapping[str, str | None]) -> Series:
    series: dict[str, str | None] = {**healthy(), **changed}
    return {name: values for name, values in series.items() if values is not None}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}-{CASES.index(case)}")
def test_an_alert_is_silent_just_before_and_fires_just_after(case: Case, tmp_path: Path) -> None:
    edges = [
        Firing(case.alert, case.minute - HALF_A_MINUTE, ()),
        Firing(case.alert, case.minute, case.labels),
    ]
    if case.until_minute is not None:
        edges += [
            Firing(case.alert, case.until_minute - HALF_A_MINUTE, case.labels),
            Firing(case.alert, case.until_minute + HALF_A_MINUTE, ()),
        ]
    check(tmp_path, with_changes(case.changed), edges, SEVERITIES)


@pytest.mark.few_in_ci(4)
@pytest.mark.parametrize("case", {case.alert: case for case in CASES}.values(), ids=lambda case: case.alert)
def test_an_alert_names_the_failing_one_of_two_releases_in_a_namespace(case: Case, tmp_path: Path) -> None:
    well, sick = ({"namespace": "metering", "release": name} for name in ("well", "sick"))
    both = {
        held_to(name, matchers(stack)): values
        for stack, series in ((well, healthy()), (sick, with_changes(case.changed)))
        for name, values in series.items()
    }
    edges = [
        Firing(case.alert, case.minute - HALF_A_MINUTE, ()),
        Firing(case.alert, case.minute, tuple({**labels, **sick} for labels in case.labels)),
    ]
    check(tmp_path, both, edges, SEVERITIES, stacks=(well, sick))


def test_every_alert_has_its_edge_tested() -> None:
    assert {case.alert for case in CASES} == {alert.name for alert in ALERTS}


def test_an_hour_of_healthy_series_fires_nothing(tmp_path: Path) -> None:
    never = [Firing(alert.name, minute, ()) for alert in ALERTS for minute in range(MINUTES + 1)]
    check(tmp_path, healthy(), never, SEVERITIES)


def test_an_idle_stack_whose_frontiers_come_by_the_minute_fires_nothing(tmp_path: Path) -> None:
    """Its frontier is nearly two minutes old before the next sample comes."""
    series = with_changes({IDLE: f"1+0{STEADY}", frontier_of_billing(): f"-55+60{STEADY}"})
    never = [Firing(alert.name, minute, ()) for alert in ALERTS for minute in range(MINUTES + 1)]
    check(tmp_path, series, never, SEVERITIES)


def test_the_first_event_after_idleness_fires_nothing(tmp_path: Path) -> None:
    is_idle = [minute % 4 < 2 for minute in range(MINUTES + 1)]
    # When the event comes its frontier is still old; with the next sample it is not.
    is_old = [idle or before for before, idle in pairwise([False, *is_idle])]
    frontier = " ".join(str(60 * minute - (55 if old else 0)) for minute, old in enumerate(is_old))
    series = with_changes({IDLE: " ".join(str(int(idle)) for idle in is_idle), frontier_of_billing(): frontier})
    never = [Firing(alert.name, minute, ()) for alert in ALERTS for minute in range(MINUTES + 1)]
    check(tmp_path, series, never, SEVERITIES)


def test_a_stack_that_was_down_over_night_and_catches_up_soon_fires_nothing(tmp_path: Path) -> None:
    series = with_changes({frontier_of_billing(): "-28800+0x7 474+60x60"})
    never = [Firing(alert.name, minute, ()) for alert in ALERTS for minute in range(MINUTES + 1)]
    check(tmp_path, series, never, SEVERITIES)


def test_a_stack_of_an_hour_without_audits_fires_nothing(tmp_path: Path) -> None:
    """A demo: time counts from the first usage that was billed."""
    never_audited = {of("weir_audit_proved_timestamp_seconds", audited=audited): f"20+0{STEADY}" for audited in Audited}
    never = [Firing("AuditOverdue", minute, ()) for minute in range(MINUTES + 1)]
    check(tmp_path, with_changes(never_audited), never, SEVERITIES)


def test_superseded_reports_fire_nothing_where_audits_examine_them(tmp_path: Path) -> None:
    never = [Firing("ReportsSuperseded", minute, ()) for minute in range(MINUTES + 1)]
    check(tmp_path, with_changes(SUPERSEDED), never, SEVERITIES)


def test_reversals_fire_nothing_where_everything_is_audited(tmp_path: Path) -> None:
    never = [Firing("ReversalsWait", minute, ()) for minute in range(MINUTES + 1)]
    check(tmp_path, with_changes({"weir_reversals_total{}": "3+0x10 4+0x60"}), never, SEVERITIES)


def test_answers_that_take_minutes_are_healthy_where_the_timeout_is_longer(tmp_path: Path) -> None:
    series = with_changes({"weir_join_waiting_records{}": "0+2800x10 28000+0x60"})
    never = [Firing("WaitingRequestsGrowing", minute, ()) for minute in range(MINUTES + 1)]
    check(tmp_path, series, never, SEVERITIES)


def without(job: Job) -> Series:
    """Nobody runs this job, and what reads from it has nothing more to do: no frontier moves."""
    kept = {name: values for name, values in healthy().items() if name not in shown_by(job)}
    stands = {name: f"-6+0{STEADY}" for name in kept if name.startswith("weir_frontier_timestamp_seconds")}
    idle = {name: f"0+0{STEADY}" for name in kept if name.startswith("weir_lag_records")}
    return {**kept, **(stands if job not in (Job.SESSIONIZATION, Job.ANALYTICS) else {}), **idle}


@pytest.mark.parametrize("job", Job)
def test_a_job_that_is_disabled_fires_nothing(job: Job, tmp_path: Path) -> None:
    never = [Firing(alert.name, minute, ()) for alert in ALERTS for minute in range(10, MINUTES + 1, 25)]
    check(tmp_path, without(job), never, SEVERITIES, disabled=(Part(job),))


def test_an_api_that_is_not_installed_fires_nothing(tmp_path: Path) -> None:
    never = [Firing(alert.name, minute, ()) for alert in ALERTS for minute in range(10, MINUTES + 1, 25)]
    series = with_changes(dict.fromkeys(shown_by(API)))
    check(tmp_path, series, never, SEVERITIES, disabled=(Part.API,))


def test_requests_that_fail_or_are_refused_now_and_then_fire_nothing(tmp_path: Path) -> None:
    """Of an API that is asked once in five minutes, and fails each time."""
    counted_seldom = "0x4 1x4 2x4 3x60"
    seldom = {
        of("weir_api_requests_total", route=ApiRoute.OWN, status="5xx"): counted_seldom,
        of("weir_api_requests_total", route=ApiRoute.USAGE, status="5xx"): counted_seldom,
        of("weir_api_refused_requests_total", reason=Refusal.KAFKA): counted_seldom,
    }
    never = [
        Firing(name, minute, ())
        for name in ("ApiUnavailable", "ApiRefusesTraffic", "ApiReadsFailing")
        for minute in range(MINUTES + 1)
    ]
    others = dict.fromkeys(name for name in healthy() if name.startswith("weir_api_requests_total"))
    check(tmp_path, with_changes({**others, **seldom}), never, SEVERITIES)


def test_where_no_audit_is_on_a_schedule_none_is_overdue(tmp_path: Path) -> None:
    """Without one that takes everything, the others are still watched."""
    long_ago = {of("weir_audit_proved_timestamp_seconds", audited=audited): f"-300000+0{STEADY}" for audited in Audited}
    overdue = [Firing("AuditOverdue", 30, ({"audited": "anything"},))]
    check(tmp_path, with_changes(long_ago), overdue, SEVERITIES, disabled=(Part.FULL_AUDIT,))
    never = [Firing("AuditOverdue", 30, ())]
    check(tmp_path, with_changes(long_ago), never, SEVERITIES, disabled=(Part.AUDIT, Part.FULL_AUDIT))


def test_without_connect_an_uncaptured_catalog_is_no_fault_but_an_ended_capture_is(tmp_path: Path) -> None:
    behind = of("weir_catalog_behind_seconds")
    alerts = ("CatalogNeverCaptured", "CatalogNotCaptured")
    quiet = [Firing(name, 30, ()) for name in alerts]
    check(tmp_path, with_changes({behind: "+Inf+0x60"}), quiet, SEVERITIES, disabled=(Part.CONNECT,))
    ended = [Firing("CatalogNotCaptured", 30, ({},)), Firing("CatalogNeverCaptured", 30, ())]
    check(tmp_path, with_changes({behind: "3+0x10 61+60x60"}), ended, SEVERITIES, disabled=(Part.CONNECT,))
    never = [Firing("CatalogNotCaptured", 30, ()), Firing("CatalogNeverCaptured", 30, ({},))]
    check(tmp_path, with_changes({behind: "+Inf+0x60"}), never, SEVERITIES)


RETENTION_MINUTES = 24 * 60
GONE_MINUTE = 60
FOUR_MINUTES = 4
"""Of a value: days are computed within seconds, and no series is stale meanwhile."""


def gone_ingestion() -> Series:
    """It has read everything for an hour, and is gone for a day and more; Kafka keeps events for one."""
    return {
        of("weir_retention_headroom_ratio", topic="events"): f"1x{GONE_MINUTE // FOUR_MINUTES} stale",
        of("weir_read_until_timestamp_seconds", topic="events"): f"0+240x{GONE_MINUTE // FOUR_MINUTES} stale",
        of("weir_retention_seconds", topic="events"): f"{60 * RETENTION_MINUTES}x{GONE_MINUTE // FOUR_MINUTES} stale",
        of("weir_frontier_timestamp_seconds", job="billing"): f"0+240x{GONE_MINUTE // FOUR_MINUTES} stale",
    }


@pytest.mark.parametrize(
    ("alert", "share", "hold_minutes"), [("UnreadRecordsAge", 0.5, 5), ("UnreadRecordsExpire", 0.8, 2)]
)
def test_expiring_records_are_reported_while_ingestion_is_stopped(
    alert: str, share: float, hold_minutes: int, tmp_path: Path
) -> None:
    """Longer than Prometheus looks back for any series."""
    edge = GONE_MINUTE + share * RETENTION_MINUTES + hold_minutes
    days = [Firing(alert, 60 * hours, ({"topic": "events"},)) for hours in (25, 27, 30)]
    edges = [Firing(alert, edge - 2, ()), Firing(alert, edge + 2, ({"topic": "events"},)), *days]
    check(tmp_path, gone_ingestion(), edges, SEVERITIES, minutes=FOUR_MINUTES)


def test_records_that_no_ingestion_reads_are_not_reported(tmp_path: Path) -> None:
    never = [Firing(alert, 60 * 25, ()) for alert in ("UnreadRecordsAge", "UnreadRecordsExpire")]
    check(tmp_path, gone_ingestion(), never, SEVERITIES, disabled=(Part.INGESTION,), minutes=FOUR_MINUTES)


def test_expiring_records_are_reported_while_ingestion_is_frozen_or_waiting(tmp_path: Path) -> None:
    """It still shows what it saw last: nothing unread."""
    shown = {
        of("weir_retention_headroom_ratio", topic="events"): f"1x{24 * 15}",
        of("weir_read_until_timestamp_seconds", topic="events"): f"3600x{24 * 15}",
        of("weir_retention_seconds", topic="events"): f"{60 * RETENTION_MINUTES}x{24 * 15}",
    }
    edges = [
        Firing("UnreadRecordsExpire", 60 * 20, ()),
        Firing("UnreadRecordsExpire", 60 * 20 + 20, ({"topic": "events"},)),
    ]
    check(tmp_path, shown, edges, SEVERITIES, minutes=FOUR_MINUTES)


def test_a_topic_that_ended_is_not_reported_for_what_it_held(tmp_path: Path) -> None:
    """Ingestion goes on with the other; the last report of the one that ended grows old."""
    rest = f"1x{24 * 15}"
    other = {
        of("weir_retention_headroom_ratio", topic="gateway"): rest,
        of("weir_read_until_timestamp_seconds", topic="gateway"): f"0+240x{24 * 15}",
        of("weir_retention_seconds", topic="gateway"): f"{60 * RETENTION_MINUTES}x{24 * 15}",
    }
    never = [Firing(alert, 60 * 20, ()) for alert in ("UnreadRecordsAge", "UnreadRecordsExpire")]
    check(tmp_path, gone_ingestion() | other, never, SEVERITIES, minutes=FOUR_MINUTES)


def test_of_an_ingestion_that_stops_after_a_topic_ended_only_what_it_read_last_is_reported(tmp_path: Path) -> None:
    """Within the day for which the report of the one that ended is kept."""
    ended = 2 * GONE_MINUTE // FOUR_MINUTES
    shown = {
        of("weir_retention_headroom_ratio", topic="gateway"): f"1x{ended} stale",
        of("weir_read_until_timestamp_seconds", topic="gateway"): f"0+240x{ended} stale",
        of("weir_retention_seconds", topic="gateway"): f"{60 * RETENTION_MINUTES}x{ended} stale",
    }
    late = [Firing("UnreadRecordsExpire", 60 * hours, ({"topic": "gateway"},)) for hours in (23, 26, 29)]
    check(tmp_path, gone_ingestion() | shown, late, SEVERITIES, minutes=FOUR_MINUTES)


def test_bills_of_unknown_age_are_late_also_after_days(tmp_path: Path) -> None:
    late = [Firing("FreshnessBurnFast", 60 * hours, ({},)) for hours in (2, 24, 26, 30)]
    check(tmp_path, gone_ingestion(), late, SEVERITIES, minutes=FOUR_MINUTES)


def test_unpriced_usage_is_one_alert_that_lists_its_meters(tmp_path: Path) -> None:
    unpriced = {
        held_to(of("weir_unpriced_usage_rows_total", meter=meter), matchers(stack)): "3+10x60"
        for meter in ("requests", "input_tokens")
        for stack in ({"namespace": "metering", "release": "weir"}, {"namespace": "metering", "release": "another"})
    }
    check_description(
        tmp_path,
        unpriced,
        "UnpricedUsage",
        40,
        "About 300 usage rows within 15 minutes match no price, so they have no amount: input_tokens (150) requests"
        " (150). Add the prices with `weir catalog apply`; the next audit bills earlier usage.",
    )


def test_usage_without_quantities_is_one_alert_that_lists_its_meters(tmp_path: Path) -> None:
    stack = matchers({"namespace": "metering", "release": "weir"})
    rows = {"output_tokens": "0+1500x60", "input_tokens": "0+15x60"}
    series = {held_to(of("weir_unmetered_usage_rows_total", meter=meter), stack): n for meter, n in rows.items()}
    check_description(
        tmp_path,
        {**series, held_to(of("weir_batch_records_total", job="billing"), stack): "0+3000x60"},
        "UnmeteredUsage",
        40,
        "Within half an hour up to 50% of the usage lacked a quantity that its meter expects: output_tokens (50%). Ask"
        " the gateways why they report no tokens.",
    )


STORED = {metric.name for metric in METRICS if isinstance(metric, GaugeMetric) and metric.from_database}


def absent(values: str) -> str:
    """The same series of an hour (`first+stepx60`), without its values of 12 minutes from minute 20 on."""
    first, step = map(float, values.removesuffix(f"x{MINUTES}").split("+"))
    return f"{first}+{step}x19 stale _x11 {first + 32 * step}+{step}x{MINUTES}"


def away(cause: str, jobs: tuple[str, ...]) -> Series:
    """From minute 20 on jobs wait for 12 minutes; nothing moves, and then it does again."""
    changed: dict[str, str | None] = {}
    for job in Job:
        if job in jobs:
            changed[of("weir_waiting", job=job, cause=cause)] = "0+0x19 1+0x11 0+0x60"
        changed[of("weir_lag_records", job=job)] = "0+0x19 500+0x12 0+0x60" if job in jobs else "0+0x60"
        for metric in ("weir_last_progress_timestamp_seconds", "weir_frontier_timestamp_seconds"):
            changed[of(metric, job=job)] = "-6+60x19 1134+0x12 1914+60x60"
    for outcome, a_minute in OUTCOMES_A_MINUTE.items():
        counted = f"0+{a_minute}x19 {19 * a_minute}+0x12 {31 * a_minute}+{a_minute}x60"
        changed[of("weir_join_outcomes_total", outcome=outcome)] = counted
    if cause == "kafka":
        changed[of("weir_failed_heartbeats_total", topic="events")] = "3+0x19 15+12x12 159+0x60"
    if cause == "database":
        changed |= {of("weir_database_readable", job=job): "1+0x19 0+0x11 1+0x60" for job in Job}
        # What is read from the database is not shown at all meanwhile.
        changed |= {name: absent(values) for name, values in healthy().items() if name.partition("{")[0] in STORED}
    return with_changes(changed)


@pytest.mark.parametrize(
    ("cause", "alert"), [("kafka", "WaitingForKafka"), ("database", "WaitingForDatabase"), ("store", "WaitingForStore")]
)
def test_an_unavailable_server_raises_its_own_alert_and_no_wrong_one(cause: str, alert: str, tmp_path: Path) -> None:
    """That bills are late meanwhile is true."""
    others = [one.name for one in ALERTS if one.name != alert and not one.name.startswith("Freshness")]
    quiet = [Firing(name, minute, ()) for name in others for minute in range(MINUTES + 1)]
    edges = [Firing(alert, 24.5, ()), Firing(alert, 25.5, ({},)), Firing(alert, 31.5, ({},)), Firing(alert, 33, ())]
    check(tmp_path, away(cause, WAITS_FOR[cause]), quiet + edges, SEVERITIES)
