"""What `events.ordered` must have, event by event: the oracle, and journals made up for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from hypothesis import strategies as st

SECOND = 1_000_000


@dataclass(frozen=True)
class Row:
    """A row of the journal: an event with a time, or one that is none; with F of its commit."""

    lsn: int
    event_us: int | None
    frontier_us: int | None


@dataclass(frozen=True)
class Ordered:
    """An event as the topic has it."""

    sequence: int
    lsn: int
    is_late: bool


def expected(rows: Sequence[Row], wait_of: Callable[[int], int], first_lsn: int = 1) -> list[Ordered]:
    """Of all whole generations from `first_lsn` on, one event after the other; the last generation may go on."""
    found: list[tuple[int, bool]] = []
    waiting: list[tuple[int, int]] = []
    watermark: int | None = None
    begun = [row.frontier_us for row in rows if row.lsn < first_lsn]
    if begun and begun[-1] is not None:
        watermark = begun[-1] - wait_of(first_lsn) * SECOND
    followed = [list(of) for _, of in groupby((row for row in rows if row.lsn >= first_lsn), lambda r: r.frontier_us)]
    for generation in followed[:-1]:
        for row in generation:
            if row.event_us is None:
                continue
            if watermark is not None and row.event_us < watermark:
                found.append((row.lsn, True))
            else:
                waiting.append((row.event_us, row.lsn))
        frontier = generation[0].frontier_us
        if frontier is not None:
            reached = frontier - wait_of(generation[0].lsn) * SECOND
            watermark = reached if watermark is None else max(watermark, reached)
        if watermark is not None:
            found += [(lsn, False) for time, lsn in sorted(waiting) if time < watermark]
            waiting = [(time, lsn) for time, lsn in waiting if time >= watermark]
    return [Ordered(first_lsn + number, lsn, is_late) for number, (lsn, is_late) in enumerate(found)]


@st.composite
def journals(draw: st.DrawFn, max_commits: int = 12) -> list[list[Row]]:
    """Commits: rows around the F of their commit, which stands still or moves on, and is unknown at first."""
    commits: list[list[Row]] = []
    frontier = draw(st.none() | st.just(100 * SECOND))
    lsn = 1
    for _ in range(draw(st.integers(1, max_commits))):
        if frontier is None:
            frontier = draw(st.none() | st.just(100 * SECOND))
        else:
            frontier += draw(st.sampled_from((0, 0, 1, SECOND, 7 * SECOND, 90 * SECOND)))
        around = 100 * SECOND if frontier is None else frontier
        offsets = st.none() | st.sampled_from((0, 1, -1, 5 * SECOND)) | st.integers(-100 * SECOND, 20 * SECOND)
        rows = [
            Row(lsn + number, None if offset is None else around + offset, frontier)
            for number, offset in enumerate(draw(st.lists(offsets, min_size=1, max_size=6)))
        ]
        commits.append(rows)
        lsn += len(rows)
    return commits
