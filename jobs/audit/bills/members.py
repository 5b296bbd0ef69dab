"""I6 of meters of a period: stored members and quantities equal those made from usage.

I8 of them: the corrections of a closed period are those that the rows of usage make that came after it had closed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import polars as pl

from jobs.audit.compare.columns import Compared, Wrong, value_text
from jobs.audit.recompute.money import SUM
from jobs.billing.member_corrections import PeriodKey, member_of, period_key
from jobs.streams import UNIT_PRICE
from metering.digits import EXACT
from metering.period_meters import Aggregation, Period, quantity_of
from metering.windows import MINUTE

_INSTANT = pl.Datetime("us", "UTC")
_VALUE = pl.Decimal(38, 6)
OF_SET = ("account", "day", "model", "meter", "currency", "price_version")
_KEY = (*OF_SET, "member")
MEMBERS = pl.Schema(
    {
        "account": pl.String(),
        "day": pl.Date(),
        **{name: pl.String() for name in ("model", "meter", "currency")},
        "price_version": pl.Int64(),
        "member": pl.String(),
        "value": _VALUE,
        "occurred_at": _INSTANT,
        "member_rows": pl.Int64(),
    }
)
"""`usage_members`; `day` is the first of the period."""
MADE_MEMBERS = pl.Schema(
    {
        **MEMBERS,
        "aggregation": pl.String(),
        "period": pl.String(),
        "unit_price": pl.Decimal(UNIT_PRICE.precision, UNIT_PRICE.scale),
        "first_window": _INSTANT,
        "last_window": _INSTANT,
        "history_lsn": pl.Int64(),
    }
)
"""Members as usage makes them, with the columns of their period. `history_lsn`: the first row of usage that came after
the close and is no correction, as it is history (`history_until`); null: there is none.
"""
CORRECTING_MEMBERS = pl.Schema(
    {
        **{name: MEMBERS[name] for name in (*OF_SET, "member", "value", "occurred_at")},
        **dict.fromkeys(("aggregation", "period", "cause"), pl.String()),
        "unit_price": MADE_MEMBERS["unit_price"],
        "window_start": _INSTANT,
        "usage_lsn": pl.Int64(),
        "corrects_lsns": pl.List(pl.Int64()),
        "ends_at": _INSTANT,
        "sign": pl.Int32(),
    }
)
"""Rows of usage that add or remove a member of a closed period."""
LATE_MEMBERS = pl.Schema(
    {
        **dict.fromkeys(("account", "meter"), pl.String()),
        "usage_lsn": pl.Int64(),
        **{
            name: MEMBERS[name]
            for name in ("day", "model", "currency", "price_version", "member", "value", "occurred_at")
        },
        **dict.fromkeys(("aggregation", "period", "cause"), pl.String()),
        **dict.fromkeys(("window_start", "ends_at"), _INSTANT),
        "sign": pl.Int32(),
    }
)
"""`late_members` that are corrections: CORRECTING_MEMBERS whose correction is not written yet."""
STORED_CORRECTIONS = pl.Schema(
    {
        **dict.fromkeys(("account", "meter"), pl.String()),
        **dict.fromkeys(("number", "usage_lsn"), pl.Int64()),
        "window_start": _INSTANT,
        **dict.fromkeys(("model", "currency", "usage_lsns", "cause", "period"), pl.String()),
        **dict.fromkeys(("old_quantity", "new_quantity", "old_amount", "new_amount"), pl.String()),
    }
)
"""`corrections` of periods; numbers as texts."""
_MEMBERS = Compared(
    "the period from {day}, {meter} of {account}, {model}, {member} at price version {price_version} ({currency})",
    _KEY,
    ("value", "occurred_at", "member_rows"),
    absent={},
)

_LATE = Compared(
    "the late row {usage_lsn} of usage, {meter} of {account}, {model}, in the period from {day}",
    ("usage_lsn", "meter", "account"),
    tuple(name for name in LATE_MEMBERS if name not in ("usage_lsn", "meter", "account")),
    absent={},
)


def made_members(staged: pl.DataFrame) -> pl.DataFrame:
    """STAGED (`billing.sums`) → MADE_MEMBERS, one row per key."""
    rows = staged.filter(pl.col("aggregation").is_not_null())
    return added_members(
        rows.select(
            pl.exclude("quantity"),
            pl.col("quantity").cast(pl.Int64).alias("member_rows"),
            pl.col("window_start").alias("first_window"),
            pl.col("window_start").alias("last_window"),
            pl.when(~pl.col("is_correction") & pl.col("ends_at").is_not_null()).then("first_lsn").alias("history_lsn"),
        )
    )


def added_members(rows: pl.DataFrame) -> pl.DataFrame:
    """MADE_MEMBERS with one row per key."""
    summed = rows.group_by(_KEY).agg(
        pl.sum("member_rows"),
        pl.max("value", "occurred_at", "aggregation", "period", "unit_price", "last_window"),
        pl.min("first_window", "history_lsn"),
    )
    return summed.select(pl.col(name).cast(kind) for name, kind in MADE_MEMBERS.items())


def correcting_members(staged: pl.DataFrame) -> pl.DataFrame:
    """STAGED → CORRECTING_MEMBERS."""
    rows = staged.filter(pl.col("aggregation").is_not_null() & pl.col("is_correction"))
    corrected = pl.col("corrects_lsns").str.strip_chars("{}").str.split(",").cast(pl.List(pl.Int64), strict=False)
    return rows.with_columns(corrected).select(pl.col(name).cast(kind) for name, kind in CORRECTING_MEMBERS.items())


def days_of_sets(made: pl.DataFrame) -> pl.DataFrame:
    """MADE_MEMBERS with one row per key → the quantities of their periods, as `expected.DAYS`."""
    stands = pl.col("member_rows") > 0
    is_unique = pl.col("aggregation") == Aggregation.UNIQUE.value
    ordered = made.sort("occurred_at", "value", nulls_last=False)
    is_least = pl.col("aggregation") == Aggregation.MIN.value
    least, last = pl.col("value").filter(stands).min(), pl.col("value").filter(stands).last()
    return ordered.group_by(OF_SET).agg(
        quantity=pl.when(is_unique.any())
        .then(stands.sum().cast(SUM))
        .otherwise(pl.when(is_least.any()).then(least).otherwise(last).fill_null(Decimal(0)).cast(SUM)),
        unit_price=pl.max("unit_price"),
        usage_rows=pl.sum("member_rows"),
        first_window=pl.min("first_window"),
        last_window_end=pl.max("last_window") + MINUTE,
        dimensions=pl.lit(None, pl.String),
        corrected=pl.lit(value=False),
        is_put_right=pl.lit(value=True),
    )


def whole_periods(
    rows: pl.DataFrame, periods: Mapping[str, Period], begin: date | None, until: date | None
) -> pl.DataFrame:
    """Rows (day, meter) whose period lies between these days; None: no bound. Rows of other meters are left out."""
    ends = [
        (meter, day, period.following(day))
        for meter, period in periods.items()
        for day in rows.filter(pl.col("meter") == meter)["day"].unique()
    ]
    known = pl.DataFrame(ends, schema={"meter": pl.String, "day": pl.Date, "_ends": pl.Date}, orient="row")
    placed = rows.join(known, on=["meter", "day"], how="inner")
    bounds = [pl.col("day") >= begin] if begin is not None else []
    bounds += [pl.col("_ends") <= until] if until is not None else []
    return placed.filter(*bounds).drop("_ends") if bounds else placed.drop("_ends")


def with_first_days(stored: pl.DataFrame, correcting: pl.DataFrame, *, last: bool) -> pl.DataFrame:
    """STORED_CORRECTIONS with the first `day` of their periods, as the rows of usage that they list name it.

    Of other rows it is the first or `last` day that may begin at that instant.
    """
    key = ["usage_lsn", "meter", "account"]
    begins = pl.col("window_start").dt.date() + timedelta(days=int(last))
    named = correcting.select(*key, "day").unique()
    return stored.join(named, on=key, how="left").with_columns(day=pl.coalesce("day", begins))


def unequal_members(made: pl.DataFrame, stored: pl.DataFrame) -> Wrong:
    """MADE_MEMBERS and MEMBERS of the same periods."""
    return _MEMBERS.unequal(stored, made)


def wrong_corrections(
    stored: pl.DataFrame, made: pl.DataFrame, correcting: pl.DataFrame, waiting: pl.DataFrame
) -> Wrong:
    """Periods whose STORED_CORRECTIONS do not lead from the members on time to the quantity of MADE_MEMBERS.

    Each correction begins with the result of the one before it, and lists rows of CORRECTING_MEMBERS of its cause, each
    of which is listed once. Those that are `waiting` (LATE_MEMBERS) are in none yet. If history came after a row that
    corrects, the quantities between are unknown here, and only the lists are compared.
    """
    late = _LATE.unequal(waiting, correcting.join(waiting, on=["usage_lsn", "meter", "account"], how="semi"))
    correcting = correcting.join(waiting, on=["usage_lsn", "meter", "account"], how="anti")
    made = _without(made, waiting)
    changes: defaultdict[PeriodKey, dict[int, dict[str, Any]]] = defaultdict(dict)
    days: dict[tuple[int, str, str], date] = {}
    for row in correcting.to_dicts():
        changes[period_key(row)][row["usage_lsn"]] = row
        days[row["usage_lsn"], row["meter"], row["account"]] = row["day"]
    found: dict[Any, list[dict[str, Any]]] = {key: [] for key in changes}
    for row in stored.sort("number").to_dicts():
        # The start does not name the period: of usage before its account was known it is that of UTC.
        day = days.get((row["usage_lsn"], row["meter"], row["account"]))
        key = None if day is None else period_key({**row, "day": day})
        found.setdefault(key, []).append(row)
    sets = _totals(made, correcting)
    wrong = [
        f"the corrections of {place['meter']} of {place['account']}, {place['model']} ({place['currency']}), in the "
        f"period from {value_text(place['window_start'])} do not lead from what came on time to what it comes to"
        for key, corrections in found.items()
        if not _leads(corrections, changes.get(key, {}), sets)
        for place in [corrections[0] if corrections else next(iter(changes[key].values()))]
    ]
    return late + Wrong(len(stored), len(wrong), min(wrong, default=""))


def _without(made: pl.DataFrame, waiting: pl.DataFrame) -> pl.DataFrame:
    """MADE_MEMBERS without the rows that are `waiting` (LATE_MEMBERS)."""
    rows = waiting.group_by(_KEY).agg(pl.sum("sign").cast(pl.Int64).alias("waiting"))
    counted = made.join(rows, on=_KEY, how="left", nulls_equal=True)
    left = pl.col("member_rows") - pl.col("waiting").fill_null(0)
    return counted.with_columns(left.alias("member_rows")).drop("waiting")


def _leads(
    corrections: list[dict[str, Any]], changing: Mapping[int, dict[str, Any]], sets: dict[PeriodKey, _Totals]
) -> bool:
    """`changing`: rows of CORRECTING_MEMBERS of the period, by lsn."""
    if not changing or not _are_of(corrections, changing):
        return False
    totals = sets[period_key(next(iter(changing.values())))]
    if totals.history_lsn is not None and totals.history_lsn > min(changing):
        return True
    reached = totals.before
    for correction in corrections:
        if _total(correction, "old") != reached:
            return False
        reached = _total(correction, "new")
    return reached == totals.after


def _are_of(corrections: list[dict[str, Any]], changing: Mapping[int, dict[str, Any]]) -> bool:
    """Whether they list each of these rows at most once, and have the cause and the first start of what they list."""
    seen: set[int] = set()
    for correction in corrections:
        lsns = _lsns(correction["usage_lsns"])
        rows = [changing[lsn] for lsn in lsns if lsn in changing]
        if len(rows) < len(lsns) or not seen.isdisjoint(lsns) or len(set(lsns)) < len(lsns):
            return False
        if {row["cause"] for row in rows} != {correction["cause"]}:
            return False
        if min(row["window_start"] for row in rows) != correction["window_start"]:
            return False
        seen.update(lsns)
    return True


def _lsns(text: str) -> list[int]:
    return [int(lsn) for lsn in text.strip("{}").split(",")]


def _total(correction: dict[str, Any], side: str) -> tuple[Decimal, Decimal]:
    return Decimal(correction[f"{side}_quantity"]), Decimal(correction[f"{side}_amount"] or 0)


@dataclass(frozen=True)
class _Totals:
    """Quantity and amount of a period by its members on time and by all, and the last member's first row of history."""

    before: tuple[Decimal, Decimal]
    after: tuple[Decimal, Decimal]
    history_lsn: int | None


