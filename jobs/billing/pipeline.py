"""usage → sums per minute window, meter and price → Postgres `usage_windows` and `stragglers`.

Every signed quantity and amount is in exactly one window or dropped straggler, to the last digit; currencies never mix.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.types.json import Jsonb
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.billing.config import BillingConfig
from jobs.billing.rules import JUDGED_CAUSE
from jobs.event_time.windows import MINUTE
from jobs.runtime.errors import Refused
from jobs.runtime.job import Counts, Fold, PostgresJob
from jobs.runtime.position import with_fingerprint
from jobs.streams import INSTANT, UNIT_PRICE, Meter, Outcome, Table


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
QUANTITY = pa.decimal128(28, 0)
"""A sum of quantities of at most 18 digits: no batch has the 10^10 rows that it takes to fill it."""
SUMS = {
    "unit_price": UNIT_PRICE,
    "lowest_unit_price": UNIT_PRICE,
    "quantity": QUANTITY,
    "reported_rows": pa.int64(),
    "metered_rows": pa.int64(),
    "unsound_rows": pa.int64(),
}


def _sums(meter: Meter) -> list[pa.Field]:
    return [
        pa.field(f"{meter}_price_version", pa.int64()),
        *[pa.field(f"{meter}_{name}", kind) for name, kind in SUMS.items()],
    ]


STAGED = pa.schema(
    [
        pa.field("window_start", INSTANT, nullable=False),
        pa.field("account", pa.string(), nullable=False),
        pa.field("model", pa.string()),
        pa.field("currency", pa.string()),
        pa.field("cause", pa.string(), nullable=False),
        pa.field("sign", pa.int32(), nullable=False),
        pa.field("matched", pa.bool_(), nullable=False),
        pa.field("late", pa.bool_(), nullable=False),
        pa.field("straggler_lsn", pa.int64()),
        pa.field("request_id", pa.string()),
        pa.field("event_time", INSTANT, nullable=False),
        pa.field("received_at", INSTANT, nullable=False),
        pa.field("usage_rows", pa.int64(), nullable=False),
        *[field for meter in Meter for field in _sums(meter)],
    ]
)
"""Sums of one micro-batch, the meters side by side, not yet signed. A straggler (`straggler_lsn`, `request_id`) is a
row by itself. Per meter: the price version's unit price (the highest and the lowest), rows that reported the meter,
rows with a quantity other than 0, and rows whose amount is not what quantity and unit price say."""


def build(usage: DataFrame, config: BillingConfig) -> DataFrame:
    """Usage rows → sums per window, price versions, sign and arrival; columns of `STAGED`.

    The meters stay side by side: a quarter of the rows to group, and half the planning of a small batch. What is the
    same for a whole group (its sign, whether a completion came) is a key, so it costs nothing per row. Amounts are not
    added up: the database multiplies a sum of quantities by its unit price.
    """
    return (
        _judged(usage, config)
        .groupBy(*GROUP, *[f"{meter}_price_version" for meter in Meter])
        .agg(
            F.max("event_time").alias("event_time"),
            F.max("received_at").alias("received_at"),
            F.count("*").alias("usage_rows"),
            *[total for meter in Meter for total in _totals(meter)],
        )
        .select(*STAGED.names)
    )


def _judged(usage: DataFrame, config: BillingConfig) -> DataFrame:
    """Usage rows with their minute and their arrival: `late`, or a `straggler_lsn` of its own."""
    window_start = F.date_trunc("minute", "event_time")
    window_end = window_start + F.expr(f"INTERVAL '{int(MINUTE.total_seconds())}' SECOND")
    closes_at = window_end + F.expr(f"INTERVAL '{config.grace_seconds}' SECOND")
    is_straggler = F.col("received_at") >= closes_at
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
        # Longs would end at 9.2 million rows of 10^12 tokens in one batch, which an older journal may hold.
        F.sum(F.col(meter).cast("decimal(18, 0)")),
        F.count(meter),
        F.count_if(F.col(meter) != 0),
        F.count_if(~_is_sound(meter)),
    ]
    return [total.alias(f"{meter}_{name}") for total, name in zip(totals, SUMS, strict=True)]


def _is_sound(meter: Meter) -> Column:
    """A priced row has the amount that its quantity and unit price make, to the last digit; any other has none."""
    return F.expr(f"""coalesce(
        IF({meter} IS NULL OR {meter}_price_version IS NULL,
           {meter}_amount IS NULL,
           {meter}_amount = CAST({meter} AS DECIMAL(17, 0)) * {meter}_unit_price),
        false)""")


_IS_WRONG = " OR ".join(f"{m}_unsound_rows > 0 OR {m}_lowest_unit_price <> {m}_unit_price" for m in Meter)

# Only here is a wrong row still near its own; once it is added to a window nobody can tell.
UNSOUND = f"""
SELECT cause, sign FROM staged
WHERE cause <> %(judged)s OR sign NOT IN (1, -1) OR {_IS_WRONG}
ORDER BY cause <> %(judged)s DESC LIMIT 1
"""

# Null is not 0: a completion that came and did not report a meter leaves a row that counts it. A zero leaves nothing.
SUM_BY_METER = f"""
CREATE TEMP TABLE sums ON COMMIT DROP AS
SELECT window_start, account, model, meter, currency, price_version, unit_price,
       sign * coalesce(quantity, 0) AS quantity, metered_rows,
       CASE WHEN matched THEN usage_rows - reported_rows ELSE 0 END AS unmetered_rows,
       late, straggler_lsn, request_id, event_time, received_at,
       CASE WHEN straggler_lsn IS NOT NULL THEN %(late_policy)s::jsonb ->> meter END AS decision
