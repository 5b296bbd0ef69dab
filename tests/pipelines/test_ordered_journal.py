"""What `events.ordered` reads of a real journal, in files of any size and with any memory, is what the oracle has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.billing.ordered.contents import VALUE, Content, ContentFile, HeldContents, opened
from jobs.billing.ordered.journal import JournalParts
from jobs.billing.ordered.order import KEY, NEVER_US, Cursor, Generations, Wait
from jobs.billing.ordered.publishing import OrderedPublisher
from jobs.billing.ordered.state import begun
from jobs.runtime.delta.position import Position
from jobs.runtime.delta.rows_by_lsn import rows_of_file
from tests.journal_files import commit, value_of
from tests.ordered_events import SECOND, Ordered, Row, expected, journals

WAIT = Wait(1, 5)
MEMORY = st.sampled_from((1, 1_000))


@settings(max_examples=60, deadline=None)
@given(journals(max_commits=8), st.integers(1, 4), MEMORY, MEMORY, st.data())
def test_any_files_steps_and_memory_give_the_order_of_the_oracle(
    commits: list[list[Row]], step: int, memory: int, ahead: int, data: st.DataObject
) -> None:
    rows = [row for rows in commits for row in rows]
    layout = data.draw(st.sampled_from(("commits", "compacted", "overlapping")))
    with TemporaryDirectory() as folder:
        for of_file in commits if layout != "overlapping" else data.draw(overlapping(rows)):
            table = commit(Path(folder), of_file)
        if layout == "compacted":
            table.optimize.compact()
        # Of 12 bytes and 400 for each: none beside the first, two, and all.
        parts = JournalParts(memory, memory, ahead, data.draw(st.sampled_from((1, 900, 1 << 20))))
        max_bytes = data.draw(st.sampled_from((1, 30, 1 << 20)))
        assert published(parts, table, step, memory, max_bytes) == expected(rows, lambda _: WAIT.seconds)


@st.composite
def overlapping(draw: st.DrawFn, rows: list[Row]) -> list[list[Row]]:
    """The rows in up to three files, each in any of them, as after a merge of small files around a large one."""
    places = draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    files = [[row for row, place in zip(rows, places, strict=True) if place == wanted] for wanted in range(3)]
    return [file for file in files if file]


def published(
    parts: JournalParts, table: DeltaTable, step: int, max_rows: int, max_bytes: int = 1 << 20
) -> list[Ordered]:
    """All that can be published of a journal, in steps of so many events and bytes."""
    sent: list[Ordered] = []
    next_lsn, before_us, waiting_from = 1, NEVER_US, 1
    cursor: Cursor | None = None
    while True:
        parts.look(table, waiting_from)
        whole = parts.whole(next_lsn, before_us, (WAIT,), max_rows)
        if whole is None:
            break
        found = parts.first(whole, waiting_from, cursor, step + 1)
        rows = found.head(step)
        contents = parts.contents(rows, whole, cursor, max_bytes)
        rows = rows.head(len(contents))
        values = values_of(contents)
        assert values == [value_of(lsn) for lsn in rows["lsn"]]
        assert len(values) == min(1, len(found)) or sum(map(len, values)) <= max_bytes
        sent += [Ordered(len(sent) + n, lsn, late) for n, (lsn, late) in enumerate(rows_of(rows), 1)]
        parts.sent(rows["lsn"].to_list())
        if len(rows) < len(found):
            generation, order_us, lsn = rows.select(KEY).row(-1)
            cursor = generation, order_us, lsn
            continue
        waiting_from = parts.waiting_from(whole, waiting_from)
        next_lsn, before_us, cursor = whole.next_lsn, whole.watermark_us, None
    return sent


@pytest.mark.parametrize("max_rows", [1, 1_000])
def test_rows_between_those_of_one_file_come_before_its_last_ones(tmp_path: Path, max_rows: int) -> None:
    """As small files lie that were merged around a large one."""
    times = [(1, 99), (2, 99), (3, 90), (4, 103), (5, 102), (6, 120), (7, 140), (8, 90)]
    rows = [Row(lsn, at * SECOND, (100 + 10 * (lsn // 2)) * SECOND) for lsn, at in times]
    commit(tmp_path, [*rows[:2], *rows[6:]])
    table = commit(tmp_path, rows[2:6])
    assert published(JournalParts(), table, 100, max_rows) == expected(rows, lambda _: WAIT.seconds)


def test_an_event_waits_also_where_a_file_that_begins_before_has_only_later_ones_that_wait(tmp_path: Path) -> None:
    rows = [Row(lsn, (900 if lsn in (3, 7) else 90) * SECOND, 100 * SECOND) for lsn in range(1, 8)]
    rows += [Row(lsn, None, (100 + lsn) * SECOND) for lsn in (8, 9)]
    last = [Row(lsn, None, (1_000 + lsn) * SECOND) for lsn in (10, 11)]
    commit(tmp_path, [rows[0], *rows[6:]])
    commit(tmp_path, rows[1:6])
    table = commit(tmp_path, last)
    # The rows of the first two files are put in order at once, and then those of the last.
    found = published(JournalParts(), table, 100, max_rows=len(rows))
    assert found == expected([*rows, *last], lambda _: WAIT.seconds)
    assert [one.lsn for one in found][-2:] == [3, 7]


def test_while_the_frontier_stands_still_only_new_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = files_read(monkeypatch)
    parts = JournalParts(max_rows_held=1)
    for lsn in range(1, 9):
        parts.look(commit(tmp_path, [Row(lsn, 90 * SECOND, 100 * SECOND)]), 1)
        assert parts.whole(1, NEVER_US, (WAIT,), max_rows=2) is None
    assert len(read) == 8
    parts.look(commit(tmp_path, [Row(9, 90 * SECOND, 200 * SECOND)]), 1)
    assert parts.whole(1, NEVER_US, (WAIT,), max_rows=2) is not None
    assert len(read) == 9


def test_steps_of_the_same_generations_read_the_times_of_their_events_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lsn in range(1, 9):
        commit(tmp_path, [Row(lsn, 90 * SECOND, 100 * SECOND)])
    table = commit(tmp_path, [Row(9, 90 * SECOND, 200 * SECOND)])
    read = files_read(monkeypatch)
    parts = JournalParts(max_rows_held=1)
    cursor: Cursor | None = None
    for lsn in range(1, 8):
        # Another commit does not change what is whole.
        parts.look(table, 1)
        whole = parts.whole(1, NEVER_US, (WAIT,))
        assert whole is not None
        found = parts.first(whole, 1, cursor, 2)
        assert found["lsn"].to_list() == [lsn, lsn + 1]
        generation, order_us, of_row = found.select(KEY).row(0)
        cursor = generation, order_us, of_row
        table = commit(tmp_path, [Row(9 + lsn, 90 * SECOND, 200 * SECOND)])
    assert len(read) <= 2 * 9, "once for F, once for the times"


def test_what_waits_for_long_is_not_read_again_with_each_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = files_read(monkeypatch)
    parts = JournalParts(max_rows_held=1)
    rows: list[Row] = []
    sent: list[int] = []
    next_lsn, before_us, waiting_from, reads = 1, NEVER_US, 1, []
    for lsn in range(1, 21):
        # In time for a wait of 5 s, for which the first one waits until commit 16.
        rows.append(Row(lsn, (110 + lsn % 2) * SECOND, (100 + lsn) * SECOND))
        parts.look(commit(tmp_path, rows[-1:]), waiting_from)
        if (whole := parts.whole(next_lsn, before_us, (WAIT,))) is None:
            continue
        read.clear()
        sent += parts.first(whole, waiting_from, None, 100)["lsn"].to_list()
        waiting_from = parts.waiting_from(whole, waiting_from)
        next_lsn, before_us = whole.next_lsn, whole.watermark_us
        reads.append(len(read))
    assert sent == [one.lsn for one in expected(rows, lambda _: WAIT.seconds)]
    assert len(sent) > 10
    assert max(reads) <= 3, "the new files, and the first that waits"


def test_a_step_has_as_many_events_as_fit_to_the_byte_and_at_least_one(tmp_path: Path) -> None:
    values = {lsn: b"x" * size for lsn, size in ((1, 100), (2, 50), (3, 1), (4, 10_000))}
    parts, found, whole = one_generation(tmp_path, values)
    for max_bytes, count in ((10_151, 4), (10_150, 3), (151, 3), (150, 2), (149, 1), (99, 1), (0, 1)):
        assert len(parts.contents(found, whole, None, max_bytes)) == count


@pytest.mark.parametrize("is_one_file", [True, False])
def test_large_events_are_read_and_held_by_bytes_and_not_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_one_file: bool
) -> None:
    """With room for four of 64 KiB there are never more, also while a file is read that has forty."""
    size, count = 64 << 10, 40
    values = {lsn: bytes([lsn]) * size for lsn in range(1, count + 1)}
    held: list[int] = []
    trim = HeldContents.trim

    def trimmed(of: HeldContents, next_lsns: Sequence[int]) -> Sequence[int]:
        held.append(of.bytes)
        return trim(of, next_lsns)

    monkeypatch.setattr(HeldContents, "trim", trimmed)
    small = JournalParts(max_bytes_held=5 * size, batch_bytes=size, whole_file_bytes=0)
    parts, found, whole = one_generation(tmp_path, values, small, is_one_file=is_one_file)
    sent: list[bytes] = []
    cursor: Cursor | None = None
    while len(found):
        some = values_of(parts.contents(found, whole, cursor, 2 * size))
        assert len(some) == 2
        sent += some
        generation, order_us, lsn = found.select(KEY).row(1)
        cursor = generation, order_us, lsn
        parts.sent(found["lsn"].head(2).to_list())
        found = found.slice(2)
    assert sent == [*values.values()]
    assert max(held) < 7 * size, "what is held, and what is decoded at once"


def one_generation(
    tables: Path, values: Mapping[int, bytes], parts: JournalParts | None = None, *, is_one_file: bool = True
) -> tuple[JournalParts, pl.DataFrame, Generations]:
    """Events of one generation that is whole, in their order."""
    rows = [Row(lsn, 90 * SECOND, 100 * SECOND) for lsn in values]
    for of_file in [rows] if is_one_file else [[row] for row in rows]:
        commit(tables, of_file, values=values)
    parts = parts or JournalParts(max_bytes_held=1 << 20)
    parts.look(commit(tables, [Row(len(rows) + 1, None, 200 * SECOND)]), 1)
    whole = parts.whole(1, NEVER_US, (WAIT,))
    assert whole is not None
    return parts, parts.first(whole, 1, None, len(rows)), whole


def test_events_of_before_the_topic_began_take_no_room_in_a_file_that_was_merged(tmp_path: Path) -> None:
    never = [Row(lsn, (100 + lsn) * SECOND, 100 * SECOND) for lsn in range(1, 21)]
    rows = [Row(lsn, (130 + lsn) * SECOND, (130 + lsn) * SECOND) for lsn in range(21, 31)]
    parts = JournalParts(max_bytes_held=2_000)
    parts.look(commit(tmp_path, [*never, *rows, Row(31, None, 300 * SECOND), Row(32, None, 301 * SECOND)]), 21)
    whole = parts.whole(21, 95 * SECOND, (Wait(21, 5),))
    assert whole is not None
    found = parts.first(whole, 21, None, 100)
    contents = values_of(parts.contents(found, whole, None, 1 << 20))
    assert contents == [value_of(lsn) for lsn in range(21, 21 + len(contents))]
    assert len(contents) > 1


def test_nothing_is_held_of_a_journal_that_was_rolled_back(tmp_path: Path) -> None:
    """Its rows from the position on may be others by now."""
    commit(tmp_path, [Row(lsn, 90 * SECOND, 100 * SECOND) for lsn in (1, 2)])
    table = commit(tmp_path, [Row(3, None, 200 * SECOND)])
    publisher = OrderedPublisher("", {}, str(tmp_path), 1, wait_seconds=WAIT.seconds)
    progress = begun(Position(1), None, WAIT.seconds)

    def first() -> list[int]:
        found = publisher._look(progress)
        assert found is not None
        publisher._parts.look(found, 1, publisher._live.files)
        whole = publisher._parts.whole(1, NEVER_US, progress.waits)
        assert whole is not None
        return list(publisher._parts.first(whole, 1, None, 10)["lsn"])

    assert first() == [1, 2]
    log = tmp_path / "journal" / "_delta_log"
    for version in range(table.version() + 1):
        (log / f"{version:020d}.json").unlink()
    commit(tmp_path, [Row(lsn, (90 - lsn) * SECOND, 100 * SECOND) for lsn in (1, 2, 3)])
    commit(tmp_path, [Row(4, None, 200 * SECOND)])
    assert first() == [3, 2, 1]


def test_what_is_held_of_an_event_goes_when_it_is_erased(tmp_path: Path) -> None:
    parts, found, whole = one_generation(tmp_path, dict.fromkeys((1, 2, 3), b"of a person"))
    assert values_of(parts.contents(found, whole, None, 100)) == [b"of a person"] * 3
    table = DeltaTable(str(tmp_path / "journal"))
    table.update({"value": "NULL"}, predicate="lsn = 2")
    parts.look(table, 1)
    assert values_of(parts.contents(found, whole, None, 100)) == [b"of a person", b"", b"of a person"]


def test_the_contents_of_a_file_are_read_once_for_all_steps_that_they_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row(lsn, (100 + lsn % 2) * SECOND, (100 + lsn) * SECOND) for lsn in range(1, 21)]
    read: list[str] = []

    def opening(table: DeltaTable, path: str, file_bytes: int, **sizes: int) -> AbstractContextManager[ContentFile]:
        read.append(path)
        return opened(table, path, file_bytes, **sizes)

    monkeypatch.setattr("jobs.billing.ordered.journal.opened", opening)
    for first in range(0, 20, 5):
        table = commit(tmp_path, rows[first : first + 5])
    found = published(JournalParts(), table, 2, max_rows=1)
    assert found == expected(rows, lambda _: WAIT.seconds)
    assert len(read) == len({*read}) > 1


def files_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read from now on."""
    read: list[str] = []

    def reading(table: DeltaTable, path: str, condition: pl.Expr, columns: Sequence[str]) -> pl.DataFrame:
        read.append(path)
        return rows_of_file(table, path, condition, columns)

    monkeypatch.setattr("jobs.billing.ordered.journal.rows_of_file", reading)
    return read


def rows_of(found: pl.DataFrame) -> Iterator[tuple[int, bool]]:
    """The lsn of each row, and whether it is late."""
    return found.select("lsn", "is_late").iter_rows()


def values_of(contents: Iterable[Content | None]) -> list[bytes]:
    """The event of each; empty where there is none."""
    return [(None if content is None else content[VALUE]) or b"" for content in contents]
