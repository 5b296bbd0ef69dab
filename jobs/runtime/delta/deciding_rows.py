"""Rows that hold `rules`: `weir retain` leaves them of the days that it removes."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable


def files_of(table: DeltaTable, day: date) -> ds.Dataset:
    """The files of one log date. All files take seconds to name, and a look is due at each day that has left a row."""
    return table.to_pyarrow_dataset(file_pruning_predicate=[("log_date", "=", day.isoformat())])


def deciding_rows(table: DeltaTable, day: date) -> int:
    """How many rows of a log date hold `rules`."""
    dataset = files_of(table, day)
    if "rules" not in dataset.schema.names:
        return 0
    is_deciding = (pc.field("log_date") == pc.scalar(day)) & pc.field("rules").is_valid()
    return int(dataset.scanner(columns=["rules"], filter=is_deciding).count_rows())


def has_views(table: DeltaTable, day: date) -> bool:
    """Whether a file of a log date has texts as views, as the retention of earlier releases left them."""
    return any(
        pa.types.is_string_view(kind)
        for fragment in files_of(table, day).get_fragments()
        for kind in fragment.physical_schema.types
    )
