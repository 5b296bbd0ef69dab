"""Tokens of sessions: computed from usage, since sessions do not store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import polars.selectors as cs

from dashboard.backend import Backend
from dashboard.digest import Recipe, digest
from dashboard.exact import Quantity, plain
from dashboard.queries.feed import feed_of
from dashboard.queries.meters import meters_of
from dashboard.queries.sessions import Session
from jobs.usage_entries import METERED_COLUMNS, metered
from metering.meters import QUANTITY_DECIMALS
from metering.sessions import SessionState
from metering.vocabulary import Job

DAYS = 2
SUM = pl.Decimal(38, QUANTITY_DECIMALS)
_KEYS = ["account", "user_id", "minute", "meter"]


@dataclass(frozen=True)
class SessionTokens:
    """By session id and meter the tokens that the completions of a session reported.

    `meters` have a column. A session before the last days, or without a completion yet, is left out, and so is a meter
    without any.
    """

    meters: tuple[str, ...]
    by_session: Mapping[int, Mapping[str, Quantity]]


NOTHING = SessionTokens((), {})


def _merge(parts: pl.LazyFrame) -> pl.LazyFrame:
    return parts.group_by(_KEYS).agg(pl.sum("quantity"), pl.max("received_at"))


def _recipe(meters: Sequence[str]) -> Recipe:
    """One summary per set of meters: when others are declared, files are read again."""
    quantity = pl.when(pl.col("sign") < 0).then(-pl.col("quantity")).otherwise(pl.col("quantity"))

    def reduce(rows: pl.LazyFrame) -> pl.LazyFrame:
        used = rows.filter(pl.col("user_id").is_not_null()).select(
            *("account", "user_id", "received_at", "outcome", "sign"),
            pl.col("event_time").dt.truncate("1m").alias("minute"),
            cs.by_name(*METERED_COLUMNS, require_all=False),
        )
        entries = metered(used).filter(pl.col("meter").is_in(meters), pl.col("quantity").is_not_null())
        return _merge(entries.select(*_KEYS, "received_at", quantity.cast(SUM)))

    return Recipe(name=f"session tokens: {', '.join(meters)}", table="usage", days=DAYS, reduce=reduce, merge=_merge)


def read_session_tokens(backend: Backend, sessions: tuple[Session, ...]) -> SessionTokens:
    """Tokens of the sessions.

    A completion belongs to the session of its user that began last before it: sessions of a user are more than a gap
    apart, and its last completion may come after its last request.
    """
    if not sessions:
        return NOTHING
    with backend.snapshot() as cursor:
        today = feed_of(cursor, Job.JOINS).read_at.date()
        meters = meters_of(cursor)
    found = digest(backend, _recipe(meters.tokens), today) if meters.tokens else None
    if found is None or found.rows.is_empty():
        return NOTHING
    live = [session for session in sessions if session.state != SessionState.RETRACTED]
    begun = pl.DataFrame(
        {
            "session_id": [session.session_id for session in live],
            "account": [session.account for session in live],
            "user_id": [session.user_id for session in live],
            "minute": [session.session_start.replace(second=0, microsecond=0) for session in live],
        },
        schema_overrides={"minute": pl.Datetime("us", "UTC")},
    )
    summed = (
        found.rows.join(begun.select("account", "user_id").unique(), on=["account", "user_id"], how="semi")
        .sort("minute")
        .join_asof(begun.sort("minute"), on="minute", by=["account", "user_id"], check_sortedness=False)
        .filter(pl.col("session_id").is_not_null())
        .group_by("session_id", "meter")
        .agg(pl.sum("quantity"))
    )
    by_session: dict[int, dict[str, Quantity]] = {}
    for session_id, meter, quantity in summed.iter_rows():
        by_session.setdefault(session_id, {})[meter] = plain(quantity)
    used = {meter for tokens in by_session.values() for meter in tokens}
    return SessionTokens(tuple(meter for meter in meters.shown(used) if meter in meters.tokens), by_session)
