"""`make long`: the tests that CI leaves out because they take long; writes LONG.md once each of them has passed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).with_name("LONG.md")
PARTS = [["-n", "2", "--dist", "loadfile", "--ignore", "tests/e2e", "tests"], ["tests/e2e"]]
"""As `make test` runs its own."""
HEAD = """\
# What CI leaves out

Written by `make long`, which runs the tests marked `long`, two at a time where they need no running stack.
Together they take longer than CI has, and they are rarely red: what they prove on a whole stack or over more
histories, shorter tests prove of parts and of fewer in `make test`. It is run at the end of each issue.

Commit `{commit}`, {cores} cores: {tests} tests passed; their times add up to {minutes:.0f} minutes.

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
    parts = [arguments] if arguments else PARTS
    statuses = [pytest.main(["-v", "-m", "long", *part], plugins=[passed]) for part in parts]
    if not arguments and not any(statuses) and passed.is_complete:
        PAGE.write_text(page(passed.seconds), "utf-8")
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
