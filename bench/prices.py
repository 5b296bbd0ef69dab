"""What price versions cost joins: the same traffic, priced with a thousand of them, a hundred thousand and a million.

Ten of each price that the traffic needs, one a month; all others are of plans that nobody has just now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa

from bench.events import catalog
from bench.parts import running_parts
from bench.pricing import cpu_ms_per_change, cpu_seconds_per_million
from bench.work import Measured, Plan, Tell, measure_ingestion, measure_reader
from jobs.runtime.delta.table import LSN, DeltaWriter
from jobs.streams import PRICES, Table
from laptop.folders import Folders
from metering.vocabulary import Job

VERSIONS = (1_000, 100_000, 1_000_000)
MONTHS = 10


@dataclass(frozen=True)
class PricesMeasured:
    """By how many versions of prices there are; `again`: joins with the fewest, at the end: how much is noise."""

    pricing: Mapping[int, float]
    """CPU-seconds of `price` alone per million outcomes."""
    changed: Mapping[int, float]
    """CPU-ms of a small batch after one price was changed."""
    joins: Mapping[int, Measured]
    again: Measured

    def times_fewest(self, versions: int) -> float:
        """How much more pricing costs than with the fewest."""
        return self.pricing[versions] / self.pricing[VERSIONS[0]]

    def joins_times_fewest(self, versions: int) -> float:
        """The same of the whole application: than the mean of the two times that the fewest were measured."""
        fewest = (self.joins[VERSIONS[0]].cpu_seconds_per_million + self.again.cpu_seconds_per_million) / 2
        return self.joins[versions].cpu_seconds_per_million / fewest


def measure_prices(folder: Path, plan: Plan, tell: Tell) -> PricesMeasured:
    """Price alone, for each number of versions; then journal the traffic once, and measure joins on it for each."""
    tell("pricing alone")
    tables = {count: versions(count) for count in VERSIONS}
    pricing, changed = cpu_seconds_per_million(tables), cpu_ms_per_change(tables)
    del tables
    with running_parts(folder / "parts") as parts:
        _, marks = measure_ingestion(folder, parts, plan, tell)

        def measured(case: str, count: int) -> Measured:
            own = folder / case
            own.mkdir(parents=True)
            (own / "ingestion").symlink_to(folder / "ingestion")
            write_versions(own / "joins", count)
            job, _ = measure_reader(Job.JOINS, own, parts, plan, marks=marks, tell=lambda text: tell(f"{case}: {text}"))
            tell(f"{case}: {job.cpu_seconds_per_million:.1f} CPU-s/M, {job.resident_mib:.0f} MiB")
            return job

        found = {count: measured(f"{count} versions", count) for count in VERSIONS}
        return PricesMeasured(pricing, changed, found, measured("once more", VERSIONS[0]))


def write_versions(folder: Path, count: int) -> None:
    """Make joins' table of prices with so many versions, all of them known before the first row of the journal."""
    tables = Folders(folder).tables
    tables.mkdir(parents=True)
    writer = DeltaWriter(str(tables), Table.PRICES, Job.JOINS.value, 1)
    writer.commit(versions(count), {LSN: 1})


def versions(count: int) -> pa.Table:
    """So many (streams.PRICES), in no order: of plan after plan, the one of the traffic first."""
    priced = pl.DataFrame(catalog()["prices"]).select("model", "meter", "currency")
    months = pl.DataFrame({"effective_from": [datetime(2025, month, 1, tzinfo=UTC) for month in range(1, MONTHS + 1)]})
    plans = pl.DataFrame({"number": range(count // (len(priced) * MONTHS) + 1)}).select(
        plan=pl.when(pl.col("number") == 0).then(pl.lit("bench")).otherwise(pl.format("plan-{}", "number"))
    )
    shuffled = (
        plans.join(priced, how="cross").join(months, how="cross").head(count).sample(fraction=1.0, shuffle=True, seed=7)
    )
    rows = shuffled.with_columns(lsn=pl.int_range(pl.len()) - pl.len(), deleted=pl.lit(value=False)).to_arrow()
    unit_price = pa.array([Decimal("0.0000004")], PRICES.field("unit_price").type).take(pa.array([0] * count))
    given = {**{name: rows[name] for name in rows.column_names}, "unit_price": unit_price}
    return pa.table(
        [given[f.name].cast(f.type) if f.name in given else pa.nulls(count, f.type) for f in PRICES], schema=PRICES
    )
