"""Delta `journal` → Delta `usage`, `accounts`, `prices`: requests matched with their completions, and priced.

Every accepted request or completion is in exactly one usage row, whatever the micro-batch cuts; a usage commit holds
the journal position that it was made from.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from jobs.joins.catalog import TABLE_OF
from jobs.joins.config import JoinsConfig
from jobs.joins.past import READ
from jobs.joins.pricing import price
from jobs.joins.sink import NAME, UsageSink
from jobs.runtime.delta.position import with_fingerprint
from jobs.runtime.job import Context, TableJob
from jobs.streams import Table

COLUMNS = with_fingerprint(Table.JOURNAL, (*READ, "disposition", "topic", "frontier", "value"))


def build(outcomes: DataFrame, catalog: tuple[DataFrame, DataFrame]) -> DataFrame:
    """Outcomes (`resolve`) → priced rows of usage, one per outcome."""
    return price(outcomes, *catalog)


def start(context: Context[JoinsConfig]) -> UsageSink:
    """The sink, which resolves a batch before it has it built."""
    return UsageSink(context, build)


JOB = TableJob(
    name=NAME,
    reads=Table.JOURNAL,
    writes=Table.USAGE,
    columns=COLUMNS,
    config=JoinsConfig,
    start=start,
    also_writes=tuple(TABLE_OF.values()),
)
