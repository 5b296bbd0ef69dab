"""When an event occurred, by trusted clocks, and whether that is close enough to its reception.

Decided on the driver, because only the driver knows `received_at`: a record's own stamp is only part of it.
tests/specifications/clock.py has the same rules row by row.
"""

from __future__ import annotations

import polars as pl

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.received import INSTANT
from jobs.ingestion.receptions import NOT_LISTED, with_receptions
from jobs.ingestion.validator import END_STORABLE_US, FIRST_STORABLE_US
from metering.vocabulary import Isolation, Reason

DAY_SECONDS = 86_400
BACKFILL = "; `weir backfill` sends events of the past"


def validated_by_reception(records: pl.DataFrame, config: IngestionConfig) -> pl.DataFrame:
    """Records of `EventValidator.schema` with `received_at`, fully validated: the journal's columns of one record.

    `first_received_at` replaces `received_at` where a record has one, or gets it by its mark (`receptions`): its device
    sent it then, and its later way is not lateness of its own. A record that a producer stamped is `unstamped`,
    before any other reason, unless it is isolated: then it was not validated, and the reason stays. Adds
    `event_time` and `clock_offset_ms` (rounded down); `reason` may become too_old or future, and a rejected row has no
    `content_digest`.
    """
    records = with_receptions(records, config.backfill, config.accept_future_seconds)
    received_us = pl.coalesce("first_received_at", "received_at").dt.epoch("us")
    occurred_us = pl.col("occurred_us")
    offset_us = received_us - pl.col("device_sent_us")
    is_wrong = offset_us.abs() > config.clocks.tolerance_seconds * 1_000_000
    event_us = occurred_us + pl.when(is_wrong).then(offset_us).otherwise(0)
    early_us = event_us - received_us
    is_isolated = pl.col("reason").is_in(list(Isolation)).fill_null(value=False)
    past, future = config.accept_past_seconds, config.accept_future_seconds

    is_ignored = pl.col("reception_mark").is_not_null() & pl.col("first_received_at").is_null()
    ignored = pl.when(is_ignored).then(pl.lit(NOT_LISTED)).otherwise(pl.lit(""))
    is_sent_once = pl.col("reception_mark").is_null() & pl.col("first_received_at").is_null()
    hint = pl.when(is_sent_once).then(pl.lit(BACKFILL)).otherwise(pl.lit(""))

    def verdict(own: str, unstamped: str, too_old: pl.Expr, too_early: pl.Expr) -> pl.Expr:
        return (
            pl.when(~pl.col("is_broker_stamp") & ~is_isolated)
            .then(pl.lit(unstamped, pl.String))
            .when(pl.col("reason").is_not_null())
            .then(own)
            .when(early_us < -past * 1_000_000)
            .then(too_old)
            .when(early_us > future * 1_000_000)
            .then(too_early)
            .alias(own)
        )

    verdicts = records.select(
        verdict("reason", Reason.UNSTAMPED, pl.lit(Reason.TOO_OLD.value), pl.lit(Reason.FUTURE.value))
    ).get_columns()
    # A text for each record costs more than all else here, and hardly any is needed.
    if not verdicts[0].equals(records["reason"], null_equal=True):
        violation = verdict(
            "violation",
            "Kafka: the stamp is the producer's; events need message.timestamp.type=LogAppendTime",
            _beyond(f"at most {_length(past)} before it was received", -early_us) + hint + ignored,
            _beyond(f"at most {_length(future)} after it was received", early_us),
        )
        verdicts += records.select(violation).get_columns()
    return records.with_columns(
        *verdicts,
        pl.when((event_us >= FIRST_STORABLE_US) & (event_us < END_STORABLE_US))
        .then(event_us)
        .cast(INSTANT)
        .alias("event_time"),
        (offset_us // 1_000).alias("clock_offset_ms"),
    ).with_columns(pl.when(pl.col("reason").is_null()).then("content_digest").alias("content_digest"))


def _beyond(allowed: str, distance_us: pl.Expr) -> pl.Expr:
    """The text for an event whose time is further from its reception than allowed: how far it is."""
    seconds = distance_us / 1_000_000
    in_days = (seconds / DAY_SECONDS).round(1).cast(pl.String) + " days"
    in_seconds = seconds.round(1).cast(pl.String) + " s"
    distance = pl.when(seconds >= DAY_SECONDS).then(in_days).otherwise(in_seconds)
    return pl.lit(f"accept window /time: {allowed}; it is ") + distance


def _length(seconds: int) -> str:
    """`35 days (3024000 s)`, `300 s`."""
    days, rest = divmod(seconds, DAY_SECONDS)
    return f"{seconds} s" if rest or not days else f"{days} day{'s' if days > 1 else ''} ({seconds} s)"
