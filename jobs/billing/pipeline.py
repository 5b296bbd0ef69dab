"""usage → sums per minute window, meter and price → Postgres `usage_windows`, and everything derived from them.

Every signed quantity and amount is in exactly one window, or in a straggler that is dropped, rejected or waiting, to
the last digit; currencies never mix. A thread beside the fold publishes windows and corrections to Kafka, at least
once.
"""

from __future__ import annotations

from typing import Any

import psycopg
from pyspark.sql import DataFrame

from jobs.billing.config import BillingConfig
from jobs.billing.fold import fold
from jobs.billing.gauges import totals
from jobs.billing.holding import is_due
from jobs.billing.members import is_correction_due
from jobs.billing.publishing import publishing
from jobs.billing.rules import following, grace
from jobs.billing.staged import STAGED
from jobs.billing.sums import COLUMNS, sums
from jobs.runtime.delta.position import with_fingerprint
from jobs.runtime.job import Fold, PostgresJob
from jobs.streams import Table
from metering.vocabulary import Job


def build(usage: DataFrame, _config: BillingConfig) -> DataFrame:
    """Usage rows as they are. They are added up on the driver (`sums`): a batch of few rows needs no shuffle."""
    return usage


def _is_due(cursor: psycopg.Cursor[Any], around: Fold) -> bool:
    return is_due(cursor, around.frontier) or is_correction_due(cursor, around)


JOB = PostgresJob(
    name=Job.BILLING.value,
    reads=Table.USAGE,
    columns=lambda _: with_fingerprint(Table.USAGE, COLUMNS),
    config=BillingConfig,
    build=build,
    summarize=sums,
    staged=STAGED,
    fold=fold,
    following=following,
    closes_after=grace,
    is_due=_is_due,
    totals=totals,
    beside=publishing,
)
