"""This version writes, with the roles of its applications and as its owner, on the next one's schema as on its own.

Each table has two more columns there, one with a default (`tests/next_release.py`). The tests are those of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ("test_activity_log.py", "test_catalog_store.py", "test_job_roles.py")
MIGRATE = "not older_release and not second_migration"
"""Tests that migrate by themselves: this version's migrations do not end at that schema."""


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("module", MODULES)
def test_its_tests_pass_on_the_schema_of_the_next_release(module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", MIGRATE, f"tests/pipelines/{module}"],
        cwd=ROOT,
        env={**os.environ, "WEIR_TESTS_AHEAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    assert " passed" in ended.stdout
