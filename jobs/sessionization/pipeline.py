"""journal → mini-sessions of each micro-batch → Postgres `sessions`.

Sessions of a user are disjoint and more than a gap apart, for any late events, any cut of the input and
any earlier gaps.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.journal.families import FAMILY_SQL
from jobs.runtime.delta.position import with_fingerprint
from jobs.runtime.job import PostgresJob
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.fold import fold
from jobs.sessionization.gauges import totals
from jobs.streams import INSTANT, Table
from metering.vocabulary import REQUESTS, Disposition, Job

STAGED = pa.schema(
    [
        pa.field("account", pa.string(), nullable=False),
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("session_start", INSTANT, nullable=False),
        pa.field("session_end", INSTANT, nullable=False),
        pa.field("events", pa.int64(), nullable=False),
    ]
)
"""One row per mini-session: what one micro-batch alone knows of a session."""

_REQUESTS = ", ".join(f"'{family}'" for family in REQUESTS)
CONCERNS = f"disposition = '{Disposition.ACCEPTED}' AND {FAMILY_SQL} IN ({_REQUESTS}) AND user_id IS NOT NULL"
"""Accepted requests with a user."""


def build(journal: DataFrame, config: SessionizationConfig) -> DataFrame:
    """Journal rows → mini-sessions, one row per (account, user_id, session_start); columns of `STAGED`.

    Only rows that meet `CONCERNS` are counted. Spark joins two events that are exactly one gap apart, as the rule asks.
    """
    gap = f"{config.session_gap_seconds} seconds"
    return (
        journal.where(CONCERNS)
        .groupBy("account", "user_id", F.session_window("event_time", gap).alias("session"))
        .agg(F.count("*").alias("events"))
        .select(
            "account",
            "user_id",
            F.col("session.start").alias("session_start"),
            (F.col("session.end") - F.expr(f"INTERVAL '{config.session_gap_seconds}' SECOND")).alias("session_end"),
            "events",
        )
    )


JOB = PostgresJob(
    name=Job.SESSIONIZATION.value,
    reads=Table.JOURNAL,
    columns=lambda _: with_fingerprint(
        Table.JOURNAL, ("lsn", "type", "family", "disposition", "account", "user_id", "event_time")
    ),
    config=SessionizationConfig,
    build=build,
    staged=STAGED,
    fold=fold,
    concerns=CONCERNS,
    totals=totals,
    pause_seconds=lambda config, _rows: config.min_batch_interval_seconds,
    history="session_gaps",
)
