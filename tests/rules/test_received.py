"""When records were received, against a fold of one record after the other; and the same however the log is cut."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.received import INSTANT, Reception, Restamp
from metering.instants import EPOCH

PARTITIONS = (0, 1, 2)
START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "partition": pl.Int32,
    "offset": pl.Int64,
    "stamped_at": INSTANT,
    "is_broker_stamp": pl.Boolean,
}

Record = tuple[int, int, datetime, bool]
"""Partition, offset, the stamp that it bears, and whether a broker has set it."""


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records in the order of their append, by clocks that also step back and by producers that stamp."""
    offsets = dict.fromkeys(PARTITIONS, 0)
    log = []
    for _ in range(draw(st.integers(0, 25))):
        partition = draw(st.sampled_from(PARTITIONS))
        offsets[partition] += draw(st.integers(1, 2))
        stamp = START + timedelta(seconds=draw(st.integers(0, 30)))
        log.append((partition, offsets[partition], stamp, draw(st.booleans())))
    return log


restamped = st.lists(st.builds(Restamp, st.sampled_from(PARTITIONS), st.integers(0, 10), st.integers(5, 30)))


def read(log: Sequence[Record], cuts: set[int], restamps: Sequence[Restamp] = ()) -> tuple[list[Record], Reception]:
    """Rows (partition, offset, received_at, is_broker_stamp) in the order that their batches give them."""
    reception, rows = Reception(PARTITIONS, {}), []
    edges = sorted({0, len(log), *(cut for cut in cuts if cut < len(log))})
    for first, end in pairwise(edges):
        # A batch comes in no order.
        batch = pl.DataFrame(log[first:end][::-1], schema=SCHEMA, orient="row")
        taken = reception.received(batch, restamps)
        reception.take(taken)
        order = taken.sort("received_at", "partition", "offset")
        rows += order.select("partition", "offset", "received_at", "is_broker_stamp").rows()
    return rows, reception


def oracle(log: Sequence[Record], restamps: Sequence[Restamp] = ()) -> dict[tuple[int, int], datetime]:
    latest: dict[int, datetime] = {}
    found = {}
    for partition, offset, stamp, is_broker_stamp in log:
        is_wrong = any(r.partition == partition and r.first_offset <= offset <= r.last_offset for r in restamps)
        if is_broker_stamp and not is_wrong:
            latest[partition] = max(stamp, latest.get(partition, stamp))
        found[partition, offset] = latest.get(partition, EPOCH)
    return found


@given(logs(), st.sets(st.integers(0, 25)), restamped)
def test_oracle_any_batches_equal_a_fold_record_by_record(
    log: list[Record], cuts: set[int], restamps: list[Restamp]
) -> None:
    rows, _ = read(log, cuts, restamps)
    assert {row[:2]: row[2] for row in rows} == oracle(log, restamps)


@given(logs(), st.sets(st.integers(0, 25)))
def test_any_cut_keeps_the_order_of_a_partition_and_the_frontier(log: list[Record], cuts: set[int]) -> None:
    rows, reception = read(log, cuts)
    whole, at_once = read(log, set())
    for partition in PARTITIONS:
        offsets = [offset for p, offset, *_ in rows if p == partition]
        assert offsets == sorted(offsets) == [offset for p, offset, *_ in whole if p == partition]
    assert reception.frontier == at_once.frontier
    assert reception.latest == at_once.latest


@given(logs(), logs())
def test_nothing_is_received_before_a_frontier_that_was_reached(before: list[Record], after: list[Record]) -> None:
    _, reception = read(before, set())
    reached = reception.frontier
    taken = reception.received(pl.DataFrame(after, schema=SCHEMA, orient="row"))
    assert reached is None or all(at >= reached for at in taken["received_at"])


@given(logs(), st.sampled_from(PARTITIONS))
def test_a_producer_timestamp_never_moves_the_frontier(log: list[Record], partition: int) -> None:
    _, reception = read(log, set())
    reached, latest = reception.frontier, dict(reception.latest)
    stamp = datetime(2099, 1, 1, tzinfo=UTC)
    record = reception.received(pl.DataFrame([(partition, 99, stamp, False)], schema=SCHEMA, orient="row"))
    assert reception.take(record).keys() <= latest.keys()
    assert (reception.frontier, reception.latest) == (reached, latest)


def test_an_empty_partition_holds_the_frontier() -> None:
    reception = Reception([0], {0: START}, START)
    reception.add(1)
    later, earlier = START + timedelta(minutes=1), START - timedelta(minutes=1)
    reception.take(reception.received(pl.DataFrame([(0, 5, later, True)], schema=SCHEMA, orient="row")))
    assert reception.frontier == START
    new = reception.received(pl.DataFrame([(1, 0, earlier, True)], schema=SCHEMA, orient="row"))
    assert new["received_at"].to_list() == [START]
    reception.take(new)
    assert reception.latest == {0: later, 1: START}
    reception.take(reception.received(pl.DataFrame([(1, 1, later, True)], schema=SCHEMA, orient="row")))
    assert reception.frontier == later
