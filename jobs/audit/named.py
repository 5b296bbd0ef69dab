"""Which rows each row of an audit names: what it replaces, so that it inherits what was decided of that."""

from __future__ import annotations

import polars as pl

from jobs.audit.recomputed import OUTCOME, PARTS
from jobs.joins.memory import KEY
from metering.words import UsageCause


def misnamed(usage: pl.DataFrame, taken: pl.DataFrame) -> pl.DataFrame:
    """Rows of usage of whole keys → those that an audit put and that do not name what they replace.

    That is what was taken back with them and has a part of theirs; `taken` (lsn, OUTCOME, `named`) are the rows that
    take back, each with the one that it does. Who names too few would be billed whatever was decided of the others.
    """
    placed = _by_commit(usage.filter(pl.col("cause") != UsageCause.STREAM.value))
    put = placed.filter(pl.col("sign") > 0)
    gone = taken.select("lsn", "named", *OUTCOME).join(placed.select("lsn", "commit"), on="lsn", how="inner")
    must = (
        _by_part(put.select("lsn", "commit", *OUTCOME))
        .join(_by_part(gone.drop("lsn")), on=[*KEY, "commit", "part"], how="inner")
        .group_by("lsn")
        .agg(must=pl.col("named").unique().sort())
    )
    said = pl.when(pl.col("corrects_lsns").list.len() > 0).then(pl.col("corrects_lsns").list.sort())
    return put.join(must, on="lsn", how="left").filter(said.ne_missing(pl.col("must")))


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