def _totals(made: pl.DataFrame, correcting: pl.DataFrame) -> dict[PeriodKey, _Totals]:
    """The totals of each period of CORRECTING_MEMBERS."""
    rows = correcting.to_dicts()
    corrected = {period_key(row) for row in rows}
    late: defaultdict[Any, int] = defaultdict(int)
    for row in rows:
        late[period_key(row), row["price_version"], member_of(row)] += row["sign"]
    by_period: defaultdict[PeriodKey, list[dict[str, Any]]] = defaultdict(list)
    for row in made.to_dicts():
        if (key := period_key(row)) in corrected:
            on_time = row["member_rows"] - late[key, row["price_version"], member_of(row)]
            by_period[key].append({**row, "on_time_rows": on_time})
    return {
        key: _Totals(
            _quantity_and_amount(members, "on_time_rows"),
            _quantity_and_amount(members, "member_rows"),
            max((row["history_lsn"] for row in members if row["history_lsn"] is not None), default=None),
        )
        for key, members in by_period.items()
    }


def _quantity_and_amount(rows: list[dict[str, Any]], count: str) -> tuple[Decimal, Decimal]:
    quantity, amount = Decimal(0), Decimal(0)
    for version in {row["price_version"] for row in rows}:
        of_version = [row for row in rows if row["price_version"] == version]
        counts = {member_of(row): row[count] for row in of_version}
        found = quantity_of(Aggregation(of_version[0]["aggregation"]), counts)
        quantity = EXACT.add(quantity, found)
        amount = EXACT.add(amount, EXACT.multiply(found, of_version[0]["unit_price"] or Decimal(0)))
    return quantity, amount
