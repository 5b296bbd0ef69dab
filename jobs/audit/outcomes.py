"""Every outcome recomputed beside usage: executors do it, each with some keys; the driver gets what differs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
from pyspark.sql import functions as F

from jobs.audit.contracted import JUDGED_FROM, later_contracts, with_contracted
from jobs.audit.corrected import CORRECTIONS
from jobs.audit.examined import EXAMINED, STANDING, SUM, USAGE_READ, as_table, examined, journal_read
from jobs.audit.recomputed import Pinned
from jobs.audit.versions import Versions, arrow, spark_schema
from jobs.joins.memory import KEY
from jobs.runtime.families import FAMILY_SQL
from metering.words import BILLABLE, Disposition, UsageCause

ROWS_PER_BUCKET = 100_000
"""Of the journal: about what a task holds at once."""
_ARROW = arrow(EXAMINED)


@dataclass(frozen=True)
class Outcomes:
    """How many rows of the journal and outcomes were examined, and what of them differs."""

    rows: int
    outcomes: int
    wrong: pl.DataFrame
    """DIFFERENCES of what the stream made."""
    faults: pl.DataFrame
    """DIFFERENCES of what stands by now, without a known cause."""
    corrections: pa.Table
    """CORRECTIONS of what has one; the first of them, where there are more `changes`."""
    changes: int

    @property
    def is_all(self) -> bool:
        """Whether the corrections put everything right that can be."""
        return len(self.corrections) == self.changes

    @property
    def causes(self) -> Counter[str]:
        """How many of the corrections have which cause."""
        counted = self.corrections["cause"].value_counts().to_pylist()
        return Counter({each["values"]: each["counts"] for each in counted})


def outcomes(versions: Versions, pinned: Pinned) -> Outcomes:
    """Recompute what was made of the journal below the pinned position."""
    families = ", ".join(f"'{family}'" for family in BILLABLE)
    accepted = f"lsn < {pinned.position} AND disposition = '{Disposition.ACCEPTED}'"
    concerned = f"{accepted} AND request_id IS NOT NULL AND {FAMILY_SQL} IN ({families})"
    rows = versions.of_journal(journal_read(pinned), concerned)
    if later := later_contracts(versions.journal, pinned.position, pinned.sums):
        read = dict.fromkeys((*journal_read(pinned), *JUDGED_FROM))
        unknown = versions.of_journal(read, f"{accepted} AND lsn < {later.before} AND {FAMILY_SQL} IS NULL")
        rows = with_contracted(rows, unknown.where(F.col("type").isin(later.types)), later)
    made = versions.of_usage(USAGE_READ)
    buckets = 1 + (versions.journal_rows // ROWS_PER_BUCKET)

    def examine(journal_rows: pa.Table, usage_rows: pa.Table) -> pa.Table:
        return examined(pl.DataFrame(journal_rows), pl.DataFrame(usage_rows), pinned).to_arrow().cast(_ARROW)

    bucket = F.pmod(F.hash("account", "request_id"), F.lit(buckets))
    grouped = rows.groupBy(bucket).cogroup(made.groupBy(bucket))
    found = pl.DataFrame(grouped.applyInArrow(examine, spark_schema(EXAMINED)).toArrow())
    counted = found.filter(pl.col("kind") == SUM)
    differences = found.filter(pl.col("kind") != SUM)
    is_of_now = pl.col("of").eq_missing(STANDING)
    corrections = pa.concat_tables([CORRECTIONS.empty_table(), *map(as_table, counted["corrections"])])
    faults, changes = differences.filter(is_of_now), int(counted["changes"].sum())
    if versions.since is not None:
        unsaid = _not_of_a_period(versions, corrections, faults)
        left = pl.DataFrame(corrections).join(unsaid, on=KEY, how="anti")
        changes = changes - len(corrections) + len(left) if len(left) else 0
        corrections, faults = left.to_arrow().cast(CORRECTIONS), faults.join(unsaid, on=KEY, how="anti")
    return Outcomes(
        rows=int(counted["rows"].sum()),
        outcomes=int(counted["outcomes"].sum()),
        wrong=differences.filter(~is_of_now),
        faults=faults,
        corrections=corrections,
        changes=changes,
    )


def _not_of_a_period(versions: Versions, corrections: pa.Table, faults: pl.DataFrame) -> pl.DataFrame:
    """The keys (KEY) of which the days before the period hold rows, too: what belongs together, all of it says.

    A later price needs nobody else: what is repriced alone stays.
    """
    rows = pl.DataFrame(corrections.select([*KEY, "cause"]))
    concerned = rows.filter(pl.col("cause") != UsageCause.REPRICED.value)
    keys = pl.concat([concerned.select(KEY), faults.select(KEY)]).unique()
    return versions.earlier(keys) if len(keys) else keys
