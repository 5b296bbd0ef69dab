"""Delta `journal` → Delta `usage`, `accounts`, `prices`: requests matched with their completions, and priced.

Every accepted request or completion is in exactly one usage row, for all micro-batch cuts; a usage commit holds
the journal position that it was made from.

What becomes of a batch, in this order. The driver handles small batches itself (up to `driver_rows`; every batch where
there are no executors):

1. `build`: rows of the journal, by lsn.
2. `decide`: with the rows that wait, by (account, request id) → outcomes, and the rows that wait now.
3. `priced`: each outcome by the versions of its account and prices whose lsn is lower than its own.
4. `with_decisions`: decisions about stragglers follow, as rows of their own.
5. `usage_rows`: numbered in the order of the journal, and committed with the position.

In a large batch tasks of Spark do the same (`large_batch`), and rows are in files between the steps:

1. `ReadPart`, by file of the journal: requests and completions, by hash of (account, request id).
2. `DecidePart`, by that hash: `decide_rows`, which is also all that `decide` decides with, and what waits.
3. `ranges_of`, the driver: each range of deciding lsns has the next lsns of usage, whichever part decided them.
4. `WriteRange`, by range: `priced`, `with_decisions`, `usage_rows`, and a file of usage.
5. The driver commits all files with the position, as it commits its own rows.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.joins.catalog import TABLE_OF
from jobs.joins.config import JoinsConfig
from jobs.joins.recovery import columns_read
from jobs.joins.sink import UsageSink
from jobs.runtime.delta.position import with_fingerprint
from jobs.runtime.delta.table import LSN, open_table
from jobs.runtime.effective_rules import read_history
from jobs.runtime.environment import Environment
from jobs.runtime.job import TableJob
from jobs.streams import Table
from metering.meters import DETAILS, columns_of
from metering.vocabulary import Job


def build(journal: DataFrame, _config: JoinsConfig) -> DataFrame:
    """Journal rows → the same rows, with `value` only for catalog changes: events have their data in columns.

    Only for small batches; in large ones tasks read the files (`large_batch`).
    """
    is_change = F.col("topic").startswith("catalog.")
    return journal.withColumn("value", F.when(is_change, F.col("value")))


def settle(config: JoinsConfig, where: Environment) -> JoinsConfig:
    """The configuration with the rules that new usage has, or that it was begun with."""
    usage = open_table(where.tables, Table.USAGE)
    if usage is None or usage.transaction_version(LSN) in (None, 1):
        return config.settled((), is_new=True, has_details=_has_details(where.tables))
    return config.settled(read_history(usage)[0], is_new=False)


def _has_details(tables: str) -> bool:
    """Whether the journal has parts of tokens, or will have: joins would wait for columns that it never gets."""
    journal = open_table(tables, Table.JOURNAL)
    if journal is None or journal.transaction_version(LSN) in (None, 1):
        return True
    return set(columns_of(DETAILS)) <= {field.name for field in journal.schema().fields}


JOB = TableJob(
    name=Job.JOINS.value,
    reads=Table.JOURNAL,
    writes=Table.USAGE,
    columns=lambda config: with_fingerprint(
        Table.JOURNAL, (*columns_read(config.carried), "disposition", "topic", "frontier", "value")
    ),
    config=JoinsConfig,
    build=build,
    settle=settle,
    start=UsageSink,
    also_writes=tuple(TABLE_OF.values()),
)
