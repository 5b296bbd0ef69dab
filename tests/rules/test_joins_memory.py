"""What joins remembers between batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from jobs.joins.memory import CARRIED, MAX_PARTS, Memory, decided_sides

START = datetime(2026, 1, 1, tzinfo=UTC)
TIMEOUT_US = 120_000_000


def rows(*given: tuple[int, str, int]) -> pl.DataFrame:
    """(lsn, request_id, received after so many seconds) as waiting rows."""
    columns = [
        {
            "lsn": lsn,
            "request_id": r,
            "account": "a",
            "received_at": START + timedelta(seconds=s),
            "timeout_us": TIMEOUT_US,
        }
        for lsn, r, s in given
    ]
    return pl.DataFrame(columns, schema=CARRIED)


def outcomes(*given: tuple[str, int | None, int | None]) -> pl.DataFrame:
    schema = {"outcome": pl.String, "request_lsn": pl.Int64, "completion_lsn": pl.Int64}
    return pl.DataFrame(given, schema=schema, orient="row").with_columns(timeout_us=pl.lit(TIMEOUT_US, pl.Int64))


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_waiting_row_is_read_again_only_with_its_key_or_when_it_is_overdue() -> None:
    memory = Memory.empty(CARRIED)
    memory = memory.after(rows((1, "r1", 0), (2, "r2", 50)), outcomes(), at(50))
    assert memory.waiting() == {"waiting": 2, "waiting.lsn": 1}
    assert memory.involved(rows((3, "r2", 60)), at(60))["lsn"].to_list() == [2, 3]
    assert memory.involved(rows((3, "r9", 130)), at(121))["lsn"].to_list() == [1, 3]
    assert memory.involved(rows(), at(120)).is_empty()


def test_only_winners_are_retained_for_the_timeout() -> None:
    memory = Memory.empty(CARRIED)
    first = rows((1, "r1", 0), (2, "r1", 1), (3, "r1", 2))
    memory = memory.after(first, outcomes(("matched", 1, 2), ("superseded", None, 3)), at(2))
    met = memory.involved(rows((4, "r1", 100)), at(100))
    assert met.select("lsn", "decided_side").rows() == [(1, "request"), (2, "completion"), (4, None)]
    assert memory.waiting()["waiting"] == 0
    memory = memory.after(met, outcomes(("superseded", 4, None)), at(122))
    assert memory.waiting()["waiting"] == 0
    assert sum(len(part) for part in memory.decided) == 2


@pytest.mark.long
def test_expired_decisions_are_forgotten_after_some_batches() -> None:
    memory = Memory.empty(CARRIED)
    for number in range(5 * MAX_PARTS):
        new = rows((2 * number, f"r{number}", number), (2 * number + 1, f"r{number}", number))
        told = outcomes(("matched", 2 * number, 2 * number + 1))
        memory = memory.after(memory.involved(new.drop("decided_side", "remembered"), at(number)), told, at(number))
        assert sum(len(part) for part in memory.decided) <= 2 * (120 + MAX_PARTS + 1)
    assert memory.involved(rows((10**6, f"r{number}", number)), at(number))["lsn"].to_list()[:2] == [638, 639]


def test_an_event_that_is_both_sides_is_remembered_on_both() -> None:
    assert decided_sides(outcomes(("matched", 5, 5))).rows() == [(5, TIMEOUT_US, "both")]


def test_without_a_frontier_nothing_is_overdue() -> None:
    memory = Memory.empty(CARRIED)
    memory = memory.after(rows((1, "r1", 0)), outcomes(), None)
    assert memory.involved(rows(), None).is_empty()
    assert memory.waiting() == {"waiting": 1, "waiting.lsn": 1}


def test_expired_rows_are_freed_at_once_when_memory_is_short() -> None:
    memory, limit = Memory.empty(CARRIED), 0
    for number in range(MAX_PARTS):
        told = outcomes(("matched", 2 * number, 2 * number + 1))
        new = rows((2 * number, f"r{number}", 10 * number), (2 * number + 1, f"r{number}", 10 * number))
        frontier = at(10 * number)
        memory = memory.after(memory.involved(new.drop("decided_side", "remembered"), frontier), told, frontier)
        # Room for what is within the timeout, 13 pairs, and half of it besides.
        limit = limit or memory.size_bytes() * 20
        memory = memory.within(limit, frontier)
        assert memory.size_bytes() <= limit
        known = memory.involved(rows(*[(10**6, f"r{n}", 0) for n in range(number + 1)]), frontier)
        still = [2 * n for n in range(number + 1) if 10 * n + 120 >= 10 * number]
        assert set(still) <= set(known["lsn"].to_list())


def test_unexpired_rows_are_kept_even_when_memory_is_short() -> None:
    memory = Memory.empty(CARRIED).after(
        rows((1, "r1", 0), (2, "r2", 0), (3, "r2", 1)), outcomes(("matched", 2, 3)), at(1)
    )
    kept = memory.within(1, at(1))
    assert (kept.records(), kept.waiting()) == (3, memory.waiting())
