"""Accounts and prices in the journal, compared with the tables that joins derives from it and prices with."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from jobs.joins.catalog import CIRCUMSTANCES, TABLE_OF, version, without_repeats
from jobs.streams import AUTHOR, SCHEMAS, Table
from metering.vocabulary import Disposition


def wrong_versions(journal: DeltaTable, stored: dict[Table, pa.Table], first: int, position: int) -> Iterator[str]:
    """A sentence for each table of versions (`stored`) that differs from the journal's, from lsn `first` to `position`.

    Versions from before `first` are taken as they are: those rows of the journal are removed.
    """
    rows = pl.scan_pyarrow_dataset(journal.to_pyarrow_dataset()).filter(
        (pl.col("lsn") >= first)
        & (pl.col("lsn") < position)
        & pl.col("topic").is_in([topic.value for topic in TABLE_OF])
        & (pl.col("disposition") == Disposition.ACCEPTED)
    )
    journaled = rows.select("lsn", "topic", "value").sort("lsn").collect()
    for topic, table in TABLE_OF.items():
        changes = journaled.filter(pl.col("topic") == topic).select("lsn", "value").iter_rows()
        made = [change for lsn, value in changes if (change := version(topic, value, lsn)) is not None]
        known = pl.DataFrame(stored[table].cast(SCHEMAS[table]))
        before = known.filter(pl.col("lsn") < first).to_arrow().cast(SCHEMAS[table])
        must = pl.DataFrame(without_repeats(table, before, pa.Table.from_pylist(made, schema=SCHEMAS[table])))
        must = _withdrawn_as(must, known) if table is Table.PRICES else must
        found = known.filter((pl.col("lsn") >= first) & (pl.col("lsn") < position))
        names = [name for name in found.columns if name not in CIRCUMSTANCES]
        both = [rows.select(names) for rows in (must, found)]
        for left, other, verb in (
            (both[0], both[1], "lacks, or differs from, what the journal records"),
            (both[1], both[0], "has what the journal does not record"),
        ):
            differs = left.join(other, on=names, how="anti", nulls_equal=True)
            if len(differs):
                yield f"{table} {verb} at lsn {differs['lsn'].sort()[0]} ({len(differs)} in all)"
        if len(others := _other_authors(must, found)):
            yield f"{table} has another author than the journal has at lsn {others.sort()[0]} ({len(others)} in all)"


def _withdrawn_as(must: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Deletions without an end where a joins of before took them: before any version that has one."""
    first = known.filter(pl.col("ends_at").is_not_null())["lsn"].min()
    is_earlier = pl.lit(value=True) if first is None else pl.col("lsn") < first
    earlier = known.filter(pl.col("deleted") & pl.col("ends_at").is_null() & is_earlier)["lsn"]
    is_withdrawn = pl.col("lsn").is_in(earlier.implode())
    return must.with_columns(ends_at=pl.when(~is_withdrawn).then("ends_at"))


def _other_authors(must: pl.DataFrame, found: pl.DataFrame) -> pl.Series:
    """The lsns of versions that have another author than they must; one that a joins of before took has none."""
    differs = pl.any_horizontal(
        pl.col(f"{name}_found").is_not_null() & pl.col(name).ne_missing(pl.col(f"{name}_found")) for name in AUTHOR
    )
    both = must.select("lsn", *AUTHOR).join(found.select("lsn", *AUTHOR), on="lsn", suffix="_found")
    return both.filter(differs)["lsn"]
