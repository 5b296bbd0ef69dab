"""An hour of all series as a healthy Weir shows them, a value a minute, for promtool."""

from __future__ import annotations

from itertools import product

from metering.meters import Meter
from metering.vocabulary import Decision, Job, Reason
from monitoring import metrics
from monitoring.exposed import label_sets
from monitoring.instruments import CounterMetric, Metric
from tests.monitoring.promtool import Series

MINUTES = 60
STEADY = f"x{MINUTES}"
REASONS = (Reason.MALFORMED.value, Reason.FUTURE.value, Reason.TOO_OLD.value)
NEVER = {
    "weir_identity_filters_dropped_total",
    "weir_uncorrected_clock_events_total",
    "weir_unknown_type_events_total",
    "weir_unlisted_source_events_total",
    "weir_unpriced_usage_rows_total",
    "weir_unmetered_usage_rows_total",
    "weir_stragglers_total",
}
"""Counters that stay at 0 while all is well; all others count on."""
OUTCOMES_A_MINUTE = {"matched": 5_850, "abandoned": 50, "orphaned": 50, "superseded": 50}
REQUESTS_A_MINUTE = {"2xx": 96, "4xx": 2, "5xx": 2}
"""On each route of the API."""
GAUGES = {
    "weir_lag_records": "40-2x20 0+1x39",
    "weir_lag_seconds": f"4+0{STEADY}",
    "weir_catch_up_seconds": f"0.3+0{STEADY}",
    "weir_frontier_timestamp_seconds": f"-6+60{STEADY}",
    "weir_last_progress_timestamp_seconds": f"-3+60{STEADY}",
    "weir_last_report_timestamp_seconds": f"-2+60{STEADY}",
    "weir_waiting": f"0+0{STEADY}",
    "weir_epoch": f"7+0{STEADY}",
    "weir_unproved_offsets": f"0+0{STEADY}",
    "weir_restarts": f"6+0{STEADY}",
    "weir_driver_exits": f"2+0{STEADY}",
    "weir_database_readable": f"1+0{STEADY}",
    "weir_build_info": f"1+0{STEADY}",
    "weir_idle": f"0+0{STEADY}",
    "weir_identities": f"100000+500{STEADY}",
    "weir_identity_memory_bytes": f"4400000+22000{STEADY}",
    "weir_identity_segments_evicted": f"0+0{STEADY}",
    "weir_conservation_residual_records": f"0+0{STEADY}",
    "weir_catalog_behind_seconds": f"3+0{STEADY}",
    "weir_effective_prices_behind_seconds": f"0+0{STEADY}",
    "weir_price_jumps": f"0+0{STEADY}",
    "weir_isolated_records": f"1+0{STEADY}",
    "weir_missing_sequence_numbers": f"12+0{STEADY}",
    "weir_unsequenced_sources": f"1+0{STEADY}",
    "weir_unknown_types": f"7+0{STEADY}",
    "weir_open_sessions": f"300+2{STEADY}",
    "weir_join_waiting_records": f"180+1{STEADY}",
    "weir_join_memory_bytes": f"9000000+50000{STEADY}",
    "weir_join_timeout_seconds": f"600+0{STEADY}",
    "weir_unpropagated_deletions": f"0+0{STEADY}",
    "weir_untold_deletions": f"0+0{STEADY}",
    "weir_join_memory_limit_bytes": f"536870912+0{STEADY}",
    "weir_retention_headroom_ratio": f"1+0{STEADY}",
    "weir_read_until_timestamp_seconds": f"-6+60{STEADY}",
    "weir_retention_seconds": f"604800+0{STEADY}",
    "weir_topic_unread_records": "40-2x20 0+1x39",
    "weir_topic_frontier_timestamp_seconds": f"-6+60{STEADY}",
    "weir_database_used_bytes": f"50000000+1000{STEADY}",
    "weir_tables_free_ratio": f"0.6-0.001{STEADY}",
    "weir_straggler_rows": f"40+1{STEADY}",
    "weir_straggler_deadline_seconds": f"500000+0{STEADY}",
    "weir_usage_windows": f"500+3{STEADY}",
    "weir_unsent_changes": f"40+0{STEADY}",
    "weir_corrections_unacknowledged_seconds": f"60+0{STEADY}",
    "weir_webhook_waiting_seconds": f"2+0{STEADY}",
    "weir_webhook_dead_deliveries": f"0+0{STEADY}",
    "weir_webhook_gone_endpoints": f"0+0{STEADY}",
    "weir_unsent_seconds": f"3+0{STEADY}",
    "weir_ordered_events_behind_seconds": f"4+0{STEADY}",
    "weir_ordered_events_waiting_rows": f"9000+0{STEADY}",
    "weir_publishing_blocked": f"0+0{STEADY}",
    "weir_publishing_waits": f"0+0{STEADY}",
    "weir_api_ready": f"1+0{STEADY}",
    "weir_api_body_bytes": f"40000+0{STEADY}",
    "weir_api_pending_records": f"12+0{STEADY}",
    "weir_audit_proved_timestamp_seconds": f"-600+0{STEADY}",
    "weir_audit_found": f"0+0{STEADY}",
    "weir_audit_corrected": f"30+1{STEADY}",
}


