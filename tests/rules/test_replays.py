"""A mark counts where the journal holds the dead letter that it names: against the rule, row by row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobs.ingestion.replays import INSTANT, counted, places, rejected, repeating, replayed_rows, text_of
from jobs.runtime.kafka.marks import REPLAYS as HEADER
from jobs.runtime.kafka.marks import mark_in
from jobs.runtime.kafka.records import PLACE
from jobs.runtime.kafka.replay_mark import Rejected
from metering.vocabulary import Disposition

START = datetime(2026, 11, 1, tzinfo=UTC)
ROWS: dict[str, pl.DataType | type[pl.DataType]] = {
    **PLACE,
    "lsn": pl.Int64,
    "received_at": INSTANT,
    "reason": pl.String,
    "replay_mark": pl.String,
    "first_received_at": INSTANT,
}


def row(lsn: int, topic: str, partition: int, reason: str | None, mark: str | None) -> dict[str, Any]:
    """Its offset is its lsn."""
    at = START + timedelta(seconds=lsn)
    place = {"topic": topic, "partition": partition, "offset": lsn}
    # Every third is of the past.
    first = None if lsn % 3 else at - timedelta(days=900)
    return {**place, "lsn": lsn, "received_at": at, "reason": reason, "replay_mark": mark, "first_received_at": first}


rows = st.lists(
    st.tuples(
        st.sampled_from(["events", "events", "events", "catalog.prices"]),
        st.integers(0, 1),
        st.sampled_from([None, None, "malformed", "too_old", "unstamped"]),
        # Which of the rows is named, and whether in another partition.
        st.none() | st.tuples(st.integers(0, 8), st.sampled_from([False, False, False, True])),
    ),
    max_size=9,
)


@example([("events", 0, None, None), ("events", 0, "malformed", (0, False))], 0)
@given(rows, st.integers(0, 9))
def test_oracle_a_mark_counts_for_an_earlier_unmarked_dead_letter(
    drawn: list[tuple[str, int, str | None, tuple[int, bool] | None]], cut: int
) -> None:
    def mark(named: int, *, is_elsewhere: bool) -> str:
        topic, partition, *_ = drawn[named % len(drawn)]
        return Rejected(topic, partition + 2 * is_elsewhere, 1 + named % len(drawn)).mark

    journal = [
        row(lsn, topic, partition, reason, None if named is None else mark(named[0], is_elsewhere=named[1]))
        for lsn, (topic, partition, reason, named) in enumerate(drawn, start=1)
    ]
    expected = []
    for one in journal:
        for first in journal[: one["lsn"] - 1]:
            is_named = one["replay_mark"] == Rejected(first["topic"], first["partition"], first["offset"]).mark
            is_first = first["reason"] is not None and first["replay_mark"] is None and first["topic"] == "events"
            if is_named and is_first:
                received_at = None if first["reason"] == "unstamped" else first["received_at"]
                expected.append((one["lsn"], first["lsn"], first["first_received_at"] or received_at))
    # Wherever the journal ended when the batch began.
    held, batch = (pl.DataFrame(part, schema=ROWS) for part in (journal[:cut], journal[cut:]))
    marked = batch.filter(pl.col("replay_mark").is_not_null())
    known = pl.concat([rejected(held).join(places(marked), on=list(PLACE), how="semi"), rejected(batch)])
    assert sorted(counted(marked, known).rows()) == [one for one in expected if one[0] > cut]


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        (b"events/0/17", "events/0/17"),
        (b"my.events-2/12/999999999999999999", "my.events-2/12/999999999999999999"),
        *[
            (mark, None)
            for mark in (
                *(None, b"", b"events", b"events/0", b"events/0/", b"events/-1/2", b"events/0/1/2", b" events/0/1"),
                *(b"events/0/1\n", b"ev ents/0/1", b"\xff/0/1", "ä/0/1".encode(), b"e" * 250 + b"/0/1"),
                *(b"events/1000000000/1", b"events/0/1000000000000000000", "events/0/\u0661".encode()),
            )
        ],
    ],
)
def test_a_malformed_mark_is_ignored(mark: bytes | None, text: str | None) -> None:
    assert text_of(pl.Series("replay_mark", [None, mark, b"events/0/1"], pl.Binary)).to_list() == [
        *(None, text, "events/0/1"),
    ]
    assert text_of(pl.Series("replay_mark", [mark], pl.Binary)).dtype == pl.String


def test_a_mark_names_the_place_that_it_was_made_of() -> None:
    place = Rejected("events", 2, 17)
    assert Rejected.named(place.mark) == place
    assert mark_in([("trace", b"1"), (HEADER, place.mark.encode()), (HEADER, b"another")], HEADER) == b"events/2/17"
    assert mark_in([], HEADER) is None


def test_an_event_of_an_unknown_type_repeats_its_dead_letter_and_no_identity() -> None:
    columns = {"lsn": [7, 8, 9], "type": ["a", "a", "b"], "family": [None, None, "request"]}
    valid = pl.DataFrame({**columns, "identity": [b"i" * 16] * 3, "replays_lsn": [3, None, None]})
    asking = repeating(valid)
    assert asking["lsn"].to_list() == [7, 9]
    assert asking["identity"].n_unique() == 2
    assert asking["identity"].bin.size().to_list() == [16, 16]


def test_only_an_accepted_record_counts_as_redriven() -> None:
    dispositions = [each.value for each in Disposition]
    rows = pl.DataFrame({"lsn": [11, 12, 13, 14], "disposition": dispositions, "replays_lsn": [1, 2, 3, 4]})
    assert replayed_rows(rows).rows() == [(1, 11)]
    assert replayed_rows(rows.with_columns(replays_lsn=pl.lit(None, pl.Int64))).is_empty()
