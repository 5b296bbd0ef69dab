"""The index against a fold in plain Python that looks at one record after the other and forgets nothing.

Records come through partitions that are read unevenly and are cut into commits anywhere; in between the index is made
anew from the journal; it has memory for everything, or for next to nothing.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.identity_index import IdentityIndex
from jobs.ingestion.identity_segment import ALWAYS, ANY_DAY, Span
from jobs.ingestion.repeats import ENTRY, INSTANT, REPLAYED, Horizons, candidates, entries
from monitoring import metrics

EXACT, WHOLE, EARLY = timedelta(hours=1), timedelta(days=35), timedelta(minutes=5)
HORIZONS = Horizons(EXACT, WHOLE, EARLY)
START = datetime(2026, 1, 31, 23, 30, tzinfo=UTC)
SECOND, MICROSECOND, DAY = timedelta(seconds=1), timedelta(microseconds=1), timedelta(days=1)
ROWS: dict[str, pl.DataType | type[pl.DataType]] = {
    "identity": pl.Binary,
    "content_digest": pl.Int64,
    "lsn": pl.Int64,
    "received_at": INSTANT,
    "occurred_at": INSTANT,
    "source": pl.String,
    "first_received_at": INSTANT,
    "replays_lsn": pl.Int64,
}
PLENTY, HARDLY_ANY = 1 << 20, 400

Dispositions = dict[int, tuple[int, bool]]


def identity(number: int) -> bytes:
    return (number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)).to_bytes(16, "big")


def event(number: int, received_at: datetime, lsn: int = 0, **fields: Any) -> dict[str, Any]:
    """An event with this identity that occurred a second before it was received; odd ones are of devices."""
    return {
        "identity": identity(number),
        "content_digest": 0,
        "lsn": lsn,
        "received_at": received_at,
        "occurred_at": received_at - SECOND,
        "source": "device/1" if number % 2 else "gateway",
        **fields,
    }


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=ROWS)


@dataclass
class Journal:
    """The accepted rows of a journal, and statistics of them that may be missing."""

    has_statistics: bool = True
    accepted: list[pl.DataFrame] = field(default_factory=list)
    next_lsn: int = 1
    frontier: datetime | None = None
    reads: int = 0
    replays: list[dict[str, Any]] = field(default_factory=list)

    def spans(self) -> list[Span]:
        return [
            Span(
                part["lsn"][0],
                part["lsn"][-1],
                part["received_at"].to_physical().max() if self.has_statistics else ALWAYS,  # type: ignore[arg-type]
                (part["day"].min(), part["day"].max()) if self.has_statistics else ANY_DAY,  # type: ignore[arg-type]
            )
            for part in self.accepted
            if len(part)
        ]

    def read(self, first_lsn: int, end_lsn: int) -> pl.DataFrame:
        self.reads += 1
        rows = pl.concat([pl.DataFrame(schema=ENTRY), *self.accepted])
        return rows.filter(pl.col("lsn").is_between(first_lsn, end_lsn, closed="left"))

    def index(self, memory_bytes: int = PLENTY, horizons: Horizons = HORIZONS) -> IdentityIndex:
        """A new index, as at a start."""
        index = IdentityIndex(self, horizons, memory_bytes, segment_lsns=4)
        index.restore(self.next_lsn, self.frontier)
        return index

    def commit(self, index: IdentityIndex, rows: list[dict[str, Any]], frontier: datetime | None) -> Dispositions:
        """Validate a batch and commit it; what it repeats: lsn → (lsn of the first, same content)."""
        for row in rows:
            row["lsn"] = self.next_lsn
            self.next_lsn += 1
        before = pl.DataFrame(self.replays, schema=REPLAYED)
        repeats = index.find_repeats(candidates(frame(rows), HORIZONS, ("device/*",)), before)
        accepted = entries(frame(rows)).join(repeats, on="lsn", how="anti")
        self.accepted.append(accepted)
        self.replays += [
            {"replays_lsn": row["replays_lsn"], "first_lsn": row["lsn"]}
            for row in rows
            if row.get("replays_lsn") is not None and row["lsn"] not in set(repeats["lsn"])
        ]
        self.frontier = frontier
        index.add(accepted)
        index.forget(frontier)
        return {lsn: (first, same) for lsn, first, same in repeats.iter_rows()}


def may_be_older(row: dict[str, Any]) -> bool:
    is_old = row["occurred_at"] <= row["received_at"] - EXACT + EARLY
    return row["source"] == "device/1" or bool(is_old) or is_of_the_past(row)


def is_of_the_past(row: dict[str, Any]) -> bool:
    return row.get("replays_lsn") is not None or row.get("first_received_at") is not None


def is_repeat(row: dict[str, Any], first: dict[str, Any]) -> bool:
    if first["identity"] != row["identity"]:
        return False
    received_at = row.get("first_received_at") or row["received_at"]
    if first["received_at"] >= received_at - EXACT:
        return True
    if not may_be_older(row) or first["occurred_at"].date() != row["occurred_at"].date():
        return False
    is_after_it_occurred = row["source"] == "device/1" or first["received_at"] >= row["occurred_at"] - EARLY
    return bool(is_after_it_occurred and first["received_at"] >= received_at - WHOLE)


def replays_the_same(row: dict[str, Any], first: dict[str, Any]) -> bool:
    return row.get("replays_lsn") is not None and row["replays_lsn"] == first.get("replays_lsn")


def oracle(rows: list[dict[str, Any]]) -> Dispositions:
    accepted: list[dict[str, Any]] = []
    repeats: Dispositions = {}
    for row in rows:
        back = next((known for known in accepted if replays_the_same(row, known)), None)
        first = next((known for known in accepted if is_repeat(row, known)), None)
        if back is not None:
            repeats[row["lsn"]] = (back["lsn"], True)
        elif first is None:
            accepted.append(row)
        else:
            repeats[row["lsn"]] = (first["lsn"], first["content_digest"] == row["content_digest"])
    return repeats


WAITS = [timedelta(0), SECOND, timedelta(minutes=20), timedelta(minutes=61), timedelta(days=3)]
EDGES = [EXACT - EARLY, EXACT, EXACT + MICROSECOND, WHOLE - timedelta(days=3), WHOLE, WHOLE + MICROSECOND]
AGES = [SECOND, -EARLY, timedelta(minutes=54), timedelta(minutes=70), timedelta(days=3), timedelta(days=34)]


@st.composite
def universes(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Per partition its records in order: new events and repeats, their time kept or changed, their content too."""
    partitions = []
    for partition in range(draw(st.integers(1, 3))):
        received_at, rows, occurred = START, [], dict[int, datetime]()
        for _ in range(draw(st.integers(0, 14))):
            received_at += draw(st.sampled_from(WAITS + EDGES))
            number = draw(st.integers(0, 2)) + 10 * partition if draw(st.booleans()) else draw(st.integers(0, 1))
            age = draw(st.sampled_from(AGES))
            is_sent_again = number in occurred and draw(st.integers(0, 3)) > 0
            occurred_at = occurred[number] if is_sent_again else received_at - age
            occurred[number] = occurred_at
            content = draw(st.integers(0, 4)) // 4
            fields: dict[str, Any] = {"occurred_at": occurred_at, "content_digest": content}
            if draw(st.integers(0, 3)) == 0:
                # Of the past, or of one of three dead letters, whichever partition it is sent to.
                fields |= {"replays_lsn": draw(st.sampled_from([None, -1, -2, -3]))}
                fields |= {"first_received_at": received_at - draw(st.sampled_from(WAITS + EDGES))}
            rows.append(event(number, received_at, **fields))
        partitions.append(rows)
    return partitions


