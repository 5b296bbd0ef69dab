"""A repeat whose first was validated by another contract is compared with what that one says today."""

from __future__ import annotations

import polars as pl

from jobs.ingestion.repeats import compared, incomparable

FOUND = pl.DataFrame(
    [(10, 1, False), (11, 1, False), (12, 2, True), (13, 3, False), (14, 7, False)],
    schema={"lsn": pl.Int64, "first_lsn": pl.Int64, "same": pl.Boolean},
    orient="row",
)
"""Of these the first three firsts are older than the contracts of today."""
ROWS = pl.DataFrame({"lsn": [10, 11, 12, 13, 14], "content_digest": [100, 101, 102, 103, 104]})


def firsts(**digests: int | None) -> pl.DataFrame:
    found = {"first_lsn": [int(name[1:]) for name in digests], "first_digest": list(digests.values())}
    return pl.DataFrame(found, schema={"first_lsn": pl.Int64, "first_digest": pl.Int64})


def test_only_firsts_whose_digest_is_another_and_of_other_contracts_are_read_again_and_each_once() -> None:
    assert incomparable(FOUND, 5).to_list() == [1, 3]
    assert incomparable(FOUND, 1).is_empty()


def test_only_equal_contents_become_duplicates_when_compared_again() -> None:
    again = compared(FOUND, ROWS, firsts(_1=100, _3=999))
    assert again.rows() == [(10, 1, True), (11, 1, False), (12, 2, True), (13, 3, False), (14, 7, False)]


def test_a_missing_or_unreadable_first_makes_no_duplicate() -> None:
    assert compared(FOUND, ROWS, firsts(_3=None)).rows() == FOUND.rows()
