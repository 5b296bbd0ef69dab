"""Tables in Azure Blob Storage (Azurite): a real application reads and writes them, and a second put is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.runtime.delta.table import LSN, DeltaWriter, open_table, probe_put_if_absent
from jobs.runtime.errors import Fenced
from jobs.streams import Table
from tests.streaming.azurite import ACCOUNT, CONTAINER, KEY, azurite, program
from tests.streaming.joins_on_store import JoinsOnStore, gives_each_outcome_once_though_killed, joins_on_store
from tests.streaming.journals import Journal
from tests.streaming.test_delta_writer import accounts

pytestmark = pytest.mark.long

# abfs and not abfss: the emulator speaks no TLS.
TABLES = f"abfs://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/tables"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The root of tables in an empty container, and the variables by which every client finds it."""
    server = program()
    if server is None:
        pytest.skip("needs npm, which installs Azurite")
    folder = tmp_path / "azurite"
    folder.mkdir()
    with azurite(server, folder) as endpoint:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
        yield TABLES


@pytest.fixture
def joins(store: str, database: str, jars: Path, tmp_path: Path) -> Iterator[JoinsOnStore]:
    with joins_on_store(store, database, jars, tmp_path) as started:
        yield started


def test_an_application_on_azure_gives_each_request_its_outcome_once_though_it_is_killed(
    store: str, joins: JoinsOnStore
) -> None:
    gives_each_outcome_once_though_killed(joins, Journal(store))


def test_azures_store_refuses_a_second_put_and_a_writer_that_was_replaced_is_fenced(store: str) -> None:
    probe_put_if_absent(store, "joins", 1)
    replaced = DeltaWriter(store, Table.ACCOUNTS, "joins", 1)
    replaced.commit(accounts(1), {LSN: 2})
    successor = DeltaWriter(store, Table.ACCOUNTS, "joins", 2)
    successor.commit(accounts(2), {LSN: 3})
    with pytest.raises(Fenced):
        replaced.commit(accounts(3), {LSN: 3})
    table = open_table(store, Table.ACCOUNTS)
    assert table is not None
    assert sorted(table.to_pyarrow_table()["lsn"].to_pylist()) == [1, 2]
