"""All rows of some keys, of the journal and of usage → how much was examined, and what is not as it must be."""

from __future__ import annotations

import polars as pl

from jobs.audit.differences import DIFFERENCES, differences, net
from jobs.audit.recomputed import OUTCOME, SAID, Pinned, recomputed
from jobs.joins.memory import KEY, column_of
from jobs.joins.past import as_carried, columns_read
from jobs.metered import METERED_COLUMNS
from jobs.runtime.families import family

SUM = "sum"
EXAMINED = pl.Schema({**DIFFERENCES, "rows": pl.Int64(), "outcomes": pl.Int64()})
"""DIFFERENCES, and one row of the kind SUM: how many rows of the journal and outcomes of usage were examined."""
USAGE_READ = tuple(dict.fromkeys(("lsn", "sign", *SAID, *METERED_COLUMNS)))


def journal_read(pinned: Pinned) -> tuple[str, ...]:
    """The columns of the journal that `examined` wants."""
    return columns_read(pinned.schema)


def examined(journal: pl.DataFrame, usage: pl.DataFrame, pinned: Pinned) -> pl.DataFrame:
    """Accepted requests and completions below the position (`journal_read`) and usage (USAGE_READ) → EXAMINED.

    A column that the journal has not got yet is null. Keys with a row from before `pinned.since` are left out.
    """
    if pinned.since is not None:
        old = [rows.filter(pl.col("received_at") < pinned.since).select(KEY) for rows in (journal, usage)]
        left_out = pl.concat(old).unique()
        journal, usage = (rows.join(left_out, on=KEY, how="anti") for rows in (journal, usage))
    kinds = {column_of(name): kind for name, kind in pinned.schema.items()}
    absent = [pl.lit(None, kinds.get(name)).alias(name) for name in journal_read(pinned) if name not in journal.columns]
    carried = as_carried(journal.with_columns(absent).with_columns(family()), pinned.schema)
    standing = net(usage)
    expected = recomputed(carried, standing.select(*OUTCOME, "usage_lsn"), pinned)
    counted = pl.DataFrame({"kind": [SUM], "rows": [len(journal)], "outcomes": [len(standing)]})
    return pl.concat([differences(standing, expected), counted], how="diagonal").select(
        pl.col(name).cast(kind) for name, kind in EXAMINED.items()
    )
