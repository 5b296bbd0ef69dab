"""`make test`: the end-to-end tests, and all others beside them with lower priority.

The end-to-end tests wait more than they compute: for triggers, restarts and alerts. They leave half of two cores.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import psutil
import pytest

HANGS_SECONDS = 1_200
"""Of a test with its fixtures. `timeout` in pyproject.toml is shorter, but bounds neither fixtures nor what waits in C:
one test that hung in a worker once took all of CI's time, and had no name."""
MAX_CRASHED = 3
"""Tests that are run again. More have one cause, and pytest-xdist gives up after twelve: then others were not run."""
BOUNDED = ("-o", f"faulthandler_timeout={HANGS_SECONDS}", "-o", "faulthandler_exit_on_timeout=true")
"""Prints where each thread stands, and ends the process: pytest-xdist names the test, and starts another worker."""
PYTEST = (sys.executable, "-m", "pytest", *BOUNDED, "-p", "tests.failed_at_once")
E2E = (*PYTEST, "--durations", "20", "--durations-min", "10", "tests/e2e")
SHARED = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
"""Three workers: two cores are not busy with two, since some tests wait. Which file is next: `tests.turns`."""
LISTED = ("--durations", "40", "--durations-min", "5")
OTHERS = ("nice", "-n", "5", *PYTEST, *SHARED, *LISTED, "--ignore", "tests/e2e")


@dataclass(frozen=True)
class Meter:
    """What the machine had done at a time."""

    seconds: float
    idle: float
    """Seconds, of all cores."""

    @classmethod
    def read(cls) -> Meter:
        """Now."""
        idle = psutil.cpu_times().idle + getattr(psutil.cpu_times(), "iowait", 0.0)
        return cls(time.monotonic(), idle)

    def until(self, later: Meter) -> str:
        """How much of it was left unused until then, in words."""
        seconds = later.seconds - self.seconds
        share = (later.idle - self.idle) / max(seconds * (psutil.cpu_count() or 1), 1e-9)
        return f"{share:.0%} of the cores were idle in {seconds:,.0f} s"


@dataclass(frozen=True)
class Fault:
    """A test that failed, or could not begin. `test`: `file::test`; `message`: whole."""

    test: str
    message: str

    @property
    def crashed(self) -> str | None:
        """The id of the test that ended its worker: by a crash, or by standing still (HANGS_SECONDS)."""
        found = _CRASHED.search(self.message)
        return None if found is None else found[1]

    @property
    def line(self) -> str:
        """As it is printed."""
        first, _, _ = self.message.partition("\n")
        return f"{self.test}: {first[:200]}"


_CRASHED = re.compile(r"worker 'gw\d+' crashed while running '(.+)'", re.DOTALL)


def faults(junit: Path) -> list[Fault]:
    """What failed by pytest's report in JUnit's format."""
    if not junit.exists():
        return [Fault(junit.stem, "pytest ended without a report")]
    return [
        Fault(f"{test.get('classname', '').replace('.', '/')}::{test.get('name')}", fault.get("message", ""))
        for test in ET.parse(junit).iter("testcase")
        for fault in [*test.findall("failure"), *test.findall("error")]
    ]


def verdict(found: Sequence[Fault], pass_again: Callable[[Sequence[str]], bool]) -> tuple[list[str], list[str]]:
    """Lines of what failed, and the tests that ended their worker and passed when they were run again, by themselves.

    What failed is not run again, nor are more than MAX_CRASHED. A test that stood still has said nothing of what it
    promises, and left its stack.
    """
    crashed = [test for fault in found if (test := fault.crashed) is not None]
    failed = [fault.line for fault in found if fault.crashed is None]
    if 0 < len(crashed) <= MAX_CRASHED and pass_again(crashed):
        return failed, crashed
    return [*failed, *(fault.line for fault in found if fault.crashed is not None)], []


def _pass_again(tests: Sequence[str]) -> bool:
    print(f"{len(tests)} tests ended their worker. They are run again:", flush=True)
    return subprocess.run([*PYTEST, *tests], check=False).returncode == 0


def main() -> int:
    """Run both, print what the end-to-end tests say once both have ended, and last what failed. 0: all passed."""
    with tempfile.TemporaryDirectory(prefix="weir-tests-") as folder:
        log, reports = Path(folder, "e2e.log"), [Path(folder, f"{name}.xml") for name in ("others", "e2e")]
        print(f"The end-to-end tests run beside the others, and are printed last. Until then: {log}", flush=True)
        others_command, e2e_command = (
            [*command, f"--junitxml={report}"] for command, report in zip((OTHERS, E2E), reports, strict=True)
        )
        with (
            log.open("wb") as output,
            subprocess.Popen(e2e_command, stdout=output, stderr=subprocess.STDOUT) as e2e,
            subprocess.Popen(others_command) as others,
        ):
            # Ctrl-C reaches both, which then stop what they have started: that is waited for.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            meters = [Meter.read()]
            while e2e.poll() is None and others.poll() is None:
                time.sleep(1)
            meters.append(Meter.read())
            of_others, of_e2e = others.wait(), e2e.wait()
            meters.append(Meter.read())
        print(log.read_text(encoding="utf-8", errors="replace"))
        # Of a long log perhaps only the end is kept.
        failed, passed_again = verdict([fault for report in reports for fault in faults(report)], _pass_again)
    both, one = (before.until(after) for before, after in pairwise(meters))
    print(f"{both} with the end-to-end tests beside the others, {one} with one of them alone.")
    if passed_again:
        print("\n".join(["Stood still or crashed (see the stack above), and passed when run again:", *passed_again]))
    print("\n".join(["Failed:", *failed] if failed else []), flush=True)
    # A run that was interrupted, or had an error of its own, has tests that nobody ran.
    has_ended = of_others == pytest.ExitCode.OK or (of_others == pytest.ExitCode.TESTS_FAILED and bool(passed_again))
    return int(bool(failed) or of_e2e != 0 or not has_ended)


if __name__ == "__main__":
    sys.exit(main())
