"""A dump goes into an empty server by the statements of docs/how-to/restore.md, as they stand there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from jobs.runtime.postgres.address import in_schema
from jobs.runtime.postgres.reader_role import ROLE
from laptop.database import embedded_database, program
from tests.pages import blocks

BACK_UP, RESTORE = (
    block.text for block in blocks() if block.page.endswith("/restore.md") and "$WEIR_POSTGRES_URL" in block.text
)


def run(statements: str, url: str, folder: Path) -> str:
    """What a shell says that runs them in the folder, with Postgres' own programs."""
    variables = {"PATH": f"{program('psql').parent}:{os.environ['PATH']}", "WEIR_POSTGRES_URL": url}
    shell = ["bash", "-e", "-c", statements]
    ended = subprocess.run(shell, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr[-2_000:]
    return ended.stderr


@pytest.fixture
def customer(database: str) -> Iterator[str]:
    """The name of a login that is bound to an account."""
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE restored_reader LOGIN PASSWORD 'of-the-customer' IN ROLE {ROLE}")
        owner.execute("INSERT INTO reader_logins VALUES ('restored_reader', '[\"acme\"]')")
        owner.execute("INSERT INTO catalog.plans (plan, name) VALUES ('p', 'P')")
        yield "restored_reader"
        owner.execute("DROP ROLE restored_reader")


def test_a_dump_goes_into_an_empty_server_with_its_roles_by_the_statements_of_the_page(
    database: str, customer: str, tmp_path: Path
) -> None:
    run(BACK_UP, database, tmp_path)
    assert "of-the-customer" not in (tmp_path / "roles.sql").read_text() + (tmp_path / "weir.sql").read_text()
    with embedded_database(tmp_path / "server") as empty:
        run(RESTORE, empty, tmp_path)
        with psycopg.connect(in_schema(empty)) as restored:
            assert restored.execute("SELECT plan FROM catalog.plans").fetchall() == [("p",)]
            assert restored.execute("SELECT login FROM reader_logins").fetchall() == [(customer,)]
            may = "SELECT pg_has_role(%s, %s, 'MEMBER'), rolcanlogin FROM pg_roles WHERE rolname = %s"
            assert restored.execute(may, [customer, ROLE, customer]).fetchall() == [(True, True)]
