"""Restoring a backup, as docs/how-to/restore.md says: afterwards nothing is lost or doubled, or has another price.

A stack of its own. Each backup is older than the rest: what came since must be caught up from what is left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path

import psycopg
import pytest

from deployment.stack import Stack
from jobs.streams import Table
from laptop.database import embedded_database, server_program
from laptop.folders import Folders
from metering.vocabulary import ALWAYS
from tests.e2e.conftest import running_on
from tests.e2e.metering import Customer, drain, new_customer, weir
from tests.e2e.test_failures import frozen_drivers
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]
PAIRS = 30


def run(*command: str, text: str | None = None) -> str:
    ended = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, f"{command[:3]}: {ended.stderr[-2000:]}"
    return ended.stdout


def back_up_database(url: str, folder: Path) -> None:
    """The roles of the server, and the database."""
    folder.mkdir()
    roles = run(*server_program("pg_dumpall"), "--roles-only", "--no-role-passwords", "-d", url)
    # The owner is there: who restores signs in as it.
    others = [line for line in roles.splitlines() if line.split()[2:3] != ["weir;"] and " ROLE weir " not in line]
    (folder / "roles.sql").write_text("\n".join(others))
    (folder / "weir.sql").write_text(run(*server_program("pg_dump"), "-d", url))


def restore_database(folder: Path, backup: Path) -> None:
    """Into a new server, which has another log than the one that was lost."""
    shutil.move(folder / "data", folder / "lost")
    with embedded_database(folder) as url:
        for file in ("roles.sql", "weir.sql"):
            run(*server_program("psql"), "-v", "ON_ERROR_STOP=1", "-d", url, text=(backup / file).read_text())


def raise_price(stack: Stack, customer: Customer, price: Decimal) -> None:
    """The price of its requests, from now on."""
    answer = weir(
        stack,
        *("catalog", "set-price", "--plan", f"plan-{customer.account}", "--model", "m", "--meter", "requests"),
        *("--currency", "EUR", "--unit-price", f"{price:f}", "--effective-from", "2026-01-02T00:00:00Z", "--yes"),
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def is_whole(stack: Stack, customer: Customer) -> None:
    """What it sent is billed, once; and an audit of everything agrees."""
    drain(stack)
    assert customer.billed(stack) == customer.expected()
    audited = weir(stack, "audit")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert customer.billed(stack) == customer.expected()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "weir"


def test_a_database_that_is_older_than_the_tables_is_caught_up_from_them(data_dir: Path, tmp_path: Path) -> None:
    folders = Folders(data_dir)
    with running_on(data_dir) as stack:
        customer = new_customer(stack, tmp_path)
        customer.send(stack, tmp_path, PAIRS)
        drain(stack)
        back_up_database(stack.postgres_url, tmp_path / "backup")
        customer.send(stack, tmp_path, PAIRS)
        later = new_customer(stack, tmp_path)
        later.send(stack, tmp_path, PAIRS)
        drain(stack)
        assert later.billed(stack) == later.expected()
    restore_database(folders.database, tmp_path / "backup")
    with running_on(data_dir) as stack:
        is_whole(stack, customer)
        # Its account is in no backup; the tables still have it, and what it used is billed as before.
        assert later.billed(stack) == later.expected()
        # The catalog is captured from the new server.
        newest = new_customer(stack, tmp_path)
        newest.send(stack, tmp_path, PAIRS)
        customer.send(stack, tmp_path, PAIRS)
        is_whole(stack, newest)
        is_whole(stack, customer)


@pytest.mark.parametrize("journal_first", [False, True], ids=["all of them", "the journal, then what was made of it"])
def test_tables_that_are_older_than_the_database_are_refused_until_it_is_rebuilt_from_them(
    data_dir: Path, tmp_path: Path, journal_first: bool
) -> None:
    folders, backup = Folders(data_dir), tmp_path / "backup"
    with running_on(data_dir) as stack:
        customer = new_customer(stack, tmp_path)
        customer.send(stack, tmp_path, PAIRS)
        drain(stack)
        with frozen_drivers(stack, ALWAYS):
            shutil.copytree(folders.tables, backup)
        customer.send(stack, tmp_path, PAIRS)
        drain(stack)
        if journal_first:
            # A store that lost the last commits of one table: what was made of them is refused by name.
            restore_tables(stack, backup, folders.tables, [Table.JOURNAL])
            wait_until(partial(has_refused, stack, "joins"), "joins refusing", 180)
        restore_tables(stack, backup, folders.tables, [file.name for file in backup.iterdir()])
        for job in ("billing", "sessionization"):
            wait_until(partial(has_refused, stack, job), f"{job} refusing", 180)
        assert customer.billed(stack) == customer.expected()
        for job in ("billing", "sessionization"):
            rebuilt = weir(stack, "rebuild", job, "--yes")
            assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr
        is_whole(stack, customer)
        customer.send(stack, tmp_path, PAIRS)
        is_whole(stack, customer)


def restore_tables(stack: Stack, backup: Path, tables: Path, names: Sequence[str]) -> None:
    """Put the older folders in place, while no driver writes; all drivers start again."""
    with frozen_drivers(stack, ALWAYS) as frozen:
        for name in names:
            shutil.rmtree(tables / name)
            shutil.copytree(backup / name, tables / name)
        for pid in frozen.values():
            os.killpg(pid, signal.SIGKILL)


def has_refused(stack: Stack, job: str) -> bool:
    with psycopg.connect(stack.postgres_url) as connection:
        row = connection.execute("SELECT count(*) FROM exits WHERE job = %s AND how = 'refused'", [job]).fetchone()
    assert row is not None
    return bool(row[0])
