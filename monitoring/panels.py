"""The panels of the Grafana dashboard: what each shows, and from which series. Layout and JSON are `grafana.py`'s."""

from __future__ import annotations

from dataclasses import dataclass

from metering.reports import ORDERED_BEHIND_SECONDS
from monitoring.alerts.freshness import FRESH_SECONDS
from monitoring.alerts.money import UNACKNOWLEDGED_SECONDS, UNSENT_SECONDS
from monitoring.alerts.webhooks import WAITING_SECONDS as WEBHOOK_SECONDS


@dataclass(frozen=True)
class Panel:
    """One panel. `queries` are (PromQL, legend); `unit` is Grafana's word; `limit` is drawn as a line."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    description: str = ""
    limit: float | None = None
    is_stat: bool = False


def _rate(metric: str, labels: str) -> tuple[tuple[str, str], ...]:
    legend = " ".join(f"{{{{{label}}}}}" for label in labels.replace(",", " ").split())
    return ((f"sum by ({labels}) (rate({metric}[$__rate_interval]))", legend),)


def _quantile(metric: str, quantile: float, labels: str) -> tuple[str, str]:
    buckets = f"sum by ({labels}) (rate({metric}_bucket[$__rate_interval]))"
    rest = labels.replace("le", "", 1).strip(", ")
    legend = f"p{quantile * 100:g}" + (f" {{{{{rest}}}}}" if rest else "")
    return f"histogram_quantile({quantile:g}, {buckets})", legend


PANELS: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel("Bills are behind by", (("weir:freshness:seconds{job='billing'}", "billing"),), "s", is_stat=True),
        Panel(
            "Records without a row (must be 0)",
            (("max(weir_conservation_residual_records)", "records"),),
            description="Kafka records that were read, minus rows of the journal.",
            is_stat=True,
        ),
        Panel("Silent sources", (("max(weir_sources{state='silent'})", "silent"),), is_stat=True),
        Panel("Missing sequence numbers", (("max(weir_missing_sequence_numbers)", "missing"),), is_stat=True),
        Panel("Sources with lost count", (("max(weir_unsequenced_sources)", "unsequenced"),), is_stat=True),
        Panel("Open sessions", (("max(weir_open_sessions)", "open"),), is_stat=True),
    ),
    "Applications": (
        Panel("Lag", (("max by (job) (weir_lag_records)", "{{job}}"),), description="Records not yet committed."),
        Panel(
            "Unread by topic",
            (("max by (topic) (weir_topic_unread_records)", "{{topic}}"),),
            description="Records of each topic of events that ingestion has not committed.",
        ),
        Panel(
            "Age of each topic's frontier",
            (("time() - max by (topic) (weir_topic_frontier_timestamp_seconds)", "{{topic}}"),),
            "s",
            description="The oldest holds windows open.",
        ),
        Panel("Lag in time", (("max by (job) (weir_lag_seconds)", "{{job}}"),), "s"),
        Panel("Time to catch up", (("max by (job) (weir_catch_up_seconds)", "{{job}}"),), "s"),
        Panel("Age of the frontier", (("weir:freshness:seconds", "{{job}}"),), "s", limit=FRESH_SECONDS),
        Panel(
            "Since last progress", (("time() - max by (job) (weir_last_progress_timestamp_seconds)", "{{job}}"),), "s"
        ),
        Panel("Since last report", (("time() - max by (job) (weir_last_report_timestamp_seconds)", "{{job}}"),), "s"),
        Panel(
            "Time that bills are not fresh", (("avg_over_time(weir:freshness:stale[1h])", "of an hour"),), "percentunit"
        ),
        Panel("Records per second", _rate("weir_batch_records_total", "job")),
        Panel("Batch duration", (_quantile("weir_batch_duration_seconds", 0.95, "le, job"),), "s"),
        Panel("Epoch", (("max by (job) (weir_epoch)", "{{job}}"),)),
        Panel("Restarts", (("max by (job) (weir_restarts)", "{{job}}"),)),
        Panel("Drivers that ended by themselves", (("max by (job, how) (weir_driver_exits)", "{{job}} {{how}}"),)),
        Panel(
            "Room that is left",
            (
                ("min by (topic) (weir:retention:headroom)", "age of {{topic}}, before unread records go"),
                ("min by (topic) (weir_retention_headroom_ratio)", "retention of {{topic}}, as ingestion last saw it"),
                ("min(weir_tables_free_ratio)", "disk of the tables"),
            ),
            "percentunit",
        ),
        Panel(
            "Log that replication slots retain",
            (
                ("max by (slot) (weir_slot_retained_bytes)", "{{slot}}"),
                ("min by (slot) (weir_slot_safe_bytes)", "{{slot}} may retain more"),
                ("max(weir_database_used_bytes)", "with Weir's database"),
            ),
            "bytes",
            description="It fills the disk of Postgres if nothing reads a slot.",
        ),
        Panel("Gauges can be read", (("min by (job) (weir_database_readable)", "{{job}}"),)),
        Panel("Versions", (("count by (job, version) (weir_build_info)", "{{job}} {{version}}"),)),
    ),
    "API": (
        Panel("Requests by route", _rate("weir_api_requests_total", "route")),
        Panel("Requests by status", _rate("weir_api_requests_total", "status")),
        Panel("Refused (429), by reason", _rate("weir_api_refused_requests_total", "reason")),
        Panel(
            "Duration of requests",
            tuple(_quantile("weir_api_request_duration_seconds", q, "le") for q in (0.5, 0.95, 0.99)),
            "s",
        ),
        Panel("Posted events", _rate("weir_api_events_total", "result, reason")),
        Panel("Bodies in memory", (("sum(weir_api_body_bytes)", "bytes"),), "bytes"),
        Panel("Posted events that wait for Kafka", (("sum(weir_api_pending_records)", "records"),)),
    ),
    "Events": (
        Panel("Events by disposition", _rate("weir_events_total", "disposition")),
        Panel(
            "Rejected, by reason",
            (("sum by (reason) (rate(weir_events_total{disposition='rejected'}[$__rate_interval]))", "{{reason}}"),),
        ),
        Panel("Offsets without a record", (("sum(rate(weir_absent_offsets_total[$__rate_interval]))", "absent"),)),
        Panel("Lateness", tuple(_quantile("weir_event_lateness_seconds", q, "le") for q in (0.5, 0.95, 0.99)), "s"),
        Panel(
            "Device clocks",
            (
                ("sum(rate(weir_corrected_clock_events_total[$__rate_interval]))", "corrected"),
                ("sum(rate(weir_uncorrected_clock_events_total[$__rate_interval]))", "without senttime"),
            ),
        ),
        Panel(
            "Heartbeats that failed",
            (("sum(rate(weir_failed_heartbeats_total[$__rate_interval]))", "heartbeats"),),
            description="A partition without traffic needs heartbeats to move the frontier.",
        ),
        Panel(
            "Nothing is open",
            (("max(weir_idle)", "idle"),),
            description="While no window, waiting request or session is open, heartbeats come by the minute, and every "
            "frontier is up to a minute older.",
        ),
        Panel(
            "Records of the past",
            _rate("weir_reception_marks_total", "mark"),
            description="Ignored: their source is not listed in backfill.sources.",
        ),
        Panel("Events of unknown types", (("max by (type) (weir_unknown_types)", "{{type}}"),)),
        Panel("Identities remembered", (("max(weir_identities)", "identities"),)),
        Panel(
            "Memory of identities",
            (("max(weir_identity_memory_bytes)", "in memory"),),
            "bytes",
        ),
        Panel(
            "Identities looked up in the journal",
            (
                ("sum(rate(weir_identity_journal_reads_total[$__rate_interval]))", "parts read"),
                ("sum(rate(weir_identity_filters_dropped_total[$__rate_interval]))", "filters dropped"),
                ("max(weir_identity_segments_evicted)", "parts of the exact horizon without room"),
            ),
            description="A part is a million rows of the journal.",
        ),
        Panel("Sources", (("max by (state) (weir_sources)", "{{state}}"),)),
        Panel(
            "Events of sources that are not listed",
            (("sum(rate(weir_unlisted_source_events_total[$__rate_interval]))", "events"),),
        ),
    ),
    "Sessions and joins": (
        Panel("Changes of sessions", _rate("weir_sessions_total", "change")),
        Panel("Outcomes", _rate("weir_join_outcomes_total", "outcome")),
        Panel("Waiting for their partner", (("max(weir_join_waiting_records)", "waiting"),)),
        Panel(
            "Memory of joins",
            (("max(weir_join_memory_bytes)", "in memory"), ("max(weir_join_memory_limit_bytes)", "at most")),
            "bytes",
        ),
    ),
    "Windows and money": (
        Panel("Windows of the last hour", (("max by (state) (weir_usage_windows)", "{{state}}"),)),
        Panel("Late usage", _rate("weir_late_usage_rows_total", "meter")),
        Panel("Stragglers", _rate("weir_stragglers_total", "meter, decision")),
        Panel("Corrections of closed windows", _rate("weir_corrections_total", "meter, cause")),
        Panel("All stragglers", (("sum by (meter, decision) (weir_straggler_rows)", "{{meter}} {{decision}}"),)),
        Panel(
            "Money of stragglers",
            (("sum by (decision, currency) (weir_straggler_amount)", "{{decision}} {{currency}}"),),
        ),
        Panel(
            "Stragglers that wait: first deadline",
            (("min by (meter) (weir_straggler_deadline_seconds)", "{{meter}}"),),
        ),
        Panel(
            "Not published yet",
            (("max by (topic) (weir_unsent_changes)", "{{topic}}"),),
            description="Corrections, or minutes of an account in which windows changed, that Kafka does not have yet.",
        ),
        Panel(
            "Age of the oldest unpublished change",
            (("max by (topic) (weir_unsent_seconds)", "{{topic}}"),),
            "s",
            limit=UNSENT_SECONDS,
        ),
        Panel(
            "Age of the oldest correction that a consumer has not acknowledged",
            (("max(weir_corrections_unacknowledged_seconds)", "waiting"),),
            "s",
            limit=UNACKNOWLEDGED_SECONDS,
        ),
        Panel(
            "Age of the oldest undelivered webhook",
            (("max(weir_webhook_waiting_seconds)", "waiting"),),
            "s",
            limit=WEBHOOK_SECONDS,
        ),
        Panel(
            "Webhooks that failed",
            (("max(weir_webhook_dead_deliveries)", "dead"), ("max(weir_webhook_gone_endpoints)", "endpoints gone")),
        ),
        Panel(
            "Events in order: behind",
            (("max(weir_ordered_events_behind_seconds)", "behind"),),
            "s",
            limit=ORDERED_BEHIND_SECONDS,
            description="How far the watermark of `events.ordered` is behind the frontier minus its wait.",
        ),
        Panel("Events in order, by whether they are late", _rate("weir_ordered_events_total", "is_late")),
        Panel(
            "Events in order: rows from the first that waits",
            (("max(weir_ordered_events_waiting_rows)", "rows"),),
        ),
        Panel("Publishing blocked", (("max by (topic) (weir_publishing_blocked)", "{{topic}}"),)),
        Panel("Unpriced usage", _rate("weir_unpriced_usage_rows_total", "meter")),
        Panel(
            "Prices to be confirmed",
            (("max(weir_price_jumps)", "prices"),),
            description="100 times above or below another, stored with SQL: `weir catalog jumps` lists them.",
        ),
        Panel(
            "Effective prices not folded",
            (("max(weir_effective_prices_behind_seconds)", "since"),),
            "s",
            description="Until they are, pages and the API read the view instead of the table: nothing shown is wrong.",
        ),
        Panel("Usage without a quantity", _rate("weir_unmetered_usage_rows_total", "meter")),
    ),
    "Audit": (
        Panel(
            "Since something was proved",
            (("time() - max by (audited) (weir_audit_proved_timestamp_seconds)", "{{audited}}"),),
            "s",
        ),
        Panel(
            "Differences without a known cause (must be 0)",
            (("max by (check) (weir_audit_found)", "{{check}}"),),
            description="As the last audits found them; the page Audit of Weir's dashboard has the sentences.",
        ),
        Panel("Rows that audits have corrected", (("max by (cause) (weir_audit_corrected)", "{{cause}}"),)),
    ),
    "Views": (
        Panel(
            "Measures of views",
            (('topk by (view, measure) (5, weir_view{measure!~".*_p[0-9]+"})', "{{view}} {{measure}} {{keys}}"),),
            description="Of the last five minutes before analytics' frontier, for views with `gauges`.",
        ),
        Panel(
            "Percentiles of views",
            (('topk by (view, measure) (5, weir_view{measure=~".*_p(95|99)"})', "{{view}} {{measure}} {{keys}}"),),
        ),
    ),
}
