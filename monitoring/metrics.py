"""Every metric, declared once: kind, name, unit, labels with their closed sets of values, and which jobs expose it.

Counters start at 0 with all their label sets, so that their first increase is seen. Gauges appear when they are first
set: after a restart an unknown lag must not read as no lag. Totals that must agree with the database are gauges that
are read from it.
"""

from __future__ import annotations

from monitoring.instruments import CounterMetric, GaugeMetric, HistogramMetric, Metric

JOBS = ("ingestion", "sessionization", "joins", "billing")
DISPOSITIONS = ("accepted", "rejected", "duplicate", "conflict")
JOIN_OUTCOMES = ("matched", "abandoned", "orphaned", "superseded")
METERS = ("requests", "input_tokens", "output_tokens", "cached_tokens")
DECISIONS = ("correct", "drop")
SESSION_CHANGES = ("begun", "extended", "absorbed", "retracted")
WINDOW_STATES = ("open", "closing", "closed", "corrected")
SOURCE_STATES = ("active", "silent")
EXITS = ("crashed", "refused", "fenced")
TOPIC_SETTINGS = ("max.message.bytes", "retention", "replication", "min.insync.replicas")
ISOLATIONS = ("too_large", "unreadable", "skipped")
CAUSES = ("kafka", "database", "store", "broker_clock", "memory")
MOST_NEW_SOURCES = 1_000
"""New sources that are listed in an hour."""
GIVEN_AT_START = None
LATENESS_BUCKETS = (0, 1, 5, 15, 30, 60, 120, 300, 600, 1_800, 3_600, 21_600, 86_400, 604_800, 3_024_000)

_JOB = {"job": JOBS}

