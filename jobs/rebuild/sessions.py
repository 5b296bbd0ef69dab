"""journal → sessions, rebuilt with the gaps that applied.

A correct session stays as it is, with its id, its version and what was retracted for it. For sessions that the database
has lost, it is unknown what had been shown closed: they get their first version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa

from jobs.journal.families import family
from jobs.rebuild.plan import Part, Piece, Plan
from jobs.runtime.config import JobConfig
from jobs.runtime.delta.position import with_fingerprint
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.pipeline import JOB, STAGED
from jobs.streams import Table
from metering.vocabulary import REQUESTS, Disposition

_GAPS = "SELECT first_position, extract(epoch FROM gap)::integer FROM session_gaps ORDER BY 1"
_KEEP = "CREATE TEMP TABLE kept_sessions ON COMMIT DROP AS SELECT * FROM sessions"
_SAME = """
DELETE FROM sessions AS made USING kept_sessions AS kept
WHERE kept.retracted_at IS NULL
  AND (made.account, made.user_id, made.session_start, made.session_end, made.events)
    = (kept.account, kept.user_id, kept.session_start, kept.session_end, kept.events)
RETURNING kept.session_id
"""
_BACK = """
INSERT INTO sessions OVERRIDING SYSTEM VALUE
SELECT * FROM kept_sessions WHERE retracted_at IS NOT NULL OR session_id = ANY (%s)
"""
USER = ("account", "user_id")


def _parts(cursor: psycopg.Cursor[Any], config: SessionizationConfig) -> Sequence[Part]:
    found = cursor.execute(_GAPS).fetchall() or [(1, config.session_gap_seconds)]
    return [Part(first, config.model_copy(update={"session_gap_seconds": seconds})) for first, seconds in found]


def _pieces(journal: pa.Table, part: Part, *, ends_table: bool) -> Iterator[Piece]:  # noqa: ARG001 -- F decides nothing here
    yield Piece(mini_sessions(pl.DataFrame(journal), part.config), journal["lsn"][-1].as_py() + 1)


def mini_sessions(journal: pl.DataFrame, config: SessionizationConfig) -> pa.Table:
    """Rows of the journal → what `sessionization.pipeline.build` makes of them, on the driver (STAGED)."""
    if "family" not in journal.columns:
        journal = journal.with_columns(pl.lit(None, pl.String).alias("family"))
    is_accepted = pl.col("disposition") == Disposition.ACCEPTED.value
    is_session_event = is_accepted & family().is_in(list(REQUESTS)) & pl.col("user_id").is_not_null()
    pause = pl.col("event_time").diff().over(USER)
    found = (
        journal.filter(is_session_event)
        .sort(*USER, "event_time")
        .with_columns(session=(pause > config.session_gap).fill_null(value=True).cum_sum())
        .group_by(*USER, "session", maintain_order=True)
        .agg(
            session_start=pl.min("event_time"),
            session_end=pl.max("event_time"),
            events=pl.len().cast(pl.Int64),
        )
    )
    return found.select(STAGED.names).to_arrow().cast(STAGED)


def _ending(cursor: psycopg.Cursor[Any], _config: JobConfig, _position: int, _floor: int) -> None:
    same = [session for (session,) in cursor.execute(_SAME).fetchall()]
    cursor.execute(_BACK, [same])


PLAN = Plan(
    job=JOB,
    emptied=("sessions",),
    columns=with_fingerprint(
        Table.JOURNAL, ("lsn", "type", "family", "disposition", "account", "user_id", "event_time")
    ),
    parts=_parts,
    pieces=_pieces,
    keeping=(_KEEP,),
    ending=_ending,
    counted={"sessions": "SELECT count(*) FROM sessions WHERE retracted_at IS NULL"},
)
