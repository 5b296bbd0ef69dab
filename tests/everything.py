"""`make test`: the end-to-end tests, and all others beside them with lower priority.

The end-to-end tests wait more than they compute: for triggers, restarts and alerts. They leave half of two cores.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

PYTEST = (sys.executable, "-m", "pytest")
E2E = (*PYTEST, "tests/e2e")
OTHERS = ("nice", "-n", "5", *PYTEST, "-n", "3", "--dist", "loadfile", "--ignore", "tests/e2e")
"""Three workers: two cores are not busy with two, since some tests wait."""


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
            ended = [others.wait(), e2e.wait()]
        print(log.read_text(encoding="utf-8", errors="replace"))
        # Of a long log perhaps only the end is kept.
        failed = [line for report in reports for line in failures(report)]
    print("\n".join(["Failed:", *failed] if failed else []), flush=True)
    return int(any(ended))


if __name__ == "__main__":
    sys.exit(main())
