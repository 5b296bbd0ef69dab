"""The oldest Postgres of docs/promises.md takes the schema, and does what a few modules of tests ask of it.

`WEIR_TESTS_POSTGRES=/usr/lib/postgresql/15/bin` runs any tests on it; these are the ones that use most of SQL.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.conftest import OTHER_POSTGRES

ROOT = Path(__file__).parents[2]
PROGRAMS = "/usr/lib/postgresql/{}/bin"
MODULES = (
    "test_activity_log.py",
    "test_catalog_store.py",
    "test_invoices_commands.py",
    "test_job_roles.py",
    "test_migration_deadlock.py",
    "test_older_releases.py",
    "test_prices_by_sql.py",
    "test_rotation.py",
)


def oldest() -> int:
    """What the page of promises says."""
    promises = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
    (version,) = re.findall(r"^\| Postgres \| (\d+) or newer", promises, re.MULTILINE)
    return int(version)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("module", [*MODULES, "test_oldest_postgres.py"])
def test_its_tests_pass_on_the_oldest_postgres(module: str) -> None:
    programs = Path(PROGRAMS.format(oldest()))
    if not (programs / "postgres").exists():
        pytest.skip(f"needs Postgres {oldest()} in {programs}, as Debian's package puts it there")
    chosen = ["-k", "server_is_the_one"] if module == Path(__file__).name else []
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, f"tests/pipelines/{module}"],
        cwd=ROOT,
        env={**os.environ, "WEIR_TESTS_POSTGRES": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    assert " passed" in ended.stdout


def test_the_server_is_the_one_that_was_asked_for(database: str) -> None:
    """Otherwise the test above would pass on the server of the wheel."""
    with psycopg.connect(database) as connection:
        major = connection.info.server_version // 10_000
    assert major == (oldest() if OTHER_POSTGRES else 18)
