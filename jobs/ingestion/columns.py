"""What a payload says → the journal's typed columns: null where nothing usable stood."""

from __future__ import annotations

from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.ingestion import rules
from jobs.ingestion.config import Clocks
from jobs.ingestion.document import SCALARS, TEXTS, TOKENS, json_type, member

MICROSECONDS = 1_000_000
STORABLE = ("1970-01-01 00:00:00Z", "3000-01-01 00:00:00Z")
"""From, and before: instants that Arrow, Parquet, Postgres and Python all hold. Others are stored as null."""


def typed(documents: DataFrame, clocks: Clocks) -> DataFrame:
    """`documents` of `document.read` with a column for each attribute and field of the event contract.

    Adds `is_cloudevent`, `id, source, type, account, time_text, occurred, sent, sequence, source_epoch`, the fields of
    `data` under their own names, `is_plain` (nothing else stands in `data`), and the corrected clock: `offset_us` and
    `event_time`. The instants are as they were read; `storable` bounds them.
    """
    return documents.select("*", *_envelope(), *_data()).withColumns(_clock(clocks))


def storable(instant: Column) -> Column:
    """`instant` where every reader of the journal can hold it, else null."""
    first, end = (F.lit(bound).cast("timestamp") for bound in STORABLE)
    return F.when((instant >= first) & (instant < end), instant)


def _envelope() -> list[Column]:
    sequence = _text_or_integer("attributes.sequence")
    is_sequence = _is_whole(sequence, rf"[0-9]{{1,{rules.MAX_SEQUENCE_DIGITS}}}")
    sent = F.col("attributes.senttime")
    return [
        (_text("attributes.specversion") == rules.SPECVERSION).alias("is_cloudevent"),
        *[_name(_text(f"attributes.{attribute}")).alias(attribute) for attribute in ("id", "source", "type")],
        _name(_text("attributes.subject")).alias("account"),
        _text("attributes.time").alias("time_text"),
        _instant(_text("attributes.time")).alias("occurred"),
        _instant(F.when(json_type(sent) == "STRING", _get(sent, "string"))).alias("sent"),
        F.when(is_sequence, sequence.try_cast("bigint")).alias("sequence"),
        _name(_text_or_integer("attributes.sourceepoch")).alias("source_epoch"),
    ]


def _data() -> list[Column]:
    fields = {name: F.col(f"fields.{name}") for name in (*TEXTS, *SCALARS)}
    cached, latency = fields["cached"], fields["latency_ms"]
    counted = reduce(add, (field.isNotNull().cast("int") for field in fields.values()))
    return [
        # As many keys as fields were read: no other field, no text of another type, no null text.
        F.coalesce(F.size("keys") == counted, F.lit(False)).alias("is_plain"),
        *[_name(_text(f"fields.{name}")).alias(name) for name in TEXTS],
        *[F.when(json_type(fields[name]) == "BIGINT", _get(fields[name], "bigint")).alias(name) for name in TOKENS],
        F.when(json_type(cached) == "BOOLEAN", _get(cached, "boolean")).alias("cached"),
        F.when(json_type(latency).rlike("^(BIGINT|DOUBLE|DECIMAL)"), _get(latency, "double")).alias("latency_ms"),
    ]


def _clock(clocks: Clocks) -> dict[str, Column]:
    # The Spark form of jobs/event_time/clock.py.
    offset = F.unix_micros("timestamp") - F.unix_micros("sent")
    is_device = F.col("source").rlike(rules.glob_expression(clocks.device)) if clocks.device else F.lit(False)
    offset_us = F.when(is_device, offset)
    corrected = F.timestamp_micros(F.unix_micros("occurred") + offset_us)
    is_wrong = F.abs(offset_us) > clocks.tolerance_seconds * MICROSECONDS
    return {
        "offset_us": offset_us,
        "event_time": F.when(is_wrong, corrected).otherwise(F.col("occurred")),
    }


def _text(path: str) -> Column:
    return F.col(path).cast("string")


def _name(text: Column) -> Column:
    return F.when(F.octet_length(text).between(1, rules.MAX_TEXT_BYTES), text)


def _text_or_integer(path: str) -> Column:
    value = F.col(path)
    return F.when(json_type(value).isin("STRING", "BIGINT"), _get(value, "string"))


def _instant(text: Column) -> Column:
    # Spark alone would take a mere date, a zone's name, or no zone at all.
    return F.when(_is_whole(text, rules.RFC3339), F.upper(text).try_cast("timestamp"))


def _is_whole(text: Column, expression: str) -> Column:
    return text.rlike(rf"\A(?:{expression})\z")


def _get(value: Column, data_type: str) -> Column:
    return member(value, "$", data_type)
