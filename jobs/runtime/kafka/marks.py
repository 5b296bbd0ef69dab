"""Marks: headers about a record's past, each read as its own column.

Of several headers of one name the first is the mark. The reader decides whether it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame

from jobs.runtime.kafka import headers

REPLAYS = "weir-replays"
"""Of a dead letter that is sent again: which record it is that was rejected (`replay_mark`)."""
FIRST_RECEIVED = "weir-first-received"
"""Of a record of the past: when it was received first, as RFC 3339."""
REPLAY_MARK, RECEPTION_MARK = "replay_mark", "reception_mark"
MARKS: Mapping[str, str] = {REPLAY_MARK: REPLAYS, RECEPTION_MARK: FIRST_RECEIVED}
"""The header of each column."""
MAX_BYTES = 300
"""A longer value is no mark."""
WITH_HEADERS = {"includeHeaders": "true"}
"""An option of Spark's Kafka source."""


def marked(records: DataFrame) -> DataFrame:
    """Records of Spark's Kafka source (WITH_HEADERS), all their headers as one text (`headers.COLUMN`), and their marks
    as columns (MARKS); binary, null without one.
    """
    return records.selectExpr("*", headers.AS_TEXT, *[_first(header, column) for column, header in MARKS.items()])


def _first(header: str, column: str) -> str:
    """Without a function of a function, which Spark would not compile; null where a record has no headers."""
    place = f"cast(nullif(array_position(headers.key, '{header}'), 0) AS int)"
    return f"try_element_at(headers.value, {place}) AS {column}"


def mark_in(of_record: Iterable[tuple[str, bytes | None]], header: str) -> bytes | None:
    """The same of one record's headers."""
    return next((value for name, value in of_record if name == header), None)
