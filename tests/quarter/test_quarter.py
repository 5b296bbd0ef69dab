"""What a small quarter promises: it ends as its truth says, to the last digit; and one wrong digit would be seen.

`make quarter` runs 100,000 records (RESULT.md has what came of them).
"""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.streams import Table
from metering.vocabulary import Decision, UsageCause
from tests.quarter.compare import compared
from tests.quarter.computed import lines
from tests.quarter.generate import generated
from tests.quarter.run import Quarter, Result, lived, measured
from tests.quarter.truth import DROPPED, Asked, Contract, Truth

EVENTS, TURN, AUDIT_EVERY = 400, timedelta(days=8), timedelta(days=30)
LAST_DIGIT = Decimal("0.000001")
OF_TRUTH = ("truth", "computed", "catalog_of_truth", "generate")


@pytest.fixture(scope="module")
def quarter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quarter]:
    """A small quarter that has been run and audited."""
    truth, folder = generated(seed=2, events=EVENTS), tmp_path_factory.mktemp("quarter")
    with lived(truth, folder, TURN, AUDIT_EVERY, lambda _: None) as run:
        yield run


@pytest.fixture(scope="module")
def result(quarter: Quarter) -> Result:
    """What it measured, before anything is planted."""
    return measured(quarter)


@pytest.mark.long
def test_a_quarter_ends_as_its_truth_to_the_last_digit(result: Result) -> None:
    assert not result.wrong, "\n".join(result.wrong[:20])
    assert all(each.cells for each in result.cells)
    assert result.closed_windows > result.moved_windows > 0


def test_the_quarter_has_every_kind_of_late_arrival(quarter: Quarter, result: Result) -> None:
    made = result.made
    # Nor is the best report of a request what bills, where nobody turned that on; nor does traffic take anything back,
    # or a meter count each content once.
    never = {"contracted", "schema_added", "decided", "restated", "reversed", "once_per"}
    assert made["corrections"].keys() == {each.value for each in UsageCause} - never
    assert made["stragglers"].keys() >= {Decision.CORRECT, Decision.DROP, f"{Decision.CORRECT}, after it waited"}
    assert min(quarter.truth.counts.values()) > 0


def test_a_wrong_digit_in_usage_is_seen(quarter: Quarter, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    shutil.copytree(quarter.stack.tables / Table.USAGE, tables / Table.USAGE)
    rows = DeltaTable(str(tables / Table.USAGE)).to_pyarrow_table()
    changed = rows.to_pylist()
    entry = next(entry for row in changed for entry in row["meters"] if entry["amount"])
    entry["amount"] += Decimal(1).scaleb(-18)
    write_deltalake(str(tables / Table.USAGE), pa.Table.from_pylist(changed, rows.schema), mode="overwrite")
    assert _wrong(quarter, str(tables)) == {"usage": 1}


@pytest.mark.parametrize(
    ("column", "table", "lists"),
    [
        ("quantity", "usage_windows", {"windows", "accounts"}),
        ("quantity", "usage_days", {"days", "months"}),
        ("unit_price", "usage_days", {"days", "months"}),
    ],
)
def test_a_wrong_digit_in_windows_and_days_is_seen(quarter: Quarter, column: str, table: str, lists: set[str]) -> None:
    smallest = LAST_DIGIT if column == "quantity" else Decimal(1).scaleb(-12)
    with planted(quarter, table, column, smallest):
        assert _wrong(quarter, str(quarter.stack.tables)).keys() == lists


def test_a_window_that_changed_without_a_correction_is_found(quarter: Quarter) -> None:
    for table, column in (("usage_windows", "quantity"), ("corrections", "new_quantity")):
        with planted(quarter, table, column, LAST_DIGIT):
            assert len(list(quarter.shown.unexplained())) == 1
    assert not list(quarter.shown.unexplained())


@contextmanager
def planted(quarter: Quarter, table: str, column: str, more: Decimal) -> Iterator[None]:
    """One row of a table is otherwise by so much; afterwards it is as it was."""
    where = {"corrections": "number = (SELECT max(number) FROM corrections)"}.get(table, _PRICED.format(table=table))
    with psycopg.connect(quarter.stack.database, autocommit=True) as connection:
        change = f"UPDATE {table} SET {column} = {column} + %s WHERE {where} RETURNING ctid::text"
        (place,) = connection.execute(change.encode(), [more]).fetchall()
        try:
            yield
        finally:
            back = f"UPDATE {table} SET {column} = {column} - %s WHERE ctid = %s::tid"
            assert connection.execute(back.encode(), [more, place[0]]).rowcount == 1


_PRICED = "ctid = (SELECT ctid FROM {table} WHERE unit_price > 0 AND quantity > 0 ORDER BY ctid LIMIT 1)"


def test_what_an_oracle_computes_was_computed_by_hand() -> None:
    begin = datetime(2025, 3, 1, 4, 59, 30, tzinfo=UTC)
    truth = Truth(seed=0, zones={"acme": "America/New_York"})
    early, late = begin - timedelta(days=9), begin + timedelta(hours=1)
    truth.contracts["acme"] = [Contract(early, "standard", "EUR"), Contract(late, "scale", "USD")]
    for meter, price in (("requests", "0.01"), (DROPPED, "0.000000000003")):
        truth.prices["standard", "small-1", meter, "EUR"] = {early: Decimal(price)}
    quantities = {"requests": Decimal(1), DROPPED: Decimal("12345.678901"), "output_tokens": Decimal(0)}
    in_time, too_late = begin + timedelta(minutes=15, seconds=29), begin + timedelta(minutes=15, seconds=30)
    truth.asked = [Asked("acme", "small-1", (), begin, known, quantities) for known in (in_time, too_late)]
    truth.asked += [Asked("acme", "small-1", (), late, late, {"requests": Decimal(1)})]
    found = [(x.day, x.meter, x.currency, x.amount, x.is_dropped) for x in lines(truth)]
    amount = Decimal("0.000000037037036703")
    assert found == [
        (date(2025, 2, 28), "requests", "EUR", Decimal("0.01"), False),
        (date(2025, 2, 28), DROPPED, "EUR", amount, False),
        (date(2025, 2, 28), "requests", "EUR", Decimal("0.01"), False),
        (date(2025, 2, 28), DROPPED, "EUR", amount, True),
        (date(2025, 3, 1), "requests", "USD", None, False),
    ]


def test_the_truth_imports_nothing_of_weir() -> None:
    known = {*sys.stdlib_module_names, *(f"tests.quarter.{name}" for name in OF_TRUTH)}
    for name in OF_TRUTH:
        tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
        assert {each for each in imported if each not in known and str(each).partition(".")[0] not in known} == set()


def test_a_seed_is_one_quarter() -> None:
    once, again, other = (generated(seed, events=EVENTS) for seed in (1, 1, 2))
    assert once == again
    assert once.records != other.records


def _wrong(quarter: Quarter, tables: str) -> dict[str, int]:
    """How many cells are wrong, by the first word of their list."""
    lists = compared(quarter.truth, tables, quarter.stack.database)
    return {each.what.split()[0].strip(","): len(each.wrong) for each in lists if each.wrong}
