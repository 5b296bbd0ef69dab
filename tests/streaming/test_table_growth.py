"""A table of an older version goes on: it gets the columns it lacks, keeps those it has, and its readers lose nothing.

The older version's schemas are written out here, as they were.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from pyspark.sql import SparkSession

from jobs.joins.catalog import Catalog
from jobs.runtime.delta.growth import COMPATIBLE_FROM, SCHEMA_VERSION
from jobs.runtime.delta.position import Position
from jobs.runtime.delta.table import LSN, DeltaWriter, committing
from jobs.runtime.errors import Fenced, Refused
from jobs.streams import (
    AUTHOR,
    EXPANSIONS,
    GROWING,
    JOURNAL,
    PRICES,
    SCHEMA_VERSIONS,
    SCHEMAS,
    SOURCE,
    USAGE,
    CatalogTopic,
    Table,
    compatible_from,
)
from metering.instants import EPOCH, rfc3339
from metering.vocabulary import Disposition, EventType
from tests.streaming.drivers import running_driver
from tests.streaming.journals import START

OLD_SCHEMAS = {
    Table.JOURNAL: pa.schema([field for field in JOURNAL if field.name not in {"first_received_at", "rules"}]),
    Table.USAGE: pa.schema(
        [
            *[field for field in USAGE if field.name not in {"corrects_lsns", "day", "rules"}],
            pa.field("corrects_lsn", pa.int64()),
        ]
    ),
}


def journal_row(lsn: int) -> dict[str, Any]:
    at = START + timedelta(seconds=lsn)
    place = {"lsn": lsn, "log_date": at.date(), "topic": "events", "partition": 0, "offset": lsn}
    instants = {"received_at": at, "logged_at": at, "event_time": at}
    kind = {"disposition": Disposition.ACCEPTED.value, "type": EventType.REQUEST.value}
    return {**place, **instants, **kind, "account": "a", "user_id": "u"}


def usage_row(lsn: int) -> dict[str, Any]:
    who = {"account": "a", "request_id": f"r{lsn}", "outcome": "matched", "sign": 1, "cause": "stream"}
    return {"lsn": lsn, "log_date": START.date(), "logged_at": START, "event_time": START, "received_at": START, **who}


KNOWN = {
    Table.JOURNAL: (5, 48, 3381880332),
    # `members` made no new version: the release before may leave it empty (0066).
    Table.USAGE: (5, 41, 2502507306),
    Table.ACCOUNTS: (4, 15, 257403003),
    Table.PRICES: (3, 13, 3263640214),
}
"""By table: the version of its schema, how many columns it has, and the checksum of their names and types."""


ROWS: dict[Table, Callable[[int], dict[str, Any]]] = {Table.JOURNAL: journal_row, Table.USAGE: usage_row}


def made_by_an_older_version(tables: Path, table: Table, rows: int) -> DeltaTable:
    schema = OLD_SCHEMAS[table]
    made = DeltaTable.create(f"{tables}/{table}", schema, partition_by=["log_date"])
    arrow = pa.Table.from_pylist([ROWS[table](lsn) for lsn in range(1, rows + 1)], schema=schema)
    write_deltalake(made, arrow, mode="append", commit_properties=committing({LSN: rows + 1, "job.epoch": 1}))
    return made


def append(writer: DeltaWriter, table: Table, **fields: Any) -> None:
    lsn = writer.next_lsn
    writer.commit(pa.Table.from_pylist([{**ROWS[table](lsn), **fields}], schema=SCHEMAS[table]), {LSN: lsn + 1})


@pytest.mark.parametrize("table", [Table.JOURNAL, Table.USAGE])
def test_a_table_of_the_previous_release_keeps_its_rows_and_positions(tmp_path: Path, table: Table) -> None:
    old = made_by_an_older_version(tmp_path, table, 2)
    writer = DeltaWriter(str(tmp_path), table, "job", 2)
    assert writer.next_lsn == 3
    append(writer, table, rules="{}")
    rows = DeltaTable(f"{tmp_path}/{table}").to_pyarrow_table().sort_by("lsn")
    assert rows["lsn"].to_pylist() == [1, 2, 3]
    assert rows["rules"].to_pylist() == [None, None, "{}"]
    assert {*OLD_SCHEMAS[table].names, *SCHEMAS[table].names} == set(rows.column_names)
    assert DeltaTable(f"{tmp_path}/{table}").metadata().id == old.metadata().id


def test_a_column_that_this_version_does_not_know_is_kept_and_written_as_null(tmp_path: Path) -> None:
    made_by_an_older_version(tmp_path, Table.USAGE, 1)
    append(DeltaWriter(str(tmp_path), Table.USAGE, "job", 2), Table.USAGE, corrects_lsns=[1], sign=-1)
    rows = DeltaTable(f"{tmp_path}/{Table.USAGE}").to_pyarrow_table().sort_by("lsn")
    assert rows["corrects_lsn"].to_pylist() == [None, None]
    assert rows["corrects_lsns"].to_pylist() == [None, [1]]
    assert rows["request_id"].to_pylist() == ["r1", "r2"]


def test_a_table_grows_once_also_when_the_driver_that_grew_it_never_committed_a_row(tmp_path: Path) -> None:
    made_by_an_older_version(tmp_path, Table.JOURNAL, 1)
    grown = DeltaWriter(str(tmp_path), Table.JOURNAL, "job", 2).table.version()
    assert DeltaWriter(str(tmp_path), Table.JOURNAL, "job", 3).table.version() == grown + 1


def test_uncaptured_prices_without_an_author_stay_and_only_new_ones_have_author_and_place(tmp_path: Path) -> None:
    key = {"plan": "p", "model": "m", "meter": "requests", "currency": "EUR"}
    row = {"lsn": 1, **key, "effective_from": START, "unit_price": Decimal(1), "deleted": False}
    old = pa.schema([field for field in PRICES if field.name not in (*AUTHOR, *SOURCE, "ends_at", "terms")])
    made = DeltaTable.create(f"{tmp_path}/{Table.PRICES}", old)
    committed = committing({LSN: 2, "joins.epoch": 1, "journal": 2})
    write_deltalake(made, pa.Table.from_pylist([row], old), mode="append", commit_properties=committed)

    def change(unit_price: int, name: str, at: int) -> bytes:
        said = {**key, "effective_from": rfc3339(START), "unit_price": unit_price}
        said |= {"changed_by": name, "changed_at": rfc3339(START)}
        return json.dumps({"op": "u", "ts_ms": 1, "after": said, "source": {"lsn": at, "ts_us": at}}).encode()

    told = {"lsn": [2, 3, 4], "topic": [CatalogTopic.PRICES] * 3}
    values = [change(1, "ann", 7), change(2, "bob", 8), change(2, "ann", 9)]
    Catalog(str(tmp_path), 2, 1).take(pl.DataFrame({**told, "value": values}), Position(5))
    Catalog(str(tmp_path), 3, 2).versions()
    found = DeltaTable(f"{tmp_path}/{Table.PRICES}").to_pyarrow_table().sort_by("lsn").to_pylist()
    assert [tuple(row[name] for name in ("lsn", "unit_price", *AUTHOR, *SOURCE)) for row in found] == [
        (1, 1, None, None, None, None),
        (3, 2, "bob", START, 8, EPOCH + timedelta(microseconds=8)),
    ]


def test_prices_get_the_column_of_terms_with_the_first_price_that_has_any(tmp_path: Path) -> None:
    """Until then the release before can go on with the table."""
    key = {"plan": "p", "model": "m", "meter": "requests", "currency": "EUR", "effective_from": rfc3339(START)}
    terms = '{"kind": "package", "package_price": 3, "package_size": "10"}'

    def take(catalog: Catalog, lsn: int, **costs: str | None) -> list[str]:
        change = json.dumps({"op": "u", "ts_ms": 1, "after": {**key, **costs}}).encode()
        rows = pl.DataFrame({"lsn": [lsn], "topic": [CatalogTopic.PRICES], "value": [change]})
        catalog.take(rows, Position(lsn + 1))
        return list(DeltaTable(f"{tmp_path}/{Table.PRICES}").to_pyarrow_table().column_names)

    catalog = Catalog(str(tmp_path), 1, 1)
    assert "terms" not in take(catalog, 1, unit_price="1")
    assert take(catalog, 2, unit_price=None, terms=terms) == PRICES.names
    assert take(Catalog(str(tmp_path), 2, 2), 3, unit_price="2") == PRICES.names
    found = DeltaTable(f"{tmp_path}/{Table.PRICES}").to_pyarrow_table().sort_by("lsn").to_pylist()
    one_text = '{"kind":"package","package_size":"10","package_price":"3"}'
    assert [(row["unit_price"], row["terms"]) for row in found] == [(1, None), (None, one_text), (2, None)]


def test_earlier_deletions_stay_withdrawn_even_if_published_again_and_only_new_ones_end(tmp_path: Path) -> None:
    keys = [{"plan": "p", "model": model, "meter": "requests", "currency": "EUR"} for model in ("old", "new")]
    old = pa.schema([field for field in PRICES if field.name not in ("ends_at", "terms")])
    said: list[tuple[int, dict[str, str], int | None]] = [(1, keys[0], 1), (2, keys[1], 1), (3, keys[0], None)]
    rows = [
        {"lsn": lsn, **key, "effective_from": START, "unit_price": unit and Decimal(unit), "deleted": unit is None}
        for lsn, key, unit in said
    ]
    made = DeltaTable.create(f"{tmp_path}/{Table.PRICES}", old)
    committed = committing({LSN: 4, "joins.epoch": 1, "journal": 4})
    write_deltalake(made, pa.Table.from_pylist(rows, old), mode="append", commit_properties=committed)
    gone = [json.dumps({"op": "d", "ts_ms": 7, "before": key | {"effective_from": rfc3339(START)}}) for key in keys]
    told = {"lsn": [4, 5], "topic": [CatalogTopic.PRICES] * 2, "value": [one.encode() for one in gone]}
    Catalog(str(tmp_path), 2, 1).take(pl.DataFrame(told), Position(6))
    found = DeltaTable(f"{tmp_path}/{Table.PRICES}").to_pyarrow_table().sort_by("lsn").to_pylist()
    deletions = [(row["lsn"], row["model"], row["ends_at"]) for row in found if row["deleted"]]
    assert deletions == [(3, "old", None), (5, "new", EPOCH + timedelta(milliseconds=7))]


def test_a_driver_from_before_the_growth_is_fenced(tmp_path: Path) -> None:
    made_by_an_older_version(tmp_path, Table.JOURNAL, 1)
    frozen = DeltaWriter(str(tmp_path), Table.JOURNAL, "job", 2)
    newer = Schema.from_arrow(pa.schema([pa.field("of_a_newer_version", pa.string())]))
    DeltaTable(f"{tmp_path}/{Table.JOURNAL}").alter.add_columns(newer.fields)
    DeltaWriter(str(tmp_path), Table.JOURNAL, "job", 3)
    with pytest.raises(Fenced, match=r"job\.epoch is at 3"):
        append(frozen, Table.JOURNAL)


@pytest.mark.parametrize(
    "column",
    [pa.field("rules", pa.int64()), pa.field("that_must_have_a_value", pa.string(), nullable=False)],
)
def test_a_table_with_a_foreign_schema_is_refused(tmp_path: Path, column: pa.Field) -> None:
    DeltaTable.create(f"{tmp_path}/journal", pa.schema([*OLD_SCHEMAS[Table.JOURNAL], column]))
    with pytest.raises(Refused, match=rf"cannot write its columns {column.name}; run the version of Weir"):
        DeltaWriter(str(tmp_path), Table.JOURNAL, "job", 2)


def test_a_table_of_a_newer_version_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    DeltaWriter(str(tmp_path), Table.JOURNAL, "job", 1)
    table = DeltaTable(f"{tmp_path}/journal")
    later = SCHEMA_VERSIONS[Table.JOURNAL] + 1
    newer = committing({SCHEMA_VERSION: later, COMPATIBLE_FROM: later})
    write_deltalake(table, pa.schema(table.schema().to_arrow()).empty_table(), mode="append", commit_properties=newer)
    version = DeltaTable(f"{tmp_path}/journal").version()
    with pytest.raises(Refused, match=r"has version 6 of its schema and this program knows 5: .* install that version"):
        DeltaWriter(str(tmp_path), Table.JOURNAL, "job", 2)
    assert DeltaTable(f"{tmp_path}/journal").version() == version


@pytest.mark.parametrize("table", list(Table))
def test_a_table_records_the_version_of_its_schema(tmp_path: Path, table: Table) -> None:
    DeltaWriter(str(tmp_path), table, "job", 1)
    made = DeltaTable(f"{tmp_path}/{table}")
    assert made.transaction_version(SCHEMA_VERSION) == SCHEMA_VERSIONS[table]
    assert made.transaction_version(COMPATIBLE_FROM) == compatible_from(table)


@pytest.mark.parametrize(
    ("declared", "oldest"), [((), 9), ((9,), 8), ((8,), 9), ((8, 9), 7)], ids=["none", "newest", "an earlier", "both"]
)
def test_older_versions_may_write_as_far_back_as_each_version_since_then_only_adds(
    monkeypatch: pytest.MonkeyPatch, declared: tuple[int, ...], oldest: int
) -> None:
    monkeypatch.setitem(SCHEMA_VERSIONS, Table.USAGE, 9)
    monkeypatch.setitem(EXPANSIONS, Table.USAGE, frozenset(declared))
    assert compatible_from(Table.USAGE) == oldest


@pytest.mark.parametrize("table", [Table.JOURNAL, Table.USAGE])
def test_the_release_before_writes_on_where_this_one_only_added_columns_and_this_one_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
    version = SCHEMA_VERSIONS[table]

    def newer_writes(epoch: int) -> None:
        with monkeypatch.context() as newer:
            newer.setitem(SCHEMA_VERSIONS, table, version + 1)
            newer.setitem(EXPANSIONS, table, frozenset({version + 1}))
            newer.setitem(SCHEMAS, table, SCHEMAS[table].append(pa.field("added", pa.string())))
            append(DeltaWriter(str(tmp_path), table, "job", epoch), table, added="by the newer")

    newer_writes(1)
    append(DeltaWriter(str(tmp_path), table, "job", 2), table)
    between = DeltaTable(f"{tmp_path}/{table}")
    assert between.transaction_version(SCHEMA_VERSION) == version + 1
    assert between.transaction_version(COMPATIBLE_FROM) == version
    newer_writes(3)
    rows = DeltaTable(f"{tmp_path}/{table}").to_pyarrow_table(columns=["lsn", "added"]).sort_by("lsn").to_pylist()
    assert [(row["lsn"], row["added"]) for row in rows] == [(1, "by the newer"), (2, None), (3, "by the newer")]


def test_a_change_of_columns_is_a_new_version_of_the_schema() -> None:
    """Whoever changes columns: one more in `streams.SCHEMA_VERSIONS`, and its columns here.

    Not those of GROWING, which a table gets with the first row that needs them.
    """
    schemas = {
        table: pa.schema([field for field in schema if field.name not in GROWING.get(table, ())])
        for table, schema in SCHEMAS.items()
    }
    found = {
        table: (SCHEMA_VERSIONS[table], len(schema), crc32(str(schema).encode())) for table, schema in schemas.items()
    }
    assert found == KNOWN


def test_spark_reads_rows_from_before_and_after_the_growth(spark: SparkSession, tmp_path: Path) -> None:
    made_by_an_older_version(tmp_path, Table.USAGE, 1)
    append(DeltaWriter(str(tmp_path), Table.USAGE, "job", 2), Table.USAGE, corrects_lsns=[1, 2], rules="{}")
    rows = spark.read.format("delta").load(f"{tmp_path}/{Table.USAGE}").orderBy("lsn")
    found = [tuple(row) for row in rows.select("lsn", "corrects_lsns", "day", "rules").collect()]
    assert found == [(1, None, None, None), (2, [1, 2], None, "{}")]


@pytest.mark.long
def test_a_running_stream_survives_new_columns_and_counts_every_row_once(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    old = made_by_an_older_version(tmp_path, Table.JOURNAL, 2)
    with running_driver(spark, database, tmp_path) as wait_for:
        wait_for(3)
        # One commit of the old version through the running stream, so that it is built before the table grows.
        arrow = pa.Table.from_pylist([journal_row(3)], schema=OLD_SCHEMAS[Table.JOURNAL])
        write_deltalake(old, arrow, mode="append", commit_properties=committing({LSN: 4}))
        wait_for(4)
        writer = DeltaWriter(str(tmp_path), Table.JOURNAL, "job", 2)
        append(writer, Table.JOURNAL)
        wait_for(5)
        append(writer, Table.JOURNAL)
        wait_for(6)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT sum(events) FROM sessions").fetchall() == [(5,)]
        assert connection.execute("SELECT epoch FROM jobs").fetchall() == [(1,)]
