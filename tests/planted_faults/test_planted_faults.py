"""Of thirteen kinds of wrong money each is found by the whole audit, in joins' rows and in billing's, and named.

Method: a history of the simulator leaves real tables and a real database, which the audit proves; then one fault is
planted in a copy of them, and the audit runs as it ships. `make planted-faults` writes FOUND.md when all were found.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from jobs.audit.run import Audit
from jobs.streams import USAGE, Table
from tests.clocks import HandClock
from tests.planted_faults.faults import FAULTS, InDatabase, InUsage
from tests.simulation.left import a_copy_of, left_by
from tests.simulation.world import World

pytestmark = pytest.mark.planted
SEED = 19
"""A history with prices, corrections by audits, and stragglers that correct and that drop."""
RESULT = Path(__file__).with_name("FOUND.md")


def kind(place: InUsage | InDatabase) -> str:
    """Where it is planted."""
    return "`usage`" if isinstance(place, InUsage) else "Postgres"


HEAD = """# Thirteen planted faults, and what the audit said of each

Written by `make planted-faults`, which plants one after the other in a copy of what a history of the simulator left.

| fault | planted in | the check | what it said |
|---|---|---|---|
"""
CASES = {f"{name}, in {kind(place)}": (name, place) for name, places in FAULTS.items() for place in places}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with left_by(SEED, tmp_path_factory.mktemp("planted"), is_audited=True) as world:
        yield world


@pytest.fixture(scope="module")
def said() -> Iterator[list[str]]:
    """A line for each fault that was found; written down when all were."""
    lines: list[str] = []
    yield lines
    if len(lines) == len(CASES):
        RESULT.write_text(HEAD + "\n".join(lines) + "\n")


def wrong(spark: SparkSession, tables: Path, database: str) -> dict[str, str]:
    """What the audit says of each check that does not hold."""
    found = Audit(spark, str(tables), database, HandClock(), appends=False).run()
    return {one.check: one.says for one in found if not one.holds}


def test_what_no_fault_was_planted_in_is_proved(spark: SparkSession, left: World) -> None:
    assert wrong(spark, left.tables, left.database) == {}


@pytest.mark.parametrize("case", CASES)
def test_a_planted_fault_is_found_and_named(
    spark: SparkSession, left: World, tmp_path: Path, said: list[str], case: str
) -> None:
    name, place = CASES[case]
    if isinstance(place, InUsage):
        tables = copytree(left.tables, tmp_path / "tables")
        path = str(tables / Table.USAGE)
        before = sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda row: row["lsn"])
        rows, named = place.change(before)
        write_deltalake(path, pa.Table.from_pylist(rows, schema=USAGE), mode="overwrite")
        found = wrong(spark, tables, left.database)
    else:
        with a_copy_of(left.database) as database:
            with psycopg.connect(database, autocommit=True) as connection:
                named = place.change(connection)
            found = wrong(spark, left.tables, database)
    assert place.says in found[place.check]
    assert [word for word in named if word not in found[place.check]] == []
    said.append(f"| {name} | {kind(place)} | {place.check} | {found[place.check]} |")
