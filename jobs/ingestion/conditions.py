"""Conditions that webhooks are called about: sources that are silent, and spikes of dead letters.

Each is a row while it holds. Triggers call when the row appears and when it goes (migration 0110), so a change of state
calls once, however the journal is cut into batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import psycopg

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.limits import LIMITS, Limits
from metering.vocabulary import Disposition

REJECTED = {"reason": pl.String, "records": pl.Int64}
SPIKE_MINUTES = 10
"""As the alert on dead letters looks back: minutes in which records were rejected, whenever they were received."""

LIVING = """
    SELECT source, min(first_seen_at) AS first_seen_at, max(last_seen_at) AS last_seen_at,
           (array_agg(account ORDER BY account_seen_at DESC NULLS LAST))[1] AS account
    FROM sources WHERE last_seen_at >= %(retired_before)s GROUP BY source
"""
IS_NOT_RETIRED = "(last_seen_at >= %(once_retired_before)s OR last_seen_at - first_seen_at > interval '1 minute')"
# A silence ends when something is heard. One of a source that is retired, or that the configuration calls so no more,
# goes without a call.
_ENDED = f"""
DELETE FROM silent_sources AS silent WHERE NOT EXISTS (
    SELECT FROM ({LIVING}) AS living
    WHERE living.source = silent.source AND living.last_seen_at = silent.last_seen_at AND {IS_NOT_RETIRED}
      AND last_seen_at < %(silent_before)s
)
"""
_BEGUN = f"""
INSERT INTO silent_sources (source, account, last_seen_at)
SELECT source, account, last_seen_at FROM ({LIVING}) AS living
WHERE last_seen_at < %(silent_before)s AND {IS_NOT_RETIRED}
  AND NOT EXISTS (SELECT FROM silent_sources AS silent WHERE silent.source = living.source)
ORDER BY last_seen_at, source LIMIT %(at_once)s
"""

_COUNT = """
INSERT INTO dead_letter_minutes AS old (reason, minute, records)
SELECT reason, date_trunc('minute', now(), 'UTC'), records
FROM unnest(%s::text[], %s::bigint[]) AS batch (reason, records) ORDER BY reason
ON CONFLICT (reason, minute) DO UPDATE SET records = old.records + excluded.records
"""
# A minute that is to come was counted by a clock that was wrong: it would last until it has come.
_FORGET = f"""
DELETE FROM dead_letter_minutes WHERE minute <= now() - interval '{SPIKE_MINUTES} minutes' OR minute > now()
"""
_RECENT = "SELECT reason, sum(records)::bigint AS records FROM dead_letter_minutes GROUP BY reason"
_SPIKES_BEGUN = f"""
INSERT INTO dead_letter_spikes (reason, records)
SELECT reason, records FROM ({_RECENT}) AS recent WHERE records >= %(records)s ORDER BY reason
ON CONFLICT DO NOTHING
"""
# Half of it: a rate about the limit would call again and again.
_SPIKES_ENDED = f"""
DELETE FROM dead_letter_spikes AS spike
WHERE 2 * coalesce((SELECT records FROM ({_RECENT}) AS recent WHERE recent.reason = spike.reason), 0) < %(records)s
"""
_ANY_LEFT = "SELECT EXISTS (SELECT FROM dead_letter_minutes) OR EXISTS (SELECT FROM dead_letter_spikes)"


@dataclass(frozen=True)
class Conditions:
    """When they hold: `spike_records` of one reason, rejected within SPIKE_MINUTES, are a spike."""

    silent_after: timedelta
    once_retired_after: timedelta
    retired_after: timedelta
    spike_records: int

    @classmethod
    def of(cls, config: IngestionConfig) -> Conditions:
        """As ingestion is configured."""
        return cls(
            timedelta(seconds=config.source_silent_after_seconds),
            timedelta(seconds=config.source_seen_once_retired_after_seconds),
            timedelta(seconds=config.source_retired_after_seconds),
            config.dead_letter_spike_records,
        )


def rejected_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Dead letters among rows of the journal (`disposition`, `reason`), by reason → REJECTED."""
    rejected = rows.filter(pl.col("disposition") == Disposition.REJECTED)
    counted = rejected.group_by(pl.col("reason").fill_null("")).agg(records=pl.len().cast(pl.Int64))
    return counted.sort("reason").select(*REJECTED)


def added_rejected(parts: pl.DataFrame) -> pl.DataFrame:
    """`rejected_of` several parts of the rows → of all of them."""
    return parts.group_by("reason").agg(pl.sum("records")).sort("reason").select(*REJECTED)


def fold_silences(
    cursor: psycopg.Cursor[Any], frontier: datetime, conditions: Conditions, limits: Limits = LIMITS
) -> None:
    """Which sources are silent at this frontier: while nothing can be read, none falls silent.

    Of those that fell silent since the last time the first `limits.new_silences`; the others follow, unless they are
    heard before.
    """
    reached = {
        "at_once": limits.new_silences,
        "silent_before": frontier - conditions.silent_after,
        "once_retired_before": frontier - conditions.once_retired_after,
        "retired_before": frontier - conditions.retired_after,
    }
    cursor.execute(_ENDED, reached)
    cursor.execute(_BEGUN, reached)


def fold_spikes(cursor: psycopg.Cursor[Any], rejected: pl.DataFrame, conditions: Conditions) -> bool:
    """Add dead letters (REJECTED) to the minute by Postgres' clock. Whether there are any to look at later."""
    if not rejected.is_empty():
        cursor.execute(_COUNT, [rejected[name].to_list() for name in REJECTED])
    cursor.execute(_FORGET)
    limit = {"records": conditions.spike_records}
    cursor.execute(_SPIKES_ENDED, limit)
    cursor.execute(_SPIKES_BEGUN, limit)
    row = cursor.execute(_ANY_LEFT).fetchone()
    return bool(row and row[0])
