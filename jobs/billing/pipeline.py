"""usage → sums per minute window, meter and price → Postgres `usage_windows` and `stragglers`.

Every signed quantity and amount is in exactly one window or dropped straggler, to the last digit; currencies never mix.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.billing.config import BillingConfig
from jobs.billing.rules import JUDGED_CAUSE
from jobs.event_time.windows import MINUTE
from jobs.runtime.errors import Refused
from jobs.runtime.job import Counts, Fold, PostgresJob
from jobs.streams import AMOUNT, INSTANT, Meter, Outcome, Table

STAGED = pa.schema(
    [
        pa.field("window_start", INSTANT, nullable=False),
        pa.field("account", pa.string(), nullable=False),
        pa.field("model", pa.string()),
        pa.field("meter", pa.string(), nullable=False),
        pa.field("currency", pa.string()),
        pa.field("price_version", pa.int64()),
        pa.field("cause", pa.string(), nullable=False),
        pa.field("quantity", pa.int64(), nullable=False),
        pa.field("amount", AMOUNT),
        pa.field("metered_rows", pa.int64(), nullable=False),
        pa.field("unmetered_rows", pa.int64(), nullable=False),
        pa.field("late", pa.bool_(), nullable=False),
        pa.field("straggler_lsn", pa.int64()),
        pa.field("decision", pa.string()),
        pa.field("request_id", pa.string()),
        pa.field("event_time", INSTANT),
        pa.field("received_at", INSTANT),
    ]
)
"""Signed sums of one micro-batch. A row with `straggler_lsn` is one straggler by itself; its last five columns are
null in any other row. `amount` is null where `price_version` is: unpriced."""

COLUMNS = (
    *("lsn", "account", "request_id", "model", "outcome", "event_time", "received_at", "currency", "sign", "cause"),
    *(name for meter in Meter for name in (meter.value, f"{meter}_price_version", f"{meter}_amount")),
)

WINDOW = ["window_start", "account", "model", "currency", "cause", "late"]
STRAGGLER = ["straggler_lsn", "request_id"]


def build(usage: DataFrame, config: BillingConfig) -> DataFrame:
    """Usage rows → sums per window, account, meter, price and arrival; columns of `STAGED`.

    All meters are summed side by side and only the sums are unfolded: a quarter of the rows to group. What decides
    about a whole group (its sign, whether a completion came) is a key of it, so that it costs nothing per row.
    Raises (in the action) on a sign that is neither 1 nor -1, a price without its amount, and any overflow.
    """
    versions = [f"{meter}_price_version" for meter in Meter]
    return (
        _judged(usage, config)
        .groupBy(*WINDOW, *STRAGGLER, "sign", "is_matched", *versions)
        .agg(
            F.count("*").alias("rows"),
            F.max("event_time").alias("event_time"),
            F.max("received_at").alias("received_at"),
            *[total for meter in Meter for total in _totals(meter)],
        )
        .select(*WINDOW, *STRAGGLER, "event_time", "received_at", F.inline(F.array(*[_of(m, config) for m in Meter])))
        .where((F.col("metered_rows") > 0) | (F.col("unmetered_rows") > 0))
        .select(*[_staged(name) for name in STAGED.names])
    )


def _judged(usage: DataFrame, config: BillingConfig) -> DataFrame:
    """Usage rows with their minute and their arrival: `late`, or a `straggler_lsn` of its own."""
    window_start = F.date_trunc("minute", "event_time")
    window_end = window_start + F.expr(f"INTERVAL '{int(MINUTE.total_seconds())}' SECOND")
    closes_at = window_end + F.expr(f"INTERVAL '{config.grace_seconds}' SECOND")
    is_straggler = F.col("received_at") >= closes_at
    unsigned = F.raise_error(F.concat(F.lit("usage has a sign that is neither 1 nor -1: "), F.col("sign")))
    return usage.select(
        window_start.alias("window_start"),
        ((F.col("received_at") >= window_end) & ~is_straggler).alias("late"),
        F.when(is_straggler, F.col("lsn")).alias("straggler_lsn"),
        F.when(is_straggler, F.col("request_id")).alias("request_id"),
        F.when(F.col("sign").isin(1, -1), F.col("sign")).otherwise(unsigned).alias("sign"),
        (F.col("outcome") == Outcome.MATCHED.value).alias("is_matched"),
        *["account", "model", "currency", "cause", "event_time", "received_at"],
        *[name for meter in Meter for name in (meter.value, f"{meter}_price_version", f"{meter}_amount")],
    )


def _totals(meter: Meter) -> list[Column]:
    """Sums of one meter over rows of one sign. `counted - amounts` are rows that have no amount."""
    return [
        F.sum(meter).alias(f"{meter}_quantity"),
        F.sum(f"{meter}_amount").alias(f"{meter}_amount"),
        F.count(meter).alias(f"{meter}_reported"),
        F.count(f"{meter}_amount").alias(f"{meter}_amounts"),
        F.count_if(F.col(meter) != 0).alias(f"{meter}_metered_rows"),
    ]


def _of(meter: Meter, config: BillingConfig) -> Column:
    """The meter's totals as one struct, the same for every meter; null is not 0, but a sum of nothing is."""
    version, reported = F.col(f"{meter}_price_version"), F.col(f"{meter}_reported")
    lost = F.raise_error(F.lit(f"usage has a {meter}_price_version but no {meter}_amount"))
    amount = F.coalesce(F.col(f"{meter}_amount"), F.lit(0).cast("decimal(38,12)"))
    priced = F.when(F.col(f"{meter}_amounts") == reported, _signed(amount)).otherwise(lost)
    return F.struct(
        F.lit(meter.value).alias("meter"),
        version.alias("price_version"),
        _signed(F.coalesce(F.col(f"{meter}_quantity"), F.lit(0))).alias("quantity"),
        F.when(version.isNotNull(), priced).alias("amount"),
        F.col(f"{meter}_metered_rows").alias("metered_rows"),
        F.when(F.col("is_matched"), F.col("rows") - reported).otherwise(0).alias("unmetered_rows"),
        F.lit(config.late_policy[meter].value).alias("decision"),
    )


