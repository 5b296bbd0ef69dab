"""Delta `usage` → sums per minute, meter and price → Postgres `usage_windows`, and everything derived from them.

Every signed quantity and amount is in exactly one window, or in a straggler that is dropped, rejected or waiting, to
the last digit; currencies never mix.

1. `sums`: rows of usage → sums by minute, meter, price version and arrival, on the driver or in tasks (`sums_of_part`).
2. `fold`: these into windows, days, stragglers and corrections, in one transaction with the position; and
   `thresholds`: which limits' thresholds the new totals have crossed, or are under again.
3. `publishing`: a background thread that sends windows and corrections to Kafka, at least once; and another one that
   sends accepted events again, in the order of event time, where that is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from jobs.billing import thresholds
from jobs.billing.config import BillingConfig
from jobs.billing.fold import fold
from jobs.billing.gauges import totals
from jobs.billing.holding import is_due
from jobs.billing.members import is_correction_due
from jobs.billing.merging import added_up, merged
from jobs.billing.ordered.publishing import publishing_ordered
from jobs.billing.publishing import publishing
from jobs.billing.rules import following, grace
from jobs.billing.staged import STAGED
from jobs.billing.sums import COLUMNS, sums, sums_of_part
from jobs.runtime.delta.position import with_fingerprint
from jobs.runtime.job import Context, Counts, Fold, InTasks, PostgresJob
from jobs.streams import Table
from metering.vocabulary import Job


def _is_due(cursor: psycopg.Cursor[Any], around: Fold) -> bool:
    return is_due(cursor, around.frontier) or is_correction_due(cursor, around) or thresholds.is_due(cursor, around)


def _fold(cursor: psycopg.Cursor[Any], config: BillingConfig, around: Fold) -> Counts:
    has_limits = thresholds.note_members(cursor)
    counts = fold(cursor, config, around)
    if has_limits:
        thresholds.decide_thresholds(cursor, around)
    return counts


@contextmanager
def _beside(context: Context[BillingConfig]) -> Iterator[None]:
    with publishing(context), publishing_ordered(context):
        yield


JOB = PostgresJob(
    name=Job.BILLING.value,
    reads=Table.USAGE,
    columns=lambda _: with_fingerprint(Table.USAGE, COLUMNS),
    config=BillingConfig,
    # Few rows: the driver reads and sums them. Many: tasks on executors do, each its files, and the driver merges.
    build_here=sums,
    build_in_tasks=InTasks(part=sums_of_part, added=added_up, merged=merged),
    staged=STAGED,
    fold=_fold,
    following=following,
    closes_after=grace,
    is_due=_is_due,
    totals=totals,
    beside=_beside,
)
