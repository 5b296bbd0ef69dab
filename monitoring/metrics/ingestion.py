"""Ingestion's metrics: records, events, identities, sources and the room that is left."""

from __future__ import annotations

from metering.vocabulary import Disposition, Isolation, Job, ReceptionMark, SourceState
from monitoring.instruments import CounterMetric, GaugeMetric, HistogramMetric
from monitoring.metrics.labels import GIVEN_AT_START, TOPIC_SETTINGS

INGESTION = (Job.INGESTION,)
LATENESS_BUCKETS = (0, 1, 5, 15, 30, 60, 120, 300, 600, 1_800, 3_600, 21_600, 86_400, 604_800, 3_024_000)

EVENTS = CounterMetric(
    "weir_events_total",
    "events",
    "Records committed to the journal; only rejected ones have a reason.",
    {"disposition": tuple(Disposition), "reason": GIVEN_AT_START},
    INGESTION,
)
ABSENT = CounterMetric(
    "weir_absent_offsets_total",
    "offsets",
    "Kafka offsets that were proved to hold no record (markers, aborted transactions).",
    programs=INGESTION,
)
UNPROVED = GaugeMetric(
    "weir_unproved_offsets",
    "offsets",
    "Offsets of the current batch that have no row and may hold a record: until that is clear, nothing is committed.",
    programs=INGESTION,
)
HEARTBEATS_FAILED = CounterMetric(
    "weir_failed_heartbeats_total",
    "heartbeats",
    "Heartbeats that could not be sent, or that the broker did not acknowledge. A partition without traffic needs them "
    "to move the frontier.",
    {"topic": GIVEN_AT_START},
    programs=INGESTION,
)
IDLE = GaugeMetric(
    "weir_idle",
    "",
    "1 while no window, waiting request or session is open, so that heartbeats come by the minute, else 0.",
    programs=INGESTION,
)
IDENTITIES = GaugeMetric("weir_identities", "identities", "Accepted identities in memory.", programs=INGESTION)
IDENTITY_MEMORY = GaugeMetric(
    "weir_identity_memory_bytes", "bytes", "Memory of the identity index: rows and filters.", programs=INGESTION
)
IDENTITIES_EVICTED = GaugeMetric(
    "weir_identity_segments_evicted",
    "segments",
    "Parts of the exact horizon, of a million journal rows each, for which identity_memory_mib has no room.",
    programs=INGESTION,
)
IDENTITY_READS = CounterMetric(
    "weir_identity_journal_reads_total",
    "segments",
    "Parts of the journal, of a million rows each, that were read to look identities up.",
    programs=INGESTION,
)
IDENTITY_FILTERS_DROPPED = CounterMetric(
    "weir_identity_filters_dropped_total",
    "segments",
    "Parts of the journal whose identity filters had no room: a look-up reads them again.",
    programs=INGESTION,
)
CLOCK_CORRECTED = CounterMetric(
    "weir_corrected_clock_events_total",
    "events",
    "Device events whose event time was corrected by the clock offset.",
    programs=INGESTION,
)
UNCORRECTED = CounterMetric(
    "weir_uncorrected_clock_events_total",
    "events",
    "Device events without senttime: their clock could not be checked.",
    programs=INGESTION,
)
RECEPTION_MARKS = CounterMetric(
    "weir_reception_marks_total",
    "records",
    "Backfilled records, by whether their mark of first receipt counts (only of listed sources).",
    {"mark": tuple(ReceptionMark)},
    INGESTION,
)
REVERSALS = CounterMetric(
    "weir_reversals_total",
    "events",
    "Accepted reversals: the next audit of everything takes back what their requests bill.",
    programs=INGESTION,
)
UNKNOWN_TYPE = CounterMetric(
    "weir_unknown_type_events_total",
    "events",
    "Accepted events of a type that Weir does not know: kept, and on no bill.",
    programs=INGESTION,
)
UNKNOWN_TYPES = GaugeMetric(
    "weir_unknown_types",
    "events",
    "Accepted events of types that Weir does not know, ever: the 20 types with the most, the others as `other`.",
    {"type": GIVEN_AT_START},
    INGESTION,
    from_database=True,
)
LATENESS = HistogramMetric(
    "weir_event_lateness_seconds",
    "seconds",
    "Accepted requests, completions and usage events, by how long after the end of their minute they were received.",
    programs=INGESTION,
    buckets=LATENESS_BUCKETS,
)
RESIDUAL = GaugeMetric(
    "weir_conservation_residual_records",
    "records",
    "Kafka offsets read, minus offsets proved to hold no record, minus rows of the journal, one a record: must be 0.",
    programs=INGESTION,
)
UNLISTED = CounterMetric(
    "weir_unlisted_source_events_total",
    "events",
    "Accepted events of sources that are not listed: more than 1,000 new ones came within an hour. They are billed.",
    programs=INGESTION,
)
ISOLATED = GaugeMetric(
    "weir_isolated_records",
    "records",
    "Records that became dead letters without being validated: too large, unreadable, or skipped by an operator.",
    {"reason": tuple(Isolation)},
    programs=INGESTION,
    from_database=True,
)
CATALOG_BEHIND = GaugeMetric(
    "weir_catalog_behind_seconds",
    "seconds",
    "Since when changes of the catalog may be missing in Kafka: seconds while all is well, Inf if never captured.",
    programs=INGESTION,
    from_database=True,
)
EFFECTIVE_PRICES_BEHIND = GaugeMetric(
    "weir_effective_prices_behind_seconds",
    "seconds",
    "Since when a change waits to be in the table catalog.effective_prices_now; 0: none does. Readers read the view.",
    programs=INGESTION,
    from_database=True,
)
PRICE_JUMPS = GaugeMetric(
    "weir_price_jumps",
    "prices",
    "Prices of the catalog 100 times above or below another (table catalog.price_jumps) that are not confirmed.",
    programs=INGESTION,
    from_database=True,
)
SLOT_RETAINED = GaugeMetric(
    "weir_slot_retained_bytes",
    "bytes",
    "Write-ahead log that Postgres keeps because a replication slot has not read it, of each slot of the server.",
    {"slot": GIVEN_AT_START},
    programs=INGESTION,
    from_database=True,
)
SLOT_SAFE = GaugeMetric(
    "weir_slot_safe_bytes",
    "bytes",
    "What Postgres may still write to its log before it gives the slot up; absent where max_slot_wal_keep_size is "
    "unlimited.",
    {"slot": GIVEN_AT_START},
    programs=INGESTION,
    from_database=True,
)
DATABASE_USED = GaugeMetric(
    "weir_database_used_bytes",
    "bytes",
    "Disk space that Weir's database and the log retained by replication slots take in Postgres. Other databases "
    "of the server, and other files there, are not in it.",
    programs=INGESTION,
    from_database=True,
)
TOPIC_AT_RISK = GaugeMetric(
    "weir_topic_at_risk",
    "",
    "1 when this setting of a topic of events puts events at risk, else 0; looked at when ingestion starts.",
    {"topic": GIVEN_AT_START, "setting": TOPIC_SETTINGS},
    programs=INGESTION,
)
SOURCES = GaugeMetric(
    "weir_sources",
    "sources",
    "Sources that are not retired: active, or silent for too long at the time of the frontier.",
    {"state": tuple(SourceState)},
    INGESTION,
    from_database=True,
)
MISSING = GaugeMetric(
    "weir_missing_sequence_numbers",
    "events",
    "Sequence numbers that have not arrived although later ones have, of sources that are not retired.",
    programs=INGESTION,
    from_database=True,
)
UNSEQUENCED = GaugeMetric(
    "weir_unsequenced_sources",
    "sources",
    "Sources whose sequence numbers are no longer checked, because they had more than 1,000 holes; without retired "
    "ones.",
    programs=INGESTION,
    from_database=True,
)
RETENTION_HEADROOM = GaugeMetric(
    "weir_retention_headroom_ratio",
    "",
    "Share of the retention of a topic of events, in time or size, that is left until Kafka deletes an unread record.",
    {"topic": GIVEN_AT_START},
    programs=INGESTION,
)
READ_UNTIL = GaugeMetric(
    "weir_read_until_timestamp_seconds",
    "seconds",
    "Since when records of a topic of events may be unread: when nothing was, or the topic's frontier; as ingestion "
    "last looked. Unix time.",
    {"topic": GIVEN_AT_START},
    programs=INGESTION,
)
RETENTION = GaugeMetric(
    "weir_retention_seconds",
    "seconds",
    "How long Kafka keeps a record of a topic of events: retention.ms, or for how long retention.bytes lasts at the "
    "traffic since ingestion started; +Inf: without a limit.",
    {"topic": GIVEN_AT_START},
    programs=INGESTION,
)
TOPIC_UNREAD = GaugeMetric(
    "weir_topic_unread_records",
    "records",
    "Records of a topic of events that ingestion has not committed.",
    {"topic": GIVEN_AT_START},
    programs=INGESTION,
)
TOPIC_FRONTIER = GaugeMetric(
    "weir_topic_frontier_timestamp_seconds",
    "seconds",
    "Up to when all that a topic of events received is committed. The smallest is the frontier of ingestion. Unix "
    "time; absent until each partition was heard of.",
    {"topic": GIVEN_AT_START},
    programs=INGESTION,
)
TABLES_FREE = GaugeMetric(
    "weir_tables_free_ratio",
    "",
    "Share of the tables' file system that is free; absent for an object store, and where the size is unknown.",
    programs=INGESTION,
)
