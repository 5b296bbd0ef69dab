"""Delta `usage` → sums per minute, meter and price → Postgres `usage_windows`, and everything derived from them.

Every signed quantity and amount is in exactly one window, or in a straggler that is dropped, rejected or waiting, to
the last digit; currencies never mix. A thread beside the fold publishes windows and corrections to Kafka, at least
once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg
from pyspark.sql import DataFrame

from jobs.billing.config import BillingConfig
from jobs.billing.fold import fold
from jobs.billing.gauges import totals
from jobs.billing.holding import is_due
from jobs.billing.members import is_correction_due
from jobs.billing.merging import merged
from jobs.billing.publishing import publishing
from jobs.billing.rules import following, grace
from jobs.billing.staged import STAGED
from jobs.billing.sums import BATCH_ROWS, COLUMNS, sums, sums_of_part
from jobs.runtime.delta.position import with_fingerprint
from jobs.runtime.effective_rules import History
from jobs.runtime.job import Fold, PostgresJob
from jobs.runtime.workers import in_workers
from jobs.streams import Table
from metering.vocabulary import Job


def build(usage: DataFrame, _config: BillingConfig, history: History) -> DataFrame:
    """Rows of usage (COLUMNS) → STAGED, one row per `merging.KEY`: a batch of many rows, added up on executors.

    Each task sums the rows that it reads; the sums of an account meet in one task, which adds up what has the same key.
    So the driver gets sums, and no row of usage. Of few rows `sums` makes the same in the driver.
    """
    parts = in_workers(usage, partial(sums_of_part, history=history), STAGED, BATCH_ROWS)
    return in_workers(parts.repartition("account"), merged, STAGED)


def _is_due(cursor: psycopg.Cursor[Any], around: Fold) -> bool:
    return is_due(cursor, around.frontier) or is_correction_due(cursor, around)


JOB = PostgresJob(
    name=Job.BILLING.value,
    reads=Table.USAGE,
    columns=lambda _: with_fingerprint(Table.USAGE, COLUMNS),
    config=BillingConfig,
    build=build,
    build_here=sums,
    staged=STAGED,
    fold=fold,
    following=following,
    closes_after=grace,
    is_due=_is_due,
    totals=totals,
    beside=publishing,
)
