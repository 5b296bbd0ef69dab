"""The objects that Weir's migrations make in a database, by name: only these are moved and shown to readers.

A test compares these lists with what the migrations make; add each new table here.
"""

from __future__ import annotations

VERSION_TABLE = "alembic_version"

EARLIER = {
    "0001": (VERSION_TABLE, "batches", "jobs", "positions", "sessions", "stragglers", "usage_windows"),
    "0002": ("exits", "sources"),
    "0004": ("catalog_outbox",),
    "0006": ("session_gaps",),
    "0009": ("restamps",),
    "0010": ("bookkeeping",),
    "0011": ("unknown_types",),
    "0012": ("attempts", "isolated_records"),
    "0013": ("rules",),
    "0015": ("closed_usage",),
    "0018": ("closed_sessions",),
    "0021": ("meters",),
    "0022": ("usage_day_dimensions", "usage_days"),
    "0023": ("closed_meters",),
    "0024": ("corrections",),
    "0025": ("publications", "unsent_windows"),
    "0026": ("settled_stragglers",),
    "0027": ("audits",),
}
"""Relations that releases up to 0034 made in `public`, by the revision that made them. It is complete: what later
revisions make is made in Weir's own schema."""
EARLIER_FUNCTIONS = {"0022": ("usage_spans(date, date)",)}

LATER = (
    *("accepted_losses", "activity_head", "activity_log", "analytics_panes", "analytics_patterns", "analytics_views"),
    "api_keys",
    *(
        "correction_consumers",
        "dead_letter_minutes",
        "dead_letter_spikes",
        "declared_dimensions",
        "declared_windows",
        "erasures",
        "invoice_events",
        "invoice_lines",
        "invoices",
        "late_members",
        "limited_dimensions",
        "ordered_events",
    ),
    *("pattern_matches", "pattern_outcomes", "portal_invalidations"),
    *("price_ladders", "reader_logins", "silent_sources", "taken_back_on_time"),
    *("usage_dimensions", "usage_hours", "usage_members", "usage_months"),
    *("threshold_changes", "thresholds_due", "topic_removals"),
    *("webhook_attempts", "webhook_deliveries", "webhook_endpoints", "webhook_events", "webhook_position"),
    *("webhook_removals", "webhook_secrets"),
    *("watch_calls", "watch_hits", "watch_hours", "watch_progress", "watch_status", "watches"),
)
"""Relations that revisions after 0034 make in Weir's own schema."""

CATALOG = (
    *(
        "account_history",
        "account_zones",
        "accounts",
        "accounts_below",
        "capture",
        "capture_heartbeats",
        "contracts",
        "decisions",
        "effective_prices",
        "effective_prices_due",
        "effective_prices_now",
        "effective_prices_progress",
        "ended_prices",
        "limits",
    ),
    *("missing_columns", "plans", "pools", "price_jumps", "prices"),
)
"""Relations of the schema `catalog`."""


def made_by(revision: str) -> tuple[str, ...]:
    """The relations that are in `public` at `revision` of an earlier release."""
    return tuple(name for made, names in EARLIER.items() if made <= revision for name in names)


def functions_made_by(revision: str) -> tuple[str, ...]:
    """The functions, with the types of their arguments, that are in `public` at `revision` of an earlier release."""
    return tuple(name for made, names in EARLIER_FUNCTIONS.items() if made <= revision for name in names)


OWN = (*made_by("0034"), *LATER)
"""Relations of Weir's own schema."""
SECRET = (
    *("activity_head", "activity_log", "api_keys", "erasures", "pattern_outcomes", "reader_logins"),
    *("webhook_attempts", "webhook_deliveries", "webhook_endpoints", "webhook_events", "webhook_position"),
    *("webhook_removals", "webhook_secrets"),
)
"""Of these the reader sees nothing."""
ASKED = (
    *("analytics_panes", "analytics_views", "declared_windows", "price_ladders", "threshold_changes"),
    *("closed_meters", "closed_usage", "corrections", "declared_dimensions", "meters", "positions", "stragglers"),
    *("invoice_events", "invoice_lines", "invoices"),
    *("usage_day_dimensions", "usage_days", "usage_hours", "usage_months", "usage_windows"),
    *("limited_dimensions", "usage_dimensions"),
    *("analytics_patterns", "pattern_matches", "watch_hits", "watch_hours", "watch_status", "watches"),
)
"""Of these the API reads: what names an account is guarded by row-level security, and nothing else."""
WRITTEN = ("correction_consumers", "portal_invalidations")
"""These the API reads and writes, and row-level security guards both."""
ASKED_OF_CATALOG = (
    *("account_history", "account_zones", "accounts", "contracts", "decisions"),
    *("effective_prices", "effective_prices_due", "effective_prices_now", "effective_prices_progress"),
    *("ended_prices", "limits", "plans", "pools", "prices"),
)
"""The same of the schema `catalog`."""
