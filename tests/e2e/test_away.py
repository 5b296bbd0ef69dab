"""A broker or a database that is frozen or restarted under traffic is waited for by the very same drivers.

Nothing is lost or doubled, nobody is told that money is in danger, and all of it works soon after they are back.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from urllib.request import urlopen

import psutil
import psycopg
import pytest

from deployment.stack import Stack, running_stack
from metering.vocabulary import ALWAYS, Job
from tests.e2e.metering import Customer, drain, new_customer
from tests.waiting import wait_until

BACK_WITHIN_SECONDS = 60


@pytest.fixture(scope="module")
def customer(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Customer:
    return new_customer(stack, tmp_path_factory.mktemp("catalog"))


def pids(stack: Stack) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for job in ALWAYS:
        process = running_stack(stack.data_dir).process(job).process
        found[job] = None if process is None else process.pid
    return found


def rows(stack: Stack, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(stack.postgres_url) as connection:
        return connection.execute(query).fetchall()


def waits_for(stack: Stack, job: str, cause: str) -> bool:
    """What the driver's own metrics say: the database may be what is away."""
    with urlopen(stack.metrics_urls[job], timeout=10) as answer:
        return f'weir_waiting{{cause="{cause}",job="{job}"}} 1.0' in answer.read().decode()


def requests_billed(stack: Stack, customer: Customer) -> Decimal:
    return customer.billed(stack).get("requests", (Decimal(0), Decimal(0)))[0]


def everything_works(stack: Stack) -> bool:
    try:
        return rows(stack, "SELECT count(*) FROM jobs WHERE state = 'running'") == [(len(ALWAYS),)]
    except psycopg.OperationalError:
        return False


@contextmanager
def undisturbed(stack: Stack, customer: Customer) -> Iterator[None]:
    """What happens inside costs no driver its process or its epoch, ends none, and changes no digit."""
    wait_until(lambda: everything_works(stack), "all four applications working")
    before = pids(stack), rows(stack, "SELECT job, epoch FROM jobs ORDER BY job"), rows(stack, "SELECT * FROM exits")
    with customer.sending(stack):
        yield
        returned = time.monotonic()
        wait_until(lambda: everything_works(stack), "all four applications working again", BACK_WITHIN_SECONDS)
        left = BACK_WITHIN_SECONDS - (time.monotonic() - returned)
        billed = customer.pairs
        wait_until(lambda: requests_billed(stack, customer) > billed, "new traffic being billed", max(5.0, left))
    drain(stack)
    assert customer.billed(stack) == customer.expected()
    assert before == (
        pids(stack),
        rows(stack, "SELECT job, epoch FROM jobs ORDER BY job"),
        rows(stack, "SELECT * FROM exits"),
    )


@contextmanager
def frozen(stack: Stack, server: str) -> Iterator[None]:
    """The server's processes stand still, while their kernel keeps every connection."""
    process = running_stack(stack.data_dir).process(server).process
    assert process is not None
    every = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in every:
        one.suspend()
    try:
        yield
    finally:
        for one in every:
            one.resume()


def restart(stack: Stack, server: str, how: signal.Signals) -> None:
    """End a server so; its supervisor starts it again."""
    process = running_stack(stack.data_dir).process(server).process
    assert process is not None
    os.kill(process.pid, how)
    wait_until(lambda: running_stack(stack.data_dir).process(server).process not in (process, None), "a restart")


def is_told(stack: Stack, job: str, cause: str) -> bool:
    said = "SELECT state, progress ->> 'waiting_for' FROM jobs WHERE job = '{}'"
    try:
        return rows(stack, said.format(job)) == [("waiting", cause)]
    except psycopg.OperationalError:
        return False


@pytest.mark.long
def test_a_frozen_broker_and_a_database_that_is_restarted_meanwhile_are_waited_for(
    stack: Stack, customer: Customer
) -> None:
    with undisturbed(stack, customer), frozen(stack, "broker"):
        wait_until(lambda: waits_for(stack, "ingestion", "kafka"), "ingestion noticing it")
        assert not any(waits_for(stack, job, "kafka") for job in ALWAYS if job is not Job.INGESTION)
        restart(stack, "database", signal.SIGINT)
        wait_until(lambda: is_told(stack, "ingestion", "kafka"), "ingestion saying so to the database that is back")
