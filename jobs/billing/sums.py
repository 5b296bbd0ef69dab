"""Usage rows → sums per minute, meter, price version and arrival. Amounts are not added up: the database multiplies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from jobs.billing.member_sums import member_sums
from jobs.billing.merging import has_late_members, merged
from jobs.billing.rules import grace, history_until, holds, of_meter, policy
from jobs.billing.staged import STAGED
from jobs.runtime.effective_rules import EffectiveRules, History, Rules, parts_by_rules
from jobs.streams import AMOUNT, QUANTITY, UNIT_PRICE
from jobs.usage_entries import METERED_COLUMNS, metered
from jobs.usage_members import MEMBERS
from metering.holding import Hold
from metering.meters import OfMeter
from metering.pricing import BILLED_AS_PART
from metering.vocabulary import Decision, LatePolicy, UsageCause
from metering.windows import MINUTE

COLUMNS = (
    *("lsn", "account", "request_id", "model", "outcome", "event_time", "received_at", "currency", "sign", "cause"),
    *("corrects_lsns", "day", "dimensions", "first_received_at", "frontier", MEMBERS, *METERED_COLUMNS),
)
"""What is read of usage."""
BATCH_ROWS = 50_000
"""Rows of usage at once: each of their entries is temporarily a full row."""
IS_FROM_STREAM = pl.col("cause") == UsageCause.STREAM.value
"""By its arrival. What corrects a row inherits its decision, which only the database knows."""
IS_DECISION = pl.col("cause") == UsageCause.DECIDED.value
"""It bills nothing: it is a decision about a straggler."""
CHANGES_A_WINDOW = Decision.CORRECT.value
AMOUNT_KIND = pl.Decimal(AMOUNT.precision, AMOUNT.scale)
KEY = (
    *("window_start", "account", "model", "currency", "cause", "sign", "late", "usage_lsn", "request_id"),
    *("corrects_lsns", "meter", "price_version", "day", "dimensions", "is_due", "was_closed"),
)


def sums(usage: pa.Table, history: History | EffectiveRules, at_once: int = BATCH_ROWS) -> pa.Table:
    """Usage rows (COLUMNS) → STAGED, for each window, meter, price version, sign and arrival that something reached.

    `history` are rules of billing, each row by those that decide it. What ended by their `closed_before` had closed
    under another grace: a longer grace does not reopen them. At most `at_once` rows are added up together.
    """
    history = (history,) if isinstance(history, EffectiveRules) else history
    parts = [*_parts(usage, history, at_once)]
    if len(parts) == 1 and not has_late_members(parts[0]):
        return parts[0]
    return merged(pa.concat_tables([STAGED.empty_table(), *parts]))


def sums_of_part(usage: pa.Table, history: History) -> pa.Table:
    """The same of any part of the rows. What `merged` makes of all parts does not depend on how usage was cut.

    Late members of periods are not added up yet, because only all rows of an account say whether their place matters.
    """
    return pa.concat_tables([STAGED.empty_table(), *_parts(usage, history)])


def _parts(usage: pa.Table, history: History, at_once: int = BATCH_ROWS) -> Iterator[pa.Table]:
    for decided, effective in parts_by_rules(usage, history):
        for first in range(0, max(1, len(decided)), at_once):
            yield _sums(decided.slice(first, at_once), effective)


def _sums(usage: pa.Table, effective: EffectiveRules) -> pa.Table:
    placed = _placed(pl.DataFrame(usage).lazy())
    entries = _with_arrivals(metered(placed.drop(MEMBERS, strict=False)), effective).collect()
    quantity, is_wrong = pl.col("quantity"), (~_is_sound(entries)).alias("is_wrong")
    summed = (
        entries.with_columns(is_wrong)
        # Here, so that a row which changes nothing leaves nothing in any part of the rows.
        .filter((quantity != 0).fill_null(IS_FROM_STREAM) | pl.col("is_wrong") | IS_DECISION)
        .group_by(KEY)
        .agg(
            pl.max("unit_price"),
            pl.min("unit_price").alias("lowest_unit_price"),
            pl.max("event_time"),
            pl.max("received_at"),
            # The first row that changes the day: a row of quantity 0 does not.
            pl.coalesce(pl.col("lsn").filter(quantity != 0).min(), pl.col("lsn").min()).alias("first_lsn"),
            quantity.sum(),
            metered_rows=(quantity != 0).sum().cast(pl.Int64),
            # Counted on arrival: a correcting row repeats that it was not reported, and is not counted.
            unmetered_rows=(quantity.is_null() & IS_FROM_STREAM).sum().cast(pl.Int64),
            unsound_rows=pl.sum("is_wrong").cast(pl.Int64),
        )
        .with_columns(quantity=pl.when(pl.col("sign") < 0).then(-quantity).otherwise(quantity))
        .pipe(_decided, effective.rules)
        .with_columns(is_correction=(pl.col("metered_rows") > 0) & pl.col("decision").eq_missing(CHANGES_A_WINDOW))
    )
    of_windows = _staged(summed)
    if MEMBERS not in usage.column_names or usage[MEMBERS].null_count == len(usage):
        return of_windows
    return pa.concat_tables([of_windows, _staged(member_sums(placed.collect(), effective))])


def _staged(summed: pl.DataFrame) -> pa.Table:
    """As STAGED, with null in the columns that the rows lack. When it was, only a row of its own says."""
    absent = [pl.lit(None).alias(name) for name in STAGED.names if name not in summed.columns]
    times = pl.when(pl.col("usage_lsn").is_not_null()).then(pl.col("event_time", "received_at"))
    return summed.with_columns(absent).with_columns(times).select(STAGED.names).to_arrow().cast(STAGED)


def _placed(usage: pl.LazyFrame) -> pl.LazyFrame:
    """Usage rows with their minute, their day, which only 0.1.0 left to others, and when they were received first."""
    occurred_at, stored = pl.col("event_time"), usage.collect_schema().names()
    # joins may not yet have given the table of an earlier release its columns.
    first = ["first_received_at"] if "first_received_at" in stored else []
    instant = pl.Datetime("us", "UTC")
    return usage.with_columns(
        (pl.col("frontier").cast(instant) if "frontier" in stored else pl.lit(None, instant)).alias("frontier"),
        pl.coalesce(*first, "received_at").alias("first_received_at"),
        pl.coalesce("day", occurred_at.dt.date()),
        corrects_lsns="{" + pl.col("corrects_lsns").cast(pl.List(pl.String)).list.join(",") + "}",
        window_start=occurred_at.dt.truncate("1m"),
    )


def _with_arrivals(entries: pl.LazyFrame, effective: EffectiveRules) -> pl.LazyFrame:
    """The quantities of a row by meter, with its arrival: `late`, or an entry of its own.

    A straggler, and all that is not from the stream, is an entry of its own. A redriven dead letter, or a record of the
    past, changes a window that had closed, like any straggler; but the meter's late policy applies (`is_due`) only if
    it was a straggler when it was first received. What ended by `history_until` was billed elsewhere: there a record of
    the past arrives as it did then.
    """
    received_at, first_received_at = pl.col("received_at"), pl.col("first_received_at")
    window_end = pl.col("window_start") + MINUTE
    closes_at = window_end + of_meter(grace(effective.rules), pl.Duration("us"))
    had_closed = (window_end <= of_meter(effective.closed_before, pl.Datetime("us", "UTC"))).fill_null(False)
    until = pl.lit(history_until(effective.rules), pl.Datetime("us", "UTC"))
    is_history = (first_received_at < received_at) & (window_end <= until).fill_null(False)
    arrived_at = pl.when(is_history).then("first_received_at").otherwise("received_at")
    is_straggler = (had_closed & ~is_history) | (arrived_at >= closes_at)
    stands_alone = is_straggler | ~IS_FROM_STREAM
    return entries.with_columns(
        late=(first_received_at >= window_end) & ~stands_alone,
        is_due=(first_received_at >= closes_at) | (first_received_at == received_at) | ~stands_alone,
        usage_lsn=pl.when(stands_alone).then("lsn"),
        request_id=pl.when(stands_alone).then("request_id"),
        corrects_lsns=pl.when(~IS_FROM_STREAM).then("corrects_lsns"),
        was_closed=pl.when(~IS_FROM_STREAM & pl.col("frontier").is_not_null()).then(
            had_closed | (closes_at <= pl.col("frontier"))
        ),
    )


def _decided(summed: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Sums with the decision about stragglers, and how held ones wait: `Hold.holds` except for amounts.

    A quantity that was not reported cannot wait: it is counted at once.
    """
    is_straggler = pl.col("usage_lsn").is_not_null() & IS_FROM_STREAM
    rule = of_meter(policy(rules), pl.String())
    held = {meter: hold for meter, hold in holds(rules).items() if meter in summed["meter"]}
    is_policy = (rule == LatePolicy.HOLD.value) & pl.col("is_due") & (pl.col("metered_rows") > 0)

    def of_hold(kind: pl.DataType, value: Callable[[Hold], Any]) -> pl.Expr:
        return of_meter(OfMeter(None, {meter: value(hold) for meter, hold in held.items()}), kind)

    age = pl.col("received_at") - (pl.col("window_start") + MINUTE)
    is_old = (age > of_hold(pl.Duration("us"), lambda hold: hold.above_age)).fill_null(False)
    above = pl.coalesce(_above_of_currency(held), of_hold(AMOUNT_KIND, lambda hold: hold.above_amount))
    has_limit = of_hold(pl.Boolean(), lambda hold: hold.has_limit).fill_null(False)
    # Of a currency that is not named nothing is known to be little.
    is_unknown = (
        of_hold(pl.Boolean(), lambda hold: bool(hold.above_amount_by_currency)).fill_null(False) & above.is_null()
    )
    is_held = is_straggler & is_policy & (is_old | above.is_not_null() | is_unknown | ~has_limit)
    other = pl.when(pl.col("is_due") & (rule != LatePolicy.HOLD.value)).then(rule).otherwise(pl.lit(CHANGES_A_WINDOW))
    return summed.with_columns(
        decision=pl.when(is_held).then(pl.lit(Decision.HOLD.value)).when(is_straggler).then(other),
        hold_until=pl.when(is_held).then(pl.col("received_at") + of_hold(pl.Duration("us"), lambda hold: hold.time)),
        hold_expires=pl.when(is_held).then(of_hold(pl.String(), lambda hold: hold.expires.value)),
        hold_above=pl.when(is_held & ~is_old).then(above),
    )


