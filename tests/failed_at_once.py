"""`pytest -p tests.failed_at_once`: each test that fails is named when it does so.

A run with pytest-xdist prints a letter per test, and its names at the end. One that hangs has no end.
"""

from __future__ import annotations

import pytest

LONGEST_CHARS = 300


class FailedAtOnce:
    """Prints a line for each failure, in the process that has the terminal."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for the setup, the call and the teardown of each test, of any worker."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message: str = crash.message if crash else report.longreprtext
            first_line = message.partition("\n")[0][:LONGEST_CHARS]
            self._terminal.write_line(f"\nFailed: {report.nodeid}: {first_line}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Only where there is a terminal: workers have none."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailedAtOnce(terminal), "failed-at-once")
