"""Billing's metrics: windows, stragglers and money."""

from __future__ import annotations

from metering.lateness import WindowState
from metering.vocabulary import CORRECTING, ORDERED_EVENTS, Decision, Job, Published
from monitoring.instruments import CounterMetric, GaugeMetric
from monitoring.metrics.labels import GIVEN_AT_START

BILLING = (Job.BILLING,)

LATE = CounterMetric(
    "weir_late_usage_rows_total",
    "rows",
    "Usage rows received after the end of their window, but within grace: they are billed.",
    {"meter": GIVEN_AT_START},
    BILLING,
)
STRAGGLERS = CounterMetric(
    "weir_stragglers_total",
    "rows",
    "Usage rows received after their window's grace, by what the meter's late policy decided; of one that waited "
    "(hold), later also by what became of it.",
    {"meter": GIVEN_AT_START, "decision": tuple(Decision)},
    BILLING,
)
STRAGGLER_ROWS = GaugeMetric(
    "weir_straggler_rows",
    "rows",
    "All stragglers in the database, by decision.",
    {"meter": GIVEN_AT_START, "decision": tuple(Decision)},
    BILLING,
    from_database=True,
)
STRAGGLER_AMOUNT = GaugeMetric(
    "weir_straggler_amount",
    "currency units",
    "Money of all stragglers in the database, signed: what they changed (correct, approve), would have changed (drop, "
    "reject) or may change yet (hold).",
    {"meter": GIVEN_AT_START, "decision": tuple(Decision), "currency": GIVEN_AT_START},
    BILLING,
    from_database=True,
)
STRAGGLER_DEADLINE = GaugeMetric(
    "weir_straggler_deadline_seconds",
    "seconds",
    "How long the first straggler that waits (hold) does so at most, at billing's frontier; nothing where none waits.",
    {"meter": GIVEN_AT_START},
    BILLING,
    from_database=True,
)
CORRECTIONS = CounterMetric(
    "weir_corrections_total",
    "corrections",
    "Changes of windows that were shown closed (table corrections), by cause.",
    {"meter": GIVEN_AT_START, "cause": CORRECTING},
    BILLING,
)
UNACKNOWLEDGED = GaugeMetric(
    "weir_corrections_unacknowledged_seconds",
    "seconds",
    "Age of the oldest correction that a consumer has not acknowledged (`weir consumers`); 0 without one.",
    {},
    BILLING,
    from_database=True,
)
WINDOWS = GaugeMetric(
    "weir_usage_windows",
    "windows",
    "Rows of usage_windows from an hour before billing's frontier on, by state.",
    {"state": tuple(WindowState)},
    BILLING,
    from_database=True,
)
UNPRICED = CounterMetric(
    "weir_unpriced_usage_rows_total",
    "rows",
    "Usage rows with a quantity that no price matched; without completions whose request never came, and units that "
    "another meter counts, too (`within`).",
    {"meter": GIVEN_AT_START},
    BILLING,
)
UNMETERED = CounterMetric(
    "weir_unmetered_usage_rows_total",
    "rows",
    "Usage rows whose completion reported no quantity (null) though the meter expects one; without units that another "
    "meter counts, too (`within`).",
    {"meter": GIVEN_AT_START},
    BILLING,
)
UNSENT = GaugeMetric(
    "weir_unsent_changes",
    "changes",
    "Changes that billing has not published yet: corrections, or minutes of an account in which windows changed.",
    {"topic": tuple(Published)},
    BILLING,
    from_database=True,
)
UNSENT_SECONDS = GaugeMetric(
    "weir_unsent_seconds",
    "seconds",
    "Age of the oldest change that billing has not published yet; 0 without one.",
    {"topic": tuple(Published)},
    BILLING,
    from_database=True,
)
PUBLISHING_BLOCKED = GaugeMetric(
    "weir_publishing_blocked",
    "",
    "1 while billing cannot publish to this topic, else 0; its log shows why. It retries; bills are not affected.",
    {"topic": (*Published, ORDERED_EVENTS)},
    BILLING,
)
EARLIER_PUBLISHING_BLOCKED = GaugeMetric(
    "weir_publishing_waits",
    "",
    "The earlier name of weir_publishing_blocked, until the next release.",
    {"topic": (*Published, ORDERED_EVENTS)},
    BILLING,
)
ORDERED_EVENTS_SENT = CounterMetric(
    "weir_ordered_events_total",
    "events",
    "Events that billing has published again on `events.ordered`; late ones came after the watermark had passed them.",
    {"is_late": ("false", "true")},
    BILLING,
)
ORDERED_BEHIND = GaugeMetric(
    "weir_ordered_events_behind_seconds",
    "seconds",
    "How far the watermark of `events.ordered` is behind the frontier minus `wait_seconds`, or since when the topic is "
    "wanted and has not begun; 0 where it is not wanted.",
    {},
    BILLING,
    from_database=True,
)
ORDERED_WAITING = GaugeMetric(
    "weir_ordered_events_waiting_rows",
    "rows",
    "Rows of the journal from the first event on that is not on `events.ordered` yet; absent where it is not wanted.",
    {},
    BILLING,
)
