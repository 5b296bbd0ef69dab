"""What `events.ordered` reads of a real journal, in files of any size and with any memory, is what the oracle has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.billing.ordered.journal import JournalParts
from jobs.billing.ordered.order import KEY, NEVER_US, Cursor, Wait
from tests.journal_files import commit, value_of
from tests.ordered_events import Ordered, Row, expected, journals

WAIT = Wait(1, 5)


@settings(max_examples=25, deadline=None)
@given(journals(max_commits=8), st.integers(1, 4), st.sampled_from((1, 1_000)), st.booleans())
def test_any_size_of_files_steps_and_memory_gives_the_order_of_the_oracle(
    commits: list[list[Row]], step: int, max_rows: int, is_compacted: bool
) -> None:
    with TemporaryDirectory() as folder:
        for rows in commits:
            table = commit(Path(folder), rows)
        if is_compacted:
            table.optimize.compact()
        parts = JournalParts(max_rows_held=max_rows)
        sent: list[Ordered] = []
        next_lsn, before_us, waiting_from = 1, NEVER_US, 1
        cursor: Cursor | None = None
        while True:
            parts.look(table, waiting_from)
            whole = parts.whole(next_lsn, before_us, (WAIT,), max_rows)
            if whole is None:
                break
            found = parts.first(whole, waiting_from, cursor, step + 1)
            sent += [Ordered(len(sent) + n, lsn, late) for n, (lsn, late) in enumerate(rows_of(found, step), 1)]
            contents = parts.contents(found["lsn"]) if len(found) else found
            assert all(value == value_of(lsn) for lsn, value in pairs(contents))
            if len(found):
                total = sum(len(value) for _, value in pairs(contents))
                sizes, held = parts.within(found["lsn"], total)
                assert dict(sizes.iter_rows()) == {lsn: len(value) for lsn, value in pairs(contents)}
                assert held is not None
                assert held.sort("lsn").equals(contents.sort("lsn"))
                assert parts.within(found["lsn"], total - 1)[1] is None
            if len(found) > step:
                generation, order_us, lsn = found.select(KEY).row(step - 1)
                cursor = generation, order_us, lsn
                continue
            waiting_from = parts.waiting_from(whole, waiting_from)
            next_lsn, before_us, cursor = whole.next_lsn, whole.watermark_us, None
        assert sent == expected([row for rows in commits for row in rows], lambda _: WAIT.seconds)


def rows_of(found: pl.DataFrame, step: int) -> Iterator[tuple[int, bool]]:
    """The lsn of each of the first rows, and whether it is late."""
    return found.head(step).select("lsn", "is_late").iter_rows()


def pairs(contents: pl.DataFrame) -> Iterable[tuple[int, bytes]]:
    """The lsn of each row, and its event."""
    return contents.select("lsn", "value").iter_rows() if "value" in contents.columns else ()
