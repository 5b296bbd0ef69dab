"""`usage` had columns per meter once and has a list now: what pages show reads files from before and after alike."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dashboard.backend import Backend
from dashboard.queries.lateness import read_lateness
from dashboard.queries.requests import MINUTE, read_window_requests
from dashboard.settings import Settings
from jobs.runtime.delta.growth import missing_columns
from jobs.streams import USAGE, Table
from metering.meters import Meter
from tests.dashboard.seeding import Day, fill_jobs, usage_of, write_table

BEFORE = USAGE.remove(USAGE.get_field_index("meters"))


@pytest.fixture
def older(database: str, tables: Path, day: Day) -> DeltaTable:
    """`usage` of a release that knew the default meters alone."""
    fill_jobs(database, day)
    rows = [{name: row.get(name) for name in BEFORE.names} for row in usage_of(day)]
    write_deltalake(f"{tables}/{Table.USAGE}", pa.Table.from_pylist(rows, BEFORE), partition_by=["log_date"])
    return DeltaTable(f"{tables}/{Table.USAGE}")


def test_lateness_adds_up_files_from_before_and_after_meters_were_declared(
    older: DeltaTable, database: str, tables: Path, day: Day
) -> None:
    older.alter.add_columns(missing_columns(older, USAGE))
    after = Day(now=day.now, first_lsn=1 + day.minutes * day.per_minute, seed=9)
    write_table(tables, Table.USAGE, usage_of(after))
    found = read_lateness(Backend(Settings(postgres_url=database, tables=str(tables))), None)
    billed = [row for rows in (day, after) for row in usage_of(rows) if row["outcome"] in ("matched", "abandoned")]
    assert sum(arrivals.usage_rows for arrivals in found.arrivals) == len(billed)


def test_requests_are_shown_before_joins_has_given_usage_the_list_of_meters(
    older: DeltaTable, database: str, tables: Path, day: Day
) -> None:
    """The dashboard may be of a newer version for a while."""
    latest = max(row["event_time"] for row in usage_of(day)).replace(second=0, microsecond=0)
    backend = Backend(Settings(postgres_url=database, tables=str(tables)))
    found = read_window_requests(backend, latest, None, None)
    mine = {row["lsn"]: row for row in usage_of(day) if latest <= row["event_time"] < latest + MINUTE}
    assert {request.lsn for request in found} == mine.keys()
    assert mine
    for request in found:
        known = {meter: mine[request.lsn][meter] for meter in request.quantities}
        assert request.quantities == known
        assert known.keys() <= set(Meter)
