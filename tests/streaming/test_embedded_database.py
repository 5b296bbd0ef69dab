"""The embedded Postgres starts, whenever whoever made it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from laptop import database
from tests.waiting import wait_until

PREPARE = "import sys; from pathlib import Path; from laptop import database; database.prepare(Path(sys.argv[1]))"


def test_a_killed_initdb_leaves_no_cluster_that_never_starts(tmp_path: Path) -> None:
    making = subprocess.Popen([sys.executable, "-c", PREPARE, str(tmp_path)], start_new_session=True)
    # initdb writes PG_VERSION first, and everything else after it.
    wait_until(lambda: any(tmp_path.glob("data*/PG_VERSION")), "initdb", 30, every_seconds=0.001)
    os.killpg(making.pid, signal.SIGKILL)
    making.wait()

    database.prepare(tmp_path)
    database.set_password(tmp_path, "another-password")
    with database.embedded_database(tmp_path) as url, psycopg.connect(url) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_a_database_that_was_not_made_the_first_time_keeps_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stack's programs know it from then on, and initdb may succeed when it is tried again: the disk was full."""
    failed = subprocess.CompletedProcess([], 1, stderr="No space left on device")
    with monkeypatch.context() as full:
        full.setattr("laptop.database.subprocess.run", lambda *_, **__: failed)
        with pytest.raises(database.DatabaseUnavailable, match="No space left"):
            database.prepare(tmp_path)
    known = database.database_url(tmp_path, 5432)
    database.prepare(tmp_path)
    assert database.database_url(tmp_path, 5432) == known


def test_a_password_that_cannot_be_set_is_refused_without_showing_it(tmp_path: Path) -> None:
    database.prepare(tmp_path)
    (tmp_path / "data" / "global" / "pg_control").unlink()
    with pytest.raises(database.DatabaseUnavailable, match="pg_control") as refusal:
        database.set_password(tmp_path, "not-to-be-printed")
    assert "not-to-be-printed" not in str(refusal.value)


def test_a_database_whose_changes_are_captured_gets_its_password_again(tmp_path: Path) -> None:
    """As in a pod of the quickstart, which sets the password at each start."""
    database.prepare(tmp_path)
    with database.embedded_database(tmp_path) as url, psycopg.connect(url) as session:
        session.execute("SELECT pg_create_logical_replication_slot('weir_catalog_weir', 'pgoutput')")
    database.set_password(tmp_path, "another-password")
    with database.embedded_database(tmp_path) as url, psycopg.connect(url) as session:
        assert session.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == [("weir_catalog_weir",)]
