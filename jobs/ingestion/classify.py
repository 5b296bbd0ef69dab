"""Kafka records → the columns of a journal row and the reason to reject it (null: valid; identity is the driver's).

Nothing here raises, whatever the bytes are: what cannot be read is null, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.ingestion import rules
from jobs.ingestion.columns import storable, typed
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.document import (
    REQUEST_TEXTS,
    SCALARS,
    TEXTS,
    TOKENS,
    canonical_json,
    json_type,
    json_type_at,
    read,
)
from jobs.ingestion.rules import Reason
from jobs.streams import EventType

WITH_REQUEST = (EventType.REQUEST, EventType.USAGE)
WITH_COMPLETION = (EventType.COMPLETION, EventType.USAGE)
WITH_DATA = (EventType.REQUEST, EventType.COMPLETION, EventType.USAGE)


def classify(records: DataFrame, config: IngestionConfig) -> DataFrame:
    """Judge each record by itself: malformed, then invalid, then too old or future.

    In: the columns of Spark's Kafka source (`key, value, topic, partition, offset, timestamp`). Out: the journal's
    columns from `topic` on, without those the driver adds; `reason` is a `Reason` or null. The columns of a rejected
    row are filled as far as they could be read. `identity` (16 bytes) is of source and id; `content_digest` is of type,
    subject, time and data, whatever the order of keys, the white space and senttime, and null for a rejected row.
    """
    events = typed(read(records), config.clocks)
    judged = events.withColumn("reason", _reason(config))
    return judged.select(
        "topic",
        "partition",
        "offset",
        F.col("timestamp").alias("received_at"),
        "reason",
        _identity().alias("identity"),
        F.when(F.col("reason").isNull(), _content_digest()).alias("content_digest"),
        "source",
        "id",
        "type",
        "account",
        storable(F.col("occurred")).alias("occurred_at"),
        storable(F.col("sent")).alias("sent_at"),
        storable(F.col("event_time")).alias("event_time"),
        F.expr("(offset_us - pmod(offset_us, 1000)) div 1000").alias("clock_offset_ms"),
        "source_epoch",
        "sequence",
        _of(WITH_DATA, "request_id"),
        *[_of(WITH_REQUEST, name) for name in REQUEST_TEXTS],
        _of(WITH_COMPLETION, "status"),
        *[_of(WITH_COMPLETION, name) for name in TOKENS],
        *[_of(WITH_COMPLETION, name) for name in ("cached", "usage_source", "latency_ms")],
        "key",
        "value",
    )


def _reason(config: IngestionConfig) -> Column:
    received_us, event_us = F.unix_micros("timestamp"), F.unix_micros("event_time")
    past_us, future_us = config.accept_past_seconds * 1_000_000, config.accept_future_seconds * 1_000_000
    reasons = [
        *_envelope_reasons(),
        *_data_reasons(),
        (event_us < received_us - past_us, Reason.TOO_OLD),
        (event_us > received_us + future_us, Reason.FUTURE),
    ]
    first = F.when(F.col("unreadable").isNotNull(), F.col("unreadable"))
    for holds, reason in reasons:
        first = first.when(holds, reason.value)
    return first


def _envelope_reasons() -> list[tuple[Column, Reason]]:
    # One search in all four decides nearly always that none holds a control character.
    together = F.concat_ws("", "id", "source", "type", "account")
    suspicious = together.rlike(rules.ATTRIBUTE_CONTROLS)

    def is_bad(name: str) -> Column:
        return F.col(name).isNull() | (suspicious & F.col(name).rlike(rules.ATTRIBUTE_CONTROLS))

    is_absent = F.col("attributes.subject").isNull() & json_type_at("subject").isNull()
    is_heartbeat = F.col("type") == EventType.HEARTBEAT
    return [
        (~F.coalesce("is_cloudevent", F.lit(False)), Reason.INVALID_SPECVERSION),
        (is_bad("id"), Reason.INVALID_ID),
        (is_bad("source"), Reason.INVALID_SOURCE),
        (is_bad("type"), Reason.INVALID_TYPE),
        (F.col("account").isNull() & is_absent & ~is_heartbeat, Reason.MISSING_SUBJECT),
        (is_bad("account") & ~is_absent, Reason.INVALID_SUBJECT),
        (F.col("occurred").isNull(), Reason.INVALID_TIME),
        (_is_misread("attributes.senttime", "sent"), Reason.INVALID_SENTTIME),
        (_is_misread("attributes.sequence", "sequence"), Reason.INVALID_SEQUENCE),
        (_is_misread("attributes.sourceepoch", "source_epoch"), Reason.INVALID_SEQUENCE),
    ]


def _data_reasons() -> list[tuple[Column, Reason]]:
    request, completion = F.col("type").isin(*WITH_REQUEST), F.col("type").isin(*WITH_COMPLETION)
    is_no_object = F.col("keys").isNull() | json_type(F.col("attributes.data_base64")).isNotNull()
    names_no_source = F.col("fields.usage_source").isNotNull() & ~_is_one_of("usage_source", rules.UsageSource)
    return [
        ((request | completion) & is_no_object, Reason.INVALID_DATA),
        ((request | completion) & F.col("request_id").isNull(), Reason.INVALID_REQUEST_ID),
        (request & F.col("model").isNull(), Reason.INVALID_MODEL),
        (request & _any(_is_no_name(name) for name in REQUEST_TEXTS), Reason.INVALID_DATA),
        (completion & ~_is_one_of("status", rules.Status), Reason.INVALID_STATUS),
        (completion & (_is_no_name("usage_source") | names_no_source), Reason.INVALID_USAGE_SOURCE),
        (completion & _any(_is_no_number(name, rules.MAX_TOKENS) for name in TOKENS), Reason.INVALID_TOKENS),
        (completion & _is_misread("fields.cached", "cached"), Reason.INVALID_CACHED),
        (completion & _is_no_number("latency_ms", rules.MAX_LATENCY_MS), Reason.INVALID_LATENCY),
    ]


def _is_misread(path: str, name: str) -> Column:
    return F.col(name).isNull() & json_type(F.col(path)).isNotNull()


def _is_no_number(name: str, highest: int) -> Column:
    return _is_misread(f"fields.{name}", name) | F.coalesce(~F.col(name).between(0, highest), F.lit(False))


def _is_no_name(name: str) -> Column:
    # Too long, or something stands there that is neither a text nor null; an empty text says as little as null.
    stands = F.array_contains("keys", F.lit(name)) & json_type_at(f"data.{name}").isNotNull()
    text = F.col(f"fields.{name}")
    return F.when(text.isNull(), ~F.col("is_plain") & stands).otherwise(F.octet_length(text) > rules.MAX_TEXT_BYTES)


def _is_one_of(name: str, values: type[StrEnum]) -> Column:
    return F.coalesce(F.col(name).isin(*[value.value for value in values]), F.lit(False))


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(or_, conditions)


def _of(types: Sequence[EventType], name: str) -> Column:
    # A field is typed where the contract has it; in any other event it is an unknown field.
    return F.when(F.col("type").isin(*types), F.col(name)).alias(name)


def _identity() -> Column:
    # Cut from SHA-256: nobody can make an event with another's identity and hide that one as a duplicate.
    # The length of the source keeps ("a", "bc") apart from ("ab", "c").
    named = F.concat(F.octet_length("source").cast("string"), F.lit(":"), F.col("source"), F.col("id"))
    return F.unhex(F.substring(F.sha2(named, 256), 1, 32))


def _content_digest() -> Column:
    # Canonical JSON costs more than the parse, so data whose every field has a column is hashed from its columns; which
    # way is taken follows from the content alone. The hash skips nulls, so they become values that no field can have.
    envelope = [F.col("type"), F.coalesce("account", F.lit("")), F.col("time_text")]
    texts = [F.coalesce(name, F.lit("")) for name in TEXTS]
    numbers = [F.coalesce(F.col(name).cast("double"), F.lit(-1.0)) for name in SCALARS]
    canonical = [F.coalesce(canonical_json(name), F.lit("")) for name in ("data", "data_base64")]
    has_no_numbers = reduce(and_, (F.col(f"fields.{name}").isNull() for name in SCALARS))
    is_columns = F.col("is_plain") & (
        F.col("type").isin(*WITH_COMPLETION) | ((F.col("type") == EventType.REQUEST) & has_no_numbers)
    )
    return F.when(is_columns, F.xxhash64(*envelope, "keys", *texts, *numbers)).otherwise(
        F.xxhash64(*envelope, *canonical)
    )
