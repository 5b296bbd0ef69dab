"""`make long`: the tests that CI leaves out because they take long; writes LONG.md once each of them has passed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).with_name("LONG.md")
HEAD = """\
# What CI leaves out

Written by `make long`, which runs the tests marked `long` on one machine, one after the other. Each takes a
minute or more with its fixtures and is rarely red: what it proves on a whole stack, shorter tests prove of its
parts in `make test`. It is run at the end of each issue.

Commit `{commit}`, {cores} cores: {tests} tests passed in {minutes:.0f} minutes.

| test | seconds |
|---|---:|
"""


class Passed:
    """How long each test took with its fixtures, of those that passed (node id → seconds)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for the setup, the call and the teardown of each test."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    @property
    def is_complete(self) -> bool:
        """Whether every test was run, and none was skipped or failed."""
        return bool(self._passed) and self._passed == self.seconds.keys()


def page(seconds: dict[str, float]) -> str:
    """The page, the slowest test first."""
    asked = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    head = HEAD.format(
        commit=asked.stdout.strip() or "unknown",
        cores=os.cpu_count(),
        tests=len(seconds),
        minutes=sum(seconds.values()) / 60,
    )
    slowest_first = sorted(seconds.items(), key=lambda test: -test[1])
    return head + "".join(f"| `{test.removeprefix('tests/')}` | {took:.0f} |\n" for test, took in slowest_first)


def main(arguments: list[str]) -> int:
    """Run the tests marked `long`, or of these the ones that the arguments select; the exit status is pytest's."""
    passed = Passed()
    status = pytest.main(["-v", "-m", "long", *(arguments or ["tests"])], plugins=[passed])
    if status == pytest.ExitCode.OK and passed.is_complete and not arguments:
        PAGE.write_text(page(passed.seconds), "utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
