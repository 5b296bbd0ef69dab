"""Kafka records, and what the validator and then `validated_by_reception` make of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import polars as pl
import pyarrow as pa

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.event_times import validated_by_reception
from jobs.ingestion.validator import LOG_APPEND_TIME
from jobs.runtime.kafka.records import RECORDS
from tests.corpus import RECEIVED_AT

Record = tuple[bytes | None, datetime]


def records_of(values: Sequence[bytes | Record | None]) -> pa.Table:
    """Payloads as Kafka records, their offsets in order; a payload may come with when it was received."""
    whole = [value if isinstance(value, tuple) else (value, RECEIVED_AT) for value in values]
    place = {"key": b"k", "topic": "events", "partition": 0, "timestampType": LOG_APPEND_TIME}
    rows = [
        {**place, "value": value, "offset": offset, "timestamp": received_at}
        for offset, (value, received_at) in enumerate(whole)
    ]
    return pa.Table.from_pylist(rows, schema=RECORDS)


def validated(
    values: Sequence[bytes | Record | None], config: IngestionConfig | None = None, *, strictly: bool = False
) -> pl.DataFrame:
    """The journal's columns of `records_of`, without the driver's; each was received when its stamp says.

    `strictly`: each is read by itself.
    """
    config = config or IngestionConfig()
    validator = config.validator()
    found = (validator.validate_strictly if strictly else validator.validate)(records_of(values))
    return validated_by_reception(pl.DataFrame(found).with_columns(received_at="stamped_at"), config)


def rows_of(
    values: Sequence[bytes | Record | None], config: IngestionConfig | None = None, *, strictly: bool = False
) -> list[dict[str, Any]]:
    """The rows of `validated`, in the order of the records."""
    rows = validated(values, config, strictly=strictly).to_dicts()
    assert [row["offset"] for row in rows] == list(range(len(values)))
    return rows
