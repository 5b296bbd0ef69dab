"""Delta `journal` → Delta `usage`, `accounts`, `prices`: requests matched with their completions, and priced.

Every accepted request or completion is in exactly one usage row, whatever the micro-batch cuts; a usage commit holds
the journal position that it was made from.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.joins.catalog import TABLE_OF
from jobs.joins.config import JoinsConfig
from jobs.joins.past import columns_read
from jobs.joins.sink import UsageSink
from jobs.runtime.delta.position import with_fingerprint
from jobs.runtime.job import TableJob
from jobs.streams import Table
from metering.words import Job


def build(journal: DataFrame, _config: JoinsConfig) -> DataFrame:
    """Journal rows → the same rows, `value` only of catalog changes: what events said is in their columns.

    Rows are matched on the driver, where those that wait are; Spark prices what is decided (`pricing.price`).
    """
    is_change = F.col("topic").startswith("catalog.")
    return journal.withColumn("value", F.when(is_change, F.col("value")))


JOB = TableJob(
    name=Job.JOINS.value,
    reads=Table.JOURNAL,
    writes=Table.USAGE,
    columns=lambda config: with_fingerprint(
        Table.JOURNAL, (*columns_read(config.carried), "disposition", "topic", "frontier", "value")
    ),
    config=JoinsConfig,
    build=build,
    start=UsageSink,
    also_writes=tuple(TABLE_OF.values()),
)
