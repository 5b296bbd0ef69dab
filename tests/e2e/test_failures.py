"""I11: killed, frozen, doubled or amnesiac drivers change no digit of a bill. Every kind for every job, one stack.

Two jobs suffer at once. A start costs more than all else here, so what may suffer in one start does: a killed driver
loses its checkpoint too, and a frozen one wakes up beside a second one, which then meets the next of the supervisor's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from deployment.stack import Stack, running_stack
from jobs.runtime.errors import ExitStatus
from tests.e2e.metering import Customer, drain, freeze, new_customer
from tests.waiting import wait_until

PAIRS = 60


@pytest.fixture(scope="module")
def customer(stack: Stack, truth_of_traffic: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Customer:
    assert truth_of_traffic["totals"], "traffic of every kind waits for its decisions while drivers are killed"
    return new_customer(stack, tmp_path_factory.mktemp("catalog"))


def current_pid(stack: Stack, job: str) -> int | None:
    """None between the end of a driver and the start of the next."""
    process = running_stack(stack.data_dir).process(job).process
    return None if process is None else process.pid


def pid_of(stack: Stack, job: str) -> int:
    wait_until(lambda: current_pid(stack, job) is not None, f"{job} being started again")
    pid = current_pid(stack, job)
    assert pid is not None
    return pid


def epoch_of(stack: Stack, job: str) -> int:
    with psycopg.connect(stack.postgres_url) as connection:
        row = connection.execute("SELECT epoch FROM jobs WHERE job = %s", [job]).fetchone()
    assert row is not None
    return int(row[0])


def has_left(stack: Stack, job: str, pid: int) -> bool:
    return current_pid(stack, job) != pid


def has_a_later_epoch(stack: Stack, job: str, epoch: int) -> bool:
    return epoch_of(stack, job) > epoch


def has_ended(driver: subprocess.Popen[bytes]) -> bool:
    return driver.poll() is not None


def somebody_waits_for(watcher: psycopg.Connection[Any], table: str) -> bool:
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
    return watcher.execute(waiting, [table]).fetchone() == (1,)


@contextmanager
def second_driver(stack: Stack, job: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another driver of the same job, started by hand beside the supervised one."""
    supervised = Path(f"/proc/{pid_of(stack, job)}/environ").read_bytes().split(b"\0")
    environment = {k.decode(): v.decode() for k, _, v in (pair.partition(b"=") for pair in supervised if pair)}
    log = (stack.data_dir / "logs" / f"{job}.second.log").open("ab")
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs", job, "--config", str(stack.data_dir / "config" / f"{job}.yaml")],
        env={**environment, "WEIR_METRICS_PORT": "0"},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def assert_bill_is_exact(stack: Stack, customer: Customer) -> None:
    drain(stack)
    assert customer.billed(stack) == customer.expected()


def are_fenced(second: dict[str, subprocess.Popen[bytes]]) -> None:
    """Wait until second drivers have ended: the supervisor has started the next, which they find in their place."""
    for job, driver in second.items():
        wait_until(partial(has_ended, driver), f"the second {job} ending")
    ends = {job: driver.returncode for job, driver in second.items()}
    assert ends == dict.fromkeys(second, ExitStatus.FENCED)


def kill(stack: Stack, jobs: tuple[str, ...]) -> None:
    for job in jobs:
        os.killpg(pid_of(stack, job), signal.SIGKILL)


@contextmanager
def frozen_drivers(stack: Stack, jobs: tuple[str, ...]) -> Iterator[dict[str, int]]:
    """The pids of drivers that are frozen now; what still is at the end is woken."""
    frozen = {job: pid_of(stack, job) for job in jobs}
    for pid in frozen.values():
        freeze(pid)
    try:
        yield frozen
    finally:
        for pid in frozen.values():
            if Path(f"/proc/{pid}").exists():
                os.killpg(pid, signal.SIGCONT)


def wake(stack: Stack, frozen: dict[str, int]) -> None:
    """Wake drivers that have successors: each finds that out and ends."""
    for pid in frozen.values():
        os.killpg(pid, signal.SIGCONT)
    for job, pid in frozen.items():
        wait_until(partial(has_left, stack, job, pid), f"the frozen {job} ending")


@contextmanager
def second_drivers(stack: Stack, jobs: tuple[str, ...]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Second drivers that have taken over."""
    epochs = {job: epoch_of(stack, job) for job in jobs}
    with ExitStack() as running:
        second = {job: running.enter_context(second_driver(stack, job)) for job in jobs}
        for job, epoch in epochs.items():
            wait_until(partial(has_a_later_epoch, stack, job, epoch), f"the second {job} taking over")
        yield second


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("jobs", [("ingestion", "billing"), ("joins", "sessionization")], ids=" and ".join)
def test_killed_process_groups_that_find_their_checkpoints_deleted_change_nothing(
    stack: Stack, customer: Customer, tmp_path: Path, jobs: tuple[str, ...]
) -> None:
    customer.send(stack, tmp_path, PAIRS)
    for job in jobs:
        # Stopped first: what writes to a folder keeps it from being deleted.
        freeze(pid_of(stack, job))
        shutil.rmtree(stack.data_dir / "checkpoints" / job)
    kill(stack, jobs)
    customer.send(stack, tmp_path, PAIRS)
    assert_bill_is_exact(stack, customer)


def test_a_driver_whose_java_ends_is_started_again(stack: Stack, customer: Customer, tmp_path: Path) -> None:
    """As Java does when it runs out of memory."""
    customer.send(stack, tmp_path, PAIRS)
    driver = pid_of(stack, "joins")
    (java,) = [child for child in psutil.Process(driver).children(recursive=True) if child.name() == "java"]
    java.kill()
    wait_until(lambda: current_pid(stack, "joins") not in (driver, None), "joins being started again")
    customer.send(stack, tmp_path, PAIRS)
    assert_bill_is_exact(stack, customer)


@pytest.mark.long
def test_revived_and_duplicate_drivers_change_no_total(stack: Stack, customer: Customer, tmp_path: Path) -> None:
    """Those that write tables; the transaction of those that write to the database is the next test's."""
    jobs = ("ingestion", "joins")
    customer.send(stack, tmp_path, PAIRS)
    with frozen_drivers(stack, jobs) as frozen, second_drivers(stack, jobs) as second:
        customer.send(stack, tmp_path, PAIRS)
        drain(stack)
        wake(stack, frozen)
        customer.send(stack, tmp_path, PAIRS)
        are_fenced(second)
    assert_bill_is_exact(stack, customer)


@pytest.mark.long
def test_drivers_frozen_inside_a_transaction_do_not_hold_up_their_successors_and_change_nothing(
    stack: Stack, customer: Customer, tmp_path: Path
) -> None:
    tables = {"sessionization": "sessions", "billing": "usage_windows"}
    with ExitStack() as freezing:
        with psycopg.connect(stack.postgres_url) as lock:
            lock.execute(f"LOCK TABLE {', '.join(tables.values())} IN SHARE MODE")
            customer.send(stack, tmp_path, PAIRS)
            with psycopg.connect(stack.postgres_url, autocommit=True) as watcher:
                for job, table in tables.items():
                    wait_until(partial(somebody_waits_for, watcher, table), f"{job} reaching {table}")
            frozen = freezing.enter_context(frozen_drivers(stack, tuple(tables)))
        with second_drivers(stack, tuple(tables)) as second:
            assert_bill_is_exact(stack, customer)
            wake(stack, frozen)
            customer.send(stack, tmp_path, PAIRS)
            are_fenced(second)
    assert_bill_is_exact(stack, customer)
