"""usage → sums per minute window, meter and price → Postgres `usage_windows` and `stragglers`.

Every signed quantity and amount is in exactly one window or dropped straggler, to the last digit; currencies never mix.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.billing.config import BillingConfig
from jobs.billing.fold import fold
from jobs.billing.gauges import totals
from jobs.billing.staged import STAGED, SUMS
from jobs.runtime.delta.position import with_fingerprint
from jobs.runtime.job import PostgresJob
from jobs.streams import Table
from metering.meters import Meter
from metering.windows import MINUTE
from metering.words import Job, Outcome


def metered(meter: Meter) -> tuple[str, ...]:
    """What usage says of one meter: quantity, price version, unit price and amount."""
    return (meter.value, f"{meter}_price_version", f"{meter}_unit_price", f"{meter}_amount")


COLUMNS = (
    *("lsn", "account", "request_id", "model", "outcome", "event_time", "received_at", "currency", "sign", "cause"),
    *(name for meter in Meter for name in metered(meter)),
)

GROUP = [
    *["window_start", "account", "model", "currency"],
    *["cause", "sign", "matched", "late", "straggler_lsn", "request_id"],
]


def build(usage: DataFrame, config: BillingConfig, closed_before: datetime | None = None) -> DataFrame:
    """Usage rows → sums per window, price versions, sign and arrival; columns of `STAGED`.

    Windows that ended by `closed_before` had closed under another grace: a longer one opens none of them again.

    The meters stay side by side: a quarter of the rows to group, and half the planning of a small batch. What is the
    same for a whole group (its sign, whether a completion came) is a key, so it costs nothing per row. Amounts are not
    added up: the database multiplies a sum of quantities by its unit price.
    """
    return (
        _judged(usage, config, closed_before)
        .groupBy(*GROUP, *[f"{meter}_price_version" for meter in Meter])
        .agg(
            F.max("event_time").alias("event_time"),
            F.max("received_at").alias("received_at"),
            F.count("*").alias("usage_rows"),
            *[total for meter in Meter for total in _totals(meter)],
        )
        .select(*STAGED.names)
    )


def _judged(usage: DataFrame, config: BillingConfig, closed_before: datetime | None) -> DataFrame:
    """Usage rows with their minute and their arrival: `late`, or a `straggler_lsn` of its own."""
    window_start = F.date_trunc("minute", "event_time")
    window_end = window_start + F.expr(f"INTERVAL '{int(MINUTE.total_seconds())}' SECOND")
    closes_at = window_end + F.expr(f"INTERVAL '{config.grace_seconds}' SECOND")
    is_straggler = F.col("received_at") >= closes_at
    if closed_before is not None:
        is_straggler |= window_end <= F.lit(closed_before)
    return usage.select(
        window_start.alias("window_start"),
        ((F.col("received_at") >= window_end) & ~is_straggler).alias("late"),
        F.when(is_straggler, F.col("lsn")).alias("straggler_lsn"),
        F.when(is_straggler, F.col("request_id")).alias("request_id"),
        (F.col("outcome") == Outcome.MATCHED.value).alias("matched"),
        *["account", "model", "currency", "cause", "sign", "event_time", "received_at"],
        *[name for meter in Meter for name in metered(meter)],
    )


def _totals(meter: Meter) -> list[Column]:
    """The sums of one meter, in the order of `SUMS`."""
    totals = [
        F.max(f"{meter}_unit_price"),
        F.min(f"{meter}_unit_price"),
        _exact_sum(meter),
        F.count(meter),
        F.count_if(F.col(meter) != 0),
        F.count_if(~_is_sound(meter)),
    ]
    return [total.alias(f"{meter}_{name}") for total, name in zip(totals, SUMS, strict=True)]


def _exact_sum(meter: Meter) -> Column:
    """The sum of a column of longs, however large they are and however many up to 2^31.

    Their halves are added up as longs, and put together once per group: a sum of decimals makes an object for each row.
    """
    high, low = F.shiftright(meter.value, 32), F.col(meter).bitwiseAND(F.lit(2**32 - 1))
    whole = F.sum(high).cast("decimal(18, 0)") * F.lit(Decimal(2**32)) + F.sum(low).cast("decimal(19, 0)")
    return whole.cast("decimal(28, 0)")


def _is_sound(meter: Meter) -> Column:
    """A priced row has the amount that its quantity and unit price make, to the last digit; any other has none."""
    return F.expr(f"""coalesce(
        IF({meter} IS NULL OR {meter}_price_version IS NULL,
           {meter}_amount IS NULL,
           {meter}_amount = CAST({meter} AS DECIMAL(17, 0)) * {meter}_unit_price),
        false)""")


JOB = PostgresJob(
    name=Job.BILLING.value,
    reads=Table.USAGE,
    columns=with_fingerprint(Table.USAGE, COLUMNS),
    config=BillingConfig,
    build=build,
    staged=STAGED,
    fold=fold,
    closes_after=lambda rules: timedelta(seconds=rules["grace_seconds"]),
    totals=totals,
)
