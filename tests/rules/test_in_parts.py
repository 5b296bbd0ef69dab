"""joins takes as many rows at once as what they say allows, whatever they could say; nothing is left out.

Method: `property`.
"""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jobs.joins.config import JoinsConfig
from jobs.runtime.new_rows import in_parts

COLUMNS = ("a", "b", "c")
SCHEMA = pa.schema([("lsn", pa.int64()), *[(name, pa.int64()) for name in COLUMNS]])
rows_of = st.lists(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=3, max_size=3), max_size=30)


def table(rows: list[list[int | None]], order: list[int]) -> pa.Table:
    """Rows with lsns that stand in any order."""
    found = [dict(zip(("lsn", *COLUMNS), [lsn, *row], strict=True)) for lsn, row in zip(order, rows, strict=True)]
    return pa.Table.from_pylist(found, SCHEMA)


def said(part: pa.Table) -> int:
    said_in = len(part) + sum(len(part) - part[name].null_count for name in COLUMNS)
    return int(said_in)


@given(st.data(), rows_of, st.integers(1, 12), st.integers(1, 40))
def test_property_parts_are_all_rows_by_lsn_and_none_is_too_much(
    data: st.DataObject, rows: list[list[int | None]], most: int, most_said: int
) -> None:
    whole = table(rows, data.draw(st.permutations(range(len(rows)))))
    parts = list(in_parts(whole, most, COLUMNS, most_said))
    assert pa.concat_tables([SCHEMA.empty_table(), *parts]).sort_by("lsn") == whole.sort_by("lsn")
    for before, after in pairwise(parts):
        assert max(before["lsn"].to_pylist()) < min(after["lsn"].to_pylist())
    for part in parts:
        assert 0 < len(part) <= most
        assert said(part) <= most_said or len(part) == 1, "one row alone may be more"
    for part, after in pairwise(parts):
        assert len(part) == most or said(part) + said(after.slice(0, 1)) > most_said, "a part has as many as it may"


def test_unreported_meters_make_no_part_smaller_before_their_empty_columns_are_large() -> None:
    def most(count: int) -> int:
        many = {f"m{number}": {"unit": "u", "sum": f"m{number}"} for number in range(count)}
        return JoinsConfig.model_validate({"meters": many}).max_batch_rows

    assert most(20) == most(4) == JoinsConfig().rows_at_once == 100_000
    assert most(50) == 40_000