LAG_RECORDS = GaugeMetric("weir_lag_records", "records", "Input records that the job has not yet committed.", _JOB)
LAG_SECONDS = GaugeMetric(
    "weir_lag_seconds",
    "seconds",
    "Age of the oldest input record that the job has not yet committed; 0 without one.",
    _JOB,
)
CATCH_UP = GaugeMetric(
    "weir_catch_up_seconds",
    "seconds",
    "When the job will have committed all its input, at its speed and its input's of the last minutes; +Inf: never.",
    _JOB,
)
FRONTIER = GaugeMetric(
    "weir_frontier_timestamp_seconds",
    "seconds",
    "The frontier (watermark) that the job has reached: all that was received before it is committed. Unix time.",
    _JOB,
)
LAST_PROGRESS = GaugeMetric(
    "weir_last_progress_timestamp_seconds",
    "seconds",
    "When the job last started, finished a batch or moved its frontier. Unix time.",
    _JOB,
)
LAST_REPORT = GaugeMetric(
    "weir_last_report_timestamp_seconds",
    "seconds",
    "When the job last looked at its lag, or tried again what it waits for. Unix time.",
    _JOB,
)
WAITING_FOR = GaugeMetric(
    "weir_waiting",
    "",
    "1 while the job can do nothing until this comes back, else 0: it keeps its process and tries again by itself.",
    {**_JOB, "cause": CAUSES},
)
EPOCH = GaugeMetric("weir_epoch", "epochs", "The job's fencing epoch: one more at each start.", _JOB)
RESTARTS = GaugeMetric(
    "weir_restarts",
    "restarts",
    "How often the job was started again since its first start; kept with its epoch in the database.",
    _JOB,
)
EXITED = GaugeMetric(
    "weir_driver_exits",
    "exits",
    "How often a driver of the job ended by itself: crashed, refused a batch, or fenced by a newer epoch.",
    {**_JOB, "how": EXITS},
    from_database=True,
)
DATABASE_READABLE = GaugeMetric(
    "weir_database_readable", "", "1 when the job could read its gauges from the database just now, else 0.", _JOB
)
BUILD_INFO = GaugeMetric(
    "weir_build_info", "", "Always 1; the labels say what runs.", {**_JOB, "version": GIVEN_AT_START}
)
BATCH_DURATION = HistogramMetric(
    "weir_batch_duration_seconds",
    "seconds",
    "Time from the start of a micro-batch to its commit in the sink.",
    _JOB,
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 13, 20, 30, 60, 120, 300),
)
BATCH_RECORDS = CounterMetric("weir_batch_records_total", "records", "Input records that the job committed.", _JOB)
_INGESTION = ("ingestion",)
EVENTS = CounterMetric(
    "weir_events_total",
    "events",
    "Records committed to the journal; only rejected ones have a reason.",
    {"disposition": DISPOSITIONS, "reason": GIVEN_AT_START},
    _INGESTION,
)
ABSENT = CounterMetric(
    "weir_absent_offsets_total",
    "offsets",
    "Kafka offsets that were proved to hold no record (markers, aborted transactions).",
    jobs=_INGESTION,
)
UNPROVED = GaugeMetric(
    "weir_unproved_offsets",
    "offsets",
    "Offsets of the batch in hand that no row has and that are not proved to hold no record: it is not committed.",
    jobs=_INGESTION,
)
HEARTBEATS_FAILED = CounterMetric(
    "weir_failed_heartbeats_total",
    "heartbeats",
    "Heartbeats that the broker did not acknowledge; partitions without traffic move the frontier by them alone.",
    jobs=_INGESTION,
)
IDENTITIES = GaugeMetric("weir_identities", "identities", "Accepted identities in memory.", jobs=_INGESTION)
IDENTITY_MEMORY = GaugeMetric(
    "weir_identity_memory_bytes", "bytes", "Memory of the identity index: rows and filters.", jobs=_INGESTION
)
IDENTITIES_EVICTED = GaugeMetric(
    "weir_identity_segments_evicted",
    "segments",
    "Parts of the exact horizon, of a million journal rows each, for which identity_memory_mib has no room.",
    jobs=_INGESTION,
)
IDENTITY_READS = CounterMetric(
    "weir_identity_journal_reads_total",
    "segments",
    "Parts of the journal, of a million rows each, that were read to look identities up.",
    jobs=_INGESTION,
)
IDENTITY_FILTERS_DROPPED = CounterMetric(
    "weir_identity_filters_dropped_total",
    "segments",
    "Parts of the journal whose identity filters had no room: a look-up reads them again.",
    jobs=_INGESTION,
)
CLOCK_CORRECTED = CounterMetric(
    "weir_corrected_clock_events_total",
    "events",
    "Device events whose event time was corrected by the clock offset.",
    jobs=_INGESTION,
)
UNCORRECTED = CounterMetric(
    "weir_uncorrected_clock_events_total",
    "events",
    "Device events without senttime: their clock could not be judged.",
    jobs=_INGESTION,
)
UNKNOWN_TYPE = CounterMetric(
    "weir_unknown_type_events_total",
    "events",
    "Accepted events of a type that Weir does not know: kept, and billed to nobody.",
    jobs=_INGESTION,
)
UNKNOWN_TYPES = GaugeMetric(
    "weir_unknown_types",
    "events",
    "Accepted events of types that Weir does not know, ever: the 20 types with the most, the others as `other`.",
    {"type": GIVEN_AT_START},
    _INGESTION,
    from_database=True,
)
LATENESS = HistogramMetric(
    "weir_event_lateness_seconds",
    "seconds",
    "Accepted requests, completions and usage events, by how long after the end of their minute they were received.",
    jobs=_INGESTION,
    buckets=LATENESS_BUCKETS,
)
RESIDUAL = GaugeMetric(
    "weir_conservation_residual_records",
    "records",
    "Kafka offsets that were passed, less those proved to hold no record and rows of the journal: must be 0.",
    jobs=_INGESTION,
)
UNLISTED = CounterMetric(
    "weir_unlisted_source_events_total",
    "events",
    "Accepted events of sources that are not listed: more than 1,000 new ones came within an hour. They are billed.",
    jobs=_INGESTION,
)
ISOLATED = GaugeMetric(
    "weir_isolated_records",
    "records",
    "Records that became dead letters whatever they say: too large, unreadable, or skipped by an operator.",
    {"reason": ISOLATIONS},
    jobs=_INGESTION,
    from_database=True,
)
TOPIC_AT_RISK = GaugeMetric(
    "weir_topic_at_risk",
    "",
    "1 when this setting of the topic of events, as it was at the start, puts events at risk, else 0.",
    {"setting": TOPIC_SETTINGS},
    jobs=_INGESTION,
)
SOURCES = GaugeMetric(
    "weir_sources",
    "sources",
    "Sources that are not retired, by whether they were silent for too long when the frontier was reached.",
    {"state": SOURCE_STATES},
    _INGESTION,
    from_database=True,
)
MISSING = GaugeMetric(
    "weir_missing_sequence_numbers",
    "events",
    "Sequence numbers that lie between two that arrived, of sources that are not retired.",
    jobs=_INGESTION,
    from_database=True,
)
UNSEQUENCED = GaugeMetric(
    "weir_unsequenced_sources",
    "sources",
    "Sources that are not retired whose sequence numbers had more than 1,000 holes and are no longer kept.",
    jobs=_INGESTION,
    from_database=True,
)
RETENTION_HEADROOM = GaugeMetric(
    "weir_retention_headroom_ratio",
    "",
    "Share of the retention of `events`, in time or size, that is left before a record goes that was not read yet.",
    jobs=_INGESTION,
)
TABLES_FREE = GaugeMetric(
    "weir_tables_free_ratio",
    "",
    "Share of the tables' file system that is free; absent in an object store, and where nobody says its size.",
    jobs=_INGESTION,
)

