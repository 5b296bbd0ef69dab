"""Records that are not validated: quarantined, they and no others change."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.quarantine import QUARANTINED, quarantine
from jobs.runtime.kafka.protocol.log_records import MAX_KEY_BYTES
from metering.vocabulary import Isolation

LARGEST = 100_000
TOO_LARGE = {"reason": "too_large", "violation": f"Weir: at most {LARGEST} bytes, key and value"}
SCHEMA: dict[str, Any] = {
    "topic": pl.String,
    "partition": pl.Int32,
    "offset": pl.Int64,
    "stamped_at": pl.Datetime("us", "UTC"),
    "is_broker_stamp": pl.Boolean,
    "reception_mark": pl.Binary,
    "replay_mark": pl.Binary,
    "reason": pl.String,
    "violation": pl.String,
    "id": pl.String,
    "key": pl.Binary,
    "value": pl.Binary,
}


START = datetime(2026, 1, 1, tzinfo=UTC)
records = st.tuples(
    st.sampled_from([None, "malformed"]),
    st.sampled_from([None, 0, 1, 512, MAX_KEY_BYTES, MAX_KEY_BYTES + 1, LARGEST]),
    st.sampled_from([None, 0, 1, LARGEST - 1, LARGEST]),
    st.sampled_from([None, None, *Isolation]),
)


@given(st.lists(records, max_size=8))
def test_only_isolated_or_too_large_records_change(rows: list[tuple[Any, ...]]) -> None:
    frame = pl.DataFrame(
        [
            (
                "events",
                0,
                at,
                datetime(2026, 1, 1, tzinfo=UTC),
                True,
                b"reception",
                b"mark",
                reason,
                reason,
                "id",
                _text(key),
                _text(value),
            )
            for at, (reason, key, value, _) in enumerate(rows)
        ],
        schema=SCHEMA,
        orient="row",
    )
    isolated = {"events": {(0, at): why for at, (*_, why) in enumerate(rows) if why is not None}}

    found = quarantine(frame, isolated, LARGEST)

    assert found.columns == frame.columns
    for before, row, (_, key, value, why) in zip(frame.rows(named=True), found.rows(named=True), rows, strict=True):
        is_large = (key or 0) + (value or 0) > LARGEST or why is Isolation.TOO_LARGE
        if not is_large:
            assert row == {**before, **({} if why is None else {"reason": why.value, "violation": None})}
            continue
        kept = {name: before[name] for name in QUARANTINED - {"key"}}
        short = before["key"] if key is not None and key <= MAX_KEY_BYTES else None
        assert row == {**dict.fromkeys(frame.columns), **kept, "key": short, **TOO_LARGE}


def _text(length: int | None) -> bytes | None:
    return None if length is None else b"x" * length