def _above_of_currency(held: Mapping[str, Hold]) -> pl.Expr:
    """The amount that a meter's hold has for the currency of a row; null where it names none."""
    found = pl.lit(None, AMOUNT_KIND)
    for meter, hold in held.items():
        for currency, amount in hold.above_amount_by_currency.items():
            is_of = (pl.col("meter") == meter) & (pl.col("currency") == currency)
            found = pl.when(is_of).then(pl.lit(amount, AMOUNT_KIND)).otherwise(found)
    return found


def _is_sound(entries: pl.DataFrame) -> pl.Series:
    """A row with a unit price has the amount that its quantity makes, to the last digit; any other has none.

    A version without a unit price has tiers or packages, whose amounts only a month's total knows.
    """
    quantity, unit_price, amount = (
        entries[name].to_arrow().cast(kind)
        for name, kind in (("quantity", QUANTITY), ("unit_price", UNIT_PRICE), ("amount", AMOUNT))
    )
    versions = entries["price_version"].to_arrow()
    is_elsewhere = pc.fill_null(pc.less_equal(versions, BILLED_AS_PART), False)
    has_price = pc.and_(pc.is_valid(versions), pc.or_(pc.is_valid(unit_price), is_elsewhere))
    is_priced = pc.and_(pc.is_valid(quantity), has_price)
    is_product = pc.fill_null(pc.equal(pc.multiply(quantity, unit_price), amount), False)
    return pl.Series(pc.if_else(is_priced, is_product, pc.is_null(amount)))
