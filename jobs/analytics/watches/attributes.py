"""What an account said of itself when an outcome was decided: its tags and columns, as `dimensions` have them.

An account's first version counts from the beginning of time; else the newest that has begun by the event, of those that
the journal had before the outcome's last part. So it is the same whenever it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import polars as pl

from jobs.account_versions import attribute_of, begins_us
from jobs.analytics.watches.candidates import ROW
from jobs.settings.dimensions import ACCOUNT_COLUMNS
from metering.price_attributes import ACCOUNT

READ = ("account", "lsn", "effective_from", "deleted", *ACCOUNT_COLUMNS, "tags")
MAX_COMPARED = 2_000_000
"""Pairs of an outcome and a version that are looked at together."""


def attributes_in(columns: Iterable[str]) -> tuple[str, ...]:
    """Those that the account has and not the outcome."""
    return tuple(sorted(name for name in columns if name.startswith(ACCOUNT)))


def account_versions(accounts: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Rows READ of all versions → account, version_lsn, effective_us and the attributes `names`."""
    columns = [pl.when(~pl.col("deleted")).then(attribute_of(name)).alias(name) for name in names]
    ordered = accounts.sort("account", "lsn")
    return ordered.select("account", begins_us().alias("effective_us"), *columns, version_lsn="lsn")


def with_attributes(rows: pl.DataFrame, versions: pl.DataFrame | None, names: Sequence[str]) -> pl.DataFrame:
    """Outcomes (account, request_lsn, completion_lsn, event_time, …) → the same rows with the attributes `names`.

    Null where no version applies. `versions` None: there are no accounts.
    """
    if versions is None or not names:
        return rows.with_columns(pl.lit(None, pl.String).alias(name) for name in names)
    at = rows.select(
        "account",
        pl.int_range(pl.len()).alias(ROW),
        decided_lsn=pl.max_horizontal("request_lsn", "completion_lsn"),
        event_us=pl.col("event_time").dt.epoch("us"),
    )
    counts = versions.group_by("account").len("versions")
    found = [versions.clear().with_columns(pl.lit(0, pl.Int64).alias(ROW)).select(ROW, *names)]
    for part in _portions(at.join(counts, on="account", how="inner")):
        known = part.join(versions, on="account", how="inner").filter(
            pl.col("version_lsn") < pl.col("decided_lsn"), pl.col("effective_us") <= pl.col("event_us")
        )
        newest = known.sort("version_lsn").unique(ROW, keep="last", maintain_order=True)
        found.append(newest.select(ROW, *names))
    numbered = rows.with_columns(pl.int_range(pl.len()).alias(ROW))
    return numbered.join(pl.concat(found), on=ROW, how="left", maintain_order="left").drop(ROW)


def _portions(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    portion = pl.col("versions").cum_sum() // MAX_COMPARED
    yield from rows.with_columns(portion=portion).partition_by("portion", include_key=False)
