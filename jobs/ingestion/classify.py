"""Kafka records → the columns of a journal row and the reason to reject it (null: valid; identity is the driver's).

Nothing here raises, whatever the bytes are: what cannot be read is null, and the reason says so.
"""

from __future__ import annotations

from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.ingestion.columns import storable, typed
from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.document import REQUEST_TEXTS, SCALARS, TEXTS, canonical_json, read
from jobs.ingestion.validity import judged
from metering.meters import REPORTED_COLUMNS
from metering.words import EventType

LOG_APPEND_TIME = 1
"""Kafka's `timestampType` of a record that the broker stamped."""

DIGESTED_NUMBERS = ("input_tokens", "output_tokens", "cached_tokens", "cached", "latency_ms")
"""Which numbers are hashed as columns. Never others: digests are stored, so what they say of an event that comes again
must not depend on which meters are declared. Data with any other member is hashed as canonical JSON."""


def classify(records: DataFrame, config: IngestionConfig) -> DataFrame:
    """Judge each record by itself: malformed, then invalid. (`event_times` says what is too old or future.)

    In: columns of Spark's Kafka source (`key, value, topic, partition, offset, timestamp, timestampType`). Out: the
    journal's columns from `topic` on, without those the driver adds, for which it gets `stamped_at`, `is_broker_stamp`,
    `occurred_us` and `device_sent_us` (microseconds since 1970). `reason` is a `Reason` or null. Columns of a rejected
    row are filled as far as they could be read. `identity` (16 bytes) is of source and id; `content_digest` is of type,
    subject, time and data, whatever the order of keys, the white space and senttime, and null for a rejected row.
    """
    events = typed(read(records), config.clocks)
    return judged(events).select(
        "topic",
        "partition",
        "offset",
        F.col("timestamp").alias("stamped_at"),
        (F.col("timestampType") == LOG_APPEND_TIME).alias("is_broker_stamp"),
        # Of a record that is sent again from the journal; until that is known of one, none has it.
        F.lit(None).cast("timestamp").alias("first_received_at"),
        "reason",
        _identity().alias("identity"),
        F.when(F.col("reason").isNull(), _content_digest()).alias("content_digest"),
        "source",
        "id",
        "type",
        "account",
        storable(F.col("occurred")).alias("occurred_at"),
        storable(F.col("sent")).alias("sent_at"),
        F.unix_micros("occurred").alias("occurred_us"),
        F.unix_micros("device_sent").alias("device_sent_us"),
        "source_epoch",
        "sequence",
        "request_id",
        *REQUEST_TEXTS,
        "status",
        *REPORTED_COLUMNS,
        "cached",
        "usage_source",
        "latency_ms",
        "key",
        "value",
    )


def _identity() -> Column:
    # Cut from SHA-256: nobody can make an event with another's identity and hide that one as a duplicate.
    # The length of the source keeps ("a", "bc") apart from ("ab", "c").
    named = F.concat(F.octet_length("source").cast("string"), F.lit(":"), F.col("source"), F.col("id"))
    return F.unhex(F.substring(F.sha2(named, 256), 1, 32))


def _content_digest() -> Column:
    # Canonical JSON costs more than the parse, so data whose every field has a column is hashed from its columns; which
    # way is taken follows from the content alone. The hash skips nulls, so they become values that no field can have.
    envelope = [F.col("type"), F.coalesce("account", F.lit("")), F.col("time_text")]
    texts = [F.coalesce(f"fields.{name}", F.lit(b"")) for name in TEXTS]
    numbers = [F.coalesce(F.col(name).cast("double"), F.lit(-1.0)) for name in DIGESTED_NUMBERS]
    canonical = [F.coalesce(canonical_json(name), F.lit("")) for name in ("data", "data_base64")]
    has_no_numbers = reduce(and_, (F.col(f"fields.{name}").isNull() for name in SCALARS))
    is_request = (F.col("type") == EventType.REQUEST) & has_no_numbers
    has_no_other = (F.col(f"fields.{name}").isNull() for name in SCALARS if name not in DIGESTED_NUMBERS)
    is_hashed_from_columns = reduce(and_, has_no_other, F.col("is_plain")) & (F.col("has_completion") | is_request)
    return F.when(is_hashed_from_columns, F.xxhash64(*envelope, "keys", *texts, *numbers)).otherwise(
        F.xxhash64(*envelope, *canonical)
    )
