"""What the audit says of a history: the shipped recomputation of outcomes finds nothing, whatever has happened."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from deltalake import DeltaTable

from jobs.audit.examined import SUM, USAGE_READ, examined, journal_read
from jobs.audit.kept import kept
from jobs.audit.pinned import pin
from jobs.joins.config import JoinsConfig
from jobs.joins.past import is_paired
from jobs.streams import Table
from tests.simulation.world import World


def audited(world: World) -> Iterator[str]:
    """I4, I10: a sentence for each outcome that is not as the journal, as far as it is kept, makes it."""
    usage, journal = (DeltaTable(str(world.tables / table)) for table in (Table.USAGE, Table.JOURNAL))
    pinned = pin(usage, [kept(journal), kept(usage)], str(world.tables), JoinsConfig())
    read = {*journal_read(pinned), "disposition"} & {field.name for field in journal.schema().fields}
    rows = pl.DataFrame(journal.to_pyarrow_table(columns=sorted(read)))
    concerned = rows.filter((pl.col("lsn") < pinned.position) & is_paired())
    found = examined(concerned, pl.DataFrame(usage.to_pyarrow_table(columns=list(USAGE_READ))), pinned)
    for wrong in found.filter(pl.col("kind") != SUM).iter_rows(named=True):
        yield f"audit: {wrong}"
