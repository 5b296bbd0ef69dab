"""I5: the requests of each user, cut into sessions again and compared with the stored sessions."""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from jobs.audit.compare.columns import Compared, Wrong

INSTANT = pl.Datetime("us", "UTC")
USER = ("account", "user_id")
SESSIONS = pl.Schema(
    {
        **{name: pl.String() for name in USER},
        "session_start": INSTANT,
        "session_end": INSTANT,
        "events": pl.Int64(),
    }
)
"""`sessions` that are not retracted."""
MINI = pl.Schema({**SESSIONS, "held": pl.Int64()})
"""What some rows of the journal alone know of a session; `held`: the number of the gap that held then."""
_SESSIONS = Compared(
    "the session of {user_id} of {account} from {session_start}",
    (*USER, "session_start"),
    ("session_end", "events"),
    absent={},
)
_USERS = Compared("all sessions of {user_id} of {account}", USER, ("session_start", "session_end", "events"), absent={})


def of_user(buckets: int) -> pl.Expr:
    """The bucket of a row that has an account and a user."""
    return (pl.struct(USER).hash(0) % buckets).cast(pl.Int64)


def mini_sessions(requests: pl.DataFrame, gaps: list[tuple[int, timedelta]]) -> pl.DataFrame:
    """Requests with a user (lsn, USER, event_time) → MINI. `gaps`: (first lsn, gap), in that order, at least one."""
    place = pl.sum_horizontal(pl.lit(0), *[(pl.col("lsn") >= first).cast(pl.Int64) for first, _ in gaps[1:]])
    at = pl.col("event_time")
    rows = requests.select(*USER, session_start=at, session_end=at, events=pl.lit(1, pl.Int64), held=place)
    parts = [
        merged(rows.filter(pl.col("held") == number), gap).with_columns(held=pl.lit(number, pl.Int64))
        for number, (_, gap) in enumerate(gaps)
    ]
    return pl.concat(parts).select(MINI.names()).cast(MINI)


def merged(sessions: pl.DataFrame, gap: timedelta) -> pl.DataFrame:
    """SESSIONS in any order → SESSIONS that are more than a gap apart (`metering.sessions.merge`)."""
    follows = pl.col("session_end").cum_max().shift(1).over(USER)
    begins = (pl.col("session_start") > follows + gap).fill_null(True)
    ordered = sessions.sort(*USER, "session_start", "session_end").with_columns(begins=begins)
    return (
        ordered.with_columns(number=pl.col("begins").cast(pl.Int64).cum_sum())
        .group_by("number", maintain_order=True)
        .agg(*[pl.first(name) for name in USER], pl.min("session_start"), pl.max("session_end"), pl.sum("events"))
        .select(SESSIONS.names())
    )


def unequal_sessions(minis: pl.DataFrame, stored: pl.DataFrame, gaps: list[tuple[int, timedelta]]) -> Wrong:
    """MINI and SESSIONS of the same users. A wider gap merges sessions; a narrower one leaves them as they are.

    If the first gap is unknown (an early release stored none), only all sessions of a user together are compared.
    """
    made = pl.DataFrame(schema=SESSIONS)
    for number, (_, gap) in enumerate(gaps):
        of_it = minis.filter(pl.col("held") == number).select(SESSIONS.names())
        made = merged(pl.concat([made, of_it]), gap)
    if gaps[0][0] == 1:
        return _SESSIONS.unequal(stored, made)
    sums = pl.min("session_start"), pl.max("session_end"), pl.sum("events")
    return _USERS.unequal(*(rows.group_by(USER).agg(*sums) for rows in (stored, made)))
