"""How the wait of a straggler ends, from usage alone: by a decision row, by F at its deadline, or not yet."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import polars as pl
import pyarrow as pa

from jobs.billing.sums import CHANGES_A_WINDOW, IS_DECISION
from metering.digits import EXACT
from metering.vocabulary import Decision

INSTANT = pl.Datetime("us", "UTC")
JOURNALED = pl.Schema(
    {
        "usage_lsn": pl.Int64(),
        **{name: pl.String() for name in ("meter", "account", "request_id")},
        "decided_lsn": pl.Int64(),
        "decided_at": INSTANT,
        **{name: pl.String() for name in ("decision", "decided_by", "reason")},
    }
)
"""What people decided, each in a row of usage (`decided_lsn`), about the straggler that it names thrice."""
_BY_NAME = ("usage_lsn", "meter", "account", "request_id")
_ENDED = ("decided_lsn", "decided_at", "decided_by", "reason")
_PEOPLE = (Decision.APPROVE.value, Decision.REJECT.value)
_IS_HELD = pl.col("decision").eq_missing(Decision.HOLD.value)


def journaled_decisions(usage: pa.Table) -> pl.DataFrame:
    """Rows of usage (`sums.COLUMNS`) → JOURNALED of the decisions among them."""
    rows = pl.DataFrame(usage).filter(IS_DECISION)
    if rows.is_empty() or "meters" not in rows.columns:
        return pl.DataFrame(schema=JOURNALED)
    decision = pl.Struct({name: pl.String() for name in ("decision", "decided_by", "reason")})
    return (
        rows.select(
            "account",
            "request_id",
            usage_lsn=pl.col("corrects_lsns").list.first(),
            meter=pl.col("meters").list.first().struct.field("meter"),
            decided_lsn="lsn",
            decided_at="received_at",
            decision_text=pl.col("dimensions").str.json_decode(decision),
        )
        .unnest("decision_text")
        .filter(pl.col("decision").is_in(_PEOPLE))
        .select(JOURNALED.names())
        .cast(JOURNALED)
    )


def settle(rows: pl.DataFrame, journaled: pl.DataFrame, frontier: datetime | None) -> pl.DataFrame:
    """Sums (STAGED) with the fate of held stragglers by all of usage and F, and who decided (`_ENDED`).

    `journaled`: JOURNALED. The first decision before the deadline counts; no decision that comes later has a row of
    usage that was received before it.
    """
    rows = rows.with_columns(pl.lit(None, JOURNALED[name]).alias(name) for name in _ENDED)
    if not rows.select(_IS_HELD.any()).item():
        return rows
    waits, rest = _without_small(rows)
    counts = (pl.col("decided_at") < pl.col("hold_until")) & (pl.col("decided_lsn") > pl.col("usage_lsn"))
    first = (
        waits.select(*_BY_NAME, "hold_until")
        .join(journaled, on=_BY_NAME, how="inner")
        .filter(counts)
        .sort("decided_lsn")
        .unique(["usage_lsn", "meter"], keep="first")
        .select("usage_lsn", "meter", *_ENDED, by_people="decision")
    )
    is_expired = pl.lit(frontier, INSTANT) >= pl.col("hold_until")
    expired = pl.col("by_people").is_null() & is_expired.fill_null(value=False)
    ended = (
        waits.drop(_ENDED)
        .join(first, on=["usage_lsn", "meter"], how="left")
        .with_columns(
            decision=pl.when(expired).then("hold_expires").otherwise(pl.coalesce("by_people", "decision")),
            decided_at=pl.when(expired).then("hold_until").otherwise("decided_at"),
        )
    )
    return pl.concat([rest, ended.select(rest.columns)])


def _without_small(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What waits, and the rest: also what is not worth as much as it takes to be held, which corrects at once."""
    held, rest = rows.filter(_IS_HELD), rows.filter(~_IS_HELD)
    worth = held.select("quantity", "unit_price", "hold_above").iter_rows()
    # Of a meter of which another bills a part, both parts must be.
    each_is_small = pl.Series("is_small", [_is_small(*values) for values in worth], dtype=pl.Boolean)
    is_small = held.with_columns(each_is_small).select(pl.col("is_small").all().over("usage_lsn", "meter")).to_series()
    goes = held.filter(is_small).with_columns(
        decision=pl.lit(CHANGES_A_WINDOW),
        hold_until=pl.lit(None, INSTANT),
        hold_expires=pl.lit(None, pl.String),
    )
    return held.filter(~is_small), pl.concat([rest, goes])


def _is_small(quantity: Decimal, unit_price: Decimal | None, above: Decimal | None) -> bool:
    """An amount is a product. What has no price is not known to be worth little."""
    if unit_price is None or above is None:
        return False
    return EXACT.abs(EXACT.multiply(quantity, unit_price)) <= above
