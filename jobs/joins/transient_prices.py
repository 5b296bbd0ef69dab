"""A price that one transaction inserted and deleted never applied: only its author has seen it.

The log of changes tells both. As any that is deleted it would end when that was committed, and the price before it not
go on. Who says since when it is none is believed; and one that was there before the transaction does end.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from jobs.streams import SOURCE

_KEY = ("plan", "model", "meter", "currency", "effective_from")
_, _COMMITTED = SOURCE


def ended_as_before(news: pa.Table, versions: pl.DataFrame) -> pa.Table:
    """New versions (streams.PRICES), where such a deletion ends the price when it had ended before, or had begun.

    `versions`: all of their keys by lsn, these among them.
    """
    ends_by_itself = pl.col("deleted") & (pl.col("ends_at") == pl.col(_COMMITTED)).fill_null(value=False)
    ended_by_itself = pl.DataFrame(news.select(["lsn", *_KEY, "deleted", "ends_at", _COMMITTED])).filter(ends_by_itself)
    if ended_by_itself.is_empty():
        return news
    # What a transaction has changed was committed at one time; and what its first change found was there before it.
    found = pl.col("was_deleted").first().over([*_KEY, _COMMITTED]).fill_null(value=True)
    ended = pl.when(pl.col("deleted") & ~pl.col("never_was")).then("ends_at")
    ends = (
        versions.join(ended_by_itself, on=_KEY, how="semi", nulls_equal=True, maintain_order="left")
        .with_columns(was_deleted=pl.col("deleted").shift(1).over(_KEY))
        .with_columns(never_was=ends_by_itself & found)
        .with_columns(ended=ended.forward_fill().over(_KEY))
        .filter("never_was")
        .select("lsn", ended=pl.coalesce("ended", "effective_from"))
    )
    both = pl.DataFrame(news.select(["lsn", "ends_at"])).join(ends, on="lsn", how="left", maintain_order="left")
    column = news.schema.get_field_index("ends_at")
    ends_at = both.select(pl.coalesce("ended", "ends_at")).to_series().to_arrow()
    return news.set_column(column, news.field(column), ends_at.cast(news.field(column).type))
