"""A database that retains its log without a limit, for a slot that nobody reads, is reported where a person looks."""

from __future__ import annotations

import psycopg
import pytest

from cli.status import _read
from deployment.stack import Deployment
from jobs.__main__ import migrate
from jobs.runtime.postgres import slot_log


def test_a_database_without_a_limit_is_reported_by_the_migration_and_by_status(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEIR_POSTGRES_URL", database)
    migrate()
    assert capsys.readouterr().err == ""
    assert _read(Deployment(postgres_url=database))[-1] == []
    with psycopg.connect(database) as connection:
        found = connection.execute(
            "SELECT setting, boot_val, current_setting(name) FROM pg_settings WHERE name = 'max_slot_wal_keep_size'"
        ).fetchone()
    assert found is not None
    _, default, _ = found
    assert default == slot_log.UNLIMITED, "what a server has that nobody set up"

    # The test's server has a limit; let it answer as one that nobody set up.
    risk_of = slot_log.risk_of
    monkeypatch.setattr(slot_log, "risk_of", lambda _: risk_of(default))
    migrate()
    said = capsys.readouterr().err
    assert "max_slot_wal_keep_size is -1" in said
    assert _read(Deployment(postgres_url=database))[-1] == [said.strip()]
