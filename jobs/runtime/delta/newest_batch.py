"""When the newest batch of events came: a version that knows no batches finds repeats of its first event only."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from jobs.journal.elements import ELEMENTS_OF_AN_EVENT, FIELD
from jobs.runtime.delta.table import open_table
from jobs.streams import Table


def newest_batch(tables: str) -> datetime | None:
    """When the newest record with a second event was received, by the journal below `tables`; None if there is none.

    Only files whose statistics allow one are read.
    """
    journal = open_table(tables, Table.JOURNAL)
    if journal is None or FIELD not in pa.schema(journal.schema().to_arrow()):
        return None
    is_later_event = pc.field(FIELD.name) > ELEMENTS_OF_AN_EVENT
    scanner = journal.to_pyarrow_dataset().scanner(columns=["received_at"], filter=is_later_event)
    found: datetime | None = None
    for batch in scanner.to_batches():
        newest = pc.max(batch["received_at"]).as_py()
        found = max((at for at in (found, newest) if at is not None), default=None)
    return found
