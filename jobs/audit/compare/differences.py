"""Usage compared with expected usage: outcomes that are lost, duplicated, unexpected or different."""

from __future__ import annotations

from enum import StrEnum

import polars as pl

from jobs.audit.compare.replacements import wrong_replacements
from jobs.audit.recompute.expected import EXPECTED, OUTCOME, PARTS
from jobs.usage_entries import ENTRY, METERED_COLUMNS, METERS, metered
from jobs.usage_members import ENTRY as MEMBER_ENTRY
from jobs.usage_members import MEMBERS, members
from metering.vocabulary import UsageCause


class Kind(StrEnum):
    """What is wrong with an outcome."""

    LOST = "lost"
    """The journal makes it, and usage has none."""
    COUNTED = "counted"
    """Usage does not have it once."""
    PHANTOM = "phantom"
    """Usage has it, and the journal makes none."""
    OTHERWISE = "otherwise"
    """Its values differ."""
    REVERSAL = "reversal"
    """A row takes back, or replaces, something else than what it names."""


DIFFERENCES = pl.Schema(
    {
        "kind": pl.String(),
        "of": pl.String(),
        "account": pl.String(),
        "request_id": pl.String(),
        "request_lsn": pl.Int64(),
        "completion_lsn": pl.Int64(),
        "usage_lsn": pl.Int64(),
        "column": pl.String(),
        "found": pl.String(),
        "expected": pl.String(),
    }
)
"""A row per outcome, and of one that says otherwise per column that does. `usage_lsn`: the last row of the outcome.
`found` of one that is COUNTED: how often. `of`: what was compared, where there is more than one thing."""
COMPARED = [name for name in EXPECTED if name not in (*OUTCOME, "meters", MEMBERS)]


def net(usage: pl.DataFrame) -> pl.DataFrame:
    """Rows of usage (lsn, sign, EXPECTED, METERED_COLUMNS) → one per outcome that is not taken back, with usage_lsn,
    count.

    It says what the last row of it says that took nothing back; `count` is how often it is billed.
    """
    last = pl.coalesce(pl.col("lsn").filter(pl.col("sign") > 0).max(), pl.max("lsn"))
    standing = usage.group_by(OUTCOME).agg(pl.sum("sign").alias("count"), last.alias("usage_lsn"))
    rows = usage.rename({"lsn": "usage_lsn"}).drop("sign")
    standing = standing.filter(pl.col("count") != 0).drop(OUTCOME)
    return standing.join(rows, on="usage_lsn", how="left")


