"""The conservation equation of the last two log dates: every record received has exactly one disposition.

received = records between the first and the last offset seen, per partition, less offsets that never held a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from dashboard.backend import Backend
from dashboard.digest import Recipe, digest
from dashboard.queries.feed import Feed, feed_of
from metering.contracts.unnest import COLUMN as ELEMENT
from metering.vocabulary import Disposition, Job

DAYS = 2

_KEYS = ["topic", "partition", "disposition", "reason"]


def _merge(parts: pl.LazyFrame) -> pl.LazyFrame:
    return parts.group_by(_KEYS).agg(
        pl.sum("records", "redriven"), pl.min("first_offset"), pl.max("last_offset"), pl.max("received_at")
    )


def _reduce(rows: pl.LazyFrame) -> pl.LazyFrame:
    schema = rows.collect_schema()
    # A journal of an earlier release has no column for it, and no redriven records.
    replays = pl.count("replays_lsn") if "replays_lsn" in schema else pl.lit(0)
    # An event that is several rows counts once.
    has_elements = schema.get(ELEMENT) == pl.Int32
    records = rows.filter((pl.col(ELEMENT) <= 1).fill_null(value=True)) if has_elements else rows
    return records.group_by(_KEYS).agg(
        pl.len().cast(pl.Int64).alias("records"),
        replays.cast(pl.Int64).alias("redriven"),
        pl.min("offset").alias("first_offset"),
        pl.max("offset").alias("last_offset"),
        pl.max("received_at"),
    )


RECIPE = Recipe(
    name="conservation",
    table="journal",
    days=DAYS,
    reduce=_reduce,
    merge=_merge,
)


@dataclass(frozen=True)
class Conservation:
    """Records by disposition, and rejected ones by reason. None in `by_disposition`: there is no journal yet.

    `redriven`: how many of the accepted are dead letters that were sent again.

    `offsets` is how many offsets lie between first and last; `residual` is ingestion's own figure over the journal's
    whole life (records read less rows written), None until it reported one.
    """

    feed: Feed
    by_disposition: dict[str, int] | None
    by_reason: dict[str, int]
    redriven: int
    offsets: int
    residual: int | None
    files_read: int
    files: int
    newest: datetime | None

    @property
    def received(self) -> int:
        """The sum of the dispositions."""
        return sum((self.by_disposition or {}).values())


_RESIDUAL = "SELECT (progress ->> 'residual')::bigint AS residual FROM jobs WHERE job = 'ingestion'"


def read_conservation(backend: Backend) -> Conservation:
    """Count the journal. Of a scope that hides accounts, only its own rows count, so there is no residual."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.INGESTION)
        reported = cursor.execute(_RESIDUAL).fetchone()
    found = digest(backend, RECIPE, feed.read_at.date())
    if found is None or found.rows.is_empty():
        return Conservation(feed, None, {}, 0, 0, None, 0, found.files if found else 0, None)
    partitions = found.rows.group_by("topic", "partition").agg(pl.min("first_offset"), pl.max("last_offset"))
    is_whole = backend.scope.is_all
    return Conservation(
        feed=feed,
        by_disposition={kind: _records(found.rows, pl.col("disposition") == kind) for kind in Disposition},
        by_reason=dict(
            found.rows.filter(pl.col("reason").is_not_null())
            .group_by("reason")
            .agg(pl.sum("records"))
            .sort("records", "reason", descending=[True, False])
            .iter_rows()
        ),
        redriven=int(found.rows.filter(pl.col("disposition") == Disposition.ACCEPTED)["redriven"].sum()),
        offsets=int((partitions["last_offset"] - partitions["first_offset"] + 1).sum()),
        residual=reported["residual"] if reported and is_whole else None,
        files_read=found.files_read,
        files=found.files,
        newest=found.newest,
    )


def _records(rows: pl.DataFrame, which: pl.Expr) -> int:
    return int(rows.filter(which)["records"].sum())
