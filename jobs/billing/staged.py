"""What Spark hands to the fold: the sums of one micro-batch, one row per window, price versions, sign and arrival."""

from __future__ import annotations

import pyarrow as pa

from jobs.streams import INSTANT, UNIT_PRICE
from metering.meters import Meter

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
