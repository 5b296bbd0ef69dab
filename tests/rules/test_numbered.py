"""Numbers of rows go on where a row index of 32 bits would end."""

from __future__ import annotations

import polars as pl
import pytest

from jobs.runtime.delta.table import numbered


@pytest.mark.parametrize("first_lsn", [1, 2**32 - 2, 2**62])
def test_rows_are_numbered_without_a_hole_wherever_they_begin(first_lsn: int) -> None:
    rows = numbered(pl.DataFrame({"offset": [7, 8, 9, 10]}), first_lsn)
    assert rows["lsn"].to_list() == [first_lsn + number for number in range(4)]
    assert rows.schema["lsn"] == pl.Int64
