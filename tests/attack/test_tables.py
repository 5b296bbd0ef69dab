"""Tables that are rolled back or replaced under a running stack: nobody goes on from a position of another table."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from deployment.stack import Stack
from metering.vocabulary import ALWAYS
from tests.e2e.metering import drain, new_customer
from tests.e2e.test_failures import frozen_drivers
from tests.e2e.watched import works_again
from tests.waiting import wait_until

pytestmark = [pytest.mark.attack, pytest.mark.timeout(900)]
FOLDING = ("sessionization", "billing")
PAIRS = 60


def refusals(stack: Stack, job: str) -> int:
    with psycopg.connect(stack.postgres_url) as connection:
        row = connection.execute("SELECT count(*) FROM exits WHERE job = %s AND how = 'refused'", [job]).fetchone()
    assert row is not None
    return int(row[0])


def has_refused_again(stack: Stack, job: str, before: int) -> bool:
    return refusals(stack, job) > before


@contextmanager
def tables_changed(stack: Stack) -> Iterator[Path]:
    """All drivers are frozen while the block changes the folder; then they are killed, and started again."""
    with frozen_drivers(stack, ALWAYS) as frozen:
        yield Path(stack.tables)
        for pid in frozen.values():
            os.killpg(pid, signal.SIGKILL)


def wait_for_refusals(stack: Stack) -> None:
    """Both folding jobs refuse, also when the table has had time to grow past what they had folded."""
    for _ in range(3):
        before = {job: refusals(stack, job) for job in FOLDING}
        for job in FOLDING:
            wait_until(partial(has_refused_again, stack, job, before[job]), f"{job} refusing")


@pytest.mark.parametrize("change", ["rolled back", "replaced"])
def test_a_bill_stops_while_its_tables_are_replaced_and_continues_when_restored(
    stack: Stack, tmp_path: Path, change: str
) -> None:
    customer = new_customer(stack, tmp_path)
    customer.send(stack, tmp_path, PAIRS)
    drain(stack)
    other = tmp_path / "other"
    with frozen_drivers(stack, ALWAYS):
        if change == "rolled back":
            shutil.copytree(stack.tables, other)
        else:
            other.mkdir()
    customer.send(stack, tmp_path, PAIRS)
    drain(stack)
    billed = customer.billed(stack)
    assert billed == customer.expected()
    newest = tmp_path / "newest"
    with tables_changed(stack) as tables:
        shutil.move(tables, newest)
        shutil.move(other, tables)
    wait_for_refusals(stack)
    assert customer.billed(stack) == billed, "what was billed already was billed again, or not at all"
    with tables_changed(stack) as tables:
        shutil.rmtree(tables)
        shutil.move(newest, tables)
    for job in ALWAYS:
        wait_until(partial(works_again, stack, job, 0), f"{job} being started again", seconds=180)
    customer.send(stack, tmp_path, PAIRS)
    drain(stack)
    assert customer.billed(stack) == customer.expected()
