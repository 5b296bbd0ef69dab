"""The column `members` of `usage`: the members that a row adds to periods, or removes, as JSON."""

from __future__ import annotations

import polars as pl

from jobs.streams import QUANTITY, UNIT_PRICE

MEMBERS = "members"
"""A list of ENTRY as JSON; null: none. It is null in all rows where no meter of a period is declared."""
_INSTANT = pl.Datetime("us", "UTC")
_RFC3339 = "%Y-%m-%dT%H:%M:%SZ"
ENTRY = pl.Schema(
    {
        "meter": pl.String(),
        "aggregation": pl.String(),
        "period": pl.String(),
        "first_day": pl.Date(),
        "starts_at": _INSTANT,
        "ends_at": _INSTANT,
        "member": pl.String(),
        "value": pl.Decimal(QUANTITY.precision, QUANTITY.scale),
        "currency": pl.String(),
        "price_version": pl.Int64(),
        "unit_price": pl.Decimal(UNIT_PRICE.precision, UNIT_PRICE.scale),
    }
)
"""A member of the period from `starts_at` to `ends_at`: a text that is counted once (`member`) or a number (`value`).
`unit_price` is the price at `starts_at`."""
_WRITTEN = pl.List(
    pl.Struct([pl.Field(name, pl.Int64() if name == "price_version" else pl.String()) for name in ENTRY])
)


def written(entries: pl.DataFrame) -> pl.DataFrame:
    """(row, ENTRY) sorted by row and meter → (row, MEMBERS), one for each row."""
    texts = {
        **{name: pl.col(name).dt.strftime(_RFC3339) for name in ("starts_at", "ends_at")},
        "first_day": pl.col("first_day").dt.strftime("%Y-%m-%d"),
        **{name: plain(pl.col(name)) for name in ("value", "unit_price")},
    }
    objects = entries.with_columns(**texts).select("row", entry=pl.struct(*ENTRY).struct.json_encode())
    return objects.group_by("row", maintain_order=True).agg(
        (pl.lit("[") + pl.col("entry").str.join(",") + pl.lit("]")).first().alias(MEMBERS)
    )


def written_members(entries: pl.DataFrame) -> pl.Series:
    """(member, value) of ENTRY → the part of MEMBERS by which `written` names it: its number, or else its text."""
    text = pl.struct("member").struct.json_encode()
    number = pl.struct(plain(pl.col("value")).alias("value")).struct.json_encode()
    named = pl.when(pl.col("value").is_null()).then(text).otherwise(number)
    return entries.select(named.str.strip_prefix("{").str.strip_suffix("}")).to_series()


def members(usage: pl.DataFrame) -> pl.DataFrame:
    """Rows of `usage` → their other columns and ENTRY, a row per entry; rows without members give none."""
    others = [name for name in usage.columns if name != MEMBERS and name not in ENTRY]
    if MEMBERS not in usage.columns or usage[MEMBERS].null_count() == len(usage):
        return usage.clear().select(others).with_columns(pl.lit(None, kind).alias(name) for name, kind in ENTRY.items())
    rows = usage.filter(pl.col(MEMBERS).is_not_null()).select(*others, MEMBERS)
    listed = rows.with_columns(pl.col(MEMBERS).str.json_decode(_WRITTEN)).explode(MEMBERS).unnest(MEMBERS)
    return listed.with_columns(
        pl.col("first_day").str.to_date("%Y-%m-%d"),
        *[
            pl.col(name).str.to_datetime(_RFC3339, time_unit="us", time_zone="UTC").cast(_INSTANT)
            for name in ("starts_at", "ends_at")
        ],
        *[pl.col(name).cast(ENTRY[name]) for name in ("value", "unit_price")],
    ).select(*others, *ENTRY)


def plain(number: pl.Expr) -> pl.Expr:
    """A decimal (scale above 0) as a text without trailing zeros."""
    return number.cast(pl.String).str.strip_chars_end("0").str.strip_chars_end(".")
