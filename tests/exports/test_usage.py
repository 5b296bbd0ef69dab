"""`weir export usage`: each row of the Delta table is in the file of one day, whatever release wrote it.

Method: `oracle`. Random rows of both forms, added up from the files and from what was written.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from cli.main import app
from jobs.exports.files import destination_of
from jobs.exports.usage import SCHEMA, export_usage, last_settled_day
from jobs.streams import USAGE, Table
from tests.pages import blocks_of

FIRST = date(2026, 10, 1)
DAYS = 5


def _rows(chance: random.Random, count: int) -> Iterator[dict[str, Any]]:
    for lsn in range(1, count + 1):
        logged = FIRST + timedelta(days=lsn * DAYS // (count + 1))
        at = datetime(logged.year, logged.month, logged.day, 3, tzinfo=UTC)
        row: dict[str, Any] = dict.fromkeys(USAGE.names)
        row |= {"lsn": lsn, "log_date": logged, "logged_at": at, "account": chance.choice(["acme", "solo"])}
        row |= {"request_id": f"r-{lsn}", "outcome": "matched", "event_time": at, "received_at": at, "currency": "EUR"}
        row |= {"sign": chance.choice([1, 1, -1]), "cause": "stream", "day": logged - timedelta(days=1)}
        price = Decimal(chance.randint(1, 10**6)).scaleb(-12)
        quantity = Decimal(chance.randint(1, 10**12)).scaleb(-6)
        if chance.random() < 0.1:
            row |= {"cause": "decided", "outcome": "decided"}
        if chance.random() < 0.3:
            row |= {"requests": 1, "requests_price_version": 7, "requests_unit_price": price, "requests_amount": price}
        else:
            priced = {"price_version": 7, "unit_price": price, "amount": quantity * price}
            row["meters"] = [{"meter": "input_tokens", "quantity": quantity, **priced}]
        yield row


def _sums(rows: list[dict[str, Any]]) -> dict[Any, list[Decimal]]:
    found: defaultdict[Any, list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 2)
    for row in rows:
        key = row["account"], row["meter"], row["day"]
        numbers = found[key], (row["quantity"], row["amount"])
        found[key] = [total + row["sign"] * number for total, number in zip(*numbers, strict=True)]
    return dict(found)


@pytest.fixture
def written(tmp_path: Path) -> tuple[DeltaTable, list[dict[str, Any]]]:
    """A table, and one row per meter of what was written to it."""
    rows = list(_rows(random.Random(5), 150))
    for part in (rows[:60], rows[60:]):
        write_deltalake(
            tmp_path / Table.USAGE, pa.Table.from_pylist(part, USAGE), mode="append", partition_by=["log_date"]
        )
    single: list[dict[str, Any]] = []
    for row in (row for row in rows if row["cause"] != "decided"):
        if row["meters"]:
            single.append(row | row["meters"][0])
        else:
            price = row["requests_unit_price"]
            single.append(row | {"meter": "requests", "quantity": Decimal(1), "unit_price": price, "amount": price})
    return DeltaTable(tmp_path / Table.USAGE), single


def read(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.glob("usage/*/usage.parquet"))
    return [row for path in paths for row in pl.read_parquet(path, hive_partitioning=False).to_dicts()]


def test_each_row_is_in_the_file_of_one_day(written: tuple[DeltaTable, list[dict[str, Any]]], tmp_path: Path) -> None:
    table, rows = written
    folder = tmp_path / "out"
    days = list(export_usage(table, destination_of(str(folder), {}), None, date.max, lambda _: None, rows_per_batch=7))
    assert [day.log_date for day in days] == [FIRST + timedelta(days=number) for number in range(DAYS)]
    found = read(folder)
    assert sum(day.rows for day in days) == len(found)
    assert list(found[0]) == SCHEMA.names
    # A matched row of an earlier release names the other meters, too, which were not reported.
    reported = [row for row in found if row["quantity"] is not None]
    assert sorted(row["lsn"] for row in reported) == [row["lsn"] for row in rows]
    assert {row["meter"] for row in reported} == {"requests", "input_tokens"}
    assert _sums(reported) == _sums(rows)


def test_days_that_are_asked_for_are_replaced_and_no_others(
    written: tuple[DeltaTable, list[dict[str, Any]]], tmp_path: Path
) -> None:
    table, _ = written
    folder = tmp_path / "out"
    to = destination_of(str(folder), {})
    second = FIRST + timedelta(days=1)
    assert len(list(export_usage(table, to, second, second, lambda _: None, rows_per_batch=7))) == 1
    [only] = folder.glob("usage/*/*")
    first = only.read_bytes()
    only.write_bytes(b"half")
    (only.parent / "other.parquet").touch()
    list(export_usage(table, to, second, second, lambda _: None, rows_per_batch=7))
    assert [path.read_bytes() for path in folder.glob("usage/*/*")] == [first]


def test_the_command_lists_the_files(written: tuple[DeltaTable, list[dict[str, Any]]], tmp_path: Path) -> None:
    places = {
        "WEIR_TABLES": str(tmp_path),
        "WEIR_KAFKA_BOOTSTRAP": "none:9092",
        "WEIR_POSTGRES_URL": "postgresql://x/x",
    }
    command = ["export", "usage", "--to", str(tmp_path / "out"), "--to-day", "2026-10-02", "--format", "json"]
    done = CliRunner().invoke(app, command, env=places)
    assert done.exit_code == 0, done.output
    listed = json.loads(done.stdout)
    assert [row["file"] for row in listed] == [f"usage/log_date=2026-10-0{day}/usage.parquet" for day in (1, 2)]
    wrong = CliRunner().invoke(app, [*command, "--from-day", "yesterday"], env=places)
    assert "is not a day such as 2026-10-01" in wrong.stderr


def test_a_day_of_which_a_batch_may_still_come_is_left_out_or_said_to_grow(
    written: tuple[DeltaTable, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """A batch has the day on which it began to be written, and a large one is committed minutes later."""
    midnight = datetime(2026, 10, 3, tzinfo=UTC)
    minutes = {0: date(2026, 10, 1), 59: date(2026, 10, 1), 60: date(2026, 10, 2)}
    assert {at: last_settled_day(midnight + timedelta(minutes=at)) for at in minutes} == minutes

    coming = date(2999, 1, 1)
    table, _ = written
    [row] = _rows(random.Random(6), 1)
    write_deltalake(table, pa.Table.from_pylist([row | {"log_date": coming}], USAGE), mode="append")
    places = {
        "WEIR_TABLES": str(tmp_path),
        "WEIR_KAFKA_BOOTSTRAP": "none:9092",
        "WEIR_POSTGRES_URL": "postgresql://x/x",
    }
    command = ["export", "usage", "--to", str(tmp_path / "out"), "--from-day", str(coming)]
    refused = CliRunner().invoke(app, command, env=places)
    assert (refused.exit_code, "which may still get rows" in " ".join(refused.stderr.split())) == (2, True)
    done = CliRunner().invoke(app, [*command, "--to-day", str(coming)], env=places)
    assert (done.exit_code, f"{coming} may still get rows" in done.stderr) == (0, True)


def test_the_query_that_the_guide_shows_reads_the_table(
    written: tuple[DeltaTable, list[dict[str, Any]]], tmp_path: Path
) -> None:
    [block] = [block for block in blocks_of("python") if "scan_delta" in block.text]
    names: dict[str, Any] = {}
    exec(block.text.replace("TABLES", str(tmp_path)), names)
    _, rows = written
    expected = {key: quantity for key, (quantity, _) in _sums([row for row in rows if row["meters"]]).items()}
    found = names["per_meter"].filter(pl.col("meter").is_not_null()).rows(named=True)
    assert {(row["account"], row["meter"], row["day"]): row["total"] for row in found} == expected