steps_of_reading = st.lists(st.tuples(st.tuples(*[st.integers(0, 5)] * 3), st.booleans()), max_size=8)


@given(steps_of_reading, universes(), st.booleans(), st.sampled_from([PLENTY, HARDLY_ANY, 2_000]))
def test_oracle_any_cut_any_restart_any_memory_and_any_stalled_partition_give_the_same_repeats(
    steps: list[tuple[tuple[int, ...], bool]],
    partitions: list[list[dict[str, Any]]],
    has_statistics: bool,
    memory_bytes: int,
) -> None:
    journal = Journal(has_statistics)
    index, committed = journal.index(memory_bytes), list[dict[str, Any]]()
    found: Dispositions = {}
    latest = {number: rows[0]["received_at"] for number, rows in enumerate(partitions) if rows}
    for take, is_restarted in [*steps, ((99, 99, 99), False)]:
        batch: list[dict[str, Any]] = []
        for number, rows in enumerate(partitions):
            batch += rows[: take[number]]
            if rows[: take[number]]:
                latest[number] = batch[-1]["received_at"]
            del rows[: take[number]]
        if not batch:
            continue
        batch.sort(key=lambda row: row["received_at"])
        found |= journal.commit(index, batch, min(latest.values()))
        committed += batch
        if is_restarted:
            index = journal.index(memory_bytes)
    assert found == oracle(committed)


@given(
    st.integers(0, 1),
    st.timedeltas(-EARLY, WHOLE),
    st.timedeltas(timedelta(0), WHOLE + timedelta(days=1)),
    st.booleans(),
)
def test_a_repeat_is_found_within_the_dedupe_horizon_and_accepted_after_it(
    number: int, age: timedelta, wait: timedelta, is_changed: bool
) -> None:
    journal = Journal()
    index = journal.index()
    sent = event(number, START, occurred_at=START - age)
    again = {**sent, "received_at": START + wait, "content_digest": int(is_changed)}
    journal.commit(index, [sent], START)
    found = journal.commit(index, [again], START + wait)
    assert found == ({2: (1, not is_changed)} if wait <= WHOLE else {})


