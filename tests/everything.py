"""`make test`: the end-to-end tests, and all others beside them with lower priority.

The end-to-end tests wait more than they compute: for triggers, restarts and alerts. They leave half of two cores.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import psutil

HANGS_SECONDS = 1_200
"""Of a test with its fixtures. `timeout` in pyproject.toml is shorter, but bounds neither fixtures nor what waits in C:
one test that hung in a worker once took all of CI's time, and had no name."""
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


def failures(junit: Path) -> list[str]:
    """`file::test: message` of each test that failed, or could not begin, by pytest's report in JUnit's format."""
    if not junit.exists():
        return [f"{junit.stem}: pytest ended without a report"]
    faults = [
        (test, fault)
        for test in ET.parse(junit).iter("testcase")
        for fault in [*test.findall("failure"), *test.findall("error")]
    ]
    return [
        f"{test.get('classname', '').replace('.', '/')}::{test.get('name')}: {_first_line(fault.get('message', ''))}"
        for test, fault in faults
    ]


def _first_line(message: str) -> str:
    return message.partition("\n")[0][:200]


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
            ended = [others.wait(), e2e.wait()]
            meters.append(Meter.read())
        print(log.read_text(encoding="utf-8", errors="replace"))
        # Of a long log perhaps only the end is kept.
        failed = [line for report in reports for line in failures(report)]
    both, one = (before.until(after) for before, after in pairwise(meters))
    print(f"{both} with the end-to-end tests beside the others, {one} with one of them alone.")
    print("\n".join(["Failed:", *failed] if failed else []), flush=True)
    return int(any(ended))


if __name__ == "__main__":
    sys.exit(main())
