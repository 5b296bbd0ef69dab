"""`make test`: the end-to-end tests, and all others beside them with lower priority.

The end-to-end tests wait more than they compute: for triggers, restarts and alerts. They leave half of two cores.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

PYTEST = (sys.executable, "-m", "pytest")
E2E = (*PYTEST, "tests/e2e")
OTHERS = ("nice", "-n", "10", *PYTEST, "-n", "3", "--dist", "loadfile", "--ignore", "tests/e2e")
"""Three workers: two cores are not busy with two, since some tests wait."""


def main() -> int:
    """Run both, and print what the end-to-end tests say once both have ended. 0: all passed."""
    with tempfile.NamedTemporaryFile(prefix="weir-e2e-", suffix=".log") as log:
        print(f"The end-to-end tests run beside the others, and are printed last. Until then: {log.name}", flush=True)
        with subprocess.Popen(E2E, stdout=log, stderr=subprocess.STDOUT) as e2e, subprocess.Popen(OTHERS) as others:
            # Ctrl-C reaches both, which then stop what they have started: that is waited for.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            ended = [others.wait(), e2e.wait()]
        print(Path(log.name).read_text(encoding="utf-8", errors="replace"), flush=True)
    return int(any(ended))


if __name__ == "__main__":
    sys.exit(main())
