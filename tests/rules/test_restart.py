"""A driver that crashed is started again in its pod; one that ended by its own decision, or was asked to, is not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from jobs.restart import DECIDED

ENDS = """
import pathlib, sys
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
statuses = sys.argv[2:]
sys.exit(int(statuses[len(starts.read_text()) - 1]))
"""
WAITS = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("runs", flush=True)
time.sleep(600)
"""


def keeping(*program: str) -> list[str]:
    return [sys.executable, "-m", "jobs.restart", sys.executable, "-c", *program]


@pytest.mark.parametrize("status", DECIDED)
def test_a_crash_is_followed_by_a_start_and_a_decision_by_the_end(status: int, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    ran = subprocess.run(keeping(ENDS, str(starts), "1", str(status)), capture_output=True, timeout=60, check=False)
    assert ran.returncode == status
    assert starts.read_text() == "xx"


def test_after_many_crashes_in_a_row_its_pod_ends_as_another_one_reads_the_secrets_anew(tmp_path: Path) -> None:
    """The variables of a pod are those of its start: in it, a password that was changed stays the wrong one."""
    starts = tmp_path / "starts"
    program = [sys.executable, "-c", ENDS, str(starts), "1", "1", "1"]
    keeper = f"import sys; from jobs.restart import keep_running; sys.exit(keep_running({program!r}, max_crashes=3))"
    ran = subprocess.run([sys.executable, "-c", keeper], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert starts.read_text() == "xxx"
    assert "3 times in a row" in ran.stderr


def test_a_stopped_launcher_passes_the_signal_on_and_leaves_no_process_behind() -> None:
    with subprocess.Popen(keeping(WAITS), stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "runs\n"
        below = psutil.Process(keeper.pid).children(recursive=True)
        assert len(below) == 2
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(timeout=60) == 128 + signal.SIGTERM
        gone, left = psutil.wait_procs(below, timeout=60)
        assert left == []
        assert len(gone) == 2


def test_a_hangup_ends_the_driver_and_starts_it_again_at_once() -> None:
    with subprocess.Popen(keeping(WAITS), stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        for _ in range(4):
            assert keeper.stdout.readline() == "runs\n"
            before = psutil.Process(keeper.pid).children()
            keeper.send_signal(signal.SIGHUP)
            gone, left = psutil.wait_procs(before, timeout=60)
            assert (len(gone), left) == (1, [])
        assert keeper.stdout.readline() == "runs\n"
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(timeout=60) == 128 + signal.SIGTERM


def test_a_signal_between_two_starts_ends_it_at_once(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    crashes = ["1"] * 9
    with subprocess.Popen(keeping(ENDS, str(starts), *crashes), stderr=subprocess.DEVNULL) as keeper:
        deadline = time.monotonic() + 120
        while len(starts.read_text() if starts.exists() else "") < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(timeout=60) is not None
