"""The reason to reject an event: the Spark form of the order in which `Reason` lists them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.ingestion import rules
from jobs.ingestion.document import REQUEST_TEXTS, is_given, is_given_at, settled, texts_given
from metering.limits import MAX_NAME_BYTES
from metering.meters import REPORTED_COLUMNS
from metering.words import EventType, Reason, Status, UsageSource

Rule = tuple[Column, Reason]
"""A condition that is true of a bad event, never null, and the reason that it gives."""


def judged(events: DataFrame) -> DataFrame:
    """`events` of `columns.typed` with `reason`: the first that holds; null for an event that is valid by itself.

    The parts are columns of their own, because Java by default does not compile a method above 8,000 bytes of
    bytecode: all of them in one expression would be interpreted, for every record.
    """
    attributes = F.concat_ws("", "id", "source", "type", "account")
    reasoned = (
        events.withColumn("has_controls", attributes.rlike(rules.ATTRIBUTE_CONTROLS))
        .withColumn("bad_envelope", _first(_envelope_rules()))
        .withColumn("bad_request", _first(_request_rules()))
        .withColumn("bad_completion", _first(_completion_rules()))
        .withColumn("reason", F.coalesce("unreadable", "bad_envelope", "bad_request", "bad_completion"))
        .select(*events.columns, "reason")
    )
    return settled(reasoned, "reason")


def _envelope_rules() -> Iterable[Rule]:
    def is_bad(name: str) -> Column:
        return F.col(name).isNull() | (F.col("has_controls") & F.col(name).rlike(rules.ATTRIBUTE_CONTROLS))

    has_subject = F.col("attributes.subject").isNotNull() | is_given_at("subject")
    needs_subject = F.col("type") != EventType.HEARTBEAT
    no_sequence = F.coalesce(~F.col("sequence").between(0, rules.MAX_SEQUENCE), F.lit(False))
    return [
        (~F.coalesce("is_cloudevent", F.lit(False)), Reason.INVALID_SPECVERSION),
        (is_bad("id"), Reason.INVALID_ID),
        (is_bad("source"), Reason.INVALID_SOURCE),
        (is_bad("type"), Reason.INVALID_TYPE),
        (is_bad("account") & has_subject, Reason.INVALID_SUBJECT),
        (F.col("account").isNull() & needs_subject, Reason.MISSING_SUBJECT),
        (F.col("occurred").isNull(), Reason.INVALID_TIME),
        (_is_misread("attributes.senttime", "sent"), Reason.INVALID_SENTTIME),
        (_is_misread("attributes.sequence", "sequence") | no_sequence, Reason.INVALID_SEQUENCE),
        (_is_misread("attributes.sourceepoch", "source_epoch"), Reason.INVALID_SEQUENCE),
    ]


def _request_rules() -> Iterable[Rule]:
    has_data = F.col("has_request") | F.col("has_completion")
    is_no_object = F.col("keys").isNull() | is_given(F.col("attributes.data_base64"))
    return [
        (has_data & is_no_object, Reason.INVALID_DATA),
        (has_data & F.col("request_id").isNull(), Reason.INVALID_REQUEST_ID),
        (F.col("has_request") & F.col("model").isNull(), Reason.INVALID_MODEL),
        (F.col("has_request") & _holds_no_names(REQUEST_TEXTS), Reason.INVALID_DATA),
    ]


def _completion_rules() -> Iterable[Rule]:
    completion = F.col("has_completion")
    bad_usage_source = (F.col("fields.usage_source").isNotNull() & ~_is_one_of("usage_source", UsageSource)) | (
        _holds_no_names(["usage_source"])
    )
    bad_tokens = reduce(or_, (_is_no_number(name, rules.MAX_TOKENS) for name in REPORTED_COLUMNS))
    return [
        (completion & ~_is_one_of("status", Status), Reason.INVALID_STATUS),
        (completion & bad_usage_source, Reason.INVALID_USAGE_SOURCE),
        (completion & bad_tokens, Reason.INVALID_TOKENS),
        (completion & _is_misread("fields.cached", "cached"), Reason.INVALID_CACHED),
        (completion & _is_no_number("latency_ms", rules.MAX_LATENCY_MS), Reason.INVALID_LATENCY),
    ]


def _first(rules: Iterable[Rule]) -> Column:
    return F.coalesce(*[F.when(holds, reason.value) for holds, reason in rules])


def _is_misread(path: str, name: str) -> Column:
    return F.col(name).isNull() & is_given(F.col(path))


def _is_no_number(name: str, highest: int) -> Column:
    return _is_misread(f"fields.{name}", name) | F.coalesce(~F.col(name).between(0, highest), F.lit(False))


def _holds_no_names(names: Sequence[str]) -> Column:
    # Too long, or neither a text nor null. Only data with a key that was not read as a field can hold the latter.
    texts = [F.col(f"fields.{name}") for name in names]
    longest = F.greatest(*[F.octet_length(text) for text in texts]) if len(texts) > 1 else F.octet_length(texts[0])
    read = reduce(lambda total, text: total + text.isNotNull().cast("int"), texts, F.lit(0))
    is_long = F.coalesce(longest > MAX_NAME_BYTES, F.lit(False))
    return is_long | (~F.col("is_plain") & (texts_given(names) != read))


def _is_one_of(name: str, values: type[StrEnum]) -> Column:
    return F.coalesce(F.col(name).isin(*[value.value for value in values]), F.lit(False))
