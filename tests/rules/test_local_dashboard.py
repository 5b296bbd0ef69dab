"""As whom the laptop's dashboard reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.runtime.postgres.reader_role import ROLE
from laptop.dashboard import READER, READER_URL_VARIABLE, dashboard_command, reader_password, reader_url
from laptop.folders import Folders

OWNER = "postgresql://weir:secret@127.0.0.1:25432/weir"


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    (tmp_path / "postgres").mkdir()
    return Folders(tmp_path)


def test_an_embedded_database_is_read_as_the_reader_with_a_password_that_stays(folders: Folders) -> None:
    password = reader_password(folders)
    assert reader_url(folders, OWNER, is_embedded=True) == f"postgresql://{READER}:{password}@127.0.0.1:25432/weir"
    assert reader_password(folders) == password
    assert (folders.database / "reader-password").stat().st_mode & 0o077 == 0


def test_an_outside_database_is_read_as_its_variable_says(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(READER_URL_VARIABLE, raising=False)
    assert reader_url(folders, OWNER, is_embedded=False) == OWNER
    monkeypatch.setenv(READER_URL_VARIABLE, "postgresql://reader@db/weir")
    assert reader_url(folders, OWNER, is_embedded=False) == "postgresql://reader@db/weir"


def test_the_reader_is_the_role_that_migrations_make() -> None:
    assert READER == ROLE


def test_it_listens_on_this_machine_only() -> None:
    command = dashboard_command(8501)
    assert command[command.index("--server.address") + 1] == "127.0.0.1"
