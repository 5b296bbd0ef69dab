"""What a payload says → the journal's typed columns: null where nothing usable stood."""

from __future__ import annotations

from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.ingestion import rules
from jobs.ingestion.config import Clocks
from jobs.ingestion.document import COMPLETION_TEXTS, REQUEST_TEXTS, SCALARS, TEXTS, json_type, member, settled
from metering.limits import MAX_NAME_BYTES
from metering.meters import REPORTED_COLUMNS
from metering.words import COMPLETIONS, REQUESTS

STORABLE = ("1970-01-01 00:00:00Z", "3000-01-01 00:00:00Z")
"""From, and before: instants that Arrow, Parquet, Postgres and Python all hold. Others are stored as null."""


def typed(documents: DataFrame, clocks: Clocks) -> DataFrame:
    """`documents` of `document.read` with a column for each attribute and field of the event contract.

    Adds `is_cloudevent`, `id, source, type, account, time_text, occurred, sent, sequence, source_epoch`; `device_sent`
    (`sent`, of a device only); by type `has_request` and `has_completion`, and under their own names the fields that
    such events have; and `is_plain` (nothing else stands in `data`). Instants are as read; `storable` bounds them.
    """
    made = (
        documents.select("*", *_envelope())
        .withColumns({**_families(), "device_sent": _device_sent(clocks)})
        .select("*", _is_plain().alias("is_plain"), *_data())
    )
    return settled(made, *(name for name in made.columns if name not in documents.columns))


def storable(instant: Column) -> Column:
    """`instant` where every reader of the journal can hold it, else null."""
    first, end = (F.lit(bound).cast("timestamp") for bound in STORABLE)
    return F.when((instant >= first) & (instant < end), instant)


def _envelope() -> list[Column]:
    sequence, epoch, sent = (F.col(f"attributes.{name}") for name in ("sequence", "sourceepoch", "senttime"))
    digits = _is_whole(_get(sequence, "binary").cast("string"), rf"[0-9]{{1,{rules.MAX_SEQUENCE_DIGITS}}}")
    return [
        (F.col("attributes.specversion").cast("string") == rules.SPECVERSION).alias("is_cloudevent"),
        *[_name(F.col(f"attributes.{attribute}")).alias(attribute) for attribute in ("id", "source", "type")],
        _name(F.col("attributes.subject")).alias("account"),
        F.col("attributes.time").cast("string").alias("time_text"),
        _instant(F.col("attributes.time").cast("string")).alias("occurred"),
        _instant(_get(sent, "binary").cast("string")).alias("sent"),
        F.when(json_type(sequence) == "BIGINT", _get(sequence, "bigint"))
        .when((json_type(sequence) == "STRING") & digits, _get(sequence, "bigint"))
        .alias("sequence"),
        F.when(json_type(epoch) == "BIGINT", _get(epoch, "bigint").cast("string"))
        .otherwise(_name(_get(epoch, "binary")))
        .alias("source_epoch"),
    ]


def _is_plain() -> Column:
    # As many keys as fields were read: no other field, no text of another type, no null text.
    counted = reduce(add, (F.col(f"fields.{name}").isNotNull().cast("int") for name in (*TEXTS, *SCALARS)))
    return F.coalesce(F.size("keys") == counted, F.lit(False))


def _data() -> list[Column]:
    # A field is typed where the contract has it; in any other event it is an unknown field.
    has_request, has_completion = F.col("has_request"), F.col("has_completion")
    latency = json_type(F.col("fields.latency_ms"))

    def text(family: Column, name: str) -> Column:
        return F.when(family, _name(F.col(f"fields.{name}"))).alias(name)

    def scalar(name: str, is_typed: Column, data_type: str) -> Column:
        return F.when(has_completion & is_typed, _get(F.col(f"fields.{name}"), data_type)).alias(name)

    return [
        text(has_request | has_completion, "request_id"),
        *[text(has_request, name) for name in REQUEST_TEXTS],
        *[text(has_completion, name) for name in COMPLETION_TEXTS],
        *[scalar(name, json_type(F.col(f"fields.{name}")) == "BIGINT", "bigint") for name in REPORTED_COLUMNS],
        scalar("cached", json_type(F.col("fields.cached")) == "BOOLEAN", "boolean"),
        scalar("latency_ms", latency.startswith("DECIMAL") | latency.isin("DOUBLE", "BIGINT"), "double"),
    ]


def _families() -> dict[str, Column]:
    event_type = F.col("type")
    return {
        "has_request": event_type.isin(*REQUESTS),
        "has_completion": event_type.isin(*COMPLETIONS),
    }


def _device_sent(clocks: Clocks) -> Column:
    is_device = F.col("source").rlike(rules.glob_expression(clocks.device)) if clocks.device else F.lit(False)
    return F.when(is_device, F.col("sent"))


def _name(text: Column) -> Column:
    return F.when(F.octet_length(text).between(1, MAX_NAME_BYTES), text.cast("string"))


def _instant(text: Column) -> Column:
    # Spark alone would take a mere date, a zone's name, or no zone at all.
    return F.when(_is_whole(text, rules.RFC3339), F.upper(text).try_cast("timestamp"))


def _is_whole(text: Column, expression: str) -> Column:
    return text.rlike(rf"\A(?:{expression})\z")


def _get(value: Column, data_type: str) -> Column:
    return member(value, "$", data_type)
