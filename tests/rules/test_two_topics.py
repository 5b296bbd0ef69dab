"""Records of two topics at the same partition and offset: the driver treats each as if the other were not there."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.ingestion import batches
from jobs.ingestion.documents import records_of
from jobs.ingestion.elements import rejected_whole, split, with_elements, with_events, with_room
from jobs.ingestion.quarantine import quarantine
from metering.vocabulary import Isolation, Reason
from tests.rules.test_batches import VALIDATORS, batch, trace, usage

TOPICS = ("events", "gateway")
VALIDATOR = VALIDATORS["with an array"]
FIELDS = tuple(field.name for field in VALIDATOR.fields)
LARGEST = 20_000
RECORDS = st.lists(
    st.one_of(
        st.builds(lambda name: json.dumps(usage(name)).encode(), st.sampled_from("abc")),
        st.builds(lambda count: json.dumps(trace("t", count)).encode(), st.integers(1, 3)),
        st.builds(lambda names: batch([usage(name) for name in names]), st.lists(st.sampled_from("abc"), min_size=1)),
        st.builds(lambda count: batch([usage("x"), trace("t", count), usage("y")]), st.integers(1, 3)),
        st.just(b"{"),
        st.just(b"x" * (LARGEST + 1)),
    ),
    max_size=4,
)
ISOLATED = st.dictionaries(st.tuples(st.just(0), st.integers(0, 3)), st.sampled_from(list(Isolation)), max_size=2)
OLD = st.sets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 3), st.integers(0, 2)), max_size=3)
"""Which rows (topic, offset, number of the row) turn out to be too old, which only the driver knows."""


def rows_of(values: list[bytes], topic: str) -> pl.DataFrame:
    rows = pl.DataFrame(VALIDATOR.validate(records_of(values)))
    return rows.with_columns(pl.lit(topic).alias("topic"))


def in_journal(records: pl.DataFrame, isolated: dict[str, Any], old: set[tuple[str, int, int]]) -> pl.DataFrame:
    """The way of a batch's rows through the driver, as far as it depends on which rows are one record."""
    first, elements = split(records, FIELDS)
    events = with_events(quarantine(first, isolated, LARGEST), elements)
    number = pl.int_range(pl.len()).over("topic", "partition", "offset").alias("number")
    kinds = {"topic": pl.String, "offset": pl.Int64, "number": pl.Int64, "old": pl.Boolean}
    late = pl.DataFrame([(*row, True) for row in old], kinds, orient="row")
    events = events.with_columns(number).join(late, on=["topic", "offset", "number"], how="left", maintain_order="left")
    reason = pl.coalesce("reason", pl.when("old").then(pl.lit(Reason.TOO_OLD.value)))
    decided = events.with_columns(reason.alias("reason")).drop("number", "old")
    whole = rejected_whole(batches.rejected_whole(decided), FIELDS).sort("topic", "offset", "element")
    return with_elements(with_room(whole, 1), elements)


@settings(max_examples=40)
@given(RECORDS, RECORDS, ISOLATED, ISOLATED, OLD)
def test_records_at_one_place_of_two_topics_are_what_each_is_alone(
    ones: list[bytes],
    others: list[bytes],
    isolated_ones: dict[tuple[int, int], Isolation],
    isolated_others: dict[tuple[int, int], Isolation],
    old: set[tuple[str, int, int]],
) -> None:
    isolated = dict(zip(TOPICS, (isolated_ones, isolated_others), strict=True))
    parts = [rows_of(values, topic) for values, topic in zip((ones, others), TOPICS, strict=True)]

    together = in_journal(pl.concat(parts), isolated, old)

    alone = [in_journal(part, isolated, old) for part in parts]
    assert together.drop("lsn").rows() == [row for part in alone for row in part.drop("lsn").rows()]
    assert together["lsn"].to_list() == list(range(1, len(together) + 1))
