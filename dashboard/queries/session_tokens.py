"""Tokens of sessions: a view from usage, which sessions themselves do not hold."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from dashboard.backend import Backend
from dashboard.digest import Recipe, digest
from dashboard.queries.feed import feed_of
from dashboard.queries.sessions import Session
from metering.meters import TOKENS, Meter
from metering.sessions import SessionState
from metering.words import Job

DAYS = 2
_TOKENS = [meter.value for meter in TOKENS]
_KEYS = ["account", "user_id", "minute"]


def _merge(parts: pl.LazyFrame) -> pl.LazyFrame:
    return parts.group_by(_KEYS).agg(pl.sum(*_TOKENS), pl.max("received_at"))


RECIPE = Recipe(
    name="session tokens",
    table="usage",
    days=DAYS,
    reduce=lambda rows: (
        rows.filter(pl.col("user_id").is_not_null())
        .select(
            "account",
            "user_id",
            "received_at",
            pl.col("event_time").dt.truncate("1m").alias("minute"),
            # Polars adds up int64 past its end without a word.
            *[(pl.col(name).fill_null(0) * pl.col("sign")).cast(pl.Decimal(38, 0)).alias(name) for name in _TOKENS],
        )
        .group_by(_KEYS)
        .agg(pl.sum(*_TOKENS), pl.max("received_at"))
    ),
    merge=_merge,
)


Tokens = Mapping[Meter, int]
"""Tokens that the completions of a session reported, per meter of `TOKENS`."""


def read_session_tokens(backend: Backend, sessions: tuple[Session, ...]) -> dict[int, Tokens]:
    """Tokens by session id; a session before the last days, or without a completion yet, is left out.

    A completion belongs to the session of its user that began last before it: sessions of a user are more than a gap
    apart, and its last completion may come after its last request.
    """
    if not sessions:
        return {}
    with backend.snapshot() as cursor:
        today = feed_of(cursor, Job.JOINS).read_at.date()
    found = digest(backend, RECIPE, today)
    if found is None or found.rows.is_empty():
        return {}
    live = [one for one in sessions if one.state != SessionState.RETRACTED]
    begun = pl.DataFrame(
        {
            "session_id": [one.session_id for one in live],
            "account": [one.account for one in live],
            "user_id": [one.user_id for one in live],
            "minute": [one.session_start.replace(second=0, microsecond=0) for one in live],
        },
        schema_overrides={"minute": pl.Datetime("us", "UTC")},
    )
    summed = (
        found.rows.join(begun.select("account", "user_id").unique(), on=["account", "user_id"], how="semi")
        .sort("minute")
        .join_asof(begun.sort("minute"), on="minute", by=["account", "user_id"], check_sortedness=False)
        .filter(pl.col("session_id").is_not_null())
        .group_by("session_id")
        .agg(pl.sum(*_TOKENS))
    )
    return {session: dict(zip(TOKENS, map(int, sums), strict=True)) for session, *sums in summed.iter_rows()}
