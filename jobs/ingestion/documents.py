"""Documents that have not been sent yet, validated as ingestion would validate them as records of `events`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa

from jobs.ingestion.quarantine import quarantine
from jobs.ingestion.validator import LOG_APPEND_TIME, VERDICT, EventValidator, one_each
from jobs.runtime.kafka.headers import COLUMN
from jobs.runtime.kafka.marks import MARKS
from jobs.streams import EVENTS_TOPIC, INSTANT
from metering.contracts.model import Contract, pointer

ANY_TOPIC = ""
"""No topic has this name, so no topic of `events` refuses the type of an event in it."""
_ANY_INSTANT = datetime(2000, 1, 1, tzinfo=UTC)
"""When a record was received, on which nothing here depends."""


def validated(
    documents: Sequence[bytes], validator: EventValidator, largest_bytes: int, *, single: bool = False
) -> pl.DataFrame:
    """One row per document, in their order, as `EventValidator.schema`; what depends on when one is received is not
    validated.

    `reason` is null of a valid one. A document above `largest_bytes` with its key is too_large. `single`: an array is
    no batch of events.
    """
    records = records_of(documents, topics=[ANY_TOPIC] * len(documents))
    rows = pl.DataFrame(validator.validate(records, single=single))
    return quarantine(one_each(rows), {}, largest_bytes)


def verdicts(documents: Sequence[bytes], validator: EventValidator, largest_bytes: int) -> pl.DataFrame:
    """VERDICT of `validated` for single events, for less CPU: what only the journal needs is left out."""
    if any(2 * len(document) > largest_bytes for document in documents):
        # With its key, which is part of it, one may be too large.
        return validated(documents, validator, largest_bytes, single=True).select(VERDICT)
    return validator.verdicts(pl.Series(documents, dtype=pl.Binary))


def subject_of(document: bytes) -> bytes | None:
    """The Kafka key of a document: its subject as UTF-8, or None where none can be read.

    All events of an account share a partition, so that a copy is always recognised.
    """
    try:
        # As a float a number may have any length; as an integer Python reads no more than 4,300 digits.
        return subject_in(json.loads(document.decode("utf-8"), parse_int=float))
    except (ValueError, RecursionError):
        return None


def subject_in(parsed: Any) -> bytes | None:
    """The same of a document that Python's reader has parsed already."""
    subject = parsed.get("subject") if isinstance(parsed, dict) else None
    if not isinstance(subject, str) or not subject:
        return None
    try:
        return subject.encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair
        return None


def records_of(
    documents: Sequence[bytes], headers: Sequence[str | None] | None = None, topics: Sequence[str] | None = None
) -> pa.Table:
    """Documents as ingestion would read them from Kafka; `headers`: those of each (`headers.text_of`).

    `topics`: that of each; default: `events`.
    """
    count = len(documents)
    return pa.table(
        {
            "key": pa.array([subject_of(document) for document in documents], pa.binary()),
            "value": pa.array(documents, pa.binary()),
            "topic": pa.array([EVENTS_TOPIC] * count if topics is None else topics, pa.string()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([_ANY_INSTANT] * count, INSTANT),
            "timestampType": pa.array([LOG_APPEND_TIME] * count, pa.int32()),
            COLUMN: pa.array([None] * count if headers is None else headers, pa.string()),
            **{column: pa.nulls(count, pa.binary()) for column in MARKS},
        }
    )


def violation_parts(violation: str, contract: Contract | None) -> dict[str, str | None]:
    """`contract`, `path` and `rule` of a violation, which is `<contract>[ <path>]: <rule>`."""
    if contract is not None:
        # A type and a key may hold any character: a colon and a blank, too.
        for path in _places(contract):
            if violation.startswith(before := f"{contract.type} {path}: "):
                return {"contract": contract.type, "path": path, "rule": violation.removeprefix(before)}
    place, _, rule = violation.partition(": ")
    document, slash, name = place.partition(" /")
    return {"contract": document, "path": f"/{name}" if slash else None, "rule": rule}


def _places(contract: Contract) -> list[str]:
    """Pointers of all that a contract describes, the longest first."""
    found = {"/data", "/data_base64", *([pointer(contract.unnest)] if contract.unnest else ())}
    for field in contract.fields:
        found |= {pointer(field.path[:length]) for length in range(1, len(field.path) + 1)}
    return sorted(found, key=len, reverse=True)