def healthy() -> Series:
    """Every series that a healthy stack exposes; a metric without an entry here raises KeyError."""
    series: Series = {}
    for metric in metrics.METRICS:
        for program in metric.programs or Job:
            if metric is metrics.LATENESS:
                series |= _lateness()
            elif metric in (metrics.BATCH_DURATION, metrics.API_REQUEST_DURATION):
                continue
            else:
                for labels in label_sets(metric, program, REASONS, tuple(Meter)):
                    series[_named(metric.name, labels)] = _values(metric, labels)
    for decision, currency in product(Decision, ("EUR", "USD")):
        amount = f"5+0.01{STEADY}" if decision == "drop" else f"90+0.5{STEADY}"
        series[_named("weir_straggler_amount", {"meter": "requests", "decision": decision, "currency": currency})] = (
            amount
        )
    for topic in ("events", "gateway"):
        series |= _of_topic(topic)
    slot = {"slot": "catalog"}
    series[_named("weir_slot_retained_bytes", slot)] = f"33554432+0{STEADY}"
    series[_named("weir_slot_safe_bytes", slot)] = f"1040187392+0{STEADY}"
    return series


def _of_topic(topic: str) -> Series:
    names = {metric.name for metric in metrics.METRICS if [*metric.labels] == ["topic"]}
    shown = {_named(name, {"topic": topic}): GAUGES[name] for name in names & GAUGES.keys()}
    risks = metrics.TOPIC_AT_RISK.labels["setting"] or ()
    shown |= {_named("weir_topic_at_risk", {"topic": topic, "setting": each}): f"0+0{STEADY}" for each in risks}
    return shown | {_named("weir_failed_heartbeats_total", {"topic": topic}): f"3+0{STEADY}"}


def _values(metric: Metric, labels: dict[str, str]) -> str:
    if metric is metrics.SOURCES:
        return f"20+0{STEADY}" if labels["state"] == "active" else f"0+0{STEADY}"
    if metric is metrics.EVENTS:
        return f"0+3000{STEADY}" if labels["disposition"] in ("accepted", "duplicate") else f"5+0{STEADY}"
    if metric is metrics.API_REQUESTS:
        return f"0+{REQUESTS_A_MINUTE.get(labels['status'], 0)}{STEADY}"
    if metric is metrics.OUTCOMES:
        return f"0+{OUTCOMES_A_MINUTE[labels['outcome']]}{STEADY}"
    if isinstance(metric, CounterMetric):
        has_no_room = metric is metrics.API_REFUSED and labels["reason"] not in metrics.KEY_LIMITS
        return f"3+0{STEADY}" if metric.name in NEVER or has_no_room else f"0+1500{STEADY}"
    return GAUGES[metric.name]


def _lateness() -> Series:
    """3,000 events a minute: 97 % on time, all within half a minute of their window's end."""
    bounds = [f"{float(bound)}" for bound in metrics.LATENESS_BUCKETS] + ["+Inf"]
    counts = {"0.0": 2_910, "1.0": 2_950, "5.0": 2_980, "15.0": 2_990}
    buckets = {
        _named("weir_event_lateness_seconds_bucket", {"le": bound}): f"0+{counts.get(bound, 3_000)}{STEADY}"
        for bound in bounds
    }
    return {**buckets, "weir_event_lateness_seconds_count": f"0+3000{STEADY}"}


def _named(name: str, labels: dict[str, str]) -> str:
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in labels.items()) + "}"
