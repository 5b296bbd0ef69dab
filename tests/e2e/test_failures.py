"""I11: killed, frozen, doubled or amnesiac drivers change no digit of a bill. Every kind for every job, one stack."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from local.stack import Stack, running_stack
from tests.e2e.metering import Customer, drain, new_customer, wait_until

JOBS = ["ingestion", "joins", "sessionization", "billing"]
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


@pytest.mark.parametrize("job", JOBS)
def test_a_killed_process_group_changes_nothing(stack: Stack, customer: Customer, tmp_path: Path, job: str) -> None:
    customer.send(stack, tmp_path, PAIRS)
    os.killpg(pid_of(stack, job), signal.SIGKILL)
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


@pytest.mark.parametrize("job", JOBS)
def test_a_deleted_checkpoint_changes_nothing(stack: Stack, customer: Customer, tmp_path: Path, job: str) -> None:
    customer.send(stack, tmp_path, PAIRS)
    shutil.rmtree(stack.data_dir / "checkpoints" / job)
    os.killpg(pid_of(stack, job), signal.SIGKILL)
    customer.send(stack, tmp_path, PAIRS)
    assert_bill_is_exact(stack, customer)


@pytest.mark.parametrize("job", JOBS)
def test_two_drivers_at_once_change_nothing(stack: Stack, customer: Customer, tmp_path: Path, job: str) -> None:
    epoch = epoch_of(stack, job)
    with second_driver(stack, job) as second:
        wait_until(lambda: epoch_of(stack, job) > epoch, f"the second {job} taking over")
        customer.send(stack, tmp_path, PAIRS)
        # The supervised one finds itself fenced, is started again, and fences the second.
        wait_until(lambda: second.poll() is not None, f"the second {job} ending")
        assert second.returncode in (1, 4)
    assert_bill_is_exact(stack, customer)


@pytest.mark.parametrize("job", JOBS)
def test_a_frozen_driver_that_wakes_up_changes_nothing(
    stack: Stack, customer: Customer, tmp_path: Path, job: str
) -> None:
    customer.send(stack, tmp_path, PAIRS)
    frozen, epoch = pid_of(stack, job), epoch_of(stack, job)
    os.killpg(frozen, signal.SIGSTOP)
    try:
        with second_driver(stack, job):
            wait_until(lambda: epoch_of(stack, job) > epoch, f"the second {job} taking over")
            customer.send(stack, tmp_path, PAIRS)
            drain(stack)
            os.killpg(frozen, signal.SIGCONT)
            wait_until(lambda: current_pid(stack, job) != frozen, f"the frozen {job} ending")
            customer.send(stack, tmp_path, PAIRS)
            assert_bill_is_exact(stack, customer)
    finally:
        if Path(f"/proc/{frozen}").exists():
            os.killpg(frozen, signal.SIGCONT)


@pytest.mark.parametrize(("job", "table"), [("sessionization", "sessions"), ("billing", "usage_windows")])
def test_a_driver_frozen_inside_its_transaction_does_not_hold_up_its_successor(
    stack: Stack, customer: Customer, tmp_path: Path, job: str, table: str
) -> None:
    frozen, epoch = pid_of(stack, job), epoch_of(stack, job)
    with psycopg.connect(stack.postgres_url) as lock:
        lock.execute(f"LOCK TABLE {table} IN SHARE MODE")
        customer.send(stack, tmp_path, PAIRS)
        with psycopg.connect(stack.postgres_url, autocommit=True) as watcher:
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
            wait_until(lambda: watcher.execute(waiting, [table]).fetchone() == (1,), f"{job} reaching {table}")
        os.killpg(frozen, signal.SIGSTOP)
    try:
        with second_driver(stack, job):
            wait_until(lambda: epoch_of(stack, job) > epoch, f"the second {job} taking over")
            assert_bill_is_exact(stack, customer)
            os.killpg(frozen, signal.SIGCONT)
            wait_until(lambda: current_pid(stack, job) != frozen, f"the frozen {job} ending")
    finally:
        if Path(f"/proc/{frozen}").exists():
            os.killpg(frozen, signal.SIGCONT)
    assert_bill_is_exact(stack, customer)