_SESSIONIZATION = ("sessionization",)
SESSIONS = CounterMetric(
    "weir_sessions_total", "sessions", "Changes of sessions, by kind.", {"change": SESSION_CHANGES}, _SESSIONIZATION
)
OPEN_SESSIONS = GaugeMetric(
    "weir_open_sessions",
    "sessions",
    "Sessions that the next event of their user would extend.",
    jobs=_SESSIONIZATION,
    from_database=True,
)

_JOINS = ("joins",)
OUTCOMES = CounterMetric(
    "weir_join_outcomes_total",
    "outcomes",
    "Usage rows, by what became of the request.",
    {"outcome": JOIN_OUTCOMES},
    _JOINS,
)
WAITING = GaugeMetric(
    "weir_join_waiting_records", "records", "Requests and completions that wait for their partner.", jobs=_JOINS
)
WAITING_MEMORY = GaugeMetric(
    "weir_join_memory_bytes", "bytes", "Memory for requests and completions that a later row can meet.", jobs=_JOINS
)
WAITING_MEMORY_LIMIT = GaugeMetric(
    "weir_join_memory_limit_bytes",
    "bytes",
    "Most of that memory (waiting_memory_mib): beyond it joins waits.",
    jobs=_JOINS,
)

_BILLING = ("billing",)
LATE = CounterMetric(
    "weir_late_usage_rows_total",
    "rows",
    "Usage rows received within grace after their window's end: included.",
    {"meter": METERS},
    _BILLING,
)
STRAGGLERS = CounterMetric(
    "weir_stragglers_total",
    "rows",
    "Usage rows received after their window's grace, by what the meter's late policy decided.",
    {"meter": METERS, "decision": DECISIONS},
    _BILLING,
)
STRAGGLER_ROWS = GaugeMetric(
    "weir_straggler_rows",
    "rows",
    "All stragglers in the database, by what was decided.",
    {"meter": METERS, "decision": DECISIONS},
    _BILLING,
    from_database=True,
)
STRAGGLER_AMOUNT = GaugeMetric(
    "weir_straggler_amount",
    "currency units",
    "Money of all stragglers in the database, signed: what they changed (correct) or would have changed (drop).",
    {"meter": METERS, "decision": DECISIONS, "currency": GIVEN_AT_START},
    _BILLING,
    from_database=True,
)
WINDOWS = GaugeMetric(
    "weir_usage_windows",
    "windows",
    "Rows of usage_windows of the hour before billing's frontier and later, by state.",
    {"state": WINDOW_STATES},
    _BILLING,
    from_database=True,
)
UNPRICED = CounterMetric(
    "weir_unpriced_usage_rows_total",
    "rows",
    "Usage rows with a quantity that no price matched.",
    {"meter": METERS},
    _BILLING,
)
UNMETERED = CounterMetric(
    "weir_unmetered_usage_rows_total",
    "rows",
    "Usage rows whose completion reported no quantity (null).",
    {"meter": METERS},
    _BILLING,
)

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