def _signed(total: Column) -> Column:
    """Negated where the sign is -1, and not by a product, which would cost decimals of the amount."""
    return F.when(F.col("sign") < 0, -total).otherwise(total)


def _staged(name: str) -> Column:
    """A column of `STAGED`; what belongs to a single straggler is null in a sum of many rows."""
    of_straggler = name in ("decision", "event_time", "received_at")
    return F.when(F.col("straggler_lsn").isNotNull(), F.col(name)).alias(name) if of_straggler else F.col(name)


UNJUDGED = "SELECT cause FROM staged WHERE cause <> %s ORDER BY cause LIMIT 1"

# A window that no row had reached before is still corrected by a straggler: it had closed, empty.
ADD = """
INSERT INTO usage_windows AS old (
    window_start, window_end, account, model, meter, currency, price_version,
    quantity, amount, late_quantity, late_rows, unmetered_rows, corrected
)
SELECT window_start, window_start + %s, account, model, meter, currency, price_version,
       sum(quantity), sum(amount),
       coalesce(sum(quantity) FILTER (WHERE late), 0), coalesce(sum(metered_rows) FILTER (WHERE late), 0),
       sum(unmetered_rows), bool_or(straggler_lsn IS NOT NULL AND metered_rows > 0)
FROM staged
WHERE decision IS DISTINCT FROM 'drop'
GROUP BY window_start, account, model, meter, currency, price_version
ORDER BY window_start, account, model, meter, currency, price_version
ON CONFLICT ON CONSTRAINT usage_windows_key DO UPDATE SET
    quantity = old.quantity + excluded.quantity,
    amount = old.amount + excluded.amount,
    late_quantity = old.late_quantity + excluded.late_quantity,
    late_rows = old.late_rows + excluded.late_rows,
    unmetered_rows = old.unmetered_rows + excluded.unmetered_rows,
    corrected = old.corrected OR excluded.corrected,
    updated_at = now()
"""

RECORD = """
INSERT INTO stragglers (
    usage_lsn, meter, account, model, request_id, window_start, event_time, received_at, late_seconds,
    decision, quantity, amount, currency, price_version
)
SELECT straggler_lsn, meter, account, model, request_id, window_start, event_time, received_at,
       extract(epoch FROM received_at - (window_start + %s)),
       decision, quantity, amount, currency, price_version
FROM staged
WHERE straggler_lsn IS NOT NULL AND metered_rows > 0
ORDER BY straggler_lsn, meter
"""

COUNT = """
SELECT meter, decision, late, price_version IS NULL, sum(metered_rows)::bigint, sum(unmetered_rows)::bigint
FROM staged GROUP BY 1, 2, 3, 4
"""


def fold(cursor: psycopg.Cursor[Any], _config: BillingConfig, _frontiers: Fold) -> Counts:
    """Add `staged` to `usage_windows`, record its stragglers; returns late, straggler, unpriced and unmetered rows.

    Raises Refused for usage whose cause is not judged here: its decision would have to be inherited.
    """
    unjudged = cursor.execute(UNJUDGED, (JUDGED_CAUSE,)).fetchone()
    if unjudged is not None:
        raise Refused(
            f"usage holds rows of cause '{unjudged[0]}', which this version of billing does not know; "
            "install the version that wrote them, then run `weir up` again"
        )
    cursor.execute(ADD, (MINUTE,))
    cursor.execute(RECORD, (MINUTE,))
    counts: Counter[tuple[str, ...]] = Counter()
    for meter, decision, late, unpriced, metered_rows, unmetered_rows in cursor.execute(COUNT).fetchall():
        counts["late_rows", meter] += metered_rows if late else 0
        counts["unpriced_rows", meter] += metered_rows if unpriced else 0
        counts["unmetered_rows", meter] += unmetered_rows
        if decision is not None:
            counts["stragglers", meter, decision] += metered_rows
    return counts


JOB = PostgresJob(
    name="billing",
    reads=Table.USAGE,
    columns=COLUMNS,
    config=BillingConfig,
    build=build,
    staged=STAGED,
    fold=fold,
)
