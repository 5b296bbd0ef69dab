"""`python -m tests.quarter`: a quarter of 100,000 records beside its truth; writes RESULT.md when all is equal."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from tests.quarter.generate import generated
from tests.quarter.result import page
from tests.quarter.run import lived, measured

RESULT = Path(__file__).parent / "RESULT.md"
MAX_SHOWN = 20


def main() -> int:
    """Run a quarter; 0 when all of it is as its truth says."""
    parser = argparse.ArgumentParser(prog="python -m tests.quarter", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which quarter is drawn")
    parser.add_argument("--events", type=int, default=100_000, help="how many records")
    parser.add_argument("--turn-hours", type=float, default=8, help="how much time passes between two turns")
    parser.add_argument("--audit-days", type=float, default=7, help="how often an audit corrects what it can")
    options = parser.parse_args()
    git = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
    truth = generated(options.seed, options.events)
    print(f"{len(truth.records):,} records, {len(truth.changes)} changes of the catalog", flush=True)
    turn, audit_every = timedelta(hours=options.turn_hours), timedelta(days=options.audit_days)
    begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="weir-quarter-") as folder,
        lived(truth, Path(folder), turn, audit_every, lambda said: print(said, flush=True)) as quarter,
    ):
        print("it is over; what there is is compared", flush=True)
        result = measured(quarter)
        result.seconds = time.monotonic() - begun
    for each in result.cells:
        print(f"{each.cells:>9,} cells, {len(each.wrong)} wrong: {each.what}")
    print(f"{result.closed_windows:>9,} windows since they closed, {result.unexplained} not explained")
    for wrong in result.wrong[:MAX_SHOWN]:
        print(f"WRONG {wrong}")
    if result.wrong:
        print(f"{len(result.wrong)} wrong in seed {options.seed}")
        return 1
    RESULT.write_text(page(truth, result, git.stdout.strip(), os.cpu_count() or 1))
    print(f"all is equal, to the last digit; {result.seconds:.0f} s; {RESULT.name} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