FROM staged CROSS JOIN LATERAL (
    VALUES {", ".join(f"('{m}', {m}_price_version, {', '.join(f'{m}_{name}' for name in SUMS)})" for m in Meter)}
) AS metered (meter, price_version, {", ".join(SUMS)})
WHERE metered_rows > 0 OR (matched AND usage_rows > reported_rows)
"""

# Another unit price under one version would change what its windows were billed at. Rows with a price have a model and
# a currency too, so each finds its window by the key's index.
REPRICED = """
SELECT price_version FROM sums GROUP BY price_version HAVING min(unit_price) <> max(unit_price)
UNION ALL
SELECT sums.price_version
FROM sums JOIN usage_windows USING (window_start, account, model, meter, currency, price_version)
WHERE usage_windows.unit_price <> sums.unit_price
LIMIT 1
"""

# The amount is the row's own quantity times its unit price: nothing adds it up, so nothing rounds or ends it.
# A window that no row had reached before is still corrected by a straggler: it had closed, empty.
ADD = """
INSERT INTO usage_windows AS old (
    window_start, window_end, account, model, meter, currency, price_version,
    quantity, unit_price, late_quantity, late_rows, unmetered_rows, corrected
)
SELECT window_start, window_start + %s, account, model, meter, currency, price_version,
       sum(quantity), max(unit_price),
       coalesce(sum(quantity) FILTER (WHERE late), 0), coalesce(sum(metered_rows) FILTER (WHERE late), 0),
       sum(unmetered_rows), bool_or(straggler_lsn IS NOT NULL AND metered_rows > 0)
FROM sums
WHERE decision IS DISTINCT FROM 'drop'
GROUP BY window_start, account, model, meter, currency, price_version
ORDER BY window_start, account, model, meter, currency, price_version
ON CONFLICT ON CONSTRAINT usage_windows_key DO UPDATE SET
    quantity = old.quantity + excluded.quantity,
    unit_price = coalesce(old.unit_price, excluded.unit_price),
    late_quantity = old.late_quantity + excluded.late_quantity,
    late_rows = old.late_rows + excluded.late_rows,
    unmetered_rows = old.unmetered_rows + excluded.unmetered_rows,
    corrected = old.corrected OR excluded.corrected,
    updated_at = now()
"""

RECORD = """
INSERT INTO stragglers (
    usage_lsn, meter, account, model, request_id, window_start, event_time, received_at, late_seconds,
    decision, quantity, unit_price, currency, price_version
)
SELECT straggler_lsn, meter, account, model, request_id, window_start, event_time, received_at,
       extract(epoch FROM received_at - (window_start + %s)),
       decision, quantity, unit_price, currency, price_version
FROM sums
WHERE straggler_lsn IS NOT NULL AND metered_rows > 0
ORDER BY straggler_lsn, meter
"""

COUNT = """
SELECT meter, decision, late, price_version IS NULL, sum(metered_rows), sum(unmetered_rows)
FROM sums GROUP BY 1, 2, 3, 4
"""


def fold(cursor: psycopg.Cursor[Any], config: BillingConfig, _frontiers: Fold) -> Counts:
    """Add `staged` to `usage_windows`, record its stragglers; returns late, straggler, unpriced and unmetered rows.

    Raises Refused for usage that cannot be added up: of a cause that is not judged here (its decision would have to be
    inherited), with a sign that is neither 1 nor -1, with an amount that is not its quantity times its unit price, or
    with another unit price than its price version had before.
    """
    unsound = cursor.execute(UNSOUND, {"judged": JUDGED_CAUSE}).fetchone()
    if unsound is not None:
        cause, sign = unsound
        raise Refused(
            f"usage holds rows of cause '{cause}' and sign {sign} that this version of billing cannot add up (it knows "
            f"cause '{JUDGED_CAUSE}', sign 1 or -1, and an amount with every price: quantity x unit price, one per "
            "price version); install the version that wrote them and start billing again"
        )
    cursor.execute(SUM_BY_METER, {"late_policy": Jsonb(config.late_policy)})
    repriced = cursor.execute(REPRICED).fetchone()
    if repriced is not None:
        raise Refused(
            f"usage holds price version {repriced[0]} at another unit price than the windows it was billed in; restore "
            "the usage table that wrote them and start billing again"
        )
    cursor.execute(ADD, (MINUTE,))
    cursor.execute(RECORD, (MINUTE,))
    counts: Counter[tuple[str, ...]] = Counter()
    for meter, decision, late, unpriced, *rows in cursor.execute(COUNT).fetchall():
        metered_rows, unmetered_rows = map(int, rows)
        counts["late_rows", meter] += metered_rows if late else 0
        counts["unpriced_rows", meter] += metered_rows if unpriced else 0
        counts["unmetered_rows", meter] += unmetered_rows
        if decision is not None:
            counts["stragglers", meter, decision] += metered_rows
    return counts


JOB = PostgresJob(
    name="billing",
    reads=Table.USAGE,
    columns=with_fingerprint(Table.USAGE, COLUMNS),
    config=BillingConfig,
    build=build,
    staged=STAGED,
    fold=fold,
)