@pytest.mark.parametrize("wait", [EXACT + SECOND, timedelta(days=3), WHOLE])
def test_identities_after_the_exact_hour_are_found_until_the_horizon(wait: timedelta) -> None:
    journal = Journal()
    index = journal.index()
    sent = event(0, START, occurred_at=START)
    journal.commit(index, [sent, *(event(number, START, occurred_at=START) for number in range(1, 9))], START)
    # A frontier far beyond lets go of what is no longer near, before it is asked for.
    journal.commit(index, [event(9, START + wait, occurred_at=START + wait)], START + wait)
    assert journal.commit(index, [{**sent, "received_at": START + wait}], START + wait) == {11: (1, True)}


def test_a_redriven_dead_letter_is_compared_as_at_its_first_receipt() -> None:
    journal = Journal()
    index = journal.index()
    sent = event(2, START)
    journal.commit(index, [sent, *(event(2 * number, START) for number in range(10, 18))], START)
    later = START + WHOLE + timedelta(days=40)
    journal.commit(index, [event(100, later)], later)
    again = {**sent, "received_at": later, "first_received_at": START + timedelta(days=10)}
    for one in (index, journal.index()):
        assert journal.commit(one, [{**again, "replays_lsn": 7}], later) == {journal.next_lsn - 1: (1, True)}
    # Any other event of that age is too old to be looked for.
    assert journal.commit(index, [{**again, "first_received_at": None}], later) == {}


def test_history_that_is_sent_again_months_later_is_a_repeat() -> None:
    journal = Journal()
    index = journal.index()
    past = event(2, START, occurred_at=START - 700 * DAY, first_received_at=START - 700 * DAY)
    live = event(4, START)
    journal.commit(index, [past, live, *(event(2 * number, START) for number in range(10, 18))], START)
    for days in (1, 36, 400):
        later = START + days * DAY
        journal.commit(index, [event(100 + days, later)], later)
        for one in (index, journal.index()):
            # With another first reception, too; and what was received live then.
            again = {**past, "received_at": later, "first_received_at": START - 690 * DAY}
            brought = {**live, "received_at": later, "first_received_at": START}
            first = journal.next_lsn
            assert journal.commit(one, [again, brought], later) == {first: (1, True), first + 1: (2, True)}


def test_history_reads_a_part_of_the_journal_once_however_many_batches_it_comes_in() -> None:
    journal, parts, of_part = Journal(), 12, 64
    # Room for the filters of all parts, and for the rows of a few.
    index = IdentityIndex(journal, HORIZONS, 16_000, segment_lsns=of_part)
    for part in range(parts):
        journal.commit(index, [event(2 * (of_part * part + number), START) for number in range(of_part)], START)
    for number in range(3):
        later = START + 100 * DAY + number * EXACT
        journal.commit(index, [event(10_000 + 2 * number, later)], later)
    reads = [journal.reads]
    for batch in range(4):
        later += timedelta(minutes=10)
        past = [event(20_000 + 2 * (9 * batch + n), later, first_received_at=START - SECOND) for n in range(3)]
        journal.commit(index, [{**one, "occurred_at": START - DAY} for one in past], later)
        reads.append(journal.reads)
    assert reads[1] - reads[0] >= parts - 3
    assert reads[4] == reads[1]
    # An hour after the last of it, nothing is kept for it that others have no room for.
    for hours in (1, 2):
        journal.commit(index, [event(30_000 + hours, later + hours * EXACT)], later + hours * EXACT)
    kept = [number for number, segment in index._segments.items() if segment.filters and not segment.is_page]
    assert not [number for number in kept if number < parts]


def test_a_dead_letter_is_accepted_once_in_any_corrected_form() -> None:
    journal = Journal()
    index = journal.index()
    journal.commit(index, [event(2, START)], START)

    def again(number: int) -> dict[str, Any]:
        return event(number, START + EXACT, replays_lsn=7, first_received_at=START, occurred_at=START)

    # What repeats another's event takes nothing; of the others the first is accepted.
    found = journal.commit(index, [again(2), again(4), again(6), again(6)], START)
    assert found == {2: (1, True), 4: (3, True), 5: (3, True)}
    assert journal.commit(journal.index(), [again(8), again(2)], START) == {6: (3, True), 7: (3, True)}


