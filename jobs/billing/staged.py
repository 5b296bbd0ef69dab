"""The input of billing's fold: sums of one micro-batch by window, meter, price version, sign and arrival."""

from __future__ import annotations

import pyarrow as pa

from jobs.streams import AMOUNT, INSTANT, QUANTITY, UNIT_PRICE
from metering.vocabulary import BILLED

SUM = pa.decimal128(38, QUANTITY.scale)
"""Of quantities below 10^11: no batch has the 10^21 rows that it takes to fill it."""

STAGED = pa.schema(
    [
        # First what tells rows apart: Postgres unpacks a row up to the column that it looks for.
        pa.field("usage_lsn", pa.int64()),
        pa.field("decision", pa.string()),
        pa.field("aggregation", pa.string()),
        pa.field("cause", pa.string(), nullable=False),
        pa.field("window_start", INSTANT, nullable=False),
        pa.field("account", pa.string(), nullable=False),
        pa.field("model", pa.string()),
        pa.field("meter", pa.string(), nullable=False),
        pa.field("currency", pa.string()),
        pa.field("price_version", pa.int64()),
        pa.field("unit_price", UNIT_PRICE),
        pa.field("lowest_unit_price", UNIT_PRICE),
        pa.field("sign", pa.int32(), nullable=False),
        pa.field("late", pa.bool_(), nullable=False),
        pa.field("corrects_lsns", pa.string()),
        pa.field("request_id", pa.string()),
        pa.field("hold_until", INSTANT),
        pa.field("hold_expires", pa.string()),
        pa.field("hold_above", AMOUNT),
        pa.field("is_correction", pa.bool_(), nullable=False),
        pa.field("was_closed", pa.bool_()),
        pa.field("day", pa.date32(), nullable=False),
        pa.field("dimensions", pa.string()),
        pa.field("first_lsn", pa.int64(), nullable=False),
        pa.field("event_time", INSTANT),
        pa.field("received_at", INSTANT),
        pa.field("quantity", SUM, nullable=False),
        pa.field("metered_rows", pa.int64(), nullable=False),
        pa.field("unmetered_rows", pa.int64(), nullable=False),
        pa.field("unsound_rows", pa.int64(), nullable=False),
        pa.field("period", pa.string()),
        pa.field("member", pa.string()),
        pa.field("value", QUANTITY),
        pa.field("occurred_at", INSTANT),
        pa.field("ends_at", INSTANT),
    ]
)
"""Quantities are signed. `dimensions` is JSON; `first_lsn` is the lowest of usage, or where what had waited takes
effect. A straggler, which has a `decision`, is a row of its own (`usage_lsn`, `request_id`, and only there `event_time`
and `received_at`), and so is what corrects others: `corrects_lsns`, as Postgres writes an array of bigint. Of the
latter the database says which decision they inherit; whether its window `was_closed` says the F of its row of usage
(null: an older release's, of which the database says it). One that is held has a deadline and what is decided then;
`hold_above`: only if its amount is above that. A row of cause `decided` is what somebody has decided about the
straggler in `corrects_lsns`: `dimensions` says it (`streams.USAGE`). `unit_price` and `lowest_unit_price` are the
highest and lowest of the price version; `metered_rows` have a quantity other than 0, `unmetered_rows` should have one
and have none, `unsound_rows` have an amount that is not quantity x unit price. A row with an `aggregation` is in no
window: it adds or removes a `member`, `quantity` times, of the `period` that begins at `window_start` and whose first
day is `day`; with `ends_at`, it came after the period, which ends then, had closed."""

IS_BILLED = f"coalesce(decision IN ({', '.join(repr(decision.value) for decision in BILLED)}), true)"
"""Whether a row of `staged` or `stragglers` is in its window: what is no straggler is."""
