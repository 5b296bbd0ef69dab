"""`make test` names at its end what failed: of a long log perhaps only the end is kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.everything import MAX_CRASHED, PYTEST, Fault, faults, verdict

ROOT = Path(__file__).parents[2]

TESTS = """
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2, "one is not two\\nin two lines"
@pytest.fixture
def broken(): raise OSError("no space")
def test_cannot_begin(broken): pass
"""


def test_failed_and_blocked_steps_are_named_with_their_reason(tmp_path: Path) -> None:
    file, report = tmp_path / "test_some.py", tmp_path / "others.xml"
    file.write_text(TESTS)
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    subprocess.run([*pytest, f"--rootdir={tmp_path}", f"--junitxml={report}", file], capture_output=True, check=False)
    fails, cannot_begin = (fault.line for fault in faults(report))
    assert fails == "test_some::test_fails: AssertionError: one is not two"
    assert cannot_begin == 'test_some::test_cannot_begin: failed on setup with "OSError: no space"'


def test_a_run_that_ended_without_a_report_is_a_failure(tmp_path: Path) -> None:
    assert [fault.line for fault in faults(tmp_path / "e2e.xml")] == ["e2e: pytest ended without a report"]


HANGS = """
import threading, pytest

@pytest.fixture
def waits():
    yield
    threading.Event().wait()

def test_fails(): assert 1 == 2
def test_hangs_afterwards(waits): pass
def test_passes(): pass
"""


def test_a_test_that_hangs_in_a_fixture_is_named_with_its_stack_and_the_others_are_run(tmp_path: Path) -> None:
    file, report = tmp_path / "test_some.py", tmp_path / "others.xml"
    file.write_text(HANGS)
    _, *arguments = PYTEST
    command = [sys.executable, *arguments, "-o", "faulthandler_timeout=2", "-p", "no:cacheprovider", "-c", "/dev/null"]
    run = subprocess.run(
        [*command, "-n", "1", f"--rootdir={tmp_path}", f"--junitxml={report}", file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Failed: test_some.py::test_fails: assert 1 == 2" in run.stdout
    assert "in waits" in run.stderr, "where it stands"
    assert "crashed while running 'test_some.py::test_hangs_afterwards'" in run.stdout
    assert "2 failed, 2 passed" in run.stdout
    assert [fault.crashed for fault in faults(report)] == [None, "test_some.py::test_hangs_afterwards"]


@pytest.mark.parametrize("passes", [True, False])
def test_only_what_ended_its_worker_is_run_again(passes: bool) -> None:
    fails = Fault("test_some::test_fails", "AssertionError: one is not two")
    hangs = Fault("test_some::test_hangs[a]", "worker 'gw1' crashed while running 'test_some.py::test_hangs[a]'")
    ran: list[str] = []

    def pass_again(tests: Sequence[str]) -> bool:
        ran.extend(tests)
        return passes

    failed, passed_again = verdict([hangs, fails], pass_again)
    assert ran == ["test_some.py::test_hangs[a]"]
    assert failed == ([fails.line] if passes else [fails.line, hangs.line])
    assert passed_again == (ran if passes else [])


def test_where_many_tests_end_their_workers_none_is_run_again_as_others_may_not_have_been_run_at_all() -> None:
    crashed = [
        Fault(f"test_some::test_{number}", f"worker 'gw1' crashed while running 'test_some.py::test_{number}'")
        for number in range(MAX_CRASHED + 1)
    ]
    assert verdict(crashed, lambda _tests: True) == ([fault.line for fault in crashed], [])