def standing(usage: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of usage of whole keys (lsn, sign, cause, corrects_lsns, …) → (effective usage as in `net`; DIFFERENCES).

    A negating row is a copy of the one row that it names, and no other row negates that one. A replacing row names
    exactly the rows that are negated with it and share a part with it. It is on the day of the one that occurred when
    it did (`has_own_day`: none of them did). Any other row is a difference, and takes nothing back.
    """
    columns = [
        name for name in dict.fromkeys((*EXPECTED, *METERED_COLUMNS)) if name in usage.columns and name not in OUTCOME
    ]
    put, taken = usage.filter(pl.col("sign") > 0), usage.filter(pl.col("sign") <= 0)
    first = pl.col("corrects_lsns").list.first()
    named = taken.with_columns(named=first).join(
        put.select(pl.col("lsn").alias("named"), *OUTCOME, *columns),
        on=["named", *OUTCOME],
        how="left",
        suffix="_named",
        nulls_equal=True,
        coalesce=True,
    )
    known = put.select(named="lsn", is_there=pl.lit(value=True))
    named = named.join(known, on="named", how="left")
    is_copy = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_named")) for name in columns)
    is_sound = (
        (pl.col("corrects_lsns").list.len() == 1)
        & pl.col("is_there").fill_null(value=False)
        & is_copy
        & pl.col("named").is_first_distinct()
    )
    named = named.sort("lsn").with_columns(is_sound=is_sound.fill_null(value=False))
    gone = named.filter(pl.col("is_sound")).select(lsn="named")
    replacing = put.filter(pl.col("cause") != UsageCause.STREAM.value).explode("corrects_lsns")
    unfounded = replacing.filter(pl.col("corrects_lsns").is_not_null()).join(
        gone, left_on="corrects_lsns", right_on="lsn", how="anti"
    )
    unnamed = wrong_replacements(usage, named.filter(pl.col("is_sound")))
    is_broken = (named.filter(~pl.col("is_sound")), unfounded, unnamed)
    broken = pl.concat([rows.select(*OUTCOME, "lsn") for rows in is_broken]).unique(maintain_order=True)
    days = _days_copied(replacing, put)
    moved = days.filter(pl.col("day") != pl.col("day_found"))
    faults = [
        _difference_rows(broken.rename({"lsn": "usage_lsn"}), Kind.REVERSAL),
        _difference_rows(moved, Kind.OTHERWISE, "day"),
    ]
    has_own_day = (pl.col("cause") != UsageCause.STREAM.value) & ~pl.col("lsn").is_in(days["usage_lsn"].implode())
    return net(put.join(gone, on="lsn", how="anti").with_columns(has_own_day=has_own_day)), pl.concat(faults)


def _days_copied(replacing: pl.DataFrame, put: pl.DataFrame) -> pl.DataFrame:
    """Rows of `put` that name others (one by one) → the day of each that had to copy one, and the day to copy.

    (OUTCOME, usage_lsn, day_found, day.) What occurred when they did is the completion, and a request without one. What
    an earlier release has written says no day.
    """
    occurred = pl.coalesce("completion_lsn", "request_lsn")
    named = put.select(corrects_lsns="lsn", day_named="day", occurred_named=occurred)
    return (
        replacing.join(named, on="corrects_lsns", how="inner")
        .filter(pl.col("occurred_named") == occurred)
        .sort("lsn", "corrects_lsns")
        .group_by("lsn", maintain_order=True)
        .agg(
            *[pl.first(name) for name in OUTCOME], pl.first("day").alias("day_found"), pl.last("day_named").alias("day")
        )
        .rename({"lsn": "usage_lsn"})
    )


def differences(found: pl.DataFrame, expected: pl.DataFrame) -> pl.DataFrame:
    """`net` usage beside outcomes (`recompute`) → DIFFERENCES, none where they are the same."""
    return as_differences(beside(*_without_same(found, expected)))


def _without_same(found: pl.DataFrame, expected: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Almost all outcomes are bit for bit as expected: only the rest is turned into text."""
    if METERS not in found.columns:
        return found, expected
    columns = [name for name in EXPECTED if name not in PARTS]
    both = expected.select(EXPECTED).join(
        found.select(*EXPECTED, "count"), on=PARTS, how="inner", suffix="_found", nulls_equal=True
    )
    is_same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_found")) for name in columns)
    same = both.filter((pl.col("count") == 1) & pl.col(METERS).is_not_null() & is_same).select(PARTS)
    found, expected = (rows.join(same, on=PARTS, how="anti", nulls_equal=True) for rows in (found, expected))
    return found, expected


def beside(found: pl.DataFrame, expected: pl.DataFrame) -> pl.DataFrame:
    """`net` usage and outcomes (`recompute`) → one row per outcome, with the values of both sides.

    `is_found`, `is_expected`, `usage_lsn`, `count` and, for each compared value, NAME and NAME_found: texts of all
    meters with a quantity (`entries`), of their quantities alone (`counted`), and of their prices (`priced`), with the
    version only where there is no unit price.
    """
    has_list = pl.col(METERS).is_not_null() if METERS in found.columns else pl.lit(value=False)
    was = _comparable(found.with_columns(is_listed=has_list), "usage_lsn", "count", "is_listed")
    must = _comparable(expected)
    both = must.with_columns(is_expected=True).join(
        was.with_columns(is_found=True), on=OUTCOME, how="full", suffix="_found", nulls_equal=True, coalesce=True
    )
    return both.with_columns(pl.col("is_expected", "is_found").fill_null(value=False))


def as_differences(both: pl.DataFrame) -> pl.DataFrame:
    """`beside` → DIFFERENCES, none where both say the same."""
    same = both.filter(pl.col("is_expected") & pl.col("is_found"))
    parts = [
        _difference_rows(both.filter(pl.col("is_expected") & ~pl.col("is_found")), Kind.LOST),
        _difference_rows(both.filter(~pl.col("is_expected")), Kind.PHANTOM),
        _difference_rows(
            same.filter(pl.col("count") != 1).with_columns(count_found="count", count=1), Kind.COUNTED, "count"
        ),
    ]
    parts += [_difference_rows(same.filter(differs(name)), Kind.OTHERWISE, name) for name in (*COMPARED, "entries")]
    return pl.concat(parts)


def differs(name: str) -> pl.Expr:
    """Whether both sides differ in it. A value that an earlier release did not write is no difference."""
    is_other = pl.col(name).ne_missing(pl.col(f"{name}_found"))
    return is_other & (pl.col("day_found").is_not_null() | pl.col("is_listed")) if name == "day" else is_other


def _comparable(rows: pl.DataFrame, *more: str) -> pl.DataFrame:
    numbered = rows.with_row_index("row")
    kept = [name for name in METERED_COLUMNS if name in rows.columns]
    entries = (
        metered(numbered.select("row", "outcome", *kept).lazy())
        .filter(pl.col("quantity") != 0)
        .select("row", *ENTRY)
        .collect()
    )
    counted = pl.concat_str("meter", "quantity", separator=" ")
    texts = {"entries": tuple(ENTRY), "priced": ("meter", "quantity", "unit_price", "amount")}
    # Tiers and packages have no unit price: there the version is all that says what it costs.
    by_total = pl.concat_str(counted, pl.lit("by the total at"), "price_version", separator=" ", ignore_nulls=False)
    without = pl.coalesce(by_total, counted + " unpriced")
    columns = [
        pl.coalesce(pl.concat_str(*names, separator=" ", ignore_nulls=False), without).alias(text)
        for text, names in texts.items()
    ]
    # What another meter bills is an entry of its own: both are what was reported.
    reported = entries.group_by("row", "meter").agg(pl.sum("quantity")).sort("meter").select("row", counted=counted)
    priced = entries.sort("meter", "price_version", nulls_last=True).select("row", *columns)
    of_sets, of_sets_priced = _comparable_members(numbered)
    reported, priced = pl.concat([reported, of_sets]), pl.concat([priced, of_sets_priced])
    plain = numbered.select("row", *OUTCOME, *COMPARED, *more)
    for texts_of_row in (reported, priced):
        joined = texts_of_row.group_by("row", maintain_order=True).agg(pl.exclude("row").str.join("; "))
        plain = plain.join(joined, on="row", how="left", maintain_order="left")
    return plain.drop("row")


def _comparable_members(numbered: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Numbered rows of usage → (row, counted) and (row, entries, priced): a row per member."""
    kept = [MEMBERS] if MEMBERS in numbered.columns else []
    found = members(numbered.select("row", *kept))
    reported = ("meter", "aggregation", "period", "first_day", "member", "value")
    costs = {"entries": tuple(MEMBER_ENTRY), "priced": (*reported, "currency", "unit_price")}
    texts = [
        pl.concat_str([pl.col(name).cast(pl.String).fill_null("-") for name in names], separator=" ").alias(text)
        for text, names in {"counted": reported, **costs}.items()
    ]
    listed = found.sort("row", "meter").select("row", *texts)
    return listed.select("row", "counted"), listed.select("row", "entries", "priced")


def _difference_rows(rows: pl.DataFrame, kind: Kind, column: str | None = None) -> pl.DataFrame:
    values = (pl.lit(None, pl.String), pl.lit(None, pl.String))
    if column is not None:
        values = (pl.col(f"{column}_found").cast(pl.String), pl.col(column).cast(pl.String))
    return rows.select(
        pl.lit(kind.value).alias("kind"),
        pl.lit(None, pl.String).alias("of"),
        *OUTCOME,
        "usage_lsn",
        pl.lit("meters" if column == "entries" else column, pl.String).alias("column"),
        values[0].alias("found"),
        values[1].alias("expected"),
    )
