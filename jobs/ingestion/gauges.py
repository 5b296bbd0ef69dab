"""Gauges of sources, unknown types and dead letters, read from the database at each scrape."""

from __future__ import annotations

from jobs.ingestion.conditions import IS_NOT_RETIRED, LIVING
from jobs.runtime.postgres.totals import Statement, Totals, configured_seconds
from monitoring import metrics

# Silence is measured at the frontier: while nothing can be read, no source counts as silent.
_SOURCES_KNOWN = f"""
    SELECT frontier - {configured_seconds("source_silent_after_seconds")} AS silent_before,
           frontier - {configured_seconds("source_seen_once_retired_after_seconds")} AS once_retired_before,
           frontier - {configured_seconds("source_retired_after_seconds")} AS retired_before
    FROM (SELECT config, (progress ->> 'frontier')::timestamptz AS frontier FROM jobs WHERE job = %(job)s) AS reached
"""
_SOURCES = f"""
    SELECT CASE WHEN last_seen_at < %(silent_before)s THEN 'silent' ELSE 'active' END, count(*)
    FROM ({LIVING}) AS living WHERE {IS_NOT_RETIRED} GROUP BY 1
"""
_MISSING = """
    SELECT coalesce(sum(upper(hole) - lower(hole)), 0)
    FROM sources CROSS JOIN LATERAL unnest(range_merge(sequences)::int8multirange - sequences) AS hole
    WHERE last_seen_at >= %(retired_before)s AND NOT isempty(sequences)
"""
_UNSEQUENCED = "SELECT count(*) FROM sources WHERE last_seen_at >= %(retired_before)s AND unsequenced"
_UNKNOWN_TYPES = """
    SELECT CASE WHEN place <= 20 AND type <> '' THEN type ELSE 'other' END, sum(events)
    FROM (SELECT type, events, row_number() OVER (ORDER BY events DESC, type) AS place FROM unknown_types) AS placed
    GROUP BY 1
"""
_ISOLATED = "SELECT reason, count(*) FROM isolated_records WHERE journalled_at IS NOT NULL GROUP BY reason"
# A standby replays what another server wrote.
_POSITION = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END"
# All slots of the server, of any application: each fills the disk of this database.
_SLOT_RETAINED = f"""
    SELECT slot_name, pg_wal_lsn_diff({_POSITION}, restart_lsn) FROM pg_replication_slots WHERE restart_lsn IS NOT NULL
"""
_SLOT_SAFE = "SELECT slot_name, safe_wal_size FROM pg_replication_slots WHERE safe_wal_size IS NOT NULL"
_DATABASE_USED = f"""
    SELECT pg_database_size(current_database())
           + coalesce((SELECT max(pg_wal_lsn_diff({_POSITION}, restart_lsn)) FROM pg_replication_slots), 0)
"""
# Without a slot nothing is known but that it was later than the oldest beat that is kept.
_CATALOG_BEHIND = """
    SELECT coalesce(extract(epoch FROM clock_timestamp() - coalesce(captured_until, first_beat_at)), 'Infinity')
    FROM catalog.capture
"""
_EFFECTIVE_PRICES_BEHIND = """
    SELECT coalesce(extract(epoch FROM max(clock_timestamp() - greatest(noted_at, due_at))), 0)
    FROM catalog.effective_prices_due WHERE due_at <= now()
"""
_PRICE_JUMPS = "SELECT count(*) FROM catalog.price_jumps WHERE confirmed_at IS NULL"


def totals(job: str) -> tuple[Totals, ...]:
    """Gauges of `sources`, `unknown_types` and `isolated_records`, of the catalog, of Postgres' disk."""
    return (
        Statement(metrics.SOURCES, job, _SOURCES, _SOURCES_KNOWN),
        Statement(metrics.MISSING, job, _MISSING, _SOURCES_KNOWN),
        Statement(metrics.UNSEQUENCED, job, _UNSEQUENCED, _SOURCES_KNOWN),
        Statement(metrics.UNKNOWN_TYPES, job, _UNKNOWN_TYPES),
        Statement(metrics.ISOLATED, job, _ISOLATED),
        Statement(metrics.CATALOG_BEHIND, job, _CATALOG_BEHIND),
        Statement(metrics.EFFECTIVE_PRICES_BEHIND, job, _EFFECTIVE_PRICES_BEHIND),
        Statement(metrics.PRICE_JUMPS, job, _PRICE_JUMPS),
        Statement(metrics.SLOT_RETAINED, job, _SLOT_RETAINED),
        Statement(metrics.SLOT_SAFE, job, _SLOT_SAFE),
        Statement(metrics.DATABASE_USED, job, _DATABASE_USED),
    )
