"""A close of many accounts, whose process is killed at ten places, issues the invoices of one that was not.

The accounts are those of `bench.closed`: plans with a fee, a minimum and included units, and a meter with tiers. Each
place is a statement to the database, and each close goes on where the one before it was killed. So they are killed at
ten places of what one transaction does, from the beginning of the month to its end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from bench.closed import FIRST, fill_catalog, fill_month
from tests.conftest import fresh_database

ACCOUNTS, WINDOWS = 10_000, 1_000_000
KILLS = 10
TRANSACTIONS = 20
MAX_KIB = 1536 * 1024
"""1.5 GiB: what the chart gives the close."""
_HASHES = """
    SELECT invoices.invoice, invoices.account, total, lines, hash
    FROM invoices JOIN invoice_events USING (invoice) WHERE state = 'Issued' ORDER BY number
"""
_HALF_WRITTEN = """
    SELECT count(*) FROM invoices WHERE lines <> (
        SELECT count(*) FROM invoice_lines AS lines WHERE lines.invoice = invoices.invoice
    ) OR 2 <> (SELECT count(*) FROM invoice_events AS events WHERE events.invoice = invoices.invoice)
"""


def close(url: str, account_batch: int, killed_at: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.pipelines.close_killed", url, str(account_batch), str(killed_at)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    )


def issued(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as reading:
        assert reading.execute(_HALF_WRITTEN).fetchone() == (0,)
        return reading.execute(_HASHES).fetchall()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_close_of_10_000_accounts_killed_at_ten_places_issues_the_same_invoices_with_the_same_hashes(
    database: str, postgres_url: str
) -> None:
    account_batch = ACCOUNTS // TRANSACTIONS
    with fresh_database(postgres_url) as other:
        for url in (other, database):
            with psycopg.connect(url, autocommit=True) as writing:
                fill_catalog(writing, ACCOUNTS)
                fill_month(writing, FIRST, ACCOUNTS, WINDOWS)
        whole = close(other, account_batch)
        assert whole.returncode == 0, whole.stderr
        kibibytes, *writes = map(int, whole.stdout.split())
        expected = issued(other)
    assert (len(expected), len(writes)) == (ACCOUNTS, TRANSACTIONS)
    assert kibibytes < MAX_KIB
    done = [0]
    for number in range(KILLS):
        # In the second transaction while it writes, or in the third.
        killed = close(database, account_batch, writes[1] + 1 + (writes[2] - writes[1]) * number // KILLS)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        found = issued(database)
        assert found == expected[: len(found)]
        done.append(len(found))
    assert all(before < after for before, after in pairwise(done))
    assert ACCOUNTS * 0.9 < done[-1] < ACCOUNTS
    ended = close(database, account_batch)
    assert ended.returncode == 0, ended.stderr
    assert issued(database) == expected
