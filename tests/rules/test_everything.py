"""`make test` names at its end what failed: of a long log perhaps only the end is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.everything import failures

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
    fails, cannot_begin = failures(report)
    assert fails == "test_some::test_fails: AssertionError: one is not two"
    assert cannot_begin == 'test_some::test_cannot_begin: failed on setup with "OSError: no space"'


def test_a_run_that_ended_without_a_report_is_a_failure(tmp_path: Path) -> None:
    assert failures(tmp_path / "e2e.xml") == ["e2e: pytest ended without a report"]