def test_a_clock_that_steps_back_finds_the_same_before_and_after_a_restart() -> None:
    journal = Journal()
    index = journal.index()
    journal.commit(index, [event(2, START + timedelta(hours=1))], START)
    journal.commit(index, [event(number, START + timedelta(seconds=4_040)) for number in range(4, 24, 2)], START)
    forward = START + timedelta(days=1)
    journal.commit(index, [event(30, forward)], forward)
    again = candidates(frame([event(2, START + timedelta(seconds=7_190), lsn=100)]), HORIZONS, ())
    assert index.find_repeats(again).rows() == [(100, 1, True)]
    assert journal.index().find_repeats(again).rows() == [(100, 1, True)]


def test_events_of_trusted_sources_that_are_not_old_read_nothing_of_the_past() -> None:
    journal = Journal()
    index = journal.index()
    for hour in range(50):
        at = START + timedelta(hours=hour)
        journal.commit(index, [event(2 * (10 * hour + n), at) for n in range(10)], at)
    reads = journal.reads
    journal.commit(index, [event(2 * n, at + SECOND) for n in range(1_000, 1_100)], at)
    assert journal.reads == reads
    an_hour = 130  # and the hour at its edge, and the segment that is being written
    assert len(index) < an_hour
    assert index.status()["identity_memory_bytes"] < (44 + 128) * an_hour
    assert index.counts() == {(metrics.IDENTITY_READS,): 0, (metrics.IDENTITY_FILTERS_DROPPED,): 0}


@pytest.mark.parametrize(("memory_bytes", "most_reads"), [(1 << 15, 75), (1 << 12, 3 * 75)])
def test_a_flood_of_old_events_reads_a_segment_once_or_without_memory_once_a_batch(
    memory_bytes: int, most_reads: int
) -> None:
    journal = Journal()
    index = journal.index(memory_bytes)
    for day in range(30):
        at = START + timedelta(days=day)
        journal.commit(index, [event(2 * (10 * day + n), at) for n in range(10)], at)
    reads = journal.reads
    for _ in range(3):
        old = [event(10**6 + 2 * n, at, occurred_at=at - timedelta(hours=n)) for n in range(720)]
        index.find_repeats(candidates(frame(old), HORIZONS, ()))
        assert index.status()["identity_memory_bytes"] <= memory_bytes
    assert journal.reads - reads <= most_reads


@pytest.mark.parametrize("frontier", [START, None], ids=["stands still", "never was"])
@pytest.mark.parametrize("memory_bytes", [PLENTY, HARDLY_ANY])
def test_a_stalled_frontier_does_not_make_memory_grow(memory_bytes: int, frontier: datetime | None) -> None:
    journal = Journal()
    index = journal.index(memory_bytes)
    for minute in range(30):
        at = START + timedelta(minutes=minute)
        journal.commit(index, [event(2 * (10 * minute + n), at) for n in range(10)], frontier)
        open_segment = 4
        assert 44 * (len(index) - open_segment) <= memory_bytes // 2
    again = candidates(frame([event(0, START + EXACT, lsn=10**6)]), HORIZONS, ())
    assert index.find_repeats(again).rows() == [(10**6, 1, True)]


def test_identities_that_share_half_of_their_hash_are_different() -> None:
    journal = Journal()
    index = journal.index()
    first = event(2, START)
    journal.commit(index, [first], START)
    halves = [first["identity"][:8], first["identity"][8:]]
    others = [bytes(8) + halves[1], halves[0] + bytes(8), halves[1] + halves[0]]
    assert journal.commit(index, [{**first, "identity": other} for other in others], START) == {}


def test_forgetting_drops_only_identities_that_cannot_be_repeated() -> None:
    journal = Journal()
    index = journal.index()
    journal.commit(index, [event(2 * number, START) for number in range(8)], START)
    after = START + WHOLE + MICROSECOND
    journal.commit(index, [event(40, after)], after)
    reads = journal.reads
    again = candidates(frame([event(3, after, lsn=100, occurred_at=START)]), HORIZONS, ("device/*",))
    assert index.find_repeats(again).is_empty()
    assert (len(index), journal.reads) == (2, reads)  # of the segment that is being written


def test_identities_keep_all_their_128_bits() -> None:
    rows = [event(number, START) for number in (1, 2)]
    halves = entries(frame(rows)).select("high", "low").rows()
    assert [b"".join(half.to_bytes(8, "little") for half in pair) for pair in halves] == [
        row["identity"] for row in rows
    ]


def test_segments_may_be_added_during_a_report() -> None:
    index, interval = Journal().index(), sys.getswitchinterval()

    def add() -> None:
        for number in range(5_000):
            index._segment(number)

    adding = threading.Thread(target=add)
    sys.setswitchinterval(1e-6)
    try:
        adding.start()
        while adding.is_alive():
            assert index.status()["identities"] == 0
    finally:
        sys.setswitchinterval(interval)
        adding.join()
