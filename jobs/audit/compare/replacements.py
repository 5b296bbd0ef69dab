"""The rows that each row of an audit replaces: it inherits the decisions about them."""

from __future__ import annotations

import polars as pl

from jobs.audit.recompute.expected import OUTCOME, PARTS
from jobs.joins.memory import KEY
from metering.vocabulary import UsageCause


def wrong_replacements(usage: pl.DataFrame, taken: pl.DataFrame) -> pl.DataFrame:
    """Rows of usage of whole keys → those that an audit put and that do not name what they replace.

    That is what was taken back with them and has a part of theirs, or was restated; `taken` (lsn, OUTCOME, `named`) are
    the negating rows, each with the row that it negates. A row that names too few would be billed regardless of
    decisions about the others.
    """
    placed = _by_commit(usage.filter(pl.col("cause") != UsageCause.STREAM.value))
    put = placed.filter(pl.col("sign") > 0)
    gone = taken.select("lsn", "named", *OUTCOME).join(placed.select("lsn", "commit"), on="lsn", how="inner")
    owed = (
        _by_part(put.select("lsn", "commit", *OUTCOME))
        .join(_by_part(gone.drop("lsn")), on=[*KEY, "commit", "part"], how="inner")
        .select("lsn", "named")
        .unique()
    )
    named_rows = put.select("lsn", *KEY, "commit", named="corrects_lsns").explode("named").drop_nulls("named")
    lacking = owed.join(named_rows, on=["lsn", "named"], how="anti")
    # What a better report takes the place of shares no part with it: one that bills from then on names it.
    restated = placed.filter((pl.col("cause") == UsageCause.RESTATED.value) & (pl.col("sign") < 0)).select("lsn")
    of_request = gone.join(restated, on="lsn", how="semi").select(*KEY, "commit", "named").unique()
    unknown = named_rows.join(owed, on=["lsn", "named"], how="anti").join(
        of_request, on=[*KEY, "commit", "named"], how="anti"
    )
    forgotten = of_request.join(named_rows, on=[*KEY, "commit", "named"], how="anti")
    is_wrong = pl.col("lsn").is_in(pl.concat([lacking["lsn"], unknown["lsn"]]).implode())
    return put.filter(is_wrong | _is_of(put, forgotten))


def _is_of(put: pl.DataFrame, commits: pl.DataFrame) -> pl.Series:
    """Which rows an audit has put in these commits (KEY, commit)."""
    keys = commits.select(*KEY, "commit").unique().with_columns(is_of_it=pl.lit(value=True))
    found = put.join(keys, on=[*KEY, "commit"], how="left", maintain_order="left")
    return found["is_of_it"].fill_null(value=False)


def _by_commit(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of audits with the number of their `commit` within their key.

    One commit puts all of a key right, at one instant, and what takes back comes first.
    """
    ordered = rows.sort("lsn")
    is_put, logged_at = pl.col("sign") > 0, pl.col("logged_at")
    begins = (~is_put & is_put.shift(1).over(KEY)) | logged_at.ne_missing(logged_at.shift(1)).over(KEY)
    return ordered.with_columns(commit=begins.fill_null(value=False).cum_sum().over(KEY))


def _by_part(rows: pl.DataFrame) -> pl.DataFrame:
    parts = [rows.select(pl.exclude(PARTS), part=part) for part in PARTS]
    return pl.concat(parts).drop_nulls("part").unique()
