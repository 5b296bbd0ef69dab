"""The page of the tables is current, and each table and column of Delta and Postgres has a meaning."""

from __future__ import annotations

import pytest

from jobs.runtime.postgres.relations import CATALOG, OWN, VERSION_TABLE
from jobs.streams import SCHEMAS, Table
from reference.render import FOLDER
from reference.tables import DELTA, POSTGRES, Column, described, meaning_of, stored_columns, tables_page

A_SEQUENCE = "settled_stragglers"


@pytest.fixture(scope="module")
def columns(postgres_url: str) -> list[Column]:
    return stored_columns(postgres_url)


def test_the_page_is_current(columns: list[Column]) -> None:
    assert (FOLDER / "tables.md").read_text(encoding="utf-8") == tables_page(columns), "run: make render"


def test_the_page_has_every_table(columns: list[Column]) -> None:
    assert {column.table for column in columns} == {*CATALOG, *OWN} - {VERSION_TABLE, A_SEQUENCE}


@pytest.mark.parametrize("name", Table)
def test_each_column_of_delta_has_a_meaning_and_no_other(name: Table) -> None:
    said = described(DELTA)[name.value]
    assert list(said["columns"]) == SCHEMAS[name].names
    assert all([said["meaning"], said["key"], *said["columns"].values()])


def test_each_column_of_postgres_has_a_meaning_and_no_other(columns: list[Column]) -> None:
    said = described(POSTGRES)
    assert [column for column in columns if not meaning_of(column, said)] == []
    names = {column.full_name: set[str]() for column in columns}
    for column in columns:
        names[column.full_name].add(column.name)
    assert said.keys() - {"common"} == names.keys()
    for table, about in said.items():
        if table != "common":
            assert about["meaning"], table
            assert about["columns"].keys() <= names[table], table
